"""The root file system of systemd hosts: a small Debian or Ubuntu, built once for a machine.

It is the machine's own release, fetched with the machine's own package sources, and lies in
``$FLEETMEM_LAB_CACHE`` or ``/var/cache/fleetmem-lab``, never in the checkout. Hosts see it
through an overlay and never write to it. ``$FLEETMEM_LAB_RELEASE`` (bullseye, trixie) takes
another release of the same distribution: other versions of systemd.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.lab.making.build import LabError

RECIPE = 1
"""Raised where what is done to an image changes otherwise."""

CACHE = "/var/cache/fleetmem-lab"
PACKAGES = "systemd,systemd-sysv,dbus,openssh-server,sudo,python3,procps,iproute2,psmisc"
LEFT_OUT = ("/usr/share/man/*", "/usr/share/doc/*", "/usr/share/locale/*", "/usr/share/info/*")
MASKED = """
apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer e2scrub_all.timer fstrim.timer
man-db.timer motd-news.timer systemd-tmpfiles-clean.timer getty.target console-getty.service
systemd-logind.service systemd-udevd.service systemd-udevd-control.socket
systemd-udevd-kernel.socket systemd-udev-trigger.service systemd-udev-settle.service
systemd-sysctl.service systemd-modules-load.service systemd-binfmt.service
systemd-remount-fs.service systemd-random-seed.service systemd-update-utmp.service
systemd-hwdb-update.service systemd-timesyncd.service systemd-networkd.service
systemd-resolved.service systemd-firstboot.service ldconfig.service ssh.service ssh.socket
dev-hugepages.mount dev-mqueue.mount sys-kernel-config.mount sys-kernel-debug.mount
sys-kernel-tracing.mount sys-fs-fuse-connections.mount proc-sys-fs-binfmt_misc.automount
proc-sys-fs-binfmt_misc.mount systemd-journald-audit.socket tmp.mount e2scrub_reap.service
""".split()  # noqa: SIM905 - a list of names is read as one
SECONDS_TO_BUILD = 400


def image() -> Path:
    """The image's directory, built where it is missing. LabError says why it cannot be."""
    own = own_release()
    codename = os.environ.get("FLEETMEM_LAB_RELEASE") or own
    recipe = repr((RECIPE, PACKAGES, LEFT_OUT, MASKED))
    digest = hashlib.sha256(recipe.encode()).hexdigest()[:12]
    home = cache() / f"{codename}-{digest}"
    if home.exists():
        return home
    try:
        cache().mkdir(parents=True, exist_ok=True)
        lock = os.open(cache() / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise LabError(f"{cache()}: {error.strerror}") from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not home.exists():
            _build(cache(), home, codename)
    finally:
        os.close(lock)
    return home


def cache() -> Path:
    """Where everything lies that is built or fetched once for a machine."""
    return Path(os.environ.get("FLEETMEM_LAB_CACHE") or CACHE)


def own_release() -> str:
    try:
        lines = Path("/etc/os-release").read_text("utf-8").splitlines()
    except OSError:
        lines = []
    for line in lines:
        if line.startswith("VERSION_CODENAME="):
            return line.partition("=")[2].strip().strip('"')
    raise LabError("systemd hosts need Debian or Ubuntu: /etc/os-release names no release")


def sources(scratch: Path, codename: str) -> list[str]:
    """The machine's package sources as files that the builder reads, for that release."""
    own = own_release()
    found = []
    for number, path in enumerate(map(Path, _places())):
        copy = scratch / f"{number}{path.suffix}"
        copy.write_text(path.read_text("utf-8").replace(own, codename), "utf-8")
        found.append(str(copy))
    return found


def _places() -> list[str]:
    places = [Path("/etc/apt/sources.list"), *sorted(Path("/etc/apt/sources.list.d").glob("*"))]
    return [
        str(path)
        for path in places
        if path.suffix in (".list", ".sources") and path.is_file() and path.stat().st_size
    ]


def _build(place: Path, home: Path, codename: str) -> None:
    if shutil.which("mmdebstrap") is None:
        raise LabError("mmdebstrap is missing; `sh tests/lab_setup.sh mmdebstrap` installs it")
    for old in place.glob(f"{codename}-*"):
        shutil.rmtree(old, ignore_errors=True)
    scratch = Path(tempfile.mkdtemp(dir=place, prefix=".build-"))
    root = scratch / "root"
    words = ["mmdebstrap", "--quiet", "--variant=essential", "--mode=root"]
    words += [f"--include={PACKAGES}", "--dpkgopt=force-unsafe-io"]
    words += [f"--dpkgopt=path-exclude={place}" for place in LEFT_OUT]
    words += ['--aptopt=Acquire::Languages "none"', codename, str(root)]
    words += sources(scratch, codename)
    try:
        try:
            done = subprocess.run(
                words,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                timeout=SECONDS_TO_BUILD,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise LabError(f"the image was not built in {SECONDS_TO_BUILD} s") from None
        if done.returncode:
            said = [line for line in done.stderr.splitlines() if line.startswith("E:")]
            last = (said or done.stderr.strip().splitlines() or ["no word why"])[0]
            raise LabError(f"the image cannot be built: {last}")
        _settle(root)
        root.rename(home)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _settle(root: Path) -> None:
    """No timers, devices, logins or keys of its own: what a host in a namespace cannot have."""
    units = root / "etc/systemd/system"
    for name in MASKED:
        (units / name).unlink(missing_ok=True)
        (units / name).symlink_to("/dev/null")
    for generator in (root / "usr/lib/systemd/system-generators").glob("*"):
        generator.unlink()
    for key in (root / "etc/ssh").glob("ssh_host_*"):
        key.unlink()
    (root / "etc/machine-id").write_text("")
    (root / "etc/fstab").write_text("")
    (root / "etc/systemd/system/default.target").unlink(missing_ok=True)
    (root / "etc/systemd/system/default.target").symlink_to("/lib/systemd/system/multi-user.target")
