"""What a simulation replays: the recorded workloads as finite tables, and why one is left out."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from autosched.errors import AutoschedError, InvalidInputError, NotRecordedError
from autosched.log import TuningLog, aligned
from autosched.measure.replay import ReplayMeasurer
from autosched.models import CostModel
from autosched.offline.simulation_result import LeftOut, Workload
from autosched.record import TEACHING, Record
from autosched.sketches.builders import build
from autosched.sketches.constraints import why_invalid
from autosched.sketches.op import Op
from autosched.sketches.schedule import Schedule
from autosched.sketches.sketch import Sketch

#: Files, folders, or records.
Logs = str | os.PathLike[str] | Iterable[str | os.PathLike[str]] | Iterable[Record]


@dataclass(frozen=True)
class Table:
    """One workload that can be replayed."""

    op: Op
    measurer: ReplayMeasurer
    workload: Workload


def stated_records(logs: Logs) -> list[Record]:
    """The records of logs that state their stratum.

    Raises:
        NotRecordedError: None does.
        LogNotFoundError: No log is there.
        LogError: A file that is no log.
    """
    if isinstance(logs, str | os.PathLike):
        return _stated(aligned(TuningLog.read(logs)))
    given = list(logs)
    records = [item for item in given if isinstance(item, Record)]
    if records and len(records) == len(given):
        return _stated(records)
    return _stated(aligned(TuningLog.read([item for item in given if not isinstance(item, Record)])))


def _stated(records: Iterable[Record]) -> list[Record]:
    records = list(records)
    stated = [r for r in records if r.stratum and r.stratum not in TEACHING]
    if not stated:
        raise NotRecordedError(
            f"none of the {len(records)} rows states its stratum", "give recorded tables, such as tuning_logs/recorded"
        )
    return stated


def unguided(records: Sequence[Record]) -> list[Record]:
    """All rows of the schedules that the uniform stratum holds and that no constraint speaks against.

    Raises:
        NotRecordedError: There is none.
    """
    kept: list[Record] = []
    for (_, device), rows in _by_workload(records).items():
        op = _rebuilt(rows[0])
        uniform = [r for r in rows if r.stratum == "uniform"]
        if op is None or not uniform:
            continue
        measurer = ReplayMeasurer(uniform, device)
        batch = measurer.space(op)
        valid = {batch[int(i)] for i in np.flatnonzero(why_invalid(op, measurer.target, batch).valid)}
        kept += [r for r in rows if _schedule(r, batch.sketches) in valid]
    if not kept:
        raise NotRecordedError("no row of the uniform stratum is a member of its generated space", "use all rows")
    return kept


def _by_workload(records: Iterable[Record]) -> dict[tuple[str, str], list[Record]]:
    groups: dict[tuple[str, str], list[Record]] = defaultdict(list)
    for record in records:
        groups[record.key, record.device].append(record)
    return groups


def _rebuilt(record: Record) -> Op | None:
    """The record's op; ``None`` where this version builds another one or none."""
    try:
        op = build(record.op)
    except (AutoschedError, TypeError):
        return None
    return op if op.key() == record.key else None


def _replayer(records: Sequence[Record], device: str) -> ReplayMeasurer | None:
    """What replays them; ``None`` where no preset has the device."""
    try:
        return ReplayMeasurer(records, device)
    except InvalidInputError:
        return None


def _schedule(record: Record, sketches: Sequence[Sketch]) -> Schedule | None:
    try:
        return Schedule.from_json(record.schedule, sketches)
    except InvalidInputError:
        return None


def make_tables(records: Sequence[Record]) -> tuple[list[Table], list[LeftOut]]:
    """What can be replayed, in the order of the records, and what cannot.

    Raises:
        NotRecordedError: Nothing can.
    """
    tables: list[Table] = []
    left_out: list[LeftOut] = []
    for (key, device), rows in _by_workload(records).items():
        op, measurer = _rebuilt(rows[0]), _replayer(rows, device)
        if op is None or measurer is None or not len(measurer.space(op)):
            left_out.append(LeftOut(key, device, "not rebuilt"))
        elif (best := measurer.best(op)) is None:
            left_out.append(LeftOut(key, device, "no valid row"))
        else:
            shape = tuple(op.loops.values())
            schedules = len(measurer.space(op))
            workload = Workload(key, device, op.iteration_space(), shape, schedules, best[1])
            tables.append(Table(op, measurer, workload))
    if not tables:
        reasons = ", ".join(f"{w.key} on {w.device}: {w.reason}" for w in left_out)
        raise NotRecordedError(f"no recorded workload can be simulated ({reasons})", "record it again")
    return tables, left_out


def choose(tables: list[Table], only: Sequence[Sequence[int]] | None) -> list[Table]:
    """The tables of the workloads with these extents; all of them where none are given.

    Raises:
        NotRecordedError: One of them is not recorded.
    """
    if only is None:
        return tables
    wanted = {tuple(shape) for shape in only}
    shapes = dict.fromkeys(at.workload.shape for at in tables)
    for shape in wanted - set(shapes):
        raise NotRecordedError(f"workload {_text(shape)} is not recorded", f"recorded: {'; '.join(map(_text, shapes))}")
    if not wanted:
        raise NotRecordedError("no workload was named", f"recorded: {'; '.join(map(_text, shapes))}")
    return [at for at in tables if at.workload.shape in wanted]


def _text(shape: Sequence[int]) -> str:
    return ",".join(map(str, shape))


def unseen(tables: list[Table], model: CostModel) -> tuple[list[Table], list[LeftOut]]:
    """The tables whose iteration space the model was not trained on, and the others.

    Raises:
        NotRecordedError: It was trained on all of them.
    """
    seen = [at.workload for at in tables if at.workload.space in model.spaces]
    if len(seen) == len(tables):
        raise NotRecordedError(
            f"the model was trained on all {len(seen)} workloads", "give other logs, or a model that has not seen them"
        )
    unseen = [at for at in tables if at.workload.space not in model.spaces]
    return unseen, [LeftOut(w.key, w.device, "seen") for w in seen]
