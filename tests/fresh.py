"""`make fresh-check`: both commands of the README on a bare Debian that has only make and Python.

It is this machine's release, in namespaces of its own with a root file system of its own. Of this
machine it sees the kernel, the network, the checkout's files, and how packages are fetched here
(sources, proxies, certificates). Everything else has to come from the two commands.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.lab.making import image
from tests.lab.making.build import LabError

ROOT = Path(__file__).parent.parent
PLACE = "root/fleetmem"
COMMANDS = ("make demo", "make test")

FETCHING = ("/etc/pip.conf", "/etc/resolv.conf", "/etc/hosts", "/etc/apt/auth.conf.d",
            "/usr/share/keyrings", "/usr/local/share/ca-certificates",
            "/etc/ssl/certs/ca-certificates.crt")  # fmt: skip
"""How this machine reaches package registries, in the places where such settings live."""

ENTER = """
set -e
mount --make-rprivate /
mount --bind "$1" "$1"
cd "$1"
mount -t proc proc proc
mount --rbind /dev dev
mount --rbind /sys sys
mount -t tmpfs -o mode=755 tmpfs run
mount -t tmpfs -o mode=1777 tmpfs dev/shm
hostname fresh
pivot_root . mnt
/mnt/bin/umount -l /mnt  # a bare Debian may lack one of its own
cd /root/fleetmem
shift
exec "$@"
"""


def bare(root: Path, scratch: Path) -> None:
    """A Debian with what every Debian has, make and python3. LabError where it cannot be made."""
    release = image.own_release()
    words = ["mmdebstrap", "--quiet", "--variant=apt", "--mode=root", "--include=make,python3"]
    words += ["--dpkgopt=force-unsafe-io", release, str(root), *image.sources(scratch, release)]
    done = subprocess.run(words, stdin=subprocess.DEVNULL, check=False)
    if done.returncode:
        raise LabError("mmdebstrap could not make a bare Debian")


def fetching(root: Path) -> None:
    """Copies how this machine reaches registries."""
    for name in FETCHING:
        source, target = Path(name), root / name[1:]
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, dirs_exist_ok=True)
        elif source.exists():
            shutil.copyfile(source, target)
    for path in Path("/etc/apt/apt.conf.d").glob("*"):
        if "Acquire::" in path.read_text("utf-8", "replace"):
            shutil.copyfile(path, root / "etc/apt/apt.conf.d" / path.name)
    for name in (".config/pip", ".pip"):
        own = Path.home() / name
        if own.is_dir():
            shutil.copytree(own, root / "root" / name, dirs_exist_ok=True)


def checkout(place: Path) -> None:
    """The files of the checkout: those that git knows or would add."""
    words = ["git", "-C", str(ROOT), "ls-files", "-z", "-co", "--exclude-standard"]
    listed = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, place / name)


def environment() -> dict[str, str]:
    """What a login on a new machine has, and how packages are fetched."""
    starts = ("PIP_", "SSL_CERT", "REQUESTS_CA")
    kept = {
        name: value
        for name, value in os.environ.items()
        if name.startswith(starts) or name.lower().endswith("_proxy")
    }
    path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    return {**kept, "PATH": path, "HOME": "/root", "USER": "root", "LANG": "C.UTF-8"}


def inside(root: Path, command: str) -> int:
    """Exit status of a shell command there; whatever it started ends with it."""
    flags = ["--mount", "--uts", "--ipc", "--pid", "--fork", "--kill-child"]
    words = ["unshare", *flags, "sh", "-c", ENTER, "sh", str(root), "sh", "-c", command]
    done = subprocess.run(words, stdin=subprocess.DEVNULL, env=environment(), check=False)
    return done.returncode


def main(commands: Sequence[str] = COMMANDS) -> int:
    """0 where both commands succeed there; others may be given in their place, for trials."""
    if os.geteuid() != 0:
        print("fresh check: needs root", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory(prefix="fleetmem-fresh-", dir="/var/tmp") as scratch:
        root = Path(scratch) / "root"
        try:
            bare(root, Path(scratch))
        except LabError as error:
            print(f"fresh check: {error}", file=sys.stderr)
            return 1
        fetching(root)
        checkout(root / PLACE)
        for command in commands:
            begun = time.monotonic()
            status = inside(root, command)
            took = time.monotonic() - begun
            print(f"fresh check: {command}: exit status {status} after {took:.0f} s", flush=True)
            if status:
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or COMMANDS))
