"""Monkey patches of private functions of azure-ai-ml 1.35, which has no setting for them.

No other module patches azure-ai-ml. No upstream issue is known.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any


def skip_unreadable_jobs(jobs: Any) -> None:
    """Patch `jobs`, the SDK's client, to omit jobs from lists that the SDK cannot parse.

    For a data labelling job, for example, the SDK would end the whole listing with JobException.
    """
    from azure.ai.ml.exceptions import JobException

    read = jobs._handle_rest_errors

    def read_listed(job: Any) -> Any:
        with suppress(JobException):
            return read(job)

    jobs._handle_rest_errors = read_listed
