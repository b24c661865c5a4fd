"""Reading a release.yml: what it declares, or the line of each problem."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from ml.core.errors import Problem, UserError
from ml.release.declaration import release_file
from ml.release.declaration.release_file import SCHEMA, Strategy, schema
from ml.specs.assets.ignore_file import IgnoreFile
from policies.promotion import gate_settings, policy
from tests.conftest import ROOT
from tests.release import tiny
from tests.release.test_commands import ml

HEX = "0a" * 32
WHOLE = f"model: tiny, version: 3, digest: 'sha256:{HEX}', evidence: {HEX}, decision: {HEX}"


def wrong(path: Path, text: str) -> tuple[Problem, ...]:
    """The problems of a file with that text, each with a line and what was expected."""
    path.write_text(text)
    with pytest.raises(UserError) as raised:
        release_file.read(path)
    assert int(raised.value.exit_code) == 2
    for problem in raised.value.problems:
        assert problem.place and problem.place.path.endswith(path.name) and problem.expected
    return raised.value.problems


def test_a_declaration_is_read(tmp_path: Path) -> None:
    """A version may be a number; an environment that is empty or not there declares nothing."""
    path = tmp_path / "release.yml"
    path.write_text(f"schema_version: 1\nenvironments:\n  dev: {{{WHOLE}}}\n  staging:\n")
    found = release_file.read(path)
    assert found.entries["dev"].version == "3" and list(found.entries) == ["dev"]
    assert found.strategy("dev") == found.strategy("prod") == found.strategy("local") == Strategy()


def test_an_environment_says_what_differs_there(tmp_path: Path) -> None:
    """Field by field, tolerances too; everywhere else the project's own way holds."""
    path = tmp_path / "release.yml"
    path.write_text(
        "schema_version: 1\n"
        "traffic: {mirror: 10, steps: [20, 100], tolerances: {drift: 0.5, errors: 0.01}}\n"
        "environments:\n"
        "  prod: {traffic: {steps: [5], tolerances: {drift: 0.1}}}\n"
    )
    found = release_file.read(path)
    assert found.strategy("local") == found.strategy("dev")
    assert found.strategy("dev").steps == (20, 100)
    prod = found.strategy("prod")
    assert (prod.steps, prod.mirror) == ((5, 100), 10)
    assert (prod.tolerances.drift, prod.tolerances.errors) == (0.1, 0.01)


@pytest.mark.parametrize(
    ("text", "line", "code", "found"),
    [
        ("", 1, "empty-file", "no content"),
        ("[\n", 2, "unreadable-yaml", ""),
        ("- 1\n", 1, "wrong-value", "the file"),
        ("environments: {}\n", 1, "missing-field", "schema_version"),
        ("schema_version: 1\n", 1, "missing-field", "environments"),
        ("schema_version: 2\nenvironments: {}\n", 1, "wrong-value", "schema_version` is 2"),
        ("schema_version: true\nenvironments: {}\n", 1, "wrong-value", "is true"),
        ("schema_version: 1\nenvironments:\n", 2, "wrong-value", "environments` is empty"),
        ("schema_version: 1\nenvironments:\n  qa: {}\n", 3, "unknown-field", "qa"),
        ("schema_version: 1\nenvironments:\n  dev: 3\n", 3, "wrong-value", "dev` is 3"),
        ("schema_version: 1\nenvironments:\n  dev: {}\n  dev: {}\n", 4, "duplicate-key", "dev"),
        ("schema_version: 1\nenvironments:\n  dev: {version: 1.10}\n", 3, "wrong-value", "1.1"),
        ("schema_version: 1\nenvironments:\n  dev: {version: 0}\n", 3, "wrong-value", "is 0"),
        ("schema_version: 1\nenvironments:\n  dev: {version: v3}\n", 3, "wrong-value", "v3"),
        ("schema_version: 1\nenvironments:\n  dev: {model: ''}\n", 3, "wrong-value", "model"),
        ("schema_version: 1\nenvironments:\n  dev: {digest: md5}\n", 3, "wrong-value", "md5"),
        (
            "schema_version: 1\nenvironments:\n  dev:\n    version: 3\n",
            3,
            "incomplete-entry",
            "model",
        ),
        ("schema_version: 1\nenvironments:\n  dev: {reason: x}\n", 3, "incomplete-entry", "model"),
        ("schema_version: 1\nenvironments: {}\ntraffic: 3\n", 3, "wrong-value", "traffic"),
    ],
)
def test_a_file_that_is_wrong(tmp_path: Path, text: str, line: int, code: str, found: str) -> None:
    """The first problem has the code and the line, and says what was found."""
    problem = wrong(tmp_path / "release.yml", text)[0]
    assert problem.code == code and found in problem.actual
    assert problem.place and problem.place.line == line
    if code == "incomplete-entry":
        assert f"`ml release propose {tmp_path.name} --env dev`" in problem.hint


@pytest.mark.parametrize(
    ("field", "found"),
    [
        ("step: [10]", "step"),
        ("steps: []", "steps"),
        ("steps: [0]", "steps[0]"),
        ("steps: ['10']", "steps[0]"),
        ("steps: [50, 10]", "`steps` are [50, 10]"),
        ("steps: [100]", "`steps` are [100]"),
        ("steps: [51]", "`steps` are [51]"),
        ("requests: [50]", "`requests` are 1 numbers"),
        ("requests: [50, 19, 50]", "requests[1]"),
        ("false_alarms: 0", "false_alarms"),
        ("false_alarms: .nan", "false_alarms"),
        ("step_s: .inf", "step_s"),
        ("mirror: 60", "mirror"),
        ("patience: true", "patience"),
        ("tolerances: {errors: -1}", "tolerances.errors"),
        ("tolerances: {latency: 0.5}", "tolerances.latency"),
        ("tolerances: {speed: 1}", "tolerances.speed"),
    ],
)
@pytest.mark.parametrize("where", ["project", "environment"])
def test_a_strategy_that_is_wrong(tmp_path: Path, field: str, found: str, where: str) -> None:
    """For the whole project, or in one environment: the line is the field's own."""
    path = tmp_path / "release.yml"
    if where == "project":
        text = f"schema_version: 1\nenvironments: {{prod: {{}}}}\ntraffic:\n  {field}\n"
    else:
        text = f"schema_version: 1\nenvironments:\n  prod:\n    traffic: {{{field}}}\n"
    (problem,) = wrong(path, text)
    assert found in problem.actual and problem.place and problem.place.line == 4


def test_a_misspelt_field_is_guessed(tmp_path: Path) -> None:
    """The hint names the nearest, and a value's hint says what the field is."""
    path = tmp_path / "release.yml"
    (problem,) = wrong(path, "schema_version: 1\nenvironments: {}\ntraffic: {mirrors: 3}\n")
    assert problem.hint == "did you mean `mirror`?"
    (problem,) = wrong(path, "schema_version: 1\nenvironments: {}\ntraffic: {step_s: 0}\n")
    assert "rolled back" in problem.hint


def test_every_problem_is_told_at_once(tmp_path: Path) -> None:
    """A person mends them in one go."""
    text = (
        "schema_version: 1\nenvironments:\n  dev: {digest: x, modell: y}\ntraffic: {mirror: -1}\n"
    )
    assert len(wrong(tmp_path / "release.yml", text)) == 3


def test_the_schema_for_editors_is_what_the_types_say() -> None:
    """`make schema` was run since a type was changed."""
    assert json.loads(SCHEMA.read_text()) == schema()
    Draft202012Validator.check_schema(schema())


@pytest.mark.parametrize(
    ("document", "sound"),
    [
        ({}, True),
        ({"dev": None}, True),
        ({"dev": yaml.safe_load(f"{{{WHOLE}}}")}, True),
        ({"dev": {**yaml.safe_load(f"{{{WHOLE}}}"), "reason": "it forgets"}}, True),
        ({"prod": {"traffic": {"mirror": 20}}}, True),
        ({"dev": {"version": 3}}, False),
        ({"dev": {"reason": "x"}}, False),
        ({"dev": {"modell": "x"}}, False),
        ({"qa": {}}, False),
        ({"dev": {**yaml.safe_load(f"{{{WHOLE}}}"), "version": "0"}}, False),
        ({"dev": {**yaml.safe_load(f"{{{WHOLE}}}"), "version": 0}}, False),
        ({"dev": {**yaml.safe_load(f"{{{WHOLE}}}"), "digest": "md5"}}, False),
        ({"prod": {"traffic": {"mirror": "20"}}}, False),
        ({"prod": {"traffic": {"tolerances": {"drift": 2}}}}, False),
    ],
)
def test_editor_and_reader_agree(tmp_path: Path, document: Mapping[str, Any], sound: bool) -> None:
    """What the one underlines the other refuses."""
    whole = {"schema_version": 1, "environments": document}
    assert Draft202012Validator(schema()).is_valid(whole) is sound
    path = tmp_path / "release.yml"
    text = yaml.safe_dump(whole)
    if sound:
        path.write_text(text)
        release_file.read(path)
    else:
        wrong(path, text)


def test_check_reads_release_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`ml check` counts them, and ends with 2 and the line where one is wrong."""
    made = tiny.make(tmp_path)
    monkeypatch.chdir(tmp_path)
    path = made.folder / "release.yml"
    for words in ((), (str(path),)):
        code, out, _ = ml(capsys, "check", *words)
        assert code == 0, out
    path.write_text(path.read_text().replace("requests", "request"))
    for words in ((), (str(path),), ("ml/projects/tiny",)):
        code, out, _ = ml(capsys, "check", *words)
        assert code == 2 and "error[unknown-field]: ml/projects/tiny/release.yml:3" in out


@pytest.mark.parametrize(
    ("name", "sound", "wrong", "said"),
    [
        (
            "ml/projects/tiny/gates.yml",
            "",
            "  latency: {p95_ms: 9000}\n",
            "ml/projects/tiny/gates.yml:13: `gates.latency.p95_ms` is 9000",
        ),
        (
            "ml/projects/tiny/select.yml",
            "schema_version: 1\nquality: {weight: 1, reference: 0.01}\n",
            "latencyy: {weight: 1, reference: 1}\n",
            "error[unknown-field]: ml/projects/tiny/select.yml:3: `latencyy`",
        ),
        (
            "ml/projects/tiny/watch.yml",
            "schema_version: 1\n",
            "psi: 40\n",
            "error[watch-looser-than-policy]: ml/projects/tiny/watch.yml:2: `psi` is 40",
        ),
        (
            "policies/promotion/gates.yml",
            gate_settings.POLICY.read_text(),
            "    since: 2025\n",
            "error[unknown-field]: policies/promotion/gates.yml:",
        ),
        (
            "policies/promotion/watch.yml",
            policy.WATCH.read_text(),
            "p_s_i: 3\n",
            "error[unknown-field]: policies/promotion/watch.yml:13: `p_s_i`",
        ),
    ],
)
def test_check_reads_what_else_releases_read(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    name: str,
    sound: str,
    wrong: str,
    said: str,
) -> None:
    """A sound file is counted; where one is wrong, the line, what was expected and a hint."""
    tiny.make(tmp_path)
    monkeypatch.chdir(tmp_path)
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(sound or path.read_text())
    code, out, _ = ml(capsys, "check")
    assert code == 0, out
    count = int(out.split(" specs")[0].split()[-1])
    path.write_text(path.read_text() + wrong)
    for words in ((), (name,)):
        code, out, _ = ml(capsys, "check", *words)
        assert code == 2 and said in out and "1 error" in out, out
    path.unlink()
    assert int(ml(capsys, "check")[1].split(" specs")[0].split()[-1]) == count - 1


def test_another_files_of_that_name_is_not_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """GitHub's release notes have a release.yml too."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "release.yml").write_text("changelog: {}\n")
    code, out, _ = ml(capsys, "check", ".")
    assert code == 0 and "0 specs" in out


def test_a_model_or_evidence_that_is_not_the_projects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both are found without a registry, each with its line."""
    made = tiny.make(tmp_path)
    monkeypatch.chdir(tmp_path)
    path = made.folder / "release.yml"
    lines = WHOLE.replace("tiny", "other").split(", ")
    text = "\n    ".join(["schema_version: 1\nenvironments:\n  dev:", *lines])
    path.write_text(text + "\n")
    model, evidence = release_file.check(path)
    assert model.code == "model-of-another-project" and model.place and model.place.line == 4
    assert evidence.code == "evidence-edited" and evidence.place and evidence.place.line == 7
    attached = release_file.evidence_path(path, "dev")
    attached.parent.mkdir()
    attached.write_text("{}")
    assert "was changed" in release_file.check(path)[1].actual


def test_a_promotion_is_not_in_the_snapshot_of_the_code(tmp_path: Path) -> None:
    """So that steps are reused, and a version that served is known again with its code."""
    made = tiny.make(tmp_path)
    (made.folder / "evidence").mkdir()
    (made.folder / "evidence/prod.json").write_text("{}")
    shutil.copy(ROOT / ".amlignore", tmp_path)
    for root in (ROOT, tmp_path):
        names = {name for name, _ in IgnoreFile(root).files()}
        assert not [name for name in names if "release" in name or "evidence/" in name]
    assert "ml/projects/tiny/endpoint/score.py" in names


def test_the_schema_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """What `make schema` writes."""
    code, out, _ = ml(capsys, "release", "schema")
    assert code == 0 and json.loads(out) == schema()


def test_a_new_field_of_the_answers_counts_for_a_while(tmp_path: Path) -> None:
    """It has an owner, a reason and a day on which it ends, at most 90 days ahead."""
    today = date(2025, 6, 1)
    entry = "  - {{field: {0}, owner: ana, reason: callers ask, expires: {1}}}\n"
    days = {"a": "2025-06-30", "b/0/c": "2025-06-01", "gone": "2025-05-31", "long": "2025-08-31"}
    path = tmp_path / "release.yml"
    head = "schema_version: 1\nenvironments: {dev: null}\nnew_fields:\n"
    path.write_text(head + "".join(entry.format(*item) for item in days.items()))
    counting, reasons = release_file.new_fields(path, today)
    assert counting == ["a", "b/0/c"]
    assert "expired on 2025-05-31" in reasons[0] and "more than 90 days" in reasons[1]
    for wrong in (entry.format("/a", "2025-06-30"), entry.format("a", "never"), "  - {field: a}\n"):
        path.write_text(head + wrong)
        with pytest.raises(UserError, match="new_fields"):
            release_file.new_fields(path, today)
