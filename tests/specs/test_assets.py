"""Assets of the repository: found by version and label, with a digest of their content."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path

import pytest

from ml.core import documents
from ml.specs.assets import assets
from ml.specs.check.check import check
from ml.specs.plan.bindings import Bindings
from ml.specs.sdk.load import load
from ml.specs.yaml_node import YamlNode
from tests.conftest import ROOT


@pytest.fixture
def faq(repo: Path) -> Path:
    """Versions 1, 2, 9 and 10 of a data asset, and an environment of the same name."""
    for version in ("1", "2", "9", "10"):
        text = f"name: faq\nversion: '{version}'\ntype: uri_folder\npath: ../../data\n"
        (repo / "ml" / "assets" / f"faq-{version}.yml").write_text(text)
    (repo / "ml" / "assets" / "env.yml").write_text("name: faq\nversion: 1\nimage: python\n")
    (repo / "ml" / "assets" / "broken.yml").write_text("name: [\n")
    return repo


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("azureml:faq:1", "1"),
        ("azureml:faq:10", "10"),
        ("azureml:faq@latest", "10"),
        ("azureml:faq", "10"),
        ("azureml:faq:3", None),
        ("azureml:faq@stable", None),
        ("azureml:other:1", None),
        ("../data", None),
        ("azureml://datastores/d/paths/faq", None),
        ("azureml://registries/r/data/faq/versions/1", None),
    ],
)
def test_find(text: str, version: str | None, faq: Path) -> None:
    """A version is exact, `@latest` the newest number, anything else is not of the repository."""
    result = assets.find(text, "data", faq)
    assert (result.version if result else None) == version
    assert result is None or (result.path is not None and result.path.resolve() == faq / "data")


def test_a_copy_of_remote_data_is_found_in_the_home(faq: Path, own_home: Path) -> None:
    """By name and version; without one the data are not on this machine."""
    text = "name: far\nversion: 3\ntype: uri_folder\npath: azureml://datastores/d/paths/far\n"
    (faq / "ml" / "assets" / "far.yml").write_text(text)
    result = assets.find("azureml:far:3", "data", faq)
    assert result is not None and result.path is None
    (own_home / "data" / "far" / "3").mkdir(parents=True)
    assert result.path == own_home / "data" / "far" / "3"
    near = assets.find("azureml:faq:1", "data", faq)
    (own_home / "data" / "faq" / "1").mkdir(parents=True)
    assert near is not None and near.path is not None and near.path.resolve() == faq / "data"


def test_kinds_are_kept_apart(faq: Path) -> None:
    """An environment of the same name is another asset; a new file is seen at once."""
    result = assets.find("azureml:faq@latest", "environment", faq)
    assert result is not None and result.version == "1" and result.get("image") == "python"
    (faq / "ml" / "assets" / "env2.yml").write_text("name: faq\nversion: 1.2\nimage: python\n")
    result = assets.find("azureml:faq@latest", "environment", faq)
    assert result is not None and result.version == "1.2"


@pytest.mark.parametrize("folder", ["ml/assets", "infra/settings", "ml"])
def test_a_folder_with_assets(folder: str, faq: Path) -> None:
    """A spec under `ml/` or `infra/` defines an asset, and one other file may not do so again."""
    place = faq / folder / "fixture.yml"
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text("name: faq\nversion: 99\nimage: python\n")
    result = assets.find("azureml:faq@latest", "environment", faq)
    assert result is not None and result.version == "99"
    (faq / "ml" / "again.yml").write_text(place.read_text())
    assert [problem.code for problem in check(load(place))] == ["duplicate-declaration"]


def test_an_input_of_a_model_is_no_data_asset_of_its_name(faq: Path) -> None:
    """`ml new` names a project's data and its model alike where the name has no underscore."""
    bindings = Bindings(faq, None)
    file = faq / "ml" / "jobs" / "job.yml"
    file.parent.mkdir(exist_ok=True)
    file.write_text("inputs: {model: {type: custom_model, path: azureml:faq@latest}}\n")
    node = YamlNode(documents.read(file), file)
    for kind, path in (("custom_model", None), ("uri_folder", faq / "data")):
        written = {"type": kind, "path": "azureml:faq@latest"}
        found = bindings.data(node, ("inputs", "model"), written, "inputs.model")
        assert found.path == path


@pytest.mark.parametrize(
    "folder",
    ["tests", "docs", "data", "benchmarks", ".hidden", ".", "ml/.hidden", "ml/link", "mls"],
)
def test_a_folder_without_assets(folder: str, faq: Path) -> None:
    """A fixture or an example is never an asset, nor is a link under `ml/` to one."""
    (faq / "elsewhere").mkdir()
    (faq / "ml" / "link").symlink_to(faq / "elsewhere")
    place = faq / folder / "fixture.yml"
    place.parent.mkdir(parents=True, exist_ok=True)
    (faq / "ml" / "link.yml").symlink_to(place)
    for version in ("99", "1"):
        place.write_text(f"name: faq\nversion: {version}\nimage: python\n")
        result = assets.find("azureml:faq", "environment", faq)
        assert result is not None and result.file == faq / "ml" / "assets" / "env.yml"
    assert check(load(place)) == []


def test_a_folder_outside_a_repository_is_not_searched(faq: Path) -> None:
    """Without a pyproject.toml only the specs beside each other are assets of each other."""
    (faq / "pyproject.toml").unlink()
    assert assets.find("azureml:faq:1", "data", faq) is None
    assert assets.find("azureml:faq:1", "data", faq / "ml" / "assets") is not None


@pytest.mark.timeout(20)
def test_a_pipe_among_the_specs_is_not_waited_for(faq: Path) -> None:
    """Beside a spec outside of any repository there may be anything."""
    (faq / "pyproject.toml").unlink()
    os.mkfifo(faq / "ml" / "assets" / "pipe.yml")
    assert assets.find("azureml:faq:1", "data", faq / "ml" / "assets") is not None


@pytest.mark.parametrize(
    ("older", "newer"),
    [("2", "10"), ("1.9", "1.10"), ("1", "1.1"), ("beta", "1"), ("2023-12", "2024-1")],
)
def test_newness(older: str, newer: str) -> None:
    """Numbers compare as numbers, and words come before them."""
    assert assets.version_key(older) < assets.version_key(newer)


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("data", "data"),
        ("./data/", "data"),
        ("file:data", "data"),
        ("file://./data", "data"),
        ("/data", "/data"),
        ("azureml:faq:1", None),
        ("azureml://datastores/d/paths/x", None),
        ("https://example.org/x", None),
        ("wasbs://c@a.blob.core.windows.net/x", None),
        ("git+https://example.org/x", None),
        ("runs:/1/model", None),
    ],
)
def test_local(written: str, expected: str | None, tmp_path: Path) -> None:
    """A path is local unless it begins with a scheme."""
    result = assets.local_path(written, tmp_path)
    assert result == (tmp_path / expected if expected else None)


def test_digest_is_of_the_content(tmp_path: Path) -> None:
    """The digest of a file is its sha256; of a folder it changes with names and contents alone."""
    (tmp_path / "a").mkdir()
    file = tmp_path / "a" / "x.txt"
    file.write_text("one")
    assert assets.digest(file) == hashlib.sha256(b"one").hexdigest()
    first = assets.digest(tmp_path / "a")
    file.touch()
    assert assets.digest(tmp_path / "a") == first
    file.write_text("two")
    second = assets.digest(tmp_path / "a")
    file.rename(tmp_path / "a" / "y.txt")
    assert len({first, second, assets.digest(tmp_path / "a")}) == 3


def test_an_environment_without_its_dockerfile(repo: Path) -> None:
    """The error is gone when the file is there."""
    spec = repo / "env.yml"
    spec.write_text("name: e\nversion: '1'\nbuild:\n  path: src\n  dockerfile_path: Docker\n")
    (problem,) = check(load(spec))
    assert (problem.code, problem.severity) == ("bad-environment", "error")
    assert str(problem.place) == "env.yml:5" and "`Docker`" in problem.actual
    (repo / "src" / "Docker").write_text("FROM b\n")
    assert check(load(spec)) == []


@pytest.mark.parametrize(("name", "file"), [("custom", "requirements.txt"), ("fast", "Dockerfile")])
def test_our_own_images_have_what_is_locked(name: str, file: str) -> None:
    """Each is a spec that Azure ML takes, whose pins are those of requirements/main.lock."""
    folder = ROOT / "ml" / "environments" / name
    assert not check(load(folder / "environment.yml"))
    pins = re.findall(r"[\w.-]+(?:\[[\w,]+\])?==[\w.]+", (folder / file).read_text())
    locked = (ROOT / "requirements" / "main.lock").read_text()
    assert len(pins) >= 6
    assert all(re.search(rf"^{re.escape(pin)} \\", locked, re.MULTILINE) for pin in pins)


@pytest.mark.attack("A project's own file declares the data, environment or endpoint of another")
def test_what_another_project_declares_is_taken(repo: Path) -> None:
    """Each file is told of the other; another version, and a copy that is no project's, are not."""
    schema = "$schema: https://azuremlschemas.azureedge.net/latest"
    texts = {
        "data/a.yml": "name: faq\nversion: 7\ntype: uri_folder\npath: .\n",
        "environment.yml": f"{schema}/environment.schema.json\nname: e\nversion: 1\nimage: i\n",
        "endpoint/endpoint.yml": f"{schema}/managedOnlineEndpoint.schema.json\nname: faq-matching\n"
        "auth_mode: aad_token\n",
    }
    files = [
        repo / "ml/projects" / project / name for project in ("faq", "other") for name in texts
    ]
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(texts[file.relative_to(repo).as_posix().split("/", 3)[3]])
    for file, beside in zip(files, files[3:] + files[:3], strict=True):
        (problem,) = check(load(file))
        assert problem.code == "duplicate-declaration"
        assert beside.relative_to(repo).as_posix() in problem.actual
    for file in files[3:]:
        file.unlink()
    assert [problem for file in files[:3] for problem in check(load(file))] == []
