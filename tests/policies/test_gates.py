"""policies.promotion.gates: the floor, and a project's file that only tightens it."""

from __future__ import annotations

from pathlib import Path

import pytest

from policies.promotion.gates import FLOOR, GatesError, load
from policies.promotion.settings import SETTINGS


def write(folder: Path, body: str, name: str = "gates.yml") -> Path:
    """A gates file with the body under `gates:`, which is line 2."""
    path = folder / name
    path.write_text(f"schema_version: 1\ngates:\n{body}")
    return path


TIGHTER = {
    "maximum": "  freshness: {max_age_days: 7}",
    "minimum": "  quality: {min_count: 200}",
    "allow-list": "  format: {allowed: [json]}",
    "no place for dirty code": "  lineage: {dirty_allowed_in: []}",
    "demands": "  non-inferiority: {splits: [a, b]}",
    "floors": "  quality: {at_least: {test.gain_at_1: 0.9}}",
    "ceilings": "  quality: {at_most: {test.mean_rank: 2}}",
    "narrower bounds": "  quality: {bounds: {mean_rank: [1, 100]}}",
    "new bounds": "  quality: {bounds: {accuracy: [0, 1]}}",
    "as the floor": "  latency: {p95_ms: 200, mode: enabled}",
}
LOOSER = {
    "maximum": ("  freshness:\n    max_age_days: 31", 4),
    "minimum": ("  quality:\n    min_count: 99", 4),
    "allow-list": ("  format:\n    mode: enabled\n    allowed: [json, pickle]", 5),
    "dirty in prod": ("  lineage: {dirty_allowed_in: [local, prod]}", 3),
    "margin": ("  non-inferiority:\n    margin: 0.03", 4),
    "confidence": ("  superiority:\n    confidence: 0.9", 4),
    "bounds": ("  quality:\n    bounds:\n      gain_at_1: [0, 2]", 5),
    "report-only": ("  sign-off:\n    mode: report-only", 4),
    "disabled": ("  sign-off: {mode: disabled}", 3),
    "latency": ("  latency: {p95_ms: 200.5}", 3),
}
WRONG = {
    "unknown gate": ("  latencyy: {p95_ms: 1}", "unknown-field", 3, "did you mean `latency`?"),
    "unknown setting": ("  latency: {p99: 1}", "unknown-field", 3, ""),
    "gate twice": ("  latency: {p95_ms: 1}\n  latency: {p95_ms: 2}", "duplicate-key", 4, ""),
    "threshold twice": (
        "  quality:\n    at_least: {t.gain: 0.9,\n      t.gain: 0.1}",
        "duplicate-key",
        5,
        "",
    ),
    "a key that is a list": ("  quality: {at_least: {? [t] : 1}}", "gates-unreadable", 3, ""),
    "mode unknown": ("  latency: {mode: off}", "wrong-value", 3, ""),
    "NaN": ("  latency: {p95_ms: .nan}", "wrong-value", 3, ""),
    "infinite": ("  freshness: {max_age_days: .inf}", "wrong-value", 3, ""),
    "negative margin": ("  non-inferiority: {margin: -1}", "wrong-value", 3, ""),
    "confidence of one": ("  superiority: {confidence: 1}", "wrong-value", 3, ""),
    "text for a number": ("  latency: {p95_ms: fast}", "wrong-value", 3, ""),
    "true for a number": ("  latency: {p95_ms: true}", "wrong-value", 3, ""),
    "a name for a list": ("  format: {allowed: json}", "wrong-value", 3, ""),
    "a list for thresholds": ("  quality: {at_least: [1]}", "wrong-value", 3, ""),
    "a threshold without a split": ("  quality: {at_least: {gain: 1}}", "wrong-value", 3, ""),
    "a NaN threshold": ("  quality: {at_least: {t.gain: .nan}}", "wrong-value", 3, ""),
    "half a bound": ("  quality: {bounds: {gain: [0]}}", "wrong-value", 3, ""),
    "a gate that is no mapping": ("  latency: 3", "wrong-value", 3, ""),
    "broken YAML": ("  latency: {p95_ms: 1", "gates-unreadable", 3, ""),
    "a tag that would build an object": (
        "  latency: {p95_ms: !!python/object/apply:os.getcwd []}",
        "gates-unreadable",
        3,
        "",
    ),
}


@pytest.mark.parametrize("body", TIGHTER.values(), ids=TIGHTER)
def test_a_project_may_tighten(body: str, tmp_path: Path) -> None:
    """Each kind of setting may be tightened, and the rest stays the floor's."""
    gates = load(write(tmp_path, body))
    assert set(gates) == set(SETTINGS)
    assert gates["identity"] == load()["identity"]


@pytest.mark.parametrize(("body", "line"), LOOSER.values(), ids=LOOSER)
def test_a_project_may_not_loosen(body: str, line: int, tmp_path: Path) -> None:
    """Each kind of setting is refused when it is looser, with its file and line."""
    path = write(tmp_path, body)
    with pytest.raises(GatesError) as raised:
        load(path)
    error = raised.value
    assert (error.code, error.path, error.line) == ("gate-looser-than-floor", path, line)


@pytest.mark.parametrize(("body", "code", "line", "hint"), WRONG.values(), ids=WRONG)
def test_a_file_that_says_something_else_is_refused(
    body: str, code: str, line: int, hint: str, tmp_path: Path
) -> None:
    """Whatever is not a setting is refused with its line, never ignored."""
    with pytest.raises(GatesError) as raised:
        load(write(tmp_path, body))
    assert (raised.value.code, raised.value.line) == (code, line), raised.value
    assert hint in raised.value.hint


ENTRIES = {
    "NaN": (
        "  quality:\n    at_least:\n      t.gain: 0.5\n      t.other: .nan",
        (6, "`quality.at_least.t.other` is nan", "SPLIT.METRIC: a finite number"),
    ),
    "a text, of a slice": (
        "  fairness:\n    at_most: {topic.gain: 1, topic.other: much}",
        (4, "`fairness.at_most.topic.other` is much", "DIMENSION.METRIC: a finite number"),
    ),
    "no split": (
        "  gap:\n    at_most:\n      gain: 0.5",
        (5, "`gap.at_most.gain` is 0.5", "SPLIT.METRIC: a finite number"),
    ),
    "half a bound": (
        "  quality:\n    bounds:\n      mae: [0, 9]\n      mse: [0]",
        (6, "`quality.bounds.mse` is [0]", "METRIC: [lowest, highest], both finite"),
    ),
    "a bound that is wider than the floor's": (
        "  quality:\n    bounds:\n      mae: [0, 9]\n      auc: [0, 2]",
        (6, "`quality.bounds.auc` is [0.0, 2.0]", "no looser than the floor's [0.0, 1.0]"),
    ),
    "a ceiling above the floor's": (
        "  leakage:\n    at_most:\n      clinics.shared: 1\n      feature.auc: 0.99",
        (6, "`leakage.at_most.feature.auc` is 0.99", "no looser than the floor's 0.98"),
    ),
    "a list for a mapping": (
        "  gap: {at_most: [1]}",
        (3, "`gap.at_most` is [1]", "SPLIT.METRIC: a finite number"),
    ),
    "a waiver that is a text": ("  {}\nwaivers:\n  - later", (5, "`later`", "a mapping")),
    "a gate that is a number": ("  latency: 3", (3, "`3`", "a mapping")),
}


@pytest.mark.parametrize(("body", "told"), ENTRIES.values(), ids=ENTRIES)
def test_the_entry_that_is_wrong_is_told(
    body: str, told: tuple[int, str, str], tmp_path: Path
) -> None:
    """Of a mapping the line, the name and the value of that entry alone."""
    with pytest.raises(GatesError) as raised:
        load(write(tmp_path, body))
    error = raised.value
    assert (error.line, error.found, error.expected) == told


@pytest.mark.parametrize(
    "body",
    ["waivers:\n  - {gate: latency, owner: ana}", "reviews:\n  - {gate: fairness, owner: ana}"],
)
def test_the_hint_is_one_to_copy(body: str, tmp_path: Path) -> None:
    """What is wrong with a waiver or a review is told with one that would do."""
    path = tmp_path / "gates.yml"
    path.write_text(f"schema_version: 1\n{body}")
    with pytest.raises(GatesError) as raised:
        load(path)
    _, _, example = raised.value.hint.partition("such as ")
    path.write_text(f"schema_version: 1\n{body.partition('- ')[0]}- {example}")
    gates = load(path)
    assert gates["latency"].waivers or gates["fairness"].reviews


def test_thresholds_of_floor_and_project_add_up(tmp_path: Path) -> None:
    """The floor's thresholds hold beside the project's, and the tighter of two counts."""
    floor = tmp_path / "floor.yml"
    floor.write_text(
        FLOOR.read_text().replace("at_least: {}", "at_least: {a.gain: 0.5, b.gain: 0.5}")
    )
    gates = load(write(tmp_path, "  quality: {at_least: {a.gain: 0.6, c.gain: 0.1}}"), floor)
    assert gates["quality"].numbers("at_least") == {"a.gain": 0.6, "b.gain": 0.5, "c.gain": 0.1}
    with pytest.raises(GatesError, match=r"looser"):
        load(write(tmp_path, "  quality: {at_least: {a.gain: 0.4}}"), floor)


def test_demands_and_allow_lists_of_the_floor_hold(tmp_path: Path) -> None:
    """A split that the floor demands stays demanded."""
    floor = tmp_path / "floor.yml"
    floor.write_text(FLOOR.read_text().replace("splits: []", "splits: [test]"))
    assert load(write(tmp_path, "  non-inferiority: {splits: [test, unseen]}"), floor)
    with pytest.raises(GatesError, match=r"looser"):
        load(write(tmp_path, "  non-inferiority: {splits: [unseen]}"), floor)


def test_a_report_only_floor_may_be_enabled_by_a_project(tmp_path: Path) -> None:
    """A mode is tightened like any other setting."""
    floor = tmp_path / "floor.yml"
    text = FLOOR.read_text()
    floor.write_text(
        text.replace(
            "freshness: # old evidence says nothing of today's data\n    mode: enabled",
            "freshness:\n    mode: report-only",
        )
    )
    assert load(None, floor)["freshness"].mode == "report-only"
    assert (
        load(write(tmp_path, "  freshness: {mode: enabled}"), floor)["freshness"].mode == "enabled"
    )


@pytest.mark.parametrize("gate", sorted(SETTINGS))
def test_a_floor_that_forgets_a_gate_is_refused(gate: str, tmp_path: Path) -> None:
    """The floor sets every gate: one that is left out does not silently pass."""
    import yaml

    document = yaml.safe_load(FLOOR.read_text())
    del document["gates"][gate]
    floor = tmp_path / "floor.yml"
    floor.write_text(yaml.safe_dump(document))
    with pytest.raises(GatesError) as raised:
        load(None, floor)
    assert raised.value.code == "gate-missing" and gate in raised.value.found


def test_missing_and_unknown_versions_are_refused(tmp_path: Path) -> None:
    """A file of another schema is not guessed at, and a file that is not there is said so."""
    path = tmp_path / "gates.yml"
    for text in ("gates: {}\n", "schema_version: 2\n"):
        path.write_text(text)
        with pytest.raises(GatesError) as raised:
            load(path)
        assert raised.value.code == "gates-version"
    for text in ("", "- 1\n"):
        path.write_text(text)
        with pytest.raises(GatesError):
            load(path)
    with pytest.raises(GatesError) as raised:
        load(tmp_path / "none.yml")
    assert raised.value.code == "gates-unreadable"
