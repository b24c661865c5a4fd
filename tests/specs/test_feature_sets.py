"""`ml check` of feature sets: each problem with its line, none of a right one."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from ml.cli.commands.check import release_files
from ml.specs.check.check import survey
from ml.specs.check.feature_sets import feature_set_problems
from tests.features.conftest import CODE, ENTITY, SET, SPEC, write_set
from tests.features.test_materialize import payment, write


@pytest.fixture
def feature_set(repo: Path) -> Path:
    """A feature set with its entity and its local source, in a project."""
    folder = repo / "ml/projects/payments/features"
    write(folder.parent / "source", "1.parquet", [payment(0)])
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
        ("set", "arrival_column: written", "arrival_column: [1]", "`tags.arrival_column` is [1]"),
        ("set", "  arrival_column: written\n  local_source: ../source", "  [a]", "`tags` is ['a']"),
        ("set", "../source", "../nothing", "`tags.local_source` is '../nothing'"),
        ("set", "name: account_payments", "name: ../out", "`name` is '../out'"),
        ("set", 'version: "1"', 'version: ".."', "`version` is '..'"),
        ("set", "interval: 1", "interval: 0", "interval` is 0"),
        ("set", "arrival_column", "arival_column", "the tag `arival_column` is close to"),
        ("spec", "payments/*.parquet", "../secret", "`source.path` is 'abfss"),
        ("spec", "days: 2", "days: 99999999999", "`temporal_join_lookback.days` is"),
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
        ("spec", SPEC, "[]", "`the file` is a list of 0"),
        ("spec", SPEC, "a: [", "did not find expected"),
        ("spec", "features:", "feature:", "`feature`"),
        ("spec", "features:", "feature:", "no `features`"),
        ("spec", "type: parquet", "type: excel", "`source.type` is 'excel'"),
        ("spec", "abfss://c@s.dfs.core.windows.net", "data", "`source.path` is 'data"),
        ("spec", "abfss://c@s.dfs.core.windows.net", "abfss://s.net", "`source.path` is 'abfss"),
        ("spec", "    name: event\n", "    names: event\n", "no `source.timestamp_column.name`"),
        (
            "spec",
            "    name: event\n",
            "    name: event\n    zone: UTC\n",
            "`source.timestamp_column.zone`",
        ),
        ("spec", "minutes: 5", "minutes: -5", "`source.source_delay.minutes` is -5"),
        ("spec", "hours: 30", "hours: many", "`source_lookback.hours` is 'many'"),
        ("spec", "  days: 2", "  weeks: 2", "`temporal_join_lookback.weeks`"),
        ("spec", "type: double", "type: decimal", "`features[1].type` is 'decimal'"),
        ("spec", "name: spent_30h", "name: count_3h", "two columns are called `count_3h`"),
        ("spec", "name: spent_30h", "name: account", "two columns are called `account`"),
        ("spec", "name: spent_30h", "name: event", "two columns are called `event`"),
        (
            "spec",
            "  - name: count_3h\n    type: long",
            "  - count_3h",
            "`features[0]` is 'count_3h'",
        ),
        ("spec", "payments.Payments", "Payments", "is 'Payments'"),
        ("spec", "payments.Payments", "....etc.Payments", "is '....etc.Payments'"),
        ("spec", "payments.Payments", "other.Payments", "other.py cannot be read"),
        ("spec", "./transformation", "../../../../../../tmp", "is '../../../../../../tmp'"),
        ("code", "class Payments", "class Other", "no class `Payments` with a method `transform`"),
        ("code", CODE, "class", "payments.py cannot be read: SyntaxError"),
        ("spec", "    type: long", "    type: [long]", "`features[0].type` is a list"),
        ("spec", "name: count_3h", "name: count_3", "payments.py does not compute `count_3`"),
        (
            "spec",
            "    type: long",
            "    type: double",
            "`count_3h` is `double`; the window `count` is",
        ),
        ("spec", "    type: double", "    type: float", "the window `sum` is double"),
        ("spec", "hours: 30", "hours: 29", "`spent_30h` is of 1 day, 6:00:00"),
        ("spec", "    name: event\n", "    name: paid\n", "1.parquet has no column `paid`"),
        ("spec", "    name: event\n", "    name: amount\n", "1.parquet is Float64"),
        ("set", "arrival_column: written", "arrival_column: seen", "has no column `seen`"),
        (
            "spec",
            "name: account\n    type: string",
            "name: card\n    type: string",
            "column `card`",
        ),
        ("spec", "name: account\n    type: string", "name: account\n    type: long", "is String"),
        ("code", '"event", "written"', '"event", None', "the arrival of `Timeline` is None"),
        ("code", '"event", "written"', '"written"', "the event of `Timeline` is written"),
        ("code", ", timedelta(minutes=5)", "", "the delay of `Timeline` is 0:00:00"),
        ("set", "  arrival_column: written\n", "", "the arrival of `Timeline` is written"),
        ("code", "hours=3)", "minutes=59)", "the window `count_3h` is of 0:59:00"),
        ("code", "timedelta(hours=30)", "timedelta(91)", "`spent_30h` is of 91 days"),
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
    assert any(found in problem.actual for problem in problems), [*map(str, problems)]
    assert all(problem.place and problem.place.line >= 1 for problem in problems)
    reported = survey([folder], release_files()).problems
    assert {*problems} <= {*reported}


def test_a_wrong_window_names_the_line_of_the_code(feature_set: Path) -> None:
    """Of the call, not of the YAML file."""
    code = feature_set.parent / "account_payments/transformation/payments.py"
    code.write_text(CODE.replace("hours=3)", "minutes=1)"))
    (problem,) = feature_set_problems(feature_set)
    assert str(problem.place).endswith("transformation/payments.py:11")
    assert problem.expected == "1 hour to 90 days"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('"count_3h"', 'f"count_{3}h"'),
        ('"count_3h"', '"count_" + "3h"'),
        ('"count_3h"', '"count_{}h".format(3)'),
        (
            "import polars as pl",
            "import polars as pl\nfrom ml.projects.payments.windows import ALL",
        ),
        ("return windows(", "return pl.DataFrame().select(count_3h=1) or windows("),
        ('"event", "written"', "*EVENTS"),
        ('"event", "written"', "EVENT, WRITTEN"),
        ("return windows(", "return pl.col('count').name.suffix('_3h') or windows("),
    ],
)
def test_what_the_syntax_does_not_show_is_no_problem(
    before: str, after: str, feature_set: Path
) -> None:
    """`ml features plan` runs the transformation; `ml check` judges by the syntax alone."""
    code = feature_set.parent / "account_payments/transformation/payments.py"
    text = CODE.replace('"count_3h"', '"other"') if "windows" in before else CODE
    code.write_text(text.replace(before, after))
    assert feature_set_problems(feature_set) == []


def test_a_column_of_the_source_may_be_a_feature(feature_set: Path) -> None:
    """The transformation need not name it."""
    spec = feature_set.parent / "account_payments/FeatureSetSpec.yaml"
    spec.write_text(
        SPEC.replace("name: count_3h\n    type: long", "name: amount\n    type: double")
    )
    assert feature_set_problems(feature_set) == []


@pytest.mark.parametrize(
    ("length", "is_wrong"),
    [
        ("LONG", False),
        ("2 * LONG", True),
        ("LONG + timedelta(hours=1)", True),
        ("UNKNOWN", False),
        ("timedelta(days=OTHER)", False),
        ("timedelta(days=10**9)", False),
        ("timedelta(days=" + "0+" * 1500 + "1)", False),
    ],
)
def test_lengths_are_computed_from_constants(
    length: str, is_wrong: bool, feature_set: Path
) -> None:
    """What is not a constant is left to the run."""
    code = feature_set.parent / "account_payments/transformation/payments.py"
    constants = "LONG, OTHER = timedelta(hours=30), 40\nOTHER = 1\nFEATURES"
    text = CODE.replace("FEATURES", constants, 1).replace(
        'timedelta(hours=30), "am', f'{length}, "am'
    )
    code.write_text(text)
    assert bool(feature_set_problems(feature_set)) is is_wrong


def test_a_column_cannot_forge_a_line(feature_set: Path) -> None:
    """Names of columns come from a data file of a pull request."""
    table = pl.DataFrame({"x\n::error::forged": [1]})
    table.write_parquet(feature_set.parent.parent / "source/1.parquet")
    problems = survey([feature_set.parent], release_files()).problems
    assert problems and not any("\n::error" in problem.expected for problem in problems)


def test_the_local_source_may_be_csv(feature_set: Path) -> None:
    """Its columns are checked, not their types; a file that cannot be read is a problem."""
    source = feature_set.parent.parent / "source"
    (source / "0.csv").write_text("account,event,written,amount\n")
    assert feature_set_problems(feature_set) == []
    (source / "0.csv").write_text("account,paid,written,amount\n")
    (problem,) = feature_set_problems(feature_set)
    assert problem.actual.endswith("0.csv has no column `event`")
    (source / "0.csv").write_text("")
    (problem,) = feature_set_problems(feature_set)
    assert problem.actual.endswith("0.csv cannot be read: empty CSV")
    (source / "0.csv").unlink()
    (source / "1.parquet").write_bytes(b"PAR1")
    (problem,) = feature_set_problems(feature_set)
    assert "1.parquet cannot be read" in problem.actual and "account_payments.yml" in str(problem)


def test_a_file_that_polars_panics_over_is_a_problem(
    feature_set: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """8 of 1,500 Parquet files with random bytes did."""

    def panic(file: Path) -> None:
        raise pl.exceptions.PanicException("unwrap of None")

    monkeypatch.setattr(pl, "read_parquet_schema", panic)
    (problem,) = feature_set_problems(feature_set)
    assert "1.parquet cannot be read" in problem.actual


def test_a_set_in_a_file_of_the_other_ending_is_checked(feature_set: Path) -> None:
    """`.yaml` as well as `.yml`."""
    renamed = feature_set.rename(feature_set.with_suffix(".yaml"))
    spec = renamed.parent / "account_payments/FeatureSetSpec.yaml"
    spec.write_text(SPEC.replace("type: double", "type: decimal"))
    problems = survey([renamed.parent], release_files()).problems
    assert any("'decimal'" in problem.actual for problem in problems)


CHAIN = "".join(f"class C{n}(C{n + 1}, C{n + 1}): pass\n" for n in range(2000))
CHAIN += "class Base(C0): pass\n"
METHOD = "    def transform(self, rows):\n        return rows\n"


@pytest.mark.parametrize(
    ("bases", "is_right"),
    [
        (f"class Base:\n{METHOD}", True),
        (f"class Top:\n{METHOD}class Base(Top):\n    pass\n", True),
        ("from shared import Base\n", True),
        ("class Base:\n    pass\n", False),
        ("class Base(Payments):\n    pass\n", False),
        (CHAIN, False),
    ],
)
def test_transform_may_be_inherited(feature_set: Path, bases: str, is_right: bool) -> None:
    """From a class of the module; one of another module is not read, and may have it."""
    code = feature_set.parent / "account_payments/transformation/payments.py"
    code.write_text(f"{bases}class Payments(Base):\n    pass\n")
    found = [problem.actual for problem in feature_set_problems(feature_set)]
    assert any("no class `Payments` with a method" in each for each in found) is not is_right


def test_a_specification_is_checked_alone(feature_set: Path) -> None:
    """With the set that names it; one that no set names is an error."""
    spec = feature_set.parent / "account_payments/FeatureSetSpec.yaml"
    report = survey([spec], release_files())
    assert (report.specs, report.problems) == (1, ())
    spec.write_text(SPEC.replace("type: double", "type: decimal"))
    problems = survey([spec], release_files()).problems
    assert ["'decimal'" in problem.actual for problem in problems] == [True]
    assert len(survey([feature_set.parent], release_files()).problems) == 1
    feature_set.unlink()
    (problem,) = survey([spec], release_files()).problems
    assert problem.actual == "no feature set names this folder"
