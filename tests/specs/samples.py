"""One spec of every kind that azure-ai-ml has a loader for, in many styles of YAML.

name → (the loader's name in the SDK, the kind in our words, the text).
"""

from __future__ import annotations

SCHEMA = "$schema: https://azuremlschemas.azureedge.net/latest/{}.schema.json\n"

SCALARS = """\
command: echo hello
environment: azureml:e:1
inputs:
  yes_word: yes
  off_word: off
  quoted: "no"
  octal: 0o17
  old_octal: 017
  hexadecimal: 0x1F
  sexagesimal: 1:30
  exponent: 1e-3
  real_exponent: 1.0e-3
  underscore: 1_000
  minus: -5
  date_like: "2024-01-01"
  tilde_text: "~"
  folded: >-
    one
    two
  emoji: "\\u00e9 ✓"
  anchor: &shared 0.5
  alias: *shared
"""
MERGED = """\
command: echo
environment: azureml:e:1
properties: &base
  a: "1"
  b: "2"
tags:
  <<: *base
  b: "3"
"""
EVERYTHING = (
    SCHEMA.format("commandJob")
    + """\
type: command
name: train_1
display_name: Train
experiment_name: faq
description: |
  Trains.

  Really.
code: src
command: >-
  python train.py --faq ${{inputs.faq}} $[[--rate ${{inputs.rate}}]]
  --model ${{outputs.model}}
inputs:
  faq: {type: uri_folder, path: data, mode: ro_mount}
  remote: {type: uri_file, path: https://example.org/a.csv}
  stored: {type: mltable, path: azureml://datastores/d/paths/x/, mode: eval_mount}
  asset: {type: uri_folder, path: azureml:faq@latest}
  model: {type: mlflow_model, path: azureml:m:1}
  rate: 0.1
outputs:
  model: {type: custom_model, name: faq, version: "3"}
  rest:
environment:
  image: mcr.microsoft.com/azureml/openmpi4.1.0-ubuntu22.04
  conda_file: conda.yml
environment_variables: {THREADS: "2"}
compute: azureml:cpu-cluster
resources: {instance_count: 2, shm_size: 8g, docker_args: --gpus all}
distribution: {type: pytorch, process_count_per_instance: 2}
limits: {timeout: 3600}
identity: {type: managed}
queue_settings: {job_tier: spot}
services:
  code: {type: vs_code}
  notebook: {type: jupyter_lab, nodes: all}
  board: {type: tensor_board, log_dir: outputs/logs}
tags: {team: faq}
"""
)
SWEEP = """\
type: sweep
trial:
  code: src
  command: train ${{inputs.faq}} ${{search_space.rate}} ${{search_space.depth}}
  environment: azureml:e@latest
  resources: {instance_count: 1}
inputs: {faq: {type: uri_folder, path: data}}
outputs: {model: {type: custom_model}}
search_space:
  rate: {type: uniform, min_value: 0.01, max_value: 0.3}
  depth: {type: choice, values: [2, 4, 8]}
sampling_algorithm: {type: random, seed: 7, rule: sobol}
objective: {goal: maximize, primary_metric: gain}
limits: {max_total_trials: 8, max_concurrent_trials: 2, timeout: 600, trial_timeout: 60}
early_termination: {type: median_stopping, delay_evaluation: 2, evaluation_interval: 1}
compute: azureml:cpu-cluster
"""
PIPELINE = """\
type: pipeline
settings: {default_compute: azureml:cpu-cluster, continue_on_step_failure: false}
inputs:
  faq: {type: uri_folder, path: data}
  rate: 0.25
outputs:
  model: {type: custom_model, mode: upload}
jobs:
  prepare:
    command: prepare ${{inputs.faq}} ${{outputs.prepared}}
    environment: {image: python}
    inputs: {faq: "${{parent.inputs.faq}}"}
    outputs: {prepared: {type: uri_folder}}
  train:
    type: command
    component: ./component.yml
    inputs:
      data: ${{parent.jobs.prepare.outputs.prepared}}
      rate: ${{parent.inputs.rate}}
    outputs: {model: "${{parent.outputs.model}}"}
  tune:
    type: sweep
    trial: file:component.yml
    inputs: {data: {type: uri_folder, path: data}}
    search_space: {rate: {type: uniform, min_value: 0, max_value: 1}}
    sampling_algorithm: random
    objective: {goal: maximize, primary_metric: gain}
    limits: {max_total_trials: 4, max_concurrent_trials: 2}
  batch:
    type: parallel
    inputs: {rows: {type: uri_folder, path: data}}
    outputs: {scored: {type: uri_file}}
    input_data: ${{inputs.rows}}
    mini_batch_size: "5"
    mini_batch_error_threshold: -1
    max_concurrency_per_instance: 2
    retry_settings: {max_retries: 2, timeout: 60}
    resources: {instance_count: 2}
    task:
      type: run_function
      code: src
      entry_script: file.txt
      environment: azureml:e:1
      program_arguments: --rows ${{inputs.rows}} --out ${{outputs.scored}}
      append_row_to: ${{outputs.scored}}
  automatic:
    type: automl
    task: regression
    primary_metric: r2_score
    target_column_name: price
    training_data: ${{parent.inputs.faq}}
    limits: {timeout_minutes: 30, max_trials: 2}
    outputs: {best_model: {type: mlflow_model}}
  use:
    command: use ${{inputs.model}} ${{inputs.best}}
    environment: azureml:e:1
    inputs:
      model: ${{parent.jobs.tune.outputs.model}}
      best: {type: mlflow_model, path: "${{parent.jobs.automatic.outputs.best_model}}"}
"""

SAMPLES: dict[str, tuple[str, str, str]] = {
    "command": ("load_job", "command job", EVERYTHING),
    "command-of-scalars": ("load_job", "command job", SCALARS),
    "command-with-merge-key": ("load_job", "command job", MERGED),
    "command-as-json": (
        "load_job",
        "command job",
        '{"command": "echo", "environment": {"image": "python"}, "tags": {"a": "b"}}\n',
    ),
    "command-as-crlf": ("load_job", "command job", MERGED.replace("\n", "\r\n")),
    "command-with-mark": ("load_job", "command job", "\ufeff" + MERGED),
    "sweep": ("load_job", "sweep job", SWEEP),
    "pipeline": ("load_job", "pipeline job", PIPELINE),
    "automl": (
        "load_job",
        "automl job",
        "type: automl\ntask: classification\nprimary_metric: accuracy\ntarget_column_name: y\n"
        "training_data: {type: mltable, path: data}\ncompute: azureml:c\n"
        "limits: {timeout_minutes: 60, max_trials: 4, max_concurrent_trials: 2}\n"
        "training: {allowed_training_algorithms: [light_gbm]}\n",
    ),
    "spark": (
        "load_job",
        "spark job",
        "type: spark\ncode: src\nentry: {file: file.txt}\nargs: --data ${{inputs.x}}\n"
        "inputs: {x: {type: uri_file, path: azureml://datastores/d/paths/a.csv, mode: direct}}\n"
        "conf: {spark.driver.cores: 1, spark.driver.memory: 2g, spark.executor.cores: 1, "
        "spark.executor.memory: 2g, spark.executor.instances: 1}\n"
        "resources: {instance_type: standard_e4s_v3, runtime_version: '3.4'}\n",
    ),
    "import": (
        "load_job",
        "import job",
        "type: import\nsource: {type: azuresqldb, connection: azureml:c, query: select 1}\n"
        "output: {type: mltable, path: azureml://datastores/d/paths/x}\n",
    ),
    "command-component": (
        "load_component",
        "command component",
        SCHEMA.format("commandComponent")
        + "name: c\nversion: 1\ntype: command\nenvironment: azureml:e:1\ncode: src\n"
        "inputs: {x: {type: number, min: 0, max: 1, default: 0.5}}\n"
        "command: c ${{inputs.x}}\n",
    ),
    "pipeline-component": (
        "load_component",
        "pipeline component",
        SCHEMA.format("pipelineComponent")
        + "name: p\nversion: '1'\ntype: pipeline\ninputs: {x: {type: number}}\njobs:\n"
        "  s: {command: 'c ${{inputs.x}}', environment: azureml:e:1, "
        "inputs: {x: '${{parent.inputs.x}}'}}\n",
    ),
    "parallel-component": (
        "load_component",
        "parallel component",
        "name: q\nversion: '1'\ntype: parallel\ninputs: {rows: {type: uri_folder}}\n"
        "outputs: {scored: {type: uri_file}}\ninput_data: ${{inputs.rows}}\n"
        "mini_batch_size: '1'\n"
        "task: {type: run_function, code: src, entry_script: file.txt, environment: azureml:e:1}\n",
    ),
    "environment": (
        "load_environment",
        "environment",
        "name: ml-cpu\nversion: '1'\nimage: python:3.11\nconda_file: conda.yml\n",
    ),
    "environment-from-context": (
        "load_environment",
        "environment",
        SCHEMA.format("environment")
        + "name: built\nbuild: {path: context, dockerfile_path: whole}\n",
    ),
    "data": (
        "load_data",
        "data asset",
        SCHEMA.format("data") + "name: faq\nversion: 2\ntype: uri_folder\npath: data\n",
    ),
    "model": ("load_model", "model", "name: m\nversion: '1'\ntype: custom_model\npath: data\n"),
    "online-endpoint": (
        "load_online_endpoint",
        "online endpoint",
        SCHEMA.format("managedOnlineEndpoint") + "name: faq\nauth_mode: aad_token\n",
    ),
    "online-deployment": (
        "load_online_deployment",
        "online deployment",
        SCHEMA.format("managedOnlineDeployment")
        + "name: blue\nendpoint_name: faq\nmodel: azureml:m:1\ninstance_type: Standard_DS3_v2\n"
        "instance_count: 1\nenvironment: azureml:e:1\n"
        "code_configuration: {code: src, scoring_script: file.txt}\n",
    ),
    "batch-endpoint": (
        "load_batch_endpoint",
        "batch endpoint",
        SCHEMA.format("batchEndpoint") + "name: nightly\n",
    ),
    "batch-deployment": (
        "load_model_batch_deployment",
        "batch deployment",
        SCHEMA.format("modelBatchDeployment")
        + "name: one\nendpoint_name: nightly\ntype: model\nmodel: azureml:m:1\n"
        "compute: azureml:c\nenvironment: azureml:e:1\nresources: {instance_count: 1}\n"
        "code_configuration: {code: src, scoring_script: file.txt}\n"
        "settings: {mini_batch_size: 10, output_action: append_row, error_threshold: -1}\n",
    ),
    "schedule": (
        "load_schedule",
        "schedule",
        "name: nightly\ntrigger: {type: cron, expression: 0 3 * * *, time_zone: UTC}\n"
        "create_job: azureml:train_1\n",
    ),
    "datastore": (
        "load_datastore",
        "azure_blob datastore",
        "type: azure_blob\nname: d\naccount_name: a\ncontainer_name: c\n",
    ),
    "compute": (
        "load_compute",
        "amlcompute compute",
        SCHEMA.format("amlCompute")
        + "name: cpu-cluster\ntype: amlcompute\nsize: Standard_DS3_v2\nmax_instances: 2\n",
    ),
    "workspace": (
        "load_workspace",
        "workspace",
        SCHEMA.format("workspace") + "name: team\nlocation: westeurope\n",
    ),
    "registry": (
        "load_registry",
        "registry",
        SCHEMA.format("registry")
        + "name: shared\nlocation: westeurope\nreplication_locations: [{location: westeurope}]\n",
    ),
    "connection": (
        "load_connection",
        "connection",
        SCHEMA.format("workspaceConnection")
        + "name: git\ntype: git\ntarget: https://example.org/r\n"
        "credentials: {type: pat, pat: '<in the vault>'}\n",
    ),
    "feature-set": (
        "load_feature_set",
        "feature set",
        "$schema: http://azureml/sdk-2-0/Featureset.json\nname: f\nversion: '1'\n"
        "specification: {path: data}\nentities: [azureml:account:1]\n",
    ),
    "feature-store": (
        "load_feature_store",
        "feature store",
        "$schema: http://azureml/sdk-2-0/FeatureStore.json\nname: store\nlocation: westeurope\n",
    ),
    "feature-store-entity": (
        "load_feature_store_entity",
        "feature store entity",
        "name: account\nversion: '1'\nindex_columns: [{name: id, type: string}]\n",
    ),
    "index": (
        "load_index",
        "index",
        "$schema: http://azureml/sdk-2-0/Index.json\nname: i\nversion: '1'\npath: data\n",
    ),
    # Without `$schema`: by type and shape alone.
    "batch-deployment-by-shape": (
        "load_model_batch_deployment",
        "batch deployment",
        "name: one\nendpoint_name: nightly\ntype: model\nmodel: azureml:m:1\n"
        "compute: azureml:c\nenvironment: azureml:e:1\n"
        "code_configuration: {code: src, scoring_script: file.txt}\n"
        "settings: {mini_batch_size: 10}\n",
    ),
    "pipeline-deployment-by-shape": (
        "load_pipeline_component_batch_deployment",
        "batch deployment",
        "name: one\nendpoint_name: nightly\ntype: pipeline\ncomponent: azureml:c@latest\n"
        "settings: {default_compute: c, continue_on_step_failure: false}\n",
    ),
    "kubernetes-deployment-by-shape": (
        "load_online_deployment",
        "online deployment",
        "name: blue\ntype: kubernetes\nendpoint_name: faq\nmodel: azureml:m:1\n"
        "instance_count: 1\nenvironment: azureml:e:1\n"
        "code_configuration: {code: src, scoring_script: file.txt}\n",
    ),
    "batch-endpoint-by-shape": (
        "load_batch_endpoint",
        "batch endpoint",
        "name: nightly\nauth_mode: aad_token\ndefaults: {deployment_name: one}\n",
    ),
    "serverless-endpoint-by-shape": (
        "load_serverless_endpoint",
        "serverless endpoint",
        "auth_mode: key\nmodel_id: azureml://registries/azureml-meta/models/Llama\nname: llama\n",
    ),
    "blob-connection-by-shape": (
        "load_connection",
        "connection",
        "name: b\ntype: azure_blob\nurl: https://a.blob.core.windows.net/c\naccount_name: a\n"
        "container_name: c\ncredentials: {type: account_key, account_key: '<in the vault>'}\n",
    ),
    "lake-connection-by-shape": (
        "load_connection",
        "connection",
        "name: g\ntype: azure_data_lake_gen2\ntarget: https://a.dfs.core.windows.net/c\n",
    ),
    "registry-by-shape": (
        "load_registry",
        "registry",
        "name: shared\nlocation: westeurope\nreplication_locations: [{location: westeurope}]\n",
    ),
    "data-import": (
        "load_data",
        "data asset",
        "$schema: http://azureml/sdk-2-0/DataImport.json\nname: rows\ntype: mltable\n"
        "path: azureml://datastores/d/paths/rows\n"
        "source: {type: database, query: select 1, connection: azureml:base}\n",
    ),
}
