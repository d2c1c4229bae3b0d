"""The vendor library as a rival; it has nothing to compile."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from autosched.measure.vendor import Vendor, vendor
from autosched.sketches.op import Op


@contextlib.contextmanager
def vendor_library(op: Op, folder: Path) -> Iterator[Vendor]:
    """What :func:`autosched.measure.vendor.vendor` gives.

    Args:
        op: What is computed.
        folder: Stays empty.

    Raises:
        UnsupportedError: The library has no counterpart of the op.
    """
    yield vendor(op)
