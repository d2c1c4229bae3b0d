"""Files of rows: one line a row, appended as each is measured, and shards that merge."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from autosched.benching.row import BenchRow
from autosched.benching.suite import position
from autosched.errors import InvalidInputError

FORMAT = 1


class _Line(msgspec.Struct, frozen=True, kw_only=True):
    """A line of a file of rows."""

    format: int
    row: BenchRow


class _Printed(msgspec.Struct, frozen=True, kw_only=True):
    """What ``--json`` prints, as far as merging reads it."""

    format: int
    rows: tuple[BenchRow, ...]


def check_appendable(path: Path) -> None:
    """Refuse a file that rows could not be appended to; nothing is written.

    Raises:
        InvalidInputError: It is a folder, its folder is not there, or it holds anything but lines of rows.
    """
    if path.is_dir():
        raise InvalidInputError(f"{path} is a folder", "name a file, such as rows.jsonl")
    if not path.absolute().parent.is_dir():
        raise InvalidInputError(f"{path}: its folder is not there", "make the folder first")
    if path.exists() and (data := _content(path)):
        if _printed(data):
            raise InvalidInputError(f"{path} was printed by --json; rows cannot be appended to it", "name another file")
        _lines(path, data)


def append_row(path: Path, row: BenchRow) -> None:
    """Writes a row at a file's end, and waits until it is on the disk."""
    data = msgspec.json.encode(_Line(format=FORMAT, row=row)) + b"\n"
    with path.open("a+b") as file:
        if file.tell() and (file.seek(-1, os.SEEK_END), file.read(1))[1] != b"\n":
            data = b"\n" + data
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def read_rows(path: Path) -> tuple[BenchRow, ...]:
    """The rows of a file that ``-o`` wrote or ``--json`` printed, in its order.

    Raises:
        InvalidInputError: It is not there, or is neither, or a line of it is damaged.
    """
    data = _content(path)
    if not data.strip():
        return ()
    if not _printed(data):
        return _lines(path, data)
    try:
        printed = msgspec.json.decode(data, type=_Printed)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _foreign(str(path), error) from error
    return _checked(str(path), printed.format, printed.rows)


def merge_rows(paths: Sequence[Path], op: str | None = None) -> tuple[BenchRow, ...]:
    """The rows of several files, in the order of the suite; of two rows of one workload the later one.

    Args:
        paths: Files, the latest last.
        op: Rows of other ops are left out; all are kept if not given.

    Raises:
        InvalidInputError: A file is not there, foreign or damaged; rows are of several devices; none is of ``op``.
    """
    kept: dict[str, BenchRow] = {}
    for path in paths:
        kept |= {row.label: row for row in read_rows(path) if op is None or row.op == op}
    if not kept:
        raise InvalidInputError(f"no row of {op or 'any op'} in {', '.join(map(str, paths))}", "name other files")
    devices = sorted({row.device for row in kept.values() if row.device})
    if len(devices) > 1:
        raise InvalidInputError(f"rows of several devices: {', '.join(devices)}", "merge those of one device")
    return tuple(sorted(kept.values(), key=position))


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InvalidInputError(f"{path}: {error.strerror}", "name a file that autosched bench wrote") from error


def _printed(data: bytes) -> bool:
    """Whether it is to be read as what ``--json`` prints rather than as lines of a row each."""
    return b'"row":' not in data.partition(b"\n")[0]


def _lines(path: Path, data: bytes) -> tuple[BenchRow, ...]:
    rows: list[BenchRow] = []
    for number, line in enumerate(data.splitlines(), 1):
        if not line.strip():
            continue
        where = f"{path}:{number}"
        try:
            found = msgspec.json.decode(line, type=_Line)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise _foreign(where, error) from error
        rows += _checked(where, found.format, [found.row])
    return tuple(rows)


def _checked(where: str, format_: int, rows: Iterable[BenchRow]) -> tuple[BenchRow, ...]:
    if format_ != FORMAT:
        raise InvalidInputError(f"{where}: format {format_}", f"this version reads format {FORMAT}")
    return tuple(rows)


def _foreign(where: str, error: Exception) -> InvalidInputError:
    return InvalidInputError(
        f"{where}: no rows of autosched bench, or damaged: {error}",
        "name files that -o wrote or --json printed; a torn last line may be removed",
    )
