"""Plans as things: a file or a row of the history, checked before anything is done with it.

The file is one JSON object, ``{"schema": "fleetmem-plan/1", "run": …, "options": …,
"plans": {HOST: {"hash": …, "plan": …}}}``. The hash is SHA-256 over the canonical JSON of
``plan``: it shows that the plan is whole, and is no signature, since whoever can write the file can
write a hash that fits. Pure, apart from :func:`keep` and :func:`read`.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from fleetmem.controller.errors import PlanInvalid
from fleetmem.controller.reclaim.bound import Baseline, Bound
from fleetmem.controller.reclaim.classify import Ambiguity, Member
from fleetmem.controller.reclaim.options import ReclaimOptions
from fleetmem.controller.reclaim.plan import SCOPE, Plan, Spared, Target

if TYPE_CHECKING:
    from pathlib import Path

SCHEMA = "fleetmem-plan/1"
MAX_BYTES = 64 << 20
KEPT_OPTIONS = (
    "gpu",
    "pids",
    "host_pids",
    "user",
    "units",
    "containers",
    "override_protected",
    "override_protected_on",
)
"""What a person chose when the plan was made; the ladder's spans are chosen when it is applied."""


@dataclass(frozen=True)
class PlanFile:
    """Plans by host name, and the run that made them."""

    run: str
    plans: Mapping[str, Plan]


def write(run: str, options: ReclaimOptions, plans: Mapping[str, Plan]) -> str:
    """The text of a plan file."""
    chosen = {name: getattr(options, name) for name in KEPT_OPTIONS}
    rows = {host: {"hash": plan.hash, "plan": plan.document} for host, plan in plans.items()}
    document = {"schema": SCHEMA, "run": run, "options": chosen, "plans": rows}
    return json.dumps(document, indent=1) + "\n"


def keep(path: Path, text: str) -> None:
    """Write *text* to *path* so that only its owner can read it, whatever was there; OSError."""
    if path.exists() and not path.is_file():
        path.write_text(text, "utf-8")  # a pipe or /dev/stdout: its modes are not ours
        return
    number, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with open(number, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(name, path.resolve() if path.is_symlink() else path)
    except OSError:
        os.unlink(name)
        raise


def read(path: Path) -> PlanFile:
    """The plans of a file; PlanInvalid says what is wrong with it."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise PlanInvalid(f"{path}: larger than a plan can be")
        text = path.read_text("utf-8")
    except OSError as error:
        raise PlanInvalid(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise PlanInvalid(f"{path}: not UTF-8 text") from None
    try:
        return parse(json.loads(text))
    except json.JSONDecodeError as error:
        where = f"{path}:{error.lineno}:{error.colno}"
        raise PlanInvalid(f"{where}: not JSON: {error.msg}") from None
    except RecursionError:
        raise PlanInvalid(f"{path}: not a plan: nested too deeply") from None
    except PlanInvalid as error:
        raise PlanInvalid(f"{path}: {error.message}", error.hint) from None


def parse(document: Any) -> PlanFile:
    """The plans of a decoded file; PlanInvalid where a part is missing, odd or changed."""
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        raise PlanInvalid(f"not a plan of {SCHEMA}")
    rows = document.get("plans")
    if not isinstance(rows, dict) or not rows:
        raise PlanInvalid("it contains no plan")
    plans = {}
    for host, row in rows.items():
        if not isinstance(row, dict) or not isinstance(row.get("plan"), dict):
            raise PlanInvalid(f"the plan of {host!r} is none")
        plans[str(host)] = restore(row["plan"], str(row.get("hash")), str(host))
    return PlanFile(str(document.get("run")), plans)


def restore(document: dict[str, Any], wanted: str, host: str) -> Plan:
    """One plan from its document, whose hash must be *wanted*."""
    text = json.dumps(document, sort_keys=True, separators=(",", ":"))
    if hashlib.sha256(text.encode()).hexdigest() != wanted:
        raise PlanInvalid(f"the plan of {host!r} was changed: its hash does not match")
    try:
        plan = _plan(document)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise PlanInvalid(f"the plan of {host!r} cannot be read: {error!r}") from None
    if plan.hash != wanted:
        raise PlanInvalid(f"the plan of {host!r} was made by another version of fleetmem")
    return plan


def _plan(row: dict[str, Any]) -> Plan:
    return Plan(
        id=str(row["id"]),
        created=datetime.fromisoformat(row["created"]).astimezone(UTC),
        boot_id=str(row["boot_id"]),
        epoch=int(row["epoch"]),
        scope=tuple(int(gpu) for gpu in row["scope"]),
        targets=tuple(Target(_member(t["member"]), bool(t["conditional"])) for t in row["targets"]),
        spared=tuple(
            Spared(_member(s["member"]), str(s["why"]), str(s["reach"])) for s in row["spared"]
        ),
        bounds={
            int(index): Bound(**{**bound, "baseline": Baseline(**bound["baseline"])})
            for index, bound in row["bounds"].items()
        },
        ambiguous=tuple(
            Ambiguity(
                int(a["gpu"]), tuple(a["dead"]), tuple(a["candidates"]), bool(a["one_family"])
            )
            for a in row["ambiguous"]
        ),
        expect_seconds=float(row["expect_seconds"]),
        absent=tuple(str(text) for text in row["absent"]),
        chosen=_chosen(row["chosen"]),
    )


def _chosen(row: dict[str, Any]) -> dict[str, Any]:
    """The scope; ValueError for what no scope option can be."""
    if set(row) != set(SCOPE):
        raise ValueError("its scope has other options than this version's")
    for name, value in row.items():
        if name in ("gpu", "user"):
            fits = value is None or isinstance(value, str)
        else:
            kind = str if name in ("units", "containers") else int
            fits = isinstance(value, list) and all(type(one) is kind for one in value)
        if not fits:
            raise ValueError(f"its scope has no such {name}: {value!r}")
    return row


def _member(row: dict[str, Any]) -> Member:
    from fleetmem.controller.contact.door import misfit

    reading = {"processes": [row["process"]], "gone": [], "denied": 0}
    problem = misfit("processes.identity", reading)
    if problem:
        raise ValueError(problem)
    known = {field.name for field in dataclasses.fields(Member)}
    if set(row) != known:
        raise ValueError("a member has other fields than this version's")
    return Member(
        **{
            **row,
            "held": {int(gpu): size for gpu, size in row["held"].items()},
            "open_gpus": tuple(row["open_gpus"]),
            "evidence": tuple(row["evidence"]),
            "heir_of": tuple(row["heir_of"]),
            "akin": tuple(row["akin"]),
            "may_hold": tuple(row["may_hold"]),
            "family_gpus": tuple(row["family_gpus"]),
            "consequences": tuple(map(str, row["consequences"])),
            "parts": tuple(tuple(part) for part in row["parts"]),
        }
    )
