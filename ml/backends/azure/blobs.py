"""What releases keep in the workspace's blob storage: the audit log, for every machine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ml.backends.azure.errors import as_refusals
from ml.backends.azure.workspace import Workspace

# The folder of releases in the container of the workspace's default datastore.
FOLDER = "releases"


class AzureAuditLog:
    """An append blob: implements `ml.backends.audit_log.AuditLog`."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace

    @property
    def place(self) -> str:
        return f"{self._workspace.name}: {FOLDER}/audit.jsonl"

    def read(self) -> bytes | None:
        """None also for the moment in which the blob is there and its first line is not."""
        from azure.core.exceptions import ResourceNotFoundError

        with as_refusals():
            try:
                return self._blob.download_blob().readall() or None
            except ResourceNotFoundError:
                return None

    def append(self, line: Callable[[bytes | None], bytes]) -> None:
        """The service appends at the end that `line` was made for, or refuses."""
        from azure.core import MatchConditions
        from azure.core.exceptions import HttpResponseError, ResourceExistsError

        while True:
            content = self.read()
            added = line(content)
            with as_refusals():
                try:
                    if content is None:
                        self._blob.create_append_blob(match_condition=MatchConditions.IfMissing)
                    self._blob.append_block(added, appendpos_condition=len(content or b""))
                    return
                except ResourceExistsError:  # created by somebody else since
                    pass
                except HttpResponseError as error:
                    if error.status_code != 412:  # Precondition Failed
                        raise
            # Somebody was faster, or it was this very line whose answer was lost.
            if (self.read() or b"").startswith((content or b"") + added):
                return

    @property
    def _blob(self) -> Any:
        return self._workspace.blobs.get_blob_client(f"{FOLDER}/audit.jsonl")
