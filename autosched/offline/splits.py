"""How recorded workloads are parted into rows that a model learns from and rows that it is judged on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autosched.errors import InvalidInputError
from autosched.models import Dataset, grouped_folds
from autosched.record import Record
from autosched.sketches.builders import build
from autosched.sketches.op import EpilogueStep, Op
from autosched.sketches.rules import derive
from autosched.sketches.sketch import Sketch
from autosched.sketches.target import Target, parse_target

#: Every way to part the rows.
SPLITS = ("by-workload", "by-family", "by-dtype", "by-device", "within")

#: Sizes at which ``family_of`` draws its lines, in elements; ``_LARGE`` in multiplications.
_LONG = 8
_SKINNY = 128
_ALIGNED = 64
_LARGE = 2**33


@dataclass(frozen=True)
class Workload:
    """What rows of one key on one device have in common.

    Attributes:
        name: Key and device, as ``Dataset.workloads`` names it.
        op: The operator.
        target: The device.
        sketches: What is derived for it.
        sizes: M, N, K and batch of the matrix view.
        dtype: Element type of the first product's operands.
        layout: Whether each operand of the product is stored transposed.
        epilogue: The epilogue's steps (scales, alpha and gates among them), each with its factor if it has one.
        fast: Whether products stay in the tensor cores' own accumulator.
    """

    name: str
    op: Op
    target: Target
    sketches: tuple[Sketch, ...]
    sizes: tuple[int, int, int, int]
    dtype: str
    layout: tuple[int, int]
    epilogue: tuple[str, ...]
    fast: bool = False

    @property
    def device(self) -> str:
        """Name of the target."""
        return self.target.name

    @property
    def family(self) -> str:
        """Class of its shape, see ``family_of``."""
        return family_of(*self.sizes)

    @property
    def label(self) -> str:
        """Sizes (batch first where there are several matrices), type, layout, epilogue and the rest, for people."""
        m, n, k, batch = self.sizes
        sizes = "x".join(str(size) for size in ((batch, m, n, k) if batch > 1 else (m, n, k)))
        layout = "".join("nt"[side] for side in self.layout)
        words = (sizes, self.dtype, layout, "+".join(self.epilogue), "fast" if self.fast else "")
        return " ".join(word for word in words if word)


@dataclass(frozen=True)
class Part:
    """Rows that one model learns from, and rows that it is judged on.

    Attributes:
        name: What is held out, for people.
        train: Row numbers.
        test: Row numbers.
    """

    name: str
    train: NDArray[np.intp]
    test: NDArray[np.intp]


def family_of(m: int, n: int, k: int, batch: int = 1) -> str:
    """Class of a shape, by the first rule that fits.

    ``batched``: more than one matrix. ``long-k``: K is at least 8 times the larger of M and N. ``skinny``: the smaller
    of M and N is at most 128. ``awkward``: M, N or K is no multiple of 64, so that tiles hang over. ``large``: at least
    2^33 multiplications. ``medium``: everything else.
    """
    if batch > 1:
        return "batched"
    if k >= _LONG * max(m, n):
        return "long-k"
    if min(m, n) <= _SKINNY:
        return "skinny"
    if m % _ALIGNED or n % _ALIGNED or k % _ALIGNED:
        return "awkward"
    return "large" if m * n * k >= _LARGE else "medium"


def describe(data: Dataset, records: Iterable[Record]) -> dict[str, Workload]:
    """The workloads of ``data`` by name, in its order.

    Args:
        data: Rows made of ``records``.
        records: At least one of each workload.
    """
    first: dict[str, Record] = {}
    for record in records:
        first.setdefault(f"{record.key}@{record.device}", record)
    return {name: _workload(name, first[name]) for name in data.groups}


def _workload(name: str, record: Record) -> Workload:
    op, target = build(record.op), parse_target(record.device)
    sketches = derive(op, target)
    view, facts = sketches[0].view, sketches[0].facts()
    return Workload(
        name=name,
        op=op,
        target=target,
        sketches=sketches,
        sizes=(view.extent("m"), view.extent("n"), view.extent("k"), view.extent("batch")),
        dtype=op.operand(op.products[0].left).dtype.name,
        layout=(facts["trans_a"], facts["trans_b"]),
        epilogue=tuple(_step_name(step) for step in op.epilogue),
        fast=op.fast_accumulate,
    )


def _step_name(step: EpilogueStep) -> str:
    return step.kind + (f"{step.factor:g}" if step.factor != 1.0 else "")


def make_parts(data: Dataset, workloads: Mapping[str, Workload], split: str, folds: int, seed: int) -> list[Part]:
    """The parts of a split.

    - ``by-workload``: ``folds`` groups of iteration spaces, each held out once.
    - ``by-family``, ``by-dtype``, ``by-device``: each value is held out once. The training rows have neither the value
      nor an iteration space of the rows that they are judged on; for dtype and device, whose values share iteration
      spaces, each value's spaces are held out in up to ``folds`` groups.
    - ``within``: a random half of each workload's rows is learnt from, the other half is judged. The model knows the
      workload, which flatters it.

    Except in ``within`` no part learns from an iteration space that it judges. Rows that nothing is left to learn for
    are in no part.

    Raises:
        InvalidInputError: The split has no such name, ``folds`` is below 2, or the data cannot make the split.
    """
    if split not in SPLITS:
        raise InvalidInputError(f"unknown split {split!r}", f"one of {', '.join(SPLITS)}")
    if folds < 2:
        raise InvalidInputError(f"{folds} folds", "give 2 or more")
    if split == "within":
        return _halves(data, seed)
    if split == "by-workload":
        spaces = set(data.spaces)
        if len(spaces) < 2:
            raise InvalidInputError(
                f"the logs hold one iteration space only: {', '.join(sorted(spaces))}",
                "give logs of two or more, or take --split within",
            )
        held = grouped_folds(data.spaces, folds)
        return [Part(f"fold {i}", _rest(data, test), test) for i, test in enumerate(held)]
    return _by_value(data, workloads, split, folds)


def _rest(data: Dataset, test: NDArray[np.intp]) -> NDArray[np.intp]:
    """Rows of the iteration spaces that ``test`` has none of."""
    known = {data.spaces[i] for i in test}
    return np.array([i for i, space in enumerate(data.spaces) if space not in known], np.intp)


def _by_value(data: Dataset, workloads: Mapping[str, Workload], split: str, folds: int) -> list[Part]:
    attribute = split.removeprefix("by-")
    value_of: Callable[[Workload], str] = {
        "family": lambda w: w.family,
        "dtype": lambda w: w.dtype,
        "device": lambda w: w.device,
    }[attribute]
    values = np.array([value_of(workloads[name]) for name in data.workloads])
    held = Counter(value_of(w) for w in workloads.values())
    if len(held) < 2:
        raise InvalidInputError(
            f"split {split} needs two or more; the logs hold one {attribute} only: {', '.join(held)}",
            "give logs of another one, or take --split by-workload",
        )
    parts = []
    for value in sorted(held):
        for test in _groups(data, np.flatnonzero(values == value), 1 if split == "by-family" else folds):
            rest = _rest(data, test)
            train = rest[values[rest] != value]
            if len(train):
                parts.append(Part(value, train, test))
    if not parts:
        raise InvalidInputError(
            f"split {split} leaves nothing to learn from: {', '.join(f'{n} of {v}' for v, n in held.items())} "
            f"workloads, all of iteration space {', '.join(sorted(set(data.spaces)))}",
            "give logs of more iteration spaces",
        )
    return parts


def _groups(data: Dataset, rows: NDArray[np.intp], folds: int) -> list[NDArray[np.intp]]:
    """``rows`` in up to ``folds`` groups of whole iteration spaces."""
    spaces: Sequence[str] = [data.spaces[i] for i in rows]
    if folds < 2 or len(set(spaces)) < 2:
        return [rows]
    return [rows[part] for part in grouped_folds(spaces, folds)]


def _halves(data: Dataset, seed: int) -> list[Part]:
    train: list[NDArray[np.intp]] = []
    test: list[NDArray[np.intp]] = []
    for rows in data.groups.values():
        drawn = np.random.default_rng([seed, len(train)]).permutation(rows)
        cut = (len(rows) + 1) // 2
        train.append(drawn[:cut])
        test.append(drawn[cut:])
    judged = np.sort(np.concatenate(test))
    if not len(judged):
        raise InvalidInputError("no workload has two rows to part", "give logs with more trials")
    return [Part("half", np.sort(np.concatenate(train)), judged)]
