"""``bench``: each workload of the suite tuned by processes of its own, then measured beside its rivals."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from autosched.benching.result import Bench
from autosched.benching.row import BenchRow
from autosched.benching.shards import append_row, check_appendable
from autosched.benching.suite import Workload, load_suite
from autosched.benching.task import Competing, Task
from autosched.errors import InvalidInputError, NoDeviceError, TuningInterrupted
from autosched.measure.local import LocalMeasurer
from autosched.measure.rivals import RIVALS, check_names
from autosched.progress import Progress


@dataclass(frozen=True)
class BenchProgress:
    """How far a benchmark is.

    Attributes:
        index: Number of the workload, from 0.
        workloads: Workloads in all.
        workload: The one that is measured now.
        phase: ``tune`` or ``compete``.
        tuning: How far its tuning is, if that began.
    """

    index: int
    workloads: int
    workload: Workload
    phase: str
    tuning: Progress | None = None


def bench(
    op: str,
    *,
    only: Sequence[str] = (),
    groups: Sequence[str] = (),
    trials: int = 64,
    seed: int = 0,
    rivals: Sequence[str] | None = None,
    measurer_factory: Callable[[], Competing] | None = None,
    output: str | Path | None = None,
    run: str | None = None,
    log: str | Path | bool | None = None,
    held_out: bool = False,
    on_row: Callable[[BenchRow], None] | None = None,
    progress: Callable[[BenchProgress], None] | None = None,
) -> Bench:
    """Tunes the suite's workloads of an operator and measures each beside its rivals.

    Every workload gets a measurer of its own, whose processes end with it. What goes wrong with one workload is its
    row's error, and the others go on.

    Args:
        op: Name of the operator.
        only: Workloads to measure, such as ``4096,4096,4096`` or ``4096,4096,4096:fp16:nn``; all if empty.
        groups: Classes to measure; all if empty.
        trials: Schedules to measure for each workload.
        seed: Of the searches.
        rivals: Names of ``measure.rivals.RIVALS`` to measure beside; if not given those of ``usual``: the vendor
            library, and other ways to a tuned Triton kernel.
        measurer_factory: Makes a measurer, not started; this machine's GPU if not given.
        output: A file that every row is appended to as soon as it is there; nowhere if not given.
        run: Id of this run, which every row bears; a new one if not given.
        log: Where trials are kept, as ``tune_op`` takes it.
        held_out: Guide each run by a model that is trained on the tables and runs of all other iteration spaces, since
            the shipped one has seen most of the suite.
        on_row: Called with each row.
        progress: Called as the work goes on.

    Raises:
        InvalidInputError: The suite has no such workload, or a value that no run has.
        NoDeviceError: There is no GPU.
        TuningInterrupted: Ctrl-C; ``result`` is the ``Bench`` of the rows so far.
    """
    workloads = load_suite(op, only=only, groups=groups)
    chosen = None if rivals is None else tuple(rivals)
    _check(trials, seed, chosen)
    path = None if output is None else Path(output)
    if path is not None:
        check_appendable(path)
    task = Task(trials, seed, chosen, measurer_factory or local_measurer, run or new_run_id(), log, held_out)
    rows: list[BenchRow] = []
    started = time.perf_counter()

    def so_far() -> Bench:
        return Bench(op, tuple(rows), time.perf_counter() - started)

    def watch(index: int) -> Callable[[str, Progress | None], None]:
        def tell(phase: str, now: Progress | None) -> None:
            if progress is not None:
                progress(BenchProgress(index, len(workloads), workloads[index], phase, now))

        return tell

    try:
        for index, workload in enumerate(workloads):
            try:
                row = task.measure(workload, watch(index))
            except NoDeviceError as error:
                if not any(row.device for row in rows):
                    raise
                row = task.failed(workload, error)
            rows.append(row)
            if path is not None:
                append_row(path, row)
            if on_row is not None:
                on_row(row)
    except KeyboardInterrupt:
        raise TuningInterrupted(so_far()) from None
    return so_far()


def new_run_id() -> str:
    """An id that no other run has and that tells no host: when it began, and a random part."""
    return f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{uuid.uuid4().hex[:6]}"


def local_measurer() -> Competing:
    """The measurer of this machine's GPU, not started."""
    return LocalMeasurer()


def _check(trials: int, seed: int, rivals: Sequence[str] | None) -> None:
    if trials < 1:
        raise InvalidInputError(f"{trials} trials", "give 1 or more")
    if seed < 0:
        raise InvalidInputError(f"seed {seed}", "give 0 or more")
    if rivals is None:
        return
    if not rivals or len(set(rivals)) != len(rivals):
        raise InvalidInputError(f"rivals {', '.join(rivals) or 'none'}", f"name each once: {', '.join(RIVALS)}")
    check_names(rivals)
