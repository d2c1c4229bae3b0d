"""Settings of the user's environment. This is the only module that reads it; everything else takes values."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from autosched.errors import InvalidInputError


@dataclass(frozen=True)
class Settings:
    """Where data lies and how much of the machine may be used.

    Attributes:
        home: Data folder: ``AUTOSCHED_HOME``, else the platform's data folder of the user.
        workers: Compiling processes: ``AUTOSCHED_WORKERS``, else one a usable CPU core, less one to measure with.
    """

    home: Path
    workers: int

    @property
    def logs(self) -> Path:
        """Folder of the logs of tuning runs."""
        return self.home / "logs"

    @property
    def store(self) -> Path:
        """Folder of the best records."""
        return self.home / "store"

    @property
    def cache(self) -> Path:
        """Folder of compiled winners."""
        return self.home / "cache"


def load(environ: Mapping[str, str] | None = None) -> Settings:
    """The settings now.

    Args:
        environ: Variables by name; the process's own if not given.

    Raises:
        InvalidInputError: A variable whose value cannot be used.
    """
    environ = os.environ if environ is None else environ
    home = environ.get("AUTOSCHED_HOME", "")
    path = Path(home).expanduser() if home else Path(platformdirs.user_data_dir("autosched", appauthor=False))
    if path.exists() and not path.is_dir():
        raise InvalidInputError(f"AUTOSCHED_HOME={path} is a file", "name a folder")
    return Settings(path.absolute(), _workers(environ.get("AUTOSCHED_WORKERS", "")))


def _workers(text: str) -> int:
    if not text:
        return max(1, _cores() - 1)
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise InvalidInputError(f"AUTOSCHED_WORKERS={text!r}", "a whole number of processes, 1 or more")
    return int(text)


def _cores() -> int:
    """CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
