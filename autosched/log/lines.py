"""The lines of a log and their JSON: what each type holds, and the schema that all of them follow."""

from __future__ import annotations

import uuid
from typing import Any

import msgspec

from autosched.record import Record

#: Version of the lines; a session of another version is skipped and counted.
SCHEMA = 1


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


class Round(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A round that is about to be measured: what a resumed run needs in order to ask for the same one.

    Attributes:
        session: Id of the session.
        round: Its number, from 0.
        asked: Schedules that were asked for; fewer came where the space had no more.
        pairs: Pairs of earlier trials whose order the model had to predict.
        accuracy: Share of these that it had right before they were measured; ``None`` where there were none.
        explored: Schedules of this round that were drawn at random, whatever the model said.
    """

    session: str
    round: int
    asked: int
    pairs: int = 0
    accuracy: float | None = None
    explored: int = 0


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


Line = Header | Round | Start | Record | Vendor | End

TYPES: dict[str, type[Line]] = {
    "session": Header,
    "round": Round,
    "start": Start,
    "trial": Record,
    "vendor": Vendor,
    "end": End,
}
NAMES: dict[type, str] = {kind: name for name, kind in TYPES.items()}


class _Type(msgspec.Struct, frozen=True):
    type: str = ""
    schema: int = SCHEMA
    session: str = ""


TYPE_DECODER = msgspec.json.Decoder(_Type)
DECODERS: dict[str, msgspec.json.Decoder[Any]] = {name: msgspec.json.Decoder(kind) for name, kind in TYPES.items()}
TRIAL_DECODER = DECODERS["trial"]
TRIAL_PREFIX = b'{"type":"trial",'
ENCODER = msgspec.json.Encoder()


def type_of(line: bytes) -> str | None:
    """The type of a line, or ``None`` if it is none of a log."""
    try:
        kind = TYPE_DECODER.decode(line).type
    except (ValueError, RecursionError):
        return None
    return kind if kind in TYPES else None


def new_session_id() -> str:
    """An id that no other session has. It names the session and enters no choice."""
    return uuid.uuid4().hex[:16]
