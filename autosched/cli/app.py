"""The commands and their options."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from autosched.cli.output import Output, guarded

app = typer.Typer(
    name="autosched",
    help="Tunes Triton kernels with a learned cost model.",
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout and nothing else there.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show tracebacks.")]


def run(arguments: list[str]) -> int:
    """Runs the command line.

    Returns:
        0 done, 1 nothing valid was found, 2 bad usage or input, 3 internal error, 130 interrupted.
    """
    output = Output(json="--json" in arguments, debug="--debug" in arguments)

    def body() -> int:
        return app(arguments or ["--help"], prog_name="autosched", standalone_mode=False, obj=output) or 0

    return guarded(output, body, arguments)


def _guarded(context: typer.Context, body: Callable[[Output], int]) -> int:
    """Runs a command under typer, which would otherwise take Ctrl-C and a closed pipe for itself."""
    output: Output = context.obj
    return guarded(output, lambda: body(output))


def _version(wanted: bool) -> None:
    if wanted:
        from autosched import __version__

        typer.echo(f"autosched {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print it.")] = False,
) -> None:
    """Tunes Triton kernels with a learned cost model."""


@app.command()
def tune(
    context: typer.Context,
    op: Annotated[str, typer.Argument(help="Operator, such as gemm.", show_default=False)],
    shape: Annotated[
        str, typer.Option(help="Sizes: M,N,K for gemm, or M=..,N=..,K=..", metavar="SIZES", show_default=False)
    ],
    dtype: Annotated[str, typer.Option(help="Element type of the inputs.")] = "bf16",
    layout: Annotated[str, typer.Option(help="nn, nt, tn or tt: A then B, t is stored transposed.")] = "nn",
    epilogue: Annotated[str, typer.Option(help="Steps on the result: bias,gelu", show_default=False)] = "",
    budget: Annotated[int, typer.Option(help="Trials; 0 takes the model's pick, unmeasured.")] = 64,
    seconds: Annotated[
        float | None, typer.Option(help="No trial begins later; whichever ends first.", show_default=False)
    ] = None,
    on: Annotated[str, typer.Option(help="auto, gpu, recorded or recorded:DEVICE.")] = "auto",
    seed: Annotated[int, typer.Option(help="Of the search.")] = 0,
    strategy: Annotated[str, typer.Option(help="Search strategy: annealing or random.")] = "annealing",
    log: Annotated[
        Path | None, typer.Option(help="Where trials are kept; the data folder if not given.", show_default=False)
    ] = None,
    no_log: Annotated[bool, typer.Option("--no-log", help="Keep no log.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run that --log holds.")] = False,
    save: Annotated[
        Path | None, typer.Option(help="Write the kernel's module to this file.", show_default=False)
    ] = None,
    json: Json = False,
    debug: Debug = False,
) -> int:
    """Tune an operator: on the GPU, or on recorded measurements."""
    from autosched.cli.tune import TuneOptions
    from autosched.cli.tune import tune as body

    options = TuneOptions(
        op=op,
        shape=shape,
        dtype=dtype,
        layout=layout,
        epilogue=epilogue,
        budget=budget,
        seconds=seconds,
        on=on,
        seed=seed,
        strategy=strategy,
        log=log,
        no_log=no_log,
        resume=resume,
        save=save,
    )
    return _guarded(context, lambda output: body(options, output))


@app.command()
def replay(
    context: typer.Context,
    logs: Annotated[list[Path], typer.Argument(help="Logs, or folders of logs.", metavar="LOG...", show_default=False)],
    json: Json = False,
    debug: Debug = False,
) -> int:
    """Show what logs hold, and the best schedule of each workload."""
    from autosched.cli.replay import replay as body

    return _guarded(context, lambda output: body(logs, output))


@app.command()
def doctor(context: typer.Context, json: Json = False, debug: Debug = False) -> int:
    """Show what is installed, which GPU there is, and what would work."""
    from autosched.cli.doctor import doctor as body

    return _guarded(context, body)
