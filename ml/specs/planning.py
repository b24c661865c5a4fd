"""A checked spec → a frozen plan, every reference in it resolved. Pure: nothing is created."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from ml.specs import assets, check, repository
from ml.specs.frozen import Frozen
from ml.specs.load import Spec
from ml.specs.plan import (
    Asset,
    CommandPlan,
    Dimension,
    Distribution,
    EarlyTermination,
    Environment,
    InputPlan,
    OutputPlan,
    Plan,
    SweepPlan,
)
from ml.specs.problems import Exit, Place, Problem, Refused, errors

# What Azure ML takes where the spec says nothing: `uri_folder` data, mounted (command job YAML).
_DEFAULT_TYPE = "uri_folder"
_DEFAULT_INPUT_MODE = "ro_mount"
_DEFAULT_OUTPUT_MODE = "rw_mount"
# "max_total_trials … between 1 and 1000. Default value is 1000" (sweep job YAML).
_DEFAULT_TRIALS = 1000
_DEFAULT_CONCURRENT = 1

K = TypeVar("K")


def plan(spec: Spec, root: Path | None = None) -> Plan:
    """The plan of a command or sweep job; Refused with every error at once.

    `root` is the repository whose specs define `azureml:` assets. A kind of job that nothing here
    can run is refused with exit code 33.
    """
    found = errors(check.check(spec))
    if found:
        raise Refused(*found)
    if not spec.kind.is_job or spec.kind.type not in {"command", "sweep"}:
        _cannot(spec)
    planner = _Planner(spec, root or repository.root(spec.file))
    made = planner.sweep() if spec.kind.type == "sweep" else planner.command()
    if planner.problems:
        raise Refused(*planner.problems)
    return made


def _cannot(spec: Spec) -> NoReturn:
    what = f"{spec.kind} jobs" if not spec.kind.is_job else f"{spec.kind}s"
    problem = Problem(
        "unsupported-kind",
        f"this backend does not run {what} yet" if spec.kind.is_job else f"a {spec.kind} is no job",
        "a command or sweep job",
        "`ml check` checks it all the same",
        spec.place("type"),
    )
    raise Refused(problem, exit_code=Exit.CANNOT_HONOUR if spec.kind.is_job else Exit.WRONG_CALL)


class _Planner:
    """Reads the fields of one spec; gathers what is missing on the way."""

    def __init__(self, spec: Spec, root: Path) -> None:
        self.spec, self.root = spec, root
        self.problems: list[Problem] = []

    def command(self, trial: tuple[str, ...] = ()) -> CommandPlan:
        """The command job at the root, or the trial of a sweep at `trial`."""
        spec, at = self.spec, trial
        resources = spec.get(*at, "resources") or spec.get("resources") or {}
        return CommandPlan(
            place=spec.place(),
            display_name=str(spec.get("display_name") or spec.get("name") or spec.file.stem),
            experiment=str(spec.get("experiment_name") or spec.file.parent.name),
            command=str(spec.get(*at, "command")),
            code=self._code(*at, "code"),
            environment=self._environment(*at, "environment"),
            compute=str(spec.get("compute") or ""),
            environment_variables=Frozen(
                (str(k), _text(v))
                for k, v in (spec.get(*at, "environment_variables") or {}).items()
            ),
            inputs=Frozen((str(k), self._input(k)) for k in spec.get("inputs") or {}),
            outputs=Frozen((str(k), self._output(k)) for k in spec.get("outputs") or {}),
            timeout_s=_seconds(spec.get("limits", "trial_timeout" if at else "timeout")),
            instance_count=int(resources.get("instance_count") or 1),
            distribution=self._distribution(*at, "distribution"),
            tags=Frozen((str(k), str(v)) for k, v in (spec.get("tags") or {}).items()),
            places=self._places(at),
        )

    def sweep(self) -> SweepPlan:
        """The sweep job."""
        spec = self.spec
        algorithm = spec.get("sampling_algorithm") or "random"
        detail: dict[str, Any] = algorithm if isinstance(algorithm, dict) else {"type": algorithm}
        limits = spec.get("limits") or {}
        return SweepPlan(
            place=spec.place(),
            display_name=str(spec.get("display_name") or spec.get("name") or spec.file.stem),
            experiment=str(spec.get("experiment_name") or spec.file.parent.name),
            trial=self.command(("trial",)),
            search_space=Frozen(
                (str(name), dimension(spec, ("search_space", name)))
                for name in spec.get("search_space") or {}
            ),
            algorithm=str(detail["type"]).lower(),  # type: ignore[arg-type]  # the SDK checked it
            goal=str(spec.get("objective", "goal")).lower(),  # type: ignore[arg-type]
            primary_metric=str(spec.get("objective", "primary_metric")),
            seed=detail.get("seed"),
            rule=str(detail.get("rule") or "random").lower(),  # type: ignore[arg-type]
            max_total_trials=int(limits.get("max_total_trials") or _DEFAULT_TRIALS),
            max_concurrent_trials=int(limits.get("max_concurrent_trials") or _DEFAULT_CONCURRENT),
            timeout_s=_seconds(limits.get("timeout")),
            trial_timeout_s=_seconds(limits.get("trial_timeout")),
            early_termination=self._early_termination(),
            tags=Frozen((str(k), str(v)) for k, v in (spec.get("tags") or {}).items()),
            places=self._places(()),
        )

    def _input(self, name: str) -> InputPlan:
        spec, place = self.spec, self.spec.place("inputs", name)
        written = spec.get("inputs", name)
        if not isinstance(written, dict):
            kinds = {bool: "boolean", int: "integer", float: "number"}
            return InputPlan(name, kinds.get(type(written), "string"), place, value=written)
        kind, mode = written.get("type") or _DEFAULT_TYPE, written.get("mode")
        source = str(written.get("path") or "")
        mode = str(mode or _DEFAULT_INPUT_MODE)
        place = spec.place("inputs", name, "path")
        path, asset = assets.local(source, spec.folder), None
        reference = assets.parse(source)
        if reference is not None:
            found = assets.find(source, "data", self.root) or assets.find(
                source, "model", self.root
            )
            path = found.path if found else None
            version = found.version if found else reference.version or f"@{reference.label}"
            asset = Asset(reference.name, version)
            kind = (found.get("type") if found else None) or kind
        if path is not None:
            path = path.resolve()
            if not path.exists():
                self._missing(path, place)
            elif asset is not None:
                asset = Asset(asset.name, asset.version, assets.digest(path))
        return InputPlan(name, str(kind), place, source=source, path=path, asset=asset, mode=mode)

    def _output(self, name: str) -> OutputPlan:
        place, written = self.spec.place("outputs", name), self.spec.get("outputs", name) or {}
        asset = None
        if written.get("name"):
            asset = Asset(str(written["name"]), str(written.get("version") or ""))
        kind = str(written.get("type") or _DEFAULT_TYPE)
        return OutputPlan(
            name, kind, place, str(written.get("mode") or _DEFAULT_OUTPUT_MODE), asset
        )

    def _code(self, *keys: str) -> Path | None:
        written = self.spec.get(*keys)
        if not isinstance(written, str):
            return None
        path = assets.local(written, self.spec.folder)
        if path is None:
            problem = Problem(
                "remote-code",
                f"`code: {written}` is not on this machine",
                "a local folder",
                "check the code out and name its folder",
                self.spec.place(*keys),
            )
            raise Refused(problem, exit_code=Exit.CANNOT_HONOUR)
        return path.resolve()

    def _environment(self, *keys: str) -> Environment:
        written, spec = self.spec.get(*keys), self.spec
        if isinstance(written, str):
            found = assets.find(written, "environment", self.root)
            if found is None:
                return Environment(written)
            conda = found.get("conda_file")
            file = assets.local(conda, found.file.parent) if isinstance(conda, str) else None
            return Environment(
                f"azureml:{found.name}:{found.version}", str(found.get("image") or ""), file
            )
        written = written or {}
        conda = written.get("conda_file")
        file = assets.local(conda, spec.folder) if isinstance(conda, str) else None
        name = str(written.get("name") or "inline")
        return Environment(name, str(written.get("image") or ""), file)

    def _distribution(self, *keys: str) -> Distribution | None:
        written = self.spec.get(*keys)
        if not isinstance(written, dict):
            return None
        count = written.get("process_count_per_instance") or 1
        kind = str(written.get("type", "")).lower()
        return Distribution(kind, int(count), self.spec.place(*keys))

    def _early_termination(self) -> EarlyTermination | None:
        written = self.spec.get("early_termination")
        if not isinstance(written, dict):
            return None
        return EarlyTermination(
            type=str(written["type"]).lower(),
            place=self.spec.place("early_termination"),
            evaluation_interval=int(written.get("evaluation_interval") or 1),
            delay_evaluation=int(written.get("delay_evaluation") or 0),
            slack_factor=_number(written.get("slack_factor")),
            slack_amount=_number(written.get("slack_amount")),
            truncation_percentage=written.get("truncation_percentage"),
        )

    def _places(self, at: tuple[str, ...]) -> Mapping[str, Place]:
        fields = dict.fromkeys([*self.spec.document.data, *(self.spec.get(*at) or {})])
        places = {
            str(f): self.spec.place(*at, f) if f in self.spec.get(*at) else self.spec.place(f)
            for f in fields
        }
        for field in ("resources", "limits"):
            owner = at if isinstance(self.spec.get(*at, field), dict) else ()
            for key in self.spec.get(*owner, field) or {}:
                places[f"{field}.{key}"] = self.spec.place(*owner, field, key)
        return Frozen(places)

    def _missing(self, path: Path, place: Place) -> None:
        self.problems.append(
            Problem(
                "missing-file",
                f"`{repository.shown(path)}` does not exist",
                "a file or folder on this machine",
                "make it, or name another with `--set inputs.NAME.path=…`",
                place,
            )
        )


def dimension(spec: Spec, keys: tuple[str | int, ...]) -> Dimension:
    """The distribution written at `keys`; a `choice` may hold nested spaces."""
    written = spec.get(*keys)
    kind, name = str(written["type"]).lower(), str(keys[-1])
    if kind == "choice":
        values = [
            _nested(spec, (*keys, "values", index)) if isinstance(value, dict) else value
            for index, value in enumerate(written.get("values") or [])
        ]
        return Dimension(name, kind, tuple(values), spec.place(*keys))
    order = ("min_value", "max_value", "mu", "sigma", "upper", "q")
    numbers = tuple(written[key] for key in order if key in written)
    return Dimension(name, kind, numbers, spec.place(*keys))


def _nested(spec: Spec, keys: tuple[str | int, ...]) -> Mapping[str, object]:
    space = spec.get(*keys)
    return Frozen(
        (str(k), dimension(spec, (*keys, k)) if isinstance(v, dict) else v)
        for k, v in space.items()
    )


def _number(value: Any) -> float | None:
    return None if value is None else float(value)


def _seconds(value: Any) -> float | None:
    return None if value in (None, 0) else float(value)


def _text(value: Any) -> str:
    return "" if value is None else str(value)
