"""Engine patterns: every one has its own line, units are what they mean, files are checked."""

# ruff: noqa: E501  (log lines stand as engines print them)

from __future__ import annotations

from pathlib import Path

import pytest

from fleetmem.controller.errors import PlaybookInvalid
from fleetmem.controller.startup.read.parse import parse
from fleetmem.controller.startup.read.patterns import Pattern, builtin, failed_test, load
from fleetmem.controller.startup.read.sieve import Sieve
from fleetmem.controller.startup.read.template import TemplateError, compile_template

GIB = 2**30
SIEVE = Sieve(builtin().seeds)
CASES = [(p, n) for p in builtin().all for n in range(len(p.tests))]


@pytest.mark.parametrize(
    ("pattern", "number"), CASES, ids=[f"{p.engine or 'common'}-{p.id}-{n}" for p, n in CASES]
)
def test_own_line(pattern: Pattern, number: int) -> None:
    """A pattern gives exactly the figures that its test names."""
    assert failed_test(pattern, number) is None


@pytest.mark.parametrize("pattern", builtin().all, ids=lambda p: f"{p.engine or 'common'}-{p.id}")
def test_own_line_passes_the_sieve(pattern: Pattern) -> None:
    """What a pattern can match, the cheap first look lets through."""
    for line, _ in pattern.tests:
        assert SIEVE.hits(line.encode()) == [line.encode()], line


@pytest.mark.parametrize(
    ("line", "field", "value"),
    [
        ("[2026-01-01 00:00:00 TP0] Load weight begin. avail mem=10.00 GB", "avail_before_load_bytes", 10 * GIB),
        ("[2026-01-01 00:00:00 TP0] Allocating 10.00 GB host memory for hierarchical KV cache.", "host_kv_bytes", 10**10),
        ("[2026-01-01 00:00:00 TP0] Allocating kv hierarchical KV host pool: 7 tokens, 10.00 GB host memory.", "host_kv_bytes", 10**10),
        ("(Worker_TP0 pid=1) INFO 01-01 00:00:00 [a.py:1] Loading model weights took 10.0000 GB", "weights_bytes", 10 * GIB),
        ("(Worker_TP0 pid=1) INFO 01-01 00:00:00 [a.py:1] Created mmap file /dev/shm/x of 10.00 GB", "host_kv_bytes", 10**10),
        ("(Worker_TP0 pid=1) INFO 01-01 00:00:00 [a.py:1] Available KV cache memory: 51.1 GiB", "kv_available_bytes", round(51.1 * GIB)),
        ("[TensorRT-LLM][INFO] [MemUsageChange] Allocated 43.00 MB GPU memory for runtime buffers.", "runtime_buffer_bytes", 43 * 2**20),
    ],
)  # fmt: skip
def test_units(line: str, field: str, value: int) -> None:
    """GB is 2^30 on GPU lines and 1e9 on host lines."""
    newest = parse([line]).newest
    assert newest is not None
    (rank,) = newest.ranks.values()
    assert rank[field] == value


def test_every_engine_has_patterns() -> None:
    assert set(builtin().engines()) == {
        "llamacpp", "lmcache", "lmdeploy", "ollama", "sglang", "tgi", "trtllm", "vllm",
    }  # fmt: skip


def _file(tmp_path: Path, text: str) -> str:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    return str(path)


def test_a_user_adds_an_engine(tmp_path: Path) -> None:
    """A new engine needs a file, no code."""
    path = _file(
        tmp_path,
        """\
engine: nanoserve
about: An engine of the user's own.
units: {MB: 1000000}
patterns:
  - id: weights
    find: nanoserve weights
    match: 'nanoserve weights: <weights_bytes:size>'
    tests:
      - {line: 'nanoserve weights: 12.5 MB', gives: {weights_bytes: 12.5 MB}}
""",
    )
    startup = parse(["x", "nanoserve weights: 99.0 MB"], patterns=load([path]))
    assert startup.engine == "nanoserve"
    assert startup.newest is not None
    assert startup.newest.ranks == {"_": {"weights_bytes": 99_000_000}}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("match: 'w: <weights_bytes:sized>'", ':7:12: patterns[0].match: unknown type "sized"'),
        ("match: 'w: (<weights_bytes:size>'", ":7:12: patterns[0].match: not an expression"),
        ("match: 'w: .*<weights_bytes:size>'", "unbounded"),
        ("mach: 'w'", ":7:5: patterns[0].mach: unknown key"),
        ("match: 'w: <weights_bytes:MiB>'", ":9:9: patterns[0].tests[0]: weights_bytes gives"),
        ("match: 'v: <weights_bytes:size>'", "its own line does not match"),
        ("match: 'w: <weights_bytes:size> <other:int>'", "does not match"),
    ],
)
def test_mistakes_have_a_place(tmp_path: Path, change: str, message: str) -> None:
    """file:line:column and what is wrong, all at once."""
    text = """\
engine: e
about: a
units: {MB: 1000000}
patterns:
  - id: w
    find: 'w: '
    MATCH
    tests:
      - {line: 'w: 12.5 MB', gives: {weights_bytes: 12.5 MB}}
"""
    path = _file(tmp_path, text.replace("MATCH", change))
    with pytest.raises(PlaybookInvalid) as caught:
        load([path])
    assert message in str(caught.value)
    assert str(caught.value).startswith(path)


def test_a_test_must_name_every_figure(tmp_path: Path) -> None:
    text = """\
engine: e
about: a
patterns:
  - id: w
    find: 'w: '
    match: 'w: <a:int> <b:int>'
    tests:
      - {line: 'w: 1 2', gives: {a: 1}}
"""
    with pytest.raises(PlaybookInvalid, match="gives b too"):
        load([_file(tmp_path, text)])


def test_sizes_round_to_the_printed_digit() -> None:
    template = compile_template("x=<a_bytes:size>", {"GB": GIB})
    found = template.regex.search("x=1,024.50GB")
    assert found is not None
    values: dict[str, object] = {}
    spread: dict[str, float] = {}
    template.read(found, values, spread)
    assert values == {"a_bytes": round(1024.5 * GIB)}
    assert spread == {"a_bytes": 0.005 * GIB}


def test_a_size_needs_units() -> None:
    with pytest.raises(TemplateError, match="needs units"):
        compile_template("<a_bytes:size>", {})
