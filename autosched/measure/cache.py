"""Triton's cache on disk, as far as tuning handles it: one folder an entry, capped in size, winners copied out."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Final

_KEPT_SHARE: Final = 0.75
_GROUP_PREFIX: Final = "__grp__"
_DOOMED_PREFIX: Final = ".deleted-"


def entry_name(kernel_hash: str) -> str:
    """Name of the folder in Triton's cache that holds the kernel with this hash (hexadecimal, from its metadata)."""
    return base64.b32encode(bytes.fromhex(kernel_hash)).decode().rstrip("=")


def trim(cache_dir: Path, limit_bytes: int) -> int:
    """Delete the oldest entries of a cache that is larger than ``limit_bytes``, down to three quarters of that.

    An entry vanishes by a rename, so that another process sees it whole or not at all.

    Returns:
        Bytes deleted.
    """
    entries = sorted(_entries(cache_dir))
    total = sum(size for _, _, size in entries)
    if total <= limit_bytes:
        return 0
    deleted = 0
    for _, path, size in entries:
        if total - deleted <= limit_bytes * _KEPT_SHARE:
            break
        doomed = path.with_name(_DOOMED_PREFIX + path.name)
        with contextlib.suppress(OSError):
            path.rename(doomed)
            shutil.rmtree(doomed, ignore_errors=True)
            deleted += size
    return deleted


def copy_entry(entry: Path, cache_dir: Path) -> bool:
    """Copy one entry into another cache, whole or not at all.

    Triton notes the absolute paths of an entry's files in a group file; the copy's name the copies.

    Returns:
        Whether the entry is in the other cache now.
    """
    goal = cache_dir / entry.name
    if goal.is_dir():
        return True
    if not any(entry.glob(f"{_GROUP_PREFIX}*")):
        return False
    cache_dir.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache_dir, prefix=".copy-") as folder:
        copy = Path(folder, entry.name)
        try:
            shutil.copytree(entry, copy, ignore=shutil.ignore_patterns("tmp.pid_*"))
            for group in copy.glob(f"{_GROUP_PREFIX}*"):
                data = json.loads(group.read_text())
                data["child_paths"] = {name: str(goal.resolve() / name) for name in data["child_paths"]}
                group.write_text(json.dumps(data))
            copy.rename(goal)
        except (OSError, shutil.Error):  # dropped meanwhile, or another process was faster
            return goal.is_dir()
    return True


def _entries(cache_dir: Path) -> list[tuple[float, Path, int]]:
    """Time of the last change (seconds), path and size (bytes) of each entry."""
    found: list[tuple[float, Path, int]] = []
    with contextlib.suppress(FileNotFoundError), os.scandir(cache_dir) as folders:
        for folder in folders:
            if folder.name.startswith(".") or not folder.is_dir(follow_symlinks=False):
                continue
            with contextlib.suppress(FileNotFoundError), os.scandir(folder.path) as files:
                size = sum(file.stat(follow_symlinks=False).st_size for file in files)
                found.append((folder.stat().st_mtime, Path(folder.path), size))
    return found
