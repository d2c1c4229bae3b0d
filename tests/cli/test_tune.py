"""``autosched tune``: the result in both forms, exit codes, and that nothing but the result is on stdout."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from autosched import tune as tuning
from autosched.cli import measurers
from autosched.cli.devices import Found, Gpu
from autosched.cli.tune import parse_shape
from autosched.errors import InvalidInputError, NoDeviceError
from autosched.log import LogContents, TuningLog
from autosched.measure.replay import ReplayMeasurer
from autosched.measure.synthetic import SyntheticMeasurer
from autosched.record import Measurement
from autosched.sketches.builders import conv2d, gemm
from autosched.sketches.op import Op
from autosched.sketches.schedule import Schedule
from autosched.sketches.target import PRESETS
from tests.cli.conftest import Cli

GEMM = ("tune", "gemm", "--shape", "512,512,512")
KEYS = {
    "format", "op", "key", "device", "source", "status", "trials", "compiled", "best", "baseline", "failures",
    "seconds", "break_even_calls", "log", "fraction_of_recorded_best",
}  # fmt: skip


def test_recorded_run_as_json(cli: Cli, recorded_table: LogContents) -> None:
    ran = cli(*GEMM, "--budget", "16", "--on", "recorded", "--seed", "1", "--json")
    assert ran.code == 0
    data = ran.json
    assert data.keys() >= KEYS
    assert (data["op"], data["device"], data["source"]) == ("gemm", "H200", "recorded")
    assert (data["status"], data["trials"], data["format"]) == ("tuned", 16, 1)
    assert data["best"].keys() == {"sketch", "schedule", "latency_us", "tflops"}
    assert data["best"]["tflops"] == pytest.approx(2 * 512**3 / data["best"]["latency_us"] / 1e6)
    assert data["baseline"].keys() >= {"name", "latency_us", "ratio", "interval"}
    assert data["baseline"]["name"] == "cublas"
    best = ReplayMeasurer(recorded_table).best(gemm(512, 512, 512))
    assert best is not None
    assert data["fraction_of_recorded_best"] == pytest.approx(best[1] / data["best"]["latency_us"])
    assert data["seconds"].keys() == {"total", "search", "features", "model", "compile", "measure"}
    assert len(TuningLog.read(data["log"])) == 16
    assert "recorded on an H200" in ran.err


def test_the_same_seed_gives_the_same_choice(cli: Cli) -> None:
    arguments = (*GEMM, "--budget", "8", "--on", "recorded:H200", "--seed", "3", "--no-log", "--json")
    first, second = cli(*arguments).json, cli(*arguments).json
    assert first["best"] == second["best"]
    assert first["log"] is None


def test_people_see_a_table(cli: Cli) -> None:
    ran = cli(*GEMM, "--budget", "8", "--on", "recorded", "--no-log")
    assert ran.code == 0
    assert "replayed from measurements recorded on H200" in ran.out
    assert "TFLOP/s" in ran.out
    assert "tuned after 8 trials" in ran.out
    assert "vendor    cublas" in ran.out
    assert "of the best that is recorded" in ran.out
    assert max(map(len, ran.out.splitlines())) <= 80
    assert "trial 1: best" in ran.err or "trial 2: best" in ran.err


def test_auto_without_a_gpu_says_what_it_replays(cli: Cli) -> None:
    ran = cli(*GEMM, "--budget", "2", "--no-log", "--json")
    assert ran.code == 0
    assert ran.json["source"] == "recorded"
    assert "No GPU to measure on: no NVIDIA driver is installed" in ran.err
    assert "Replaying measurements recorded on an H200" in ran.err


def test_auto_with_a_gpu_takes_it(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    h100 = Found(gpus=(Gpu("NVIDIA H100", 90, 80 << 30),))
    monkeypatch.setattr(measurers, "find_gpus", lambda: h100)
    monkeypatch.setattr(measurers, "local", lambda: SyntheticMeasurer(PRESETS["H100"]))
    ran = cli(*GEMM, "--budget", "2", "--no-log", "--json")
    assert (ran.code, ran.json["device"]) == (0, "H100")
    assert "Replaying" not in ran.err


def test_auto_with_a_gpu_that_cannot_be_used_replays(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    class Unusable(SyntheticMeasurer):
        def __enter__(self) -> Unusable:
            raise NoDeviceError("torch is a CPU build", "install one with CUDA")

    monkeypatch.setattr(measurers, "find_gpus", lambda: Found(gpus=(Gpu("NVIDIA H100", 90, 80 << 30),)))
    monkeypatch.setattr(measurers, "local", lambda: Unusable(PRESETS["H100"]))
    ran = cli(*GEMM, "--budget", "2", "--no-log", "--json")
    assert ran.json["device"] == "H200"
    assert "torch is a CPU build" in ran.err
    insisted = cli(*GEMM, "--budget", "2", "--no-log", "--json", "--on", "gpu")
    assert insisted.code == 2
    error = insisted.json["error"]
    assert error == {"type": "NoDeviceError", "message": "torch is a CPU build", "remedy": "install one with CUDA"}


def test_budget_0_measures_nothing(cli: Cli) -> None:
    ran = cli(*GEMM, "--budget", "0", "--on", "recorded", "--json")
    assert (ran.code, ran.json["trials"]) == (0, 0)
    assert ran.json["best"]["latency_us"] is None
    assert "nothing is measured" in ran.err
    assert "Replaying" not in ran.err


def test_scales_are_part_of_the_op(cli: Cli, synthetic: Callable[..., None]) -> None:
    synthetic()
    plain = (*GEMM, "--budget", "2", "--strategy", "random", "--on", "recorded", "--no-log", "--json")
    keys = {s: cli(*plain, *(("--scales", s) if s else ())).json["key"] for s in ("", "tensor", "row_column")}
    assert keys[""] == gemm(512, 512, 512).key()
    assert keys["tensor"] == gemm(512, 512, 512, scales="tensor").key()
    assert keys["row_column"] == gemm(512, 512, 512, scales="row_column").key()


def test_all_failed(cli: Cli, synthetic: Callable[..., None]) -> None:
    synthetic(compile_error=0.75, run_timeout=0.25)
    ran = cli(*GEMM, "--budget", "12", "--on", "recorded", "--no-log", "--json")
    assert ran.code == 1
    assert (ran.json["status"], ran.json["best"]) == ("all_failed", None)
    assert sum(ran.json["failures"].values()) == 12
    assert {e["text"]: e["count"] for e in ran.json["errors"]} == {
        f"synthetic {status}": n for status, n in ran.json["failures"].items()
    }
    words = cli(*GEMM, "--budget", "12", "--on", "recorded", "--no-log")
    assert words.code == 1
    assert "all_failed: no schedule was valid after 12 trials" in words.out
    assert f"{ran.json['failures']['compile_error']} x synthetic compile_error" in words.out


class Interrupted(SyntheticMeasurer):
    """Ctrl-C in the second round."""

    rounds = 0

    def measure(self, op: Op, schedules: Sequence[Schedule]) -> list[Measurement]:
        self.rounds += 1
        if self.rounds == 2:
            raise KeyboardInterrupt
        return super().measure(op, schedules)


def test_interrupting_keeps_the_result_so_far(cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    log, kernel = tmp_path / "run.jsonl", tmp_path / "kernel.py"
    monkeypatch.setattr(measurers, "recorded", lambda device: Interrupted(PRESETS["H200"]))
    arguments = (*GEMM, "--on", "recorded", "--log", str(log), "--save", str(kernel))
    ran = cli(*arguments, "--json")
    assert ran.code == 130
    assert ran.json["status"] == "partial"
    assert 0 < ran.json["trials"] < 64
    assert len(TuningLog.read(log)) == ran.json["trials"]
    assert not TuningLog.read(log).damaged
    assert "@triton.jit" in kernel.read_text()
    words = cli(*arguments)
    assert words.code == 130
    assert "partial, interrupted after" in words.out


def test_interrupting_before_there_is_a_result(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(device: str | None) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(measurers, "recorded", interrupt)
    ran = cli(*GEMM, "--on", "recorded", "--json")
    assert (ran.code, ran.json["error"]["type"]) == (130, "Interrupted")


def test_saved_module_is_the_choice(cli: Cli, tmp_path: Path) -> None:
    kernel = tmp_path / "kernel.py"
    ran = cli(*GEMM, "--budget", "4", "--on", "recorded", "--no-log", "--save", str(kernel))
    assert ran.code == 0
    functions = {n.name for n in ast.parse(kernel.read_text()).body if isinstance(n, ast.FunctionDef)}
    assert "launch" in functions
    assert "saved" in ran.out


def test_seconds_limit_the_run(cli: Cli) -> None:
    ran = cli(*GEMM, "--budget", "64", "--seconds", "0", "--on", "recorded", "--no-log", "--json")
    assert ran.json["trials"] == 0
    assert ran.code == 1


BAD = {
    "unknown op": (("tune", "gem", "--shape", "1,2,3"), "'gem'", "gemm"),
    "rank": (("tune", "gemm", "--shape", "512,512"), "(512, 512)", "M,N,K"),
    "no numbers": (("tune", "gemm", "--shape", "a,b,c"), "'a,b,c'", "4096,4096,4096"),
    "half named": (("tune", "gemm", "--shape", "M=1,2,3"), "'M=1,2,3'", "M=4096"),
    "rank of conv2d": (("tune", "conv2d", "--shape", "1,3,8,8,4,3,3,1"), "8 entries", "N,C,H,W,K,R,S,stride,padding"),
    "kernel": (("tune", "conv2d", "--shape", "1,3,8,8,4,9,3,1,0"), "R = 9", "pad more"),
    "layout of conv2d": (("tune", "conv2d", "--shape", "1,3,8,8,4,3,3,1,0", "--layout", "nn"), "'nn'", "nhwc, nchw"),
    "zero": (("tune", "gemm", "--shape", "512,0,512"), "extent N is 0", "positive"),
    "negative": (("tune", "gemm", "--shape", "512,-3,512"), "extent N is -3", "positive"),
    "too large": (("tune", "gemm", "--shape", "4294967296,4294967296,4294967296"), "4294967296", "smaller"),
    "dtype": ((*GEMM, "--dtype", "bf17"), "'bf17'", "bf16"),
    "layout": ((*GEMM, "--layout", "nx"), "'nx'", "nn"),
    "epilogue": ((*GEMM, "--epilogue", "bias,glue"), "'glue'", "gelu"),
    "scales": ((*GEMM, "--scales", "rows"), "'rows'", "row_column"),
    "budget": ((*GEMM, "--budget", "-1"), "-1 trials", "0 or more"),
    "no budget": ((*GEMM, "--budget", "many"), "'many'", "autosched tune --help"),
    "seconds": ((*GEMM, "--seconds", "-2"), "-2.0 seconds", "0 or more"),
    "seed": ((*GEMM, "--seed", "-1"), "-1", "0 or more"),
    "strategy": ((*GEMM, "--strategy", "luck"), "'luck'", "annealing"),
    "place": ((*GEMM, "--on", "moon"), "'moon'", "recorded:DEVICE"),
    "place without device": ((*GEMM, "--on", "recorded:"), "'recorded:'", "recorded:DEVICE"),
    "no GPU": ((*GEMM, "--on", "gpu"), "no NVIDIA driver", "--on recorded"),
    "device": ((*GEMM, "--on", "recorded:B200"), "'B200'", "H200"),
    "workload": (("tune", "gemm", "--shape", "64,64,64", "--on", "recorded"), "M64,N64,K64", "M512,N512,K512"),
    "log twice": ((*GEMM, "--log", "x.jsonl", "--no-log"), "x.jsonl", "one of them"),
    "resume": ((*GEMM, "--resume"), "--resume", "log"),
    "folder of save": ((*GEMM, "--save", "nowhere/kernel.py"), "nowhere/kernel.py", "folder"),
    "option": ((*GEMM, "--fast"), "--fast", "autosched tune --help"),
    "no shape": (("tune", "gemm"), "--shape", "autosched tune --help"),
    "command": (("tuna",), "tuna", "autosched --help"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_usage(cli: Cli, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, autosched_home: Path) -> None:
    arguments, value, remedy = BAD[name]
    monkeypatch.chdir(tmp_path)
    ran = cli(*arguments, "--json")
    assert ran.code == 2
    assert ran.json.keys() == {"format", "error"}
    error = ran.json["error"]
    assert error.keys() == {"type", "message", "remedy"}
    assert value in error["message"]
    assert remedy in error["remedy"]
    assert "Traceback" not in ran.err
    words = cli(*arguments)
    assert (words.code, words.out) == (2, "")
    assert f"error: {error['message']}" in words.err
    assert f"remedy: {error['remedy']}" in words.err
    assert not list(tmp_path.iterdir())
    assert not list(autosched_home.iterdir())


def test_a_log_that_is_no_log_is_left_alone(cli: Cli, tmp_path: Path) -> None:
    notes = tmp_path / "notes.jsonl"
    notes.write_text("milk\n")
    ran = cli(*GEMM, "--on", "recorded", "--log", str(notes), "--json")
    assert (ran.code, ran.json["error"]["type"]) == (2, "LogError")
    assert str(notes) in ran.json["error"]["message"]
    assert notes.read_text() == "milk\n"


def test_internal_errors_exit_3_and_show_a_traceback_only_on_request(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object, **named: object) -> None:
        print("noise on stdout")
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr(tuning, "tune_op", fail)
    ran = cli(*GEMM, "--on", "recorded", "--json")
    assert ran.code == 3
    assert ran.json["error"]["type"] == "ZeroDivisionError"
    assert "--debug" in ran.json["error"]["remedy"]
    assert "noise on stdout" in ran.err
    assert "Traceback" not in ran.err
    debugged = cli(*GEMM, "--on", "recorded", "--json", "--debug")
    assert debugged.code == 3
    assert "Traceback" in debugged.err
    assert debugged.json["error"]["type"] == "ZeroDivisionError"


def test_convolutions(cli: Cli) -> None:
    ran = cli("tune", "conv2d", "--shape", "32,64,56,56,64,3,3,1,1", "--budget", "0", "--on", "recorded", "--json")
    assert (ran.code, ran.json["op"], ran.json["status"]) == (0, "conv2d", "tuned")
    assert ran.json["key"] == conv2d(32, 64, 56, 56, 64, 3, 3, 1, 1).key()
    shape = "N=8,C=64,H=28,W=28,K=64,R=3,S=3,stride=2x1,groups=4"
    named = cli("tune", "conv2d", "--shape", shape, "--layout", "nchw", "--budget", "0", "--on", "recorded", "--json")
    assert named.json["key"] == conv2d(8, 64, 28, 28, 64, 3, 3, (2, 1), groups=4, layout="nchw").key()


def test_parse_shape() -> None:
    assert parse_shape("1,2, 3") == [1, 2, 3]
    assert parse_shape("M=1,N=2,K=3") == {"M": 1, "N": 2, "K": 3}
    assert parse_shape("R=3,stride=2x1") == {"R": 3, "stride": (2, 1)}
    with pytest.raises(InvalidInputError, match="twice"):
        parse_shape("M=1,M=2")


def test_people_are_told_how_well_the_model_foretold_the_trials(cli: Cli) -> None:
    ran = cli(*GEMM, "--budget", "32", "--on", "recorded", "--no-log")
    assert ran.code == 0
    assert re.search(r"model +foretold the order of \d+% of the pairs of trials", ran.out)
