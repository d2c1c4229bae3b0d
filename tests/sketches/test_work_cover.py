"""The index arithmetic that Work nodes emit, run as it is written: each step of each tile is done exactly once.

The emitted lines are executed with stand-ins for ``tl`` whose integers have 32 or 64 bits, divide as C does and
refuse to overflow, for every program of the grid.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autosched.sketches.builders import bmm, conv1d, gemm
from autosched.sketches.codegen.kernel import Kernel
from autosched.sketches.codegen.work import emit_work
from autosched.sketches.knobs import KNOBS
from autosched.sketches.nodes import GridWork, PersistentWork, SplitWork, StreamWork, Work
from autosched.sketches.op import Op
from autosched.sketches.view import matrix_views


class IntegerOverflowError(AssertionError):
    """An integer of the kernel left its type's range."""


class Int:
    """A run-time integer of a kernel: as wide as the wider of two that it is made of, and divided towards zero."""

    def __init__(self, value: int, bits: int = 32) -> None:
        if not -(2 ** (bits - 1)) <= value < 2 ** (bits - 1):
            raise IntegerOverflowError(f"{value} in {bits} bits")
        self.value, self.bits = value, bits

    def to(self, bits: int) -> Int:
        return Int(self.value, bits)

    def __index__(self) -> int:
        return self.value

    def __bool__(self) -> bool:
        return bool(self.value)

    def __lt__(self, other: Any) -> bool:
        return self.value < int(other)

    def __add__(self, other: Any) -> Int:
        return combined(self, other, lambda a, b: a + b)

    def __radd__(self, other: Any) -> Int:
        return combined(other, self, lambda a, b: a + b)

    def __sub__(self, other: Any) -> Int:
        return combined(self, other, lambda a, b: a - b)

    def __rsub__(self, other: Any) -> Int:
        return combined(other, self, lambda a, b: a - b)

    def __mul__(self, other: Any) -> Int:
        return combined(self, other, lambda a, b: a * b)

    def __rmul__(self, other: Any) -> Int:
        return combined(other, self, lambda a, b: a * b)

    def __floordiv__(self, other: Any) -> Int:
        return combined(self, other, quotient)

    def __mod__(self, other: Any) -> Int:
        return combined(self, other, lambda a, b: a - quotient(a, b) * b)


def combined(a: Any, b: Any, compute: Callable[[int, int], int]) -> Int:
    """A result as wide as the wider of its operands."""
    left, right = number(a), number(b)
    return Int(compute(left.value, right.value), max(left.bits, right.bits))


def number(x: Any) -> Int:
    """``x`` as a kernel sees it: a compile-time constant is as wide as it must be."""
    return x if isinstance(x, Int) else Int(int(x), 32 if -(2**31) <= int(x) < 2**31 else 64)


def quotient(a: int, b: int) -> int:
    """Cut off towards zero, as C does."""
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


class Language:
    """What the emitted lines use of ``triton.language``."""

    int32, int64 = 32, 64

    def __init__(self, program: int) -> None:
        self.program = program

    def program_id(self, axis: int) -> Int:
        assert axis == 0
        return Int(self.program)

    @staticmethod
    def cdiv(a: Any, b: Any) -> Any:
        return (a + b - 1) // b

    @staticmethod
    def minimum(a: Any, b: Any) -> Int:
        return combined(a, b, min)

    @staticmethod
    def maximum(a: Any, b: Any) -> Int:
        return combined(a, b, max)

    @staticmethod
    def where(condition: Any, a: Any, b: Any) -> Int:
        return combined(a, b, lambda x, y: x if condition else y)

    @staticmethod
    def range(begin: Any, end: Any, step: Any = 1, **options: bool) -> Any:
        assert set(options) <= {"flatten", "warp_specialize"}
        return (Int(i) for i in range(int(number(begin)), int(number(end)), int(number(step))))


@dataclass(frozen=True)
class Seen:
    """What the programs of one launch did.

    Attributes:
        steps: How often each (batch, row of tiles, column of tiles, step) was added up.
        finishes: For each (batch, row of tiles, column of tiles) the part or share of each finish.
        astray: Finishes at another place than the sums before them.
    """

    steps: Counter[tuple[int, int, int, int]]
    finishes: dict[tuple[int, int, int], list[int]]
    astray: int


def emitted(op: Op, node: Work, knobs: dict[str, int]) -> Kernel:
    """The kernel with calls in place of the reduction and the finish."""
    view, *_ = matrix_views(op)
    k = Kernel("contract", op, view, {name: info.default for name, info in KNOBS.items()} | knobs)
    batch = "batch" if k.batched else "0"

    def main(begin: str, end: str) -> None:
        k.line(f"add({batch}, tile_m, tile_n, {begin}, {end})")

    def finish() -> None:
        number = {"none": "0", "all": "part", "some": "share"}[k.partial]
        k.line(f"finish({batch}, tile_m, tile_n, tile, {number})")

    emit_work(node, k, main, finish)
    return k


def run(k: Kernel, sizes: dict[str, int], only: range | None = None) -> Seen:
    """Executes the emitted lines for every program, or for some."""
    text = "\n".join(["def program(tl, add, finish):", *k.lines])
    steps: Counter[tuple[int, int, int, int]] = Counter()
    finishes: dict[tuple[int, int, int], list[int]] = {}
    last, astray = (-1, -1, -1), 0

    def add(b: Any, m: Any, n: Any, begin: Any, end: Any) -> None:
        nonlocal last
        last = (int(b), int(m), int(n))
        for k0 in range(int(number(begin)), int(number(end)), k.knobs["block_k"]):
            assert k0 % k.knobs["block_k"] == 0
            steps[(*last, k0 // k.knobs["block_k"])] += 1

    def finish(b: Any, m: Any, n: Any, tile: Any, number: Any) -> None:
        nonlocal astray
        place = (int(b), int(m), int(n))
        astray += place != last
        finishes.setdefault(place, []).append(int(number))

    arguments = {name: Int(sizes[name]) for name in k.params}
    namespace: dict[str, Any] = {**k.constants, **arguments}
    exec(compile(text, "<emitted>", "exec"), namespace)
    for program in range(eval(k.programs, dict(sizes))) if only is None else only:
        namespace["program"](Language(program), add, finish)
    return Seen(steps, finishes, astray)


def tiles_of(sizes: tuple[int, ...], knobs: dict[str, int]) -> set[tuple[int, int, int]]:
    batches, m, n, _ = sizes
    rows, columns = -(-m // knobs["block_m"]), -(-n // knobs["block_n"])
    return {(b, i, j) for b in range(batches) for i in range(rows) for j in range(columns)}


@st.composite
def problems(draw: st.DrawFn, dynamic: bool = True) -> tuple[Op, dict[str, int], dict[str, int], tuple[int, ...]]:
    """An op, knobs, run-time sizes by name, and the sizes of this launch (batches, M, N, K)."""
    tuned = (draw(st.integers(1, 4)), draw(st.integers(1, 300)), draw(st.integers(1, 300)), draw(st.integers(1, 500)))
    batches, m, n, k = tuned
    moving = draw(st.sampled_from(("", "M", "B") if dynamic else ("",)))
    actual = dict(zip("BMNK", tuned, strict=True))
    if moving:
        actual[moving] = draw(st.integers(1, 6 if moving == "B" else 300))
    if batches == 1 and moving != "B":
        op = gemm(m, n, k, dynamic=moving)
    else:
        op = bmm(batches, m, n, k, dynamic=moving if moving == "B" else "")
        actual["M"] = m if moving == "M" else actual["M"]
    knobs = {
        "block_m": draw(st.sampled_from((1, 16, 32, 64, 256))),
        "block_n": draw(st.sampled_from((16, 32, 96, 128))),
        "block_k": draw(st.sampled_from((16, 32, 128))),
        "group_m": draw(st.sampled_from((1, 2, 4, 8, 32))),
        "split_k": draw(st.sampled_from((2, 3, 5, 8, 64))),
    }
    return op, knobs, actual, tuple(actual[x] for x in "BMNK")


def check(op: Op, node: Work, knobs: dict[str, int], actual: dict[str, int], sizes: tuple[int, ...]) -> Seen:
    seen = run(emitted(op, node, knobs), {**actual, "BATCH": actual["B"]})
    tiles = tiles_of(sizes, knobs)
    assert seen.steps == Counter((*tile, s) for tile in tiles for s in range(-(-sizes[3] // knobs["block_k"])))
    assert set(seen.finishes) == tiles
    assert seen.astray == 0
    return seen


@settings(max_examples=40, deadline=None)
@given(problems())
def test_a_grid_covers_each_step_once(problem: Any) -> None:
    op, knobs, actual, sizes = problem
    seen = check(op, GridWork(), knobs, actual, sizes)
    assert all(numbers == [0] for numbers in seen.finishes.values())


@settings(max_examples=40, deadline=None)
@given(problems(), st.integers(1, 40))
def test_persistent_programs_cover_each_step_once(problem: Any, programs: int) -> None:
    """The finish computes its place anew; ``check`` compares it with that of the sums."""
    op, knobs, actual, sizes = problem
    seen = check(op, PersistentWork(programs), knobs, actual, sizes)
    assert all(numbers == [0] for numbers in seen.finishes.values())


@settings(max_examples=15, deadline=None)
@given(problems())
def test_parts_cover_each_step_once(problem: Any) -> None:
    """Also where there are more parts than steps; every part finishes, and parts differ by one step at most."""
    op, knobs, actual, sizes = problem
    seen = check(op, SplitWork(), knobs, actual, sizes)
    assert all(sorted(numbers) == list(range(knobs["split_k"])) for numbers in seen.finishes.values())


@settings(max_examples=15, deadline=None)
@given(st.integers(3, 60), st.integers(1, 40), st.integers(1, 70), st.sampled_from((2, 3, 5, 12, 64)))
def test_parts_of_a_gather_cover_each_step_once(pixels: int, channels: int, features: int, parts: int) -> None:
    """There the places of parts are no quotients."""
    op = conv1d(1, channels, pixels, features, 3, 1, 1)
    knobs = {"block_m": 16, "block_n": 32, "block_k": 16, "group_m": 2, "split_k": parts}
    kernel = emitted(op, SplitWork(), knobs)
    assert "//" not in next(line for line in kernel.lines if "k_begin =" in line)
    seen = check(op, SplitWork(), knobs, {"B": 1}, (1, pixels, features, 3 * channels))
    assert all(sorted(numbers) == list(range(parts)) for numbers in seen.finishes.values())


@settings(max_examples=50, deadline=None)
@given(problems(dynamic=False), st.integers(1, 40))
def test_streams_cover_each_step_once(problem: Any, programs: int) -> None:
    """The shares of a tile add up to its steps, and no program does more than an even share of all of them."""
    op, knobs, actual, sizes = problem
    node = StreamWork(programs)
    seen = check(op, node, knobs, actual, sizes)
    steps = -(-sizes[3] // knobs["block_k"])
    assert all(sum(shares) == steps and min(shares) > 0 for shares in seen.finishes.values())
    kernel = emitted(op, node, knobs)
    count = eval(kernel.programs)
    assert count <= programs
    work = [run(kernel, {}, range(p, p + 1)).steps.total() for p in {0, count // 2, count - 1}]
    even = len(seen.finishes) * steps / count
    assert all(even - 1 < done < even + 1 for done in work)


@pytest.mark.parametrize(
    ("node", "op", "knobs"),
    [
        (GridWork(), bmm(2**15, 4096, 4096, 64), {"block_m": 16, "block_n": 16}),  # 2^31 programs, one too many
        (SplitWork(), gemm(16, 16, 2**29), {"block_k": 16, "split_k": 64}),  # 64 times 2^25 steps
        (SplitWork(), bmm(2**9, 4096, 4096, 2048), {"block_m": 16, "block_n": 16, "block_k": 16, "split_k": 64}),
    ],
    ids=("grid", "long reduction", "split grid"),
)
def test_the_last_programs_of_large_problems_do_not_overflow(node: Work, op: Op, knobs: dict[str, int]) -> None:
    kernel = emitted(op, node, {"group_m": 8, **knobs})
    last = min(eval(kernel.programs), 2**31 - 1) - 1
    seen = run(kernel, {}, range(last, last + 1))
    assert seen.steps.total() >= 1


def test_the_stand_ins_would_see_an_overflow() -> None:
    with pytest.raises(IntegerOverflowError):
        Int(2**30) * 2
    assert (Int(2**30).to(64) * 2).value == 2**31
    assert (Int(-7) // 2).value == -3
    assert (Int(-7) % 2).value == -1
    assert (7 - Int(9)).value == -2
