"""`--set`: dotted paths, typed values, paths of the working directory, and misspelt targets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ml.core.errors import Problem, UserError
from ml.specs.check.check import check
from ml.specs.sdk.load import load
from tests.specs.samples import SAMPLES


@pytest.fixture(autouse=True)
def specs(repo: Path) -> None:
    for name in ("command", "sweep"):
        (repo / f"{name}.yml").write_text(SAMPLES[name][2])


def changed(*keys: str, name: str = "command", **overrides: str) -> Any:
    changes = {key.replace("__", "."): value for key, value in overrides.items()}
    return load(Path(f"{name}.yml"), changes).get(*keys)


def refused(target: str, value: str, name: str = "command") -> Problem:
    with pytest.raises(UserError) as error:
        load(Path(f"{name}.yml"), {target: value})
    return error.value.problems[0]


def test_literals_and_fields() -> None:
    """Values are YAML scalars: a number is a number, quoted text is text."""
    assert changed("inputs", "rate", inputs__rate="0.5") == 0.5
    assert changed("inputs", "rate", inputs__rate="'0.5'") == "0.5"
    assert changed("inputs", "rate", inputs__rate="a: b: c") == "a: b: c"
    assert changed("limits", "timeout", limits__timeout="60") == 60
    assert changed("compute", compute="azureml:gpu") == "azureml:gpu"
    assert changed("limits", "max_total_trials", name="sweep", limits__max_total_trials="4") == 4
    assert changed("search_space", "rate", "max_value", name="sweep",
                   search_space__rate__max_value="0.2") == 0.2  # fmt: skip
    space = changed("search_space", "rate", name="sweep",
                    search_space__rate="{type: choice, values: [0.1]}")  # fmt: skip
    assert space == {"type": "choice", "values": [0.1]}


def test_text_stays_text(repo: Path) -> None:
    """`"false"` in the spec is text for the command, and so is the `true` that replaces it."""
    text = SAMPLES["command"][2].replace("inputs:", "inputs:\n  shuffled: 'false'", 1)
    (repo / "command.yml").write_text(text)
    assert changed("inputs", "shuffled", inputs__shuffled="true") == "true"
    assert changed("inputs", "shuffled", inputs__shuffled="1.0") == "1.0"


def test_fields_that_the_spec_does_not_have_yet() -> None:
    """A tag, a variable, a limit or a display name may be added."""
    assert changed("tags", "mine", tags__mine="yes please") == "yes please"
    assert changed("environment_variables", "A", environment_variables__A="b") == "b"
    assert changed("sampling_algorithm", name="sweep", sampling_algorithm__seed="3")["seed"] == 3


def test_short_sampling_algorithm_becomes_a_mapping(repo: Path) -> None:
    """`sampling_algorithm: random` can be given a seed."""
    text = SAMPLES["sweep"][2].replace("{type: random, seed: 7, rule: sobol}", "random")
    (repo / "sweep.yml").write_text(text)
    algorithm = changed("sampling_algorithm", name="sweep", sampling_algorithm__seed="3")
    assert algorithm == {"type": "random", "seed": 3}


def test_a_path_is_of_the_working_directory_and_may_lead_anywhere(
    repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`inputs.x=…` sets the path of data, relative to where the person stands."""
    monkeypatch.chdir(tmp_path)
    for target in ("inputs.faq", "inputs.faq.path"):
        spec = load(repo / "command.yml", {target: "outside"})
        assert spec.get("inputs", "faq", "path") == str(tmp_path / "outside")
        assert [p.code for p in check(spec) if p.code == "path-escape"] == []
    spec = load(repo / "command.yml", {"inputs.faq": "azureml:other:2"})
    assert spec.get("inputs", "faq", "path") == "azureml:other:2"
    monkeypatch.setenv("HOME", str(tmp_path))
    spec = load(repo / "command.yml", {"inputs.faq": "~/outside"})
    assert spec.get("inputs", "faq", "path") == str(tmp_path / "outside")


def test_unknown_targets_are_refused_with_a_hint() -> None:
    """A misspelt input, field or hyperparameter names the nearest that there is."""
    problem = refused("inputs.rat", "1")
    assert (problem.code, problem.hint) == ("bad-override", "did you mean `inputs.rate`?")
    assert refused("comput", "x").hint == "did you mean `compute`?"
    assert "search_space.rate" in refused("search_space.rat", "1", "sweep").hint
    assert refused("inputs.faq.path.deep", "x").code == "bad-override"
    assert (
        refused("resources", "3").expected
        == "one of its fields: instance_count, shm_size, docker_args"
    )
    assert refused("objective.goal.x", "y", "sweep").code == "bad-override"


def test_fields_that_can_be_set_are_listed() -> None:
    """Of that kind of job, without what makes it that kind."""
    listed = {
        kind: {*refused("nope.x", "1", kind).expected.removeprefix("one of ").split(", ")}
        for kind in ("command", "sweep")
    }
    for names in listed.values():
        assert {"inputs", "compute", "tags", "limits", "experiment_name"} <= names
        assert not names & {"type", "$schema", "version"}
    assert {"command", "environment", "resources"} <= listed["command"]
    assert "sampling_algorithm" not in listed["command"]
    assert {"sampling_algorithm", "search_space", "trial"} <= listed["sweep"]
    assert not listed["sweep"] & {"command", "environment", "code"}


def test_all_unknown_targets_are_reported_at_once() -> None:
    """Two wrong targets are two problems."""
    with pytest.raises(UserError) as error:
        load(Path("command.yml"), {"inputs.a": "1", "comput": "2"})
    assert len(error.value.problems) == 2


def test_overrides_are_checked_like_the_file() -> None:
    """What the SDK or a rule refuses is at the `--set` that brought it, not at a line."""
    for field, value, code in (
        ("resources.instance_count", "-1", "number-out-of-range"),
        ("limits.timeout", "soon", "wrong-type"),
    ):
        problems = check(load(Path("command.yml"), {field: value}))
        assert [(problem.code, str(problem.place)) for problem in problems] == [
            (code, f"--set {field}")
        ]
    problems = check(load(Path("command.yml"), {"inputs.rate": "1; reboot"}))
    assert [problem.code for problem in problems] == ["shell-metacharacter"]


def test_the_file_is_left_alone(repo: Path) -> None:
    """An override changes what is loaded, never the file."""
    before = (repo / "command.yml").read_bytes()
    load(Path("command.yml"), {"inputs.rate": "0.9"})
    assert (repo / "command.yml").read_bytes() == before
