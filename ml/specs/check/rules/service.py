"""Errors that azure-ai-ml accepts and the service rejects: variables, environments, traffic …

Each rule also runs on the specs that a spec references (`ml.specs.check.nodes`).
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from ml.core import repository
from ml.core.documents import Key, walk
from ml.core.errors import Severity
from ml.core.names import is_name
from ml.specs.assets import assets, packages
from ml.specs.assets.ignore_file import IgnoreFile
from ml.specs.check import secret_patterns
from ml.specs.check.clusters import compute
from ml.specs.check.nodes import Node, environments, fields
from ml.specs.check.rules.rule import Finding, Subject, rule
from ml.specs.expressions import without_placeholders
from ml.specs.kinds import MODEL_TYPES, kind_of
from ml.specs.sdk.errors import in_words
from ml.specs.sdk.load import Spec, spark_sizes
from ml.specs.yaml_node import YamlNode

DEPLOYMENTS = frozenset({"online_deployment", "batch_deployment", "model_batch_deployment"})
_COMPUTING = frozenset({"command", "sweep", "parallel", "automl", "data_transfer"})
_ONLINE = "reference-yaml-endpoint-online"
# Node type → keys of its `code`, and keys of its command or script.
_KEYS: dict[str, tuple[tuple[Key, ...], tuple[Key, ...]]] = {
    "command": (("code",), ("command",)),
    "sweep": (("trial", "code"), ("trial", "command")),
    "parallel": (("task", "code"), ("task", "entry_script")),
    "spark": (("code",), ("entry", "file")),
}
# Matches a simple command without quotes, and captures its script, module or requirements file.
_PYTHON = r"(?:\S*/)?python[\d.]*(?: -[WX] ?\S+| -[bBdEhiIOPqRsSuvVx]+)*"
_RUNS = re.compile(
    r"(?:(?:exec|time|nohup|env|sudo|[A-Za-z_]\w*=\S*|conda run(?: -\S+ \S+)*|uv run) )*(?:"
    rf"(?:torchrun|accelerate launch|deepspeed|mpirun|mpiexec|horovodrun|{_PYTHON} -m torch\.\S+"
    r"|coverage run|streamlit run|papermill|pytest|uv run) (?:.*? )??"
    r"(?P<launched>\S+\.(?:py|ipynb))"
    rf"|(?:{_PYTHON} -m )?pip3? install (?:.*? )?-r ?(?P<requirements>\S+)"
    rf"|{_PYTHON} -m (?P<module>[\w.]+)|(?:{_PYTHON}|Rscript) (?P<script>[^\s-]\S*)"
    r"|(?:bash|sh|source|\.)(?: -[eluxo]+| pipefail)* (?P<shell>[^\s-]\S*)"
    r"|(?P<own>(?:[\w.-]+/)+[\w.-]+\.(?:py|sh)))(?: .*)?",
    re.DOTALL,
)
# A VM size name: letters, number of cores, features, accelerator, version.
_SIZE = re.compile(r"standard_[a-z]+\d+(-\d+)?[a-z]*(_[a-z][a-z0-9]*)*", re.IGNORECASE)
# Arguments of COPY and ADD with another stage, a URL or a pattern.
_COPIES_ELSE = re.compile(r"--from|[$*?\[\]<]|://")
# Commands that create no script for a later command.
_HARMLESS = re.compile(
    r"echo|cat|ls|mkdir|tee|grep|head|tail|wc|pwd|chmod|sleep|true|export|set|date|nvidia-smi"
    r"|pip3?|conda|apt-get|ulimit|\w+=\S*"
)


@rule(
    "variable-not-text",
    scope="spec",
    source="Azure/azure-cli-extensions#8475: the value of an environment variable is a string",
)
def variable_not_text(subject: Subject) -> Iterator[Finding]:
    """The value of an environment variable is text: `true` and `3` need quotes."""
    # Skip the values that the SDK already refused.
    refused = {problem.place for problem in subject.spec.problems if problem.code == "wrong-type"}
    for keys, variables in fields(subject.spec.document.data):
        if keys[-1] != "environment_variables" or not isinstance(variables, dict):
            continue
        for name, value in variables.items():
            is_secret = secret_patterns.secret_in(str(name), value, True)  # `plaintext-secret`
            is_reported = is_secret or subject.place(*keys, name) in refused
            if not isinstance(value, str) and not is_reported:
                actual, hint = f"`{name}` is {in_words(name, value)}", 'for example "1" or "true"'
                yield Finding((*keys, name), actual, "text in quotes", hint)


@rule(
    "bad-environment",
    scope="spec",
    source="azure-ai-ml 1.35 Environment.validate; reference-yaml-environment: build.path, image",
)
def bad_environment(subject: Subject) -> Iterator[Finding]:
    """An environment is an image, with or without a conda file, or a folder with a Dockerfile."""
    for node in environments(subject.spec):
        data, below = node.mapping(), node.keys
        build, image = data.get("build"), data.get("image")
        context = build.get("path") if isinstance(build, dict) else None
        if isinstance(build, dict) and not context:
            hint = "`dockerfile_path` is relative to it; default: `Dockerfile`"
            yield Finding((*below, "build"), "`build` has no `path`", "the context's folder", hint)
        if build is not None and image is not None:
            actual = "`image` and `build` are both set"
            hint = "start the Dockerfile with FROM"
            yield Finding((*below, "image"), actual, "only one of them", hint)
        if build is not None and data.get("conda_file") is not None:
            actual, hint = "`conda_file` has no effect with `build`", "install in the Dockerfile"
            yield Finding((*below, "conda_file"), actual, "an `image`", hint, "warning")
        if not image and build is None:
            hint = "image: mcr.microsoft.com/azureml/openmpi4.1.0-ubuntu22.04"
            yield Finding(below, "neither `image` nor `build`", "one of them", hint)
        yield from _dockerfile(node, context)


def _dockerfile(node: YamlNode, context: object) -> Iterator[Finding]:
    """Yield the findings about a local build context's Dockerfile and the files that it copies."""
    folder = assets.local_path(context, node.folder) if isinstance(context, str) else None
    if folder is None or not folder.exists():
        return  # `missing-file`
    keys, written = (*node.keys, "build", "path"), node.get("build", "dockerfile_path")
    if not folder.is_dir():
        yield Finding(keys, f"`{context}` is a file", "the folder that the Dockerfile is in")
        return
    keys = (*keys[:-1], "dockerfile_path") if written else keys
    if actual := _absence(folder, str(written or "Dockerfile")):
        hint = "its path is relative to the context, not to this file"
        yield Finding(keys, actual, "a Dockerfile in the build context", hint)
        return
    instructions = packages.instructions(folder / str(written or "Dockerfile"))
    if instructions is None:
        return
    if "FROM" not in {instruction for instruction, _ in instructions}:
        yield Finding(keys, "the Dockerfile has no build stage", "a line `FROM IMAGE`")
    for instruction, arguments in instructions:
        is_plain = instruction in {"COPY", "ADD"} and not _COPIES_ELSE.search(arguments)
        for name in arguments.split()[:-1] if is_plain else ():
            if not name.startswith("--") and not (folder / name.lstrip("/")).exists():
                actual = (
                    f"`{instruction} {arguments}`: `{name}` is not in `{repository.shown(folder)}`"
                )
                yield Finding(keys, actual, "a file of the build context")


@rule("bad-traffic", scope="online_endpoint", source=f"{_ONLINE}: traffic, mirror_traffic")
def bad_traffic(subject: Subject) -> Iterator[Finding]:
    """Traffic adds up to 0 or 100 %; one deployment without traffic gets at most 50 % mirrored.

    azure-ai-ml 1.35 limits mirrored traffic in `_schema/_endpoint/online`.
    """
    spec = subject.spec
    shares, mirrors = (
        {str(name): whole_number(share) for name, share in spec.mapping(key).items()}
        for key in ("traffic", "mirror_traffic")
    )
    siblings = [
        assets.read_referenced(file.name, spec.folder) for file in spec.folder.glob("*.y*ml")
    ]
    deployments = [
        part for part in siblings if part and part.get("endpoint_name") == spec.get("name")
    ]
    declared = {str(part.get("name")) for part in deployments}
    for key, values, most in (("traffic", shares, 100), ("mirror_traffic", mirrors, 50)):
        for name, share in values.items():
            if share is None or not 0 <= share <= most:
                actual = f"`{name}` gets {spec.get(key, name)} %"
                yield Finding((key, name), actual, f"a whole number from 0 to {most}")
            elif share and key == "mirror_traffic" and shares.get(name):
                actual = f"`{name}` gets live traffic and {share} % of mirrored traffic"
                hint = f"delete `{name}` from `mirror_traffic` or from `traffic`"
                yield Finding((key, name), actual, "a deployment without live traffic", hint)
            elif declared and name not in declared:
                actual = f"no file in this folder declares a deployment `{name}`"
                listed = ", ".join(sorted(declared))
                yield Finding((key, name), actual, f"one of {listed}", severity="warning")
    total = sum(share or 0 for share in shares.values())
    if None not in shares.values() and total not in {0, 100}:
        hint = "give the deployments 100 % in total, or 0 % before the first release"
        yield Finding(("traffic",), f"the traffic adds up to {total} %", "0 or 100", hint)
    if len(mirrors) > 1:
        yield Finding(
            ("mirror_traffic",), f"{len(mirrors)} deployments mirror traffic", "at most one"
        )
    elif any(mirrors.values()) and not total:
        actual, hint = "no traffic to mirror", "set `traffic` of a deployment to 100 first"
        yield Finding(("mirror_traffic",), actual, "a live deployment", hint, "warning")


def whole_number(value: object) -> int | None:
    """Parse an integer from a number or text, as azure-ai-ml does; None for other values."""
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
    """A model version is a positive integer, in a model's spec and in references."""
    spec = subject.spec
    versions = list[tuple[tuple[Key, ...], object]]()
    if spec.kind.family == "model":
        versions.append((("version",), spec.get("version")))
    for keys, value in walk(spec.document.data):
        inside = keys[-2:-1] in {("inputs",), ("outputs",)} and isinstance(value, dict)
        if inside and str(value.get("type")) in MODEL_TYPES:
            reference = assets.parse(str(value.get("path") or ""))
            versions += [((*keys, "version"), value.get("version"))]
            versions += [((*keys, "path"), reference.version or None)] if reference else []
    for keys, value in fields(spec.document.data):
        if keys[-1] == "model" and isinstance(value, dict):
            versions.append(((*keys, "version"), value.get("version")))
        elif keys[-1] == "model" and isinstance(value, str) and (name := assets.parse(value)):
            versions.append((keys, name.version or None))
    for field, version in versions:
        if version is not None and not re.fullmatch(r"0*[1-9][0-9]*", str(version)):
            hint = "move the text to `tags`"
            yield Finding(field, f"the version of the model is `{version}`", "1, 2, 3 …", hint)


@rule(
    "scoring-script",
    scope=DEPLOYMENTS,
    source="azure-ai-ml 1.35 validate_scoring_script; how-to-deploy-custom-container",
)
def scoring_script(subject: Subject) -> Iterator[Finding]:
    """A deployment has a scoring script, unless it has an MLflow or Triton model or its own server.

    Its own server: the environment has a Dockerfile or `inference_config`. A missing script is only
    a warning if the environment is defined elsewhere.
    """
    spec, keys = subject.spec, ("code_configuration", "scoring_script")
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
    folder = assets.local_path(code, spec.folder) if isinstance(code, str) else None
    if not isinstance(code, str) or not isinstance(script, str):
        hint = "`code` is a folder, and `scoring_script` a file in it"
        yield Finding(keys[:1], f"it has no `{'scoring_script' if code else 'code'}`", "both", hint)
    elif folder is not None and folder.is_dir() and (actual := _absence(folder, script)):
        yield Finding(keys, actual, "a file in `code`", "it is relative to `code`")


def _absence(folder: Path, name: str) -> str:
    """Return the reason why `folder` uploads no file `name`; "" if it does."""
    file = folder / name
    if not file.is_file() or not file.resolve().is_relative_to(folder.resolve()):
        return f"`{name}` is not in `{repository.shown(folder)}`"
    ignored = IgnoreFile(folder)
    is_excluded = ignored.file is not None and ignored.excludes(os.path.normpath(name))
    return f"the folder's ignore file excludes `{name}`" if is_excluded else ""


def _runs(command: str) -> Iterator[tuple[str, str]]:
    """Yield (group of `_RUNS`, name) of each script, module or file that a command runs.

    Stop at a command that may create scripts for the later ones.
    """
    text = re.sub(r"\\\n", " ", without_placeholders(command, "$"))
    text = re.sub(r"(?m)(?:^|\s)#.*$|\d*[<>]&\d", "", text).replace("\n", ";")
    # Remove the syntax of subshells and conditions, to check the commands inside.
    text = re.sub(r"(^|[;&|])((?:\s*(?:\(|(?:if|then|elif|else|while|do|!|\{)\s))+)", r"\1", text)
    text = re.sub(r"\)(?=\s*(?:[;&|]|$))", "", text)
    folder = PurePosixPath()
    written = set[str]()
    for words in packages.commands(text):
        if match := _RUNS.fullmatch(" ".join(words)):
            group = str(match.lastgroup)
            name = match[group] if group == "module" else str(folder / match[group])
            if os.path.normpath(match[group]) not in written and (
                group != "module" or not folder.name
            ):
                yield group, name
        elif words[0] == "cd" and len(words) == 2 and re.fullmatch(r"[\w./-]+", words[1]):
            folder /= words[1]
        elif len(words) == 3 and words[0] in {"bash", "sh"} and words[1].endswith("c"):
            yield from _runs(words[2])
        elif not _HARMLESS.fullmatch(words[0]):
            return
        written |= {os.path.normpath(word.lstrip("<>")) for word in words}


@rule("missing-script", scope=_KEYS, source="a job ends with exit code 2 once its node is up")
def missing_script(node: Node) -> Iterator[Finding]:
    """The scripts and modules that a command, parallel or Spark step runs are in its `code`."""
    code_keys, keys = _KEYS[node.type]
    code, text = node.get(*code_keys), node.get(*keys)
    folder = assets.local_path(code, node.folder) if isinstance(code, str) else None
    if not isinstance(text, str) or (code is not None and not (folder and folder.is_dir())):
        return
    for kind, name in dict.fromkeys(_runs(text) if keys[-1] == "command" else [("file", text)]):
        actual = ""
        if kind == "module" and folder:
            paths = folder / name.partition(".")[0], folder / name.replace(".", "/")
            if [path.is_dir() or Path(f"{path}.py").is_file() for path in paths] == [True, False]:
                actual = f"the module `{name}` is not in `{repository.shown(folder)}`"
            elif not paths[0].is_dir() and _is_not_installed(node, name.partition(".")[0], text):
                where = f"`{repository.shown(folder)}` and not in the environment"
                expected = "a module of `code`, or of a package of the environment"
                actual = f"the module `{name}` is not in {where}"
                yield Finding(keys, actual, expected, severity="warning")
                continue
        elif kind != "module" and not re.search(r"[$*?{\[(`]|^[/~]|(^|/)[^.]+$", name):
            actual = _absence(folder, name) if folder else f"there is no `code` with `{name}`"
        if actual:
            yield Finding(keys, actual, "a file in `code`", "it is relative to `code`")


def _is_not_installed(node: Node, module: str, command: str) -> bool:
    """Return True if all packages of the job's environment are known and none has the module."""
    written = node.get("environment")
    is_known = isinstance(written, str) and not re.search(r"\binstall\b", command)
    listed = packages.of_environment(node.folder, str(written)) if is_known else None
    return (
        listed is not None
        and listed.is_known
        and module not in sys.stdlib_module_names | listed.libraries
        and module.replace("_", "-") not in listed.names
    )


def _named(spec: Spec, key: str) -> YamlNode | None:
    """Return a deployment's `model` or `environment`, inline or of this repository; else None."""
    written = spec.get(key)
    if not isinstance(written, str):
        return spec.child(key) if isinstance(written, dict) else None
    file = assets.read_referenced(written, spec.folder)
    return file or assets.find(written, key, repository.root(spec.file))


_SPARK = ("driver.cores", "driver.memory", "executor.cores", "executor.memory")
_DYNAMIC = ("dynamicAllocation.minExecutors", "dynamicAllocation.maxExecutors")


@rule("spark-settings", scope="spark", source="azure-ai-ml 1.35 _validate_spark_configurations")
def spark_settings(node: Node) -> Iterator[Finding]:
    """A Spark job sets cores, memory and executors in `conf`, and `compute` or `resources`."""
    if node.is_component or "component" in node.data:
        return
    conf, has_compute = node.mapping("conf"), bool(compute(node))
    is_dynamic = str(conf.get("spark.dynamicAllocation.enabled")).lower() == "true"
    needed = (*_SPARK, *(_DYNAMIC if is_dynamic else ("executor.instances",)))
    if missing := [f"spark.{name}" for name in needed if f"spark.{name}" not in conf]:
        yield Finding(("conf",), "`conf` is incomplete", f"also {', '.join(missing)}")
    sizes, keys = spark_sizes(), ("resources", "instance_type")
    size = node.get(*keys)
    if isinstance(size, str) and size.lower() not in sizes:
        yield Finding(keys, f"Spark does not run on {size}", f"one of {', '.join(sizes)}")
    if node.parent is None and has_compute == bool(node.mapping("resources")):
        actual = "both `compute` and `resources`" if has_compute else "no compute"
        yield Finding((), actual, "either `compute` or `resources`")


@rule("no-compute", scope="node", source="azure-ai-ml 1.35 PipelineJob._validate_compute_is_set")
def no_compute(node: Node) -> Iterator[Finding]:
    """A step has a compute: its own, or the default of an enclosing pipeline."""
    top = node
    while above := top.parent or top.user:
        top = above
    name = compute(node)
    if name != "azureml:" and (
        name or node.parent is None or top.is_component or node.type not in _COMPUTING
    ):
        return
    hint = "settings: {default_compute: azureml:cpu-cluster}, or azureml:serverless"
    yield Finding((), f"step `{node.name}` has no compute", "`compute`, or a default", hint)


@rule(
    "scale-settings",
    scope=("online_deployment", "compute"),
    source="azure-ai-ml 1.35 ManagedOnlineDeployment._validate_scale_settings",
)
def scale_settings(subject: Subject) -> Iterator[Finding]:
    """Only Kubernetes deployments use `target_utilization`; min_instances <= max_instances."""
    matches_deployment = subject.spec.kind.family == "online_deployment"
    prefix: tuple[Key, ...] = ("scale_settings",) if matches_deployment else ()
    scale = subject.spec.mapping(*prefix)
    is_kubernetes = (
        "kubernetes" in f"{subject.spec.get('$schema')}{subject.spec.get('type')}".lower()
    )
    if scale.get("type") == "target_utilization" and not is_kubernetes:
        hint = "set instance_count, and rules of Azure Monitor on the deployment"
        yield Finding(("scale_settings", "type"), "`target_utilization`", "`default`", hint)
    low, high = (whole_number(scale.get(key)) for key in ("min_instances", "max_instances"))
    if low is not None and high is not None and low > high >= 0:
        keys = (*prefix, "min_instances")
        yield Finding(keys, f"`min_instances` is {low}", f"at most `max_instances`, {high}")


@rule("instance-type", scope="spec", source="virtual-machines/vm-naming-conventions")
def instance_type(subject: Subject) -> Iterator[Finding]:
    """An `instance_type` that begins with "Standard" is a VM size with its underscores."""
    for keys, size in fields(subject.spec.document.data):
        is_size = keys[-1] == "instance_type" and re.match("(?i)standard", str(size))
        if is_size and not _SIZE.fullmatch(str(size)):
            fixed = re.sub(r"(?i)^standard[_-]?(.*?)[_-]?v(\d+)$", r"Standard_\1_v\2", str(size))
            hint = f"did you mean `{fixed}`?" if _SIZE.fullmatch(fixed) else ""
            yield Finding(keys, f"`{size}` is no VM size", "such as Standard_DS3_v2", hint)


@rule("endpoint-mismatch", scope="online_deployment", source=f"{_ONLINE}: name")
def endpoint_name(subject: Subject) -> Iterator[Finding]:
    """The `endpoint_name` of a deployment is the endpoint that its folder declares."""
    spec, name = subject.spec, str(subject.spec.get("endpoint_name"))
    siblings = [
        assets.read_referenced(file.name, spec.folder) for file in spec.folder.glob("*.y*ml")
    ]
    parts = [part for part in siblings if part and isinstance(part.get(), dict)]
    declared = {
        str(part.get("name")): part.place("name")
        for part in parts
        if (kind := kind_of(part.get())) and kind.family == "online_endpoint"
    }
    if len(declared) == 1 and name not in declared and is_name("endpoint", name):
        (declared_name,) = declared
        actual, hint = f"`endpoint_name` is `{name}`", f"{declared[declared_name]} declares it"
        yield Finding(("endpoint_name",), actual, f"endpoint_name: {declared_name}", hint)


@rule("model-folder", scope="model", source="mlflow.org Model: MLmodel; Triton: model repository")
def model_folder(subject: Subject) -> Iterator[Finding]:
    """An MLflow model folder has a file MLmodel; a Triton model folder has NAME/VERSION/FILE."""
    spec = subject.spec
    kind, path = spec.get("type"), spec.get("path")
    folder = assets.local_path(path, spec.folder) if isinstance(path, str) else None
    pattern = {"mlflow_model": "MLmodel", "triton_model": "*/*/*"}.get(str(kind))
    if pattern and folder and folder.exists() and not any(folder.glob(pattern)):
        hint = "name the folder that the library saved, or use `type: custom_model`"
        yield Finding(("path",), f"`{path}` has no `{pattern}`", f"the folder of a {kind}", hint)


@rule("deployment-build", scope="online_deployment", source="sizes-gpu: N-series have GPUs")
def deployment_build(subject: Subject) -> Iterator[Finding]:
    """An online deployment on a GPU size has an environment that is built for CUDA."""
    size = str(subject.spec.get("instance_type"))
    is_gpu = re.match(r"Standard_N[CDGV]", size, re.IGNORECASE)
    if is_gpu and packages.device_of(subject.spec, "environment") == "cpu":
        actual = f"the environment is built for CPU, so the GPUs of {size} stay idle"
        expected, hint = "an environment with CUDA", "environment: azureml:ml-torch-gpu:1"
        yield Finding(("environment",), actual, expected, hint)
