"""The journal's export format: byte-exact, whatever the portions."""

from __future__ import annotations

import struct

from hypothesis import given
from hypothesis import strategies as st

from fleetmem.agent.logs.export import Export

NAMES = st.sampled_from([b"MESSAGE", b"_PID", b"SYSLOG_IDENTIFIER", b"INVOCATION_ID"])
PLAIN = st.binary(max_size=40).filter(lambda value: b"\n" not in value)
ENTRY = st.lists(st.tuples(NAMES, st.one_of(st.binary(max_size=40), PLAIN)), min_size=1, max_size=6)


def exported(entry: list[tuple[bytes, bytes]]) -> bytes:
    """As journalctl writes it: text where it is text, else with a length."""
    out = b"__CURSOR=s=1;i=2\n__REALTIME_TIMESTAMP=1700000000000000\n"
    for name, value in entry:
        try:
            plain = value.decode("utf-8").isprintable()
        except UnicodeDecodeError:
            plain = False
        if plain:
            out += name + b"=" + value + b"\n"
        else:
            out += name + b"\n" + struct.pack("<Q", len(value)) + value + b"\n"
    return out + b"\n"


def joined(entry: list[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    found: dict[bytes, list[bytes]] = {}
    for name, value in entry:
        found.setdefault(name, []).append(value)
    return {name: b"\n".join(values) for name, values in found.items()}


@given(st.lists(ENTRY, max_size=5), st.lists(st.integers(1, 50), max_size=30))
def test_any_entries_in_any_portions(
    entries: list[list[tuple[bytes, bytes]]], cuts: list[int]
) -> None:
    data = b"".join(map(exported, entries))
    export, got, at = Export(), [], 0
    for size in cuts:
        got += list(export.feed(data[at : at + size]))
        at += size
    got += [*export.feed(data[at:]), *export.close()]
    for one in got:
        assert one.pop(b"__REALTIME_TIMESTAMP") == b"1700000000000000"
        one.pop(b"__CURSOR")
    assert got == [joined(entry) for entry in entries]
    assert not export.broken


@given(st.binary(max_size=400))
def test_no_bytes_break_it(data: bytes) -> None:
    export = Export()
    for entry in [*export.feed(data), *export.close()]:
        assert all(isinstance(value, bytes) for value in entry.values())


def test_a_last_entry_without_its_empty_line_counts_and_a_cut_one_does_not() -> None:
    export = Export()
    assert list(export.feed(b"MESSAGE=whole\n")) == []
    assert list(export.close()) == [{b"MESSAGE": b"whole"}]
    export = Export()
    list(export.feed(b"MESSAGE\n" + struct.pack("<Q", 100) + b"only a part"))
    assert list(export.close()) == []
    assert export.broken
