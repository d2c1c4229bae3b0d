"""What people would use instead: the competitors that a tuned kernel is timed beside, by name."""

from __future__ import annotations

from collections.abc import Sequence

from autosched.errors import InvalidInputError
from autosched.measure.rivals.base import Contender
from autosched.measure.rivals.inductor import inductor, inductor_triton
from autosched.measure.rivals.triton_autotune import triton_autotune
from autosched.measure.rivals.vendor_library import vendor_default, vendor_library
from autosched.measure.vendor import NAME as VENDOR_NAME

RIVALS: dict[str, Contender] = {
    VENDOR_NAME: Contender(vendor_library, tunes=False),
    f"{VENDOR_NAME}-default": Contender(vendor_default, tunes=False),
    "inductor": Contender(inductor),
    "inductor-triton": Contender(inductor_triton),
    "triton.autotune": Contender(triton_autotune),
}


def check_names(names: Sequence[str]) -> tuple[str, ...]:
    """The names as a tuple, if each is a rival's.

    Raises:
        InvalidInputError: One is not.
    """
    for name in names:
        if name not in RIVALS:
            raise InvalidInputError(f"unknown rival {name!r}", f"one of {', '.join(RIVALS)}")
    return tuple(names)
