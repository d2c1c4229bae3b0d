"""``autosched bench``: what the options mean, the run with its progress or the merging of shards, and the table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from rich.console import Console
from rich.text import Text

from autosched.cli import bench_view
from autosched.cli.devices import find_gpus
from autosched.cli.errors import Exit
from autosched.cli.measurers import parse_place
from autosched.cli.output import Output
from autosched.cli.progress import TuningProgress
from autosched.errors import InvalidInputError, NoDeviceError, TuningInterrupted, UsageError

if TYPE_CHECKING:
    from autosched.benching import Bench, BenchProgress, BenchRow

_PHASES = {"compete": "measuring rivals beside it"}


@dataclass(frozen=True)
class BenchOptions:
    """The options of ``autosched bench`` as they were given.

    Attributes:
        op: Name of the operator.
        only: Workloads, ``4096,4096,4096`` or ``4096,4096,4096:fp16:nn`` each; empty for all.
        groups: Classes; empty for all.
        trials: Schedules to measure for each workload.
        seed: Of the searches.
        rivals: ``cublas,inductor``; the usual ones of the op if not given.
        output: Where each row is appended; with ``merge``, where the merged rows are written. ``None`` nowhere.
        merge: Show the rows of ``files`` instead of measuring.
        files: What to merge, the latest last.
        plot: Where the picture is written; ``None`` nowhere.
        on: Where to measure.
        log: Where trials are kept; ``None`` the data folder.
        held_out: Guide each run by a model that has seen no table of its iteration space.
    """

    op: str
    only: Sequence[str] = ()
    groups: Sequence[str] = ()
    trials: int = 64
    seed: int = 0
    rivals: str | None = None
    output: Path | None = None
    merge: bool = False
    files: Sequence[Path] = ()
    plot: Path | None = None
    on: str = "gpu"
    log: Path | None = None
    held_out: bool = False


def bench(options: BenchOptions, output: Output) -> int:
    """Measures or merges, and prints. Everything that was asked for is checked before any work is done.

    Returns:
        The exit code: 1 if no workload has a valid schedule.
    """
    if options.plot is not None:
        from autosched.offline.plots import check_plot

        check_plot(options.plot)
    result, interrupted = (_merged(options), False) if options.merge else _measured(options, output)
    found = not all(row.failed for row in result.rows)
    drawn = options.plot if any(row.ratio is not None for row in result.rows) else None
    if drawn is not None:
        result.plot(drawn)
    output.result(result.to_dict(), lambda: bench_view.view(result, plot=drawn, interrupted=interrupted))
    if interrupted:
        return int(Exit.INTERRUPTED)
    return int(Exit.DONE if found else Exit.NOTHING_VALID)


def _merged(options: BenchOptions) -> Bench:
    from autosched.benching import Bench
    from autosched.benching.shards import append_row, check_appendable

    if not options.files:
        raise UsageError("--merge without files", "name files that -o wrote or --json printed")
    if options.only or options.groups:
        raise UsageError("--only or --class beside --merge", "merging keeps every row of the op")
    if options.output is not None and options.output.exists():
        raise InvalidInputError(f"-o {options.output} is there already", "merge into a new file")
    if options.output is not None:
        check_appendable(options.output)
    result = Bench.merge(options.files, options.op)
    if options.output is not None:
        for row in result.rows:
            append_row(options.output, row)
    return result


def _measured(options: BenchOptions, output: Output) -> tuple[Bench, bool]:
    """The rows, and whether Ctrl-C ended the run."""
    from autosched.benching import bench as body
    from autosched.benching import load_suite

    if options.files:
        raise UsageError(f"file {options.files[0]} without --merge", "give --merge to show its rows")
    load_suite(options.op, only=options.only, groups=options.groups)  # refused before a GPU is looked for
    _check_place(options.on)
    with BenchDisplay(output.err, lines=not output.json) as display:
        try:
            result = body(
                options.op,
                only=options.only,
                groups=options.groups,
                trials=options.trials,
                seed=options.seed,
                rivals=None if options.rivals is None else [x.strip() for x in options.rivals.split(",") if x.strip()],
                output=options.output,
                log=options.log,
                held_out=options.held_out,
                on_row=display.row,
                progress=display,
            )
        except TuningInterrupted as error:
            interrupted: Bench = error.result
            if not interrupted.rows:
                raise
            return interrupted, True
    return result, False


def _check_place(on: str) -> None:
    """Refuse a place without a GPU.

    Raises:
        InvalidInputError: ``on`` is no place at all.
        NoDeviceError: There are no rivals there.
    """
    place = parse_place(on)
    if place.kind == "recorded":
        raise NoDeviceError(
            f"--on {on}: rivals are run beside autosched, and a recorded table cannot run them",
            "run it on a machine with an NVIDIA GPU; autosched simulate judges searches on recorded tables",
        )
    found = find_gpus()
    if not found.gpus:
        raise NoDeviceError(found.problem, "run it on a machine with an NVIDIA GPU, or show finished rows with --merge")


class BenchDisplay:
    """The display of a benchmark while it goes: the run that tunes now, and a line for each finished row.

    Args:
        console: Where to show it.
        lines: Print a line a row where the console is no terminal.
    """

    def __init__(self, console: Console, *, lines: bool = True) -> None:
        self.console = console
        self.lines = lines
        self._of = ""
        self._title = ""
        self._tuning: TuningProgress | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop()

    def __call__(self, now: BenchProgress) -> None:
        """Shows it."""
        self._of = f"{now.index + 1} of {now.workloads}"
        title = f"{self._of}: {now.workload.label}"
        if title != self._title:
            self._stop()
            self._title = title
            self._tuning = TuningProgress(self.console, title, lines=False)
            self._tuning.__enter__()
        if self._tuning is not None and now.tuning is not None:
            self._tuning(replace(now.tuning, phase=_PHASES.get(now.phase, now.tuning.phase)))

    def row(self, row: BenchRow) -> None:
        """Tells a finished row."""
        self._stop()
        if self.lines or self.console.is_terminal:
            self.console.print(Text(f"{self._of}: {bench_view.line(row)}"), soft_wrap=True)

    def _stop(self) -> None:
        if self._tuning is not None:
            self._tuning.__exit__(None, None, None)
            self._tuning = None
