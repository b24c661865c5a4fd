"""`ml evidence verify` reports everything that changed since the evidence was kept."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ml.backends.model_registry import EVIDENCE_FILE, Version
from ml.measures.evaluation import PREDICTIONS, Prediction, write_evaluation
from ml.measures.leakage import IDENTIFIERS, shared
from ml.measures.ranking import estimates
from ml.measures.schema import Disparity, Evaluation, Fit
from ml.release.evidence.evidence import SBOM, SETTINGS, _adapter, load
from ml.release.evidence.verification import checks
from ml.release.versions import store
from policies.promotion.evidence import SCHEMA_VERSION, parse
from tests.local import BACKEND
from tests.release.test_commands import ml
from tests.release.tiny import model_folder, resealed


def kept(tmp_path: Path) -> Version:
    """A version with evidence of 120 questions, of which 90 are answered rightly."""
    digest = store(model_folder(tmp_path / "model"))
    version = Version("tiny", "1", digest, "tiny", "run", "")
    ranks = [1] * 90 + [2] * 30
    version.evidence_folder.mkdir(parents=True)
    evaluation = Evaluation(
        model="tiny",
        task="ranking",
        primary_metric="gain_at_1",
        goal="maximize",
        unit="question",
        resampled="question",
        feature_set_hash="f" * 64,
        seed=0,
        hyperparameters={},
        metrics={"test": estimates(np.array(ranks))},
        baseline={},
        slice_split="test",
        slices={
            "side": {
                name: estimates(np.array(ranks)[at::2]) for at, name in enumerate(("left", "right"))
            }
        },
        fairness={
            "side": {
                "gain_at_1": Disparity("test", 0.0, "left", "right", 2),
            }
        },
        training=Fit(1.0, 1),
        leakage=(shared(["t1", "t2", "q7"], [f"q{number}" for number in range(120)], "id"),),
    )
    rows = [
        Prediction(
            f"q{number}",
            "test",
            {"side": ("left", "right")[number % 2]},
            "a",
            "a" if rank == 1 else "b",
            rank,
            0.5,
        )
        for number, rank in enumerate(ranks)
    ]
    write_evaluation(version.evidence_folder, evaluation, rows)
    written = json.loads((version.evidence_folder / "evaluation.json").read_text())
    bill = '{"bomFormat": "CycloneDX"}'
    (version.evidence_folder / SBOM).write_text(bill)
    document = {
        "evaluation": written,
        "schema_version": SCHEMA_VERSION,
        "model": "tiny",
        "version": "1",
        "digest": digest,
        "uri": "models:/tiny/1",
        "supply_chain": {"sbom": hashlib.sha256(bill.encode()).hexdigest()},
    }
    return sealed(version, document)


def sealed(version: Version, document: object) -> Version:
    """The version with that document as its evidence, and the hash of it."""
    return resealed(version, json.dumps(document))


def edited(version: Version, change: Callable[[dict], object]) -> Version:  # type: ignore[type-arg]
    """The evidence changed by somebody who also made its hash right."""
    document = json.loads((version.evidence_folder / EVIDENCE_FILE).read_text())
    change(document)
    return sealed(version, document)


def differing(version: Version) -> list[str]:
    """The checks that find a difference."""
    return [check.name for check in checks(version) if not check.sound]


def test_what_was_kept_is_sound(tmp_path: Path) -> None:
    """Nothing was changed: nothing differs, and every check was made."""
    made = checks(kept(tmp_path))
    assert [check.name for check in made] == [
        EVIDENCE_FILE,
        "schema",
        "identity",
        "model",
        PREDICTIONS,
        "metrics",
        IDENTIFIERS,
        SBOM,
    ]
    assert all(check.sound for check in made), made


def _better(evaluation: dict) -> None:  # type: ignore[type-arg]
    evaluation["metrics"]["test"]["gain_at_1"]["value"] = 0.9


def _narrower(evaluation: dict) -> None:  # type: ignore[type-arg]
    evaluation["metrics"]["test"]["gain_at_1"]["low"] = 0.74


def _better_slice(evaluation: dict) -> None:  # type: ignore[type-arg]
    evaluation["slices"]["side"]["left"]["gain_at_1"]["value"] = 0.9


def _made_up(evaluation: dict) -> None:  # type: ignore[type-arg]
    evaluation["slices"]["side"]["middle"] = evaluation["slices"]["side"]["left"]


def _closer(evaluation: dict) -> None:  # type: ignore[type-arg]
    evaluation["fairness"]["side"]["gain_at_1"]["difference"] = 0.1


def _nothing_shared(evaluation: dict) -> None:  # type: ignore[type-arg]
    evaluation["leakage"][0]["value"] = 0


def _other_column(evaluation: dict) -> None:  # type: ignore[type-arg]
    evaluation["leakage"][0]["of"] = "question"


def _other_lowest(evaluation: dict) -> None:  # type: ignore[type-arg]
    evaluation["fairness"]["side"]["gain_at_1"]["lowest"] = "middle"


def _of(change: Callable[[dict], object]) -> Callable[[dict], object]:  # type: ignore[type-arg]
    """The change, made in the evaluation that the evidence nests."""
    return lambda document: change(document["evaluation"])


EDITED: dict[str, tuple[Callable[[dict], object], list[str]]] = {  # type: ignore[type-arg]
    "a better metric": (_of(_better), ["metrics"]),
    "a narrower interval": (_of(_narrower), ["metrics"]),
    "no metric": (_of(lambda of: of.pop("metrics")), ["metrics"]),
    "a better slice": (_of(_better_slice), ["metrics"]),
    "a slice left out": (_of(lambda of: of["slices"]["side"].pop("left")), ["metrics"]),
    "a slice made up": (_of(_made_up), ["metrics"]),
    "a smaller difference": (_of(_closer), ["metrics"]),
    "another slice is the lowest": (_of(_other_lowest), ["metrics"]),
    "slices of another split": (
        lambda of: of["evaluation"].update(slice_split="validation"),
        ["metrics"],
    ),
    "questions drawn by entity": (
        lambda of: of["evaluation"].update(resampled="entity"),
        [PREDICTIONS],
    ),
    "an older schema": (lambda of: of.update(schema_version=1), ["schema"]),
    "no schema": (lambda of: of.pop("schema_version"), ["schema"]),
    "another digest": (lambda of: of.update(digest="sha256:0"), ["identity"]),
    "another version": (lambda of: of.update(version="2"), ["identity"]),
    "another place": (lambda of: of.update(uri="models:/tiny/2"), ["identity"]),
    "no model": (lambda of: of.pop("model"), ["identity"]),
    "other predictions": (
        lambda of: of["evaluation"]["predictions"].update(sha256="0" * 64),
        [PREDICTIONS],
    ),
    "no bill of materials": (lambda of: of.pop("supply_chain"), [SBOM]),
    "nothing shared": (_of(_nothing_shared), [IDENTIFIERS]),
    "identifiers of another column": (_of(_other_column), [IDENTIFIERS]),
    "other identifiers": (_of(lambda of: of.update(identifiers="0" * 64)), [IDENTIFIERS]),
    "no identifiers, which is the gate's to refuse": (
        lambda of: of["evaluation"].pop("identifiers"),
        [],
    ),
    "no predictions named": (_of(lambda of: of.pop("predictions")), [PREDICTIONS]),
}


@pytest.mark.parametrize(("change", "found"), EDITED.values(), ids=EDITED)
@pytest.mark.attack("Evidence states what its predictions do not give")
def test_evidence_that_does_not_follow_is_found(
    change: Callable[[dict], object],  # type: ignore[type-arg]
    found: list[str],
    tmp_path: Path,
) -> None:
    """Even where the hash of the evidence is made right, the rest is recomputed."""
    assert differing(edited(kept(tmp_path), change)) == found


def test_an_edited_file_is_found_by_its_hash(tmp_path: Path) -> None:
    """A space more is another file; so is none at all, or one that is no JSON."""
    version = kept(tmp_path)
    path = version.evidence_folder / EVIDENCE_FILE
    path.write_text(path.read_text() + " ")
    assert differing(version) == [EVIDENCE_FILE]
    path.write_text("{")
    assert EVIDENCE_FILE in differing(version) and "metrics" in differing(version)
    path.unlink()
    assert EVIDENCE_FILE in differing(version) and "identity" in differing(version)


def test_evidence_without_a_hash_in_the_registry_is_none(tmp_path: Path) -> None:
    """A version that was registered and never scored has no evidence."""
    assert EVIDENCE_FILE in differing(replace(kept(tmp_path), evidence=""))


@pytest.mark.attack("The kept predictions are edited or removed")
def test_edited_and_missing_predictions_are_found(tmp_path: Path) -> None:
    """A better rank for one question: the file is another, and the metrics no longer follow."""
    version = kept(tmp_path)
    path = version.evidence_folder / PREDICTIONS
    path.write_text(path.read_text().replace("a,b,2", "a,a,1", 1))
    assert differing(version) == [PREDICTIONS, "metrics"]
    path.unlink()
    assert differing(version) == [PREDICTIONS, "metrics"]


def test_edited_and_missing_identifiers_are_found(tmp_path: Path) -> None:
    """What training and test share is taken out of the file, and no file at all: the gates are
    told too.
    """
    version = kept(tmp_path)
    assert load(BACKEND, version).mismatches == ()
    path = version.evidence_folder / IDENTIFIERS
    lines = path.read_text().splitlines(keepends=True)
    (shared_one,) = {line.split(",")[2] for line in lines if ",training," in line} & {
        line.split(",")[2] for line in lines if ",test," in line
    }
    assert hashlib.sha256(b"q7").hexdigest().startswith(shared_one.strip())
    path.write_text("".join(line for line in lines if line != f"id,training,{shared_one}"))
    assert differing(version) == [IDENTIFIERS]
    assert IDENTIFIERS in str(load(BACKEND, version).mismatches)
    path.unlink()
    assert differing(version) == [IDENTIFIERS]
    assert IDENTIFIERS in str(load(BACKEND, version).mismatches)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("of,sha256\n", "does not have the columns"),
        (
            "of,part,sha256\nid,validation,00\n",
            "['id', 'validation', '00'] is not an identifier",
        ),
        ("of,part,sha256\nid,training,00\n", "or of the test"),
        ("", "does not have the columns"),
    ],
)
def test_identifiers_that_are_none_are_told(text: str, told: str, tmp_path: Path) -> None:
    """Even where their hash was made right."""
    version = kept(tmp_path)
    (version.evidence_folder / IDENTIFIERS).write_text(text)
    found = hashlib.sha256(text.encode()).hexdigest()
    version = edited(version, lambda of: of["evaluation"].update(identifiers=found))
    assert told in str(load(BACKEND, version).mismatches) and differing(version) == [IDENTIFIERS]


def test_a_changed_bill_of_materials_is_found(tmp_path: Path) -> None:
    """A package left out of it, and none at all."""
    version = kept(tmp_path)
    (version.evidence_folder / SBOM).write_text("{}")
    assert differing(version) == [SBOM]
    (version.evidence_folder / SBOM).unlink()
    assert differing(version) == [SBOM]


@pytest.mark.parametrize("file", ["model.txt", "skill.json", "manifest.json"])
def test_a_changed_model_is_found(file: str, tmp_path: Path) -> None:
    """One byte of the model's files, its manifest included, and a folder that is gone."""
    version = kept(tmp_path)
    path = version.folder / file
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(bytes(content))
    assert differing(version) == ["model"]


def test_a_model_that_is_gone_is_found(tmp_path: Path) -> None:
    """No folder is no model."""
    version = kept(tmp_path)
    version.folder.rename(tmp_path / "elsewhere")
    assert differing(version) == ["model"]


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit 0 when all is as it was kept; exit 3 with all that differs when it is not."""
    version = kept(tmp_path)
    registry = BACKEND.registry
    registry.keep_evidence(
        registry.register("tiny", "tiny", version.digest, "run"), version.evidence
    )
    code, out, err = ml(capsys, "evidence", "verify", "tiny", "1")
    assert (code, out) == (0, "") and "DIFFERS" not in err
    path = version.evidence_folder / EVIDENCE_FILE
    path.write_text(path.read_text().replace('"value": 0.75', '"value": 0.95', 1))
    code, out, err = ml(capsys, "evidence", "verify", "tiny", "1")
    assert (code, out) == (3, "") and "recomputed 0.75" in err and "the registry's is" in err
    code, out, _ = ml(capsys, "evidence", "verify", "tiny", "1", "--json")
    found = json.loads(out)
    assert code == 3 and not found["sound"]
    assert [one["check"] for one in found["checks"] if not one["sound"]] == [
        EVIDENCE_FILE,
        "metrics",
    ]
    code, out, err = ml(capsys, "evidence", "verify", "tiny", "2")
    assert code == 2 and "no-such-version" in err


@pytest.mark.parametrize(
    "text",
    ["", "{}", "[]", '{"adapter": {}}', '{"adapter": {"adapter_bytes": "many"}}', "[" * 100_000],
)
def test_what_a_training_states_of_adapters_is_recorded(text: str, tmp_path: Path) -> None:
    """The three figures of settings.json; without them, or of another type, none."""
    stated = {"adapter_bytes": 512, "adapter_parameters": 64, "trained_share": 0.25}
    (tmp_path / SETTINGS).write_text(json.dumps({"adapter": stated}))
    recorded = _adapter(tmp_path)
    assert recorded == stated and parse({"adapter": recorded}).adapter.trained_share == 0.25
    (tmp_path / SETTINGS).write_text(text)
    assert _adapter(tmp_path) == {}
