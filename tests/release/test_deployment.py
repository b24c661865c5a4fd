"""ml.release.serving: reading endpoint.yml and deployment.yml."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from ml.backends.registry import Version
from ml.core.errors import Refused
from ml.release.serving import changes, read
from tests.local import BACKEND

ENDPOINT = """
$schema: https://azuremlschemas.azureedge.net/latest/managedOnlineEndpoint.schema.json
name: echo
auth_mode: aad_token
"""
DEPLOYMENT = """
$schema: https://azuremlschemas.azureedge.net/latest/managedOnlineDeployment.schema.json
name: blue
endpoint_name: echo
model: azureml:echo@latest
code_configuration:
  code: ..
  scoring_script: endpoint/score.py
environment: azureml:ml-cpu:1
environment_variables: {WORKER_COUNT: "2"}
instance_type: Standard_DS3_v2
instance_count: 1
request_settings: {request_timeout_ms: 3000}
"""


def write(folder: Path, endpoint: str = ENDPOINT, deployment: str = DEPLOYMENT) -> Path:
    """A project's endpoint folder."""
    place = folder / "endpoint"
    place.mkdir()
    (folder / "pyproject.toml").write_text("")
    (place / "endpoint.yml").write_text(endpoint.lstrip())
    (place / "deployment.yml").write_text(deployment.lstrip())
    (place / "score.py").write_text("")
    return place


def test_a_deployment_is_read(tmp_path: Path) -> None:
    """Code, script, instance type, variables, and the timeout as a variable of the server."""
    found = read(write(tmp_path))
    assert (found.endpoint, found.code, found.scoring_script) == (
        "echo",
        tmp_path,
        "endpoint/score.py",
    )
    assert found.instance_type == "Standard_DS3_v2"
    assert found.environment_variables == {"WORKER_COUNT": "2", "SCORING_TIMEOUT_MS": "3000"}


@pytest.mark.parametrize(
    ("old", "new", "code"),
    [
        ("endpoint_name: echo", "endpoint_name: other", "endpoint-mismatch"),
        ("endpoint/score.py", "score.py", "no-scoring-script"),
        ("instance_count: 1", "instance_cuont: 1", ""),
        ("code_configuration:\n  code: ..\n  scoring_script: endpoint/score.py\n", "", "no-code"),
    ],
)
def test_specs_that_do_not_fit_are_refused_with_a_line(
    old: str, new: str, code: str, tmp_path: Path
) -> None:
    """Another endpoint's name, a missing script, an unknown field, no code."""
    place = write(tmp_path, deployment=DEPLOYMENT.replace(old, new))
    with pytest.raises(Refused) as raised:
        read(place)
    problem = raised.value.problems[0]
    assert problem.place and problem.place.path.endswith("deployment.yml")
    assert not code or problem.code == code


@pytest.mark.parametrize("found", ["0", "-1", "5s", "1.5", "180001", "9" * 5000])
def test_an_invalid_timeout_is_refused(tmp_path: Path, found: str) -> None:
    """As a variable, for which Azure ML's SDK accepts any text."""
    text = DEPLOYMENT.replace('WORKER_COUNT: "2"', f'SCORING_TIMEOUT_MS: "{found}"')
    assert text != DEPLOYMENT
    with pytest.raises(Refused) as raised:
        read(write(tmp_path, deployment=text))
    problem = raised.value.problems[0]
    assert problem.code == "wrong-value" and problem.place and problem.place.line > 1


@pytest.mark.attack("a deployment's variable names other code")
@pytest.mark.parametrize(
    ("variable", "is_refused"),
    [
        ("PYTHONPATH: hidden", True),
        ("PYTHONHOME: hidden", True),
        ("GUNICORN_CMD_ARGS: --config file.txt", True),
        ("LD_PRELOAD: ./code.so", True),
        ("BASH_ENV: ./code.sh", True),
        ("AZUREML_ENTRY_SCRIPT: other.py", True),
        ("PYTHONUNBUFFERED: '1'", False),
        ("LD_OPTIONS: x", False),
    ],
)
def test_variables_that_run_other_code_are_refused(
    variable: str, is_refused: bool, tmp_path: Path
) -> None:
    """They would run what is not in `code_configuration`, or is not read; others may be set."""
    place = write(tmp_path, deployment=DEPLOYMENT.replace('WORKER_COUNT: "2"', variable))
    if not is_refused:
        assert variable.partition(":")[0] in read(place).environment_variables
        return
    with pytest.raises(Refused) as raised:
        read(place)
    problem = raised.value.problems[0]
    assert problem.code == "code-by-variable" and problem.place and problem.place.line > 1


@pytest.mark.attack("serving code that loads code from data")
def test_code_that_loads_code_from_data_is_refused_with_its_line(tmp_path: Path) -> None:
    """The project's own list counts: it may leave out what the floor allows."""
    place = write(tmp_path)
    (place / "score.py").write_text("import pandas\n\nTABLE = pandas.read_pickle('x')\n")
    with pytest.raises(Refused) as raised:
        read(place)
    (problem,) = raised.value.problems
    assert problem.code == "code-from-data" and "format.imports" in problem.hint
    assert problem.place and problem.place.line == 3
    (place / "score.py").write_text("import pandas\n")
    assert read(place).scoring_script == "endpoint/score.py"
    # Another spelling of the path, and a script that does not travel.
    text = DEPLOYMENT.replace("endpoint/score.py", "other/../endpoint/score.py")
    (place / "deployment.yml").write_text(text.lstrip())
    (tmp_path / "other").mkdir()
    (tmp_path / "ml" / "serving" / "scoring").mkdir(parents=True)
    (tmp_path / "ml" / "serving" / "scoring" / "model.py").touch()
    (place / "score.py").write_text("import pickle\n")
    with pytest.raises(Refused, match="pickle"):
        read(place)
    (tmp_path / ".amlignore").write_text("score.py\n")
    with pytest.raises(Refused, match="travel"):
        read(place)
    (tmp_path / ".amlignore").unlink()
    (place / "score.py").write_text("import pandas\n")
    gates = tmp_path / "gates.yml"
    gates.write_text("schema_version: 1\ngates: {format: {imports: [numpy]}}\n")
    with pytest.raises(Refused, match="pandas"):
        read(place, gates)


def test_another_kind_of_spec_is_refused(tmp_path: Path) -> None:
    """A deployment in place of the endpoint."""
    with pytest.raises(Refused) as raised:
        read(write(tmp_path, endpoint=DEPLOYMENT))
    assert raised.value.problems[0].code == "wrong-kind"


@pytest.mark.parametrize(
    ("collector", "share"),
    [
        ("", 0.0),
        ("{collections: {request: {enabled: 'true'}, response: {enabled: 'true'}}}", 1.0),
        (
            "{sampling_rate: 0.1, "
            "collections: {request: {enabled: 'true'}, response: {enabled: 'true'}}}",
            0.1,
        ),
        ("{collections: {request: {enabled: 'true'}, response: {enabled: 'false'}}}", 0.0),
        ("{collections: {model_inputs: {enabled: 'true'}}}", 0.0),
    ],
)
def test_payloads_are_collected_as_the_data_collector_says(
    tmp_path: Path, collector: str, share: float
) -> None:
    """Both reserved collections, at the sampling rate; off without them."""
    text = DEPLOYMENT + (f"data_collector: {collector}\n" if collector else "")
    assert read(write(tmp_path, deployment=text)).collect == share


def project(root: Path, name: str, score: str = "") -> Path:
    """A project whose deployment takes all code of the repository; returns its endpoint folder."""
    folder = root / "ml" / "projects" / name
    folder.mkdir(parents=True)
    place = write(folder, deployment=DEPLOYMENT.replace("code: ..", "code: ../../../.."))
    (folder / "pyproject.toml").unlink()
    script = f"ml/projects/{name}/endpoint/score.py"
    deployment = place / "deployment.yml"
    deployment.write_text(deployment.read_text().replace("endpoint/score.py", script))
    (place / "score.py").write_text(score)
    (folder / "train.py").write_text("RATE = 1")
    return place


@pytest.fixture
def repository(tmp_path: Path, own_home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with code that every project may import."""
    root = tmp_path / "repository"
    (root / "ml" / "toolkit").mkdir(parents=True)
    (root / "ml" / "toolkit" / "metrics.py").write_text("")
    (root / "pyproject.toml").write_text("")
    (root / ".amlignore").write_text("*\n!/ml/**/*.py\n")
    monkeypatch.chdir(root)
    return root


@pytest.mark.parametrize(
    ("changed", "is_same"),
    [
        ("ml/projects/other/train.py", True),
        ("ml/projects/shared/train.py", False),
        ("ml/projects/deeper/train.py", False),
        ("ml/projects/echo/train.py", False),
        ("ml/toolkit/metrics.py", False),
    ],
)
def test_serving_code_is_what_the_scoring_script_can_import(
    repository: Path, changed: str, is_same: bool
) -> None:
    """Its project, the projects that this one names, and what all import; no other project."""
    place = project(repository, "echo", "from ml.projects.shared import train")
    project(repository, "shared", "from ...deeper.train import RATE")
    project(repository, "deeper")
    project(repository, "other")
    before = read(place).snapshot(BACKEND)
    (repository / changed).write_text("RATE = 2")
    after = read(place).snapshot(BACKEND)
    assert (before.digest == after.digest) is is_same
    assert list(changes(before, after)) == (
        [] if is_same else [f"{changed}: 1 line added, {int('train' in changed)} removed"]
    )
    assert not (after.code / "ml" / "projects" / "other").exists()


ENVIRONMENT = """
$schema: https://azuremlschemas.azureedge.net/latest/environment.schema.json
name: ml-cpu
version: "1"
"""
CONDA = """
channels: [conda-forge]
dependencies:
  - python=3.11
  - pip: [numpy==2.4.6, -r requirements.txt]
"""


@pytest.mark.parametrize(
    ("source", "changed", "old", "new", "sentence"),
    [
        ("image: ubuntu\nconda_file: conda.yml\n", "conda.yml", "numpy==2.4.6", "numpy==2.4.7",
         "environment: pip numpy==2.4.6, conda.yml "),
        ("image: ubuntu\nconda_file: conda.yml\n", "conda.yml", "conda-forge", "defaults",
         "environment: conda.yml "),
        ("image: ubuntu\nconda_file: conda.yml\n", "requirements.txt", "scipy==1.0", "scipy==2.0",
         "environment: pip scipy==1.0 → pip scipy==2.0"),
        ("image: ubuntu\n", "environment.yml", "ubuntu", "debian",
         "environment: image ubuntu → image debian"),
        ("build: {path: ../.., dockerfile_path: environments/e/Dockerfile}\n", "Dockerfile",
         "FROM", "# more\nFROM", "environment: Dockerfile "),
        ("build: {path: .}\n", "requirements.txt", "scipy==1.0", "scipy==2.0",
         "environment: requirements.txt "),
    ],
)  # fmt: skip
def test_an_environment_changes_by_its_content(
    repository: Path, source: str, changed: str, old: str, new: str, sentence: str
) -> None:
    """Its packages, channels, image and Dockerfile count, under the same name and version."""
    place = project(repository, "echo")
    folder = repository / "environments" / "e"
    folder.mkdir(parents=True)
    (folder / "environment.yml").write_text(ENVIRONMENT + source)
    (folder / "conda.yml").write_text(CONDA)
    (folder / "requirements.txt").write_text("scipy==1.0\n")
    (folder / "Dockerfile").write_text("FROM ubuntu\n")
    before = read(place).snapshot(BACKEND)
    assert read(place).snapshot(BACKEND) == before
    edited = folder / changed
    edited.write_text(edited.read_text().replace(old, new))
    after = read(place).snapshot(BACKEND)
    assert before.digest != after.digest
    (difference,) = changes(before, after)
    assert difference.startswith(sentence) and not re.search("[0-9a-f]{13}", difference)
    version = Version("echo", "1", "sha256:1", "echo", "run", "")
    launch = before.launch(version, "echo")
    assert launch.is_as_released()
    assert not replace(launch, environment=after.environment).is_as_released()
