"""The generated reference has every command, gate, setting, rule and workflow."""

from __future__ import annotations

import re
from collections import defaultdict

import pytest
import yaml

from docs.generate import (
    commands,
    data_schema,
    functions,
    gates,
    json_schemas,
    policies,
    workflows,
)
from ml.cli import app as ml_cli
from ml.toolkit.data import datasets
from policies.infra import pack
from policies.promotion import gate_settings
from tests.conftest import ROOT
from tests.named import options


def test_every_command_has_its_options() -> None:
    """Those that the command itself takes."""
    page = commands.page()
    for command in ("ml run", "ml release apply", "ml runs list", "infra bootstrap"):
        program, *words = command.split()
        section = page.partition(f" {command}\n")[2].partition("\n(command-")[0]
        names = {name for name in options(program, words) if name.startswith("--")} - {"--help"}
        assert len(names) > 2 and {name for name in names if f"`{name}`" not in section} == set()
    assert [name for name in ml_cli.COMMANDS if f"\n### ml {name}\n" not in page] == []


def test_every_gate_has_its_settings_and_what_it_requires() -> None:
    """With the defaults of gates.yml, and its comments."""
    page = gates.page()
    for gate, settings in gate_settings.SETTINGS.items():
        section = page.partition(f"\n## {gate}\n")[2].partition("\n(gate-")[0]
        assert [name for name in ("mode", *settings) if f"| `{name}` |" not in section] == []
        assert len(section.partition("| setting")[0].split()) > 5, gate
    assert "| `max_age_days` | `30` | lower it |" in page
    assert "| `runners` | `[github-hosted]` | remove names |" in page


def test_a_comment_belongs_to_the_next_key_or_to_its_line() -> None:
    """Of gates, of settings, above a key and after it."""
    text = "x: 1\ngates:\n  a: # one\n    mode: on\n    # two\n    b: 3 # three\n  # four\n  c:\n"
    expected = {("a",): "one", ("a", "mode"): "", ("a", "b"): "two three", ("c",): "four"}
    assert gates.read_comments(text) == expected


def test_every_field_of_a_data_schema_is_there() -> None:
    """Those that the reader of the file accepts."""
    page = data_schema.page()
    assert [name for name in datasets._FIELDS if f"| `{name}` |" not in page] == []


def test_what_a_project_imports_is_there() -> None:
    """Each import of the templates; signatures without quotes, docstrings, public methods."""
    page = functions.page()
    for module, name in [
        ("ml.toolkit.training.tabular", "train"),
        ("ml.serving.scoring.trees", "Trees"),
        ("ml.measures.measurement", "Rows"),
    ]:
        section = page.partition(f"\n## {module}\n")[2].partition("\n## ")[0]
        assert f"\n### {name}\n\n```python\n{name}(" in section
    assert page.count("\n### ") == sum(map(len, functions.names().values()))
    assert (
        "\n    primary_metric: str,\n" in page
        and "own_metrics: Mapping[str, OwnMetric] = {}" in page
    )
    assert "-> Dataset`: The table with the columns of feature sets" in page
    assert "_seconds" not in page and "<factory>" not in page


def test_a_stack_setting_has_its_type_its_default_and_its_description() -> None:
    """From the fields of the dataclasses."""
    page = json_schemas.stack_page()
    assert "| `min_nodes` | integer, 0 to 100 | `0` | Nodes that run even without jobs. |" in page
    assert "| `platform:storage` | [Storage](#stack-storage) |" in page
    assert "| `digest` | string |" in json_schemas.release_page()


def test_every_infrastructure_rule_is_there() -> None:
    """The page reads the modules of rules; Pulumi gets those of the pack."""
    listed = [rule for rules in policies.modules().values() for rule in rules]
    assert {rule.name for rule in listed} == {rule.name for rule in pack.RULES}
    assert ":Level: mandatory; advisory in dev" in policies.page()


@pytest.mark.parametrize("file", sorted((ROOT / ".github/workflows").glob("*.yml")))
def test_every_workflow_has_its_jobs_and_secrets(file: object) -> None:
    """A trigger, and each secret that its text reads."""
    page = workflows.page()
    path = ROOT / ".github/workflows" / str(file).rpartition("/")[2]
    section = page.partition(f"\n## {path.name}\n")[2].partition("\n## ")[0]
    assert "Triggers: `" in section
    names = workflows.names_in(path.read_text(encoding="utf-8"))
    assert [name for _, name in names if name not in section] == []


OPERATING = (ROOT / "docs/operating.md").read_text(encoding="utf-8")
JOBS = {
    path.name: yaml.load(path.read_text(encoding="utf-8"), yaml.BaseLoader)["jobs"]
    for path in (ROOT / ".github/workflows").glob("*.yml")
}


def rows(heading: str) -> list[list[str]]:
    """The cells of the table in a section of docs/operating.md, without its head."""
    section = OPERATING.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    lines = re.findall(r"^\| (.+) \|$", section, re.M)[1:]
    return [[cell.strip() for cell in line.split("|")] for line in lines]


def test_the_page_on_operating_names_who_reads_each_variable_and_secret() -> None:
    """The same workflows as the files, and those that sign in from each GitHub environment."""
    reads, named = defaultdict(set), {}
    for name, jobs in JOBS.items():
        for job in jobs.values():
            for _, variable in workflows.read_by(job):
                reads[variable].add(name)
            environment = str(job.get("environment", ""))
            if purpose := re.search(r"-(preview|train|release|watch|deploy)$", environment):
                reads[f"STACK-{purpose[1]}"].add(name)
    for cells in rows("Variables, secrets, roles and protections"):
        readers = {*re.findall(r"`([\w-]+\.yml)`", cells[3])}
        if "every other workflow" in cells[3]:
            readers = {*JOBS} - {"check.yml"}
        named |= dict.fromkeys(re.findall(r"`([\w-]+)`", cells[0]), readers)
    assert {name: named.get(name) for name in reads} == reads


# The jobs that bill at each event of the section on CI minutes.
EVENTS = {
    "pull request: documents": "check.yml: affected, links, required; comment.yml: comment",
    "pull request: project, stack, policy": (
        "check.yml: affected, links, change, required; comment.yml: comment"
    ),
    "pull request: framework": (
        "check.yml: affected, links, change, framework, required; comment.yml: comment"
    ),
    "`/train`": "train.yml: request, train, comment",
    "every merge": (
        "check.yml: affected, links, framework, required; "
        "infra.yml: stacks; "
        "merge.yml: projects; "
        "security.yml: vulnerabilities, sbom"
    ),
    "per changed stack": "infra.yml: plan, deploy",
    "per trained project": "merge.yml: candidate, evidence",
    "a merge that trains": "merge.yml: promotion",
    "a training failed or goes on": "merge.yml: continuation",
    "promotion to staging, prod": "promote.yml: gates, promotion",
    "a changed release.yml": "release.yml: environments",
    "per released environment": "release.yml: release",
    "a rollback": "release.yml: revert",
    "daily, `DRIFT`": "drift.yml: stacks",
    "daily per stack": "drift.yml: drift",
    "daily per environment": "drift.yml: watch",
    "weekly": "security.yml: vulnerabilities",
    "weekly, `TEMPLATE_UPDATE`": "template-update.yml: update",
    "nightly, `NIGHTLY`": "nightly.yml: torture",
    "merge and weekly, `CODE_SECURITY`, two jobs": "security.yml: codeql",
}


def test_the_page_on_operating_adds_up_the_minutes_of_jobs() -> None:
    """Each job of an event exists, and every job of the pull requests' and merges' has an event."""
    known, bounds = set(), {}
    for event, listed in EVENTS.items():
        jobs = [
            (file, job)
            for file, names in re.findall(r"([\w-]+\.yml): ([\w, -]+)", listed)
            for job in names.split(", ")
        ]
        known |= {*jobs}
        bounds[event] = sum(int(JOBS[file][job]["timeout-minutes"]) for file, job in jobs)
    assert bounds == {event: int(most) for event, most in rows("CI minutes")}
    skipped = {"wheel.yml"}
    assert known == {(file, job) for file in JOBS.keys() - skipped for job in JOBS[file]}
