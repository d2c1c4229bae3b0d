"""What is known about one trial: its status, its measurement, and the record that a log keeps of it.

A failure is a value, never a number: a :class:`Measurement` has samples exactly when its status is ``ok``.
"""

from __future__ import annotations

import statistics
from enum import StrEnum
from typing import Any

import msgspec


class Status(StrEnum):
    """How a trial ended. The set is closed."""

    OK = "ok"
    INVALID = "invalid"
    COMPILE_ERROR = "compile_error"
    COMPILE_TIMEOUT = "compile_timeout"
    OUT_OF_RESOURCES = "out_of_resources"
    LAUNCH_ERROR = "launch_error"
    RUN_TIMEOUT = "run_timeout"
    WRONG_RESULT = "wrong_result"
    WORKER_CRASH = "worker_crash"
    BELOW_FLOOR = "below_floor"


class Measurement(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The outcome of one trial.

    Attributes:
        status: How it ended.
        samples_us: Every timed launch, in microseconds; not empty exactly when ``status`` is ``ok``.
        error: The text of the failure, empty when ``status`` is ``ok``.
        compiled: Features read from the compiled kernel (see ``features.compiled``); empty if it did not compile.
        compile_seconds: Seconds that a compile worker spent on it; 0 if it was not compiled.
        measure_seconds: Seconds on the measuring worker, proof of correctness included.
        source_hash: SHA-256 of the schedule's normalised source.
        telemetry: State of the device while it ran (``sm_clock_mhz``, ``power_w``, ``temperature_c``, ``gpu_uuid``,
            ``driver``, ``anchor_us``), as far as known.
    """

    status: Status
    samples_us: tuple[float, ...] = ()
    error: str = ""
    compiled: dict[str, float] = {}
    compile_seconds: float = 0.0
    measure_seconds: float = 0.0
    source_hash: str = ""
    telemetry: dict[str, float | str] = {}

    def __post_init__(self) -> None:
        if (self.status is Status.OK) != bool(self.samples_us):
            raise ValueError(f"status {self.status} with {len(self.samples_us)} samples: samples exist exactly when ok")
        if any(not s > 0 for s in self.samples_us):
            raise ValueError(f"samples must be positive microseconds, got {self.samples_us}")

    @property
    def ok(self) -> bool:
        """Whether the kernel compiled, was proved right and was timed."""
        return self.status is Status.OK

    @property
    def latency_us(self) -> float | None:
        """Median of the samples in microseconds; ``None`` unless ``ok``."""
        return statistics.median(self.samples_us) if self.samples_us else None


#: Strata whose rows teach models and do no more: each was timed once, and someone chose them, so that no table is made
#: of them and no model is judged by them.
TEACHING = frozenset({"sweep"})


class Record(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One trial as a log keeps it: enough to replay it, to learn from it, and to know where it came from.

    Attributes:
        key: ``Op.key()``.
        op: ``Op.spec``, from which ``sketches.builders.build`` makes the op again.
        device: Name of the target's preset (``H200``), never a host's name.
        schedule: ``Schedule.to_json()``: the sketch's name and every knob.
        measurement: What came out.
        origin: How it came to be proposed: ``default``, ``uniform``, ``grid``, ``model``, ``explore``, ``retimed``.
        stratum: For recorded tables, the stratum that the row belongs to; empty in tuning runs.
        round: Round of the search, from 0.
        trial: Number of the trial in its session, from 0.
        predicted: The model's score when it was proposed (log of roofline time over measured time).
        session: Id of the session that it belongs to.
    """

    key: str
    op: dict[str, Any]
    device: str
    schedule: dict[str, int | str]
    measurement: Measurement
    origin: str = ""
    stratum: str = ""
    round: int = 0
    trial: int = 0
    predicted: float | None = None
    session: str = ""
