"""`make azure-first-day`: its rows, what it records, and the stand-in compared with both."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from azure.core.exceptions import ClientAuthenticationError, DecodeError
from hypothesis import given
from hypothesis import strategies as st

from docs.generate import first_day as page
from ml.backends.azure.backend import AzureBackend
from ml.backends.azure.first_day import __main__ as program
from ml.backends.azure.first_day.rows import Row, form_of, load, words
from ml.backends.azure.workspace import Workspace, configured
from ml.backends.endpoints import Live
from ml.core.errors import Exit
from tests.backends.deployments import released
from tests.backends.test_azure import planned
from tests.conftest import ROOT
from tests.named import spans, wrong
from tests.stand_ins.azure.running import StandIn

ROWS = {row.name: row for row in load()}
COMPARED = [row for row in ROWS.values() if row.request]
# What `make azure-first-day` has recorded of a real subscription; nobody has done so yet.
RECORDED = ROOT / "tests/stand_ins/azure/recorded"
TYPES = {"flag", "text", "number", "list", "object", "null"}
VALUES = {"text": "contoso", "number": 7, "list": ["contoso"], "object": {"contoso": "contoso"}}
IDENTIFIERS = ("contoso", "11111111-2222-3333-4444-555555555555", "ana@contoso.com", "sig=c2VjcmV0")


def names(rows: list[Row]) -> list[Any]:
    return [pytest.param(row, id=row.name) for row in rows]


def test_a_row_is_sent_or_needs_a_decision() -> None:
    """Only `doctor` is neither: with ENV make runs it."""
    left = [row.name for row in ROWS.values() if bool(row.request) is bool(row.decision)]
    assert left == ["doctor"] and len(ROWS) == 16


def right(shape: Any) -> Any:
    """An answer that has the shape, with names of somebody."""
    if isinstance(shape, Mapping):
        return {name: right(inner) for name, inner in shape.items()}
    if isinstance(shape, list):
        return [right(shape[0])]
    return words(shape)[0] if words(shape) else VALUES[shape]


def broken(shape: Any) -> Iterator[Any]:
    """Answers with one fault each: a field that is missing, or of another type or word."""
    whole = right(shape)
    if isinstance(shape, Mapping):
        for name, inner in shape.items():
            yield {key: value for key, value in whole.items() if key != name}
            yield from ({**whole, name: fault} for fault in broken(inner))
    elif isinstance(shape, list):
        yield from ([*whole, fault] for fault in broken(shape[0]))
    else:
        yield from (None, "Contoso") if words(shape) else (None, True)
        if " ~ " in shape:
            yield words(shape)[-1]


def is_right(row: Row, status: int, answer: Any) -> bool:
    return row.compare(status, form_of(row.shape, answer))[0]


def strings(value: Any) -> Iterator[str]:
    """Every key and every text in a JSON value."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield key
            yield from strings(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from strings(inner)
    elif not isinstance(value, bool | int | float | None):
        yield value


def vocabulary(shape: Any) -> set[str]:
    """The names of fields and the words of a shape, which are in the repository already."""
    listed = {word for text in strings(shape) for word in (text, *words(text))}
    return listed | TYPES


def differences(ours: Any, theirs: Any, at: str = "") -> Iterator[str]:
    """Where two recorded answers differ: in fields, in types, in what is a word and what is not."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for name in ours.keys() ^ theirs.keys():
            yield f"{at}.{name}: only {'the stand-in' if name in ours else 'Azure'} sends it"
        for name in ours.keys() & theirs.keys():
            yield from differences(ours[name], theirs[name], f"{at}.{name}")
    elif isinstance(ours, list) and isinstance(theirs, list):
        for item in ours if theirs else ():
            yield from min((list(differences(item, other, f"{at}[]")) for other in theirs), key=len)
    elif ours != theirs and (type(ours) is not type(theirs) or TYPES & {ours, theirs}):
        yield f"{at}: {ours}, Azure says {theirs}"


# Rows.


@pytest.mark.parametrize("row", names(COMPARED))
def test_a_right_answer_is_as_expected_and_a_wrong_one_is_not(row: Row) -> None:
    """Every field of every row, and the status."""
    answer = right(row.shape)
    assert is_right(row, row.status, answer)
    assert not is_right(row, 500, answer)
    faults = [None, "a page", *broken(row.shape)]
    assert len(faults) > 4
    assert [fault for fault in faults if is_right(row, row.status, fault)] == []


@pytest.mark.parametrize("row", names([*ROWS.values()]))
def test_a_row_has_what_its_reader_needs(row: Row) -> None:
    """One of an expected text and a request; a source; commands, options and files that exist."""
    assert bool(row.expected) != bool(row.request) and row.command and row.remedy
    assert row.source.startswith(("https://", "azure.ai.ml.")) or (ROOT / row.source).is_file()
    texts = (f"`{row.command.partition(',')[0]}`", row.expected, row.remedy)
    assert [span for text in texts for span in spans(text) if wrong(span)] == []
    section = page.page().partition(f"### {row.name}\n")[2].partition("\n### ")[0]
    assert row.source in section and row.command.partition(",")[0] in section


# What is recorded.

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from(IDENTIFIERS) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@pytest.mark.attack("Azure answers with names, ids and tokens, which a fixture would publish")
@given(row=st.sampled_from(COMPARED), data=st.data())
def test_nothing_that_somebody_chose_is_recorded(row: Row, data: st.DataObject) -> None:
    """Whatever the answer: each field has any JSON, and there are others beside it."""

    def hostile(shape: Any) -> Any:
        if isinstance(shape, str) or not data.draw(st.integers(0, 9)):
            return data.draw(JSON)
        if isinstance(shape, list):
            return [hostile(shape[0]), data.draw(JSON)]
        others = data.draw(st.dictionaries(st.sampled_from(IDENTIFIERS), JSON, max_size=2))
        return others | {name: hostile(inner) for name, inner in shape.items()}

    for answer in (data.draw(JSON), hostile(row.shape)):
        kept = form_of(row.shape, answer)
        assert set(strings(kept)) <= vocabulary(row.shape)


def test_the_terminal_shows_words_and_types() -> None:
    """As what is recorded, so that it can be put into an issue."""
    row = ROWS["datastore"]
    answer = right(row.shape)
    answer["properties"] |= {"endpoint": ["\x1b[2J"], "protocol": "contoso", "datastoreType": None}
    shown = "; ".join(row.compare(200, form_of(row.shape, answer))[1])
    assert "credentialsType: None; " in shown and "accountName: text; " in shown
    assert "endpoint: list" in shown and "protocol: text" in shown and "Type: null" in shown
    assert "value[].name: no item" in ROWS["jobs"].compare(200, {"value": []})[1]


def test_a_recorded_answer_keeps_words_and_types() -> None:
    """Equal items of a list are one."""
    job = {"name": "contoso", "properties": {"jobType": "Sweep", "status": "Contoso", "x": "y"}}
    kept = form_of(ROWS["jobs"].shape, {"value": [job, job], "nextLink": "contoso"})
    states = {"jobType": "Sweep", "status": "text"}
    assert kept == {"value": [{"name": "text", "properties": states}]}


def test_what_was_recorded_has_no_identifiers() -> None:
    """Also where somebody wrote into the files by hand."""
    for file in RECORDED.glob("*.json"):
        content = json.loads(file.read_text())
        assert content.keys() == {"status", "answer"} and isinstance(content["status"], int)
        assert set(strings(content["answer"])) <= vocabulary(ROWS[file.stem].shape)


# The program.


class Cloud:
    """A workspace that gives one answer to each row: a right one, or `faults` by the row's path."""

    id, subscription = "/subscriptions/contoso", "contoso"
    quiet = staticmethod(nullcontext)

    def __init__(self, address: str, **faults: Any) -> None:
        self.address, self.faults = address, faults
        self.paths: list[str] = []

    def answer(self, plane: str, method: str, path: str, body: Any) -> tuple[int, Any]:
        self.paths.append(path)
        (row,) = (row for row in COMPARED if _is_of(row, path))
        fault = self.faults.get(row.name)
        if isinstance(fault, Exception):
            raise fault
        return fault or (row.status, right(row.shape))


def _is_of(row: Row, path: str) -> bool:
    whole = {"workspace": Cloud.id, "subscription": "/subscriptions/contoso", "hour": ""}
    names = dict.fromkeys(("location", "endpoint", "deployment"), "contoso")
    return (
        path.partition("&timespan")[0]
        == row.request.split()[2].format(**whole, **names).partition("&timespan")[0]
    )


def run(monkeypatch: pytest.MonkeyPatch, cloud: Cloud, folder: Path) -> int:
    monkeypatch.setattr(program, "configured", lambda: cloud)
    return program.main(["--record", str(folder)])


@pytest.mark.parametrize("domain", program.AZURE)
def test_answers_of_azure_are_recorded(
    domain: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """A file for each answer, without what somebody chose."""
    cloud = Cloud(f"https://management.{domain}")
    assert run(monkeypatch, cloud, tmp_path / "new") == Exit.DONE
    files = {file.stem: file.read_text() for file in (tmp_path / "new").iterdir()}
    assert files.keys() == {row.name for row in COMPARED} and len(cloud.paths) == len(COMPARED)
    assert "contoso" not in "".join(files.values())
    assert json.loads(files["datastore"])["answer"]["properties"]["protocol"] == "https"
    assert "differs in: nothing" in capsys.readouterr().out


@pytest.mark.attack("A stand-in's answers are recorded as if Azure had given them")
@pytest.mark.parametrize(
    "address",
    [
        *("https://127.0.0.1:8443", "https://management.azure.com.example.org", ""),
        *("http://management.azure.com", "https://management.azure.com@localhost"),
    ],
)
def test_answers_of_others_are_not(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """They are compared alone."""
    assert run(monkeypatch, Cloud(address), tmp_path / "new") == Exit.DONE
    assert not (tmp_path / "new").exists()
    assert "It is a stand-in: nothing is recorded." in capsys.readouterr().out


@pytest.mark.parametrize(
    ("fault", "shown"),
    [
        ((200, {}), "missing"),
        ((403, {"error": {"code": "AuthorizationFailed"}}), "status 403"),
        ((200, None), "missing"),
        (None, "azure-failed"),
    ],
)
@pytest.mark.parametrize("row", names(COMPARED))
def test_a_row_that_differs_says_what_to_do(
    row: Row, fault: Any, shown: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """The others are compared as before, unless the first one gets no answer."""
    cloud = Cloud("https://management.azure.com", **{row.name: fault or DecodeError("no JSON")})
    code = run(monkeypatch, cloud, tmp_path)
    out = capsys.readouterr()
    assert code == Exit.RUN_FAILED
    if row.name == "workspace" and fault is None:
        assert "error[azure-failed]" in out.err
        return
    section = out.out.partition(f"\n{row.name}: ")[2].partition("\n\n")[0]
    assert shown in section and row.remedy in section
    assert row.name in out.out.rpartition("differs in: ")[2]
    is_recorded = (tmp_path / f"{row.name}.json").exists()
    assert is_recorded == (fault is not None and fault[0] == row.status)


@pytest.mark.parametrize("missing", ["the account", "the variables"])
def test_without_an_account_one_error_says_what_to_type(
    missing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """Asked once; no traceback, and nothing is written."""
    if missing == "the variables":
        monkeypatch.delenv("AZURE_SUBSCRIPTION_ID", raising=False)
        code = program.main(["--record", str(tmp_path / "new")])
        expected = "error[no-workspace-named]"
    else:
        nobody = ClientAuthenticationError("DefaultAzureCredential failed")
        cloud = Cloud("https://management.azure.com", workspace=nobody)
        code = run(monkeypatch, cloud, tmp_path / "new")
        expected = "error[not-signed-in]"
        assert len(cloud.paths) == 1
    assert code == Exit.WRONG_CALL and not (tmp_path / "new").exists()
    assert expected in capsys.readouterr().err


# The stand-in.


@pytest.mark.slow
def test_the_stand_in_answers_as_expected(
    workspace: StandIn, spec: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """As the sources of the rows say, and as a subscription did where that was recorded."""
    backend = AzureBackend()
    backend.run(planned(spec))
    deployment = released(backend, "words", tmp_path / "released")
    with backend.endpoints.locked("words"):
        server = backend.endpoints.begin(deployment)()
        backend.endpoints.switch("words", Live(server, deployment))
    answers: dict[str, tuple[int, Any]] = {}
    answer = Workspace.answer

    def noted(self: Any, plane: str, method: str, path: str, body: Any) -> tuple[int, Any]:
        row = next(row for row in COMPARED if row.name not in answers)
        answers[row.name] = answer(self, plane, method, path, body)
        return answers[row.name]

    monkeypatch.setattr(Workspace, "answer", noted)
    code = program.main(["--record", str(tmp_path / "new")])
    out = capsys.readouterr().out
    assert code == Exit.DONE and answers.keys() == {row.name for row in COMPARED}, out
    assert not (tmp_path / "new").exists() and configured().address in out
    for file in RECORDED.glob("*.json"):
        theirs, (status, ours) = json.loads(file.read_text()), answers[file.stem]
        found = [*differences(form_of(ROWS[file.stem].shape, ours), theirs["answer"])]
        assert (status, found) == (theirs["status"], [])


def test_the_comparison_with_what_was_recorded_finds_differences() -> None:
    """Of fields, types and words; another state of the same field is none."""
    ours = {"value": [{"name": "text", "state": "Succeeded"}]}
    assert [*differences(ours, {"value": [{"name": "text", "state": "Failed"}]})] == []
    assert [*differences(ours, {"value": []})] == []
    for theirs in (
        {"value": [{"name": "text"}]},
        {"value": [{"name": "number", "state": "Succeeded"}]},
        {"value": [{"name": "text", "state": "text"}]},
        {"value": "text"},
        {"value": [], "more": "text"},
    ):
        assert len([*differences(ours, theirs)]) == 1
