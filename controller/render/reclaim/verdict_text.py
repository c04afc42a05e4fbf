"""What there is to say about hosts that ended alike, in words. Pure, harmless for a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fleetmem.controller.answer.envelope import GpuVerdict, HostEntry, Reclaim
from fleetmem.controller.answer.fold import fold_hosts, fold_names, fold_numbers, template
from fleetmem.controller.reclaim.bound import TOLERANCE_BYTES
from fleetmem.controller.text.safe import safe
from fleetmem.controller.text.sizes import count, gib, mib_span, seconds, seconds_span


def judged(entry: HostEntry) -> bool:
    """Whether the verdict is how the host ended; an error after the plan outweighs it."""
    return "reclaim" in entry and (
        entry["outcome"] in ("ok", "partial") or entry["reclaim"]["verdict"] == "unknown"
    )


def text_of(group: Sequence[HostEntry]) -> str:
    """What there is to say about hosts that ended alike, harmless for a terminal."""
    if not judged(group[0]):
        return _error_text(group)
    sections = [entry["reclaim"] for entry in group]
    verdict = sections[0]["verdict"]
    if verdict == "reclaimed":
        text = _reclaimed_text(sections)
    elif verdict == "nothing_to_do":
        text = _idle_text(group)
    elif verdict == "planned":
        text = _planned_text(sections)
    else:
        text = fold_names(dict.fromkeys(map(evidence, sections)))
    reasons = {entry["error"]["message"] for entry in group if entry["error"]}
    if reasons:
        text += f" · {fold_names(sorted(reasons))}"
    elif group[0]["outcome"] == "partial":
        text += " · partial: " + _reasons(_partial(group), len(group))
    return safe(text.removeprefix(" · ")) or "–"


def _error_text(group: Sequence[HostEntry]) -> str:
    errors = [entry["error"] for entry in group if entry["error"]]
    if not errors:
        return "no reason given"
    text = f"{errors[0]['code']}: {fold_names(sorted({error['message'] for error in errors}))}"
    hint = errors[0]["hint"]
    return safe(f"{text} ({hint})" if hint else text)


def _partial(group: Iterable[HostEntry]) -> list[tuple[str, str]]:
    return [
        (entry["host"], f"{probe} {reading['reason'] or reading['outcome']}")
        for entry in group
        for probe, reading in entry["readings"].items()
        if reading["outcome"] != "ok"
    ]


def _reasons(said: Sequence[tuple[str, str]], hosts: int) -> str:
    """(host, reason) rows folded by reason, the most common one last; each with the hosts that
    have it, where not all of the *hosts* do."""
    folded: dict[str, tuple[list[str], list[str]]] = {}
    for host, why in said:
        names, whys = folded.setdefault(template(why), ([], []))
        names.append(host)
        whys.append(why)
    parts = []
    for names, whys in sorted(folded.values(), key=lambda one: len(one[0])):
        few = len(set(names)) < hosts
        parts.append(f"{fold_hosts(names)}: {fold_names(whys)}" if few else fold_names(whys))
    return "; ".join(parts)


def evidence(section: Reclaim) -> str:
    """Why the verdict is what it is, per GPU where that is known, else the advice."""
    by_why: dict[str, list[GpuVerdict]] = {}
    for gpu in section["gpus"]:
        if gpu["verdict"] == section["verdict"] and gpu.get("why"):
            by_why.setdefault(str(gpu["why"]), []).append(gpu)
    parts = [
        f"GPU {fold_numbers(gpu['index'] for gpu in gpus)}{_used(gpus)}: {why}"
        for why, gpus in by_why.items()
    ]
    if section["advice"]:
        parts.append(section["advice"])
    return " · ".join(parts)


def _used(gpus: Sequence[GpuVerdict]) -> str:
    """How much is used on *gpus* now, in brackets; nothing where that is not known."""
    sizes = [gpu["after_bytes"] for gpu in gpus]
    known = sorted(size for size in sizes if size is not None)
    if not known or len(known) < len(sizes):
        return ""
    least, most = gib(known[0]), gib(known[-1])
    return f" ({least} GiB)" if least == most else f" ({least}-{most} GiB)"


def _idle_whys(section: Reclaim) -> list[tuple[str | None, str | None]]:
    """Why each GPU was left as it is, long and short, with what is used there. Where some are held
    the others are not spoken of: "at its baseline" beside them reads as if it were one GPU."""
    rows = [gpu for gpu in section["gpus"] if gpu.get("why")]
    holding = {gpu for one in section["spared"] if one["held_bytes"] != 0 for gpu in one["gpus"]}
    idle = {gpu["index"] for gpu in rows if _at_baseline(gpu)} - holding
    if len(idle) == len(rows):
        return [(gpu.get("why"), gpu.get("why_short")) for gpu in rows]
    found = []
    for gpu in rows:
        if gpu["index"] not in idle:
            size = _used([gpu])[2:-1]
            said = (gpu.get("why"), gpu.get("why_short"))
            found.append(tuple(f"{size} {text}".strip() if text else None for text in said))
    return [(why, short) for why, short in found]


def _idle_text(group: Sequence[HostEntry]) -> str:
    """The reasons of GPUs that were left as they are, and of hosts without one in scope."""
    said: list[tuple[str, str]] = []
    short: list[tuple[str, str]] = []
    ending: set[str] = set()
    for entry in group:
        section = entry["reclaim"]
        whys = _idle_whys(section) if section["gpus"] else [(section["advice"], None)]
        for why, less in whys:
            if why:
                said.append((entry["host"], why.removesuffix(".")))
                short.append((entry["host"], (less or why).removesuffix(".")))
                ending |= {template(why)} if less else set()
    if len(ending) > 1:
        return f"{_reasons(short, len(group))}; --gpu also stops working processes"
    return _reasons(said, len(group)) or "no leftover memory"


def _planned_text(sections: Sequence[Reclaim]) -> str:
    targets = [target for section in sections for target in section["targets"]]
    held = sum(target["held_bytes"] or 0 for target in targets)
    text = f"{count(len(targets), 'process', 'processes')} would be stopped"
    text += f", {gib(held)} GiB" if held else ""
    managed = managed_bytes(sections)
    return f"{text}; plus at most {gib(managed)} GiB of managed memory" if managed else text


def managed_bytes(sections: Iterable[Reclaim]) -> int:
    """Managed memory that targets may have beside what NVML lists, at most, in all."""
    return sum(gpu.get("managed_bytes", 0) for section in sections for gpu in section["gpus"])


def _reclaimed_text(sections: Sequence[Reclaim]) -> str:
    gpus = [gpu for section in sections for gpu in section["gpus"]]
    back = [gpu for gpu in gpus if gpu["verdict"] == "reclaimed"]
    freed = sum(max(_freed(gpu), 0) for gpu in back)
    took = [sum(rung["seconds"] or 0 for rung in section["rungs"]) for section in sections]
    text = f"{gib(freed)} GiB on {len(back)} of {count(len(gpus), 'GPU')} in {seconds_span(took)}"
    if back and all(map(_at_baseline, back)):
        sources = {gpu["baseline_source"] or "assumed" for gpu in back}
        base = mib_span(gpu["baseline_bytes"] for gpu in back)
        which = "the GPU" if len(gpus) == 1 else "every GPU"
        text += f"; {which if len(back) == len(gpus) else 'these'} at baseline ({base} MiB, "
        text += f"{' or '.join(sorted(sources))})"
    else:
        text += f"; used now {mib_span(gpu['after_bytes'] for gpu in back)} MiB"
    said = dict.fromkeys(one for gpu in back for one in gpu.get("starts_again", ()))
    return " · ".join((text, fold_names(said))) if said else text


def _freed(gpu: GpuVerdict) -> int:
    before, after = gpu["before_bytes"], gpu["after_bytes"]
    return 0 if before is None or after is None else before - after


def _at_baseline(gpu: GpuVerdict) -> bool:
    after, base = gpu["after_bytes"], gpu["baseline_bytes"]
    return after is not None and base is not None and after <= base + TOLERANCE_BYTES


def counts(entries: Sequence[HostEntry]) -> str:
    """How many processes were stopped and spared, and what the trail calls it."""
    sections = [entry["reclaim"] for entry in entries if "reclaim" in entry]
    stopped = sum(_stopped(section) for section in sections)
    spared = sum(len(section["spared"]) for section in sections)
    unknown = sum(section["verdict"] == "unknown" for section in sections)
    text = f"{stopped} stopped, {spared} spared, {unknown} unknown"
    if not any(section["rungs"] for section in sections):
        text = f"{spared} spared, nothing was changed"
    plans = {section["plan"]["id"] for section in sections if section["plan"]}
    if stopped and len(plans) == 1:
        text += f" · operation {safe(plans.pop())}, recorded here and on the host"
    elif len(entries) == 1 and entries[0]["seconds"] is not None:
        text += f" · {seconds(entries[0]['seconds'])}"
    return text


def _stopped(section: Reclaim) -> int:
    """Signalled identities that are gone, as the last rung that counted says."""
    signalled = {
        (one["pid"], one["start_time"]) for rung in section["rungs"] for one in rung["signalled"]
    }
    gone = [value for rung in section["rungs"] if (value := rung.get("gone")) is not None]
    if gone:
        return min(gone[-1], len(signalled))
    return len(signalled) if section["verdict"] == "reclaimed" else 0
