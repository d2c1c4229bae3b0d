"""Reading logs whole, fast, and past any damage."""

from __future__ import annotations

import gc
import os
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from autosched.errors import LogError, LogNotFoundError
from autosched.log.contents import Damage, LogContents
from autosched.log.lines import (
    DECODERS,
    SCHEMA,
    TRIAL_DECODER,
    TRIAL_PREFIX,
    TYPE_DECODER,
    TYPES,
    End,
    Header,
    Line,
    Round,
    Start,
    Vendor,
)
from autosched.record import Measurement, Record, Status

SUFFIXES = (".jsonl", ".jsonl.gz")


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
        try:
            if line.startswith(TRIAL_PREFIX):
                record: Record = TRIAL_DECODER.decode(line)
                is_log = True
                if foreign and record.session in foreign:
                    found.append(Damage(name, number, "trial of a session of another schema"))
                else:
                    records.append(record)
                continue
            if not line or line.isspace():
                continue
            head = TYPE_DECODER.decode(line)
            if head.type not in TYPES:
                found.append(Damage(name, number, f"unknown type of line {head.type!r}"))
                continue
            is_log = True
            if head.schema != SCHEMA:
                foreign.add(head.session)
                found.append(Damage(name, number, f"schema {head.schema}; this version reads {SCHEMA}"))
            elif head.session in foreign:
                found.append(Damage(name, number, f"{head.type} of a session of another schema"))
            else:
                _add(DECODERS[head.type].decode(line), contents, started)
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
        case Round():
            contents.rounds.append(line)
        case Start():
            started[line.session, line.trial] = line
        case Vendor():
            contents.vendors.append(line)
        case End():
            contents.ends[line.session] = line
            for at in [at for at in started if at[0] == line.session]:
                del started[at]  # given up in good order; a resumed session may crash later all the same
        case Record():
            contents.records.append(line)


def _add_crashed(contents: LogContents, started: dict[tuple[str, int], Start]) -> None:
    """Turn trials without an outcome into records, where the session is known."""
    if not started:
        return
    finished = {(r.session, r.trial) for r in contents.records}
    lost = Measurement(status=Status.WORKER_CRASH, error="the process ended while this trial ran")
    for at, start in started.items():
        session = contents.sessions.get(start.session)
        if at in finished or session is None:
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
