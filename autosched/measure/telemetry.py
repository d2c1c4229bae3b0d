"""State of the device while it measures, as the driver reports it; empty where the driver's library is not there."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any


class Telemetry:
    """Reads one GPU's clock, power and temperature.

    Args:
        uuid: The device's UUID with or without its ``GPU-`` prefix; preferred, since indices depend on what is visible.
        index: Its index, used if there is no UUID.
    """

    def __init__(self, uuid: str = "", index: int = 0) -> None:
        self._nvml: Any = None
        self._handle: Any = None
        with contextlib.suppress(Exception):  # no library, no driver, no such device: there is nothing to report
            import pynvml

            pynvml.nvmlInit()
            name = uuid if uuid.startswith("GPU-") or not uuid else f"GPU-{uuid}"
            self._handle = pynvml.nvmlDeviceGetHandleByUUID(name) if name else pynvml.nvmlDeviceGetHandleByIndex(index)
            self._nvml = pynvml

    def read(self) -> dict[str, float | str]:
        """``sm_clock_mhz``, ``power_w``, ``temperature_c``, ``gpu_uuid``, ``driver``, as far as they can be read."""
        if self._handle is None:
            return {}
        nvml, handle = self._nvml, self._handle
        readers: dict[str, Callable[[], float | str]] = {
            "sm_clock_mhz": lambda: float(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)),
            "power_w": lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1e3,
            "temperature_c": lambda: float(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)),
            "gpu_uuid": lambda: str(nvml.nvmlDeviceGetUUID(handle)),
            "driver": lambda: str(nvml.nvmlSystemGetDriverVersion()),
        }
        found: dict[str, float | str] = {}
        for key, reader in readers.items():
            with contextlib.suppress(Exception):
                found[key] = reader()
        return found

    def sm_clock_mhz(self) -> float | None:
        """The SM clock now, if it can be read."""
        return self._clock(highest=False)

    def max_clock_mhz(self) -> float | None:
        """The highest SM clock, if it can be read."""
        return self._clock(highest=True)

    def _clock(self, *, highest: bool) -> float | None:
        if self._handle is None:
            return None
        read = self._nvml.nvmlDeviceGetMaxClockInfo if highest else self._nvml.nvmlDeviceGetClockInfo
        try:
            return float(read(self._handle, self._nvml.NVML_CLOCK_SM))
        except Exception:
            return None
