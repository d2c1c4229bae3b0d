"""What measuring means to the rest of the package: the interface, the protocol of a timing, and what comes back."""

from __future__ import annotations

import typing
from collections.abc import Callable, Sequence
from types import TracebackType

import msgspec

from autosched.record import Measurement
from autosched.sketches.op import Op
from autosched.sketches.schedule import Schedule, ScheduleBatch
from autosched.sketches.target import Target


class Protocol(msgspec.Struct, frozen=True, kw_only=True):
    """How a kernel is proved and timed; part of every log's header, since figures compare only within one protocol.

    Attributes:
        warmups: Launches before the timed ones.
        launches: Timed launches of a kernel.
        slow_us: A kernel that takes longer than this many microseconds gets only ``slow_launches``.
        slow_launches: Timed launches of a slow kernel.
        flush_factor: Size of each flush buffer (one written, another one read after it) over the size of the L2 cache.
        proof_launches: Launches on different integer operands before a kernel is timed.
        finalist_launches: Launches on fresh operands that a finalist has to survive.
        anchor_every: Trials between two timings of the anchor kernel.
        load_seconds: Seconds of load before blocks are compared, so that clock and power have settled.
        blocks: Blocks of a comparison that have to be free of clock drift.
        most_blocks: Blocks after which a comparison ends even if the clock never held still.
        block_launches: Timed launches of each kernel in each half of a block.
        clock_drift: Largest relative change of the SM clock from one block to the next.
        compile_timeout_s: Seconds for compiling one schedule.
        setup_timeout_s: Seconds for making the operands of an op.
        run_timeout_s: Seconds for proving and timing one kernel.
        prove_timeout_s: Seconds for the long proof of the finalists.
        compare_timeout_s: Seconds for a comparison.
        seed: Seed of all operands.
    """

    warmups: int = 3
    launches: int = 12
    slow_us: float = 20_000.0
    slow_launches: int = 4
    flush_factor: float = 2.0
    proof_launches: int = 2
    finalist_launches: int = 100
    anchor_every: int = 25
    load_seconds: float = 2.0
    blocks: int = 5
    most_blocks: int = 15
    block_launches: int = 5
    clock_drift: float = 0.01
    compile_timeout_s: float = 60.0
    setup_timeout_s: float = 180.0
    run_timeout_s: float = 30.0
    prove_timeout_s: float = 120.0
    compare_timeout_s: float = 300.0
    seed: int = 0


class Baseline(msgspec.Struct, frozen=True, kw_only=True):
    """What the vendor library takes for an op, under the same protocol as the candidates.

    Attributes:
        name: Of the library: ``cublas``, or ``cudnn`` for convolutions.
        latency_us: Median of the samples in microseconds, reduced-precision reduction off.
        samples_us: All timed launches in microseconds.
        default_us: Median with the library's default setting (reduced-precision reduction on), if it was measured.
    """

    name: str
    latency_us: float
    samples_us: tuple[float, ...] = ()
    default_us: float | None = None


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """Candidates and the vendor library, interleaved in one process. One entry a candidate, in the order asked for.

    Attributes:
        vendor: Name of the vendor library.
        vendor_us: Its latency: median over blocks, in microseconds.
        latencies_us: Each candidate's latency: median over blocks, in microseconds; ``None`` where ``errors`` says why.
        ratios: Vendor time over candidate time, geometric mean over blocks: above 1 is faster than the vendor library.
        intervals: 95% interval of each ratio.
        errors: Why a candidate could not be compared, empty if it was.
        blocks: Blocks that the figures are made of.
        clock_drift: Largest relative change of the SM clock between two neighbouring blocks; ``None`` if unknown.
    """

    vendor: str
    vendor_us: float
    latencies_us: tuple[float | None, ...]
    ratios: tuple[float | None, ...]
    intervals: tuple[tuple[float, float] | None, ...]
    errors: tuple[str, ...]
    blocks: int
    clock_drift: float | None = None

    def tie(self, index: int) -> bool:
        """Whether candidate ``index`` and the vendor library cannot be told apart: the interval holds 1."""
        interval = self.intervals[index]
        return interval is not None and interval[0] <= 1.0 <= interval[1]


class Rival(msgspec.Struct, frozen=True, kw_only=True):
    """One competitor's figures beside a tuned kernel's, interleaved in one process.

    Attributes:
        name: One of ``measure.rivals.RIVALS``: ``cublas``, ``cudnn``, ``inductor``, ``inductor-triton``,
            ``triton.autotune``.
        latency_us: Median over blocks, in microseconds; ``None`` where ``error`` says why.
        ratio: Its time over the tuned kernel's, geometric mean over blocks: above 1 the tuned kernel is faster.
        interval: 95% interval of the ratio.
        tuning_seconds: Wall seconds of its first call, in which it compiles and tunes with empty caches; ``None`` for
            the vendor library, which does neither.
        error: Why there are no figures.
    """

    name: str
    latency_us: float | None = None
    ratio: float | None = None
    interval: tuple[float, float] | None = None
    tuning_seconds: float | None = None
    error: str = ""


class Competition(msgspec.Struct, frozen=True, kw_only=True):
    """A tuned kernel and its rivals, interleaved in one process.

    Attributes:
        latency_us: The kernel's latency: median over blocks, in microseconds.
        rivals: In the order asked for.
        blocks: Blocks that the figures are made of.
        clock_drift: Largest relative change of the SM clock between two neighbouring blocks; ``None`` if unknown.
    """

    latency_us: float
    rivals: tuple[Rival, ...]
    blocks: int
    clock_drift: float | None = None


class Processless:
    """The context manager of a measurer that starts no process."""

    def __enter__(self) -> typing.Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Nothing was started, so nothing ends."""


@typing.runtime_checkable
class Measurer(typing.Protocol):
    """Answers how fast schedules are. A context manager: leaving it ends every process that it started."""

    @property
    def target(self) -> Target:
        """The device that the answers are for."""
        ...

    @property
    def source(self) -> str:
        """Where the answers come from: ``measured``, ``recorded`` or ``synthetic``."""
        ...

    def __enter__(self) -> typing.Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

    def space(self, op: Op) -> ScheduleBatch | None:
        """All schedules that can be asked about, if they are finite; ``None`` if any can."""
        ...

    def measure(self, op: Op, schedules: Sequence[Schedule]) -> list[Measurement]:
        """One measurement a schedule, in the same order; failures are values."""
        ...

    def baseline(self, op: Op) -> Baseline | None:
        """The vendor library's figure, if there is one."""
        ...

    def compare(self, op: Op, schedules: Sequence[Schedule]) -> Comparison:
        """Candidates against the vendor library, interleaved."""
        ...


class StopMeasuring(Exception):  # noqa: N818 - it is no error
    """Raised by what a measurer calls between launches: nothing more is to be launched, what was measured stands."""


@typing.runtime_checkable
class Pipelined(Measurer, typing.Protocol):
    """A measurer that prepares the next round while one is measured, and tells of each trial as it goes."""

    @property
    def workers(self) -> int:
        """Processes that prepare."""
        ...

    def prepare(self, op: Op, schedules: Sequence[Schedule]) -> None:
        """Begin what can be done ahead of :meth:`measure`; returns at once. Another thread may call it."""
        ...

    def measure(
        self,
        op: Op,
        schedules: Sequence[Schedule],
        *,
        on_result: Callable[[int, Measurement], None] | None = None,
        before_launch: Callable[[int], None] | None = None,
        while_waiting: Callable[[], None] | None = None,
    ) -> list[Measurement]:
        """As ``Measurer.measure``.

        Args:
            op: What the schedules are for.
            schedules: Any number.
            on_result: Called with each schedule's index and measurement as soon as it is there.
            before_launch: Called with the index right before a kernel runs.
            while_waiting: Called now and then while nothing is ready to run.

        Raises:
            StopMeasuring: One of these did; results so far were told, and the measurer goes on.
        """
        ...
