"""What was read from logs, as values: records, what surrounds them, and what could not be used."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from autosched.log.lines import End, Header, Round, Vendor
from autosched.record import Record


class Damage(msgspec.Struct, frozen=True):
    """A line, or with ``line`` 0 a whole file, that could not be used."""

    path: str
    line: int
    reason: str


@dataclass(frozen=True)
class Staleness:
    """How many records' source code would no longer be generated as it was.

    Attributes:
        checked: Records that carry a source hash.
        stale: Those among them whose schedule now has other source, or no longer derives.
        unhashed: Records without a source hash, about which nothing is known.
    """

    checked: int
    stale: int
    unhashed: int

    @property
    def share(self) -> float:
        """Stale records among those checked; 0 where none was."""
        return self.stale / self.checked if self.checked else 0.0


def stale(records: Iterable[Record], hash_of: Callable[[Record], str | None]) -> Staleness:
    """Count the records whose source hash differs from today's.

    Args:
        records: What to check.
        hash_of: Today's source hash of a record's schedule; ``None`` where it no longer derives.
    """
    checked = outdated = unhashed = 0
    for record in records:
        if not record.measurement.source_hash:
            unhashed += 1
            continue
        checked += 1
        outdated += hash_of(record) != record.measurement.source_hash
    return Staleness(checked, outdated, unhashed)


@dataclass
class LogContents:
    """What was read: iterates over the finished trials' records, in the order of files and lines.

    Attributes:
        records: Finished trials.
        sessions: Headers by session id.
        rounds: Rounds of all sessions, in the order in which they were begun.
        vendors: Times of the vendor library.
        ends: Outcomes by session id.
        crashed: Trials that were started, and neither finished nor was their session ended after it: a process died.
        damaged: Lines and files that were skipped, each with its reason.
        files: Logs that were read.
    """

    records: list[Record] = field(default_factory=list)
    sessions: dict[str, Header] = field(default_factory=dict)
    rounds: list[Round] = field(default_factory=list)
    vendors: list[Vendor] = field(default_factory=list)
    ends: dict[str, End] = field(default_factory=dict)
    crashed: list[Record] = field(default_factory=list)
    damaged: list[Damage] = field(default_factory=list)
    files: list[Path] = field(default_factory=list)

    def __iter__(self) -> Iterator[Record]:
        return iter(self.records)

    def __len__(self) -> int:
        return len(self.records)

    def of_session(self, session: str) -> list[Record]:
        """The finished trials of one session, by number; of a trial that was logged twice the last."""
        trials = {r.trial: r for r in self.records if r.session == session}
        return [trials[t] for t in sorted(trials)]

    def to_columns(self) -> dict[str, NDArray[Any] | list[str]]:
        """One entry a record in every column, for data frames.

        Text columns are lists. ``latency_us`` (median, microseconds) and ``predicted`` are nan where there is none; a
        knob's column is -1 where the schedule's sketch lacks it.
        """
        rows = self.records
        columns: dict[str, NDArray[Any] | list[str]] = {
            name: [getattr(r, name) for r in rows] for name in ("key", "device", "session", "origin", "stratum")
        }
        columns["sketch"] = [str(r.schedule.get("sketch", "")) for r in rows]
        columns["status"] = [r.measurement.status.value for r in rows]
        columns["source_hash"] = [r.measurement.source_hash for r in rows]
        for name in ("round", "trial"):
            columns[name] = np.array([getattr(r, name) for r in rows], np.int64)
        nan = float("nan")
        columns["latency_us"] = np.array([r.measurement.latency_us or nan for r in rows], np.float64)
        columns["predicted"] = np.array([nan if r.predicted is None else r.predicted for r in rows], np.float64)
        for name in ("compile_seconds", "measure_seconds"):
            columns[name] = np.array([getattr(r.measurement, name) for r in rows], np.float64)
        knobs = dict.fromkeys(knob for r in rows for knob in r.schedule if knob != "sketch")
        for knob in knobs:
            columns[knob] = np.array([r.schedule.get(knob, -1) for r in rows], np.int64)
        return columns
