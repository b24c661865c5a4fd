"""Detects the format of a model file from its content, regardless of its name.

This is an allow-list: a file has a format only if all its content is recognised and loads without
running code. Nothing here scans for dangerous content.
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
# The maximum length of a safetensors header (https://huggingface.co/docs/safetensors).
_LONGEST_HEADER = 100_000_000
_BITS = {
    **{"BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8},
    **{"U16": 16, "I16": 16, "F16": 16, "BF16": 16},
    **{"U32": 32, "I32": 32, "F32": 32, "U64": 64, "I64": 64, "F64": 64},
}
_SKOPS_SCHEMA = "schema.json"
# Domains of the standard operators (https://onnx.ai/onnx/operators).
_DOMAINS = frozenset({"", "ai.onnx", "ai.onnx.ml"})
# Domains in which ONNX Runtime prefers its own operators to a model's functions of the same name
# (onnxruntime/core/graph/constants.h).
_RUNTIME_DOMAINS = re.compile(r"|ai\.onnx(\..*)?|com\.(microsoft|ms)(\..*)?|org\.pytorch(\..*)?")
# Bytes 5 to 8 of a model in ONNX Runtime's own format, a flatbuffer.
_ORT = b"ORTM"
_LARGEST = 2**31 - 1  # protobuf's largest message
# Limits of the check of an ONNX model: CPU time, and memory besides copies of its file.
_SECONDS, _MEMORY = 120, 2**32
# It imports independently of the working directory and of environment variables.
_CHECK = f"{BIND}; from policies.supply_chain.formats import main; main(*sys.argv[1:])"


def detect(file: Path) -> str:
    """Return one of `FORMATS`; "" for any other content. For a model that would crash, hang or
    exhaust its library, append the fault: `lightgbm-text: Tree=0: there is no 'threshold'`.

    An npz contains only arrays of numbers or text, because numpy would unpickle objects. A skops
    file contains such arrays and its schema; the result names types that skops does not trust. An
    ONNX model has only standard operators or its own functions, and no external data.
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
    """Return relative POSIX path → format (`detect`) of every file in a model folder."""
    return {
        path.relative_to(folder).as_posix(): detect(path)
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def _checked(kind: str, check: Callable[[Any], None], content: Any) -> str:
    """Return `kind`, or `kind: FAULT` if the check finds a structural fault."""
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
    """Return `xgboost-json` for an object with a `learner`, `json` for other JSON, else ""."""
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
    # Parsers differ in which value of a repeated name they use.
    document = dict(pairs)
    if len(document) < len(pairs):
        raise ValueError("a name is repeated")
    return document


def _refuse_constant(name: str) -> float:
    # Python's parser accepts NaN and Infinity, which are not JSON.
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
    if any(_RUNTIME_DOMAINS.fullmatch(domain) for domain, _ in functions):
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
    # onnx parses in C++. In a subprocess, a crash counts as a fault of the model.
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
