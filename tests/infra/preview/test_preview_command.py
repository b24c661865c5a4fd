"""`infra preview`: its exit codes, its file, and missing packages."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

import pytest

from infra.cost.estimate import estimate
from infra.cost.prices import read
from infra.preview import report as previews
from infra.preview.capture import Breach, Capture, Resource
from infra.preview.report import Report, rendered
from infra.settings.loader import FOLDER, imported, load
from tests.infra.programs import ran

STACK = Resource("urn:stack", "pulumi:pulumi:Stack", "platform-dev", "", {}, custom=False)
VAULT = Resource("urn:vault", "azure-native:keyvault:Vault", "vault", STACK.urn, {})
NO = Breach("vault-firewall", True, VAULT.urn, "vault: open")
ADVICE = Breach("set-aside", False, VAULT.urn, "vault-firewall: vault: open; advice in dev")


def _preview(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    *words: str,
    findings: tuple[Breach, ...] = (),
    problems: tuple[str, ...] = (),
) -> tuple[int, str, str]:
    capture = Capture("dev", (STACK, VAULT), {}, findings)
    report = Report(capture, estimate(load("dev"), read()), problems)
    monkeypatch.setattr(previews, "reports", lambda stacks, *, against: [report])
    return ran(capsys, "preview", *words)


@pytest.mark.attack("A stack file has settings from elsewhere, which no preview knows")
@pytest.mark.parametrize("listed", ["[evil/prod]", "{imports: [evil/prod]}"])
def test_settings_from_elsewhere_are_noted(listed: str, tmp_path: Path) -> None:
    """Environments of Pulumi ESC are read when a stack is deployed, by who signs in there."""
    text = (FOLDER / "Pulumi.dev.yaml").read_text()
    (tmp_path / "Pulumi.dev.yaml").write_text(f"{text}environment: {listed}\n")
    (name,) = imported("dev", tmp_path)
    assert imported("dev") == ()
    report = Report(Capture("dev", (STACK, VAULT), {}), estimate(load("dev"), read()))
    noted = dataclasses.replace(report, imported=(name,))
    for style in ("text", "md"):
        assert (
            "evil/prod" in "".join(rendered([noted], style)) != "".join(rendered([report], style))
        )
    assert "evil/prod" in noted.to_json()["immutable"][0]  # type: ignore[index]


@pytest.mark.parametrize(
    ("findings", "problems", "code"),
    [
        ((), (), 0),
        ((ADVICE,), (), 0),
        ((ADVICE, NO), (), 3),
        ((NO,), ("vault.sku: required",), 2),
    ],
)
def test_the_exit_code_is_the_verdict(
    findings: tuple[Breach, ...],
    problems: tuple[str, ...],
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """0 accepted, 2 not deployable, 3 refused by a policy; findings are printed in any case."""
    exit_code, printed, _ = _preview(monkeypatch, capsys, findings=findings, problems=problems)
    assert exit_code == code
    assert all(one.message in printed for one in findings) and all(p in printed for p in problems)


def test_the_json_format_prints_only_json(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = _preview(monkeypatch, capsys, "--format", "json", findings=(NO,))
    (data,) = json.loads(out)
    assert code == 3 and data["stack"] == "dev" and data["refused"][0]["policy"] == "vault-firewall"


def test_a_file_that_cannot_be_written_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _preview(monkeypatch, capsys, "--save", str(tmp_path / "report.json"))[0] == 0
    (data,) = json.loads((tmp_path / "report.json").read_text())
    assert data["stack"] == "dev"
    nowhere = str(tmp_path / "nowhere" / "report.json")
    code, _, err = _preview(monkeypatch, capsys, "--save", nowhere)
    assert code == 2 and "error[cannot-write]: --save " in err


def test_missing_packages_have_a_hint(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [name for name in sys.modules if name.startswith("infra.preview")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "grpc", None)
    code, _, err = ran(capsys, "preview")
    assert code == 2 and "make infra" in err
