"""The picture of a snapshot in a real browser, without a network: what is seen is measured."""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from fleetmem.controller.render.snapshot.snapshot_svg import WIDTH, snapshot_svg
from tests.unit.render.test_snapshot_screen import envelope, story

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
PAGE = """<!DOCTYPE html><meta charset="utf-8"><body style="margin:0"><pre id="said"></pre>
<div id="drawn">%(svg)s</div><img id="image" src="data:image/svg+xml;base64,%(data)s"><script>
addEventListener("load", () => {
  const svg = document.querySelector("svg"), from = svg.getBoundingClientRect();
  const place = one => { const box = one.getBoundingClientRect();
    return [box.left - from.left, box.top - from.top, box.width, box.height]; };
  const canvas = document.createElement("canvas"), image = document.getElementById("image");
  canvas.width = image.naturalWidth; canvas.height = image.naturalHeight;
  const paint = canvas.getContext("2d"); paint.drawImage(image, 0, 0);
  const bars = [...svg.querySelectorAll("rect[role=img]")].map(one => {
    const [x, y, wide, high] = place(one);
    return {title: one.querySelector("title").textContent, x, wide,
            seen: [...paint.getImageData(x + Math.min(3, wide / 2), y + 3, 1, 1).data]};
  });
  const texts = [...svg.querySelectorAll("text")].map(one => [one.textContent, ...place(one)]);
  document.getElementById("said").textContent = JSON.stringify(
    {bars, texts, wide: from.width, image: [image.naturalWidth, image.naturalHeight]});
});</script>"""


def measured(document: str, folder: Path) -> Any:
    """*document* within a page and as an image of its own, as the browser lays it out."""
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    if program is None:
        pytest.fail("no Chromium here; `make test-setup` installs it")
    svg = document.partition("?>")[2]
    data = base64.b64encode(document.encode()).decode()
    page = folder / "page.html"
    page.write_text(PAGE % {"svg": svg, "data": data})
    done = subprocess.run(
        [program, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder}/own",
         "--virtual-time-budget=10000", "--window-size=900,900", "--dump-dom", page.as_uri()],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    said = re.search(r'<pre id="said">(.+?)</pre>', done.stdout, re.DOTALL)
    assert said, (done.returncode, done.stderr[-2000:])
    return json.loads(said[1].replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&"))


def test_it_is_seen_as_it_was_meant(tmp_path: Path) -> None:
    """Bars side by side in their colours, no text beyond the edge or across another."""
    hosts = {"gh200-01": story(), "h<img src=x>&\"'": story(), "gh200-17": None}
    found = measured(snapshot_svg(envelope(hosts)), tmp_path)
    assert found["wide"] == WIDTH
    assert found["image"][0] == WIDTH
    bars = found["bars"]
    first = [bar for bar in bars if bar["title"].startswith("gh200-01, GPU 0 HBM")]
    assert abs(sum(bar["wide"] for bar in first) - 500) < 0.1
    assert first[0]["title"].endswith("file pages 123.0 GiB, 132 070 244 352 bytes")
    assert first[0]["seen"][:3] == [0xD3, 0x2F, 0x2F]
    assert first[-1]["seen"][:3] == [0xF5, 0xF5, 0xF5]
    assert any(bar["title"].startswith("h<img src=x>&\"', CPU 0 DRAM") for bar in bars)
    for text, x, y, wide, high in found["texts"]:
        assert x >= 0, text
        assert x + wide <= WIDTH, text
        assert y + high <= found["image"][1], text
    lines = sorted((one for one in found["texts"] if len(one[0]) > 1), key=lambda one: one[2])
    for number, (text, x, y, wide, high) in enumerate(lines):
        for other, at, below, width, _ in lines[number + 1 :]:
            apart = below >= y + high - 4 or at >= x + wide or x >= at + width
            assert apart, (text, other)
