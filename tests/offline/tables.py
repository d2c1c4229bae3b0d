"""Small tables of given latencies, for tests of what is done offline."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from autosched.log import Header, LogContents, TuningLog
from autosched.record import Measurement, Record, Status
from autosched.search import GeneratedSpace
from autosched.sketches.op import Op
from autosched.sketches.rules import default_schedule, derive
from autosched.sketches.schedule import Schedule
from autosched.sketches.target import parse_target


def schedules(op: Op, n: int, device: str = "H200", seed: int = 0) -> list[Schedule]:
    """The default schedule and different others, valid ones."""
    target = parse_target(device)
    found = {default_schedule(op, target, derive(op, target)): None}
    space, rng = GeneratedSpace(op, target), np.random.default_rng(seed)
    while len(found) < n:
        found |= dict.fromkeys(space.sample(rng, n).schedules())
    return list(found)[:n]


def record(op: Op, schedule: Schedule, latency_us: float | None, **more: str) -> Record:
    """One trial of no session; failed where there is no latency."""
    measurement = (
        Measurement(status=Status.WRONG_RESULT, error="one column")
        if latency_us is None
        else Measurement(status=Status.OK, samples_us=(latency_us,))
    )
    fields: dict[str, Any] = {"device": "H200", "stratum": "uniform", **more}
    return Record(key=op.key(), op=op.spec, schedule=schedule.to_json(), measurement=measurement, **fields)


def table(op: Op, latencies_us: Sequence[float | None], **more: str) -> list[Record]:
    """One trial a latency, the default schedule's first."""
    device = more.get("device", "H200")
    chosen = schedules(op, len(latencies_us), device)
    return [record(op, s, t, **more) for s, t in zip(chosen, latencies_us, strict=True)]


def contents(*tables: Sequence[Record]) -> LogContents:
    """All rows, as if read from logs."""
    return LogContents(records=[r for rows in tables for r in rows])


def write(path: object, *tables: Sequence[Record]) -> None:
    """Rows as a log's file, a session a table."""
    with TuningLog(str(path)) as writer:
        for rows in tables:
            first = rows[0]
            writer.append_header(Header(session=first.key, key=first.key, op=first.op, device=first.device))
            for trial, row in enumerate(rows):
                writer.finish_trial(
                    Record(
                        key=row.key,
                        op=row.op,
                        device=row.device,
                        schedule=row.schedule,
                        measurement=row.measurement,
                        stratum=row.stratum,
                        trial=trial,
                        session=first.key,
                    )
                )
