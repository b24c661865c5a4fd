"""The model files of registered versions: copied once, verified by their digest."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ml.backends.registry import model_folder
from ml.core import faults
from ml.core.errors import Exit, Problem, Refused
from ml.serving.scoring.manifest import ManifestError, verify

# The output of a run that is a model, and the file that is kept with a version of it.
MODEL_OUTPUT = "model"
EVIDENCE_FILE = "evidence.json"


def store(folder: Path) -> str:
    """Copy a model folder into the registry's own store and return its digest.

    The folder is named after the content, so a second copy changes nothing. Raises Refused when
    the folder differs from its manifest (model-corrupt) or the disk is full; no partial copy stays.
    """
    with faults.as_refusals(), _sound(folder):
        digest = verify(folder)
        stored = model_folder(digest)
        if stored.is_dir():
            verify(stored, digest)
            os.utime(stored)  # cleaning leaves what may be about to be registered
            return digest
        stored.parent.mkdir(parents=True, exist_ok=True)
        unfinished = Path(tempfile.mkdtemp(prefix=".unfinished-", dir=stored.parent))
        try:
            _copy(folder, unfinished)
            verify(unfinished, digest)
            unfinished.chmod(0o755)
            try:
                unfinished.rename(stored)
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):  # somebody was faster
                    raise
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
        return digest


def _copy(folder: Path, to: Path) -> None:
    # Not shutil.copytree: it gathers errors into a text of its own, and "disk full" is lost.
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            place = to / path.relative_to(folder)
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, place)


@contextmanager
def _sound(folder: Path) -> Iterator[None]:
    try:
        yield
    except ManifestError as error:
        raise Refused(
            Problem(
                "model-corrupt",
                str(error),
                "a model folder whose every file is the one that was written",
                f"train it again, or restore {error.folder}; nothing was loaded or registered",
            ),
            exit_code=Exit.RUN_FAILED,
        ) from None
    except NotADirectoryError:
        raise Refused(
            Problem("no-model", f"{folder} is not a folder", "the run's output `model`")
        ) from None
