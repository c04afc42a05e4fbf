"""``reclaim --cache --post-check``: what an engine that serves reads from disk again."""

from __future__ import annotations

import json
import shutil
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lab import api
from tests.lab.desk import Desk
from tests.lab.fixtures import wait_until
from tests.lab.look.test_snapshot import HOST, MODELS, plant, standing
from tests.lab.reclaim_stage import MIB

pytestmark = pytest.mark.lab

SIZE = 24
SERVER = Path(__file__).parents[1] / "inside" / "engine_server.py"


@pytest.fixture(scope="module")
def lab() -> Iterator[api.Lab]:
    with api.lab(n=1) as running:
        yield running


@pytest.fixture
def desk(lab: api.Lab, tmp_path: Path) -> Desk:
    return Desk(tmp_path, lab.inventory)


@pytest.fixture(scope="module")
def engine(lab: api.Lab) -> Iterator[str]:
    """An engine on the host that reads ``one`` whenever it is asked; its address."""
    path = plant(lab, "one", SIZE)
    shutil.copy(SERVER, lab.directory / HOST / "engine_server.py")
    with standing(lab, "python3", "/run/host/engine_server.py", path) as port:
        yield f"http://127.0.0.1:{port}"


def dropped(desk: Desk, url: str, *words: str, path: str = f"{MODELS}/one") -> tuple[int, Any]:
    """Status of ``reclaim --cache`` over *path* with *url* asked afterwards, and what it said."""
    said = desk.run(
        "reclaim", "-H", HOST, "--cache", path, "--cache-mode", "drop", "--post-check", url,
        "--yes", "-o", "json", *words,
    )  # fmt: skip
    section = said.answer.reclaim(HOST)
    assert section["verdict"] == "reclaimed", section["cache"]["why"]
    check = section["cache"]["post_check"]
    assert check["url"] == url
    return said.code, check


def test_a_dropped_file_is_read_again_once(desk: Desk, lab: api.Lab, engine: str) -> None:
    """As many bytes as the file has, by the engine's processes and from the disk; then none."""
    code, check = dropped(desk, f"{engine}/health")
    assert (code, check["answered"], check["status"], check["method"]) == (0, True, 200, "GET")
    assert SIZE * MIB <= check["read_bytes"] < (SIZE + 8) * MIB
    assert check["disks_read_bytes"] >= SIZE * MIB
    assert check["processes"] >= 2
    plant(lab, "another", SIZE)  # is in memory and nothing to the engine
    code, check = dropped(desk, f"{engine}/health", path=f"{MODELS}/another")
    assert (code, check["status"]) == (0, 200)
    assert check["read_bytes"] < MIB


def test_a_completion_is_answered_by_a_worker_whose_reads_count(desk: Desk, engine: str) -> None:
    """One token of the model that the engine names; the reading has each process."""
    said = desk.run(
        "reclaim", "-H", HOST, "--cache", f"{MODELS}/one", "--post-check",
        f"{engine}/v1/completions", "--yes", "-o", "json",
    )  # fmt: skip
    reading = said.answer.host(HOST)["readings"]["engine.request"]["reading"]
    assert (said.code, reading["status"], reading["method"]) == (0, 200, "POST")
    assert reading["model"] == "served/model"
    worker = reading["processes"][0]
    assert worker["read_bytes"] >= SIZE * MIB
    assert worker["listens"] is False
    assert [row["pid"] for row in reading["processes"] if row["listens"]] == reading["listening"]
    assert len(reading["listening"]) == 1


def test_the_screen_says_it(desk: Desk, lab: api.Lab, engine: str) -> None:
    plant(lab, "one", SIZE)
    said = desk.run(
        "reclaim", "-H", HOST, "--cache", f"{MODELS}/one", "--post-check", f"{engine}/health",
        "--yes",
    )  # fmt: skip
    assert said.code == 0
    text = " ".join(said.out.split())
    assert f"post-check GET {engine}/health: 200 in " in text
    assert " processes read 0.02" in text
    assert "GiB from disk, all disks 0.0" in text


@pytest.mark.parametrize(
    ("path", "status", "problem"),
    [("/broken", 500, None), ("/hang", None, "no answer in time")],
)
def test_an_engine_that_gives_no_good_answer(
    desk: Desk, lab: api.Lab, engine: str, path: str, status: int | None, problem: str | None
) -> None:
    """The pages have left memory all the same; the status tells that the check failed."""
    plant(lab, "one", SIZE)
    code, check = dropped(desk, f"{engine}{path}", "--post-check-timeout", "2s")
    assert (code, check["answered"]) == (5, False)
    assert (check["status"], check["problem"]) == (status, problem)


def test_an_interrupt_meanwhile_keeps_what_the_rung_did(
    desk: Desk, lab: api.Lab, engine: str
) -> None:
    """The rung has ended and is known; only the check has no end."""
    plant(lab, "one", SIZE)
    asked = lab.directory / HOST / "models/one.asked"
    asked.unlink(missing_ok=True)
    with desk.running(
        "reclaim", "-H", HOST, "--cache", f"{MODELS}/one", "--post-check", f"{engine}/hang",
        "--yes", "-o", "json",
    ) as running:  # fmt: skip
        wait_until("the engine is asked", asked.exists, seconds=60, pause=0.2)
        running.send_signal(signal.SIGINT)
        out, err = running.communicate(timeout=200)
    assert running.returncode == 130, err
    entry = json.loads(out)["hosts"][0]
    assert entry["reclaim"]["verdict"] == "reclaimed"
    check = entry["reclaim"]["cache"]["post_check"]
    assert (check["answered"], check["status"]) == (False, None)
    assert "interrupted" in check["problem"]


def test_nobody_listens(desk: Desk, lab: api.Lab) -> None:
    plant(lab, "one", SIZE)
    with socket.socket() as closed:  # bound, so that nobody else can listen there
        closed.bind(("127.0.0.1", 0))
        code, check = dropped(desk, f"http://localhost:{closed.getsockname()[1]}/health")
    assert (code, check["answered"], check["problem"]) == (5, False, "connection refused")
    assert check["read_bytes"] is None


def test_a_dry_run_asks_nobody_and_names_the_whole_command(
    desk: Desk, lab: api.Lab, engine: str
) -> None:
    plant(lab, "one", SIZE)
    said = desk.run(
        "reclaim", "-H", HOST, "--cache", f"{MODELS}/one", "--post-check", f"{engine}/health",
        "--dry-run", "-o", "json",
    )  # fmt: skip
    section = said.answer.reclaim(HOST)
    assert section["cache"]["post_check"] is None
    assert "engine.request" not in said.answer.host(HOST)["readings"]
    (step,) = section["next"]
    assert step.endswith(f" --cache {MODELS}/one --post-check {engine}/health --yes")
