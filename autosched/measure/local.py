"""The measurer of this machine: compile workers beside one measuring worker on a GPU."""

from __future__ import annotations

import contextlib
import tempfile
import typing
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType

from autosched import settings
from autosched.errors import AutoschedError, InvalidInputError, NoDeviceError, StopTuning, WorkerError
from autosched.measure.ahead import CompileAhead, Compiled, Pool
from autosched.measure.base import Baseline, Comparison, Competition, Protocol, StopMeasuring
from autosched.measure.compare import Blocks, standings, summarize
from autosched.measure.executor import ENTRY, Executor, GpuWorker, Job
from autosched.measure.floor import floor_us
from autosched.measure.messages import Compare, Compete, Device, Measure, Prove, Reply, Request, Setup, Source, Vendor
from autosched.measure.process import ChildError
from autosched.measure.rivals import check_names
from autosched.measure.vendor import vendor_name
from autosched.record import Measurement, Status
from autosched.sketches.codegen import Generated, generate
from autosched.sketches.op import Op
from autosched.sketches.schedule import Schedule, ScheduleBatch
from autosched.sketches.target import Target, from_properties

POLL_S = 0.5
VENDOR_LAUNCH_SECONDS = 60.0
COMPETE_TIMEOUT_S = 600.0
"""Seconds for making rivals ready and timing them; no part of the protocol, since their compiling spoils no figure."""


OnResult = Callable[[int, Measurement], None]
BeforeLaunch = Callable[[int], None]


class LocalMeasurer:
    """Compiles, proves and times schedules on this machine.

    Its processes start when it is entered or first used. Entering does not wait for them: whether there is a GPU shows
    when it is first asked something.

    Args:
        target: The device's figures; read from the device if not given.
        workers: Compile workers; ``AUTOSCHED_WORKERS`` or one fewer than there are cores if not given.
        protocol: How to prove and time.
        device: Index of the GPU among the visible ones.
        cache_dir: Compiled kernels; a folder of its own, removed at the end, if not given.
        entry: The measuring worker's; tests use their own.
        make_pool: Makes the compile pool for a cache folder; tests use their own.

    Attributes:
        partial: Measurements of the last call of :meth:`measure` by schedule, ``None`` for those not reached: what is
            left when it was interrupted.
    """

    source = "measured"

    def __init__(
        self,
        target: Target | None = None,
        *,
        workers: int | None = None,
        protocol: Protocol | None = None,
        device: int = 0,
        cache_dir: str | Path | None = None,
        entry: str = ENTRY,
        make_pool: Callable[[Path], Pool] | None = None,
    ) -> None:
        self.protocol = protocol or Protocol()
        self.device = device
        self.partial: list[Measurement | None] = []
        self._target = target
        self.workers = settings.load().workers if workers is None else max(1, workers)
        self._cache = None if cache_dir is None else Path(cache_dir)
        self._entry = entry
        self._make_pool = make_pool or self._compile_pool
        self._resources = contextlib.ExitStack()
        self._executor: Executor | None = None
        self._pool: Pool | None = None
        self._worker: GpuWorker | None = None
        self._ahead: CompileAhead | None = None
        self._found: Device | None = None
        self._folder = Path()

    def __enter__(self) -> typing.Self:
        self.begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def begin(self) -> None:
        """Start the child processes without waiting for them: they import what they need while the caller goes on."""
        if self._worker is not None:
            return
        with contextlib.ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="autosched-")))
            cache = self._cache or folder / "cache"
            cache.mkdir(parents=True, exist_ok=True)
            worker = GpuWorker(self.device, entry=self._entry, env=_caches(cache, folder))
            stack.callback(worker.close)
            worker.start()
            pool = self._make_pool(cache)
            stack.callback(pool.close)
            pool.warm()
            self._folder, self._worker, self._pool = folder, worker, pool
            self._resources = stack.pop_all()

    def close(self) -> None:
        """End every child process and remove what they wrote; the measurer can be used again."""
        self._resources.close()
        self._executor = self._pool = self._ahead = self._worker = None

    @property
    def target(self) -> Target:
        """The device that answers are for; asks the device if need be."""
        if self._target is None:
            self._start()
        assert self._target is not None
        return self._target

    @property
    def found(self) -> Device | None:
        """What the device says about itself, once the worker runs."""
        return self._found

    def space(self, op: Op) -> ScheduleBatch | None:
        """``None``: any schedule can be measured. Asks the device, so that a run without one ends before it begins.

        Raises:
            NoDeviceError: There is no GPU.
        """
        self._start()
        return None

    def measure(
        self,
        op: Op,
        schedules: Sequence[Schedule],
        *,
        on_result: OnResult | None = None,
        before_launch: BeforeLaunch | None = None,
        while_waiting: Callable[[], None] | None = None,
    ) -> list[Measurement]:
        """One measurement a schedule, in the same order. Compiles in parallel, measures what is ready.

        Args:
            op: What the schedules are for.
            schedules: Any number.
            on_result: Called with each schedule's index and measurement as soon as it is there.
            before_launch: Called with the index right before a kernel runs on the GPU.
            while_waiting: Called at least twice a second while nothing is compiled that could run.

        Raises:
            WorkerError: Nothing can be measured: the op's operands could not be made.
            NoDeviceError: There is no GPU.
            StopMeasuring: ``before_launch`` or ``while_waiting`` did; the measurer goes on.
        """
        executor, _ = self._start()
        results: list[Measurement | None] = [None] * len(schedules)
        self.partial = results
        compiled: dict[int, tuple[Generated, Compiled]] = {}

        def finish(index: int, measurement: Measurement) -> None:
            results[index] = measurement
            if on_result is not None:
                on_result(index, measurement)

        jobs = self._jobs(op, schedules, compiled, finish, before_launch, while_waiting)
        try:
            for index, reply in executor.run(jobs):
                finish(index, _measurement(reply, *compiled.pop(index)))
        except (StopMeasuring, StopTuning):  # from a callback: nothing is under way
            raise
        except BaseException:
            self.close()  # jobs under way must not answer the next call
            raise
        assert all(result is not None for result in results)
        return [result for result in results if result is not None]

    def prepare(self, op: Op, schedules: Sequence[Schedule]) -> None:
        """Hand the sources of schedules to the compile workers; another thread may call it while one measures.

        Nothing happens where the workers do not run: whoever closes the measurer has closed it for all threads.
        """
        ahead = self._ahead
        if ahead is None:
            return
        for schedule in schedules:
            with contextlib.suppress(AutoschedError):
                ahead.submit(generate(op, schedule))

    def keep(self, source_hash: str, user_cache_dir: str | Path) -> bool:
        """Copy a winner's compiled kernels to the user's cache, so that its first launch compiles nothing.

        Args:
            source_hash: Of a schedule that was measured since the measurer started.
            user_cache_dir: Triton's cache folder of the user.

        Returns:
            Whether they were there.
        """
        return self._pool is not None and self._pool.keep(source_hash, user_cache_dir)

    def prove(self, op: Op, schedules: Sequence[Schedule]) -> list[str]:
        """What is wrong with each finalist in many launches on fresh operands; empty where nothing is.

        Args:
            op: What the schedules are for.
            schedules: Those that a choice is made from.
        """
        return [error for error, _ in self._proved(op, schedules)]

    def baseline(self, op: Op) -> Baseline | None:
        """The vendor library's figure for ``op``; ``None`` where it has no counterpart.

        Raises:
            WorkerError: The library failed.
        """
        reply = self._one(op, Vendor(), self.protocol.run_timeout_s + VENDOR_LAUNCH_SECONDS)
        if "UnsupportedError" in reply.error:
            return None
        if reply.baseline is None:
            raise WorkerError(f"the vendor library failed on {op.key()}: {reply.error}", "measure without a baseline")
        return reply.baseline

    def compare(self, op: Op, schedules: Sequence[Schedule]) -> Comparison:
        """Candidates against the vendor library in interleaved blocks, after each survived its long proof.

        Args:
            op: What the schedules are for.
            schedules: Few: finalists and the default.

        Returns:
            One entry a schedule; one that fails its proof has its reason in ``errors``.

        Raises:
            WorkerError: The comparison did not come to an end.
        """
        proved = self._proved(op, schedules)
        sources = tuple(source for error, source in proved if not error and source is not None)
        reply = self._one(op, Compare(sources), self.protocol.compare_timeout_s)
        blocks = self._blocks(reply, "comparison", "measure with fewer finalists")
        return summarize(vendor_name(op), blocks, [error for error, _ in proved])

    def compete(self, op: Op, schedule: Schedule, rivals: Sequence[str]) -> Competition:
        """A schedule against what people would use instead, in interleaved blocks, after it survived its long proof.

        Args:
            op: What the schedule is for.
            schedule: One that was tuned.
            rivals: Names in ``measure.rivals.RIVALS``. Each compiles and tunes with empty caches first.

        Raises:
            InvalidInputError: A name is no rival's.
            WorkerError: The schedule fails its proof, or the competition did not come to an end.
        """
        names = check_names(rivals)
        ((error, source),) = self._proved(op, [schedule])
        if source is None or error:
            raise WorkerError(f"the schedule cannot compete on {op.key()}: {error}", "compete with another schedule")
        reply = self._one(op, Compete(source, names), COMPETE_TIMEOUT_S)
        return standings(self._blocks(reply, "competition", "compete with fewer rivals"), reply.rivals)

    def _blocks(self, reply: Reply, what: str, remedy: str) -> Blocks:
        if not reply.blocks:
            raise WorkerError(f"{what} failed ({reply.status}): {reply.error}", remedy)
        return Blocks(reply.blocks, reply.drift, reply.drift is None or reply.drift < self.protocol.clock_drift)

    def _proved(self, op: Op, schedules: Sequence[Schedule]) -> list[tuple[str, Source | None]]:
        """Each schedule's failure, or its source."""
        compiled = self._compile_all(op, schedules)
        sources: dict[int, Source] = {}
        errors: dict[int, str] = {}
        for index, entry in compiled.items():
            if isinstance(entry, str):
                errors[index] = entry
            else:
                sources[index] = _source(entry, schedules[index])
        errors |= self._prove(op, sources)
        return [(errors[index], sources.get(index)) for index in range(len(schedules))]

    def _prove(self, op: Op, sources: dict[int, Source]) -> dict[int, str]:
        """Failures of the long proof by index; one by one if together they bring the worker down."""
        if not sources:
            return {}
        request = Prove(tuple(sources.values()), self.protocol.finalist_launches)
        reply = self._one(op, request, self.protocol.prove_timeout_s)
        if reply.status is Status.OK:
            return dict(zip(sources, reply.errors, strict=True))
        if len(sources) == 1:
            return {index: f"{reply.status}: {reply.error}" for index in sources}
        return {index: self._prove(op, {index: source})[index] for index, source in sources.items()}

    def _compile_all(self, op: Op, schedules: Sequence[Schedule]) -> dict[int, Generated | str]:
        """Generated source of each schedule that compiles, the failure's text of the others."""
        outcome: dict[int, Generated | str] = {}

        def done(index: int, generated: Generated, result: Compiled) -> None:
            outcome[index] = generated if result.status == Status.OK else f"{result.status}: {result.error}"

        waiting = self._submit(op, schedules, lambda i, error: outcome.update({i: f"{Status.INVALID}: {error}"}))
        while waiting:
            self._compiled(waiting, POLL_S, done)
        return outcome

    def _jobs(
        self,
        op: Op,
        schedules: Sequence[Schedule],
        compiled: dict[int, tuple[Generated, Compiled]],
        finish: OnResult,
        before_launch: BeforeLaunch | None,
        while_waiting: Callable[[], None] | None,
    ) -> Iterator[Job]:
        """Jobs of the schedules that compile, as they do; the others are finished here."""
        setup = self._set_up(op)
        queue: deque[int] = deque()

        def done(index: int, generated: Generated, result: Compiled) -> None:
            if result.status == Status.OK:
                compiled[index] = generated, result
                queue.append(index)
            else:
                finish(index, _measurement(Reply(status=Status(result.status), error=result.error), generated, result))

        def refused(index: int, error: str) -> None:
            finish(index, Measurement(status=Status.INVALID, error=error))

        waiting = self._submit(op, schedules, refused)
        while waiting or queue:
            if waiting:
                self._compiled(waiting, 0.0 if queue else POLL_S, done)
            if waiting and not queue and while_waiting is not None:
                while_waiting()
            if queue:
                index = queue.popleft()
                if before_launch is not None:
                    before_launch(index)
                request = Measure(_source(compiled[index][0], schedules[index]))
                yield Job(index, setup, request, self.protocol.run_timeout_s)

    def _submit(
        self, op: Op, schedules: Sequence[Schedule], refused: Callable[[int, str], None]
    ) -> dict[int, Generated]:
        """Sources under compilation by index; those that cannot be generated are told of."""
        _, ahead = self._start()
        waiting: dict[int, Generated] = {}
        for index, schedule in enumerate(schedules):
            try:
                waiting[index] = generate(op, schedule)
            except AutoschedError as error:
                refused(index, str(error))
                continue
            ahead.submit(waiting[index])
        return waiting

    def _compiled(
        self, waiting: dict[int, Generated], timeout: float, done: Callable[[int, Generated, Compiled], None]
    ) -> None:
        """Take those that are compiled out of ``waiting``, in their order, and tell of them."""
        _, ahead = self._start()
        found = ahead.ready({generated.source_hash for generated in waiting.values()}, timeout)
        for index in [i for i, generated in waiting.items() if generated.source_hash in found]:
            generated = waiting.pop(index)
            done(index, generated, found[generated.source_hash])

    def _one(self, op: Op, request: Request, timeout: float) -> Reply:
        executor, _ = self._start()
        job = Job(0, self._set_up(op), request, timeout)
        return next(iter(executor.run([job])))[1]

    def _set_up(self, op: Op) -> Setup:
        clock = None if self._found is None else self._found.max_clock_mhz
        floor = floor_us(op, self.target, clock_mhz=clock)
        return Setup(op.spec, self.protocol, floor, str(self._folder), self.device)

    def _start(self) -> tuple[Executor, CompileAhead]:
        """Start what does not run yet."""
        if self._executor is not None and self._ahead is not None:
            return self._executor, self._ahead
        self.begin()
        assert self._worker is not None
        assert self._pool is not None
        try:
            self._found = self._worker.identify()
            self._target = _fitting(self._target, self._found)
            executor = Executor([self._worker], [self._found.uuid or f"index-{self.device}"])
            self._executor = self._resources.enter_context(executor)
        except ChildError as error:
            self.close()
            told = error.text.removeprefix("NoDeviceError: ").split(" (")[0]
            raise NoDeviceError(told, "use recorded measurements, or a machine with a GPU") from error
        except BaseException:
            self.close()
            raise
        self._pool.aim(self._target.capability, self._target.shared_per_block)
        self._ahead = CompileAhead(self._pool)
        return self._executor, self._ahead

    def _compile_pool(self, cache: Path) -> Pool:
        from autosched.measure.compiling import CompilePool

        return CompilePool(workers=self.workers, cache_dir=cache, timeout=self.protocol.compile_timeout_s)


def _caches(triton: Path, folder: Path) -> dict[str, str]:
    """Environment of the measuring worker: nothing that it compiles lands in the user's folders."""
    return {"TRITON_CACHE_DIR": str(triton), "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor")}


def _fitting(target: Target | None, device: Device) -> Target:
    """The target that was asked for, if the device can run its code, else the device's own."""
    if target is None:
        return from_properties(device.name, device.capability, **device.reported)
    if target.capability != device.capability:
        raise InvalidInputError(
            f"target {target.name} has compute capability {target.capability / 10}, the device "
            f"{device.name} has {device.capability / 10}",
            "leave target out to take the device's",
        )
    return target


def _source(generated: Generated, schedule: Schedule) -> Source:
    label = " ".join(f"{name}={value}" for name, value in schedule.to_json().items())
    return Source(generated.source, generated.source_hash, generated.workspace_bytes, generated.workspace_zeroed, label)


def _measurement(reply: Reply, generated: Generated, compiled: Compiled) -> Measurement:
    """What both workers found out about a schedule."""
    return Measurement(
        status=reply.status,
        samples_us=reply.samples_us,
        error=reply.error,
        compiled=compiled.features,
        compile_seconds=compiled.seconds,
        measure_seconds=reply.seconds,
        source_hash=generated.source_hash,
        telemetry=reply.telemetry,
    )
