"""What a person should run next, as data: a command is built, completed and written here. Pure.

Screens and the envelope show steps as text. ``read`` is the exact inverse of ``str``, so a
recorded command can be folded over hosts or completed without searching in a sentence.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fleetmem.controller.answer.envelope import Envelope, HostEntry

PROGRAM = "fleetmem"
_LOG_VERBS = (("logs",), ("audit", "startup"))
_OPERATORS = frozenset("|&;<>\n")

Option = tuple[str, ...]
"""The name of an option and its values: ``("--gpu", "0")``, ``("--dry-run",)``."""


@dataclass(frozen=True, slots=True)
class Step:
    """One command of fleetmem. ``verb`` has the words before any option, ``hosts`` is what
    stands after ``-H``."""

    verb: tuple[str, ...]
    hosts: str | None = None
    options: tuple[Option, ...] = ()

    def __str__(self) -> str:
        return " ".join(" ".join(part) for part in self.parts())

    def parts(self) -> list[list[str]]:
        """The command in quoted words, an option together with its values."""
        found = [[PROGRAM, *map(shlex.quote, self.verb)]]
        where = [("-H", self.hosts)] if self.hosts is not None else []
        reach = [one for one in self.options if one[0] in _REACH]
        rest = [one for one in self.options if one[0] not in _REACH]
        return found + [_written(one) for one in (*reach, *where, *rest)]

    @property
    def contacts(self) -> bool:
        """Whether running it connects to hosts: then it needs to know how they are reached."""
        return self.hosts is not None or any(name == "--apply" for name, *_ in self.options)

    @property
    def bare(self) -> Step:
        """The command without what says how hosts are reached."""
        return replace(self, options=tuple(one for one in self.options if one[0] not in _REACH))

    def has(self, *names: str) -> bool:
        """Whether one of the options *names* is given."""
        return any(one[0] in names for one in self.options)


_REACH = ("-i", "--ask-sudo-password")


@dataclass(frozen=True, slots=True)
class Reach:
    """How this run reached its hosts and chose their logs: what a later command must repeat."""

    inventory: str | None = None
    ask_sudo_password: bool = False
    logs: tuple[Option, ...] = ()
    engine: str | None = None


DIRECT = Reach()
"""Nothing to repeat."""


def next_step(verb: str, hosts: str | None = None, **options: object) -> Step:
    """A step from plain values: ``next_step("reclaim", "a1", gpu=0, dry_run=True)``.

    ``True`` is a flag, ``None`` and ``False`` leave an option out, a tuple or list gives it
    several values.
    """
    found: list[Option] = []
    for name, value in options.items():
        if value is None or value is False:
            continue
        values = value if isinstance(value, (tuple, list)) else () if value is True else (value,)
        found.append((f"--{name.replace('_', '-')}", *map(str, values)))
    return Step(tuple(verb.split()), hosts, tuple(found))


def read(text: str) -> Step | None:
    """The step that *text* was written from; ``None`` for another program's command."""
    try:
        words = shlex.split(text)
    except ValueError:
        return None
    if not words or words[0] != PROGRAM or not _OPERATORS.isdisjoint(_unquoted(text)):
        return None
    at = next((n for n, word in enumerate(words) if _is_option(word)), len(words))
    hosts: str | None = None
    options: list[list[str]] = []
    for word in words[at:]:
        if _is_option(word):
            options.append([*word.split("=", 1)] if word.startswith("--") else [word])
        else:
            options[-1].append(word)
    kept = []
    for one in options:
        if one[0] in ("-H", "--hosts") and len(one) == 2:
            hosts = one[1]
        else:
            kept.append(tuple(one))
    return Step(tuple(words[1:at]), hosts, tuple(kept))


def complete(step: Step, reach: Reach) -> Step:
    """*step* with what *reach* says, each option once."""
    more: list[Option] = []
    after: list[Option] = []
    if step.verb[:2] == ("audit", "startup") and reach.engine is not None:
        after.append(("--engine", reach.engine))
    if not step.contacts:
        return replace(step, options=(*step.options, *_new(after, step)))
    if reach.inventory is not None and not step.has("-i", "--inventory"):
        more.append(("-i", reach.inventory))
    if reach.ask_sudo_password and not step.has("--ask-sudo-password"):
        more.append(("--ask-sudo-password",))
    if any(step.verb[: len(verb)] == verb for verb in _LOG_VERBS):
        after += reach.logs
    return replace(step, options=(*more, *step.options, *_new(after, step)))


def _new(options: Iterable[Option], step: Step) -> list[Option]:
    return [one for one in options if not step.has(one[0])]


def completed(text: str, reach: Reach) -> str:
    """The same for a command as text; another program's stays as it is."""
    found = read(text)
    return text if found is None else str(complete(found, reach))


def complete_next(envelope: Envelope, reach: Reach) -> None:
    """Complete the steps of *envelope*, of its hosts and of its findings, where they are."""
    for entry in envelope["hosts"]:
        complete_entry(entry, reach)
    for finding in envelope["findings"]:
        finding["next"] = [completed(one, reach) for one in finding["next"]]


def complete_entry(entry: HostEntry, reach: Reach) -> None:
    """The same for the steps of one host."""
    if "reclaim" in entry:
        entry["reclaim"]["next"] = [completed(one, reach) for one in entry["reclaim"]["next"]]
    if "follow" in entry:
        entry["follow"]["next"] = [completed(one, reach) for one in entry["follow"]["next"]]


def folded(commands: Iterable[tuple[str, str]]) -> list[tuple[str, list[str]]]:
    """(host, command) rows with equal commands of several hosts in one.

    Each row is a command and the hosts it was said for, in the order they came. A command
    that names exactly its own host is written over all of them.
    """
    from fleetmem.controller.answer.fold import fold_hosts

    own: dict[Step | str, list[str]] = {}
    for host, text in commands:
        found = read(text)
        key = replace(found, hosts="") if found and found.hosts == host else text
        own.setdefault(key, []).append(host)
    rows = []
    for key, hosts in own.items():
        one = str(replace(key, hosts=fold_hosts(hosts))) if isinstance(key, Step) else key
        rows.append((one, hosts))
    return rows


def _written(option: Sequence[str]) -> list[str]:
    name, *values = option
    if name.startswith("--") and values and _is_option(values[0]):
        return [f"{name}={shlex.quote(values[0])}", *map(shlex.quote, values[1:])]
    return [name, *map(shlex.quote, values)]


def _is_option(word: str) -> bool:
    return len(word) > 1 and word.startswith("-") and not word[1:2].isdigit()


def _unquoted(text: str) -> str:
    """The characters of *text* that a shell would act upon."""
    kept, quote, escaped = [], "", False
    for char in text:
        if escaped:
            escaped = False
        elif char == "\\" and quote != "'":
            escaped = True
        elif quote:
            quote = "" if char == quote else quote
        elif char in "'\"":
            quote = char
        else:
            kept.append(char)
    return "".join(kept)
