"""Frames: a 4-byte big-endian length, then one UTF-8 JSON object. Both ends use this file.

Messages, each with ``type``:

down (controller to agent)
    ``call``    id, name, args, timeout_seconds, share (calls of one name share a child)
    ``cancel``  id
    ``lock``    id, operation, timeout_seconds       (answered by ``result``)
    ``unlock``  id                                   (answered by ``result``)
    ``beat``    every 5 s
    ``bye``
up (agent to controller)
    ``hello``   protocol, schema, version, python, pid, uid, cached
    ``log``     level, text
    ``chunk``   id, data
    ``result``  id, outcome, code, reason, reading, seconds   (a reason is a code and a text)
    ``beat``    every 5 s

Spans only, never moments: the two clocks need not agree. ``json`` itself costs an agent
7 ms to import, its C halves 0.5 ms, so those are used where the interpreter has them.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Iterator

PROTOCOL = 2
"""Raised when frames or message types change; both ends must agree."""

SCHEMA = 1
"""Raised when the shape of a reading changes incompatibly."""

MAX_FRAME_BYTES = 16 * 1024 * 1024
MAX_VALUES = 1_000_000
"""Commas and brackets in one frame: 16 MiB of empty lists would be 300 MB of objects."""

BEAT_SECONDS = 5.0
LEASE_SECONDS = 20.0
"""Without any frame for this long the other side counts as gone."""


class WireError(Exception):
    """The other side sent a malformed frame."""


def _constant(name: str) -> Any:
    raise ValueError("not a JSON number: " + name)


def _finite(text: str) -> float:
    value = float(text)
    if value - value != 0:  # 1e999 is JSON by its grammar, and no number that can be sent on
        raise ValueError("not a finite number: " + text[:20])
    return value


class _Context:
    """What the C scanner asks of its decoder."""

    strict = True
    object_hook = None
    object_pairs_hook = None
    parse_float = staticmethod(_finite)
    parse_int = int
    parse_constant = staticmethod(_constant)
    memo: Dict[str, str] = {}  # noqa: RUF012


def _default(value: Any) -> Any:
    raise TypeError("cannot send " + type(value).__name__)


try:
    from _json import encode_basestring_ascii as _quote
    from _json import make_encoder as _make_encoder
    from _json import make_scanner as _make_scanner

    _scan = _make_scanner(_Context)  # type: ignore[arg-type]
    _encode = _make_encoder(None, _default, _quote, None, ":", ",", False, False, False)

    def dumps(value: Any) -> str:
        """*value* as compact JSON."""
        return "".join(_encode(value, 0))

    def loads(text: str) -> Any:
        """The value of the JSON *text*; ValueError where it is none."""
        try:
            value, end = _scan(text, 0)
        except StopIteration:
            raise ValueError("not JSON") from None
        if end != len(text):
            raise ValueError("data after the JSON value")
        return value

except ImportError:  # an interpreter without the C accelerator
    import json

    def dumps(value: Any) -> str:
        """*value* as compact JSON."""
        return json.dumps(value, separators=(",", ":"), allow_nan=False)

    def loads(text: str) -> Any:
        """The value of the JSON *text*; ValueError where it is none."""
        return json.loads(text, parse_constant=_constant, parse_float=_finite)


def encode(message: Dict[str, Any]) -> bytes:
    """One message as a frame; WireError where it would be too large."""
    body = dumps(message).encode("utf-8")
    if len(body) > MAX_FRAME_BYTES:
        raise WireError("message of %d bytes is over the limit" % len(body))
    if _values(body) > MAX_VALUES:
        raise WireError("message of more than %d values is over the limit" % MAX_VALUES)
    return len(body).to_bytes(4, "big") + body


class Decoder:
    """Bytes in, messages out, however the bytes were cut."""

    def __init__(self, max_frame_bytes: int = MAX_FRAME_BYTES) -> None:
        self._buffer = bytearray()
        self._max = max_frame_bytes

    def feed(self, data: bytes) -> Iterator[Dict[str, Any]]:
        """Yield each message that *data* completes; WireError on a malformed frame."""
        buffer = self._buffer
        buffer += data
        start = 0
        try:
            while len(buffer) - start >= 4:
                size = int.from_bytes(buffer[start : start + 4], "big")
                if size > self._max:
                    raise WireError("frame of %d bytes is over the limit" % size)
                if len(buffer) - start - 4 < size:
                    break
                body = bytes(buffer[start + 4 : start + 4 + size])
                start += 4 + size
                yield _message(body)
        finally:
            del buffer[:start]

    @property
    def pending_bytes(self) -> int:
        """Bytes of a frame that is not complete yet."""
        return len(self._buffer)


def _values(body: bytes) -> int:
    """At least as many as there are values in *body*; those in texts are counted, too."""
    return body.count(b",") + body.count(b"[") + body.count(b"{")


def _message(body: bytes) -> Dict[str, Any]:
    if _values(body) > MAX_VALUES:
        raise WireError("frame of more than %d values is over the limit" % MAX_VALUES)
    try:
        message = loads(body.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise WireError("frame is not JSON: %s" % error) from None
    if not isinstance(message, dict) or not isinstance(message.get("type"), str):
        raise WireError("frame is not a message")
    return message
