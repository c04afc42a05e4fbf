"""Options that mean the same on every command, and the help that shows few of them first."""

from __future__ import annotations

import functools
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import click

from fleetmem.controller.answer.step import Reach
from fleetmem.controller.cli.kit.values import span
from fleetmem.controller.errors import UsageError

FANOUT = 64
TIMEOUT_SECONDS = 60.0
OUTPUTS = ("table", "json", "jsonl", "csv")
PICTURE = "svg"
WIDE = "wide"


@dataclass(frozen=True, slots=True)
class Common:
    """The values of the common options; for a command without hosts those of hosts are empty."""

    output: str
    to: str | None
    quiet: bool
    debug: bool
    hosts: str = ""
    exclude: str = ""
    inventory: str | None = None
    fanout: int = FANOUT
    timeout_seconds: float = TIMEOUT_SECONDS
    fail_on: str = "never"
    accept_new_host_key: bool = False
    ask_sudo_password: bool = False

    @property
    def reach(self) -> Reach:
        """What a later command must repeat to reach the same hosts."""
        return Reach(self.inventory, self.ask_sudo_password)


class Option(click.Option):
    """An option with its place in the help: first, as usual, or under "Advanced"."""

    def __init__(self, *args: Any, place: str = "usual", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.place = place


class Command(click.Command):
    """A command whose help has the options people need first, and whose answer to a word too many
    is how hosts are named."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As click does; UsageError where hosts are missing, or stand where none are taken, and
        where an option that takes one value has several: the last would win in silence."""
        given = list(args)
        try:
            rest = super().parse_args(ctx, args)
            self._refuse_repeated(ctx, given)
            return rest
        except click.UsageError as error:
            wanted = type(error) is click.UsageError  # a word too many; others have their own type
            if isinstance(error, click.MissingParameter) and error.param is not None:
                wanted = error.param.name == "hosts"
            if not wanted or not any(one.name == "hosts" for one in self.params):
                raise
            values, words, _ = self.make_parser(ctx).parse_args(given)
            more, hosts = values.get("more"), values.get("hosts")  # click's own mark where absent
            words += more if isinstance(more, (list, tuple)) else ()
            if words:
                named = ",".join(hosts) if isinstance(hosts, (list, tuple)) else ""
                raise word_too_many(ctx, words, named) from None
            if not isinstance(error, click.MissingParameter):
                raise
            raise UsageError(error.format_message(), _hosts_hint(ctx, "gh200-*")) from None

    def _refuse_repeated(self, ctx: click.Context, args: list[str]) -> None:
        """UsageError where an option without room for several values stands more than once."""
        if ctx.resilient_parsing:
            return
        _, _, order = self.make_parser(ctx).parse_args(args)
        seen: set[str] = set()
        for one in order:
            if not isinstance(one, click.Option) or one.multiple or one.is_flag:
                continue
            if one.name in seen:
                raise UsageError(
                    f"{max(one.opts, key=len)} was given more than once, but takes one value"
                )
            seen.add(one.name or "")

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Two lists: options, then the advanced ones."""
        lists: dict[str, list[tuple[str, str]]] = {"first": [], "usual": [], "advanced": []}
        for parameter in self.get_params(ctx):
            if isinstance(parameter, click.Argument):
                continue  # the usage line has it, the text above says what it is
            is_help = "--help" in parameter.opts
            place = "advanced" if is_help else getattr(parameter, "place", "usual")
            record = parameter.get_help_record(ctx)
            if record is not None:
                lists[place].append(record)
        for title, records in (
            ("Options", lists["first"] + lists["usual"]),
            ("Advanced", lists["advanced"]),
        ):
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)


def word_too_many(ctx: click.Context, words: Sequence[str], hosts: str | None = None) -> UsageError:
    """*words* stand where none are taken, beside *hosts*: most likely hosts as other tools take
    them."""
    named = ",".join([hosts, *words] if hosts else words)
    many = "an unexpected argument" if len(words) == 1 else "unexpected arguments"
    return UsageError(f"got {many}: {' '.join(words)}", _hosts_hint(ctx, named))


def _hosts_hint(ctx: click.Context, hosts: str) -> str:
    return f"hosts are named with -H: {ctx.command_path} -H {shlex.quote(hosts)}"


def option(*names: str, **settings: Any) -> Callable[[Any], Any]:
    """A click option of our kind; ``place="advanced"`` moves it down in the help."""
    return click.option(*names, cls=Option, **settings)


def common(
    *,
    hosts: Literal["required", "optional", "named"] | None,
    picture: bool = False,
    wide: bool = False,
) -> Callable[[Any], Any]:
    """Give a command the common options as one :class:`Common`, its first argument.

    *hosts* says whether it has ``-H`` and all that belongs to contacting hosts; ``named``
    is for a command that checks itself whether ``-H`` is needed. *picture*: its answer can be
    drawn, so ``-o svg`` is there, too. *wide*:
    its screen can show more, so ``-o wide`` is there.
    """

    def decorate(function: Callable[..., int]) -> Any:
        @functools.wraps(function)
        def call(**values: Any) -> int:
            shared = {name: values.pop(name) for name in list(values) if name in Common.__slots__}
            return function(Common(**shared), **values)

        decorated: Any = call
        chosen = [*_host_options(hosts)] if hosts else []
        for add in reversed([*chosen, *_output_options(picture, wide)]):
            decorated = add(decorated)
        return decorated

    return decorate


def joined(_ctx: click.Context, parameter: click.Parameter, values: Sequence[str]) -> str | None:
    """The values of a repeated option as one text with commas, None where it was not given.

    An empty value is refused: a variable that is not set must not name nobody, or everybody.
    """
    if not all(value.strip() for value in values):
        raise UsageError(f"{max(parameter.opts, key=len)}: the value is empty")
    return ",".join(values) if values else None


def _hosts(ctx: click.Context, parameter: click.Parameter, values: Sequence[str]) -> str:
    return joined(ctx, parameter, values) or ""


_HOSTS_SETTINGS: dict[str, dict[str, Any]] = {
    "required": {"required": True},
    "optional": {"default": ("@all",), "show_default": True},
    "named": {},
}


def _host_options(hosts: str) -> list[Callable[[Any], Any]]:
    return [
        option(
            "-H",
            "--hosts",
            metavar="HOSTS",
            multiple=True,
            callback=_hosts,
            place="first",
            help="gh200-[01-16], 'gh200-*', @group, user@host:port, @run:ID:failed; "
            "comma-separated, &HOSTS intersects, !HOSTS excludes; repeatable.",
            **_HOSTS_SETTINGS[hosts],
        ),
        option(
            "-x",
            "--exclude",
            metavar="HOSTS",
            multiple=True,
            callback=_hosts,
            place="first",
            help="Exclude these hosts, whatever name or address -H gives them; repeatable.",
        ),
        option(
            "-i",
            "--inventory",
            metavar="FILE",
            place="advanced",
            help="Inventory file; default: $FLEETMEM_INVENTORY, ./inventory.yaml, your own, /etc.",
        ),
        option(
            "--fanout",
            type=click.IntRange(1, 4096),
            default=FANOUT,
            show_default=True,
            envvar="FLEETMEM_FANOUT",
            place="advanced",
            help="Limit hosts in parallel.",
        ),
        option(
            "--timeout",
            "timeout_seconds",
            type=span,
            metavar="SPAN",
            default=TIMEOUT_SECONDS,
            envvar="FLEETMEM_TIMEOUT",
            place="advanced",
            help="Limit for connecting to and reading one host, such as 90s or 5m.  [default: 1m]",
        ),
        option(
            "--fail-on",
            type=click.Choice(["never", "info", "warn", "critical"]),
            default="never",
            show_default=True,
            place="advanced",
            help="Exit with 5 if any finding is at least this severe.",
        ),
        option(
            "--accept-new-host-key",
            is_flag=True,
            place="advanced",
            help="Trust and store the keys of hosts not seen before.",
        ),
        option(
            "--ask-sudo-password",
            is_flag=True,
            place="advanced",
            help="Ask once for the sudo password of hosts with sudo: true.",
        ),
    ]


def _output_options(picture: bool, wide: bool) -> list[Callable[[Any], Any]]:
    return [
        option(
            "-o",
            "--output",
            type=click.Choice(
                [*OUTPUTS, *([WIDE] if wide else []), *([PICTURE] if picture else [])]
            ),
            default="table",
            show_default=True,
            envvar="FLEETMEM_OUTPUT",
            help="Output format.",
        ),
        option("--to", metavar="FILE", place="advanced", help="Write output to FILE."),
        option(
            "-q", "--quiet", is_flag=True, place="advanced", help="Suppress progress and notes."
        ),
        option("--debug", is_flag=True, place="advanced", help="Show tracebacks."),
    ]
