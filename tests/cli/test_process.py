"""The command line as a process of its own: exit codes, streams, Ctrl-C, and what it does not load."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path


def run(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], cwd=root, capture_output=True, text=True, timeout=120, check=False
    )


def test_importing_loads_nothing_heavy(repository: Path) -> None:
    code = (
        "import sys, autosched.cli, autosched.cli.app, autosched.cli.tune, autosched.cli.replay, autosched.cli.doctor\n"
        "print(sorted({'torch', 'triton', 'xgboost', 'sklearn'} & set(sys.modules)))"
    )
    ran = run(repository, "-c", code)
    assert (ran.returncode, ran.stdout.strip()) == (0, "[]"), ran.stderr


def test_help_and_version(repository: Path) -> None:
    ran = run(repository, "-m", "autosched.cli", "--help")
    assert ran.returncode == 0
    assert all(command in ran.stdout for command in ("tune", "replay", "doctor"))
    version = run(repository, "-m", "autosched.cli", "--version")
    assert version.stdout.split()[0] == "autosched"


def test_bad_usage_is_json_when_json_is_asked_for(repository: Path) -> None:
    ran = run(repository, "-m", "autosched.cli", "tune", "--json", "--nonsense")
    assert ran.returncode == 2
    assert json.loads(ran.stdout)["error"]["type"] == "UsageError"


def test_a_closed_pipe_is_no_traceback(repository: Path) -> None:
    command = f'"{sys.executable}" -m autosched.cli doctor --json | true'
    ran = subprocess.run(
        ["bash", "-c", command], cwd=repository, capture_output=True, text=True, timeout=120, check=False
    )
    assert "Traceback" not in ran.stderr


SLOW = """
import time
from autosched.cli import main, measurers
from autosched.measure.synthetic import SyntheticMeasurer
from autosched.sketches.target import PRESETS

class Slow(SyntheticMeasurer):
    def measure(self, op, schedules):
        answers = super().measure(op, schedules)
        if hasattr(self, "waited"):
            print("ready", flush=True)
            time.sleep(60)
        self.waited = True
        return answers

measurers.recorded = lambda device: Slow(PRESETS["H200"])
main(["tune", "gemm", "--shape", "512,512,512", "--on", "recorded", "--no-log", "--json"])
"""


def test_ctrl_c_ends_with_the_result_so_far(repository: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", SLOW], cwd=repository, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    seen = iter(process.stderr.readline, "ready\n")  # what the body prints on stdout goes to stderr
    assert "Replaying" in "".join(seen)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    data = json.loads(out)
    assert (data["status"], data["trials"]) == ("partial", 1)
    assert data["best"]["latency_us"] > 0
