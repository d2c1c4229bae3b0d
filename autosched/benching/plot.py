"""The picture of a benchmark: ratio by workload with its interval, by class, rivals beside the vendor library."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from autosched.benching.row import BenchRow
from autosched.benching.summary import GOALS
from autosched.errors import InvalidInputError
from autosched.offline.plots import check_plot
from autosched.offline.simulation_plot import COLOURS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from autosched.benching.result import Bench

_MARKS = "osD^vP"
_LINE = 0.26  # inches a workload
_GAP = 0.9  # lines between classes
_WIDEST = 2.5  # ratios beyond it are drawn at the edge


def draw(bench: Bench, path: Path) -> Path:
    """Draws ``bench`` into ``path``.

    Raises:
        InvalidInputError: As ``check_plot``, or no row has a ratio.
        UsageError: matplotlib is not installed.
    """
    check_plot(path)
    rows = [row for row in bench.rows if any(rival.ratio is not None for rival in row.rivals.values())]
    if not rows:
        raise InvalidInputError(f"no row of {bench.op} has a ratio to draw", "see the errors of its rows")
    from matplotlib.figure import Figure

    classes = list(dict.fromkeys(row.group for row in rows))
    rows.sort(key=lambda row: classes.index(row.group))
    figure = Figure(figsize=(8.4, 1.6 + _LINE * (len(rows) + _GAP * len(classes))), dpi=150, layout="constrained")
    axes = figure.add_subplot()
    _points(axes, rows, _places(rows))
    _goals(axes, rows, _places(rows), bench.op)
    axes.axvline(1.0, color="black", linewidth=1, zorder=1)
    axes.set_xlabel("rival's time / autosched's time: right of 1, autosched is faster")
    axes.grid(axis="x", color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    device = f", {bench.device}" if bench.device else ""
    axes.set_title(f"{bench.op}{device}; {len(rows)} workloads; bars: 95% interval", fontsize=10, loc="left")
    figure.legend(loc="outside lower center", ncols=4, frameon=False, fontsize=9)
    figure.savefig(path)
    return path


def _places(rows: Sequence[BenchRow]) -> list[float]:
    """Each row's height, with a gap before every class."""
    places: list[float] = []
    at, group = 0.0, rows[0].group
    for row in rows:
        at += 1.0 if row.group == group else 1.0 + _GAP
        group = row.group
        places.append(at)
    return places


def _points(axes: Axes, rows: Sequence[BenchRow], places: Sequence[float]) -> None:
    """A mark a rival and row; a ratio that lies beyond the edge is an arrow there with its value."""
    names = list(dict.fromkeys(name for row in rows for name in row.rivals))
    lowest, highest = 0.9, 1.1
    for i, name in enumerate(names):
        colour = COLOURS[i % len(COLOURS)]
        shift = 0.22 * (i - (len(names) - 1) / 2)
        mark = _MARKS[i % len(_MARKS)]
        axes.plot([], [], mark, color=colour, markersize=4.5, label=name)
        for row, place in zip(rows, places, strict=True):
            rival = row.rivals.get(name)
            if rival is None or rival.ratio is None:
                continue
            low, high = rival.interval or (rival.ratio, rival.ratio)
            lowest, highest = min(lowest, low), max(highest, min(high, _WIDEST))
            y, x = place + shift, min(rival.ratio, _WIDEST)
            axes.plot([min(low, _WIDEST), min(high, _WIDEST)], [y, y], color=colour, linewidth=1.2, zorder=2)
            axes.plot([x], [y], mark if rival.ratio <= _WIDEST else ">", color=colour, markersize=4.5, zorder=3)
            if rival.ratio > _WIDEST:
                axes.annotate(
                    f"{rival.ratio:.1f} ", (x, y), fontsize=6, color=colour, va="center", ha="right", xytext=(-4, 0),
                    textcoords="offset points",
                )  # fmt: skip
    margin = 0.03 * (highest - lowest)
    axes.set_xlim(lowest - margin, highest + margin)
    axes.set_yticks(places, [" ".join(row.label.split(" ")[1:]) for row in rows], fontsize=8)
    axes.set_ylim(places[-1] + 0.8, places[0] - 1.2)
    first = {row.group: place for row, place in zip(reversed(rows), reversed(places), strict=True)}
    for group, place in first.items():
        axes.annotate(
            group, (0.0, place - 0.85), xycoords=("axes fraction", "data"), fontsize=8, fontweight="bold",
            va="center", ha="right", xytext=(-8, 0), textcoords="offset points",
        )  # fmt: skip


def _goals(axes: Axes, rows: Sequence[BenchRow], places: Sequence[float], op: str) -> None:
    """A dotted line over the plain rows of a class at the mean that they are to reach."""
    label: str | None = "goal for the class against the vendor library"
    for group, goal in GOALS.get(op, {}).items():
        own = [place for row, place in zip(rows, places, strict=True) if row.group == group and row.plain]
        if own:
            axes.plot(
                [goal, goal], [min(own) - 0.5, max(own) + 0.5], color="#555555", linestyle=":", linewidth=1.4,
                label=label, zorder=1,
            )  # fmt: skip
            label = None
