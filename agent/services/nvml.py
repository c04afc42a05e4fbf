"""One NVML session, held for the life of the process, and what may go wrong with it.

The binding is the carried ``pynvml``, trimmed to ``NVML_NAMES``. Any call may answer "not
supported" or lack its symbol in an older library: the field is then null, its text goes to
*errors* and the rest goes on. Test for the symbol, never for a version.
"""

from __future__ import annotations

import os

from fleetmem.agent.model import DENIED, FAILED, UNSUPPORTED, Trouble

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, NoReturn, Optional, Tuple

    Memory = Tuple[int, int, Optional[int], int, int]
    """version, total, reserved, used, free bytes; reserved is not part of used in version 2"""

NVML_NAMES = (
    "NVMLError",
    "nvmlDeviceGetComputeInstanceId",
    "nvmlDeviceGetComputeRunningProcesses_v2",
    "nvmlDeviceGetComputeRunningProcesses_v3",
    "nvmlDeviceGetCount",
    "nvmlDeviceGetFieldValues",
    "nvmlDeviceGetGpuInstanceId",
    "nvmlDeviceGetGraphicsRunningProcesses_v2",
    "nvmlDeviceGetGraphicsRunningProcesses_v3",
    "nvmlDeviceGetHandleByIndex",
    "nvmlDeviceGetMPSComputeRunningProcesses_v2",
    "nvmlDeviceGetMPSComputeRunningProcesses_v3",
    "nvmlDeviceGetMaxMigDeviceCount",
    "nvmlDeviceGetMemoryInfo",
    "nvmlDeviceGetMigDeviceHandleByIndex",
    "nvmlDeviceGetMigMode",
    "nvmlDeviceGetMinorNumber",
    "nvmlDeviceGetName",
    "nvmlDeviceGetNumaNodeId",
    "nvmlDeviceGetPciInfo",
    "nvmlDeviceGetPersistenceMode",
    "nvmlDeviceGetUUID",
    "nvmlDeviceGetUtilizationRates",
    "nvmlInit",
    "nvmlSystemGetDriverVersion",
    "nvmlSystemGetNVMLVersion",
)
"""All names of the binding that the agent uses; the payload needs no others."""

PROCESS_LISTS = (
    ("compute", "nvmlDeviceGetComputeRunningProcesses"),
    ("graphics", "nvmlDeviceGetGraphicsRunningProcesses"),
    ("mps", "nvmlDeviceGetMPSComputeRunningProcesses"),
)
"""Kinds of process lists, and their functions without a version."""

UNINITIALIZED = 1
NOT_SUPPORTED = 3
NO_PERMISSION = 4
NOT_FOUND = 6
INSUFFICIENT_SIZE = 7
DRIVER_NOT_LOADED = 9
LIBRARY_NOT_FOUND = 12
FUNCTION_NOT_FOUND = 13
VERSION_MISMATCH = 18
ARGUMENT_VERSION_MISMATCH = 25
ALL_ONES_32 = 0xFFFFFFFF
ALL_ONES_64 = 0xFFFFFFFFFFFFFFFF
MEMORY_V2 = 0x02000028
MEMORY_TOLERANCE_BYTES = 1 << 20
RECOVERY_ACTION = 230
RECOVERY_NAMES = {
    0: "none",
    1: "reset",
    2: "reboot",
    3: "drain_p2p",
    4: "drain_and_reset",
    5: "recover_imex",
    6: "bus_reset",
    7: "reboot",
}


class Errors(list):  # type: ignore[type-arg]
    """Lines for people about what failed, ``field: text (number)``; ``codes`` has NVML's error
    numbers by field."""

    def __init__(self) -> None:
        list.__init__(self)
        self.codes: Dict[str, int] = {}

    def note(self, field: str, trouble: Any) -> None:
        """Keep the NVML error *trouble* of *field*."""
        self.append("%s: %s" % (field, describe(trouble)))
        self.codes[field] = int(trouble.value)


class Session:
    """An initialised library. ``lib`` is the binding, ``error`` its exception."""

    __slots__ = ("error", "lib", "pid")

    def __init__(self, lib: Any) -> None:
        self.lib = lib
        self.error: Any = lib.NVMLError
        self.pid = os.getpid()

    def ask(self, errors: Errors, field: str, name: str, *args: Any) -> Any:
        """Call *name* of the binding; ``None`` and a line in *errors* where it fails."""
        func = getattr(self.lib, name, None)
        if func is None:
            errors.append("%s: %s is not in the binding" % (field, name))
            return None
        try:
            return func(*args)
        except self.error as trouble:
            errors.note(field, trouble)
        except ValueError as trouble:  # a string that is no UTF-8
            errors.append("%s: %s" % (field, trouble))
        return None

    def memory(self, errors: Errors, handle: Any) -> Optional[Memory]:
        """Memory of a device in bytes, with *reserved* taken out of *used* where it is known.

        Headers say that the newer call counts the reserve as used, drivers show otherwise:
        the identity that holds decides.
        """
        lib = self.lib
        version = 2
        try:
            info = lib.nvmlDeviceGetMemoryInfo(handle, MEMORY_V2)
        except self.error as trouble:
            if trouble.value not in (NOT_SUPPORTED, FUNCTION_NOT_FOUND, ARGUMENT_VERSION_MISMATCH):
                errors.note("memory", trouble)
                return None
            version = 1
            info = self.ask(errors, "memory", "nvmlDeviceGetMemoryInfo", handle)
            if info is None:
                return None
        total, used, free = int(info.total), int(info.used), int(info.free)
        if ALL_ONES_64 in (total, used, free):
            errors.append("memory: not available")
            return None
        if version == 1:
            return 1, total, None, used, free
        reserved = int(info.reserved)
        if (
            reserved
            and abs(total - used - free) <= MEMORY_TOLERANCE_BYTES
            and abs(total - used - free - reserved) > MEMORY_TOLERANCE_BYTES
            and used >= reserved
        ):
            used -= reserved
        return 2, total, reserved, used, free


def describe(trouble: Any) -> str:
    """An NVML error as "text (code)"."""
    return "%s (%s)" % (str(trouble).rstrip("."), trouble.value)


_session: Optional[Session] = None


def session() -> Session:
    """The NVML session of this process; Trouble with a reason where there is none."""
    global _session  # noqa: PLW0603 - starting NVML costs 15 ms and more: once a process
    if _session is None or _session.pid != os.getpid():
        try:
            import pynvml
        except ImportError as trouble:
            raise Trouble(
                UNSUPPORTED, "no NVML binding (%s)" % trouble, code="nvml_missing"
            ) from None
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as trouble:
            refuse(trouble)
        _session = Session(pynvml)
    return _session


def forget() -> None:
    """Drop the session, so that the next call starts NVML again."""
    global _session  # noqa: PLW0603
    _session = None


def refuse(trouble: Any) -> NoReturn:
    """Raise the Trouble that an error of the whole library means."""
    code = trouble.value
    text = describe(trouble)
    if code == LIBRARY_NOT_FOUND:
        raise Trouble(
            UNSUPPORTED, "libnvidia-ml.so.1 cannot be loaded", code="nvml_missing"
        ) from None
    if code == VERSION_MISMATCH:
        raise Trouble(
            FAILED,
            "the loaded driver and the library differ in version; "
            "reload the driver or reboot (%s)" % text,
            code="nvml_mismatch",
        ) from None
    if code == DRIVER_NOT_LOADED:
        raise Trouble(
            UNSUPPORTED, "the driver is not loaded (%s)" % text, code="nvml_no_driver"
        ) from None
    if code == NO_PERMISSION:
        raise Trouble(DENIED, text, code="nvml_denied") from None
    raise Trouble(FAILED, text, code="nvml_failed") from None


def count() -> int:
    """Number of GPUs; a session that the driver has forgotten is started again once."""
    for attempt in (0, 1):
        held = session()
        try:
            return int(held.lib.nvmlDeviceGetCount())
        except held.error as trouble:
            if trouble.value != UNINITIALIZED or attempt:
                refuse(trouble)
            forget()
    raise AssertionError("unreachable")


def list_processes(held: Session, name: str, handle: Any) -> List[Any]:
    """One NVML process list (records with pid, usedGpuMemory, two instance ids).

    *name* is the function without its version. A list that grows between the two calls
    of the binding is asked for again. Raises the binding's error.
    """
    calls: List[Callable[..., Any]] = [
        func for func in (getattr(held.lib, name + v, None) for v in ("_v3", "_v2")) if func
    ]
    last: Any = None
    for func in calls:
        for _ in range(5):
            try:
                return list(func(handle))
            except held.error as trouble:
                last = trouble
                if trouble.value != INSUFFICIENT_SIZE:
                    break
        if last.value != FUNCTION_NOT_FOUND:
            break
    if last is None:
        raise held.error(FUNCTION_NOT_FOUND)
    raise last
