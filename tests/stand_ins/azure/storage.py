"""The workspace's storage: a container of a real Azurite, with access by SAS."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from azure.core.exceptions import ResourceExistsError
from azure.storage.blob import (
    AccountSasPermissions,
    BlobServiceClient,
    ContainerClient,
    ResourceTypes,
    generate_account_sas,
)

from tests.stand_ins.azurite_server import ACCOUNT

# Azurite's well-known account key: learn.microsoft.com/azure/storage/common/storage-use-azurite
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
CONTAINER = "azureml-blobstore"
DATASTORES = ("workspaceblobstore", "workspaceartifactstore")
# `azureml://datastores/NAME/paths/PATH` or `azureml://subscriptions/…/datastores/NAME/paths/PATH`.
_URI = re.compile(r"azureml://(?:.*/)?datastores/(?P<store>[^/]+)/(?:paths/)?(?P<path>.*)")


@dataclass(frozen=True)
class Storage:
    """Azurite at `url` with its certificate; `name` is a workspace's container."""

    url: str
    certificate: str
    name: str = CONTAINER

    @property
    def account(self) -> str:
        """Return the account name of a datastore.

        The SDK builds `https://{account}.blob.{suffix}`. A `#` at the end of the account turns the
        rest into a fragment, so that no DNS name is needed.
        """
        return f"{self.url.removeprefix('https://')}#"

    def sas(self) -> str:
        """Return a SAS for everything in the account."""
        return generate_account_sas(
            ACCOUNT,
            KEY,
            ResourceTypes(service=True, container=True, object=True),
            AccountSasPermissions(read=True, write=True, list=True, create=True, add=True),
            datetime.now(UTC) + timedelta(hours=12),
        )

    def container(self, name: str = "") -> ContainerClient:
        """Return a container, by default the workspace's; create it if missing."""
        service = BlobServiceClient(
            self.url, credential=KEY, connection_verify=self.certificate, retry_total=1
        )
        client = service.get_container_client(name or self.name)
        with suppress(ResourceExistsError):
            client.create_container()
        return client

    def fetch(self, uri: str, into: Path) -> Path:
        """Download the file or folder of a datastore URI or blob URL; return its local path."""
        container, path = self._located(uri)
        prefix = path.rstrip("/")
        for blob in container.list_blobs(name_starts_with=prefix):
            inside = blob.name[len(prefix) :]
            if inside and not inside.startswith("/") and prefix:
                continue  # another blob whose name has the same prefix
            target = into / (inside.lstrip("/") or Path(prefix).name)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(container.download_blob(blob.name).readall())
        single = into / Path(prefix).name
        return single if prefix and single.is_file() and not path.endswith("/") else into

    def store(self, path: Path, to: str) -> None:
        """Upload a file or folder to a path in the workspace's container."""
        container = self.container()
        files = [path] if path.is_file() else [each for each in path.rglob("*") if each.is_file()]
        for file in files:
            inside = "" if path.is_file() else f"/{file.relative_to(path).as_posix()}"
            container.upload_blob(f"{to}{inside}", file.read_bytes(), overwrite=True)

    def append(self, path: str, text: str) -> None:
        """Append text to a blob, by its datastore URI."""
        container, name = self._located(path)
        blob = container.get_blob_client(name)
        if not blob.exists():
            blob.create_append_blob()
        blob.append_block(text.encode())

    def without_account(self, uri: str) -> str:
        """Return a blob's URL without the account in its path, as the SDK expects it."""
        return uri.replace(f"{self.url}/", f"{self.url.rpartition('/')[0]}/")

    def container_of(self, uri: str) -> str:
        """Return the container in a blob's URL."""
        return uri.removeprefix(f"{self.url.rpartition('/')[0]}/").partition("/")[0]

    def _located(self, uri: str) -> tuple[ContainerClient, str]:
        if match := _URI.match(uri):
            return self.container(), match["path"]
        name, _, path = self.without_account(uri).split("/", 3)[3].partition("/")
        return self.container(name), path
