"""azure-ai-ml's errors in the words of a Problem, with the line of the node that they are about."""

from __future__ import annotations

from ml.specs.kinds import Kind
from ml.specs.lines import Document
from ml.specs.problems import Problem


def translate(error: Exception, kind: Kind, document: Document) -> tuple[Problem, ...]:
    return (Problem("sdk-refused", str(error), place=document.place()),)
