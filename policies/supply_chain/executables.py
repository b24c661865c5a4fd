"""What a file that no allow-list knows may be: named by its content, so that a refusal says why.

This only names what is refused anyway. A scan for bad opcodes is never what lets a file pass: of 22
malicious pickles the best scanner found all, and called 4 of 4 harmless ones bad too.
"""

from __future__ import annotations

import io
import pickletools
import zipfile
from pathlib import Path

# Opcodes that import something or call it (https://docs.python.org/3/library/pickletools.html).
_CALLS = {
    *("GLOBAL", "STACK_GLOBAL", "INST", "OBJ", "NEWOBJ", "NEWOBJ_EX", "REDUCE", "BUILD"),
    *("EXT1", "EXT2", "EXT4", "PERSID", "BINPERSID"),
}
_PROGRAMS = {
    b"\x7fELF": "program",
    b"MZ": "program",
    b"\xcf\xfa\xed\xfe": "program",
    b"\xfe\xed\xfa\xcf": "program",
    b"\xca\xfe\xba\xbe": "program",
    b"#!": "script",
}
# As much of a file as is looked at; a pickle that imports does so early or is named by its start.
_LOOKED_AT = 64 * 2**20


def named(file: Path) -> str:
    """`pickle`, `zip with a pickle`, `numpy objects`, `program`, `script`; "" for none of them."""
    with file.open("rb") as stream:
        content = stream.read(_LOOKED_AT)
    for magic, name in _PROGRAMS.items():
        if content.startswith(magic):
            return name
    if content.startswith(b"\x93NUMPY"):
        return "numpy objects" if _array_of_objects(content) else ""
    if zipfile.is_zipfile(file):
        return _in_zip(file)
    return "pickle" if is_pickle(content) else ""


def is_pickle(content: bytes) -> bool:
    """Whether the bytes are opcodes of a pickle that imports or calls, or begin as one does."""
    calls = False
    try:
        for opcode, _, _ in pickletools.genops(content):
            calls = calls or opcode.name in _CALLS
            if opcode.name == "STOP":
                # A lone full stop is a pickle to Python; text that ends early is none to us.
                return calls or content[:1] == b"\x80"
    except Exception:  # opcodes of which one is cut off or unknown, in whatever way
        return calls and content[:1] == b"\x80"
    return False


def _in_zip(file: Path) -> str:
    try:
        with zipfile.ZipFile(file) as archive:
            for name in archive.namelist():
                with archive.open(name) as member:
                    content = member.read(_LOOKED_AT)
                if content.startswith(b"\x93NUMPY"):
                    if _array_of_objects(content):
                        return "numpy objects"
                elif is_pickle(content):
                    return "zip with a pickle"
    except (zipfile.BadZipFile, OSError, RuntimeError, NotImplementedError, EOFError):
        return "zip that cannot be read"
    return ""


def _array_of_objects(content: bytes) -> bool:
    from numpy.lib import format as npy

    stream = io.BytesIO(content)
    try:
        major, _ = npy.read_magic(stream)
        header = npy.read_array_header_1_0 if major == 1 else npy.read_array_header_2_0
        return bool(header(stream)[2].hasobject)
    except ValueError:
        return True
