"""The environments of a repository, as its gates.yml orders them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ml.core.repository import GATES, environments
from tests.conftest import ROOT


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("[dev, staging, prod]", ("dev", "staging", "prod")),
        ("['qa', \"pre-prod\",\n      prod] # the last", ("qa", "pre-prod", "prod")),
        ("\n      - qa # first\n      - prod", ("qa", "prod")),
        ("[dev, 'x; id', 3, '$(id)', {a: b}, prod]", ("dev", "prod")),  # commands contain them
        ("{dev: 1", ()),
        ("[]", ()),
        ("", ()),
    ],
)
def test_names_and_order_are_those_of_the_gate(
    text: str, names: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / GATES).parent.mkdir(parents=True)
    gates = (ROOT / GATES).read_text()
    assert environments(ROOT) == ("dev", "staging", "prod")
    (tmp_path / GATES).write_text(gates.replace("[dev, staging, prod]", text))
    assert environments(tmp_path) == names


def test_without_a_policy_there_is_none(tmp_path: Path) -> None:
    assert environments(tmp_path) == ()


def test_a_thin_fork_has_environments_of_its_own(tmp_path: Path) -> None:
    """One renamed and one added: release.yml, its schema and the order of the stacks follow."""
    framework, fork = tmp_path / "fork/.venv/framework", tmp_path / "fork"
    framework.mkdir(parents=True)
    for room in ("ml", "infra", "policies"):
        (framework / room).symlink_to(ROOT / room)
    for name in ("policies/promotion", "infra"):
        (fork / name).mkdir(parents=True)
    for path in (ROOT / "policies/promotion").glob("*.yml"):
        shutil.copy(path, fork / "policies/promotion")
    (fork / "pyproject.toml").touch()
    gates = (fork / GATES).read_text().replace("[dev, staging, prod]", "[dev, qa, pre-prod, prod]")
    (fork / GATES).write_text(gates)
    for name in ("dev", "qa", "prod", "pre-prod"):
        (fork / f"infra/Pulumi.{name}.yaml").touch()
    (fork / "release.yml").write_text("schema_version: 1\nenvironments:\n  qa: {}\n  staging: {}\n")
    code = (
        "from pathlib import Path; from ml.core import imports; "
        "imports.ROOT = imports.repository.root(); "
        "from ml.release.declaration import desired_state, release_file; "
        "from ml.repository.affected.stacks import stacks; from ml.core.errors import UserError\n"
        "print(*desired_state.TRACKED, *stacks(imports.ROOT))\n"
        "print(*release_file.schema()['$defs']['mapping']['properties'])\n"
        "try: release_file.read(Path('release.yml'))\n"
        "except UserError as refused: print(refused)"
    )
    variables = {**os.environ, "PYTHONPATH": str(framework)}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=fork, env=variables, capture_output=True, text=True
    )
    names = "dev qa pre-prod prod"
    assert done.stdout.startswith(f"{names} {names}\n{names}\n"), done.stderr
    assert "release.yml:4: " in done.stdout and "staging" in done.stdout
