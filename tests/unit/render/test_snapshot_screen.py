"""The screens of ``snapshot``: every row adds up, 100 columns, every target in a row."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetmem.controller.answer import envelope as env
from fleetmem.controller.contact.memory_gather import partial
from fleetmem.controller.memory.account import snapshot
from fleetmem.controller.render.kit.csv_text import csv_text
from fleetmem.controller.render.kit.findings import folded_lines
from fleetmem.controller.render.kit.line import WIDTH, cells, plain
from fleetmem.controller.render.kit.table_rows import COLUMNS, table_rows
from fleetmem.controller.render.snapshot.file_table import file_lines, wants_files
from fleetmem.controller.render.snapshot.places import COLUMNS as PLACE_COLUMNS
from fleetmem.controller.render.snapshot.places import (
    Place,
    bar_spans,
    in_tenths,
    place_lines,
    places,
)
from fleetmem.controller.render.snapshot.snapshot import snapshot_lines
from tests.unit.memory.memory_samples import MIB, cached, gpu, node, process, readings

GIB = 1 << 30


def story() -> dict[str, Any]:
    """SCREENS' GH200 host: one HBM node full of checkpoint, one CPU node, one empty node."""
    nodes = [
        node(0, "cpu", "0-71", total=478 * 1024, free=431 * 1024, file=30 * 1024, anon=13 * 1024,
             kernel=3 * 1024, slab=1024),
        node(2, "gpu", "", total=142 * 1024, free=18 * 1024, file=123 * 1024, kernel=100),
        node(3, "memory", "", total=0, free=0),
    ]  # fmt: skip
    files = [
        cached("/models/ds/1.safetensors", {"2": 60 * 1024}),
        cached("/models/ds/2.safetensors", {"2": 50 * 1024, "0": 10 * 1024}),
        cached("/opt/vllm/a.so", {"0": 1024, "2": 200}, mapped_by=[41, 42, 43]),
        cached("/data/unknown", {"0": 500}, mapped_by=[], mapped_elsewhere=True),
    ]
    return readings(nodes, files, [gpu(numa_node=2)], {0: {41: 600}})


def envelope(hosts: dict[str, Any], findings: list[Any] | None = None) -> Any:
    entries = []
    for name, found in hosts.items():
        entry = env.new_host(name, "ok" if found else "unreachable")
        if found:
            entry["readings"] = {
                probe: {"outcome": "ok", "reason": None, "reading": one, "seconds": 0.1}
                for probe, one in found.items()
            }
            entry["snapshot"] = snapshot(found, "before-load")
        else:
            entry["error"] = {"code": "connect_timeout", "message": "no answer", "hint": None}
        entries.append(entry)
    whole = env.new_envelope(env.new_run("snapshot"), list(hosts), entries)
    whole["findings"] = findings or []
    return env.finish(whole, 0)


def text(lines: Any) -> list[str]:
    found = [plain(line) for line in lines]
    assert max(map(cells, found)) <= WIDTH
    return found


def test_places_are_gpus_first_and_empty_nodes_are_hidden() -> None:
    section = snapshot(story())
    lines = text(place_lines(places(section)))
    assert lines[0].split() == [
        "WHERE", "TOTAL", "FREE", "CUDA", "FILE", "ANON", "SHMEM", "KERNEL", "UNACC", "0", "%",
        "100", "%",
    ]  # fmt: skip
    assert lines[1].startswith("GPU 0 HBM   NUMA 2")
    assert lines[1].endswith("FFFFFFFFFFFFF··")
    assert lines[1].split()[5:13] == ["142.0", "18.0", "0.6", "123.0", "0.0", "0.0", "0.1", "0.3"]
    assert lines[2].startswith("CPU 0 DRAM  NUMA 0")
    assert lines[2].split()[7] == "–"
    assert len(lines) == 3
    assert "1 NUMA node without memory, hidden" in "\n".join(
        text(snapshot_lines(envelope({"h": story()})))
    )


@pytest.mark.parametrize("width", [73, 80, 83, 84])
def test_eighty_columns_hold_every_column_without_the_bar(width: int) -> None:
    lines = [plain(line) for line in place_lines(places(snapshot(story())), width)]
    assert lines[0].split() == ["WHERE", *PLACE_COLUMNS]
    assert max(map(cells, lines)) <= width
    total, *parts = (float(word) for word in lines[1].split()[5:])
    assert total == 142.0
    assert round(sum(parts), 1) == total


@pytest.mark.parametrize("width", [58, 60])
def test_a_narrow_terminal_loses_the_bar_and_two_columns(width: int) -> None:
    lines = [plain(line) for line in place_lines(places(snapshot(story())), width)]
    assert "KERNEL" not in lines[0]
    assert "SHMEM" not in lines[0]
    assert lines[1].startswith("GPU 0 HBM   NUMA 2 ")
    assert "%" not in lines[0]
    assert max(map(cells, lines)) <= width


mib = st.integers(0, 200_000)


@given(parts=st.fixed_dictionaries(dict.fromkeys(("FREE", "CUDA", "FILE", "ANON", "UNACC"), mib)))
def test_what_is_shown_adds_up(parts: dict[str, int]) -> None:
    """The tenths of the parts add up to the tenths of the total, each off by less than one."""
    sizes = {name: size * MIB for name, size in parts.items()}
    place = Place("GPU 0", "", "gpu", sum(sizes.values()), {**sizes, "SHMEM": None, "KERNEL": 0})
    shown = in_tenths(place)
    assert sum(shown[name] or 0 for name in place.parts) == shown["TOTAL"]
    assert shown["SHMEM"] is None
    for name, size in sizes.items():
        assert abs((shown[name] or 0) - size * 10 / GIB) < 1.5
    assert sum(len(letters) for letters, _ in bar_spans(place)) == 15


def test_files_are_folded_by_directory_the_most_on_the_gpu_first() -> None:
    section = snapshot(story())
    assert wants_files(section, False)
    lines = text(file_lines(section))
    assert lines[0].split() == [
        "FILE", "PAGES", "FILES", "TOTAL", "NUMA", "2", "NUMA", "0,3", "DIRTY", "MAPPED", "BY",
    ]  # fmt: skip
    assert lines[1].split() == [
        "/models/ds/*.safetensors", "2", "120.0", "110.0", "10.0", "0.0", "nobody",
    ]  # fmt: skip
    assert lines[2].split()[-2:] == ["3", "processes"]
    assert lines[3].split()[-1] == "–"
    assert lines[-1].startswith("not traced (79.")


def test_files_without_a_row_of_their_own_are_counted() -> None:
    found = story()
    found["pagecache.files"]["small"] = {"files": 94_106, "resident_bytes": 4 * GIB}
    lines = text(file_lines(snapshot(found)))
    assert lines[-2].split() == ["small", "files", "94", "106", "4.0", "–", "–", "–", "–"]


@pytest.mark.parametrize(
    ("small_mib", "column"),
    [(500, ["0.5", "60.0"]), (40, ["0.04", "60.00"]), (2, ["0.002", "60.000"])],
)
def test_a_column_of_files_has_one_precision(small_mib: int, column: list[str]) -> None:
    """What is small is no 0, and the rows beside it have as many digits; other columns do not."""
    nodes = [node(0, "cpu", "0", total=100 * 1024, free=0, file=70 * 1024)]
    small = cached("/b/1.bin", {"0": 1024})
    small["dirty_bytes"] = small_mib * MIB
    large = cached("/a/1.bin", {"0": 61 * 1024})
    large["dirty_bytes"] = 60 * GIB
    lines = text(file_lines(snapshot(readings(nodes, [small, large], [], {}))))
    rows = {line.split()[0]: line.split() for line in lines[1:3]}
    assert [rows[name][-2] for name in ("/b/*.bin", "/a/*.bin")] == column
    assert [rows[name][2] for name in ("/b/*.bin", "/a/*.bin")] == ["1.0", "61.0"]


def test_without_a_gpu_node_files_are_shown_when_asked_for() -> None:
    nodes = [node(0, "cpu", "0", total=1000, free=100, file=900)]
    section = snapshot(readings(nodes, [cached("/m/a.bin", {"0": 900})], [], {}))
    assert not wants_files(section, False)
    assert wants_files(section, True)


def test_one_host_as_a_whole() -> None:
    finding = {
        "rule": "hbm-page-cache/file-pages-on-gpu",
        "severity": "warn",
        "hosts": "gh200-01",
        "subject": "NUMA node 2",
        "evidence": {"say": "123.0 GiB of file pages"},
        "advice": "Not a leak.",
        "next": ["fleetmem reclaim -H gh200-01 --cache /models/ds --dry-run"],
    }
    lines = text(snapshot_lines(envelope({"gh200-01": story()}, [finding])))
    assert lines[0].startswith("gh200-01  1 × NVIDIA GH200 480GB · driver 570.86 · 64K pages")
    assert "HBM is NUMA memory" in " ".join(lines[:2])
    assert "phase before-load" in " ".join(lines[:2])
    assert any(line.startswith("! file-pages-on-gpu") for line in lines)
    assert lines[-1] == "  next   fleetmem reclaim -H gh200-01 --cache /models/ds --dry-run"


def test_a_host_without_control_groups_is_whole() -> None:
    """Nothing to read is no gap; one that could not be read is."""
    whole = envelope({"h": story()})
    row = {"outcome": "unsupported", "reason": "none here", "reading": None, "seconds": 0.0}
    whole["hosts"][0]["readings"]["cgroups.memory"] = row
    assert partial(whole["hosts"][0]["readings"]) == []
    assert not any("cgroups" in line for line in text(snapshot_lines(whole)))
    row["outcome"] = "timed_out"
    assert partial(whole["hosts"][0]["readings"]) == ["cgroups.memory: timed_out (none here)"]
    assert "! cgroups.memory timed_out: none here" in text(snapshot_lines(whole))


def test_remote_text_cannot_draw_on_the_screen() -> None:
    found = readings(files=[cached("/m\x1b[2J\u202e/1.bin", {"1": 700})])
    lines = text(snapshot_lines(envelope({"h\x1b": found}), True))
    assert not any("\x1b" in line or "\u202e" in line for line in lines)
    assert any("\\x1b[2J" in line for line in lines)


def test_many_hosts_are_folded_by_what_they_have() -> None:
    hosts: dict[str, Any] = {f"gh200-{n:02d}": story() for n in range(1, 17)}
    hosts["gh200-17"] = None
    other = story()
    other["numa.nodes"]["nodes"][1]["free_bytes"] -= 10 * GIB
    other["numa.nodes"]["nodes"][1]["file_bytes"] += 10 * GIB
    hosts["gh200-01"] = other
    lines = text(snapshot_lines(envelope(hosts)))
    assert lines[0].startswith("17 hosts: 16 ok, 1 unreachable")
    hbm = next(line for line in lines if "GPU HBM" in line)
    assert hbm.startswith("gh200-[01-16]")
    assert "8.0-18.0" in hbm
    assert any("gh200-17: unreachable: connect_timeout" in line for line in lines)


def test_many_hosts_at_eighty_columns_keep_every_column() -> None:
    hosts = {f"gh200-{n:02d}": story() for n in range(1, 17)}
    one = hosts["gh200-01"]["numa.nodes"]["nodes"][1]
    one["free_bytes"] -= 10 * GIB
    one["file_bytes"] += 10 * GIB
    lines = [plain(line) for line in snapshot_lines(envelope(hosts), width=80)]
    assert max(map(cells, lines)) <= 80
    assert lines[2].split() == ["HOSTS", "WHERE", *PLACE_COLUMNS]
    assert lines[3].split()[:5] == ["gh200-[01-16]", "GPU", "HBM", "142.0", "8-18"]


def test_the_figures_of_equal_hosts_add_up() -> None:
    lines = text(snapshot_lines(envelope({"h1": story(), "h2": story()})))
    head, row, *_ = lines[2:]
    assert head.split() == ["HOSTS", "WHERE", *PLACE_COLUMNS]
    assert row.startswith("h[1-2]  GPU HBM")
    total, *parts = (float(word) for word in row.split()[3:])
    assert total == 142.0
    assert round(sum(parts), 1) == total


def test_hosts_that_differ_in_every_figure_stay_within_the_screen() -> None:
    hosts = {"h1": story(), "h2": story()}
    one = hosts["h2"]["numa.nodes"]["nodes"][0]
    one["free_bytes"] -= 250 * GIB
    one["file_bytes"] += 50 * GIB
    one["anon_bytes"] += 100 * GIB
    one["slab_bytes"] += 50 * GIB
    one["unaccounted_bytes"] += 50 * GIB
    for width, figures in (
        (100, ["478.0", "181.0-431.0", "–", "30.0-80.0", "13.0-113.0", "0.0", "4.0-54.0",
               "0.0-50.0"]),
        (90, ["478.0", "181-431", "–", "30-80", "13-113", "0.0", "4-54", "0-50"]),
    ):  # fmt: skip
        lines = [plain(line) for line in snapshot_lines(envelope(hosts), width=width)]
        row = next(line for line in lines if "CPU DRAM" in line)
        assert row.split()[3:] == figures
        assert max(map(cells, lines)) <= width


def test_a_long_head_breaks_between_its_parts() -> None:
    whole = envelope({"gh200-01": story()})
    whole["hosts"][0]["snapshot"]["phase"] = "a" * 60
    lines = text(snapshot_lines(whole))
    assert lines[1].startswith("  ")
    assert lines[1].endswith(f"GiB · run {whole['run']['id']}")


def test_a_long_name_of_a_rule_is_whole() -> None:
    whole = envelope({"h1": story(), "h2": story()})
    rule = "hbm-page-cache/file-pages-on-gpu"
    whole["findings"] = [
        {"rule": rule, "severity": "warn", "hosts": "h1", "subject": "NUMA node 2",
         "evidence": {"say": "1.6 GiB"}, "advice": None, "next": []}
    ]  # fmt: skip
    lines = text(folded_lines(whole, 1))
    assert next(line for line in lines if rule in line).endswith(f"{rule}  NUMA node 2: 1.6 GiB")
    assert any(line.endswith("nothing found") for line in lines)


def test_playbooks_over_many_hosts_name_every_target() -> None:
    hosts: dict[str, Any] = {f"h{n}": story() for n in range(1, 6)}
    hosts["h6"] = None
    whole = envelope(hosts)
    whole["hosts"][3]["readings"]["shm.segments"] = {
        "outcome": "denied", "reason": "not root", "reading": None, "seconds": 0.0,
    }  # fmt: skip
    whole["findings"] = [
        {"rule": "memory/stale-shm", "severity": "warn", "hosts": "h[1-2]",
         "subject": "shared memory", "evidence": {"say": "6.4 GiB"}, "advice": None, "next": []}
    ]  # fmt: skip
    lines = text(folded_lines(whole, 1))
    body = "\n".join(lines)
    assert "! " in body
    assert "h[1-2]" in body
    assert "shm.segments denied" in body
    assert "connect_timeout" in body
    quiet = next(line for line in lines if line.startswith("✓"))
    assert "h[3,5]" in quiet
    assert "fleetmem hosts -H @run:" in body


def test_the_table_as_rows_and_csv() -> None:
    found = readings(processes=[process(41, "=cmd", 300)], files=[])
    whole = envelope({"h1": found, "h2": None})
    rows = table_rows(whole)
    assert all(tuple(row) == COLUMNS or set(row) == set(COLUMNS) for row in rows)
    assert sum(row["bytes"] for row in rows if row["location"] == "numa:1") == 2048 * MIB
    assert rows[-1]["host"] == "h2"
    assert rows[-1]["outcome"] == "unreachable"
    assert rows[-1]["bytes"] is None
    one = node(0, "cpu", "0", total=300, free=0, anon=300)
    flat = table_rows(envelope({"h1": readings([one], [], [], {}, [process(41, "=cmd", 300)])}))
    assert "'=cmd 41" in csv_text(flat)
