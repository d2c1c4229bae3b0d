"""The local measurer with a worker that crashes, hangs and errs on demand, and a compile pool that compiles nothing."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from autosched.errors import InvalidInputError, NoDeviceError, WorkerError
from autosched.measure.base import Measurer, Protocol
from autosched.measure.local import LocalMeasurer
from autosched.record import Measurement, Status
from autosched.sketches.builders import gemm
from autosched.sketches.codegen import Generated
from autosched.sketches.rules import derive
from autosched.sketches.schedule import Schedule
from autosched.sketches.target import PRESETS

OP = gemm(512, 512, 512)
SKETCHES = derive(OP, PRESETS["H200"])
PROTOCOL = Protocol(run_timeout_s=1.0)


class Result:
    def __init__(self, status: str, error: str = "") -> None:
        self.status, self.error, self.features, self.seconds = status, error, {"registers": 80.0}, 0.25


class InstantPool:
    """Answers in reverse order; what has ``num_stages`` 7 does not compile."""

    def __init__(self, cache: Path) -> None:
        self.waiting: list[tuple[int, Result]] = []
        self.closed = self.warmed = False
        self.aimed: tuple[int, int | None] | None = None
        assert cache.is_dir()

    def warm(self) -> None:
        self.warmed = True

    def aim(self, capability: int, shared_limit: int | None) -> None:
        assert self.warmed
        self.aimed = capability, shared_limit

    def submit(self, identity: int, generated: Generated, /) -> None:
        assert self.aimed == (90, 232448)
        failed = generated.kernels[0].num_stages == 7
        self.waiting.append((identity, Result("compile_error", "ptxas gave up") if failed else Result("ok")))

    def ready(self, timeout: float) -> Sequence[tuple[int, Result]]:
        taken, self.waiting = self.waiting[-2:], self.waiting[:-2]
        return taken[::-1]

    def keep(self, source_hash: str, user_cache_dir: str | Path) -> bool:
        return len(source_hash) == 64

    def close(self) -> None:
        self.closed = True


def _schedule(group_m: int, stages: int = 3) -> Schedule:
    return Schedule.of(SKETCHES[0], group_m=group_m, stages=stages)


def _measurer(entry: str = "tests.measure.fake_worker:handle", **rest: object) -> LocalMeasurer:
    return LocalMeasurer(protocol=PROTOCOL, entry=entry, make_pool=InstantPool, **rest)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def measurer() -> Iterator[LocalMeasurer]:
    with _measurer() as made:
        yield made


def test_it_is_a_measurer_of_the_device_that_it_found(measurer: LocalMeasurer) -> None:
    assert isinstance(measurer, Measurer)
    assert measurer.target == PRESETS["H200"]
    assert measurer.source == "measured"
    assert measurer.space(OP) is None


def test_each_failure_becomes_its_status_and_the_run_goes_on(measurer: LocalMeasurer) -> None:
    groups = (1, 2, 1, 4, 8, 16, 1, 32, 1)
    schedules = [_schedule(group) for group in groups] + [_schedule(1, stages=7)]
    seen: list[tuple[int, Status]] = []
    launched: list[int] = []

    def note(index: int, measurement: Measurement) -> None:
        assert index == 9 or index in launched
        seen.append((index, measurement.status))

    found = measurer.measure(OP, schedules, on_result=note, before_launch=launched.append)
    assert [m.status for m in found] == [
        Status.OK,
        Status.WORKER_CRASH,
        Status.OK,
        Status.RUN_TIMEOUT,
        Status.WRONG_RESULT,
        Status.LAUNCH_ERROR,
        Status.OK,
        Status.LAUNCH_ERROR,
        Status.OK,
        Status.COMPILE_ERROR,
    ]
    assert "SIGSEGV" in found[1].error
    assert "group_m=2" in found[1].error
    assert "group_m=4" in found[3].error
    assert found[9].error == "ptxas gave up"
    assert sorted(launched) == list(range(9))
    assert sorted(seen) == [(i, m.status) for i, m in enumerate(found)]
    first = found[0]
    assert (first.samples_us, first.latency_us) == ((5.0, 6.0, 7.0), 6.0)
    assert (first.compile_seconds, first.measure_seconds, first.compiled) == (0.25, 0.5, {"registers": 80.0})
    assert len(first.source_hash) == 64
    assert first.source_hash != found[9].source_hash
    assert measurer.partial == found


def test_a_worker_is_set_up_once_an_op_and_again_after_it_died(measurer: LocalMeasurer) -> None:
    def setups() -> int:
        file = measurer._folder / "setups"
        return len(file.read_text()) if file.exists() else 0

    other = gemm(256, 512, 512)
    measurer.measure(other, [_schedule(1)])
    before = setups()
    measurer.measure(other, [_schedule(1), _schedule(8)])
    assert setups() == before
    measurer.measure(other, [_schedule(2), _schedule(1)])
    assert setups() == before + 1
    measurer.measure(other, [_schedule(16), _schedule(1)])
    assert setups() == before + 2


def test_operands_that_cannot_be_made_stop_the_measuring(measurer: LocalMeasurer) -> None:
    with pytest.raises(WorkerError, match=r"could not be made.*too large"):
        measurer.measure(gemm(7, 512, 512), [_schedule(1)])
    assert measurer.measure(OP, [_schedule(1)])[0].ok


def test_an_interruption_keeps_what_was_measured(measurer: LocalMeasurer) -> None:
    def interrupt(index: int) -> None:
        if len([m for m in measurer.partial if m is not None]) == 3:
            raise KeyboardInterrupt

    schedules = [_schedule(1), _schedule(8), _schedule(1), _schedule(1), _schedule(1)]
    with pytest.raises(KeyboardInterrupt):
        measurer.measure(OP, schedules, before_launch=interrupt)
    kept = [m.status for m in measurer.partial if m is not None]
    assert len(kept) == 3
    assert len(measurer.partial) == 5
    assert set(kept) <= {Status.OK, Status.WRONG_RESULT}
    assert [m.ok for m in measurer.measure(OP, schedules)] == [True, False, True, True, True]


def test_what_an_interruption_left_in_the_pool_answers_nobody_else(measurer: LocalMeasurer) -> None:
    def interrupt(index: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measurer.measure(OP, [_schedule(8)] * 5, before_launch=interrupt)
    assert measurer.partial == [None] * 5
    assert [m.ok for m in measurer.measure(OP, [_schedule(1), _schedule(8), _schedule(1)])] == [True, False, True]


def test_the_vendor_and_a_comparison_that_leaves_out_what_fails_its_proof(measurer: LocalMeasurer) -> None:
    baseline = measurer.baseline(OP)
    assert baseline is not None
    assert (baseline.name, baseline.latency_us) == ("cublas", 10.0)
    schedules = [_schedule(1), _schedule(8), _schedule(1, stages=7), _schedule(1, stages=2)]
    found = measurer.compare(OP, schedules)
    assert found.errors == ("", "wrong_result: of 100", "compile_error: ptxas gave up", "")
    assert [ratio and round(ratio, 6) for ratio in found.ratios] == [1.25, None, None, 1.25]
    assert found.vendor_us == 10.0


def test_a_finalist_that_brings_the_worker_down_does_not_take_the_others_with_it(measurer: LocalMeasurer) -> None:
    good, crash, wrong = measurer.prove(OP, [_schedule(1), _schedule(2), _schedule(8)])
    assert (good, wrong) == ("", "wrong_result: of 100")
    assert crash.startswith("worker_crash: ")
    assert "group_m=2" in crash
    assert "SIGSEGV" in crash


def test_leaving_ends_the_worker_and_removes_its_files() -> None:
    with _measurer() as made:
        pid = int(made.measure(OP, [_schedule(1)])[0].telemetry["pid"])
        folder, pool = made._folder, made._pool
        os.kill(pid, 0)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert not folder.exists()
    assert not made.keep("0" * 64, folder)
    assert isinstance(pool, InstantPool)
    assert pool.closed


def test_no_device_says_what_to_do() -> None:
    with pytest.raises(NoDeviceError, match=r"no CUDA device is there.*recorded"):
        _measurer("tests.measure.fake_worker:no_device").measure(OP, [_schedule(1)])


def test_a_target_that_the_device_is_not_is_refused() -> None:
    with pytest.raises(InvalidInputError, match=r"A100 has compute capability 8\.0, the device NVIDIA H200 has 9\.0"):
        _measurer(target=PRESETS["A100"]).measure(OP, [_schedule(1)])
