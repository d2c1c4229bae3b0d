"""A child that dies, hangs or prints is named, ended and replaced."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from autosched.measure.process import ChildDied, ChildError, ChildProcess, ChildTimeout

HERE = Path(__file__).parent
ENTRY = "child_entries:act"


def gone(pid: int, within: float = 5.0) -> bool:
    """Whether the process ends (a zombie that another process must reap counts as ended)."""
    limit = time.monotonic() + within
    while time.monotonic() < limit:
        try:
            os.kill(pid, 0)
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (ProcessLookupError, FileNotFoundError):
            return True
        if state == "Z":
            return True
        time.sleep(0.02)
    return False


def await_end(pid: int) -> None:
    """Wait until a child of this process has ended, all its threads included, and leave it unreaped.

    :func:`gone` is satisfied earlier: the main thread of a process counts as a zombie while others still exit.
    """
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


@pytest.fixture
def child(monkeypatch: pytest.MonkeyPatch) -> Iterator[ChildProcess]:
    monkeypatch.syspath_prepend(str(HERE))
    with ChildProcess(ENTRY, env={"AUTOSCHED_TEST_VALUE": "17"}, name="tester") as process:
        yield process


def test_echo_keeps_one_process(child: ChildProcess) -> None:
    assert child.request(b"hello", 10) == b"hello"
    first = child.pid
    assert child.request(b"pid", 10) == str(first).encode()
    large = os.urandom(3 << 20).hex().encode()
    assert child.request(large, 10) == large
    assert child.pid == first


def test_environment_is_set(child: ChildProcess) -> None:
    assert child.request(b"env:AUTOSCHED_TEST_VALUE", 10) == b"17"


def test_crash_is_named_and_the_next_request_works(child: ChildProcess) -> None:
    with pytest.raises(ChildDied, match=r"tester was ended by SIGSEGV") as info:
        child.request(b"crash", 10)
    assert (info.value.returncode, info.value.signal) == (-11, "SIGSEGV")
    assert child.request(b"again", 10) == b"again"


def test_exit_code_is_named(child: ChildProcess) -> None:
    with pytest.raises(ChildDied, match=r"exited with code 3") as info:
        child.request(b"exit:3", 10)
    assert (info.value.returncode, info.value.signal) == (3, "")


def test_hang_is_killed_at_its_timeout(child: ChildProcess) -> None:
    child.request(b"warm", 10)
    pid = child.pid
    assert pid is not None
    start = time.monotonic()
    with pytest.raises(ChildTimeout, match=r"tester did not answer within 0.5 s") as info:
        child.request(b"hang", 0.5)
    assert 0.4 < time.monotonic() - start < 5
    assert info.value.seconds == 0.5
    assert gone(pid)
    assert child.request(b"again", 10) == b"again"


def test_megabytes_on_stdout_do_not_block(child: ChildProcess) -> None:
    assert child.request(b"print:8", 10) == b"print:8"
    assert child.output_tail().endswith("the last line")
    assert child.request(b"quiet", 10) == b"quiet"
    assert child.output_tail() == ""


def test_tail_of_the_output_comes_with_the_crash(child: ChildProcess) -> None:
    with pytest.raises(ChildDied) as info:
        child.request(b"print-crash:2", 10)
    assert "the last line" in info.value.output
    assert len(info.value.output) <= 4000


def test_exception_is_told_and_the_child_lives(child: ChildProcess) -> None:
    child.request(b"warm", 10)
    pid = child.pid
    with pytest.raises(ChildError, match=r"ValueError: no such tile"):
        child.request(b"raise:no such tile", 10)
    assert child.request(b"again", 10) == b"again"
    assert child.pid == pid


def test_death_while_idle(child: ChildProcess) -> None:
    child.request(b"die-idle", 10)
    pid = child.pid
    assert pid is not None
    await_end(pid)
    assert child.request(b"again", 10) == b"again"
    assert child.pid != pid


def test_death_while_idle_is_named_to_a_pool(child: ChildProcess) -> None:
    child.request(b"die-idle", 10)
    assert child.connection.poll(10)
    with pytest.raises(ChildDied, match=r"exited with code 7"):
        child.receive()
    with pytest.raises(ChildDied, match=r"was not running"):
        child.check()


def test_death_between_check_and_send_is_named(child: ChildProcess) -> None:
    child.request(b"warm", 10)
    child.check()
    child.request(b"die-idle", 10)
    pid = child.pid
    assert pid is not None
    await_end(pid)
    with pytest.raises(ChildDied, match=r"exited with code 7"):
        child.check()
    assert child.request(b"again", 10) == b"again"


def test_last_words_of_the_dead_are_still_read(child: ChildProcess) -> None:
    child.request(b"warm", 10)
    pid = child.pid
    assert pid is not None
    child.send(b"die-idle")
    await_end(pid)
    child.check()
    assert child.receive() == b"die-idle"
    with pytest.raises(ChildDied, match=r"exited with code 7"):
        child.check()


def test_unknown_entry_is_named() -> None:
    with ChildProcess("no_such_module:f") as process, pytest.raises(ChildDied, match=r"No module named"):
        process.request(b"", 10)


def test_close_leaves_nothing(child: ChildProcess) -> None:
    grandchild = int(child.request(b"grandchild", 10))
    pid = child.pid
    assert pid is not None
    child.close()
    child.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert gone(grandchild)


def test_timeout_kills_grandchildren(child: ChildProcess, tmp_path: Path) -> None:
    child.request(b"warm", 10)
    file = tmp_path / "pid"
    with pytest.raises(ChildTimeout):
        child.request(f"grandchild-hang:{file}".encode(), 1.0)
    assert gone(int(file.read_text()))


def test_crash_is_seen_though_a_fork_holds_the_pipe(child: ChildProcess) -> None:
    child.request(b"warm", 10)
    start = time.monotonic()
    with pytest.raises(ChildDied, match=r"SIGSEGV"):
        child.request(b"fork-crash", 30)
    assert time.monotonic() - start < 5


def test_child_ends_with_a_killed_parent() -> None:
    program = (
        "import os, sys\n"
        "from autosched.measure.process import ChildProcess\n"
        f"child = ChildProcess({ENTRY!r})\n"
        "child.request(b'warm', 10)\n"
        "child.send(b'hang')\n"
        "print(child.pid, flush=True)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    path = os.pathsep.join([str(HERE), str(HERE.parent.parent)])
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, env={"PYTHONPATH": path}
    )
    assert result.returncode == -9, result.stderr
    assert gone(int(result.stdout))
