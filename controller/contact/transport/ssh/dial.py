"""A TCP connection with a reason where there is none: name, timeout, refusal, route."""

from __future__ import annotations

import asyncio
import errno
import socket
import threading
from typing import Any

from fleetmem.controller.errors import (
    ConnectFailed,
    ConnectRefused,
    ConnectTimeout,
    DnsFailed,
    Unreachable,
)


async def dial(who: str, host: str, port: int, timeout_seconds: float) -> socket.socket:
    """A connected, non-blocking socket to *host* and *port*; an Unreachable otherwise.

    All addresses of the name are tried in turn within the one timeout.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_seconds
    try:
        async with asyncio.timeout_at(deadline):
            infos = await _resolve(host, port)
    except TimeoutError:
        raise DnsFailed(
            f'{who}: no answer for the name "{host}" in {timeout_seconds:g} s'
        ) from None
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise DnsFailed(f'{who}: the name "{host}" has no address: {reason}') from None
    except UnicodeError:
        raise DnsFailed(f'{who}: "{host[:80]}" is not a host name') from None
    last: Unreachable | None = None
    for left, (family, kind, protocol, _, address) in zip(
        range(len(infos), 0, -1), infos, strict=True
    ):
        sock = socket.socket(family, kind, protocol)
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            share = max(deadline - loop.time(), 0.01) / left
            async with asyncio.timeout(share):
                await loop.sock_connect(sock, address)
        except TimeoutError:
            last = ConnectTimeout(
                f"{who}: {_at(address)} does not answer within {timeout_seconds:g} s"
            )
        except OSError as error:
            last = reason_of(who, _at(address), error)
        except BaseException:
            sock.close()
            raise
        else:
            return sock
        sock.close()
    raise last or DnsFailed(f'{who}: the name "{host}" has no address')


def reason_of(who: str, where: str, error: OSError) -> Unreachable:
    """The error of the tree for what the system said about *where*."""
    if isinstance(error, ConnectionRefusedError):
        return ConnectRefused(f"{who}: {where} refused the connection")
    if isinstance(error, TimeoutError) or error.errno == errno.ETIMEDOUT:
        return ConnectTimeout(f"{who}: {where} does not answer")
    reason = (error.strerror or str(error) or type(error).__name__).lower()
    return ConnectFailed(f"{who}: {where}: {reason}")


def _at(address: tuple[Any, ...]) -> str:
    host, port = address[0], address[1]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


async def _resolve(host: str, port: int) -> list[Any]:
    """getaddrinfo in a thread that no one has to wait for: it cannot be interrupted."""
    try:
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    except socket.gaierror:
        pass
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[list[Any]] = loop.create_future()

    def deliver(result: list[Any] | Exception) -> None:
        if answer.done():
            return
        if isinstance(result, Exception):
            answer.set_exception(result)
        else:
            answer.set_result(result)

    def ask() -> None:
        result: list[Any] | Exception
        try:
            result = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            result = error
        try:
            loop.call_soon_threadsafe(deliver, result)
        except RuntimeError:  # the loop is closed, nobody waits
            pass

    threading.Thread(target=ask, name="resolve", daemon=True).start()
    return await answer
