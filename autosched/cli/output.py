"""Where a command's words go: its result on stdout, everything else on stderr, and one JSON object if that is asked."""

from __future__ import annotations

import contextlib
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
from rich.console import Console, RenderableType
from rich.text import Text

from autosched.cli.errors import Exit, Fault, explain


class Output:
    """One command's output.

    Args:
        json: Print one JSON object on stdout and nothing else there.
        debug: Show tracebacks.
    """

    def __init__(self, *, json: bool = False, debug: bool = False) -> None:
        self.json = json
        self.debug = debug
        self.out = Console(file=sys.stdout, highlight=False)
        self.err = Console(file=sys.stderr, highlight=False)

    def notice(self, text: str) -> None:
        """Say something that is not the result."""
        self.err.print(Text(text, style="yellow"), soft_wrap=True)

    def result(self, data: Mapping[str, Any], view: Callable[[], RenderableType]) -> None:
        """Print the result.

        Args:
            data: For programs.
            view: Makes what people get.
        """
        if self.json:
            self._print_json(data)
        else:
            self.out.print(view())

    def fault(self, fault: Fault) -> None:
        """Print an error: as JSON on stdout, or in words on stderr."""
        if self.json:
            self._print_json(fault.to_dict())
            return
        self.err.print(Text.assemble(("error: ", "bold red"), fault.message), soft_wrap=True)
        if fault.remedy:
            self.err.print(Text.assemble(("remedy: ", "bold"), fault.remedy), soft_wrap=True)

    def _print_json(self, data: Mapping[str, Any]) -> None:
        text = msgspec.json.format(msgspec.json.encode(data), indent=2).decode()
        self.out.file.write(text + "\n")
        self.out.file.flush()


def guarded(output: Output, body: Callable[[], int], arguments: Sequence[str] = ()) -> int:
    """Runs a command's body; every exception becomes a message and an exit code.

    With ``--json`` whatever the body prints on stdout by other ways than ``output`` goes to stderr.

    Args:
        output: Where its words go.
        body: The command.
        arguments: Those of the command line, so that a message can name a value that was refused.
    """
    try:
        with contextlib.redirect_stdout(sys.stderr) if output.json else contextlib.nullcontext():
            return body()
    except BrokenPipeError:
        with contextlib.suppress(OSError):
            sys.stdout.close()
        return int(Exit.NOTHING_VALID)
    except (Exception, KeyboardInterrupt) as error:
        if output.debug:
            traceback.print_exc(file=sys.stderr)
        fault = explain(error, arguments)
        output.fault(fault)
        return int(fault.code)
