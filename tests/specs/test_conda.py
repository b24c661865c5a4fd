"""Conda files: every line that an environment asks for, with where it stands."""

from __future__ import annotations

from pathlib import Path

import pytest

from ml.core.errors import Exit, UserError
from ml.specs.assets import packages
from ml.specs.check.check import check
from ml.specs.plan.planning import plan
from ml.specs.plan.plans import CommandPlan, Environment
from ml.specs.sdk.load import load
from tests.conftest import ROOT

JOB = """\
command: python -c 1
environment:
  image: mcr.microsoft.com/azureml/base:1
  conda_file: {}
compute: azureml:cpu
"""


# Of eight levels with nine aliases each.
BOMB = "l0: &l0 [a]\n" + "".join(
    f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 9)}]\n" for n in range(1, 9)
)


def environment(repo: Path, written: str) -> Environment:
    """The environment of a job whose `conda_file:` is `written`."""
    (repo / "job.yml").write_text(JOB.format(written))
    job = plan(load(Path("job.yml")))
    assert isinstance(job, CommandPlan)
    return job.environment


def requirements(environment: Environment) -> list[tuple[str, str, str]]:
    return [(item.text, item.manager, str(item.place)) for item in environment.dependencies or ()]


def test_a_requirements_file(repo: Path) -> None:
    """Comments go, lines are kept; what another file adds is not known."""
    (repo / "req.txt").write_text("# top\n\nnumpy>=1  # arrays\ntqdm \\\n  >=4\n")
    lines = packages.conda_requirements(repo / "req.txt")
    assert lines is not None
    assert [(line.text, str(line.place)) for line in lines] == [
        ("numpy>=1", "req.txt:3"),
        ("tqdm >=4", "req.txt:4"),
    ]
    (repo / "more.txt").write_text("numpy\n-r req.txt\n")
    assert (
        packages.conda_requirements(repo / "more.txt")
        is packages.conda_requirements(repo / "none.txt")
        is None
    )


@pytest.mark.parametrize(
    "line",
    [
        *("-r req.txt", "-rreq.txt", "--requirement=req.txt", "-c limits.txt", "-e .", "./package"),
        *("--constraint limits.txt", "file:./a.whl", "a @ file:///a.whl", "-f ./wheels"),
        *("--pre -r req.txt", "--index-url https://example.org -rreq.txt", "wheels/a-1.whl"),
        *("a-1.tar.gz", "a.zip[extra]", "src/package", "a @ src/package", "--no-index -f wheels"),
        *("numpy -c limits.txt", "-e package", "src\\\\package", "a@./b", "--pre ../a"),
    ],
)
def test_a_line_that_names_a_file(repo: Path, line: str) -> None:
    """Azure ML builds from the text of the conda file alone; at an address anything may be."""
    (repo / "req.txt").write_text("numpy\n")
    for owner in ("dependencies:\n  - pip:\n    - {}\n", "name: e\ndependencies:\n  - {}\n"):
        (repo / "conda.yml").write_text(owner.format(f"'{line}'"))
        (repo / "job.yml").write_text(JOB.format("conda.yml"))
        (problem,) = check(load(Path("job.yml")))
        assert (problem.code, str(problem.place)) == ("bad-conda-file", "conda.yml:3")
    for allowed in (
        *("-r https://example.org/req.txt", "-e git+https://example.org/a", "--pre"),
        *("a @ https://example.org/a-1.whl", "https://example.org/a.zip", "b --no-binary b"),
        *("--extra-index-url https://example.org/simple a==1", 'a[b]>=1.0,!=2.* ; os_name == "nt"'),
        *("a ~=1.0", "git+ssh://git@example.org/a/b.git@v1", "a===1.0"),
        *("git+https://example.org/a@main#subdirectory=b/c", "a~=1.0,!=1.0.3"),
    ):
        (repo / "conda.yml").write_text(f"dependencies: [{{pip: ['{allowed}', rich]}}]\n")
        assert check(load(Path("job.yml"))) == []


@pytest.mark.parametrize("pip", ["a=>1", "a=1.0", "a b==1", "a==", "a>=1,,<2", "a~=1", "a[b==1"])
@pytest.mark.parametrize("conda", ["a==>3", "a>=1,,<2", "a==", "a<>1"])
def test_a_line_with_a_wrong_version(repo: Path, pip: str, conda: str) -> None:
    """What pip and conda reject while they build the image."""
    (repo / "conda.yml").write_text(f"dependencies:\n  - {conda}\n  - pip:\n    - {pip}\n")
    (repo / "job.yml").write_text(JOB.format("conda.yml"))
    first, second = check(load(Path("job.yml")))
    assert {first.code, second.code} == {"bad-conda-file"}
    assert [str(problem.place) for problem in (first, second)] == ["conda.yml:2", "conda.yml:4"]


@pytest.mark.parametrize(
    "line",
    [
        *("conda-forge::numpy", "numpy[channel=main/label]", "pkgs/main::numpy=1.26", "a=1.*"),
        *("python >=3.9,<3.12", "blas=*=openblas", "a 1.0|2.0", "a=1.26=py311*", "a!=1.5"),
    ],
)
def test_a_match_specification(repo: Path, line: str) -> None:
    """Of conda's documentation, "Package match specifications"."""
    (repo / "conda.yml").write_text(f"dependencies: ['{line}']\n")
    (repo / "job.yml").write_text(JOB.format("conda.yml"))
    assert check(load(Path("job.yml"))) == []


def test_a_mapping_in_place(repo: Path) -> None:
    """A conda file may be written where its name would stand."""
    actual = environment(repo, "{dependencies: [python=3.10, {pip: [rich]}]}")
    assert requirements(actual) == [
        ("python=3.10", "conda", "job.yml:4"),
        ("rich", "pip", "job.yml:4"),
    ]


def test_an_asset_of_the_repository(repo: Path) -> None:
    """Its conda file is read beside its own spec."""
    (repo / "ml" / "assets" / "env.yml").write_text(
        "name: e\nversion: 2\nimage: i\nconda_file: conda.yml\n"
    )
    (repo / "ml" / "assets" / "conda.yml").write_text("dependencies: [rich]\n")
    (repo / "job.yml").write_text("command: x\nenvironment: azureml:e@latest\ncompute: azureml:c\n")
    job = plan(load(Path("job.yml")))
    assert isinstance(job, CommandPlan)
    assert requirements(job.environment) == [("rich", "conda", "ml/assets/conda.yml:1")]
    assert str(job.environment.place) == "job.yml:2"


def test_without_a_conda_file(repo: Path) -> None:
    """An image, or what another place defines, asks for nothing that is known here."""
    (repo / "job.yml").write_text("command: x\nenvironment: azureml:e:1\ncompute: azureml:c\n")
    job = plan(load(Path("job.yml")))
    assert isinstance(job, CommandPlan)
    assert job.environment.dependencies is None


@pytest.mark.parametrize(
    ("content", "code", "line"),
    [
        ("dependencies: numpy\n", "bad-conda-file", "conda.yml:1"),
        ("dependencies:\n  - numpy\n  - 3\n", "bad-conda-file", "conda.yml:3"),
        ("dependencies:\n  - pip:\n    - {a: 1}\n", "bad-conda-file", "conda.yml:3"),
        ("dependencies:\n  - pip:\n    - -r none.txt\n", "bad-conda-file", "conda.yml:3"),
    ],
)
def test_a_problem_has_its_line(repo: Path, content: str, code: str, line: str) -> None:
    """Of a file that conda could not read either."""
    (repo / "conda.yml").write_text(content)
    with pytest.raises(UserError) as error:
        environment(repo, "conda.yml")
    (problem,) = error.value.problems
    assert (problem.code, str(problem.place)) == (code, line)
    assert error.value.exit_code == Exit.WRONG_CALL


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("name: e\ndependencies: [\n", "unreadable-yaml at conda.yml:3"),
        ("a: [1\nb: 2\n", "unreadable-yaml at conda.yml:2"),
        ("- numpy\n", "bad-conda-file at conda.yml:1"),
        ("dependencies:\n  - 3\n", "bad-conda-file at conda.yml:2"),
        ("dependencies: [numpy]\n", ""),
        ("dependencies:\n  - pip: 3\n", "bad-conda-file at conda.yml:2"),
        (BOMB, "bad-conda-file at conda.yml:1"),
        ("dependencies: [numpy]\ndependencies: [rich]\n", "bad-conda-file at conda.yml:2"),
        (None, "missing-file at job.yml:4"),
    ],
)
def test_a_check_names_its_line(repo: Path, content: str | None, problem: str) -> None:
    """Of a file that is no YAML, holds something else, or is not there; before anything is run."""
    (repo / "conda.yml").unlink()
    if content is not None:
        (repo / "conda.yml").write_text(content)
    (repo / "job.yml").write_text(JOB.format("conda.yml"))
    assert [f"{item.code} at {item.place}" for item in check(load(Path("job.yml")))] == (
        [problem] if problem else []
    )


def test_an_unreadable_file_of_an_asset(repo: Path) -> None:
    """Its own line is named; the SDK reads only what the job itself names."""
    (repo / "ml" / "assets" / "env.yml").write_text("name: e\nimage: i\nconda_file: conda.yml\n")
    (repo / "ml" / "assets" / "conda.yml").write_text("name: e\ndependencies: [\n")
    (repo / "job.yml").write_text("command: x\nenvironment: azureml:e:1\ncompute: azureml:c\n")
    with pytest.raises(UserError) as error:
        plan(load(Path("job.yml")))
    (problem,) = error.value.problems
    assert (problem.code, str(problem.place)) == ("unreadable-yaml", "ml/assets/conda.yml:3")


def pinned(root: Path, text: str) -> list[tuple[str, int]]:
    folder = root / "ml/environments/own"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "conda.yml").write_text(text)
    return [
        (each.expected.partition(",")[0], each.place.line if each.place else 0)
        for each in packages.pin_problems(root)
    ]


def test_pins_are_compared_with_the_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of locked packages, of conda's and of pip's form; of others nothing is known."""
    (tmp_path / "requirements").mkdir()
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "requirements/main.lock").write_text("numpy==2.4.6 \\\n    --hash=x\nmy-own==1\n")
    monkeypatch.chdir(tmp_path)
    head = "dependencies:\n  - python=3.11\n"
    assert pinned(tmp_path, f"{head}  - numpy=2.4.6\n  - pip:\n      - other==7\n") == []
    assert pinned(tmp_path, f"{head}  - numpy=2.4.5 # old\n") == [("2.4.6", 3)]
    assert pinned(tmp_path, f"{head}  - pip:\n      - My_Own[fast]==2\n") == [("1", 4)]
    assert pinned(tmp_path, f"{head}  - conda-forge::numpy=1.26\n") == [("2.4.6", 3)]
    assert pinned(tmp_path, f"{head}  - pip:\n      - deepspeed==0.1\n") == []
    (tmp_path / "requirements/torch.lock").write_text("deepspeed==0.2 \\\n    --hash=x\nnumpy==9\n")
    assert pinned(tmp_path, f"{head}  - pip:\n      - deepspeed==0.1\n") == [("0.2", 4)]
    assert pinned(tmp_path, f"{head}  - numpy=2.4.6\n") == []
    (tmp_path / "requirements/torch.lock").unlink()
    (tmp_path / "requirements/main.lock").unlink()
    assert pinned(tmp_path, f"{head}  - numpy=1\n") == []


def test_the_environments_of_this_repository_agree() -> None:
    assert [*packages.pin_problems(ROOT)] == []
