"""The tuning log: what is written is read again, and damage costs no more than the lines that it hit."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import pytest

from autosched.errors import LogError, LogNotFoundError
from autosched.log import SCHEMA, End, Header, Start, TuningLog, Vendor, find_session, stale
from autosched.record import Measurement, Record, Status

OK = Measurement(status=Status.OK, samples_us=(2.0, 3.0, 1.0), source_hash="aa", compiled={"registers": 96.0})


def header(session: str = "s", **changes: object) -> Header:
    base = Header(
        session=session,
        key="key",
        op={"builder": "gemm"},
        device="H200",
        versions={"triton": "3.6.0"},
        protocol={"launches": 12},
        seed=3,
        model="base",
    )
    return msgspec.structs.replace(base, **changes)


def record(trial: int, session: str = "s", measurement: Measurement = OK, **changes: object) -> Record:
    base = Record(
        key="key",
        op={"builder": "gemm"},
        device="H200",
        schedule={"sketch": "grid", "block_m": 64 + trial},
        measurement=measurement,
        origin="model",
        trial=trial,
        session=session,
        predicted=-0.5,
    )
    return msgspec.structs.replace(base, **changes)


def start(trial: int, session: str = "s") -> Start:
    return Start(session=session, trial=trial, schedule={"sketch": "grid", "block_m": 64 + trial}, origin="model")


@dataclass
class Written:
    path: Path
    records: list[Record]


@pytest.fixture
def written(tmp_path: Path) -> Written:
    """A whole session of three trials."""
    path = tmp_path / "deep" / "run.jsonl"
    records = [record(i) for i in range(3)]
    with TuningLog(path) as log:
        log.append_header(header())
        log.append_vendor(Vendor(key="key", device="H200", name="cublas", latency_us=4.0, session="s"))
        for r in records:
            log.start_trial(start(r.trial))
            log.finish_trial(r)
        log.finish(End(session="s", status="tuned", outcome={"best": 1}))
    return Written(path, records)


def test_everything_written_is_read_again(written: Written) -> None:
    contents = TuningLog.read(written.path)
    assert list(contents) == written.records
    assert contents.sessions == {"s": header()}
    assert contents.vendors[0].latency_us == 4.0
    assert contents.ends["s"].outcome == {"best": 1}
    assert (contents.damaged, contents.crashed, contents.files) == ([], [], [written.path])


def test_lines_are_plain_json_with_type_and_schema(written: Written) -> None:
    lines = [json.loads(line) for line in written.path.read_text().splitlines()]
    assert [line["type"] for line in lines] == ["session", "vendor", *(["start", "trial"] * 3), "end"]
    assert lines[0]["schema"] == SCHEMA
    assert lines[3]["measurement"]["samples_us"] == [2.0, 3.0, 1.0]


def test_torn_last_line_is_named_and_the_next_writer_starts_a_new_line(written: Written) -> None:
    whole = written.path.read_bytes()
    written.path.write_bytes(whole + b'{"type":"trial","key":"ke')
    contents = TuningLog.read(written.path)
    assert [d.line for d in contents.damaged] == [10]
    assert contents.damaged[0].reason.startswith("torn last line")
    assert list(contents) == written.records
    with TuningLog(written.path) as log:
        log.finish_trial(record(7))
    contents = TuningLog.read(written.path)
    assert list(contents) == [*written.records, record(7)]
    assert [d.line for d in contents.damaged] == [10]
    assert contents.damaged[0].reason.startswith("damaged line")


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"type":"trial","key":3}', "damaged line"),
        (b'{"type":"trial","key":"\xff\xfe"}', "damaged line"),
        (b"\x00\x01\x02", "damaged line"),
        (b"[" * 100_000, "damaged line"),
        (b'{"type":"poem"}', "unknown type of line 'poem'"),
        (b'{"type":"vendor","key":"k"}', "damaged line"),
        (b"null", "damaged line"),
    ],
)
def test_damaged_middle_line_is_named_and_the_rest_is_used(written: Written, line: bytes, reason: str) -> None:
    lines = written.path.read_bytes().split(b"\n")
    lines[5] = line
    written.path.write_bytes(b"\n".join(lines))
    contents = TuningLog.read(written.path)
    assert [(d.path, d.line) for d in contents.damaged] == [(str(written.path), 6)]
    assert contents.damaged[0].reason.startswith(reason)
    assert [r.trial for r in contents] == [0, 2]


def test_a_trial_that_says_ok_without_samples_is_damaged(written: Written) -> None:
    text = written.path.read_text().replace('"samples_us":[2.0,3.0,1.0],', "", 1)
    written.path.write_text(text)
    contents = TuningLog.read(written.path)
    assert [d.line for d in contents.damaged] == [4]
    assert "samples" in contents.damaged[0].reason


def test_session_of_another_schema_is_skipped_with_its_trials(written: Written) -> None:
    other = '{"type":"session","schema":2,"session":"new","whatever":1}\n'
    trial = msgspec.json.encode(record(0, "new"))
    line = b'{"type":"trial",' + trial[1:] + b"\n"
    written.path.write_bytes(other.encode() + line + written.path.read_bytes())
    contents = TuningLog.read(written.path)
    assert list(contents) == written.records
    assert [(d.line, d.reason) for d in contents.damaged] == [
        (1, "schema 2; this version reads 1"),
        (2, "trial of a session of another schema"),
    ]


def test_trial_without_an_outcome_is_a_crash_unless_its_session_ended(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    with TuningLog(path) as log:
        log.append_header(header())
        log.append_header(header("ended"))
        log.start_trial(start(0))
        log.finish_trial(record(0))
        log.start_trial(start(1))
        log.start_trial(start(5, "ended"))
        log.finish(End(session="ended", status="partial"))
        log.start_trial(start(6, "ended"))  # resumed
    contents = TuningLog.read(path)
    assert [(r.session, r.trial, r.measurement.status) for r in contents.crashed] == [
        ("s", 1, Status.WORKER_CRASH),
        ("ended", 6, Status.WORKER_CRASH),
    ]
    assert contents.crashed[0].schedule == {"sketch": "grid", "block_m": 65}
    assert contents.crashed[0].key == "key"
    assert [r.trial for r in contents] == [0]


WRITER = """
import sys
sys.path.insert(0, {root!r})
from tests.test_log import header, record, start
from autosched.log import TuningLog
name, count = sys.argv[2], int(sys.argv[3])
with TuningLog(sys.argv[1]) as log:
    log.append_header(header(name))
    for i in range(count):
        log.start_trial(start(i, name))
        log.finish_trial(record(i, name))
        if i == 20:
            print("ready", flush=True)
"""


def writer(repository: Path, path: Path, name: str, count: int) -> subprocess.Popen[str]:
    script = WRITER.format(root=str(repository))
    command = [sys.executable, "-c", script, str(path), name, str(count)]
    environment = {**os.environ, "PYTHONPATH": str(repository)}
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


def test_killed_writer_leaves_a_log_that_reads_and_goes_on(repository: Path, tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    process = writer(repository, path, "s", 10_000_000)
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    contents = TuningLog.read(path)
    assert len(contents) >= 21
    assert [r.trial for r in contents] == list(range(len(contents)))
    assert len(contents.damaged) + len(contents.crashed) <= 2
    with TuningLog(path) as log:
        log.finish_trial(record(len(contents)))
    assert len(TuningLog.read(path)) == len(contents) + 1


def test_two_writers_do_not_mix_their_lines(repository: Path, tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    processes = [writer(repository, path, name, 1500) for name in ("first", "second")]
    for process in processes:
        process.communicate(timeout=60)
        assert process.returncode == 0
    contents = TuningLog.read(path)
    assert contents.damaged == []
    for name in ("first", "second"):
        assert [r.trial for r in contents if r.session == name] == list(range(1500))
    assert contents.crashed == []


def test_compressed_logs_are_read_but_not_written(written: Written, tmp_path: Path) -> None:
    path = tmp_path / "table.jsonl.gz"
    data = written.path.read_bytes()
    half = data.index(b"\n", len(data) // 2) + 1
    path.write_bytes(gzip.compress(data[:half]) + gzip.compress(data[half:]))
    assert list(TuningLog.read(path)) == written.records
    with pytest.raises(LogError, match="compressed"):
        TuningLog(path)


def test_truncated_compressed_log_gives_what_it_holds(written: Written, tmp_path: Path) -> None:
    path = tmp_path / "table.jsonl.gz"
    lines = written.path.read_bytes() + b"".join(
        b'{"type":"trial",' + msgspec.json.encode(record(i))[1:] + b"\n" for i in range(3, 2000)
    )
    path.write_bytes(gzip.compress(lines)[:-2000])
    contents = TuningLog.read(path)
    assert 3 < len(contents) < 2000
    assert contents.damaged[-1].line == 0
    assert "ends early" in contents.damaged[-1].reason


def test_folder_means_its_logs_recursively(written: Written, tmp_path: Path) -> None:
    (tmp_path / "more" / "b").mkdir(parents=True)
    (tmp_path / "more" / "b" / "t.jsonl.gz").write_bytes(gzip.compress(written.path.read_bytes()))
    (tmp_path / "more" / "notes.txt").write_text("not read")
    (tmp_path / "more" / "misses.jsonl").write_text('{"op":"gemm"}\n')
    contents = TuningLog.read(tmp_path)
    assert len(contents) == 6
    assert [(Path(d.path).name, d.line, d.reason) for d in contents.damaged] == [("misses.jsonl", 0, "no tuning log")]
    both = TuningLog.read([tmp_path, written.path])
    assert len(both) == 6


@pytest.mark.parametrize("content", [b"", b"hello\n", b'{"op":"gemm"}\n', b"\x1f\x8b\x08rubbish", b"[1,2]\n"])
def test_named_file_that_is_no_log_is_refused_and_left_alone(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "thing.jsonl"
    path.write_bytes(content)
    with pytest.raises(LogError, match=r"thing\.jsonl is no tuning log"):
        TuningLog.read(path)
    if content:
        with pytest.raises(LogError, match="nothing was written"):
            TuningLog(path)
    assert path.read_bytes() == content


def test_no_log_at_all(tmp_path: Path) -> None:
    with pytest.raises(LogNotFoundError, match="no tuning log in"):
        TuningLog.read(tmp_path)
    with pytest.raises(LogNotFoundError, match=r"there is no log .*absent\.jsonl"):
        TuningLog.read(tmp_path / "absent.jsonl")
    with pytest.raises(FileNotFoundError):
        TuningLog.read([])


def test_figures_that_are_not_finite_are_left_out_and_samples_refused(tmp_path: Path) -> None:
    odd = msgspec.structs.replace(OK, telemetry={"power_w": float("nan"), "driver": "1"})
    with TuningLog(tmp_path / "a.jsonl") as log:
        log.finish_trial(record(0, measurement=odd))
        with pytest.raises(LogError, match="not all finite"):
            log.finish_trial(record(1, measurement=Measurement(status=Status.OK, samples_us=(float("inf"),))))
        with pytest.raises(LogError, match="cannot write Record"):
            log.finish_trial(record(1, schedule={"block_m": np.int64(3)}))
    contents = TuningLog.read(tmp_path / "a.jsonl")
    assert [r.measurement.telemetry for r in contents] == [{"driver": "1"}]
    assert contents.damaged == []


def test_columns(tmp_path: Path) -> None:
    failed = Measurement(status=Status.WRONG_RESULT, error="column 3")
    with TuningLog(tmp_path / "a.jsonl") as log:
        log.finish_trial(record(0))
        log.finish_trial(record(1, measurement=failed, schedule={"sketch": "split", "split_k": 4}, predicted=None))
    columns = TuningLog.read(tmp_path / "a.jsonl").to_columns()
    assert columns["status"] == ["ok", "wrong_result"]
    assert columns["sketch"] == ["grid", "split"]
    np.testing.assert_array_equal(columns["latency_us"], [2.0, np.nan])
    np.testing.assert_array_equal(columns["predicted"], [-0.5, np.nan])
    np.testing.assert_array_equal(columns["block_m"], [64, -1])
    np.testing.assert_array_equal(columns["split_k"], [-1, 4])
    assert {len(c) for c in columns.values()} == {2}


def test_stale_share() -> None:
    bare = Measurement(status=Status.COMPILE_TIMEOUT)
    records = [record(0), record(1), record(2), record(3, measurement=bare)]
    now = {0: "aa", 1: "bb", 2: None}
    found = stale(records, lambda r: now[r.trial])
    assert (found.checked, found.stale, found.unhashed) == (3, 2, 1)
    assert found.share == pytest.approx(2 / 3)


def test_find_session_takes_the_last_that_fits(written: Written) -> None:
    with TuningLog(written.path) as log:
        log.append_header(header("other", seed=4))
        log.start_trial(start(0, "other"))
    found = find_session(written.path, "key", "H200", 3, {"launches": 12})
    assert found is not None
    assert found.header.session == "s"
    assert list(found.records) == written.records
    assert found.vendor is not None
    assert found.end is not None
    crashed = find_session(written.path, "key", "H200", 4, {"launches": 12})
    assert crashed is not None
    assert ([r.trial for r in crashed.crashed], crashed.records, crashed.end) == ([0], (), None)
    assert find_session(written.path.with_name("absent.jsonl"), "key", "H200", 3, {}) is None


@pytest.mark.parametrize(
    ("key", "device", "seed", "protocol", "named"),
    [
        ("no", "H200", 3, {"launches": 12}, "op key is 'key' in the log and 'no' in this run"),
        ("key", "A100", 3, {"launches": 12}, "device is 'H200' in the log and 'A100' in this run"),
        ("key", "H200", 0, {"launches": 12}, "seed is 3 in the log and 0 in this run"),
        ("key", "H200", 3, {"launches": 9}, "protocol is {'launches': 12} in the log and {'launches': 9} in this run"),
    ],
)
def test_a_session_that_does_not_fit_names_the_field(
    written: Written, key: str, device: str, seed: int, protocol: dict[str, int], named: str
) -> None:
    with pytest.raises(LogError) as error:
        find_session(written.path, key, device, seed, protocol)
    assert named in str(error.value)
