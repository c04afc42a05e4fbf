"""The image of a NUMA machine: Debian with a small kernel, built once and cached.

Kept in $FLEETMEM_LAB_CACHE, else /var/cache/fleetmem-lab; its name carries a digest of what
it is made of. Building needs root, a Debian mirror (the one apt uses here) and 1-3 minutes.
``python -m tests.lab.numa.image [ARCH]`` builds it ahead of the tests.
"""

from __future__ import annotations

import fcntl
import hashlib
import lzma
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.lab.making.build import LabError
from tests.lab.making.image import cache
from tests.lab.numa import arch as numa_arch
from tests.lab.numa.arch import Arch

REVISION = 2
"""Raised when the functions below make something else of the same inputs."""
SUITE = "trixie"
PACKAGES = (
    "python3,openssh-server,numactl,util-linux-extra,iproute2,procps,kmod,sudo,busybox-static"
)
MODULES = ["virtio_pci", "virtio_blk", "ext4", "virtio_net", "zram", "overlay", "fuse", "loop"]
AT_BOOT = ["virtio_pci", "virtio_blk", "ext4", "virtio_net"]
PROGRAMS = ("mmdebstrap", "modprobe", "cpio", "mke2fs", "zstd", "dpkg-deb", "depmod")
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
FETCH_KERNEL = """\
mkdir -p "$1/kernel"
export APT_CONFIG="$MMDEBSTRAP_APT_CONFIG"
cd "$1/kernel" && chmod 777 .
name=$(apt-cache depends %s | sed -n 's/.*Depends: \\(linux-image-[0-9][^ ]*\\).*/\\1/p')
apt-get -qq download "${name%%%%
*}"
"""

INITRD_INIT = """\
#!/bin/busybox sh
/bin/busybox mkdir -p /proc /sys /dev /root
/bin/busybox mount -t devtmpfs dev /dev
while read module; do /bin/busybox insmod /modules/$module; done </order
i=0
until [ -b /dev/vda ] || [ $i -ge 200 ]; do i=$((i+1)); /bin/busybox usleep 20000; done
/bin/busybox mount -t ext4 /dev/vda /root
/bin/busybox mount --move /dev /root/dev
exec /bin/busybox switch_root /root /sbin/lab-init
"""

INIT = """\
#!/bin/sh
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t tmpfs -o mode=755 run /run
mount -t tmpfs -o mode=1777 tmp /tmp
mkdir -p /dev/pts /dev/shm /run/sshd /run/lock /run/user/0
chmod 700 /run/user/0
mount -t devpts -o gid=5,mode=620 devpts /dev/pts
mount -t tmpfs -o mode=1777 shm /dev/shm
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mount -t ext4 /dev/vdb /data
tar -xf /dev/vdc -C /
hostname -F /etc/hostname
ip link set lo up
ip link set eth0 up
ip addr add 10.0.2.15/24 dev eth0
[ -x /etc/lab-start ] && /etc/lab-start
/usr/sbin/sshd -E /run/sshd.log
while :; do wait; sleep 1; done
"""


class Image:
    """Paths of a built image: kernel, initrd, root file system (ext4, raw), and firmware where
    the architecture has one."""

    def __init__(self, home: Path) -> None:
        self.kernel = home / "vmlinuz"
        self.initrd = home / "initrd"
        self.root = home / "root.ext4"
        self.firmware = home / "firmware"


def image(arch: Arch) -> Image:
    """The image, built where it is missing. Raises LabError in one line, also where a program
    is missing that the machine needs to run.
    """
    _require(arch, (arch.qemu, arch.compiler))
    made_of = (REVISION, SUITE, PACKAGES, arch.kernel, arch.modules, arch.firmware)
    inputs = repr((*made_of, MODULES, AT_BOOT, INITRD_INIT, INIT))
    home = cache() / f"numa-{arch.name}-{hashlib.sha256(inputs.encode()).hexdigest()[:16]}"
    home.parent.mkdir(parents=True, exist_ok=True)
    with open(home.parent / "numa.lock", "w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not home.exists():
            _build(home, arch)
    return Image(home)


def _build(home: Path, arch: Arch) -> None:
    _require(arch, PROGRAMS)
    scratch = Path(tempfile.mkdtemp(dir=home.parent, prefix=".numa-"))
    try:
        root, made = scratch / "root", scratch / "made"
        made.mkdir()
        _debian(root, arch)
        release = _kernel(root, made, arch)
        _initrd(root, release, made, arch)
        if arch.firmware:
            shutil.copyfile(root / "usr/share" / arch.firmware, made / "firmware")
        if arch.unpacked:
            _configure(root)
        _finish(root)
        _run("mke2fs", "-q", "-t", "ext4", "-d", str(root), str(made / "root.ext4"), "900M")
        made.chmod(0o755)
        made.rename(home)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _require(arch: Arch, programs: tuple[str, ...]) -> None:
    missing = [name for name in programs if shutil.which(name, path=_path()) is None]
    if missing:
        raise LabError(f"{', '.join(missing)} missing; run: sh tests/lab_setup.sh {arch.install}")


def _path() -> str:
    return os.environ.get("PATH", "") + ":/usr/sbin:/sbin:/usr/bin:/bin"


def _run(*command: str, stdin: bytes | None = None, cwd: Path | None = None) -> bytes:
    done = subprocess.run(
        command,
        input=b"" if stdin is None else stdin,
        capture_output=True,
        env={**os.environ, "PATH": _path()},
        cwd=cwd,
        check=False,
    )
    if done.returncode:
        lines = done.stderr.decode("utf-8", "replace").strip().splitlines() or ["failed"]
        wrong = [line for line in lines if line.startswith("E:")] or lines[-1:]
        raise LabError(f"building the NUMA image: {command[0]}: {wrong[0]}")
    return done.stdout


def _debian(root: Path, arch: Arch) -> None:
    skip = ("man", "doc", "locale", "i18n", "info", "bash-completion", "zoneinfo", "AAVMF")
    how = ["--variant=minbase"]
    if arch.unpacked:
        how = ["--variant=extract", "--skip=check/qemu", "--include=?essential"]
    if arch.firmware:
        how += [f"--include={arch.firmware.partition('/')[0]}"]
    keyring = [f"--keyring={KEYRING}"] if os.path.exists(KEYRING) else []
    _run(
        "mmdebstrap",
        *how,
        "--mode=root",
        "--components=main",
        f"--architectures={arch.name}",
        f"--include={PACKAGES}",
        "--dpkgopt=force-unsafe-io",
        *(f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in skip),
        *keyring,
        *_proxies(),
        "--extract-hook=" + FETCH_KERNEL % arch.kernel,
        SUITE,
        str(root),
        *_mirror(),
    )


def _proxies() -> list[str]:
    """Proxies of this machine's apt, which mmdebstrap does not look at by itself."""
    lines = _run("apt-config", "dump").decode().splitlines()
    wanted = ("Acquire::http::Proxy ", "Acquire::https::Proxy ")
    return [f"--aptopt={line}" for line in lines if line.startswith(wanted) and '""' not in line]


def _mirror() -> list[str]:
    """The Debian mirror that apt uses here, or nothing: then mmdebstrap's default."""
    places = [Path("/etc/apt/sources.list"), *sorted(Path("/etc/apt/sources.list.d").glob("*"))]
    for place in places:
        if not place.is_file():
            continue
        for line in place.read_text("utf-8", "replace").splitlines():
            words = line.split()
            if words[:1] in (["deb"], ["URIs:"]):
                found = [
                    w for w in words[1:] if w.startswith("http") and w.rstrip("/")[-7:] == "/debian"
                ]
                if found:
                    return found[:1]
    return []


def _kernel(root: Path, made: Path, arch: Arch) -> str:
    """Unpacks the kernel; of its modules only MODULES and what they need stay, unpacked."""
    packages = list((root / "kernel").glob("*.deb"))
    if len(packages) != 1:
        raise LabError(f"building the NUMA image: no kernel package {arch.kernel}")
    whole = root / "kernel" / "whole"
    _run("dpkg-deb", "-x", str(packages[0]), str(whole))
    kernel = next((whole / "boot").glob("vmlinuz-*"))
    release = kernel.name.removeprefix("vmlinuz-")
    shutil.copyfile(kernel, made / "vmlinuz")
    base = whole / "usr" if (whole / "usr/lib/modules").exists() else whole
    if base == whole:
        (whole / "usr").mkdir(exist_ok=True)
        (whole / "lib").rename(whole / "usr/lib")
    (whole / "lib").symlink_to("usr/lib")
    _run("depmod", "-b", str(whole), release)
    order: list[str] = []
    target = root / "lib/modules" / release
    target.mkdir(parents=True)
    for module in (*MODULES, *arch.modules):
        for line in (
            _run("modprobe", "-d", str(whole), "-S", release, "--show-depends", module)
            .decode()
            .splitlines()
        ):
            words = line.split()
            if words[0] != "insmod":
                continue
            source = Path(words[1])
            name = source.name.removesuffix(".xz")
            if name in order:
                continue
            data = source.read_bytes()
            (target / name).write_bytes(lzma.decompress(data) if source.suffix == ".xz" else data)
            order.append(name)
    for name in ("modules.order", "modules.builtin", "modules.builtin.modinfo"):
        shutil.copyfile(whole / "lib/modules" / release / name, target / name)
    _run("depmod", "-b", str(root), release)
    shutil.rmtree(root / "kernel")
    return release


def _initrd(root: Path, release: str, made: Path, arch: Arch) -> None:
    tree = made.parent / "initrd"
    (tree / "bin").mkdir(parents=True)
    (tree / "modules").mkdir()
    shutil.copy2(root / "bin/busybox", tree / "bin/busybox")
    order: list[str] = []
    for module in (*AT_BOOT, *arch.modules):
        shown = _run("modprobe", "-d", str(root), "-S", release, "--show-depends", module)
        for line in shown.decode().splitlines():
            words = line.split()
            if words[0] == "insmod" and words[1] not in order:
                order.append(words[1])
                shutil.copyfile(words[1], tree / "modules" / Path(words[1]).name)
    (tree / "order").write_text("".join(Path(name).name + "\n" for name in order))
    (tree / "init").write_text(INITRD_INIT)
    (tree / "init").chmod(0o755)
    names = "\n".join(str(p.relative_to(tree)) for p in sorted(tree.rglob("*"))).encode()
    (made / "initrd").write_bytes(
        _run("cpio", "-o", "-H", "newc", "--quiet", stdin=names, cwd=tree)
    )


def _configure(root: Path) -> None:
    """What maintainer scripts would have done where their programs cannot run."""
    etc, masters = root / "etc", root / "usr/share/base-passwd"
    users = (masters / "passwd.master").read_text()
    users += "sshd:*:100:65534::/run/sshd:/usr/sbin/nologin\n"
    (etc / "passwd").write_text(users.replace(":*:", ":x:"))
    shutil.copyfile(masters / "group.master", etc / "group")
    names = [line.partition(":")[0] for line in users.splitlines()]
    (etc / "shadow").write_text("".join(f"{name}:*:19000:0:99999:7:::\n" for name in names))
    (etc / "shadow").chmod(0o640)
    shutil.copyfile(root / "usr/share/openssh/sshd_config", etc / "ssh/sshd_config")
    for part in ("auth", "account", "password", "session", "session-noninteractive"):
        rule = f"{part.partition('-')[0]} required pam_permit.so\n"
        (etc / f"pam.d/common-{part}").write_text(rule)


def _finish(root: Path) -> None:
    (root / "sbin/lab-init").write_text(INIT)
    (root / "sbin/lab-init").chmod(0o755)
    (root / "data").mkdir()
    for key in (root / "etc/ssh").glob("ssh_host_*"):
        key.unlink()
    with open(root / "etc/passwd", "a", encoding="utf-8") as file:
        file.write(
            "ops:x:1000:1000::/home/ops:/bin/bash\nguest:x:1001:1001::/home/guest:/bin/bash\n"
        )
    with open(root / "etc/group", "a", encoding="utf-8") as file:
        file.write("ops:x:1000:\nguest:x:1001:\n")
    with open(root / "etc/shadow", "a", encoding="utf-8") as file:
        file.write("ops:*:19000:0:99999:7:::\nguest:*:19000:0:99999:7:::\n")
    for name, uid in (("ops", 1000), ("guest", 1001)):
        home = root / "home" / name
        home.mkdir(mode=0o700)
        os.chown(home, uid, uid)
    (root / "etc/sudoers.d/lab").write_text("ops ALL=(ALL:ALL) NOPASSWD: ALL\n")
    (root / "etc/sudoers.d/lab").chmod(0o440)
    (root / "etc/resolv.conf").unlink(missing_ok=True)
    shutil.rmtree(root / "var/cache/apt", ignore_errors=True)
    shutil.rmtree(root / "var/lib/apt/lists", ignore_errors=True)


def main(argv: list[str]) -> int:
    """Builds the image where it is missing; trouble is one line and exit code 1."""
    try:
        print(image(numa_arch.named(*argv[:1])).root.parent)
    except LabError as error:
        print(f"lab: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
