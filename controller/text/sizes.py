"""Numbers as people read them: GiB is 2^30, absent is ``–``, never 0."""

from __future__ import annotations

from collections.abc import Iterable

NONE = "–"
GIB = 1 << 30
MIB = 1 << 20


def gib(size_bytes: int | None) -> str:
    """GiB with one decimal, ``0`` for nothing at all."""
    if size_bytes is None:
        return NONE
    return "0" if size_bytes == 0 else f"{size_bytes / GIB:.1f}"


def decimals(sizes: Iterable[int | None]) -> int:
    """How many decimals a column of GiB needs so that nothing in it reads as 0: 1 to 3."""
    least = min((size for size in sizes if size), default=GIB)
    return 1 if least >= GIB / 20 else 2 if least >= GIB / 200 else 3


def gib_column(size_bytes: int | None, decimals: int) -> str:
    """GiB as the other rows of its column have it."""
    return NONE if size_bytes is None else f"{size_bytes / GIB:.{decimals}f}"


def thousands(number: int) -> str:
    """``92049`` as ``92 049``."""
    return f"{number:,}".replace(",", " ")


def mib(size_bytes: int | None) -> str:
    """Whole MiB, as ``nvidia-smi`` counts them."""
    return NONE if size_bytes is None else thousands(round(size_bytes / MIB))


def mib_span(sizes: Iterable[int | None]) -> str:
    """The range of several sizes in MiB: ``92 049-137`` where they share their thousands.

    Longer than 12 characters it does without the blanks.
    """
    ends = span(sizes)
    if ends is None:
        return NONE
    low, high = (thousands(round(end / MIB)) for end in ends)
    if low == high:
        return low
    shared = low.rpartition(" ")[0]
    if shared and shared == high.rpartition(" ")[0]:
        return f"{low}-{high.rpartition(' ')[2]}"
    text = f"{low}-{high}"
    return text if len(text) <= 12 else text.replace(" ", "")


def seconds(value: float | None) -> str:
    """A span: ``0.31 s`` below one second, ``10.6 s`` below a hundred, then whole seconds."""
    if value is None:
        return NONE
    if value < 1:
        return f"{value:.2f} s"
    return f"{value:.1f} s" if value < 100 else f"{value:.0f} s"


def seconds_span(values: Iterable[float | None]) -> str:
    """The range of several spans: ``10.3-11.2 s``."""
    ends = span(values)
    if ends is None:
        return NONE
    low, high = (seconds(end) for end in ends)
    return low if low == high else f"{low.removesuffix(' s')}-{high}"


def age(value: float | None) -> str:
    """How long something has been: ``45s``, ``12m``, ``3h12``, ``2d03``."""
    if value is None:
        return NONE
    whole = int(value)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m"
    if whole < 86400:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}"
    return f"{whole // 86400}d{whole % 86400 // 3600:02d}"


def count(number: int, one: str, many: str | None = None) -> str:
    """``1 host``, ``2 hosts``."""
    return f"{number} {one if number == 1 else many or one + 's'}"


def span(values: Iterable[float | int | None]) -> tuple[float, float] | None:
    """Smallest and largest of the known values; ``None`` where none is known."""
    known = [value for value in values if value is not None]
    return (min(known), max(known)) if known else None
