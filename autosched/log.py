"""The tuning log: JSON lines, appended by any number of writers, read whole even where lines are damaged.

A session writes a header, for each trial a line before the launch and one after it, the vendor library's time, and a
final line with the outcome. Nothing read from a log is executed or unpickled: lines become checked values or are named
in ``LogContents.damaged``.
"""

from __future__ import annotations

import gc
import math
import os
import uuid
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec
import numpy as np
from numpy.typing import NDArray

from autosched.errors import LogError, LogNotFoundError
from autosched.record import Measurement, Record, Status

#: Version of the lines; a session of another version is skipped and counted.
SCHEMA = 1

SUFFIXES = (".jsonl", ".jsonl.gz")


class Header(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Header of a session: everything that its trials share.

    Attributes:
        session: Its id, unique among all logs.
        key: ``Op.key()``.
        op: ``Op.spec``.
        device: Name of the target's preset.
        target: ``Target.to_dict()``.
        versions: Of autosched, triton, torch, CUDA, by name.
        protocol: How kernels were proved and timed.
        seed: Of the search.
        model: Name or digest of the cost model that guided it; empty for none.
    """

    session: str
    key: str
    op: dict[str, Any]
    device: str
    target: dict[str, Any] = {}
    versions: dict[str, str] = {}
    protocol: dict[str, Any] = {}
    seed: int = 0
    model: str = ""


class Start(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A trial that is about to be launched; the session's header says of which op and where."""

    session: str
    trial: int
    schedule: dict[str, int | str]
    round: int = 0
    origin: str = ""
    predicted: float | None = None


class Vendor(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the vendor library takes for an op.

    Attributes:
        key: ``Op.key()``.
        device: Name of the target's preset.
        name: Of the library.
        latency_us: Median in microseconds.
        samples_us: All timed launches in microseconds.
        default_us: Median with the library's default precision settings, if it was measured.
        session: Id of the session that measured it.
    """

    key: str
    device: str
    name: str
    latency_us: float
    samples_us: tuple[float, ...] = ()
    default_us: float | None = None
    session: str = ""


class End(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a session ended: ``tuned``, ``partial`` or ``all_failed``, and whatever else the run wants to keep."""

    session: str
    status: str
    outcome: dict[str, Any] = {}


Line = Header | Start | Record | Vendor | End

_TYPES: dict[str, type[Line]] = {"session": Header, "start": Start, "trial": Record, "vendor": Vendor, "end": End}
_NAMES: dict[type, str] = {kind: name for name, kind in _TYPES.items()}


class _Type(msgspec.Struct, frozen=True):
    type: str = ""
    schema: int = SCHEMA
    session: str = ""


_TYPE_DECODER = msgspec.json.Decoder(_Type)
_DECODERS: dict[str, msgspec.json.Decoder[Any]] = {name: msgspec.json.Decoder(kind) for name, kind in _TYPES.items()}
_TRIAL_DECODER = _DECODERS["trial"]
_TRIAL_PREFIX = b'{"type":"trial",'
_ENCODER = msgspec.json.Encoder()


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


def new_session_id() -> str:
    """An id that no other session has. It names the session and enters no choice."""
    return uuid.uuid4().hex[:16]


@dataclass
class LogContents:
    """What was read: iterates over the finished trials' records, in the order of files and lines.

    Attributes:
        records: Finished trials.
        sessions: Headers by session id.
        vendors: Times of the vendor library.
        ends: Outcomes by session id.
        crashed: Trials that were started and neither finished nor followed by their session's end: the process died.
        damaged: Lines and files that were skipped, each with its reason.
        files: Logs that were read.
    """

    records: list[Record] = field(default_factory=list)
    sessions: dict[str, Header] = field(default_factory=dict)
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


class TuningLog:
    """Appends to one log. Each line is one write at the file's end, so that writers do not mix theirs.

    The file is made by the first line, its folder too. After a torn last line, which a killed writer leaves, the next
    line starts on a line of its own.

    Args:
        path: A ``.jsonl`` file, there or not.

    Raises:
        LogError: The path is compressed, a folder, or a file that is no log.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        if self.path.suffix == ".gz":
            raise LogError(f"{self.path} is compressed and cannot be appended to", "write to a .jsonl file")
        if self.path.is_dir():
            raise LogError(f"{self.path} is a folder", "name a .jsonl file in it")
        if self.path.exists() and self.path.stat().st_size:
            with self.path.open("rb") as file:
                head = file.readline(1 << 20)
            if not head.startswith(b'{"type":"') and _type_of(head) is None:
                raise LogError(f"{self.path} is no tuning log, nothing was written to it", "choose another file")
        self._file: int | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; the next line opens it again."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def append_header(self, header: Header) -> None:
        """Begin a session."""
        self._append(header)

    def start_trial(self, start: Start) -> None:
        """Note a trial before its launch, so that a crash names it."""
        self._append(start)

    def finish_trial(self, record: Record) -> None:
        """Note a trial's outcome. Figures of device and compiler that are not finite are left out.

        Raises:
            LogError: A sample is not finite, or a value is none that JSON has.
        """
        m = record.measurement
        clean = msgspec.structs.replace(m, compiled=_finite(m.compiled), telemetry=_finite(m.telemetry))
        if not all(map(math.isfinite, m.samples_us)):
            raise LogError(f"samples {m.samples_us} are not all finite", "a failure is a status, not a number")
        self._append(msgspec.structs.replace(record, measurement=clean))

    def append_vendor(self, vendor: Vendor) -> None:
        """Note the vendor library's time."""
        self._append(vendor)

    def finish(self, end: End) -> None:
        """End a session."""
        self._append(end)

    def _append(self, line: Line) -> None:
        schema = f',"schema":{SCHEMA}' if isinstance(line, Header) else ""
        try:
            body = _ENCODER.encode(line)
        except (TypeError, ValueError) as error:
            raise LogError(f"cannot write {type(line).__name__} as JSON: {error}", "use plain Python values") from error
        data = f'{{"type":"{_NAMES[type(line)]}"{schema},'.encode() + body[1:] + b"\n"
        if self._file is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        size = os.fstat(self._file).st_size
        if size and os.pread(self._file, 1, size - 1) != b"\n":
            data = b"\n" + data
        written = os.write(self._file, data)
        if written != len(data):
            raise LogError(f"{self.path}: wrote {written} of {len(data)} bytes of a line", "is the disk full?")

    @staticmethod
    def read(paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]) -> LogContents:
        """Read logs: files, or folders with everything in them that ends in ``.jsonl`` or ``.jsonl.gz``.

        Files of a folder that are no logs are named in ``damaged``.

        Raises:
            LogNotFoundError: A path is not there, or a folder holds no log.
            LogError: A file that was named is no log.
        """
        contents = LogContents()
        started: dict[tuple[str, int], Start] = {}
        seen: set[Path] = set()
        with _no_garbage_collection():
            for path in _paths(paths):
                files = _files(path)
                for file in files:
                    if file in seen:
                        continue
                    if _read_file(file, contents, started):
                        seen.add(file)
                        contents.files.append(file)
                    elif file == path:
                        raise LogError(f"{path} is no tuning log", "name a .jsonl or .jsonl.gz file written by a run")
                    else:
                        contents.damaged.append(Damage(str(file), 0, "no tuning log"))
                if path.is_dir() and not seen.intersection(files):
                    raise LogNotFoundError(f"no tuning log in {path}", "logs end in .jsonl or .jsonl.gz")
        if not contents.files:
            raise LogNotFoundError("no tuning log was named", "name files or folders")
        _add_crashed(contents, started)
        return contents


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Records hold no cycles, yet each collection walks all of them: reading takes 2 to 3 times as long with it."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _paths(paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]) -> list[Path]:
    if isinstance(paths, str | os.PathLike):
        return [Path(paths)]
    return [Path(p) for p in paths]


def _files(path: Path) -> list[Path]:
    if path.is_dir():
        return sorted(p for p in path.rglob("*") if p.name.endswith(SUFFIXES) and p.is_file())
    if not path.is_file():
        raise LogNotFoundError(f"there is no log {path}", "check the path")
    return [path]


def _read_file(path: Path, contents: LogContents, started: dict[tuple[str, int], Start]) -> bool:
    """Add one file's lines; whether any of them is a log's."""
    data, trouble = _load(path)
    foreign: set[str] = set()
    is_log = False
    records, damaged, name = contents.records, contents.damaged, str(path)
    found: list[Damage] = []
    lines = data.split(b"\n")
    for number, line in enumerate(lines, 1):
        if not line or line.isspace():
            continue
        try:
            if line.startswith(_TRIAL_PREFIX):
                record: Record = _TRIAL_DECODER.decode(line)
                is_log = True
                if foreign and record.session in foreign:
                    found.append(Damage(name, number, "trial of a session of another schema"))
                else:
                    records.append(record)
                continue
            head = _TYPE_DECODER.decode(line)
            if head.type not in _TYPES:
                found.append(Damage(name, number, f"unknown type of line {head.type!r}"))
                continue
            is_log = True
            if head.schema != SCHEMA:
                foreign.add(head.session)
                found.append(Damage(name, number, f"schema {head.schema}; this version reads {SCHEMA}"))
            elif head.session in foreign:
                found.append(Damage(name, number, f"{head.type} of a session of another schema"))
            else:
                _add(_DECODERS[head.type].decode(line), contents, started)
        except (ValueError, RecursionError) as error:  # msgspec's errors and wrong UTF-8 are ValueErrors
            torn = number == len(lines)
            found.append(Damage(name, number, f"{'torn last line' if torn else 'damaged line'}: {error}"))
    if trouble:
        found.append(Damage(name, 0, trouble))
    if is_log:
        damaged.extend(found)
    return is_log


def _load(path: Path) -> tuple[bytes, str]:
    """A file's bytes, decompressed as far as they can be, and what was wrong with it."""
    data = path.read_bytes()
    if not path.name.endswith(".gz"):
        return data, ""
    pieces: list[bytes] = []
    while data:
        member = zlib.decompressobj(wbits=31)
        try:
            pieces.append(member.decompress(data))
        except zlib.error as error:
            return b"".join(pieces), f"compressed data is damaged: {error}"
        if not member.eof:
            return b"".join(pieces), "compressed data ends early"
        data = member.unused_data
    return b"".join(pieces), ""


def _add(line: Line, contents: LogContents, started: dict[tuple[str, int], Start]) -> None:
    match line:
        case Header():
            contents.sessions[line.session] = line
        case Start():
            started[line.session, line.trial] = line
        case Vendor():
            contents.vendors.append(line)
        case End():
            contents.ends[line.session] = line
        case Record():
            contents.records.append(line)


def _add_crashed(contents: LogContents, started: dict[tuple[str, int], Start]) -> None:
    """Turn trials without an outcome into records, for sessions that are known and did not end."""
    if not started:
        return
    finished = {(r.session, r.trial) for r in contents.records}
    lost = Measurement(status=Status.WORKER_CRASH, error="the process ended while this trial ran")
    for at, start in started.items():
        session = contents.sessions.get(start.session)
        if at in finished or session is None or start.session in contents.ends:
            continue
        contents.crashed.append(
            Record(
                key=session.key,
                op=session.op,
                device=session.device,
                schedule=start.schedule,
                measurement=lost,
                origin=start.origin,
                round=start.round,
                trial=start.trial,
                predicted=start.predicted,
                session=start.session,
            )
        )


def _finite(figures: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in figures.items() if isinstance(v, str) or math.isfinite(v)}


def _type_of(line: bytes) -> str | None:
    try:
        kind = _TYPE_DECODER.decode(line).type
    except (ValueError, RecursionError):
        return None
    return kind if kind in _TYPES else None


@dataclass(frozen=True)
class Resumable:
    """A session that a run can continue.

    Attributes:
        header: Its header.
        records: Its finished trials, by number.
        crashed: Trials during which the process died.
        vendor: The vendor library's time, if it was measured.
        end: Its outcome, if it ended.
    """

    header: Header
    records: tuple[Record, ...]
    crashed: tuple[Record, ...]
    vendor: Vendor | None
    end: End | None


def find_session(
    path: str | os.PathLike[str], op_key: str, device: str, seed: int, protocol: Mapping[str, Any]
) -> Resumable | None:
    """The last session in a log of the same op, device, seed and protocol; ``None`` if the file is not there.

    Raises:
        LogError: The log holds no such session; the message names the fields in which the closest one differs.
    """
    if not Path(path).exists():
        return None
    contents = TuningLog.read(path)
    wanted = {"op key": op_key, "device": device, "seed": seed, "protocol": _plain(protocol)}
    best: tuple[list[str], Header] | None = None
    for session in reversed(list(contents.sessions.values())):
        held = {
            "op key": session.key,
            "device": session.device,
            "seed": session.seed,
            "protocol": _plain(session.protocol),
        }
        wrong = [
            f"{name} is {held[name]!r} in the log and {wanted[name]!r} in this run"
            for name in wanted
            if held[name] != wanted[name]
        ]
        if best is None or len(wrong) < len(best[0]):
            best = wrong, session
    remedy = "give the log's own values, or start a new log"
    if best is None:
        raise LogError(f"{path} holds no session to resume", remedy)
    if best[0]:
        raise LogError(f"{path} cannot be resumed: {'; '.join(best[0])}", remedy)
    header = best[1]
    vendors = [v for v in contents.vendors if v.session == header.session]
    return Resumable(
        header,
        tuple(contents.of_session(header.session)),
        tuple(r for r in contents.crashed if r.session == header.session),
        vendors[-1] if vendors else None,
        contents.ends.get(header.session),
    )


def _plain(value: Mapping[str, Any]) -> Any:
    """A value as it is after a round trip through JSON."""
    return msgspec.json.decode(_ENCODER.encode(dict(value)))
