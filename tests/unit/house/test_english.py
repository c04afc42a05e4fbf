"""What people read is plain English: word patterns that read as translated fail here."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from fleetmem.controller.cli.commands import COMMANDS, fleetmem

ROOT = Path(__file__).parents[3]
ROOMS = ("agent", "controller")
PAGES = [*sorted((ROOT / "docs").glob("*.md")), ROOT / "README.md", ROOT / "CHANGELOG.md"]
PLAYBOOKS = sorted((ROOT / "playbooks").rglob("*.yaml"))

HABITS = {
    r"(?<!there )\bis no (?!longer|more than|older|newer|larger|different)[a-z]": "is not a …",
    r"\bthat (?:is|are) none\b": "is not a …, an unknown …",
    r"\b(?:has|have) got\b": "has, exists",
    r"\b\w+s no more\b(?! than)": "no longer …",
    r"\btells? of\b": "reports",
    r"\bmay not be (?:read|known|seen|looked|asked)\b": "could not be …",
    r"\bso many\b": "at most N",
    r"\bby who\b": "by whom",
    r"\bgoes by\b": "uses",
    r"\b(?:mapped|used) by nobody\b": "not … by any process",
    r"\bworking or not\b": "even if it is working",
    r"\bits end was not seen\b": "its outcome was not seen",
    r"\bstill to come\b": "in the future",
    r"\bin any case\b": "always",
    r"\bspans? of time\b": "duration",
    r"\b(?:files?|not|is) sound\b": "valid",
    r"\b(?:fell|rose) [-−+]\d": "shrank by, grew by",
    r"\bis gone by\b": "follows",
    r"\bdoes not let itself\b": "cannot be",
    r"\bof which there (?:is|are) no": "without",
    r"\bwhat is (?:no|not a) \w+\.?$": "anything else",
}
"""Pattern → what to write instead."""


def habits_in(text: str) -> list[str]:
    """The patterns that *text* matches, each with what to write."""
    return [f"{found[0]!r}: {better}" for pattern, better in HABITS.items()
            if (found := re.search(pattern, text))]  # fmt: skip


def literals(path: Path) -> Iterator[tuple[int, str]]:
    """Texts that a module may show: string literals of several words, docstrings left out."""
    tree = ast.parse(path.read_text("utf-8"))
    hidden: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            hidden.add(id(node.value))
        elif isinstance(node, ast.JoinedStr):
            hidden.update(map(id, node.values))
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts = (one.value if isinstance(one, ast.Constant) else "{}" for one in node.values)
            yield node.lineno, "".join(map(str, parts))
        elif (
            isinstance(node, ast.Constant)
            and id(node) not in hidden
            and isinstance(node.value, str)
            and " " in node.value
        ):
            yield node.lineno, node.value


def commands(command: click.Command, name: str) -> Iterator[tuple[str, click.Command]]:
    """*command* and all below it, by their whole names."""
    yield name, command
    if isinstance(command, click.Group):
        with click.Context(command) as context:
            for word in command.list_commands(context):
                below = command.get_command(context, word)
                assert below is not None
                yield from commands(below, f"{name} {word}")


ALL = dict(commands(fleetmem, "fleetmem"))


@pytest.mark.parametrize("room", ROOMS)
def test_texts_in_the_code(room: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {habit}"
        for path in sorted((ROOT / room).rglob("*.py"))
        for line, text in literals(path)
        for habit in habits_in(text)
    ]
    assert found == []


@pytest.mark.parametrize("page", [*PAGES, *PLAYBOOKS], ids=lambda page: str(page.name))
def test_pages_and_playbooks(page: Path) -> None:
    lines = page.read_text("utf-8").splitlines()
    found = [f"{page.name}:{at}: {habit}" for at, line in enumerate(lines, 1)
             if not re.match(r"\s*(?:- )?(?:\{?line:|find:|match:)", line)
             for habit in habits_in(line)]  # fmt: skip
    assert found == []


def test_every_error_code_has_plain_words() -> None:
    from fleetmem.controller.errors import rows

    assert [habit for _, _, meaning, remedy in rows() for habit in habits_in(f"{meaning} {remedy}")
            ] == []  # fmt: skip


@pytest.mark.parametrize("name", ALL)
def test_help_is_plain_and_begins_with_a_verb(name: str) -> None:
    """Each option's help is one sentence that says what the option does."""
    assert habits_in(ALL[name].help or "") == []
    for parameter in ALL[name].params:
        said = getattr(parameter, "help", None)
        if not said or parameter.name in ("hosts", "inventory"):
            continue
        assert habits_in(said) == []
        assert said.split()[0].rstrip(",").lower() in VERBS or said.startswith(NOUNS), said


def test_every_command_has_a_line_in_the_list() -> None:
    for _, about in COMMANDS.values():
        assert about.endswith(".")
        assert about.split()[0].lower() in VERBS


VERBS = frozenset(
    ["accept", "add", "allow", "also", "append", "apply", "ask", "avoid", "build", "bundle",
     "check", "choose", "compare", "connect", "count", "do", "draw", "drop", "exclude",
     "exit", "extract", "get", "hold", "include", "judge", "keep", "label", "leave", "limit",
     "list", "locate", "look", "migrate", "name", "open", "pass", "read", "reclaim", "redact",
     "report", "require", "restart", "run", "save", "send", "set", "show", "skip", "sort",
     "start", "stop", "store", "suppress", "take", "treat", "trust", "use", "verify", "wait",
     "watch", "write"]
)  # fmt: skip
NOUNS = ("With --", "Last escalation step", "Reason", "Output format")


@pytest.mark.parametrize(
    "planted",
    [
        "'x' is no pid", "a host that is none", "NVML tells of no memory", "it answers no more",
        "files that may not be read", "at most so many lines", "it has got no log",
        "The pool fell -24 %", "14 files sound",
    ],
)  # fmt: skip
def test_a_planted_habit_is_found(planted: str, tmp_path: Path) -> None:
    module = tmp_path / "planted.py"
    module.write_text(f'"""A docstring."""\n\nTEXT = f"{planted} {{1}}"\n', "utf-8")
    assert [habit for _, text in literals(module) for habit in habits_in(text)]


def test_ordinary_sentences_pass() -> None:
    for text in ("there is no playbook 'x'", "it no longer runs", "the driver is not loaded",
                 "no more than 5 hosts", "there is no GPU at all"):  # fmt: skip
        assert habits_in(text) == []
