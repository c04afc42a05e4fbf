"""The table of memory as SVG: widths that add up, titles with the right bytes, harmless text."""

from __future__ import annotations

import copy
import itertools
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetmem.controller.cli import main
from fleetmem.controller.record.history import open_history
from fleetmem.controller.render.snapshot.places import LETTERS, Place
from fleetmem.controller.render.snapshot.snapshot_svg import pieces, snapshot_svg
from tests.unit.memory.memory_samples import gpu, node, readings
from tests.unit.render.test_snapshot_screen import envelope, story

SVG = "{http://www.w3.org/2000/svg}"
BAR = 500
GIB = 1 << 30


def bars(document: str) -> list[list[ElementTree.Element]]:
    """The titled rectangles of each bar, in document order."""
    root = ElementTree.fromstring(document)
    groups = [[one for one in group if one.find(f"{SVG}title") is not None]
              for group in root.iter(f"{SVG}g")]  # fmt: skip
    return [group for group in groups if group]


def titles(document: str) -> list[str]:
    return [one.findtext(f"{SVG}title") or "" for bar in bars(document) for one in bar]


def texts(document: str) -> list[str]:
    return [one.text or "" for one in ElementTree.fromstring(document).iter(f"{SVG}text")]


def discrete() -> dict[str, Any]:
    """A host with a GPU of its own memory, 10 GiB of which nobody explains."""
    cpu = node(0, "cpu", "0-7", total=64 * 1024, free=20 * 1024, file=30 * 1024, anon=14 * 1024)
    card = gpu(0, None, total=80 * 1024, used=60 * 1024, free=19 * 1024, reserved=1024)
    return readings([cpu], [], [card], {0: {41: 50 * 1024}})


def test_one_host_has_its_bars_with_their_bytes() -> None:
    document = snapshot_svg(envelope({"gh200-01": story()}))
    assert titles(document) == [
        "GPU 0 HBM, NUMA 2: file pages 123.0 GiB, 132 070 244 352 bytes",
        "GPU 0 HBM, NUMA 2: CUDA and drivers 0.6 GiB, 629 145 600 bytes",
        "GPU 0 HBM, NUMA 2: kernel 0.1 GiB, 104 857 600 bytes",
        "GPU 0 HBM, NUMA 2: unaccounted 0.3 GiB, 339 738 624 bytes",
        "GPU 0 HBM, NUMA 2: free 18.0 GiB, 19 327 352 832 bytes",
        "CPU 0 DRAM, NUMA 0: file pages 30.0 GiB, 32 212 254 720 bytes",
        "CPU 0 DRAM, NUMA 0: anonymous memory 13.0 GiB, 13 958 643 712 bytes",
        "CPU 0 DRAM, NUMA 0: kernel 4.0 GiB, 4 294 967 296 bytes",
        "CPU 0 DRAM, NUMA 0: free 431.0 GiB, 462 782 726 144 bytes",
    ]
    hbm, cpu = bars(document)
    for bar in (hbm, cpu):
        assert round(sum(float(one.attrib["width"]) for one in bar), 2) == BAR
        edges = [(float(one.attrib["x"]), float(one.attrib["width"])) for one in bar]
        for (x, wide), (following, _) in itertools.pairwise(edges):
            assert round(x + wide, 2) == following
    assert float(hbm[0].attrib["width"]) == 433.09  # 123 of 142 GiB, in hundredths of a pixel
    assert hbm[0].attrib["fill"] == "#d32f2f"  # file pages are red on a GPU's node only
    assert cpu[0].attrib["fill"] == "#d7ccc8"
    said = texts(document)
    assert "FILE 123.0 · CUDA 0.6 · ANON 0.0 · SHMEM 0.0 · KERNEL 0.1 · UNACC 0.3" in said
    assert {"18.0", "142.0", "431.0", "478.0"} <= set(said)
    assert "1 NUMA node without memory, hidden" in said


def test_the_title_says_which_host_run_phase_and_time() -> None:
    whole = envelope({"gh200-01": story()})
    whole["run"].update(id="5af3c2d1", started="2026-03-01T14:02:11.123Z")
    document = snapshot_svg(whole)
    expected = (
        "gh200-01 · 1 × NVIDIA GH200 480GB · driver 570.86 · run 5af3c2d1 · phase before-load"
        " · 2026-03-01 14:02:11 UTC"
    )
    assert ElementTree.fromstring(document).findtext(f"{SVG}title") == expected
    assert document == snapshot_svg(copy.deepcopy(whole))
    assert document.isascii()


def test_several_hosts_have_a_row_each_also_those_that_failed() -> None:
    whole = envelope({"gh200-01": story(), "h100-02": discrete(), "gh200-17": None})
    document = snapshot_svg(whole)
    assert len(bars(document)) == 4
    assert "h100-02, GPU 0, device: unaccounted 10.0 GiB, 10 737 418 240 bytes" in titles(document)
    assert "h100-02, GPU 0, device: kernel 1.0 GiB, 1 073 741 824 bytes" in titles(document)
    said = texts(document)
    assert said[0] == "3 hosts: 2 ok, 1 unreachable"
    assert any(line.startswith("h100-02 · 1 × NVIDIA") for line in said)
    assert "– gh200-17: unreachable: connect_timeout: no answer" in said


def test_text_of_hosts_is_only_text() -> None:
    """Markup, quotes and control characters in names neither end an element nor a line."""
    found = discrete()
    found["gpu.devices"]["gpus"][0]["name"] = '</text><script>alert(1)</script>" onload="x'
    document = snapshot_svg(envelope({"h<b>&'\"\x1b[2J\u202e": found, "b": None}))
    root = ElementTree.fromstring(document)
    tags = {one.tag.removeprefix(SVG) for one in root.iter()}
    assert tags == {"svg", "defs", "title", "rect", "g", "text"}
    assert {name for one in root.iter() for name in one.attrib} == {
        "width", "height", "viewBox", "font-family", "fill", "x", "y", "font-size", "font-weight",
        "stroke", "stroke-width", "text-anchor", "pointer-events", "role",
    }  # fmt: skip
    assert "<script" not in document
    assert any("h<b>&'\"\\x1b[2J\\u202e" in line for line in texts(document))


def test_what_is_not_known_is_drawn_as_such() -> None:
    found = discrete()
    found["gpu.processes"]["gpus"][0]["complete"] = False
    document = snapshot_svg(envelope({"h": found}))
    assert "GPU 0, device: not known 60.0 GiB, 64 424 509 440 bytes" in titles(document)
    card = bars(document)[0]
    assert round(sum(float(one.attrib["width"]) for one in card), 2) == BAR


sizes = st.one_of(st.none(), st.integers(0, 600 * GIB), st.integers(-5, 5))


@given(
    parts=st.fixed_dictionaries(dict.fromkeys(LETTERS, sizes)),
    total=st.one_of(st.none(), st.integers(0, 2000 * GIB)),
)
def test_the_pieces_fill_the_bar(parts: dict[str, int | None], total: int | None) -> None:
    """Whatever a host says: side by side, none negative, as wide as the bar; bytes unchanged."""
    found = pieces(Place("GPU 0", "", "gpu", total, parts))
    known = [size for size in parts.values() if size and size > 0]
    assert [one.at for one in found] == [sum(p.wide for p in found[:n]) for n in range(len(found))]
    assert all(one.wide >= 0 for one in found)
    if not known and not total:
        assert found == []
        return
    assert sum(one.wide for one in found) == BAR * 100
    assert sum(one.bytes for one in found) == max(total or 0, sum(known))


# --- the command line ----------------------------------------------------------------------


def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str) -> Any:
    """One finished run in a history of this test's own."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    whole = envelope({"gh200-01": story()})
    whole["run"]["command"] = command
    if command != "snapshot":
        del whole["hosts"][0]["snapshot"]
    history = open_history()
    history.begin(whole["run"], whole["targeted"])
    history.record_host(whole["run"]["id"], whole["hosts"][0])
    history.finish(whole)
    history.close()
    return whole


def test_a_recorded_run_is_drawn_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same bytes as at the time, on stdout and with --to."""
    whole = record(tmp_path, monkeypatch, "snapshot")
    run = whole["run"]["id"]
    assert main(["runs", "show", run, "-o", "svg"]) == 0
    assert capsys.readouterr().out == snapshot_svg(whole)
    target = tmp_path / "before.svg"
    assert main(["runs", "show", run, "-o", "svg", "--to", str(target)]) == 0
    assert target.read_text("ascii") == snapshot_svg(whole)


def test_a_run_without_a_table_cannot_be_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = record(tmp_path, monkeypatch, "hosts")
    assert main(["runs", "show", whole["run"]["id"], "-o", "svg"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "has no memory table to draw" in err


def test_only_what_can_be_drawn_takes_svg(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["hosts", "-o", "svg"]) == 2
    assert "'svg' is not one of" in capsys.readouterr().err
