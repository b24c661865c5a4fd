"""Just enough of ONNX's protobuf encoding to find every tensor that is stored in another file.

Field numbers are those of https://github.com/onnx/onnx/blob/main/onnx/onnx.proto; the encoding is
https://protobuf.dev/programming-guides/encoding/.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
# message → its fields that hold messages in which a tensor may be, and which those are.
_INSIDE: Mapping[str, Mapping[int, str]] = {
    "Model": {7: "Graph", 20: "Training", 25: "Function"},
    "Training": {1: "Graph", 2: "Graph"},
    "Graph": {1: "Node", 5: "Tensor", 15: "SparseTensor"},
    "Function": {7: "Node", 11: "Attribute"},
    "Node": {5: "Attribute"},
    "Attribute": {
        **{5: "Tensor", 6: "Graph", 10: "Tensor", 11: "Graph"},
        **{22: "SparseTensor", 23: "SparseTensor"},
    },
    "SparseTensor": {1: "Tensor", 2: "Tensor"},
    "Tensor": {13: "Entry"},
    "Entry": {},
}
_IR_VERSION, _GRAPH, _OPSETS = 1, 7, 8
_KEY, _VALUE = 1, 2
_DEEPEST = 64


class NotOnnx(ValueError):
    """The bytes are no ONNX model."""


def external_files(content: bytes) -> tuple[str, ...]:
    """The `location` of every tensor of an ONNX model that is kept in another file.

    Raises NotOnnx when the bytes are not a model: each byte belongs to a field, and the IR version,
    a graph and the operator sets are there.
    """
    fields = {number for number, _, _ in _fields(content)}
    if not {_IR_VERSION, _GRAPH, _OPSETS} <= fields:
        raise NotOnnx("no IR version, graph or operator sets")
    return tuple(dict.fromkeys(_locations(content, "Model", 0)))


def _locations(content: bytes, message: str, depth: int) -> Iterator[str]:
    if depth > _DEEPEST:
        raise NotOnnx("nested too deeply")
    for number, kind, value in _fields(content):
        inner = _INSIDE[message].get(number)
        if inner is None:
            continue
        if kind != _BYTES:
            raise NotOnnx(f"field {number} of {message} is no message")
        if inner == "Entry":
            yield from _location(value)
        else:
            yield from _locations(value, inner, depth + 1)


def _location(content: bytes) -> Iterator[str]:
    entry = {number: value for number, _, value in _fields(content)}
    if entry.get(_KEY) == b"location":
        try:
            yield entry.get(_VALUE, b"").decode()
        except UnicodeDecodeError as error:
            raise NotOnnx("a location that is no text") from error


def _fields(content: bytes) -> Iterator[tuple[int, int, bytes]]:
    """(field number, wire type, payload) of a message; a varint's payload is empty."""
    at = 0
    while at < len(content):
        tag, at = _varint(content, at)
        number, kind = tag >> 3, tag & 7
        if number == 0:
            raise NotOnnx("field 0")
        payload = b""
        if kind == _VARINT:
            _, at = _varint(content, at)
        else:
            size = {_FIXED64: 8, _FIXED32: 4}.get(kind)
            if size is None:
                if kind != _BYTES:
                    raise NotOnnx(f"wire type {kind}")
                size, at = _varint(content, at)
            payload, at = content[at : at + size], at + size
            if at > len(content):
                raise NotOnnx("cut off")
        yield number, kind, payload


def _varint(content: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(content):
            raise NotOnnx("cut off")
        byte = content[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise NotOnnx("a number that does not end")
