"""Targets: the presets' figures, their names, and devices that report their own."""

from __future__ import annotations

import pytest

from autosched.errors import InvalidInputError, UnsupportedError
from autosched.sketches.target import PRESETS, Target, from_properties, parse_target


def test_presets_have_the_figures_of_the_data_sheets() -> None:
    assert list(PRESETS) == ["H200", "H100", "A100", "RTX4090"]
    assert all(name == target.name for name, target in PRESETS.items())
    peaks = {
        (name, dtype): round(PRESETS[name].peak_flops(dtype) / 1e12)
        for name, dtype in (("H200", "bf16"), ("H200", "fp32"), ("A100", "bf16"), ("A100", "tf32"), ("RTX4090", "fp16"))
    }
    assert peaks == {
        ("H200", "bf16"): 1071,  # 4096 * 132 * 1.98 GHz
        ("H200", "fp32"): 67,
        ("A100", "bf16"): 312,
        ("A100", "tf32"): 156,
        ("RTX4090", "fp16"): 330,
    }
    assert {n: t.capability for n, t in PRESETS.items()} == {"H200": 90, "H100": 90, "A100": 80, "RTX4090": 89}
    assert {n: t.shared_per_block >> 10 for n, t in PRESETS.items()} == {
        "H200": 227,
        "H100": 227,
        "A100": 163,
        "RTX4090": 99,
    }
    assert [n for n, t in PRESETS.items() if t.has_tma] == ["H200", "H100"]


def test_8_bit_types_run_at_twice_the_rate_and_not_everywhere() -> None:
    for name in ("H200", "H100", "RTX4090"):
        target = PRESETS[name]
        for dtype in ("fp8e4m3", "fp8e5m2", "int8"):
            assert target.peak_flops(dtype) == 2 * target.peak_flops("bf16")
    a100 = PRESETS["A100"]
    assert round(a100.peak_flops("int8") / 1e12) == 624
    with pytest.raises(
        UnsupportedError, match=r"A100 does not multiply fp8e4m3 \(one of bf16, fp16, tf32, fp32, int8\)"
    ):
        a100.peak_flops("fp8e4m3")


@pytest.mark.parametrize("target", PRESETS.values(), ids=lambda t: t.name)
def test_figures_agree_with_each_other(target: Target) -> None:
    assert target.shared_per_block < target.shared_per_sm <= 256 << 10
    assert target.registers_per_sm == 64 << 10
    assert target.threads_per_sm % 32 == 0
    assert target.bandwidth < target.l2_bandwidth
    assert {"bf16", "fp16", "tf32", "fp32"} <= set(target.flops_per_sm_cycle)
    assert Target(**target.to_dict()) == target


@pytest.mark.parametrize(("text", "name"), [("H200", "H200"), ("h100", "H100"), ("rtx 4090", "RTX4090")])
def test_names_are_read_in_any_case(text: str, name: str) -> None:
    assert parse_target(text) is PRESETS[name]
    assert parse_target(PRESETS[name]) is PRESETS[name]


@pytest.mark.parametrize("text", ["", "B200", "H20", "H2000"])
def test_an_unknown_name_is_refused_with_those_known(text: str) -> None:
    with pytest.raises(InvalidInputError, match="one of H200, H100, A100, RTX4090"):
        parse_target(text)


def test_figures_can_be_changed_and_no_others() -> None:
    changed = PRESETS["H200"].updated({"sms": 114})
    assert (changed.sms, changed.name, PRESETS["H200"].sms) == (114, "H200", 132)
    assert changed != PRESETS["H200"]
    with pytest.raises(TypeError, match="cores"):
        changed.updated({"cores": 1})


@pytest.mark.parametrize(
    ("device", "capability", "name"),
    [
        ("NVIDIA H200", 90, "H200"),
        ("NVIDIA H100 80GB HBM3", 90, "H100"),
        ("NVIDIA A100-SXM4-40GB", 80, "A100"),
        ("NVIDIA GeForce RTX 4090", 89, "RTX4090"),
    ],
)
def test_devices_are_recognised_by_the_name_that_they_report(device: str, capability: int, name: str) -> None:
    found = from_properties(device, capability, sms=100, l2_bytes=1 << 20)
    assert (found.name, found.sms, found.l2_bytes) == (name, 100, 1 << 20)
    assert found.flops_per_sm_cycle == PRESETS[name].flops_per_sm_cycle


def test_another_device_of_a_known_generation_keeps_its_own_name() -> None:
    found = from_properties("NVIDIA L40S", 89, sms=142)
    assert (found.name, found.sms, found.capability) == ("L40S", 142, 89)
    assert found.flops_per_sm_cycle == PRESETS["RTX4090"].flops_per_sm_cycle


@pytest.mark.parametrize(("device", "capability"), [("NVIDIA B200", 100), ("Tesla V100-SXM2-16GB", 70)])
def test_another_generation_is_refused(device: str, capability: int) -> None:
    with pytest.raises(InvalidInputError, match=rf"{device} has compute capability {capability / 10}"):
        from_properties(device, capability)
