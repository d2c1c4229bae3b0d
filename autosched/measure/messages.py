"""What is said to a measuring worker and what it answers, as tagged messages (see ``gpu_worker`` and ``executor``)."""

from __future__ import annotations

from typing import Any

import msgspec

from autosched.measure.base import Baseline, Protocol, Rival
from autosched.measure.compare import Block
from autosched.record import Status


class Source(msgspec.Struct, frozen=True):
    """A generated kernel.

    Attributes:
        text: Its module.
        hash: SHA-256 of the normalised source; the module's name comes from it.
        workspace_bytes: Bytes of workspace that it asks for.
        workspace_zeroed: Bytes at its beginning that are promised to be zero, and that it leaves zero.
        label: What errors call it: the schedule.
    """

    text: str
    hash: str
    workspace_bytes: int = 0
    workspace_zeroed: int = 0
    label: str = ""


class Identify(msgspec.Struct, frozen=True, tag="identify"):
    """Ask which device the worker has.

    Attributes:
        device: Index among the visible devices.
    """

    device: int = 0


class Setup(msgspec.Struct, frozen=True, tag="setup"):
    """Make the operands of an op; every later request is about it.

    Attributes:
        spec: ``Op.spec``.
        protocol: How to prove and time.
        floor_us: Time that no correct kernel can beat.
        folder: Where generated modules are written; the parent's, so that it is removed whatever happens here.
        device: Index among the visible devices.
    """

    spec: dict[str, Any]
    protocol: Protocol
    floor_us: float
    folder: str
    device: int = 0


class Measure(msgspec.Struct, frozen=True, tag="measure"):
    """Prove a kernel right, then time it."""

    source: Source


class Prove(msgspec.Struct, frozen=True, tag="prove"):
    """Prove finalists: many launches on fresh operands, which they share."""

    sources: tuple[Source, ...]
    launches: int = 100


class Compare(msgspec.Struct, frozen=True, tag="compare"):
    """Run interleaved blocks of proved kernels and the vendor library."""

    sources: tuple[Source, ...]


class Compete(msgspec.Struct, frozen=True, tag="compete"):
    """Make rivals ready, then run interleaved blocks of them and a proved kernel.

    Attributes:
        source: The kernel.
        rivals: Names in ``measure.rivals.RIVALS``.
    """

    source: Source
    rivals: tuple[str, ...]


class Vendor(msgspec.Struct, frozen=True, tag="vendor"):
    """Time the vendor library."""


Request = Identify | Setup | Measure | Prove | Compare | Compete | Vendor


class Device(msgspec.Struct, frozen=True):
    """What a device says about itself.

    Attributes:
        name: Of the model.
        capability: Compute capability, major * 10 + minor.
        reported: Figures of ``sketches.target.Target`` by field.
        uuid: Its UUID.
        max_clock_mhz: Highest SM clock, if it can be read.
    """

    name: str
    capability: int
    reported: dict[str, int]
    uuid: str = ""
    max_clock_mhz: float | None = None


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """An answer.

    Attributes:
        status: ``ok``, or what went wrong.
        error: In words.
        samples_us: Of a measured kernel.
        seconds: That the request took.
        telemetry: State of the device afterwards, ``anchor_us`` where the anchor was due, and ``compiled_in_worker``,
            kernels that the compile workers' cache did not hold.
        poisoned: Whether the worker cannot go on (a CUDA error stays with its process) and has to be replaced.
        device: Answer to ``Identify``.
        errors: Answer to ``Prove``: what is wrong with each kernel, empty where nothing is.
        baseline: Answer to ``Vendor``.
        blocks: Answer to ``Compare`` and, with the kernel in the vendor library's place, to ``Compete``.
        drift: Largest relative change of the clock into one of them.
        rivals: Answer to ``Compete``: what was asked for, without figures.
    """

    status: Status = Status.OK
    error: str = ""
    samples_us: tuple[float, ...] = ()
    seconds: float = 0.0
    telemetry: dict[str, float | str] = {}
    poisoned: bool = False
    device: Device | None = None
    errors: tuple[str, ...] = ()
    baseline: Baseline | None = None
    blocks: tuple[Block, ...] = ()
    drift: float | None = None
    rivals: tuple[Rival, ...] = ()
