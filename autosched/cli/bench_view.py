"""The table of a benchmark for people: rows, means by class beside their goals, and where rivals are ahead."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from autosched.benching.row import VENDORS, BenchRow, RivalRow
from autosched.benching.summary import CAP, GOALS, HEADLINE_GOALS, Mean, RivalSummary, Standing
from autosched.cli import render

if TYPE_CHECKING:
    from autosched.benching.result import Bench

_FEW = 6
_FOUR = 4  # sizes before a long shape may wrap
_TIE = "~"


def line(row: BenchRow) -> str:
    """A finished row in one line."""
    if row.latency_us is None:
        return f"{row.label}: failed, {row.error or row.status}"
    ratios = [f"{name} {_ratio(rival)}" for name, rival in row.rivals.items()]
    return f"{row.label}: {render.microseconds(row.latency_us)}, {', '.join(ratios)}, {render.duration(row.seconds)}"


def view(bench: Bench, *, plot: Path | None = None, interrupted: bool = False) -> RenderableType:
    """What people see.

    Args:
        bench: The rows.
        plot: Where the picture was written.
        interrupted: Whether Ctrl-C ended the run.
    """
    summary = bench.summary
    measured = f"{summary.rows - len(summary.failed)} of {summary.rows} workloads"
    head: list[tuple[str, str | Text]] = [
        ("device", bench.device or "none"),
        ("measured", Text(f"{measured}, interrupted", style="yellow") if interrupted else measured),
        ("runs", ", ".join(bench.runs)),
        ("time", render.duration(bench.seconds)),
    ]
    if plot is not None:
        head.append(("picture", str(plot)))
    parts: list[RenderableType] = [Text(f"bench {bench.op}", style="bold"), render.rows(head), Text(), _rows(bench)]
    note = (
        f"Ratios: rival's time / autosched's, above 1 autosched is faster; ± half of its 95% interval; "
        f"{_TIE} a tie: the interval holds 1."
    )
    parts.append(Text(note, style="dim"))
    if means := _means(bench):
        parts += [Text(), means, Text(f"Geometric means, each ratio capped at {CAP}.", style="dim")]
    parts.append(Text())
    short = {row.label: _short(row) for row in bench.rows}
    parts.append(render.rows(line for name, rival in summary.rivals.items() for line in _sentences(name, rival, short)))
    parts += [Text(f"failed: {short[label]}: {error}", style="red") for label, error in summary.failed.items()]
    return Group(*parts)


def _table(*names: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    for i, name in enumerate(names):
        header = name.replace(".", "\n").replace("-", "\n")
        table.add_column(header, justify="left" if i == 0 else "right", no_wrap=i > 0, overflow="fold")
    return table


def _rows(bench: Bench) -> Table:
    """A row a workload."""
    names = list(bench.summary.rivals)
    table = _table("workload", "class", "us", *names, "trials", "s")
    table.columns[1].justify = "left"
    table.columns[0].min_width = max(len(word) for row in bench.rows for word in _short(row).split())
    for row in bench.rows:
        latency = Text("failed", style="red") if row.latency_us is None else Text(_number(row.latency_us))
        rivals = (_cell(name, row.rivals.get(name)) for name in names)
        table.add_row(_short(row), row.group, latency, *rivals, str(row.trials), f"{row.seconds:.1f}")
    return table


def _short(row: BenchRow) -> str:
    """The workload in few words: the op is in the title, bf16, nn and NHWC go without saying; long shapes may wrap."""
    words = (word for word in row.words if word not in ("bf16", "nn", "nhwc"))
    head, rest = row.shape[:_FOUR], row.shape[_FOUR:]
    sizes = [",".join(map(str, head)) + ("," if rest else ""), ",".join(map(str, rest))]
    return " ".join(word for word in (*sizes, *words) if word)


def _cell(name: str, rival: RivalRow | None) -> Text:
    """A ratio; for the vendor library with half the width of its interval, the wider half."""
    if rival is None or rival.ratio is None:
        return Text("-")
    words = _ratio(rival)
    if name in VENDORS and rival.interval is not None:
        half = max(rival.ratio - rival.interval[0], rival.interval[1] - rival.ratio)
        words += f" ±{half:.3f}".replace("±0.", "±.")
    return Text(words, style={True: "green", None: "yellow", False: "red"}[rival.ahead])


def _ratio(rival: RivalRow) -> str:
    if rival.ratio is None:
        return "-"
    return f"{rival.ratio:.3f}{_TIE if rival.ahead is None else ''}"


def _number(us: float) -> str:
    return f"{us:.4g}" if us < 1000 else f"{us:.0f}"


def _means(bench: Bench) -> Table | None:
    """The means against the vendor library beside what they are to reach."""
    summary, goals = bench.summary, GOALS.get(bench.op, {})
    lines: list[tuple[str, Mean | None, float | None]] = [
        (name, mean, goals.get(name)) for name, mean in summary.by_class.items()
    ]
    lines.append(("headline", summary.geomean, HEADLINE_GOALS.get(bench.op)))
    lines.append(("with odd strides", summary.with_odd_strides, None))
    lines.append(("all rows", summary.everything, None))
    table = _table("against the vendor library", "rows", "geomean", "95% interval", "goal", "reached")
    for name, mean, goal in lines:
        if mean is not None:
            table.add_row(name, str(mean.rows), f"{mean.value:.3f}", _interval(mean), *_goal(mean, goal))
    return table if table.row_count else None


def _interval(mean: Mean) -> str:
    return "-" if mean.interval is None else "{:.3f} to {:.3f}".format(*mean.interval)


def _goal(mean: Mean, goal: float | None) -> tuple[str, Text]:
    if goal is None:
        return "-", Text("-")
    reached = mean.value >= goal
    return f"{goal:.2f}", Text("yes" if reached else "no", style="green" if reached else "red")


def _sentences(name: str, rival: RivalSummary, short: Mapping[str, str]) -> list[tuple[str, str | Text]]:
    """Where autosched is ahead of a rival, and where not: a line each."""
    total = rival.standing.rows + len(rival.failed)
    lines: list[tuple[str, str | Text]] = [(name, words) for words in _standing(rival.standing, total, short)]
    if rival.failed:
        lines.append((name, f"no figure on {len(rival.failed)}: {_few([short[label] for label in rival.failed])}"))
    if rival.equal_seconds.rows:
        first, *others = _standing(rival.equal_seconds, rival.equal_seconds.rows, short)
        lines += [(name, f"at equal seconds of tuning, {first}"), *((name, words) for words in others)]
    return [(label if i == 0 else "", words) for i, (label, words) in enumerate(lines)]


def _standing(standing: Standing, total: int, short: Mapping[str, str]) -> list[str]:
    mean = "" if standing.mean is None else f" (geomean {standing.mean.value:.3f})"
    lines = [f"autosched is ahead on {len(standing.ahead)} of {total} rows{mean}"]
    if standing.tied:
        lines.append(f"tied on {len(standing.tied)}: {_few([short[label] for label in standing.tied])}")
    if standing.behind:
        told = [
            f"{short[label]} ({'nothing valid yet' if ratio is None else f'{ratio:.3f}'})"
            for label, ratio in standing.behind.items()
        ]
        lines.append(f"behind on {len(told)}: {'; '.join(told)}")
    return lines


def _few(names: Sequence[str]) -> str:
    """The first names; --json has the others."""
    return "; ".join(names[:_FEW]) + (f" and {len(names) - _FEW} more" if len(names) > _FEW else "")
