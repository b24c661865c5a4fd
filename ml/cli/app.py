"""Build and run the `ml` command line; only the selected command is imported, so help is fast.

The module itself imports almost nothing, not even `typing`, so that `main` can handle Ctrl-C during
the other imports.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn

    import typer

    from ml.backends.base import Backend, Options

# name → (module:attribute, its line in `ml --help`). The attribute is a function, or a typer.Typer
# with subcommands.
COMMANDS: dict[str, tuple[str, str]] = {
    "ab": ("ml.cli.commands.ab:app", "Run an A/B test of two versions of an endpoint."),
    "assets": (
        "ml.cli.commands.assets:app",
        "Register the assets of jobs, and feature sets, on Azure.",
    ),
    "audit": ("ml.cli.commands.gates:audit", "Verify that no line of the audit log was changed."),
    "check": ("ml.cli.commands.check:check", "Check specs: a file, a folder or the repository."),
    "compare": (
        "ml.cli.commands.compare:compare",
        "Compare a candidate with the champion; a pull-request comment.",
    ),
    "demo": ("ml.cli.demo:demo", "Sweep, select, gate, release with a canary, send a request."),
    "doctor": (
        "ml.cli.commands.doctor:doctor",
        "Check this machine, Azure and GitHub; each problem with its fix.",
    ),
    "evidence": (
        "ml.cli.commands.gates:evidence",
        "Verify the evidence of a model version, offline.",
    ),
    "features": (
        "ml.cli.commands.features:app",
        "Materialise, look up and show feature sets.",
    ),
    "gate": (
        "ml.cli.commands.gates:gate",
        "Decide whether a model version may be promoted; exit 3 when not.",
    ),
    "invoke": ("ml.cli.commands.serving:invoke", "Send a request to a served model."),
    "new": ("ml.cli.new:command", "Write a project for a table, ready to train and serve."),
    "release": (
        "ml.cli.commands.release:app",
        "Propose, apply and roll back the version that an environment serves.",
    ),
    "report": ("ml.cli.commands.report:report", "Write a run as one HTML page that opens offline."),
    "run": ("ml.cli.commands.run:run", "Run a job spec, on this machine or on Azure ML."),
    "runs": (
        "ml.cli.commands.runs:app",
        "Manage runs: list, show, logs, resume, …",
    ),
    "select": (
        "ml.cli.commands.sweep:select",
        "Rank trials by quality, latency, cost and stability.",
    ),
    "serve": (
        "ml.cli.commands.serving:serve",
        "Start, show or stop a model server on this machine.",
    ),
    "smoke": (
        "ml.cli.commands.changes:smoke",
        "Train small on this machine: the projects that a change touches.",
    ),
    "sweep": (
        "ml.cli.commands.sweep:app",
        "Explain a sweep: origin of its trials, important parameters.",
    ),
    "train": (
        "ml.cli.commands.changes:train",
        "Train the projects that a change touches; compare each with the champion.",
    ),
    "ui": ("ml.cli.commands.report:ui", "Open MLflow on the runs of this machine."),
    "watch": (
        "ml.cli.commands.serving:watch",
        "Compare the requests to a model with its reference data.",
    ),
}


def build(selected: str | None) -> typer.Typer:
    """Return the typer app: the `selected` command is imported, others are a line of help."""
    import typer

    app = typer.Typer(
        name="ml",
        help="Azure ML jobs, gates and releases; by default on this machine.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        # Rich's help imports Markdown and a highlighter, which would dominate the start-up time.
        rich_markup_mode=None,
    )
    # A callback makes `ml` a group, even with a single command.
    app.callback()(lambda: None)
    for name, (place, line) in COMMANDS.items():
        if name != selected:
            app.command(name, help=line)(lambda: None)
            continue
        module, _, attribute = place.partition(":")
        command = getattr(importlib.import_module(module), attribute)
        # The command's docstring, which has more detail, is the text of `ml COMMAND --help`.
        if not isinstance(command, typer.Typer):
            app.command(name, short_help=line)(command)
            continue
        for subcommand in command.registered_commands:
            # Set the whole first paragraph, because typer would truncate it.
            paragraph = (subcommand.callback.__doc__ or "").split("\n\n")[0]
            subcommand.short_help = " ".join(paragraph.split())
        app.add_typer(command, name=name, help=line)
    return app


def main(argv: list[str] | None = None, begin: Callable[[], object] = lambda: None) -> None:
    """Run the command line; errors of the user and the machine are printed without a traceback.

    `begin` is called after the command's import, just before it runs.
    """
    if argv is None:
        # Importing azure-ai-ml and MLflow creates about a million long-lived objects. With the
        # default thresholds, the GC takes a fifth of the import time, and as much again at exit.
        gc.set_threshold(50_000, 20, 100)
        atexit.register(gc.freeze)
    arguments = sys.argv[1:] if argv is None else argv
    selected = next((word for word in arguments if not word.startswith("-")), None)
    from ml.core.terminal import shown

    with shown():
        _run(selected, arguments, begin)


def open_backend(name: str = "local", options: Options | None = None) -> Backend:
    """Return the backend that `--on` names, for the repository of the working directory."""
    from dataclasses import replace

    from ml.backends import base, choice
    from ml.core import repository

    return choice.open_backend(name, replace(options or base.Options(), root=repository.root()))


def _run(selected: str | None, arguments: list[str], begin: Callable[[], object]) -> None:
    try:
        app = build(selected)
        begin()
        app(arguments)
    except KeyboardInterrupt:
        _interrupted()
    except SystemExit as ending:
        from ml.core.errors import Exit

        # typer raises this exit code when Ctrl-C ends a command.
        if ending.code != Exit.INTERRUPTED:
            raise
        _interrupted()
    except Exception as error:
        from ml.core.errors import Exit, UserError

        if isinstance(error, UserError):
            sys.stderr.write(f"{error}\n")
            raise SystemExit(int(error.exit_code)) from None
        from ml.core import faults

        problem = faults.explain(error)
        if problem is None:
            raise
        sys.stderr.write(f"{problem}\n")
        raise SystemExit(int(Exit.RUN_FAILED)) from None


def _interrupted() -> NoReturn:
    from ml.core.errors import Exit

    sys.stderr.write("interrupted\n")
    raise SystemExit(int(Exit.INTERRUPTED)) from None
