"""The situations that are built and reclaimed, and what must come of each.

Sizes follow the GPUs that are there: those written here are for a card of 139 GiB.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

FULL_CARD_MIB = 143_000


@dataclass(frozen=True)
class Step:
    """One ``fleetmem reclaim``. ``{NAME}`` in ``words`` becomes that process's pid.

    ``gone`` and ``alive``: names that must have ended, or live, after it.
    """

    words: tuple[str, ...]
    verdict: str
    gone: tuple[str, ...] = ()
    alive: tuple[str, ...] = ()


@dataclass(frozen=True)
class Scene:
    """One row. ``classes`` by name of a process, ``NAME.child`` for its fork.

    ``kill_first``: processes that set the scene by dying, in order; then ``steps`` follow,
    or in the control run ``ends`` die by SIGKILL, in order. ``alone``: no other holder may be
    on its GPUs. ``conditional``: forks that are signalled only once they are seen to be heirs.
    """

    row: str
    about: str
    holders: Sequence[dict[str, Any]]
    classes: dict[str, str]
    default: str
    steps: tuple[Step, ...]
    ends: tuple[str, ...] = ()
    kill_first: tuple[str, ...] = ()
    stop: tuple[str, ...] = ()
    reap: bool = True
    host: str = "gpu"
    gpus: tuple[int, ...] = (0,)
    needs_gpus: int = 1
    seconds: float = 60.0
    leaders: dict[str, str] = field(default_factory=dict)
    conditional: tuple[str, ...] = ()
    predicted: bool = True
    programs: bool = False
    aftermath: bool = False
    alone: bool = False


def scenes(totals_mib: Sequence[int], pinned_gib: int, port: int) -> list[Scene]:
    """All rows for GPUs of *totals_mib*; *pinned_gib* is the most to pin at once."""
    scale = min(1.0, min(totals_mib) / FULL_CARD_MIB)

    def gib(size: float) -> int:
        return int(size * 1024 * scale)

    found = [
        _plain("1", "SIGKILL, parent does not reap", gib(100), reap=False),
        _plain("2", "TERM ignored", gib(40)),
        _stopped(min(8, pinned_gib)),
        _heirs(gib(20), min(2, len(totals_mib))),
        _ipc(gib(20)),
        _leader(gib(4.5)),
        _orphan(gib(30)),
        _namespace(gib(10)),
        _untouched(gib(5)),
        _plain("19a", "60 GiB, nothing pinned", gib(60)),
    ]
    if pinned_gib >= 16:
        found.append(_plain("19b", "60 GiB and 16 GiB pinned", gib(60), 16))
    if pinned_gib >= 48:
        found.append(_plain("19c", "60 GiB and 48 GiB pinned", gib(60), 48, seconds=120))
    found += [_managed(gib(4), gib(8)), _managed_heir(gib(4)), _exported(gib(4))]
    found.append(_incident("incident 1", totals_mib[:1], pinned_gib, port))
    if len(totals_mib) > 1:
        found.append(_incident("incident", totals_mib, pinned_gib, port))
    return found


def _plain(
    row: str, about: str, mib: int, pinned: int = 0, *, reap: bool = True, seconds: float = 60
) -> Scene:
    return Scene(
        row=row,
        about=about,
        holders=[{"name": "holder", "device_mib": mib, "pinned_mib": pinned * 1024}],
        classes={"holder": "in_use"},
        default="nothing_to_do",
        steps=(Step(("--gpu", "0"), "reclaimed", gone=("holder",)),),
        ends=("holder",),
        reap=reap,
        seconds=seconds,
    )


def _stopped(pinned: int) -> Scene:
    return Scene(
        row="3",
        about=f"{pinned} GiB pinned, stopped by SIGSTOP",
        holders=[{"name": "holder", "pinned_mib": pinned * 1024, "ignore_term": False}],
        classes={"holder": "in_use"},
        default="nothing_to_do",
        steps=(Step(("--gpu", "0"), "reclaimed", gone=("holder",)),),
        ends=("holder",),
        stop=("holder",),
    )


def _heirs(mib: int, count: int) -> Scene:
    names = [f"parent{i}" for i in range(count)]
    return Scene(
        row="5",
        about="launcher and parent dead and reaped, fork inherited its files, on each GPU",
        holders=[
            {"name": name, "gpu": i, "device_mib": mib, "fork": True}
            for i, name in enumerate(names)
        ],
        classes={f"{name}.child": "leftover" for name in names},
        default="planned",
        kill_first=(*names, "launcher"),
        steps=(Step((), "reclaimed", gone=tuple(f"{name}.child" for name in names)),),
        ends=tuple(f"{name}.child" for name in names),
        gpus=tuple(range(count)),
        programs=True,
    )


def _ipc(mib: int) -> Scene:
    return Scene(
        row="7",
        about="CUDA IPC: the charge moves to the importer",
        holders=[
            {"name": "exporter", "device_mib": mib, "exports": True},
            {"name": "importer", "imports": "exporter"},
        ],
        classes={"exporter": "in_use", "importer": "in_use"},
        default="nothing_to_do",
        steps=(
            Step(("--pid", "{exporter}"), "held_by", gone=("exporter",), alive=("importer",)),
            Step(("--gpu", "0"), "reclaimed", gone=("importer",)),
        ),
        ends=("exporter", "importer"),
    )


def _leader(mib: int) -> Scene:
    return Scene(
        row="8",
        about="main thread gone, another thread lives, launcher dead",
        holders=[{"name": "holder", "device_mib": mib, "leader_exits": True}],
        classes={"holder": "detached"},
        default="nothing_to_do",
        kill_first=("launcher",),
        leaders={"holder": "Z"},
        steps=(Step(("--gpu", "0"), "reclaimed", gone=("holder",)),),
        ends=("holder",),
    )


def _orphan(mib: int) -> Scene:
    return Scene(
        row="9",
        about="orphan in its own session, ignores TERM",
        holders=[{"name": "holder", "device_mib": mib}],
        classes={"holder": "detached"},
        default="nothing_to_do",
        kill_first=("launcher",),
        steps=(Step(("--gpu", "0"), "reclaimed", gone=("holder",)),),
        ends=("holder",),
    )


def _namespace(mib: int) -> Scene:
    return Scene(
        row="11",
        about="asked from inside a pid namespace",
        holders=[{"name": "holder", "device_mib": mib}],
        classes={},
        default="cannot_attribute",
        steps=(Step(("--gpu", "0"), "cannot_attribute", alive=("holder",)),),
        host="gpu-ns",
    )


def _untouched(mib: int) -> Scene:
    return Scene(
        row="13",
        about="GPU 1 opened, nothing allocated there",
        holders=[{"name": "holder", "device_mib": mib}],
        classes={"holder": "in_use"},
        default="nothing_to_do",
        steps=(Step(("--gpu", "1"), "nothing_to_do", alive=("holder",)),),
        gpus=(1,),
        needs_gpus=2,
        alone=True,
    )


def _managed(mib: int, other: int) -> Scene:
    return Scene(
        row="managed",
        about="managed memory on the GPU, which no list has, beside one that is ended by pid",
        holders=[
            {"name": "managing", "managed_mib": mib, "managed_on": "gpu"},
            {"name": "other", "device_mib": other},
        ],
        classes={"managing": "in_use", "other": "in_use"},
        default="nothing_to_do",
        steps=(
            Step(("--pid", "{other}"), "reclaimed", gone=("other",), alive=("managing",)),
            Step(("--gpu", "0"), "reclaimed", gone=("managing",)),
        ),
        ends=("other", "managing"),
    )


def _managed_heir(mib: int) -> Scene:
    return Scene(
        row="managed heir",
        about="parent with managed memory on the GPU dead, its fork has the files",
        holders=[{"name": "parent", "managed_mib": mib, "managed_on": "gpu", "fork": True}],
        classes={"parent.child": "leftover"},
        default="planned",
        kill_first=("parent", "launcher"),
        steps=(Step((), "reclaimed", gone=("parent.child",)),),
        ends=("parent.child",),
        programs=True,
    )


def _exported(mib: int) -> Scene:
    return Scene(
        row="exported",
        about="exported handle kept by a process without CUDA, its maker dead",
        holders=[
            {"name": "keeper", "kind": "keeper", "ignore_term": False},
            {"name": "maker", "hands_mib": mib, "hands_to": "keeper"},
        ],
        classes={"keeper": "detached"},
        default="cannot_attribute",
        predicted=False,
        kill_first=("maker",),
        steps=(Step(("--pid", "{keeper}"), "reclaimed", gone=("keeper",)),),
        ends=("keeper",),
        alone=True,
    )


def _incident(row: str, totals_mib: Sequence[int], pinned_gib: int, port: int) -> Scene:
    """Workers of a tensor-parallel engine whose launcher was killed.

    One GPU: eight small workers, each with NCCL of its own, since two ranks of one group
    cannot share a GPU. More: one big worker a GPU and NCCL between them. *port* and those
    after it are for the groups to meet.
    """
    count = len(totals_mib)
    many = count if count > 1 else 8
    share = 92 * 1024 if count > 1 else 8 * 1024
    mib = int(share * min(1.0, min(totals_mib) / FULL_CARD_MIB))
    pinned = min(64 if count > 1 else 16, pinned_gib) * 1024 // many
    forked, shared = min(3, many - 1), 5 if many > 5 else 0
    holders: list[dict[str, Any]] = []
    for i in range(many):
        spec: dict[str, Any] = {
            "name": f"worker{i}",
            "gpu": i % count,
            "device_mib": mib,
            "pinned_mib": pinned,
            "title": f"VLLM::Worker_TP{i}",
        }
        spec["nccl"] = (
            {"rank": i, "world": many, "port": port}
            if count > 1
            else {"rank": 0, "world": 1, "port": port + i}
        )
        if i == forked:
            spec["fork"] = True
        if i == shared:
            spec["exports"] = True
        holders.append(spec)
    holders.append({"name": "importer", "gpu": shared % count, "imports": f"worker{shared}"})
    names = [spec["name"] for spec in holders]
    child = f"worker{forked}.child"
    return Scene(
        row=row,
        about=f"{many} retitled workers on {count} GPU, launcher killed, a fork of worker "
        f"{forked}, an importer of worker {shared}, {pinned * many >> 10} GiB pinned",
        holders=holders,
        classes={**{f"worker{i}": "leftover" for i in range(many)}, "importer": "detached"},
        default="planned",
        kill_first=("launcher",),
        steps=(Step(("--gpu", "all"), "reclaimed", gone=(*names, child)),),
        ends=(*names, child),
        gpus=tuple(range(count)),
        seconds=150,
        conditional=(child,),
        aftermath=True,
        alone=True,
        programs=True,
    )
