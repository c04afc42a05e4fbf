"""From classes and scope to a plan: whom to signal, what must come back, for how long. Pure."""

from __future__ import annotations

import hashlib
import json
import secrets
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from fleetmem.controller import errors
from fleetmem.controller.hosts import gpu_scope
from fleetmem.controller.reclaim.bound import make_bound
from fleetmem.controller.reclaim.options import ReclaimOptions

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fleetmem.agent.shapes import GpuDevices
    from fleetmem.controller.reclaim.bound import Bound
    from fleetmem.controller.reclaim.classify import Ambiguity, Classified, Member
    from fleetmem.controller.reclaim.survey import Survey

LIFETIME = timedelta(minutes=15)
SKEW = timedelta(minutes=1)
TEARDOWN_SECONDS = 0.15
UNPIN_BYTES_PER_SECOND = 6.5 * (1 << 30)
RELEASE_BYTES_PER_SECOND = 2000 * (1 << 30)
"""From SIGKILL on an H200 with driver 580: 0.15-0.19 s for 60 GiB of device memory, pinned
host memory at 6.5-7 GiB/s (docs/gpu-h200.md)."""


SCOPE = ("gpu", "pids", "user", "units", "containers", "override_protected")
"""Options that say whom a plan may reach; on one host nothing else does."""


@dataclass(frozen=True)
class Target:
    """A process the plan would signal; ``conditional`` ones only in the ``heirs`` rung."""

    member: Member
    conditional: bool


@dataclass(frozen=True)
class Spared:
    """A process that touches a GPU in scope and is left alone, with the reason.

    ``reach`` is the option that would include it, "" where none would.
    """

    member: Member
    why: str
    reach: str = ""


@dataclass(frozen=True)
class Plan:
    """Everything a reclaim of one host would do, pinned to identities, boot and epoch.

    ``chosen`` is the scope it was made under, with JSON's own types. ``agreed`` is the
    plan that was agreed to, where this is that one judged again: its document stays that one's.
    """

    id: str
    created: datetime
    boot_id: str
    epoch: int
    scope: tuple[int, ...]
    targets: tuple[Target, ...]
    spared: tuple[Spared, ...]
    bounds: Mapping[int, Bound]
    ambiguous: tuple[Ambiguity, ...]
    expect_seconds: float
    absent: tuple[str, ...] = ()
    chosen: Mapping[str, Any] = field(default_factory=dict)
    agreed: Plan | None = None

    @property
    def options(self) -> ReclaimOptions:
        """The scope it was made under, as options."""
        kept: dict[str, Any] = {
            key: tuple(v) if isinstance(v, list) else v for key, v in self.chosen.items()
        }
        return ReclaimOptions(**kept)

    @property
    def expires(self) -> datetime:
        """After this moment the plan is refused."""
        return self.created + LIFETIME

    @property
    def first(self) -> tuple[Target, ...]:
        """Targets of the TERM and KILL rungs."""
        return tuple(t for t in self.targets if not t.conditional)

    def on(self, gpu: int) -> tuple[Target, ...]:
        """Targets that hold memory of *gpu*."""
        return tuple(t for t in self.targets if gpu in t.member.held)

    @property
    def document(self) -> dict[str, Any]:
        """The whole plan as JSON data: what the hash covers and a plan file keeps."""
        if self.agreed is not None:
            return self.agreed.document
        return {
            "id": self.id,
            "created": self.created.isoformat(),
            "boot_id": self.boot_id,
            "epoch": self.epoch,
            "scope": list(self.scope),
            "targets": [
                {"member": _as_data(t.member), "conditional": t.conditional} for t in self.targets
            ],
            "spared": [
                {"member": _as_data(s.member), "why": s.why, "reach": s.reach} for s in self.spared
            ],
            "bounds": {str(gpu): asdict(bound) for gpu, bound in sorted(self.bounds.items())},
            "ambiguous": [
                {
                    "gpu": a.gpu,
                    "dead": list(a.dead),
                    "candidates": list(a.candidates),
                    "one_family": a.one_family,
                }
                for a in self.ambiguous
            ],
            "expect_seconds": self.expect_seconds,
            "absent": list(self.absent),
            "chosen": dict(self.chosen),
        }

    @property
    def hash(self) -> str:
        """SHA-256 of :attr:`document`, hex."""
        text = json.dumps(self.document, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()


def _as_data(member: Member) -> dict[str, Any]:
    """A member with JSON's own types, so that it is the same after a file."""
    data = {one.name: getattr(member, one.name) for one in fields(member)}
    data["held"] = {str(gpu): size for gpu, size in member.held.items()}
    data["parts"] = [list(part) for part in member.parts]
    return {key: list(value) if isinstance(value, tuple) else value for key, value in data.items()}


def refuse_expired(created: datetime, now: datetime) -> None:
    """StalePlan where a plan made at *created* is too old at *now*, or of a time still to come:
    its clock is not this one, so nobody can say how old it is."""
    if now > created + LIFETIME:
        raise errors.StalePlan(f"the plan expired at {created + LIFETIME:%H:%M:%S} UTC")
    if now < created - SKEW:
        raise errors.StalePlan(
            f"the plan was made at {created:%Y-%m-%d %H:%M:%S} UTC, which is in the future by this "
            "machine's clock"
        )


def make_plan(
    survey: Survey,
    classified: Classified,
    options: ReclaimOptions,
    baselines: Mapping[str, int],
    now: datetime | None = None,
) -> Plan:
    """The plan for one host. *baselines*: recorded used bytes by GPU uuid.

    UsageError where ``--gpu`` cannot be read; what it names but the host lacks is in
    ``absent``.
    """
    scope, parts, absent = _gpus(survey, options)
    chosen: dict[int, Target] = {}
    spared: dict[int, Spared] = {}
    for pid, found in sorted(classified.members.items()):
        member = found
        if found.may_hold and pid in options.pids:
            member = replace(found, held=dict.fromkeys(found.may_hold))
        reason = _spare(member, scope, parts, options)
        if reason is None:
            chosen[pid] = Target(member, conditional=False)
        else:
            spared[pid] = reason
    _add_forks(classified, chosen, spared)
    scope = _narrow(scope, chosen, spared, options)
    targets = tuple(chosen.values())
    rest = tuple(s for s in spared.values() if _touches(s.member, scope))
    ending, staying = [t.member for t in targets], [s.member for s in rest]
    bounds = {
        gpu: make_bound(survey, gpu, ending, staying, baselines.get(_uuid(survey, gpu)))
        for gpu in scope
    }
    return Plan(
        id=secrets.token_hex(4),
        created=now or datetime.now(UTC),
        boot_id=survey.facts["boot_id"],
        epoch=survey.operations["epoch"],
        scope=scope,
        targets=targets,
        spared=rest,
        bounds=bounds,
        ambiguous=tuple(row for row in classified.ambiguous if row.gpu in scope),
        expect_seconds=expected_seconds([t.member for t in targets]),
        absent=absent,
        chosen=_chosen(options),
    )


def _chosen(options: ReclaimOptions) -> dict[str, Any]:
    """The scope of one host with JSON's own types."""
    kept = {name: getattr(options, name) for name in SCOPE}
    return {key: list(value) if isinstance(value, tuple) else value for key, value in kept.items()}


def expected_seconds(members: list[Member]) -> float:
    """Predicted time from the last KILL to the memory's return, from what is pinned and held.

    Unpinning counts in sum, device memory once: its teardown runs beside the others'.
    """
    if not members:
        return 0.0
    pinned = sum(m.process["pinned_bytes"] or 0 for m in members)
    held = max(m.held_bytes or 0 for m in members)
    seconds = TEARDOWN_SECONDS + pinned / UNPIN_BYTES_PER_SECOND
    return round(seconds + held / RELEASE_BYTES_PER_SECOND, 2)


# --- scope ---------------------------------------------------------------------------------


def _uuid(survey: Survey, gpu: int) -> str:
    return survey.gpus[gpu]["uuid"]


Parts = frozenset[tuple[int, int | None, int | None]]
"""MIG instances in scope where their GPU as a whole is not: (GPU index, gi, ci)."""


def _gpus(
    survey: Survey, options: ReclaimOptions
) -> tuple[tuple[int, ...], Parts, tuple[str, ...]]:
    if options.gpu is None:
        return tuple(sorted(survey.gpus)), frozenset(), ()
    devices: GpuDevices = {
        "driver_version": None,
        "nvml_version": None,
        "gpus": list(survey.gpus.values()),
    }
    found = gpu_scope.match(gpu_scope.parse(options.gpu), devices)
    parts = frozenset((one.index, one.gi, one.ci) for one in found.instances)
    return tuple(sorted({*found.indexes, *(p[0] for p in parts)})), parts, found.absent


def _in_scope(member: Member, scope: tuple[int, ...], parts: Parts) -> list[int]:
    """GPUs in scope that *member* holds, by the instance where only that is in scope."""
    narrowed = {part[0] for part in parts}
    return [
        gpu
        for gpu in scope
        if gpu in member.held
        and (gpu not in narrowed or any(p in parts for p in member.parts if p[0] == gpu))
    ]


def _narrow(
    scope: tuple[int, ...],
    chosen: Mapping[int, Target],
    spared: Mapping[int, Spared],
    options: ReclaimOptions,
) -> tuple[int, ...]:
    """With ``--pid`` or ``--user`` alone, the GPUs that those processes hold."""
    if options.gpu is not None or not options.scoped:
        return scope
    wanted = {pid for pid, s in spared.items() if _named(s.member, options)}
    held = {g for t in chosen.values() for g in t.member.held}
    held |= {g for pid in wanted for g in spared[pid].member.held}
    return tuple(gpu for gpu in scope if gpu in held)


def _named(member: Member, options: ReclaimOptions) -> bool:
    if options.pids and member.pid in options.pids:
        return True
    process = member.process
    owner, name = process["owner"]["kind"], process["owner"]["name"] or ""
    if owner in ("unit", "user_unit") and {name, name.removesuffix(".service")} & {*options.units}:
        return True
    if owner in ("container", "pod") and name in options.containers:
        return True
    return not options.users.isdisjoint((process["user"] or "", str(process["uid"])))


def _touches(member: Member, scope: tuple[int, ...]) -> bool:
    touched = {*member.held, *member.listed_gpus, *member.open_gpus, *member.may_hold}
    return not set(scope).isdisjoint({*touched, *member.family_gpus})


def _spare(
    member: Member, scope: tuple[int, ...], parts: Parts, options: ReclaimOptions
) -> Spared | None:
    """Why *member* is left alone, or None where it is a target."""
    in_scope = _in_scope(member, scope, parts)
    if member.kind == "protected" and member.pid not in options.override_protected:
        return Spared(member, member.why)
    if member.family_gpus and not member.held:
        return _spare_companion(member, scope, options)
    if not member.held:
        if member.origins:
            who = " or ".join(map(str, member.origins[:3]))
            return Spared(member, f"a fork of process {who}; holds no memory itself")
        if member.may_hold:
            return Spared(member, _perhaps(member), f"--pid {member.pid}")
        return Spared(member, _files_only(member))
    if member.held and not in_scope:
        return Spared(member, _elsewhere(member, scope))
    if member.kind == "foreign":
        return Spared(member, member.why)
    if options.names_processes and not _named(member, options):
        return Spared(member, f"{member.why}; not what {options.named_by} names")
    if not options.scoped and member.kind != "leftover":
        reach = f"--gpu {','.join(map(str, sorted(member.held)))}"
        return Spared(member, member.why, reach)
    return None


def _spare_companion(
    member: Member, scope: tuple[int, ...], options: ReclaimOptions
) -> Spared | None:
    """Who holds nothing and is left over with holders goes with them."""
    if set(scope).isdisjoint(member.family_gpus):
        return Spared(member, f"{member.why}; its family holds nothing in scope")
    if options.names_processes and not _named(member, options):
        return Spared(member, f"{member.why}; not what {options.named_by} names")
    return None


def _perhaps(member: Member) -> str:
    if member.kind is None or member.code == "heir":
        return member.why
    return f"{member.why}; it may keep memory that no list names"


def _elsewhere(member: Member, scope: tuple[int, ...]) -> str:
    others = ", ".join(str(gpu) for gpu in sorted(member.held))
    if set(scope).isdisjoint(member.held):
        return f"holds GPU {others} only, which is not in scope"
    return f"holds another instance of GPU {others}, not the one in scope"


def _files_only(member: Member) -> str:
    if "nvml" in member.evidence and not ({"fd", "mapping"} & set(member.evidence)):
        return f"{member.why}; NVML names its number, but no file of the driver is seen in it"
    return f"{member.why}; open files only, no memory"


def _add_forks(
    classified: Classified, chosen: dict[int, Target], spared: dict[int, Spared]
) -> None:
    """Forks of a target are planned too, for the ``heirs`` rung alone."""
    for pid, member in sorted(classified.members.items()):
        origins = member.origins
        if not origins or pid in chosen or not all(origin in chosen for origin in origins):
            continue
        if member.kind in ("protected", "foreign"):
            continue
        spared.pop(pid, None)
        chosen[pid] = Target(member, conditional=True)
