"""Emitter of the Launch node: the host side, from what the other nodes declared on the kernels."""

from __future__ import annotations

from autosched.sketches.codegen.kernel import Kernel
from autosched.sketches.nodes import Launch
from autosched.sketches.op import Op


def emit_launch(node: Launch, kernels: list[Kernel], workspace: str) -> str:
    """The text of ``TENSORS``, ``launch`` and ``run``.

    Args:
        node: The node.
        kernels: In the order in which they run.
        workspace: Host expression of the fp32 elements of workspace; empty if there is none.
    """
    op = kernels[0].op
    names = [o.name for o in (*op.operands, op.output)]
    body = [f"    {name} = {tensor}.shape[{i}]" for name, (tensor, i) in _sizes(op).items()]
    if body:
        body.append(f"    if 0 in ({', '.join(_sizes(op))},):")
        body.append("        return")
    if workspace:
        body += ["    if workspace is None:", "        import torch", ""]
        body.append(f"        workspace = torch.empty({workspace}, dtype=torch.float32, device={names[0]}.device)")
    for k in kernels:
        for name, box in k.boxes.items():
            sizes, strides, block = f"[{', '.join(box.sizes)}]", list(box.strides), list(box.block)
            body.append(f"    {name} = TensorDescriptor({box.tensor}, {sizes}, {strides}, {block})")
        arguments = ", ".join(p.host for p in k.params.values())
        body.append(f"    {k.name}[({k.programs},)]({arguments}, num_warps={k.warps}, num_stages={k.stages})")
    head = [
        f"def launch({', '.join(names)}, *, workspace=None):",
        f'    """Runs the kernel{"s" if len(kernels) > 1 else ""} on the current stream. '
        'The tensors are taken as they are: see TENSORS."""',
    ]
    return "\n".join([*_tensors(op), "", "", *head, *body, "", "", *_run(op)]) + "\n"


def _sizes(op: Op) -> dict[str, tuple[str, int]]:
    """Run-time sizes: group-letter name of each dynamic axis, and a tensor's dimension that holds it."""
    found: dict[str, tuple[str, int]] = {}
    for axis in op.axes:
        if axis.dynamic:
            for tensor in op.operands:
                places = [i for i, expr in enumerate(tensor.index) if expr.single == axis.name]
                if places:
                    found.setdefault(axis.name.upper(), (tensor.name, places[0]))
    return found


def _tensors(op: Op) -> list[str]:
    dynamic = {a.name for a in op.axes if a.dynamic}
    lines = ["#: Shape (None = any), strides in elements and dtype of each tensor, which must start 16-byte aligned."]
    lines.append("TENSORS = {")
    for o in (*op.operands, op.output):
        shape = tuple(None if set(e.axes) & dynamic else n for n, e in zip(o.shape, o.index, strict=True))
        lines.append(f'    "{o.name}": ({shape}, {o.strides}, "{o.dtype.torch}"),')
    return [*lines, "}"]


def _run(op: Op) -> list[str]:
    inputs = [o.name for o in op.operands]
    sizes = {name: f"{tensor}.shape[{i}]" for name, (tensor, i) in _sizes(op).items()}
    out = op.output
    dynamic = {a.name for a in op.axes if a.dynamic}
    extents = zip(out.shape, out.index, strict=True)
    shape = "".join(f"{sizes[e.axes[0].upper()] if set(e.axes) & dynamic else n}, " for n, e in extents).rstrip()
    signature = ", ".join([*inputs[:2], *(["*", *inputs[2:]] if inputs[2:] else [])])
    star = "" if inputs[2:] else "*, "
    return [
        f"def run({signature}, {star}out=None):",
        '    """Checks the tensors against TENSORS, makes the output where none is given, launches, returns it."""',
        "    import torch",
        "",
        "    if out is None:",
        f"        out = torch.empty_strided(({shape}), TENSORS['out'][1], "
        f"dtype=torch.{out.dtype.torch}, device={inputs[0]}.device)",
        f"    for name, tensor in zip(TENSORS, ({', '.join([*inputs, 'out'])},)):",
        "        shape, strides, dtype = TENSORS[name]",
        "        fits = len(shape) == tensor.ndim and all(n in (None, m) for n, m in zip(shape, tensor.shape))",
        "        fits = fits and all(n == 1 or s == t for n, s, t in zip(tensor.shape, strides, tensor.stride()))",
        "        if not fits or tensor.dtype != getattr(torch, dtype) or tensor.data_ptr() % 16:",
        "            raise ValueError(",
        '                f"{name} is {tuple(tensor.shape)} with strides {tensor.stride()}, '
        '{tensor.dtype}; this kernel takes "',
        '                f"{shape} with strides {strides}, {dtype}, 16-byte aligned"',
        "            )",
        f"    launch({', '.join([*inputs, 'out'])})",
        "    return out",
    ]
