"""What every test gets: a data folder of its own, and a skip where it needs a GPU that is not there."""

from __future__ import annotations

import functools
import importlib.util
from pathlib import Path

import pytest


@functools.cache
def _has_gpu() -> bool:
    if importlib.util.find_spec("torch") is None:
        return False
    import torch

    return torch.cuda.is_available()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test marked ``gpu`` before its fixtures run; torch is imported only if there is such a test."""
    if item.get_closest_marker("gpu") is not None and not _has_gpu():
        pytest.skip("needs an NVIDIA GPU and a CUDA build of torch")


@pytest.fixture(autouse=True)
def autosched_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty data folder, so that no test reads or writes the user's."""
    home = tmp_path_factory.mktemp("autosched-home")
    monkeypatch.setenv("AUTOSCHED_HOME", str(home))
    return home


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of the source tree."""
    return Path(__file__).resolve().parent.parent
