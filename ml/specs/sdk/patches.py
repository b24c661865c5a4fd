"""Replacements of private functions of azure-ai-ml 1.35, which has no setting for them.

No other module replaces a function of another package for this client. No upstream issue is known.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any


def skip_unreadable_jobs(jobs: Any) -> None:
    """Skip the jobs of a listing that the SDK cannot parse, such as those of data labelling.

    Otherwise the SDK ends the whole listing with JobException.
    """
    from azure.ai.ml.exceptions import JobException

    read = jobs._handle_rest_errors

    def read_listed(job: Any) -> Any:
        with suppress(JobException):
            return read(job)

    jobs._handle_rest_errors = read_listed
