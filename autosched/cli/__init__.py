"""The command line. The only part of the package that prints; each command is a thin call of the Python interface."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs ``autosched`` and exits with its code.

    Args:
        arguments: Those of the command line; the process's own if not given.
    """
    from autosched.cli.app import run

    sys.exit(run(sys.argv[1:] if arguments is None else list(arguments)))
