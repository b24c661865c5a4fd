"""The state of releases in the workspace's blob storage, shared by all machines: the audit log and
one lease per endpoint. `endpoint_record` stores its record there too.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from threading import Event, Thread
from typing import Any

from ml.backends.azure.errors import as_user_errors, or_none
from ml.backends.azure.workspace import RELEASES, Workspace
from ml.core import home
from ml.core.errors import Exit, Problem, UserError

# Duration of a lease: how long a crashed machine blocks an endpoint. Azure allows 15 to 60 s.
LEASE_S = 30
# Polling interval while another machine holds the lease.
_POLL_S = 1.0


class AzureAuditLog:
    """The audit log in an append blob; implements `ml.backends.base.AuditLog`."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace

    @property
    def place(self) -> str:
        return f"{RELEASES}/{self._workspace.name}/audit.jsonl"

    def read(self) -> bytes | None:
        """Return the content; None if the blob is missing, or exists but is still empty."""
        return or_none(lambda: self._blob.download_blob().readall()) or None

    def append(self, line: Callable[[bytes | None], bytes]) -> None:
        """Append `line(content)`; call `line` again if another machine appended meanwhile."""
        from azure.core import MatchConditions
        from azure.core.exceptions import HttpResponseError, ResourceExistsError

        while True:
            content = self.read()
            added = line(content)
            with as_user_errors():
                try:
                    if content is None:
                        with suppress(ResourceExistsError):
                            self._blob.create_append_blob(match_condition=MatchConditions.IfMissing)
                    self._blob.append_block(added, appendpos_condition=len(content or b""))
                    return
                except HttpResponseError as error:
                    if error.status_code != 412:  # Precondition Failed
                        raise
            # Another machine appended first, or the response to this append was lost.
            if (self.read() or b"").startswith((content or b"") + added):
                return

    @property
    def _blob(self) -> Any:
        return self._workspace.release_blob("audit.jsonl")


class Lease:
    """A blob lease that lets one machine at a time release to the endpoint.

    The blob names the holder. The holder renews the lease; it expires `LEASE_S` after a crash.
    """

    def __init__(self, workspace: Workspace, endpoint: str) -> None:
        self._workspace, self._endpoint = workspace, endpoint
        self._until = 0.0

    @contextmanager
    def hold(self, waiting: Callable[[str], None]) -> Iterator[Lease]:
        """Hold the lease in the block; before waiting, call `waiting` with who holds it."""
        from azure.core.exceptions import AzureError
        from azure.storage.blob import BlobLeaseClient

        lease, released = BlobLeaseClient(self._blob), Event()
        with as_user_errors():
            self._acquire(lease, waiting)
        renewing = Thread(target=self._renew, args=(lease, released), daemon=True)
        renewing.start()
        try:
            yield self
        finally:
            released.set()
            renewing.join()
            with suppress(AzureError):  # it expires anyway
                lease.release()

    def check(self) -> None:
        """Raise UserError if the lease may have expired, so that another machine may hold it."""
        if time.time() > self._until:
            raise UserError(
                Problem(
                    "release-interrupted",
                    f"this machine could not renew its lease of `{self._endpoint}`, and another "
                    "one may release there now",
                    "a connection to the workspace's storage",
                    "rerun this command, which resumes",
                ),
                exit_code=Exit.RUN_FAILED,
            )

    def _acquire(self, lease: Any, waiting: Callable[[str], None]) -> None:
        from azure.core.exceptions import ResourceExistsError

        with suppress(ResourceExistsError):
            self._blob.upload_blob(b"{}")
        waits = False
        while True:
            began = time.time()
            try:
                lease.acquire(LEASE_S)
            except ResourceExistsError:
                if not waits:
                    waiting(self._holder())
                waits = True
                time.sleep(_POLL_S)
            else:
                self._note(lease, began)
                return

    def _renew(self, lease: Any, released: Event) -> None:
        from azure.core.exceptions import AzureError

        while not released.wait(LEASE_S / 3):
            began = time.time()
            with suppress(AzureError):  # `check` raises once it may have expired
                lease.renew()
                self._note(lease, began)

    def _note(self, lease: Any, began: float) -> None:
        """Write the lease's holder and expiry time to the blob."""
        self._until = began + LEASE_S
        until = datetime.fromtimestamp(self._until, UTC).isoformat(timespec="seconds")
        document = json.dumps({"holder": _identity(), "until": until})
        self._blob.upload_blob(document, overwrite=True, lease=lease)

    def _holder(self) -> str:
        record = json.loads(self._blob.download_blob().readall())
        holder, until = record.get("holder", "another machine"), record.get("until", "")
        return f"{holder} releases to {self._endpoint}, until {until} or longer; waiting"

    @property
    def _blob(self) -> Any:
        return self._workspace.release_blob(f"{self._endpoint}.lease")


def _identity() -> str:
    """Return the holder for messages: the URL of the workflow run, or user and machine."""
    if run := os.environ.get("GITHUB_RUN_ID"):
        return f"https://github.com/{os.environ.get('GITHUB_REPOSITORY')}/actions/runs/{run}"
    return f"{home.user()} on {socket.gethostname()}"
