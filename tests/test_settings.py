"""Settings come from the environment, checked, through one module."""

from __future__ import annotations

from pathlib import Path

import platformdirs
import pytest

from autosched import settings
from autosched.errors import InvalidInputError


def test_home_is_the_variable_or_the_platforms_folder(tmp_path: Path) -> None:
    chosen = settings.load({"AUTOSCHED_HOME": str(tmp_path / "x"), "AUTOSCHED_WORKERS": "5"})
    assert (chosen.home, chosen.logs, chosen.store) == (
        tmp_path / "x",
        tmp_path / "x" / "logs",
        tmp_path / "x" / "store",
    )
    assert chosen.workers == 5
    default = settings.load({})
    assert default.home == Path(platformdirs.user_data_dir("autosched", appauthor=False)).absolute()
    assert default.workers >= 1


def test_the_process_environment_is_read_when_nothing_is_given(autosched_home: Path) -> None:
    assert settings.load().home == autosched_home


@pytest.mark.parametrize("value", ["0", "-1", "many", "1.5", "\u00b2"])
def test_worker_count_that_is_none(value: str) -> None:
    with pytest.raises(InvalidInputError, match="AUTOSCHED_WORKERS"):
        settings.load({"AUTOSCHED_WORKERS": value})


def test_home_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "f").touch()
    with pytest.raises(InvalidInputError, match="is a file"):
        settings.load({"AUTOSCHED_HOME": str(tmp_path / "f")})
