"""The picture of a simulation: fraction of the best against trials."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from autosched.offline.simulation_result import ARGMAX, Simulation

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Colours that people with any colour vision tell apart (Okabe and Ito), in the order of the strategies.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
#: Lines that lie upon each other stay visible: every third one is dashed, every third one dash-dotted.
STYLES = ("-", "--", "-.")
_POINTS = 48


def save(simulation: Simulation, path: Path) -> Path:
    """Draw and write; the file's suffix says the format.

    Raises:
        ModuleNotFoundError: matplotlib is not installed.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2, 4.4), dpi=150, layout="constrained")
    draw(simulation, figure.add_subplot())
    figure.savefig(path)
    return path


def draw(simulation: Simulation, axes: Axes) -> None:
    """Draw a line and the band of its 95% interval for each strategy, and a dotted line for the model's argmax."""
    last = simulation.budgets[-1]
    start = max(1, simulation.budgets[0] // 4)  # before that a run has little but its first, default schedule
    trials = np.unique(np.round(np.geomspace(start, last, _POINTS)).astype(int))
    bottom = 1.0
    for i, name in enumerate(simulation.strategies):
        colour = COLOURS[i % len(COLOURS)]
        found = [simulation.score(name, int(n)) for n in trials]
        style = STYLES[i % len(STYLES)]
        axes.plot(trials, [f.value for f in found], style, color=colour, label=name, linewidth=1.8, zorder=3)
        axes.fill_between(
            trials, [f.low for f in found], [f.high for f in found], color=colour, alpha=0.12, linewidth=0, zorder=2
        )
        bottom = min(bottom, found[trials.searchsorted(simulation.budgets[0])].low)
    if ARGMAX in simulation.curves:
        values = [simulation.score(ARGMAX, int(n)).value for n in trials]
        axes.plot(trials, values, color="#555555", linestyle=":", linewidth=1.4, label="argmax of the model", zorder=3)
    axes.set_xscale("log", base=2)
    ticks = sorted({2**i for i in range(last.bit_length()) if start <= 2**i <= last} | set(simulation.budgets))
    axes.set_xticks(ticks, [str(n) for n in ticks])
    axes.minorticks_off()
    if start < last:
        axes.set_xlim(start, last)
    axes.set_ylim(max(0.0, np.floor((bottom - 0.02) * 20) / 20), 1.005)
    axes.set_xlabel("trials")
    axes.set_ylabel("best of the table / best found")
    axes.grid(color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    n = len(simulation.workloads)
    axes.set_title(
        f"{n} recorded workload{'s' if n > 1 else ''}, {', '.join(simulation.devices)}; "
        f"{simulation.seeds} seed{'s' if simulation.seeds > 1 else ''}; band: 95% interval",
        fontsize=10,
        loc="left",
    )
    axes.legend(loc="lower right", frameon=False)
