"""A measuring worker that runs nothing: what happens to a kernel stands in its schedule (``group_m``)."""

from __future__ import annotations

import functools
import os
import re
import signal
import time
from pathlib import Path

import msgspec

from autosched.measure.base import Baseline
from autosched.measure.compare import Block
from autosched.measure.messages import Compare, Device, Identify, Measure, Prove, Reply, Request, Setup, Source, Vendor
from autosched.record import Status

H200 = {
    "sms": 132,
    "shared_per_block": 232448,
    "shared_per_sm": 233472,
    "registers_per_sm": 65536,
    "threads_per_sm": 2048,
    "l2_bytes": 60 << 20,
}


@functools.cache
def _spec() -> list[str]:
    """What was set up, in a list of one."""
    return []


def handle(payload: bytes) -> bytes:
    """Answer one request."""
    return msgspec.msgpack.encode(_answer(msgspec.msgpack.decode(payload, type=Request)))


def no_device(payload: bytes) -> bytes:
    """What a worker says without a GPU."""
    raise RuntimeError("no CUDA device is there")


def _answer(request: Request) -> Reply:
    if isinstance(request, Identify):
        return Reply(device=Device("NVIDIA H200", 90, H200, f"GPU-test-{os.getpid()}", 1980.0))
    if isinstance(request, Setup):
        if request.spec["shape"][0] == 7:
            raise MemoryError("too large")
        _spec()[:] = [str(request.spec["shape"])]
        with Path(request.folder, "setups").open("a") as file:
            file.write("x")
        return Reply()
    assert _spec(), "not set up"
    if isinstance(request, Measure):
        return _act(request.source)
    if isinstance(request, Prove):
        labels = [source.label for source in request.sources]
        if any("group_m=2" in label for label in labels):
            os.kill(os.getpid(), signal.SIGSEGV)
        return Reply(errors=tuple(f"wrong_result: of {request.launches}" if "group_m=8" in x else "" for x in labels))
    if isinstance(request, Compare):
        block = Block((10.0, 10.0), ((8.0,),) * len(request.sources), 1700.0)
        return Reply(blocks=(block,) * 5, drift=0.0)
    assert isinstance(request, Vendor)
    return Reply(baseline=Baseline(name="cublas", latency_us=10.0, samples_us=(10.0,)))


def _act(source: Source) -> Reply:
    found = re.search(r"group_m=(\d+)", source.label)
    action = int(found[1]) if found else 1
    if action == 2:
        os.kill(os.getpid(), signal.SIGSEGV)
    if action == 4:
        time.sleep(600)
    if action == 8:
        return Reply(status=Status.WRONG_RESULT, error="1 of 4 elements are wrong")
    if action == 16:
        return Reply(status=Status.LAUNCH_ERROR, error="illegal memory access", poisoned=True)
    if action == 32:
        raise ValueError("what nobody thought of")
    return Reply(samples_us=(5.0, 6.0, 7.0), seconds=0.5, telemetry={"pid": float(os.getpid())})
