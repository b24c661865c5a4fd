"""Replacements of private functions of azure-ai-ml 1.35, which has no setting for them.

No other module replaces a function of another package for this client. No upstream issue is known.
"""

from __future__ import annotations

import importlib
from contextlib import suppress
from typing import Any


def skip_experimental_warnings() -> None:
    """Have the SDK make objects of experimental classes without a warning.

    To decide on it the SDK reads the source of every function on the stack, which takes 0.1 s for
    each object; a deployment with a data collector is three of them.
    """
    experimental: Any = importlib.import_module("azure.ai.ml._utils._experimental")
    experimental._should_skip_warning = lambda: True


def skip_unreadable_jobs(jobs: Any) -> None:
    """Leave out of a list the jobs that the SDK cannot parse, as those of data labelling.

    The SDK ends the whole list with JobException.
    """
    from azure.ai.ml.exceptions import JobException

    read = jobs._handle_rest_errors

    def read_listed(job: Any) -> Any:
        with suppress(JobException):
            return read(job)

    jobs._handle_rest_errors = read_listed
