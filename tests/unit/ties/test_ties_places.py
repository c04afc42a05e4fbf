"""Which owners a control group's path names, and whose they are to answer for."""

from __future__ import annotations

import pytest

from fleetmem.agent.ties.places import owners

DOCKER = "0123456789ab" * 5 + "0123"
UID = "0a1b2c3d-1111-2222-3333-444455556666"
CASES = {
    # path: (kind, id, manager), outermost first
    "/": [],
    "/system.slice/vllm.service": [("unit", "vllm.service", "systemd")],
    "/system.slice/system-vllm.slice/vllm@0.service": [("unit", "vllm@0.service", "systemd")],
    "/system.slice/vllm.service/worker": [("unit", "vllm.service", "systemd")],
    "/system.slice/run-r1.scope": [("scope", "run-r1.scope", "systemd")],
    "/init.scope": [],
    "/user.slice/user-1000.slice/session-3.scope": [("session", "3", "login")],
    "/user.slice/user-1000.slice/user@1000.service/app.slice/train.service": [
        ("user_unit", "train.service", "user:1000")
    ],
    "/user.slice/user-1000.slice/user@1000.service/init.scope": [],
    f"/system.slice/docker-{DOCKER}.scope": [("container", DOCKER, "docker")],
    f"/docker/{DOCKER}": [("container", DOCKER, "docker")],
    # A unit below a container, a machine or another unit is not the host's systemd's.
    f"/system.slice/docker-{DOCKER}.scope/system.slice/vllm.service": [
        ("container", DOCKER, "docker"),
        ("unit", f"vllm.service in {DOCKER[:12]}", None),
    ],
    "/machine.slice/machine-box.scope/payload/system.slice/vllm.service": [
        ("scope", "machine-box.scope", "systemd"),
        ("unit", "vllm.service", None),
    ],
    "/system.slice/systemd-nspawn@box.service/payload/system.slice/vllm.service": [
        ("unit", "systemd-nspawn@box.service", "systemd"),
        ("unit", "vllm.service", None),
    ],
    "/lab/host-1/system.slice/vllm.service": [("unit", "vllm.service", None)],
    "/../../system.slice/vllm.service": [],
    "/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-"
    + DOCKER
    + ".scope/container": [("container", DOCKER, "podman")],
    f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{UID.replace('-', '_')}.slice/"
    f"cri-containerd-{DOCKER}.scope": [
        ("pod", UID, "pod"),
        ("container", DOCKER, "containerd"),
    ],
    f"/kubepods/burstable/pod{UID}/{DOCKER}": [
        ("pod", UID, "pod"),
        ("container", DOCKER, "containerd"),
    ],
    "/system.slice/slurmstepd.scope/job_4711/step_0/user/task_0": [
        ("scope", "slurmstepd.scope", "systemd"),
        ("job", "4711", "slurm"),
    ],
    "/slurm/uid_1000/job_4711/step_batch": [("job", "4711", "slurm")],
    "/lxc.payload.box/system.slice/vllm.service": [
        ("container", "box", "lxc"),
        ("unit", "vllm.service in box", None),
    ],
}


@pytest.mark.parametrize("path", CASES)
def test_owners_of_a_path(path: str) -> None:
    found = owners(f"0::{path}\n")
    assert [(one.kind, one.id, one.manager) for one in found] == CASES[path]


def test_two_hierarchies_name_one_owner_once() -> None:
    text = "1:name=systemd:/system.slice/a.service\n5:memory:/system.slice/a.service\n0::/\n"
    assert [(one.kind, one.id) for one in owners(text)] == [("unit", "a.service")]
