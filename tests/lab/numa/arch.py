"""The architectures of the machine with two NUMA nodes: what differs between them.

Both are emulated, and both have node 1 hot-added: as a DIMM on amd64; by virtio-mem on arm64,
whose Debian kernels add no DIMMs.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from tests.lab.making.build import LabError


@dataclass(frozen=True)
class Arch:
    """``name`` and ``kernel`` are Debian's, ``page_bytes`` is that kernel's page size.

    ``modules`` are loaded at boot beside those that all need. ``firmware``: a file of the
    package of that name, from the image. ``append``: more words for the kernel (an emulated timer
    is late on a busy machine, and the check of it a panic). ``install``: what the machine needs
    installed here.
    ``unpacked``: no program of the image runs here, so it is made without maintainer scripts.
    """

    name: str
    triplet: str
    page_bytes: int
    kernel: str
    modules: tuple[str, ...]
    firmware: str | None
    compiler: str
    qemu: str
    machine: tuple[str, ...]
    hot_added: str
    console: str
    append: tuple[str, ...]
    install: str
    unpacked: bool


COMMON = "mmdebstrap debian-archive-keyring kmod cpio zstd e2fsprogs"

AMD64 = Arch(
    name="amd64",
    triplet="x86_64-linux-gnu",
    page_bytes=4096,
    kernel="linux-image-cloud-amd64",
    modules=(),
    firmware=None,
    compiler="gcc",
    qemu="qemu-system-x86_64",
    machine=("-M", "q35", "-cpu", "max"),
    hot_added="pc-dimm,id=dimm0,memdev=hbm,node=1",
    console="ttyS0",
    append=("no_timer_check",),
    install=f"qemu-system-x86 {COMMON}",
    unpacked=False,
)
ARM64 = Arch(
    name="arm64",
    triplet="aarch64-linux-gnu",
    page_bytes=16384,
    kernel="linux-image-arm64-16k",
    modules=("virtio_mem",),
    # Without firmware there is no ACPI, which says to what node memory is added. That of
    # Debian 12 shows its flash as memory of no node: the kernel then knows one node only.
    firmware="qemu-efi-aarch64/QEMU_EFI.fd",
    compiler="aarch64-linux-gnu-gcc",
    qemu="qemu-system-aarch64",
    machine=("-M", "virt,gic-version=3", "-cpu", "max,pauth-impdef=on"),
    hot_added="virtio-mem-pci,id=dimm0,memdev=hbm,node=1,requested-size={size}",
    console="ttyAMA0",
    append=(),
    install=f"qemu-system-arm gcc-aarch64-linux-gnu libc6-dev-arm64-cross {COMMON}",
    unpacked=True,
)
ARCHS = {arch.name: arch for arch in (AMD64, ARM64)}


def named(name: str | None = None) -> Arch:
    """The architecture of that name; else of $FLEETMEM_NUMA_ARCH, else amd64. Raises LabError."""
    wanted = name or os.environ.get("FLEETMEM_NUMA_ARCH") or AMD64.name
    try:
        return ARCHS[wanted]
    except KeyError:
        raise LabError(f"no NUMA machine of architecture {wanted}: {', '.join(ARCHS)}") from None
