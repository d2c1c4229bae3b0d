"""The vendor library's implementation of an op, written as people write it with torch."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from string import ascii_letters
from typing import TYPE_CHECKING, Any

from autosched.errors import UnsupportedError
from autosched.measure.tensors import torch_dtype
from autosched.measure.vendor_convolution import Convolution, convolution
from autosched.sketches.builders import BLOCK
from autosched.sketches.op import EpilogueStep, Op, Operand, Product, Ragged
from autosched.sketches.reference import FUNCTIONS, aligned, groups_of_rows
from autosched.sketches.steps import STEPS
from autosched.sketches.view import matrix_views, run_length

if TYPE_CHECKING:
    import torch

#: The libraries by what they compute.
MATRICES, CONVOLUTIONS = "cublas", "cudnn"
_REMEDY = "compare with none"

Vendor = Callable[["Sequence[torch.Tensor]", "torch.Tensor"], "torch.Tensor"]
"""Called with the operands in the op's order and a tensor for the output; returns the result, which may be another."""


def vendor_name(op: Op) -> str:
    """Name of the library that computes the op's products, whether it takes them or not."""
    return MATRICES if convolution(op, op.products[0]) is None else CONVOLUTIONS


def vendor(op: Op) -> Vendor:
    """What people write with torch for the op: one call of the library a product, then the epilogue, eagerly.

    * ``torch.mm`` or ``torch.bmm`` on views where the op is a (batched) matrix product of single axes, else
      ``torch.einsum``. A factor, and a bias or residual, right after the product go into ``addmm`` or ``baddbmm``.
    * 8-bit floats: ``torch._scaled_mm``, into which scales and bias go; with scales of blocks, whose factors of a it
      takes column by column (``strides={"a_scale": (1, M)}``), the scales alone.
    * int8: ``torch._int_mm``.
    * Ragged rows: ``torch._grouped_mm``, for bf16.
    * Convolutions and their gradients: ``torch.ops.aten.convolution`` (a bias with it) and ``convolution_backward``.
    * A gated pair: two calls, the activation and the multiplication.

    Nothing waits for the device. Running it raises ``UnsupportedError`` where the library refuses the operands.

    Raises:
        UnsupportedError: The op has index maps that are not single axes, or a type, layout or size that the library
            does not take.
    """
    if len(op.accumulators) != len(op.products):
        raise UnsupportedError("several products in one sum have no counterpart in the vendor library", _REMEDY)
    matrix = _matrix(op)
    first, fused = _product(op, op.products[0], matrix, op.epilogue)
    others = {p.accumulator: _product(op, p, matrix, ())[0] for p in op.products[1:]}
    steps = op.epilogue[fused:]

    def run(tensors: Sequence[torch.Tensor], out: torch.Tensor) -> torch.Tensor:
        value = first(tensors, out)
        if steps and not value.dtype.is_floating_point:
            value = value.float()
        for step in steps:
            if step.accumulator is not None:
                value = value.mul_(others[step.accumulator](tensors, out.new_empty(out.shape)))
            else:
                value = _step(op, step, value, tensors)
        return value if value.dtype == out.dtype else out.copy_(value)

    return run


def _product(op: Op, product: Product, matrix: _Matrix | None, steps: Sequence[EpilogueStep]) -> tuple[Vendor, int]:
    """What computes a product, and how many of ``steps`` it does on the way."""
    dtype = op.operand(product.left).dtype
    found = convolution(op, product)
    if found is not None:
        return _convolution(op, found, product, steps)
    if product.factors:
        return _block_scaled_mm(op, product), 0
    if op.ragged is not None:
        return _grouped_mm(op, product, op.ragged), 0
    if dtype.is_float8:
        return _scaled_mm(op, product, matrix, steps)
    if dtype.bytes == 1:
        return _int_mm(op, product, matrix), 0
    if matrix is None:
        return _einsum(op, product), 0
    fused = _fused(op, matrix, steps)
    return _matmul(op, product, matrix, fused), fused.steps


def _step(op: Op, step: EpilogueStep, value: torch.Tensor, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """One step, in place where torch can."""
    if step.operand is None:
        if STEPS[step.kind].does == "scale":
            return value.mul_(step.factor)
        return value.relu_() if step.kind == "relu" else FUNCTIONS[step.kind](value)
    operand = op.operand(step.operand)
    if op.ragged and op.ragged.groups in operand.axes:
        named = {o.name: tensor for o, tensor in zip(op.operands, tensors, strict=True)}
        other = aligned(op, operand, named[operand.name], groups_of_rows(op, named))
    else:
        other = aligned(op, operand, tensors[op.operands.index(operand)])
    return value.mul_(other) if STEPS[step.kind].does == "multiply" else value.add_(other, alpha=step.factor)


@contextlib.contextmanager
def precision(op: Op, *, reduced: bool) -> Iterator[None]:
    """The library's precision while an op runs, restored afterwards. Convolutions try all algorithms at first.

    Args:
        op: tf32 ops may use tf32, all others compute fp32 in full.
        reduced: Whether partial sums of bf16 and fp16 products may be reduced in that type (torch's default).
    """
    import torch

    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    tf32 = op.operand(op.products[0].left).dtype.name == "tf32"
    wanted: tuple[tuple[Any, str, Any], ...] = (
        (matmul, "allow_tf32", tf32),
        (matmul, "allow_bf16_reduced_precision_reduction", reduced),
        (matmul, "allow_fp16_reduced_precision_reduction", reduced),
        (cudnn, "allow_tf32", tf32),
        (cudnn, "benchmark", True),
        (cudnn, "benchmark_limit", 0),  # of algorithms: none
    )
    before = [getattr(where, name) for where, name, _ in wanted]
    for where, name, value in wanted:
        setattr(where, name, value)
    try:
        yield
    finally:
        for (where, name, _), value in zip(wanted, before, strict=True):
            setattr(where, name, value)


@dataclass(frozen=True)
class _Matrix:
    """The axis of each role in a (batched) matrix product; ``None`` where there is none."""

    batch: str | None
    m: str | None
    n: str | None
    k: str | None

    def order(self, first: str, second: str) -> tuple[str | None, ...]:
        """Batch, if any, and the two roles."""
        return ((self.batch,) if self.batch else ()) + (getattr(self, first), getattr(self, second))


def _matrix(op: Op) -> _Matrix | None:
    """Roles of the axes, if each role has one axis at most."""
    product = op.products[0]
    left, right = op.operand(product.left).axes, op.operand(product.right).axes
    output = op.output.axes
    groups = [
        [a.name for a in op.axes if a.name in left & right & output],
        [a.name for a in op.axes if a.name in left - right],
        [a.name for a in op.axes if a.name in right - left],
        [a.name for a in op.axes if a.name in (left & right) - output],
    ]
    if any(len(group) > 1 for group in groups):
        return None
    return _Matrix(*(group[0] if group else None for group in groups))


def _names(operand: Operand) -> list[str]:
    names = [expr.single for expr in operand.index]
    if None in names:
        raise UnsupportedError(f"index maps of {operand.name} are not single axes", _REMEDY)
    return [str(name) for name in names]


def _view(operand: Operand, order: Sequence[str | None], tensor: torch.Tensor) -> torch.Tensor:
    """The tensor with its dimensions in ``order``; a role without an axis becomes a dimension of 1."""
    names = _names(operand)
    moved = tensor.permute([names.index(name) for name in order if name is not None])
    for position, name in enumerate(order):
        if name is None:
            moved = moved.unsqueeze(position)
    return moved


@dataclass(frozen=True)
class _Fused:
    """The first steps of an epilogue, as ``addmm`` takes them: ``alpha * product + beta * added``."""

    steps: int = 0
    alpha: float = 1.0
    added: Operand | None = None
    beta: float = 0.0


def _fused(op: Op, matrix: _Matrix, steps: Sequence[EpilogueStep]) -> _Fused:
    """Which steps go into the library's call."""
    if None in (matrix.m, matrix.n, matrix.k) or op.output.dtype != op.operands[0].dtype:
        return _Fused()
    fused = _Fused()
    if steps and STEPS[steps[0].kind].does == "scale":
        fused = _Fused(1, steps[0].factor)
    if len(steps) > fused.steps:
        step = steps[fused.steps]
        added = op.operand(step.operand) if STEPS[step.kind].does == "add" and step.operand is not None else None
        if added is not None and (matrix.batch is None or added.axes == op.output.axes):
            return _Fused(fused.steps + 1, fused.alpha, added, step.factor)
    return fused


def _matmul(op: Op, product: Product, matrix: _Matrix, fused: _Fused) -> Vendor:
    import torch

    a, b = op.operand(product.left), op.operand(product.right)
    first, second = op.operands.index(a), op.operands.index(b)
    widened = op.output.dtype != a.dtype
    orders = matrix.order("m", "k"), matrix.order("k", "n"), matrix.order("m", "n")

    def run(tensors: Sequence[torch.Tensor], out: torch.Tensor) -> torch.Tensor:
        left, right = _view(a, orders[0], tensors[first]), _view(b, orders[1], tensors[second])
        result = _view(op.output, orders[2], out)
        if fused.steps:
            added = result  # is ignored where beta is 0
            if fused.added is not None:
                added = tensors[op.operands.index(fused.added)]
                if _names(fused.added) != [matrix.n]:  # a one-dimensional bias goes into the library's own epilogue
                    added = _view(op.output, orders[2], aligned(op, fused.added, added))
            call = torch.addmm if matrix.batch is None else torch.baddbmm
            call(added, left, right, beta=fused.beta, alpha=fused.alpha, out=result)
        elif not widened:
            (torch.mm if matrix.batch is None else torch.bmm)(left, right, out=result)
        elif left.is_cuda:
            aten = torch.ops.aten
            (aten.mm if matrix.batch is None else aten.bmm).dtype_out(left, right, out.dtype, out=result)
        else:
            result.copy_(torch.matmul(left, right))
        return out

    return run


def _einsum(op: Op, product: Product) -> Vendor:
    import torch

    letters = dict(zip((a.name for a in op.axes), ascii_letters, strict=False))
    a, b = op.operand(product.left), op.operand(product.right)
    terms = ["".join(letters[name] for name in _names(o)) for o in (a, b, op.output)]
    equation = f"{terms[0]},{terms[1]}->{terms[2]}"
    first, second = op.operands.index(a), op.operands.index(b)
    dtype = torch_dtype(op.output.dtype)

    def run(tensors: Sequence[torch.Tensor], out: torch.Tensor) -> torch.Tensor:
        return torch.einsum(equation, tensors[first], tensors[second]).to(dtype)

    return run


def _plain(op: Op, matrix: _Matrix | None) -> tuple[str, str, str]:
    """Names of M, N and K of a single matrix product with a dense row-major output, which 8-bit types have to be."""
    if matrix is None or matrix.batch is not None or matrix.m is None or matrix.n is None or matrix.k is None:
        raise UnsupportedError(f"the vendor library takes 8-bit types in one matrix product, not {op.key()}", _REMEDY)
    if _names(op.output) != [matrix.m, matrix.n] or op.output.strides != (op.output.shape[1], 1):
        raise UnsupportedError("the vendor library writes products of 8-bit types to dense row-major outputs", _REMEDY)
    return matrix.m, matrix.n, matrix.k


def _convolution(op: Op, found: Convolution, product: Product, steps: Sequence[EpilogueStep]) -> tuple[Vendor, int]:
    """The library's convolution, with a bias that comes first in the epilogue."""
    dtype = op.operand(product.left).dtype
    if dtype.bytes == 1:
        raise UnsupportedError(f"the vendor library has no convolution of {dtype.name}", _REMEDY)
    bias = _bias(op, steps, found.features) if found.takes_bias else None
    names = {name: op.operands.index(op.operand(name)) for name in (product.left, product.right)}
    names |= {"bias": op.operands.index(bias)} if bias is not None else {}
    call = found.call()

    def run(tensors: Sequence[torch.Tensor], out: torch.Tensor) -> torch.Tensor:
        return call(
            {name: tensors[place].flatten() if name == "bias" else tensors[place] for name, place in names.items()}
        )

    return _refusable(run), int(bias is not None)


def _scaled_mm(op: Op, product: Product, matrix: _Matrix | None, steps: Sequence[EpilogueStep]) -> tuple[Vendor, int]:
    """``torch._scaled_mm``, with the scales and the bias that lead the epilogue."""
    import torch

    m, n, k = _plain(op, matrix)
    a, b = op.operand(product.left), op.operand(product.right)
    if a.dtype.name != "fp8e4m3":
        raise UnsupportedError(f"the vendor library multiplies no two matrices of {a.dtype.name}", _REMEDY)
    if a.stride_of(k) != 1 or b.stride_of(k) != 1:
        raise UnsupportedError("the vendor library takes 8-bit floats only with K contiguous in both", "use layout nt")
    if any(size % 16 for size in (op.extents[k], op.extents[n], a.stride_of(m), b.stride_of(n))):
        raise UnsupportedError("the vendor library takes 8-bit floats only with K and N divisible by 16", _REMEDY)
    scales = _scales(op, steps, (m, n))
    done = len([scale for scale in scales if scale is not None])
    bias = _bias(op, steps[done:], frozenset((n,)))
    ones: dict[torch.device, torch.Tensor] = {}

    def factor(
        tensors: Sequence[torch.Tensor], scale: Operand | None, order: Sequence[str | None], device: torch.device
    ) -> torch.Tensor:
        if scale is None:
            if device not in ones:
                ones[device] = torch.ones((), device=device)
            return ones[device]
        tensor = tensors[op.operands.index(scale)]
        return _view(scale, order, tensor) if scale.axes else tensor

    def run(tensors: Sequence[torch.Tensor], out: torch.Tensor) -> torch.Tensor:
        torch._scaled_mm(
            _view(a, (m, k), tensors[op.operands.index(a)]),
            _view(b, (k, n), tensors[op.operands.index(b)]),
            scale_a=factor(tensors, scales[0], (m, None), out.device),
            scale_b=factor(tensors, scales[1], (None, n), out.device),
            bias=None if bias is None else tensors[op.operands.index(bias)],
            out_dtype=out.dtype,
            use_fast_accum=op.fast_accumulate,
            out=out,
        )
        return out

    return _refusable(run), done + (bias is not None)


def _block_scaled_mm(op: Op, product: Product) -> Vendor:
    """``torch._scaled_mm`` with a factor for each ``BLOCK`` terms of a row of a, and for each square block of b.

    The library takes the factors of a column by column, and those of b with the blocks of the reduction innermost.
    """
    import torch

    a, b, *factors = (op.operand(name) for name in (product.left, product.right, *product.factors))
    view = next(iter(matrix_views(op)), None)
    if view is None or view.batch or len(factors) != 2 or a.dtype.name != "fp8e4m3":
        raise UnsupportedError(f"the vendor library has no scales of blocks for {op.key()}", _REMEDY)
    pairs = zip("mknk", (factors[0], factors[0], factors[1], factors[1]), strict=True)
    found = [run_length(op, view, group, (factor.name,)) for group, factor in pairs]
    if found != [1, BLOCK, BLOCK, BLOCK]:
        raise UnsupportedError(f"the vendor library takes no scales of blocks of {found}", _REMEDY)
    m, n, k = (view.group(group)[0].axes for group in "mnk")
    rows, columns, blocks = view.extent("m"), view.extent("n"), op.extents[k[0]]
    for tensor, axis, stride in (
        *((a, k[-1], 1), (b, k[-1], 1), (op.output, m[0], columns), (op.output, n[-1], 1)),
        *((factors[0], m[0], 1), (factors[0], k[0], rows), (factors[1], n[0], blocks), (factors[1], k[0], 1)),
    ):
        if op.extents[axis] > 1 and tensor.stride_of(axis) != stride:
            raise UnsupportedError(
                f"the vendor library takes {tensor.name} of scaled blocks with a stride of {stride}, "
                f"not {tensor.stride_of(axis)}, along {axis}",
                f'use layout nt and strides={{"a_scale": (1, {rows})}}',
            )

    def turned(operand: Operand, first: Sequence[str], tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        tensor = tensors[op.operands.index(operand)]
        return tensor if set(operand.index[0].axes) <= set(first) else tensor.T

    def run(tensors: Sequence[torch.Tensor], out: torch.Tensor) -> torch.Tensor:
        torch._scaled_mm(
            turned(a, m, tensors),
            turned(b, k, tensors),
            scale_a=turned(factors[0], m, tensors),
            scale_b=turned(factors[1], k, tensors),
            out_dtype=out.dtype,
            out=out,
        )
        return out

    return _refusable(run)


def _scales(op: Op, steps: Sequence[EpilogueStep], axes: tuple[str, str]) -> tuple[Operand | None, Operand | None]:
    """The leading steps that are scales of the two operands: scalars, or one factor a row and one a column."""
    found = []
    for step in steps[:2]:
        if STEPS[step.kind].does != "multiply" or step.operand is None:
            break
        found.append(op.operand(step.operand))
    if [o.axes for o in found] == [frozenset(x) for x in ((axes[0],), (axes[1],))]:
        return found[0], found[1]
    scalars = [o for o in found if not o.axes]
    if len(scalars) == len(found) == 2:
        return scalars[0], scalars[1]
    return (found[0], None) if found and not found[0].axes else (None, None)


def _bias(op: Op, steps: Sequence[EpilogueStep], columns: frozenset[str]) -> Operand | None:
    """The step that comes next, if it adds a row of the output's own 16-bit type along these axes."""
    if not steps or STEPS[steps[0].kind].does != "add" or steps[0].operand is None or steps[0].factor != 1.0:
        return None
    operand = op.operand(steps[0].operand)
    fits = operand.axes == columns and operand.dtype == op.output.dtype and operand.dtype.bytes == 2
    return operand if fits else None


def _int_mm(op: Op, product: Product, matrix: _Matrix | None) -> Vendor:
    import torch

    m, n, k = _plain(op, matrix)
    if op.extents[m] <= 16 or op.extents[n] % 8 or op.extents[k] % 8:
        raise UnsupportedError("the vendor library takes int8 only with M above 16, N and K divisible by 8", _REMEDY)
    a, b = op.operand(product.left), op.operand(product.right)

    def run(tensors: Sequence[torch.Tensor], out: torch.Tensor) -> torch.Tensor:
        left = _view(a, (m, k), tensors[op.operands.index(a)])
        right = _view(b, (k, n), tensors[op.operands.index(b)])
        if out.dtype == torch.int32:
            return torch._int_mm(left, right, out=out)
        return torch._int_mm(left, right)

    return _refusable(run)


def _grouped_mm(op: Op, product: Product, ragged: Ragged) -> Vendor:
    """``torch._grouped_mm``, which takes bf16 with 16-byte aligned rows, b in either order."""
    import torch

    a, b = op.operand(product.left), op.operand(product.right)
    if {a.dtype.name, b.dtype.name, op.output.dtype.name} != {"bf16"}:
        raise UnsupportedError(f"the vendor library takes groups of rows only in bf16, not {op.key()}", _REMEDY)
    if not hasattr(torch, "_grouped_mm"):
        raise UnsupportedError(f"torch {torch.__version__} multiplies no groups of rows", _REMEDY)
    (k,), (n,) = a.axes - {ragged.rows}, b.axes - a.axes - {ragged.groups}
    if _names(op.output) != [ragged.rows, n]:
        raise UnsupportedError("the vendor library writes products of groups of rows row by row", _REMEDY)
    places = [op.operands.index(o) for o in (a, b, op.operand(ragged.offsets))]

    def run(tensors: Sequence[torch.Tensor], out: torch.Tensor) -> torch.Tensor:
        left, right, offsets = (tensors[place] for place in places)
        return torch._grouped_mm(_view(a, (ragged.rows, k), left), _view(b, (ragged.groups, k, n), right), offs=offsets)

    return _refusable(run)


def _refusable(call: Vendor) -> Vendor:
    """``call``, which raises ``UnsupportedError`` where the library says that it does not take the operands."""

    def run(tensors: Sequence[torch.Tensor], out: torch.Tensor) -> torch.Tensor:
        try:
            return call(tensors, out)
        except (ValueError, RuntimeError) as error:
            plain = type(error) in (ValueError, RuntimeError, NotImplementedError)  # no lack of memory, no lost device
            if plain and ("CUDA error" not in str(error) or "NOT_SUPPORTED" in str(error)):
                raise UnsupportedError(f"the vendor library refuses: {error}", _REMEDY) from error
            raise

    return run
