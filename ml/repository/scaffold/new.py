"""`ml new`: write a project for a table, ready to train, sweep, gate, propose and serve."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from ml.core import names, repository
from ml.core.errors import Problem, UserError
from ml.core.imports import ROOT
from ml.measures.metrics import QUANTILES
from ml.measures.tasks import TASKS
from ml.repository.scaffold.libraries import LIBRARIES, SEQUENCE_LIBRARY, estimator, objective
from ml.repository.scaffold.profile import FEWEST_ROWS, SEQUENCE, Choices, Profile, profile
from ml.repository.scaffold.series import SeriesChoices, series_profile
from ml.toolkit.data.datasets import TABLE_TASKS
from ml.toolkit.data.series import TASK
from ml.toolkit.data.tables import Column

TEMPLATES = Path(__file__).parent / "templates"
_SUFFIX = ".jinja"
# Larger files make every clone slow; GitHub warns at 50 MB.
LARGEST = 20_000_000
# The project's primary metric → the closest primary metric that Azure ML's AutoML has.
AUTOML_METRICS = {
    **{"accuracy": "accuracy", "average_precision": "average_precision_score_weighted"},
    **{"mae": "normalized_mean_absolute_error", "r2": "r2_score"},
}
# The formats of AutoML's ensemble members, as in the gate `format`.
AUTOML_FORMATS = ("lightgbm-text", "onnx", "xgboost-json", "json")
# The templates that forecasting projects share with others; those of forecasting only are in
# `series`.
_SHARED = frozenset(
    [
        *("__init__.py", "release.yml", "data/NAME.yml", "data/NAME.schema.yml"),
        *("jobs/train.yml", "jobs/sweep.yml", "jobs/evaluate.yml"),
        *("endpoint/deployment.yml", "endpoint/endpoint.yml", "endpoint/requests.jsonl"),
    ]
)
_AUTOML = frozenset({Path("split.py"), Path("jobs/automl.yml")})


@dataclass(frozen=True)
class NewProject:
    """A new project: its folder, its files, and the profile of its table."""

    folder: Path
    files: tuple[Path, ...]
    profile: Profile
    endpoint: str


def new(
    root: Path,
    name: str,
    table: Path,
    choices: Choices,
    datastore: str = "",
    model: str = "lightgbm",
    series: SeriesChoices | None = None,
) -> NewProject:
    """Write `ml/projects/NAME` for a table, and copy the table into it.

    With `datastore`, an Azure ML URI (`azureml://datastores/…`), the data asset refers to that URI,
    and the table is only a sample that is not copied. `model` is one of LIBRARIES. With `series`,
    the project is a forecasting project. Raises UserError, with nothing written, if the name is
    taken or invalid, and if the table does not suit a project.
    """
    package = name.replace("-", "_")
    folder = root / "ml" / "projects" / package
    tests = root / "tests" / "projects" / package
    if not names.is_name("project", package):
        names.check("project", name)
    if model not in LIBRARIES:
        expected = f"choose one of {', '.join(LIBRARIES)}"
        raise UserError(Problem("no-such-library", f"--model {model}", hint=expected))
    if folder.exists():
        actual = f"{repository.shown(folder)} already exists"
        hint = "choose another name, or remove that folder first"
        raise UserError(Problem("project-exists", actual, "a name that is free", hint))
    if not datastore and table.is_file() and table.stat().st_size > LARGEST:
        actual = f"{repository.shown(table)} has {table.stat().st_size // 10**6} MB"
        expected = f"at most {LARGEST // 10**6} MB, the limit for git"
        option = "--datastore azureml://datastores/workspaceblobstore/paths/FOLDER"
        hint = f"upload it, and name where it lies: {option}"
        raise UserError(Problem("too-large-for-git", actual, expected, hint))
    if (problem := _kind_problem(choices, model, series)) is not None:
        raise UserError(problem)
    if choices.kind:
        model = SEQUENCE
    if series is not None:
        table_profile = series_profile(table, choices, series, model)
    else:
        table_profile = profile(table, choices)
    texts = {
        (tests / path.relative_to("tests") if path.parts[0] == "tests" else folder / path): text
        for path, text in _texts(package, table_profile, datastore, model).items()
    }
    for path, text in texts.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    paths = [*texts]
    if not datastore:
        copy = folder / "data" / package / str(table_profile.head["file"])
        copy.parent.mkdir()
        shutil.copyfile(table, copy)
        paths.append(copy)
    return NewProject(folder, tuple(sorted(paths)), table_profile, package.replace("_", "-"))


def _kind_problem(choices: Choices, model: str, series: SeriesChoices | None) -> Problem | None:
    """Return the problem of options that conflict with `--kind`; None if there is none."""
    if choices.kind not in ("", SEQUENCE):
        return Problem("no-such-kind", f"--kind {choices.kind}", SEQUENCE)
    if choices.text and not choices.kind:
        hint = f"add --kind {SEQUENCE}"
        return Problem("option-conflict", "--text without --kind", f"--kind {SEQUENCE}", hint)
    options = ["--horizon"] if series is not None else []
    options += ["--model"] if model != "lightgbm" else []
    options += ["--task regression"] if choices.task == "regression" else []
    if choices.kind and options:
        actual = f"{', '.join(options)} with --kind {SEQUENCE}"
        expected = "a binary or multiclass task, by the PyTorch model of that kind"
        hint = f"leave out {' and '.join(options)}"
        return Problem("option-conflict", actual, expected, hint)
    return None


def _texts(package: str, about: Profile, datastore: str, model: str) -> Mapping[Path, str]:
    """Return each file of the project → its text; paths below `tests` go to tests/projects/NAME."""
    features = [column.name for column in about.features]
    is_series = about.task == TASK
    library = SEQUENCE_LIBRARY if model == SEQUENCE else LIBRARIES[model]
    rows: Any = about.head["rows"]
    # AutoML models are served in ml-cpu, and need enough rows for an evaluation without `folds`.
    has_automl = library.environment == "ml-cpu" and 2 * rows[0] >= FEWEST_ROWS
    values = {
        "name": package,
        "endpoint": package.replace("_", "-"),
        "title": package.replace("_", " "),
        "datastore": datastore,
        "requests": [
            json.dumps(
                row if is_series else {"input_data": {"columns": features, "data": [row]}},
                ensure_ascii=False,
            )
            for row in about.samples
        ],
        "slices": about.head["slices"],
        "environments": repository.environments(ROOT),
        **{attribute.name: getattr(about, attribute.name) for attribute in fields(about)},
        "goal": about.goal,
        "library": library,
        "objective": objective(model, about.task, about.primary_metric),
        "estimator": estimator(about.task, about.primary_metric),
        "formats": [*dict.fromkeys((*library.formats, *(AUTOML_FORMATS if has_automl else ())))],
        # No cross-validation with groups: Azure's AutoML would split a group between folds.
        "cross_validated": "folds" in about.head and "group" not in about.head,
        "automl_metric": AUTOML_METRICS.get(
            about.primary_metric,
            "normalized_root_mean_squared_error"
            if about.task in ("regression", TASK)
            else "auc_weighted",
        ),
        "answer": TASKS[about.task].answer,
        "quantile": QUANTILES.get(about.primary_metric),
        "largest": _rounded(about.baseline * 10),
        # With folds, validation has few rows, so its metrics vary more: allow twice the gap.
        "gap": _rounded(
            (0.1 if about.spread == 1.0 else about.baseline / 4)
            * (2 if "folds" in about.head else 1)
        ),
        "threshold": _rounded(about.baseline),
        "strength": "correlation" if is_series or TABLE_TASKS[about.task].types else "auc",
        "own_scale": not is_series and bool(TABLE_TASKS[about.task].types),
        "pointer": "total" if is_series else "predictions/0",
        "reader": "series" if is_series else "datasets",
    }
    texts = {}
    for template in sorted(TEMPLATES.rglob(f"*{_SUFFIX}")):
        path = template.relative_to(TEMPLATES)
        is_shared = path.as_posix().removesuffix(_SUFFIX) in _SHARED
        if not is_shared and is_series is not (path.parts[0] == "series"):
            continue
        if path.parts[0] == "models" and path.name != f"{model}.py{_SUFFIX}":
            continue
        if path.parts[0] == "tests" and datastore:  # the tests need the table
            continue
        if Path(str(path).removesuffix(_SUFFIX)) in _AUTOML and not has_automl:
            continue
        to = Path(str(path).removeprefix("series/").removesuffix(_SUFFIX).replace("NAME", package))
        to = Path("model.py") if path.parts[0] == "models" else to
        texts[to] = _environment().get_template(path.as_posix()).render(values)
    return texts


@cache
def _environment() -> Environment:
    """Return a Jinja2 environment without `{{…}}`, which Azure ML uses for its placeholders."""
    jinja = Environment(
        loader=FileSystemLoader(TEMPLATES),
        undefined=StrictUndefined,
        variable_start_string="<<",
        variable_end_string=">>",
        block_start_string="<%",
        block_end_string="%>",
        comment_start_string="<#",
        comment_end_string="#>",
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    jinja.filters |= {"yaml": _yaml, "column": _column}
    return jinja


def _yaml(value: Any) -> str:
    """Return the value as one line of YAML."""
    text = yaml.safe_dump(
        value, default_flow_style=True, width=10**6, allow_unicode=True, sort_keys=False
    )
    return text.removesuffix("...\n").strip()


def _column(column: Column) -> str:
    """Return a column as one line of the schema's YAML, without fields that have their default."""
    usual: Mapping[str, object] = {"unique": False, "refers_to": "", "optional": False}
    return _yaml({name: value for name, value in vars(column).items() if usual.get(name) != value})


def _rounded(number: float) -> float:
    """Round to three significant digits."""
    return float(f"{number:.3g}")


def next_commands(project: NewProject) -> Sequence[str]:
    """Return the shell commands to run after `ml new`, up to a served model."""
    folder = repository.shown(project.folder)
    return (
        f"ml run {folder}/jobs/sweep.yml",
        f"ml release propose {project.folder.name}",
        f'ml release apply {project.folder.name} --approved-by "$(whoami)"',
        f'ml invoke {project.endpoint} "$(head -1 {folder}/endpoint/requests.jsonl)"',
    )
