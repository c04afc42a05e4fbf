"""A Python of another Debian release that runs on this one, for hosts with other versions.

Packages are unpacked, never installed. Libraries that the release has in other versions lie
beside the interpreter and are found by its own path (RPATH); its C library is taken along only
where it is newer than this machine's.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.lab.making import image
from tests.lab.making.build import LabError

RELEASES = {"3.9": "bullseye", "3.11": "bookworm", "3.13": "trixie"}
RECIPE = 1
"""Raised where what is done to it changes."""

LIBC = re.compile(r"(ld-linux.*|ld-[0-9.]+|lib(c|m|dl|rt|pthread|util|resolv|nsl|nss_.*)[-.].*)")


def home(cache: Path, version: str) -> Path:
    """Where the interpreter of *version* lies once it is unpacked."""
    return cache / f"python{version}-{RECIPE}" / "usr"


def unpack(cache: Path, version: str, release: str) -> None:
    """Fetches and unpacks it. LabError says why it cannot be had."""
    for program in ("mmdebstrap", "patchelf"):
        if shutil.which(program) is None:
            raise LabError(f"{program} is missing; `sh tests/lab_setup.sh {program}` installs it")
    cache.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(dir=cache, prefix=".python-"))
    try:
        root, made = scratch / "root", scratch / "made"
        names = f"python{version}-minimal,libpython{version}-stdlib,python{version}"
        words = ["mmdebstrap", "--quiet", "--variant=extract", "--mode=root"]
        words += [f"--include={names}", release, str(root), *image.sources(scratch, release)]
        _run(*words)
        final = home(cache, version)
        _gather(root, made / "usr", version, final)
        made.chmod(0o755)
        shutil.rmtree(final.parent, ignore_errors=True)
        made.rename(final.parent)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _gather(root: Path, made: Path, version: str, final: Path) -> None:
    """The interpreter, its library and what both are linked with, below *made*."""
    program, libraries = made / f"bin/python{version}", made / "lib/beside"
    libraries.mkdir(parents=True)
    program.parent.mkdir()
    shutil.copy2(root / f"usr/bin/python{version}", program)
    shutil.copytree(root / f"usr/lib/python{version}", made / f"lib/python{version}", symlinks=True)
    for folder in ("lib", "usr/lib", "lib64", "usr/lib64"):
        for path in [*(root / folder).glob("*.so*"), *(root / folder).glob("*-linux-gnu/*.so*")]:
            real = _inside(root, path)
            if real.is_file():
                shutil.copy2(real, libraries / path.name)
    words = ["--force-rpath", "--set-rpath", str(final / "lib/beside")]
    if _glibc(program) > _own_glibc():
        (loader,) = libraries.glob("ld-linux*")
        words += ["--set-interpreter", str(final / "lib/beside" / loader.name)]
    else:
        for path in libraries.iterdir():
            if LIBC.fullmatch(path.name):
                path.unlink()
    _run("patchelf", *words, str(program))


def _inside(root: Path, path: Path) -> Path:
    """Where a link of the unpacked tree leads, within that tree."""
    for _ in range(8):
        if not path.is_symlink():
            break
        target = os.readlink(path)
        path = root / target.lstrip("/") if target.startswith("/") else path.parent / target
    return path


def _glibc(program: Path) -> tuple[int, ...]:
    """The newest symbol version of the C library that *program* needs."""
    found = re.findall(rb"GLIBC_(2\.[0-9]+)", program.read_bytes())
    return max(tuple(map(int, version.decode().split("."))) for version in found)


def _own_glibc() -> tuple[int, ...]:
    return tuple(map(int, os.confstr("CS_GNU_LIBC_VERSION").split()[1].split(".")))  # type: ignore[union-attr]


def _run(*words: str) -> None:
    done = subprocess.run(
        words,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=image.SECONDS_TO_BUILD,
        check=False,
    )
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if line.startswith("E:")]
        last = (said or done.stderr.strip().splitlines() or ["no word why"])[0]
        raise LabError(f"{words[0]}: {last}")
