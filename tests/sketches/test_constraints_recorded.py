"""The constraints against every schedule in the recorded tables: none that compiles and runs may be rejected."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from autosched.log import TuningLog
from autosched.record import Measurement, Record
from autosched.sketches.builders import build
from autosched.sketches.constraints import REASONS, shared_lower_bound, why_invalid
from autosched.sketches.op import Op
from autosched.sketches.rules import derive
from autosched.sketches.schedule import Schedule, ScheduleBatch
from autosched.sketches.target import Target, parse_target

RECORDED = Path(__file__).resolve().parents[2] / "tuning_logs" / "recorded"
#: Distinct compiled schedules that the tables hold at least.
FEWEST = 2000


@dataclass(frozen=True)
class Table:
    """The rows of one workload on one device, one a schedule."""

    op: Op
    target: Target
    batch: ScheduleBatch
    measurements: tuple[Measurement, ...]

    def compiled(self, name: str) -> np.ndarray:
        """A figure of the compiled kernel by row, nan where it did not compile."""
        return np.asarray([m.compiled.get(name, np.nan) for m in self.measurements])


def tables(folder: Path) -> Iterator[Table]:
    """All rows, those that failed included; a row that does not derive any more is an error."""
    groups: dict[tuple[str, str], list[Record]] = defaultdict(list)
    for record in TuningLog.read(folder):
        groups[record.device, record.key].append(record)
    for (device, _), records in groups.items():
        op, target = build(records[0].op), parse_target(device)
        sketches = derive(op, target)
        rows: dict[Schedule, Measurement] = {}
        for record in records:
            schedule = Schedule.from_json(record.schedule, sketches)
            if record.measurement.compiled or schedule not in rows:
                rows[schedule] = record.measurement
        yield Table(op, target, ScheduleBatch.of(sketches, rows), tuple(rows.values()))


@pytest.fixture(scope="module")
def recorded() -> list[Table]:
    return list(tables(RECORDED))


def told(table: Table, rows: np.ndarray) -> list[str]:
    """The first of the rows, for a person."""
    return [f"{table.op.key()}: {table.batch[i].to_json()}: {table.measurements[i]}" for i in rows[:3]]


def test_the_tables_hold_enough(recorded: list[Table]) -> None:
    assert sum(int(np.isfinite(t.compiled("shared_bytes")).sum()) for t in recorded) >= FEWEST


def test_shared_memory_is_never_overestimated(recorded: list[Table]) -> None:
    for table in recorded:
        bound = shared_lower_bound(table.op, table.target, table.batch)
        above = np.flatnonzero(bound > np.where(np.isfinite(b := table.compiled("shared_bytes")), b, np.inf))
        assert told(table, above) == [], f"{len(above)} rows"


def test_the_bound_is_worth_its_name(recorded: list[Table]) -> None:
    """Half of the compiled schedules with a pipeline need no more than 1.5 times the bound."""
    ratios = []
    for table in recorded:
        bound = shared_lower_bound(table.op, table.target, table.batch)
        shared = table.compiled("shared_bytes")
        rows = np.flatnonzero((bound > 0) & (shared > 0))
        ratios.append(bound[rows] / shared[rows])
    assert np.median(np.concatenate(ratios)) > 1 / 1.5


def test_no_schedule_that_works_is_rejected(recorded: list[Table]) -> None:
    """But for reasons that are none of the compiler's: a spilled accumulator and parts without work."""
    for table in recorded:
        codes = why_invalid(table.op, table.target, table.batch).codes
        ok = np.asarray([m.ok for m in table.measurements])
        spills = table.compiled("spill_bytes") > 0
        excused = {"registers": spills, "maxnreg": spills, "split": np.ones(len(codes), bool)}
        for code, reason in enumerate(REASONS[1:], 1):
            bad = (codes == code) & ok & ~excused.get(reason.split(":")[0], np.zeros(len(codes), bool))
            assert told(table, np.flatnonzero(bad)) == [], f"{bad.sum()} rows rejected: {reason}"


def test_rejections_happen_in_the_tables(recorded: list[Table]) -> None:
    """Rows drawn without regard to the constraints: the ones for shared memory must have something to do."""
    counts: dict[str, int] = defaultdict(int)
    for table in recorded:
        for reason, n in why_invalid(table.op, table.target, table.batch).counts().items():
            counts[reason.split(":")[0]] += n
    assert counts["shared memory"] > 0


def test_what_ran_out_of_shared_memory_is_mostly_foreseen(recorded: list[Table]) -> None:
    """Of the schedules that the compiler refused for want of resources, at least half are rejected beforehand."""
    refused = foreseen = 0
    for table in recorded:
        valid = why_invalid(table.op, table.target, table.batch).valid
        out = np.asarray([str(m.status) == "out_of_resources" for m in table.measurements])
        refused += int(out.sum())
        foreseen += int((out & ~valid).sum())
    assert foreseen >= refused / 2
