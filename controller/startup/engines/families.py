"""Which identity an engine has."""

from __future__ import annotations

from collections.abc import Callable

from fleetmem.controller.startup.engines.equation import Equation
from fleetmem.controller.startup.engines.llamacpp import llamacpp
from fleetmem.controller.startup.engines.lmdeploy import lmdeploy
from fleetmem.controller.startup.engines.sglang import sglang
from fleetmem.controller.startup.engines.tgi import tgi
from fleetmem.controller.startup.engines.trtllm import trtllm
from fleetmem.controller.startup.engines.vllm import vllm
from fleetmem.controller.startup.starts import Invocation

FAMILIES: dict[str, Callable[[Invocation, str], Equation | None]] = {
    "vllm": vllm,
    "sglang": sglang,
    "trtllm": trtllm,
    "lmdeploy": lmdeploy,
    "llamacpp": llamacpp,
    "ollama": llamacpp,
    "tgi": tgi,
}


def identity_of(inv: Invocation, rank: str) -> Equation | None:
    """The budget identity of one rank; None for an engine without a family."""
    family = FAMILIES.get(inv.engine_name or "")
    return family(inv, rank) if family is not None and rank in inv.ranks else None
