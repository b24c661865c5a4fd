"""Run the stand-in in the foreground; print the environment variables to use it, as JSON or shell.

It is a stand-in for Azure Machine Learning without a subscription, network or cost. It does not
prove that Azure would respond in the same way.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

NOTICE = """\
This is a stand-in for Azure Machine Learning on this machine, for trying `--on azure` without a
subscription. Jobs run here as local processes: there are no clusters, images, quotas, roles, prices
or network rules, and an endpoint has no machine of its own. Where it and Azure differ, Azure is
right. Ctrl-C ends it. In another terminal:
"""


def main() -> None:
    """Serve until a signal, or until the parent process closes standard input."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--home", type=Path, required=True, help="its folder")
    parser.add_argument("--json", action="store_true", help="print the variables as one JSON line")
    options = parser.parse_args()
    folder: Path = options.home.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    os.environ["MLOPS_HOME"] = str(folder)

    from ml.backends.local.tracking import tracking
    from tests.stand_ins import azurite_server, token_server
    from tests.stand_ins.azure import endpoints, resources  # noqa: F401, their routes
    from tests.stand_ins.azure.server import Server
    from tests.stand_ins.azure.service import CLOUD, GROUP, SUBSCRIPTION, WORKSPACE, Service
    from tests.stand_ins.azure.storage import Storage

    tracking.prepare()
    with azurite_server.running(folder) as azurite:
        storage = Storage(azurite.url, str(azurite.certificate))
        tokens: dict[str, str] = {}
        service = Service(storage, lambda header: header.removeprefix("Bearer ") in issued)
        server = Server(service.respond, service.copy, azurite.certificate, folder / "key.pem")
        service.url = server.url
        for audience in (server.url, "https://ml.azure.com", "https://storage.azure.com"):
            tokens[audience] = _token(audience)
        issued = frozenset(tokens.values())
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        with token_server.running(tokens) as (identity, _):
            variables = {
                **identity,
                "ARM_CLOUD_METADATA_URL": f"{server.url}/metadata/endpoints?api-version=2019-05-01",
                "AZUREML_CURRENT_CLOUD": CLOUD,
                "REGISTRY_DISCOVERY_ENDPOINT_URL": f"{server.url}/",
                "REQUESTS_CA_BUNDLE": str(azurite.certificate),
                "AZURE_SUBSCRIPTION_ID": SUBSCRIPTION,
                "AZUREML_RESOURCE_GROUP": GROUP,
                "AZUREML_WORKSPACE_NAME": WORKSPACE,
            }
            _announce(variables, options.json)
            _wait(options.json)
        for workspace in service.workspaces.values():
            for job in workspace.jobs.values():
                if job.process is not None and job.process.is_alive():
                    job.end()
            for deployed in workspace.deployed.values():
                deployed.stop()
        server.shutdown()


def _announce(variables: dict[str, str], as_json: bool) -> None:
    if as_json:
        print(json.dumps(variables), flush=True)
        return
    print(NOTICE)
    for name, value in variables.items():
        print(f"export {name}='{value}'")
    print("ml assets apply")
    print("ml run SPEC --on azure", flush=True)


def _wait(with_parent: bool) -> None:
    """Wait for SIGTERM or Ctrl-C; with a parent, also for the end of standard input."""
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    signal.signal(signal.SIGINT, lambda *_: ended.set())
    if with_parent:
        threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
    ended.wait()


def _token(audience: str) -> str:
    """Return an unsigned token for an audience.

    The SDK reads `aud` and `tid`; for datastores without credentials, Azurite also reads the
    issuer.
    """
    now, tenant = int(time.time()), "00000000-0000-0000-0000-00000000bb01"
    claims = {"aud": audience, "iat": now, "nbf": now, "exp": now + 86400, "oid": "somebody"}
    claims |= {"tid": tenant, "iss": f"https://sts.windows.net/{tenant}/"}
    parts = [{"alg": "none", "typ": "JWT"}, claims]
    encoded = [base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=") for part in parts]
    return b".".join([*encoded, b"c2ln"]).decode()


if __name__ == "__main__":
    main()
