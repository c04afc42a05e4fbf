# mypy: ignore-errors
"""Runs on a host in place of the agent, and lies: liar.py LIE -I -S -c WRAP STAGE TOKEN …

Some lies break the frames. Others (``between``) start the real agent and change what it says
on the way, so that every reading has its shape and none of it is true.
"""

import json
import os
import random
import subprocess
import sys
import threading
import time

LIE = sys.argv[1]
PROTOCOL = 0  # of this checkout, written where the file is installed
OUT = sys.stdout.buffer
HOSTILE = (
    "\x1b]0;owned\x07\x1b[2J\x1b[31m",
    "\u202e\u2066gnp.exe\u200b",
    "[bold red]markup[/] [link=http://x]y[/link]",
    "two\nlines\rone \x00 \x9b2J \ud800 lone",
    "../../../etc/passwd",
)


def frame(message):
    """One message on the wire."""
    body = json.dumps(message).encode()
    return len(body).to_bytes(4, "big") + body


def say(data):
    """Out with it; the end where nobody listens any more."""
    try:
        OUT.write(data)
        OUT.flush()
    except OSError:
        sys.exit(0)


def hello(**more):
    """The greeting of a real agent."""
    token = sys.argv[7].split(":")
    say(f"{token[1]}{token[0]} ok 3.11.2 \n".encode())
    known = {
        "type": "hello",
        "protocol": PROTOCOL,
        "schema": 1,
        "version": "0",
        "uid": 0,
        "cached": True,
    }
    say(frame({**known, **more}))


def calls():
    """Numbers of the calls that arrive."""
    buffer = b""
    while True:
        more = os.read(0, 65536)
        if not more:
            return
        buffer += more
        while len(buffer) >= 4 and len(buffer) >= 4 + int.from_bytes(buffer[:4], "big"):
            size = int.from_bytes(buffer[:4], "big")
            message, buffer = json.loads(buffer[4 : 4 + size]), buffer[4 + size :]
            for one in message.get("calls", [message]):
                if one.get("type", "call") == "call" and "id" in one:
                    yield one


def answer_all(**fields):
    """The same to every call."""
    hello()
    for call in calls():
        say(frame({"type": "result", "id": call["id"], "seconds": 0.1, **fields}))


def flood():
    """100 MB before anything that could be the agent."""
    for _ in range(100):
        say(b"noise { " * (1 << 17))


def garbage():
    """No frames."""
    hello()
    say(os.urandom(100000))
    time.sleep(600)


def huge():
    """A frame of 4 GiB."""
    hello()
    say(b"\xff\xff\xff\xff" + b"x" * 1000)
    time.sleep(600)


def deep():
    """JSON nested a million times."""
    hello()
    body = b'{"type":"result","id":' + b"[" * 1000000
    say(len(body).to_bytes(4, "big") + body)
    time.sleep(600)


def bulk():
    """100 MB of frames that nobody asked for."""
    hello()
    row = frame({"type": "chunk", "id": 1, "data": "x" * 1000000})
    for _ in range(100):
        say(row)
    say(frame({"type": "result", "id": 1, "outcome": "ok", "reading": "x" * 15000000}))
    live()


def beats():
    """Alive, and no answer."""
    hello()
    live()


def live():
    """Beats, for ever."""
    while True:
        say(frame({"type": "beat"}))
        time.sleep(0.5)


def silent():
    """A greeting, and no more."""
    hello()
    time.sleep(600)


def leave():
    """A greeting, and an orderly end at the first call."""
    hello()
    next(calls())


def protocol():
    """Another protocol, in types that make no sense."""
    hello(protocol=[1], schema={"a": None}, version=None)
    time.sleep(600)


def shapes():
    """Readings of no shape."""
    answer_all(outcome="ok", reason=None, reading={"gpus": {"x": [None]}, "processes": 7})


def outcome():
    """Outcomes that there are not."""
    answer_all(outcome="splendid\x1b[31m", reason=HOSTILE[0] * 100000, reading=None)


def code():
    """A host that would end the whole run."""
    answer_all(outcome="failed", code="interrupted", reason="\x1b[31m" + "by the host\n" * 5000)


def infinite():
    """Spans that are no numbers of this world."""
    hello()
    for call in calls():
        head = f'{{"type":"result","id":{call["id"]},"outcome":"failed","reason":"\\ud800"'
        body = (head + ',"reading":null,"seconds":1e999}').encode()
        say(len(body).to_bytes(4, "big") + body)


def between(change):
    """The real agent, with each of its results changed."""
    child = subprocess.Popen(
        ["python3", *sys.argv[2:]], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )

    def down():
        while True:
            data = os.read(0, 65536)
            if not data:
                break
            child.stdin.write(data)
            child.stdin.flush()
        child.stdin.close()

    threading.Thread(target=down, daemon=True).start()
    line = b""
    while b" ok " not in line:  # before it, the real one may ask for more of itself
        line = child.stdout.readline()
        if not line:
            return
        say(line)
    while True:
        head = child.stdout.read(4)
        if len(head) < 4:
            return
        message = json.loads(child.stdout.read(int.from_bytes(head, "big")))
        if message["type"] == "result":
            message["reading"] = change(message["reading"])
        say(frame(message))


def names(value, key=""):
    """Every text that a screen may show, hostile."""
    if isinstance(value, dict):
        return {name: names(one, name) for name, one in value.items()}
    if isinstance(value, list):
        return [names(one, key) for one in value]
    if isinstance(value, str) and key in ("name", "title", "comm", "user", "exe", "cgroup", "unit"):
        return HOSTILE[len(value) % len(HOSTILE)] + value
    return value


DICE = random.Random(os.environ.get("FLEETMEM_SEED"))


def numbers(value):
    """Numbers of any size; lists with rows twice or not at all."""
    if isinstance(value, dict):
        return {name: numbers(one) for name, one in value.items()}
    if isinstance(value, list):
        kept = [numbers(one) for one in value for _ in range(DICE.choice((0, 1, 1, 1, 2)))]
        DICE.shuffle(kept)
        return kept
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int) and DICE.random() < 0.2:
        return DICE.choice((-1, 0, 1, 2, 2**31, 2**63, -(2**63), 10**30))
    return value


if LIE == "names":
    between(names)
elif LIE == "numbers":
    between(numbers)
else:
    globals()[LIE]()
