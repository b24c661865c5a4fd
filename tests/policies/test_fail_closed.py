"""Properties: evidence that is broken in any number of places is never approved."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ml.measures.schema import Estimate
from policies.promotion import gate_settings
from policies.promotion.engine import decide
from policies.promotion.evidence import Evidence, parse
from policies.promotion.gate import Gates
from tests.policies.cases import (
    DOCUMENT,
    REQUEST,
    UNITS,
    champion,
    computed,
    evaluated,
    good,
    load_gates,
    outcomes,
    result,
)


def _paths(document: Any, above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Every place in the document, inner ones too, except names that are free to choose."""
    for key, value in document.items():
        yield (*above, key)
        if isinstance(value, dict):
            yield from _paths(value, (*above, key))


# Where advisories may be unchecked on this machine; supply-chain.yml has the cases.
UNCHECKED = {("supply_chain", name) for name in ("source", "as_of", "records", "advisories")}
PATHS = sorted(set(_paths(DOCUMENT)) - UNCHECKED)
# Of any type but sound: absent, null, not a number, out of every bound, or of the wrong type.
BAD: list[Any] = [None, math.nan, math.inf, -math.inf, 1.797e308, -1, True]
BAD += ["", "  ", [], {}, "nan", [1], 10**400]
# These are sound values in these places.
SOUND: Mapping[tuple[str, ...], list[Any]] = {
    ("lineage", "dirty"): [True],
    ("lineage", "evaluation_dirty"): [True],
    ("simulated",): [True],
    ("evaluation", "hyperparameters"): [{}],
    ("evaluation", "seed"): [-1, 1.797e308],
}
# Free text: any words will do.
TEXTS = {("lineage", name) for name in DOCUMENT["lineage"]} | {
    ("project",),
    *(
        ("evaluation", *path)
        for path in (
            ("model",),
            ("unit",),
            ("resampled",),
            ("feature_set_hash",),
            ("slice_split",),
            *(("fairness", "topic", "gain_at_1", name) for name in ("split", "lowest", "highest")),
            ("explanation", "method"),
            ("stability", "gain_at_1", "over"),
            ("predictions", "file"),
            ("predictions", "sha256"),
            ("identifiers",),
            ("requests",),
        )
    ),
    ("cost", "training", "hardware"),
    ("cost", "thousand_predictions", "hardware"),
    ("latency", "hardware"),
    ("latency", "instance_type"),
    ("data", "faq", "asset"),
    ("data", "faq", "sha256"),
    ("serving", "prediction"),
    ("supply_chain", "lock"),
    ("supply_chain", "sbom"),
}


SPOILS = st.lists(st.tuples(st.sampled_from(PATHS), st.sampled_from(BAD)), min_size=1, max_size=4)


def _is_bad(path: tuple[str, ...], value: Any) -> bool:
    if any(type(value) is type(sound) and value == sound for sound in SOUND.get(path, ())):
        return False
    return not (path in TEXTS and isinstance(value, str) and value.strip())


def _spoiled(document: dict[str, Any], path: tuple[str, ...], value: Any) -> dict[str, Any]:
    changed = copy.deepcopy(document)
    inner = changed
    for key in path[:-1]:
        inner = inner.get(key) if isinstance(inner, dict) else None  # type: ignore[assignment]
        if not isinstance(inner, dict):
            return changed  # something above is spoiled already
    if value is None and path[-1] in inner and len(path) % 2:
        del inner[path[-1]]
    else:
        inner[path[-1]] = value
    return changed


def _evidence(document: dict[str, Any]) -> Evidence:
    return computed(parse(document))


@pytest.fixture(scope="module")
def tightened(tmp_path_factory: pytest.TempPathFactory) -> Gates:
    """The organisation policy with a project's thresholds."""
    return load_gates(tmp_path_factory.mktemp("gates"))


def test_the_document_passes_as_it_is(tightened: Gates) -> None:
    """The document that the properties break is sound, with and without a champion."""
    assert decide(tightened, _evidence(DOCUMENT), None, REQUEST).allowed
    assert decide(tightened, _evidence(DOCUMENT), champion(), REQUEST).allowed


@settings(max_examples=400, deadline=None)
@given(spoils=SPOILS)
@pytest.mark.attack("Evidence is missing, NaN, infinite, out of bounds or of a wrong type")
def test_spoiled_evidence_never_passes(
    tightened: Gates, spoils: list[tuple[tuple[str, ...], Any]]
) -> None:
    """One to four places made missing, NaN, infinite, out of bounds or of a wrong type: refused."""
    spoils = [(path, value) for path, value in spoils if _is_bad(path, value)]
    document = DOCUMENT
    for path, value in spoils:
        document = _spoiled(document, path, value)
    if document == DOCUMENT:
        return
    assert not decide(tightened, _evidence(document), None, REQUEST).allowed


@pytest.mark.parametrize("path", PATHS, ids=".".join)
def test_each_place_alone_is_needed(path: tuple[str, ...], tightened: Gates) -> None:
    """Each bad value in any single place is refused."""
    for value in BAD:
        if _is_bad(path, value):
            changed = _spoiled(DOCUMENT, path, value)
            assert not decide(tightened, _evidence(changed), None, REQUEST).allowed, value


@settings(max_examples=300, deadline=None)
@given(
    document=st.recursive(
        st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from([key for path in PATHS for key in path]), inner, max_size=5
            )
        ),
        max_leaves=20,
    )
)
@pytest.mark.attack("Evidence is any other JSON")
def test_any_json_at_all_is_parsed_and_refused(tightened: Gates, document: Any) -> None:
    """Whatever is in the file, the engine decides, and it refuses."""
    decision = decide(tightened, parse(document), parse(document), REQUEST)
    assert not decision.allowed
    json.dumps(decision.to_json())


@settings(max_examples=200, deadline=None)
@given(
    value=st.floats(allow_nan=True, allow_infinity=True),
    low=st.floats(allow_nan=True),
    high=st.floats(allow_nan=True),
)
def test_quality_passes_only_sound_numbers_over_the_threshold(
    tightened: Gates, value: float, low: float, high: float
) -> None:
    """The quality gate passes exactly when 0.6 ≤ value and 0 ≤ low ≤ value ≤ high ≤ 1."""
    metrics = {"test": {"gain_at_1": Estimate(value, low, high, UNITS)}}
    decision = decide(tightened, evaluated(good(), metrics=metrics), None, REQUEST)
    sound = value >= 0.6 and 0 <= low <= value <= high <= 1
    assert (result(decision, "quality").verdict == "pass") is sound


@settings(max_examples=60, deadline=None)
@given(ours=st.integers(0, UNITS), theirs=st.integers(0, UNITS))
def test_a_worse_candidate_is_never_superior(tightened: Gates, ours: int, theirs: int) -> None:
    """Superiority passes only when more units are right, and implies non-inferiority."""
    candidate = replace(good(), outcomes={"test": outcomes(ours / UNITS)})
    holder = replace(champion(), outcomes={"test": outcomes(theirs / UNITS)})
    decision = decide(tightened, candidate, holder, REQUEST)
    if result(decision, "superiority").verdict == "pass":
        assert ours > theirs
        assert result(decision, "non-inferiority").verdict == "pass"


def test_the_policy_alone_loads() -> None:
    """The organisation policy that ships is complete and every gate in it blocks."""
    policy = gate_settings.load()
    assert {gate.mode for gate in policy.values()} == {"enabled"}


def test_values_of_a_wrong_type_are_absent() -> None:
    """A time without a zone, a boolean for a number and blank text count as absent."""
    found = parse({"created": "2025-06-01T00:00:00", "schema_version": True, "project": " "})
    assert (found.created, found.schema_version, found.project) == (None, None, None)
