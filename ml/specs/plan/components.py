"""The component that a step runs: inline, in a file, or defined by the repository."""

from __future__ import annotations

from pathlib import Path

from ml.core import repository
from ml.core.documents import Key
from ml.core.errors import Problem
from ml.specs.assets import assets
from ml.specs.plan.layers import Layers, Part
from ml.specs.sdk.load import Spec
from ml.specs.sdk.tree import included

SOURCE = "reference-yaml-job-pipeline: jobs.<name>.component"


def part_of(spec: Spec) -> Part:
    """The part that is the whole spec."""
    return Part(spec.document, spec.file)


def component_of(owner: Part, key: Key, root: Path) -> Part | Problem:
    """The component named at `key` (`component` or `trial`); a Problem when it is not here.

    `root` is the repository whose specs define `azureml:` components.
    """
    written = owner.get(key)
    if isinstance(written, dict):
        return owner.at(key)
    text = str(written)
    inside = included(text, owner.folder)
    if inside is not None:
        return Part(*inside)
    asset = assets.find(text, "component", root)
    if asset is not None:
        return Part(asset.document, asset.file)
    where = "a registry" if text.startswith("azureml://registries") else "the workspace"
    hint = "export it beside the spec (`az ml component show`) and name the file"
    if not repository.is_root(root):
        hint += f"; to use all specs below a folder, run `touch {repository.MARK}` in it"
    return Problem(
        "component-not-here",
        f"`{key}: {text}` is in {where}, not on this machine",
        "a component file, or a component that this repository defines",
        hint,
        owner.place(key),
        source=SOURCE,
    )


# Steps that Azure ML runs before and after all others; private preview.
HOOKS = ("on_init", "on_finalize")


def hooks(layers: Layers) -> list[Problem]:
    """One problem for each step that the settings run before or after all others."""
    settings = layers.owner("settings").at("settings")
    return [
        Problem(
            "unsupported-step",
            f"`{key}: {settings.get(key)}` names a step that runs before or after all others",
            "steps that run when their inputs are ready",
            "bind an input of the step to an output of the step that it waits for",
            settings.place(key),
            source=SOURCE,
        )
        for key in HOOKS
        if settings.get(key) is not None
    ]


def refused(step: Part, name: str, kind: str) -> Problem:
    """The problem of a kind of step that cannot run on this machine."""
    article = "an" if kind[:1] in "aeiou" else "a"
    return Problem(
        "unsupported-step",
        f"step `{name}` is {article} {kind} step, which cannot run on this machine",
        "command, sweep and pipeline steps",
        "run the other steps as a separate pipeline",
        step.place("type") if step.get("type") is not None else step.place(),
        source=SOURCE,
    )
