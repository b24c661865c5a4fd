"""ml.cli.commands.check: what it checks besides specs."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from ml.cli.commands.check import release_files, rule_waiver_problems
from ml.release import serving


@pytest.mark.parametrize(
    ("content", "codes"),
    [
        (", owner: ana, reason: refilled daily, expires: {yesterday}", ["expired-waiver"]),
        (", owner: ana, reason: refilled daily, expires: {soon}", []),
        (", owner: ana, expires: {soon}", ["missing-field"]),
    ],
)
def test_expired_waivers_of_rules_are_warnings(
    content: str, codes: list[str], tmp_path: Path
) -> None:
    """The rule rejects again from the next preview on; who renews the waiver learns it before."""
    today = datetime.now(UTC).date()
    days = {"yesterday": today - timedelta(1), "soon": today + timedelta(5)}
    path = tmp_path / "policies" / "infra" / "waivers.yml"
    path.parent.mkdir(parents=True)
    head = "- {rule: storage-redundancy, environment: staging, resource: lake"
    path.write_text(f"{head}{content.format(**days)}}}\n")
    problems = rule_waiver_problems(tmp_path)
    assert [problem.code for problem in problems] == codes
    assert [problem.severity for problem in problems] == [
        "warning" if code == "expired-waiver" else "error" for code in codes
    ]


def test_a_repository_without_waivers_of_rules_has_no_problem(tmp_path: Path) -> None:
    """A thin fork may delete the file."""
    assert not rule_waiver_problems(tmp_path)


def test_a_code_folder_is_listed_once_for_all_its_deployments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each deployment has its own problems; a second check lists the folder again."""
    included, listed = serving.included, list[Path]()

    def counted(code: Path) -> Mapping[str, Path]:
        listed.append(code)
        return included(code)

    monkeypatch.setattr(serving, "included", counted)
    for name in ("pyproject.toml", "ml/serving/scoring/model.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    deployments = [
        tmp_path / "ml" / "projects" / name / "endpoint" / "deployment.yml"
        for name in ("harmless", "pickled")
    ]
    for deployment, code in zip(deployments, ("import json\n", "import pickle\n"), strict=True):
        deployment.parent.mkdir(parents=True)
        script = f"ml/projects/{deployment.parents[1].name}/endpoint/score.py"
        (tmp_path / script).write_text(code)
        deployment.write_text(
            f"code_configuration: {{code: ../../../.., scoring_script: {script}}}\n"
        )
    for _ in range(2):
        check = release_files()["ml/projects/*/endpoint/deployment.yml"]
        codes = [[problem.code for problem in check(path)] for path in deployments]
        assert codes == [[], ["code-from-data"]]
    assert listed == [tmp_path] * 2
