"""python -m tests.lab up|down|exec|hog: test hosts from the command line."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path

from tests.lab import api
from tests.lab.hogs import KINDS
from tests.lab.numa.arch import ARCHS


def main(argv: list[str]) -> int:
    """Exit codes: 0 done, 1 trouble in one line on stderr, 2 usage; exec passes through."""
    wish = _parser().parse_args(argv)
    try:
        return int(wish.run(wish))
    except api.LabError as error:
        print(f"lab: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.lab", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    start = commands.add_parser("up", help="start hosts gh200-01 …")
    start.add_argument("-n", type=int, default=8, help="number of hosts (8)")
    start.add_argument("--dir", type=Path, required=True, help="directory of the lab, made by it")
    start.add_argument("--gpus", type=int, default=2, help="GPUs a host (2)")
    start.add_argument("--gpu-mib", type=int, default=97887, help="MiB a GPU (97887)")
    start.add_argument("--while", dest="pid", type=int, help="end when this process ends")
    start.add_argument("--net", action="store_true", help="a network namespace for each host")
    start.add_argument(
        "--expose", type=Path, action="append", default=[], help="a path that hosts see too"
    )
    start.add_argument(
        "--numa-vm",
        action="store_true",
        help="one more host: a virtual machine with two NUMA nodes, one of them a GPU's",
    )
    start.add_argument(
        "--arch", choices=sorted(ARCHS), help="its architecture: arm64 has 16K pages (amd64)"
    )
    start.add_argument(
        "--systemd", action="store_true", help="hosts with a systemd and a journald of their own"
    )
    start.set_defaults(run=_up)
    end = commands.add_parser("down", help="end a lab; nothing is left")
    end.add_argument("dir", type=Path)
    end.set_defaults(run=_down)
    inside = commands.add_parser("exec", help="run a command as root inside a host")
    inside.add_argument("dir", type=Path)
    inside.add_argument("host")
    inside.add_argument("command", nargs=argparse.REMAINDER, help="-- COMMAND …")
    inside.set_defaults(run=_exec)
    hold = commands.add_parser("hog", help="start a GPU memory holder over ssh")
    hold.add_argument("dir", type=Path)
    hold.add_argument("host")
    hold.add_argument("--gpu", type=int, default=0)
    hold.add_argument("--mib", type=int, default=92000)
    hold.add_argument("--kind", choices=KINDS, required=True)
    hold.add_argument("--user", default="root")
    hold.add_argument("--title")
    hold.set_defaults(run=_hog)
    return parser


def _up(wish: argparse.Namespace) -> int:
    began = time.monotonic()
    lab = api.up(
        wish.dir,
        wish.n,
        wish.gpus,
        wish.gpu_mib,
        wish.pid,
        wish.net,
        wish.expose,
        wish.numa_vm,
        wish.systemd,
        wish.arch,
    )
    summary: dict[str, object] = {
        "dir": str(lab.directory),
        "hosts": len(lab.hosts),
        "inventory": str(lab.inventory),
        "seconds": round(time.monotonic() - began, 2),
    }
    if wish.numa_vm:
        summary["numa_vm"] = next(name for name, at in lab.hosts.items() if at.machine)
    print(json.dumps(summary))
    return 0


def _down(wish: argparse.Namespace) -> int:
    api.down(wish.dir)
    return 0


def _exec(wish: argparse.Namespace) -> int:
    command = wish.command[1:] if wish.command[:1] == ["--"] else wish.command
    if not command:
        raise api.LabError("exec needs a command: exec DIR HOST -- COMMAND")
    words = api.attach(wish.dir).command(wish.host, command)
    environment = dict(api.ENVIRONMENT)
    if "TERM" in os.environ:
        environment["TERM"] = os.environ["TERM"]
    os.execvpe(words[0], words, environment)


def _hog(wish: argparse.Namespace) -> int:
    lab = api.attach(wish.dir)
    print(lab.hog(wish.host, wish.kind, wish.gpu, wish.mib, wish.user, wish.title).line())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
