"""The licence of an installed package, as an SPDX expression, and whether a list allows it.

Since core metadata 2.4 `License-Expression` is SPDX; older packages have classifiers or free text,
of which the unambiguous ones are read (https://peps.python.org/pep-0639/).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence

# What is said where nothing can be read.
UNKNOWN = "NOASSERTION"
# The ends of trove classifiers, and texts that packages write for a licence, in small letters.
_SPDX = {
    "apache 2.0": "Apache-2.0",
    "apache license 2.0": "Apache-2.0",
    "apache license, version 2.0": "Apache-2.0",
    "apache software license": "Apache-2.0",
    "3-clause bsd license": "BSD-3-Clause",
    "bsd 3-clause": "BSD-3-Clause",
    "bsd 3-clause license": "BSD-3-Clause",
    "new bsd": "BSD-3-Clause",
    "bsd 2-clause": "BSD-2-Clause",
    # Which of its texts, nobody says.
    "bsd": "LicenseRef-BSD",
    "bsd license": "LicenseRef-BSD",
    "isc license (iscl)": "ISC",
    "isc": "ISC",
    "mit license": "MIT",
    "the mit license": "MIT",
    "mozilla public license 2.0 (mpl 2.0)": "MPL-2.0",
    "python software foundation license": "PSF-2.0",
}
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+-]*")
_TOKEN = re.compile(r"\s*(\(|\)|[A-Za-z0-9][A-Za-z0-9.+-]*)")
# Whole identifiers of SPDX that packages write as free text.
_IDS = {
    *("0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "CC0-1.0", "GPL-2.0-only"),
    *("GPL-3.0-only", "AGPL-3.0-only", "ISC", "LGPL-3.0-only", "MIT", "MIT-0", "MPL-2.0"),
    *("PSF-2.0", "Unlicense", "Zlib"),
}


def expression(stated: str, classifiers: Sequence[str], text: str) -> str:
    """The SPDX expression that the metadata states; `NOASSERTION` when it states none.

    `stated` is License-Expression, `classifiers` every Classifier, `text` the License field.
    Several classifiers may be a choice or a sum: taken as a sum, each of them must be allowed.
    """
    if stated.strip():
        return stated.strip()
    written = text.strip()
    exact = written if _names_only(written) else _SPDX.get(written.lower(), "")
    named = [
        _SPDX.get(one.split(" :: ")[-1].lower(), "LicenseRef-" + _slug(one.split(" :: ")[-1]))
        for one in classifiers
        # "OSI Approved" and "DFSG approved" say who approved it, not what it is.
        if one.startswith("License :: ") and not one.lower().endswith("approved")
    ]
    # The text says which BSD licence; a classifier of another licence is not overruled by it.
    if exact and set(named) <= {"LicenseRef-BSD", exact}:
        return exact
    return " AND ".join(sorted(set(named))) or UNKNOWN


def allowed(expression: str, licences: Collection[str]) -> bool:
    """Whether the list allows the expression: either side of OR, both of AND.

    What is no SPDX expression is not allowed, unless the list has the very text.
    """
    try:
        tokens = list(_tokens(expression))
        found = _either(tokens, licences)
    except ValueError:
        return False
    return found and not tokens


def _names_only(text: str) -> bool:
    words = re.split(r"\s+(?:AND|OR)\s+", text)
    return bool(text) and all(word in _IDS for word in words)


def _slug(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9.]+", "-", text).strip("-")


def _tokens(text: str) -> Iterator[str]:
    at = 0
    text = text.rstrip()
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise ValueError(text)
        yield match[1]
        at = match.end()


def _either(tokens: list[str], licences: Collection[str]) -> bool:
    found = _both(tokens, licences)
    while tokens and tokens[0].upper() == "OR":
        tokens.pop(0)
        found = _both(tokens, licences) or found
    return found


def _both(tokens: list[str], licences: Collection[str]) -> bool:
    found = _one(tokens, licences)
    while tokens and tokens[0].upper() == "AND":
        tokens.pop(0)
        found = _one(tokens, licences) and found
    return found


def _one(tokens: list[str], licences: Collection[str]) -> bool:
    if not tokens:
        raise ValueError("it ends early")
    first = tokens.pop(0)
    if first == "(":
        found = _either(tokens, licences)
        if not tokens or tokens.pop(0) != ")":
            raise ValueError("no closing bracket")
        return found
    if not _ID.fullmatch(first) or first.upper() in ("AND", "OR", "WITH"):
        raise ValueError(first)
    # An exception gives more rights, and is a text of its own: the list names the pair.
    if tokens and tokens[0].upper() == "WITH":
        tokens.pop(0)
        if not tokens or not _ID.fullmatch(tokens[0]):
            raise ValueError("no exception")
        first = f"{first} WITH {tokens.pop(0)}"
    return first in licences
