"""`ml gate | release | serve | invoke`: words on stderr, JSON on stdout, exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ml.backends.endpoints import Live, Server
from ml.backends.local.serving import endpoint
from ml.cli.app import main
from tests.backends.serving.servers import deployment
from tests.release import tiny
from tests.release.conftest import World


def ml(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command."""
    try:
        main(list(words))
        code = 0
    except SystemExit as ended:
        code = int(ended.code or 0)
    out, err = capsys.readouterr()
    return code, out, err


@pytest.mark.parametrize(
    "content",
    [
        None,
        "[]",
        "{}",
        '[{"project": "tiny"}]',
        '[{"project": "other", "jobs": {}}]',
        '[{"project": "tiny", "jobs": {"a": "b"}}]',
        '[{"project": "tiny", "jobs": {"a": {"run": "b"}}}]',
        '[{"project": "tiny", "jobs": {}}, {"project": "tiny", "jobs": {}}]',
    ],
)
@pytest.mark.parametrize("command", ["collect", "propose"])
def test_only_what_was_trained_is_collected(
    command: str, content: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "train.json"
    if content is not None:
        file.write_text(content)
    words = ("--env", "dev", "--on", "azure", "--trained", str(file))
    code, _, err = ml(capsys, "release", command, "tiny", *words)
    assert code == 2 and "not-trained" in err and "ml train tiny --json" in err


@pytest.mark.slow
def test_the_commands_of_a_release(challenged: World, capsys: pytest.CaptureFixture[str]) -> None:
    """Gate, propose, apply, status, serve and invoke, in the order in which a person types them."""
    code, out, err = ml(capsys, "gate", "tiny", "2")
    assert code == 0 and not out and "superiority" in err and "once somebody approves" in err
    code, out, _ = ml(capsys, "gate", "tiny", "2", "--json")
    assert code == 0 and json.loads(out)["outcome"] == "pending"

    code, out, err = ml(capsys, "release", "propose", "tiny", "--run", challenged.run(0.7))
    assert code == 3 and not out and "rejected" in err and "non-inferiority" in err
    assert "next: ml gate tiny 3 --all, and docs/how-to/pass-a-gate.md" in err
    code, out, _ = ml(capsys, "release", "propose", "tiny", "--run", challenged.run(0.7), "--json")
    assert code == 3 and json.loads(out)["release"] is None
    code, out, _ = ml(capsys, "gate", "tiny", "3", "--json")
    assert code == 3 and json.loads(out)["outcome"] == "rejected"

    code, _, err = ml(capsys, "release", "status")
    code, out, err = ml(capsys, "release", "apply", "tiny")
    assert code == 3 and "--approved-by NAME" in err
    code, out, _ = ml(capsys, "release", "status", "--json")
    assert code == 0 and json.loads(out)[0]["champion"] == "1"
    code, out, _ = ml(capsys, "release", "apply", "tiny", "--approved-by", "ana", "--json")
    assert code == 0
    done = json.loads(out)
    assert (done["outcome"], done["version"], done["replaced"]) == ("applied", "2", "1")
    code, out, err = ml(capsys, "release", "apply", "tiny", "--approved-by", "ana")
    assert code == 0 and "was serving already" in err
    assert "ml invoke tiny 'how?'" in err
    code, out, _ = ml(capsys, "release", "status", "tiny")
    assert code == 0 and "as declared" in out

    code, out, err = ml(capsys, "invoke", "tiny", "how?")
    assert code == 0 and out.startswith("1. q  [") and "version 2" in err
    code, out, _ = ml(capsys, "invoke", "tiny", '{"question": "how?"}', "--json")
    assert code == 0 and json.loads(out)["model_digest"] == done["digest"]
    code, out, err = ml(capsys, "invoke", "tiny", '{"query": "how?"}')
    assert code == 2 and not out and "error[request-refused]" in err and "query" in err
    assert "ml invoke tiny 'how?'" in err
    samples = challenged.project.folder / "endpoint" / "requests.jsonl"
    texts = samples.read_text()
    samples.write_text('{"amount": 10, "shop": "near"}\n')
    code, out, err = ml(capsys, "invoke", "tiny", "how?")
    assert code == 2 and not out and "error[not-a-request]" in err
    assert """ml invoke tiny '{"amount": 10, "shop": "near"}'""" in err
    samples.write_text(json.dumps({"amount": 10, "note": "long " * 80}) + "\n")
    code, out, err = ml(capsys, "invoke", "tiny", "how?")
    assert code == 2 and 'ml invoke tiny "$(head -1 ml/projects/tiny/endpoint/req' in err
    samples.write_text(texts)

    code, out, _ = ml(capsys, "serve", "--json")
    (row,) = json.loads(out)
    assert code == 0 and row["running"] and row["url"] == done["url"]
    code, _, err = ml(capsys, "serve", "tiny", "--stop")
    assert code == 0 and "stopped" in err
    code, out, _ = ml(capsys, "serve")
    assert code == 0 and "stopped" in out
    code, _, err = ml(capsys, "invoke", "tiny", "how?")
    assert code == 0 and "was not running; started it" in err
    code, _, err = ml(capsys, "serve", "--stop-all")
    assert code == 0 and "tiny: stopped" in err


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("invoke", "tiny", "how?"), "no-live-deployment"),
        (("invoke", "tiny", " "), "no-request"),
        (("serve", "tiny"), "no-live-deployment"),
        (("serve", "tiny", "--stop"), "no-live-deployment"),
        (("serve", "--port", "5001"), "no-endpoint"),
        (("gate", "tiny", "1"), "no-such-version"),
        (("gate", "ti' OR name='ny", "1"), "no-such-version"),
        (("gate", "tiny", "1", "--env", "qa"), "no-such-environment"),
        (("release", "propose", "nobody"), "no-such-project"),
        (("release", "propose", "tiny", "--env", "qa"), "no-such-environment"),
        (("release", "propose", "tiny", "--env", "prod"), "no-candidate"),
        (("release", "plan", "tiny", "--env", "prd"), "no-such-environment"),
        (("release", "rollback", "tiny"), "no-earlier-version"),
        (("release", "rollback", "tiny", "--through-canary"), "approval-required"),
        (("release", "propose", "tiny"), "no-candidate"),
        (("release", "propose", "tiny", "--run", "no_run_00"), "no-such-run"),
    ],
)
def test_mistakes_are_told_without_a_traceback(
    words: tuple[str, ...],
    code: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Exit code 2, nothing on stdout, the error's code and what to do on stderr."""
    tiny.make(tmp_path)
    monkeypatch.chdir(tmp_path)
    exit_code, out, err = ml(capsys, *words)
    assert (exit_code, out) == (2, "") and f"error[{code}]" in err
    assert "expected" in err or "hint" in err


def test_serve_takes_a_project_as_invoke_does_and_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A name that serves nothing becomes no endpoint by being asked for."""
    project = tiny.make(tmp_path)
    folder = project.folder.rename(project.folder.with_name("tiny_words"))
    monkeypatch.chdir(tmp_path)
    for name in (folder.name, "typo"):
        code, _, err = ml(capsys, "serve", name)
        assert code == 2 and "error[no-live-deployment]" in err and "tiny_words" not in err
    assert endpoint.names() == []


def test_nothing_to_show_or_stop_is_no_error(capsys: pytest.CaptureFixture[str]) -> None:
    """On a fresh clone `ml serve`, `--stop-all` and `release status` end well."""
    for words in (("serve",), ("serve", "--stop-all"), ("release", "status")):
        code, out, err = ml(capsys, *words)
        assert (code, out) == (0, "")
    assert err == "nothing is declared; next: ml release propose PROJECT\n"
    told = ml(capsys, "release", "status", "--env", "dev")[2]
    assert " in dev: no model yet" in told and "ml release propose " in told
    assert " --env dev" in told
    code, out, _ = ml(capsys, "serve", "--json")
    assert (code, json.loads(out)) == (0, []) and endpoint.names() == []


def test_an_endpoint_that_cannot_be_read_hides_no_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`ml serve` shows the others, and ends with the problem."""
    made = deployment(tmp_path, endpoint="good")
    slot = endpoint.folder("good") / "blue"
    slot.mkdir(parents=True)
    endpoint.switch("good", Live(Server(slot, pid=2**22, port=1), made))
    damaged, folder = (endpoint.folder(name) / "live.json" for name in ("broken", "folder"))
    damaged.parent.mkdir()
    damaged.write_text("{}")
    folder.mkdir(parents=True)
    code, out, err = ml(capsys, "serve")
    assert (
        code == 1
        and out.startswith("good: ")
        and f"error[endpoint-state-unreadable]: {damaged}" in err
    )
    assert f"error[not-a-file]: {folder} is a folder" in err
    code, out, _ = ml(capsys, "serve", "--json")
    assert code == 1 and [row["endpoint"] for row in json.loads(out)] == ["good"]
