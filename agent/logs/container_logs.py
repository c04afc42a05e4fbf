"""Where a container's log lies: docker's, podman's and the kubelet's files, else a command."""

from __future__ import annotations

from fleetmem.agent import wire
from fleetmem.agent.kernel import sysroot
from fleetmem.agent.logs.rotated import family
from fleetmem.agent.services.program import Program, place

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import List, Optional, Tuple

DOCKER = "/var/lib/docker/containers"
PODMAN = "/var/lib/containers/storage/overlay-containers"
PODS = "/var/log/pods"
POD_LINKS = "/var/log/containers"
HEX = frozenset("0123456789abcdef")
COMMANDS = (
    ("docker", "logs", "--timestamps"),
    ("podman", "logs", "--timestamps"),
    ("nerdctl", "logs", "--timestamps"),
    ("crictl", "logs", "--timestamps"),
)


def files(name: str) -> List[str]:
    """The log files of the container or pod called *name*, newest first; empty where none lie."""
    name = name.lstrip("/")
    for look in (_docker, _podman, _pod):
        found = look(name)
        if found:
            return found
    return []


def command(name: str, deadline: float) -> Optional[Tuple[Program, List[str]]]:
    """The first runtime's command that is here, started; ``None`` where there is none."""
    if not name or name.startswith("-"):
        return None
    for words in COMMANDS:
        path = place(words[0])
        if path is not None:
            full = [*words, name]
            return Program(path, full, deadline, merge=True), full
    return None


def _names(folder: str) -> List[str]:
    try:
        return sorted(sysroot.names(folder))
    except OSError:
        return []


def _by_id(folder: str, name: str) -> Optional[str]:
    if len(name) < 6 or not HEX.issuperset(name):
        return None
    found = [one for one in _names(folder) if one.startswith(name)]
    return found[0] if len(found) == 1 else None


def _docker(name: str) -> List[str]:
    ident = _by_id(DOCKER, name)
    for one in _names(DOCKER) if ident is None else ():
        try:
            text = sysroot.text("%s/%s/config.v2.json" % (DOCKER, one), 1 << 20)
            called = str(wire.loads(text).get("Name", "")).lstrip("/")
        except (OSError, ValueError, AttributeError):
            continue
        if called == name:
            ident = one
            break
    return [] if ident is None else family("%s/%s/%s-json.log" % (DOCKER, ident, ident))


def _podman(name: str) -> List[str]:
    ident = _by_id(PODMAN, name)
    if ident is None:
        try:
            rows = wire.loads(sysroot.text(PODMAN + "/containers.json", 16 << 20))
            for row in rows:
                if name in (row.get("names") or ()):
                    ident = row.get("id")
        except (OSError, ValueError, AttributeError, TypeError):
            return []
    return [] if ident is None else family("%s/%s/userdata/ctr.log" % (PODMAN, ident))


def _pod(name: str) -> List[str]:
    """``NAMESPACE/POD``, ``NAMESPACE/POD/CONTAINER``, a pod's name or uid, a container's id."""
    parts = name.split("/")
    found: List[str] = []
    for folder in _names(PODS):
        fields = folder.split("_")
        if len(fields) != 3 or not _same_pod(parts, fields):
            continue
        for inner in _names(PODS + "/" + folder):
            if len(parts) == 3 and inner != parts[2]:
                continue
            here = "%s/%s/%s" % (PODS, folder, inner)
            found += [here + "/" + one for one in _names(here) if ".log" in one]
    if not found and len(name) >= 12 and HEX.issuperset(name):
        for link in _names(POD_LINKS):
            if link.rpartition("-")[2].startswith(name):
                found.append(POD_LINKS + "/" + link)
    return sorted(found, key=_age, reverse=True)


def _same_pod(parts: List[str], fields: List[str]) -> bool:
    namespace, pod, uid = fields
    if len(parts) == 1:
        return parts[0] in (pod, uid)
    return parts[0] == namespace and parts[1] == pod


def _age(path: str) -> float:
    import os

    try:
        return os.stat(sysroot.path(path)).st_mtime
    except OSError:
        return 0.0
