"""What a benchmark gives back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from autosched.benching.row import BenchRow
from autosched.benching.shards import FORMAT, merge_rows
from autosched.benching.summary import GOALS, HEADLINE_GOALS, Summary, summarize


@dataclass(frozen=True)
class Bench:
    """The rows of a benchmark.

    Attributes:
        op: Name of the operator.
        rows: One a workload.
        seconds: Wall clock of the run; the rows' seconds of tuning where shards were merged.
    """

    op: str
    rows: tuple[BenchRow, ...]
    seconds: float = 0.0

    @classmethod
    def merge(cls, paths: Sequence[str | Path], op: str) -> Bench:
        """The rows of shards; of two rows of one workload the later one.

        Args:
            paths: Files that ``output`` wrote or ``--json`` printed, the latest last.
            op: Name of the operator; rows of others are left out.

        Raises:
            InvalidInputError: A file is foreign or damaged, rows are of several devices, or none is of ``op``.
        """
        rows = merge_rows([Path(path) for path in paths], op)
        return cls(op, rows, sum(row.seconds for row in rows))

    @cached_property
    def summary(self) -> Summary:
        """Means, and how rivals do."""
        return summarize(self.rows)

    @property
    def device(self) -> str:
        """Name of the target; empty if nothing was measured."""
        return next((row.device for row in self.rows if row.device), "")

    @property
    def runs(self) -> tuple[str, ...]:
        """Ids of the runs that the rows are of."""
        return tuple(dict.fromkeys(row.run for row in self.rows))

    def plot(self, path: str | Path) -> Path:
        """Draws the ratios by workload; the file's ending says the format.

        Raises:
            InvalidInputError: The ending is unknown, the folder is not there, or there is no ratio to draw.
            UsageError: matplotlib is not installed.
        """
        from autosched.benching.plot import draw

        return draw(self, Path(path))

    def to_dict(self) -> dict[str, Any]:
        """The JSON of ``autosched bench``."""
        return {
            "format": FORMAT,
            "op": self.op,
            "device": self.device or None,
            "runs": list(self.runs),
            "rows": [row.to_dict() for row in self.rows],
            **self.summary.to_dict(),
            "goals": {"geomean": HEADLINE_GOALS.get(self.op), "geomean_by_class": dict(GOALS.get(self.op, {}))},
            "seconds": round(self.seconds, 3),
        }
