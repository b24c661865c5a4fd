"""Run the deployments of the stand-in's endpoints on the real inference server, on this machine.

The container of a managed deployment runs the same server; see `ml.backends.local.serving.launch`.
"""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from threading import Thread
from typing import Any
from uuid import uuid4

from ml.backends.endpoints import ModelDeployment, Server
from ml.backends.local.serving import endpoint, processes, server
from ml.backends.local.serving.processes import HOST
from ml.core.errors import UserError
from ml.serving.scoring.model import MODEL_DIGEST
from tests.stand_ins.azure.storage import Storage


@dataclass
class Deployed:
    """A deployment with its server once it runs, or the problem of its start."""

    slot: Path
    properties: Mapping[str, Any]
    running: Server | None = None
    problem: str = ""
    seconds: list[float] = field(default_factory=list)
    _thread: Thread = field(default_factory=Thread)

    @property
    def state(self) -> str:
        """Return the deployment's `provisioningState`."""
        if self.problem:
            return "Failed"
        return "Succeeded" if self.running else "Creating"

    def start(self, storage: Storage, model: tuple[str, str, str], code: str) -> None:
        """Download model (name, version, URI) and code, and start the server in the background."""

        def work() -> None:
            try:
                self.running = server.start(self.slot, self._model_deployment(storage, model, code))
            except UserError as refused:
                self.problem = refused.problems[0].actual.splitlines()[0]

        self._thread = Thread(target=work, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop the server, even while it is starting."""
        self._thread.join()
        processes.stop(self.slot)

    def log(self, lines: int) -> str:
        """Return the last lines of the server's log."""
        log = processes.log(self.slot)
        text = log.read_text(errors="replace") if log.is_file() else ""
        return "\n".join(text.splitlines()[-lines:])

    def score(self, body: bytes) -> tuple[int, bytes, float]:
        """Send a request; return status (502 without a response), body and seconds."""
        began = time.monotonic()
        assert self.running is not None
        connection = http.client.HTTPConnection(HOST, self.running.port, timeout=30)
        try:
            connection.request("POST", "/score", body, {"Content-Type": "application/json"})
            response = connection.getresponse()
            return response.status, response.read(), time.monotonic() - began
        except (OSError, http.client.HTTPException):
            return 502, b"", time.monotonic() - began
        finally:
            connection.close()

    def memory(self) -> float:
        """Return the server's memory in bytes."""
        assert self.running is not None
        measured = endpoint.resident(self.running)
        return measured[1] if measured else 0.0

    def collect(
        self, storage: Storage, paths: Mapping[str, str], request: str, body: Any, answer: Any
    ) -> None:
        """Append a request and its response to the data of collections; `paths` has their folders.

        docs how-to-collect-production-data: a line of JSON (CloudEvents) in a file for each hour.
        """
        now, correlation = datetime.now(UTC), str(uuid4())
        for collection, data in (("request", body), ("response", answer)):
            event = {
                **{"specversion": "1.0", "id": str(uuid4()), "time": now.isoformat()},
                **{"source": self.slot.name, "type": f"azureml.inference.{collection}"},
                **{"datacontenttype": "application/json", "data": data},
                **{"correlationid": correlation, "xrequestid": request},
            }
            name = f"{paths[collection]}/{now:%Y/%m/%d/%H}/{self.slot.name}-0.jsonl"
            storage.append(name, json.dumps(event) + "\n")

    def _model_deployment(
        self, storage: Storage, model: tuple[str, str, str], code: str
    ) -> ModelDeployment:
        name, version, uri = model
        variables = self.properties.get("environmentVariables") or {}
        return ModelDeployment(
            endpoint=self.slot.parent.name,
            model=name,
            version=version,
            digest=variables.get(MODEL_DIGEST, ""),
            code=storage.fetch(code, self.slot / "code"),
            scoring_script=self.properties["codeConfiguration"]["scoringScript"],
            model_folder=storage.fetch(uri, self.slot / "model"),
            environment_variables=variables,
        )
