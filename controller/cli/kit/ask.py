"""Asking a person, without stopping the event loop: beats to the hosts go on meanwhile."""

from __future__ import annotations

import asyncio
import os
import sys
import threading

from fleetmem.controller.text.sizes import count

MAX_ANSWER_BYTES = 1024


def can_ask() -> bool:
    """Whether somebody sits at a terminal: answers come from stdin, questions go to stderr."""
    try:
        return sys.stdin.isatty() and sys.stderr.isatty()
    except (AttributeError, ValueError):
        return False


def question(what: str, hosts: int) -> str:
    """What is asked before *what* (such as "9 leftover processes") is stopped."""
    where = count(hosts, "host")
    if hosts == 1:
        return f"Stop {'this' if what.startswith('1 ') else 'these'} {what} on {where}? [y/N] "
    return f"Stop these {what} on {where}? Type the number of hosts to continue, Enter to stop: "


def agreed(answer: str, hosts: int) -> bool:
    """One host takes y or yes, several take their number and nothing else."""
    word = answer.strip().lower()
    return word in ("y", "yes") if hosts == 1 else word == str(hosts)


async def confirm(what: str, hosts: int) -> bool:
    """Ask whether *what* may be stopped; the end of the input is a no."""
    return await confirm_text(question(what, hosts), hosts)


async def confirm_text(text: str, hosts: int) -> bool:
    """Write *text* and wait for a line that agrees; what was typed before is no answer to it."""
    forget_typed(sys.stdin.fileno())
    sys.stderr.write(text)
    sys.stderr.flush()
    return agreed(await _line(sys.stdin.fileno()), hosts)


def forget_typed(descriptor: int) -> None:
    """Drop what was typed at the terminal *descriptor* and not read yet, half lines too."""
    import termios

    try:
        termios.tcflush(descriptor, termios.TCIFLUSH)
    except termios.error:  # not a terminal, or one that has gone: reading will tell
        pass


async def _line(descriptor: int) -> str:
    """One line, read by a thread that never keeps the process alive."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[str] = loop.create_future()

    def tell(text: str) -> None:
        if not answer.done():
            answer.set_result(text)

    def read() -> None:
        got = b""
        while not got.endswith(b"\n") and len(got) < MAX_ANSWER_BYTES:
            try:
                piece = os.read(descriptor, MAX_ANSWER_BYTES)
            except OSError:
                break
            if not piece:
                break
            got += piece
        try:
            loop.call_soon_threadsafe(tell, got.decode("utf-8", "replace"))
        except RuntimeError:  # the loop has ended: nobody waits for the answer
            pass

    threading.Thread(target=read, name="answer", daemon=True).start()
    return await answer
