"""The import path of runs: the snapshot of their code and installed packages, nothing else.

The work tree is not installed in the environment. So jobs, trials, workers, evaluations and servers
import what they would on Azure ML: their code folder, which is the hashed snapshot, and packages.
No code of the work tree runs without a digest.

The programs `ml` and `infra`, which this module writes, and the framework's own processes begin
with `BIND`: it binds the framework's packages, and leaves the rest of the work tree off the path.

In a thin fork the framework is an unpacked wheel in `.venv/framework`, which is on no path either.
`ml`, `infra` and `policies` are namespace packages, and the fork holds a part of each: BIND binds
both parts. If both contain a package, such as `ml.measures` or `ml.toolkit`, the framework and
AutoML trials import the wheel's, and all other jobs the fork's: an edit there changes no gate.

    .venv/bin/python -m ml.core.imports     write `ml` and `infra` into .venv, as `make setup`
"""

from __future__ import annotations

import shlex
import sys
from functools import cache
from pathlib import Path

import ml
from ml.core import repository
from ml.core.errors import Exit, Place, Problem, UserError

# The framework: the work tree itself, or the wheel of a thin fork.
FRAMEWORK = Path(__file__).resolve().parents[2]
# The folders that hold the parts of `ml`: the framework first, in a thin fork then the work tree.
PARTS = [*dict.fromkeys([FRAMEWORK, *(Path(part).resolve().parent for part in ml.__path__)])]
# The repository of this framework, whatever the working directory: its gates, limits, waivers and
# stack files apply.
ROOT = next(filter(repository.is_root, PARTS), FRAMEWORK)
# Fix `__path__` of the namespace packages: Python would search their portions again when sys.path
# changes, PYTHONPATH included. Nothing is added to sys.path, so that no file of the work tree
# shadows a module of Python or of a package.
BIND = (
    f"import sys; path, sys.path = sys.path, {[str(part) for part in PARTS]!r}; "
    "import infra, ml, policies; infra.__path__, ml.__path__, policies.__path__ = "
    "map(list, (infra.__path__, ml.__path__, policies.__path__)); sys.path = path; del path"
)
_PROGRAM = """\
{start}
{bind}
from {module} import main

sys.exit(main())
"""
# Used if the path of Python has spaces or is too long for a shebang line: sh starts Python.
_START_BY_SH = """\
#!/bin/sh
'''exec' {python} "$0" "$@"
' '''"""
_LONGEST = 120
# Each program → the module, in the package of its name, whose `main` it calls.
PROGRAMS = {"infra": "cli", "ml": "cli.entry"}


@cache
def check_import_path(python: Path = Path(sys.executable)) -> None:
    """Raise UserError if a .pth file adds a folder outside the environment to the import path.

    An editable install does that. Cached per environment.
    """
    environment = python.parent.parent
    problems = [
        Problem(
            "editable-install",
            f"an editable install adds {line} to the import path of this environment",
            "no editable install: jobs and servers run hashed packages",
            "make setup removes it; install your own package without --editable",
            Place(str(file), number),
        )
        for file in sorted(environment.glob("lib/python3*/site-packages/*.pth"))
        for number, line in enumerate(file.read_text(errors="replace").splitlines(), start=1)
        if _leads_out(file, line.rstrip(), environment.resolve())
    ]
    if problems:
        raise UserError(*problems, exit_code=Exit.WRONG_CALL)


def _leads_out(file: Path, line: str, environment: Path) -> bool:
    """Return whether a line of a .pth file adds a folder outside the environment."""
    if line.startswith(("import ", "import\t")):  # code, which setuptools uses for such installs
        return file.name.startswith("__editable__")
    folder = (file.parent / line).resolve()
    return folder.is_dir() and not folder.is_relative_to(environment)


def main() -> None:
    """Write the programs `ml` and `infra` into this environment's bin folder."""
    python = sys.executable
    is_plain = " " not in python and len(python) < _LONGEST
    start = f"#!{python}" if is_plain else _START_BY_SH.format(python=shlex.quote(python))
    for name, module in PROGRAMS.items():
        text = _PROGRAM.format(start=start, bind=BIND, module=f"{name}.{module}")
        # Replace the file: the old one may be a link to another environment's.
        unfinished = Path(python).with_name(f".{name}")
        unfinished.write_text(text)
        unfinished.chmod(0o755)
        unfinished.replace(unfinished.with_name(name))


if __name__ == "__main__":
    main()
