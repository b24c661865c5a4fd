"""The licence of an installed package as an SPDX expression, and whether a list allows it.

Since core metadata 2.4 `License-Expression` is SPDX. Older packages have classifiers or free text,
of which the unambiguous ones are read (https://peps.python.org/pep-0639/).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression

# The licence of a package that states none.
UNKNOWN = "NOASSERTION"
# The ends of trove classifiers, and the texts of packages, in lower case.
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
    # The package does not say which BSD licence.
    "bsd": "LicenseRef-BSD",
    "bsd license": "LicenseRef-BSD",
    "isc license (iscl)": "ISC",
    "isc": "ISC",
    "mit license": "MIT",
    "the mit license": "MIT",
    "mozilla public license 2.0 (mpl 2.0)": "MPL-2.0",
    "python software foundation license": "PSF-2.0",
}


def expression(stated: str, classifiers: Sequence[str], text: str) -> str:
    """The SPDX expression that the metadata states; `NOASSERTION` when they state none.

    `stated` is License-Expression, `classifiers` every Classifier, `text` the License field.
    Several classifiers may mean a choice or a sum: they are read as a sum, so each must be allowed.
    """
    if stated.strip():
        return stated.strip()
    exact = _SPDX.get(text.strip().lower()) or _canonical(text)
    classified = {
        _SPDX.get(name.lower(), "LicenseRef-" + _slug(name))
        for classifier in classifiers
        # "OSI Approved" and "DFSG approved" say who approved the licence, not which it is.
        if classifier.startswith("License :: ") and not classifier.lower().endswith("approved")
        for name in [classifier.split(" :: ")[-1]]
    }
    # The text says which BSD licence it is. It does not override another licence's classifier.
    if exact and classified <= {"LicenseRef-BSD", exact}:
        return exact
    return " AND ".join(sorted(classified)) or UNKNOWN


def allowed(expression: str, licences: Collection[str]) -> bool:
    """Whether the list allows the expression: one side of OR, both sides of AND.

    A text that is not an SPDX expression is not allowed. A licence with an exception (WITH) is
    allowed when the list names the pair.
    """
    text = _canonical(expression)
    holds = {*licences, "+"}  # "+" stands for a bracket that holds

    def is_allowed(part: str) -> bool:
        choices = (choice.split(" AND ") for choice in part.split(" OR "))
        return any(all(name.strip() in holds for name in choice) for choice in choices)

    while "(" in text:
        text = re.sub(r"\(([^()]*)\)", lambda part: "+" if is_allowed(part[1]) else "-", text)
    return is_allowed(text)


def _canonical(text: str) -> str:
    """The SPDX expression in its canonical form, or "" when it is not valid."""
    try:
        return canonicalize_license_expression(text)
    except InvalidLicenseExpression:
        return ""


def _slug(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9.]+", "-", text).strip("-")
