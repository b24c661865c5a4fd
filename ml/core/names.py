"""Valid names: one regular expression per kind, checked before a name is used in a path or id.

A valid name is one part of a path: it has no slash, no space at its ends and no control character,
and it is neither `.` nor `..`.
"""

from __future__ import annotations

import keyword
import re
import unicodedata
from collections.abc import Mapping
from typing import Literal

from ml.core.errors import Place, Problem, UserError
from ml.core.terminal import INVISIBLE

Kind = Literal[
    "asset", "endpoint", "experiment", "job", "port", "project", "split test", "variable", "version"
]

_DOTTED = "letters, digits, `-`, `_` and `.`, at most 255, not starting with `-` or `.`"
# Azure ML: "letters, numbers, dashes and underscores"; dots are in versions and in older assets.
_FORMS: Mapping[Kind, tuple[str, str]] = {
    "asset": (r"[A-Za-z0-9_][\w.-]{0,254}", _DOTTED),
    "version": (r"[A-Za-z0-9_][\w.-]{0,254}", _DOTTED),
    # Also for deployments (how-to-manage-quotas; azure-ai-ml 1.35 EndpointConfigurations).
    "endpoint": (
        r"[A-Za-z][A-Za-z0-9-]{1,30}[A-Za-z0-9]",
        "3 to 32 letters, digits and `-`, a letter first, no `-` last",
    ),
    # The default is the working directory's name, which may have blanks, brackets and accents.
    "experiment": (
        r"(?![. -])(?u:[\w.()@+, -]){1,255}(?<! )",
        "letters, digits, blanks and `- _ . ( ) @ + ,`, not starting with `.` or `-`",
    ),
    "job": (r"[A-Za-z0-9_][\w.-]{0,254}", _DOTTED),
    # azure-ai-ml 1.35, Component._validate_io_names and validate_key_contains_allowed_characters.
    "port": (r"[A-Za-z_]\w{0,254}", "letters, digits and `_`, a letter or `_` first"),
    # A folder that Python imports and, with dashes, the name of an endpoint (3 to 32 characters);
    # 28 keep the lines of the templates short.
    "project": (
        rf"(?!(?:{'|'.join(keyword.kwlist)})$)[a-z][a-z0-9_]{{1,26}}[a-z0-9]",
        "3 to 28 lower-case letters, digits and `_`, a letter first, no keyword of Python",
    ),
    "split test": (r"[a-z0-9][a-z0-9-]{0,39}", "small letters, digits and `-`, at most 40"),
    "variable": (r"[A-Za-z_][\w.%()-]{0,254}", "letters, digits and `_`, a letter or `_` first"),
}


def is_name(kind: Kind, text: str) -> bool:
    """Return whether the text is a valid name of that kind."""
    return re.fullmatch(_FORMS[kind][0], text, re.ASCII) is not None


def form(kind: Kind) -> str:
    """Return in words which names of that kind are valid."""
    return _FORMS[kind][1]


# The variation selectors of emoji are invisible too.
_SELECTORS = re.compile("[\ufe0e\ufe0f]")


def not_words(text: str) -> str:
    """Return why a text cannot be a person's name or a reason; "" if it can.

    It needs a letter and must have no invisible character.
    """
    hidden = INVISIBLE.search(text) or _SELECTORS.search(text)
    if hidden or not text.replace("\n", " ").isprintable():
        return "it has invisible characters"
    if not any(unicodedata.category(char).startswith("L") for char in text):
        return "it has no letter"
    return ""


def check(kind: Kind, text: str, place: Place | None = None) -> str:
    """Return the name; raise UserError (bad-name) if it is not valid for that kind."""
    if not is_name(kind, text):
        message = f"{text[:100]!r} is not a valid {kind} name"
        raise UserError(Problem("bad-name", message, form(kind), place=place))
    return text
