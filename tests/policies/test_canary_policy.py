"""policies.promotion.policy: what a project's release.yml may not loosen."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest

from ml.core.errors import Problem, UserError
from ml.release.declaration import release_file
from ml.release.declaration.release_file import Strategy, Tolerances
from policies.promotion.policy import CANARY, LOOSEST, WATCH, load

# What switches a signal off, or nearly: each setting beyond its bound.
LOOSE = {
    "tolerances.errors": "1.0",
    "tolerances.refused": "0.051",
    "tolerances.answers": "1.0",
    "tolerances.latency": "1.0e+300",
    "tolerances.latency_ms": "101",
    "tolerances.drift": "0.51",
    "tolerances.memory_mib": "1.0e+9",
    "requests": "[100, 20, 100]",
    "patience": "2",
    "false_alarms": "1.0e-300",
    "prediction": "''",
}
STRICT = {
    "tolerances.errors": "0",
    "tolerances.refused": "0.05",
    "tolerances.answers": "0.001",
    "tolerances.latency": "1.1",
    "tolerances.latency_ms": "0",
    "tolerances.drift": "0.5",
    "tolerances.memory_mib": "0",
    "requests": "[100, 100, 1000]",
    "patience": "3",
    "false_alarms": "0.5",
    "prediction": "answers/0/score",
}


def traffic(setting: str, value: str, indent: str) -> str:
    """`traffic` with one setting, which stands in its last line."""
    first, _, last = setting.rpartition(".")
    lines = [f"{indent}traffic:"]
    lines += [] if last == "prediction" else [f"{indent}  prediction: answers/0/score"]
    lines += [f"{indent}  {first}:"] if first else []
    lines.append(f"{indent}  {'  ' if first else ''}{last}: {value}")
    return "\n".join(lines) + "\n"


def written(folder: Path, text: str) -> Path:
    """A release.yml with this text after its first line."""
    path = folder / "release.yml"
    path.write_text("schema_version: 1\n" + text)
    return path


def problems(path: Path) -> list[Problem]:
    try:
        release_file.read(path)
    except UserError as refused:
        return list(refused.problems)
    return []


def test_every_setting_has_a_bound_or_a_reason() -> None:
    """A setting that is added to `traffic` needs its line in the organisation policy."""

    def names() -> Iterator[str]:
        for each in fields(Strategy):
            if each.name == "tolerances":
                yield from (f"tolerances.{inner.name}" for inner in fields(Tolerances))
            else:
                yield each.name

    policy = load(CANARY)
    held = [*policy.at_most, *policy.at_least, *policy.required, *policy.no_bound]
    assert sorted(held) == sorted(names())
    assert (
        sorted(LOOSE)
        == sorted(STRICT)
        == sorted([*policy.at_most, *policy.at_least, *policy.required])
    )


@pytest.mark.attack("a release.yml that switches a signal of the canary off")
@pytest.mark.parametrize("environment", ["dev", "staging", "prod"])
@pytest.mark.parametrize("setting", LOOSE)
def test_a_looser_setting_is_refused(setting: str, environment: str, tmp_path: Path) -> None:
    """With its line, whether the environment says it or the whole project; stricter passes."""
    for value, is_loose in ((LOOSE[setting], True), (STRICT[setting], False)):
        own = f"environments:\n  {environment}:\n" + traffic(setting, value, "    ")
        whole = traffic(setting, value, "") + f"environments:\n  {environment}: {{}}\n"
        for text, last in ((own, own), (whole, traffic(setting, value, ""))):
            found = problems(written(tmp_path, text))
            assert [problem.code for problem in found] == ["canary-looser-than-policy"] * is_loose
            for problem in found:
                assert str(problem.place).endswith(f":{1 + len(last.splitlines())}")
                assert f"`{setting}` in {environment}" in problem.actual and problem.expected


@pytest.mark.attack("an environment that leaves out the prediction")
def test_every_environment_has_a_prediction(tmp_path: Path) -> None:
    """The project's or its own: without one the drift of predictions is not judged."""
    (problem,) = problems(written(tmp_path, "environments:\n  prod: {}\n"))
    assert problem.code == "canary-looser-than-policy" and str(problem.place).endswith(":3")
    text = "traffic: {prediction: answers/0/score}\nenvironments:\n  prod:\n    traffic:\n"
    (problem,) = problems(written(tmp_path, text + "      prediction: ''\n"))
    assert problem.code == "canary-looser-than-policy" and str(problem.place).endswith(":6")
    assert not problems(written(tmp_path, text + "      prediction: answers/0/id\n"))


def test_the_environment_local_has_no_policy(tmp_path: Path) -> None:
    """What a person tries on one machine is that person's."""
    path = written(tmp_path, "traffic: {requests: [20, 20, 20]}\nenvironments: {}\n")
    assert release_file.read(path).strategy("local").requests == (20, 20, 20)


def test_the_defaults_are_within_the_policy() -> None:
    """A project that says no more than where a prediction is, is not refused."""
    strategy = Strategy(prediction="answers/0/score")
    assert not list(load(CANARY).looser(release_file.settings_of(strategy)))


@pytest.mark.attack("a policy that judges nothing by a hair")
@pytest.mark.parametrize("file", [CANARY, WATCH], ids=["canary", "watch"])
def test_the_policy_itself_judges_something(file: Path, tmp_path: Path) -> None:
    """Each bound has a loosest value: beyond it is refused with its line, as another name is."""
    policy, path, text = load(file), tmp_path / "policy.yml", file.read_text()
    for side in ("at_most", "at_least"):
        for name, bound in getattr(policy, side).items():
            old = next(line for line in text.splitlines() if line.startswith(f"  {name}: "))
            loosest = LOOSEST[side][name]
            for value in (loosest, 1e300 if side == "at_most" else loosest / 2):
                path.write_text(text.replace(old, f"  {name}: {value:.6f}"))
                if value == loosest:
                    assert getattr(load(path), side)[name] == pytest.approx(loosest)
                    continue
                with pytest.raises(UserError) as raised:
                    load(path)
                (problem,) = raised.value.problems
                assert problem.code == "ineffective-policy" and problem.expected
                assert problem.place and problem.place.line == text.splitlines().index(old) + 1
            assert bound != loosest
    path.write_text(text.replace("at_most:\n", "at_most:\n  another: 1\n"))
    with pytest.raises(UserError, match="another"):
        load(path)


def test_the_policy_holds_for_an_environment_before_something_is_declared_there(
    tmp_path: Path,
) -> None:
    """`propose` asks for the strategy: what it declares could not be applied otherwise."""
    text = "traffic: {requests: [20, 20, 20], prediction: x}\nenvironments: {dev: null}\n"
    release = release_file.read(written(tmp_path, text))
    assert release.strategy("local").requests == (20, 20, 20)
    with pytest.raises(UserError, match="canary-looser-than-policy"):
        release.strategy("dev")
