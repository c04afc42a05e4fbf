"""HTTP from the host to itself, in version 1.0: the answer ends with the connection, and no module
that costs time is needed. Only loopback addresses are asked."""

from __future__ import annotations

import time

from fleetmem.agent.model import DENIED, Trouble

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, List, Optional, Tuple

MOST_BYTES = 1 << 20
MOST_HEAD_BYTES = 1 << 16
AF_INET, AF_INET6 = 2, 10


class LoopbackPlace:
    """Where a request goes: numeric loopback addresses to try, port, path."""

    __slots__ = ("addresses", "host", "path", "port")

    def __init__(self, host: str, port: int, path: str, addresses: List[Tuple[int, str]]) -> None:
        self.host = host
        self.port = port
        self.path = path
        self.addresses = addresses


def parse(url: str) -> LoopbackPlace:
    """The parts of *url*; Trouble unless it is http to a loopback address.

    No name but localhost is taken, and that one is not looked up: what a name means is
    somebody else's to say.
    """
    scheme, _, rest = url.partition("://")
    if scheme != "http" or not rest or any(not "!" <= char <= "~" for char in url):
        raise Trouble(DENIED, "%s: an address such as http://127.0.0.1:8000/health" % url[:200])
    cut = min(rest.find(char) if char in rest else len(rest) for char in "/?")
    where, path = rest[:cut], rest[cut:].partition("#")[0]
    host, port = where, "80"
    if where.startswith("["):
        host, _, more = where[1:].partition("]")
        port = more[1:] if more.startswith(":") else "80" if not more else ""
    elif ":" in where:
        host, _, port = where.rpartition(":")
    addresses = _loopback(host)
    if addresses is None:
        raise Trouble(DENIED, "%s: only this host's own loopback addresses are asked" % url[:200])
    if not port.isdigit() or not 0 < int(port) < 65536:
        raise Trouble(DENIED, "%s: no port" % url[:200])
    return LoopbackPlace(where, int(port), path if path.startswith("/") else "/" + path, addresses)


def _loopback(host: str) -> Optional[List[Tuple[int, str]]]:
    if host == "localhost":
        return [(AF_INET, "127.0.0.1"), (AF_INET6, "::1")]
    if host == "::1":
        return [(AF_INET6, host)]
    parts = host.split(".")
    if len(parts) == 4 and parts[0] == "127" and all(map(_byte, parts)):
        return [(AF_INET, host)]
    return None


def _byte(text: str) -> bool:
    return text.isdigit() and len(text) < 4 and int(text) < 256


class Problem(Exception):
    """Why there is no answer."""


def ask(place: LoopbackPlace, body: Optional[bytes], deadline: float) -> Tuple[int, int, bytes]:
    """(status, bytes of the body, its beginning); Problem where there is none in time.

    A GET, or a POST where there is a *body*, which is JSON. *deadline* is monotonic time.
    """
    import _socket

    head = "%s %s HTTP/1.0\r\nHost: %s\r\nUser-Agent: fleetmem\r\nAccept: */*\r\n" % (
        "GET" if body is None else "POST",
        place.path,
        place.host,
    )
    if body is not None:
        head += "Content-Type: application/json\r\nContent-Length: %d\r\n" % len(body)
    channel = _connect(place, deadline)
    try:
        channel.settimeout(_left(deadline))
        channel.sendall(head.encode("ascii") + b"\r\n" + (body or b""))
        return _answer(channel, deadline)
    except _socket.timeout:
        raise Problem("no answer in time") from None
    except OSError as error:
        raise Problem(_reason(error)) from None
    finally:
        channel.close()


def _connect(place: LoopbackPlace, deadline: float) -> Any:
    import _socket

    why = ""
    for family, address in place.addresses:
        try:
            channel = _socket.socket(family, _socket.SOCK_STREAM)
        except OSError as error:  # no IPv6 here
            why = why or _reason(error)
            continue
        try:
            channel.settimeout(_left(deadline))
            channel.connect((address, place.port))
            return channel
        except _socket.timeout:
            channel.close()
            raise Problem("no connection in time") from None
        except OSError as error:
            channel.close()
            why = why or _reason(error)
        except BaseException:
            channel.close()
            raise
    raise Problem(why)


def _answer(channel: Any, deadline: float) -> Tuple[int, int, bytes]:
    data = b""
    length: Optional[int] = None
    start = 0
    while len(data) < MOST_BYTES + MOST_HEAD_BYTES:
        channel.settimeout(_left(deadline))
        more = channel.recv(1 << 16)
        data += more
        if not start:
            end = data.find(b"\r\n\r\n")
            if end >= 0:
                start = end + 4
                length = _length(data[:end])
            elif not more or len(data) > MOST_HEAD_BYTES:
                break
        if not more or (start and length is not None and len(data) >= start + length):
            break
    status = _status(data) if start else None
    if status is None:
        raise Problem("what answers does not speak HTTP" if data else "it hung up")
    if length is not None and len(data) < min(start + length, MOST_BYTES):
        raise Problem("it closed the connection in the middle of its answer")
    return status, len(data) - start, data[start:]


def _status(data: bytes) -> Optional[int]:
    words = data[:200].split(None, 2)
    if len(words) < 2 or words[0][:5] != b"HTTP/" or len(words[1]) != 3:
        return None
    return int(words[1]) if words[1].isdigit() else None


def _length(head: bytes) -> Optional[int]:
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"content-length" and value.strip().isdigit():
            return int(value)
    return None


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise Problem("no answer in time")
    return left


def _reason(error: OSError) -> str:
    return (error.strerror or str(error)).lower()
