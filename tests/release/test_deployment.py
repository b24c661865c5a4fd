"""ml.release.serving: reading endpoint.yml and deployment.yml."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from ml.backends.model_registry import Version
from ml.core import home
from ml.core.errors import UserError
from ml.release.serving import changes, fetch, model_deployment, read, snapshot, store
from tests.stand_ins.memory import MemoryRegistry

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
    assert (found.endpoint_name, found.code, found.scoring_script) == (
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
        ("endpoint/score.py", "score.py", "scoring-script"),
        ("instance_count: 1", "instance_cuont: 1", ""),
        ("code_configuration:\n  code: ..\n  scoring_script: endpoint/score.py\n", "", "no-code"),
    ],
)
def test_specs_that_do_not_fit_are_refused_with_a_line(
    old: str, new: str, code: str, tmp_path: Path
) -> None:
    """Another endpoint's name, a missing script, an unknown field, no code."""
    place = write(tmp_path, deployment=DEPLOYMENT.replace(old, new))
    with pytest.raises(UserError) as raised:
        read(place)
    problem = raised.value.problems[0]
    assert problem.place and problem.place.path.endswith("deployment.yml")
    assert not code or problem.code == code


@pytest.mark.parametrize("found", ["0", "-1", "5s", "1.5", "180001", "9" * 5000])
def test_an_invalid_timeout_is_refused(tmp_path: Path, found: str) -> None:
    """As a variable, for which Azure ML's SDK accepts any text."""
    text = DEPLOYMENT.replace('WORKER_COUNT: "2"', f'SCORING_TIMEOUT_MS: "{found}"')
    assert text != DEPLOYMENT
    with pytest.raises(UserError) as raised:
        read(write(tmp_path, deployment=text))
    problem = raised.value.problems[0]
    assert problem.code == "deployment-variable" and problem.place and problem.place.line > 1


@pytest.mark.attack("a deployment's variable names other code")
@pytest.mark.parametrize(
    ("variable", "is_refused"),
    [
        ("OPENSSL_CONF: data.txt", True),
        ("OPENSSL_MODULES: data", True),
        ("PYTHONPYCACHEPREFIX: data", True),
        ("GLIBC_TUNABLES: glibc.rtld.optional_static_tls=1", True),
        ("GIT_SSH_COMMAND: ./data.txt", True),
        ("MLFLOW_TRACKING_URI: https://evil.example", True),
        ("AZUREML_DEBUG_PORT: 5678", True),
        ("AML_APP_INSIGHTS_KEY: 6f8d2c1e-0000-4000-8000-000000000000", True),
        ("APP_INSIGHTS_LOG_RESPONSE_ENABLED: 'true'", True),
        ("openssl_conf: data.txt", True),
        ("OMP_NUM_THREADS: ./data.so", True),
        ("OMP_NUM_THREADS: '0'", True),
        ("WORKER_COUNT: '65'", True),
        ("score_rate: x", True),
        ('SCORE_RATE: "a\\e[31m"', True),
        ("SCORE_RATE: '0.5 of all'", False),
        ("OMP_NUM_THREADS: '8'", False),
        ("PYTHONPATH: hidden", True),
        ("PYTHONHOME: hidden", True),
        ("GUNICORN_CMD_ARGS: --config file.txt", True),
        ("LD_PRELOAD: ./code.so", True),
        ("BASH_ENV: ./code.sh", True),
        ("AZUREML_ENTRY_SCRIPT: other.py", True),
        ("PYTHONUNBUFFERED: '1'", False),
        ("LD_OPTIONS: x", True),
    ],
)
def test_variables_that_run_other_code_are_refused(
    variable: str, is_refused: bool, tmp_path: Path
) -> None:
    """Only listed ones are set: another may run what is not in `code_configuration`."""
    place = write(tmp_path, deployment=DEPLOYMENT.replace('WORKER_COUNT: "2"', variable))
    if not is_refused:
        assert variable.partition(":")[0] in read(place).environment_variables
        return
    with pytest.raises(UserError) as raised:
        read(place)
    problem = raised.value.problems[0]
    assert problem.code == "deployment-variable" and problem.place and problem.place.line > 1


@pytest.mark.attack("what was proposed with a variable that names other code is applied")
@pytest.mark.attack("what was proposed with an environment that no digest covers is applied")
@pytest.mark.parametrize("changed", ["variable", "mount", "environment", ""])
def test_what_was_kept_with_such_a_variable_is_not_served(changed: str, tmp_path: Path) -> None:
    """By an older template, or by somebody who writes to the registry's storage."""
    spec = read(write(tmp_path))
    spec = replace(spec, code=home.snapshots() / "code")
    spec.code.mkdir(parents=True)
    if changed == "variable":
        spec = replace(spec, environment_variables={"OPENSSL_CONF": "data.txt"})
    if changed == "mount":
        spec = replace(spec, settings={**spec.settings, "model_mount_path": "/etc/ssl"})
    if changed == "environment":
        context = {"build": {"path": "https://github.com/team/x.git"}}
        spec = replace(spec, settings={**spec.settings, "environment": context})
    registry = MemoryRegistry()
    store(registry, spec)
    if not changed:
        assert fetch(registry, "echo", spec.snapshot_digest) == spec
        return
    code = "unpinned-environment" if changed == "environment" else "deployment-variable"
    with pytest.raises(UserError, match=code):
        fetch(registry, "echo", spec.snapshot_digest)


@pytest.mark.parametrize(
    ("command", "module"),
    [
        ('["python", "-m", "ml.serving.fast", "--port", "5001"]', "ml.serving.fast"),
        ('["python", "-m", "os"]', ""),
        ('["python"]', ""),
        ("python -m ml.serving.fast", ""),
    ],
)
def test_a_deployment_has_the_server_of_its_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, module: str
) -> None:
    """The module of this repository that its Dockerfile starts; with another server the digest of
    the serving is another.
    """
    place = write(tmp_path, deployment=DEPLOYMENT.replace("ml-cpu", "own"))
    (tmp_path / "ml").mkdir()
    (tmp_path / "ml" / "Dockerfile").write_text(f"FROM python\nCMD {command}\n")
    (tmp_path / "ml" / "environment.yml").write_text(
        "$schema: https://azuremlschemas.azureedge.net/latest/environment.schema.json\n"
        "name: own\nversion: '1'\nbuild: {path: .}\n"
    )
    monkeypatch.chdir(tmp_path)
    spec = read(place)
    assert spec.server == module
    assert (replace(spec, server="").snapshot_digest == spec.snapshot_digest) is (module == "")


@pytest.mark.attack("a deployment's environment is built of what nobody here reviews")
def test_an_environment_of_this_repository_is_built_of_its_files(tmp_path: Path) -> None:
    """Its own spec says where its build context is: a folder here, or a repository elsewhere."""
    place = write(tmp_path, deployment=DEPLOYMENT.replace("ml-cpu:1", "of-here:1"))
    spec = tmp_path / "ml" / "environment.yml"
    spec.parent.mkdir()
    schema = "$schema: https://azuremlschemas.azureedge.net/latest/environment.schema.json\n"
    (tmp_path / "ml" / "Dockerfile").write_text("FROM python\n")
    for context, is_refused in ((".", False), ("https://github.com/team/x.git#main", True)):
        spec.write_text(f"{schema}name: of-here\nversion: 1\nbuild: {{path: '{context}'}}\n")
        if is_refused:
            with pytest.raises(UserError, match="unpinned-environment"):
                read(place)
        else:
            assert read(place).settings["environment"] == "azureml:of-here:1"


@pytest.mark.attack("a model that is mounted over a library's files")
def test_a_place_for_the_model_is_refused(tmp_path: Path) -> None:
    place = write(tmp_path, deployment=f"{DEPLOYMENT}model_mount_path: /etc/ssl\n")
    with pytest.raises(UserError, match="deployment-variable"):
        read(place)


@pytest.mark.attack("a file beside the code that the server reads and runs")
@pytest.mark.parametrize(
    ("name", "is_refused"),
    [
        ("logging.json", True),
        ("config.json", True),
        ("endpoint/logging.json", True),
        ("endpoint/config.json", True),
        ("gunicorn.conf.py", True),
        ("data/logging.json", False),
        ("endpoint/words.json", False),
    ],
)
def test_settings_of_the_server_are_refused(name: str, is_refused: bool, tmp_path: Path) -> None:
    """Of Azure ML's inference server: a factory of logging.json is any function."""
    place = write(tmp_path)
    (tmp_path / "data").mkdir()
    content = {"version": 1, "formatters": {"x": {"()": "os.system", "command": "true"}}}
    python = 'raw_env = ["OPENSSL_CONF=data.txt"]'
    (tmp_path / name).write_text(python if name.endswith(".py") else json.dumps(content))
    if not is_refused:
        assert read(place).code == tmp_path
        return
    with pytest.raises(UserError, match="code-from-data"):
        read(place)


@pytest.mark.attack("serving code that loads code from data")
def test_code_that_loads_code_from_data_is_refused_with_its_line(tmp_path: Path) -> None:
    """The project's own list counts: it may leave out what the organisation policy allows."""
    place = write(tmp_path)
    (place / "score.py").write_text("import pandas\n\nTABLE = pandas.read_pickle('x')\n")
    with pytest.raises(UserError) as raised:
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
    with pytest.raises(UserError, match="pickle"):
        read(place)
    (tmp_path / ".amlignore").write_text("score.py\n")
    with pytest.raises(UserError, match="excludes"):
        read(place)
    (tmp_path / ".amlignore").unlink()
    (place / "score.py").write_text("import pandas\n")
    gates = tmp_path / "gates.yml"
    gates.write_text("schema_version: 1\ngates: {format: {imports: [numpy]}}\n")
    with pytest.raises(UserError, match="pandas"):
        read(place, gates)


def test_another_kind_of_spec_is_refused(tmp_path: Path) -> None:
    """A deployment in place of the endpoint."""
    with pytest.raises(UserError) as raised:
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
    for file in (deployment, place / "endpoint.yml"):
        file.write_text(re.sub(r"(name: )echo$", rf"\g<1>{name}", file.read_text(), flags=re.M))
    (place / "score.py").write_text(score)
    (folder / "train.py").write_text("RATE = 1")
    return place


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with code that every project may import."""
    root = tmp_path / "repository"
    (root / "ml" / "measures").mkdir(parents=True)
    (root / "ml" / "measures" / "metrics.py").write_text("")
    (root / "pyproject.toml").write_text("")
    (root / ".amlignore").write_text("*\n!/ml/**/*.py\n!/ml/environments/*/Dockerfile\n")
    monkeypatch.chdir(root)
    return root


@pytest.mark.parametrize(
    ("changed", "is_same"),
    [
        ("ml/projects/other/train.py", True),
        ("ml/projects/shared/train.py", False),
        ("ml/projects/deeper/train.py", False),
        ("ml/projects/echo/train.py", False),
        ("ml/measures/metrics.py", False),
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
    before = snapshot(read(place))
    (repository / changed).write_text("RATE = 2")
    after = snapshot(read(place))
    assert (before.snapshot_digest == after.snapshot_digest) is is_same
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
  - pip: [numpy==2.4.6]
"""


@pytest.mark.parametrize(
    ("source", "changed", "old", "new", "sentence"),
    [
        ("image: ubuntu\nconda_file: conda.yml\n", "conda.yml", "numpy==2.4.6", "numpy==2.4.7",
         "environment: pip numpy==2.4.6, conda.yml "),
        ("image: ubuntu\nconda_file: conda.yml\n", "conda.yml", "conda-forge", "defaults",
         "environment: conda.yml "),
        ("image: ubuntu\n", "environment.yml", "ubuntu", "debian",
         "environment: image ubuntu → image debian"),
        ("build: {path: ../../.., dockerfile_path: ml/environments/e/Dockerfile}\n", "Dockerfile",
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
    folder = repository / "ml" / "environments" / "e"
    folder.mkdir(parents=True)
    (folder / "environment.yml").write_text(ENVIRONMENT + source)
    (folder / "conda.yml").write_text(CONDA)
    (folder / "requirements.txt").write_text("scipy==1.0\n")
    (folder / "Dockerfile").write_text("FROM ubuntu\n")
    before = snapshot(read(place))
    assert snapshot(read(place)) == before
    edited = folder / changed
    edited.write_text(edited.read_text().replace(old, new))
    after = snapshot(read(place))
    assert before.snapshot_digest != after.snapshot_digest
    (difference,) = changes(before, after)
    assert difference.startswith(sentence) and not re.search("[0-9a-f]{13}", difference)
    version = Version("echo", "1", "sha256:1", "echo", "run", "")
    deployment = model_deployment(before, version, "echo")
    assert deployment.is_as_released()
    assert not replace(deployment, environment=after.environment).is_as_released()
