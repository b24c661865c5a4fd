"""The format of a model file, read from its content; the name of the file does not count.

This is an allow-list: a format that loads without running code is recognised in full, and every
other file has no format. Nothing here scans for dangerous content.
"""

from __future__ import annotations

import json
import re
import resource
import subprocess
import sys
import zipfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from ml.core.imports import BIND
from policies.supply_chain.model_structure import (
    StructureFault,
    check_lightgbm,
    check_xgboost,
    parsing,
)
from policies.supply_chain.onnx_structure import check_onnx, messages

# Formats that load without running code, as `detect` recognizes them.
FORMATS = ("lightgbm-text", "xgboost-json", "json", "npz", "onnx", "safetensors", "skops")
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
# The operators of the standard (https://onnx.ai/onnx/operators), and protobuf's largest message.
_DOMAINS = frozenset({"", "ai.onnx", "ai.onnx.ml"})
# ONNX Runtime prefers its operators to a model's functions of their names
# (onnxruntime/core/graph/constants.h has its domains).
_TAKEN = re.compile(r"|ai\.onnx(\..*)?|com\.(microsoft|ms)(\..*)?|org\.pytorch(\..*)?")
# By which it knows a model in its own format: bytes 5 to 8 of a flatbuffer.
_ORT = b"ORTM"
_LARGEST = 2**31 - 1
# The processor time and the memory, besides copies of its file, to check an ONNX model with.
_SECONDS, _MEMORY = 120, 2**32
# No file of the working directory and no variable changes what it imports.
_CHECK = f"{BIND}; from policies.supply_chain.formats import main; main(*sys.argv[1:])"


def detect(file: Path) -> str:
    """One of `FORMATS`; "" for any other content. Of a model that would crash, hang or exhaust its
    library also the fault, as in `lightgbm-text: Tree=0: there is no 'threshold'`.

    An npz holds nothing but arrays of plain numbers or text: numpy would unpickle an array of
    objects. A skops file holds such arrays beside its schema, and no type that skops does not
    trust by itself: else the result names those types. An ONNX model is whole: its operators are
    the standard's, and nothing in it is in another file.
    """
    with file.open("rb") as stream:
        head = stream.read(16)
    if head.startswith(_LIGHTGBM):
        return _lightgbm(file)
    if head.startswith(b"PK"):
        return _archive(file)
    if head[8:9] == b"{" and _is_safetensors(file):
        return "safetensors"
    return _json(file) or ("" if head[4:8] == _ORT else _onnx(file))


def is_faulty(kind: str) -> bool:
    """Return whether `detect` recognised the format but found a structural fault."""
    return ": " in kind


def formats(folder: Path) -> Mapping[str, str]:
    """Relative posix path → format, of every file under a model folder."""
    return {
        path.relative_to(folder).as_posix(): detect(path)
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def _checked(kind: str, check: Callable[[Any], None], content: Any) -> str:
    """Return the format; after a colon, why its library must not load the content."""
    try:
        with parsing(kind):
            check(content)
    except StructureFault as fault:
        return str(fault)
    return kind


def _lightgbm(file: Path) -> str:
    content = file.read_bytes() if file.stat().st_size <= _LARGEST else b"\0"
    try:
        is_text = b"\0" not in content and content.decode("utf-8") is not None
    except UnicodeDecodeError:
        return ""
    return _checked("lightgbm-text", check_lightgbm, content) if is_text else ""


def _json(file: Path) -> str:
    """Return `xgboost-json` for an object with a `learner`, as XGBoost loads, `json`, or ""."""
    if file.stat().st_size > _LARGEST:
        return ""
    try:
        document = json.loads(
            file.read_text(encoding="utf-8"),
            parse_constant=_refuse_constant,
            object_pairs_hook=_unique,
        )
    except (ValueError, RecursionError):
        return ""
    is_model = isinstance(document, dict) and "learner" in document
    return _checked("xgboost-json", check_xgboost, document) if is_model else "json"


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    # Readers differ in which of two values of a name they take.
    document = dict(pairs)
    if len(document) < len(pairs):
        raise ValueError("a name is repeated")
    return document


def _refuse_constant(name: str) -> float:
    # Python reads NaN and Infinity in JSON; other readers do not have to.
    raise ValueError(f"{name} is not JSON")


def _onnx(file: Path) -> str:
    """Return `onnx` for a self-contained ONNX model of standard operators, else "".

    Operators may also be the model's own functions. No tensor may be in another file.
    """
    if file.stat().st_size > _LARGEST:
        return ""
    from google.protobuf.message import DecodeError
    from onnx import ModelProto

    try:
        model = ModelProto.FromString(file.read_bytes())
    except (DecodeError, RecursionError):
        return ""
    functions = {(function.domain, function.name) for function in model.functions}
    if any(_TAKEN.fullmatch(domain) for domain, _ in functions):
        return ""
    if model.ir_version < 3 or not model.graph.node or not model.opset_import:
        return ""
    for message in messages(model):
        kind = message.DESCRIPTOR.name
        if kind == "TensorProto" and (message.data_location or message.external_data):
            return ""
        if (
            kind == "NodeProto"
            and message.domain not in _DOMAINS
            and (message.domain, message.op_type) not in functions
        ):
            return ""
    # onnx reads it in C++: in a process of its own, a crash is a fault of the model.
    limits = map(str, (_SECONDS, _MEMORY + 8 * file.stat().st_size))
    check = subprocess.run(
        [sys.executable, "-IXutf8", "-c", _CHECK, file, *limits],
        capture_output=True,
        encoding="utf-8",
    )
    reason = f"exit code {check.returncode} {check.stderr.strip().rpartition(chr(10))[2][:200]}"
    return f"onnx: its check ended with {reason}" if check.returncode else check.stdout


def _is_safetensors(file: Path) -> bool:
    """Return whether the header describes tensors of known types that fill the rest of the file."""
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
    """Return the format of a zip file: `npz`, `skops` or ""."""
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

        untrusted = get_untrusted_types(file=file)
        return f"skops with {', '.join(sorted(untrusted))}" if untrusted else "skops"
    except Exception:  # a broken zip, or a schema that breaks the reader in any way
        return ""


def _is_plain(stream: IO[bytes]) -> bool:
    """Return whether the stream is a NumPy array without Python objects."""
    from numpy.lib import format as npy

    readers = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
    try:
        read_header = readers.get(npy.read_magic(stream))
        return read_header is not None and not read_header(stream)[2].hasobject
    except ValueError:
        return False


def main(file: str, seconds: str, memory: str) -> None:
    """Print the format of an ONNX model, checked within limits of processor time and memory."""
    from onnx import ModelProto

    limits = {resource.RLIMIT_CPU: int(seconds), resource.RLIMIT_DATA: int(memory)}
    for limit, most in {**limits, resource.RLIMIT_CORE: 0}.items():
        with suppress(ValueError):  # it is lower already
            resource.setrlimit(limit, (most, most))
    sys.stdout.write(_checked("onnx", check_onnx, ModelProto.FromString(Path(file).read_bytes())))
