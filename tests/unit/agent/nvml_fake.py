"""A binding in the shape of pynvml, with answers that a test sets."""

from __future__ import annotations

import types
from typing import Any

GIB = 1 << 30
NOT_AVAILABLE = 0xFFFFFFFF


TEXTS = {
    1: "Uninitialized",
    3: "Not Supported",
    4: "Insufficient Permissions",
    6: "Not Found",
    7: "Insufficient Size",
    9: "Driver Not Loaded",
    12: "NVML Shared Library Not Found",
    13: "Function Not Found",
    15: "GPU is lost",
    18: "RM has detected an NVML/RM version mismatch.",
}


class NVMLError(Exception):
    """As in the binding: ``value`` is the code."""

    def __init__(self, value: int) -> None:
        super().__init__(value)
        self.value = value

    def __str__(self) -> str:
        return TEXTS.get(self.value, f"NVML Error with code {self.value}")


class Gpu:
    """Answers of one GPU; an int in place of an answer is raised as that error."""

    def __init__(self, index: int, **answers: Any) -> None:
        self.index = index
        self.uuid: Any = f"GPU-{index}"
        self.name: Any = "NVIDIA H200"
        self.minor: Any = index
        self.bus: Any = f"0000000{index}:01:00.0"
        self.numa: Any = NVMLError(3)
        self.handle: Any = None
        self.memory_v2: Any = (140 * GIB, GIB, 139 * GIB, 0)  # total reserved free used
        self.memory_v1: Any = (140 * GIB, 139 * GIB, GIB)  # total free used
        self.mig: Any = NVMLError(3)
        self.persistence: Any = 1
        self.utilization: Any = 0
        self.recovery: Any = 0
        self.compute: Any = []
        self.graphics: Any = []
        self.mps: Any = []
        self.instances: dict[int, Gpu] = {}
        self.gi: Any = NVMLError(3)
        self.ci: Any = NVMLError(3)
        self.missing: set[str] = set()
        for key, value in answers.items():
            setattr(self, key, value)


def record(pid: int, used: int | None, gi: int = NOT_AVAILABLE, ci: int = NOT_AVAILABLE) -> Any:
    """One row of a process list."""
    return types.SimpleNamespace(
        pid=pid, usedGpuMemory=used, gpuInstanceId=gi, computeInstanceId=ci
    )


def _answer(value: Any) -> Any:
    if callable(value):
        value = value()
    if isinstance(value, NVMLError):
        raise value
    return value


class Binding(types.ModuleType):
    """The module. ``inits`` counts how often the library was started."""

    def __init__(self, gpus: list[Gpu], init: NVMLError | None = None) -> None:
        super().__init__("pynvml")
        self.gpus = gpus
        self.init_error = init
        self.inits = 0
        self.NVMLError = NVMLError
        self.count: Any = len(gpus)

    def nvmlInit(self) -> None:
        self.inits += 1
        if self.init_error:
            raise self.init_error

    def nvmlSystemGetDriverVersion(self) -> str:
        return "580.159.04"

    def nvmlSystemGetNVMLVersion(self) -> str:
        return "13.580.159.04"

    def nvmlDeviceGetCount(self) -> int:
        return int(_answer(self.count))

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Gpu:
        _answer(self.gpus[index].handle)
        return self.gpus[index]

    def nvmlDeviceGetUUID(self, gpu: Gpu) -> Any:
        return _answer(gpu.uuid)

    def nvmlDeviceGetName(self, gpu: Gpu) -> Any:
        return _answer(gpu.name)

    def nvmlDeviceGetMinorNumber(self, gpu: Gpu) -> Any:
        return _answer(gpu.minor)

    def nvmlDeviceGetPciInfo(self, gpu: Gpu) -> Any:
        return types.SimpleNamespace(busId=_answer(gpu.bus))

    def nvmlDeviceGetNumaNodeId(self, gpu: Gpu) -> Any:
        return _answer(gpu.numa)

    def nvmlDeviceGetMemoryInfo(self, gpu: Gpu, version: int | None = None) -> Any:
        if version:
            total, reserved, free, used = _answer(gpu.memory_v2)
            return types.SimpleNamespace(total=total, reserved=reserved, free=free, used=used)
        total, free, used = _answer(gpu.memory_v1)
        return types.SimpleNamespace(total=total, free=free, used=used)

    def nvmlDeviceGetMigMode(self, gpu: Gpu) -> Any:
        return _answer(gpu.mig)

    def nvmlDeviceGetPersistenceMode(self, gpu: Gpu) -> Any:
        return _answer(gpu.persistence)

    def nvmlDeviceGetUtilizationRates(self, gpu: Gpu) -> Any:
        return types.SimpleNamespace(gpu=_answer(gpu.utilization))

    def nvmlDeviceGetFieldValues(self, gpu: Gpu, fields: list[int]) -> Any:
        assert fields == [230]
        answer = gpu.recovery
        if isinstance(answer, NVMLError):
            return [types.SimpleNamespace(nvmlReturn=answer.value, value=None)]
        return [types.SimpleNamespace(nvmlReturn=0, value=types.SimpleNamespace(uiVal=answer))]

    def nvmlDeviceGetMaxMigDeviceCount(self, gpu: Gpu) -> int:
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, gpu: Gpu, index: int) -> Gpu:
        if index not in gpu.instances:
            raise NVMLError(6)
        return gpu.instances[index]

    def nvmlDeviceGetGpuInstanceId(self, gpu: Gpu) -> Any:
        return _answer(gpu.gi)

    def nvmlDeviceGetComputeInstanceId(self, gpu: Gpu) -> Any:
        return _answer(gpu.ci)

    def nvmlDeviceGetComputeRunningProcesses_v3(self, gpu: Gpu) -> Any:
        return self._list(gpu, "compute", "v3")

    def nvmlDeviceGetComputeRunningProcesses_v2(self, gpu: Gpu) -> Any:
        return self._list(gpu, "compute", "v2")

    def nvmlDeviceGetGraphicsRunningProcesses_v3(self, gpu: Gpu) -> Any:
        return self._list(gpu, "graphics", "v3")

    def nvmlDeviceGetGraphicsRunningProcesses_v2(self, gpu: Gpu) -> Any:
        return self._list(gpu, "graphics", "v2")

    def nvmlDeviceGetMPSComputeRunningProcesses_v3(self, gpu: Gpu) -> Any:
        return self._list(gpu, "mps", "v3")

    def nvmlDeviceGetMPSComputeRunningProcesses_v2(self, gpu: Gpu) -> Any:
        return self._list(gpu, "mps", "v2")

    @staticmethod
    def _list(gpu: Gpu, name: str, version: str) -> Any:
        if version in gpu.missing:
            raise NVMLError(13)
        return _answer(getattr(gpu, name))
