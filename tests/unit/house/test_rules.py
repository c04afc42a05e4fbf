"""The rules of the house hold for this checkout, and each finds a planted breach."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.unit.house import rules

ROOT = Path(__file__).parents[3]
Rule = Callable[[Path], Iterator[str]]
BODY = "\n".join(f"LINE_{n} = {n}" for n in range(30)) + "\n"

BREACHES: dict[Rule, dict[str, str]] = {
    rules.rooms_too_full: {f"controller/room/{chr(97 + n)}.py": BODY for n in range(16)},
    rules.files_out_of_size: {"agent/long.py": BODY * 14},
    rules.prefixes_that_are_rooms: {f"controller/run_{end}.py": BODY for end in "abc"},
    rules.names_used_twice: {"agent/kernel/other.py": BODY, "controller/text/other.py": BODY},
    rules.banned_names: {"controller/text/utils.py": BODY},
    rules.nouns_used_twice: {
        "controller/a.py": "class Same:\n    x = 1\n" + BODY,
        "controller/b.py": "class Same:\n    x = 2\n" + BODY,
    },
    rules.base_classes: {
        "controller/a.py": "class Base:\n    x = 1\n\n\nclass Child(Base):\n    x = 2\n" + BODY
    },
    rules.circles: {
        "controller/a.py": "from fleetmem.controller import b\n" + BODY,
        "controller/b.py": "def late():\n    from fleetmem.controller.a import LINE_1\n" + BODY,
    },
}


def test_every_rule_has_a_breach() -> None:
    assert set(BREACHES) == set(rules.RULES)


@pytest.mark.parametrize("rule", rules.RULES, ids=lambda rule: rule.__name__)
def test_the_house_keeps_its_rules(rule: Rule) -> None:
    assert list(rule(ROOT)) == []


@pytest.mark.parametrize("rule", rules.RULES, ids=lambda rule: rule.__name__)
def test_a_planted_breach_is_found(rule: Rule, tmp_path: Path) -> None:
    for room in ("agent", "controller", "tests"):
        (tmp_path / room).mkdir()
        (tmp_path / room / "__init__.py").touch()
    assert list(rule(tmp_path)) == []
    for name, text in BREACHES[rule].items():
        place = tmp_path / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
    assert list(rule(tmp_path))


def test_every_room_is_in_the_package() -> None:
    """An editable install finds rooms that a wheel would lack."""
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["setuptools"]
    rooms = {
        ".".join(("fleetmem", *path.parent.relative_to(ROOT).parts))
        for room in ("agent", "controller", "playbooks")
        for path in (ROOT / room).rglob("__init__.py")
    }
    assert sorted(listed["packages"]) == sorted({"fleetmem", *rooms})
