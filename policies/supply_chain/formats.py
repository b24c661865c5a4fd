"""Which format a model file has, by its content: a pickle named `model.txt` is still a pickle."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping
from pathlib import Path

# The first line of LightGBM's text format, whatever the boosting type.
_LIGHTGBM = b"tree\n"


def detect(file: Path) -> str:
    """`lightgbm-text`, `json` or `npz` when the content is that and nothing else, otherwise "".

    An npz counts only when every member is an array of plain numbers or text: an array of objects
    is a pickle inside, which numpy would run.
    """
    with file.open("rb") as stream:
        head = stream.read(len(_LIGHTGBM))
    if head == _LIGHTGBM:
        return "lightgbm-text" if _is_text(file) else ""
    if head.startswith(b"PK"):
        return "npz" if _is_plain_npz(file) else ""
    return "json" if _is_json(file) else ""


def formats(folder: Path) -> Mapping[str, str]:
    """Relative posix path → format, of every file under a model folder."""
    return {
        path.relative_to(folder).as_posix(): detect(path)
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def _is_text(file: Path) -> bool:
    try:
        return "\0" not in file.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return False


def _is_json(file: Path) -> bool:
    try:
        json.loads(file.read_text(encoding="utf-8"), parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        return False
    return True


def _refuse_constant(name: str) -> float:
    # Python reads NaN and Infinity in JSON; no other reader must.
    raise ValueError(f"{name} is not JSON")


def _is_plain_npz(file: Path) -> bool:
    from numpy.lib import format as npy

    try:
        with zipfile.ZipFile(file) as archive:
            names = archive.namelist()
            for name in names:
                with archive.open(name) as member:
                    version = npy.read_magic(member)
                    if version == (1, 0):
                        _, _, dtype = npy.read_array_header_1_0(member)
                    elif version == (2, 0):
                        _, _, dtype = npy.read_array_header_2_0(member)
                    else:
                        return False
                    if dtype.hasobject:
                        return False
            return bool(names)
    except (zipfile.BadZipFile, ValueError, OSError, EOFError, RuntimeError, NotImplementedError):
        return False
