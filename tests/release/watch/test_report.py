"""`ml watch` on a model that serves: its reference, what was collected, exit codes."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from ml.backends.local.serving import endpoint
from ml.backends.local.serving.router.records import FOLDER
from ml.backends.model_registry import EVIDENCE_FILE, Version
from ml.core.errors import UserError
from ml.features.definition import read as definition_of
from ml.features.materialize import materialize
from ml.measures.reference import NO_FEATURES, REFERENCE, Columns, write_reference
from ml.release.evidence.evidence import REFERENCE_FIELD, keep_reference, load_reference
from ml.release.evidence.verification import checks
from ml.release.watch import report as reports
from ml.release.watch import requests
from ml.release.watch.limits import Limits
from ml.release.watch.report import compare_requests
from ml.reports.pages import watch_page
from tests.features.conftest import write_set
from tests.features.test_materialize import payment, write
from tests.local import BACKEND
from tests.release.conftest import World
from tests.release.test_commands import ml
from tests.release.tiny import resealed

QUESTIONS = [f"how do I run job {number} on a spot node" for number in range(300)]
NAMED = {"model": "m", "version": "1", "environment": "local"}
OTHERS = [f"wo wohnt Herr Meier aus Haus {number} seit gestern" for number in range(300)]


def with_reference(version: Version, digest: str = "", features: Any = NO_FEATURES) -> Version:
    """Keep a reference with the version, as a proposal does."""
    evaluation = version.evidence_folder / "evaluation"
    write_reference(
        *(evaluation, digest or version.digest, {"question": ("text", QUESTIONS)}),
        {"answers/0/score": ("numeric", [n / 300 for n in range(300)])},
        {"answers/0/score": [0.1, 0.2] * 100},
        features,
    )
    stated = json.loads((version.evidence_folder / EVIDENCE_FILE).read_text())
    stated[REFERENCE_FIELD] = keep_reference(evaluation, version.evidence_folder)
    return BACKEND.registry.keep_evidence(version, resealed(version, json.dumps(stated)).evidence)


def collect(version: Version, questions: list[str], score: float = 1.0, status: int = 200) -> None:
    """What a router would have written down."""
    folder = endpoint.folder(version.model) / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "00000001.jsonl").open("a") as stream:
        for number, question in enumerate(questions):
            answer = {"answers": [{"score": score * (number % 300) / 300}]}
            line: dict[str, Any] = {"at": time.time(), "digest": version.digest, "status": status}
            line |= {"id": f"r{number}", "request": {"question": question}, "answer": answer}
            stream.write(json.dumps(line) + "\n")
        stream.write('{"at": 17, "dig')  # a kill in the middle of a line


@pytest.mark.slow
def test_a_model_is_watched(
    promoted_world: World, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Nothing kept, nothing collected, too little, no breach, a breach; each with its exit code."""
    version = BACKEND.registry.find("tiny", "1")
    code, _, err = ml(capsys, "watch", "tiny")
    assert code == 2 and "no-reference" in err
    version = with_reference(version)
    code, _, err = ml(capsys, "watch", "tiny")
    assert code == 2 and "collection-disabled" in err
    assert "`data_collector.collections`" in err and '`enabled: "true"`' in err
    collect(version, QUESTIONS[:20])
    code, out, err = ml(capsys, "watch", "tiny")
    assert code == 0 and "too few rows to say anything: 20 of at least 50" in out
    assert "lines that cannot be read, left out: 1" in err

    collect(version, QUESTIONS)
    assert ml(capsys, "watch", "tiny", "--out", str(tmp_path))[0] == 2
    page = tmp_path / "watched.html"
    code, out, err = ml(capsys, "watch", "tiny", "--since", "1h", "--out", str(page))
    assert code == 0 and "no breach in" in out and "no breach" in page.read_text()
    assert json.loads(page.with_suffix(".json").read_text())["outcome"] == "no-breach"

    collect(version, OTHERS, score=0.0)
    code, out, _ = ml(capsys, "watch", "tiny", "--json")
    told = json.loads(out)
    assert code == 3 and told["outcome"] == "breach" and Path(told["report"]).is_file()
    assert {one["column"] for one in told["findings"] if one["breach"]} >= {
        "question: unknown words",
        "answers/0/score",
    }
    code, out, _ = ml(capsys, "watch", "tiny", "--since", "2099-01-01")
    assert code == 0 and "too few" in out

    file = tmp_path / "inputs.jsonl"
    file.write_text("".join(json.dumps({"question": text}) + "\n" for text in OTHERS))
    code, out, err = ml(capsys, "watch", "tiny", "--inputs", str(file))
    assert code == 3 and "predictions are not compared" in err and "meier" in out
    labels = tmp_path / "labels.csv"
    labels.write_text("".join(f"r{number},2.0\n" for number in range(300)))
    code, out, _ = ml(capsys, "watch", "tiny", "--labels", str(labels), "--json")
    assert code == 3 and {one["test"] for one in json.loads(out)["findings"]} >= {"loss"}

    code, _, err = ml(capsys, "watch", "other")
    assert code == 2 and "no-live-deployment" in err
    code, _, err = ml(capsys, "watch", "tiny", "--version", "9")
    assert code == 2 and "no-such-version" in err


@pytest.mark.slow
def test_feature_sets_are_watched_without_requests(
    promoted_world: World, own_home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of the store in the local home, or of another one; none of another environment."""
    feature_set = definition_of(
        write_set(promoted_world.project.root / "ml/projects/tiny/features")
    )
    sets = {feature_set.name: ("1", feature_set.digest, {"count_3h": ("numeric", [1.0] * 100)})}
    with_reference(BACKEND.registry.find("tiny", "1"), features=sets)
    assert ml(capsys, "watch", "tiny")[0] == 2
    source = write(own_home / "source", "1.parquet", [payment(1)])
    materialize(feature_set, source, own_home / "features")
    code, out, err = ml(capsys, "watch", "tiny")
    assert code == 3 and "account_payments: arrival: the newest arrival is of 2026-03-01" in out
    assert "note: no requests to version 1 of `tiny` are collected" in err
    code, _, err = ml(capsys, "watch", "tiny", "--features", str(own_home / "other"))
    assert code == 2 and "error[missing-file]: there is no feature store at" in err
    (own_home / "other").mkdir()
    code, _, err = ml(capsys, "watch", "tiny", "--features", str(own_home / "other"))
    assert code == 2 and "collection-disabled" in err
    assert "account_payments is not watched" in err, "of a folder without a store"
    found = reports.watch(BACKEND, "tiny", version="1", inputs=_questions(own_home))
    assert found.outcome == "breach" and [one.test for one in found.findings].count("hours") == 2


def _questions(folder: Path) -> Path:
    file = folder / "questions.jsonl"
    file.write_text("".join(json.dumps({"question": text}) + "\n" for text in QUESTIONS))
    return file


@pytest.mark.slow
def test_a_reference_is_used_only_as_it_was_kept(promoted_world: World) -> None:
    """Another model's, an edited one, one that is torn, and evidence that was edited."""
    version = BACKEND.registry.find("tiny", "1")
    with pytest.raises(UserError, match="no-reference"):
        load_reference(version)
    version = with_reference(version, "sha256:other")
    with pytest.raises(UserError, match=r"invalid-reference.*sha256:other"):
        load_reference(version)
    version = with_reference(version)
    assert load_reference(version)["digest"] == version.digest
    assert {one.name: one.sound for one in checks(version)}[REFERENCE]
    path = version.evidence_folder / REFERENCE
    text = path.read_text()
    for other in (text.replace("numeric", "number"), text[:-20], "[]", text + " "):
        path.write_text(other)
        with pytest.raises(UserError, match="invalid-reference"):
            load_reference(version)
        assert not {one.name: one.sound for one in checks(version)}[REFERENCE]
    path.write_text(text)
    evidence = version.evidence_folder / EVIDENCE_FILE
    evidence.write_text(evidence.read_text() + " ")
    with pytest.raises(UserError, match=r"evidence\.json differs from the file"):
        load_reference(version)


def test_a_project_that_keeps_no_reference(tmp_path: Path) -> None:
    """Is none the worse for it."""
    assert keep_reference(tmp_path, Version("m", "1", "d", "p", "r", "")) is None


def document(tmp_path: Path) -> dict[str, Any]:
    """A reference as it is read."""
    write_reference(
        *(tmp_path, "d", {"q": ("text", QUESTIONS), "n": ("numeric", [0.0, 1.0] * 50)}),
        *({}, {"p": [0.0, 1.0] * 50}),
    )
    found: dict[str, Any] = json.loads((tmp_path / REFERENCE).read_text())
    return found


def test_a_report_says_what_it_could_not_judge(tmp_path: Path) -> None:
    """Labels that are too few, requests of another model; and NaN is no JSON."""
    rows = [requests.Row(str(n), {"q": text, "n": n % 2}, None) for n, text in enumerate(QUESTIONS)]
    found = compare_requests(
        *(document(tmp_path), requests.CollectedRequests(rows, 1, 2, 3), Limits()),
        **NAMED,
        labelled={"1": "a"},
    )
    assert found.outcome == "no-breach" and len(found.notes) == 6
    assert "1 labels of `p` were left out" in found.notes[-2]
    assert "0 answers of `p` have a label, 50 are needed" in found.notes[-1]
    ignoring = compare_requests(
        *(document(tmp_path), requests.CollectedRequests(rows), Limits(ignore=("q",))),
        **NAMED,
    )
    assert {one.column for one in ignoring.findings} == {"n"}


@pytest.mark.parametrize(
    ("asked", "crashed", "outcome"),
    [(300, 15, "breach"), (300, 14, "no-breach"), (4, 4, "no-breach")],
)
def test_failed_requests_are_a_breach(
    asked: int, crashed: int, outcome: str, tmp_path: Path
) -> None:
    """From a twentieth of the requests on, and never for a few alone."""
    rows = [requests.Row(str(n), {"q": text, "n": n % 2}, None) for n, text in enumerate(QUESTIONS)]
    seen = requests.CollectedRequests(rows, requests=asked, crashed=crashed)
    found = compare_requests(document(tmp_path), seen, Limits(), **NAMED)
    assert found.outcome == outcome and bool(found.failing) is (outcome == "breach")
    words = f"{crashed} of {asked} requests failed with a status of 500 or more; "
    assert found.sentence.startswith(words) is (outcome == "breach")


def answered(number: int, answer: object) -> requests.Row:
    """A row with that prediction."""
    return requests.Row(str(number), {"q": "a"}, {"p": answer})


def test_the_quality_of_classes_and_of_numbers(tmp_path: Path) -> None:
    """A class is right or wrong, however far its number; what has no error is said, not reckoned.

    An answer that is none would otherwise look better than one that is a hundred off.
    """
    inputs: Columns = {"q": ("categorical", ["a"] * 100)}
    wrong = [float(n % 5 == 0) for n in range(100)]
    write_reference(tmp_path, "d", inputs, {"p": ("categorical", [1, 7] * 50)}, {"p": wrong})
    kept = json.loads((tmp_path / REFERENCE).read_text())
    rows = [answered(n, 1 if n % 5 else 7) for n in range(100)]
    labelled = dict.fromkeys(map(str, range(100)), "1")
    found = compare_requests(
        kept, requests.CollectedRequests(rows), Limits(ignore=("p",)), **NAMED, labelled=labelled
    )
    assert found.outcome == "no-breach" and "0.2 → 0.2" in str(found.findings)

    error = [90.0, 110.0] * 50
    write_reference(tmp_path, "d", inputs, {"p": ("numeric", error)}, {"p": error})
    kept = json.loads((tmp_path / REFERENCE).read_text())
    rows = [answered(n, 200.0 if n % 2 else None) for n in range(200)]
    labelled = dict.fromkeys(map(str, range(200)), "0")
    found = compare_requests(
        kept, requests.CollectedRequests(rows), Limits(), **NAMED, labelled=labelled
    )
    (loss,) = [one for one in found.findings if one.test == "loss"]
    assert loss.is_breach and loss.size == pytest.approx(100) and "over 100 labels" in loss.sentence
    assert "100 labels of `p` were left out" in found.notes[-1]
    few = compare_requests(
        kept, requests.CollectedRequests(rows[:80]), Limits(), **NAMED, labelled=labelled
    )
    assert "40 answers" in few.notes[-1] and "quality is not judged" in few.notes[-1]


def test_labels_that_nothing_is_kept_for_are_told(tmp_path: Path) -> None:
    """A reference without losses has nothing to compare them with."""
    write_reference(tmp_path, "d", {"q": ("categorical", ["a"] * 100)}, {}, {})
    kept = json.loads((tmp_path / REFERENCE).read_text())
    rows = [answered(n, None) for n in range(100)]
    found = compare_requests(
        kept, requests.CollectedRequests(rows), Limits(), **NAMED, labelled={"1": "a"}
    )
    assert "the reference keeps no losses: quality is not judged" in found.notes


def test_what_did_not_change_is_folded_and_counted(tmp_path: Path) -> None:
    """Twenty columns that have all of their values, then and now, are one line; a breach is not."""
    inputs: Columns = {f"c{n:02}": ("categorical", ["a", "b"] * 50) for n in range(20)}
    write_reference(tmp_path, "d", inputs, {}, {})
    kept = json.loads((tmp_path / REFERENCE).read_text())
    same = dict.fromkeys(inputs, "a")
    rows = [
        requests.Row("", {**same, **dict.fromkeys(inputs, "ab"[n % 2]), "c00": "z"}, None)
        for n in range(100)
    ]
    html = watch_page(compare_requests(kept, requests.CollectedRequests(rows), Limits(), **NAMED))
    shown, _, folded = html.partition("<details")
    assert "39 comparisons without a difference" in folded
    assert shown.count("<tr><td") == 1 and "c00" in shown and "✗ breach" in shown
    assert folded.count("<tr><td") == 39
    # On a telephone a row is a block, in which each number has the name of its column.
    assert 'class="roomy stacked"' in shown and shown.count('data-label="limit"') == 1
    every = [{**same, **dict.fromkeys(inputs, "ab"[n % 2])} for n in range(100)]
    rows = [requests.Row("", row, None) for row in every]
    html = watch_page(compare_requests(kept, requests.CollectedRequests(rows), Limits(), **NAMED))
    assert "40 comparisons without a difference" in html and "<details open" not in html


@pytest.mark.attack("A request injects into the page of watched requests")
def test_the_page_needs_nothing_from_outside_and_cannot_be_injected_into(tmp_path: Path) -> None:
    """What callers sent stands in it: as text."""
    rows = [
        requests.Row("", {"q": f"<script>alert({n})</script> evil", "n": None}, None)
        for n in range(99)
    ]
    found = compare_requests(
        *(document(tmp_path), requests.CollectedRequests(rows), Limits()),
        **NAMED,
    )
    assert found.outcome == "breach"
    html = watch_page(found)
    assert "<script>alert" not in html and "http://" not in html and "https://" not in html
    assert "✗ breach" in html and "unknown words" in html


def test_what_callers_sent_cannot_command_the_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nor break the lines, nor be half of a character, which no file can hold."""
    rows = [requests.Row(str(n), {"q": "\x1b[2J\n\ud800"}, None) for n in range(99)]
    write_reference(tmp_path, "d", {"q": ("categorical", ["a"] * 100)}, {}, {})
    kept = json.loads((tmp_path / REFERENCE).read_text())
    found = compare_requests(kept, requests.CollectedRequests(rows), Limits(), **NAMED)
    monkeypatch.setattr(reports, "watch", lambda *_, **__: found)
    code, out, _ = ml(capsys, "watch", "m", "--out", str(tmp_path / "page.html"))
    assert code == 3 and r"`\x1b[2J\n\ud800`" in out
    assert "\x1b" not in out and "\ud800" not in out


def test_a_version_that_does_not_serve() -> None:
    """Named, but nothing that it was asked is kept; each environment has an endpoint of its own."""
    version = Version("tiny", "1", "sha256:d", "tiny", "r", "")
    collect(version, QUESTIONS)
    assert len(reports._collected(BACKEND.endpoints, "tiny", "local", version, None).rows) == 300
    with pytest.raises(UserError, match=r"not-served.*`tiny-prod`"):
        reports._collected(BACKEND.endpoints, "tiny", "prod", version, None)
    with pytest.raises(UserError, match="no-live-deployment"):
        reports._version(BACKEND, "tiny", "prod", "", from_file=False)
