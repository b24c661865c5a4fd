"""The inventory of error codes misses none, and says of each what to do."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from docs.generate import errors, source
from tests.conftest import ROOT

# Places that pass on the code of another problem, which has its own entry.
PASSED_ON = {
    "infra/settings/checks.py",  # of a Fault
    "ml/backends/azure/errors.py",  # of a Known
    "ml/backends/local/execution/pipeline.py",  # of a step
    "ml/backends/local/runs/records.py",  # as a run's record has it
    "ml/cli/commands/features.py",  # of the engine
    "ml/features/definition.py",  # with the file
    "ml/release/serving.py",  # of a rule of `ml check`
    "ml/repository/scaffold/project_metrics.py",  # of a Flaw
    "ml/repository/scaffold/series.py",  # of a Flaw
    "ml/specs/check/rules/rule.py",  # of a rule
    "ml/toolkit/data/datasets.py",  # of a FeatureError
}
CALL = re.compile(
    r'\b(?:Problem|UserError\.with_code|wrong_call|Flaw|Fault|Known|rule)\(\s*"([a-z0-9-]+)"'
)
PRINTED = re.compile(r"\b(?:error|warning)\[([a-z0-9-]+)\]")


def test_every_code_has_a_cause_and_a_remedy() -> None:
    """What was expected is a remedy too."""
    every = errors.entries()
    without = {
        code
        for code, entry in every.items()
        if not entry.causes or not (entry.remedies or entry.expected)
    }
    assert len(every) > 400 and without == set()


def test_no_code_of_the_source_is_missing() -> None:
    """Found by another way: the text of each call and each printed message."""
    makefiles = [ROOT / name for name in errors.MAKEFILES]
    files = [file for folder in errors.FOLDERS for file in (ROOT / folder).rglob("*.py")]
    texts = [file.read_text(encoding="utf-8") for file in (*makefiles, *files)]
    codes = {code for text in texts for form in (CALL, PRINTED) for code in form.findall(text)}
    assert len(codes) > 300 and codes - errors.entries().keys() == set()


def test_no_code_that_a_test_expects_is_missing() -> None:
    """Codes that the tests see printed by the product."""
    files = [file for file in (ROOT / "tests").rglob("test_*.py") if file.parent.name != "docs"]
    texts = [file.read_text(encoding="utf-8") for file in files]
    codes = {code for text in texts for code in PRINTED.findall(text)} - {"a-code"}
    assert len(codes) > 50 and codes - errors.entries().keys() == set()


def test_every_other_place_passes_a_code_on() -> None:
    """A call whose code cannot be read from the source is a known one."""
    _, unresolved = errors.raised()
    assert {place.partition(":")[0] for place in unresolved} == PASSED_ON


@pytest.mark.example
def test_the_written_remedies_are_of_codes_that_exist() -> None:
    """A code that was renamed leaves none behind."""
    assert yaml.safe_load(errors.REMEDIES.read_text()).keys() <= errors.entries().keys()


MODULE = '''
from ml.core.errors import Problem, UserError
from ml.specs.check.rules.rule import Finding, rule

FULL = "disk-full"


def _wrong(code, found, hint="ask"):
    return Problem(code, f"no {found}", hint=hint)


def run(name, count):
    if not name:
        raise UserError.with_code("no-name", "there is no name", "a name")
    found = "few" if count else "none"
    raise UserError(Problem(FULL, f"`{name}` has {found}", severity="warning"))


def stop(path):
    _wrong("no-file", "file", hint=f"touch {path}")
    raise SystemExit(f"error[cut-off]: {path} ends early\\n  expected: more\\n  hint: again")


@rule("odd-name", scope="spec", source="a page")
def odd(subject):
    """Names are even."""
    yield Finding(("name",), "it is odd", "an even one", "rename it")
'''


@pytest.mark.parametrize(
    ("code", "actual", "expected", "hint"),
    [
        ("no-name", ["there is no name"], ["a name"], []),
        ("disk-full", ["`NAME` has few", "`NAME` has none"], [], []),
        ("no-file", ["no file"], [], ["touch PATH"]),
        ("cut-off", ["PATH ends early"], ["more"], ["again"]),
        ("odd-name", ["it is odd"], ["an even one"], ["rename it"]),
    ],
)
def test_the_inventory_reads_each_form(
    code: str, actual: list[str], expected: list[str], hint: list[str], tmp_path: Path
) -> None:
    """A call, a constant and a condition, a function of the module, a printed text, a rule."""
    (tmp_path / "ml").mkdir()
    (tmp_path / "ml/odd.py").write_text(MODULE)
    inventory = errors.Inventory(source.read(tmp_path, ["ml"]))
    every = [*inventory.problems(), *inventory.rules(), *inventory.printed()]
    (one,) = [each for each in every if each.code == code]
    texts = [[text for text in texts if text] for texts in (one.actual, one.expected, one.hint)]
    assert texts == [actual, expected, hint] and inventory.unresolved == []
    assert one.place.startswith("ml/odd.py:")
