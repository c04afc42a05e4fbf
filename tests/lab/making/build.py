"""Compiles the C parts of the lab, once for each version of their source."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.lab.making import kernel

HERE = Path(__file__).parent
PROGRAMS = {"host_init.c": "bin/init", "hog.c": "bin/hog"}
LIBRARY = "nv/libnvidia-ml.so.1"
WHERE_LIBRARY = "/run/nv"


class LabError(Exception):
    """Trouble that is told in one line."""


def build(fallback: Path, compiler: str = "gcc") -> Path:
    """Directory with bin/ and nv/ as hosts see them under /run; built where missing.

    Kept in ``.lab/`` of the checkout, or in ``fallback`` where that cannot be written.
    """
    digest = hashlib.sha256(compiler.encode())
    for name in sorted([*PROGRAMS, "nvml_sim.c"]):
        digest.update((HERE / name).read_bytes())
    root = HERE.parents[2] / ".lab"
    try:
        root.mkdir(exist_ok=True)
        writable = os.access(root, os.W_OK)
    except OSError:
        writable = False
    if not writable:
        root = fallback
    home = root / f"build-{digest.hexdigest()[:16]}"
    if not home.exists():
        scratch = Path(tempfile.mkdtemp(dir=root, prefix=".build-"))
        try:
            _compile(scratch, compiler)
            scratch.chmod(0o755)
            try:
                scratch.rename(home)
            except OSError:
                if not home.exists():
                    raise
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    return home


def _compile(into: Path, compiler: str) -> None:
    (into / "bin").mkdir()
    (into / "nv").mkdir()
    flags = ["-O1", "-Wall", "-Wextra", "-Werror", "-pthread"]
    jobs = [
        [compiler, *flags, "-o", str(into / target), str(HERE / source), "-ldl"]
        for source, target in PROGRAMS.items()
    ]
    shared = ["-shared", "-fPIC", "-fvisibility=hidden", "-Wl,-soname,libnvidia-ml.so.1"]
    jobs.append([compiler, *flags, *shared, "-o", str(into / LIBRARY), str(HERE / "nvml_sim.c")])
    try:
        running = [subprocess.Popen(job, stderr=subprocess.PIPE, text=True) for job in jobs]
    except FileNotFoundError:
        raise LabError(f"{compiler} is missing; tests/lab_setup.sh installs it") from None
    failed = [errors for job in running if (errors := job.communicate()[1]) or job.returncode]
    if failed:
        raise LabError("compiling the lab failed: " + failed[0].strip())
    # A second executable that does the same: heirs of two programs are two families.
    shutil.copy2(into / "bin/hog", into / "bin/hog-b")


def loader_cache(home: Path) -> Path:
    """The machine's ld.so.cache plus the simulated library as /run/nv/libnvidia-ml.so.1."""
    try:
        machine = os.stat("/etc/ld.so.cache")
        key = f"{machine.st_mtime_ns:x}-{machine.st_size:x}"
    except FileNotFoundError:
        key = "none"
    cache = home / f"ld.so.cache-{key}"
    if cache.exists():
        return cache
    ours = home / f".{cache.name}-{os.getpid()}"
    pid = os.fork()
    if pid == 0:
        number = 1
        try:
            _run_ldconfig(home, ours)
        except OSError as error:
            number = error.errno or 1
        finally:
            os._exit(number)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if status != 0:
        reason = os.strerror(status) if status > 1 else "ldconfig failed"
        raise LabError(f"the hosts' loader cache could not be built in a mount namespace: {reason}")
    ours.chmod(0o644)
    ours.rename(cache)
    return cache


def _run_ldconfig(home: Path, out: Path) -> None:
    kernel.unshare(kernel.CLONE_NEWNS)
    kernel.mount("none", "/", None, kernel.MS_REC | kernel.MS_PRIVATE)
    library = os.open(home / "nv", os.O_PATH)
    result = os.open(out, os.O_RDWR | os.O_CREAT, 0o644)
    kernel.mount("tmpfs", "/run", "tmpfs")
    os.mkdir(WHERE_LIBRARY)
    kernel.mount(f"/proc/self/fd/{library}", WHERE_LIBRARY, None, kernel.MS_BIND)
    conf, cache = "/run/ld.so.conf", "/run/ld.so.cache"
    Path(conf).write_text(f"include /etc/ld.so.conf\n{WHERE_LIBRARY}\n", "utf-8")
    done = subprocess.run(["/sbin/ldconfig", "-X", "-f", conf, "-C", cache], check=False)
    if done.returncode == 0:
        os.write(result, Path(cache).read_bytes())
        os._exit(0)
