"""The entry point: Ctrl-C before a command has begun to work."""

from __future__ import annotations

import subprocess
import sys

import pytest

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


def started(module: str, error: str, *words: str) -> subprocess.CompletedProcess[str]:
    program = AT.replace("MODULE", module).replace("ERROR", error)
    return subprocess.run([sys.executable, "-c", program, *words], capture_output=True, text=True)


@pytest.mark.parametrize("module", ["typer", "ml.cli.runs", "ml.cli.options", "ml.backends.local"])
def test_ctrl_c_during_the_imports_is_quiet(module: str) -> None:
    """130, as a shell says it of a program that Ctrl-C ended, and not a word."""
    done = started(module, "KeyboardInterrupt", "runs", "list")
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_any_other_error_is_not_hidden() -> None:
    """What is broken is said."""
    done = started("typer", "ImportError('gone')", "runs", "list")
    assert done.returncode == 1
    assert "ImportError: gone" in done.stderr


def test_the_entry_point_imports_nothing_itself() -> None:
    """Whatever takes time to import is imported where Ctrl-C is expected."""
    program = "import sys; import ml.cli.app; print({'typer', 'click', 'rich'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "set()\n"
