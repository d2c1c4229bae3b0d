"""Replay: a measurer that answers from recorded rows, so that searches can be run and judged without a GPU."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence

import msgspec

from autosched.errors import InvalidInputError, NotRecordedError
from autosched.log import LogContents, Vendor
from autosched.measure.base import Baseline, Comparison, Processless
from autosched.record import TEACHING, Measurement, Record, Status
from autosched.sketches.op import Op
from autosched.sketches.rules import derive
from autosched.sketches.schedule import Schedule, ScheduleBatch
from autosched.sketches.target import Target, parse_target


class ReplayMeasurer(Processless):
    """Answers from the rows that were recorded on one device.

    Rows of one schedule are pooled: its latency is the median of all their samples, so that the best of a table is
    never a single lucky row; rows that only teach (``record.TEACHING``) are left out. A schedule that once gave a wrong
    result is wrong; any other failure yields to samples.

    Args:
        log: What ``TuningLog.read`` gave, or records alone.
        device: Which of the recorded devices; needed only if there are several.
        vendors: The vendor library's times, beside those that the log holds.

    Raises:
        InvalidInputError: Several devices are recorded and none was chosen, or a device that no preset has.
        NotRecordedError: Nothing is recorded, or nothing on that device.
    """

    source = "recorded"

    def __init__(
        self,
        log: LogContents | Iterable[Record],
        device: str | Target | None = None,
        *,
        vendors: Iterable[Vendor] = (),
    ) -> None:
        records = [record for record in log if record.stratum not in TEACHING]
        devices = sorted({r.device for r in records})
        if not devices:
            raise NotRecordedError("the log holds no trials", "give a log of a tuning run or a recorded table")
        if device is None and len(devices) > 1:
            raise InvalidInputError(f"the log holds rows of {', '.join(devices)}", "say which device is meant")
        self._target = parse_target(devices[0] if device is None else device)
        if self._target.name not in devices:
            raise NotRecordedError(
                f"nothing is recorded on {self._target.name}", f"recorded devices: {', '.join(devices)}"
            )
        self._records: dict[str, list[Record]] = defaultdict(list)
        for record in records:
            if record.device == self._target.name:
                self._records[record.key].append(record)
        held = log.vendors if isinstance(log, LogContents) else []
        self._vendors: dict[str, list[Vendor]] = defaultdict(list)
        for vendor in (*held, *vendors):
            if vendor.device == self._target.name:
                self._vendors[vendor.key].append(vendor)
        self._tables: dict[str, dict[Schedule, Measurement]] = {}
        self._batches: dict[str, ScheduleBatch] = {}
        self._stale: dict[str, int] = {}

    @property
    def target(self) -> Target:
        """The device that the rows were recorded on."""
        return self._target

    @property
    def keys(self) -> tuple[str, ...]:
        """The workloads that are recorded."""
        return tuple(self._records)

    @property
    def records(self) -> list[Record]:
        """All rows of the device."""
        return [record for rows in self._records.values() for record in rows]

    def stale(self, op: Op) -> int:
        """Rows of an op whose schedule no longer derives; they are left out."""
        self._table(op)
        return self._stale[op.key()]

    def space(self, op: Op) -> ScheduleBatch:
        """The recorded schedules of an op that still derive, failed ones included.

        Raises:
            NotRecordedError: The op is not recorded.
        """
        self._table(op)
        return self._batches[op.key()]

    def holds(self, op: Op, schedule: Schedule) -> bool:
        """Whether a schedule of a recorded op is recorded."""
        return schedule in self._table(op)

    def measure(self, op: Op, schedules: Sequence[Schedule]) -> list[Measurement]:
        """The pooled rows of each schedule, in the same order.

        Raises:
            NotRecordedError: The op or one of the schedules is not recorded.
        """
        table = self._table(op)
        for schedule in schedules:
            if schedule not in table:
                raise NotRecordedError(
                    f"{schedule.to_json()} is not recorded for {op.key()} on {self._target.name}",
                    "choose from space(op)",
                )
        return [table[schedule] for schedule in schedules]

    def best(self, op: Op) -> tuple[Schedule, float] | None:
        """The schedule with the lowest pooled median, and that in microseconds; ``None`` if all rows are failures.

        Raises:
            NotRecordedError: The op is not recorded.
        """
        timed = [(m.latency_us, i, s) for i, (s, m) in enumerate(self._table(op).items()) if m.latency_us is not None]
        if not timed:
            return None
        latency, _, schedule = min(timed, key=lambda row: row[:2])
        return schedule, latency

    def baseline(self, op: Op) -> Baseline | None:
        """The vendor library's recorded time: the median of all its samples (of its medians where samples lack)."""
        vendors = self._vendors.get(op.key())
        if not vendors:
            return None
        samples = tuple(s for v in vendors for s in v.samples_us)
        complete = all(v.samples_us for v in vendors)
        defaults = [v.default_us for v in vendors if v.default_us is not None]
        return Baseline(
            name=vendors[-1].name,
            latency_us=statistics.median(samples if complete else [v.latency_us for v in vendors]),
            samples_us=samples,
            default_us=statistics.median(defaults) if defaults else None,
        )

    def compare(self, op: Op, schedules: Sequence[Schedule]) -> Comparison:
        """Recorded latencies beside the vendor library's. They were not interleaved, so there are no intervals.

        Raises:
            NotRecordedError: The op, a schedule, or the vendor library's time is not recorded.
        """
        baseline = self.baseline(op)
        if baseline is None:
            raise NotRecordedError(
                f"no vendor library's time is recorded for {op.key()}", "measure it on the device, or do not compare"
            )
        latencies = tuple(m.latency_us for m in self.measure(op, schedules))
        return Comparison(
            vendor=baseline.name,
            vendor_us=baseline.latency_us,
            latencies_us=latencies,
            ratios=tuple(None if t is None else baseline.latency_us / t for t in latencies),
            intervals=(None,) * len(latencies),
            errors=tuple("recorded as a failure" if t is None else "" for t in latencies),
            blocks=0,
        )

    def _table(self, op: Op) -> dict[Schedule, Measurement]:
        """Pooled measurements of an op by schedule, in the order of first appearance."""
        key = op.key()
        if key in self._tables:
            return self._tables[key]
        if key not in self._records:
            raise NotRecordedError(
                f"{key} is not recorded on {self._target.name}", f"recorded workloads: {', '.join(self._records)}"
            )
        sketches = derive(op, self._target)
        rows: dict[Schedule, list[Measurement]] = defaultdict(list)
        stale = 0
        for record in self._records[key]:
            try:
                rows[Schedule.from_json(record.schedule, sketches)].append(record.measurement)
            except InvalidInputError:
                stale += 1
        self._stale[key] = stale
        self._tables[key] = table = {schedule: pool(measured) for schedule, measured in rows.items()}
        self._batches[key] = ScheduleBatch.of(sketches, table)
        return table


def pool(rows: Sequence[Measurement]) -> Measurement:
    """One measurement of several rows of one schedule: all their samples, and the last row's other figures.

    A wrong result among them is the answer. Without any samples the last failure is.
    """
    wrong = [m for m in rows if m.status is Status.WRONG_RESULT]
    if wrong:
        return wrong[-1]
    ok = [m for m in rows if m.ok]
    if len(ok) <= 1:
        return ok[0] if ok else rows[-1]
    return msgspec.structs.replace(ok[-1], samples_us=tuple(s for m in ok for s in m.samples_us))
