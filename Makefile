# `make` lists the targets. It needs only Python 3.11 and make.
# `##@` begins a group of that list; `## workflows:` marks targets that only workflows call.
SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
# Without built-in rules: one would build Makefile from a Makefile.sh.
MAKEFLAGS += --no-builtin-rules
# Container images set it; each process would then compile its imports again.
export PYTHONDONTWRITEBYTECODE :=
# A PYTHONPATH from the shell could contain another package `ml`.
export PYTHONPATH :=

PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
# uv does not read pip's environment variables: pass them on.
INDEXES := $(if $(PIP_INDEX_URL),UV_DEFAULT_INDEX="$(PIP_INDEX_URL)") $(if $(PIP_EXTRA_INDEX_URL),UV_INDEX="$(PIP_EXTRA_INDEX_URL)")
UV := UV_FIND_LINKS="$(PIP_FIND_LINKS)" $(INDEXES) $(BIN)/uv
INSTALL := $(UV) pip install --quiet --compile-bytecode

# A thin fork installs the framework as one wheel, locked by its hash; the wheel includes the locks.
ifneq ($(wildcard requirements/framework.lock),)
FRAMEWORK := $(VENV)/framework
LOCKS := $(FRAMEWORK)/requirements
else
LOCKS := requirements
endif
# `make lock` writes it in a thin fork with its own packages.
MAIN_LOCK := $(or $(wildcard requirements/main.lock),$(LOCKS)/main.lock)
# Runs a module of the framework or of this tree. Both are last on sys.path, without the working
# directory, so that no file at the root shadows a standard library module or a package.
START := import runpy, sys; sys.path += sys.argv[1].split(":"); del sys.argv[:2]; \
	runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
MODULE := -c '$(START)' "$(if $(FRAMEWORK),$(CURDIR)/$(FRAMEWORK):)$(CURDIR)"
# The framework with only a YAML parser: a documentation change installs nothing else, and no other
# package runs in jobs that have a token.
PARSER := $(VENV)/parser
BARE := $(PYTHON) -S -P -c '$(START)' "$(if $(FRAMEWORK),$(CURDIR)/$(FRAMEWORK):)$(CURDIR):$(CURDIR)/$(PARSER)"
INSTALLED := $(BIN)/python -P $(MODULE)

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^##@ / {group = substr($$0, 5)} \
	/^[a-z-]+:.*## / {line = sprintf("  %-20s %s\n", $$1, $$2)} \
	/^[a-z-]+:.*## workflows: / {sub("workflows: ", "", line); called = called line; next} \
	/^[a-z-]+:.*## / {if (group) {print group; group = ""} printf "%s", line} \
	END {printf "what workflows call\n%s", called}' $(MAKEFILE_LIST)

$(BIN)/uv:
	$(PYTHON) -P -m venv $(VENV)
	$(BIN)/python -P -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r requirements/uv.lock

# Not on sys.path by default: see ml/core/imports.py of the framework.
$(VENV)/framework.stamp: requirements/framework.lock | $(BIN)/uv
	@rm -rf $(VENV)/framework
	@$(INSTALL) --no-deps --require-hashes --target $(VENV)/framework -r $<
	@touch $@

$(VENV)/framework/requirements/%: $(VENV)/framework.stamp
	@touch -c $@

$(VENV)/parser.stamp: $(LOCKS)/yaml.lock | $(BIN)/uv
	@rm -rf $(PARSER)
	@$(INSTALL) --no-deps --require-hashes --target $(PARSER) -r $<
	@touch $@
affected links smoke affected-tests plan deploy stacks needed infra-drift-issue release-drift-issue \
	releases release release-summary release-issue release-revert merged-projects trained unfinished continue \
	train-summary promotion-summary promotion-request train-request pull-request comment: $(VENV)/parser.stamp

$(VENV)/main.stamp: $(MAIN_LOCK) pyproject.toml | $(BIN)/uv
	@echo "Installing the locked packages into $(VENV) (once; about a minute)" >&2
	@$(INSTALL) --require-hashes -r $<
	@$(UV) pip uninstall --quiet azureml-gitops-starter 2>/dev/null || true
	@$(INSTALLED) ml.core.imports
	@touch $@

# The main lock last: a thin fork's own lock can have newer versions than the framework's locks.
$(VENV)/dev.stamp: $(LOCKS)/dev.lock $(VENV)/main.stamp
	@$(INSTALL) --require-hashes -r $<
	@$(INSTALL) --require-hashes -r $(MAIN_LOCK)
	@touch $@

# The PyTorch build for this machine's GPU or CPU: PyPI's default includes gigabytes of CUDA. torch.lock
# has the other packages of the extra, such as peft.
$(VENV)/torch.stamp: $(LOCKS)/torch.txt $(LOCKS)/torch.lock $(VENV)/main.stamp
	@$(INSTALL) $(if $(PIP_FIND_LINKS),,--torch-backend auto) -r $<
	@$(INSTALL) --no-deps --require-hashes -r $(LOCKS)/torch.lock
	@$(INSTALL) --require-hashes -r $(MAIN_LOCK)
	@touch $@

# torchvision must match the torch build. With torch from PIP_FIND_LINKS, this installs PyPI's CUDA
# build without dependencies; a project registers the operators that it cannot load.
$(VENV)/images.stamp: $(LOCKS)/images.txt $(VENV)/torch.stamp
	@$(INSTALL) $(if $(PIP_FIND_LINKS),--no-deps,--torch-backend auto) -r $<
	@touch $@

$(VENV)/automl.stamp: $(LOCKS)/automl.lock $(VENV)/main.stamp
	@$(INSTALL) --require-hashes -r $<
	@$(INSTALL) --require-hashes -r $(MAIN_LOCK)
	@touch $@

$(VENV)/infra.stamp: $(LOCKS)/infra.lock $(VENV)/main.stamp
	@$(INSTALL) --require-hashes -r $<
	@$(INSTALL) --require-hashes -r $(MAIN_LOCK)
	@touch $@

# A separate environment for `init`, `update` and `wheel`.
$(VENV)/update.stamp: $(LOCKS)/update.lock | $(BIN)/uv
	@$(UV) venv --quiet --clear --python $(BIN)/python $(VENV)/update
	@$(INSTALL) --require-hashes --python $(VENV)/update/bin/python -r $<
	@touch $@

##@ install
.PHONY: setup
setup: $(VENV)/main.stamp ## install what the main job needs

.PHONY: torch
torch: $(VENV)/torch.stamp ## install PyTorch, which distributed jobs need and the main job does not

.PHONY: images
images: $(VENV)/images.stamp ## install torchvision, which models of images need and the main job does not

.PHONY: automl
automl: $(VENV)/automl.stamp ## install what AutoML on this machine needs and the main job does not

.PHONY: infra
infra: $(VENV)/infra.stamp ## install Pulumi's packages, which `infra` needs and the main job does not

##@ this repository
# Only variables on make's command line: the environment may have an unrelated NAME.
INIT := NAME REPOSITORY TEAM OWNER REGION SUBSCRIPTION TENANT KEEP FULL WHEEL TEMPLATE FROM
given = $(foreach word,$(1),$(if $(filter command%,$(origin $(word))),--$(shell echo $(word) | tr A-Z a-z) "$($(word))"))

.PHONY: init
init: $(VENV)/update.stamp ## make this clone your repository, or change it: make init NAME=contoso REPOSITORY=contoso/models …
	@$(VENV)/update/bin/python -P $(MODULE) ml.repository.forks.init $(call given,$(INIT))

.PHONY: update
update: $(VENV)/update.stamp ## merge the template's changes into this fork: make update, or TO=v1.2.3
	@$(VENV)/update/bin/python -P $(MODULE) ml.repository.forks.update $(call given,TO WHEEL)

.PHONY: update-request
update-request: $(VENV)/update.stamp ## workflows: the same as a pull request of GITHUB_REPOSITORY, with GH_TOKEN
	@$(VENV)/update/bin/python -P $(MODULE) ml.repository.forks.update --pull-request

##@ the main job
# The project of `demo` and `ask`, with the inputs of its train.yml for a quick first model and for a
# bad one. Only these two lines name the project: ml/projects/README.md.
PROJECT := faq_matching
DEMO := --first inputs.trees=2 --first inputs.matches=3 --first inputs.seed=1 --bad inputs.shuffled=true

.PHONY: demo
demo: setup ## the main job: sweep, select, gate, apply with a canary, query; the gates reject a bad model
	@$(BIN)/ml demo $(PROJECT) $(DEMO)

# The same with AutoML and a sweep of one model family; both must pass the same gates.
.PHONY: fraud-demo
fraud-demo: automl ## a table with rare positives: AutoML and a sweep, gates, canary, endpoint
	@$(BIN)/ml demo fraud_scoring --bad inputs.trees=1

.PHONY: ask
ask: setup ## query the deployed model: make ask Q="how do I use spot nodes?"
	@$(BIN)/ml invoke $(PROJECT) "$(Q)"

##@ a change
# The base revision of a change, and the folder of the results that the comment shows.
BASE := origin/main
RESULTS := .local/check
AFFECTED := $(BARE) ml.repository.affected.projects $(if $(PULL),--pull "$(PULL)",--base "$(BASE)")
# A thin fork type-checks its own source, with the framework's settings unless it has its own.
TYPES = $(or $(wildcard requirements/mypy.ini),$(LOCKS)/mypy.ini)
TYPED := ml
# Extra packages of the affected projects, such as torch.
INSTALL_EXTRAS = extras="$$($(AFFECTED) --extras)"; [ -z "$$extras" ] || $(MAKE) --no-print-directory -f Makefile $$extras

.PHONY: lint
lint: $(VENV)/dev.stamp $(VENV)/infra.stamp ## ruff, mypy and the checks of every spec
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy --config-file $(TYPES) $(TYPED:%=--package %)
	@$(BIN)/ml check $(if $(GITHUB_ACTIONS),--format github)

# Does not overwrite another hook. Git runs hooks in the root of the work tree.
.PHONY: hooks
hooks: $(VENV)/dev.stamp ## run `make lint` before each commit; git commit --no-verify skips it
	@hook="$$(git rev-parse --git-path hooks)/pre-commit"; text='#!/bin/sh\nexec make -f Makefile lint\n'; \
	if [ -e "$$hook" ] && [ "$$(cat "$$hook")" != "$$(printf "$$text")" ]; then \
	echo "error[hook-exists]: $$hook is yours; add the line: make -f Makefile lint" >&2; exit 2; fi; \
	mkdir -p "$$(dirname "$$hook")"; printf "$$text" > "$$hook"; chmod +x "$$hook"; echo "$$hook runs make lint"

.PHONY: affected
affected: ## what the change since BASE touches, or pull request PULL of GITHUB_REPOSITORY
	@$(AFFECTED)

.PHONY: links
links: ## check the relative links of every page, and for merge conflict markers
	@$(BARE) ml.repository.forks.links

.PHONY: smoke
smoke: setup | $(RESULTS) ## a small training run of each project that the change since BASE touches
	@$(INSTALL_EXTRAS)
	@$(BIN)/ml smoke --base "$(BASE)" --json > $(RESULTS)/smoke.json

.PHONY: preview
preview: infra | $(RESULTS) ## what a merge into BASE would change in the stacks, with policies and cost
	@$(BIN)/infra preview --format $(FORMAT) --against "$(BASE)" --save $(RESULTS)/infra.json
FORMAT := text

# Tests of projects, policies and workflows; `make test` also runs the framework's.
.PHONY: affected-tests
affected-tests: setup $(VENV)/dev.stamp ## the tests of what the change since BASE touches
	@$(INSTALL_EXTRAS)
	@paths="$$($(AFFECTED) --tests)"; [ -z "$$paths" ] || $(PYTEST) $$paths

##@ Azure
# Deploys one stack: make deploy ENV=dev. `infra bootstrap` sets up the state and the sign-in. Pulumi
# runs the program with this environment's Python. The update begins with a preview, where policy
# violations stop it before any change. `--refresh` keeps what a release set on an endpoint
# (pulumi/pulumi-azure-native#1280).
PULUMI = PATH="$(abspath $(BIN)):$$PATH" $(BARE) infra.live.sign_in pulumi $(1) --refresh --non-interactive --policy-pack ../policies/infra --stack "$(ENV)" --cwd infra

.PHONY: doctor
doctor: infra ## check whether Azure would reject the update of a stack: make doctor ENV=dev
	@$(BIN)/infra doctor "$(ENV)"

# Without ENV (default `local`) it checks only the workspace of the environment variables.
.PHONY: azure-first-day
azure-first-day: infra ## compare Azure's answers with the expected ones: make azure-first-day ENV=dev
	@$(if $(filter-out local,$(ENV)),$(BIN)/infra doctor "$(ENV)")
	@$(INSTALLED) ml.backends.azure.first_day --record $(or $(wildcard tests/stand_ins/azure),.local/azure-first-day)/recorded

.PHONY: plan
plan: infra ## preview the Pulumi changes of a stack, with policies: make plan ENV=dev
	@$(if $(filter md,$(FORMAT)),echo '```diff';) $(call PULUMI,preview --diff)$(if $(filter md,$(FORMAT)), && echo '```')

.PHONY: deploy
deploy: infra ## deploy a stack with Pulumi, with policies: make deploy ENV=dev
	@$(call PULUMI,up --yes)

.PHONY: stacks
stacks: ## workflows: the stacks in the order of their deployment; WORKFLOW=infra.yml: only undeployed ones
	@$(BARE) ml.repository.affected.stacks $(if $(WORKFLOW),--not-deployed-by "$(WORKFLOW)")

.PHONY: needed
needed: ## workflows: check that this run of infra.yml deployed what a stack depends on: make needed ENV=dev
	@$(BARE) ml.repository.affected.stacks --needed-by "$(ENV)"

.PHONY: infra-drift
infra-drift: infra | $(RESULTS) ## compare Azure with a stack's declaration: make infra-drift ENV=dev
	@$(BIN)/infra drift "$(ENV)" --json > $(RESULTS)/drift.json

.PHONY: release-drift
release-drift: setup | $(RESULTS) ## compare deployments with release.yml, and requests with the evaluation data: make release-drift ENV=dev
	@$(BIN)/ml release drift --env "$(ENV)" --on azure --since 7d --json > $(RESULTS)/watch.json

.PHONY: released
released: setup ## evaluate the current gates for the deployed versions; changes nothing: make released ENV=dev
	@echo '```'
	@$(BIN)/ml gate --released --env "$(ENV)" --on "$(ON)" || [ $$? = 3 ]
	@echo '```'

.PHONY: release-drift-issue
release-drift-issue: ## workflows: open, update or close the issues about releases and models, after `make release-drift`
	@$(BARE) ml.repository.github.drift_issue --env "$(ENV)" --watched $(RESULTS)/watch.json

.PHONY: infra-drift-issue
infra-drift-issue: ## workflows: open, update or close the issue about a stack, after `make infra-drift`
	@$(BARE) ml.repository.github.drift_issue --env "$(ENV)" --differences $(RESULTS)/drift.json

# Deploys what release.yml declares for an environment: make release ENV=dev BY=ana. In a workflow,
# GitHub's API returns the reviewer.
RELEASES := $(BARE) ml.repository.github.releases
.PHONY: release
release: setup | $(RESULTS) ## apply every release.yml to an environment on Azure: make release ENV=dev BY=NAME
	@rm -f $(RESULTS)/release.json
	@by="$(or $(BY),$$($(RELEASES) approver "$(ENV)"))" && \
	$(BIN)/ml release apply --env "$(ENV)" --on azure --approved-by "$$by" --json > $(RESULTS)/release.json

.PHONY: releases
releases: ## workflows: the environments to release, in order; WORKFLOW=release.yml: only unreleased ones
	@$(RELEASES) environments $(if $(WORKFLOW),--not-released-by "$(WORKFLOW)")

.PHONY: release-summary
release-summary: ## workflows: the result of each project, after `make release`
	@$(RELEASES) summary $(RESULTS)/release.json

.PHONY: release-issue
release-issue: ## workflows: open, update or close the issues about versions that were rolled back
	@$(RELEASES) issue $(RESULTS)/release.json

.PHONY: release-revert
release-revert: ## workflows: open pull requests that revert rolled-back versions
	@$(RELEASES) revert --environments "$$ENVIRONMENTS"

# ON: `local` or `azure`; ENV: the environment of the champion; TREE: the folder with the files.
ON := local
ENV := local
TREE := .

# With an untrusted TREE, this work tree's `ml` reads its files as data and imports nothing from it.
# A training can outlast a workflow job: after TIMEOUT the next run of the workflow waits for the same
# jobs, which `make unfinished` finds.
UNFINISHED := $(RESULTS)/unfinished.json
.PHONY: train
train: setup | $(RESULTS) ## train NAME, or what the change since BASE touches, and compare with the champion
	@cd "$(TREE)" && MLOPS_HOME="$${MLOPS_HOME:-$(CURDIR)/.local}" PYTHONSAFEPATH=1 "$(CURDIR)/$(BIN)/ml" train $(if $(NAME),"$(NAME)",--base "$(BASE)") --on "$(ON)" --env "$(ENV)" $(if $(TIMEOUT),--timeout "$(TIMEOUT)") $(if $(wildcard $(UNFINISHED)),--continue "$(CURDIR)/$(UNFINISHED)") --json > "$(CURDIR)/$(RESULTS)/train.json"

# After a merge: train, evaluate, register and collect the evidence. Once it is attested (ATTESTATION
# is the bundle), evaluate the gates. A rejection does not fail the target; the summary shows it.
PROMOTIONS := $(BARE) ml.repository.github.pull_requests.promotions
PROMOTION := $(RESULTS)/promotion.json

.PHONY: merged-projects
merged-projects: ## workflows: the projects to train again; WORKFLOW=merge.yml: only untrained ones
	@$(PROMOTIONS) projects $(if $(WORKFLOW),--not-trained-by "$(WORKFLOW)")

.PHONY: trained
trained: | $(RESULTS) ## workflows: fetch the results of `make train NAME=P` from another job of this run: make trained NAME=P
	@$(PROMOTIONS) trained --project "$(NAME)" --save $(RESULTS)/train.json

.PHONY: unfinished
unfinished: | $(RESULTS) ## workflows: the unfinished jobs of earlier runs: make unfinished NAME=P, or of /train
	@$(PROMOTIONS) unfinished $(if $(NAME),--project "$(NAME)") --save $(UNFINISHED)

.PHONY: continue
continue: ## workflows: start another run if a training of this one is unfinished: NAMES=P, or a JSON list
	@$(PROMOTIONS) continue --projects "$$NAMES"

.PHONY: evidence
evidence: setup | $(RESULTS) ## workflows: register what `make train NAME=P` trained and collect the evidence: make evidence NAME=P
	@$(BIN)/ml release collect "$(NAME)" --env "$(ENV)" --on "$(ON)" --trained $(RESULTS)/train.json --save $(RESULTS)

.PHONY: promote
promote: setup | $(RESULTS) ## evaluate the gates: make promote NAME=P ATTESTATION=FILE; NAME=P ENV=staging: for dev's version
	@rm -f $(PROMOTION)
	@$(BIN)/ml release propose "$$NAME" --env "$(ENV)" --on "$(ON)" $(if $(ATTESTATION),--attestation "$(ATTESTATION)" --trained $(RESULTS)/train.json) --save $(PROMOTION) || [ $$? = 3 ]

.PHONY: train-summary
train-summary: ## workflows: compare candidate and champion, after `make train`
	@$(PROMOTIONS) summary $(RESULTS)/train.json

.PHONY: promotion-summary
promotion-summary: ## workflows: the decision of the gates, after `make promote`
	@$(PROMOTIONS) summary $(PROMOTION)

.PHONY: promotion-request
promotion-request: ## workflows: open the pull requests of a run's promotions: NAMES=P, or a JSON list
	@$(PROMOTIONS) open --projects "$$NAMES"

.PHONY: train-request
train-request: | $(RESULTS) ## workflows: the commit that the `/train` comment of the event names
	@$(BARE) ml.repository.github.pull_requests.training_request ask --save $(RESULTS)/request.json

.PHONY: pull-request
pull-request: ## workflows: the files of a pull request's commit as data: make pull-request PULL=12 COMMIT=SHA
	@$(BARE) ml.repository.github.pull_requests.training_request fetch --pull "$(PULL)" --commit "$(COMMIT)" --to .local/pull-request

##@ packages
# osv.dev's export of the advisories for PyPI packages; it is not signed.
ADVISORIES := https://osv-vulnerabilities.storage.googleapis.com/PyPI/all.zip
.PHONY: advisories
advisories: | $(RESULTS) ## today's advisories, for MLOPS_ADVISORIES=.local/check/advisories.zip
	@curl --fail --silent --show-error --location --retry 3 --output $(RESULTS)/advisories.zip "$(ADVISORIES)"

LOCKED := $(INSTALLED) policies.supply_chain.locks

.PHONY: sbom
sbom: setup | $(RESULTS) ## workflows: a bill of materials of every lock (CycloneDX), .local/check/sbom.json
	@$(LOCKED) $(MAIN_LOCK) $(LOCKS)/*.lock requirements/uv.lock > $(RESULTS)/sbom.json

.PHONY: vulnerabilities
vulnerabilities: setup ## list the advisories about the locked packages, after `make advisories`
	@$(LOCKED) --advisories $(RESULTS)/advisories.zip $(MAIN_LOCK) $(LOCKS)/*.lock requirements/uv.lock

.PHONY: comment
comment: ## workflows: post the comment about a run of check.yml or train.yml: make comment RUN=ID
	@$(BARE) ml.repository.github.pull_requests.posting --run "$(RUN)"

$(RESULTS):
	@mkdir -p $@

# Idle workers steal pending tests from others.
PYTEST := $(BIN)/pytest -n auto --dist worksteal
TESTED := $(VENV)/infra.stamp $(VENV)/parser.stamp

ifdef FRAMEWORK
# Including the (empty) stamp makes it up to date first, since most targets use the framework.
include $(VENV)/framework.stamp

# The wheel requires version ranges, and pyproject.toml can narrow them. Other packages keep the version
# of the framework's lock, or else of the fork's own lock.
.PHONY: lock
lock: ## resolve pyproject.toml again into requirements/main.lock, within the framework's ranges
	@cat $(LOCKS)/main.lock $(wildcard requirements/main.lock) > $(VENV)/main.lock
	@sed -n 's/^Requires-Dist: //p' $(FRAMEWORK)/azureml_gitops_starter-*.dist-info/METADATA | \
	$(UV) pip compile pyproject.toml - --quiet --generate-hashes --no-emit-index-url --no-emit-find-links --custom-compile-command "make lock" --python-version 3.11 -o $(VENV)/main.lock >/dev/null
	@mv $(VENV)/main.lock requirements/main.lock
else
include framework.mk
endif

##@ tests and order
.PHONY: test
test: lint $(TESTED) ## lint, then every test: make test ARGS="tests/specs -k overrides"
	@$(PYTEST) -m "" $(or $(ARGS),--ignore tests/projects)
# A separate process, so that a project's conftest.py cannot disable other tests.
	@$(if $(ARGS),,$(PYTEST) -m "" tests/projects)

.PHONY: clean
clean: ## stop the local endpoints and remove .local and the caches; the environment stays
	@if [ -x $(BIN)/ml ]; then $(BIN)/ml serve --stop-all; fi
	@rm -rf .local .mypy_cache .pytest_cache .ruff_cache build ./*.egg-info
