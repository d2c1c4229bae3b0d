"""Measuring on a real GPU: real crashes, real hangs, real wrong answers, and timings that repeat."""

from __future__ import annotations

import importlib.util
import statistics
from collections.abc import Iterator

import pytest

from autosched.measure import local
from autosched.measure.base import Protocol
from autosched.measure.local import LocalMeasurer
from autosched.record import Status
from autosched.sketches.builders import gemm
from autosched.sketches.codegen import Generated, KernelSpec, source_hash
from autosched.sketches.codegen import generate as real_generate
from autosched.sketches.op import Op
from autosched.sketches.rules import default_schedule, derive
from autosched.sketches.schedule import Schedule

pytestmark = pytest.mark.gpu
pytest.importorskip("torch")
pytest.importorskip("triton")

OP = gemm(512, 512, 512)
PROTOCOL = Protocol(run_timeout_s=10.0, load_seconds=0.5)

HEAD = "import triton\nimport triton.language as tl\n\n\n"
BODIES = {
    "illegal access": "    tl.store(out_ptr + (1 << 40) + tl.program_id(0), 0.0)\n",
    "endless loop": (
        "    x = tl.load(a_ptr)\n    while x == x:\n        x = tl.load(a_ptr, volatile=True)\n"
        "    tl.store(out_ptr, x)\n"
    ),
    "wrong": "    tl.store(out_ptr + tl.program_id(0), 0.0)\n",
}


def _planted(kind: str, op: Op) -> Generated:
    """A kernel of the op's signature that does what ``kind`` says."""
    source = (
        f"{HEAD}@triton.jit\ndef planted(a_ptr, out_ptr):\n{BODIES[kind]}\n\n"
        "def launch(a, b, out, *, workspace=None):\n"
        "    planted[(16,)](a, out, num_warps=4, num_stages=1)\n"
    )
    spec = KernelSpec("planted", {"a_ptr": "*bf16", "out_ptr": "*bf16"}, (0, 1), 4, 1)
    return Generated(source, source_hash(source), (spec,), 0, 0, op.key())


@pytest.fixture(scope="module")
def measurer() -> Iterator[LocalMeasurer]:
    with LocalMeasurer(protocol=PROTOCOL) as made:
        yield made


@pytest.fixture
def default(measurer: LocalMeasurer) -> Schedule:
    target = measurer.target
    return default_schedule(OP, target, derive(OP, target))


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        ("illegal access", Status.LAUNCH_ERROR),
        ("endless loop", Status.RUN_TIMEOUT),
        ("wrong", Status.WRONG_RESULT),
    ],
)
def test_a_bad_kernel_is_a_status_and_the_run_goes_on(
    measurer: LocalMeasurer, default: Schedule, monkeypatch: pytest.MonkeyPatch, kind: str, status: Status
) -> None:
    sources = iter([_planted(kind, OP), real_generate(OP, default)])
    monkeypatch.setattr(local, "generate", lambda op, schedule: next(sources))
    bad, good = measurer.measure(OP, [default, default])
    assert bad.status is status, bad.error
    assert good.ok, good.error


def test_the_launch_hits_the_compile_workers_cache(measurer: LocalMeasurer) -> None:
    target = measurer.target
    sketches = derive(OP, target)
    schedules = [Schedule.of(sketch) for sketch in sketches]
    found = measurer.measure(OP, schedules)
    missed = {s.sketch.name: m.telemetry for s, m in zip(schedules, found, strict=True) if m.ok}
    assert len(missed) >= len(schedules) // 2, [(m.status, m.error) for m in found]
    assert {name: t["compiled_in_worker"] for name, t in missed.items()} == dict.fromkeys(missed, 0.0)


def test_no_default_of_a_sketch_is_wrong(measurer: LocalMeasurer) -> None:
    for op in (
        OP,
        gemm(500, 504, 1000),
        gemm(64, 512, 512, epilogue=["bias", "gelu"]),
        gemm(512, 512, 512, layout="tn"),
    ):
        schedules = [Schedule.of(sketch) for sketch in derive(op, measurer.target)]
        found = measurer.measure(op, schedules)
        bad = [(s.to_json(), m.status, m.error) for s, m in zip(schedules, found, strict=True) if not m.ok]
        assert not [entry for entry in bad if entry[1] not in (Status.OUT_OF_RESOURCES, Status.INVALID)], bad


def test_two_timings_agree(measurer: LocalMeasurer) -> None:
    op = gemm(4096, 4096, 4096)
    schedule = default_schedule(op, measurer.target, derive(op, measurer.target))
    measurer.measure(op, [schedule] * 3)
    first, second = measurer.measure(op, [schedule] * 2)
    assert first.ok, first.error
    assert second.ok, second.error
    assert statistics.median(first.samples_us) == pytest.approx(statistics.median(second.samples_us), rel=0.05)
    if importlib.util.find_spec("pynvml") is not None:
        assert float(first.telemetry["sm_clock_mhz"]) > 500
    assert first.measure_seconds < 1.0


def test_the_vendor_against_itself_and_a_candidate(measurer: LocalMeasurer, default: Schedule) -> None:
    baseline = measurer.baseline(OP)
    assert baseline is not None
    assert 2 < baseline.latency_us < 100
    found = measurer.compare(OP, [default, default])
    assert found.errors == ("", "")
    assert found.blocks >= 5
    assert found.vendor_us == pytest.approx(baseline.latency_us, rel=0.3)
    one, two = found.latencies_us
    assert one is not None
    assert two is not None
    assert one == pytest.approx(two, rel=0.12)  # at 8 us the order within a block shows
