"""Resolves the inputs, outputs, code and environment of a job or step on this machine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ml.core import names, repository
from ml.core.documents import Key, strings
from ml.core.errors import Place, Problem, UserError
from ml.specs import expressions
from ml.specs.assets import assets, packages
from ml.specs.kinds import MODELS
from ml.specs.plan.plans import (
    LITERALS,
    Asset,
    Environment,
    FromPipeline,
    FromStep,
    Frozen,
    InputPlan,
    OutputPlan,
    Source,
)
from ml.specs.yaml_node import YamlNode

# Azure ML's defaults (reference-yaml-job-command).
DATA_TYPE = "uri_folder"
INPUT_MODE = "ro_mount"
OUTPUT_MODE = "rw_mount"
LITERAL_TYPES = {bool: "boolean", int: "integer", float: "number"}


class Bindings:
    """Resolves the references of one job; `problems` collects the unresolvable ones.

    `root` is the repository whose specs define `azureml:` assets. `registered` is the folder where
    runs on this machine register assets.
    """

    def __init__(self, root: Path, registered: Path | None) -> None:
        self.root, self.registered = root, registered
        self.problems: list[Problem] = []

    def data(
        self, owner: YamlNode, keys: tuple[Key, ...], written: Mapping[str, Any], field: str
    ) -> InputPlan:
        """Return the input for the data `written` at `keys`, with its local path and digest.

        Its name is the last key. `field` is its path in the job: `jobs.train.inputs.faq`.
        """
        name, place = str(keys[-1]), owner.place(*keys, "path")
        source = str(written.get("path") or "")
        kind = str(written.get("type") or DATA_TYPE)
        path, asset, spec = assets.local_path(source, owner.folder), None, None
        reference = assets.parse(source)
        if reference is not None:
            # A model and a data asset may have the same name, so search only assets of the type.
            family = "model" if kind in MODELS else "data"
            spec = assets.find(source, family, self.root, self.registered)
            path, version = None, reference.version or f"@{reference.label or 'latest'}"
            if spec is not None:
                path, version, kind = spec.path, spec.version, str(spec.get("type") or kind)
            asset = Asset(reference.name, version, made_by=spec.tag("run") if spec else "")
        if path is not None:
            path = path.resolve()
            if not path.exists():
                self.problems.append(_missing(path, place, field))
            elif asset is not None:
                asset = replace(asset, digest=assets.digest(path))
                if spec is not None and asset.made_by and spec.tag("digest") != asset.digest:
                    self.problems.append(_changed(asset, path, place))
        mode = str(written.get("mode") or INPUT_MODE)
        return InputPlan(name, kind, place, source=source, path=path, asset=asset, mode=mode)

    def code(self, owner: YamlNode, *keys: Key) -> Path | None:
        """Return the folder at `keys`, the job's code; None if it is missing or remote."""
        written = owner.get(*keys)
        path = assets.local_path(written, owner.folder) if isinstance(written, str) else None
        if path is None and isinstance(written, str):
            self.problems.append(
                Problem(
                    "remote-code",
                    f"`code: {written}` is not on this machine",
                    "a local folder",
                    "check out the code and set the path of its folder",
                    owner.place(*keys),
                )
            )
        return path.resolve() if path else None

    def environment(self, owner: YamlNode, *keys: Key) -> Environment:
        """Return the environment at `keys`; only its name if the repository has no spec of it."""
        written, place = owner.get(*keys), owner.place(*keys)
        if not isinstance(written, str):
            node = owner.child(*keys)
            return self._environment(str(node.mapping().get("name") or "inline"), node, place)
        asset = assets.find(written, "environment", self.root)
        if asset is not None:
            return self._environment(f"azureml:{asset.name}:{asset.version}", asset, place)
        return Environment(written, place=place)

    def _environment(self, name: str, node: YamlNode, place: Place) -> Environment:
        image, conda_file = node.get("image"), node.get("conda_file")
        file, conda_spec = None, None
        if isinstance(conda_file, str):
            file = assets.local_path(conda_file, node.folder)
            file = file.resolve() if file is not None else None
            conda_spec = packages.conda_file(file) if file is not None and file.is_file() else None
        elif isinstance(conda_file, dict):
            conda_spec = packages.conda_of_node(node.child("conda_file"))
        self.problems += conda_spec.problems if conda_spec else ()
        dependencies = conda_spec.dependencies if conda_spec else None
        dockerfile, context = None, node.get("build", "path")
        if isinstance(context, str) and (folder := assets.local_path(context, node.folder)):
            dockerfile = folder / str(node.get("build", "dockerfile_path") or "Dockerfile")
        return Environment(name, str(image or ""), dockerfile, file, dependencies, place)


class Ports:
    """The inputs and outputs of a job or step (`node`), which override those of its component.

    `prefix` is the path from the job to `node` (`jobs.train.`).
    """

    def __init__(
        self, node: YamlNode, component: YamlNode | None, bindings: Bindings, prefix: str = ""
    ) -> None:
        self._own, self._component = node, component
        self._bindings, self._prefix = bindings, prefix

    def inputs(self) -> tuple[Mapping[str, InputPlan], Mapping[str, Source]]:
        """Return every input by name, and the sources of those bound to the pipeline or a step."""
        inputs: dict[str, InputPlan] = {}
        sources: dict[str, Source] = {}
        for name in self._names("inputs"):
            planned = self._set(name) or self._declared(name)
            if planned is None:
                continue
            inputs[name] = planned
            if source := source_of(planned.source):
                sources[name] = source
        return Frozen(inputs), Frozen(sources)

    def outputs(
        self, around: Mapping[str, OutputPlan]
    ) -> tuple[Mapping[str, OutputPlan], Mapping[str, str]]:
        """Return every output by name, and for bound ones the name of the pipeline's output.

        `around` are the outputs of the surrounding pipeline.
        """
        outputs: dict[str, OutputPlan] = {}
        promoted: dict[str, str] = {}
        for name in self._names("outputs"):
            written = self._own.get("outputs", name)
            fields = written if isinstance(written, dict) else {}
            port = self._port("outputs", name)
            target = promoted_to(written if isinstance(written, str) else fields.get("path"))
            outer = around.get(target)
            if target:
                promoted[name] = target
            kind = fields.get("type") or port.get("type") or (outer.type if outer else "")
            owner = self._own if name in self._own.mapping("outputs") else self._component
            outputs[name] = OutputPlan(
                name,
                str(kind or DATA_TYPE),
                (owner or self._own).place("outputs", name),
                str(fields.get("mode") or port.get("mode") or OUTPUT_MODE),
                self._asset(fields, self._own.place("outputs", name)),
            )
        return Frozen(outputs), Frozen(promoted)

    def _names(self, direction: str) -> list[str]:
        """Return the names of the component's ports, then the names that the step adds."""
        declared = self._component.mapping(direction) if self._component is not None else {}
        return list(dict.fromkeys(map(str, (*declared, *self._own.mapping(direction)))))

    def _port(self, direction: str, name: str) -> Mapping[str, Any]:
        return self._component.mapping(direction, name) if self._component is not None else {}

    def _set(self, name: str) -> InputPlan | None:
        """Return the input with the value of the job or step; None if they do not set it."""
        written, place = self._own.get("inputs", name), self._own.place("inputs", name)
        kind = str(self._port("inputs", name).get("type") or "").lower()
        if written is None:
            return None
        fields = written if isinstance(written, dict) else {"path": written, "type": kind}
        path = fields.get("path")
        if isinstance(path, str) and source_of(path):
            mode = str(fields.get("mode") or INPUT_MODE)
            return InputPlan(name, str(fields.get("type") or kind), place, source=path, mode=mode)
        if isinstance(written, dict) and path is None:
            return self._default(name, written, self._own)
        if not isinstance(written, dict) and (not kind or kind in LITERALS):
            kind = kind or LITERAL_TYPES.get(type(written), "string")
            return InputPlan(name, kind, place, value=written)
        return self._data(self._own, name, fields)

    def _declared(self, name: str) -> InputPlan | None:
        """Return the input with the component's default, or without a value; None if undeclared."""
        port = self._port("inputs", name)
        if not port or self._component is None:
            return None
        return self._default(name, port, self._component)

    def _default(self, name: str, port: Mapping[str, Any], owner: YamlNode) -> InputPlan:
        kind, default = str(port.get("type") or DATA_TYPE).lower(), port.get("default")
        if default is not None and kind not in LITERALS:
            return self._data(owner, name, {**port, "path": default})
        return InputPlan(name, kind, owner.place("inputs", name), value=default)

    def _data(self, owner: YamlNode, name: str, fields: Mapping[str, Any]) -> InputPlan:
        return self._bindings.data(owner, ("inputs", name), fields, f"{self._prefix}inputs.{name}")

    def _asset(self, written: Mapping[str, Any], place: Place) -> Asset | None:
        """Return the asset that an output is registered as; None without a valid name."""
        if not written.get("name"):
            return None
        asset = Asset(str(written["name"]), str(written.get("version") or ""))
        try:
            names.check("asset", asset.name, place)
            names.check("version", asset.version or "1", place)
        except UserError as refused:
            self._bindings.problems += refused.problems
            return None
        return asset


def source_of(text: str) -> Source | None:
    """Return the source of a text that is exactly one binding (`${{parent.…}}`); else None."""
    match _binding(text):
        case ("inputs", _, *_) as path:
            return FromPipeline(".".join(path[1:]))
        case ("jobs", step, "outputs", name):
            return FromStep(step, name)
    return None


def waits_for(step: YamlNode) -> Iterator[str]:
    """Yield the name of each step that any field of a step references."""
    for _, text in strings(step.get()):
        for reference in expressions.references(text):
            path = reference.path[1:] if reference.source == "parent" else reference.path
            if path[0] == "jobs" and len(path) > 1:
                yield path[1]


def promoted_to(text: Any) -> str:
    """Return NAME of a text `${{parent.outputs.NAME}}`; "" for other texts."""
    match _binding(text) if isinstance(text, str) else ():
        case ("outputs", name):
            return name
    return ""


def _binding(text: str) -> tuple[str, ...]:
    """Return the parts of a text that is exactly one reference, without `parent`; else ().

    `${{inputs.x}}` and `${{jobs.a.outputs.b}}`, without `parent`, are the older syntax.
    """
    bindings = expressions.references(text)
    if len(bindings) != 1 or bindings[0].text != text.strip():
        return ()
    return bindings[0].path[1:] if bindings[0].source == "parent" else bindings[0].path


def _missing(path: Path, place: Place, field: str) -> Problem:
    """Return the problem of local data that does not exist."""
    return Problem(
        "missing-file",
        f"`{repository.shown(path)}` does not exist",
        "a file or folder on this machine",
        f"create it, or pass another path with `--set {field}=PATH`",
        place,
    )


def _changed(asset: Asset, path: Path, place: Place) -> Problem:
    return Problem(
        "asset-changed",
        f"{repository.shown(path)} differs from `{asset}`, which {asset.made_by} registered",
        "the registered content: assets do not change",
        f"remove {repository.shown(path.parent.parent)} and run the job that registers it again",
        place,
    )
