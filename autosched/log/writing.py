"""Writing a log: one line at a time, whatever happens to the writer."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

from autosched.errors import LogError
from autosched.log.contents import LogContents
from autosched.log.lines import ENCODER, NAMES, SCHEMA, End, Header, Line, Round, Start, Vendor, type_of
from autosched.log.reading import read
from autosched.record import Record


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
            if not head.startswith(b'{"type":"') and type_of(head) is None:
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

    def begin_round(self, begun: Round) -> None:
        """Note a round before its first launch."""
        self._append(begun)

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
            body = ENCODER.encode(line)
        except (TypeError, ValueError) as error:
            raise LogError(f"cannot write {type(line).__name__} as JSON: {error}", "use plain Python values") from error
        data = f'{{"type":"{NAMES[type(line)]}"{schema},'.encode() + body[1:] + b"\n"
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
        """Read logs: see ``autosched.log.reading.read``."""
        return read(paths)


def _finite(figures: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in figures.items() if isinstance(v, str) or math.isfinite(v)}
