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
        str,
        typer.Option(
            help="Sizes: M,N,K for gemm, N,C,H,W,K,R,S,stride,padding for conv2d, or by name: M=..,N=..,K=.. "
            "(2x1 is one for each dimension)",
            metavar="SIZES",
            show_default=False,
        ),
    ],
    dtype: Annotated[str, typer.Option(help="Element type of the inputs.")] = "bf16",
    layout: Annotated[
        str,
        typer.Option(
            help="nn, nt, tn or tt: A then B, t is stored transposed; nhwc or nchw of a convolution. "
            "The op's usual one (nn, nhwc) if not given.",
            show_default=False,
        ),
    ] = "",
    epilogue: Annotated[str, typer.Option(help="Steps on the result: bias,gelu", show_default=False)] = "",
    scales: Annotated[
        str, typer.Option(help="Factors of A and B: tensor, row_column, block.", show_default=False)
    ] = "",
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
        scales=scales,
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
def train(
    context: typer.Context,
    logs: Annotated[list[Path], typer.Argument(help="Logs, or folders of logs.", metavar="LOG...", show_default=False)],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="The model's file.", metavar="MODEL", show_default=False)
    ],
    recipe: Annotated[str, typer.Option(help="Kind of model: xgboost, roofline or random.")] = "xgboost",
    seed: Annotated[int, typer.Option(help="Of the training.")] = 0,
    json: Json = False,
    debug: Debug = False,
) -> int:
    """Train a cost model on logs."""
    from autosched.cli.train import train as body

    return _guarded(context, lambda out: body(logs, output, recipe, seed, out))


@app.command()
def evaluate(
    context: typer.Context,
    logs: Annotated[list[Path], typer.Argument(help="Logs, or folders of logs.", metavar="LOG...", show_default=False)],
    recipe: Annotated[
        str | None, typer.Option(help="Kind of model to train on each part; xgboost if no --model.", show_default=False)
    ] = None,
    model: Annotated[
        Path | None, typer.Option(help="A trained model's file, to judge on what it has not seen.", show_default=False)
    ] = None,
    split: Annotated[str, typer.Option(help="by-workload, by-family, by-dtype, by-device or within.")] = "by-workload",
    folds: Annotated[int, typer.Option(help="Parts that the workloads are held out in.")] = 5,
    seed: Annotated[int, typer.Option(help="Of training, halves and intervals.")] = 0,
    plot: Annotated[
        Path | None, typer.Option(help="Draw into this .png, .svg or .pdf file.", show_default=False)
    ] = None,
    json: Json = False,
    debug: Debug = False,
) -> int:
    """Judge a cost model on workloads that it has not seen."""
    from autosched.cli.evaluate import EvaluateOptions
    from autosched.cli.evaluate import evaluate as body

    options = EvaluateOptions(recipe=recipe, model=model, split=split, folds=folds, seed=seed, plot=plot)
    return _guarded(context, lambda output: body(logs, options, output))


@app.command()
def simulate(
    context: typer.Context,
    logs: Annotated[list[Path], typer.Argument(help="Logs, or folders of logs.", metavar="LOG...", show_default=False)],
    strategies: Annotated[str, typer.Option(help="Search strategies, first what others are compared with.")] = (
        "random,annealing"
    ),
    budgets: Annotated[str, typer.Option(help="Numbers of trials.")] = "8,16,64",
    seeds: Annotated[int, typer.Option(help="Runs of each strategy on each workload.")] = 3,
    folds: Annotated[int, typer.Option(help="Base models, each trained with a part of the workloads held out.")] = 5,
    recipe: Annotated[
        str | None, typer.Option(help="What makes the base models; xgboost if not given.", show_default=False)
    ] = None,
    model: Annotated[
        Path | None, typer.Option(help="A trained model instead; what it has seen is left out.", show_default=False)
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(help="Extents of a workload; may be given again.", metavar="M,N,K", show_default=False),
    ] = None,
    table: Annotated[str, typer.Option(help="Rows to choose from: all, or uniform, an unguided draw.")] = "all",
    plot: Annotated[
        Path | None, typer.Option(help="Draw fraction against trials: .png, .svg or .pdf.", show_default=False)
    ] = None,
    by_workload: Annotated[bool, typer.Option("--by-workload", help="Show each workload's figures.")] = False,
    json: Json = False,
    debug: Debug = False,
) -> int:
    """Run search strategies on recorded tables: what each finds, with how many trials."""
    from autosched.cli.simulate import SimulateOptions
    from autosched.cli.simulate import simulate as body

    options = SimulateOptions(
        logs=logs,
        strategies=strategies,
        budgets=budgets,
        seeds=seeds,
        folds=folds,
        recipe=recipe,
        model=model,
        only=only or (),
        table=table,
        plot=plot,
        by_workload=by_workload,
    )
    return _guarded(context, lambda output: body(options, output))


@app.command()
def bench(
    context: typer.Context,
    op: Annotated[str, typer.Argument(help="Operator of the suite: gemm, bmm or conv2d.", show_default=False)],
    files: Annotated[
        list[Path] | None, typer.Argument(help="With --merge, files of rows.", metavar="[FILE...]", show_default=False)
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(
            help="A workload, narrowed if need be (4096,4096,4096:fp16:nn); may be given again.",
            metavar="SIZES",
            show_default=False,
        ),
    ] = None,
    groups: Annotated[
        list[str] | None,
        typer.Option(
            "--class", help="A class, such as large; may be given again.", metavar="CLASS", show_default=False
        ),
    ] = None,
    trials: Annotated[int, typer.Option(help="Schedules to measure for each workload.")] = 64,
    seed: Annotated[int, typer.Option(help="Of the searches.")] = 0,
    rivals: Annotated[
        str | None,
        typer.Option(help="What to measure beside, such as cublas,inductor; if not given what is usual for the op."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Append each row to this file.", metavar="FILE", show_default=False),
    ] = None,
    merge: Annotated[bool, typer.Option("--merge", help="Measure nothing: show the rows of FILE...")] = False,
    plot: Annotated[
        Path | None, typer.Option(help="Draw the ratios: .png, .svg or .pdf.", metavar="FILE", show_default=False)
    ] = None,
    on: Annotated[str, typer.Option(help="gpu; nowhere else are there rivals.")] = "gpu",
    log: Annotated[
        Path | None, typer.Option(help="Where trials are kept; the data folder if not given.", show_default=False)
    ] = None,
    held_out: Annotated[
        bool, typer.Option("--held-out", help="Guide each run by a model that has not seen its sizes.")
    ] = False,
    json: Json = False,
    debug: Debug = False,
) -> int:
    """Tune the suite's workloads and measure each beside cuBLAS, Inductor and triton.autotune."""
    from autosched.cli.bench import BenchOptions
    from autosched.cli.bench import bench as body

    options = BenchOptions(
        op=op,
        only=only or (),
        groups=groups or (),
        trials=trials,
        seed=seed,
        rivals=rivals,
        output=output,
        merge=merge,
        files=files or (),
        plot=plot,
        on=on,
        log=log,
        held_out=held_out,
    )
    return _guarded(context, lambda out: body(options, out))


@app.command()
def doctor(context: typer.Context, json: Json = False, debug: Debug = False) -> int:
    """Show what is installed, which GPU there is, and what would work."""
    from autosched.cli.doctor import doctor as body

    return _guarded(context, body)
