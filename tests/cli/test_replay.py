"""``autosched replay``: what a log holds, damaged lines and all."""

from __future__ import annotations

from pathlib import Path

import pytest

from autosched.log import Header, LogContents, TuningLog, Vendor
from autosched.record import Measurement, Record, Status
from autosched.sketches.builders import gemm
from autosched.sketches.codegen import generate
from autosched.sketches.rules import default_schedule, derive
from autosched.sketches.target import PRESETS
from tests.cli.conftest import Cli


def ok(*samples: float, source_hash: str = "") -> Measurement:
    return Measurement(status=Status.OK, samples_us=samples, source_hash=source_hash)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Two workloads: one with a best of two pooled rows, a failure and the vendor's time; one that only failed."""
    path = tmp_path / "run.jsonl"
    target = PRESETS["H200"]
    with TuningLog(path) as writer:
        for size in (512, 256):
            op = gemm(size, size, size)
            schedule = default_schedule(op, target, derive(op, target))
            writer.append_header(Header(session=f"s{size}", key=op.key(), op=op.spec, device="H200"))
            rows = [Measurement(status=Status.WRONG_RESULT, error="one column")]
            knobs = [{**schedule.to_json(), "group_m": 4}]
            if size == 512:
                now = generate(op, schedule).source_hash
                rows += [ok(10.0, 11.0, source_hash=now), ok(13.0, 14.0, source_hash="0" * 64), ok(11.5)]
                knobs += [schedule.to_json(), schedule.to_json(), {**schedule.to_json(), "group_m": 2}]
                writer.append_vendor(Vendor(key=op.key(), device="H200", name="cublas", latency_us=23.0))
            for trial, (row, values) in enumerate(zip(rows, knobs, strict=True)):
                writer.finish_trial(
                    Record(
                        key=op.key(),
                        op=op.spec,
                        device="H200",
                        schedule=values,
                        measurement=row,
                        session=f"s{size}",
                        trial=trial,
                    )
                )
    return path


def test_json(cli: Cli, log: Path) -> None:
    ran = cli("replay", str(log), "--json")
    assert ran.code == 0
    data = ran.json
    assert data.keys() >= {"format", "records", "damaged", "stale", "best", "status_counts", "by_key"}
    assert (data["records"], data["damaged"], data["sessions"]) == (5, 0, 2)
    assert data["status_counts"] == {"ok": 3, "wrong_result": 2}
    assert (data["stale"], data["unhashed"], data["stale_share"]) == (1, 3, 0.5)
    key = gemm(512, 512, 512).key()
    assert data["best"]["key"] == key
    assert data["best"]["schedule"]["group_m"] == 2, "two rows of one schedule are pooled: 12 us, not 10.5"
    assert data["best"]["latency_us"] == 11.5
    assert data["best"]["tflops"] == pytest.approx(2 * 512**3 / 11.5 / 1e6)
    large = data["by_key"][key]
    assert (large["records"], large["schedules"], large["device"]) == (4, 3, "H200")
    assert large["baseline"] == {"name": "cublas", "latency_us": 23.0, "ratio": 2.0}
    assert large["by_device"].keys() == {"H200"}
    assert data["by_key"][gemm(256, 256, 256).key()]["best"] is None


def test_words(cli: Cli, log: Path) -> None:
    ran = cli("replay", str(log))
    assert ran.code == 0
    assert "11.5 us" in ran.out
    assert "cublas 23 us; the best is 2.000 x as fast" in ran.out
    assert "no row is valid" in ran.out
    assert "3 ok, 2 wrong_result" in ran.out
    assert max(map(len, ran.out.splitlines())) <= 80


def test_damaged_lines_are_named_and_the_rest_is_used(cli: Cli, log: Path) -> None:
    lines = log.read_text().splitlines()
    foreign = '{"type":"session","schema":99,"session":"later","key":"k","op":{},"device":"H200"}'
    damaged = [*lines[:3], "{broken", *lines[3:], foreign, '{"type":"trial","key":']
    log.write_text("\n".join(damaged))
    ran = cli("replay", str(log), "--json")
    assert (ran.code, ran.json["records"], ran.json["damaged"]) == (0, 5, 3)
    named = {d["line"]: d["reason"] for d in ran.json["damage"]}
    assert named.keys() == {4, len(damaged) - 1, len(damaged)}
    assert "99" in named[len(damaged) - 1]
    assert "torn last line" in named[len(damaged)]
    words = cli("replay", str(log)).out
    assert "3 lines or files were skipped" in words
    assert "torn last line" in words


def test_a_folder_and_an_only_failed_log(cli: Cli, log: Path, recorded_table: LogContents) -> None:
    both = cli("replay", str(log.parent), str(log), "--json")
    assert both.json["records"] == 5, "a file that is named twice is read once"
    failed = log.parent / "failed.jsonl"
    with TuningLog(failed) as writer:
        for record in recorded_table.records:
            if not record.measurement.ok:
                writer.finish_trial(record)
    ran = cli("replay", str(failed), "--json")
    assert (ran.code, ran.json["best"]) == (1, None)
    assert ran.json["status_counts"].keys() == {"wrong_result"}


def test_a_device_without_a_preset_is_shown(cli: Cli, tmp_path: Path) -> None:
    op, path = gemm(64, 64, 64), tmp_path / "other.jsonl"
    with TuningLog(path) as writer:
        writer.finish_trial(
            Record(key=op.key(), op=op.spec, device="RTX3090", schedule={"sketch": "old"}, measurement=ok(5.0))
        )
    ran = cli("replay", str(path), "--json")
    assert (ran.code, ran.json["best"]["device"], ran.json["best"]["latency_us"]) == (0, "RTX3090", 5.0)


@pytest.mark.parametrize("text", ["", "no log\n", "[]\n"])
def test_a_file_that_is_no_log(cli: Cli, tmp_path: Path, text: str) -> None:
    path = tmp_path / "notes.txt"
    path.write_text(text)
    ran = cli("replay", str(path), "--json")
    assert (ran.code, ran.json["error"]["type"]) == (2, "LogError")
    assert str(path) in ran.json["error"]["message"]
    assert ran.json["error"]["remedy"]


def test_no_log_at_all(cli: Cli, tmp_path: Path) -> None:
    missing = cli("replay", str(tmp_path / "none.jsonl"), "--json")
    assert (missing.code, missing.json["error"]["type"]) == (2, "LogNotFoundError")
    empty = cli("replay", str(tmp_path), "--json")
    assert (empty.code, empty.json["error"]["type"]) == (2, "LogNotFoundError")
    unnamed = cli("replay", "--json")
    assert (unnamed.code, unnamed.json["error"]["remedy"]) == (2, "see autosched replay --help")
