"""What a project's endpoint.yml and deployment.yml ask for, as far as this machine can give it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ml.core.errors import Problem, Refused, errors
from ml.specs.sdk.load import Spec, load

LONGEST_MS = 180_000  # what managed online endpoints allow a request


@dataclass(frozen=True)
class Deployment:
    """A managed online deployment: `code` is absolute and `scoring_script` relative to it.

    `collect` is the share of requests that its `data_collector` writes down.
    """

    endpoint: str
    code: Path
    scoring_script: str
    instance_type: str
    environment_variables: Mapping[str, str]
    collect: float = 0.0


def read(folder: Path) -> Deployment:
    """The deployment that the folder's two specs describe; raises Refused when they do not fit."""
    from ml.specs.check.check import check

    endpoint_spec, spec = load(folder / "endpoint.yml"), load(folder / "deployment.yml")
    if wrong := errors([*check(endpoint_spec), *check(spec)]):
        raise Refused(*wrong)
    for one, family in ((endpoint_spec, "online_endpoint"), (spec, "online_deployment")):
        if one.kind.family != family:
            expected = f"an {family.replace('_', ' ')}"
            raise Refused(Problem("wrong-kind", f"a {one.kind}", expected, place=one.place()))
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
    configured = deployment.code_configuration
    if configured is None:
        raise Refused(
            Problem(
                "no-code",
                "the deployment has no `code_configuration`",
                "the code and the scoring script that answer",
                "endpoints without code need MLflow models, which are pickles",
                spec.place(),
            )
        )
    code = (folder / configured.code).resolve()
    script = str(configured.scoring_script)
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
        # What a managed endpoint sets from request_settings.
        variables.setdefault("SCORING_TIMEOUT_MS", str(settings.request_timeout_ms))
    _check_timeout(variables.get("SCORING_TIMEOUT_MS"), spec)
    return Deployment(
        endpoint=str(endpoint.name),
        code=code,
        scoring_script=script,
        instance_type=str(deployment.instance_type or ""),
        environment_variables=variables,
        collect=_collected(deployment.data_collector),
    )


def _check_timeout(found: str | None, spec: Spec) -> None:
    """Refuse what is no time that a managed endpoint waits for an answer."""
    if found is None or (re.fullmatch(r"[1-9][0-9]{0,5}", found) and int(found) <= LONGEST_MS):
        return
    named = spec.document.get("environment_variables", "SCORING_TIMEOUT_MS") is not None
    keys = ("environment_variables", "SCORING_TIMEOUT_MS") if named else ("request_settings",)
    raise Refused(
        Problem(
            "wrong-value",
            f"an answer may take `{found[:40]}` milliseconds",
            f"a whole number from 1 to {LONGEST_MS}",
            place=spec.place(*keys),
        )
    )


def _collected(collector: Any) -> float:
    """What is sampled of the payloads: all, unless `sampling_rate` says less.

    `request` and `response` are the collections of payload logging; one without the other is none
    here. Others are the scoring script's own affair.
    """
    if collector is None:
        return 0.0
    enabled = {
        name for name, one in collector.collections.items() if str(one.enabled).lower() == "true"
    }
    if not {"request", "response"} <= enabled:
        return 0.0
    return 1.0 if collector.sampling_rate is None else float(collector.sampling_rate)
