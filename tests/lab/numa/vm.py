"""The NUMA machine as a lab host: QEMU in the shape of a GH200, reached by its own sshd.

Node 0 has both CPUs and 1 GiB; node 1 is hot-added, movable memory without CPUs (2 GiB) and
belongs to a simulated GPU (NVML's numa_node=1). /data is a disk of its own. Always emulated,
so that it is the same everywhere: 10-40 s to ssh. ``numa_arch``: amd64, or arm64 with 16K pages.
"""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
import uuid
from dataclasses import dataclass
from pathlib import Path

from tests.lab.making import address, build, files
from tests.lab.making.build import LabError
from tests.lab.numa import image as numa_image
from tests.lab.numa.arch import Arch

MIB = 1 << 20
CPU_MIB, GPU_MIB, DATA_MIB = 1024, 2048, 8192
SECONDS_TO_ANSWER = 400.0
STARTS = 3
"""An emulated kernel can panic while it starts, over timers that a busy machine serves late. One
that ended before it answered is started again so often; the console of each is kept."""

APPEND = (
    "console={console} loglevel=4 panic=-1 init_on_alloc=0 numa_balancing=disable mitigations=off "
    "memhp_default_state=online_movable"
)
MISC = (258, 257, 256, 259)
"""Numbers of misc devices that stand in for the GPU's node: the first that the kernel has."""

START = """\
#!/bin/sh
for minor in {misc}; do grep -q "^ *$minor " /proc/misc && break; done
mknod -m 666 /dev/nvidia0 c 10 $minor
for name in nvidiactl nvidia-uvm nvidia-uvm-tools; do mknod -m 666 /dev/$name c 1 5; done
chmod 1777 /run/nvml-sim/charges /run/nvml-sim/state /run/host/hogs
for user in ops guest; do chown -R $user:$user /home/$user; done
python3 -c 'import ctypes, glob, hashlib, json, select, signal, socket, subprocess, zlib'
for i in $(seq 600); do
  grep -q "MemTotal: *{kib} kB" /sys/devices/system/node/node1/meminfo && break
  sleep 0.1
done
"""


@dataclass(frozen=True)
class Vm:
    """A machine to start: its host entry, image, and the files of its directory."""

    host: files.HostSpec
    arch: Arch
    image: numa_image.Image

    @property
    def home(self) -> Path:
        """The machine's directory in the lab's."""
        return Path(self.host.home)


def prepare(vm: Vm, authorized_key: str) -> None:
    """Writes the machine's disks into its directory. Raises LabError."""
    host = vm.host
    (vm.home / "etc").mkdir(parents=True)
    files.put(vm.home / "etc/boot_id", "the machine has its own\n", 0o444)
    key = vm.home / "ssh_host_ed25519_key"
    command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", host.name, "-f", str(key)]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
    _configuration(vm, key, authorized_key)
    data = vm.home / "data.ext4"
    with open(data, "wb") as file:
        file.truncate(DATA_MIB * MIB)
    options = ["-E", "lazy_itable_init=1,nodiscard", "-J", "size=8", "-N", "131072", "-m", "0"]
    made = subprocess.run(
        ["/usr/sbin/mke2fs", "-q", "-F", "-t", "ext4", *options, str(data)],
        capture_output=True,
        text=True,
        check=False,
    )
    if made.returncode:
        raise LabError(f"mke2fs: {made.stderr.strip()}")


def _configuration(vm: Vm, key: Path, authorized_key: str) -> None:
    """A tar that the machine unpacks over its root when it starts."""
    host = vm.host
    gpu = (
        f"index=0 uuid=GPU-{uuid.uuid4()} name=NVIDIA_GH200_480GB total={GPU_MIB * MIB} "
        "reserved=0 idle=0 numa_node=1 minor=0 bus=0009:01:00.0 mig=0 persistence=1\n"
    )
    library = Path(host.build, build.LIBRARY).read_bytes()
    with tarfile.open(vm.home / "config.tar", "w") as tar:

        def add(name: str, data: bytes, mode: int = 0o644) -> None:
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(data), mode
            tar.addfile(entry, io.BytesIO(data))

        def directory(name: str, mode: int = 0o755) -> None:
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, mode
            tar.addfile(entry)

        add("etc/ssh/ssh_host_ed25519_key", key.read_bytes(), 0o600)
        add("etc/ssh/ssh_host_ed25519_key.pub", Path(f"{key}.pub").read_bytes())
        add("etc/ssh/sshd_config.d/lab.conf", b"UseDNS no\nMaxStartups 200:30:400\n")
        for home in ("root", "home/ops", "home/guest"):
            directory(f"{home}/.ssh", 0o700)
            add(f"{home}/.ssh/authorized_keys", authorized_key.encode(), 0o600)
        add("etc/hostname", f"{host.name}\n".encode())
        add("etc/hosts", f"127.0.0.1 localhost {host.name}\n".encode())
        start = START.format(kib=GPU_MIB << 10, misc=" ".join(map(str, MISC)))
        add("etc/lab-start", start.encode(), 0o755)
        add(f"usr/lib/{vm.arch.triplet}/libnvidia-ml.so.1", library, 0o755)
        for name in ("run/lab", "run/host", "run/host/hogs", "run/nvml-sim"):
            directory(name)
        for name in ("run/nvml-sim/charges", "run/nvml-sim/state"):
            directory(name, 0o1777)
        for program in ("hog", "hog-b"):
            add(f"run/lab/{program}", Path(host.build, "bin", program).read_bytes(), 0o755)
        add("run/nvml-sim/gpus", gpu.encode())


def command(vm: Vm) -> list[str]:
    """QEMU's command line."""
    memory = f"size={CPU_MIB}M,id=m0"
    hbm = f"size={GPU_MIB}M,id=hbm"
    forward = f"hostfwd=tcp:{vm.host.address}:{address.PORT}-:22"
    disks = [
        f"if=none,id=d0,file={vm.image.root},format=raw,snapshot=on",
        f"if=none,id=d1,file={vm.home}/data.ext4,format=raw,cache=unsafe",
        f"if=none,id=d2,file={vm.home}/config.tar,format=raw,readonly=on",
    ]
    words = [vm.arch.qemu, "-nodefaults", "-display", "none", "-monitor", "none", "-no-reboot"]
    words += ["-accel", "tcg,thread=multi", *vm.arch.machine, "-smp", "2"]
    words += ["-m", f"{CPU_MIB}M,slots=4,maxmem=16G"]
    words += ["-object", f"memory-backend-ram,{memory}", "-object", f"memory-backend-ram,{hbm}"]
    words += ["-numa", "node,nodeid=0,cpus=0-1,memdev=m0", "-numa", "node,nodeid=1"]
    words += ["-numa", "dist,src=0,dst=1,val=80", "-numa", "dist,src=1,dst=0,val=80"]
    words += ["-device", vm.arch.hot_added.format(size=f"{GPU_MIB}M")]
    words += ["-kernel", str(vm.image.kernel), "-initrd", str(vm.image.initrd)]
    if vm.arch.firmware:
        words += ["-bios", str(vm.image.firmware)]
    words += ["-append", " ".join([APPEND.format(console=vm.arch.console), *vm.arch.append])]
    for at, disk in enumerate(disks):
        words += ["-drive", disk, "-device", f"virtio-blk-pci,drive=d{at}"]
    words += ["-netdev", f"user,id=n0,restrict=on,{forward}"]
    words += ["-device", "virtio-net-pci,netdev=n0,romfile="]
    return [*words, "-serial", f"file:{vm.home}/console.log"]


def become(vm: Vm) -> None:
    """Turns this process into the machine. Never returns."""
    os.chdir(vm.home)
    words = command(vm)
    # O_TMPFILE and snapshots go into the lab's own directory.
    environment = {"PATH": os.environ.get("PATH", "/usr/bin:/bin"), "TMPDIR": str(vm.home)}
    with open(vm.home / "sshd.log", "wb") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    os.execvpe(words[0], words, environment)
