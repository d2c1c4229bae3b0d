"""``autosched replay``: what a log holds, and the best schedule of each workload in it."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from autosched.cli import render
from autosched.cli.errors import Exit
from autosched.cli.output import Output
from autosched.errors import AutoschedError
from autosched.log import Damage, LogContents, Staleness, TuningLog, Vendor, aligned, stale
from autosched.measure.replay import pool
from autosched.record import Record
from autosched.sketches.builders import build
from autosched.sketches.codegen import generate
from autosched.sketches.op import Op
from autosched.sketches.rules import derive
from autosched.sketches.schedule import Schedule
from autosched.sketches.sketch import Sketch
from autosched.sketches.target import parse_target


@dataclass(frozen=True)
class Best:
    """The fastest schedule of a workload on a device.

    Attributes:
        key: ``Op.key()``.
        device: Name of the target.
        schedule: ``Schedule.to_json()``.
        latency_us: Median of all its samples, in microseconds.
        tflops: Its rate; ``None`` where the op cannot be built any more.
    """

    key: str
    device: str
    schedule: dict[str, int | str]
    latency_us: float
    tflops: float | None

    def to_dict(self) -> dict[str, Any]:
        """As ``tune`` prints it, with workload and device."""
        return {
            "key": self.key,
            "device": self.device,
            "sketch": self.schedule.get("sketch"),
            "schedule": self.schedule,
            "latency_us": self.latency_us,
            "tflops": self.tflops,
        }


@dataclass(frozen=True)
class Workload:
    """The rows of one workload on one device.

    Attributes:
        key: ``Op.key()``.
        device: Name of the target.
        records: Rows.
        schedules: Different schedules among them.
        status_counts: Rows by status.
        best: ``None`` if no row is valid.
        vendor: Name of the vendor library; empty if it was not measured.
        vendor_us: Its latency in microseconds.
    """

    key: str
    device: str
    records: int
    schedules: int
    status_counts: dict[str, int]
    best: Best | None
    vendor: str = ""
    vendor_us: float | None = None

    @property
    def ratio(self) -> float | None:
        """Vendor time over the best's; above 1 is faster than the vendor library."""
        return None if self.best is None or self.vendor_us is None else self.vendor_us / self.best.latency_us

    def to_dict(self) -> dict[str, Any]:
        """An entry of ``by_key``."""
        baseline = None
        if self.vendor_us is not None:
            baseline = {"name": self.vendor, "latency_us": self.vendor_us, "ratio": self.ratio}
        return {
            "device": self.device,
            "records": self.records,
            "schedules": self.schedules,
            "status_counts": self.status_counts,
            "best": self.best.to_dict() if self.best else None,
            "baseline": baseline,
        }


@dataclass(frozen=True)
class Summary:
    """What logs hold.

    Attributes:
        files: Logs that were read.
        sessions: Sessions in them.
        records: Finished trials.
        crashed: Trials during which the process died.
        damaged: Lines and files that were skipped.
        stale: Rows whose schedule has other source by now.
        status_counts: Rows by status.
        workloads: By workload and device, in the order of the log.
    """

    files: list[Path]
    sessions: int
    records: int
    crashed: int
    damaged: list[Damage]
    stale: Staleness
    status_counts: dict[str, int]
    workloads: list[Workload] = field(default_factory=list)

    @property
    def best(self) -> Best | None:
        """The best of the log's workload; of several workloads that with the highest rate."""
        found = [w.best for w in self.workloads if w.best is not None]
        return max(found, key=lambda b: (b.tflops or 0.0, -b.latency_us), default=None)

    def to_dict(self) -> dict[str, Any]:
        """The JSON of ``autosched replay``.

        An entry of ``by_key`` is that of the device with the fastest best, with all devices in ``by_device``.
        """
        by_key: dict[str, list[Workload]] = defaultdict(list)
        for workload in self.workloads:
            by_key[workload.key].append(workload)
        return {
            "format": 1,
            "files": [str(file) for file in self.files],
            "sessions": self.sessions,
            "records": self.records,
            "crashed": self.crashed,
            "damaged": len(self.damaged),
            "damage": [msgspec.to_builtins(d) for d in self.damaged],
            "stale": self.stale.stale,
            "stale_share": self.stale.share,
            "unhashed": self.stale.unhashed,
            "status_counts": self.status_counts,
            "best": self.best.to_dict() if self.best else None,
            "by_key": {key: _by_device(workloads) for key, workloads in by_key.items()},
        }


def replay(logs: Sequence[Path], output: Output) -> int:
    """Reads logs and prints what they hold.

    Returns:
        The exit code: 1 if no row is valid.
    """
    summary = summarize(aligned(TuningLog.read(logs)))
    output.result(summary.to_dict(), lambda: render.log_summary(summary))
    return int(Exit.DONE if summary.best is not None else Exit.NOTHING_VALID)


def summarize(contents: LogContents) -> Summary:
    """What logs hold. Rows of one schedule are pooled, as replaying pools them."""
    groups: dict[tuple[str, str], list[Record]] = defaultdict(list)
    for record in contents:
        groups[record.key, record.device].append(record)
    return Summary(
        files=contents.files,
        sessions=len(contents.sessions),
        records=len(contents),
        crashed=len(contents.crashed),
        damaged=contents.damaged,
        stale=stale(contents, _source_hashes()),
        status_counts=_statuses(contents),
        workloads=[_workload(key, device, rows, contents) for (key, device), rows in groups.items()],
    )


def _workload(key: str, device: str, records: list[Record], contents: LogContents) -> Workload:
    rows: dict[tuple[tuple[str, int | str], ...], list[Record]] = defaultdict(list)
    for record in records:
        rows[tuple(sorted(record.schedule.items()))].append(record)
    best = None
    for same in rows.values():
        latency = pool([r.measurement for r in same]).latency_us
        if latency is not None and (best is None or latency < best.latency_us):
            best = Best(key, device, same[0].schedule, latency, None)
    op = _op(records[0])
    if best is not None and op is not None:
        best = replace(best, tflops=op.flops / best.latency_us / 1e6)
    vendors = [v for v in contents.vendors if (v.key, v.device) == (key, device)]
    return Workload(
        key=key,
        device=device,
        records=len(records),
        schedules=len(rows),
        status_counts=_statuses(records),
        best=best,
        vendor=vendors[-1].name if vendors else "",
        vendor_us=_vendor_us(vendors) if vendors else None,
    )


def _vendor_us(vendors: Sequence[Vendor]) -> float:
    """The median of all samples; of the medians where samples lack."""
    if all(v.samples_us for v in vendors):
        return statistics.median(s for v in vendors for s in v.samples_us)
    return statistics.median(v.latency_us for v in vendors)


def _by_device(workloads: list[Workload]) -> dict[str, Any]:
    valid = [w for w in workloads if w.best is not None]
    first = min(valid, key=lambda w: w.best.latency_us if w.best else 0.0, default=workloads[0])
    return {**first.to_dict(), "by_device": {w.device: w.to_dict() for w in workloads}}


def _statuses(records: Iterable[Record]) -> dict[str, int]:
    return dict(Counter(r.measurement.status.value for r in records).most_common())


def _op(record: Record) -> Op | None:
    try:
        return build(record.op)
    except AutoschedError:
        return None


def _source_hashes() -> Callable[[Record], str | None]:
    """Today's source hash of a record's schedule; ``None`` where it no longer derives."""
    known: dict[tuple[str, str], tuple[Op, tuple[Sketch, ...]] | None] = {}

    def derived(record: Record) -> tuple[Op, tuple[Sketch, ...]] | None:
        at = record.key, record.device
        if at not in known:
            op = _op(record)
            try:
                known[at] = None if op is None else (op, derive(op, parse_target(record.device)))
            except AutoschedError:
                known[at] = None
        return known[at]

    def hash_of(record: Record) -> str | None:
        found = derived(record)
        if found is None:
            return None
        op, sketches = found
        try:
            return generate(op, Schedule.from_json(record.schedule, sketches)).source_hash
        except AutoschedError:
            return None

    return hash_of
