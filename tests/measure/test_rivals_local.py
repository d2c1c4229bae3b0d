"""A competition asked of the local measurer, with a worker that runs nothing."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest

from autosched.errors import InvalidInputError, WorkerError
from autosched.measure.base import Protocol, Rival
from autosched.measure.compare import Block
from autosched.measure.local import LocalMeasurer, _caches
from autosched.measure.messages import Compete, Reply, Request
from autosched.record import Status
from tests.measure import fake_worker
from tests.measure.test_local import OP, InstantPool, _schedule


def handle(payload: bytes) -> bytes:
    """As the fake worker; it competes too."""
    request = msgspec.msgpack.decode(payload, type=Request)
    if not isinstance(request, Compete):
        return fake_worker.handle(payload)
    if request.rivals == ("inductor-triton",):
        lost = Reply(status=Status.LAUNCH_ERROR, error="inductor-triton lost the device", poisoned=True)
        return msgspec.msgpack.encode(lost)
    assert "group_m=1" in request.source.label
    rivals = tuple(
        Rival(name=name, error="no compiler") if name == "inductor" else Rival(name=name, tuning_seconds=2.0)
        for name in request.rivals
    )
    block = Block((8.0, 8.0), ((10.0,),) * sum(not rival.error for rival in rivals), 1700.0)
    return msgspec.msgpack.encode(Reply(blocks=(block,) * 5, drift=0.001, rivals=rivals))


@pytest.fixture(scope="module")
def measurer() -> Iterator[LocalMeasurer]:
    entry = "tests.measure.test_rivals_local:handle"
    with LocalMeasurer(protocol=Protocol(run_timeout_s=1.0), entry=entry, make_pool=InstantPool) as made:
        yield made


def test_a_proved_schedule_competes(measurer: LocalMeasurer) -> None:
    found = measurer.compete(OP, _schedule(1), ["inductor", "triton.autotune"])
    assert (found.latency_us, found.blocks, found.clock_drift) == (8.0, 5, 0.001)
    assert found.rivals[0] == Rival(name="inductor", error="no compiler")
    tuned = found.rivals[1]
    assert (tuned.name, tuned.latency_us, tuned.ratio, tuned.tuning_seconds) == ("triton.autotune", 10.0, 1.25, 2.0)
    assert tuned.interval == pytest.approx((1.25, 1.25))


def test_a_schedule_that_fails_its_proof_does_not_compete(measurer: LocalMeasurer) -> None:
    with pytest.raises(WorkerError, match=r"cannot compete on M512.*wrong_result: of 100.*another schedule"):
        measurer.compete(OP, _schedule(8), ["cublas"])
    with pytest.raises(WorkerError, match=r"compile_error: ptxas gave up"):
        measurer.compete(OP, _schedule(1, stages=7), ["cublas"])


def test_a_rival_that_takes_the_worker_with_it_is_named_and_the_next_call_works(measurer: LocalMeasurer) -> None:
    with pytest.raises(WorkerError, match=r"competition failed \(launch_error\): inductor-triton lost the device"):
        measurer.compete(OP, _schedule(1), ["inductor-triton"])
    assert measurer.compete(OP, _schedule(1), ["cublas"]).rivals[0].ratio == pytest.approx(1.25)


def test_an_unknown_rival_is_refused_before_anything_starts() -> None:
    measurer = LocalMeasurer(entry="tests.measure.test_rivals_local:nothing", make_pool=InstantPool)
    with pytest.raises(InvalidInputError, match="unknown rival 'tvm'"):
        measurer.compete(OP, _schedule(1), ["tvm"])


def test_what_the_worker_compiles_stays_in_the_measurers_folder(measurer: LocalMeasurer) -> None:
    folder = measurer._folder
    found = _caches(folder / "cache", folder)
    assert found == {"TRITON_CACHE_DIR": str(folder / "cache"), "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor")}
    assert measurer._worker is not None
    assert measurer._worker._child._env == found


def test_the_protocol_of_logs_has_no_field_of_competitions() -> None:
    """A field more would make every earlier log differ from a run that wants to resume it."""
    assert not [name for name in Protocol.__struct_fields__ if "compete" in name]
