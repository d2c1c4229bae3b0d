"""The device that a schedule is for: the figures that constraints, features and roofline times are made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from autosched.errors import InvalidInputError, NoDeviceError, UnsupportedError


@dataclass(frozen=True)
class Target:
    """A GPU.

    Attributes:
        name: Preset name, or the device's own name without its vendor.
        capability: Compute capability, major * 10 + minor.
        sms: Streaming multiprocessors.
        shared_per_block: Bytes of shared memory that one CTA can have.
        shared_per_sm: Bytes of shared memory of one SM.
        registers_per_sm: 32-bit registers of one SM.
        threads_per_sm: Resident threads of one SM.
        l2_bytes: Size of the L2 cache.
        bandwidth: Peak DRAM bandwidth in bytes a second.
        l2_bandwidth: L2 bandwidth in bytes a second (an estimate: it only scales features).
        clock_mhz: Highest SM clock.
        flops_per_sm_cycle: Dense multiply-add flops (2 an operation) of one SM in a cycle, by dtype.
    """

    name: str
    capability: int
    sms: int
    shared_per_block: int
    shared_per_sm: int
    registers_per_sm: int
    threads_per_sm: int
    l2_bytes: int
    bandwidth: float
    l2_bandwidth: float
    clock_mhz: int
    flops_per_sm_cycle: dict[str, int] = field(hash=False)

    def peak_flops(self, dtype: str) -> float:
        """Peak rate for ``dtype`` in flop/s at the highest clock (H200 bf16: 1070e12, not the data sheet's 989e12).

        Raises:
            UnsupportedError: The device has no products of that type.
        """
        if dtype not in self.flops_per_sm_cycle:
            raise UnsupportedError(
                f"{self.name} does not multiply {dtype}", f"one of {', '.join(self.flops_per_sm_cycle)}"
            )
        return self.flops_per_sm_cycle[dtype] * self.sms * self.clock_mhz * 1e6

    @property
    def has_tma(self) -> bool:
        """Whether it has the tensor memory accelerator (sm_90 and later)."""
        return self.capability >= 90

    def updated(self, figures: Mapping[str, Any]) -> Target:
        """A target like this one with the given figures; a name that is none of its fields raises ``TypeError``."""
        return Target(**{**self.to_dict(), **figures})

    def to_dict(self) -> dict[str, Any]:
        """All figures, JSON-able."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


# Rates a cycle and SM: NVIDIA H100, A100 and Ada architecture white papers (dense tensor-core rates divided by SMs and
# boost clock; full-precision fp32 runs on the CUDA cores). Memory figures: data sheets. L2 bandwidth: estimates.
_HOPPER = {"bf16": 4096, "fp16": 4096, "tf32": 2048, "fp32": 256, "fp8e4m3": 8192, "fp8e5m2": 8192, "int8": 8192}
_AMPERE = {"bf16": 2048, "fp16": 2048, "tf32": 1024, "fp32": 128, "int8": 4096}
_ADA = {"bf16": 1024, "fp16": 1024, "tf32": 512, "fp32": 256, "fp8e4m3": 2048, "fp8e5m2": 2048, "int8": 2048}

PRESETS: dict[str, Target] = {
    t.name: t
    for t in (
        Target("H200", 90, 132, 232448, 233472, 65536, 2048, 60 << 20, 4.8e12, 11e12, 1980, _HOPPER),
        Target("H100", 90, 132, 232448, 233472, 65536, 2048, 50 << 20, 3.35e12, 11e12, 1980, _HOPPER),
        Target("A100", 80, 108, 166912, 167936, 65536, 2048, 40 << 20, 2.04e12, 5e12, 1410, _AMPERE),
        Target("RTX4090", 89, 128, 101376, 102400, 65536, 1536, 72 << 20, 1.008e12, 5e12, 2520, _ADA),
    )
}


def parse_target(value: str | Target) -> Target:
    """The preset of that name.

    Raises:
        InvalidInputError: No preset has it.
    """
    if isinstance(value, Target):
        return value
    for name, target in PRESETS.items():
        if name.lower() == value.lower().replace(" ", ""):
            return target
    raise InvalidInputError(f"unknown target {value!r}", f"one of {', '.join(PRESETS)}, or detect() on the device")


def detect(index: int = 0) -> Target:
    """The target of the GPU in this machine: a preset's rates with the figures that the device itself reports.

    Raises:
        NoDeviceError: No CUDA device is there.
        InvalidInputError: The device's capability is not served.
    """
    import torch

    if not torch.cuda.is_available():
        raise NoDeviceError("no CUDA device is there", "use --on recorded, or pass target= and a measurer")
    properties: Any = torch.cuda.get_device_properties(index)  # torch's type stubs lack some of its fields
    return from_properties(properties.name, properties.major * 10 + properties.minor, **reported(properties))


def reported(properties: Any) -> dict[str, int]:
    """The figures of a target, by field, that ``torch.cuda.get_device_properties`` gives of a device."""
    return {
        "sms": properties.multi_processor_count,
        "shared_per_block": properties.shared_memory_per_block_optin,
        "shared_per_sm": properties.shared_memory_per_multiprocessor,
        "registers_per_sm": properties.regs_per_multiprocessor,
        "threads_per_sm": properties.max_threads_per_multi_processor,
        "l2_bytes": properties.L2_cache_size,
    }


def from_properties(device_name: str, capability: int, **reported: int) -> Target:
    """The preset that ``device_name`` contains, else the nearest of its capability, with ``reported`` figures.

    Raises:
        InvalidInputError: No preset has a capability of that generation.
    """
    compact = device_name.replace(" ", "").replace("GeForce", "")
    for name, preset in PRESETS.items():
        if name.lower() in compact.lower() and preset.capability == capability:
            return preset.updated(reported)
    same = [p for p in PRESETS.values() if p.capability == capability]
    if not same:
        raise InvalidInputError(
            f"{device_name} has compute capability {capability / 10}", "served: " + ", ".join(PRESETS)
        )
    return same[0].updated({"name": compact.removeprefix("NVIDIA"), **reported})
