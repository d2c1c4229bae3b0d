"""Rivals on CPU tensors: how they are made ready, checked and ranked; nothing here compiles."""

from __future__ import annotations

import contextlib
import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from autosched.errors import InvalidInputError, UnsupportedError
from autosched.measure.base import Competition, Protocol, Rival
from autosched.measure.compare import Block, Blocks, standings
from autosched.measure.gpu_worker import Session
from autosched.measure.messages import Compete, Measure, Reply, Setup, Source
from autosched.measure.rivals import RIVALS, check_names
from autosched.measure.rivals.base import Contender, tolerance
from autosched.measure.rivals.triton_autotune import CONFIGS
from autosched.measure.timing import Launch
from autosched.record import Status
from autosched.sketches.builders import bmm, contraction, gemm
from autosched.sketches.op import Op

torch = pytest.importorskip("torch")

OP = gemm(24, 16, 32, epilogue=["bias"])
RIGHT = "out.copy_(a.float() @ b.float() + bias.float())"


class ListTimer:
    """Launches everything once; ours takes 10 us, the rivals 20, 5, 2.5."""

    def __init__(self) -> None:
        self.timed = 0

    def time(self, launch: Launch) -> list[float]:
        launch[0]()
        self.timed += 1
        return [1.0]

    def anchor_us(self) -> float | None:
        return None

    def blocks(self, vendor: Launch, candidates: Sequence[Launch]) -> Blocks:
        for launch, prepare in (vendor, *candidates):
            if prepare is not None:
                prepare()
            launch()
        rivals = tuple((40.0 / 2 ** (i + 1), 40.0 / 2 ** (i + 1)) for i in range(len(candidates)))
        return Blocks((Block((10.0, 10.0), rivals, 1700.0),) * 5, 0.001, True)


def _source(body: str = RIGHT, workspace: int = 0) -> Source:
    text = f"def launch(a, b, bias, out, *, workspace=None):\n    {body}\n"
    return Source(text, hashlib.sha256(text.encode()).hexdigest(), workspace, workspace, "a schedule")


def _session(tmp_path: Path, timer: ListTimer | None = None) -> Session:
    session = Session("cpu", lambda protocol, device: timer or ListTimer())
    assert session.answer(Setup(OP.spec, Protocol(), 1.0, str(tmp_path))).status is Status.OK
    return session


def _plant(monkeypatch: pytest.MonkeyPatch, name: str, call: Callable[..., Any], tunes: bool = True) -> list[Path]:
    """A rival that computes with ``call``; the list gets its folder."""
    folders: list[Path] = []

    @contextlib.contextmanager
    def build(op: Op, folder: Path) -> Iterator[Any]:
        assert folder.is_dir()
        folders.append(folder)
        yield call

    monkeypatch.setitem(RIVALS, name, Contender(build, tunes))
    return folders


def _right(tensors: Any, out: Any) -> Any:
    a, b, bias = tensors
    return (a.float() @ b.float() + bias.float()).to(out.dtype)


def test_ratios_are_rival_over_ours_and_failures_keep_their_place() -> None:
    speeds = (1.0, 1.3, 0.9, 1.1, 1.2)
    kept = tuple(
        Block((80 * s, 80 * s, 300 * s), ((100 * s, 101 * s, 99 * s), (40 * s * w, 40 * s * w)), 1700.0)
        for s, w in zip(speeds, (1.01, 0.99, 1.0, 1.02, 0.98), strict=True)
    )
    asked = (
        Rival(name="cublas"),
        Rival(name="inductor", error="out of memory"),
        Rival(name="triton.autotune", tuning_seconds=12.0),
    )
    found = standings(Blocks(kept, 0.002, True), asked)
    assert found.latency_us == pytest.approx(88.0)
    assert (found.blocks, found.clock_drift) == (5, 0.002)
    cublas, inductor, triton = found.rivals
    assert cublas.latency_us == pytest.approx(110.0)
    assert cublas.ratio == pytest.approx(1.25)
    assert cublas.tuning_seconds is None
    assert cublas.interval == pytest.approx((1.25, 1.25))
    assert inductor == asked[1]
    logs = [math.log(w / 2) for w in (1.01, 0.99, 1.0, 1.02, 0.98)]
    mean = sum(logs) / 5
    half = 2.776 * math.sqrt(sum((x - mean) ** 2 for x in logs) / 4) / math.sqrt(5)
    assert triton.ratio == pytest.approx(math.exp(mean))
    assert triton.interval == pytest.approx((math.exp(mean - half), math.exp(mean + half)))
    assert triton.tuning_seconds == 12.0


def test_a_kernel_without_a_rival_that_ran_still_has_its_time() -> None:
    found = standings(Blocks((Block((8.0, 10.0), ()),) * 3, None, True), [Rival(name="inductor", error="no")])
    assert found == Competition(latency_us=9.0, rivals=(Rival(name="inductor", error="no"),), blocks=3)


def test_names_are_checked() -> None:
    assert check_names(["triton.autotune", "cublas"]) == ("triton.autotune", "cublas")
    with pytest.raises(
        InvalidInputError, match=r"unknown rival 'tvm' \(one of cublas, cublas-default, cudnn, inductor, inductor-tri"
    ):
        check_names(["cublas", "tvm"])


def test_rivals_are_made_ready_in_order_and_timed_beside_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders = _plant(monkeypatch, "inductor", _right)
    timer = ListTimer()
    reply = _session(tmp_path, timer).answer(Compete(_source(), ("inductor", "cublas")))
    assert (reply.status, reply.error) == (Status.OK, "")
    inductor, cublas = reply.rivals
    assert (inductor.name, inductor.error, cublas) == ("inductor", "", Rival(name="cublas"))
    assert inductor.tuning_seconds is not None
    assert 0 < inductor.tuning_seconds < 10
    assert timer.timed == 2
    assert reply.blocks == (Block((10.0, 10.0), ((20.0, 20.0), (10.0, 10.0)), 1700.0),) * 5
    assert folders[0].parent == tmp_path
    assert not folders[0].exists()


def test_what_goes_wrong_with_a_rival_is_its_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def raises_later(tensors: Any, out: Any) -> Any:
        calls.append(1)
        if len(calls) == 3:  # the first timing
            raise RuntimeError("operation not permitted when stream is capturing")
        return _right(tensors, out)

    def refuses(op: Op, folder: Path) -> Any:
        raise UnsupportedError("2 products are not served", "compete with other rivals")

    def spoils(tensors: Any, out: Any) -> Any:
        result = _right(tensors, out)
        tensors[1].zero_()
        return result

    monkeypatch.setitem(RIVALS, "refuses", Contender(refuses))
    _plant(monkeypatch, "raises", lambda tensors, out: torch.zeros(3) @ torch.zeros(4))
    _plant(monkeypatch, "raises later", raises_later)
    _plant(monkeypatch, "wrong", lambda tensors, out: out.copy_(_right(tensors, out) * 1.05))
    _plant(monkeypatch, "writes nothing", lambda tensors, out: out)
    _plant(monkeypatch, "other shape", lambda tensors, out: _right(tensors, out)[:1])
    _plant(monkeypatch, "spoils", spoils)
    _plant(monkeypatch, "right", _right)
    names = ("refuses", "raises", "raises later", "wrong", "writes nothing", "other shape", "spoils", "right")
    reply = _session(tmp_path).answer(Compete(_source(), names))
    assert reply.status is Status.OK
    assert tuple(rival.name for rival in reply.rivals) == names
    errors = {rival.name: rival.error for rival in reply.rivals}
    assert errors["refuses"] == "2 products are not served (compete with other rivals)"
    assert errors["raises"].startswith("RuntimeError: ")
    assert errors["raises later"] == "RuntimeError: operation not permitted when stream is capturing"
    assert errors["wrong"].startswith("it is wrong: ")
    assert "of 384 elements are wrong" in errors["wrong"]
    assert errors["writes nothing"].startswith("it is wrong: 384 of 384")
    assert errors["other shape"] == "its result has shape (1, 16) instead of (24, 16)"
    assert "input b was changed" in errors["spoils"]
    assert errors["right"] == ""
    assert [rival.tuning_seconds is None for rival in reply.rivals] == [True] * 7 + [False]
    assert {len(block.candidates_us) for block in reply.blocks} == {1}
    assert list(tmp_path.glob("tmp*")) == []


def test_a_rival_that_loses_the_device_ends_the_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session = _session(tmp_path)
    lost: list[RuntimeError] = []

    def synchronize() -> None:
        if lost:
            raise lost[0]

    def lose(tensors: Any, out: Any) -> Any:
        lost.append(RuntimeError("CUDA error: an illegal memory access was encountered"))
        return _right(tensors, out)

    _plant(monkeypatch, "inductor", lose)
    monkeypatch.setattr(session, "_synchronize", synchronize)
    reply = session.answer(Compete(_source(), ("inductor", "cublas")))
    assert (reply.status, reply.poisoned, reply.blocks, reply.rivals) == (Status.LAUNCH_ERROR, True, (), ())
    assert "inductor lost the device: RuntimeError: CUDA error" in reply.error


def test_ours_gets_its_workspace_and_its_own_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _plant(monkeypatch, "inductor", lambda tensors, out: out.copy_(_right(tensors, out)))
    body = "assert not workspace.any(); workspace.fill_(1.0); out.zero_(); workspace.zero_()"
    reply = _session(tmp_path).answer(Compete(_source(body, 64), ("inductor",)))
    assert (reply.status, reply.error) == (Status.OK, "")
    assert reply.rivals[0].error == ""


def test_rivals_run_with_the_precision_of_the_op(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[bool, bool]] = []
    matmul = torch.backends.cuda.matmul

    def call(tensors: Any, out: Any) -> Any:
        seen.append((matmul.allow_tf32, matmul.allow_bf16_reduced_precision_reduction))
        return _right(tensors, out)

    before = matmul.allow_tf32, matmul.allow_bf16_reduced_precision_reduction
    _plant(monkeypatch, "inductor", call)
    session = _session(tmp_path)
    session.answer(Compete(_source(), ("inductor",)))
    tf32 = gemm(24, 16, 32, dtype="tf32", epilogue=["bias"])
    session.answer(Setup(tf32.spec, Protocol(), 1.0, str(tmp_path)))
    session.answer(Compete(_source(), ("inductor",)))
    assert seen == [(False, False)] * 4 + [(True, False)] * 4
    assert (matmul.allow_tf32, matmul.allow_bf16_reduced_precision_reduction) == before


def test_a_kernel_of_ours_that_fails_is_a_status(tmp_path: Path) -> None:
    reply = _session(tmp_path).answer(Compete(_source("raise ValueError('odd')"), ("cublas",)))
    assert (reply.status, reply.blocks, reply.rivals) == (Status.LAUNCH_ERROR, (), ())
    assert "ValueError: odd" in reply.error


def test_the_message_survives_the_wire() -> None:
    import msgspec

    request = Compete(_source(), ("cublas", "inductor"))
    packed = msgspec.msgpack.encode(request)
    assert msgspec.msgpack.decode(packed, type=Measure | Compete) == request
    reply = Reply(rivals=(Rival(name="inductor", tuning_seconds=3.0), Rival(name="cublas", error="x")))
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(reply), type=Reply) == reply


def test_a_rival_may_round_before_each_step() -> None:
    from autosched.measure.proof import normal_case

    plain, chain = gemm(24, 16, 32), gemm(24, 16, 32, beta=2.0, epilogue=["gelu", "bias"])
    case = normal_case(plain, "cpu", 0)
    found = tolerance(plain, case)
    assert (found.relative, found.absolute) == (case.tolerance.relative, case.tolerance.absolute)
    exact = gemm(24, 16, 32, dtype="int8")
    assert tolerance(exact, normal_case(exact, "cpu", 0)).exact
    case = normal_case(chain, "cpu", 0)
    found = tolerance(chain, case)
    assert found.relative == pytest.approx(case.tolerance.relative * 4)
    assert found.absolute == pytest.approx(case.tolerance.absolute + case.tolerance.relative * 6 * 2 * 3)


@pytest.mark.parametrize(
    "op",
    [
        gemm(24, 16, 32),
        gemm(24, 16, 32, layout="tt", epilogue=["residual", "relu", "bias"]),
        gemm(24, 16, 32, epilogue=["bias", "gelu"], strides={"out": (1, 24)}),
        gemm(24, 16, 32, dtype="fp32", epilogue=["gelu_tanh", "residual"]),
        bmm(3, 24, 16, 32, layout="nt", epilogue=["bias", "silu"]),
        contraction("mck,nck->nm", {"m": 8, "c": 4, "k": 8, "n": 12}, epilogue=["relu"]),
    ],
    ids=lambda op: op.key(),
)
def test_inductor_gets_one_graph_that_changes_nothing_in_place(
    op: Op, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from autosched.measure.proof import normal_case

    graphs: list[Any] = []
    told: list[dict[str, Any]] = []

    def compile_(graph: Any, **keywords: Any) -> Any:
        graphs.append(graph)
        told.append(keywords)
        return graph

    monkeypatch.setattr(torch, "compile", compile_)
    case = normal_case(op, "cpu", 0)
    out = torch.full(op.output.shape, math.nan)
    with RIVALS["inductor"].build(op, tmp_path) as run:
        results = [run(case.tensors, out) for _ in range(2)]
    assert len(graphs) == 1
    assert told[0]["dynamic"] is False
    assert told[0]["options"]["max_autotune"] is True
    assert "max_autotune_gemm_backends" not in told[0]["options"]
    assert bool(out.isnan().all())
    bound = tolerance(op, case)
    for result in results:
        assert result.dtype == getattr(torch, op.output.dtype.torch)
        assert torch.allclose(result.float(), case.expected, rtol=bound.relative, atol=bound.absolute)
    for node in graphs[0].graph.nodes:
        if node.op == "call_function":
            assert not node.target._schema.is_mutable, node


def test_inductor_without_library_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from autosched.measure.proof import normal_case

    told: list[dict[str, Any]] = []

    def compile_(graph: Any, **keywords: Any) -> Any:
        told.append(keywords)
        return graph

    monkeypatch.setattr(torch, "compile", compile_)
    case = normal_case(OP, "cpu", 0)
    with RIVALS["inductor-triton"].build(OP, tmp_path) as run:
        run(case.tensors, torch.empty(24, 16))
    assert told[0]["options"]["max_autotune_gemm_backends"] == "TRITON"
    assert told[0]["options"]["max_autotune"] is True


def test_inductor_compiles_into_the_rivals_folder(tmp_path: Path) -> None:
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    before = cache_dir()
    with RIVALS["inductor"].build(OP, tmp_path):
        assert Path(cache_dir()).parent == tmp_path
    assert cache_dir() == before
    assert list(tmp_path.iterdir()) == []


def test_the_autotuner_gets_the_list_and_tunes_into_the_rivals_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    triton = pytest.importorskip("triton")
    launched: list[tuple[Any, tuple[Any, ...], str]] = []
    tuners: list[dict[str, Any]] = []

    class Tuner:
        def __getitem__(self, grid: Any) -> Callable[..., None]:
            def launch(*arguments: Any, **constants: Any) -> None:
                arguments[3].zero_()
                launched.append((grid({"BLOCK_M": 16, "BLOCK_N": 8}), arguments, triton.knobs.cache.dir))

            return launch

    def autotune(**keywords: Any) -> Callable[[Any], Tuner]:
        tuners.append(keywords)
        return lambda kernel: Tuner()

    monkeypatch.setattr(triton, "autotune", autotune)
    before = triton.knobs.cache.dir
    tensors = [torch.zeros(24, 32), torch.zeros(32, 16), torch.zeros(16)]
    out = torch.ones(24, 16)
    with RIVALS["triton.autotune"].build(OP, tmp_path) as run:
        assert run(tensors, out) is out
        run(tensors, out)
    assert tuners[0]["key"] == ["M", "N", "K"]
    assert len(tuners[0]["configs"]) == len(CONFIGS)
    first = tuners[0]["configs"][0]
    assert (first.kwargs, first.num_stages, first.num_warps) == ({"BLOCK_M": 128, "BLOCK_N": 256, "BLOCK_K": 64}, 3, 8)
    assert not out.any()
    assert [folder for _, _, folder in launched] == [str(tmp_path), before]
    grid, arguments, _ = launched[0]
    assert grid == (4, 1)
    assert arguments[4] == (tensors[2],)
    assert arguments[5:8] == (24, 16, 32)


def test_the_autotuner_on_cpu_tensors_is_an_error_of_its_own(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    reply = _session(tmp_path).answer(Compete(_source(), ("triton.autotune", "cublas")))
    assert reply.status is Status.OK
    assert [bool(rival.error) for rival in reply.rivals] == [True, False]
