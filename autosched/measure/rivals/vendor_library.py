"""The vendor library as a rival, in full precision and at its default settings; it has nothing to compile."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from autosched.errors import UnsupportedError
from autosched.measure.vendor import Vendor, precision, vendor, vendor_name
from autosched.sketches.op import Op

if TYPE_CHECKING:
    import torch


@contextlib.contextmanager
def vendor_library(op: Op, folder: Path, *, name: str) -> Iterator[Vendor]:
    """What :func:`autosched.measure.vendor.vendor` gives.

    Args:
        op: What is computed.
        folder: Stays empty.
        name: Of the library.

    Raises:
        UnsupportedError: The library has no counterpart of the op.
    """
    yield _named(op, name)


@contextlib.contextmanager
def vendor_default(op: Op, folder: Path, *, name: str) -> Iterator[Vendor]:
    """The same with torch's default: partial sums of 16-bit products may be reduced in that type.

    Args:
        op: What is computed.
        folder: Stays empty.
        name: Of the library.

    Raises:
        UnsupportedError: The library has no counterpart of the op.
    """
    run = _named(op, name)

    def call(tensors: Sequence[torch.Tensor], out: torch.Tensor) -> torch.Tensor:
        with precision(op, reduced=True):
            return run(tensors, out)

    yield call


def _named(op: Op, name: str) -> Vendor:
    if vendor_name(op) != name:
        raise UnsupportedError(f"{name} does not compute {op.key()}", f"ask for {vendor_name(op)}")
    return vendor(op)
