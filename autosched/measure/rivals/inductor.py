"""Inductor, with all the tuning that it does: ``torch.compile`` of the op's eager expression."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autosched.measure.tensors import torch_dtype
from autosched.measure.vendor import Vendor, vendor
from autosched.sketches.op import Op

if TYPE_CHECKING:
    import torch

MODE = "max-autotune-no-cudagraphs"


def inductor(op: Op, folder: Path) -> contextlib.AbstractContextManager[Vendor]:
    """As people call it: the mode ``max-autotune``, whose kernels and library calls compete; timing makes the graphs.

    Args:
        op: What is computed.
        folder: Takes what Inductor and Triton compile.

    Raises:
        UnsupportedError: The op has no eager expression.
    """
    return _compiled(op, folder, {})


def inductor_triton(op: Op, folder: Path) -> contextlib.AbstractContextManager[Vendor]:
    """The same without library calls for the products: the best of Inductor's own Triton kernels.

    Args:
        op: What is computed.
        folder: Takes what Inductor and Triton compile.

    Raises:
        UnsupportedError: The op has no eager expression.
    """
    return _compiled(op, folder, {"max_autotune_gemm_backends": "TRITON"})


@contextlib.contextmanager
def _compiled(op: Op, folder: Path, changed: dict[str, Any]) -> Iterator[Vendor]:
    """``torch.compile`` with caches of its own, so that its first call tunes, whatever was compiled before.

    Args:
        op: What is computed.
        folder: Of the caches.
        changed: Options in which it differs from the mode.
    """
    import torch
    import torch._inductor.compile_fx  # seconds that are not to count as tuning
    from torch._inductor import list_mode_options
    from torch._inductor.utils import fresh_cache

    run = vendor(op)
    options = {**list_mode_options(MODE), **changed}
    functions: list[Any] = []

    def call(tensors: Sequence[torch.Tensor], out: torch.Tensor) -> torch.Tensor:
        if not functions:
            graph = expression(op, run, tensors)
            functions.append(torch.compile(graph, options=options, dynamic=False, fullgraph=True))
        result = functions[0](*tensors)
        assert isinstance(result, torch.Tensor)
        return result

    with fresh_cache(dir=str(folder)):
        try:
            yield call
        finally:
            torch.compiler.reset()


def expression(op: Op, run: Vendor, tensors: Sequence[torch.Tensor]) -> torch.fx.GraphModule:
    """The vendor library's calls as one graph of operators that change nothing in place and allocate their results.

    A graph never breaks into pieces, whatever Python the calls are made from.

    Args:
        op: What is computed.
        run: Computes it, into a given output or elsewhere.
        tensors: Operands; only shape, strides, type and device matter.
    """
    import torch
    from torch.fx.experimental.proxy_tensor import make_fx

    def allocating(*operands: torch.Tensor) -> torch.Tensor:
        output, device = op.output, operands[0].device
        out = torch.empty_strided(output.shape, output.strides, dtype=torch_dtype(output.dtype), device=device)
        return run(operands, out)

    graph: torch.fx.GraphModule = make_fx(
        torch.func.functionalize(allocating, remove="mutations"), tracing_mode="fake"
    )(*tensors)
    graph.graph.eliminate_dead_code()
    graph.recompile()
    return graph
