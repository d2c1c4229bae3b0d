"""The tuning log: JSON lines, appended by any number of writers, read whole even where lines are damaged.

A session writes a header, a line before each round, for each trial a line before the launch and one after it, the
vendor library's time, and a final line with the outcome. Nothing read from a log is executed or unpickled: lines become
checked values or are named in ``LogContents.damaged``.
"""

from __future__ import annotations

from autosched.log.alignment import aligned
from autosched.log.contents import Damage, LogContents, Staleness, stale
from autosched.log.lines import SCHEMA, End, Header, Line, Round, Start, Vendor, new_session_id
from autosched.log.resume import Resumable, find_session
from autosched.log.writing import TuningLog

__all__ = [
    "SCHEMA",
    "Damage",
    "End",
    "Header",
    "Line",
    "LogContents",
    "Resumable",
    "Round",
    "Staleness",
    "Start",
    "TuningLog",
    "Vendor",
    "aligned",
    "find_session",
    "new_session_id",
    "stale",
]
