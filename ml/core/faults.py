"""Failures of this machine, not of a job: full disk, locked database, missing rights."""

from __future__ import annotations

import errno
import os
import re
import shlex
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ml.core.errors import Exit, Problem, UserError
from ml.core.home import database, home

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
# A file is at the path of the home or of a folder above it, or the folder cannot be created.
_NO_FOLDER = frozenset({errno.ENOTDIR, errno.EEXIST, errno.ENOENT})
_BARRED = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
_BROKEN = ("not a database", "malformed", "unable to open", "no such table")
# Codes of problems that are the machine's fault, not the run's.
CODES = frozenset({"disk-full", "disk-error", "database-locked", "database-corrupt", "no-access"})
_ERRNO = re.compile(r"\[Errno (\d+)\]")
KEPT = "earlier runs, models and endpoints are unchanged"


def explain(error: BaseException) -> Problem | None:
    """Return the problem of a file system or tracking store error; None for other errors."""
    message = _messages(error)
    fault = _os_error(error)
    if (fault and fault.errno in _FULL) or "disk is full" in message:
        return disk_full()
    if "database is locked" in message or "database table is locked" in message:
        return Problem(
            "database-locked",
            f"another program has locked the tracking store {database()} for writing",
            "a store that can be written to",
            f"find the process (`fuser -v {database()}`), end it, and run again",
        )
    if "disk I/O error" in message:  # SQLite's message for any failed system call
        return Problem(
            "disk-error",
            f"I/O error of the tracking store {database()}",
            "a healthy disk, and no file size limit",
            f"ulimit -f; dmesg | tail; or MLOPS_HOME=/another/disk; {KEPT}",
        )
    if any(sign in message for sign in _BROKEN):
        return Problem(
            "database-corrupt",
            f"the tracking store {database()} cannot be read: {message.splitlines()[0]}",
            "an SQLite file as MLflow writes it",
            f"start a new one: mv {database()} {database()}.broken "
            "(job folders with logs, outputs and metrics do not need it)",
        )
    if "out-of-date database schema" in message:
        return Problem(
            "database-outdated",
            f"the tracking store {database()} was written by another version of MLflow",
            hint=f"copy it, then: mlflow db upgrade sqlite:///{database()}",
        )
    if isinstance(fault, IsADirectoryError) and Path(fault.filename or "").is_relative_to(home()):
        path = shlex.quote(str(fault.filename))
        hint = f"move it away: mv {path} {path}.away"
        return Problem("not-a-file", f"{fault.filename} is a folder", "a file there", hint)
    if fault and (fault.errno in _BARRED or (fault.errno in _NO_FOLDER and not home().is_dir())):
        return _no_access(Path(fault.filename or home()), str(fault.strerror))
    return None


def _no_access(path: Path, why: str) -> Problem:
    hint = f"see whose it is: ls -ld {path}"
    if path.is_relative_to(home()) or home().is_relative_to(path):
        hint = "MLOPS_HOME=/some/other/folder moves the files of runs"
    return Problem(
        "no-access",
        f"{path}: {why}",
        "read access to it, and write access to the folder of runs",
        hint,
    )


def disk_full() -> Problem:
    """Return the problem of a full disk, with the free space and what to delete."""
    place = next(path for path in (home(), *home().parents) if path.exists())
    free = shutil.disk_usage(place).free / 1e6
    return Problem(
        "disk-full",
        f"no space left on the disk of {home()} ({free:.1f} MB free)",
        "space for the snapshot, the logs and the outputs of a run",
        f"free some (du -sh {home()}/*), or MLOPS_HOME=/a/larger/disk; {KEPT}",
    )


@contextmanager
def as_user_errors() -> Iterator[None]:
    """Turn errors that `explain` knows into UserError with exit code 1; others pass unchanged."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        problem = explain(error)
        if problem is None:
            raise
        raise UserError(problem, exit_code=Exit.RUN_FAILED) from error


def probe(path: Path, patience_s: float) -> None:
    """Raise sqlite3.Error if the store cannot be read, or locked for a write in `patience_s` s."""
    connection = sqlite3.connect(path, timeout=patience_s, isolation_level=None)
    try:
        connection.execute("SELECT version_num FROM alembic_version").fetchall()
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("ROLLBACK")
    finally:
        connection.close()


def _os_error(error: BaseException | None) -> OSError | None:
    """Return the first OSError with an errno in the chain of causes; None if there is none."""
    while error is not None:
        if isinstance(error, shutil.Error):
            return _gathered(error)
        if isinstance(error, OSError) and error.errno is not None:
            return error
        error = error.__cause__ or error.__context__
    return None


def _gathered(error: shutil.Error) -> OSError | None:
    """Return the first error of a failed `copytree`, rebuilt from the text that it keeps."""
    failures = error.args[0] if error.args and isinstance(error.args[0], list) else []
    for source, target, text in failures:
        number = _ERRNO.search(str(text))
        if number:
            path = next((name for name in (source, target) if str(name) in str(text)), source)
            return OSError(int(number[1]), os.strerror(int(number[1])), str(path))
    return None


def _messages(error: BaseException | None) -> str:
    lines = []
    while error is not None:
        lines.append(str(error))
        error = error.__cause__ or error.__context__
    return "\n".join(lines)
