"""What Azure refuses, in this template's form: what happened, and the command that mends it.

The service's own answer is kept unchanged in a log.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from ml.core import home
from ml.core.errors import Exit, Problem, Refused
from ml.core.repository import shown


@dataclass(frozen=True)
class Known:
    """An error of Azure: its HTTP status and what its code or message matches; then what to say.

    `{message}` in `found` is the service's message. Exit code 1 is for what may pass by itself.
    """

    code: str
    status: int
    pattern: str
    found: str
    hint: str
    exit_code: Exit = Exit.WRONG_CALL


# The first that fits counts. A status of 0 fits every status.
KNOWN = (
    Known(
        "not-signed-in",
        401,
        "",
        "Azure does not accept the sign-in: {message}",
        "az login --tenant YOUR-TENANT, then run this again",
    ),
    Known(
        "no-permission",
        403,
        "AuthorizationFailed|does not have authorization",
        "you may not do this: {message}",
        'az role assignment create --role "AzureML Data Scientist" --assignee YOU --scope SCOPE',
    ),
    Known(
        "no-permission",
        403,
        "",
        "Azure refuses access: {message}",
        "infra doctor lists the roles that are missing",
    ),
    Known(
        "quota",
        0,
        "quota",
        "the quota does not suffice: {message}",
        "az ml compute list-usage --location REGION, then ask for more in the portal",
    ),
    Known(
        "no-provider",
        409,
        "MissingSubscriptionRegistration",
        "the subscription lacks a resource provider: {message}",
        "az provider register --namespace Microsoft.MachineLearningServices --wait",
    ),
    Known(
        "no-compute",
        0,
        "compute .*not found",
        "{message}",
        "az ml compute list; infra/Pulumi.ENV.yaml declares the clusters",
    ),
    Known(
        "no-asset",
        404,
        r"(data|environments?|models?|components?) .*not found",
        "{message}",
        "ml assets apply registers what the specs of the repository define",
    ),
    Known(
        "no-workspace",
        404,
        "workspaces|ResourceGroupNotFound|SubscriptionNotFound",
        "{message}",
        "check AZURE_SUBSCRIPTION_ID, AZUREML_RESOURCE_GROUP and AZUREML_WORKSPACE_NAME",
    ),
    Known(
        "throttled",
        429,
        "",
        "Azure asks for fewer requests: {message}",
        "wait some minutes and run this again: it starts nothing twice",
        Exit.RUN_FAILED,
    ),
)
_AGAIN = "run this again: a job that was submitted is followed, not started twice"


@contextmanager
def as_refusals() -> Iterator[None]:
    """Raises every error of Azure's clients as Refused."""
    from azure.ai.ml.exceptions import MlException
    from azure.core.exceptions import AzureError

    try:
        yield
    except (AzureError, MlException) as error:
        _record(error)
        problem, exit_code = explain(error)
        raise Refused(problem, exit_code=exit_code) from error


def explain(error: Exception) -> tuple[Problem, Exit]:
    """The problem behind an error of Azure's clients, and the exit code that it has."""
    from azure.core.exceptions import (
        ClientAuthenticationError,
        HttpResponseError,
        ServiceRequestError,
        ServiceResponseError,
    )

    message = _message(error)
    if isinstance(error, ServiceRequestError | ServiceResponseError):
        found = f"the connection to Azure failed: {message}"
        return Problem("no-connection", found, "an answer", _AGAIN), Exit.RUN_FAILED
    status = error.status_code or 0 if isinstance(error, HttpResponseError) else 0
    if isinstance(error, ClientAuthenticationError):
        status = 401
    for known in KNOWN:
        if known.status in (0, status) and re.search(known.pattern, str(error), re.I):
            found = known.found.format(message=message)
            return Problem(known.code, found, hint=known.hint), known.exit_code
    if status >= 500:
        found = f"Azure answered {status}: {message}"
        return Problem("azure-failed", found, "an answer", _AGAIN), Exit.RUN_FAILED
    hint = f"the answer in full: tail {shown(log())}"
    return Problem("azure-refused", f"Azure refuses this: {message}", hint=hint), Exit.WRONG_CALL


def is_passing(error: Exception) -> bool:
    """Whether the same request may succeed later: no connection, throttled, the service's fault."""
    _, exit_code = explain(error)
    return exit_code == Exit.RUN_FAILED


def log() -> Path:
    """The file with every answer that became a problem, as Azure gave it."""
    return home.home() / "azure" / "errors.log"


def _record(error: Exception) -> None:
    log().parent.mkdir(parents=True, exist_ok=True)
    with log().open("a") as file:
        file.write(f"{datetime.now().isoformat(timespec='seconds')} {error!r}\n{error}\n\n")


def _message(error: Exception) -> str:
    """The service's message without its codes and additional information, on one line."""
    inner = getattr(error, "error", None)
    text = str(getattr(inner, "message", None) or getattr(error, "message", None) or error)
    text = re.split(r"\nCode: |\nAdditional Information|\nInner Exception", text)[0]
    return " ".join(text.split())
