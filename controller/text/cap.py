"""How many failures stop new hosts: ``--max-fail``, parsed once."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fleetmem.controller.errors import UsageError


@dataclass(frozen=True)
class Cap:
    """A number of hosts, or a share of those targeted."""

    hosts: int | None = None
    percent: float | None = None

    def of(self, targeted: int) -> int:
        """How many of *targeted* hosts may fail; at least one, so 0 stops at the first."""
        if self.percent is not None:
            return max(1, math.ceil(targeted * self.percent / 100))
        return max(1, self.hosts or 0)


def cap(value: Cap | int | str | None) -> Cap | None:
    """``3``, ``"10%"``, or None for no cap. UsageError for anything else."""
    if value is None or isinstance(value, Cap):
        return value
    text = str(value).strip()
    number = text.removesuffix("%").strip()
    share = text.endswith("%")
    try:
        found = float(number) if share else int(number)
    except ValueError:
        found = -1
    if not 0 <= found < math.inf or (share and found > 100):
        raise UsageError(
            f'--max-fail: "{text[:40]}" is not a number of hosts (3) or a percentage (10%)'
        )
    return Cap(percent=float(found)) if share else Cap(hosts=int(found))
