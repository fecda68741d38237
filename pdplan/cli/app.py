"""The command line: registers the commands and maps errors to exit codes, nothing else."""

from __future__ import annotations

import gc
import sys

import typer

from pdplan import __version__
from pdplan.cli.console import emit, note
from pdplan.errors import PdplanError

__all__ = ["app", "main"]

app = typer.Typer(
    name="pdplan",
    help="Plan the least-cost fleet that serves a language model with prefill and decode on separate machines.\n\n"
    "Start with: pdplan init scenario.yaml, then pdplan plan scenario.yaml. Exit codes: 0 ok, 1 internal fault, "
    "2 bad input, 3 infeasible, 4 time limit without a plan.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _version(wanted: bool) -> None:
    if wanted:
        emit(f"pdplan {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: bool = typer.Option(False, "--version", help="Print the version.", callback=_version, is_eager=True),
) -> None:
    pass


def _register() -> None:
    from pdplan.cli import calibrate, catalog, check, estimate, init, plan, schema, trace, validate, verify

    app.command(name="plan")(plan.plan)
    app.command(name="verify")(verify.verify)
    app.command(name="estimate")(estimate.estimate)
    app.command(name="check")(check.check)
    app.command(name="calibrate")(calibrate.calibrate)
    app.command(name="validate")(validate.validate)
    app.command(name="init")(init.init)
    app.command(name="schema")(schema.schema)
    app.add_typer(catalog.app, name="catalog")
    app.add_typer(trace.app, name="trace")


def main() -> None:
    """Entry point of the console script."""
    # Imports make many objects that live until the end: collecting them while they are made is wasted time.
    gc.set_threshold(100_000, 20, 20)
    _register()
    try:
        app()
    except PdplanError as fault:
        for sentence in str(fault).splitlines() or [type(fault).__name__]:
            note(f"error: {sentence}")
        sys.exit(fault.exit_code)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(0)
