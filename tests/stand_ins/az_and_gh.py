"""A stand-in for `az` and `gh`: keeps what it is told to make in one JSON file.

It knows the commands that `infra bootstrap` uses and answers as the real ones do: JSON, or an error
on stderr in their own words. As a script it is the program that its link is named after.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

Answer = tuple[Any, str]
# Where `az` is signed in.
SUBSCRIPTION = "6f8d2c1e-1111-4000-8000-000000000000"
TENANT = "6f8d2c1e-2222-4000-8000-000000000000"


def answered(state: dict[str, Any], words: list[str]) -> Answer:
    """What a command prints, and its error or ""; `state` keeps every command and what it made."""
    words = [word for word in words if word not in ("--output", "json", "--only-show-errors")]
    state["commands"].append(words)
    if state["fail"] and " ".join(words).startswith(state["fail"]):
        return None, state.get("error", "ERROR: (Forbidden) not yet")
    return (_gh if words[0] == "gh" else _az)(state["things"], words)


def _gh(things: dict[str, Any], words: list[str]) -> Answer:
    if words[1] == "api":
        key = words[4] if "--method" in words else words[2]
        if key.endswith("/actions/oidc/customization/sub"):
            return _subject(things, key)
        if key.startswith(("orgs/", "users/")):
            missing = "nobody" in key
            return (None, "gh: Not Found (HTTP 404)") if missing else ({"id": len(key)}, "")
        if "PUT" in words:
            things[key] = _environment(key, words[5:])
        return (things[key], "") if key in things else (None, "gh: Not Found (HTTP 404)")
    key = f"variables {_option(words, '--repo')} {_option(words, '--env')}"
    there = things.setdefault(key, {})
    if words[2] == "set":
        there[words[3]] = _option(words, "--body")
        return None, ""
    return [{"name": name, "value": value} for name, value in there.items()], ""


def _environment(name: str, words: list[str]) -> dict[str, Any]:
    """An environment as GitHub answers with it, from the fields that `gh api` sends."""
    fields = [word.split("=", 1) for word in words if word not in ("-F", "-f")]
    assert all(len(field) == 2 for field in fields), words
    values = dict(fields)
    kinds = [value for key, value in fields if key == "reviewers[][type]"]
    ids = [int(value) for key, value in fields if key == "reviewers[][id]"]
    rules = []
    if ids:
        reviewers = [
            {"type": kind, "reviewer": {"id": id}} for kind, id in zip(kinds, ids, strict=True)
        ]
        own = values.get("prevent_self_review") == "true"
        rules = [{"type": "required_reviewers", "prevent_self_review": own, "reviewers": reviewers}]
    protected = values.get("deployment_branch_policy[protected_branches]") == "true"
    return {
        "name": name,
        "protection_rules": [*rules, {"type": "branch_policy"}],
        "deployment_branch_policy": {
            "protected_branches": protected,
            "custom_branch_policies": not protected,
        },
    }


def _subject(things: dict[str, Any], key: str) -> Answer:
    """What the tokens of a repository's workflows begin with: as it was told, else its name."""
    name = key.removeprefix("repos/").removesuffix("/actions/oidc/customization/sub")
    plain = {"use_default": True, "sub_claim_prefix": f"repo:{name}"}
    return things.get("subject", plain), ""


def _rest(things: dict[str, Any], words: list[str]) -> Answer:
    url = _option(words, "--url")
    if "put" in words:
        things[url] = {"id": url, **json.loads(_option(words, "--body"))}
    if url in things:
        return things[url], ""
    return None, 'ERROR: Not Found({"error":{"code":"ResourceNotFound","message":"no key"}})'


def _az(things: dict[str, Any], words: list[str]) -> Answer:
    if words[1:3] == ["account", "show"]:
        return {"id": SUBSCRIPTION, "tenantId": TENANT}, ""
    if words[1:3] == ["ad", "signed-in-user"]:
        return {"id": "person"}, ""
    if words[1] == "rest":
        return _rest(things, words)
    if words[1:3] == ["role", "assignment"]:
        who = _option(words, "--assignee") or _option(words, "--assignee-object-id")
        key = f"role {who} {_option(words, '--role')} {_option(words, '--scope')}"
        if words[3] == "create":
            things[key] = {"id": key, "condition": _option(words, "--condition")}
            return things[key], ""
        return ([things[key]] if key in things else []), ""
    verb = next(at for at, word in enumerate(words) if word in ("show", "create", "update"))
    name = _option(words, "--name") or _option(words, "--account-name")
    owners = ("--identity-name", "--vault-name", "--storage-account")
    owner = next((found for one in owners if (found := _option(words, one))), "")
    key = " ".join([*words[1:verb], owner, name])
    if words[verb] != "show":
        things[key] = {
            "id": f"/ids/{key}",
            "name": name,
            "principalId": f"principal-{name}",
            "clientId": f"client-{name}",
            "subject": _option(words, "--subject"),
            "isVersioningEnabled": _option(words, "--enable-versioning") == "true",
        }
    if key in things:
        return things[key], ""
    return None, f"ERROR: (ResourceNotFound) {key} was not found"


def _option(words: list[str], name: str) -> str:
    return words[words.index(name) + 1] if name in words else ""


class Cloud:
    """The state behind both programs; `bin` is the folder that a PATH needs to find them."""

    def __init__(self, folder: Path) -> None:
        self.state: dict[str, Any] = {"things": {}, "commands": [], "fail": ""}
        self._folder = folder

    def run(self, words: tuple[str, ...], asking: bool) -> Any:
        """As `infra.live.commands.run`, without a process."""
        found, error = answered(self.state, list(words))
        assert asking or not error
        return found if found is not None or asking else {"done": True}

    def taken(self) -> list[list[str]]:
        """The commands since the last call."""
        commands: list[list[str]] = self.state["commands"]
        self.state["commands"] = []
        return commands

    def programs(self) -> Path:
        """A folder with both programs, which begin with this state and keep a copy of their own."""
        (self._folder / "state.json").write_text(json.dumps(self.state))
        for name in ("az", "gh"):
            path = self._folder / name
            path.write_text(f'#!/bin/sh\nexec {sys.executable} -IS {__file__} {name} "$@"\n')
            path.chmod(0o755)
        return self._folder

    def read(self) -> None:
        """Take over what the programs made."""
        self.state = json.loads((self._folder / "state.json").read_text())


if __name__ == "__main__":
    import os

    file = Path(os.environ["PATH"].split(":")[0]) / "state.json"
    kept = json.loads(file.read_text())
    said, wrong = answered(kept, sys.argv[1:])
    file.write_text(json.dumps(kept))
    if said is not None:
        print(json.dumps(said))
    sys.exit(wrong or 0)
