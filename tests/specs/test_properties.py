"""No text crashes a check: random YAML, random bytes, and right specs with something changed."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ml.core.documents import parse
from ml.core.errors import UserError
from ml.specs.check.check import check
from ml.specs.plan.planning import plan
from ml.specs.sdk.load import from_document, load
from tests.specs.samples import SAMPLES

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-10, 10)
    | st.floats(allow_nan=True)
    | st.text(max_size=12)
)
EXPRESSIONS = st.sampled_from(
    [
        "${{inputs.x}}",
        "${{parent.jobs.a.outputs.b}}",
        "${{",
        "$[[",
        "azureml:a:1",
        "../..",
        "\0",
        "{}",
    ]
)
VALUES: st.SearchStrategy[Any] = st.recursive(
    SCALARS | EXPRESSIONS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=6) | st.integers(0, 3), inner, max_size=3)
    ),
    max_leaves=6,
)
CHANGED = [
    pytest.param(name, marks=[pytest.mark.slow] if name in {"command", "pipeline"} else [])
    for name in ("command", "sweep", "pipeline", "parallel-component", "schedule")
]
# 40 in `make test`; `--hypothesis-profile deep`, as `make torture` has it: ten times as many.
ENOUGH = settings(
    max_examples=settings.default.max_examples * 4 // 10,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

pytestmark = pytest.mark.torture


def survives(text: str, folder: Path) -> None:
    """Loading, checking and planning end in problems or in none, never in another exception."""
    try:
        spec = from_document(parse(text, "spec.yml"), folder / "spec.yml", {})
        for problem in check(spec):
            assert problem.code and problem.actual and problem.place is not None
        plan(spec)
    except UserError as refused:
        assert refused.problems


def places(value: Any, keys: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The way to every node of a document."""
    if not isinstance(value, dict | list):
        return [keys]
    inside = value.items() if isinstance(value, dict) else enumerate(value)
    return [keys, *(way for key, below in inside for way in places(below, (*keys, key)))]


@ENOUGH
@given(st.text(max_size=200))
def test_any_text(repo: Path, text: str) -> None:
    """Text that may or may not be YAML."""
    survives(text, repo)


@ENOUGH
@given(st.dictionaries(st.sampled_from(
    ["type", "command", "environment", "inputs", "outputs", "jobs", "trial", "search_space",
     "limits", "$schema", "name", "path", "code", "trigger", "create_job", "resources"]
), VALUES, max_size=8))  # fmt: skip
def test_any_document(repo: Path, document: dict[str, Any]) -> None:
    """A mapping with the keys of specs and any values."""
    survives(yaml.dump(document), repo)


def test_an_expression_is_no_distribution(repo: Path) -> None:
    """It ends in a problem with its line."""
    document = yaml.safe_load(SAMPLES["pipeline"][2])
    document["jobs"]["tune"]["search_space"]["rate"] = "${{inputs.x}}"
    spec = from_document(parse(yaml.dump(document), "spec.yml"), repo / "spec.yml", {})
    with pytest.raises(UserError, match=r"spec.yml:\d+") as refused:
        plan(spec)
    assert refused.value.problems[0].code == "wrong-value"


@pytest.mark.parametrize("name", CHANGED)
@ENOUGH
@given(data=st.data())
def test_a_valid_spec_with_one_value_changed(name: str, repo: Path, data: st.DataObject) -> None:
    """Any node of a right spec replaced by any value, or taken away."""
    document = copy.deepcopy(yaml.safe_load(SAMPLES[name][2]))
    *way, last = data.draw(st.sampled_from(places(document)[1:]))
    owner = document
    for key in way:
        owner = owner[key]
    if isinstance(owner, dict) and data.draw(st.booleans()):
        del owner[last]
    else:
        owner[last] = data.draw(VALUES)
    survives(yaml.dump(document), repo)


@ENOUGH
@given(st.binary(max_size=100))
def test_any_bytes(repo: Path, content: bytes) -> None:
    """A file of any bytes is read, or refused as no text."""
    (repo / "bytes.yml").write_bytes(content)
    try:
        check(load(repo / "bytes.yml"))
    except UserError as refused:
        assert refused.problems
