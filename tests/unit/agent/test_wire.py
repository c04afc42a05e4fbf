"""Frames: their limits."""

from __future__ import annotations

import pytest

from fleetmem.agent import wire
from fleetmem.agent.page_cache import paths


def test_a_frame_of_very_many_values_is_refused_before_it_is_read() -> None:
    """16 MiB of empty lists would be 300 MB of objects."""
    body = b'{"type":"result","id":1,"reading":[' + b"[]," * wire.MAX_VALUES + b"0]}"
    assert len(body) < wire.MAX_FRAME_BYTES
    with pytest.raises(wire.WireError, match="more than 1000000 values"):
        list(wire.Decoder().feed(len(body).to_bytes(4, "big") + body))
    with pytest.raises(wire.WireError, match="more than 1000000 values"):
        wire.encode({"type": "result", "reading": [[]] * wire.MAX_VALUES})


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        (b"/models/a.bin", ("/models/a.bin", None)),
        ("/modèles/a.bin".encode(), ("/modèles/a.bin", None)),
        (b"/models/\xff", ("/models/\ufffd", "2f6d6f64656c732fff")),
        (b"/models/a\nb", ("/models/a\nb", "2f6d6f64656c732f610a62")),
    ],
)
def test_a_path_that_text_does_not_lead_back_to_has_its_bytes(
    path: bytes, shown: tuple[str, str | None]
) -> None:
    assert paths.show(path) == shown
