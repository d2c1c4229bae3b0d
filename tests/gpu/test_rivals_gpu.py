"""Rivals on a real GPU: they tune, are right, can be captured as graphs, and leave nothing behind."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from autosched.measure.base import Competition, Protocol
from autosched.measure.local import LocalMeasurer
from autosched.sketches.builders import bmm, contraction, gemm
from autosched.sketches.op import Op
from autosched.sketches.rules import default_schedule, derive

pytestmark = [pytest.mark.gpu, pytest.mark.slow]
pytest.importorskip("torch")
pytest.importorskip("triton")

PROTOCOL = Protocol(load_seconds=0.5)
ALL = ("cublas", "inductor", "inductor-triton", "triton.autotune")


@pytest.fixture(scope="module")
def measurer() -> Iterator[LocalMeasurer]:
    with LocalMeasurer(protocol=PROTOCOL) as made:
        yield made


def _compete(measurer: LocalMeasurer, op: Op, rivals: tuple[str, ...]) -> Competition:
    target = measurer.target
    return measurer.compete(op, default_schedule(op, target, derive(op, target)), rivals)


def test_all_rivals_of_a_plain_product(measurer: LocalMeasurer) -> None:
    found = _compete(measurer, gemm(1024, 1024, 1024), ALL)
    assert [(rival.name, rival.error) for rival in found.rivals] == [(name, "") for name in ALL]
    assert found.blocks >= 5
    assert 2 < found.latency_us < 200
    for rival in found.rivals:
        assert rival.latency_us is not None
        assert rival.ratio is not None
        assert rival.ratio == pytest.approx(rival.latency_us / found.latency_us, rel=0.05)
        assert rival.interval is not None
        assert rival.interval[0] <= rival.ratio <= rival.interval[1]
        assert 0.2 < rival.ratio < 5
    assert [rival.tuning_seconds is None for rival in found.rivals] == [True, False, False, False]
    assert all(1 < rival.tuning_seconds < 300 for rival in found.rivals if rival.tuning_seconds is not None)


@pytest.mark.parametrize(
    "op",
    [
        gemm(512, 512, 512, epilogue=["bias", "gelu"]),
        gemm(500, 504, 1000, dtype="fp16", layout="tn", epilogue=["bias", "residual"]),
        gemm(16, 1024, 512, layout="nt"),
        gemm(512, 512, 512, dtype="tf32"),
        gemm(512, 512, 512, out_dtype="fp32"),
        bmm(8, 256, 128, 256, layout="nt"),
    ],
    ids=lambda op: op.key(),
)
def test_rivals_are_right(measurer: LocalMeasurer, op: Op) -> None:
    rivals = ("cublas", "inductor", "triton.autotune")
    found = _compete(measurer, op, rivals)
    assert [(rival.name, rival.error) for rival in found.rivals] == [(name, "") for name in rivals]


def test_the_same_op_is_tuned_anew(measurer: LocalMeasurer) -> None:
    op = gemm(768, 768, 768)
    first, second = (_compete(measurer, op, ("inductor", "triton.autotune")) for _ in range(2))
    for one, two in zip(first.rivals, second.rivals, strict=True):
        assert (one.error, two.error) == ("", "")
        assert one.tuning_seconds is not None
        assert two.tuning_seconds is not None
        assert min(one.tuning_seconds, two.tuning_seconds) > 1.0  # nothing that the first one compiled


def test_an_op_that_a_rival_does_not_serve_spoils_no_other(measurer: LocalMeasurer) -> None:
    op = contraction("mck,nkc->nm", {"m": 256, "c": 16, "k": 32, "n": 256})
    found = _compete(measurer, op, ("triton.autotune", "cublas"))
    assert "not served by the tutorial's kernel" in found.rivals[0].error
    assert found.rivals[1].error == ""
