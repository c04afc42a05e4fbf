"""Remote text made harmless for a terminal.

Control characters, escape sequences, bidi controls, zero-width and other invisible
characters and lone surrogates come out as visible escapes, so that a process title can
neither move the cursor nor imitate another line. Markup has no meaning here at all.
"""

from __future__ import annotations

_INVISIBLE = frozenset(
    "\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180f\u3164\uffa0"
    + "".join(map(chr, range(0xFE00, 0xFE10)))
    + "".join(map(chr, range(0xE0100, 0xE01F0)))
)
"""Characters that Unicode calls printable although nothing is seen of them."""


def safe(text: object, limit: int | None = None) -> str:
    """*text* with everything that a terminal might act upon escaped.

    With *limit* at most that many characters, the last then being ``…``.
    """
    raw = str(text)
    if limit is not None and len(raw) > limit:
        raw = raw[: limit - 1] + "…"
    if raw.isascii() and raw.isprintable():
        return raw
    shown = "".join(_shown(char) for char in raw)
    if limit is not None and len(shown) > limit:
        shown = shown[: limit - 1] + "…"
    return shown


def visible(text: str) -> str:
    """*text* with control characters, bidi marks and lone surrogates as visible escapes."""
    return "".join(char if char.isprintable() else _shown(char) for char in text)


def _shown(char: str) -> str:
    if char.isprintable() and char not in _INVISIBLE:
        return char
    code = ord(char)
    named = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}.get(char)
    if named:
        return named
    if code <= 0xFF:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"
