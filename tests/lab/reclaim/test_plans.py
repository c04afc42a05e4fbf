"""Plans as things that travel, age and meet other desks; caps and canaries."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from fleetmem.controller.reclaim import plan_file
from fleetmem.controller.reclaim.options import ReclaimOptions
from tests.lab import api
from tests.lab.desk import Desk, inside, inventory, unbroken
from tests.lab.fixtures import wait_until
from tests.lab.inside.asking import kill

pytestmark = pytest.mark.lab


@dataclass(frozen=True)
class Place:
    """A lab and two desks in front of it; each test takes hosts of its own."""

    lab: api.Lab
    here: Desk
    there: Desk
    free: list[str]

    def hold(self, count: int, kind: str = "retitled") -> tuple[list[str], dict[str, int]]:
        """Hosts of a test's own, and the pid that holds GPU 0 on each."""
        hosts = [self.free.pop(0) for _ in range(count)]
        return hosts, {host: self.lab.hog(host, kind, 0, 2000).holders[0] for host in hosts}

    def lives(self, host: str, pid: int) -> bool:
        """Whether the holder is there and saw no signal."""
        alive = self.lab.exec(host, "test", "-d", f"/proc/{pid}").returncode == 0
        return alive and self.lab.signals(host, pid) == []


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("desks")
    with api.lab(n=21, gpus=1) as lab:
        here, there = (
            Desk(folder / name, folder / "none").with_inventory(
                inventory(lab, {host: {} for host in lab.hosts})
            )
            for name in ("here", "there")
        )
        yield Place(lab, here, there, list(lab.hosts))


def test_a_plan_is_applied_elsewhere_and_only_what_it_names(place: Place) -> None:
    hosts, held = place.hold(2)
    path = place.here.folder / "plan.json"
    planned = place.here.plan(",".join(hosts), "--plan-out", str(path))
    assert planned.code == 0
    later = place.lab.hog(hosts[0], "orphan", 0, 500).holders[0]
    said = place.there.run("reclaim", "--apply", str(path), "--yes", "-o", "json")
    answer = said.answer
    assert set(answer.targets(hosts[0])) == {held[hosts[0]]}
    assert place.lives(hosts[0], later)
    assert answer.reclaim(hosts[0])["verdict"] == "held_by"
    assert answer.reclaim(hosts[1])["verdict"] == "reclaimed"
    assert said.code == 5
    kept = planned.reclaim(hosts[1])["plan"]
    assert answer.reclaim(hosts[1])["plan"] == kept
    again = place.there.run("reclaim", "--apply", str(path), "--yes", "-o", "json").answer
    assert {again.host(host)["error"]["code"] for host in hosts} == {"stale_plan"}


def test_a_plan_from_the_history_by_the_id_of_run_or_plan(place: Place) -> None:
    hosts, held = place.hold(2)
    planned = place.here.plan(",".join(hosts))
    one = planned.reclaim(hosts[0])["plan"]["id"]
    done = place.here.run("reclaim", "--apply", one, "--yes", "-o", "json")
    assert done.answer.envelope["targeted"] == [hosts[0]]
    assert (done.code, done.answer.reclaim(hosts[0])["verdict"]) == (0, "reclaimed")
    assert place.lives(hosts[1], held[hosts[1]])
    run = planned.envelope["run"]["id"]
    rest = place.here.run("reclaim", "--apply", run, "--yes", "-o", "json").answer
    assert rest.host(hosts[0])["error"]["code"] == "stale_plan"
    assert rest.reclaim(hosts[1])["verdict"] == "reclaimed"
    assert rest.code == 7
    elsewhere = place.there.run("reclaim", "--apply", run, "--yes", "-o", "json")
    assert (elsewhere.code, elsewhere.error["code"]) == (2, "plan_invalid")


def test_old_rebooted_and_edited_plans_are_refused(place: Place) -> None:
    hosts, held = place.hold(3)
    old, rebooted, fresh = hosts
    path = place.here.folder / "aging.json"
    assert place.here.plan(",".join(hosts), "--plan-out", str(path)).code == 0
    found = plan_file.read(path)
    plans = dict(found.plans)
    plans[old] = replace(plans[old], created=plans[old].created - timedelta(minutes=16))
    path.write_text(plan_file.write(found.run, ReclaimOptions(), plans))
    boot = place.lab.directory / rebooted / "etc/boot_id"
    boot.chmod(0o644)
    boot.write_text("00000000-1111-2222-3333-444444444444\n")
    said = place.there.run("reclaim", "--apply", str(path), "--yes", "-o", "json")
    assert said.code == 7
    errors = {host: said.answer.host(host)["error"] for host in hosts}
    assert errors[old]["code"] == errors[rebooted]["code"] == "stale_plan"
    assert "expired" in errors[old]["message"]
    assert "rebooted" in errors[rebooted]["message"]
    assert errors[fresh] is None
    assert said.answer.reclaim(fresh)["verdict"] == "reclaimed"
    assert all(place.lives(host, held[host]) for host in (old, rebooted))
    edited = json.loads(path.read_text())
    edited["plans"][old]["plan"]["targets"][0]["member"]["process"]["pid"] += 1
    path.write_text(json.dumps(edited))
    refused = place.there.run("reclaim", "--apply", str(path), "--yes", "-o", "json")
    assert (refused.code, refused.error["code"]) == (2, "plan_invalid")
    assert "was changed" in refused.error["message"]


def test_two_desks_at_once(place: Place) -> None:
    (host,), held = place.hold(1, "term-ignorer")
    words = ("-H", host, "--gpu", "0", "--yes", "-o", "json", "--grace-period")
    with place.here.running("reclaim", *words, "10m") as first:
        pid = held[host]
        wait_until("TERM", lambda: place.lab.signals(host, pid), 60)
        second = place.there.run("reclaim", *words, "1s")
        error = second.answer.host(host)["error"]
        assert (second.code, error["code"]) == (7, "locked")
        assert "held by" in error["message"]
        assert "@" in error["message"]  # who, and where
        kill(place.lab, host, "KILL", pid)  # the first one need wait no longer
        out, err = first.communicate(timeout=400)
    assert first.returncode == 0, err
    (entry,) = json.loads(out)["hosts"]
    assert entry["reclaim"]["verdict"] == "reclaimed"
    assert len(place.lab.signals(host, pid)) == 1
    third = place.there.reclaim(host, "--gpu", "0")
    assert third.reclaim(host)["verdict"] == "nothing_to_do"


def test_what_another_desk_did_makes_a_plan_stale(place: Place) -> None:
    (host,), _ = place.hold(1)
    path = place.here.folder / "overtaken.json"
    place.here.plan(host, "--plan-out", str(path))
    assert place.there.reclaim(host).code == 0
    newcomer = place.lab.hog(host, "retitled", 0, 500).holders[0]
    said = place.here.run("reclaim", "--apply", str(path), "--yes", "-o", "json")
    assert (said.code, said.answer.host(host)["error"]["code"]) == (7, "stale_plan")
    assert place.lives(host, newcomer)


def _sick(place: Place, hosts: list[str], sick: dict[str, dict[str, Any]], name: str) -> Desk:
    rows: dict[str, dict[str, Any]] = {host: {} for host in hosts}
    return place.here.with_inventory(inventory(place.lab, {**sick, **rows}), name)


def test_the_cap_counts_unreachable_hosts_against_all_that_were_targeted(place: Place) -> None:
    hosts, held = place.hold(2)
    dead: dict[str, dict[str, Any]] = {f"dead-{n}": {"at": hosts[0], "port": 1} for n in (1, 2)}
    desk = _sick(place, hosts, dead, "cap.yaml")
    names = ",".join([*dead, *hosts])
    reached = desk.reclaim(names, "--max-fail", "50%", "--fanout", "1")
    assert reached.code == 4  # unreachable, and the rest never tried
    assert [reached.host(name)["outcome"] for name in dead] == ["unreachable"] * 2
    for host in hosts:
        entry = reached.host(host)
        assert entry["outcome"] == "not_attempted"
        assert "2 of 4 hosts failed" in entry["error"]["message"]
        assert place.lives(host, held[host])
    below = desk.reclaim(names, "--max-fail", "75%", "--fanout", "1")
    assert {below.reclaim(host)["verdict"] for host in hosts} == {"reclaimed"}
    assert below.code == 3


def test_hosts_that_fail_while_planning_stop_the_change_everywhere(place: Place) -> None:
    """With the whole fan-out at once the cap is reached after others were planned."""
    hosts, held = place.hold(2)
    dead: dict[str, dict[str, Any]] = {"dead-1": {"at": hosts[0], "port": 1}}
    desk = _sick(place, hosts, dead, "cap-late.yaml")
    answer = desk.reclaim(",".join([*dead, *hosts]), "--max-fail", "1")
    assert answer.code == 3
    for host in hosts:
        assert place.lives(host, held[host])
        section = answer.host(host).get("reclaim")
        assert section is None or section["rungs"] == []


def test_a_canary_that_does_not_recover_saves_the_others(place: Place) -> None:
    hosts, held = place.hold(3)
    canary, *others = hosts
    sticky = "gpu=0 bytes=3000000000 pid=999999 start=- lists=compute gi=- ci=- rule=sticky"
    inside(place.lab, canary, f"echo '{sticky}' >/run/nvml-sim/charges/sticky")
    answer = place.here.reclaim(",".join(hosts), "--canary", "1", "--release-timeout", "2s")
    assert answer.reclaim(canary)["verdict"] not in ("reclaimed", "nothing_to_do")
    assert all(place.lives(host, held[host]) for host in others)
    assert {answer.reclaim(host)["verdict"] for host in others} == {"planned"}
    assert answer.code == 5
    well = place.here.reclaim(",".join(others), "--canary", "1")
    assert {well.reclaim(host)["verdict"] for host in others} == {"reclaimed"}
    assert well.code == 0


def test_nobody_to_ask(place: Place) -> None:
    (host,), held = place.hold(1)
    said = place.here.run("reclaim", "-H", host, "-o", "json")
    assert said.code == 6
    assert place.lives(host, held[host])
    (line,) = [line for line in unbroken(said.err).splitlines() if "--apply" in line]
    words = line.partition("fleetmem ")[2].split()
    assert words[1:3] == ["-i", str(place.here.inventory)]  # whole, to be copied
    done = place.here.run(*words, "-o", "json")
    assert done.answer.reclaim(host)["verdict"] == "reclaimed"


def test_a_state_directory_that_cannot_be_written_refuses_before_any_host(
    place: Place, tmp_path: Path
) -> None:
    (host,), held = place.hold(1)
    blocked = tmp_path / "file"
    blocked.write_text("")
    desk = Desk(tmp_path, place.here.inventory, {"XDG_STATE_HOME": str(blocked)})
    said = desk.run("reclaim", "-H", host, "--yes", "-o", "json")
    assert (said.code, said.error["code"]) == (7, "history_unavailable")
    looked = desk.run("reclaim", "-H", host, "--dry-run", "-o", "json")
    assert looked.answer.reclaim(host)["verdict"] == "planned"
    assert looked.err.count("this run is not recorded") == 1
    assert place.lives(host, held[host])
