"""Which GPUs the driver shows, asked through its C library, so that no torch has to be loaded to find out."""

from __future__ import annotations

import ctypes
import re
from dataclasses import dataclass
from pathlib import Path

#: Compute capabilities for which kernels are generated, times ten.
SERVED = (80, 89, 90)

_MAJOR, _MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR of cuda.h


@dataclass(frozen=True)
class Gpu:
    """A GPU as the driver describes it.

    Attributes:
        name: Of the product.
        capability: Compute capability times ten; 90 is sm_90.
        memory_bytes: Of device memory.
    """

    name: str
    capability: int
    memory_bytes: int

    @property
    def served(self) -> bool:
        """Whether kernels are generated for it."""
        return self.capability in SERVED


@dataclass(frozen=True)
class Found:
    """What the driver says.

    Attributes:
        gpus: Those that this process may use.
        cuda: Newest CUDA version that the driver serves, such as ``12.8``; empty without a driver.
        driver: Version of the kernel module; empty if it is not known.
        problem: Why there is none; empty if there is one.
    """

    gpus: tuple[Gpu, ...] = ()
    cuda: str = ""
    driver: str = ""
    problem: str = ""


def find_gpus(library: str = "libcuda.so.1", module: Path = Path("/proc/driver/nvidia/version")) -> Found:
    """The GPUs that this process may use. Creates no context on any of them.

    Args:
        library: The driver's library.
        module: Where the kernel module names its version.
    """
    driver = _driver(module)
    try:
        cuda = ctypes.CDLL(library)
    except OSError:
        return Found(driver=driver, problem="no NVIDIA driver is installed")
    version = ctypes.c_int()
    cuda.cuDriverGetVersion(ctypes.byref(version))
    newest = f"{version.value // 1000}.{version.value % 1000 // 10}"
    code = int(cuda.cuInit(0))
    if code:
        return Found(cuda=newest, driver=driver, problem=f"the NVIDIA driver finds no GPU (cuInit gave {code})")
    count = ctypes.c_int()
    cuda.cuDeviceGetCount(ctypes.byref(count))
    gpus = tuple(_describe(cuda, index) for index in range(count.value))
    return Found(gpus, newest, driver, "" if gpus else "the NVIDIA driver shows no GPU")


def _describe(cuda: ctypes.CDLL, index: int) -> Gpu:
    device, name, memory = ctypes.c_int(), ctypes.create_string_buffer(256), ctypes.c_size_t()
    major, minor = ctypes.c_int(), ctypes.c_int()
    cuda.cuDeviceGet(ctypes.byref(device), index)
    cuda.cuDeviceGetName(name, len(name), device)
    cuda.cuDeviceTotalMem_v2(ctypes.byref(memory), device)
    cuda.cuDeviceGetAttribute(ctypes.byref(major), _MAJOR, device)
    cuda.cuDeviceGetAttribute(ctypes.byref(minor), _MINOR, device)
    return Gpu(name.value.decode(errors="replace"), major.value * 10 + minor.value, memory.value)


def _driver(module: Path) -> str:
    try:
        text = module.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    found = re.search(r"Kernel Module[^\n]*?\s(\d+\.\d+(?:\.\d+)?)\s", text)
    return found[1] if found else ""
