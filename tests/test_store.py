"""The store keeps the best record of each op and device, and can be rebuilt from logs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from autosched.log import Vendor
from autosched.record import Measurement, Record, Status
from autosched.store import Store


def record(
    *samples: float, key: str = "k", device: str = "H200", block_m: int = 64, source: str = "", wrong: bool = False
) -> Record:
    measurement = (
        Measurement(status=Status.WRONG_RESULT, source_hash=source or f"hash{block_m}")
        if wrong
        else Measurement(status=Status.OK, samples_us=samples, source_hash=source or f"hash{block_m}")
    )
    schedule: dict[str, int | str] = {"sketch": "grid", "block_m": block_m}
    return Record(key=key, op={"builder": "gemm"}, device=device, schedule=schedule, measurement=measurement)


def test_the_faster_record_stays(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    assert store.best("k", "H200") is None
    assert store.update(record(5.0), 6.0, vendor="cublas", versions={"triton": "3.6.0"})
    assert not store.update(record(7.0, block_m=128))
    assert not store.update(record(wrong=True))
    best = store.best("k", "H200")
    assert best is not None
    assert (best.latency_us, best.vendor_us, best.vendor, best.ratio) == (5.0, 6.0, "cublas", 1.2)
    assert best.versions == {"triton": "3.6.0"}
    assert best.record == record(5.0)
    assert store.update(record(4.0, block_m=128))
    found = Store(tmp_path / "store").best("k", "H200")
    assert found is not None
    assert (found.record.schedule["block_m"], found.ratio) == (128, None)


def test_the_same_source_measured_anew_replaces_a_lucky_figure(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.update(record(5.0))
    assert store.update(record(5.5))
    best = store.best("k", "H200")
    assert best is not None
    assert best.latency_us == 5.5


def test_ops_and_devices_do_not_mix(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for r in (record(1.0), record(2.0, key="other"), record(3.0, device="A/100")):
        assert store.update(r)
    assert {k: e.latency_us for k, e in store.entries("H200").items()} == {"k": 1.0, "other": 2.0}
    assert {k: e.latency_us for k, e in store.entries("A/100").items()} == {"k": 3.0}


def test_rebuild_pools_rows_of_a_schedule_and_drops_what_was_there(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.update(record(0.5, key="gone"))
    rows = [
        record(3.0, block_m=64),
        record(9.0, 9.0, block_m=64),  # pooled median 9: the single 3 was luck
        record(8.0, block_m=128),
        record(1.0, block_m=16),
        record(block_m=16, wrong=True),
    ]
    vendors = [Vendor(key="k", device="H200", name="cublas", latency_us=t) for t in (10.0, 30.0, 12.0)]
    assert store.rebuild(rows, vendors) == 1
    assert list(store.entries("H200")) == ["k"]
    best = store.best("k", "H200")
    assert best is not None
    assert (best.record.schedule["block_m"], best.latency_us, best.vendor_us) == (128, 8.0, 12.0)


@pytest.mark.parametrize("text", ["", "{", '{"format":9,"device":"H200","entries":{}}', '{"format":1}'])
def test_damaged_file_counts_as_empty_and_is_replaced(
    tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "H200.json").write_text(text)
    store = Store(tmp_path)
    assert store.best("k", "H200") is None
    assert "counts as empty" in caplog.text
    assert store.update(record(1.0))
    assert store.best("k", "H200") is not None


def test_writers_at_once_lose_nothing(tmp_path: Path, repository: Path) -> None:
    script = (
        "import sys; from tests.test_store import record; from autosched.store import Store\n"
        "for i in range(20): Store(sys.argv[1]).update(record(1.0, key=f'{sys.argv[2]}{i}'))"
    )
    command = [sys.executable, "-c", script, str(tmp_path)]
    processes = [subprocess.Popen([*command, name], cwd=repository) for name in "ab"]
    assert [p.wait(timeout=60) for p in processes] == [0, 0]
    assert len(Store(tmp_path).entries("H200")) == 40
    assert sorted(p.suffix for p in tmp_path.iterdir()) == [".json", ".lock"]
