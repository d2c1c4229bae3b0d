"""``autosched simulate``: what the options mean, the progress bar, and the tables of scores and differences."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console, Group, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from autosched.cli import render
from autosched.cli.errors import Exit
from autosched.cli.output import Output
from autosched.errors import InvalidInputError, UsageError
from autosched.offline.simulation_result import ARGMAX, REFITTED, Estimate, Simulation

if TYPE_CHECKING:
    from autosched.offline.simulation import SimulationProgress

_PICTURES = (".pdf", ".png", ".svg")


@dataclass(frozen=True)
class SimulateOptions:
    """The options of ``autosched simulate`` as they were given.

    Attributes:
        logs: Files or folders.
        strategies: ``random,annealing``.
        budgets: ``8,16,64``.
        seeds: Runs of each strategy on each workload.
        folds: Base models.
        recipe: Of the base models; ``None`` for the default.
        model: A model's file, instead of base models.
        only: Extents of workloads, ``4096,4096,4096`` each; empty for all.
        table: Rows to choose from.
        plot: Where the picture is written; ``None`` nowhere.
        by_workload: Print the figures of each workload.
    """

    logs: Sequence[Path]
    strategies: str = "random,annealing"
    budgets: str = "8,16,64"
    seeds: int = 3
    folds: int = 5
    recipe: str | None = None
    model: Path | None = None
    only: Sequence[str] = ()
    table: str = "all"
    plot: Path | None = None
    by_workload: bool = False


def simulate(options: SimulateOptions, output: Output) -> int:
    """Simulates and prints. Everything that was asked for is checked before any work is done.

    Returns:
        The exit code: 1 if no run found a valid schedule.
    """
    if options.recipe is not None and options.model is not None:
        raise UsageError(f"--recipe {options.recipe} beside --model {options.model}", "give one of them")
    _check_plot(options.plot)
    budgets = _numbers("--budgets", options.budgets)
    only = [_numbers("--only", text) for text in options.only]
    from autosched.offline.simulation import simulate as body

    with _progress(output.err) as progress:
        result = body(
            options.logs,
            strategies=[name.strip() for name in options.strategies.split(",") if name.strip()],
            budgets=budgets,
            seeds=options.seeds,
            folds=options.folds,
            recipe=options.recipe or "xgboost",
            model=options.model,
            only=only or None,
            table=options.table,
            progress=progress,
        )
    if options.plot is not None:
        result.plot(options.plot)
    output.result(result.to_dict(), lambda: view(result, by_workload=options.by_workload, plot=options.plot))
    found = any(result.curves[name].any() for name in result.strategies)
    return int(Exit.DONE if found else Exit.NOTHING_VALID)


def _numbers(option: str, text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise InvalidInputError(
            f"{option} {text!r} is no list of numbers", "give whole numbers such as 8,16,64"
        ) from None


def _check_plot(path: Path | None) -> None:
    if path is None:
        return
    if path.suffix.lower() not in _PICTURES:
        raise InvalidInputError(f"--plot {path}: unknown kind of picture", f"end its name in {', '.join(_PICTURES)}")
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise InvalidInputError(f"--plot {path}: it is a folder, or its folder is not there", "make the folder first")
    if importlib.util.find_spec("matplotlib") is None:
        raise InvalidInputError("--plot needs matplotlib, which is not installed", "pip install matplotlib")


def _progress(console: Console) -> AbstractContextManager[Callable[[SimulationProgress], None] | None]:
    """A bar on a terminal; elsewhere nothing."""
    return _Bar(console) if console.is_terminal else nullcontext()


class _Bar:
    """A progress bar that takes each ``SimulationProgress``."""

    def __init__(self, console: Console) -> None:
        self._bar = Progress(
            BarColumn(20),
            MofNCompleteColumn(),
            TextColumn("runs,"),
            TimeRemainingColumn(compact=True),
            TextColumn("left, {task.description}", markup=False),
            console=console,
            transient=True,
            redirect_stdout=False,
        )
        self._task = self._bar.add_task("reading logs", total=None)

    def __enter__(self) -> Callable[[SimulationProgress], None]:
        self._bar.start()
        return self._show

    def __exit__(self, *error: object) -> None:
        self._bar.stop()

    def _show(self, now: SimulationProgress) -> None:
        self._bar.update(self._task, completed=now.done, total=now.runs, description=now.doing.partition("/")[0])


def view(result: Simulation, *, by_workload: bool = False, plot: Path | None = None) -> RenderableType:
    """What people see: scores with their intervals, differences, and the figures of each workload if asked."""
    guide = {"": "no model is asked", "model": "the given model, which has seen none of the workloads"}.get(
        result.guide, f"{result.folds} base models ({result.guide}), none guides a workload that it has seen"
    )
    lines: list[tuple[str, str | Text]] = [
        ("device", ", ".join(result.devices)),
        ("workloads", f"{len(result.workloads)} of {result.spaces} iteration spaces, {_rows(result)}"),
        ("runs", f"{result.seeds} seeds of each strategy on each workload"),
        ("guide", guide),
    ]
    if result.left_out:
        lines.append(("left out", f"{len(result.left_out)} workloads: {_reasons(result)}"))
    if result.empty:
        lines.append(
            ("empty", f"{result.empty} runs found nothing valid in {result.budgets[0]} trials; they count as 0")
        )
    lines.append(("time", render.duration(result.seconds.get("total", 0.0))))
    if plot is not None:
        lines.append(("picture", str(plot)))
    parts: list[RenderableType] = [render.rows(lines), Text(), _scores(result)]
    pairs = [(a, b) for a, b in result.pairs if b in (result.strategies[0], ARGMAX, REFITTED)]
    if pairs:
        parts += [Text(), _differences(result, pairs)]
        if len(pairs) < len(result.pairs):
            parts.append(Text("--json holds every pair of strategies.", style="dim"))
    return Group(*parts, *(_workloads(result) if by_workload else ()))


def _rows(result: Simulation) -> str:
    return "all rows" if result.table == "all" else "rows of an unguided draw"


def _reasons(result: Simulation) -> str:
    reasons = {"seen": "the model has seen them", "no valid row": "no row is valid", "not rebuilt": "unknown here"}
    found = dict.fromkeys(w.reason for w in result.left_out)
    return ", ".join(f"{sum(w.reason == r for w in result.left_out)} {reasons[r]}" for r in found)


def _columns(*names: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for i, name in enumerate(names):
        table.add_column(name, justify="left" if i == 0 else "right", no_wrap=True)
    return table


def _cells(found: Estimate, sign: str = "") -> tuple[str, str]:
    return f"{found.value:{sign}.4f}", f"{found.low:{sign}.4f} to {found.high:{sign}.4f}"


def _scores(result: Simulation) -> Table:
    """A row a strategy and budget."""
    table = _columns("strategy", "trials", "of the best", "95% interval")
    for name in result.curves:
        for n in result.budgets:
            style = "" if name in result.strategies else "dim"
            table.add_row(name if n == result.budgets[0] else "", str(n), *_cells(result.score(name, n)), style=style)
    return table


def _differences(result: Simulation, pairs: Sequence[tuple[str, str]]) -> Table:
    table = _columns("difference", "trials", "paired", "95% interval", "apart")
    for strategy, reference in pairs:
        for n in result.budgets:
            found = result.difference(strategy, reference, n)
            label = f"{strategy} - {reference}" if n == result.budgets[0] else ""
            table.add_row(label, str(n), *_cells(found, "+"), "yes" if found.apart else "no")
    return table


def _workloads(result: Simulation) -> list[RenderableType]:
    parts: list[RenderableType] = []
    for w, workload in enumerate(result.workloads):
        table = _columns("", *(f"{n} trials" for n in result.budgets))
        for name in result.curves:
            table.add_row(name, *(f"{result.fractions(name, n)[w].mean():.4f}" for n in result.budgets))
        best = f", {workload.schedules} schedules, best {render.microseconds(workload.best_us)}"
        parts += [Text(), Text.assemble((f"{workload.key} on {workload.device}", "bold"), best), table]
    return parts
