"""``autosched doctor``: what it finds, and what it concludes."""

from __future__ import annotations

import platform
from pathlib import Path

import numpy as np
import pytest

from autosched import __version__
from autosched.cli import doctor
from autosched.cli.devices import Found, Gpu, find_gpus
from autosched.cli.doctor import PACKAGES, checks
from tests.cli.conftest import NO_GPU, Cli

H200 = Found(gpus=(Gpu("NVIDIA H200", 90, 141 << 30),), cuda="13.0", driver="580.65.06")
ALL = dict.fromkeys(PACKAGES, "1.0")


def works(versions: dict[str, str], found: Found, cuda: str, compiler: str = "cc") -> dict[str, tuple[bool, str]]:
    return {c.name: (c.works, c.why) for c in checks(versions, found, cuda, ("H200",), compiler=compiler)}


def test_json(cli: Cli, autosched_home: Path) -> None:
    ran = cli("doctor", "--json")
    assert ran.code == 0
    data = ran.json
    assert (data["format"], data["autosched"], data["python"]) == (1, __version__, platform.python_version())
    assert data["versions"].keys() == PACKAGES.keys()
    assert data["versions"]["numpy"] == np.__version__
    assert data["missing"] == [name for name, version in data["versions"].items() if version is None]
    assert data["gpu"]["found"] is False
    assert data["gpu"]["problem"] == NO_GPU.problem
    assert data["works"].keys() == {"replay", "compile", "tune"}
    assert data["works"]["tune"]["works"] is False
    assert data["paths"]["home"] == str(autosched_home)
    assert isinstance(data["recorded"], dict)


def test_words(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "find_gpus", lambda: H200)
    ran = cli("doctor")
    assert ran.code == 0
    assert "NVIDIA H200, 141 GiB, compute capability 9.0" in ran.out
    assert "580.65.06, serves CUDA up to 13.0" in ran.out
    assert "What would work" in ran.out


def test_a_bad_setting_is_told(cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    monkeypatch.setenv("AUTOSCHED_HOME", str(file))
    ran = cli("doctor", "--json")
    assert (ran.code, ran.json["paths"]) == (0, {})
    assert str(file) in ran.json["problem"]
    assert str(file).replace("\n", "") in cli("doctor").out.replace("\n", "").replace(" ", "")


def test_everything_there() -> None:
    assert works(ALL, H200, "13.0") == {
        "replay": (True, "--on recorded replays H200"),
        "compile": (True, "with triton 1.0, no GPU needed"),
        "tune": (True, "on NVIDIA H200"),
    }


@pytest.mark.parametrize(
    ("versions", "found", "cuda", "compiler", "why"),
    [
        (ALL, NO_GPU, "13.0", "cc", "no NVIDIA driver is installed; use --on recorded"),
        (ALL, Found(gpus=(Gpu("Tesla T4", 75, 1),)), "13.0", "cc", "Tesla T4: compute capability has to be one of"),
        ({**ALL, "torch": ""}, H200, "", "cc", "pip install torch"),
        (ALL, H200, "", "cc", "torch is a CPU build"),
        (ALL, H200, "13.0", "", "C compiler"),
    ],
)
def test_what_tuning_lacks(versions: dict[str, str], found: Found, cuda: str, compiler: str, why: str) -> None:
    ok, reason = works(versions, found, cuda, compiler)["tune"]
    assert not ok
    assert why in reason


def test_without_triton_one_can_replay_but_not_compile() -> None:
    found = works({**ALL, "triton": "", "torch": ""}, NO_GPU, "")
    assert found["replay"][0]
    assert found["compile"] == (False, "pip install triton")


def test_no_driver_library_is_no_gpu(tmp_path: Path) -> None:
    module = tmp_path / "version"
    module.write_text("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build  (root)\n")
    found = find_gpus("libthere-is-no-such.so", module)
    assert (found.gpus, found.driver, found.problem) == ((), "580.65.06", "no NVIDIA driver is installed")


@pytest.mark.gpu
def test_the_gpu_is_found() -> None:
    found = find_gpus()
    assert found.gpus
    assert found.gpus[0].capability >= 70
    assert found.gpus[0].memory_bytes > 1 << 30
    assert found.cuda
    assert not found.problem
