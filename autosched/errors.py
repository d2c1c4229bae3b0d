"""The error family: every error names the value that is wrong and what to do about it."""

from __future__ import annotations

from typing import Any


class AutoschedError(Exception):
    """Base of every error that autosched raises on purpose.

    Args:
        message: What is wrong, with the offending value in it.
        remedy: What the caller can do about it; may be empty.
    """

    def __init__(self, message: str, remedy: str = "") -> None:
        super().__init__(f"{message} ({remedy})" if remedy else message)
        self.message = message
        self.remedy = remedy


class InvalidInputError(AutoschedError, ValueError):
    """A value that no operator, schedule or setting can have."""


class UnsupportedError(InvalidInputError):
    """A legal request that this version does not serve."""


class UsageError(AutoschedError, TypeError):
    """Arguments that contradict each other, or operands that are missing or not asked for."""


class LogError(AutoschedError, ValueError):
    """A file that is no tuning log, or a log that does not fit the run that wants it."""


class LogNotFoundError(AutoschedError, FileNotFoundError):
    """A log that is not where it was said to be."""


class NotRecordedError(InvalidInputError):
    """A recorded device was asked for a workload or schedule that it does not hold."""


class ModelMismatchError(AutoschedError, ValueError):
    """A model file whose feature schema, format or digest differs from this version's."""


class NoDeviceError(AutoschedError, RuntimeError):
    """A GPU is needed and none is there."""


class CompilationError(AutoschedError, RuntimeError):
    """A generated kernel that Triton does not compile."""


class WorkerError(AutoschedError, RuntimeError):
    """A measuring or compiling process that could not be started or kept alive."""


class StopTuning(Exception):  # noqa: N818 - a signal, not an error; named as a callback author would look for it
    """Raised by a callback to end tuning after the trials measured so far."""


class TuningInterrupted(KeyboardInterrupt):
    """Ctrl-C while tuning; ``result`` holds what was found so far."""

    def __init__(self, result: Any) -> None:
        super().__init__("tuning was interrupted; the result so far is in .result")
        self.result = result
