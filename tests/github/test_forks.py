"""template-update.yml and wheel.yml as events start them."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
import yaml

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


def test_a_private_template_gets_a_token_of_its_own(team: Repository) -> None:
    """It reads the template and may do nothing else."""
    team.fake = ("update-request",)
    names = {"TEMPLATE_OWNER": "platform", "TEMPLATE_REPOSITORY": "template"}
    team.variables = {"TEMPLATE_UPDATE": "true", **names}
    assert team.scheduled("template-update")["update"].result == "success"
    (token,) = [each for each in team.state.apps if each.endswith("-template")]
    assert team.state.tokens[token] == {"contents": "read"}


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


@pytest.mark.attack("A tag has a command in its name")
@pytest.mark.parametrize("tag", ["v1`touch\t{0}`", "v1$$(touch$${{IFS}}{0})", "v1;touch\t{0};"])
def test_the_name_of_a_tag_is_text(tag: str, tmp_path: Path) -> None:
    """The workflow gives it as a variable, which make would expand once more."""
    programs, gate = tmp_path / "bin", tmp_path / "pwned"
    programs.mkdir()
    (programs / "gh").write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/record\n')
    (programs / "gh").chmod(0o755)
    workflow = yaml.safe_load((ROOT / ".github/workflows/wheel.yml").read_text())
    (step,) = [each for each in workflow["jobs"]["wheel"]["steps"] if each.get("name") == "publish"]
    name = tag.format(gate)
    variables = {"PATH": f"{programs}:{os.environ['PATH']}", "TAG": name}
    subprocess.run(["bash", "-ec", step["run"]], cwd=ROOT, env=variables, check=True)
    assert not gate.exists()
    asked = (tmp_path / "record").read_text().splitlines()
    assert asked[0] == f"release view {name}"
    assert asked[1].startswith(f"release upload {name} dist/azureml_gitops_starter-{name[1:]}-py3")
