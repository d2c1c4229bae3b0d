"""What the learned models share, against values worked out by hand."""

import numpy as np
import pytest

from autosched.features import COLUMN, FEATURES
from autosched.models import Dataset
from autosched.models.level import (
    SIZE_FEATURES,
    Level,
    analytic,
    held_out_parts,
    row_weights,
    schedule_columns,
)


def make(y: list[float], serial: list[float], keys: str) -> Dataset:
    x = np.zeros((len(y), len(FEATURES)), np.float32)
    x[:, COLUMN["log2_serial_time"]] = serial
    x[:, COLUMN["log2_m"]] = [ord(k) for k in keys]
    names = list(keys)
    return Dataset(x, np.array(y), names, names, ["H200"] * len(y), ["uniform"] * len(y), np.full(len(y), 0.01))


def test_analytic_is_the_logarithm_of_roofline_over_serial_time() -> None:
    data = make([0.0, 0.0], [0.0, 2.0], "aa")
    assert analytic(data.x) == pytest.approx([0.0, -np.log(4.0)])


def test_distance_counts_from_the_best_quarter() -> None:
    # The serial time is 1 throughout; the best quarter of each workload is its first row.
    data = make([-1.0, -2.0, -3.0, -4.0, -5.0, -6.0, -7.0, -8.0], [0.0] * 8, "aaaabbbb")
    level, distance = Level.fit(data, ridge=1e-9)
    assert distance == pytest.approx([0, -1, -2, -3, 0, -1, -2, -3])
    assert level.score(data.x) == pytest.approx([-1.0] * 4 + [-5.0] * 4, abs=1e-5)
    assert Level.from_json(level.to_json()).score(data.x) == pytest.approx(level.score(data.x))


def test_weights_are_those_of_the_distance_and_as_large_as_the_workload_up_to_a_table() -> None:
    weight = row_weights(make([0.0, -0.3, 0.0, -0.3, -0.3, -0.3], [0.0] * 6, "aabbbb"), focus=0.3)
    assert weight.mean() == pytest.approx(1.0)
    assert weight[:2].sum() == pytest.approx(2.0)
    assert weight[1] / weight[0] == pytest.approx((np.exp(-1) + 0.05) / 1.05)
    assert weight[3] / weight[2] == pytest.approx((np.exp(-1) + 0.05) / 1.05)
    tables = row_weights(make([0.0] * 1000, [0.0] * 1000, "a" * 250 + "b" * 700 + "c" * 50), focus=0.3)
    assert [tables[rows].sum() / tables[:250].sum() for rows in (slice(250, 950), slice(950, 1000))] == (
        pytest.approx([1.0, 0.2])
    )


def test_distances_are_not_learnt_from_the_size_of_the_workload() -> None:
    columns = schedule_columns(np.arange(len(FEATURES), dtype=np.float32)[None])[0]
    assert len(columns) == len(FEATURES) - len(SIZE_FEATURES)
    assert not {FEATURES[int(i)].name for i in columns} & set(SIZE_FEATURES)


def test_parts_hold_out_spaces_or_rows_or_nothing() -> None:
    data = make([0.0] * 6, [0.0] * 6, "aabbcc")
    assert [sorted({data.spaces[i] for i in part}) for part in held_out_parts(data, 3)] == [["a"], ["b"], ["c"]]
    one = make([0.0] * 6, [0.0] * 6, "aaaaaa")
    assert [part.tolist() for part in held_out_parts(one, 3)] == [[0, 3], [1, 4], [2, 5]]
    assert held_out_parts(one.take(np.arange(5)), 3) == []
