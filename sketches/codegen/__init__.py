"""Code generation: from a schedule to readable, standalone Triton source, one emitting function a node type."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

from autosched.sketches.codegen import combine, copy, epilogue, finish, launch, load, work
from autosched.sketches.codegen.kernel import Kernel, Param
from autosched.sketches.knobs import KNOBS
from autosched.sketches.op import Op
from autosched.sketches.schedule import Schedule


@dataclass(frozen=True)
class KernelSpec:
    """What a compiler must know to compile one kernel for the very specialisation that will be launched.

    Attributes:
        name: Of the function in the source.
        signature: Triton type by parameter.
        aligned: Positions of the parameters that are divisible by 16.
        num_warps: Launch option.
        num_stages: Launch option.
        options: Further launch options, by name.
        shows: Compiled features that must not be 0, or what the schedule asked for took no effect.
    """

    name: str
    signature: dict[str, str]
    aligned: tuple[int, ...]
    num_warps: int
    num_stages: int
    options: dict[str, bool | int] = field(default_factory=dict)
    shows: tuple[str, ...] = ()


@dataclass(frozen=True)
class Generated:
    """The source of a schedule.

    Attributes:
        source: A module that imports only triton (torch inside functions); ``launch`` runs it, ``run`` checks first.
        source_hash: SHA-256 of the source without comments and blank lines.
        kernels: In the order in which they run.
        workspace_bytes: Of the tuned size; 0 where none is needed.
        workspace_zeroed: Bytes at its beginning that must be zero before a launch, which leaves them zero.
        op_key: ``Op.key()``.
    """

    source: str
    source_hash: str
    kernels: tuple[KernelSpec, ...]
    workspace_bytes: int
    workspace_zeroed: int
    op_key: str


def generate(op: Op, schedule: Schedule) -> Generated:
    """The source of ``schedule`` for ``op``, node by node."""
    sketch = schedule.sketch
    knobs = {name: info.default for name, info in KNOBS.items()} | dict(schedule.knobs)
    main = Kernel("contract", sketch.view.over(op), sketch.view, knobs, warps=knobs["warps"], stages=knobs["stages"])
    main.maxnreg = knobs["maxnreg"]
    main.boxed = next((node.boxed for node in sketch.loads if node.boxed), ())
    after: list[Kernel] = []
    for made in sketch.view.copies.values():
        copy.emit_padded(main, op, made)

    def reduction(begin: str, end: str) -> None:
        for node in sketch.loads:
            load.emit_prologue(node, main)
        combine.emit_start(sketch.combine, main)
        with main.block(f"for k0 in {_loop(schedule, begin, end, main.knob('block_k'))}:"):
            for node in sketch.loads:
                load.emit_step(node, main)
            combine.emit_step(sketch.combine, main)
        combine.emit_end(sketch.combine, main)

    def finished() -> None:
        after.extend(
            finish.emit_finish(sketch.finish, main, lambda k, piece: epilogue.emit_epilogue(sketch.epilogue, k, piece))
        )

    work.emit_work(sketch.work, main, reduction, finished)
    if main.before and knobs["dependent"]:
        copy.chain(main)
    kernels = [*main.before, main, *after]
    regions = sorted((r for k in kernels for r in k.regions), key=lambda r: r.name != "workspace")
    host = launch.emit_launch(sketch.launch, op, kernels, regions)
    source = _module(op, schedule, kernels, host)
    specs = tuple(_spec(k) for k in kernels)
    zeroed = sum(4 * launch.fp32_elements(r) for r in regions if r.zeroed)
    size = (
        sum(4 * launch.fp32_elements(r) for r in regions)
        if len(regions) > 1
        else sum(r.count * r.size for r in regions)
    )
    return Generated(source, source_hash(source), specs, size, min(zeroed, size), op.key())


def _loop(schedule: Schedule, begin: str, end: str, step: str) -> str:
    """The range of the reduction loop; loads of a loop without a dot are pipelined only where it says so."""
    knobs = schedule.knobs
    options = [f"num_stages={knobs['stages']}"] if schedule.sketch.combine.summed else []
    options += [f"loop_unroll_factor={knobs['unroll']}"] if knobs.get("unroll", 1) > 1 else []
    if not options:
        return f"range({begin}, {end}, {step})"
    return f"tl.range({begin}, {end}, {step}, {', '.join(options)})"


def source_hash(source: str) -> str:
    """SHA-256 of the source's lines without comments, blank lines and trailing space."""
    lines = (line.rstrip() for line in source.splitlines())
    kept = [line for line in lines if line and not line.lstrip().startswith("#")]
    return hashlib.sha256("\n".join(kept).encode()).hexdigest()


def _spec(k: Kernel) -> KernelSpec:
    params = list(k.params.values())
    aligned = tuple(i for i, p in enumerate(params) if p.aligned)
    signature = {p.name: p.signature for p in params}
    return KernelSpec(k.name, signature, aligned, k.warps, k.stages, launch.options(k), k.shows)


def _module(op: Op, schedule: Schedule, kernels: list[Kernel], host: str) -> str:
    said = {k: v for k, v in schedule.knobs.items() if not (KNOBS[k].seldom and v == KNOBS[k].default)}
    knobs = " ".join(f"{k}={v}" for k, v in said.items())
    head = [
        f"# {op.name} {op.key()}",
        f"# {schedule.sketch.name}: {knobs}",
        "# Generated by autosched. It needs triton and torch, nothing else.",
        *(["# Rows are those of the right operand: M and N are exchanged."] if schedule.sketch.view.swapped else []),
        "import triton",
        "import triton.language as tl",
    ]
    if any(k.boxes for k in kernels):
        head.append("from triton.tools.tensor_descriptor import TensorDescriptor")
    return "\n".join(head) + "\n\n\n" + "\n\n\n".join(_function(k) for k in kernels) + "\n\n\n" + host


def _function(k: Kernel) -> str:
    sizes = [p.name for p in k.params.values() if _is_size(p)]
    decorator = f"@triton.jit(do_not_specialize={sizes})" if sizes else "@triton.jit"
    constants = [f"    {name}: tl.constexpr = {value}" for name, value in k.constants.items()]
    return "\n".join([decorator, f"def {k.name}({', '.join(k.params)}):", *constants, *k.lines])


def _is_size(param: Param) -> bool:
    return param.signature == "i32"
