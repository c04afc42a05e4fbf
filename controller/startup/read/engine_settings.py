"""Settings that an engine prints: ``name=value``, ``'name': value``, ``--name value``."""

from __future__ import annotations

import re
from collections.abc import Iterable

_VALUE = (
    r"(?:'(?P<single>[^'\n]{0,400})'|\"(?P<double>[^\"\n]{0,400})\"|(?P<plain>[\w.+\-/:]{1,200}))"
)
_WORDS = {"None": None, "null": None, "True": True, "true": True, "False": False, "false": False}
_INT = re.compile(r"-?\d{1,18}\Z")
_FLOAT = re.compile(r"-?\d{0,18}\.\d{1,18}(?:e-?\d{1,3})?\Z")
MAX_TEXT = 60_000


def read_settings(text: str, keys: Iterable[str]) -> dict[str, object]:
    """The values of *keys* in *text*, as ``config.KEY``. A key that is not printed is left out."""
    text = text[:MAX_TEXT]
    found: dict[str, object] = {}
    for key in keys:
        name = key.replace("_", "[_-]")
        match = re.search(rf"(?<![\w]){name}['\"]?\s?(?:[=:]|\s)\s?{_VALUE}", text)
        if match is None:
            continue
        plain = match["plain"]
        if plain is None:
            quoted = match["single"] if match["single"] is not None else match["double"]
            found[f"config.{key}"] = quoted
        else:
            found[f"config.{key}"] = _plain(plain.rstrip(".:"))
    return found


def _plain(text: str) -> object:
    if text in _WORDS:
        return _WORDS[text]
    if _INT.match(text):
        return int(text)
    if _FLOAT.match(text):
        return float(text)
    return text
