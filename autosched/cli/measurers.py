"""``--on auto|gpu|recorded[:DEVICE]``: what answers how fast schedules are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from autosched.cli.devices import find_gpus
from autosched.errors import InvalidInputError, NoDeviceError
from autosched.measure.base import Measurer

FORMS = "auto, gpu, recorded or recorded:DEVICE"


@dataclass(frozen=True)
class Place:
    """Where to measure.

    Attributes:
        kind: ``auto``, ``gpu`` or ``recorded``.
        device: The recorded device; ``None`` for the one that is shipped first.
    """

    kind: str
    device: str | None = None


def parse_place(text: str) -> Place:
    """What ``--on`` means.

    Raises:
        InvalidInputError: It is none of the forms.
    """
    kind, colon, device = text.partition(":")
    if kind not in ("auto", "gpu", "recorded") or (colon and (kind != "recorded" or not device)):
        raise InvalidInputError(f"--on {text!r} is no place to measure", f"give {FORMS}")
    return Place(kind, device or None)


@contextmanager
def open_measurer(place: Place, say: Callable[[str], None]) -> Iterator[Measurer]:
    """The measurer, started. ``auto`` takes the GPU, or else says that it replays, and what.

    Args:
        place: Where to measure.
        say: Told in words what is replayed.

    Raises:
        NoDeviceError: ``gpu``, and there is none.
        NotRecordedError: ``recorded``, and nothing is.
    """
    with ExitStack() as stack:
        measurer, notice = _choose(place, stack)
        if notice:
            say(notice)
        yield measurer


def _choose(place: Place, stack: ExitStack) -> tuple[Measurer, str]:
    reason = ""
    if place.kind != "recorded":
        try:
            measurer = stack.enter_context(_gpu())
            assert measurer.target is not None  # waits for the device, or raises
            return measurer, ""
        except (NoDeviceError, InvalidInputError) as error:
            if place.kind == "gpu":
                raise
            reason = f"No GPU to measure on: {error.message}. "
    replayed = stack.enter_context(recorded(place.device))
    device = _a(replayed.target.name)
    return replayed, f"{reason}Replaying measurements recorded on {device}; nothing is run on this machine."


def _gpu() -> Measurer:
    found = find_gpus()
    if not found.gpus:
        raise NoDeviceError(found.problem, "use --on recorded, or run it on a machine with an NVIDIA GPU")
    return local()


def local() -> Measurer:
    """The measurer of this machine's GPU, not started."""
    from autosched.measure.local import LocalMeasurer

    return LocalMeasurer()


def recorded(device: str | None) -> Measurer:
    """The measurer of the shipped tables."""
    from autosched.recorded import recorded_measurer

    return recorded_measurer(device)


def _a(device: str) -> str:
    """With its article: an H200, a B200. Letters that are spoken with a vowel first take ``an``."""
    return f"{'an' if device[:1] in 'AEFHILMNORSX' else 'a'} {device}"
