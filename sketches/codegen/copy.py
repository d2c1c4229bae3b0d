"""Kernels that copy an operand before the main one: rows padded to cache lines, or an image with zeros around it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from autosched.sketches.box import LINE
from autosched.sketches.codegen.kernel import (
    INT32_ELEMENTS,
    Box,
    Kernel,
    Param,
    Region,
    along,
    digits,
    host_extent,
    load,
    plus,
    power,
    scaled,
    store,
)
from autosched.sketches.op import Op, Operand
from autosched.sketches.prepared import PaddedCopy

#: Rows and steps of the reduction that one program copies.
TILE = (64, 64)
#: Elements of a padded copy that one program writes.
RUN = 1024


@dataclass(frozen=True, slots=True)
class Copy:
    """Where the copy lies: ``[batch, rows, padded reduction]``.

    Attributes:
        name: Of the launcher's variable.
        rows: Number of rows of all batches, as a host expression.
        length: Elements of a row that are not padding.
        padded: Elements from row to row.
    """

    name: str
    rows: str
    length: int
    padded: int

    def box(self, block: tuple[int, int]) -> Box:
        """A descriptor of it, which reads zeros in place of the padding."""
        return Box(self.name, (self.rows, str(self.length)), (self.padded, 1), block)


def emit_copy(k: Kernel, tensor: Operand, group: str) -> Copy:
    """Declares the copy of ``tensor``, whose rows are ``group``, and writes the kernel that makes it."""
    length = k.view.extent("k")
    padded = -(-length * tensor.dtype.bytes // LINE) * LINE // tensor.dtype.bytes
    rows = host_extent(k.op, k.view, group)
    rows = f"{k.host_batches()} * {rows}" if k.batched else rows
    made = Copy(f"{tensor.name}_copy", rows, length, padded)
    count = k.view.extent("batch") * k.view.extent(group) * padded
    k.regions.append(Region(made.name, f"{rows} * {padded}", count, tensor.dtype.bytes, zeroed=False))
    k.before.append(_kernel(k, tensor, group, made, count))
    return made


def emit_padded(k: Kernel, op: Op, made: PaddedCopy) -> None:
    """Declares a padded copy of an operand of ``op``, which ``k`` reads in its place, and writes the kernel for it."""
    tensor, count = op.operand(made.operand), prod(made.shape)
    name = f"{tensor.name}_copy"
    k.regions.append(Region(name, str(count), count, tensor.dtype.bytes, zeroed=False))
    copy = Kernel(f"copy_{tensor.name}", op, replace(k.view, prepared=None), {})  # it reads the operand itself
    block = copy.const("BLOCK", min(RUN, power(count)))
    copy.line(f"at = tl.program_id(0) * {block} + tl.arange(0, {block})")
    offsets, inside = [], []
    for i, (dim, first, part) in enumerate(zip(made.dims, made.first, digits("at", made.shape), strict=True)):
        copy.line(f"at{i} = {plus(part, first)}")
        wide = f"at{i}.to(tl.int64)" if tensor.span > INT32_ELEMENTS else f"at{i}"
        offsets.append(scaled(wide, tensor.strides[dim]))
        inside += [f"(at{i} >= 0)"] if first < 0 else []
        inside += [f"(at{i} < {tensor.shape[dim]})"] if first + made.shape[i] > tensor.shape[dim] else []
    copy.params["copy_ptr"] = Param("copy_ptr", f"*{tensor.dtype.triton}", name)
    source = copy.pointer(tensor)
    last = [f"(at < {count})"] if count % copy.constants["BLOCK"] else []
    copy.line(f"values = {load(' + '.join(filter(None, (source, *offsets))), ' & '.join([*last, *inside]))}")
    copy.line(store("copy_ptr + at", "values", "".join(last)))
    copy.programs = str(-(-count // copy.constants["BLOCK"]))
    k.before.append(copy)


def chain(k: Kernel) -> None:
    """Has each copy, and then ``k``, start while the kernel ahead of it still runs.

    A kernel that starts early waits for the end of the one ahead before its own end, or before it reads the copies, so
    that what waits for it has waited for all.
    """
    for i, copy in enumerate(k.before):
        copy.first("tl.extra.cuda.gdc_launch_dependents()")
        if i:
            copy.dependent = True
            copy.line("tl.extra.cuda.gdc_wait()")
    k.dependent = True
    k.first("tl.extra.cuda.gdc_wait()")


def _kernel(k: Kernel, tensor: Operand, group: str, made: Copy, count: int) -> Kernel:
    copy = Kernel(f"copy_{tensor.name}", k.op, k.view, {})
    copy.knobs = {"block_m": min(TILE[0], power(k.view.extent(group))), "block_k": min(TILE[1], power(made.length))}
    rows, steps = copy.knobs["block_m"], copy.knobs["block_k"]
    row_block, step_block = copy.const("ROWS", rows), copy.const("STEP", steps)
    padded = copy.const("PADDED", made.padded)
    tiles_k = copy.const("TILES_K", -(-made.padded // steps))
    copy.line(f"tile_k = tl.program_id(0) % {tiles_k}")
    if k.batched:
        tiles = f"tl.cdiv({copy.extent(group)}, {row_block})"
        copy.line(f"tile_row = tl.program_id(0) // {tiles_k} % {tiles}")
        copy.line(f"batch = tl.program_id(0) // ({tiles_k} * {tiles})")
    else:
        copy.line(f"tile_row = tl.program_id(0) // {tiles_k}")
    copy.line(f"rows = tile_row * {row_block} + tl.arange(0, {row_block})")
    copy.line(f"steps = tile_k * {step_block} + tl.arange(0, {step_block})")
    covered = -(-made.padded // steps) * steps  # by tiles of steps, of which the last may be padding alone
    bounds = copy.bounds([(group, "rows", rows, "[:, None]"), ("k", "steps", covered, "[None, :]")])
    source = f"{copy.pointer(tensor)}{copy.batch_offset(tensor)}"
    for name, index, axis in ((group, "rows", "[:, None]"), ("k", "steps", "[None, :]")):
        offset = copy.offset(tensor, name, index)
        if offset:
            source += f" + {along(offset, axis)}"
    copy.params["copy_ptr"] = Param("copy_ptr", f"*{tensor.dtype.triton}", made.name)
    place = "rows.to(tl.int64)" if count >= 2**31 or k.view.is_dynamic(group) else "rows"
    if k.batched:
        place = f"(batch.to(tl.int64) * {copy.extent(group)} + {place})"
    copy.line(f"values = {load(source, bounds)}")
    # the padding is written too: rows of whole cache lines are stored by 16 bytes, whatever the reduction's length
    inside = [copy.bounds([(group, "rows", rows, "[:, None]")])]
    inside += [f"(steps < {padded})[None, :]"] if made.padded % steps else []
    kept = " & ".join(filter(None, inside))
    copy.line(store(f"copy_ptr + ({place} * {padded})[:, None] + steps[None, :]", "values", kept))
    host_rows = host_extent(k.op, k.view, group)
    batches = f" * {k.host_batches()}" if k.batched else ""
    tiles = str(-(-k.view.extent(group) // rows)) if not k.view.is_dynamic(group) else f"-(-{host_rows} // {rows})"
    copy.programs = f"{tiles} * {-(-made.padded // steps)}{batches}"
    return copy
