"""Reads a project's endpoint.yml and deployment.yml, as far as this machine can honour them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ml.core.errors import Problem, Refused, errors
from ml.specs.sdk.load import Spec, load

MAX_TIMEOUT_MS = 180_000  # the longest request timeout of a managed online endpoint
TIMEOUT = "SCORING_TIMEOUT_MS"


@dataclass(frozen=True)
class Deployment:
    """A managed online deployment: `code` is absolute and `scoring_script` relative to it.

    `collect` is the share of requests that its `data_collector` records, `settings` the content of
    deployment.yml.
    """

    endpoint: str
    code: Path
    scoring_script: str
    instance_type: str
    environment_variables: Mapping[str, str]
    settings: Mapping[str, Any]
    collect: float = 0.0


def read(folder: Path) -> Deployment:
    """The deployment in the folder's two specs; raises Refused when they do not fit together."""
    from ml.specs.check.check import check

    endpoint_spec, spec = load(folder / "endpoint.yml"), load(folder / "deployment.yml")
    if problems := errors([*check(endpoint_spec), *check(spec)]):
        raise Refused(*problems)
    for each, family in ((endpoint_spec, "online_endpoint"), (spec, "online_deployment")):
        if each.kind.family != family:
            expected = f"an {family.replace('_', ' ')}"
            raise Refused(Problem("wrong-kind", f"a {each.kind}", expected, place=each.place()))
    endpoint, deployment = endpoint_spec.entity, spec.entity
    if deployment.endpoint_name != endpoint.name:
        raise Refused(
            Problem(
                "endpoint-mismatch",
                f"the deployment is for `{deployment.endpoint_name}`",
                f"the endpoint of endpoint.yml, `{endpoint.name}`",
                place=spec.place("endpoint_name"),
            )
        )
    configuration = deployment.code_configuration
    if configuration is None:
        raise Refused(
            Problem(
                "no-code",
                "the deployment has no `code_configuration`",
                "the code and the scoring script that answer",
                "endpoints without code need MLflow models, which are pickles",
                spec.place(),
            )
        )
    code = (folder / configuration.code).resolve()
    script = str(configuration.scoring_script)
    if not (code / script).is_file():
        raise Refused(
            Problem(
                "no-scoring-script",
                f"there is no {script} in {code}",
                "a file relative to `code_configuration.code`",
                place=spec.place("code_configuration", "scoring_script"),
            )
        )
    settings = deployment.request_settings
    variables = {str(k): str(v) for k, v in (deployment.environment_variables or {}).items()}
    if settings is not None and settings.request_timeout_ms:
        # A managed endpoint sets it from request_settings.
        variables.setdefault(TIMEOUT, str(settings.request_timeout_ms))
    _check_timeout(variables.get(TIMEOUT), spec)
    return Deployment(
        endpoint=str(endpoint.name),
        code=code,
        scoring_script=script,
        instance_type=str(deployment.instance_type or ""),
        environment_variables=variables,
        settings=spec.document.data,
        collect=_collected(deployment.data_collector),
    )


def _check_timeout(value: str | None, spec: Spec) -> None:
    """Refuse a timeout that a managed endpoint does not accept."""
    if value is None or (re.fullmatch(r"[1-9][0-9]{0,5}", value) and int(value) <= MAX_TIMEOUT_MS):
        return
    is_variable = spec.document.get("environment_variables", TIMEOUT) is not None
    keys = ("environment_variables", TIMEOUT) if is_variable else ("request_settings",)
    raise Refused(
        Problem(
            "wrong-value",
            f"an answer may take `{value[:40]}` milliseconds",
            f"a whole number from 1 to {MAX_TIMEOUT_MS}",
            place=spec.place(*keys),
        )
    )


def _collected(collector: Any) -> float:
    """The share of payloads to record: all, unless `sampling_rate` is lower.

    `request` and `response` are the collections of payload logging; both are needed here. Other
    collections are written by the scoring script itself.
    """
    if collector is None:
        return 0.0
    enabled = {
        name
        for name, collection in collector.collections.items()
        if str(collection.enabled).lower() == "true"
    }
    if not {"request", "response"} <= enabled:
        return 0.0
    return 1.0 if collector.sampling_rate is None else float(collector.sampling_rate)
