"""What people would use instead: the competitors that a tuned kernel is timed beside, by name."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from autosched.errors import InvalidInputError
from autosched.measure.rivals.base import Contender
from autosched.measure.rivals.inductor import inductor, inductor_triton
from autosched.measure.rivals.triton_autotune import triton_autotune
from autosched.measure.rivals.vendor_library import vendor_default, vendor_library
from autosched.measure.vendor import CONVOLUTIONS, MATRICES, vendor_name
from autosched.sketches.op import Op

RIVALS: dict[str, Contender] = {
    MATRICES: Contender(partial(vendor_library, name=MATRICES), tunes=False),
    f"{MATRICES}-default": Contender(partial(vendor_default, name=MATRICES), tunes=False),
    CONVOLUTIONS: Contender(partial(vendor_library, name=CONVOLUTIONS), tunes=False),
    "inductor": Contender(inductor),
    "inductor-triton": Contender(inductor_triton),
    "triton.autotune": Contender(triton_autotune),
}


#: What an op is measured beside if nothing is said, by the vendor library that computes it.
USUAL: dict[str, tuple[str, ...]] = {
    MATRICES: (MATRICES, "inductor", "triton.autotune"),
    CONVOLUTIONS: (CONVOLUTIONS, "inductor"),
}


def usual(op: Op) -> tuple[str, ...]:
    """What people would use instead: the vendor library, Inductor, and a tutorial's kernel if there is one."""
    return USUAL[vendor_name(op)]


def check_names(names: Sequence[str]) -> tuple[str, ...]:
    """The names as a tuple, if each is a rival's.

    Raises:
        InvalidInputError: One is not.
    """
    for name in names:
        if name not in RIVALS:
            raise InvalidInputError(f"unknown rival {name!r}", f"one of {', '.join(RIVALS)}")
    return tuple(names)
