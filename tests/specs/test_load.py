"""Loading: every kind, the same as azure-ai-ml's own loader, and what is no spec."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from ml.core.errors import UserError
from ml.specs.check.check import check
from ml.specs.sdk.load import load
from tests.specs.allowed import ALLOWED
from tests.specs.samples import SAMPLES

TEXTS = {name: text for name, (_, _, text) in SAMPLES.items()} | {
    f"{rule}-{number}": text for rule, texts in ALLOWED.items() for number, text in enumerate(texts)
}


def typed(value: Any) -> Any:
    """A value with the type of every part, so that 1, 1.0 and True differ."""
    if isinstance(value, dict):
        return {(type(key), key): typed(below) for key, below in value.items()}
    if isinstance(value, list):
        return [typed(below) for below in value]
    return type(value), value


@pytest.mark.parametrize("name", SAMPLES)
def test_every_kind_loads_clean(name: str, repo: Path) -> None:
    """A right spec of every kind is recognised, loads and has no problem."""
    _, kind, text = SAMPLES[name]
    (repo / "spec.yml").write_bytes(text.encode())
    spec = load(Path("spec.yml"))
    assert str(spec.kind) == kind
    assert spec.entity is not None, spec.problems
    assert [str(problem) for problem in check(spec)] == []


@pytest.mark.parametrize("name", TEXTS)
def test_data_is_what_the_plain_loader_makes_of_it(name: str, repo: Path) -> None:
    """The SDK is given the same values as its own reader would give it, type by type."""
    (repo / "spec.yml").write_bytes(TEXTS[name].encode())
    with Path("spec.yml").open(encoding="utf-8-sig") as file:
        plain = yaml.load(file, Loader=yaml.SafeLoader)  # the pure Python reader
    assert typed(load(Path("spec.yml")).document.data) == typed(plain)


@pytest.mark.parametrize("name", SAMPLES)
def test_entity_is_what_the_sdk_loads(name: str, repo: Path) -> None:
    """The entity is of the class and content that the SDK's public loader returns."""
    from azure.ai import ml as sdk
    from azure.ai.ml.entities import _load_functions

    loader, _, text = SAMPLES[name]
    (repo / "spec.yml").write_bytes(text.encode())
    ours = load(Path("spec.yml")).entity
    theirs = getattr(_load_functions, loader)(repo / "spec.yml")
    assert hasattr(sdk, loader) or loader == "load_schedule" or loader.endswith("batch_deployment")
    assert type(ours) is type(theirs)
    assert dumped(ours) == dumped(theirs)


def dumped(entity: Any) -> str:
    """An entity as text; the SDK dumps a parallel task's code against the folder it used last."""
    attributes = entity._to_dict() if hasattr(entity, "_to_dict") else vars(entity)
    return re.sub(r"'code': '[^']*'", "'code'", _plain(attributes))


def _plain(value: Any) -> str:
    """Mappings, lists and plain values in full; of anything else only its class."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key!r}: {_plain(below)}" for key, below in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_plain, value)) + "]"
    is_plain = value is None or isinstance(value, str | int | float)
    return repr(value) if is_plain else type(value).__name__


@pytest.mark.parametrize(
    "text",
    [
        "name: test\non: push\njobs: {build: {runs-on: ubuntu-latest, steps: []}}\n",
        "name: env\nchannels: [conda-forge]\ndependencies: [python=3.11]\n",
        "name: project\nruntime: python\nconfig: {a: {type: string}}\n",
        "services: {web: {image: nginx, build: .}}\n",
        "apiVersion: v1\nkind: Pod\nmetadata: {name: x}\n",
        "repos: [{repo: local, hooks: []}]\n",
        "image: x\nvariables: {A: b}\nstages: [test]\n",
        "name: w\non: push\ndefaults: {run: {shell: bash}}\njobs: {}\n",
        "name: source\ntype: git\nurl: https://example.org/r\n",
        "name: sink\ntype: custom\nsettings: {a: b}\n",
        "name: site\nlocation: westeurope\nreplication: zone\n",
        "defaults: {deployment_name: blue}\nregions: [west]\n",
        "type: {name: model}\nname: x\n",
        "type: transformations\npaths: [{file: rows.csv}]\ntransformations: []\n",
        "gates: {order: [dev, prod]}\n_templates_suffix: ''\nproject_name: {type: str}\n",
        "- a\n- b\n",
        "just text\n",
        "{}\n",
    ],
)
def test_other_yaml_is_not_a_spec(text: str, repo: Path) -> None:
    """A workflow, a conda file, a compose file … is refused as no spec when it is named."""
    (repo / "other.yml").write_text(text)
    with pytest.raises(UserError) as refused:
        load(Path("other.yml"))
    assert [problem.code for problem in refused.value.problems] == ["not-a-spec"]


def test_schema_of_the_wrong_family_does_not_decide(repo: Path) -> None:
    """A job with a component's `$schema` loads as the job that it is, as `az` would load it."""
    schema = "$schema: https://azuremlschemas.azureedge.net/latest/commandComponent.schema.json\n"
    (repo / "spec.yml").write_text(
        schema + "command: echo\nenvironment: azureml:e:1\ncompute: azureml:c\n"
    )
    assert str(load(Path("spec.yml")).kind) == "command job"


def test_unreadable_files_are_refused(repo: Path) -> None:
    """No file, a folder, bytes that are no text, nothing at all: each a problem with a code."""
    (repo / "empty.yml").write_text("# nothing\n")
    (repo / "latin.yml").write_bytes(b"command: echo\nname: \xe9\n")
    (repo / "large.yml").write_text("# " + "x" * 1_000_001)
    expected = {"gone.yml": "missing-file", "src": "not-a-file", "empty.yml": "empty-file"}
    expected |= {"latin.yml": "unreadable-yaml", "large.yml": "too-large", "a\0b": "missing-file"}
    for name, code in expected.items():
        with pytest.raises(UserError) as refused:
            load(Path(name))
        assert [problem.code for problem in refused.value.problems] == [code], name
        assert refused.value.problems[0].hint, name


@pytest.mark.parametrize(
    ("text", "line", "advice"),
    [
        ("a: 1\n  b: 2\n", 2, "put the key on a line of its own"),
        ("a:\n  b: 1\n c: 2\n", 3, "indent it like the other keys of its mapping"),
        ("a: 1\n\tb: 2\n", 2, "spaces, not tabs"),
        ("a: *b\n", 1, "in quotes"),
        ("a: @b\n", 1, "in quotes"),
        ("a: 'b\n", 2, "close the quote"),
        ("a: 1\n---\nb: 2\n", 2, "one spec a file"),
        ("a: !x 1\n", 1, "delete the tag"),
        ("a: [1\nb: 2\n", 2, "brackets"),
    ],
)
def test_yaml_that_does_not_load_says_what_to_do(
    text: str, line: int, advice: str, repo: Path
) -> None:
    """The line of the fault, and advice for what the parser calls it."""
    (repo / "spec.yml").write_text(text)
    with pytest.raises(UserError) as refused:
        load(Path("spec.yml"))
    problem = refused.value.problems[0]
    assert (problem.code, str(problem.place)) == ("unreadable-yaml", f"spec.yml:{line}")
    assert advice in problem.hint


def test_a_file_of_another_person(monkeypatch: pytest.MonkeyPatch, repo: Path) -> None:
    """What may not be read is not called misspelt."""

    def denied(self: Path) -> bytes:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", denied)
    with pytest.raises(UserError) as refused:
        load(Path("component.yml"))
    problem = refused.value.problems[0]
    assert (problem.code, problem.hint) == (
        "no-access",
        "make it readable: chmod u+r component.yml",
    )


def test_a_misspelt_file_names_the_nearest(repo: Path) -> None:
    """The hint of a missing file is the file beside it that it most resembles."""
    with pytest.raises(UserError) as refused:
        load(Path("componnent.yml"))
    assert refused.value.problems[0].hint == "did you mean `component.yml`?"
    with pytest.raises(UserError) as refused:
        load(Path("other.yml"))  # the suffix alone is no resemblance
    assert refused.value.problems[0].hint == "check the spelling"


def test_the_sdk_stays_quiet(repo: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Loading prints nothing of experimental classes and leaves the SDK's logger as it was."""
    (repo / "spec.yml").write_bytes(SAMPLES["command"][2].encode())
    level = logging.getLogger("azure.ai.ml").level
    load(Path("spec.yml"))
    captured = capfd.readouterr()
    assert captured.out + captured.err == ""
    assert logging.getLogger("azure.ai.ml").level == level
