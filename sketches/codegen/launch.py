"""Emitter of the Launch node: the host side, from what the other nodes declared on the kernels."""

from __future__ import annotations

from autosched.sketches.codegen.kernel import Kernel, Region
from autosched.sketches.nodes import Launch
from autosched.sketches.op import Op

#: Elements of fp32 that regions of a shared workspace begin at multiples of (256 bytes; descriptors need 16).
ALIGNED = 64

_ZEROS = '''_KEPT = {}


def _zeros(elements, device):
    """Zeros, which every launch leaves zero: kept for each device and stream, new ones inside a graph capture."""
    import torch

    if device.type != "cuda" or torch.cuda.is_current_stream_capturing():
        return torch.zeros(elements, dtype=torch.float32, device=device)
    key = (device, torch.cuda.current_stream(device).cuda_stream)
    if key not in _KEPT or _KEPT[key].numel() < elements:
        _KEPT[key] = torch.zeros(elements, dtype=torch.float32, device=device)
    return _KEPT[key]'''


def emit_launch(node: Launch, op: Op, kernels: list[Kernel], regions: list[Region]) -> str:
    """The text of ``TENSORS``, ``launch`` and ``run``.

    Args:
        node: The node.
        op: What the kernels compute together.
        kernels: In the order in which they run.
        regions: Parts of the workspace; that of the partial sums is the first.
    """
    names = [o.name for o in (*op.operands, op.output)]
    body = [f"    {name} = {tensor}.shape[{i}]" for name, (tensor, i) in _sizes(op).items()]
    if body:
        body.append(f"    if 0 in ({', '.join(_sizes(op))},):")
        body.append("        return")
    body += _workspace(regions, names[0])
    for k in kernels:
        for name, box in k.boxes.items():
            sizes, strides, block = f"[{', '.join(box.sizes)}]", list(box.strides), list(box.block)
            body.append(f"    {name} = TensorDescriptor({box.tensor}, {sizes}, {strides}, {block})")
        arguments = ", ".join(p.host for p in k.params.values())
        extra = "".join(f", {name}={value}" for name, value in options(k).items())
        body.append(f"    {k.name}[({k.programs},)]({arguments}, num_warps={k.warps}, num_stages={k.stages}{extra})")
    head = [
        f"def launch({', '.join(names)}, *, workspace=None):",
        f'    """Runs the kernel{"s" if len(kernels) > 1 else ""} on the current stream. '
        'The tensors are taken as they are: see TENSORS."""',
    ]
    zeros = [_ZEROS, "", ""] if any(r.zeroed for r in regions) else []
    return "\n".join([*_tensors(op), "", "", *zeros, *head, *body, "", "", *_run(op)]) + "\n"


def options(k: Kernel) -> dict[str, bool | int]:
    """Launch options beside warps and stages."""
    found: dict[str, bool | int] = {"maxnreg": k.maxnreg} if k.maxnreg else {}
    return {**found, "launch_pdl": True} if k.dependent else found


def fp32_elements(region: Region) -> int:
    """Elements of fp32 that a region takes at the tuned size, rounded up so that the next one is aligned."""
    return -(-region.count * region.size // (4 * ALIGNED)) * ALIGNED


def _workspace(regions: list[Region], tensor: str) -> list[str]:
    """Lines that make the workspace, if none is given, and cut it into its regions."""
    if not regions:
        return []
    if len(regions) == 1 and regions[0].name == "workspace" and not regions[0].zeroed:
        return [
            "    if workspace is None:",
            "        import torch",
            "",
            f"        workspace = torch.empty({regions[0].elements}, dtype=torch.float32, device={tensor}.device)",
        ]
    lines: list[str] = []
    ends = []
    for i, region in enumerate(regions):
        quarter = 4 * ALIGNED // region.size
        lines.append(f"    end{i} = {f'end{i - 1} + ' if i else ''}-(-({region.elements}) // {quarter}) * {ALIGNED}")
        ends.append(f"end{i}")
    lines.append("    if workspace is None:")
    if regions[0].zeroed:
        lines.append(f"        workspace = _zeros({ends[-1]}, {tensor}.device)")
    else:
        lines += ["        import torch", ""]
        lines.append(f"        workspace = torch.empty({ends[-1]}, dtype=torch.float32, device={tensor}.device)")
    for i, region in enumerate(regions):
        if region.name != "workspace":
            source = region.name.removesuffix("_copy")
            lines.append(f"    {region.name} = workspace[{ends[i - 1] if i else 0} : end{i}].view({source}.dtype)")
    return lines


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
