"""`make wheel`: build the framework at a commit as a reproducible wheel.

It needs setuptools and no other package: `python -m ml.repository.forks.wheel`.
"""

from __future__ import annotations

import argparse
import email
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

from ml.core import git, repository
from ml.core.errors import Problem, UserError, as_program

NAME = "azureml-gitops-starter"
# Stored uncompressed: compressed bytes would depend on the version of zlib.
_OPTIONS = {"--build-option": ["--compression=stored", "--quiet"]}
_BUILD = (
    "import sys; from setuptools.build_meta import build_wheel;"
    f"print(build_wheel(sys.argv[1], {_OPTIONS!r}), file=sys.stderr)"
)


def build(source: Path, folder: Path, revision: str = "HEAD") -> Path:
    """Build the wheel of a revision of the repository at `source`; return its path in `folder`.

    Uncommitted changes are not included. Raises UserError if git or setuptools fails.
    """
    folder.mkdir(parents=True, exist_ok=True)
    time = git.run(source, "show", "-s", "--format=%ct", revision).strip()
    with tempfile.TemporaryDirectory() as tree:
        archive = Path(tree, "tree.tar")
        git.archive(source, revision, archive)
        with tarfile.open(archive) as packed:
            packed.extractall(tree, filter="tar")
        archive.unlink()
        variables = {name: value for name, value in os.environ.items() if name not in git.SECRETS}
        variables["SOURCE_DATE_EPOCH"] = time
        _run([sys.executable, "-P", "-c", _BUILD, "dist"], cwd=tree, env=variables, umask=0o022)
        (wheel,) = Path(tree, "dist").glob("*.whl")
        return Path(shutil.copyfile(wheel, folder / wheel.name))


def version_in(name: str) -> str:
    """Return the version in a wheel's file name; "" if it is not a wheel of the framework.

    Example: `azureml_gitops_starter-0.2.0-py3-none-any.whl` → 0.2.0.
    """
    match = re.search(rf"(?:^|/){NAME.replace('-', '_')}-([^-/]+)-py3-none-any\.whl$", name)
    return match[1] if match else ""


def demand_version(content: bytes, name: str) -> None:
    """Raise UserError unless `content` is a framework wheel of the version in its file `name`."""
    expected, actual = version_in(name), ""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as packed:
            (metadata,) = (file for file in packed.namelist() if file.endswith("-info/METADATA"))
            message = email.message_from_bytes(packed.read(metadata))
        actual = f"{message['Name']} {message['Version']}"
    except Exception:  # zipfile documents no list of exceptions for corrupt archives
        actual = "no wheel"
    if not expected or actual != f"{NAME} {expected}":
        hint = "make wheel, in a clone of the framework; then WHEEL=dist/NAME.whl"
        wanted = f"{NAME} {expected}, as its name says" if expected else f"a wheel of {NAME}"
        raise UserError(Problem("no-wheel", f"{name}: {actual}", wanted, hint))


def _run(words: Sequence[str], **options: object) -> None:
    process = subprocess.run(words, capture_output=True, **options)  # type: ignore[call-overload]
    if process.returncode:
        reason = process.stderr.decode(errors="replace").strip().splitlines()[-1:]
        actual = f"{Path(words[0]).name}: {' '.join(reason) or process.returncode}"
        hint = "make wheel, in a clone of the framework"
        raise UserError(Problem("wheel-failed", actual, "exit 0", hint))


@as_program
def main(argv: Sequence[str] | None = None) -> None:
    """Build the wheel and print its path."""
    parser = argparse.ArgumentParser(prog="wheel", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--to", type=Path, default=Path("dist"), help="The folder; dist.")
    parser.add_argument("--revision", default="HEAD")
    options = parser.parse_args(argv)
    print(build(repository.root(), options.to, options.revision))


if __name__ == "__main__":
    sys.exit(main())
