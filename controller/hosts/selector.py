"""Which hosts: the expression after ``-H`` and ``-x``.

Terms joined by commas: node sets ``gh200-[01-16]``, globs ``gh200-*``, ``@group``, ``@all``,
``@file:PATH``, ``@run:ID:OUTCOME``, ``user@host:port``. Plain terms are joined, then ``&term``
keeps only what it names too, then ``!term`` and the exclusion take away, by machine and not by
name; the order of the terms does not matter. Every term must match something: a misspelt
exclusion would spare nobody.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from fleetmem.controller.answer.step import Reach, complete, next_step
from fleetmem.controller.errors import InventoryInvalid, NoHostsMatch, RangeTooLarge, UsageError
from fleetmem.controller.hosts.address import Address, is_ipv6, parse_target
from fleetmem.controller.hosts.host import Host, Inventory
from fleetmem.controller.hosts.nodeset import MAX_HOSTS, expand, short, split
from fleetmem.controller.hosts.same_host import Atlas, resolved, written

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from fleetmem.controller.hosts.same_host import Locate, Lookup

    RunLookup = Callable[[str, str], Iterable[str]]

MAX_FILE_BYTES = 8 * 1024 * 1024
_LOCAL = "localhost"


@dataclass(frozen=True)
class _Known:
    inventory: Inventory
    run_lookup: RunLookup | None
    locate: Locate
    lookup: Lookup


def resolve(
    expression: str,
    inventory: Inventory,
    exclude: str = "",
    run_lookup: RunLookup | None = None,
    locate: Locate = written,
    lookup: Lookup = resolved,
) -> tuple[Host, ...]:
    """The hosts that *expression* names and *exclude* does not, in the order of the terms.

    *run_lookup* gives the host names of (run id, outcome), outcome ``""`` meaning all. *locate*
    gives address and port of a host, *lookup* the addresses of a name: an excluded host is spared
    whatever *expression* calls it (see :mod:`fleetmem.controller.hosts.same_host`).
    NoHostsMatch where a term or the whole matches nothing, RangeTooLarge over 100 000 hosts,
    UsageError for what cannot be read.
    """
    known = _Known(inventory, run_lookup, locate, lookup)
    chosen: dict[str, Host] = {}
    kept: list[dict[str, Host]] = []
    dropped: dict[str, Host] = {}
    strangers: set[str] = set()
    if not expression.strip():
        raise NoHostsMatch("no host is named", "name hosts with -H")
    terms = split(expression)
    for term in terms:
        if term in ("!", "&") or term[:2] in ("!!", "!&", "&!", "&&"):
            raise UsageError(f'"{short(term)}" matches no host')
        if term[0] == "!":
            exclude = f"{exclude},{term[1:]}" if exclude.strip() else term[1:]
        elif term[0] == "&":
            kept.append(_named(term[1:], known))
        else:
            chosen.update(_named(term, known))
    if all(term[0] in "!&" for term in terms):
        chosen = _everyone(inventory, expression)
    for term in split(exclude) if exclude.strip() else []:
        named = _named(term.removeprefix("!"), known, spared=True)
        dropped.update(named)
        if term.removeprefix("!").startswith("@"):
            strangers.update(named)  # a list may well name others, too
    for others in kept:
        chosen = {name: host for name, host in chosen.items() if name in others}
    if dropped:
        spared = _spared(dropped.values(), chosen, strangers, known)
        chosen = {name: host for name, host in chosen.items() if name not in spared}
    if not chosen:
        after = " after -x" if exclude else ""
        raise NoHostsMatch(f'"{short(expression)}" leaves no host{after}')
    if len(chosen) > MAX_HOSTS:
        raise RangeTooLarge(f"{len(chosen)} hosts, at most {MAX_HOSTS} are taken")
    return tuple(chosen.values())


def _spared(
    dropped: Iterable[Host], chosen: dict[str, Host], strangers: set[str], known: _Known
) -> set[str]:
    """The chosen names that *dropped* hosts mean, by any of their names and addresses.

    NoHostsMatch for one that is not among the chosen, unless it is one of *strangers* or the
    inventory has it; and where nobody can say whether it is.
    """
    atlas = Atlas(frozenset(known.inventory.hosts), known.locate, known.lookup)
    there: dict[str, list[Host]] = {}
    for host in chosen.values():
        there.setdefault(atlas.place(host).address, []).append(host)
    typed = [host for host in chosen.values() if not atlas.is_listed(host)]
    spared: set[str] = set()
    for host in dropped:
        near = [*there.get(atlas.place(host).address, ()), *typed]
        if host.name in chosen:
            near.append(chosen[host.name])
        answers = {one.name: atlas.same(host, one) for one in near}
        same = {name for name, answer in answers.items() if answer}
        unknown = [name for name, answer in answers.items() if answer is None]
        if not same and unknown:
            raise NoHostsMatch(
                f'"{short(host.name)}" is to be spared, and it cannot be looked up whether '
                f'"{short(unknown[0])}" is the same host',
                "name hosts as the inventory does, in -H and in -x",
            )
        listed = host.name in known.inventory.hosts or host.name in strangers
        if not same and not listed:
            raise NoHostsMatch(
                f'"{short(host.name)}" is to be spared, but is not among the hosts',
                _near(host.name, known.inventory, chosen),
            )
        spared |= same
    return spared


def _named(term: str, known: _Known, spared: bool = False) -> dict[str, Host]:
    """What one term names; *spared* terms are taken away, so a run without hosts is fine there."""
    inventory = known.inventory
    if term.startswith("@"):
        return _group(term, known, spared)
    if term in inventory.hosts:
        return {term: inventory.hosts[term]}
    hosts: dict[str, Host] = {}
    for target in _targets(term):
        name = target.host
        if target.is_plain and ("*" in name or "?" in name):
            matched = [one for one in inventory.hosts if fnmatchcase(one, name)]
            if not matched:
                raise NoHostsMatch(f'no host matches "{short(name)}"', _where(inventory))
            hosts.update((one, inventory.hosts[one]) for one in matched)
        else:
            host = _one(target, inventory, spared)
            hosts[host.name] = host
    return hosts


def _targets(term: str) -> Iterator[Address]:
    """The targets of a term whose host part may be a node set."""
    target = parse_target(term)
    if is_ipv6(target.host):
        yield target
        return
    for name in expand(target.host):
        yield target._replace(host=name)


def _one(target: Address, inventory: Inventory, spared: bool) -> Host:
    """The host behind one name: the inventory's, with another user and port where given.

    Only a *spared* name may be unknown here; it is compared with those chosen.
    """
    listed = inventory.hosts.get(target.host)
    if listed is not None:
        return replace(
            listed,
            user=target.user if target.user is not None else listed.user,
            port=target.port if target.port is not None else listed.port,
        )
    if target.is_plain and target.host == _LOCAL:
        return Host(name=_LOCAL, address=_LOCAL, transport="local")
    if target.is_plain and inventory.file is not None and not spared:
        raise NoHostsMatch(
            f'"{short(target.host)}" is not in {inventory.file}', _near(target.host, inventory)
        )
    template = inventory.template
    return replace(
        template,
        name=str(target),
        address=target.host,
        user=target.user if target.user is not None else template.user,
        port=target.port if target.port is not None else template.port,
        transport="ssh",
    )


def _group(term: str, known: _Known, spared: bool) -> dict[str, Host]:
    inventory = known.inventory
    kind, _, rest = term[1:].partition(":")
    if kind == "file":
        return _host_file(rest, known)
    if kind == "run":
        return _run(rest, known, spared)
    if term == "@all":
        return _everyone(inventory, term)
    members = inventory.groups.get(term[1:])
    if members is None:
        raise NoHostsMatch(f'there is no group "{short(term)}"', _near_group(term[1:], inventory))
    return {name: inventory.hosts[name] for name in members}


def _everyone(inventory: Inventory, term: str) -> dict[str, Host]:
    if not inventory.hosts:
        raise NoHostsMatch(f'"{short(term)}" means the hosts of an inventory', _where(inventory))
    return dict(inventory.hosts)


def _run(rest: str, known: _Known, spared: bool) -> dict[str, Host]:
    run, _, outcome = rest.partition(":")
    if not run:
        raise UsageError("@run needs the id of a run, such as @run:s4k2:failed")
    if known.run_lookup is None:
        raise UsageError("@run: there is no run history here")
    hosts: dict[str, Host] = {}
    for name in known.run_lookup(run, outcome):
        hosts.update(_named(name, known))
    if not hosts and not spared:
        raise NoHostsMatch(f'no host of run "{short(run)}" is "{short(outcome)}"')
    return hosts


def _host_file(path: str, known: _Known) -> dict[str, Host]:
    """The hosts of a file, a term a line, ``#`` starts a comment; every mistake at once."""
    if not path:
        raise UsageError("@file needs a path, such as @file:hosts.txt")
    lines = _read_lines(os.path.expanduser(path))
    hosts: dict[str, Host] = {}
    problems: list[str] = []
    for number, line in enumerate(lines, 1):
        text = line.partition("#")[0].strip()
        if not text:
            continue
        try:
            for term in split(text):
                if term[0] in "!&" or term.startswith("@file:"):
                    raise UsageError(f'"{short(term)}" is not allowed in a host file')
                hosts.update(_named(term, known))
        except UsageError as error:
            hint = f" – {error.hint}" if error.hint and error.hint != error.remedy else ""
            problems.append(f"{path}:{number}:1: {error.message}{hint}")
    if problems:
        raise InventoryInvalid("\n".join(problems[:50]))
    if not hosts:
        raise NoHostsMatch(f"{path} matches no host", "write one host per line; # starts a comment")
    return hosts


def _read_lines(path: str) -> list[str]:
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InventoryInvalid(f"{path}: {reason.lower()}") from None
    if len(data) > MAX_FILE_BYTES:
        raise InventoryInvalid(f"{path}: is larger than {MAX_FILE_BYTES // 1024 // 1024} MiB")
    try:
        return data.decode("utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise InventoryInvalid(f"{path}:{line}:1: not UTF-8") from None


def _near(word: str, inventory: Inventory, chosen: Iterable[str] = ()) -> str:
    if word in inventory.groups:
        return f"a group is written @{word}"
    near = _nearest(word, chosen) or _nearest(word, inventory.hosts)
    if near:
        return f'did you mean "{near}"?'
    return f"a host outside the inventory is written user@{short(word)}"


def _near_group(word: str, inventory: Inventory) -> str:
    near = _nearest(word, inventory.groups)
    if near:
        return f'did you mean "@{near}"?'
    names = ", ".join(f"@{name}" for name in list(inventory.groups)[:20])
    return f"groups here: {names}" if names else _where(inventory)


def _nearest(word: str, known: Iterable[str]) -> str:
    import difflib

    near = difflib.get_close_matches(word[:80], list(known)[:5000], n=1, cutoff=0.6)
    return near[0] if near else ""


def _where(inventory: Inventory) -> str:
    if inventory.file is not None:
        every = complete(next_step("hosts", "@all"), Reach(str(inventory.file)))
        return f"the inventory is {inventory.file}; {every} lists it"
    return "there is no inventory; name one with -i, or write user@host:port or localhost"
