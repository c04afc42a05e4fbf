"""Rows of a command as csv: what every ``-o csv`` is written with. Pure."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any

_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def csv_text(rows: Sequence[Mapping[str, Any]], columns: Sequence[str] = ()) -> str:
    """*rows* under *columns*, else under the names of the first one; nothing without any name.

    Absent is empty, a list's items stand in one cell between ``;``, and so do the entries of a
    mapping, name and value. Text that a spreadsheet would run as a formula gets a leading ``'``.
    """
    names = columns or list(rows[0] if rows else ())
    if not names:
        return ""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(names)
    writer.writerows([_cell(row.get(name)) for name in names] for row in rows)
    return out.getvalue()


def _cell(value: Any) -> Any:
    if isinstance(value, Mapping):
        value = [f"{name} {one}" for name, one in value.items()]
    if isinstance(value, (list, tuple)):
        value = "; ".join(map(str, value))
    return "'" + value if isinstance(value, str) and value.startswith(_FORMULA) else value
