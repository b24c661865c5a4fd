"""template-update.yml and wheel.yml as events start them."""

from __future__ import annotations

import pytest

from tests.conftest import ROOT
from tests.github.events import Repository, git
from tests.github.test_check import team, template

__all__ = ["team", "template"]


def test_a_fork_that_asks_for_it_gets_updates(team: Repository) -> None:
    """With the app's token alone, which may change workflows; nothing happens elsewhere."""
    team.fake = ("update-request",)
    assert team.scheduled("template-update")["update"].result == "skipped"
    assert team.commands() == [] and team.state.apps == set()
    team.variables = {"TEMPLATE_UPDATE": "true"}
    assert team.scheduled("template-update")["update"].result == "success"
    assert team.commands() == ["make update-request"]
    (token,) = team.state.apps
    rights = ("contents", "pull-requests", "workflows")
    assert team.state.tokens[token] == dict.fromkeys(rights, "write")
    assert team.signed_in == []


@pytest.mark.skipif(not (ROOT / ".venv/update").exists(), reason="make .venv/update.stamp")
def test_a_tag_releases_the_wheel(team: Repository) -> None:
    """Built of the tag, attested, attached; without a sign-in to Azure."""
    git(team.origin, "tag", "v0.1.0", "main")
    team.fake = ("publish-wheel",)
    job = team.pushed("wheel", "refs/tags/v0.1.0")["wheel"]
    assert job.result == "success"
    assert team.commands() == ["make wheel", "make publish-wheel"]
    assert team.reviewed == ["azureml_gitops_starter-0.1.0-py3-none-any.whl"]
    assert team.signed_in == []
