"""The generated reference has every command, gate, setting, rule and workflow."""

from __future__ import annotations

import re

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
    imported, _, _ = page.partition("\n## ml.toolkit.torch.")
    assert imported.count("\n### ") == sum(map(len, functions.names().values()))
    assert (
        "\n    primary_metric: str,\n" in page
        and "custom_metrics: Mapping[str, CustomMetric] = {}" in page
    )
    assert "-> Dataset`: Return the table with the columns of feature sets" in page
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


JOBS = {
    path.name: yaml.load(path.read_text(encoding="utf-8"), yaml.BaseLoader)["jobs"]
    for path in (ROOT / ".github/workflows").glob("*.yml")
}


def test_the_page_on_operating_has_each_variable_and_secret() -> None:
    """Those that a job reads, and the GitHub environments from which jobs sign in."""
    text = (ROOT / "docs/operating.md").read_text(encoding="utf-8")
    named = {*re.findall(r"`([\w-]+)`", text.partition("\n## Cost")[0])}
    read = set()
    for jobs in JOBS.values():
        for job in jobs.values():
            read |= {name for _, name in workflows.read_by(job)}
            environment = str(job.get("environment", ""))
            if purpose := re.search(r"-(preview|train|release|watch|deploy)$", environment):
                read.add(f"STACK-{purpose[1]}")
    assert len(read) > 15 and read - named == set()


def test_the_minutes_of_an_event_are_those_of_its_jobs() -> None:
    """Each job of an event exists, and every job has an event."""
    listed = [job for event in workflows.EVENTS for job in workflows.jobs_of(event)]
    skipped = {"wheel.yml"}
    assert {*listed} == {(file, job) for file in JOBS.keys() - skipped for job in JOBS[file]}
    most = sum(int(JOBS["train.yml"][job]["timeout-minutes"]) for job in JOBS["train.yml"])
    assert f"| `/train` | {most} |" in workflows.page()


def test_every_public_part_of_the_torch_toolkit_is_there() -> None:
    """With its options, read from the source: the documentation is built without PyTorch."""
    page = functions.page()
    for file in sorted(functions.TORCH.glob("[!_]*.py")):
        text = file.read_text(encoding="utf-8")
        public = re.findall(r"^def ([a-z]\w*)\(", text, re.M)
        assert [name for name in public if f"\n### {name}\n" not in page] == [], file.name
    for option in ("stalled_s: float=600.0", "keep_last: int=2", "balanced: str | None=None"):
        assert option in page
    for name in ("Checkpoints", "Batches", "Updates", "World", "Watchdog", "Guard", "Base"):
        assert f"\n### {name}\n" in page
    assert "\n### CheckpointError\n" not in page
