"""The suite: which workloads a benchmark measures, and how some of them are chosen."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib import resources

import msgspec

from autosched.errors import InvalidInputError
from autosched.sketches.builders import build_named
from autosched.sketches.op import Op

#: The class whose rows are left out of the headline mean and reported beside it.
ODD_STRIDES = "odd_strides"
_PLAIN_DTYPE = "bf16"
_PLAIN_LAYOUTS = ("nn", "nhwc")


class Workload(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One row of the suite: an op, its shape, and what kind of shape that is.

    Attributes:
        op: Name of the operator.
        shape: Its sizes in the builder's order: M,N,K for gemm.
        group: What kind of shape it is, ``large`` or ``skinny``; ``class`` in JSON.
        dtype: Element type of the inputs.
        layout: Layout of the inputs.
        epilogue: Steps on the result.
        scales: How inputs are scaled: ``tensor``, ``row_column``, ``block`` or empty for not at all.
        dynamic: Axes whose extent is known only at run time.
        groups: Groups of a convolution.
    """

    op: str
    shape: tuple[int, ...]
    group: str = msgspec.field(name="class")
    dtype: str
    layout: str
    epilogue: tuple[str, ...] = ()
    scales: str = ""
    dynamic: tuple[str, ...] = ()
    groups: int = 1

    @property
    def sizes(self) -> str:
        """The shape as people write it: ``4096,4096,4096``."""
        return ",".join(map(str, self.shape))

    @property
    def words(self) -> tuple[str, ...]:
        """What tells it from other workloads of its shape: dtype, layout, epilogue, scales, dynamic axes, groups."""
        rest = ("+".join(self.epilogue), self.scales, "dynamic" if self.dynamic else "")
        grouped = (f"groups={self.groups}",) if self.groups > 1 else ()
        return (self.dtype, self.layout, *(word for word in rest if word), *grouped)

    @property
    def label(self) -> str:
        """The workload in words, unlike every other's: ``gemm 4096,4096,4096 bf16 nn``."""
        return " ".join((self.op, self.sizes, *self.words))

    @property
    def plain(self) -> bool:
        """Whether it counts towards the means by class: bf16, stored as written, nothing but the product."""
        bare = not (self.epilogue or self.scales or self.dynamic)
        return self.dtype == _PLAIN_DTYPE and self.layout in _PLAIN_LAYOUTS and bare

    @property
    def headline(self) -> bool:
        """Whether it counts towards the headline mean: plain, neither grouped nor with odd strides."""
        return self.plain and self.groups == 1 and self.group != ODD_STRIDES

    def build(self) -> Op:
        """The op.

        Raises:
            InvalidInputError: This version has no such op, or its builder refuses the arguments.
        """
        groups = {"groups": self.groups} if self.groups > 1 else {}
        return build_named(
            self.op,
            self.shape,
            dtype=self.dtype,
            layout=self.layout,
            epilogue=self.epilogue,
            dynamic=self.dynamic,
            scales=self.scales,
            **groups,
        )


class _Suite(msgspec.Struct, frozen=True):
    rows: tuple[Workload, ...]


def load_suite(op: str | None = None, *, only: Sequence[str] = (), groups: Sequence[str] = ()) -> tuple[Workload, ...]:
    """The workloads of the suite that ships with the package, in its order.

    Args:
        op: Name of an operator; all if not given.
        only: Workloads to keep, each a shape that any number of words may narrow: ``4096,4096,4096`` keeps every
            workload of that shape, ``4096,4096,4096:fp16:nn`` the one of that dtype and layout. A word is one of
            ``Workload.words``, in any order. All if empty.
        groups: Classes to keep; all if empty. With ``only``, a workload has to pass both.

    Raises:
        InvalidInputError: The suite has no such op, shape, word or class, or nothing passes both.
    """
    data = (resources.files("autosched.benching") / "suite.json").read_bytes()
    rows = msgspec.json.decode(data, type=_Suite).rows
    if op is not None:
        ops = dict.fromkeys(row.op for row in rows)
        if op not in ops:
            raise InvalidInputError(f"the suite has no op {op!r}", f"one of {', '.join(ops)}")
        rows = tuple(row for row in rows if row.op == op)
    classes = dict.fromkeys(row.group for row in rows)
    for group in groups:
        if group not in classes:
            raise InvalidInputError(f"the suite has no class {group!r}", f"one of {', '.join(classes)}")
    wanted = {row for text in only for row in _matching(text, rows)} if only else set(rows)
    chosen = tuple(row for row in rows if row in wanted and (not groups or row.group in groups))
    if not chosen:
        have = ", ".join(dict.fromkeys(row.group for row in rows if row in wanted))
        raise InvalidInputError(f"no workload of {_listed(only)} is of class {_listed(groups)}", f"they are of {have}")
    return chosen


def position(workload: Workload) -> int:
    """Place of a workload in the suite; past its end if it is not in it."""
    labels = [row.label for row in load_suite()]
    return labels.index(workload.label) if workload.label in labels else len(labels)


def _matching(text: str, rows: Sequence[Workload]) -> list[Workload]:
    sizes, *words = (part.strip() for part in text.split(":"))
    try:
        shape = tuple(int(size) for size in sizes.split(","))
    except ValueError:
        raise InvalidInputError(
            f"{text!r} is no shape", "give sizes such as 4096,4096,4096, or narrow them: 4096,4096,4096:fp16:nn"
        ) from None
    alike = [row for row in rows if row.shape == shape]
    if not alike:
        raise InvalidInputError(f"the suite has no shape {sizes}", f"it has {_listed(row.sizes for row in rows)}")
    found = [row for row in alike if set(words) <= set(row.words)]
    if not found:
        have = _listed(":".join((sizes, *row.words)) for row in alike)
        raise InvalidInputError(f"the suite has no workload {text}", f"of that shape it has {have}")
    return found


def _listed(values: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(values))
