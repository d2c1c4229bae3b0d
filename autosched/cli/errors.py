"""Exit codes, and what an exception becomes for the person or the program that called."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import typer

from autosched.errors import AutoschedError, CompilationError, WorkerError

#: Base of typer's errors of usage; named through the method resolution order because typer does not export it.
UsageFault: type[Exception] = next(c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException")


class Exit(IntEnum):
    """How a command ends."""

    DONE = 0
    NOTHING_VALID = 1
    BAD_INPUT = 2
    INTERNAL = 3
    INTERRUPTED = 130


@dataclass(frozen=True)
class Fault:
    """An exception, as it is told.

    Attributes:
        code: The process's exit code.
        kind: Name of the error's class.
        message: What is wrong.
        remedy: What to do about it.
    """

    code: Exit
    kind: str
    message: str
    remedy: str

    def to_dict(self) -> dict[str, Any]:
        """What ``--json`` prints."""
        return {"format": 1, "error": {"type": self.kind, "message": self.message, "remedy": self.remedy}}


def explain(error: BaseException, arguments: Sequence[str] = ()) -> Fault:
    """What to tell about an exception, and which code to exit with.

    Args:
        error: The exception.
        arguments: Those of the command line.
    """
    kind = type(error).__name__
    if isinstance(error, AutoschedError):
        code = Exit.BAD_INPUT
        if isinstance(error, WorkerError):
            code = Exit.INTERNAL
        elif isinstance(error, CompilationError):
            code = Exit.NOTHING_VALID
        return Fault(code, kind, error.message, error.remedy)
    if isinstance(error, KeyboardInterrupt | typer.Abort):
        return Fault(Exit.INTERRUPTED, "Interrupted", "interrupted before there was a result", "run it again")
    if isinstance(error, UsageFault):
        return _usage(error, arguments)
    if isinstance(error, ModuleNotFoundError) and (top := (error.name or "autosched").partition(".")[0]) != "autosched":
        return Fault(Exit.BAD_INPUT, kind, f"{top} is not installed", f"pip install {top}; autosched doctor tells more")
    if isinstance(error, OSError) and error.filename is not None:
        return Fault(Exit.BAD_INPUT, kind, f"{error.filename}: {error.strerror}", "check the path and its permissions")
    text = str(error).strip() or "no message"
    return Fault(Exit.INTERNAL, kind, f"internal error: {text}", "run it again with --debug and report the traceback")


def _usage(error: Exception, arguments: Sequence[str]) -> Fault:
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "autosched"
    message = str(error.format_message()).strip()  # type: ignore[attr-defined]
    if isinstance(error, typer.BadParameter) and (value := _refused(error, arguments)) is not None:
        message = f"{message}, got {value!r}"
    return Fault(Exit.BAD_INPUT, "UsageError", message, f"see {path} --help")


def _refused(error: typer.BadParameter, arguments: Sequence[str]) -> str | None:
    """The value that was given for the option that ``error`` is about; ``None`` if it was not given."""
    for name in getattr(error.param, "opts", ()):
        for at, argument in enumerate(arguments):
            if argument == name and at + 1 < len(arguments):
                return arguments[at + 1]
            if argument.startswith(f"{name}="):
                return argument.partition("=")[2]
    return None
