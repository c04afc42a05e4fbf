"""Stories in real processes: ``reclaim --yes`` without a scope ends nothing that is wanted.

Each scene is played on a host of its own, and one run of reclaim covers them all.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.lab import api
from tests.lab.desk import Desk
from tests.lab.inside import asking
from tests.lab.stories.scenes import LEFT, WANTED, Scene

pytestmark = pytest.mark.lab

SCENES = {**LEFT, **WANTED}
INSIDE = Path(__file__).parents[1] / "inside"


@dataclass(frozen=True)
class Played:
    """A scene on its host: the pids of its cast, and who lived after reclaim."""

    host: str
    cast: dict[str, int]
    alive: frozenset[str]
    section: dict[str, Any]


def play(lab: api.Lab, host: str, scene: Scene) -> dict[str, int]:
    """Play *scene* through a login that then ends; the pids of its cast."""
    shutil.copy(INSIDE / "cast.py", lab.directory / host / "cast.py")
    (lab.directory / host / "scene.py").write_text(scene.code)
    done = lab.ssh(host, "python3 -I -S /run/host/cast.py </run/host/scene.py", timeout=60)
    assert done.returncode == 0, (host, done.stderr)
    cast: dict[str, int] = json.loads(done.stdout)
    return cast


@pytest.fixture(scope="module")
def stories(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Played]]:
    with api.lab(n=len(SCENES), net=True) as lab, ThreadPoolExecutor(4) as pool:
        at = dict(zip(SCENES, lab.hosts, strict=True))
        cast = dict(
            zip(
                SCENES,
                pool.map(lambda name: play(lab, at[name], SCENES[name]), SCENES),
                strict=True,
            )
        )
        desk = Desk(tmp_path_factory.mktemp("desk"), lab.inventory)
        answer = desk.reclaim(",".join(at.values()), "--timeout", "300s")
        sections = {row["host"]: row for row in answer.envelope["hosts"]}

        def seen(name: str) -> Played:
            host = at[name]
            alive = {who for who, pid in cast[name].items() if asking.exists(lab, host, pid)}
            row = sections[host]
            assert row["error"] is None, (name, row["error"])
            return Played(host, cast[name], frozenset(alive), row["reclaim"])

        yield dict(zip(SCENES, pool.map(seen, SCENES), strict=True))


@pytest.mark.parametrize("name", WANTED)
def test_whoever_is_wanted_lives(stories: dict[str, Played], name: str) -> None:
    played, scene = stories[name], SCENES[name]
    assert set(scene.wanted) <= played.alive, played.section
    assert played.section["verdict"] in scene.verdicts, played.section


@pytest.mark.parametrize("name", LEFT)
def test_what_is_left_over_comes_back(stories: dict[str, Played], name: str) -> None:
    played, scene = stories[name], SCENES[name]
    assert set(scene.wanted) <= played.alive, played.section
    assert not set(scene.left) & played.alive, played.section
    assert played.section["verdict"] in scene.verdicts, played.section


def test_who_may_keep_exported_memory_is_named(stories: dict[str, Played]) -> None:
    played = stories["keeper-of-exported-memory"]
    assert str(played.cast["keeper"]) in json.dumps(played.section), played.section


def test_there_are_enough_of_them() -> None:
    assert len(SCENES) >= 40
