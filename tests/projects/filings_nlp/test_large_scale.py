"""The specs that cannot run here: they load, and `ml check` names what is wrong in a variant."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from azure.ai.ml import load_job, load_online_deployment, load_online_endpoint

from ml.specs.check.check import check
from ml.specs.check.clusters import Cluster
from ml.specs.sdk.load import load
from tests.conftest import ROOT
from tests.projects.filings_nlp.small import write_filings

PROJECT = ROOT / "ml/projects/filings_nlp"
JOBS, VLLM = PROJECT / "jobs", PROJECT / "vllm"
# As the stack of a team would declare it: `preset: infiniband`.
CLUSTER = Cluster(
    "prod", "gpu-infiniband", "Standard_ND96amsr_A100_v4", max_nodes=2, gpus=8, infiniband=True
)


def codes(spec: Path, changes: Mapping[str, str] | None = None, *clusters: Cluster) -> set[str]:
    """The codes of the problems of a spec with these overrides, on these clusters."""
    return {problem.code for problem in check(load(spec, changes), clusters=clusters)}


@pytest.mark.parametrize("name", ["train-nodes", "train-zero3"])
def test_a_job_of_many_nodes_is_sound(name: str) -> None:
    """By Azure's own loader, and on the cluster that it needs."""
    job = load_job(JOBS / f"{name}.yml")
    assert (job.resources.instance_count, job.distribution.process_count_per_instance) == (2, 8)
    assert codes(JOBS / f"{name}.yml") == codes(JOBS / f"{name}.yml", None, CLUSTER) == set()


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"distribution.process_count_per_instance": "16"}, "cluster-gpus"),
        ({"distribution.process_count_per_instance": "4"}, "cluster-idle-gpus"),
        ({"resources.instance_count": "3"}, "cluster-nodes"),
        ({"resources.shm_size": "64 GB"}, "shared-memory"),
        ({"environment": "azureml:ml-torch:1"}, "cluster-build"),
        ({"environment_variables.MASTER_ADDR": "10.0.0.4"}, "distributed-variables"),
        ({"environment_variables.RANK": "0"}, "distributed-variables"),
    ],
)
@pytest.mark.parametrize("name", ["train-nodes", "train-zero3"])
def test_a_wrong_job_of_many_nodes_is_named(
    name: str, changes: Mapping[str, str], code: str
) -> None:
    """Processes, nodes, shared memory, build and variables, each by its rule."""
    assert code in codes(JOBS / f"{name}.yml", changes, CLUSTER)


def test_a_cluster_without_infiniband_is_named() -> None:
    """The gradients of two nodes would go over Ethernet."""
    slow = Cluster("prod", "gpu-infiniband", "Standard_NC96ads_A100_v4", max_nodes=2, gpus=8)
    assert codes(JOBS / "train-nodes.yml", None, slow) == {"cluster-infiniband"}


def test_the_server_of_a_large_model_is_sound() -> None:
    """By Azure's own loaders; the routes, the Dockerfile and the rules name one port, one model and
    one deployment. The probes wait for the model at least ten minutes.
    """
    endpoint = load_online_endpoint(VLLM / "endpoint.yml")
    deployment = load_online_deployment(VLLM / "deployment.yml")
    assert deployment.endpoint_name == endpoint.name and endpoint.auth_mode == "aad_token"
    routes = deployment.environment.inference_config
    dockerfile = (VLLM / "Dockerfile").read_text()
    assert {route["port"] for route in routes.values()} == {8000} and "--port 8000" in dockerfile
    assert all(name in dockerfile for name in deployment.environment_variables)
    ready, alive = deployment.readiness_probe, deployment.liveness_probe
    assert ready.initial_delay + ready.period * ready.failure_threshold >= 600
    assert alive.initial_delay >= 600
    [rules] = json.loads((VLLM / "autoscale.json").read_text())["resources"]
    [profile] = rules["properties"]["profiles"]
    assert rules["name"] == f"{deployment.endpoint_name}-{deployment.name}"
    assert profile["capacity"]["minimum"] == str(deployment.instance_count)
    directions = [rule["scaleAction"]["direction"] for rule in profile["rules"]]
    assert directions == ["Increase", "Decrease"]
    assert codes(VLLM / "deployment.yml") == codes(VLLM / "endpoint.yml") == set()


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"scale_settings.type": "target_utilization"}, "scale-settings"),
        ({"readiness_probe.failure_threshold": "0"}, "number-out-of-range"),
        ({"request_settings.request_timeout_ms": "600000"}, "number-out-of-range"),
        ({"environment_variables.HUGGING_FACE_HUB_TOKEN": "hf_x"}, "deployment-variable"),
        ({"environment.build.path": "nowhere"}, "missing-file"),
    ],
)
def test_a_wrong_server_is_named(changes: Mapping[str, str], code: str) -> None:
    """Scaling, probes, time limits, variables, the build context, each by its rule."""
    assert code in codes(VLLM / "deployment.yml", changes)


def test_zero3_without_deepspeed_is_a_wrong_call(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before the data are read."""
    pytest.importorskip("accelerate")
    from ml.projects.filings_nlp.pretraining import zero3

    monkeypatch.setattr(zero3, "is_deepspeed_available", lambda: False)
    with pytest.raises(SystemExit) as ended:
        zero3.main(["--data", "x", "--base", "y"])
    assert ended.value.code == 2 and "azureml:ml-acpt:1" in capsys.readouterr().err


@pytest.mark.slow
def test_stage_0_writes_a_base_that_can_be_adapted(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it loses falls from epoch to epoch."""
    pytest.importorskip("accelerate")
    from ml.projects.filings_nlp.pretraining import zero3
    from ml.projects.filings_nlp.transformer import Pretrained
    from ml.toolkit.training.model_folder import unseal

    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{home / 'mlflow.db'}")
    arguments = ["--data", write_filings(tmp_path), "--base", tmp_path / "base", "--width", "16"]
    arguments += ["--zero-stage", "0", "--precision", "no", "--batch", "32", "--epochs", "3"]
    zero3.main([*map(str, arguments), "--learning-rate", "0.01"])
    assert Pretrained.load(tmp_path / "base").encoder().embedding.weight.isfinite().all()
    assert unseal(tmp_path / "base")[0][zero3.METRIC] < 5
