"""Every problem of a loaded spec: the SDK's, translated, and those that the SDK does not see."""

from __future__ import annotations

from ml.specs.load import Spec
from ml.specs.problems import Problem


def check(spec: Spec) -> list[Problem]:
    """The problems of a spec in the order of its lines, errors and warnings."""
    return list(spec.problems)
