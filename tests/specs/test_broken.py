"""Every broken spec is found out: what is wrong, on which line, and nothing else."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import pytest

from ml.core.errors import Problem
from tests.specs.broken import CASES, COMMAND, SPACE, SWEEP
from tests.specs.conftest import Check

EXPECTED = re.compile(r"# (error|warning): ([a-z-]+)$")


def expectations(text: str) -> set[tuple[int, str, str]]:
    """The marks of a case: line, severity, code."""
    lines = enumerate(text.splitlines(), 1)
    return {(n, m[1], m[2]) for n, line in lines if (m := EXPECTED.search(line))}


def summary(problems: list[Problem]) -> set[tuple[int, str, str]]:
    return {(p.place.line if p.place else 0, p.severity, p.code) for p in problems}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.attack("A spec that Azure ML would reject or misread is run")
def test_broken_spec(name: str, problems: Check) -> None:
    """A broken spec gives exactly the problems that its marks say."""
    expected = expectations(CASES[name])
    assert expected, "the case has no mark"
    actual = problems(CASES[name])
    assert summary(actual) == expected, "\n".join(map(str, actual))


@pytest.mark.parametrize("name", CASES)
def test_message_says_enough(name: str, problems: Check) -> None:
    """Each problem names file and line, what was found, and what was expected or a hint."""
    for problem in problems(CASES[name]):
        assert str(problem).startswith(f"{problem.severity}[{problem.code}]: spec.yml:")
        assert problem.actual
        assert problem.expected or problem.hint or problem.code == "unreadable-yaml"
        assert problem.source or problem.code in {
            "unreadable-yaml", "nul-character", "recursive-alias",
        }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "message", "hint"),
    [
        ("boolean-choice", "`values[1]` is true", 'write text in quotes: "true"'),
        ("wrong-type-of-tag", "`version` is the integer 1", 'write text in quotes: "1"'),
        ("wrong-type-of-timeout", "`timeout` is the text 'soon'", "write seconds: `timeout: 1800`"),
        ("unit-of-timeout", "`timeout` is the text '30min'", "write seconds: `timeout: 1800`"),
        ("hours-of-timeout", "`timeout` is the text '2 h'", "write seconds: `timeout: 7200`"),
        ("wrong-type", "`instance_count` is the text 'two'", "for example `instance_count: 2`"),
        ("wrong-type-of-inputs", "`inputs` is a list", "for example `inputs: {field: value}`"),
        (
            "start-time",
            "`start_time` is the text '10/07/2022 10:00'",
            'for example `start_time: "2027-01-31T08:00:00"`',
        ),
        (
            "name-of-a-step",
            "`A-step 1`: Pipeline node name should be a valid python identifier(lower letters, "
            "numbers, underscore and start with a letter or underscore). Currently got `A-step 1`.",
            "azure-ai-ml's message, as `az ml` prints it",
        ),
        ("size-of-a-mini-batch", "`mini_batch_size` is the text '1 gb'", ""),
        ("environment-that-is-a-number", "`environment` is the integer 5", ""),
        ("model-that-is-a-list", "`model`: azure-ai-ml cannot read a list", ""),
        ("key-that-is-a-number", "a key of `tags` is the integer 1", 'quotes: "1"'),
        (
            "variable-of-an-own-server",
            "`MODEL_NAME` is set, which the template's policy forbids: its value may run code",
            "set it in the image: `ENV MODEL_NAME=…` in the Dockerfile of `build`",
        ),
        ("value-as-input-of-job", "`type` is the text 'number'", "inline: `rate: VALUE`"),
    ],
)
def test_a_wrong_value_says_how_it_is_written(
    name: str, message: str, hint: str, problems: Check
) -> None:
    """What it is, the item of a list by its number, and how it would be right."""
    (problem,) = problems(CASES[name])
    assert problem.actual == message
    assert problem.hint.endswith(hint)


def test_a_valid_field_is_not_suggested_as_a_misspelling(problems: Check) -> None:
    """`max_concurrent_trials` is alike, and means something else."""
    (problem,) = problems(SWEEP + SPACE + "limits: {max_concurrent_trials: 2}\n")
    assert (problem.code, problem.hint) == ("missing-field", "")
    actual = problems(SWEEP + SPACE + "limits: {max_total_trial: 2}\n")
    assert "did you mean `max_total_trials`?" in [problem.hint for problem in actual]


def test_there_are_enough() -> None:
    """The suite holds at least sixty attacks and broken specs."""
    assert len(CASES) >= 60


@pytest.mark.attack("A secret in a spec is printed with its error")
def test_secrets_are_never_printed(problems: Check) -> None:
    """What is told of a secret is where it is, not what."""
    for name, secret in {
        "secret-in-variable": "hunter2",
        "sas-in-path": "Zm9v",
        "connection-string": "Zm9v",
        "secret-in-command": "abc123def456",
    }.items():
        for problem in problems(CASES[name]):
            assert secret not in f"{problem} {problem.source}"
    text = COMMAND + "environment_variables:\n  - AZURE_CLIENT_SECRET: hunter2hunter2\n"
    assert "hunter2" not in "".join(map(str, problems(text)))


@pytest.mark.attack("A key of a spec forges a line of the output")
def test_a_key_cannot_forge_a_line(problems: Check) -> None:
    """Control characters of a spec are spelt out: neither a line nor a colour comes from it."""
    for problem in problems(COMMAND + '"a\\nerror[forged]: \\e[31m": 1\n'):
        assert problem.actual.isprintable()
        assert "\\n" in problem.actual and "\\x1b" in problem.actual


def test_a_pipeline_that_nests_too_deep_is_refused(repo: Path, problems: Check) -> None:
    """Each level multiplies what azure-ai-ml loads; the check reads every file once."""
    names = [f"level{level}.part" for level in range(30)]
    for name, inner in pairwise(names):
        steps = ", ".join(f"s{n}: {{type: pipeline, component: ./{inner}}}" for n in range(3))
        (repo / name).write_text(f"type: pipeline\nname: n\nversion: 1\njobs: {{{steps}}}\n")
    (repo / names[-1]).write_text("type: command\nname: c\ncommand: echo\nenvironment: e\n")
    text = "type: pipeline\njobs:\n  s: {{type: pipeline, component: ./level{}.part}}\n"
    [problem] = problems(text.format(0))
    assert (problem.code, str(problem.place)) == ("nested-too-deep", "spec.yml:2")
    assert "nested-too-deep" not in {of.code for of in problems(text.format(27))}


@pytest.mark.attack("A link leads a job's code out of the repository")
def test_link_out_of_the_repository(repo: Path, problems: Check) -> None:
    """A link in `code:` and a path that is a link may lead around the repository, not out."""
    text = COMMAND + "code: src\n"
    (repo / "src" / "inside").symlink_to(repo / "data")
    assert problems(text) == []
    (repo / "src" / "outside").symlink_to(repo.parent / "outside")
    assert summary(problems(text)) == {(3, "error", "link-escape")}
    (repo / "src" / ".amlignore").write_text("outside\n")
    assert problems(text) == []
    (repo / "way-out").symlink_to(repo.parent / "outside")
    assert summary(problems(COMMAND + "code: way-out\n")) == {(3, "error", "path-escape")}


def test_nothing_is_refused_that_nobody_can_know(
    repo: Path, tmp_path: Path, problems: Check
) -> None:
    """Outside any repository a path may climb; what is missing is a warning; /etc is refused."""
    folder = tmp_path / "elsewhere" / "jobs"
    folder.mkdir(parents=True)
    data = "inputs: {x: {type: uri_folder, path: ../../shared/data}}\n"
    assert summary(problems(COMMAND + data, name=str(folder / "job.yml"))) == {
        (3, "warning", "missing-file")
    }
    for path in ("/etc/passwd", "../../../../../../../../etc/passwd", "../../etc"):
        data = f"inputs: {{x: {{path: {path}}}}}\n"
        actual = problems(COMMAND + data, name=str(folder / "job.yml"))
        assert (3, "error", "path-escape") in summary(actual)
