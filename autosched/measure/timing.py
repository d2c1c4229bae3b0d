"""Timing on the GPU: replay of a CUDA graph between two events, with a cold L2 cache, all samples kept."""

from __future__ import annotations

import statistics
import time
import typing
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from autosched.measure.base import Protocol
from autosched.measure.compare import Block, Blocks, collect, interleave
from autosched.measure.telemetry import Telemetry

if TYPE_CHECKING:
    import torch


def launches_for(protocol: Protocol, warmups_us: Sequence[float]) -> int:
    """How many timed launches a kernel gets whose warm-up launches took ``warmups_us``."""
    slow = bool(warmups_us) and statistics.median(warmups_us) > protocol.slow_us
    return protocol.slow_launches if slow else protocol.launches


class Flush:
    """Empties the L2 cache: writes one buffer, then reads another one.

    A flush that ends with writes leaves dirty lines, whose write-back the timed kernel would pay for.

    Args:
        l2_bytes: Size of the cache.
        factor: Size of each buffer over the size of the cache.
        device: Where the buffers live.
    """

    def __init__(self, l2_bytes: int, factor: float, device: str | torch.device) -> None:
        import torch

        elements = int(l2_bytes * factor) // 4
        self._written = torch.empty(elements, dtype=torch.int32, device=device)
        self._read = torch.zeros(elements, dtype=torch.float32, device=device)
        self._sum = torch.empty((), dtype=torch.float32, device=device)

    def __call__(self) -> None:
        """Enqueue the flush on the current stream."""
        import torch

        self._written.zero_()
        torch.sum(self._read, dim=0, out=self._sum)


class Replay:
    """One launch, captured as a CUDA graph.

    Args:
        launch: Enqueues the kernels on the current stream; called once before the capture (compilation, library
            initialisation) and once during it.
        stream: Where it is captured and replayed; replays that are to follow each other share one.
        prepare: Enqueued before each replay, outside the timed part: zeroing a workspace.
    """

    def __init__(
        self, launch: Callable[[], Any], stream: torch.cuda.Stream, prepare: Callable[[], Any] | None = None
    ) -> None:
        import torch

        self._stream = stream
        self._graph = torch.cuda.CUDAGraph()
        self._prepare = prepare
        self._launch = launch  # what it refers to must live as long as the graph, which holds bare addresses
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            if prepare is not None:
                prepare()
            launch()
            self._stream.synchronize()
            # torch.cuda.graph() would collect garbage and empty the allocator's cache at each capture.
            self._graph.capture_begin(capture_error_mode="thread_local")
            try:
                self._kept = launch()
            finally:
                self._graph.capture_end()

    def enqueue(self, flush: Flush | None, count: int) -> list[tuple[torch.cuda.Event, torch.cuda.Event]]:
        """Enqueue ``count`` replays, each between two events; does not wait.

        Args:
            flush: Empties the cache before each replay; ``None`` leaves it warm.
            count: Number of replays.
        """
        import torch

        events = []
        with torch.cuda.stream(self._stream):
            for _ in range(count):
                if self._prepare is not None:
                    self._prepare()
                if flush is not None:
                    flush()
                start, end = _event(), _event()
                start.record()
                self._graph.replay()
                end.record()
                events.append((start, end))
        return events

    def wait(self) -> None:
        """Wait for everything that was enqueued."""
        self._stream.synchronize()

    def close(self) -> None:
        """Free the graph."""
        self._graph.reset()


def _event() -> torch.cuda.Event:
    import torch

    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def elapsed_us(events: Sequence[tuple[torch.cuda.Event, torch.cuda.Event]]) -> list[float]:
    """Microseconds between the events of each pair, after they have happened."""
    return [start.elapsed_time(end) * 1e3 for start, end in events]


def time_replay(replay: Replay, flush: Flush, protocol: Protocol) -> list[float]:
    """Warm-ups, then the timed launches; all samples in microseconds, in the order of the launches."""
    warm = replay.enqueue(flush, protocol.warmups)
    replay.wait()
    events = replay.enqueue(flush, launches_for(protocol, elapsed_us(warm)))
    replay.wait()
    return elapsed_us(events)


Launch = tuple[Callable[[], Any], Callable[[], Any] | None]
"""What enqueues a kernel, and what has to be enqueued before each timed launch of it, if anything."""


class Timer(typing.Protocol):
    """What a worker times with; the tests' own needs no GPU."""

    def time(self, launch: Launch) -> list[float]:
        """All samples of a kernel in microseconds."""
        ...

    def anchor_us(self) -> float | None:
        """Count a trial; the anchor kernel's median in microseconds when it is due."""
        ...

    def blocks(self, vendor: Launch, candidates: Sequence[Launch]) -> Blocks:
        """Interleaved blocks of the vendor library and the candidates."""
        ...


class GpuTimer:
    """Times on one GPU, everything on one stream.

    Args:
        protocol: Number of launches, size of the flush, blocks.
        device: The GPU.
        telemetry: Where the SM clock is read.
    """

    ANCHOR_SIZE = 4096

    def __init__(self, protocol: Protocol, device: torch.device, telemetry: Telemetry) -> None:
        import torch

        self._protocol, self._telemetry = protocol, telemetry
        self._stream: torch.cuda.Stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        l2_bytes = torch.cuda.get_device_properties(device).L2_cache_size
        self._flush = Flush(l2_bytes, protocol.flush_factor, device)
        n = self.ANCHOR_SIZE
        a, b, out = (torch.zeros(n, n, device=device).normal_().bfloat16() for _ in range(3))
        self._anchor = Replay(lambda: torch.mm(a, b, out=out), self._stream)
        self._trials = 0

    def time(self, launch: Launch) -> list[float]:
        """Warm-ups, then the timed launches; all samples in microseconds, in the order of the launches."""
        replay = Replay(launch[0], self._stream, launch[1])
        try:
            return time_replay(replay, self._flush, self._protocol)
        finally:
            replay.close()

    def anchor_us(self) -> float | None:
        """Count a trial; the median of a fixed vendor kernel (4096^3, bf16) on the first and each 25th of them."""
        due = self._trials % self._protocol.anchor_every == 0
        self._trials += 1
        return statistics.median(time_replay(self._anchor, self._flush, self._protocol)) if due else None

    def blocks(self, vendor: Launch, candidates: Sequence[Launch]) -> Blocks:
        """Blocks after some seconds of load, until enough of them are free of clock drift."""
        protocol = self._protocol
        replays = [Replay(launch, self._stream, prepare) for launch, prepare in (*candidates, vendor)]
        try:
            clock = self._load(replays[-1], protocol.load_seconds)
            return collect(
                lambda: self._block(replays),
                blocks=protocol.blocks,
                most=protocol.most_blocks,
                drift=protocol.clock_drift,
                clock_mhz=clock,
            )
        finally:
            for replay in replays:
                replay.close()

    def _load(self, replay: Replay, seconds: float) -> float | None:
        """Keep the device busy; the SM clock at the end of it."""
        clock = None
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            replay.enqueue(self._flush, 20)
            clock = self._telemetry.sm_clock_mhz()
            replay.wait()
        return clock

    def _block(self, replays: Sequence[Replay]) -> Block:
        """One block; the vendor library is the last of ``replays``, so that -1 is its index."""
        samples: list[list[tuple[torch.cuda.Event, torch.cuda.Event]]] = [[] for _ in replays]
        for index in interleave(len(replays) - 1):
            samples[index] += replays[index].enqueue(self._flush, self._protocol.block_launches)
        clock = self._telemetry.sm_clock_mhz()  # while the device is still at work
        replays[-1].wait()
        times = [tuple(elapsed_us(events)) for events in samples]
        return Block(times[-1], tuple(times[:-1]), clock)
