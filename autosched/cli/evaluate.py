"""``autosched evaluate``: how good a cost model is on workloads that it has not seen, beside the baselines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from autosched.cli.errors import Exit
from autosched.cli.output import Output
from autosched.cli.render import rows
from autosched.models.metrics import TOP

if TYPE_CHECKING:
    from autosched.offline.evaluation import Evaluation, Pool
    from autosched.offline.figures import Difference

_WORDS = {
    "pairwise_accuracy": "pairs",
    "pairwise_top_quarter": "pairs, top 1/4",
    "pairwise_ceiling": "pairs, ceiling",
    "spearman": "spearman",
}
_TOLD = ("top1", "top8")
_NO_VALUE = "-"


@dataclass(frozen=True)
class EvaluateOptions:
    """The options of ``autosched evaluate`` as they were given.

    Attributes:
        recipe: Kind of model to train; ``None`` for the default one.
        model: A trained model's file.
        split: How rows are parted.
        folds: Parts of the iteration spaces.
        seed: Of training, halves and intervals.
        plot: Where the picture is drawn; ``None`` nowhere.
    """

    recipe: str | None = None
    model: Path | None = None
    split: str = "by-workload"
    folds: int = 5
    seed: int = 0
    plot: Path | None = None


def evaluate(logs: Sequence[Path], options: EvaluateOptions, output: Output) -> int:
    """Judges a recipe or a model and prints the figures.

    Returns:
        The exit code.
    """
    from autosched.offline.evaluation import evaluate as judge

    if options.plot is not None:
        from autosched.offline.plots import check_plot

        check_plot(options.plot)
    with output.err.status("reading") as status:
        found = judge(
            logs,
            recipe=options.recipe,
            model=options.model,
            split=options.split,
            folds=options.folds,
            seed=options.seed,
            progress=lambda done, parts: status.update(f"training: {done} of {parts} parts done"),
        )
    if options.plot is not None:
        found.plot(options.plot)
    output.result(found.to_dict(), lambda: view(found, options.plot))
    return int(Exit.DONE)


def view(found: Evaluation, plot: Path | None = None) -> RenderableType:
    """What people get."""
    what = f"model {found.model}" if found.model else f"recipe {found.recipe}"
    lines: list[tuple[str, str | Text]] = [
        ("judged", f"{found.spaces} iteration spaces, {found.all.rows} schedules"),
        ("split", _split(found)),
    ]
    if found.seen:
        lines.append(("seen", f"{found.seen} iteration spaces that it was trained on are left out"))
    if found.unjudged:
        lines.append(("unjudged", f"{found.unjudged} workloads: the split leaves nothing to learn from"))
    if found.unstated:
        lines.append(("left out", f"{found.unstated} trials that state no stratum"))
    if found.skipped:
        lines.append(("skipped", f"{found.skipped} trials that this version cannot rebuild"))
    if plot is not None:
        lines.append(("picture", str(plot)))
    parts: list[RenderableType] = [Text(f"Evaluation of {what}", style="bold"), rows(lines)]
    parts += [Text(), _figures("Order of the uniform rows", found.all, list(_WORDS))]
    tops = [f"top{k}" for k in TOP]
    for title, pool in (("Shortlists from all rows", found.all), ("Shortlists from uniform rows", found.uniform)):
        if pool is not None:
            parts += [Text(), _figures(title, pool, tops), Text(), _advantage(pool)]
    parts += [Text(), _workloads(found)]
    return Group(*parts)


def _split(found: Evaluation) -> str:
    if found.model:
        return "workloads that the model was not trained on"
    if found.split == "within":
        return "within: half of each workload's rows trained on, half judged; this flatters"
    return f"{found.split}, {found.parts} models trained, each judged on what was held out"


def _figures(title: str, pool: Pool, names: Sequence[str]) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("figure", no_wrap=True)
    table.add_column("model [95% interval]", no_wrap=True)
    for baseline in pool.baselines:
        table.add_column(baseline, justify="right", no_wrap=True)
    for name in names:
        low, high = pool.figures.intervals[name]
        own = _number(pool.figures.means[name])
        if name != "pairwise_ceiling":
            own += f" [{_number(low)}, {_number(high)}]"
        theirs = [_number(figures.means[name]) for figures in pool.baselines.values()]
        table.add_row(_WORDS.get(name, name), own, *theirs)
    return table


def _advantage(pool: Pool) -> Table:
    """The model less each baseline, and whether the interval leaves zero out."""
    title = "The model less the baseline, paired by workload"
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("baseline", no_wrap=True, min_width=8)
    for figure in _TOLD:
        table.add_column(f"{figure} [95% interval]", no_wrap=True)
    for baseline, by_figure in pool.advantage.items():
        table.add_row(baseline, *(_difference(by_figure[figure]) for figure in _TOLD))
    return table


def _difference(value: Difference) -> Text:
    style = "green" if value.low > 0 else "red" if value.high < 0 else ""
    verdict = "ahead" if value.low > 0 else "behind" if value.high < 0 else "tie"
    if value.mean != value.mean:
        return Text(_NO_VALUE)
    return Text(f"{value.mean:+.3f} [{value.low:+.3f}, {value.high:+.3f}] {verdict}", style=style)


def _workloads(found: Evaluation) -> Table:
    table = Table(title="Workloads", title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("M x N x K", overflow="fold")
    table.add_column("family", no_wrap=True)
    for name in ("pairs", *_TOLD, *(f"uniform\n{figure}" for figure in _TOLD)):
        table.add_column(name, justify="right", no_wrap=True)
    uniform = found.uniform.figures.values if found.uniform is not None else {}
    for name, workload in found.workloads.items():
        values = found.all.figures.values
        table.add_row(
            workload.label,
            workload.family,
            *(_number(values[figure][name]) for figure in ("pairwise_accuracy", *_TOLD)),
            *(_number(uniform.get(figure, {}).get(name, float("nan"))) for figure in _TOLD),
        )
    return table


def _number(value: float) -> str:
    return f"{value:.3f}" if value == value else _NO_VALUE
