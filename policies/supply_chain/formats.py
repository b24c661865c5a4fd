"""The format of a model file, read from its content; the name of the file does not count.

This is an allow-list: a format that loads without running code is recognised in full, and every
other file has no format. Nothing here scans for dangerous content.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO

# The first line of LightGBM's text format, whatever the boosting type.
_LIGHTGBM = b"tree\n"
# The length of a safetensors header, at most (https://huggingface.co/docs/safetensors).
_LONGEST_HEADER = 100_000_000
_BITS = {
    **{"BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8},
    **{"U16": 16, "I16": 16, "F16": 16, "BF16": 16},
    **{"U32": 32, "I32": 32, "F32": 32, "U64": 64, "I64": 64, "F64": 64},
}
_SKOPS_SCHEMA = "schema.json"


def detect(file: Path) -> str:
    """`lightgbm-text`, `json`, `npz`, `safetensors` or `skops`; "" for any other content.

    An npz holds nothing but arrays of plain numbers or text: numpy would unpickle an array of
    objects. A skops file holds such arrays beside its schema, and no type that skops does not
    trust by itself.
    """
    with file.open("rb") as stream:
        head = stream.read(16)
    if head.startswith(_LIGHTGBM):
        return "lightgbm-text" if _is_text(file) else ""
    if head.startswith(b"PK"):
        return _archive(file)
    if head[8:9] == b"{" and _is_safetensors(file):
        return "safetensors"
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
    # Python reads NaN and Infinity in JSON; other readers do not have to.
    raise ValueError(f"{name} is not JSON")


def _is_safetensors(file: Path) -> bool:
    """Whether the header describes tensors of known types that fill the rest of the file."""
    size = file.stat().st_size
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        if not 0 < length <= min(_LONGEST_HEADER, size - 8):
            return False
        header = stream.read(length)
    try:
        tensors = json.loads(header, parse_constant=_refuse_constant)
        notes = tensors.pop("__metadata__", {})
        plain = all(isinstance(text, str) for pair in notes.items() for text in pair)
        position = 0
        for tensor in sorted(tensors.values(), key=lambda tensor: tensor["data_offsets"]):
            count = 1
            for dimension in tensor["shape"]:
                count *= dimension
            begin, end = tensor["data_offsets"]
            if begin != position or (end - begin) * 8 != count * _BITS[tensor["dtype"]]:
                return False
            position = end
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return False
    return plain and position == size - 8 - length


def _archive(file: Path) -> str:
    """The format of a zip file: `npz`, `skops` or ""."""
    try:
        with zipfile.ZipFile(file) as archive:
            names = archive.namelist()
            arrays = [name for name in names if name != _SKOPS_SCHEMA]
            for name in arrays:
                with archive.open(name) as member:
                    if not _is_plain(member):
                        return ""
        if len(arrays) == len(names):
            return "npz" if names else ""
        from skops.io import get_untrusted_types  # takes seconds: it imports scikit-learn

        return "" if get_untrusted_types(file=file) else "skops"
    except Exception:  # a broken zip, or a schema that breaks the reader in any way
        return ""


def _is_plain(stream: IO[bytes]) -> bool:
    """Whether the stream is a NumPy array that is not an array of objects."""
    from numpy.lib import format as npy

    readers = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
    try:
        read_header = readers.get(npy.read_magic(stream))
        return read_header is not None and not read_header(stream)[2].hasobject
    except ValueError:
        return False
