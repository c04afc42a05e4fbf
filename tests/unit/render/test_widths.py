"""Every screen at every width: nothing wider than it, no figure cut, no cut that is not shown."""

from __future__ import annotations

import re
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetmem.controller.render.kit.line import cells, plain
from fleetmem.controller.render.kit.signs import to_ascii
from fleetmem.controller.render.kit.table import Column, Part, Row, table_lines
from tests.unit.render.screens import screens

WIDTHS = (60, 80, 100, 120, 200)
SCREENS = screens()
_FIGURE = re.compile(r"(?<![\w.…-])[+-]?\d+\.\d+(?![\w.…])")


def shown(name: str, width: int) -> list[str]:
    return [plain(line) for line in SCREENS[name](width)]


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", SCREENS)
def test_no_line_is_wider_than_the_screen(name: str, width: int) -> None:
    lines = shown(name, width)
    assert lines
    assert [line for line in lines if cells(line) > width] == []


@pytest.mark.parametrize("name", SCREENS)
def test_no_figure_is_cut(name: str) -> None:
    """What a narrow screen shows of the figures is what the widest shows."""
    widest = {found for line in shown(name, 200) for found in _FIGURE.findall(line)}
    for width in WIDTHS:
        lines = shown(name, width)
        assert not [line for line in lines if re.search(r"(^|\s)[+-]?\d+\.\d*…", line)]
        assert {found for line in lines for found in _FIGURE.findall(line)} <= widest


@pytest.mark.parametrize("name", [name for name in SCREENS if not name.startswith("playbook")])
def test_a_screen_gains_from_more_width(name: str) -> None:
    """Fewer lines, or more of a line, at 200 columns than at 60."""
    narrow, wide = shown(name, 60), shown(name, 200)
    assert len(wide) < len(narrow) or max(map(cells, wide)) > max(map(cells, narrow))


def test_a_wide_snapshot_names_the_command_and_the_launcher_of_a_holder() -> None:
    narrow, wide = ("\n".join(shown("snapshot-one", width)) for width in (60, 200))
    assert "--max-model-len 524288" in wide
    assert "vllm 8101" in wide
    assert "COMMAND" not in narrow


def test_rows_that_differ_in_lifetime_only_look_different_at_any_width() -> None:
    for name in ("diff-one", "diff-many"):
        for width in WIDTHS:
            rows = shown(name, width)
            figures = [line for line in rows if _FIGURE.search(line)]
            assert len(figures) == len(set(figures))


def test_a_sign_in_ascii_takes_the_same_cells() -> None:
    for name in SCREENS:
        for line in shown(name, 100):
            assert len(to_ascii(line)) == len(line)
    assert to_ascii("✗ ! ✓ · – … → × ▌█") == "X ! + - - ~ > x =#"


# --- the kit -------------------------------------------------------------------------------

TEXT = st.text("ab cd,模é", min_size=1, max_size=50).map(lambda text: " ".join(text.split()) or "x")
COLUMNS = [
    Column("HOSTS", most=12, place="above"),
    Column("N", right=True),
    Column("SAID", least=8),
    Column("WHY", least=10, place="below"),
]


@given(st.lists(st.tuples(TEXT, st.integers(0, 10**6), TEXT, TEXT), min_size=1, max_size=5),
       st.integers(34, 140))  # fmt: skip
def test_a_table_loses_nothing_and_keeps_its_width(
    rows: list[tuple[str, int, str, str]], width: int
) -> None:
    table = [Row([hosts, str(number), said, why]) for hosts, number, said, why in rows]
    lines = [plain(line) for line in table_lines(COLUMNS, table, width)]
    assert max(map(cells, lines)) <= width
    body = Counter("".join(lines[1:]).replace(" ", ""))
    assert body == Counter("".join(map(str, sum(rows, ()))).replace(" ", ""))


def test_columns_go_in_the_order_of_their_priority() -> None:
    columns = [Column("A"), Column("B", drop=2), Column("C", drop=1), Column("EMPTY", drop=3)]
    rows = [Row(["a" * 10, "b" * 10, "c" * 10, ""])]
    heads = [plain(table_lines(columns, rows, width)[0]).split() for width in (40, 34, 33, 21)]
    assert heads == [["A", "B", "C"], ["A", "B", "C"], ["A", "C"], ["A"]]


def test_what_is_cut_shows_it() -> None:
    path = [Column("PATH", least=10, path=True)]
    assert plain(table_lines(path, [Row(["/srv/models/a.bin"])], 10)[1]) == "…els/a.bin"
    text = [Column("TEXT", least=10, lines=2)]
    lines = [plain(line) for line in table_lines(text, [Row(["one two three four five"])], 10)]
    assert lines == ["TEXT", "one two", "three fou…"]


def test_styles_survive_a_break() -> None:
    cell = (("good ", "good"), ("and bad at that", "bad"))
    lines = table_lines([Column("T", least=8)], [Row([cell])], 8)
    assert lines[1] == (("good ", "good"), ("and", "bad"))
    assert lines[2] == (("bad at", "bad"),)


def test_parts_and_notes_stand_between_the_rows() -> None:
    rows: list[Row | Part] = [
        Row(["a"], notes=[("why it is so", "warn")]),
        Part("SPARED"),
        Row(["b"]),
    ]
    lines = [plain(line) for line in table_lines([Column("NAME")], rows, 40)]
    assert lines == ["NAME", "a", "    why it is so", "SPARED", "b"]
