"""`make wheel`: the framework of a commit as one wheel; the same commit gives the same bytes.

It needs setuptools and no other package: `python -m ml.repository.wheel`.
"""

from __future__ import annotations

import argparse
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path

from ml.core import repository
from ml.core.errors import Problem, Refused

NAME = "azureml-gitops-starter"
# Bytes that are packed depend on the version of zlib.
_OPTIONS = {"--build-option": ["--compression=stored", "--quiet"]}
_BUILD = (
    "import sys; from setuptools.build_meta import build_wheel;"
    f"print(build_wheel(sys.argv[1], {_OPTIONS!r}), file=sys.stderr)"
)


def build(source: Path, folder: Path, revision: str = "HEAD") -> Path:
    """The wheel of a revision of the repository at `source`, written to `folder`.

    What is not committed is not in it. Raises Refused where git or setuptools fails.
    """
    folder.mkdir(parents=True, exist_ok=True)
    git = ["git", "-C", str(source), "-c", "tar.umask=0022"]
    archive = _run([*git, "archive", "--format=tar", revision])
    time = _run([*git, "show", "-s", "--format=%ct", revision]).decode().strip()
    with tempfile.TemporaryDirectory() as tree:
        with tarfile.open(fileobj=io.BytesIO(archive)) as packed:
            packed.extractall(tree, filter="tar")
        variables = {**os.environ, "SOURCE_DATE_EPOCH": time}
        _run([sys.executable, "-c", _BUILD, "dist"], cwd=tree, env=variables, umask=0o022)
        (wheel,) = Path(tree, "dist").glob("*.whl")
        return Path(shutil.copyfile(wheel, folder / wheel.name))


def _run(words: Sequence[str], **options: object) -> bytes:
    process = subprocess.run(words, capture_output=True, **options)  # type: ignore[call-overload]
    if process.returncode:
        reason = process.stderr.decode(errors="replace").strip().splitlines()[-1:]
        found = f"{Path(words[0]).name}: {' '.join(reason) or process.returncode}"
        hint = "make wheel, in a clone of the framework"
        raise Refused(Problem("wheel-failed", found, "exit 0", hint))
    return bytes(process.stdout)


def main(argv: Sequence[str] | None = None) -> int:
    """Print the path of the wheel."""
    parser = argparse.ArgumentParser(prog="wheel", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--to", type=Path, default=Path("dist"), help="The folder; dist.")
    parser.add_argument("--revision", default="HEAD")
    options = parser.parse_args(argv)
    try:
        print(build(repository.root(), options.to, options.revision))
    except Refused as refused:
        sys.stderr.write(f"{refused}\n")
        return int(refused.exit_code)
    return 0


if __name__ == "__main__":
    sys.exit(main())
