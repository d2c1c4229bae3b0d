"""The kernel of the rival ``triton.autotune``: a matrix product as tutorials write it, with an epilogue.

The only module of the package that imports Triton when it is imported, since ``triton.jit`` reads a function's source
from a file and looks its names up there; only :mod:`autosched.measure.rivals.triton_autotune` imports it, in a process
that runs kernels. The functions are plain ones, so that each tuning starts with nothing compiled.
"""

from __future__ import annotations

import triton.language as tl


def matmul(
    a: tl.tensor,
    b: tl.tensor,
    up: tl.tensor,
    out: tl.tensor,
    extras: tl.tuple,
    M: tl.tensor,  # noqa: N803 - as kernels call their sizes
    N: tl.tensor,  # noqa: N803
    K: tl.tensor,  # noqa: N803
    a_strides: tl.tuple,
    b_strides: tl.tuple,
    out_strides: tl.tuple,
    extra_strides: tl.tuple,
    STEPS: tl.constexpr,  # noqa: N803
    TAKES: tl.constexpr,  # noqa: N803
    SLOTS: tl.constexpr,  # noqa: N803
    FACTORS: tl.constexpr,  # noqa: N803
    PAIR: tl.constexpr,  # noqa: N803
    ACCUMULATOR: tl.constexpr,  # noqa: N803
    PRECISION: tl.constexpr,  # noqa: N803
    PROMOTED: tl.constexpr,  # noqa: N803
    BLOCK_M: tl.constexpr,  # noqa: N803
    BLOCK_N: tl.constexpr,  # noqa: N803
    BLOCK_K: tl.constexpr,  # noqa: N803
    GROUP_M: tl.constexpr,  # noqa: N803
) -> None:
    """``out[batch, M, N] = epilogue(a[batch, M, K] @ b[batch, K, N])``, one tile a program, programs in groups of rows.

    Args:
        a: Left operand.
        b: Right operand.
        up: Right operand of a second product, whose sum the step ``gate`` multiplies by; not read without ``PAIR``.
        out: Output.
        extras: Operands of the epilogue's steps.
        M: Rows.
        N: Columns.
        K: Length of the reduction.
        a_strides: Of batch, M and K, in elements.
        b_strides: Of batch, K and N; ``up`` has the same.
        out_strides: Of batch, M and N.
        extra_strides: Of batch, M and N of each extra.
        STEPS: What each step does: ``add``, ``multiply``, ``scale``, ``gate``, or the name of a function.
        TAKES: Shape of each step's operand: ``row``, ``column``, ``full`` or ``scalar``.
        SLOTS: Index of each step's operand among the extras.
        FACTORS: What each step multiplies its operand, or the value, by.
        PAIR: Whether there is a second product.
        ACCUMULATOR: Type that products are summed in.
        PRECISION: ``input_precision`` of the dot.
        PROMOTED: Whether each step's sum is added in full fp32: the tensor cores keep fewer bits of 8-bit products.
        BLOCK_M: Rows of a tile.
        BLOCK_N: Columns of a tile.
        BLOCK_K: Terms of one step of the reduction.
        GROUP_M: Rows of tiles that are computed one beside the other, for the L2 cache.
    """
    pid = tl.program_id(0)
    batch = tl.program_id(1)
    tiles_m = tl.cdiv(M, BLOCK_M)
    tiles_n = tl.cdiv(N, BLOCK_N)
    group = pid // (GROUP_M * tiles_n)
    first = group * GROUP_M
    size = min(tiles_m - first, GROUP_M)
    tile_m = first + (pid % (GROUP_M * tiles_n)) % size
    tile_n = (pid % (GROUP_M * tiles_n)) // size

    rows = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    depth = tl.arange(0, BLOCK_K)
    left = a + batch * a_strides[0] + ((rows % M)[:, None] * a_strides[1] + depth[None, :] * a_strides[2])
    offsets = batch * b_strides[0] + (depth[:, None] * b_strides[1] + (columns % N)[None, :] * b_strides[2])
    right = b + offsets
    second = up + offsets
    imprecise: tl.constexpr = BLOCK_K if PROMOTED else None
    value = tl.zeros((BLOCK_M, BLOCK_N), dtype=ACCUMULATOR)
    other = tl.zeros((BLOCK_M, BLOCK_N), dtype=ACCUMULATOR)
    for step in range(0, tl.cdiv(K, BLOCK_K)):
        x = tl.load(left, mask=depth[None, :] < K - step * BLOCK_K, other=0.0)
        y = tl.load(right, mask=depth[:, None] < K - step * BLOCK_K, other=0.0)
        value = tl.dot(x, y, value, input_precision=PRECISION, max_num_imprecise_acc=imprecise, out_dtype=ACCUMULATOR)
        if PAIR:
            z = tl.load(second, mask=depth[:, None] < K - step * BLOCK_K, other=0.0)
            other = tl.dot(
                x, z, other, input_precision=PRECISION, max_num_imprecise_acc=imprecise, out_dtype=ACCUMULATOR
            )
            second += BLOCK_K * b_strides[1]
        left += BLOCK_K * a_strides[2]
        right += BLOCK_K * b_strides[1]

    if len(STEPS) > 0:
        value = value.to(tl.float32)
    for i in tl.static_range(len(STEPS)):
        if STEPS[i] == "add" or STEPS[i] == "multiply":
            strides = extra_strides[SLOTS[i]]
            pointer = extras[SLOTS[i]] + batch * strides[0]
            if TAKES[i] == "row":
                term = tl.load(pointer + columns * strides[2], mask=columns < N, other=0.0)[None, :]
            elif TAKES[i] == "column":
                term = tl.load(pointer + rows * strides[1], mask=rows < M, other=0.0)[:, None]
            elif TAKES[i] == "scalar":
                term = tl.load(pointer)
            else:
                inside = (rows[:, None] < M) & (columns[None, :] < N)
                term = tl.load(
                    pointer + rows[:, None] * strides[1] + columns[None, :] * strides[2], mask=inside, other=0.0
                )
            if STEPS[i] == "add":
                value += term.to(tl.float32) * FACTORS[i]
            else:
                value *= term.to(tl.float32)
        elif STEPS[i] == "scale":
            value *= FACTORS[i]
        elif STEPS[i] == "gate":
            value *= other.to(tl.float32)
        elif STEPS[i] == "relu":
            value = tl.maximum(value, 0.0)
        elif STEPS[i] == "gelu":
            value = 0.5 * value * (1.0 + tl.erf(value * 0.7071067811865476))
        elif STEPS[i] == "gelu_tanh":  # 0.5 (1 + tanh u) = sigmoid(2 u)
            value = value * tl.sigmoid(1.5957691216057308 * (value + 0.044715 * value * value * value))
        else:
            tl.static_assert(STEPS[i] == "silu")
            value = value * tl.sigmoid(value)
    target = out + batch * out_strides[0] + rows[:, None] * out_strides[1] + columns[None, :] * out_strides[2]
    tl.store(target, value.to(out.dtype.element_ty), mask=(rows[:, None] < M) & (columns[None, :] < N))
