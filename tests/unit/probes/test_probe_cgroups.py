"""Owners from control groups, and whether they are live."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from fleetmem.agent.kernel import cgroups, sysroot
from fleetmem.agent.kernel.tasks import Table
from fleetmem.agent.services import systemd

ID = "3f2a9b1c4d5e6f708192a3b4c5d6e7f8091a2b3c4d5e6f708192a3b4c5d6e7f8"
POD = "0f5c1e6a-3b7d-4c8e-9f10-112233445566"
POD_SLICE = POD.replace("-", "_")


@pytest.mark.parametrize(
    ("text", "kind", "name", "runtime"),
    [
        ("0::/", "none", None, None),
        ("", "none", None, None),
        ("0::/system.slice/vllm.service", "unit", "vllm.service", "systemd"),
        ("0::/system.slice/system-vllm.slice/vllm@0.service", "unit", "vllm@0.service", "systemd"),
        ("0::/system.slice/vllm.service/workers", "unit", "vllm.service", "systemd"),
        ("0::/system.slice/run-r1234.scope", "unit", "run-r1234.scope", "systemd"),
        ("0::/user.slice/user-1000.slice/session-3.scope", "session", "session-3.scope", None),
        (
            "0::/user.slice/user-1000.slice/user@1000.service/app.slice/sglang.service",
            "user_unit",
            "sglang.service",
            "systemd",
        ),
        (
            "0::/user.slice/user-1000.slice/user@1000.service/app.slice/app-term-77.scope",
            "session",
            "user@1000",
            None,
        ),
        (
            "0::/user.slice/user-1000.slice/user@1000.service/init.scope",
            "session",
            "user@1000",
            None,
        ),
        ("0::/init.scope", "none", None, None),
        (f"0::/system.slice/docker-{ID}.scope", "container", ID[:12], "docker"),
        (f"12:memory:/docker/{ID}\n1:name=systemd:/docker/{ID}", "container", ID[:12], "docker"),
        (f"0::/system.slice/docker-{ID}.scope/docker/{'ab' * 32}", "container", ID[:12], "docker"),
        (f"0::/machine.slice/libpod-{ID}.scope", "container", ID[:12], "podman"),
        (f"0::/machine.slice/libpod-{ID}.scope/container", "container", ID[:12], "podman"),
        (f"0::/system.slice/cri-containerd-{ID}.scope", "container", ID[:12], "containerd"),
        (f"0::/system.slice/crio-{ID}.scope", "container", ID[:12], "cri-o"),
        (
            f"0::/machine.slice/libpod-conmon-{ID}.scope",
            "unit",
            f"libpod-conmon-{ID}.scope",
            "systemd",
        ),
        ("0::/lxc.payload.box/system.slice/x.service", "container", "box", "lxc"),
        ("4:memory:/lxc/box\n1:name=systemd:/lxc/box", "container", "box", "lxc"),
        (
            f"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{POD_SLICE}.slice/"
            f"cri-containerd-{ID}.scope",
            "pod",
            POD,
            "containerd",
        ),
        (f"2:cpu:/kubepods/besteffort/pod{POD}/{ID}\n0::/", "pod", POD, None),
        ("0::/system.slice/slurmstepd.scope/job_812/step_0/user/task_0", "job", "812", "slurm"),
        (
            "9:memory:/slurm/uid_1000/job_4711/step_batch\n1:name=systemd:/system.slice/slurmd.service",
            "job",
            "4711",
            "slurm",
        ),
        ("0::/system.slice/docker-short.scope", "unit", "docker-short.scope", "systemd"),
        ("no colon here\n0::/system.slice/a.service", "unit", "a.service", "systemd"),
    ],
)
def test_owner_of_a_path(text: str, kind: str, name: str | None, runtime: str | None) -> None:
    place = cgroups.read(text)
    assert (place.kind, place.name, place.runtime) == (kind, name, runtime)


def test_the_path_that_named_the_owner_is_the_one_that_is_shown() -> None:
    text = f"12:memory:/docker/{ID}\n1:name=systemd:/system.slice/docker.service\n0::/"
    assert cgroups.read(text).path == f"/docker/{ID}"
    assert cgroups.read("0::/").path == "/"
    assert cgroups.read("").path == ""


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sysroot, "ROOT", str(tmp_path))
    monkeypatch.setattr(systemd, "TIMEOUT_SECONDS", 60.0)
    (tmp_path / "proc").mkdir()
    return tmp_path


def owner(text: str) -> dict[str, object]:
    place = cgroups.read(text)
    owners = cgroups.CgroupOwners(Table())
    owners.prepare([place])
    return dict(owners.owner(place))


def test_units_count_only_where_systemd_runs(host: Path) -> None:
    assert owner("0::/system.slice/vllm.service")["kind"] == "none"
    assert owner("0::/user.slice/user-0.slice/session-1.scope")["kind"] == "none"
    (host / "run/systemd/system").mkdir(parents=True)
    row = owner("0::/system.slice/vllm.service")
    assert row["kind"] == "unit"
    assert row["state"] is None  # there is no systemctl to ask
    assert row["stop_command"] == "systemctl stop vllm.service"


def fake_systemctl(host: Path, body: str) -> None:
    (host / "run/systemd/system").mkdir(parents=True)
    program = host / "usr/bin/systemctl"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\n" + body)
    program.chmod(0o755)


def test_systemd_is_asked_once_about_all_units(host: Path) -> None:
    fake_systemctl(
        host,
        f"""echo "$@" >> {host}/asked
printf 'MainPID=41\\nLoadState=loaded\\nActiveState=active\\n\\n'
printf 'MainPID=0\\nLoadState=not-found\\nActiveState=inactive\\n'
""",
    )
    one = cgroups.read("0::/system.slice/a.service")
    two = cgroups.read("0::/system.slice/b.service")
    owners = cgroups.CgroupOwners(Table())
    owners.prepare([two, one, one])
    assert owners.owner(one)["state"] == "live"
    assert owners.owner(two)["state"] == "gone"
    assert owners.mains == {41: "a.service"}
    assert owners.answered
    asked = (host / "asked").read_text().splitlines()
    assert asked == ["show -p ActiveState,LoadState,MainPID -- a.service b.service"]


def test_a_systemd_that_does_not_answer_is_not_waited_for(
    host: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(systemd, "TIMEOUT_SECONDS", 0.2)
    fake_systemctl(host, "exec sleep 600")
    assert owner("0::/system.slice/a.service")["state"] is None


def test_a_systemctl_that_fails_is_no_answer(host: Path) -> None:
    fake_systemctl(host, "echo ActiveState=active; exit 1")
    assert owner("0::/system.slice/a.service")["state"] is None


def test_a_descendant_that_keeps_the_pipe_open_is_not_waited_for(
    host: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(systemd, "TIMEOUT_SECONDS", 3.0)
    fake_systemctl(host, f"sleep 600 & echo $! >{host}/left; echo ActiveState=active")
    try:
        assert owner("0::/system.slice/a.service")["state"] is None
    finally:
        os.kill(int((host / "left").read_text()), signal.SIGKILL)


def test_blocks_that_do_not_match_the_question_are_no_answer() -> None:
    assert systemd.parse(["a.service", "b.service"], "ActiveState=active\n") == {}
    assert systemd.parse(["a.service"], "ActiveState=deactivating\nMainPID=x\n") == {
        "a.service": ("live", 0)
    }


def test_a_container_is_live_while_its_runtime_keeps_its_directory(host: Path) -> None:
    text = f"0::/system.slice/docker-{ID}.scope"
    assert owner(text)["state"] is None
    root = host / "run/docker/runtime-runc/moby"
    root.mkdir(parents=True)
    assert owner(text)["state"] == "gone"
    (root / ID).mkdir()
    row = owner(text)
    assert row["state"] == "live"
    assert row["stop_command"] == f"docker stop {ID[:12]}"


def test_a_pod_has_the_name_of_its_logs(host: Path) -> None:
    text = f"0::/kubepods.slice/kubepods-pod{POD_SLICE}.slice/crio-{ID}.scope"
    assert POD in str(owner(text)["stop_command"])
    (host / f"var/log/pods/prod_llama-70b_{POD}").mkdir(parents=True)
    (host / "var/lib/kubelet/pods").mkdir(parents=True)
    row = owner(text)
    assert row["name"] == "prod/llama-70b"
    assert row["state"] == "gone"
    assert row["stop_command"] == "kubectl delete pod -n prod llama-70b"
    (host / "var/lib/kubelet/pods" / POD).mkdir()
    assert owner(text)["state"] == "live"


def test_a_job_is_live_while_a_step_names_it(host: Path) -> None:
    text = "0::/system.slice/slurmstepd.scope/job_81/step_0"
    assert owner(text)["state"] == "gone"
    step = host / "proc/900"
    step.mkdir()
    line = "900 (slurmstepd) S 1 900 900 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 77 0 0\n"
    (step / "stat").write_text(line)
    (step / "cmdline").write_bytes(b"slurmstepd: [812.0]\0")
    assert owner(text)["state"] == "gone"
    (step / "cmdline").write_bytes(b"slurmstepd: [81.batch]\0")
    row = owner(text)
    assert row["state"] == "live"
    assert row["stop_command"] == "scancel 81"


def test_commands_are_safe_to_paste(host: Path) -> None:
    (host / "run/systemd/system").mkdir(parents=True)
    row = owner("0::/system.slice/a\\x2db; rm -rf x.service")
    assert row["stop_command"] == "systemctl stop 'a\\x2db; rm -rf x.service'"


def test_the_end_of_a_session_is_seen(host: Path) -> None:
    (host / "run/systemd/system").mkdir(parents=True)
    (host / "run/systemd/sessions").mkdir()
    text = "0::/user.slice/user-0.slice/session-12.scope"
    assert owner(text)["state"] == "gone"
    (host / "run/systemd/sessions/12").write_text("")
    row = owner(text)
    assert row["state"] == "live"
    assert row["stop_command"] == "loginctl terminate-session 12"
