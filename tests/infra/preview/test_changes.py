"""Changes between two runs, and their rendering."""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from markdown_it import MarkdownIt
from syrupy.assertion import SnapshotAssertion

from infra.cost.estimate import estimate
from infra.cost.prices import read
from infra.preview.capture import (
    ABSENT,
    Breach,
    Capture,
    Property,
    Resource,
    ResourceChange,
    changes,
)
from infra.preview.diagram import diagram
from infra.preview.report import Report, located, rendered, reports, revision_tree
from infra.settings.loader import load
from infra.settings.workflows import ROLE_MANAGERS
from ml.core.azure import ROLES
from ml.core.errors import UserError
from ml.core.markdown import text
from tests.conftest import ROOT
from tests.infra.programs import tree

ROOT_URN = "urn:pulumi:dev::platform::pulumi:pulumi:Stack::platform-dev"


def _resource(name: str, kind: str = "keyvault:Vault", **inputs: Any) -> Resource:
    urn = f"urn:pulumi:dev::platform::azure-native:{kind}::{name}"
    return Resource(urn, f"azure-native:{kind}", name, ROOT_URN, inputs)


def _capture(*resources: Resource, findings: tuple[Breach, ...] = ()) -> Capture:
    stack = Resource(ROOT_URN, "pulumi:pulumi:Stack", "platform-dev", "", {}, custom=False)
    return Capture("dev", (stack, *resources), {}, findings)


def _report(capture: Capture, **more: Any) -> Report:
    return Report(capture=capture, cost=estimate(load("dev"), read()), **more)


def test_added_removed_and_changed() -> None:
    before = _capture(_resource("a", x=1, gone="yes"), _resource("b"))
    after = _capture(_resource("a", x=2, tags={"new": "yes"}), _resource("c"))
    found = changes(before, after)
    assert [(one.what, one.name) for one in found] == [
        ("changed", "a"),
        ("removed", "b"),
        ("added", "c"),
    ]
    assert found[0].properties == (
        Property("gone", "yes", ABSENT),
        Property("tags.new", ABSENT, "yes"),
        Property("x", 1, 2),
    )


def test_equal_runs_have_no_changes_and_without_a_base_all_is_added() -> None:
    capture = _capture(_resource("a", x=[1, {"y": 2}]))
    assert changes(capture, capture) == ()
    assert [one.what for one in changes(None, capture)] == ["added"]


def test_named_items_of_a_list_are_compared_by_name() -> None:
    """A new first rule does not change the others."""
    one, two = {"name": "one", "port": 1}, {"name": "two", "port": 2}
    (change,) = changes(
        _capture(_resource("g", rules=[two])), _capture(_resource("g", rules=[one, two]))
    )
    assert [each.path for each in change.properties] == ["rules[one].name", "rules[one].port"]


def test_protection_is_a_property() -> None:
    plain = _resource("a")
    kept = Resource(plain.urn, plain.type, "a", ROOT_URN, {}, protect=True)
    (change,) = changes(_capture(plain), _capture(kept))
    assert change.properties == (Property("(protect)", "False", "True"),)


def test_ignored_properties_do_not_change() -> None:
    """Neither the property nor its content; a longer name does."""
    ignored = ("tags", "properties.traffic")

    def declared(value: str) -> Resource:
        traffic = {"traffic": {"blue": value}}
        one = _resource("a", tags={"a": value}, properties=traffic, tagsOf=value)
        return replace(one, ignore_changes=ignored)

    (change,) = changes(_capture(declared("old")), _capture(declared("new")))
    assert change.properties == (Property("tagsOf", "old", "new"),)


def test_a_finding_about_a_cluster_names_its_line() -> None:
    """That of another resource is as it was."""
    urn = "urn:pulumi:dev::platform::azure-native:machinelearningservices:Compute::cpu-cluster"
    findings = (Breach("cost-node-cap", True, urn, "9 nodes"), Breach("open", True, "u", "a"))
    capture = located(_capture(findings=findings), load("dev"), ROOT)
    line = (ROOT / "infra/Pulumi.dev.yaml").read_text().split("- name: cpu-cluster")[0].count("\n")
    messages = [finding.message for finding in capture.findings]
    assert messages == [f"infra/Pulumi.dev.yaml:{line + 1}: 9 nodes", "a"]


def test_an_empty_list_differs_from_an_absent_one() -> None:
    (change,) = changes(_capture(_resource("a")), _capture(_resource("a", rules=[])))
    assert change.properties == (Property("rules", ABSENT, []),)


def test_the_three_formats_agree(snapshot: SnapshotAssertion) -> None:
    findings = (
        Breach("vault-firewall", True, "urn", "a: open"),
        Breach("set-aside", False, "urn", "b"),
    )
    changed = ResourceChange("changed", "keyvault:Vault", "a", "urn", (Property("x|y", 1, 2),))
    report = _report(_capture(_resource("a"), findings=findings), base="main", changes=(changed,))
    unpriced = replace(report, cost=replace(report.cost, lines=()))
    assert rendered([unpriced], "text") == snapshot(name="text")
    assert rendered([unpriced], "md") == snapshot(name="Markdown")
    (data,) = json.loads(rendered([report], "json"))
    assert data["refused"][0]["policy"] == "vault-firewall" and data["base"] == "main"
    assert data["changes"][0]["properties"] == [{"path": "x|y", "before": 1, "after": 2}]
    assert data["cost"]["month"]["worst"] > 0


@pytest.mark.parametrize(
    ("policies", "ways"),
    [
        (["vault-firewall"], ["`dev.advice`", "waivers.yml"]),
        (["cost-gpu-sizes"], ["waivers.yml"]),
        (["worst-of-budget"], ["or the limit in policies/infra/limits.yml"]),
    ],
)
def test_the_hint_of_a_rejection_names_what_the_files_accept(
    policies: list[str], ways: list[str]
) -> None:
    """`advice` accepts some rules, a waiver every rule, and no file a check of the budget."""
    findings = tuple(Breach(policy, True, "urn", "a") for policy in policies)
    told = rendered([_report(_capture(_resource("a"), findings=findings))], "text")
    hint = told.partition("  hint: ")[2]
    assert all(way in hint for way in ways)
    for way in ("dev.advice", "waivers.yml", "or the limit"):
        assert (way in hint) is any(way in expected for expected in ways)


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ("AllowInternetOutbound", "AllowOnlyApprovedOutbound", "another stack file"),
        ("AllowOnlyApprovedOutbound", "AllowInternetOutbound", "another stack file"),
        ("AllowOnlyApprovedOutbound", "Disabled", "another stack file"),
        ("Disabled", "AllowOnlyApprovedOutbound", "are deleted"),
    ],
)
def test_a_change_of_the_workspaces_isolation_is_noted(before: str, after: str, told: str) -> None:
    """A new workspace may have any isolation."""

    def made(mode: str) -> Capture:
        network = {"isolationMode": mode, "firewallSku": mode}
        return _capture(_resource("w", "machinelearningservices:Workspace", managedNetwork=network))

    report = _report(made(after), base="main", changes=changes(made(before), made(after)))
    (kept,) = report.immutable
    assert before in kept and told in kept
    assert kept in rendered([report], "text") and text(kept, 1000) in rendered([report], "md")
    # A fork that has none yet may choose: this refuses nothing.
    assert report.problems == () and "see the notes" in report.verdict
    new = _report(made(after), base="main", changes=changes(None, made(after)))
    assert new.immutable == ()


def test_a_value_of_several_lines_stays_in_its_cell() -> None:
    """A table row ends with its line, and code with its mark."""
    changed = ResourceChange("changed", "a:B", "a", "urn", (Property("x", "one\n  two", "a`b|c"),))
    report = _report(_capture(_resource("a")), base="main", changes=(changed,))
    rows = [line for line in rendered([report], "md").splitlines() if line.startswith("| changed")]
    assert rows == ["| changed | `a` a:B | `x` | `one two` | `` a`b\\|c `` |"]


@pytest.mark.attack("What changes in a stack looks as it was before")
@pytest.mark.parametrize(
    ("before", "after"),
    [("true", True), ("1", 1), (None, "null"), ([1], "[1]"), ("a b", "a  b"), ("a\nb", "a b")],
)
def test_two_values_never_look_alike(before: Any, after: Any) -> None:
    changed = ResourceChange("changed", "a:B", "a", "urn", (Property("x", before, after),))
    report = _report(_capture(_resource("a")), base="main", changes=(changed,))
    (row,) = [line for line in rendered([report], "md").splitlines() if line.startswith("| chang")]
    was, is_now = row.removesuffix(" |").split(" | ")[-2:]
    assert was != is_now


@pytest.mark.attack("A value of a stack file, or a waiver, is Markdown in what a reviewer is shown")
@pytest.mark.parametrize(
    "value", ["``![x](https://e.example/x.png)@a.b", "`[x](https://e.example)`@a.b", "a ``` b"]
)
def test_what_others_wrote_is_no_markdown(value: str) -> None:
    """Neither in a cell nor in a message."""
    finding = Breach("set-aside", False, ROOT_URN, f"waived by ana: {value} </details><h3>ok</h3>")
    changed = ResourceChange("changed", "a:B", "a", "urn", (Property("x", "", value),))
    capture = _capture(_resource("a"), findings=(finding,))
    shown = rendered([_report(capture, base="main", changes=(changed,))], "md")
    html = MarkdownIt("commonmark").enable("table").render(shown)
    assert "e.example" in html or "```" in value
    assert "<img" not in html and "<a " not in html and "<h3>ok" not in html


def test_the_markdown_report_begins_with_an_overview() -> None:
    """A row a stack: verdict, changes and cost."""
    changed = ResourceChange("changed", "keyvault:Vault", "a", "urn", (Property("tags.x", 1, 2),))
    no = Breach("vault-firewall", True, "urn", "a: open")
    fine = _report(_capture(_resource("a")), base="main", changes=(changed,))
    dearer = replace(fine, base_cost=replace(fine.cost, lines=fine.cost.lines[1:]))
    refused = _report(_capture(_resource("a"), findings=(no,)))
    rows = rendered([dearer, refused], "md").splitlines()[2:4]
    total = fine.cost.total
    month = ", ".join(f"{one:,.0f}" for one in (total.idle, total.typical, total.worst))
    assert rows[0].startswith("| **dev** | ✅ nothing rejected by policy | 1 changed | ")
    assert rows[0].endswith(f" → **{month}** |") and not rows[0].endswith(
        f"{month} → **{month}** |"
    )
    assert rows[1] == f"| **dev** | ❌ 1 rejected by policy | not compared | {month} |"


def test_a_preview_without_a_base_lists_resources_by_component() -> None:
    part = Resource("urn:part", "platform:x:Part", "part", ROOT_URN, {}, custom=False)
    child = Resource("urn:child", "azure-native:keyvault:Vault", "vault", "urn:part", {})
    text = rendered([_report(_capture(part, child))], "text")
    assert "  part\n    vault  keyvault:Vault" in text and "nothing rejected by policy" in text


def _git(folder: Path, *words: str) -> None:
    who = ["-c", "user.name=t", "-c", "user.email=t@example.com"]
    subprocess.run(["git", *who, *words], cwd=folder, check=True, capture_output=True)


def _repository(folder: Path) -> Path:
    _git(folder, "init", "-q")
    _git(folder, "add", "-A")
    _git(folder, "commit", "-qm", "one")
    return folder


def _copy(folder: Path, *without: str) -> Path:
    """What the program of a stack imports and reads."""
    for part in ("infra", "policies", "ml/core"):
        ignored = shutil.ignore_patterns("__pycache__", *without)
        shutil.copytree(ROOT / part, folder / part, ignore=ignored)
    return folder


def test_a_revision_is_checked_out(tmp_path: Path) -> None:
    here = _repository(tree(tmp_path, "BEFORE = 1"))
    tree(tmp_path, "AFTER = 1")
    with revision_tree(here, "HEAD") as folder:
        assert folder and (folder / "infra/__main__.py").read_text() == "BEFORE = 1"
    assert not folder.exists()


def test_a_revision_without_a_program_is_none(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("nothing yet")
    with revision_tree(_repository(tmp_path), "HEAD") as folder:
        assert folder is None


@pytest.mark.parametrize("revision", ["nowhere", "--output=x", "HEAD:infra"])
def test_an_unknown_revision_is_refused(revision: str, tmp_path: Path) -> None:
    with (
        pytest.raises(UserError, match="unknown-revision"),
        revision_tree(_repository(tree(tmp_path, "")), revision),
    ):
        pass


@pytest.mark.parametrize(
    ("revision", "hint"),
    [
        ("release", "git fetch origin release, then --against origin/release"),
        ("origin/main", "git fetch origin main, then --against origin/main"),
    ],
)
def test_an_unknown_revision_has_a_hint_to_fetch_it(
    revision: str, hint: str, tmp_path: Path
) -> None:
    with (
        pytest.raises(UserError, match=f"hint: {hint}$"),
        revision_tree(_repository(tree(tmp_path, "")), revision),
    ):
        pass


def test_a_shallow_clone_has_a_hint(tmp_path: Path) -> None:
    (tmp_path / "whole").mkdir()
    whole = _repository(tree(tmp_path / "whole", ""))
    _git(whole, "commit", "-q", "--allow-empty", "-m", "two")
    _git(tmp_path, "clone", "-q", "--depth=1", f"file://{whole}", "clone")
    with (
        pytest.raises(UserError, match="git fetch --unshallow"),
        revision_tree(tmp_path / "clone", "HEAD~1"),
    ):
        pass


def test_a_comparison_needs_git_and_a_repository(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UserError, match="no-repository"), revision_tree(tmp_path, "main"):
        pass
    _git(tmp_path, "init", "-q")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match=r"error\[no-git\]"), revision_tree(tmp_path, "main"):
        pass


@pytest.mark.slow
def test_a_failing_revision_is_named(tmp_path: Path) -> None:
    """The revision's own settings refuse its stack file."""
    _copy(tmp_path)
    file = tmp_path / "infra" / "Pulumi.dev.yaml"
    text = file.read_text()
    file.write_text(text + "  platform:nonsense: 3\n")
    here = _repository(tmp_path)
    file.write_text(text)
    with pytest.raises(UserError) as refused:
        reports(["dev"], against="HEAD", root=here)
    (problem,) = refused.value.problems
    assert problem.actual.startswith(
        "as of HEAD, the program of `dev` ended with 1: error[unknown-"
    )
    assert "the configuration of dev" in problem.actual and "another revision" in problem.hint


@pytest.mark.slow
def test_a_removed_stack_file_is_reported(tmp_path: Path) -> None:
    """A renamed stack is one removed and one added."""
    # The shared registry stays, which dev uses.
    here = _repository(_copy(tmp_path, "Pulumi.prod.yaml", "Pulumi.staging.yaml"))
    (here / "infra" / "Pulumi.dev.yaml").rename(here / "infra" / "Pulumi.next.yaml")
    gone, new, shared = reports([], against="HEAD", root=here)
    assert (shared.capture.stack, shared.changes) == ("shared", ())
    assert (gone.capture.stack, gone.removed, new.capture.stack, new.removed) == (
        *("dev", True),
        *("next", False),
    )
    assert {one.what for one in gone.changes} == {"removed"}
    assert {one.what for one in new.changes} == {"added"}
    assert gone.base_cost and gone.base_cost.total.idle > gone.cost.total.idle == 0
    assert "dev: its stack file is gone" in rendered([gone, new], "text")
    assert "dev: its stack file is gone" in rendered([gone, new], "md")
    assert json.loads(rendered([gone], "json"))[0]["removed"] is True
    assert diagram(gone.capture) == ""
    assert [one.capture.stack for one in reports(["next"], against="HEAD", root=here)] == ["next"]


@pytest.mark.slow
def test_one_changed_value_is_one_changed_property(tmp_path: Path) -> None:
    """From a clean clone: one value of Pulumi.prod.yaml, compared with the commit before."""
    here = _repository(_copy(tmp_path))
    file = here / "infra" / "Pulumi.prod.yaml"
    text = file.read_text()
    assert text.count("max_nodes: 2") == 1
    file.write_text(text.replace("max_nodes: 2", "max_nodes: 1"))
    (report,) = reports(["prod"], against="HEAD", root=here)
    (change,) = report.changes
    assert (change.what, change.name) == ("changed", "gpu-large")
    path = "properties.properties.scaleSettings.maxNodeCount"
    assert change.properties == (Property(path, 2, 1),)
    assert report.problems == () and report.refused == ()
    assert report.base_cost and report.base_cost.total.worst > report.cost.total.worst


def _assignment(role: str, **more: Any) -> Resource:
    id = f"/subscriptions/{'0' * 36}/providers/Microsoft.Authorization/roleDefinitions/{role}"
    return _resource("train-lake", "authorization:RoleAssignment", roleDefinitionId=id, **more)


@pytest.mark.parametrize("form", ["text", "md"])
def test_the_role_of_an_assignment_is_named(form: Any) -> None:
    """What changed is at the end of a long id; a new assignment says who gets what on what."""
    reader, owner = _assignment(ROLES["Reader"]), _assignment(ROLE_MANAGERS["Owner"], scope="s")
    unknown = _assignment("11111111-0000-0000-0000-000000000001")
    for before, after, shown in (
        ((reader,), (owner,), ("Reader", "Owner")),
        ((), (owner,), (ABSENT, "Owner")),
        ((owner,), (), ("Owner", ABSENT)),
        ((reader,), (unknown,), ("Reader", "11111111-0000-0000-0000-000000000001")),
    ):
        differences = changes(_capture(*before), _capture(*after))
        text = rendered([_report(_capture(*after), base="main", changes=differences)], form)
        pair = " → ".join(shown) if form == "text" else " | ".join(f"`{role}`" for role in shown)
        assert pair in text


@pytest.mark.parametrize("length", [10, 90, 300])
def test_a_cut_value_shows_what_differs(length: int) -> None:
    before, after = (_resource("a", x=f"{'/y' * length}{end}{'z' * length}") for end in "ab")
    report = _report(
        _capture(after), base="main", changes=changes(_capture(before), _capture(after))
    )
    line = next(line for line in rendered([report], "text").splitlines() if " x: " in line)
    old, new = line.partition("x: ")[2].split(" → ")
    assert "ya" in old and "yb" in new and max(len(old), len(new)) <= 100
