"""``fleetmem gate``: wait in front of a start until GPU memory is free, or say who holds it."""

from __future__ import annotations

import os

import click

from fleetmem.controller.errors import UsageError

_ABOUT = """Wait until GPU memory is free, or name what holds it.

For ExecStartPre, a Slurm prolog, an initContainer or CI: it looks at this machine only and needs
no privilege. It waits while memory falls and fails at once on a live process, or on file pages in
GPU memory. Exit status: 0 free, 5 held, 3 cannot tell.
"""


@click.command("gate", help=_ABOUT)
@click.option(
    "--gpu",
    default="all",
    show_default=True,
    metavar="GPUS",
    help="Wait for these GPUs: all, N, N-M, a UUID or a PCI address, joined by commas.",
)
@click.option(
    "--need",
    metavar="SIZE",
    help="Require this much free memory on each GPU (80GiB); default: all but an idle GPU's.",
)
@click.option(
    "--timeout",
    default="60s",
    show_default=True,
    metavar="TIME",
    help="Stop waiting after this time, even while memory falls.",
)
@click.option(
    *("-o", "--output"),
    type=click.Choice(("table", "json")),
    default="table",
    show_default=True,
    help="Output format.",
)
@click.option("--emit", metavar="FILE", help="Write the gate as one standalone Python file.")
def command(gpu: str, need: str | None, timeout: str, output: str, emit: str | None) -> int:
    """Run the gate on this machine, or write it to a file; the process status."""
    if emit is not None:
        return _emit(emit)
    from fleetmem.agent.gate import main as gate
    from fleetmem.agent.gate.scope import ScopeError

    try:
        need_bytes = gate.size(need) if need else None
        return gate.run(gpu, need_bytes, gate.seconds(timeout), output)
    except gate.UsageError as error:
        raise UsageError(str(error)) from None
    except ScopeError as error:
        raise UsageError(f"--gpu: {error}") from None


def _emit(path: str) -> int:
    from fleetmem import __version__
    from fleetmem.controller.gate.emit import standalone

    text = standalone(__version__)
    try:
        with open(path, "w", encoding="ascii") as file:
            file.write(text)
        os.chmod(path, 0o755)
    except OSError as error:
        raise UsageError(f"--emit: {path}: {(error.strerror or str(error)).lower()}") from None
    return 0
