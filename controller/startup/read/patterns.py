"""Engine log patterns: YAML files in, compiled patterns out.

A file belongs to one engine (or to none: ``common``) and lists patterns. A pattern says in
which lines it may apply (``find``, plain text), what must match (``match``), what else to
look for in the same line (``also``), what the line means (``step``) and at least one line of
its own with the figures it must give; ``phase`` says that the line marks a moment of a start.
Figures are named by scope: a bare name belongs to the rank, ``engine.``, ``config.`` and
``error.`` to the invocation.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from fleetmem.controller.startup.read.prefix import pieces, split_head
from fleetmem.controller.startup.read.template import (
    Phase,
    Step,
    Template,
    TemplateError,
    compile_template,
)
from fleetmem.controller.startup.starts import Event, Head

if TYPE_CHECKING:
    from fleetmem.controller.text.yaml_nodes import Document, Problem

UNIT_WORDS = ("GiB", "MiB", "GB")


@dataclass(frozen=True, slots=True)
class Pattern:
    """One compiled pattern; ``where`` is ``file:line`` of its definition.

    ``phase`` is what the line says about the moment of a start, for ``snapshot --follow-start``.
    """

    id: str
    engine: str | None
    step: Step
    phase: Phase | None
    find: tuple[str, ...]
    unless: tuple[str, ...]
    match: Template
    also: tuple[Template, ...]
    constants: tuple[tuple[str, Any], ...]
    keys: tuple[str, ...]
    versions: str | None
    where: str
    tests: tuple[tuple[str, tuple[tuple[str, Any], ...]], ...]

    def apply(self, head: Head, cut: bool = False) -> Event | None:
        """The event of *head*'s text, None where the pattern does not match.

        A *cut* text's last number may lack digits: it is not read.
        """
        text = head.text
        if not any(word in text for word in self.find):
            return None
        if self.unless and any(word in text for word in self.unless):
            return None
        found = self.match.regex.search(text)
        if found is None:
            return None
        values: dict[str, Any] = dict(self.constants)
        spread: dict[str, float] = {}
        if not self.match.read(found, values, spread, cut):
            return None
        for template in self.also:
            more = template.regex.search(text, found.start())
            if more is not None:
                template.read(more, values, spread, cut)
        if self.keys:
            from fleetmem.controller.startup.read.engine_settings import read_settings

            values.update(read_settings(text[found.start() :], self.keys))
        return Event(self.step, self.id, self.engine, head, values, spread)


@dataclass(frozen=True, slots=True)
class Patterns:
    """All patterns in force, and the words that a line must hold to be looked at."""

    all: tuple[Pattern, ...]
    seeds: tuple[str, ...]

    def only(self, engine: str | None) -> Patterns:
        """Those of one engine and the common ones; all where *engine* is None."""
        if engine is None:
            return self
        return _patterns(
            [p for p in self.all if p.engine in (None, *_FAMILY.get(engine, (engine,)))]
        )

    def engines(self) -> tuple[str, ...]:
        """The engines that have patterns."""
        return tuple(sorted({p.engine for p in self.all if p.engine}))


# An engine whose log carries another's lines.
_FAMILY = {"ollama": ("ollama", "llamacpp"), "vllm": ("vllm", "lmcache")}


def _patterns(found: Sequence[Pattern]) -> Patterns:
    seeds: set[str] = set(UNIT_WORDS)
    for pattern in found:
        printed = any(hole.type == "size" for hole in pattern.match.holes)
        units = set(pattern.match.units) if printed else set()
        if printed and units <= set(UNIT_WORDS) | {"KiB", "TiB"}:
            seeds.update(units)
        else:
            seeds.update(pattern.find)
    # A seed that contains another is found by the shorter one.
    kept = [one for one in seeds if not any(other != one and other in one for other in seeds)]
    return Patterns(tuple(found), tuple(sorted(kept)))


def load(paths: Iterable[str]) -> Patterns:
    """The patterns of the YAML files *paths*, in their order.

    Raises ``PlaybookInvalid`` with every mistake as ``file:line:column``.
    """
    found: list[Pattern] = []
    problems: list[str] = []
    for path in paths:
        patterns, wrong = read_file(path)
        found += patterns
        problems += map(str, wrong)
    if problems:
        from fleetmem.controller.errors import PlaybookInvalid

        raise PlaybookInvalid("\n".join(problems[:50]))
    return _patterns(found)


@functools.cache
def builtin() -> Patterns:
    """The patterns that come with the package, and the user's own in XDG config."""
    return load(engine_files())


def engine_files() -> list[str]:
    """The files that :func:`builtin` reads."""
    folders = [
        os.path.join(os.path.dirname(__file__), "..", "..", "..", "playbooks", "engines"),
        os.path.join(
            os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config"),
            "fleetmem",
            "engines",
        ),
    ]
    return [path for folder in folders for path in yaml_files(folder)]


def yaml_files(folder: str) -> list[str]:
    """The ``.yaml`` files of *folder* by name; none where it does not exist."""
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return []
    return [os.path.normpath(os.path.join(folder, n)) for n in names if n.endswith(".yaml")]


def read_file(path: str) -> tuple[list[Pattern], list[Problem]]:
    """The patterns of one file and its mistakes, those of the patterns' own tests too."""
    from fleetmem.controller.startup.read.pattern_schema import PatternFile
    from fleetmem.controller.text import yaml_nodes

    document = yaml_nodes.read(path)
    if document.problems:
        return [], document.sorted_problems()
    model = cast("PatternFile | None", yaml_nodes.check(document, PatternFile))
    found: list[Pattern] = []
    if model is not None:
        seen: set[str] = set()
        for number, one in enumerate(model.patterns):
            if one.id in seen:
                document.add(("patterns", number, "id"), f'"{one.id}" stands twice')
            seen.add(one.id)
            pattern = _compile(document, model, number)
            if pattern is not None:
                found.append(pattern)
    return found, document.sorted_problems()


def _compile(document: Document, model: Any, number: int) -> Pattern | None:
    one = model.patterns[number]
    units = {**model.units, **one.units}
    path = ("patterns", number)
    before = len(document.problems)
    templates: list[Template] = []
    places: list[tuple[str | int, ...]] = [(*path, "match")]
    places += [(*path, "also", n) for n in range(len(one.also))]
    for source, place in zip([one.match, *one.also], places, strict=True):
        try:
            templates.append(compile_template(source, units))
        except TemplateError as error:
            document.add(place, str(error))
    if len(document.problems) != before:
        return None
    line, _ = document.place(path)
    pattern = Pattern(
        id=one.id,
        engine=None if model.engine == "common" else model.engine,
        step=one.step,
        phase=one.phase,
        find=tuple(one.find),
        unless=tuple(one.unless),
        match=templates[0],
        also=tuple(templates[1:]),
        constants=tuple(one.set.items()),
        keys=tuple(one.keys),
        versions=one.versions,
        where=f"{document.file}:{line}",
        tests=tuple((test.line, tuple(test.gives.items())) for test in one.tests),
    )
    for n in range(len(pattern.tests)):
        wrong = failed_test(pattern, n)
        if wrong:
            document.add((*path, "tests", n), wrong)
    return pattern


def failed_test(pattern: Pattern, number: int) -> str | None:
    """What is wrong with a pattern's own test line; None when it holds."""
    from fleetmem.controller.startup.read.pattern_schema import expected_value

    line, gives = pattern.tests[number]
    head = split_head(pieces(line)[-1])
    event = pattern.apply(head)
    if event is None:
        return "its own line does not match"
    given = dict(event.values)
    if head.rank is not None:
        given["rank"] = head.rank
    for name, text in gives:
        wanted = expected_value(text)
        if given.get(name) != wanted:
            return f"{name} gives {given.get(name)!r}, expected {wanted!r}"
    missing = sorted(
        set(given) - {name for name, _ in gives} - {"rank"} - set(dict(pattern.constants))
    )
    return f"gives {', '.join(missing)} too, which the test does not name" if missing else None
