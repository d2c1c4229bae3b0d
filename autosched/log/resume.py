"""Finding the session that a run can continue."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from autosched.errors import LogError
from autosched.log.lines import ENCODER, End, Header, Vendor
from autosched.log.reading import read
from autosched.record import Record


@dataclass(frozen=True)
class Resumable:
    """A session that a run can continue.

    Attributes:
        header: Its header.
        records: Its finished trials, by number.
        crashed: Trials during which the process died.
        rounds: What was asked for in each round, by its number; its trials where the log has no line of it.
        vendor: The vendor library's time, if it was measured.
        end: Its outcome, if it ended.
    """

    header: Header
    records: tuple[Record, ...]
    crashed: tuple[Record, ...]
    rounds: dict[int, int]
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
    contents = read(path)
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
    finished = contents.of_session(header.session)
    crashed = [r for r in contents.crashed if r.session == header.session]
    trials = Counter(r.round for r in (*finished, *crashed))
    vendors = [v for v in contents.vendors if v.session == header.session]
    return Resumable(
        header,
        tuple(finished),
        tuple(crashed),
        {**trials, **{r.round: r.asked for r in contents.rounds if r.session == header.session}},
        vendors[-1] if vendors else None,
        contents.ends.get(header.session),
    )


def _plain(value: Mapping[str, Any]) -> Any:
    """A value as it is after a round trip through JSON."""
    return msgspec.json.decode(ENCODER.encode(dict(value)))
