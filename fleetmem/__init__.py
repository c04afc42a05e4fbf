"""See where GPU and host memory went across a fleet, and get it back safely, with proof.

The public API is :class:`Fleet`, :class:`FleetSettings` and the options of its methods;
everything else is an implementation detail.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fleetmem.controller.fleet import Fleet as Fleet
    from fleetmem.controller.logs.audit import AuditOptions as AuditOptions
    from fleetmem.controller.logs.run import LogOptions as LogOptions
    from fleetmem.controller.look.follow.run import FollowOptions as FollowOptions
    from fleetmem.controller.look.snapshot import SnapshotOptions as SnapshotOptions
    from fleetmem.controller.reclaim.options import ReclaimOptions as ReclaimOptions
    from fleetmem.controller.run.settings import FleetSettings as FleetSettings

__version__ = "0.2.0"
_HOMES = {
    "AuditOptions": "fleetmem.controller.logs.audit",
    "Fleet": "fleetmem.controller.fleet",
    "FleetSettings": "fleetmem.controller.run.settings",
    "FollowOptions": "fleetmem.controller.look.follow.run",
    "LogOptions": "fleetmem.controller.logs.run",
    "ReclaimOptions": "fleetmem.controller.reclaim.options",
    "SnapshotOptions": "fleetmem.controller.look.snapshot",
}

__all__ = [
    "AuditOptions",
    "Fleet",
    "FleetSettings",
    "FollowOptions",
    "LogOptions",
    "ReclaimOptions",
    "SnapshotOptions",
    "__version__",
]


def __getattr__(name: str) -> object:
    """Load the public names on first use, so that importing the package stays cheap."""
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'fleetmem' has no attribute {name!r}")
