"""The entry point: Ctrl-C before a command has begun to work."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.conftest import EXAMPLE

# Ctrl-C at the moment at which a module is looked for.
AT = """
import sys
class Finger:
    def find_spec(self, name, *rest):
        if name == "MODULE":
            raise ERROR
sys.meta_path.insert(0, Finger())
from ml.cli.app import main
main()
"""


def python(program: str, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program, *words],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
    )


def started(module: str, error: str, *words: str) -> subprocess.CompletedProcess[str]:
    return python(AT.replace("MODULE", module).replace("ERROR", error), *words)


@pytest.mark.parametrize(
    "module", ["typer", "ml.cli.commands.runs", "ml.cli.options", "ml.backends.local"]
)
def test_ctrl_c_during_the_imports_is_one_line(module: str) -> None:
    """130, as a shell says it of a program that Ctrl-C ended, and no traceback."""
    done = started(module, "KeyboardInterrupt", "runs", "list")
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")


# Ctrl-C as the system sends it, where Python's own handler would swallow it: the exception that it
# raises in the callback of a weak reference is printed and forgotten.
SWALLOWED = """
import os, signal, sys, weakref
from ml.cli import entry
class Finger:
    def find_spec(self, name, *rest):
        if name == "MODULE":
            class Short: ...
            short = Short()
            kept = weakref.ref(short, lambda _: os.kill(os.getpid(), signal.SIGINT))
            del short
sys.meta_path.insert(0, Finger())
entry.main()
"""


@pytest.mark.parametrize("module", ["ml.cli.app", "typer", "ml.cli.commands.runs"])
def test_ctrl_c_in_the_script_is_never_swallowed(module: str) -> None:
    """From the first import of the script to the last of the command."""
    done = python(SWALLOWED.replace("MODULE", module), "runs", "list")
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")


def test_a_command_that_works_gets_keyboard_interrupt() -> None:
    """What it has begun it can put in order."""
    program = """
import signal
from ml.cli import app, entry
app.COMMANDS = {"look": ("look:command", "")}
import sys, types
sys.modules["look"] = types.SimpleNamespace(command=lambda: print(signal.getsignal(signal.SIGINT)))
sys.argv = ["ml", "look"]
entry.main()
"""
    done = python(program)
    assert "default_int_handler" in done.stdout, done.stderr


@pytest.mark.parametrize(
    ("module", "words"), [("ml.cli.entry", ["runs", "list"]), ("infra.cli", ["settings"])]
)
def test_the_end_of_the_process_does_not_look_through_what_was_imported(
    module: str, words: list[str]
) -> None:
    """The collection at Python's end takes a second where azure-ai-ml was imported."""
    program = (
        "import atexit, gc, importlib, sys; "
        "atexit.register(lambda: print(len(gc.get_objects()))); "  # the last to be called
        f"sys.argv = ['program', *{words}]; importlib.import_module('{module}').main()"
    )
    done = python(program)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[-1]) < 1000


IMPORTS = {
    # A job in the background is not ended by Ctrl-C in the foreground.
    "a shell that has it ignore Ctrl-C is obeyed": (
        "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); import ml.cli.entry; "
        "print({signal.getsignal(signal.SIGINT)} - {signal.SIG_IGN})"
    ),
    # What takes time to import is imported where Ctrl-C is expected.
    "the entry point imports nothing itself": (
        "import sys; before = set(sys.modules); import ml.cli.entry, ml.cli.app; "
        "print({'typer', 'click', 'rich', 'typing'} & (set(sys.modules) - before))"
    ),
    # Pages of help are plain text: what Rich would import for them takes longer than all else.
    "help imports nothing heavy": (
        "import sys, atexit; from ml.cli.app import main; "
        "heavy = {'rich', 'pygments', 'yaml', 'numpy', 'optuna', 'mlflow', 'azure', 'sqlite3'}; "
        "atexit.register(lambda: print(heavy & set(sys.modules))); main()"
    ),
}


@pytest.mark.parametrize("program", IMPORTS.values(), ids=IMPORTS)
def test_the_entry_point_leaves_out(program: str) -> None:
    """Each program prints what should not be there: the empty set."""
    assert python(program, "--help").stdout.endswith("set()\n")


def test_any_other_error_is_not_hidden() -> None:
    """What is broken is said."""
    done = started("typer", "ImportError('gone')", "runs", "list")
    assert done.returncode == 1
    assert "ImportError: gone" in done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--help"], "Run a job spec, on this machine or on Azure ML."),
        (["run", "--help"], "33 not possible here"),
        (["runs", "resume", "--help"], "Completed trials and steps are kept"),
        (["runs", "--help"], "killed, interrupted or ended by a full disk."),
    ],
)
def test_a_command_has_a_line_in_the_list_and_a_page_of_its_own(
    words: list[str], said: str
) -> None:
    """The page says what the line has no room for: exit codes. A group's list has whole lines."""
    done = python("from ml.cli.app import main; main()", *words)
    assert said in " ".join(done.stdout.split())
    assert words == ["--help"] or "..." not in done.stdout.partition("Commands:")[2]


def test_a_fault_of_the_machine_is_told_whatever_the_command() -> None:
    """Exit 1 and the file; what nobody knows keeps its traceback."""
    denied = "PermissionError(13, 'Permission denied', '/somewhere')"
    done = started("ml.cli.commands.runs", denied, "runs", "show", "latest")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error[no-access]: /somewhere: Permission denied\n")
    unknown = started(
        "ml.cli.commands.runs", "ZeroDivisionError('a bug')", "runs", "show", "latest"
    )
    assert "Traceback" in unknown.stderr and "a bug" in unknown.stderr


@pytest.mark.example
def test_a_terminal_that_has_no_arrows_has_question_marks() -> None:
    """Latin-1 on an old server, say; what is printed for people has `→` and `…` in it."""
    spec = str(EXAMPLE / "jobs" / "train.yml")
    program = "from ml.cli.entry import main; main()"
    done = python(program, "run", spec, "--dry-run", PYTHONIOENCODING="ascii")
    assert done.returncode == 0, done.stderr
    assert " ? this machine" in done.stderr and "?" in done.stdout
