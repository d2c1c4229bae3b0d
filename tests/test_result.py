"""The result: its figures, its JSON, and the module that it writes."""

from __future__ import annotations

import ast
import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from autosched.errors import InvalidInputError, UsageError
from autosched.result import TuningResult
from autosched.sketches.builders import gemm
from autosched.sketches.rules import derive
from autosched.sketches.schedule import Schedule
from tests.tuning import TARGET

OP = gemm(64, 128, 256, epilogue=["bias", "gelu", "residual"])
SKETCHES = derive(OP, TARGET)
RESULT = TuningResult(
    op=OP,
    device="H200",
    origin="measured",
    status="tuned",
    schedule=Schedule.of(SKETCHES[0]),
    latency_us=4.0,
    baseline_name="cublas",
    baseline_us=5.0,
    ratio=1.24,
    interval=(1.2, 1.28),
    trials=10,
    compiled=9,
    failures={"compile_error": 1},
    errors=[("no", 1)],
    seconds={"total": 2.0, "model": 0.123456},
    log="run.jsonl",
)


def test_figures_by_hand() -> None:
    assert RESULT.tflops == pytest.approx(2 * 64 * 128 * 256 / 4e-6 / 1e12)
    assert RESULT.speedup == 1.24
    assert dataclasses.replace(RESULT, ratio=None).speedup == 1.25
    assert RESULT.break_even_calls == 2_000_001  # 2 s at 1 us a call, and one more to be ahead
    assert dataclasses.replace(RESULT, latency_us=5.0).break_even_calls is None
    assert (RESULT.key, RESULT.sketch) == (OP.key(), SKETCHES[0])


def test_json_has_what_programs_rely_on() -> None:
    data = json.loads(json.dumps(RESULT.to_dict()))
    assert data["format"] == 1
    assert (data["op"], data["key"], data["device"], data["source"]) == ("gemm", OP.key(), "H200", "measured")
    assert (data["status"], data["trials"], data["compiled"], data["log"]) == ("tuned", 10, 9, "run.jsonl")
    assert data["best"]["sketch"] == SKETCHES[0].name
    assert Schedule.from_json(data["best"]["schedule"], SKETCHES) == RESULT.schedule
    assert data["baseline"] == {"name": "cublas", "latency_us": 5.0, "ratio": 1.24, "interval": [1.2, 1.28]}
    assert data["errors"] == [{"text": "no", "count": 1}]
    assert data["seconds"] == {"total": 2.0, "model": 0.1235}
    assert "fraction_of_recorded_best" not in data
    assert dataclasses.replace(RESULT, fraction_of_recorded_best=0.5).to_dict()["fraction_of_recorded_best"] == 0.5


def test_without_a_choice_nothing_is_made_up() -> None:
    empty = TuningResult(OP, "H200", "measured", "all_failed", None)
    data = empty.to_dict()
    assert (data["best"], data["baseline"], data["log"], data["break_even_calls"]) == (None, None, None, None)
    assert (empty.tflops, empty.speedup) == (None, None)
    for ask in (empty.source, lambda: empty.kernel, lambda: empty.sketch, lambda: empty.save("never.py")):
        with pytest.raises(InvalidInputError, match=r"see .failures"):
            ask()
    assert not Path("never.py").exists()


@pytest.mark.parametrize("sketch", SKETCHES, ids=lambda s: s.name)
def test_the_module_imports_only_triton_and_torch(tmp_path: Path, sketch: Any) -> None:
    path = dataclasses.replace(RESULT, schedule=Schedule.of(sketch)).save(tmp_path / "kernel.py")
    tree = ast.parse(path.read_text(encoding="utf-8"))
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    names = {
        name.split(".")[0]
        for node in imports
        for name in ([node.module or ""] if isinstance(node, ast.ImportFrom) else [a.name for a in node.names])
    }
    assert names == {"triton", "torch"}
    top = {n.split(".")[0] for node in tree.body if isinstance(node, ast.Import) for n in [a.name for a in node.names]}
    assert top == {"triton"}
    functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    assert {"launch", "run"} <= functions


def test_operands_are_asked_for_by_name() -> None:
    torch = pytest.importorskip("torch")
    t = torch.zeros(1)
    kernel = RESULT.kernel
    for named in ({}, {"bias": t}, {"bias": t, "residual": t, "scale": t}, {"residuals": t, "bias": t}):
        with pytest.raises(UsageError, match=r"takes a, b and \['bias', 'residual'\]"):
            kernel(t, t, **named)
    with pytest.raises(UsageError, match="takes a, b and no more"):
        plain = gemm(64, 128, 256)
        chosen = Schedule.of(derive(plain, TARGET)[0])
        dataclasses.replace(RESULT, op=plain, schedule=chosen).kernel(t, t, bias=t)
    with pytest.raises(TypeError):
        kernel(t, bias=t, residual=t)  # type: ignore[call-arg]


def test_tensors_that_do_not_fit_are_refused_before_the_launch() -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("triton")
    good = {
        "a": torch.zeros(64, 256, dtype=torch.bfloat16),
        "b": torch.zeros(256, 128, dtype=torch.bfloat16),
        "bias": torch.zeros(128, dtype=torch.bfloat16),
        "residual": torch.zeros(64, 128, dtype=torch.bfloat16),
        "out": torch.zeros(64, 128, dtype=torch.bfloat16),
    }
    bad = {
        "a": good["a"].float(),
        "b": torch.zeros(128, 256, dtype=torch.bfloat16).T,
        "bias": torch.zeros(129, dtype=torch.bfloat16)[1:],
        "residual": torch.zeros(64, 129, dtype=torch.bfloat16)[:, :128],
        "out": torch.zeros(64, 64, dtype=torch.bfloat16),
    }
    for name, tensor in bad.items():
        with pytest.raises(ValueError, match=f"^{name} is .* this kernel takes"):
            RESULT.kernel(**{**good, name: tensor})
