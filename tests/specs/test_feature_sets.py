"""`ml check` of feature sets: each problem with its line, none of a right one."""

from __future__ import annotations

from pathlib import Path

import pytest

from ml.cli.commands.check import release_files
from ml.specs.check.check import survey
from ml.specs.check.feature_sets import feature_set_problems
from tests.features.conftest import CODE, SET, SPEC, write_set

ENTITY = """\
$schema: http://azureml/sdk-2-0/FeatureStoreEntity.json
name: account
version: "1"
index_columns:
  - name: account
    type: string
"""


@pytest.fixture
def feature_set(repo: Path) -> Path:
    """A feature set with its entity and its local source, in a project."""
    folder = repo / "ml/projects/payments/features"
    (folder.parent / "source").mkdir(parents=True)
    path = write_set(folder)
    (folder / "account.yml").write_text(ENTITY)
    return path


def test_a_right_feature_set_has_no_problems(feature_set: Path) -> None:
    """Of its own rules and of the SDK's loader; another spec in the folder is left alone."""
    assert feature_set_problems(feature_set) == []
    assert feature_set_problems(feature_set.with_name("account.yml")) == []
    assert survey([feature_set.parent], release_files()).problems == ()


@pytest.mark.parametrize(
    ("file", "before", "after", "found"),
    [
        ("set", "./account_payments", "./nothing", "FeatureSetSpec.yaml does not exist"),
        ("set", "./account_payments", "../../../../../../tmp", "is '../../../../../../tmp'"),
        ("set", "arrival_column: written", "arrival_column: 3", "`tags.arrival_column` is 3"),
        ("set", "../source", "../nothing", "`tags.local_source` is '../nothing'"),
        ("set", "name: account_payments", "name: ../out", "`name` is '../out'"),
        ("set", 'version: "1"', 'version: ".."', "`version` is '..'"),
        ("set", "interval: 1", "interval: 0", "interval` is 0"),
        ("set", "arrival_column", "arival_column", "the tag `arival_column` is close to"),
        ("spec", "payments/*.parquet", "../secret", "`source.path` is 'abfss"),
        ("spec", "days: 2", "days: 99999999999", "`temporal_join_lookback` is"),
        ("spec", "name: spent_30h", "name: arrival", "two columns are called `arrival`"),
        ("set", "../source", "/etc", "`tags.local_source` is '/etc'"),
        ("set", "account:1", "account:2", "no entity `azureml:account:2`"),
        (
            "entity",
            "name: account\n    type: string",
            "name: card\n    type: string",
            "account (str",
        ),
        ("entity", "    type: string", "    type: long", "the keys are account (string)"),
        ("spec", SPEC, "[]", "has no fields"),
        ("spec", SPEC, "a: [", "did not find expected"),
        ("spec", "features:", "feature:", "unknown field `feature`"),
        ("spec", "features:", "feature:", "`features` is missing"),
        ("spec", "type: parquet", "type: excel", "`source.type` is 'excel'"),
        ("spec", "abfss://c@s.dfs.core.windows.net", "data", "`source.path` is 'data"),
        ("spec", "abfss://c@s.dfs.core.windows.net", "abfss://s.net", "`source.path` is 'abfss"),
        ("spec", "    name: event\n", "    names: event\n", "`source.timestamp_column` is"),
        ("spec", "    name: event\n", "    name: event\n    zone: UTC\n", "unknown field `zone`"),
        ("spec", "minutes: 5", "minutes: -5", "`source.source_delay` is"),
        ("spec", "hours: 30", "hours: many", "`source_lookback` is"),
        ("spec", "  days: 2", "  weeks: 2", "`temporal_join_lookback` is"),
        ("spec", "type: double", "type: decimal", "`features.1.type` is 'decimal'"),
        ("spec", "name: spent_30h", "name: count_3h", "two columns are called `count_3h`"),
        ("spec", "name: spent_30h", "name: account", "two columns are called `account`"),
        ("spec", "name: spent_30h", "name: event", "two columns are called `event`"),
        (
            "spec",
            "  - name: count_3h\n    type: long",
            "  - count_3h",
            "`features.0` is 'count_3h'",
        ),
        ("spec", "payments.Payments", "Payments", "is 'Payments'"),
        ("spec", "payments.Payments", "....etc.Payments", "is '....etc.Payments'"),
        ("spec", "payments.Payments", "other.Payments", "other.py cannot be read"),
        ("spec", "./transformation", "../../../../../../tmp", "is '../../../../../../tmp'"),
        ("code", "class Payments", "class Other", "no class `Payments` with a method `transform`"),
        ("code", CODE, "class", "payments.py cannot be read: SyntaxError"),
    ],
)
def test_a_problem_names_its_line(
    feature_set: Path, file: str, before: str, after: str, found: str
) -> None:
    """And nothing is imported to find it."""
    folder = feature_set.parent
    paths = {
        "set": feature_set,
        "entity": folder / "account.yml",
        "spec": folder / "account_payments/FeatureSetSpec.yaml",
        "code": folder / "account_payments/transformation/payments.py",
    }
    text = paths[file].read_text()
    assert before in text and SET
    paths[file].write_text(text.replace(before, after))
    problems = feature_set_problems(feature_set)
    assert any(found in problem.found for problem in problems), [*map(str, problems)]
    assert all(problem.place and problem.place.line >= 1 for problem in problems)
    reported = survey([folder], release_files()).problems
    assert {*problems} <= {*reported}


def test_a_set_in_a_file_of_the_other_ending_is_checked(feature_set: Path) -> None:
    """`.yaml` as well as `.yml`."""
    renamed = feature_set.rename(feature_set.with_suffix(".yaml"))
    spec = renamed.parent / "account_payments/FeatureSetSpec.yaml"
    spec.write_text(SPEC.replace("type: double", "type: decimal"))
    problems = survey([renamed.parent], release_files()).problems
    assert any("'decimal'" in problem.found for problem in problems)


METHOD = "    def transform(self, rows):\n        return rows\n"


@pytest.mark.parametrize(
    ("bases", "is_right"),
    [
        (f"class Base:\n{METHOD}", True),
        (f"class Top:\n{METHOD}class Base(Top):\n    pass\n", True),
        ("from shared import Base\n", True),
        ("class Base:\n    pass\n", False),
        ("class Base(Payments):\n    pass\n", False),
    ],
)
def test_transform_may_be_inherited(feature_set: Path, bases: str, is_right: bool) -> None:
    """From a class of the module; one of another module is not read, and may have it."""
    code = feature_set.parent / "account_payments/transformation/payments.py"
    code.write_text(f"{bases}class Payments(Base):\n    pass\n")
    found = [problem.found for problem in feature_set_problems(feature_set)]
    assert found == [] if is_right else "no class `Payments` with a method" in found[0]


def test_a_specification_is_checked_alone(feature_set: Path) -> None:
    """With the set that names it; one that no set names is an error."""
    spec = feature_set.parent / "account_payments/FeatureSetSpec.yaml"
    report = survey([spec], release_files())
    assert (report.specs, report.problems) == (1, ())
    spec.write_text(SPEC.replace("type: double", "type: decimal"))
    problems = survey([spec], release_files()).problems
    assert ["'decimal'" in problem.found for problem in problems] == [True]
    assert len(survey([feature_set.parent], release_files()).problems) == 1
    feature_set.unlink()
    (problem,) = survey([spec], release_files()).problems
    assert problem.found == "no feature set names this folder"
