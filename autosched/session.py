"""A session: what a tuning run writes down, and what a resumed one already knows."""

from __future__ import annotations

import importlib.metadata
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from autosched import settings
from autosched.errors import AutoschedError, InvalidInputError, LogError
from autosched.log import End, Header, Round, Start, TuningLog, Vendor, find_session, new_session_id
from autosched.measure.base import Baseline, Measurer, Pipelined
from autosched.models.prequential import Prequential
from autosched.record import Measurement, Record, Status
from autosched.sketches.codegen import generate
from autosched.sketches.op import Op
from autosched.sketches.schedule import Schedule
from autosched.sketches.target import Target
from autosched.store import Store
from autosched.tuner import Proposal

Finished = Callable[[Proposal, Measurement, Record], None]

logger = logging.getLogger(__name__)


@dataclass
class Session:
    """One run's lines in a log, or in memory only.

    Attributes:
        id: Its name in the log.
        log: Where lines go; ``None`` keeps none.
        resumed: Trials of an earlier part of the same session, by schedule.
        rounds: What an earlier part asked for in each round, by its number.
        vendor_noted: Whether the log holds the vendor library's time of this session.
    """

    id: str
    op: Op
    device: str
    log: TuningLog | None
    resumed: dict[Schedule, Record] = field(default_factory=dict)
    rounds: dict[int, int] = field(default_factory=dict)
    vendor_noted: bool = False
    _taken: set[int] = field(default_factory=set)
    _chosen: set[Schedule] = field(default_factory=set)
    _trials: int = 0

    @classmethod
    @contextmanager
    def open(
        cls,
        op: Op,
        measurer: Measurer,
        log: str | Path | bool | None,
        *,
        resume: bool,
        seed: int,
        strategy: str,
        model: str = "",
        sketches: Sequence[Any] = (),
    ) -> Iterator[Session]:
        """Begins a session, or continues the one that the log holds.

        Raises:
            LogError: ``resume`` without a log, or with one whose op, device, seed or protocol differ.
        """
        path = _path(log, op, measurer.target.name)
        protocol = _protocol(measurer, strategy)
        if resume and path is None:
            raise LogError("resume=True without a log", "give the log of the run to continue")
        held = find_session(path, op.key(), measurer.target.name, seed, protocol) if resume and path else None
        writer = None if path is None else TuningLog(path)
        if held is None:
            session = cls(new_session_id(), op, measurer.target.name, writer)
            if writer is not None:
                writer.append_header(header_line(session.id, op, measurer.target, protocol, seed, model))
        else:
            session = cls(
                held.header.session,
                op,
                measurer.target.name,
                writer,
                rounds=held.rounds,
                vendor_noted=held.vendor is not None,
            )
            if held.header.model != model:
                logger.warning("the model is not the one that %s began with: proposals will differ", path)
            # Only a launch can bring the process down: replayed and synthetic trials are asked for again.
            crashed = held.crashed if measurer.source == "measured" else ()
            session._resume((*held.records, *crashed), sketches)
            if writer is not None:
                for record in crashed:  # an end of this session would otherwise count them as given up
                    writer.finish_trial(record)
        try:
            yield session
        finally:
            if writer is not None:
                writer.close()

    @property
    def path(self) -> str:
        """The log's path; empty if nothing is written."""
        return "" if self.log is None else str(self.log.path)

    def known(self, schedule: Schedule) -> Measurement | None:
        """What an earlier part of this session measured."""
        record = self.resumed.get(schedule)
        return None if record is None else record.measurement

    def begin_round(self, number: int, asked: int, score: Prequential, proposals: Sequence[Proposal]) -> None:
        """Notes a round before its first launch, once."""
        if self.log is None or number in self.rounds:
            return
        self.rounds[number] = asked
        self.log.begin_round(
            Round(
                session=self.id,
                round=number,
                asked=asked,
                pairs=score.pairs,
                accuracy=score.accuracy,
                explored=sum(p.origin == "explore" for p in proposals),
            )
        )

    def with_resumed(self, proposals: Sequence[Proposal], number: int, kept: int) -> list[Proposal]:
        """The ``kept`` trials of a round: what an earlier part of this session measured goes before what is new.

        A run that repeats the earlier part proposes its trials anyway, in the same order. One that does not (another
        model, a finalist that failed its proof, a log without ``round`` lines) gets those that it left out all the
        same, in the round that they were measured in or the next one with room, and none twice.

        Args:
            proposals: What was asked for.
            number: The round.
            kept: Trials that the budget leaves to it.
        """
        out = self._chosen.union(p.schedule for p in proposals)
        earlier = [
            Proposal(schedule, record.origin, record.predicted, number)
            for schedule, record in self.resumed.items()
            if record.round <= number and schedule not in out
        ]
        chosen = [*earlier, *proposals]
        if len(chosen) > kept:
            chosen = sorted(chosen, key=lambda p: p.schedule not in self.resumed)[:kept]
        self._chosen.update(p.schedule for p in chosen)
        return chosen

    def number(self, proposals: Sequence[Proposal]) -> list[int]:
        """A number for each of the next trials: those that the log holds keep theirs, and none is given twice."""
        numbers = []
        for at, proposal in enumerate(proposals, self._trials):
            held = self.resumed.get(proposal.schedule)
            number = held.trial if held is not None else at if at not in self._taken else max(self._taken) + 1
            self._taken.add(number)
            numbers.append(number)
        self._trials += len(proposals)
        return numbers

    def measure(
        self,
        measurer: Measurer,
        proposals: Sequence[Proposal],
        numbers: Sequence[int],
        finished: Finished,
        check: Callable[[], None],
    ) -> list[Measurement]:
        """Measures, with a line before each launch and one after it.

        Args:
            measurer: What answers.
            proposals: What to measure.
            numbers: Their trials' numbers.
            finished: Told of each trial.
            check: Called before each launch and while none is ready; may raise ``StopMeasuring``, which passes through.
        """
        schedules = [p.schedule for p in proposals]

        def before(i: int) -> None:
            check()
            if self.log is not None:
                p = proposals[i]
                self.log.start_trial(
                    Start(
                        session=self.id,
                        trial=numbers[i],
                        schedule=p.schedule.to_json(),
                        round=p.round,
                        origin=p.origin,
                        predicted=p.predicted,
                    )
                )

        def after(i: int, measurement: Measurement) -> None:
            record = self.record(proposals[i], measurement, numbers[i])
            if self.log is not None:
                self.log.finish_trial(record)
            finished(proposals[i], measurement, record)

        if isinstance(measurer, Pipelined):
            return measurer.measure(self.op, schedules, on_result=after, before_launch=before, while_waiting=check)
        measurements = []
        for i, schedule in enumerate(schedules):
            before(i)
            measurements += measurer.measure(self.op, [schedule])
            after(i, measurements[i])
        return measurements

    def record(self, proposal: Proposal, measurement: Measurement, trial: int) -> Record:
        """The record of one trial of this session."""
        return Record(
            key=self.op.key(),
            op=self.op.spec,
            device=self.device,
            schedule=proposal.schedule.to_json(),
            measurement=with_hash(self.op, proposal.schedule, measurement),
            origin=proposal.origin,
            round=proposal.round,
            trial=trial,
            predicted=proposal.predicted,
            session=self.id,
        )

    def reject(self, record: Record, error: str) -> None:
        """Notes that a trial right at first failed its long proof: its later line takes the place of the first."""
        if self.log is not None:
            told = error.partition(":")[0]
            status = Status(told) if told in set(Status) and told != Status.OK else Status.WRONG_RESULT
            failed = Measurement(status=status, error=error, source_hash=record.measurement.source_hash)
            self.log.finish_trial(msgspec.structs.replace(record, measurement=failed))

    def vendor(self, baseline: Baseline) -> None:
        """Notes the vendor library's time."""
        if self.log is not None and not self.vendor_noted:
            self.vendor_noted = True
            self.log.append_vendor(vendor_line(self.id, self.op, self.device, baseline))

    def end(self, status: str, outcome: dict[str, Any]) -> None:
        """Notes the outcome."""
        if self.log is not None:
            self.log.finish(End(session=self.id, status=status, outcome=outcome))

    def store(self, record: Record, vendor_us: float | None, vendor: str) -> None:
        """Lets programs find the choice of a run that is logged; a store that cannot be written is only reported."""
        if self.log is None:
            return
        folder = settings.load().store
        try:
            Store(folder).update(record, vendor_us, vendor=vendor, versions=versions())
        except OSError as error:
            logger.warning("the best of %s was not stored in %s: %s", self.op.key(), folder, error)

    def _resume(self, records: Sequence[Record], sketches: Sequence[Any]) -> None:
        """Takes over the trials of an earlier part; one that no longer derives keeps its number and no more."""
        for record in sorted(records, key=lambda r: r.trial):
            self._taken.add(record.trial)
            try:
                self.resumed[Schedule.from_json(record.schedule, sketches)] = record
            except InvalidInputError:
                logger.warning("trial %d of %s is not known any more: %s", record.trial, self.path, record.schedule)


def header_line(session: str, op: Op, target: Target, protocol: dict[str, Any], seed: int, model: str = "") -> Header:
    """What all trials of a session share, as its log begins with it."""
    return Header(
        session=session,
        key=op.key(),
        op=op.spec,
        device=target.name,
        target=target.to_dict(),
        versions=versions(),
        protocol=protocol,
        seed=seed,
        model=model,
    )


def vendor_line(session: str, op: Op, device: str, baseline: Baseline) -> Vendor:
    """The vendor library's time as a log keeps it."""
    return Vendor(
        key=op.key(),
        device=device,
        name=baseline.name,
        latency_us=baseline.latency_us,
        samples_us=baseline.samples_us,
        default_us=baseline.default_us,
        session=session,
    )


def with_hash(op: Op, schedule: Schedule, measurement: Measurement) -> Measurement:
    """The measurement with its source's hash, if it has none yet and the schedule can be generated."""
    if measurement.source_hash:
        return measurement
    try:
        return msgspec.structs.replace(measurement, source_hash=generate(op, schedule).source_hash)
    except AutoschedError:
        return measurement


def versions() -> dict[str, str]:
    """Installed versions of what a measurement depends on."""
    found = {}
    for name in ("autosched", "triton", "torch"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _path(log: str | Path | bool | None, op: Op, device: str) -> Path | None:
    if log is False:
        return None
    if log is None or log is True:
        return settings.load().logs / device / f"{op.name}-{op.iteration_space()}.jsonl"
    return Path(log)


def _protocol(measurer: Measurer, strategy: str) -> dict[str, Any]:
    protocol = getattr(measurer, "protocol", None)
    fields = msgspec.to_builtins(protocol) if protocol is not None else {}
    return {"source": measurer.source, "strategy": strategy, **fields}
