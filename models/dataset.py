"""Training data: features and labels of the trials that succeeded, and the outcomes of all trials."""

from __future__ import annotations

import hashlib
import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import log, sqrt
from statistics import median
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from autosched.errors import InvalidInputError
from autosched.features import FEATURES, SCHEMA, extract, roofline_us
from autosched.record import Status

if TYPE_CHECKING:
    from autosched.record import Record
    from autosched.sketches.op import Op
    from autosched.sketches.schedule import Schedule
    from autosched.sketches.sketch import Sketch
    from autosched.sketches.target import Target

_LOG = logging.getLogger(__name__)

#: Smallest relative noise of a latency that is believed: clock and power move by more than one run's samples show.
NOISE_FLOOR = 0.01


@dataclass(frozen=True)
class Dataset:
    """Rows of successful trials; a schedule that was measured several times is one row.

    Attributes:
        x: Features, float32 ``[n, F]``.
        y: log(roofline time / measured time), float64 ``[n]``.
        spaces: Iteration space of each row, the unit by which data are split.
        keys: ``Op.key()`` of each row.
        devices: Name of each row's target.
        strata: Stratum of each row, empty where none is stated.
        noise: Standard error of ``y``, float64 ``[n]``.
        skipped: Successful records that could not be rebuilt by this version.
        reasons: Those records by reason.
        failed: Records left out because their trial failed.
    """

    x: NDArray[np.float32]
    y: NDArray[np.float64]
    spaces: list[str]
    keys: list[str]
    devices: list[str]
    strata: list[str]
    noise: NDArray[np.float64]
    skipped: int = 0
    reasons: dict[str, int] = field(default_factory=dict)
    failed: int = 0

    def __len__(self) -> int:
        return len(self.y)

    @cached_property
    def workloads(self) -> list[str]:
        """What rows are compared within: key and device of each row."""
        return [f"{key}@{device}" for key, device in zip(self.keys, self.devices, strict=True)]

    @cached_property
    def groups(self) -> dict[str, NDArray[np.intp]]:
        """Row numbers of each workload, in order of first appearance."""
        return group_rows(self.workloads)

    def digest(self) -> str:
        """SHA-256 of everything that a model learns from, the feature schema included."""
        sha = hashlib.sha256(SCHEMA.encode())
        for array in (self.x, self.y, self.noise):
            sha.update(np.ascontiguousarray(array).tobytes())
        for names in (self.workloads, self.spaces, self.strata):
            sha.update("\n".join(names).encode())
        return sha.hexdigest()

    def take(self, rows: NDArray[np.intp] | NDArray[np.bool_]) -> Dataset:
        """The rows of that mask or those numbers, in their order."""
        index = np.flatnonzero(rows) if rows.dtype == np.bool_ else rows

        def pick(names: list[str]) -> list[str]:
            return [names[i] for i in index]

        return Dataset(
            x=self.x[index],
            y=self.y[index],
            spaces=pick(self.spaces),
            keys=pick(self.keys),
            devices=pick(self.devices),
            strata=pick(self.strata),
            noise=self.noise[index],
        )

    @classmethod
    def concat(cls, parts: Sequence[Dataset]) -> Dataset:
        """The rows of all ``parts``, in order."""
        reasons: Counter[str] = Counter()
        for part in parts:
            reasons.update(part.reasons)
        return cls(
            x=np.concatenate([np.empty((0, len(FEATURES)), np.float32), *(p.x for p in parts)]),
            y=np.concatenate([np.empty(0), *(p.y for p in parts)]),
            spaces=[s for p in parts for s in p.spaces],
            keys=[s for p in parts for s in p.keys],
            devices=[s for p in parts for s in p.devices],
            strata=[s for p in parts for s in p.strata],
            noise=np.concatenate([np.empty(0), *(p.noise for p in parts)]),
            skipped=sum(p.skipped for p in parts),
            reasons=dict(reasons),
            failed=sum(p.failed for p in parts),
        )

    @classmethod
    def from_records(cls, records: Iterable[Record]) -> Dataset:
        """The data set of a log's records.

        Only successful trials become rows, each by its last line. Ops, targets and schedules are rebuilt from checked
        values; records whose op, device or schedule this version does not know are counted in ``skipped``.
        """
        successes: dict[tuple[str, str], list[Record]] = {}
        failed = 0
        for record in last_lines(records):
            if record.measurement.ok:
                successes.setdefault((record.key, record.device), []).append(record)
            else:
                failed += 1
        data = cls.concat([_workload(rows) for rows in successes.values()])
        if data.skipped:
            _LOG.info("%d records could not be rebuilt: %s", data.skipped, data.reasons)
        return replace(data, failed=failed)


def group_rows(names: Sequence[str]) -> dict[str, NDArray[np.intp]]:
    """Row numbers of each distinct name, in order of first appearance."""
    rows: dict[str, list[int]] = {}
    for i, name in enumerate(names):
        rows.setdefault(name, []).append(i)
    return {name: np.asarray(index, np.intp) for name, index in rows.items()}


def grouped_folds(spaces: Sequence[str], folds: int) -> list[NDArray[np.intp]]:
    """Row numbers held out by each fold; all rows of a space are in one fold, and folds are of similar size.

    Fewer spaces than ``folds`` make fewer folds.

    Raises:
        InvalidInputError: ``folds`` is below 2, or there are not two spaces.
    """
    groups = group_rows(spaces)
    if folds < 2 or len(groups) < 2:
        raise InvalidInputError(f"{folds} folds of {len(groups)} iteration spaces", "at least 2 of each are needed")
    parts: list[list[NDArray[np.intp]]] = [[] for _ in range(min(folds, len(groups)))]
    sizes = [0] * len(parts)
    for space in sorted(groups, key=lambda s: (-len(groups[s]), s)):
        smallest = sizes.index(min(sizes))
        parts[smallest].append(groups[space])
        sizes[smallest] += len(groups[space])
    return [np.sort(np.concatenate(part)) for part in parts]


@dataclass(frozen=True)
class Outcomes:
    """Rows of all trials, failures included: what a validity model learns from. A schedule is one row.

    Attributes:
        x: Features, float32 ``[n, F]``.
        ok: Whether the schedule compiled, ran and was right, bool ``[n]``. One that succeeded once did so, unless it
            gave a wrong result as well.
        spaces: Iteration space of each row.
        strata: Stratum of each row, empty where none is stated.
        skipped: Records that could not be rebuilt by this version.
    """

    x: NDArray[np.float32]
    ok: NDArray[np.bool_]
    spaces: list[str]
    strata: list[str]
    skipped: int = 0

    def __len__(self) -> int:
        return len(self.ok)

    @classmethod
    def from_records(cls, records: Iterable[Record]) -> Outcomes:
        """The outcomes of a log's records.

        A trial's last line counts. ``below_floor`` is left out: it says that a timing is not believed, and nothing
        about the kernel. Records whose op, device or schedule this version does not know are counted in ``skipped``.
        """
        trials: dict[tuple[str, str], list[Record]] = {}
        for record in last_lines(records):
            if record.measurement.status is not Status.BELOW_FLOOR:
                trials.setdefault((record.key, record.device), []).append(record)
        x, ok = [np.empty((0, len(FEATURES)), np.float32)], []
        spaces: list[str] = []
        strata: list[str] = []
        skipped = 0
        for rows in trials.values():
            found, reasons = _rebuild(rows)
            skipped += sum(reasons.values())
            if found is None:
                continue
            x.append(found.features())
            ok += [_valid(r.measurement.status for r in same) for same in found.pooled.values()]
            spaces += [found.op.iteration_space()] * len(found.pooled)
            strata += found.strata()
        return cls(np.concatenate(x), np.array(ok, np.bool_), spaces, strata, skipped)


def last_lines(records: Iterable[Record]) -> list[Record]:
    """The records, a trial that has several lines by its last one.

    A finalist that fails its long proof has a later line of the same session and number, which takes the place of the
    first. Records without a session are all kept.
    """
    last: dict[tuple[str, int], Record] = {}
    for number, record in enumerate(records):
        last[(record.session, record.trial) if record.session else ("", number)] = record
    return list(last.values())


def _valid(statuses: Iterable[Status]) -> bool:
    found = set(statuses)
    return Status.OK in found and Status.WRONG_RESULT not in found


@dataclass(frozen=True)
class _Rebuilt:
    """The records of one key and device, by the schedules that they name."""

    op: Op
    target: Target
    sketches: tuple[Sketch, ...]
    pooled: dict[Schedule, list[Record]]

    def features(self) -> NDArray[np.float32]:
        from autosched.sketches.schedule import ScheduleBatch

        return extract(self.op, self.target, ScheduleBatch.of(self.sketches, list(self.pooled)))

    def strata(self) -> list[str]:
        return [next((r.stratum for r in rows if r.stratum), "") for rows in self.pooled.values()]


def _rebuild(records: list[Record]) -> tuple[_Rebuilt | None, dict[str, int]]:
    """The records of one key and device from checked values, and those that this version does not know by reason."""
    from autosched.sketches.builders import build
    from autosched.sketches.rules import derive
    from autosched.sketches.schedule import Schedule
    from autosched.sketches.target import parse_target

    reasons: Counter[str] = Counter()
    pooled: dict[Schedule, list[Record]] = {}
    try:
        op, target = build(records[0].op), parse_target(records[0].device)
        sketches = derive(op, target)
    except (InvalidInputError, TypeError) as error:
        return None, {str(error): len(records)}
    if op.key() != records[0].key:
        return None, {f"key {records[0].key} is not that of its op, {op.key()}": len(records)}
    for record in records:
        try:
            schedule = Schedule.from_json(record.schedule, sketches)
        except InvalidInputError as error:
            reasons[error.message] += 1
            continue
        pooled.setdefault(schedule, []).append(record)
    return _Rebuilt(op, target, sketches, pooled) if pooled else None, dict(reasons)


def _workload(records: list[Record]) -> Dataset:
    """The data set of the successful records of one key and device."""
    found, reasons = _rebuild(records)
    if found is None:
        return _nothing(reasons)
    n = len(found.pooled)
    roofline = roofline_us(found.op, found.target)
    samples = [[s for r in rows for s in r.measurement.samples_us] for rows in found.pooled.values()]
    return Dataset(
        x=found.features(),
        y=np.array([log(roofline / median(s)) for s in samples]),
        spaces=[found.op.iteration_space()] * n,
        keys=[found.op.key()] * n,
        devices=[found.target.name] * n,
        strata=found.strata(),
        noise=np.array([_noise(s, rows) for s, rows in zip(samples, found.pooled.values(), strict=True)]),
        skipped=sum(reasons.values()),
        reasons=reasons,
    )


def _noise(samples: Sequence[float], records: list[Record]) -> float:
    """Standard error of the log of the pooled median: within passes, between passes, and not below the floor."""
    passes = [log(median(r.measurement.samples_us)) for r in records]
    return max(NOISE_FLOOR, _error_of_median([log(s) for s in samples]), _error_of_median(passes))


def _error_of_median(values: Sequence[float]) -> float:
    """Standard error of the median, the deviation estimated from the median absolute deviation."""
    center = median(values)
    return 1.2533 * 1.4826 * median([abs(v - center) for v in values]) / sqrt(len(values))


def _nothing(reasons: dict[str, int]) -> Dataset:
    return Dataset(
        x=np.empty((0, len(FEATURES)), np.float32),
        y=np.empty(0),
        spaces=[],
        keys=[],
        devices=[],
        strata=[],
        noise=np.empty(0),
        skipped=sum(reasons.values()),
        reasons=reasons,
    )
