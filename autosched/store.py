"""The store: the best record of each op on each device, with the vendor library's time beside it.

It is derived from logs and can be rebuilt from them at any time. One JSON file a device, replaced whole under a lock:
readers need none, and several runs may update it.
"""

from __future__ import annotations

import logging
import os
import statistics
import tempfile
import urllib.parse
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Protocol

import filelock
import msgspec

from autosched.record import Measurement, Record, Status

FORMAT = 1

logger = logging.getLogger(__name__)


class Entry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is known best for one op on one device.

    Attributes:
        record: The best record; its measurement keeps the source hash of the schedule.
        vendor: Name of the vendor library; empty if it was not measured.
        vendor_us: The vendor library's latency in microseconds, from the same log.
        versions: Of triton and CUDA that the record was measured with, as far as known.
    """

    record: Record
    vendor: str = ""
    vendor_us: float | None = None
    versions: dict[str, str] = {}

    @property
    def latency_us(self) -> float:
        """Median latency of the record in microseconds."""
        return statistics.median(self.record.measurement.samples_us)

    @property
    def ratio(self) -> float | None:
        """Vendor time over this record's: above 1 is faster than the vendor library; ``None`` if not known."""
        return None if self.vendor_us is None else self.vendor_us / self.latency_us


class VendorTime(Protocol):
    """The vendor library's time of one op on one device, as logs keep it."""

    @property
    def key(self) -> str:
        """``Op.key()``."""
        ...

    @property
    def device(self) -> str:
        """Name of the target."""
        ...

    @property
    def name(self) -> str:
        """Of the library."""
        ...

    @property
    def latency_us(self) -> float:
        """Median in microseconds."""
        ...


class _File(msgspec.Struct, frozen=True, kw_only=True):
    format: int
    device: str
    entries: dict[str, Entry]


class Store:
    """Best records by op key and device.

    Args:
        folder: Where the files are; made by the first update.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)

    def best(self, op_key: str, device: str) -> Entry | None:
        """The best that is known, or ``None``."""
        return self._read(device).get(op_key)

    def entries(self, device: str) -> dict[str, Entry]:
        """Everything known for a device, by op key."""
        return self._read(device)

    def update(
        self,
        record: Record,
        vendor_us: float | None = None,
        *,
        vendor: str = "",
        versions: Mapping[str, str] | None = None,
    ) -> bool:
        """Keep ``record`` if it is valid and faster than what is known, or the same source measured anew.

        Args:
            record: A finished trial.
            vendor_us: The vendor library's latency from the same run, in microseconds.
            vendor: Its name.
            versions: Of triton and CUDA.

        Returns:
            Whether it was kept.
        """
        if not record.measurement.ok:
            return False
        entry = Entry(record=record, vendor=vendor, vendor_us=vendor_us, versions=dict(versions or {}))
        kept = False

        def change(entries: dict[str, Entry]) -> dict[str, Entry]:
            nonlocal kept
            known = entries.get(record.key)
            kept = known is None or entry.latency_us < known.latency_us or _same_source(known.record, record)
            return {**entries, record.key: entry} if kept else entries

        self._change(record.device, change)
        return kept

    def rebuild(self, records: Iterable[Record], vendors: Iterable[VendorTime] = ()) -> int:
        """Replace what is stored for every device that the records name.

        Rows of one schedule are pooled, so that an op's best is the best median of all of a schedule's samples and not
        the luckiest row. Of several vendor times the median counts.

        Args:
            records: Of logs, failures included.
            vendors: The vendor library's times.

        Returns:
            Number of entries stored.
        """
        times: dict[tuple[str, str], list[VendorTime]] = defaultdict(list)
        for time in vendors:
            times[time.device, time.key].append(time)
        devices: dict[str, dict[str, Entry]] = defaultdict(dict)
        for record in _pooled(records):
            known = devices[record.device].get(record.key)
            beside = times[record.device, record.key]
            entry = Entry(
                record=record,
                vendor=beside[-1].name if beside else "",
                vendor_us=statistics.median(t.latency_us for t in beside) if beside else None,
            )
            if known is None or entry.latency_us < known.latency_us:
                devices[record.device][record.key] = entry
        for device, found in devices.items():
            self._change(device, lambda _, found=found: found)  # type: ignore[misc]
        return sum(map(len, devices.values()))

    def _path(self, device: str) -> Path:
        return self.folder / f"{urllib.parse.quote(device, safe='')}.json"

    def _read(self, device: str) -> dict[str, Entry]:
        path = self._path(device)
        try:
            stored = msgspec.json.decode(path.read_bytes(), type=_File)
        except FileNotFoundError:
            return {}
        except (ValueError, RecursionError) as error:
            logger.warning("%s is damaged and counts as empty; rebuild it from the logs: %s", path, error)
            return {}
        if stored.format != FORMAT:
            logger.warning("%s has format %d, not %d, and counts as empty", path, stored.format, FORMAT)
            return {}
        return stored.entries

    def _change(self, device: str, change: Callable[[dict[str, Entry]], dict[str, Entry]]) -> None:
        """Replace a device's entries by what ``change`` makes of them, alone among all writers."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self._path(device)
        with filelock.FileLock(f"{path}.lock"):
            before = self._read(device)
            entries = change(before)
            if entries is before:
                return
            data = msgspec.json.encode(_File(format=FORMAT, device=device, entries=entries))
            handle, name = tempfile.mkstemp(dir=self.folder, prefix=path.name, suffix=".new")
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(msgspec.json.format(data, indent=1))
                os.replace(name, path)
            except BaseException:
                Path(name).unlink(missing_ok=True)
                raise


def _same_source(a: Record, b: Record) -> bool:
    return bool(a.measurement.source_hash) and a.measurement.source_hash == b.measurement.source_hash


def _pooled(records: Iterable[Record]) -> list[Record]:
    """One record a schedule and source, with all samples; source that once gave a wrong result is left out."""
    groups: dict[tuple[str, str, bytes, str], list[Record]] = defaultdict(list)
    wrong: set[tuple[str, str, bytes, str]] = set()
    for record in records:
        schedule = msgspec.json.encode(record.schedule, order="sorted")
        at = (record.device, record.key, schedule, record.measurement.source_hash)
        if record.measurement.status is Status.WRONG_RESULT:
            wrong.add(at)
        elif record.measurement.ok:
            groups[at].append(record)
    pooled = []
    for at, rows in groups.items():
        if at not in wrong:
            samples = tuple(s for r in rows for s in r.measurement.samples_us)
            measurement: Measurement = msgspec.structs.replace(rows[-1].measurement, samples_us=samples)
            pooled.append(msgspec.structs.replace(rows[-1], measurement=measurement))
    return pooled
