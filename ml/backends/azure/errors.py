"""What Azure refuses, in this template's form: what happened, and the command that mends it.

The service's own answer is kept unchanged in a log.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
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

    def problem(self, message: str) -> Problem:
        """The problem with the service's own message in it."""
        return Problem(self.code, self.found.format(message=message), hint=self.hint)


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
        "no-size-in-region",
        0,
        r"SkuNotAvailable|InvalidVMSize|VMSize\w*NotSupported|size .* not (available|supported) in",
        "the region lacks this VM size: {message}",
        "az vm list-skus --location REGION --size SIZE; then `clusters` in infra/Pulumi.ENV.yaml",
    ),
    Known(
        "image-build-failed",
        0,
        r"image build (job )?(has )?failed|ImageBuildFail",
        "the image of the environment cannot be built: {message}",
        "mend the conda file or the Dockerfile, and raise the environment's version; "
        "ml run SPEC --isolated builds a conda file here",
    ),
    Known(
        "no-data-access",
        0,
        r"AuthorizationPermissionMismatch|StreamAccess\.(Authentication|Permission)"
        r"|not authorized to (perform this operation|access) .*(permission|stor|data)"
        r"|(storage|datastore|blob).*(access|permission).*denied",
        "the data may not be read or written: {message}",
        'az role assignment create --role "Storage Blob Data Contributor" --assignee IDENTITY '
        "--scope ACCOUNT",
    ),
    Known(
        "name-held",
        409,
        r"soft.?deleted|deleted but recoverable",
        "a deleted resource still holds the name: {message}",
        "az ml workspace delete --permanently-delete, az keyvault purge; or take another name",
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
_LOST = Known(
    "no-connection",
    0,
    "",
    "the connection to Azure failed: {message}",
    _AGAIN,
    Exit.RUN_FAILED,
)
_FAILED = Known(
    "azure-failed", 500, "", "Azure's service failed: {message}", _AGAIN, Exit.RUN_FAILED
)
_REFUSED = Known(
    "azure-refused", 0, "", "Azure refuses this: {message}", "the answer in full: tail LOG"
)
# What is asked last: no answer, the service's own failure (any status from 500 on), all else.
OTHERWISE = (_LOST, _FAILED, _REFUSED)


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
        return _LOST.problem(message), Exit.RUN_FAILED
    status = error.status_code or 0 if isinstance(error, HttpResponseError) else 0
    if isinstance(error, ClientAuthenticationError):
        status = 401
    for known in KNOWN:
        if known.status in (0, status) and re.search(known.pattern, str(error), re.I):
            return known.problem(message), known.exit_code
    if status >= 500:
        return _FAILED.problem(f"{status}, {message}"), Exit.RUN_FAILED
    refused = _REFUSED.problem(message)
    hint = refused.hint.replace("LOG", shown(log()))
    return replace(refused, hint=hint), Exit.WRONG_CALL


def explain_job(message: str) -> Problem | None:
    """The problem behind what a job failed of on Azure's side; None for any other failure."""
    for known in KNOWN:
        if known.status == 0 and re.search(known.pattern, message, re.I):
            return known.problem(" ".join(message.split()))
    return None


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
