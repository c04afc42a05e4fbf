"""Log files of hosts at the shell: a host without the file has failed, the others are read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab import api
from tests.lab.desk import Desk

pytestmark = pytest.mark.lab

FILE = "/run/host/engine-of-one.log"


@pytest.fixture
def desk(shared_lab: api.Lab, tmp_path: Path) -> Iterator[Desk]:
    """Four hosts, of which the first has the file."""
    place = shared_lab.directory / "gh200-01" / Path(FILE).name
    place.write_text("a line of the log\n", "utf-8")
    yield Desk(tmp_path, shared_lab.inventory)
    place.unlink()


@pytest.mark.parametrize("command", [("logs",), ("audit", "startup")])
def test_hosts_without_the_file_have_failed(desk: Desk, command: tuple[str, ...]) -> None:
    """Nowhere: exit 3 and one reason; on one of four: that one is ok; one of two files: partial."""
    word, *more = command
    nowhere = desk.run(word, *more, "-H", "gh200-*", "--file", "/nope.log")
    assert nowhere.code == 3
    said = " ".join(nowhere.out.split())
    assert said.count("there is no file /nope.log on this host") == 1
    assert "gh200-[01-04]" in said
    one = desk.run(word, *more, "-H", "gh200-*", "--file", FILE, "-o", "json")
    rows = json.loads(one.out)["hosts"]
    assert one.code == 3
    assert [row["outcome"] for row in rows] == ["ok", "failed", "failed", "failed"]
    assert {row["error"]["code"] for row in rows[1:]} == {"log_unreadable"}
    mix = desk.run(word, *more, "-H", "gh200-01", "--file", FILE, "--file", "/nope.log")
    assert mix.code == 0
    assert mix.out.count("there is no file /nope.log on this host") == 1


def test_rows_of_logs_have_the_reason_beside_them(desk: Desk) -> None:
    done = desk.run("logs", "-H", "gh200-*", "--file", FILE, "-o", "jsonl", "-q")
    assert done.code == 3
    assert [json.loads(line)["host"] for line in done.out.splitlines()] == ["gh200-01"]
    assert "gh200-[02-04] failed: log_unreadable: there is no file" in " ".join(done.err.split())
