"""Where did the memory go, on every GPU host at once, and get it back safely, with proof.

The public API is :class:`Fleet` with :class:`FleetSettings` and :class:`ReclaimOptions`;
everything else is an implementation detail.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fleetmem.controller.fleet import Fleet as Fleet
    from fleetmem.controller.reclaim.options import ReclaimOptions as ReclaimOptions
    from fleetmem.controller.settings import FleetSettings as FleetSettings

__version__ = "0.1.0"
__all__ = ["Fleet", "FleetSettings", "ReclaimOptions", "__version__"]

_HOMES = {
    "Fleet": "fleetmem.controller.fleet",
    "FleetSettings": "fleetmem.controller.settings",
    "ReclaimOptions": "fleetmem.controller.reclaim.options",
}


def __getattr__(name: str) -> object:
    """Load the public names on first use, so that importing the package stays cheap."""
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'fleetmem' has no attribute {name!r}")
