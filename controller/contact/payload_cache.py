"""The built payload, kept in the user's cache folder by the hash of what it was built from.

Only a convenience: what cannot be read, written or trusted is built again, silently. Every
part is checked against its own SHA-256 when it is loaded.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
import json
import os
import zlib

from fleetmem.controller.contact.agent_parts import AgentPart, Payload
from fleetmem.controller.text.kept import folder


def load(key: str) -> Payload | None:
    """The payload kept under *key*, or None."""
    place = folder() / f"payload-{key}.json"
    try:
        found = place.stat()
        if found.st_uid != os.geteuid() or found.st_mode & 0o022:
            return None
        data = json.loads(place.read_bytes())
        parts = tuple(
            AgentPart(name, digest, size, base64.b64decode(text))
            for name, digest, size, text in data["parts"]
        )
        for part in parts:
            if hashlib.sha256(zlib.decompress(part.compressed)).hexdigest() != part.sha256:
                return None
        stage0 = base64.b64decode(data["stage0"])
        return Payload(str(data["wrap"]), str(data["bootstrap"]), stage0, parts)
    except (OSError, ValueError, KeyError, TypeError, zlib.error, binascii.Error):
        return None


def keep(key: str, payload: Payload) -> None:
    """Keep *payload* under *key*, in place of older ones."""
    rows = [
        [part.name, part.sha256, part.size_bytes, base64.b64encode(part.compressed).decode()]
        for part in payload.parts
    ]
    data = json.dumps(
        {
            "wrap": payload.wrap,
            "bootstrap": payload.bootstrap,
            "stage0": base64.b64encode(payload.stage0).decode(),
            "parts": rows,
        }
    )
    place = folder()
    with contextlib.suppress(OSError):
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        for old in place.glob("payload-*.json"):
            old.unlink()
        temporary = place / f".payload-{os.getpid()}"
        number = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
        with os.fdopen(number, "w") as file:
            file.write(data)
        temporary.rename(place / f"payload-{key}.json")
