"""The files of one run: what its folder holds before, while and after the command works in it."""

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

# Modes in which the job may write into its input: it gets a copy, the original stays as it is.
COPIED = frozenset({"download", "rw_mount", "eval_download"})
# Files of an input whose state is compared before and after: 20,000 take a tenth of a second.
LOOKED_AT = 20_000
# Folders of the working folder that a node makes before the command starts, and uploads after.
UPLOADED = ("outputs", "logs")


def inputs(plan: CommandPlan, folder: Path) -> dict[str, str | PurePath | None]:
    """Return the values of `${{inputs.x}}`: a literal's text, a data path, None if not given."""
    return {name: _input(name, data, folder) for name, data in plan.inputs.items()}


def _input(name: str, data: InputPlan, folder: Path) -> str | PurePath | None:
    if data.is_literal:
        return None if data.value is None else literal(data.value)
    if data.path is None or data.mode not in COPIED:
        return data.path
    return folder / "inputs" / name / data.path.name


def mounted(plan: CommandPlan) -> dict[str, Path]:
    """The inputs that the command reads where they lie, and may not write to (`ro_mount`)."""
    return {
        name: data.path
        for name, data in plan.inputs.items()
        if data.path is not None and not data.is_literal and data.mode not in COPIED
    }


def states(mounts: Mapping[str, Path]) -> dict[str, dict[str, tuple[int, int]]]:
    """Return size and modification time of each mount's files by relative name, up to a maximum
    number of files."""
    return {name: dict(_states(path)) for name, path in mounts.items()}


def _states(path: Path) -> Iterator[tuple[str, tuple[int, int]]]:
    files = [path] if path.is_file() else (below for below in path.rglob("*") if below.is_file())
    for file in islice(files, LOOKED_AT):
        with suppress(OSError):  # it may go while we look
            state = file.stat()
            name = file.name if file == path else str(file.relative_to(path))
            yield name, (state.st_size, state.st_mtime_ns)


def outputs(plan: CommandPlan, folder: Path) -> dict[str, Path]:
    """Return the folder for each `${{outputs.NAME}}` of the command."""
    return {name: folder / "outputs" / name for name in plan.outputs}


def work(folder: Path) -> Path:
    """Return the working directory of the command: a copy of the code, removed after the run."""
    return folder / "work"


def log(folder: Path) -> Path:
    """Return the file with stdout and stderr (Azure ML: user_logs/std_log.txt)."""
    return folder / "logs" / "std_log.txt"


def lay_out(plan: CommandPlan, folder: Path, snapshot: Snapshot | None) -> Path:
    """Create the command's files; return the working directory. Raises OSError if the disk is full.

    A folder that is an output exists before the command starts, as on Azure ML; a file does not.
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
                continue  # it was written to before a restart
            if data.path.is_dir():
                shutil.copytree(data.path, copy)
            else:
                shutil.copy2(data.path, copy)
    work = working_copy(snapshot, folder / "work")
    for name in UPLOADED:
        with suppress(FileExistsError):  # the code has something of that name
            (work / name).mkdir()
    return work


def take_over(plan: CommandPlan, attempts: Sequence[Path], folder: Path) -> None:
    """Move the mounted outputs of attempts that were cut off, the first first, into the folder of
    the next one: it finds what was written last, as on a spot node after an eviction.
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
    """`./outputs` and `./logs`, where the command wrote to them."""
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
    """Link an output of a part of the run among the outputs of the run.

    A link within the run's folder is relative, so that it survives a move of the folder.
    """
    link = folder / "outputs" / name
    link.parent.mkdir(exist_ok=True)
    inside = path.is_relative_to(folder)
    link.unlink(missing_ok=True)  # of the time before the run was stopped
    link.symlink_to(Path("..") / path.relative_to(folder) if inside else path)
    return link


def clear_up(folder: Path) -> None:
    """Remove the working copy."""
    copy = work(folder)
    try:  # a trial without code has left three empty folders
        for name in UPLOADED:
            (copy / name).rmdir()
        copy.rmdir()
    except OSError:
        shutil.rmtree(copy, ignore_errors=True)


def link(source: str, target: str) -> None:
    """Make `target` a hard link to the file, or a copy where that is not possible."""
    try:
        os.link(source, target)
    except OSError:  # another disk, or more links than the file system allows
        shutil.copy2(source, target)
