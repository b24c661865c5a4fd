"""Which format a model file has, by its content: a pickle named `model.txt` is still a pickle.

Formats that load without running code are recognised whole or not at all; what else a file may be
is named for the refusal alone (`executables`).
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping
from pathlib import Path, PurePosixPath, PureWindowsPath

from policies.supply_chain.executables import named
from policies.supply_chain.protobuf import NotOnnx, external_files

# The first line of LightGBM's text format, whatever the boosting type.
_LIGHTGBM = b"tree\n"
# The length of a safetensors header, at most (https://huggingface.co/docs/safetensors).
_LONGEST_HEADER = 100_000_000
_BITS = {
    **{"BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8},
    **{"U16": 16, "I16": 16, "F16": 16, "BF16": 16},
    **{"U32": 32, "I32": 32, "F32": 32, "U64": 64, "I64": 64, "F64": 64},
}
ONNX, ONNX_DATA, ESCAPES = "onnx", "onnx-data", "onnx with data elsewhere"


def detect(file: Path) -> str:
    """`lightgbm-text`, `json`, `npz`, `safetensors`, `onnx` or `skops` when the content is that and
    nothing else; otherwise the name of something that is no such format, or "".

    An npz counts only when every member is an array of plain numbers or text: an array of objects
    is a pickle inside, which numpy would run. An ONNX model counts only when the tensors that it
    keeps in other files are in files beside it: no link, no absolute path, nothing above. A skops
    file counts only when it has no type but those that skops trusts by itself.
    """
    with file.open("rb") as stream:
        head = stream.read(16)
    if head.startswith(_LIGHTGBM):
        return "lightgbm-text" if _is_text(file) else named(file)
    if head.startswith(b"PK"):
        return "npz" if _is_plain_npz(file) else named(file) or _skops(file)
    if head[8:9] == b"{" and _is_safetensors(file):
        return "safetensors"
    if _is_json(file):
        return "json"
    locations = _external(file)
    if locations is not None:
        return ONNX if all(_beside(file, one) for one in locations) else ESCAPES
    return named(file)


def formats(folder: Path) -> Mapping[str, str]:
    """Relative posix path → format, of every file under a model folder.

    A file in which an ONNX model of the folder keeps tensors is `onnx-data`: any bytes but those of
    something that runs.
    """
    every = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    found = {path: detect(path) for path in every}
    for model in every:
        if found[model] == ONNX:
            for location in _external(model) or ():
                data = model.parent / location
                if found.get(data) == "":
                    found[data] = ONNX_DATA
    return {path.relative_to(folder).as_posix(): kind for path, kind in found.items()}


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


def _is_safetensors(file: Path) -> bool:
    """The header describes tensors of known types that fill the rest of the file, one by one."""
    size = file.stat().st_size
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        if not 0 < length <= min(_LONGEST_HEADER, size - 8):
            return False
        header = stream.read(length)
    try:
        tensors = json.loads(header, parse_constant=_refuse_constant)
        notes = tensors.pop("__metadata__", {})
        plain = all(isinstance(one, str) for pair in notes.items() for one in pair)
        at = 0
        for one in sorted(tensors.values(), key=lambda tensor: tensor["data_offsets"]):
            count = 1
            for length_of in one["shape"]:
                count *= length_of
            begin, end = one["data_offsets"]
            if begin != at or (end - begin) * 8 != count * _BITS[one["dtype"]]:
                return False
            at = end
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return False
    return plain and at == size - 8 - length


def _external(file: Path) -> tuple[str, ...] | None:
    """The other files that an ONNX model names; None when the file is no such model."""
    try:
        return external_files(file.read_bytes())
    except NotOnnx:
        return None


def _beside(model: Path, location: str) -> bool:
    posix, windows = PurePosixPath(location), PureWindowsPath(location)
    if not posix.parts or posix.is_absolute() or windows.is_absolute() or windows.drive:
        return False
    if ".." in posix.parts or ".." in windows.parts:
        return False
    path = model.parent / location
    return path.is_file() and path.resolve().is_relative_to(model.parent.resolve())


def _skops(file: Path) -> str:
    try:
        with zipfile.ZipFile(file) as archive:
            if "schema.json" not in archive.namelist():
                return ""
        from skops.io import get_untrusted_types  # seconds: it imports scikit-learn

        return "skops with types that may run code" if get_untrusted_types(file=file) else "skops"
    except Exception:  # a schema that is none, in whatever way
        return ""


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
