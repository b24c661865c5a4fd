"""Compile an AutoML plan to a sweep with trials of `ml.automl.trial`.

The sweep first tries each family's portfolio of settings, then samples as a Bayesian sweep.
Unsupported fields of a spec are rejected with their line.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from ml.core.errors import Place, Problem
from ml.core.imports import FRAMEWORK
from ml.specs.plan.automl import snake
from ml.specs.plan.plans import (
    AutoMLPlan,
    CommandPlan,
    Dimension,
    Environment,
    Frozen,
    Hints,
    OutputPlan,
    PipelinePlan,
    Plan,
    Point,
    StoppingCriteria,
    SweepPlan,
)

if TYPE_CHECKING:  # import NumPy only for AutoML jobs
    from ml.automl.forecasting.families import Forecasters
    from ml.automl.models.families import Family

SEED = 0
# The output with a trial's out-of-fold predictions, on which ensembles are fitted.
PREDICTIONS = "predictions"
BEST_MODEL = "best_model"
# The fewest trials for which one is an ensemble, and for which a stack runs without a request.
FEWEST_WITH_ENSEMBLE, FEWEST_WITH_STACK = 4, 10
# "No early stopping for the first 20 iterations (landmarks) … the early stopping window starts on
# the 21st iteration and looks for early_stopping_n_iters (10)" (how-to-configure-auto-train).
PATIENCE, LANDMARKS = 10, 20
_EXTRA = "skl2onnx"
FORECASTING = "forecasting"
# The package that forecasting needs.
_FORECASTING_EXTRA = "statsforecast"
_TIME, _HORIZON, _FREQUENCY = "time_column_name", "forecast_horizon", "frequency"
_AGGREGATE = "target_aggregate_function"
# Fields with a whole number of steps, and those of them that allow `auto`.
_NUMBERS = (_HORIZON, "cv_step_size", "seasonality", "target_rolling_window_size", "target_lags")
_AUTOMATIC = frozenset(_NUMBERS[2:])
# Fields that a forecasting job rejects: validation, weight and test data.
_OTHERS = (
    "validation_data",
    "validation_data_size",
    "cv_split_column_names",
    "weight_column_name",
    "test_data",
    "test_data_size",
)

# Fields that are supported, or that do not affect the fit.
_HONOURED = frozenset(
    {"limits", "training", "featurization", "task", "type", "primary_metric", "target_column_name"}
    | {"training_data", "validation_data", "test_data", "validation_data_size", "test_data_size"}
    | {"n_cross_validations", "cv_split_column_names", "weight_column_name", "positive_label"}
    | {"outputs", "compute", "name", "display_name", "experiment_name", "description", "tags"}
    | {"$schema", "log_verbosity", "properties", "resources", "identity", "queue_settings", "id"}
)
_FIELDS: Mapping[str, frozenset[str]] = {
    "limits": frozenset(
        {"max_trials", "max_concurrent_trials", "timeout_minutes", "trial_timeout_minutes"}
        | {"exit_score", "enable_early_termination"}
    ),
    "training": frozenset(
        {"allowed_training_algorithms", "blocked_training_algorithms", "enable_vote_ensemble"}
        | {"enable_stack_ensemble", "stack_ensemble_settings"}
        # Always on here: evaluation explains every model, and no model needs a pickle.
        | {"enable_model_explainability", "enable_onnx_compatible_models"}
        | {"ensemble_model_download_timeout", "ensemble_model_download_timeout_minutes"}
    ),
    "featurization": frozenset(
        {"mode", "column_name_and_types", "dataset_language", "blocked_transformers"}
        | {"transformer_params"}
    ),
}
# The only setting of a stack. Its meta model is fitted on out-of-fold predictions, so no training
# share is needed, and azure-ai-ml 1.35 rejects `stack_meta_learner_kwargs`.
_META = "stack_meta_learner_type"
# Transformers that families need, and the imputer's supported strategies.
_NEEDED = frozenset({"one_hot_encoder", "label_encoder"})
_STRATEGIES = ("mean", "median", "most_frequent", "constant")
# Settings that select the validation rows, and the test rows: at most one of each group.
_ONE_OF = (
    ("validation_data", "validation_data_size", "n_cross_validations", "cv_split_column_names"),
    ("test_data", "test_data_size"),
)
# glibc would keep tens of megabytes of freed memory after a million rows. With this threshold it
# returns freed blocks from 128 KiB at once (mallopt(3), M_MMAP_THRESHOLD).
MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(1 << 17)}
# Values that switch off a setting: they are accepted even if the setting is unsupported.
_OFF = [(type(value), value) for value in (False, None, "auto", 1, -1, "non_distributed")]


def compile_plan(plan: Plan) -> CommandPlan | SweepPlan | PipelinePlan:
    """Return the plan with every AutoML job replaced by a sweep; others are unchanged."""
    if isinstance(plan, AutoMLPlan):
        return _sweep(plan)
    if isinstance(plan, PipelinePlan):
        steps = {
            name: replace(step, plan=compile_plan(step.plan)) for name, step in plan.steps.items()
        }
        return replace(plan, steps=Frozen(steps))
    return plan


def refusals(plan: AutoMLPlan) -> Iterator[Problem]:
    """Yield a problem, with its line, for each field or package that local AutoML lacks."""
    supported = _known(plan)
    if not supported:
        expected = "classification, regression or forecasting"
        yield _refused(plan, "task", f"`task: {plan.task}`", expected)
        return
    extra = _EXTRA if plan.task != FORECASTING else _FORECASTING_EXTRA
    if find_spec(extra) is None:
        yield Problem(
            "automl-packages",
            "an AutoML job needs packages that are not installed here",
            f"the extra `automl` ({extra})",
            "make automl",
            plan.places.get("type", plan.place),
        )
    for name, value in plan.settings.items():
        if plan.task == FORECASTING and name == FORECASTING:
            continue
        if name not in _HONOURED:
            yield _refused(plan, name, f"`{name}`", "a field that local AutoML supports")
        for key, setting in value.items() if name in _FIELDS and isinstance(value, Mapping) else ():
            # 1 == True
            if key not in _FIELDS[name] and (type(setting), setting) not in _OFF:
                expected = f"`{name}` with {', '.join(sorted(_FIELDS[name]))}"
                yield _refused(plan, f"{name}.{key}", f"`{name}.{key}: {setting}`", expected)
    if plan.task == FORECASTING:
        for field, actual, expected in _forecasting_refusals(plan):
            yield _refused(plan, field, actual, expected)
    else:
        yield from _of_stack(plan)
    yield from _of_transformers(plan)
    for group in _ONE_OF:
        rivals = [name for name in group if name in plan.inputs or _is_set(plan, name)]
        if len(rivals) > 1:
            together = f"`{rivals[1]}` with `{rivals[0]}`"
            yield _refused(plan, rivals[1], together, f"one of {', '.join(group)}")
    unknown = sorted({*plan.algorithms} - supported.keys())
    for name in unknown:
        field = "training.allowed_training_algorithms"
        yield _refused(plan, field, f"`{name}`", f"one of {', '.join(supported)}")
    tried = families(plan)
    if not tried and not unknown:
        field = "training.blocked_training_algorithms"
        yield _refused(plan, field, "every algorithm is blocked", "at least one algorithm")
    if plan.task == FORECASTING:
        return
    unweighted = [name for name, family in tried.items() if not family.weighted]
    if plan.settings.get("weight_column_name") and unweighted:
        actual = f"`{unweighted[0]}` with a weight column"
        yield _refused(plan, "weight_column_name", actual, "other algorithms, or no weight column")


def _of_stack(plan: AutoMLPlan) -> Iterator[Problem]:
    from ml.automl.models.families import META_LEARNERS

    stack, where = _stack(plan), "training.stack_ensemble_settings"
    for name in sorted(stack.keys() - {_META}):
        yield _refused(plan, where, f"`{name}`", _META)
    kind, supported = stack.get(_META, "none"), META_LEARNERS[plan.task]
    if kind not in (*supported, "none"):
        yield _refused(plan, where, f"`{kind}` as the meta model", ", ".join(supported))


def _stack(plan: AutoMLPlan) -> Mapping[str, Any]:
    settings = dict(plan.setting("training", "stack_ensemble_settings") or {})
    return settings | ({_META: snake(str(kind))} if (kind := settings.get(_META)) else {})


def _of_transformers(plan: AutoMLPlan) -> Iterator[Problem]:
    settings = _featurization(plan)
    for name in sorted(_NEEDED & {*settings.get("blocked_transformers", ())}):
        field = "featurization.blocked_transformers"
        expected = "not blocked: linear models need one column for each category"
        yield _refused(plan, field, f"`{name}` blocked", expected)
    field, parameters = "featurization.transformer_params", settings.get("transformer_params", {})
    for name in parameters.keys() - {"imputer"}:
        yield _refused(plan, field, f"`{name}` with parameters", "imputer")
    for entry in parameters.get("imputer", ()):
        for key, value in (entry.get("parameters") or {}).items():
            if key != "fill_value" and (key != "strategy" or value not in _STRATEGIES):
                expected = f"strategy ({', '.join(_STRATEGIES)}) and fill_value"
                yield _refused(plan, field, f"`{key}: {value}` of imputer", expected)


def _featurization(plan: AutoMLPlan) -> dict[str, Any]:
    """Return the spec's `featurization` with transformer names in snake case, for the trials."""
    settings = dict(plan.settings.get("featurization") or {})
    if blocked := settings.pop("blocked_transformers", None):
        settings["blocked_transformers"] = [snake(str(name)) for name in blocked]
    if parameters := settings.pop("transformer_params", None):
        settings["transformer_params"] = {snake(str(name)): v for name, v in parameters.items()}
    return settings


def _is_set(plan: AutoMLPlan, name: str) -> bool:
    return plan.settings.get(name) not in (None, "auto", "Auto")


def _refused(plan: AutoMLPlan, field: str, actual: str, expected: str) -> Problem:
    place = plan.places.get(field) or plan.places.get(field.partition(".")[0], plan.place)
    return Problem(
        "unsupported-automl",
        f"{actual} in an AutoML job is supported only on Azure",
        expected,
        f"ml run {plan.place.path} --on azure",
        place,
    )


def _known(plan: AutoMLPlan) -> Mapping[str, Family | Forecasters]:
    """Return the model families of the plan's task, by Azure ML's name; {} for another task."""
    from ml.automl.forecasting.families import FAMILIES
    from ml.automl.models.families import of_task

    return FAMILIES if plan.task == FORECASTING else of_task(plan.task)


def families(plan: AutoMLPlan) -> Mapping[str, Family | Forecasters]:
    """Return the model families to try: those the spec allows, or the defaults, minus blocked.

    Forecasting also tries the naive ones (`ALWAYS`), unless they are blocked.
    """
    from ml.automl.forecasting.families import ALWAYS

    allowed = {*plan.algorithms} | (ALWAYS if plan.task == FORECASTING else set())
    return {
        name: family
        for name, family in _known(plan).items()
        if name not in plan.blocked and (name in allowed if plan.algorithms else family.usual)
    }


def _sweep(plan: AutoMLPlan) -> SweepPlan:
    tried, place = families(plan), plan.place
    branches = tuple(_branch(name, family, plan.task, place) for name, family in tried.items())
    waits = plan.setting("limits", "enable_early_termination") is not False
    score = plan.setting("limits", "exit_score")
    return SweepPlan(
        place,
        plan.display_name,
        plan.experiment,
        _trial(plan),
        Frozen({"model": Dimension("model", "choice", branches, place)}),
        "bayesian",
        plan.goal,
        plan.primary_metric,
        seed=SEED,
        max_total_trials=plan.max_total_trials,
        max_concurrent_trials=plan.max_concurrent_trials,
        timeout_s=plan.timeout_s,
        trial_timeout_s=plan.trial_timeout_s,
        hints=Hints(tuple(_portfolio(tried, plan.task, place))),
        ending=StoppingCriteria(
            # azure-ai-ml reads a number in quotes too.
            exit_score=None if score is None else float(score),
            patience=PATIENCE if waits else None,
            landmarks=max(LANDMARKS, sum(len(family.portfolio) for family in tried.values())),
            ensembles=_ensembles(plan),
        ),
        tags=plan.tags,
        description=plan.description,
        places=plan.places,
    )


def _ensembles(plan: AutoMLPlan) -> tuple[str, ...]:
    """Return the ensembles to run as the last trials; each needs a minimum number of trials."""
    from ml.automl.ensembles import STACK, VOTING

    trials = plan.max_total_trials
    stacks = plan.setting("training", "enable_stack_ensemble")
    ensembles = []
    if plan.setting("training", "enable_vote_ensemble") is not False:
        ensembles += [VOTING] if trials >= FEWEST_WITH_ENSEMBLE else []
    if stacks is not False and plan.task != FORECASTING:
        enough = FEWEST_WITH_ENSEMBLE if stacks else FEWEST_WITH_STACK
        ensembles += [STACK] if trials >= enough + len(ensembles) else []
    return tuple(ensembles)


def _trial(plan: AutoMLPlan) -> CommandPlan:
    """Return the command of every trial; AZUREML_SWEEP_model holds the family and settings."""
    place = plan.place
    data = " ".join(f"--{key.replace('_', '-')} ${{{{inputs.{key}}}}}" for key in plan.inputs)
    outputs = dict(plan.outputs) or {BEST_MODEL: OutputPlan(BEST_MODEL, "custom_model", place)}
    model = BEST_MODEL if BEST_MODEL in outputs else next(iter(outputs))
    outputs[PREDICTIONS] = OutputPlan(PREDICTIONS, "uri_folder", place)
    words = f"--model ${{{{outputs.{model}}}}} --predictions ${{{{outputs.{PREDICTIONS}}}}}"
    job: dict[str, Any] = {
        **{"task": plan.task, "target": plan.target_column, "metric": plan.primary_metric},
        **{
            name: value
            for name, value in plan.settings.items()
            if name not in _FIELDS and isinstance(value, str | int | float | list | dict)
        },
        "seed": SEED,
    }
    module = "ml.automl.trial" if plan.task != FORECASTING else "ml.automl.forecasting.trial"
    folds = str(plan.settings.get("n_cross_validations"))
    job |= {"n_cross_validations": int(folds)} if folds.isdecimal() else {}  # perhaps in quotes
    job |= {"seconds": plan.timeout_s} if plan.timeout_s else {}
    job |= {"trial_seconds": plan.trial_timeout_s} if plan.trial_timeout_s else {}
    job |= {"stack": stack} if (stack := _stack(plan)) else {}
    job |= {"featurization": featurization} if (featurization := _featurization(plan)) else {}
    return CommandPlan(
        place,
        plan.display_name,
        plan.experiment,
        f"python -m {module} {data} {words}",
        FRAMEWORK,
        Environment("azureml:AutoML:1", place=place),
        plan.compute,
        environment_variables=Frozen({"AUTOML_JOB": json.dumps(job, sort_keys=True), **MEMORY}),
        inputs=plan.inputs,
        outputs=Frozen(outputs),
    )


def _branch(
    name: str, family: Family | Forecasters, task: str, place: Place
) -> Mapping[str, object]:
    """Return a family's search space: one choice of the dimension `model`."""
    space = family.space_of(task).items()
    dimensions = {key: Dimension(key, entry[0], entry[1:], place) for key, entry in space}
    return Frozen({"family": name, **dimensions})


def _portfolio(
    tried: Mapping[str, Family | Forecasters], task: str, place: Place
) -> Iterator[Point]:
    """Yield the portfolios' settings, round-robin over the families."""
    turns = [
        (turn, name, settings)
        for name, family in tried.items()
        for turn, settings in family.portfolio.items()
    ]
    for number, (_, name, settings) in enumerate(sorted(turns, key=lambda entry: entry[0]), 1):
        # Dimensions that a portfolio does not set, such as `balance`, list their default first.
        usual = {key: definition[1] for key, definition in tried[name].space_of(task).items()}
        values = Frozen({"family": name, **usual, **settings})
        because = f"{name} with settings {number} of the portfolio"
        yield Point(Frozen({"model": values}), place, because)


def _forecasting_refusals(plan: AutoMLPlan) -> Iterator[tuple[str, str, str]]:
    """Yield (field, value, expected) for each setting of a forecast that is not supported here."""
    forecasting: Mapping[str, Any] = plan.settings.get(FORECASTING) or {}
    for name in _OTHERS:
        if name in plan.inputs or plan.settings.get(name) not in (None, "auto"):
            yield name, f"`{name}` of a forecast", "n_cross_validations, which uses rolling origins"
    for name in ("column_name_and_types", "blocked_transformers", "transformer_params"):
        if plan.setting("featurization", name):
            yield f"featurization.{name}", f"`{name}` of a forecast", "featurization: {mode: auto}"
    if plan.setting("training", "enable_stack_ensemble"):
        expected = "enable_vote_ensemble, the weighted mean of forecasts"
        yield "training.enable_stack_ensemble", "`enable_stack_ensemble`", expected
    for name in (_TIME, _HORIZON):
        if not forecasting.get(name):
            yield FORECASTING, f"`{FORECASTING}` without `{name}`", f"`{name}`"
    for name in _NUMBERS:
        value = forecasting.get(name)
        values = value if isinstance(value, list) else [value]
        is_automatic = value is None or (str(value).lower() == "auto" and name in _AUTOMATIC)
        if not is_automatic and not all(type(number) is int and number > 0 for number in values):
            expected = f"a whole number{' or auto' if name in _AUTOMATIC else ''}"
            yield f"{FORECASTING}.{name}", f"`{name}: {value}`", expected
    for name, usual in (("feature_lags", "none"), ("use_stl", "none")):
        if str(forecasting.get(name) or usual).lower() != usual:
            yield f"{FORECASTING}.{name}", f"`{name}: {forecasting[name]}`", f"no `{name}`"
    if str(forecasting.get("short_series_handling_config")).lower() == "pad":
        field = f"{FORECASTING}.short_series_handling_config"
        yield field, "`short_series_handling_config: pad`", "drop, or auto: a naive forecast"
    aggregate = str(forecasting.get(_AGGREGATE) or "none").lower()
    if aggregate != "none" and not forecasting.get(_FREQUENCY):
        yield f"{FORECASTING}.{_AGGREGATE}", f"`{_AGGREGATE}` without `{_FREQUENCY}`", _FREQUENCY
    if country := forecasting.get("country_or_region_for_holidays"):
        from holidays import list_supported_countries

        if str(country) not in list_supported_countries():
            field = f"{FORECASTING}.country_or_region_for_holidays"
            yield field, f"the holidays of `{country}`", "an ISO 3166 code, such as US or GB"
