"""Stories inside of a pid namespace, as in a rented container: NVML's numbers are the host's,
nobody here has them, and the agent sees only what is inside."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.lab import api
from tests.lab.desk import Desk, inventory, known_hosts
from tests.lab.fixtures import wait_until
from tests.lab.stories.scenes import Scene, left, orphaned
from tests.lab.stories.test_story_hosts import INSIDE, Played

pytestmark = pytest.mark.lab

PORT = 2400
OUTER = 60001
"""A number of the host's, which NVML names and nobody inside has."""

NAMED = f"os.environ['CHARGE_PID'] = '{OUTER}'\n"
QUIET = frozenset({"nothing_to_do", "cannot_attribute", "held_by"})


def inside(code: str, *names: str) -> Scene:
    return Scene(NAMED + code, wanted=names, verdicts=QUIET)


STORIES = {
    "loaders-of-a-living-trainer": inside(
        'start("trainer", session=True, name="trainer", loaders=2)\n'
        'stage.wait("trainer", "loader0", "loader1")\n',
        *("trainer", "loader0", "loader1"),
    ),
    "nohup": inside(
        'start("worker", session=True, name="worker", title="python3 train.py")\n'
        'stage.wait("worker")\n',
        "worker",
    ),
    "fork-of-one-that-has-ended": inside(
        """
start("trainer", session=True, name="trainer", loaders=1)
stage.wait("trainer", "loader0")
kill(cast["trainer"])
gone(cast["trainer"])
""",
        "loader0",
    ),
    "client-of-a-worker": inside(
        orphaned("serving", place="/run/engine.sock")
        + 'start("client", session=True, name="client", place="/run/engine.sock")\n'
        + 'stage.wait("client")\n',
        *("worker", "client"),
    ),
    "leftover-of-an-engine": left(NAMED + orphaned(), "worker"),
}


class Inner:
    """A host, and an sshd in a pid namespace inside of it."""

    def __init__(self, lab: api.Lab, host: str) -> None:
        self.lab, self.host = lab, host
        own = lab.directory / host
        shutil.copy(INSIDE / "cast.py", own / "cast.py")
        kept = [
            line
            for line in (own / "sshd_config").read_text().splitlines()
            if not line.startswith("ListenAddress")
        ]
        listen = f"ListenAddress {lab.hosts[host].address}:{PORT}"
        (own / "sshd_inner").write_text("\n".join([listen, *kept]) + "\n")
        started = lab.exec(
            host,
            "sh",
            "-c",
            "setsid unshare --pid --fork --mount-proc /usr/sbin/sshd -D -f /run/host/sshd_inner"
            " >/dev/null 2>&1 </dev/null &",
        )
        assert started.returncode == 0, started.stderr
        (own / "known_inner").write_text(known_hosts(lab, host, PORT))
        wait_until("the inner sshd answers", lambda: self.ssh("true").returncode == 0, 30)

    def ssh(self, command: str) -> subprocess.CompletedProcess[str]:
        words = self.lab.ssh_command(self.host)
        words[words.index("-p") + 1] = str(PORT)
        known = self.lab.directory / self.host / "known_inner"
        words[words.index(f"UserKnownHostsFile={self.lab.directory / 'known_hosts'}")] = (
            f"UserKnownHostsFile={known}"
        )
        return subprocess.run(
            [*words, command],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def play(self, scene: Scene) -> dict[str, int]:
        (self.lab.directory / self.host / "scene.py").write_text(scene.code)
        done = self.ssh("python3 -I -S /run/host/cast.py </run/host/scene.py")
        assert done.returncode == 0, done.stderr
        cast: dict[str, int] = json.loads(done.stdout)
        return cast

    def alive(self, pid: int) -> bool:
        done = self.ssh(f"cat /proc/{pid}/stat")
        return done.returncode == 0 and done.stdout.rpartition(")")[2].split()[0] not in "ZX"

    def row(self) -> dict[str, Any]:
        known = self.lab.directory / self.host / "known_inner"
        return {"at": self.host, "port": PORT, "known_hosts": str(known)}


@pytest.fixture(scope="module")
def stories(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Played]]:
    with api.lab(n=len(STORIES)) as lab, ThreadPoolExecutor(3) as pool:
        inner = dict(zip(STORIES, pool.map(lambda host: Inner(lab, host), lab.hosts), strict=True))
        cast = dict(
            zip(
                STORIES,
                pool.map(lambda name: inner[name].play(STORIES[name]), STORIES),
                strict=True,
            )
        )
        folder = tmp_path_factory.mktemp("desk")
        rows = {one.host: one.row() for one in inner.values()}
        desk = Desk(folder, folder / "none").with_inventory(inventory(lab, rows))
        answer = desk.reclaim(",".join(rows), "--timeout", "200s")
        sections = {row["host"]: row for row in answer.envelope["hosts"]}

        def seen(name: str) -> Played:
            one = inner[name]
            alive = frozenset(who for who, pid in cast[name].items() if one.alive(pid))
            row = sections[one.host]
            assert row["error"] is None, (name, row["error"])
            return Played(one.host, cast[name], alive, row["reclaim"])

        yield dict(zip(STORIES, pool.map(seen, STORIES), strict=True))


@pytest.mark.parametrize("name", STORIES)
def test_who_is_wanted_lives_and_what_is_left_comes_back(
    stories: dict[str, Played], name: str
) -> None:
    played, scene = stories[name], STORIES[name]
    assert set(scene.wanted) <= played.alive, played.section
    assert not set(scene.left) & played.alive, played.section
    assert played.section["verdict"] in scene.verdicts, played.section
