"""Where did the memory go, on every GPU host at once, and get it back safely, with proof.

The public API is :class:`Fleet`; everything else is an implementation detail.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fleetmem.controller.fleet import Fleet as Fleet

__version__ = "0.1.0"
__all__ = ["Fleet", "__version__"]


def __getattr__(name: str) -> object:
    """Load :class:`Fleet` on first use, so that importing the package stays cheap."""
    if name == "Fleet":
        from fleetmem.controller.fleet import Fleet

        return Fleet
    raise AttributeError(f"module 'fleetmem' has no attribute {name!r}")
