"""The files of one run: create its inputs, outputs and working copy, and remove the copy."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path, PurePath

from ml.backends.snapshot import Snapshot, working_copy
from ml.specs.expressions import literal
from ml.specs.plan.plans import CommandPlan, InputPlan

# Modes in which a job may write to its input: it gets a copy, so the original stays unchanged.
COPIED = frozenset({"download", "rw_mount", "eval_download"})
# Maximum number of an input's files to check for changes: 20,000 take 0.1 s.
LOOKED_AT = 20_000
# Folders that Azure ML creates in the working directory before the command and uploads after it.
UPLOADED = ("outputs", "logs")


def inputs(plan: CommandPlan, folder: Path) -> dict[str, str | PurePath | None]:
    """Return the values of `${{inputs.NAME}}`: a literal's text or a path; None if not set."""
    return {name: _input(name, data, folder) for name, data in plan.inputs.items()}


def _input(name: str, data: InputPlan, folder: Path) -> str | PurePath | None:
    if data.is_literal:
        return None if data.value is None else literal(data.value)
    if data.path is None or data.mode not in COPIED:
        return data.path
    return folder / "inputs" / name / data.path.name


def mounted(plan: CommandPlan) -> dict[str, Path]:
    """Return the paths of inputs that the command reads in place (`ro_mount`), without copies."""
    return {
        name: data.path
        for name, data in plan.inputs.items()
        if data.path is not None and not data.is_literal and data.mode not in COPIED
    }


def states(mounts: Mapping[str, Path]) -> dict[str, dict[str, tuple[int, int]]]:
    """Return input → file's relative path → (bytes, mtime in ns), for up to `LOOKED_AT` files."""
    return {name: dict(_states(path)) for name, path in mounts.items()}


def _states(path: Path) -> Iterator[tuple[str, tuple[int, int]]]:
    files = [path] if path.is_file() else (below for below in path.rglob("*") if below.is_file())
    for file in islice(files, LOOKED_AT):
        with suppress(OSError):  # the file may be deleted meanwhile
            state = file.stat()
            name = file.name if file == path else str(file.relative_to(path))
            yield name, (state.st_size, state.st_mtime_ns)


def outputs(plan: CommandPlan, folder: Path) -> dict[str, Path]:
    """Return the path of each output, the value of `${{outputs.NAME}}`."""
    return {name: folder / "outputs" / name for name in plan.outputs}


def work(folder: Path) -> Path:
    """Return the working directory of the command: a copy of the code, removed after the run."""
    return folder / "work"


def log(folder: Path) -> Path:
    """Return the file with stdout and stderr (Azure ML: user_logs/std_log.txt)."""
    return folder / "logs" / "std_log.txt"


def lay_out(plan: CommandPlan, folder: Path, snapshot: Snapshot | None) -> Path:
    """Create the command's files; return the working directory. Raise OSError if the disk is full.

    As on Azure ML, an output folder exists before the command starts, an output file does not.
    """
    if snapshot and not (folder / "snapshot").is_symlink():
        (folder / "snapshot").symlink_to(snapshot.folder)
    for name, path in outputs(plan, folder).items():
        is_file = plan.outputs[name].type == "uri_file"
        (path.parent if is_file else path).mkdir(parents=True, exist_ok=True)
    for name, data in plan.inputs.items():
        if data.path is not None and data.mode in COPIED:
            copy = folder / "inputs" / name / data.path.name
            copy.parent.mkdir(parents=True, exist_ok=True)
            if copy.exists():
                continue  # from before a restart, perhaps changed
            if data.path.is_dir():
                shutil.copytree(data.path, copy)
            else:
                shutil.copy2(data.path, copy)
    work = working_copy(snapshot, folder / "work")
    for name in UPLOADED:
        with suppress(FileExistsError):  # the code contains this folder
            (work / name).mkdir()
    return work


def take_over(plan: CommandPlan, attempts: Sequence[Path], folder: Path) -> None:
    """Move each mounted output to `folder`, from the latest interrupted attempt that wrote it.

    `attempts` are in order of time. The next attempt thus finds the outputs, as on a spot node
    after a preemption.
    """
    for name, path in outputs(plan, folder).items():
        if plan.outputs[name].mode == "upload":
            continue
        earlier = (outputs(plan, attempt)[name] for attempt in reversed(attempts))
        written = next(
            (output for output in earlier if output.is_file() or _has_files(output)), None
        )
        if written is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            written.rename(path)


def artifacts(folder: Path, snapshot: Snapshot | None) -> list[Path]:
    """Return those of `./outputs` and `./logs` that have files to upload.

    A folder that the code already contains is left out.
    """
    written = (work(folder) / name for name in UPLOADED)
    return [
        path
        for path in written
        if _has_files(path) and not (snapshot and (snapshot.folder / path.name).exists())
    ]


def _has_files(folder: Path) -> bool:
    try:
        return bool(os.listdir(folder))  # noqa: PTH208 - names are enough
    except (FileNotFoundError, NotADirectoryError):
        return False


def promote(folder: Path, name: str, path: Path) -> Path:
    """Link a step's or trial's output `path` as the run's output `name`; return the link.

    A link within the run's folder is relative, so that it survives a move of the folder.
    """
    link = folder / "outputs" / name
    link.parent.mkdir(exist_ok=True)
    inside = path.is_relative_to(folder)
    link.unlink(missing_ok=True)  # from before a resume
    link.symlink_to(Path("..") / path.relative_to(folder) if inside else path)
    return link


def clear_up(folder: Path) -> None:
    """Remove the working copy."""
    copy = work(folder)
    try:  # fast case: without code there are only empty folders
        for name in UPLOADED:
            (copy / name).rmdir()
        copy.rmdir()
    except OSError:
        shutil.rmtree(copy, ignore_errors=True)


def link(source: str, target: str) -> None:
    """Create `target` as a hard link to `source`, or as a copy if that fails."""
    try:
        os.link(source, target)
    except OSError:  # another disk, or more links than the file system allows
        shutil.copy2(source, target)
