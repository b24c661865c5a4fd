"""The commands that ask Azure: without a sign-in they end at once, in one readable error."""

from __future__ import annotations

import azure.identity
import pytest
from azure.core.exceptions import ClientAuthenticationError

from infra import cli
from infra.live import cli as live


class Nobody:
    """As DefaultAzureCredential where nobody is signed in."""

    def get_token(self, *scopes: str) -> None:
        raise ClientAuthenticationError("a paragraph for each way of signing in")


def test_nobody_is_signed_in(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit 1, nothing of the paragraphs; a path that is refused needs no sign-in."""
    monkeypatch.setattr(azure.identity, "DefaultAzureCredential", Nobody)
    monkeypatch.setattr(live, "_declared", lambda stack: ())
    for words, code, said in (
        (["sas", "dev", "raw/a.csv"], 1, "not-signed-in"),
        (["doctor", "dev"], 1, "not-signed-in"),
        (["drift", "dev"], 1, "not-signed-in"),
        (["sas", "dev", "raw"], 2, "no-path"),
    ):
        with pytest.raises(SystemExit) as ended:
            cli.main(words)
        assert ended.value.code == code
        told = capsys.readouterr().err
        assert f"error[{said}]" in told
        assert "paragraph" not in told
