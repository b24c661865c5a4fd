"""Plans the batch deployment of a model as a parallel job that scores local data.

Source: reference-yaml-deployment-batch. The scoring script defines init() and run(mini_batch), as
in a parallel step. The results of run() become rows of `predictions.csv` in the output `score`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ml.core import repository
from ml.core.errors import Exit, Problem, UserError, errors
from ml.specs.check import check
from ml.specs.plan import fields
from ml.specs.plan.bindings import Bindings
from ml.specs.plan.plans import CommandPlan, Frozen, InputPlan, OutputPlan, Parallel
from ml.specs.sdk.load import Spec

OUTPUT = "score"
# The environment variable with the model's parent folder (how-to-batch-scoring-script).
MODEL_DIR = "AZUREML_MODEL_DIR"


def planned(spec: Spec, data: Path, registered: Path | None = None) -> CommandPlan:
    """Return the plan that scores a local file or folder with a batch deployment.

    Raises UserError for an invalid spec or missing data, and for a deployment of a pipeline or of a
    model without a scoring script.
    """
    problems = errors(check.check(spec))
    if problems:
        raise UserError(*problems)
    if spec.kind.family == "pipeline_component_batch_deployment" or not spec.get(
        "code_configuration"
    ):
        actual = "a batch deployment of a pipeline, or of an MLflow model without a script"
        problem = Problem("unsupported-kind", actual, "`code_configuration`", place=spec.place())
        raise UserError(problem, exit_code=Exit.CANNOT_HONOUR)
    if not data.exists():
        hint = "--input PATH"
        raise UserError(
            Problem("missing-file", f"`{data}` does not exist", "a file or folder", hint)
        )
    bindings = Bindings(repository.root(spec.file), registered)
    model = _model(spec, bindings)
    code = bindings.code(spec, "code_configuration", "code")
    environment = bindings.environment(spec, "environment")
    if bindings.problems or model is None or model.path is None:
        raise UserError(*bindings.problems or [_no_model(spec)])
    variables = {MODEL_DIR: str(model.path.parent), **_setting(spec, "environment_variables", {})}
    action = str(_setting(spec, "output_action", "append_row"))
    kind = "uri_file" if data.is_file() else "uri_folder"
    place = spec.place("code_configuration")
    return CommandPlan(
        place=spec.place(),
        display_name=f"{spec.get('endpoint_name')}-{spec.get('name')}",
        experiment=str(spec.get("endpoint_name")),
        command="",
        code=code,
        environment=environment,
        compute=fields.text(spec.get("compute")),
        environment_variables=Frozen((str(k), fields.text(v)) for k, v in variables.items()),
        inputs=Frozen({"input": InputPlan("input", kind, place, source=str(data), path=data)}),
        outputs=Frozen({OUTPUT: OutputPlan(OUTPUT, "uri_folder", place)}),
        instance_count=int(spec.get("resources", "instance_count") or 1),
        parallel=Parallel(
            entry_script=str(spec.get("code_configuration", "scoring_script")),
            input="input",
            place=place,
            mini_batch_size=int(_setting(spec, "mini_batch_size", 10)),
            append_row_to=OUTPUT if action == "append_row" else "",
            append_file=str(_setting(spec, "output_file_name", "predictions.csv")),
            max_concurrency_per_instance=int(_setting(spec, "max_concurrency_per_instance", 1)),
            max_retries=int(_setting(spec, "retry_settings", {}).get("max_retries", 3)),
            run_timeout_s=float(_setting(spec, "retry_settings", {}).get("timeout", 30)),
            error_threshold=int(_setting(spec, "error_threshold", -1)),
            logging_level=str(_setting(spec, "logging_level", "INFO")).upper(),
        ),
        tags=fields.tags(spec),
        places=fields.places(spec),
    )


def _setting(spec: Spec, key: str, default: Any) -> Any:
    """Return `settings.KEY`, else the top-level KEY of older specs, else the default."""
    for value in (spec.get("settings", key), spec.get(key)):
        if value is not None:
            return value
    return default


def _model(spec: Spec, bindings: Bindings) -> InputPlan | None:
    written = spec.get("model")
    path = written.get("path") if isinstance(written, dict) else written
    if not path:
        return None
    return bindings.data(spec, ("model",), {"type": "custom_model", "path": path}, "model")


def _no_model(spec: Spec) -> Problem:
    hint = "model: {path: FOLDER}, or an asset that a model spec of the repository defines"
    actual = f"`model: {spec.get('model')}` is not on this machine"
    return Problem("data-not-local", actual, "a path", hint, spec.place("model"))
