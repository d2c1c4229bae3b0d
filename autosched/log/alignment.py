"""Sessions of one workload brought to one level, so that their rows compare.

The same kernel reads a microsecond more or less from one machine to the next (vendor library on 1000 x 1000 x 1000,
bf16: 10.6 us in one session and 11.7 in another on the same model of GPU). Each session that measured the vendor
library tells by how much: the difference is the same for all small kernels, and lost in the latency of large ones.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict

import msgspec

from autosched.log.contents import LogContents
from autosched.log.lines import Vendor
from autosched.record import Record

#: Largest shift of a row, over its latency.
MOST = 0.25


def aligned(contents: LogContents) -> LogContents:
    """The same log with each later session's samples, the vendor library's too, shifted to the level of the first one.

    The shift is the difference of the vendor library's lowest latencies (microseconds), for each key and device; a
    session without one is left as it is, and so is a row that would change by more than ``MOST``. What is on disk stays
    as it was measured.
    """
    levels: dict[tuple[str, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for vendor in contents.vendors:
        levels[vendor.key, vendor.device][vendor.session].append(vendor.latency_us)
    shifts: dict[tuple[str, str, str], float] = {}
    for (key, device), sessions in levels.items():
        lowest = {session: min(values) for session, values in sessions.items()}
        first = next(iter(lowest.values()))
        shifts |= {(key, device, session): first - low for session, low in lowest.items() if low != first}
    if not shifts:
        return contents
    records = [_shifted(r, shifts.get((r.key, r.device, r.session), 0.0)) for r in contents.records]
    vendors = [_moved(v, shifts.get((v.key, v.device, v.session), 0.0)) for v in contents.vendors]
    return dataclasses.replace(contents, records=records, vendors=vendors)


def _moved(vendor: Vendor, shift: float) -> Vendor:
    samples = tuple(sample + shift for sample in vendor.samples_us)
    return msgspec.structs.replace(vendor, latency_us=vendor.latency_us + shift, samples_us=samples)


def _shifted(record: Record, shift: float) -> Record:
    samples, latency = record.measurement.samples_us, record.measurement.latency_us
    if not shift or latency is None or abs(shift) > MOST * latency:
        return record
    moved = tuple(max(sample + shift, sample * (1 - MOST)) for sample in samples)
    return msgspec.structs.replace(record, measurement=msgspec.structs.replace(record.measurement, samples_us=moved))
