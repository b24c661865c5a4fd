"""Stack files: the repository's load; every invalid file is refused with one error, at its line."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from infra.settings.azure import PRESETS, RETIREMENTS, SIZES, retired, retirement
from infra.settings.loader import FOLDER, environments, load, schema, select, stacks
from infra.settings.model import Cluster, Settings
from ml.core.errors import Problem, UserError
from tests.conftest import ROOT
from tests.infra.programs import ran
from tests.infra.settings.wrong import CASES

NETWORK = "platform:network: {{ address_space: {} }}\n  platform:storage:"


def _refused(text: str, folder: Path) -> Problem:
    (folder / "Pulumi.dev.yaml").write_text(text)
    with pytest.raises(UserError) as refused:
        load("dev", folder)
    (problem,) = refused.value.problems
    return problem


def test_the_stacks_are_one_program_with_a_file_each() -> None:
    assert stacks() == ("dev", "prod", "shared", "staging")
    assert environments() == ("dev", "prod", "staging")
    assert [load(stack).environment for stack in stacks()] == list(stacks())
    assert len(list(ROOT.glob("infra/**/__main__.py"))) <= 1


def test_a_setting_is_frozen_and_defaults_fill_what_the_file_leaves_out() -> None:
    settings = load("dev")
    assert settings.clusters[0].vm_size == PRESETS["cpu"]
    assert settings.clusters[0].idle_minutes == 15
    with pytest.raises(dataclasses.FrozenInstanceError):
        settings.name = "other"  # type: ignore[misc]


def test_cpu_is_dedicated_and_gpu_is_spot_unless_stated() -> None:
    by_name = {one.name: one for one in load("prod").clusters}
    assert not by_name["cpu-cluster"].spot and by_name["gpu-spot"].spot
    assert not dataclasses.replace(by_name["gpu-spot"], priority="dedicated").spot


@pytest.mark.parametrize("name", CASES)
def test_an_invalid_file_is_refused_with_one_error_at_its_line(name: str, tmp_path: Path) -> None:
    """`# wrong: CODE` marks the expected line."""
    problem = _refused(CASES[name], tmp_path)
    marked = [
        (number, found[1])
        for number, line in enumerate(CASES[name].splitlines(), 1)
        if (found := re.search(r"# wrong: ([\w-]+)", line))
    ]
    assert problem.place is not None
    assert [(problem.place.line, problem.code)] == marked
    assert problem.place.path.endswith("/Pulumi.dev.yaml")
    assert problem.actual and problem.expected and "Traceback" not in str(problem)


@pytest.mark.parametrize(
    "content",
    [b"", b"\x00", b"config: \xff\n", b"config: {", b"config:\n" + b" - [" * 5000, b"- " * 100_000],
)
def test_invalid_bytes_are_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "Pulumi.dev.yaml").write_bytes(content)
    with pytest.raises(UserError):
        load("dev", tmp_path)


OTHER_PROJECTS = {
    "stackConfigDir: hidden\n": "stackConfigDir",
    "main: ../other\n": "main",
    "backend: {url: 'file:///tmp'}\n": "backend",
    "config: {'platform:exposure': starter}\n": "config",
    "plugins: {providers: [{name: azure-native, path: ../other}]}\n": "plugins",
}


@pytest.mark.attack("The project file has Pulumi read other settings, or run another provider")
@pytest.mark.parametrize(("line", "field"), OTHER_PROJECTS.items())
def test_the_project_file_names_no_other_settings(line: str, field: str, tmp_path: Path) -> None:
    """What is reviewed in the stack files is what Pulumi reads; a description may differ."""
    for path in FOLDER.glob("Pulumi*.yaml"):
        shutil.copy(path, tmp_path)
    assert load("dev", tmp_path).environment == "dev"
    project = tmp_path / "Pulumi.yaml"
    text = project.read_text()
    project.write_text(text.replace("description: ", "description: Our "))
    assert load("dev", tmp_path).environment == "dev"
    for content in (text + line, text.replace("../.venv", "../other"), f"{text}{text}", "- x\n"):
        project.write_text(content)
        with pytest.raises(UserError) as refused:
            load("dev", tmp_path)
        if content.endswith(line):
            (problem,) = refused.value.problems
            assert problem.code == "project-mismatch" and f"`{field}: " in problem.actual
    project.write_text(text)
    (tmp_path / "Pulumi.json").write_text("{}")  # which Pulumi takes first
    with pytest.raises(UserError, match="project-mismatch"):
        load("dev", tmp_path)


def test_an_unencrypted_secret_is_not_printed(tmp_path: Path) -> None:
    assert "sig=abc" not in str(_refused(CASES["secret-in-the-open"], tmp_path))


def test_an_encrypted_secret_is_accepted(tmp_path: Path) -> None:
    text = (FOLDER / "Pulumi.dev.yaml").read_text() + "  platform:lake_sas:\n    secure: v1:abc\n"
    (tmp_path / "Pulumi.dev.yaml").write_text("encryptionsalt: v1:xyz\n" + text)
    shutil.copy(FOLDER / "Pulumi.shared.yaml", tmp_path)
    assert load("dev", tmp_path).environment == "dev"


def test_all_errors_of_a_file_are_reported_together(tmp_path: Path) -> None:
    text = (FOLDER / "Pulumi.dev.yaml").read_text()
    text = text.replace("mlplat\n", "NO GOOD\n", 1).replace("max_nodes: 2", "max_nodes: many")
    (tmp_path / "Pulumi.dev.yaml").write_text(text)
    with pytest.raises(UserError) as refused:
        load("dev", tmp_path)
    assert len(refused.value.problems) == 2


ELSEWHERE = "6f8d2c1e-9999-4000-8000-000000000000"


@pytest.mark.parametrize(
    ("shared", "own", "error"),
    [
        (
            {"azure-native:subscriptionId": ELSEWHERE},
            "",
            f"`subscription: {ELSEWHERE}` in `platform:asset_registry`",
        ),
        ({"azure-native:subscriptionId": ELSEWHERE}, ELSEWHERE.upper(), ""),
        ({}, ELSEWHERE, "is in the subscription 00000000-0000-0000-0000-000000000000"),
        ({"azure-native:location": "northeurope"}, "", "`regions: [westeurope]`"),
        ({"azure-native:location": "northeurope", "regions": ["westeurope"]}, "", ""),
        ({"azure-native:tenantId": ELSEWHERE}, "", "azure-native:tenantId"),
    ],
)
def test_what_an_environment_says_of_its_registry_is_what_that_stack_says(
    shared: dict[str, Any], own: str, error: str, tmp_path: Path
) -> None:
    """It may be in another subscription of the tenant, and serves the regions that it names."""
    for stack in ("dev", "shared"):
        document = yaml.safe_load((FOLDER / f"Pulumi.{stack}.yaml").read_text())
        config = document["config"]
        if stack == "dev" and own:
            config["platform:asset_registry"]["subscription"] = own
        if stack == "shared":
            changes = dict(shared)
            if regions := changes.pop("regions", []):
                config["platform:asset_registry"]["regions"] = regions
            config.update(changes)
        (tmp_path / f"Pulumi.{stack}.yaml").write_text(yaml.safe_dump(document))
    if error:
        with pytest.raises(UserError, match="registry-mismatch") as refused:
            load("dev", tmp_path)
        assert error in str(refused.value)
    else:
        settings = load("dev", tmp_path)
        assert settings.registry_id.lower() == load("shared", tmp_path).registry_id.lower()


def test_a_long_stack_name_would_make_names_too_long(tmp_path: Path) -> None:
    shutil.copy(FOLDER / "Pulumi.dev.yaml", tmp_path / "Pulumi.production.yaml")
    with pytest.raises(UserError, match="stack-name"):
        load("production", tmp_path)


def test_an_unknown_stack_lists_the_existing_ones() -> None:
    with pytest.raises(UserError, match="dev, prod, shared, staging"):
        load("test")


def test_a_folder_without_stack_files_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no-stack"):
        select(None, tmp_path)
    shutil.copy(FOLDER / "Pulumi.dev.yaml", tmp_path)
    assert list(select([], tmp_path)) == ["dev"] and list(select(["x"], tmp_path)) == ["x"]


@pytest.mark.parametrize(
    ("stack", "beside", "hint"),
    [
        ("Dev", "Pulumi.dev.yaml", "did you mean `dev`"),
        ("dev", "Pulumi.dev.yml", "rename Pulumi.dev.yml"),
        ("../dev", "Pulumi.other.yaml", "add infra/Pulumi.STACK.yaml"),
    ],
)
def test_an_unknown_stack_has_a_hint(stack: str, beside: str, hint: str, tmp_path: Path) -> None:
    shutil.copy(FOLDER / "Pulumi.dev.yaml", tmp_path / beside)
    with pytest.raises(UserError, match=hint):
        load(stack, tmp_path)


@pytest.mark.parametrize(
    ("was", "now", "hint"),
    [
        ("redundancy: LRS", "redundancy: lrs", "did you mean `LRS`"),
        ("preset: t4", "preset: gpu", "hint: A size by its purpose"),
        ("ml-platform@example.com", "[a@example.com]", "hint: Recipient of alerts"),
        ("endpoints:\n    - name: ", "endpoints:\n    - ", "a mapping with name, alert_errors"),
        ("platform:name", "azure-native:clientSecret", "hint: delete it"),
        ("platform:name", "name", "did you mean `platform:name`"),
        ("westeurope", "westeurop", "did you mean `westeurope`"),
        ("monthly_budget: 500", "monthly_budget: 0500", "`0500`, which YAML reads as 320"),
        ("monthly_budget: 500", 'monthly_budget: "500"', "write it without quotes"),
        ("locks: false", 'locks: "false"', "hint: write it without quotes"),
        ("westeurope", "West Europe", "did you mean `westeurope`"),
        ("cpu-cluster", "CPU_cluster", "did you mean `cpu-cluster`"),
        ("preset: t4", "size: standard_nc4as_t4_v3", "did you mean `Standard_NC4as_T4_v3`"),
        ("preset: t4", "size: E4ds_v4", "did you mean `Standard_E4ds_v4`"),
        ("preset: t4", "size: Standard_M128", "hint: add a missing size to"),
        ("cost_center: ml", "cost_center: 0711", "hint: put it in quotes"),
        ("budget_from: 2026-12", "budget_from: 2026-12-01", "hint: First month of the budget"),
        ("repository: your-organisation/", "repository: https://github.com/a/", "hint: GitHub"),
        ("platform:storage:", NETWORK.format("10.60.1.0/16"), "did you mean `10.60.0.0/16`"),
        ("platform:storage:", NETWORK.format("10.60.0.0/33"), "hint: numbers up to 255"),
        ("your-repository", "your-repository.git", "without .git"),
        ("ml-platform@example.com", "Jo <jo@example.com>", "expected: one e-mail address"),
        ("ml-platform@", "m" * 250 + "@", "expected: one e-mail address"),
    ],
)
def test_a_hint_corrects_the_value(was: str, now: str, hint: str, tmp_path: Path) -> None:
    text = (FOLDER / "Pulumi.dev.yaml").read_text()
    assert was in text
    (tmp_path / "Pulumi.dev.yaml").write_text(text.replace(was, now, 1))
    with pytest.raises(UserError) as refused:
        load("dev", tmp_path)
    assert hint in str(refused.value)


def test_a_link_or_a_folder_is_named_as_such(tmp_path: Path) -> None:
    (tmp_path / "Pulumi.dev.yaml").symlink_to("nowhere")
    (tmp_path / "Pulumi.prod.yaml").mkdir()
    with pytest.raises(UserError, match="check its target"):
        load("dev", tmp_path)
    with pytest.raises(UserError, match="is a folder"):
        load("prod", tmp_path)


def test_files_of_other_editors_are_read(tmp_path: Path) -> None:
    """A byte order mark and Windows line endings; anchors and merges have YAML's meaning."""
    text = (FOLDER / "Pulumi.dev.yaml").read_text()
    shared = text.replace(
        "- name: cpu-cluster\n      preset: cpu",
        "- &cpu\n      name: cpu-cluster\n      preset: cpu",
    )
    shared = shared.replace(
        "  platform:endpoints:", "    - <<: *cpu\n      name: cpu-more\n  platform:endpoints:"
    )
    (tmp_path / "Pulumi.dev.yaml").write_bytes(shared.replace("\n", "\r\n").encode("utf-8-sig"))
    shutil.copy(FOLDER / "Pulumi.shared.yaml", tmp_path)
    assert [one.name for one in load("dev", tmp_path).clusters] == [
        *("cpu-cluster", "cpu-large", "gpu-spot", "cpu-more")
    ]


def test_no_code_compares_the_environment() -> None:
    """Every difference between environments is a setting."""
    compared = re.compile(
        r"""((==|!=|\bin\b)\s*[\[\(\{]?\s*|\bcase )["'](dev|staging|prod)["']"""
        r"""|["'](dev|staging|prod)["']\s*(==|!=)"""
    )
    assert compared.search('if stack == "prod":') and compared.search("'dev' != stack")
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for folder in ("infra", "policies/infra")
        for path in (ROOT / folder).rglob("*.py")
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if compared.search(line)
    ]
    assert not found


def test_the_schema_file_matches_the_code() -> None:
    assert json.loads((FOLDER / "settings.schema.json").read_text()) == schema(), (
        "infra settings --schema > infra/settings.schema.json"
    )


def test_the_schema_accepts_the_stacks_and_refuses_invalid_settings() -> None:
    validator = jsonschema.Draft202012Validator(schema())
    for stack in stacks():
        validator.validate(yaml.safe_load((FOLDER / f"Pulumi.{stack}.yaml").read_text()))
    for name, text in CASES.items():
        if "wrong: wrong-value" in text and name not in NOT_OF_ONE_SETTING:
            assert not validator.is_valid(yaml.safe_load(text)), name


# No pattern can judge ranges, the least size of a share, or how a number was written.
NOT_OF_ONE_SETTING = {
    "firewall-in-our-own-range",
    "firewall-on-the-internet",
    "hub-that-is-the-network",
    "budget-in-hours-and-minutes",
    "budget-with-a-zero-before-it",
    "range-of-docker",
    "range-of-documentation",
    "range-of-loopback",
    "range-not-private",
    "range-with-host-bits",
    "range-too-small",
    "share-too-small",
}


TODAY = date(2026, 11, 22)


@pytest.mark.parametrize(
    ("size", "gone"),
    [
        ("Standard_NC6", True),
        ("Standard_NC24rs_v3", True),
        ("Standard_NC12s_v2", True),
        ("Standard_NV6_Promo", True),
        ("Standard_NV12hs_v3", True),
        ("Standard_NV8as_v4", True),
        ("Standard_H16mr_Promo", True),
        ("Standard_HB60-45rs", True),
        ("Standard_NC4as_T4_v3", False),
        ("Standard_NC24ads_A100_v4", False),
        ("Standard_HB120rs_v3", False),
        ("Standard_NV36ads_A10_v5", False),
    ],
)
def test_retired_families(size: str, gone: bool) -> None:
    assert (retired(size, TODAY) is not None) is gone


@pytest.mark.parametrize(
    ("size", "last"),
    [
        ("Standard_HB120-16rs_v2", date(2027, 5, 30)),
        ("Standard_HC44rs", date(2027, 5, 30)),
        ("Standard_DS3_v2", date(2028, 4, 30)),
        ("Standard_D14_v2", date(2028, 4, 30)),
    ],
)
def test_a_family_is_available_until_its_retirement(size: str, last: date) -> None:
    assert retired(size, last) is None
    gone = retired(size, last + timedelta(days=1))
    assert gone is not None and gone == retirement(size)


def test_no_listed_size_is_retired() -> None:
    """Nor a preset, nor a suggested replacement."""
    assert not [size for size in SIZES if retired(size, TODAY)]
    assert not [one for one in RETIREMENTS if one.instead not in SIZES or retirement(one.instead)]
    assert not [size for size in PRESETS.values() if size not in SIZES or retirement(size)]
    assert SIZES[PRESETS["infiniband"]].infiniband


def test_a_gpu_is_spot_by_default_if_azure_ml_offers_it() -> None:
    """H100 nodes are only dedicated."""
    assert Cluster(name="gpu", preset="a100").spot
    assert not Cluster(name="gpu", size="Standard_ND96isr_H100_v5").spot


def test_the_command_prints_problems_without_a_traceback(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, _, err = ran(capsys, "settings", "nowhere")
    assert code == 2 and "error[unknown-stack]" in err


def test_the_command_prints_settings_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = ran(capsys, "settings", "prod", "--json")
    printed = json.loads(out)
    assert code == 0
    assert set(printed["prod"]) == {one.name for one in dataclasses.fields(Settings)}
