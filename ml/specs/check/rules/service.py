"""What azure-ai-ml lets pass and the service refuses: variables, environments, names, traffic.

Each rule also applies to the specs and the parts that a spec names (`ml.specs.check.references`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from ml.core import repository
from ml.core.documents import Key, walk
from ml.core.errors import Severity
from ml.specs.assets import assets
from ml.specs.check.clusters import compute
from ml.specs.check.nodes import Node
from ml.specs.check.references import environments, fields
from ml.specs.check.rules.rule import Finding, Subject, rule
from ml.specs.parts import Part
from ml.specs.sdk.errors import in_words
from ml.specs.sdk.load import Spec

MODEL_TYPES = frozenset({"custom_model", "mlflow_model", "triton_model"})
DEPLOYMENTS = frozenset({"online_deployment", "batch_deployment", "model_batch_deployment"})
_COMPUTING = frozenset({"command", "sweep", "parallel", "automl"})
_ONLINE = "reference-yaml-endpoint-online"


@rule(
    "variable-not-text",
    scope="spec",
    source="Azure/azure-cli-extensions#8475: the value of an environment variable is a string",
)
def variable_not_text(subject: Subject) -> Iterator[Finding]:
    """The value of an environment variable is text: `true` and `3` stand in quotes."""
    # The SDK refuses some of them itself.
    refused = {problem.place for problem in subject.spec.problems if problem.code == "wrong-type"}
    for keys, variables in fields(subject.spec.document.data):
        if keys[-1] != "environment_variables" or not isinstance(variables, dict):
            continue
        for name, value in variables.items():
            if not isinstance(value, str) and subject.place(*keys, name) not in refused:
                found, hint = f"`{name}` is {in_words(name, value)}", 'for example "1" or "true"'
                yield Finding((*keys, name), found, "text in quotes", hint)


@rule(
    "bad-environment",
    scope="spec",
    source="azure-ai-ml 1.35 Environment.validate; reference-yaml-environment: build.path, image",
)
def bad_environment(subject: Subject) -> Iterator[Finding]:
    """An environment is an image, with or without a conda file, or a folder with a Dockerfile."""
    for part in environments(subject.spec):
        data, below = part.mapping(), part.keys
        build, image = data.get("build"), data.get("image")
        context = build.get("path") if isinstance(build, dict) else None
        if isinstance(build, dict) and not context:
            hint = "`dockerfile_path` is relative to it, and `Dockerfile` where it is not written"
            yield Finding((*below, "build"), "`build` has no `path`", "the context's folder", hint)
        if build is not None and image is not None:
            found, hint = "`image` and `build` exclude each other", "start the Dockerfile with FROM"
            yield Finding((*below, "image"), found, "one of both", hint)
        if build is not None and data.get("conda_file") is not None:
            found, hint = "`conda_file` does nothing beside `build`", "install in the Dockerfile"
            yield Finding((*below, "conda_file"), found, "an `image`", hint, "warning")
        if not image and build is None:
            hint = "image: mcr.microsoft.com/azureml/openmpi4.1.0-ubuntu22.04"
            yield Finding(below, "it has neither `image` nor `build`", "one of both", hint)
        yield from _dockerfile(part, context)


def _dockerfile(part: Part, context: object) -> Iterator[Finding]:
    """The Dockerfile of a build context that is on this machine is a file in it."""
    folder = assets.local(context, part.folder) if isinstance(context, str) else None
    if folder is None or not folder.exists():
        return  # `missing-file`
    keys, written = (*part.keys, "build", "path"), part.get("build", "dockerfile_path")
    if not folder.is_dir():
        yield Finding(keys, f"`{context}` is a file", "the folder that the Dockerfile is in")
        return
    if not _holds(folder, str(written or "Dockerfile")):
        yield Finding(
            (*keys[:-1], "dockerfile_path") if written else keys,
            f"`{written or 'Dockerfile'}` is not in `{repository.shown(folder)}`",
            "a Dockerfile in the build context",
            "its path is relative to the context, not to this file",
        )


@rule("bad-traffic", scope="online_endpoint", source=f"{_ONLINE}: traffic, mirror_traffic")
def bad_traffic(subject: Subject) -> Iterator[Finding]:
    """Traffic adds up to 0 or 100 %; at most 50 % is mirrored, to one deployment without traffic.

    The limit of a mirror is that of azure-ai-ml 1.35, `_schema/_endpoint/online`.
    """
    spec = subject.spec
    shares, mirrors = (
        {str(name): whole_number(share) for name, share in spec.mapping(key).items()}
        for key in ("traffic", "mirror_traffic")
    )
    beside = [assets.included(file.name, spec.folder) for file in spec.folder.glob("*.y*ml")]
    own = [part for part in beside if part and part.get("endpoint_name") == spec.get("name")]
    declared = {str(part.get("name")) for part in own}
    for key, values, most in (("traffic", shares, 100), ("mirror_traffic", mirrors, 50)):
        for name, share in values.items():
            if share is None or not 0 <= share <= most:
                found = f"`{name}` gets {spec.get(key, name)} %"
                yield Finding((key, name), found, f"a whole number from 0 to {most}")
            elif share and key == "mirror_traffic" and shares.get(name):
                found = f"`{name}` has traffic of its own and mirrors {share} %"
                yield Finding((key, name), found, "a deployment without traffic")
            elif declared and name not in declared:
                found = f"no file beside this one declares a deployment `{name}`"
                listed = ", ".join(sorted(declared))
                yield Finding((key, name), found, f"one of {listed}", severity="warning")
    total = sum(share or 0 for share in shares.values())
    if None not in shares.values() and total not in {0, 100}:
        hint = "the deployments share all of it, or there is none yet"
        yield Finding(("traffic",), f"the traffic adds up to {total} %", "0 or 100", hint)
    if len(mirrors) > 1:
        yield Finding(("mirror_traffic",), f"{len(mirrors)} deployments mirror traffic", "one")
    elif any(mirrors.values()) and not total:
        found, hint = "there is no traffic to mirror", "set `traffic` of a deployment to 100 first"
        yield Finding(("mirror_traffic",), found, "a live deployment", hint, "warning")


def whole_number(value: object) -> int | None:
    """A number as azure-ai-ml reads it, from text too; None for a fraction or anything else."""
    try:
        number = float(value) if isinstance(value, str | int | float) else float("nan")
    except ValueError:
        return None
    return int(number) if number.is_integer() and not isinstance(value, bool) else None


@rule(
    "model-version",
    scope="spec",
    source="Azure/azureml-examples#2725: the version of a model is a positive integer",
)
def model_version(subject: Subject) -> Iterator[Finding]:
    """The version of a model is a positive whole number, where it is made and where it is named."""
    spec = subject.spec
    versions = list[tuple[tuple[Key, ...], object]]()
    if spec.kind.family == "model":
        versions.append((("version",), spec.get("version")))
    for keys, value in walk(spec.document.data):
        inside = keys[-2:-1] in {("inputs",), ("outputs",)} and isinstance(value, dict)
        if inside and value.get("type") in MODEL_TYPES:
            reference = assets.parse(str(value.get("path") or ""))
            versions += [((*keys, "version"), value.get("version"))]
            versions += [((*keys, "path"), reference.version or None)] if reference else []
    for keys, value in fields(spec.document.data):
        if keys[-1] == "model" and isinstance(value, dict):
            versions.append(((*keys, "version"), value.get("version")))
        elif keys[-1] == "model" and isinstance(value, str) and (name := assets.parse(value)):
            versions.append((keys, name.version or None))
    for at, version in versions:
        if version is not None and not re.fullmatch(r"0*[1-9][0-9]*", str(version)):
            hint = "put what it stands for into `tags`"
            yield Finding(at, f"the version of the model is `{version}`", "1, 2, 3 …", hint)


@rule(
    "scoring-script",
    scope="spec",
    source="azure-ai-ml 1.35 validate_scoring_script; how-to-deploy-custom-container",
)
def scoring_script(subject: Subject) -> Iterator[Finding]:
    """A deployment has a scoring script in its code, other than of MLflow models and own servers.

    A warning where its environment is elsewhere, which may be a server of its own.
    """
    spec, keys = subject.spec, ("code_configuration", "scoring_script")
    if spec.kind.family not in DEPLOYMENTS:
        return
    if spec.get(keys[0]) is None:
        model, environment = _named(spec, "model"), _named(spec, "environment")
        kind = model.get("type") or "custom_model" if model else ""
        is_server = environment and (
            environment.get("inference_config") or environment.get("build")
        )
        if kind in {"mlflow_model", "triton_model"} or is_server:
            return
        is_online = spec.kind.family == "online_deployment"
        if kind or spec.get("environment") is not None:
            hint = "code_configuration: {code: ., scoring_script: score.py}"
            severity: Severity = "error" if kind or (environment and is_online) else "warning"
            yield Finding((), "it has no `code_configuration`", "a scoring script", hint, severity)
        return
    code, script = (spec.get(keys[0], key) for key in ("code", keys[1]))
    folder = assets.local(code, spec.folder) if isinstance(code, str) else None
    if not isinstance(code, str) or not isinstance(script, str):
        hint = "`code` is a folder, and `scoring_script` a file in it"
        yield Finding(keys[:1], f"it has no `{'scoring_script' if code else 'code'}`", "both", hint)
    elif folder is not None and folder.is_dir() and not _holds(folder, script):
        found = f"`{script}` is not in `{repository.shown(folder)}`"
        yield Finding(keys, found, "a file in `code`", "it is relative to `code`")


@rule("missing-script", scope="node", source="a job ends with exit code 2 once its node is up")
def missing_script(node: Node) -> Iterator[Finding]:
    """The script that a command begins with, or that a parallel step runs, is in its code."""
    at: tuple[Key, ...] = {"sweep": ("trial",), "parallel": ("task",)}.get(node.type, ())
    key = "entry_script" if node.type == "parallel" else "command"
    code, text = node.get(*at, "code"), str(node.get(*at, key) or "")
    match = re.match(r"\s*python3?\s+(?:-[uBEIs]\s+)*([\w./-]+\.py)(?!\S)", text)
    script = text if key == "entry_script" else match[1] if match else ""
    folder = assets.local(code, node.folder) if isinstance(code, str) else None
    if script and folder is not None and folder.is_dir() and not _holds(folder, script):
        found = f"`{script}` is not in `{repository.shown(folder)}`"
        yield Finding((*at, key), found, "a file in `code`", "it is relative to `code`")


def _holds(folder: Path, name: str) -> bool:
    """Whether a file of that name travels with the folder: it is there and not outside of it."""
    file = folder / name
    return file.is_file() and file.resolve().is_relative_to(folder.resolve())


def _named(spec: Spec, key: str) -> Part | None:
    """The model or the environment of a deployment: inline, or declared in this repository."""
    written = spec.get(key)
    if not isinstance(written, str):
        return spec.at(key) if isinstance(written, dict) else None
    file = assets.included(written, spec.folder)
    return file or assets.find(written, key, repository.root(spec.file))


@rule("no-compute", scope="node", source="azure-ai-ml 1.35 PipelineJob._validate_compute_is_set")
def no_compute(node: Node) -> Iterator[Finding]:
    """A step of a job has a compute: its own, or that of a pipeline around it."""
    top = node
    while above := top.parent or top.user:
        top = above
    if node.parent is None or top.is_component or node.type not in _COMPUTING or compute(node):
        return
    hint = "settings: {default_compute: azureml:cpu-cluster}, or azureml:serverless"
    yield Finding((), f"step `{node.name}` has no compute", "`compute`, or a default", hint)
