"""Pictures of an evaluation: shortlists of model and baselines, and predicted against measured latency."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from autosched.errors import InvalidInputError, UsageError
from autosched.models.metrics import TOP
from autosched.offline.figures import LONGEST

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from autosched.offline.evaluation import Evaluation, Pool

#: Endings of a picture's name.
ENDINGS = (".png", ".svg", ".pdf")
_COLOURS = {"model": "#0b3c8c", "nearest": "#d1495b", "roofline": "#3a8f5c", "default": "#c98a1b", "random": "#777777"}
_TICKS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000)


def check_plot(path: Path) -> None:
    """Refuse a picture that could not be drawn.

    Raises:
        InvalidInputError: The name has an ending that is none of ``ENDINGS``, or its folder is not there.
        UsageError: matplotlib is not installed.
    """
    if path.suffix.lower() not in ENDINGS:
        raise InvalidInputError(f"picture {path} ends in {path.suffix!r}", f"end it in {', '.join(ENDINGS)}")
    if not path.absolute().parent.is_dir():
        raise InvalidInputError(f"picture {path}: its folder is not there", "make the folder first")
    if importlib.util.find_spec("matplotlib") is None:
        raise UsageError("matplotlib is not installed, and pictures need it", "pip install 'autosched[plot]'")


def draw(evaluation: Evaluation, path: Path) -> None:
    """Draws ``evaluation`` into ``path``; raises what ``check_plot`` raises."""
    check_plot(path)
    from matplotlib.figure import Figure

    pools = {"all recorded rows": evaluation.all, "rows drawn uniformly": evaluation.uniform}
    shown = {title: pool for title, pool in pools.items() if pool is not None}
    figure = Figure(figsize=(4.6 * len(shown) + 7.4, 4.8), layout="constrained")
    panels = figure.subplots(1, len(shown) + 1, width_ratios=[1.0] * len(shown) + [1.15])
    lowest = min(_lowest(pool) for pool in shown.values())
    for axes, (title, pool) in zip(panels, shown.items(), strict=False):
        _shortlists(axes, title, pool, evaluation.recipe)
        axes.set_ylim(max(0.0, lowest - 0.05), 1.02)
    panels[0].set_ylabel("best latency / best among the first k")
    panels[0].legend(loc="lower right", fontsize=9)
    _predicted(panels[-1], evaluation)
    what = evaluation.model or f"recipe {evaluation.recipe}"
    figure.suptitle(f"{what}, split {evaluation.split}, {evaluation.spaces} iteration spaces", fontsize=12)
    figure.savefig(path, dpi=150)


def _shortlists(axes: Axes, title: str, pool: Pool, recipe: str) -> None:
    """The best among the first k, as a share of the best of the pool, for k from 1 to 64."""
    sizes = np.arange(1, LONGEST + 1)
    for name, figures in {**pool.baselines, "model": pool.figures}.items():
        own = name == "model"
        label = f"model ({recipe})" if own else name
        style: dict[str, Any] = {"color": _COLOURS[name], "linewidth": 2.4 if own else 1.4, "zorder": 3 if own else 2}
        axes.plot(sizes, figures.curve, label=label, linestyle="-" if own else "--", **style)
        if own:
            low, high = np.array([figures.intervals[f"top{k}"] for k in TOP]).T
            middle = np.array([figures.means[f"top{k}"] for k in TOP])
            error = np.maximum([middle - low, high - middle], 0.0)
            axes.errorbar(TOP, middle, error, fmt="o", markersize=4, capsize=3, **{**style, "linewidth": 1.2})
    axes.set_xscale("log", base=2)
    axes.set_xticks([1, 2, 4, 8, 16, 32, 64], labels=["1", "2", "4", "8", "16", "32", "64"])
    axes.set_xlabel("schedules taken from the top, k")
    axes.set_title(f"Shortlists: {title}", fontsize=11)
    axes.grid(visible=True, alpha=0.3)


def _lowest(pool: Pool) -> float:
    curves = [figures.curve for figures in (pool.figures, *pool.baselines.values())]
    return float(min(np.nanmin(curve) for curve in curves if not np.isnan(curve).all()))


def _predicted(axes: Axes, evaluation: Evaluation) -> None:
    """Predicted against measured latency of every judged row, both in microseconds on a log scale."""
    import matplotlib as mpl
    from matplotlib.ticker import FixedFormatter, FixedLocator, NullFormatter

    found = evaluation.predictions
    names = np.array(found.workloads)
    best = {name: found.measured_us[names == name].min() for name in dict.fromkeys(found.workloads)}
    ordered = sorted(best, key=lambda name: best[name])
    colours = mpl.colormaps["turbo"](np.linspace(0.05, 0.95, len(ordered))) * [0.85, 0.85, 0.85, 1.0]  # on white
    for name, colour in zip(ordered, colours, strict=True):
        own = names == name
        axes.scatter(
            found.measured_us[own],
            found.predicted_us[own],
            s=5,
            alpha=0.45,
            linewidths=0,
            color=colour,
            label=_label(evaluation, name),
            rasterized=True,
        )
    low = float(min(found.measured_us.min(), found.predicted_us.min())) / 1.15
    high = float(max(found.measured_us.max(), found.predicted_us.max())) * 1.15
    axes.plot([low, high], [low, high], color="black", linewidth=1, zorder=0)
    for axis, scale in ((axes.xaxis, axes.set_xscale), (axes.yaxis, axes.set_yscale)):
        scale("log")
        inside = [tick for tick in _TICKS if low <= tick <= high]
        few = inside if len(inside) <= 8 else [t for t in inside if str(t)[0] == "1"]
        axis.set_major_locator(FixedLocator(few))
        axis.set_major_formatter(FixedFormatter([f"{tick:,}" for tick in few]))
        axis.set_minor_formatter(NullFormatter())
    axes.set_xlim(low, high)
    axes.set_ylim(low, high)
    axes.set_aspect("equal")
    axes.set_xlabel("measured, µs")
    axes.set_ylabel("predicted, µs")
    axes.set_title("Predicted against measured", fontsize=11)
    axes.grid(visible=True, alpha=0.3)
    size = 8 if len(ordered) <= 16 else 6
    axes.legend(
        loc="upper left", bbox_to_anchor=(1.01, 1.0), fontsize=size, markerscale=3, frameon=False, borderaxespad=0.0
    )


def _label(evaluation: Evaluation, name: str) -> str:
    """A workload in a few words; with its device where there are several."""
    workload = evaluation.workloads[name]
    several = len({w.device for w in evaluation.workloads.values()}) > 1
    return f"{workload.label} {workload.device}" if several else workload.label
