"""Translate Azure's errors into UserErrors with the next command.

The service's full response is appended to a log.
"""

from __future__ import annotations

import json
import re
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from json import JSONDecodeError
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ml.core import home
from ml.core.errors import Exit, Problem, UserError
from ml.core.repository import shown

if TYPE_CHECKING:
    from azure.core.exceptions import HttpResponseError

T = TypeVar("T")


@dataclass(frozen=True)
class Known:
    """A known error of Azure, with the code, text and hint to report it."""

    code: str
    status: int  # HTTP status; 0: every status
    pattern: str  # regular expression for the service's error, ignoring case; "" matches all
    actual: str  # may contain `{message}`, the service's message
    hint: str
    exit_code: Exit = Exit.WRONG_CALL  # `RUN_FAILED` if a retry may succeed

    def problem(self, message: str) -> Problem:
        """Return the problem; `message` is the service's."""
        return Problem(self.code, self.actual.format(message=message), hint=self.hint)


# The first match applies.
KNOWN = (
    Known(
        "not-signed-in",
        401,
        "",
        "Azure rejected the sign-in: {message}",
        "az login --tenant YOUR-TENANT, then run this again",
    ),
    Known(
        "no-permission",
        403,
        "AuthorizationFailed|does not have authorization",
        "your role does not allow this: {message}",
        'az role assignment create --role "AzureML Data Scientist" --assignee YOU --scope SCOPE',
    ),
    Known(
        "no-permission",
        403,
        "",
        "Azure denied access: {message}",
        "infra doctor lists the roles that are missing",
    ),
    Known(
        "quota",
        0,
        # Not inside a name: messages contain the names of endpoints, jobs and assets.
        r"(?<![/-])quota(?!\w*-)",
        "the quota is exceeded: {message}",
        "az ml compute list-usage --location REGION, then request more in the portal",
    ),
    Known(
        "no-size-in-region",
        0,
        r"SkuNotAvailable|InvalidVMSize|VMSize\w*NotSupported|size .* not (available|supported) in",
        "the region does not offer this VM size: {message}",
        "az vm list-skus --location REGION --size SIZE; then `clusters` in infra/Pulumi.ENV.yaml",
    ),
    Known(
        "image-build-failed",
        0,
        r"image build (job )?(has )?failed|ImageBuildFail",
        "the image of the environment cannot be built: {message}",
        "fix the conda file or the Dockerfile, and increment the environment's version; "
        "ml run SPEC --isolated builds a conda file here",
    ),
    Known(
        "no-data-access",
        0,
        r"AuthorizationPermissionMismatch|StreamAccess\.(Authentication|Permission)"
        r"|not authorized to (perform this operation|access) .*(permission|stor|data)"
        r"|(storage|datastore|blob).*(access|permission).*denied",
        "the identity has no access to the data: {message}",
        'az role assignment create --role "Storage Blob Data Contributor" --assignee IDENTITY '
        "--scope ACCOUNT",
    ),
    Known(
        "name-soft-deleted",
        409,
        r"soft.?deleted|deleted but recoverable",
        "a soft-deleted resource has this name: {message}",
        "az ml workspace delete --permanently-delete, az keyvault purge; or take another name",
    ),
    Known(
        "no-provider",
        409,
        "MissingSubscriptionRegistration",
        "a resource provider is not registered: {message}",
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
        "no-container",
        404,
        "ContainerNotFound",
        "the workspace's storage has no container for the state of releases: {message}",
        "make deploy ENV=ENV makes it",
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
        "Azure throttles the requests: {message}",
        "wait some minutes and run this again: `ml run` follows a job that was submitted",
        Exit.RUN_FAILED,
    ),
)
_AGAIN = "run this again: `ml run` follows a job that was submitted"
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
_CANCELED = Known(
    "azure-canceled",
    200,
    "",
    "the operation was canceled before it ended{message}",
    "az monitor activity-log list -g GROUP --offset 1h names who; then run this again",
    Exit.RUN_FAILED,
)
UNKNOWN = "request-rejected"
# Codes of the service's own faults.
_PASSING = frozenset({"InternalServerError", "OutOfCapacity"})
_REFUSED = Known(
    UNKNOWN, 0, "", "Azure rejected the request: {message}", "the full response: tail LOG"
)
# Raised by azure-ai-ml if a response has another shape than it assumes.
_UNCHECKED = (AttributeError, LookupError, TypeError, ValueError, RecursionError)


@contextmanager
def as_user_errors() -> Iterator[None]:
    """Raise every error of Azure's clients as UserError, also an unreadable response."""
    from azure.ai.ml.exceptions import MlException
    from azure.core.exceptions import AzureError

    try:
        yield
    except (AzureError, MlException, JSONDecodeError, *_UNCHECKED) as error:
        is_known = isinstance(error, AzureError | MlException | JSONDecodeError)
        if not is_known and not _is_of_client(error):
            raise
        _record(error)
        problem, exit_code = explain(error)
        raise UserError(problem, exit_code=exit_code) from error


def or_none(get: Callable[[], Any]) -> Any:
    """Return what `get` returns, or None if Azure has no such resource.

    Errors become UserError as in `as_user_errors`.
    """
    from azure.core.exceptions import ResourceNotFoundError

    with as_user_errors():
        try:
            return get()
        except ResourceNotFoundError:
            return None


def _is_of_client(error: BaseException) -> bool:
    """Return whether an Azure client raised the error, rather than code of `ml` that it called."""
    names = [
        str(frame.f_globals.get("__name__")) for frame, _ in traceback.walk_tb(error.__traceback__)
    ]
    ours = max(index for index, name in enumerate(names) if name.startswith("ml."))
    return any(name.startswith("azure.") for name in names[ours:])


def explain(error: Exception) -> tuple[Problem, Exit]:
    """Translate an error of Azure's clients into a problem and the exit code."""
    from azure.core.exceptions import (
        ClientAuthenticationError,
        DecodeError,
        HttpResponseError,
        ServiceRequestError,
        ServiceResponseError,
    )

    message = _message(error)
    if isinstance(error, ServiceRequestError | ServiceResponseError):
        return _LOST.problem(message), Exit.RUN_FAILED
    if isinstance(error, (DecodeError, JSONDecodeError, *_UNCHECKED)):
        return _FAILED.problem(f"its response cannot be parsed: {message}"), Exit.RUN_FAILED
    status = error.status_code or 0 if isinstance(error, HttpResponseError) else 0
    if isinstance(error, ClientAuthenticationError):
        status = 401
    for entry in KNOWN:
        if entry.status in (0, status) and re.search(entry.pattern, str(error), re.I):
            return entry.problem(message), entry.exit_code
    if status >= 500:
        return _FAILED.problem(f"{status}, {message}"), Exit.RUN_FAILED
    if isinstance(error, HttpResponseError) and _status_of_operation(error) == "canceled":
        # Without one, azure-core's message only says that "OK" is an invalid status.
        reason = f": {message}" if error.error is not None else ""
        return _CANCELED.problem(reason), _CANCELED.exit_code
    refused = _REFUSED.problem(message)
    hint = refused.hint.replace("LOG", shown(log()))
    return replace(refused, hint=hint), Exit.WRONG_CALL


def is_passing(error: HttpResponseError) -> bool:
    """Return whether a retry of the request may succeed.

    That is true for a conflict (409) without a known cause, and for a fault of the service. Its
    code may be only in the details of the error.
    """
    is_conflict = error.status_code == 409 and explain(error)[0].code == UNKNOWN
    return is_conflict or not _PASSING.isdisjoint(_codes(error.error))


def _codes(error: Any) -> Iterator[str]:
    """Yield the codes of an OData error, of its details and of its inner errors."""
    if isinstance(error, dict):
        yield str(error.get("code"))
        parts = [*(error.get("details") or ()), error.get("innererror")]
    else:
        yield str(getattr(error, "code", ""))
        parts = [*(getattr(error, "details", None) or ()), getattr(error, "innererror", None)]
    for part in filter(None, parts):
        yield from _codes(part)


def retried(act: Callable[[], T], pause_s: float, attempts: int = 4) -> T:
    """Return the result of an operation, retried after transient errors (`is_passing`)."""
    from azure.core.exceptions import HttpResponseError

    for _ in range(attempts - 1):
        try:
            return act()
        except HttpResponseError as error:
            if not is_passing(error):
                raise
        time.sleep(pause_s)
    return act()


def _status_of_operation(error: HttpResponseError) -> str:
    """Return the final status of a failed long-running operation; "" for another error."""
    from azure.core.polling.base_polling import OperationFailed

    if error.response is None or not isinstance(error.inner_exception, OperationFailed):
        return ""
    body = json.loads(error.response.text())
    return str(body.get("status") or body["properties"]["provisioningState"]).lower()


def explain_job(message: str) -> Problem | None:
    """Return the known problem of Azure that a job's error message matches; None if none does."""
    for entry in KNOWN:
        if entry.status == 0 and re.search(entry.pattern, message, re.I):
            return entry.problem(" ".join(message.split()))
    return None


def log() -> Path:
    """Return the path of the log of Azure's error responses."""
    return home.home() / "azure" / "errors.log"


def _record(error: Exception) -> None:
    log().parent.mkdir(parents=True, exist_ok=True)
    with log().open("a") as file:
        text = _without_signature(f"{error!r}\n{error}")
        file.write(f"{datetime.now().isoformat(timespec='seconds')} {text}\n\n")


def _message(error: Exception) -> str:
    """Return the service's message without its codes and additional information, on one line."""
    inner = getattr(error, "error", None)
    text = str(getattr(inner, "message", None) or getattr(error, "message", None) or error)
    text = re.split(r"\nCode: |\nContent: |\nAdditional Information|\nInner Exception", text)[0]
    return _without_signature(" ".join(text.split()))


def _without_signature(text: str) -> str:
    """Return the text with SAS signatures hidden, since they grant access to the blob."""
    return re.sub(r"\b(sig=)[^&\s'\")]+", r"\1(hidden)", text)
