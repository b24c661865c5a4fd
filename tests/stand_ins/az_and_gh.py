"""A stand-in for `az`, `gh` and `pulumi` that keeps all created objects in one JSON file.

It implements the commands that `infra bootstrap` uses, with the output of the real programs: JSON,
or an error on stderr. `main` runs the program that its first argument names.
"""

from __future__ import annotations

import base64
import json
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

Answer = tuple[Any, str]
# The subscription and tenant that `az` is signed in to.
SUBSCRIPTION = "6f8d2c1e-1111-4000-8000-000000000000"
TENANT = "6f8d2c1e-2222-4000-8000-000000000000"


def answered(state: dict[str, Any], words: list[str]) -> Answer:
    """Return the output of a command and its error or ""; record the command in `state`."""
    words = [word for word in words if word not in ("--output", "json", "--only-show-errors")]
    state["commands"].append(words)
    if state["fail"] and " ".join(words).startswith(state["fail"]):
        return None, state.get("error", "ERROR: (Forbidden) not yet")
    if words[0] in ("env", "pulumi"):
        return _pulumi(state, words)
    if words[:2] == ["gh", "workflow"]:
        return _workflow(state, words)
    if words[:2] == ["gh", "api"] and "/contents/" in words[2]:
        path = words[2].partition("/contents/")[2].partition("?")[0]
        text = _main(state, path)
        content = base64.encodebytes(text.encode()).decode()
        return ({"content": content}, "") if text else (None, "gh: Not Found (HTTP 404)")
    return (_gh if words[0] == "gh" else _az)(state["things"], words)


def _main(state: dict[str, Any], path: str) -> str:
    """Return a file of main on GitHub, from a repository or from the state; "" without one."""
    if "github" not in state:
        return str(state.get("main", {}).get(path, ""))
    import subprocess  # import here: it takes a third of the program's start

    show = ["git", f"--git-dir={state['github']}", "show", f"main:{path}"]
    return subprocess.run(show, capture_output=True, text=True).stdout


def _workflow(state: dict[str, Any], words: list[str]) -> Answer:
    """Start a workflow, if it has `workflow_dispatch`: docs.github.com/rest/actions/workflows."""
    text = _main(state, f".github/workflows/{words[3]}")
    if "\n  workflow_dispatch:" not in text:
        reason = f"Workflow does not have 'workflow_dispatch' trigger: {words[3]}"
        return None, f"could not create workflow dispatch event: HTTP 422: {reason}"
    state["things"].setdefault("started", []).append(words[3])
    return None, ""


def _pulumi(state: dict[str, Any], words: list[str]) -> Answer:
    """Run a `pulumi stack` command; `init` writes a key into the stack file as Pulumi does."""
    variables = dict(word.split("=", 1) for word in words if re.match(r"[A-Z_]+=", word))
    words = words[words.index("pulumi") :]
    backend = variables.get("PULUMI_BACKEND_URL") or os.environ["PULUMI_BACKEND_URL"]
    there = state["things"].setdefault(f"stacks of {backend}", {})
    if words[1:3] == ["stack", "ls"]:
        return [{"name": f"organization/platform/{name}"} for name in there], ""
    name = words[3] if words[2] == "init" else _option(words, "--stack")
    if (words[2] == "init") is (name in there):
        state_of = "already exists" if name in there else "no stack named"
        return None, f"error: stack '{name}' {state_of}"
    there.setdefault(name, {})
    if state.get("ended") == "init":  # interrupted before it wrote the file
        return None, "error: killed"
    secrets = _option(words, "--secrets-provider") or words[3]
    file = Path(state.get("folder", ".")) / f"infra/Pulumi.{name}.yaml"
    lines = file.read_text().splitlines(keepends=True)
    rest = [line for line in lines if not line.startswith(("secretsprovider:", "encryptedkey:"))]
    key = f"secretsprovider: {secrets}\nencryptedkey: a2V5IG9m{len(there)}\n"
    file.write_text(key + "".join(rest))
    return None, ""


def _gh(things: dict[str, Any], words: list[str]) -> Answer:
    if words[1] == "api":
        key = words[4] if "--method" in words else words[2]
        if key.endswith("/actions/oidc/customization/sub"):
            return _subject(things, key)
        if key.startswith(("orgs/", "users/")):
            return _account(things, key)
        if key == "apps/github-actions":
            return {"id": 15368, "slug": "github-actions"}, ""
        if "/deployment-branch-policies" in key:
            return _policies(things, words, key)
        if "/rulesets" in key:
            return _rulesets(things, words, key)
        if "PUT" in words:
            things[key] = _environment(key, words[5:], things.get("accounts", {}))
        return (things[key], "") if key in things else (None, "gh: Not Found (HTTP 404)")
    key = f"variables {_option(words, '--repo')} {_option(words, '--env')}"
    there = things.setdefault(key, {})
    if words[2] == "set":
        there[words[3]] = _option(words, "--body")
        return None, ""
    return [{"name": name, "value": value} for name, value in there.items()], ""


def _account(things: dict[str, Any], key: str) -> Answer:
    """Return a user or a team as in GitHub's response."""
    if "nobody" in key:
        return None, "gh: Not Found (HTTP 404)"
    name = key.rpartition("/")[2]
    account = {"id": len(key), ("slug" if key.startswith("orgs/") else "login"): name}
    things.setdefault("accounts", {})[str(len(key))] = account
    return account, ""


def _environment(
    name: str, words: list[str], accounts: Mapping[str, dict[str, Any]]
) -> dict[str, Any]:
    """Return an environment as in GitHub's response, from the fields that `gh api` sends."""
    fields = [word.split("=", 1) for word in words if word not in ("-F", "-f")]
    assert all(len(field) == 2 for field in fields), words
    values = dict(fields)
    kinds = [value for key, value in fields if key == "reviewers[][type]"]
    ids = [int(value) for key, value in fields if key == "reviewers[][id]"]
    rules = []
    if ids:
        reviewers = [
            {"type": kind, "reviewer": accounts[str(id)]}
            for kind, id in zip(kinds, ids, strict=True)
        ]
        own = values.get("prevent_self_review") == "true"
        rules = [{"type": "required_reviewers", "prevent_self_review": own, "reviewers": reviewers}]
    protected = values.get("deployment_branch_policy[protected_branches]") == "true"
    return {
        "name": name,
        "can_admins_bypass": values.get("can_admins_bypass") != "false",
        "protection_rules": [*rules, {"type": "branch_policy"}],
        "deployment_branch_policy": {
            "protected_branches": protected,
            "custom_branch_policies": not protected,
        },
    }


def _policies(things: dict[str, Any], words: list[str], key: str) -> Answer:
    """List or change branch policies of an environment: docs.github.com/rest/deployments."""
    environment, _, rest = key.partition("/deployment-branch-policies")
    if environment not in things:
        return None, "gh: Not Found (HTTP 404)"
    there = things.setdefault(f"{environment} policies", [])
    if "POST" in words:
        fields = dict(word.split("=", 1) for word in words[5:] if word != "-f")
        there.append({"id": 1 + len(things) + len(there), **fields})
        return there[-1], ""
    if "DELETE" in words:
        left = [policy for policy in there if str(policy["id"]) != rest.removeprefix("/")]
        assert len(left) == len(there) - 1
        things[f"{environment} policies"] = left
        return None, ""
    return {"total_count": len(there), "branch_policies": there[:30]}, ""


def _rulesets(things: dict[str, Any], words: list[str], key: str) -> Answer:
    """List, read or change rulesets (docs.github.com/rest/repos/rules); lists have no rules."""
    there = things.setdefault("rulesets", {})
    number = key.partition("?")[0].partition("/rulesets")[2].removeprefix("/")
    if "--input" in words:
        body = json.loads(words[-1] if words[-2] == "-" else sys.stdin.read())
        number = number or str(len(there) + 40)
        there[number] = {"id": int(number), **body}
    elif not number:
        return [{"id": one["id"], "name": one["name"]} for one in there.values()], ""
    return (there[number], "") if number in there else (None, "gh: Not Found (HTTP 404)")


def _subject(things: dict[str, Any], key: str) -> Answer:
    """Return the prefix of the OIDC subject in workflow tokens: as configured, or by the name."""
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


# Resource types of a workspace → their operations, as `az provider operation show` lists them,
# which omits older ones such as `metadata/codes`.
_PARTS = {
    "": "read write delete listKeys/action",
    **dict.fromkeys(("computes", "datastores", "schedules", "outboundRules"), "read write delete"),
    **dict.fromkeys(("codes", "components", "data", "environments", "models"), "read write delete"),
    **dict.fromkeys(
        ("codes/versions", "components/versions", "data/versions", "environments/versions"),
        "read write delete startPendingUpload/action",
    ),
    "models/versions": "read write delete package/action",
    "jobs": "read write delete cancel/action",
    "experiments": "read write delete",
    "experiments/runs": "read write submit/action",
    "environments ": "build/action readSecrets/action",
    "metadata/artifacts": "read write delete",
    "metadata/secrets": "read",
    "onlineEndpoints": "read write delete score/action listKeys/action",
    "onlineEndpoints/deployments": "read write delete getLogs/action",
    "batchEndpoints": "read write delete",
}


def _operations() -> dict[str, Any]:
    namespace = "Microsoft.MachineLearningServices"
    kinds = [
        {
            "name": f"workspaces/{part}".strip(" /"),
            "operations": [
                {"name": "/".join(filter(None, (namespace, "workspaces", part.strip(), verb)))}
                for verb in verbs.split()
            ],
        }
        for part, verbs in _PARTS.items()
    ]
    kinds += [
        {
            "name": "registries/assets",
            "operations": [
                {"name": f"{namespace}/registries/{action}"}
                for action in ("read", "write", "assets/read", "assets/write", "assets/delete")
            ],
        }
    ]
    register = [{"name": f"{namespace}/register/action"}]
    return {"name": namespace, "operations": register, "resourceTypes": kinds}


def _az(things: dict[str, Any], words: list[str]) -> Answer:
    if words[1:3] == ["account", "show"]:
        return {"id": SUBSCRIPTION, "tenantId": TENANT}, ""
    if words[1:3] == ["ad", "signed-in-user"]:
        return {"id": "person"}, ""
    if words[1] == "rest":
        return _rest(things, words)
    if words[1:3] == ["provider", "operation"]:
        return _operations(), ""
    if words[1] == "provider":
        there = things.setdefault(f"providers {_option(words, '--subscription')}", {})
        if words[2] == "register":
            there[_option(words, "--namespace")] = "Registering"
            return None, ""
        states = {"Microsoft.Storage": "NotRegistered", **there}
        return [{"namespace": name, "registrationState": states[name]} for name in states], ""
    if words[1:3] == ["role", "assignment"]:
        who = _option(words, "--assignee") or _option(words, "--assignee-object-id")
        key = f"role {who} {_option(words, '--role')} {_option(words, '--scope')}"
        if words[3] == "create":
            things[key] = {"id": key, "condition": _option(words, "--condition")}
            return things[key], ""
        if words[3] == "delete":
            things.pop(_option(words, "--ids"))
            return None, ""
        return ([things[key]] if key in things else []), ""
    deleted = things.setdefault("deleted vaults", [])
    if words[1:3] == ["keyvault", "list-deleted"]:
        return [{"name": name} for name in deleted], ""
    if words[1:3] == ["keyvault", "create"] and _option(words, "--name") in deleted:
        return None, "ERROR: (ConflictError) A vault with the same name already exists"
    if words[1:3] == ["keyvault", "recover"]:
        deleted.remove(_option(words, "--name"))
    verbs = ("show", "create", "update", "recover")
    verb = next(at for at, word in enumerate(words) if word in verbs)
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
            "allowSharedKeyAccess": _option(words, "--allow-shared-key-access") != "false",
            "allowBlobPublicAccess": _option(words, "--allow-blob-public-access") != "false",
        }
    if key in things:
        return things[key], ""
    return None, f"ERROR: (ResourceNotFound) {key} was not found"


def _option(words: list[str], name: str) -> str:
    return words[words.index(name) + 1] if name in words else ""


class Cloud:
    """The state of the programs; `bin` is the folder with them, to be added to PATH."""

    def __init__(self, folder: Path) -> None:
        self.state: dict[str, Any] = {"things": {}, "commands": [], "fail": ""}
        self._folder = folder

    def run(self, words: tuple[str, ...], asking: bool) -> Any:
        """Run a command like `infra.live.commands.run`, in this process."""
        found, error = answered(self.state, list(words))
        assert asking or not error
        return found if found is not None or asking else {"done": True}

    def taken(self) -> list[list[str]]:
        """Return the commands since the last call."""
        commands: list[list[str]] = self.state["commands"]
        self.state["commands"] = []
        return commands

    def programs(self) -> Path:
        """Return a folder with the programs, which start with a copy of this state."""
        (self._folder / "state.json").write_text(json.dumps(self.state))
        # Import this module in the programs, so that its bytecode is cached.
        start = f"import sys; sys.path.append({str(Path(__file__).parent)!r})"
        start += "; import az_and_gh; az_and_gh.main()"
        for name in ("az", "gh", "pulumi"):
            path = self._folder / name
            path.write_text(f'#!/bin/sh\nexec {sys.executable} -ISc "{start}" {name} "$@"\n')
            path.chmod(0o755)
        return self._folder

    def read(self) -> None:
        """Update this state from the programs' copy."""
        self.state = json.loads((self._folder / "state.json").read_text())


def main() -> None:
    file = Path(os.environ["PATH"].split(":")[0]) / "state.json"
    kept = json.loads(file.read_text())
    said, wrong = answered(kept, sys.argv[1:])
    file.write_text(json.dumps(kept))
    if said is not None:
        print(json.dumps(said))
    sys.exit(wrong or 0)
