"""Deployment specs: the serving code and the settings of deployment.yml, under one digest.

A release declares this digest and the model's. The proposed files are stored, so that a rollback
can serve the earlier ones even if the project's files have changed.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import fields, replace
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

import yaml
from pydantic import TypeAdapter, ValidationError

from ml.backends.endpoints import NAMES, DeploymentSpec, ModelDeployment
from ml.backends.model_registry import Registry, Version
from ml.backends.snapshot import copy, unnamed_projects
from ml.core import documents, files, home, repository, trees
from ml.core.errors import Exit, Place, Problem, UserError, errors
from ml.specs.assets.ignore_file import IgnoreFile
from ml.specs.check.rules.security import TIMEOUT, deployment_faults, environment_faults
from ml.specs.plan.bindings import Bindings
from ml.specs.sdk.load import load
from ml.specs.yaml_node import YamlNode
from policies.promotion import gate_settings
from policies.supply_chain.serving_code import Code

# The sample requests that are stored with a deployment spec.
SAMPLES = "requests.json"
_DIGEST = re.compile(r"(sha256:[0-9a-f]{12})[0-9a-f]+")


_SPEC = TypeAdapter(DeploymentSpec)


def snapshot(spec: DeploymentSpec) -> DeploymentSpec:
    """Return the same spec with its code in a snapshot, from which the deployment digest follows.

    The snapshot excludes the projects that the scoring script's project does not name: a change
    of them releases nothing. It also excludes the build contexts of environments, which the field
    `environment` describes.
    """
    excluded = _other_projects(spec) | {spec.code / "ml" / "environments"}
    return replace(spec, code=copy(spec.code, excluded))


def _other_projects(spec: DeploymentSpec) -> Set[Path]:
    """Return the folders to exclude: projects that the scoring script's project does not name."""
    root = repository.root(spec.code)
    folder, script = root / "ml" / "projects", spec.code / spec.scoring_script
    if not script.is_relative_to(folder):
        return frozenset()
    return unnamed_projects(root, [script.relative_to(folder).parts[0]])


def model_deployment(spec: DeploymentSpec, version: Version, endpoint: str) -> ModelDeployment:
    """Return the deployment of the version to the endpoint; the spec's code must be a snapshot."""
    return ModelDeployment(
        endpoint=endpoint,
        model=version.model,
        version=version.version,
        digest=version.digest,
        model_folder=version.folder,
        deployment_digest=spec.snapshot_digest,
        **{field.name: getattr(spec, field.name) for field in fields(spec)},
    )


def read(folder: Path, gates: Path | None = None) -> DeploymentSpec:
    """Return the spec from endpoint.yml and deployment.yml in the folder.

    Raise UserError if a file is invalid, if the two contradict each other, or if the serving code
    may load code from data: `gates` is the project's gates.yml, which lists the allowed imports.
    """
    from ml.specs.check.check import check

    endpoint_file, deployment_file = load(folder / "endpoint.yml"), load(folder / "deployment.yml")
    if problems := errors([*check(endpoint_file), *check(deployment_file)]):
        raise UserError(*problems)
    for path, family in (
        (endpoint_file, "online_endpoint"),
        (deployment_file, "online_deployment"),
    ):
        if path.kind.family != family:
            expected = f"an {family.replace('_', ' ')}"
            hint = "correct its $schema"
            actual = f"the file defines a {path.kind}"
            raise UserError.with_code("wrong-kind", actual, expected, hint, path.place())
    endpoint, deployment = endpoint_file.entity, deployment_file.entity
    if deployment.endpoint_name != endpoint.name:
        raise UserError.with_code(
            "endpoint-mismatch",
            f"the deployment is for `{deployment.endpoint_name}`",
            f"`{endpoint.name}`, as in endpoint.yml",
            f"endpoint_name: {endpoint.name}",
            place=deployment_file.place("endpoint_name"),
        )
    configuration = deployment.code_configuration
    if configuration is None:
        raise UserError.with_code(
            "no-code",
            "the deployment has no `code_configuration`",
            "`code` and `scoring_script`",
            "add it: without it Azure ML needs an MLflow model, which is a pickle",
            deployment_file.place(),
        )
    code = (folder / configuration.code).resolve()
    script = str(configuration.scoring_script)
    if problems := code_from_data(code, script, gates):
        raise UserError(*problems)
    settings = deployment.request_settings
    variables = {str(k): str(v) for k, v in (deployment.environment_variables or {}).items()}
    if settings is not None and settings.request_timeout_ms:
        # A managed endpoint sets it from request_settings.
        variables.setdefault(TIMEOUT, str(settings.request_timeout_ms))
    # `check` above has checked the variables of the file; this checks the timeout.
    for fault in deployment_faults(variables, None):
        place = deployment_file.place("request_settings")
        raise UserError.with_code("wrong-value", fault.actual, fault.expected, place=place)
    # An environment that is only named, and not defined in the repository, has no content.
    bindings = Bindings(repository.root(deployment_file.file), None)
    environment = bindings.environment(deployment_file, "environment")
    if bindings.problems:
        raise UserError(*bindings.problems)
    return DeploymentSpec(
        code=code,
        scoring_script=script,
        environment_variables=variables,
        collect=_collected(deployment.data_collector),
        settings=deployment_file.document.data,
        environment=environment.content,
        server=environment.server,
    )


def included(code: Path) -> Mapping[str, Path]:
    """Return the files of a `code:` folder that Azure ML uploads, by their path in it."""
    return dict(IgnoreFile(code).files({home.home()}))


def code_from_data(
    code: Path,
    script: str,
    gates: Path | None = None,
    listing: Callable[[Path], Mapping[str, Path]] = included,
) -> tuple[Problem, ...]:
    """Return a problem for each way in which the serving code may load code from data.

    It checks the modules that the server imports, and the files beside them. `listing` returns the
    files of a code folder by name.
    """
    allowed = gate_settings.load(gates)["format"].names("imports")
    serving_code = Code(listing(code), posixpath.normpath(script), allowed, repository.root(code))
    return tuple(
        Problem(
            "code-from-data",
            trace.actual,
            "serving code that loads no code from data: only modules listed in `format.imports`",
            "read text, npz or safetensors; import what training alone needs in the function that "
            "needs it; a reviewer of policies/promotion/gates.yml can add a "
            "module to `format.imports` (policies/README.md, Serving code)",
            Place(repository.shown(trace.file), trace.line),
        )
        for trace in serving_code.traces()
    )


def code_problems(
    deployment: Path, listing: Callable[[Path], Mapping[str, Path]] = included
) -> Sequence[Problem]:
    """Return the `code_from_data` problems of a deployment.yml's code; a proposal rejects them.

    () if the file is invalid in another way, which another check reports.
    """
    try:
        configuration = documents.read(deployment).get("code_configuration")
        code = (deployment.parent / configuration["code"]).resolve()
        script = str(configuration["scoring_script"])
        gates = deployment.parents[1] / "gates.yml"
        is_there = (code / script).is_file()
        own_gates = gates if gates.is_file() else None
        return code_from_data(code, script, own_gates, listing) if is_there else ()
    except (UserError, KeyError, TypeError):
        return ()


def store(
    registry: Registry, spec: DeploymentSpec, samples: Sequence[Mapping[str, object]] = ()
) -> None:
    """Store the spec and its sample requests under its digest, here and in the shared registry."""
    path = _path(spec.snapshot_digest)
    files.replace(path.with_name(SAMPLES), json.dumps([*samples], indent=1) + "\n")
    files.replace(path, _SPEC.dump_json(spec, indent=1).decode() + "\n")
    if (shared := registry.shared) is not None:
        for folder in (spec.code, path.parent):
            shared.keep_folder(spec.endpoint_name, folder)


def fetch(registry: Registry, model: str, digest: str) -> DeploymentSpec | None:
    """Return the spec with that digest, downloaded if another machine stored it; None as `find`.

    Raises UserError if its environment variables or its environment are not allowed in a
    deployment.
    """
    file = _path(digest)
    shared = registry.shared
    if shared is not None:
        shared.download_folder(model, file.parent, lambda folder: _has(folder / file.name, digest))
    if (spec := _read(digest)) is not None:
        mount = spec.settings.get("model_mount_path")
        document = documents.parse(yaml.safe_dump(dict(spec.settings)), file.name)
        deployment = YamlNode(document, spec.code / spec.scoring_script)
        faults = {
            "deployment-variable": deployment_faults(spec.environment_variables, mount),
            "unpinned-environment": environment_faults(deployment),
        }
        for name, fault in ((name, fault) for name, texts in faults.items() for fault in texts):
            raise UserError.with_code(
                name,
                f"{fault.actual} in the proposed deployment {digest[:12]}",
                fault.expected,
                "change deployment.yml and propose the version again",
                exit_code=Exit.GATE_SAID_NO,
            )
        content = trees.DIGEST_PREFIX + spec.code.name
        if shared is not None:
            shared.download_folder(
                model, spec.code, lambda folder: trees.is_content(folder, content)
            )
    return find(digest)


def samples(digest: str) -> Sequence[Mapping[str, object]]:
    """Return the sample requests that were stored with the serving code; () if there are none.

    A later version may need other requests. The samples are not part of the digest.
    """
    try:
        content = json.loads(_path(digest).with_name(SAMPLES).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return ()
    is_sound = isinstance(content, list) and all(isinstance(row, dict) for row in content)
    return content if is_sound else ()


def _has(file: Path, digest: str) -> bool:
    """Return whether the file holds the deployment spec with that digest."""
    try:
        return _SPEC.validate_json(file.read_bytes()).snapshot_digest == digest
    except (OSError, ValidationError):
        return False


def find(digest: str) -> DeploymentSpec | None:
    """Return the spec stored under the digest; None if there is none or its code is missing.

    Raises UserError if the file was changed.
    """
    spec = _read(digest)
    return spec if spec is not None and spec.code.is_dir() else None


def _read(digest: str) -> DeploymentSpec | None:
    path = _path(digest)
    try:
        spec = _SPEC.validate_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValidationError, ValueError) as error:
        raise _edited(path, str(error).splitlines()[0]) from None
    if spec.snapshot_digest != digest:
        raise _edited(path, "its content has another digest")
    if spec.code != home.snapshots() / spec.code.name:
        raise _edited(path, f"its code is in {spec.code}")
    return spec


def changes(before: DeploymentSpec, after: DeploymentSpec) -> Iterator[str]:
    """Yield a sentence for each difference in code files, environment and settings."""
    old, new = _files(before.code), _files(after.code)
    for name in sorted(old.keys() | new.keys()):
        if name not in old:
            yield f"{name} is new"
        elif name not in new:
            yield f"{name} is gone"
        elif old[name] != new[name]:
            added, removed = _lines(old[name], new[name])
            yield f"{name}: {added} line{'' if added == 1 else 's'} added, {removed} removed"
    if before.environment != after.environment:
        yield "environment: " + " → ".join(
            ", ".join(
                _DIGEST.sub(r"\1…", line)
                for line in first.environment
                if line not in second.environment
            )
            or "nothing"
            for first, second in ((before, after), (after, before))
        )
    for key in sorted((before.settings.keys() | after.settings.keys()) - NAMES):
        was, now = before.settings.get(key), after.settings.get(key)
        if was != now:
            yield f"{key}: {_shown(was)} → {_shown(now)}"


def _collected(collector: Any) -> float:
    """Return the share of payloads to record: `sampling_rate`, by default 1; 0 if disabled.

    The collections `request` and `response` must both be enabled. The scoring script itself writes
    other collections.
    """
    if collector is None:
        return 0.0
    enabled = {
        name
        for name, collection in collector.collections.items()
        if str(collection.enabled).lower() == "true"
    }
    if not {"request", "response"} <= enabled:
        return 0.0
    return 1.0 if collector.sampling_rate is None else float(collector.sampling_rate)


def _path(digest: str) -> Path:
    return home.deployment_specs() / digest / "serving.json"


def _edited(path: Path, why: str) -> UserError:
    return UserError.with_code(
        "serving-edited",
        f"{path} cannot be used: {why}",
        "the serving code and settings as they were proposed",
        "delete the file, then: ml release propose PROJECT",
        exit_code=Exit.GATE_SAID_NO,
    )


def _files(folder: Path) -> dict[str, bytes]:
    if not folder.is_dir():
        return {}
    paths = (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def _lines(before: bytes, after: bytes) -> tuple[int, int]:
    old, new = (content.decode(errors="replace").splitlines() for content in (before, after))
    added = removed = 0
    for kind, first, end, new_first, new_end in SequenceMatcher(None, old, new).get_opcodes():
        if kind != "equal":
            added, removed = added + new_end - new_first, removed + end - first
    return added, removed


def _shown(value: object) -> str:
    return "nothing" if value is None else json.dumps(value, sort_keys=True, default=str)
