"""The measuring worker on CPU tensors: sources in plain torch, a timer that reads a list."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import pytest

from autosched.measure.base import Protocol
from autosched.measure.compare import Block, Blocks
from autosched.measure.gpu_worker import Session, classify
from autosched.measure.messages import Compare, Measure, Prove, Reply, Setup, Source, Vendor
from autosched.measure.proof import Kernel
from autosched.measure.timing import Launch
from autosched.record import Status
from autosched.sketches.builders import gemm

pytest.importorskip("torch")

OP = gemm(24, 16, 32, epilogue=["bias"])
RIGHT = "out.copy_(a.float() @ b.float() + bias.float())"


class ListTimer:
    """Launches once and answers from a list."""

    def __init__(self, medians: Sequence[float]) -> None:
        self.medians = list(medians)
        self.timed = 0

    def time(self, launch: Launch) -> list[float]:
        if launch[1] is not None:
            launch[1]()
        launch[0]()
        self.timed += 1
        return [self.medians.pop(0) if len(self.medians) > 1 else self.medians[0]] * 3

    def anchor_us(self) -> float | None:
        return 190.0

    def blocks(self, vendor: Launch, candidates: Sequence[Launch]) -> Blocks:
        vendor[0]()
        for launch, _ in candidates:
            launch()
        return Blocks((Block((10.0,), ((8.0,),) * len(candidates), 1700.0),), 0.0, True)


def _source(body: str, workspace: int = 0, zeroed: int = 0) -> Source:
    text = f"def launch(a, b, bias, out, *, workspace=None):\n    {body}\n"
    return Source(text, hashlib.sha256(text.encode()).hexdigest(), workspace, zeroed, "a schedule")


def _session(tmp_path: Path, timer: ListTimer | None = None, floor: float = 1.0) -> Session:
    session = Session("cpu", lambda protocol, device: timer or ListTimer([9.0]))
    reply = session.answer(Setup(OP.spec, Protocol(proof_launches=2), floor, str(tmp_path)))
    assert reply.status is Status.OK
    return session


def test_a_right_kernel_is_timed(tmp_path: Path) -> None:
    session = _session(tmp_path)
    reply = session.answer(Measure(_source(RIGHT)))
    assert (reply.status, reply.samples_us, reply.error) == (Status.OK, (9.0, 9.0, 9.0), "")
    assert reply.telemetry["anchor_us"] == 190.0
    assert reply.telemetry["compiled_in_worker"] == 0.0
    assert reply.seconds > 0
    assert [p.name for p in tmp_path.iterdir() if p.suffix == ".py"] == [f"autosched_{_source(RIGHT).hash}.py"]


@pytest.mark.parametrize(
    ("body", "status", "error"),
    [
        ("out.copy_(a.float() @ b.float())", Status.WRONG_RESULT, "launch 0: "),
        ("pass", Status.WRONG_RESULT, "NaN: not written"),
        (f"{RIGHT}; b.zero_()", Status.WRONG_RESULT, "input b was changed"),
        ("raise ValueError('odd')", Status.LAUNCH_ERROR, "ValueError: odd"),
        ("import torch; raise torch.cuda.OutOfMemoryError('full')", Status.OUT_OF_RESOURCES, "full"),
    ],
)
def test_a_fault_is_a_status_and_is_not_timed(tmp_path: Path, body: str, status: Status, error: str) -> None:
    timer = ListTimer([9.0])
    session = _session(tmp_path, timer)
    reply = session.answer(Measure(_source(body)))
    assert (reply.status, reply.samples_us, reply.poisoned) == (status, (), False)
    assert error in reply.error
    assert timer.timed == 0
    assert session.answer(Measure(_source(RIGHT))).status is Status.OK


def test_a_kernel_that_is_right_on_integers_only_fails_on_the_timing_data(tmp_path: Path) -> None:
    body = "out.copy_((a.round().float() @ b.round().float()) + bias.float())"
    reply = _session(tmp_path).answer(Measure(_source(body)))
    assert reply.status is Status.WRONG_RESULT
    assert reply.error.startswith("timed launch: ")


def test_a_timed_launch_that_writes_nothing_is_found_though_its_proof_left_an_answer(tmp_path: Path) -> None:
    session = _session(tmp_path)
    assert session.answer(Measure(_source(RIGHT))).status is Status.OK
    body = f"\n    if bool((a == a.round()).all()):\n        {RIGHT}"  # integers, as in a proof
    reply = session.answer(Measure(_source(body)))
    assert reply.status is Status.WRONG_RESULT
    assert reply.error.startswith("timed launch: 384 of 384 elements are wrong")


def test_a_workspace_is_given_as_declared(tmp_path: Path) -> None:
    body = "workspace += (a.float() @ b.float()).flatten(); out.copy_(workspace.view(24, 16) + bias.float())"
    session = _session(tmp_path)
    size = 4 * 24 * 16
    assert session.answer(Measure(_source(f"{body}; workspace.zero_()", size, size))).status is Status.OK
    assert "left zero" in session.answer(Measure(_source(body, size, size))).error
    assert session.answer(Measure(_source(body, 4 * 24 * 16))).status is Status.WRONG_RESULT


def test_a_timing_below_the_floor_is_repeated_before_it_is_one(tmp_path: Path) -> None:
    timer = ListTimer([0.5, 9.0])
    reply = _session(tmp_path, timer).answer(Measure(_source(RIGHT)))
    assert (reply.status, reply.samples_us, timer.timed) == (Status.OK, (9.0, 9.0, 9.0), 2)
    timer = ListTimer([0.5])
    reply = _session(tmp_path, timer).answer(Measure(_source(RIGHT)))
    assert (reply.status, reply.samples_us, timer.timed) == (Status.BELOW_FLOOR, (), 2)
    assert "0.50 us is below the physical floor of 1.00 us" in reply.error


def test_vendor_proof_and_comparison(tmp_path: Path) -> None:
    session = _session(tmp_path, ListTimer([7.0, 6.0]))
    baseline = session.answer(Vendor()).baseline
    assert baseline is not None
    assert (baseline.name, baseline.latency_us, baseline.default_us) == ("cublas", 7.0, 6.0)
    right, wrong = session.answer(Prove((_source(RIGHT), _source("pass")), 5)).errors
    assert right == ""
    assert wrong.startswith("wrong_result: launch 0: 384 of 384 elements are wrong")
    found = session.answer(Compare((_source(RIGHT), _source(RIGHT))))
    assert found.blocks == (Block((10.0,), ((8.0,), (8.0,)), 1700.0),)


def test_what_the_cache_did_not_hold_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session = _session(tmp_path)

    def load(source: Source) -> Kernel:
        for hit in (True, False, False):
            session._on_compile(src=None, metadata={}, times=None, cache_hit=hit)  # as Triton calls its listener
        return Kernel(lambda a, b, bias, out, *, workspace: out.copy_(a.float() @ b.float() + bias.float()))

    assert session.answer(Measure(_source(RIGHT))).telemetry["compiled_in_worker"] == 0.0
    monkeypatch.setattr(session, "_load", load)
    for _ in range(2):
        assert session.answer(Measure(_source(RIGHT))).telemetry["compiled_in_worker"] == 2.0


def test_a_lost_device_poisons_the_worker() -> None:
    def lost() -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    assert classify(RuntimeError("CUDA error"), lost) == (Status.LAUNCH_ERROR, True)
    assert classify(RuntimeError("bad argument"), lambda: None) == (Status.LAUNCH_ERROR, False)


def test_triton_errors_are_told_apart() -> None:
    errors = pytest.importorskip("triton.runtime.errors")
    assert classify(errors.OutOfResources(300000, 232448, "shared memory"), lambda: None) == (
        Status.OUT_OF_RESOURCES,
        False,
    )
    assert classify(errors.PTXASError("x"), lambda: None) == (Status.COMPILE_ERROR, False)


def test_a_reply_survives_the_wire() -> None:
    import msgspec

    reply = Reply(status=Status.WRONG_RESULT, error="x", telemetry={"driver": "1", "power_w": 2.0})
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(reply), type=Reply) == reply
