"""How a model is served: its serving code and the settings of deployment.yml, under one digest.

A release declares the digest beside the model's. The proposed files are stored, so that a rollback
serves the earlier ones, even if the project's files have changed.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, fields, replace
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

import yaml
from pydantic import ConfigDict, TypeAdapter, ValidationError

from ml.backends.endpoints import NAMES, Launch, ServingCode
from ml.backends.model_registry import Registry, Version
from ml.backends.snapshot import copy, unnamed_projects
from ml.core import documents, files, home, repository, trees
from ml.core.errors import Exit, Place, Problem, UserError, errors
from ml.specs.assets.ignore_file import IgnoreFile
from ml.specs.check.rules.security import TIMEOUT, deployment_faults, environment_faults
from ml.specs.parts import Part
from ml.specs.plan.bindings import Bindings
from ml.specs.sdk.load import load
from policies.promotion import gate_settings
from policies.supply_chain.serving_code import Code

# The sample requests beside a serving that was kept.
SAMPLES = "requests.json"
_DIGEST = re.compile(r"(sha256:[0-9a-f]{12})[0-9a-f]+")


@dataclass(frozen=True)
class Serving(ServingCode):
    """The serving code of a project, as its files say or as it was proposed."""

    __pydantic_config__ = ConfigDict(extra="forbid", strict=True)

    @property
    def endpoint(self) -> str:
        """The endpoint that it is deployed to, which names the model too."""
        return str(self.settings["endpoint_name"])

    @property
    def instance_type(self) -> str:
        """The machine that Azure ML serves it on; "" where deployment.yml names none."""
        return str(self.settings.get("instance_type") or "")

    def snapshot(self) -> Serving:
        """Return the same with its code in a snapshot, which its digest is made from.

        Projects that the scoring script's project does not name are left out: code that a change
        of them would not release cannot answer either. So are the environments' build contexts:
        `environment` describes the one that it needs.
        """
        excluded = self._other_projects() | {self.code / "ml" / "environments"}
        return replace(self, code=copy(self.code, excluded))

    def _other_projects(self) -> Set[Path]:
        """The folders of the projects that the scoring script's project does not name in code."""
        root = repository.root(self.code)
        folder, script = root / "ml" / "projects", self.code / self.scoring_script
        if not script.is_relative_to(folder):
            return frozenset()
        return unnamed_projects(root, [script.relative_to(folder).parts[0]])

    @property
    def digest(self) -> str:
        """The sha256 of the snapshot and settings, in hex; the deployment's names do not count."""
        return self.digest_with(self.code.name)

    def launch(self, version: Version, endpoint: str) -> Launch:
        """Return the launch of the version on the endpoint: its files and server settings."""
        return Launch(
            endpoint=endpoint,
            model=version.model,
            version=version.version,
            digest=version.digest,
            model_folder=version.folder,
            serving=self.digest,
            **{field.name: getattr(self, field.name) for field in fields(self)},
        )


_SERVING = TypeAdapter(Serving)


def read(folder: Path, gates: Path | None = None) -> Serving:
    """endpoint.yml and deployment.yml in the folder; raise UserError when they do not fit together,
    and when the code may load code from data, as the project's gates.yml (`gates`) lists its
    imports.
    """
    from ml.specs.check.check import check

    endpoint_spec, spec = load(folder / "endpoint.yml"), load(folder / "deployment.yml")
    if problems := errors([*check(endpoint_spec), *check(spec)]):
        raise UserError(*problems)
    for path, family in ((endpoint_spec, "online_endpoint"), (spec, "online_deployment")):
        if path.kind.family != family:
            expected = f"an {family.replace('_', ' ')}"
            hint = "correct its $schema"
            actual = f"the file defines a {path.kind}"
            raise UserError.of("wrong-kind", actual, expected, hint, path.place())
    endpoint, deployment = endpoint_spec.entity, spec.entity
    if deployment.endpoint_name != endpoint.name:
        raise UserError.of(
            "endpoint-mismatch",
            f"the deployment is for `{deployment.endpoint_name}`",
            f"`{endpoint.name}`, as in endpoint.yml",
            f"endpoint_name: {endpoint.name}",
            place=spec.place("endpoint_name"),
        )
    configuration = deployment.code_configuration
    if configuration is None:
        raise UserError.of(
            "no-code",
            "the deployment has no `code_configuration`",
            "`code` and `scoring_script`",
            "add it: without it Azure ML needs an MLflow model, which is a pickle",
            spec.place(),
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
    # Those of the file are checked already.
    for fault in deployment_faults(variables, None):
        place = spec.place("request_settings")
        raise UserError.of("wrong-value", fault.actual, fault.expected, place=place)
    # Without content where only its name is here.
    bindings = Bindings(repository.root(spec.file), None)
    environment = bindings.environment(spec, "environment")
    if bindings.problems:
        raise UserError(*bindings.problems)
    return Serving(
        code=code,
        scoring_script=script,
        environment_variables=variables,
        collect=_collected(deployment.data_collector),
        settings=spec.document.data,
        environment=environment.content,
        server=environment.server,
    )


def code_from_data(code: Path, script: str, gates: Path | None = None) -> tuple[Problem, ...]:
    """Return a problem for each way in which the serving code may load code from data.

    It covers what the server imports, and files beside it.
    """
    listed = gate_settings.load(gates)["format"].names("imports")
    files = dict(IgnoreFile(code).files({home.home()}))
    serving_code = Code(files, posixpath.normpath(script), listed, repository.root(code))
    return tuple(
        Problem(
            "code-from-data",
            trace.actual,
            "serving code that loads no code from data: modules of the list `format.imports`",
            "read text, npz or safetensors; import what training alone needs in the function that "
            "needs it; a reviewer of policies/promotion/gates.yml can add a "
            "module to `format.imports` (policies/README.md, Serving code)",
            Place(repository.shown(trace.file), trace.line),
        )
        for trace in serving_code.traces()
    )


def code_problems(deployment: Path) -> Sequence[Problem]:
    """Return the problems of a deployment.yml's code for which a proposal would be rejected.

    A file that is invalid in another way has none here: another check reports that.
    """
    try:
        configuration = documents.read(deployment).get("code_configuration")
        code = (deployment.parent / configuration["code"]).resolve()
        script = str(configuration["scoring_script"])
        gates = deployment.parents[1] / "gates.yml"
        is_there = (code / script).is_file()
        return code_from_data(code, script, gates if gates.is_file() else None) if is_there else ()
    except (UserError, KeyError, TypeError):
        return ()


def keep(
    registry: Registry, serving: Serving, samples: Sequence[Mapping[str, object]] = ()
) -> None:
    """Keep it under its digest, here and in the registry, with sample requests that it answers."""
    path = _path(serving.digest)
    files.replace(path.with_name(SAMPLES), json.dumps([*samples], indent=1) + "\n")
    files.replace(path, _SERVING.dump_json(serving, indent=1).decode() + "\n")
    if (shared := registry.shared) is not None:
        for folder in (serving.code, path.parent):
            shared.keep_folder(serving.endpoint, folder)


def bring(registry: Registry, model: str, digest: str) -> Serving | None:
    """Find what any machine stored under the digest, to be served, as `find`.

    Raises UserError if its variables or its environment are not allowed in a deployment.
    """
    file = _path(digest)
    shared = registry.shared
    if shared is not None:
        shared.bring_folder(model, file.parent, lambda folder: _has(folder / file.name, digest))
    if (serving := _read(digest)) is not None:
        mount = serving.settings.get("model_mount_path")
        document = documents.parse(yaml.safe_dump(dict(serving.settings)), file.name)
        deployment = Part(document, serving.code / serving.scoring_script)
        faults = {
            "deployment-variable": deployment_faults(serving.environment_variables, mount),
            "unpinned-environment": environment_faults(deployment),
        }
        for name, fault in ((name, fault) for name, texts in faults.items() for fault in texts):
            raise UserError.of(
                name,
                f"{fault.actual} in the proposed deployment {digest[:12]}",
                fault.expected,
                "change deployment.yml and propose the version again",
                exit_code=Exit.GATE_SAID_NO,
            )
        content = trees.DIGEST_PREFIX + serving.code.name
        if shared is not None:
            shared.bring_folder(
                model, serving.code, lambda folder: trees.is_content(folder, content)
            )
    return find(digest)


def samples(digest: str) -> Sequence[Mapping[str, object]]:
    """Return the sample requests that were stored with the serving code; () if there are none.

    A later version may take other requests. They are not part of the digest.
    """
    try:
        content = json.loads(_path(digest).with_name(SAMPLES).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return ()
    is_sound = isinstance(content, list) and all(isinstance(row, dict) for row in content)
    return content if is_sound else ()


def _has(file: Path, digest: str) -> bool:
    """Return whether the file holds the serving code and settings with that digest."""
    try:
        return _SERVING.validate_json(file.read_bytes()).digest == digest
    except (OSError, ValidationError):
        return False


def find(digest: str) -> Serving | None:
    """Return what was stored under the digest; None if nothing was, or its code snapshot is gone.

    Raises UserError if the file has changed.
    """
    serving = _read(digest)
    return serving if serving is not None and serving.code.is_dir() else None


def _read(digest: str) -> Serving | None:
    path = _path(digest)
    try:
        serving = _SERVING.validate_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValidationError, ValueError) as error:
        raise _edited(path, str(error).splitlines()[0]) from None
    if serving.digest != digest:
        raise _edited(path, "its content has another digest")
    if serving.code != home.snapshots() / serving.code.name:
        raise _edited(path, f"its code is in {serving.code}")
    return serving


def changes(before: Serving, after: Serving) -> Iterator[str]:
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
    """Return the share of payloads to record: all, unless `sampling_rate` is lower.

    `request` and `response` are the collections of payload logging; both are needed here. Other
    collections are written by the scoring script itself.
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
    return home.servings() / digest / "serving.json"


def _edited(path: Path, why: str) -> UserError:
    return UserError.of(
        "serving-edited",
        f"{path} cannot be used: {why}",
        "the serving code and settings as they were proposed",
        "remove the file and propose the version again",
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
