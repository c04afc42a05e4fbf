"""``fleetmem --help`` against a click hello world; folding against NodeSet alone."""

from __future__ import annotations

import random
import sys
import tempfile
import time
from pathlib import Path

from benchmarks import measure
from benchmarks.fanout import FLEETMEM, ratio
from fleetmem.controller.answer.fold import fold_equal
from fleetmem.controller.hosts.nodeset import fold

HELLO = """import click
@click.command()
def main():
    "Hello."
    click.echo("hello")
main()
"""
ROUNDS = 8
HOSTS, FIELDS = 10_000, 50


def main() -> list[tuple[str, str]]:
    """The rows of the table."""
    with tempfile.TemporaryDirectory() as folder:
        hello = Path(folder) / "hello.py"
        hello.write_text(HELLO)
        theirs = measure.best([measure.run([sys.executable, str(hello)]) for _ in range(ROUNDS)])
        ours = measure.best([measure.run([str(FLEETMEM), "--help"]) for _ in range(ROUNDS)])
    return [
        ratio("CPU, fleetmem --help / a click hello world", ours.client / theirs.client, 1.3),
        folding(),
    ]


def folding() -> tuple[str, str]:
    """Fold 10 000 hosts × 50 fields of which 200 differ, and the same names by NodeSet alone."""
    names = [f"gpu-{number:05}" for number in range(HOSTS)]
    odd = set(random.Random(1).sample(range(HOSTS), 200))
    rows = [
        (name, {f"field{k}": number if number in odd else k for k in range(FIELDS)})
        for number, name in enumerate(names)
    ]
    begin = time.process_time()
    groups = fold_equal(rows)
    for group in groups:
        fold(list(group.hosts))
    ours = time.process_time() - begin
    begin = time.process_time()
    for group in groups:
        fold(list(group.hosts))
    return ratio(
        "CPU, folding 10 000 hosts × 50 fields / NodeSet alone",
        ours / (time.process_time() - begin),
        1.5,
    )
