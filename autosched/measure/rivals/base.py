"""Making rivals ready, proving that they compute the op, and timing them interleaved with a kernel of ours."""

from __future__ import annotations

import contextlib
import tempfile
import time
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import sqrt
from pathlib import Path

from autosched.errors import AutoschedError, WorkerError
from autosched.measure.base import Rival
from autosched.measure.compare import Blocks
from autosched.measure.proof import Case, inspect
from autosched.measure.tensors import Guarded, reduction_length
from autosched.measure.timing import Launch, Timer
from autosched.measure.tolerance import Tolerance
from autosched.measure.vendor import Vendor
from autosched.sketches.op import Op

ADDEND = 6.0
"""How large an operand that the epilogue adds can be: standard normal numbers of which one in 5e8 is larger."""

ERROR_CHARACTERS = 2000


class Builder(typing.Protocol):
    """Makes a rival of an op that the op's data describe.

    Entering may import and trace; compiling and tuning belong to the first call of what it yields. A folder of the
    rival's own takes all that it writes, and is removed after the end.
    """

    def __call__(self, op: Op, folder: Path) -> contextlib.AbstractContextManager[Vendor]:
        """A context in which the rival can be called."""
        ...


@dataclass(frozen=True)
class Contender:
    """A rival before it knows its op.

    Attributes:
        build: Makes it.
        tunes: Whether it compiles and tunes, so that the time of its first call means something.
    """

    build: Builder
    tunes: bool = True


@dataclass(frozen=True, eq=False)
class Arena:
    """What rivals compete on.

    Attributes:
        op: What is computed.
        case: Operands with the fp32 answer.
        out: Where the rivals that take an output write it.
        folder: Exists; each rival gets a folder in it.
        synchronize: Waits for the device; raises if it is lost.
    """

    op: Op
    case: Case
    out: Guarded
    folder: Path
    synchronize: Callable[[], None]


def compete(
    arena: Arena, contenders: Mapping[str, Contender], names: Sequence[str], ours: Launch, timer: Timer
) -> tuple[Blocks, tuple[Rival, ...]]:
    """Make the rivals ready one after the other, then time those that are right beside a proved kernel.

    Args:
        arena: What they compete on.
        contenders: All rivals by name.
        names: Which of them, in this order.
        ours: The kernel; it has the place of the vendor library in the blocks.
        timer: Runs the blocks.

    Returns:
        The blocks, whose candidates are the rivals without an error, and one entry a name, without figures.

    Raises:
        WorkerError: A rival lost the device.
    """
    launch, prepare = ours
    if prepare is not None:
        prepare()
    launch()  # before a rival moves the cache of compiled kernels
    rivals: list[Rival] = []
    launches: list[Launch] = []
    with contextlib.ExitStack() as stack:
        for name in names:
            try:
                found, seconds = _ready(arena, contenders[name], stack, timer)
            except Exception as error:  # Inductor and Triton raise whatever they like
                rivals.append(Rival(name=name, error=_explain(name, error, arena.synchronize)))
                continue
            launches.append(found)
            rivals.append(Rival(name=name, tuning_seconds=seconds))
        return timer.blocks(ours, launches), tuple(rivals)


def _ready(
    arena: Arena, contender: Contender, stack: contextlib.ExitStack, timer: Timer
) -> tuple[Launch, float | None]:
    """A rival's launch and the seconds of its first call, after its output was found right and a timing worked."""
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=arena.folder, ignore_cleanup_errors=True)))
    run = stack.enter_context(contender.build(arena.op, folder))
    tensors, out = arena.case.tensors, arena.out
    begin = time.monotonic()
    run(tensors, out.tensor)
    arena.synchronize()
    seconds = time.monotonic() - begin
    out.poison()
    result = run(tensors, out.tensor)
    if result.shape != out.tensor.shape:
        raise WorkerError(f"its result has shape {tuple(result.shape)} instead of {tuple(out.tensor.shape)}")
    if result.data_ptr() != out.tensor.data_ptr():
        out.tensor.copy_(result)
    verdict = inspect(arena.op, replace(arena.case, tolerance=tolerance(arena.op, arena.case)), out, None)
    if not verdict.ok:
        raise WorkerError(f"it is wrong: {verdict.reason}")
    launch: Launch = (lambda: run(tensors, out.tensor), None)
    timer.time(launch)  # what cannot be captured as a graph must not spoil the blocks
    return launch, seconds if contender.tunes else None


def tolerance(op: Op, case: Case) -> Tolerance:
    """How far a rival may be from the fp32 reference: it may round to the output's type before each epilogue step.

    Each such rounding adds half a unit in the last place of what is rounded. That is of the result's size, or, where a
    step then adds an operand, at most so much larger than the operand is.

    Args:
        op: Its epilogue is what matters.
        case: Holds the tolerance for kernels that round once.
    """
    once, steps = case.tolerance, len(op.epilogue)
    if once.exact:
        return once
    largest = max([1.0, *(abs(step.factor) for step in op.epilogue)])
    if len(op.accumulators) > 1:  # a gate multiplies what was rounded by a sum of K products
        largest *= sqrt(reduction_length(op))
    return Tolerance(once.relative * (1 + steps), once.absolute + once.relative * ADDEND * largest * steps)


def _explain(name: str, error: Exception, synchronize: Callable[[], None]) -> str:
    """An exception in words.

    Raises:
        WorkerError: The device is lost, so that nothing else can be timed.
    """
    try:
        synchronize()
    except Exception as lost:
        raise WorkerError(f"{name} lost the device: {type(error).__name__}: {error}") from lost
    text = str(error) if isinstance(error, AutoschedError) else f"{type(error).__name__}: {error}"
    return text[:ERROR_CHARACTERS]
