"""Dockerfiles of custom images: what they install, line by line, and what is left unsaid."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ml.core.errors import Refused
from ml.specs.check.check import check
from ml.specs.plan.plan import CommandPlan, Environment
from ml.specs.plan.planning import plan
from ml.specs.sdk.load import load
from tests.conftest import ROOT

JOB = "command: x\nenvironment: azureml:e:1\ncompute: azureml:c\n"


def environment(repo: Path, dockerfile: str) -> Environment:
    """That of a job whose environment is built from `dockerfile` in the folder `image`."""
    folder = repo / "assets" / "image"
    folder.mkdir(exist_ok=True)
    (folder / "Dockerfile").write_text(dockerfile)
    (repo / "assets" / "env.yml").write_text("name: e\nversion: 1\nbuild: {path: image}\n")
    (repo / "job.yml").write_text(JOB)
    made = plan(load(Path("job.yml")))
    assert isinstance(made, CommandPlan)
    return made.environment


def asked(found: Environment) -> list[tuple[str, str, str]]:
    return [(one.text, one.manager, str(one.place)) for one in found.dependencies or ()]


def test_packages_in_the_line_and_in_a_file(repo: Path) -> None:
    """Of pip and conda, each with its line; what apt installs and what flags say is not asked."""
    (repo / "assets" / "image").mkdir()
    (repo / "assets" / "image" / "wanted.txt").write_text("rich==13.0  # colours\n-r more.txt\n")
    (repo / "assets" / "image" / "more.txt").write_text("tqdm\n")
    found = environment(
        repo,
        "FROM base\n"
        "RUN apt-get install -y gcc && rm -rf /var\n"
        "RUN conda create -y -p /env -c conda-forge \\\n"
        "    # Python\n"
        "    python=3.11\n"
        "COPY --chown=1 wanted.txt /tmp/\n"
        "RUN pip install --no-cache-dir --index-url https://x/y \\\n    numpy==2.0 \\\n"
        "    'scipy>=1' && python -m pip install -r /tmp/wanted.txt\n",
    )
    assert found.dockerfile and found.conda_file is None
    assert asked(found) == [
        ("python=3.11", "conda", "assets/image/Dockerfile:5"),
        ("numpy==2.0", "pip", "assets/image/Dockerfile:8"),
        ("scipy>=1", "pip", "assets/image/Dockerfile:9"),
        ("rich==13.0", "pip", "assets/image/wanted.txt:1"),
        ("tqdm", "pip", "assets/image/more.txt:1"),
    ]


@pytest.mark.parametrize(
    "dockerfile",
    [
        "FROM base\n",
        "FROM base\nRUN apt-get install -y python3-pip\n",
        "FROM base\nARG V=1\nRUN pip install rich==$V\n",
        "FROM base\nRUN pip install .\n",
        "FROM base\nRUN pip install -e src\n",
        "FROM base\nRUN pip install -r /opt/of-the-image.txt\n",
        "FROM base\nRUN <<EOF\npip install rich\nEOF\n",
        "FROM base\nRUN pip install 'rich\n",
        "FROM base\nRUN pip install -r\n",
    ],
)
def test_what_is_not_plain_is_not_guessed(repo: Path, dockerfile: str) -> None:
    """Then nothing is compared, which is said; half of it would be a lie."""
    assert environment(repo, dockerfile).dependencies is None


def test_a_file_that_is_copied_and_not_there(repo: Path) -> None:
    """The line that installs it is named."""
    with pytest.raises(Refused) as refused:
        environment(repo, "FROM b\nCOPY gone.txt /tmp/\nRUN pip install -r /tmp/gone.txt\n")
    (problem,) = refused.value.problems
    assert (problem.code, str(problem.place)) == ("missing-file", "assets/image/Dockerfile:3")


def test_an_environment_of_its_own_without_its_dockerfile(repo: Path) -> None:
    """Checked alone: an error of the repository's own asset, gone when the file is there."""
    spec = repo / "env.yml"
    spec.write_text("name: e\nversion: '1'\nbuild:\n  path: src\n  dockerfile_path: Docker\n")
    (problem,) = check(load(spec))
    assert (problem.code, problem.severity) == ("missing-file", "error")
    assert str(problem.place) == "env.yml:5" and "`Docker`" in problem.found
    (repo / "src" / "Docker").write_text("FROM b\n")
    assert check(load(spec)) == []


@pytest.mark.parametrize("name", ["custom", "fast"])
def test_our_own_images_have_what_is_locked(name: str) -> None:
    """Each is a spec that Azure ML takes, whose pins are those of requirements/main.lock."""
    folder = ROOT / "ml" / "environments" / name
    assert not check(load(folder / "environment.yml"))
    from ml.specs.dockerfile import of_file

    context = {"custom": folder, "fast": ROOT}[name]
    found = of_file(folder / "Dockerfile", context)
    assert found is not None and not found.problems
    pins = [one.text for one in found.dependencies if one.manager == "pip"]
    locked = (ROOT / "requirements" / "main.lock").read_text()
    assert len(pins) >= 6
    assert all(re.search(rf"^{re.escape(pin)} \\", locked, re.MULTILINE) for pin in pins)
