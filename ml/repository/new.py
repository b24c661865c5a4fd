"""`ml new`: a project written from a table, ready to train, sweep, gate, propose and serve."""

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
from ml.core.errors import Problem, Refused
from ml.repository.profile import Choices, Profile, profile
from ml.toolkit.metrics import QUANTILES
from ml.toolkit.tables import Column

TEMPLATES = Path(__file__).parent / "templates"
_SUFFIX = ".jinja"
# Larger files make every clone slow; GitHub warns at 50 MB.
LARGEST = 20_000_000


@dataclass(frozen=True)
class NewProject:
    """The project that was written: its folder, its files, and what was guessed of the table."""

    folder: Path
    files: tuple[Path, ...]
    profile: Profile
    endpoint: str


def new(name: str, table: Path, choices: Choices, datastore: str = "") -> NewProject:
    """Write `ml/projects/NAME` for a table, and copy the table into it.

    With `datastore`, a URI of Azure ML (`azureml://datastores/…`), the data asset lies there and
    the table, a sample of it, is only read. Raises Refused, and writes nothing, when the name is
    taken or cannot be used, and when no project can be made of the table.
    """
    package = name.replace("-", "_")
    folder = repository.root() / "ml" / "projects" / package
    if not names.is_name("project", package):
        names.check("project", name)
    if folder.exists():
        raise Refused(
            Problem(
                "project-exists",
                f"{repository.shown(folder)} is there already",
                "a name that is free",
                "choose another name, or remove that folder first",
            )
        )
    if not datastore and table.is_file() and table.stat().st_size > LARGEST:
        raise Refused(
            Problem(
                "too-large-for-git",
                f"{repository.shown(table)} has {table.stat().st_size // 10**6} MB",
                f"at most {LARGEST // 10**6} MB, which git can hold",
                "upload it, and name where it lies: --datastore "
                "azureml://datastores/workspaceblobstore/paths/FOLDER",
            )
        )
    table_profile = profile(table, choices)
    texts = _texts(package, table_profile, datastore)
    for path, text in texts.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")
    paths = [folder / path for path in texts]
    if not datastore:
        copy = folder / "data" / package / str(table_profile.head["file"])
        copy.parent.mkdir()
        shutil.copyfile(table, copy)
        paths.append(copy)
    return NewProject(folder, tuple(sorted(paths)), table_profile, package.replace("_", "-"))


def _texts(package: str, about: Profile, datastore: str) -> Mapping[Path, str]:
    """The files of the project, by their paths in its folder."""
    features = [column.name for column in about.features]
    values = {
        "name": package,
        "endpoint": package.replace("_", "-"),
        "title": package.replace("_", " "),
        "datastore": datastore,
        "requests": [
            json.dumps({"input_data": {"columns": features, "data": [row]}}, ensure_ascii=False)
            for row in about.samples
        ],
        "slices": about.head["slices"],
        **{each.name: getattr(about, each.name) for each in fields(about)},
        "goal": about.goal,
        "objective": _objective(about),
        "quantile": QUANTILES.get(about.primary_metric),
        "largest": _rounded(about.same_answer * 10),
        "gap": _rounded(0.1 if about.spread == 1.0 else about.same_answer / 4),
        "threshold": _rounded(about.same_answer),
        "own_scale": about.task == "regression",
    }
    texts = {}
    for template in sorted(TEMPLATES.rglob(f"*{_SUFFIX}")):
        path = template.relative_to(TEMPLATES)
        to = Path(str(path).removesuffix(_SUFFIX).replace("NAME", package))
        texts[to] = _environment().get_template(path.as_posix()).render(values)
    return texts


@cache
def _environment() -> Environment:
    """Jinja2 with other brackets: Azure ML's placeholders are ${{…}}."""
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
    """The value on one line of YAML."""
    text = yaml.safe_dump(
        value, default_flow_style=True, width=10**6, allow_unicode=True, sort_keys=False
    )
    return text.removesuffix("...\n").strip()


def _column(column: Column) -> str:
    """A column as the schema has it, without what is usual."""
    usual: Mapping[str, object] = {"unique": False, "refers_to": "", "optional": False}
    return _yaml({name: of for name, of in vars(column).items() if usual.get(name) != of})


def _objective(about: Profile) -> str:
    """LightGBM's objective for the task and the metric."""
    if about.task == "regression" and about.primary_metric == "mae":
        return "regression_l1"
    if about.primary_metric in QUANTILES:
        return "quantile"
    return about.task


def _rounded(number: float) -> float:
    """Three digits, as a person would write a threshold."""
    return float(f"{number:.3g}")


def next_commands(project: NewProject) -> Sequence[str]:
    """What to type after `ml new`, up to a served model."""
    folder = repository.shown(project.folder)
    return (
        f"ml run {folder}/jobs/sweep.yml",
        f"ml release propose {project.folder.name}",
        f'ml release apply {project.folder.name} --approved-by "$USER"',
        f'ml invoke {project.endpoint} "$(head -1 {folder}/endpoint/requests.jsonl)"',
    )
