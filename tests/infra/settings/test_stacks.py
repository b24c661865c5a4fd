"""The stack files read as words: what refers to what, and the order that follows."""

from __future__ import annotations

from pathlib import Path

import pytest

from infra.settings.stacks import Stack, environments, ordered, read
from ml.core.errors import UserError
from tests.conftest import ROOT

GATES = "gates:\n  order:\n    environments: [dev, staging, prod]\n    unordered: [play]\n"
MAKES = "config:\n  platform:asset_registry:\n    mode: create\n    name: all\n"
USES = "config:\n  platform:asset_registry:\n    mode: use\n    stack: {}\n"
ALONE = "config:\n  platform:owner: a@example.com\n"


def tree(folder: Path, **files: str) -> Path:
    (folder / "infra").mkdir()
    (folder / "policies/promotion").mkdir(parents=True)
    (folder / "policies/promotion/gates.yml").write_text(GATES)
    for name, text in files.items():
        (folder / f"infra/Pulumi.{name}.yaml").write_text(text)
    return folder


@pytest.mark.parametrize(
    ("files", "order"),
    [
        ({"dev": ALONE, "prod": ALONE, "staging": ALONE}, "dev staging prod"),
        (
            {"dev": USES.format("all"), "prod": USES.format("all"), "staging": ALONE, "all": MAKES},
            "all dev staging prod",
        ),
        (
            {"dev": ALONE, "staging": USES.format("all"), "prod": ALONE, "all": MAKES},
            "dev all staging prod",
        ),
        (
            {"dev": USES.format("x"), "prod": USES.format("y"), "x": MAKES, "y": MAKES},
            "x dev y prod",
        ),
        ({"dev": ALONE, "all": MAKES, "play": ALONE}, "dev play all"),
        ({}, ""),
    ],
)
def test_a_stack_comes_after_what_it_refers_to(
    files: dict[str, str], order: str, tmp_path: Path
) -> None:
    """Otherwise in the order of releases, others last."""
    assert list(ordered(tree(tmp_path, **files))) == order.split()


def test_an_environment_without_a_place_is_refused(tmp_path: Path) -> None:
    """A renamed one would be deployed after prod."""
    with pytest.raises(UserError, match="environment-mismatch") as refused:
        ordered(tree(tmp_path, dev=ALONE, prod=ALONE, preprod=ALONE))
    assert "infra/Pulumi.preprod.yaml" in str(refused.value)


@pytest.mark.parametrize(
    "files",
    [
        {"dev": USES.format("gone")},
        {"dev": USES.format("dev")},
        {"dev": USES.format("prod"), "prod": USES.format("dev")},
        {"dev": USES.format("prod"), "prod": ALONE},
    ],
    ids=["a missing one", "itself", "a circle", "an environment"],
)
def test_a_reference_to_what_makes_no_registry_is_refused(
    files: dict[str, str], tmp_path: Path
) -> None:
    with pytest.raises(UserError, match="unknown-stack") as refused:
        ordered(tree(tmp_path, **files))
    assert "infra/Pulumi.dev.yaml:2" in str(refused.value)


@pytest.mark.parametrize(
    ("text", "stack"),
    [
        (MAKES, Stack("x", True)),
        (USES.format("all"), Stack("x", False, "all")),
        (USES.format("'all' # one"), Stack("x", False, "all")),
        (
            "config:\n    platform:asset_registry: {mode: use, stack: all}\n",
            Stack("x", False, "all"),
        ),
        ('config:\n  "platform:asset_registry": { "mode": "create" }\n', Stack("x", True)),
        (
            "config:\n  platform:asset_registry:\n    # mode: create\n\n    mode: use\n"
            "    name: n\n    stack: all\n  platform:network:\n    stack: no\n",
            Stack("x", False, "all"),
        ),
        (USES.format("all").replace("\n", "\r\n"), Stack("x", False, "all")),
        ("config:\n  # platform:asset_registry: {mode: create}\n", Stack("x", False)),
        (
            "config:\n  platform:asset_registry:\n    mode: none\n    stack: all\n",
            Stack("x", False),
        ),
        (ALONE, Stack("x", False)),
        ("", Stack("x", False)),
    ],
)
def test_words_of_a_file(text: str, stack: Stack, tmp_path: Path) -> None:
    """In the notations of YAML that people use; the loader refuses what is read otherwise."""
    parsed = read(tree(tmp_path, x=text) / "infra")["x"]
    assert (parsed.makes_registry, parsed.uses) == (stack.makes_registry, stack.uses)


def test_an_environment_is_what_makes_no_registry(tmp_path: Path) -> None:
    """Its name tells nothing."""
    folder = tree(tmp_path, shared=ALONE, dev=MAKES) / "infra"
    assert environments(folder) == ("shared",)
    assert environments(ROOT / "infra") == ("dev", "prod", "staging")
    (folder / "Pulumi.broken.yaml").mkdir()
    assert "broken" in read(folder)
