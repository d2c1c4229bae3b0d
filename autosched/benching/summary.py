"""What the rows of a benchmark come to: geometric means with their intervals, and where rivals are ahead."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from autosched.benching.row import BenchRow
from autosched.benching.suite import ODD_STRIDES
from autosched.models.metrics import geometric_mean
from autosched.offline.figures import interval

#: A ratio counts for no more than this in a mean, so that no single row carries it.
CAP = 1.25

#: Geometric means against the vendor library to reach with 64 trials, by op and class.
GOALS: Mapping[str, Mapping[str, float]] = {
    "gemm": {"large": 1.03, "medium": 1.08, "skinny": 1.08, "long_k": 1.06, "awkward": 1.02},
}
#: The same for the headline rows of an op.
HEADLINE_GOALS: Mapping[str, float] = {"conv2d": 1.15}


@dataclass(frozen=True)
class Mean:
    """A geometric mean of ratios, each capped at ``CAP``.

    Attributes:
        value: The mean.
        interval: 95%, bootstrapped over the rows; ``None`` for a single row.
        rows: How many rows it is over.
    """

    value: float
    interval: tuple[float, float] | None
    rows: int


@dataclass(frozen=True)
class Standing:
    """How a rival does against autosched.

    Attributes:
        ahead: Labels of the rows where autosched is faster.
        tied: Labels of those where the interval holds 1.
        behind: Labels of those where the rival is faster, with the ratio, which is ``None`` where autosched had
            nothing valid yet.
        mean: Of the ratios, rival's time over autosched's; ``None`` if there are none.
    """

    ahead: tuple[str, ...]
    tied: tuple[str, ...]
    behind: Mapping[str, float | None]
    mean: Mean | None

    @property
    def rows(self) -> int:
        """Rows that it is about."""
        return len(self.ahead) + len(self.tied) + len(self.behind)

    def to_dict(self) -> dict[str, Any]:
        """JSON-able."""
        return {
            "rows": self.rows,
            "ahead": len(self.ahead),
            "tied": len(self.tied),
            "behind": len(self.behind),
            "geomean": _value(self.mean),
            "interval": _interval(self.mean),
            "tied_rows": list(self.tied),
            "behind_rows": dict(self.behind),
        }


@dataclass(frozen=True)
class RivalSummary:
    """A rival over all rows.

    Attributes:
        standing: Against what autosched chose in the end.
        equal_seconds: Against what autosched had after the seconds that the rival tuned for, on the rows where it did.
        failed: Labels of the rows where it has no figure, with the reason.
    """

    standing: Standing
    equal_seconds: Standing
    failed: Mapping[str, str]

    def to_dict(self) -> dict[str, Any]:
        """JSON-able."""
        return {
            **self.standing.to_dict(),
            "failed": dict(self.failed),
            "equal_seconds": self.equal_seconds.to_dict() if self.equal_seconds.rows else None,
        }


@dataclass(frozen=True)
class Summary:
    """What rows come to. Means are over the rows that have a ratio.

    Attributes:
        geomean: Over the headline rows: bf16, nn or NHWC, nothing but the product, not grouped, strides not odd.
        with_odd_strides: The same with the rows of odd strides; ``None`` where there are none.
        by_class: Over the bf16 nn rows of each class.
        everything: Over all rows: other dtypes and layouts, epilogues, dynamic sizes.
        rivals: By name.
        rows: Rows in all.
        failed: Labels of the rows that have no valid schedule, with the reason.
    """

    geomean: Mean | None
    with_odd_strides: Mean | None
    by_class: Mapping[str, Mean]
    everything: Mean | None
    rivals: Mapping[str, RivalSummary]
    rows: int
    failed: Mapping[str, str]

    def to_dict(self) -> dict[str, Any]:
        """JSON-able; ``None`` where a mean has no rows."""
        return {
            "geomean": _value(self.geomean),
            "geomean_with_odd_strides": _value(self.with_odd_strides),
            "geomean_by_class": {name: mean.value for name, mean in self.by_class.items()},
            "geomean_all": _value(self.everything),
            "intervals": {
                "geomean": _interval(self.geomean),
                "geomean_with_odd_strides": _interval(self.with_odd_strides),
                "geomean_by_class": {name: _interval(mean) for name, mean in self.by_class.items()},
                "geomean_all": _interval(self.everything),
            },
            "cap": CAP,
            "failed": dict(self.failed),
            "rivals": {name: rival.to_dict() for name, rival in self.rivals.items()},
        }


def summarize(rows: Sequence[BenchRow]) -> Summary:
    """The summary of rows."""
    plain = [row for row in rows if row.plain]
    odd = any(row.group == ODD_STRIDES for row in plain)
    classes = {group: _mean_of(row for row in plain if row.group == group) for group in _unique(r.group for r in plain)}
    return Summary(
        geomean=_mean_of(row for row in rows if row.headline),
        with_odd_strides=_mean_of(r for r in plain if r.headline or r.group == ODD_STRIDES) if odd else None,
        by_class={group: mean for group, mean in classes.items() if mean is not None},
        everything=_mean_of(rows),
        rivals={name: _rival(rows, name) for name in _unique(name for row in rows for name in row.rivals)},
        rows=len(rows),
        failed={row.label: row.error or row.status for row in rows if row.failed},
    )


def capped_mean(ratios: Iterable[float]) -> Mean | None:
    """The geometric mean of ratios, each capped at ``CAP``; ``None`` of none. Same ratios, same interval."""
    values = np.minimum(np.array(list(ratios), np.float64), CAP)
    if not len(values):
        return None
    bounds = None
    if len(values) > 1:
        named = {f"{i:06d}": float(value) for i, value in enumerate(values)}
        bounds = interval(named, {name: name for name in named}, np.random.default_rng(0), logs=True)
    return Mean(geometric_mean(values), bounds, len(values))


def _mean_of(rows: Iterable[BenchRow]) -> Mean | None:
    return capped_mean(row.ratio for row in rows if row.ratio is not None)


def _rival(rows: Sequence[BenchRow], name: str) -> RivalSummary:
    found = {row.label: row.rivals[name] for row in rows if name in row.rivals}
    now = {label: (rival.ratio, rival.ahead) for label, rival in found.items() if rival.ratio is not None}
    then = {
        label: (rival.equal_seconds.ratio, rival.equal_seconds.ahead)
        for label, rival in found.items()
        if rival.equal_seconds is not None
    }
    failed = {label: rival.error or "no figure" for label, rival in found.items() if rival.ratio is None}
    return RivalSummary(_standing(now), _standing(then), failed)


def _standing(found: Mapping[str, tuple[float | None, bool | None]]) -> Standing:
    def those(test: Callable[[bool | None], bool]) -> tuple[str, ...]:
        return tuple(label for label, (_, ahead) in found.items() if test(ahead))

    return Standing(
        ahead=those(lambda ahead: ahead is True),
        tied=those(lambda ahead: ahead is None),
        behind={label: found[label][0] for label in those(lambda ahead: ahead is False)},
        mean=capped_mean(ratio for ratio, _ in found.values() if ratio is not None),
    )


def _unique(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(names))


def _value(mean: Mean | None) -> float | None:
    return None if mean is None else mean.value


def _interval(mean: Mean | None) -> list[float] | None:
    return None if mean is None or mean.interval is None else list(mean.interval)
