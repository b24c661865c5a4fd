# `make` lists the targets. Nothing but Python 3.11 and make has to be on the machine.
# `##@` begins a group of that list; what `## workflows:` describes, no person needs to type.
SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
# No built-in rule makes a file of another: not the Makefile of a Makefile.sh.
MAKEFLAGS += --no-builtin-rules
# Images for containers set it: each of some thousand processes would compile what it imports anew.
export PYTHONDONTWRITEBYTECODE :=
# What a shell adds to the path of every Python may have an `ml` of its own.
export PYTHONPATH :=

PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
# uv does not read pip's configuration; a machine that offers packages through it offers them here too.
INDEXES := $(if $(PIP_INDEX_URL),UV_DEFAULT_INDEX="$(PIP_INDEX_URL)") $(if $(PIP_EXTRA_INDEX_URL),UV_INDEX="$(PIP_EXTRA_INDEX_URL)")
UV := UV_FIND_LINKS="$(PIP_FIND_LINKS)" $(INDEXES) $(BIN)/uv
INSTALL := $(UV) pip install --quiet --compile-bytecode

# A thin fork has the framework as one wheel, locked by its hash, with the locks of its packages.
ifneq ($(wildcard requirements/framework.lock),)
FRAMEWORK := $(VENV)/framework
LOCKS := $(FRAMEWORK)/requirements
else
LOCKS := requirements
endif
# Written by `make lock` in a thin fork with packages of its own.
MAIN_LOCK := $(or $(wildcard requirements/main.lock),$(LOCKS)/main.lock)
# A module of the framework or of this tree: both are last on the path, and the working directory is
# not on it, so that no file at the root hides a module of Python or of a package.
START := import runpy, sys; sys.path += sys.argv[1].split(":"); del sys.argv[:2]; \
	runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
MODULE := -c '$(START)' "$(if $(FRAMEWORK),$(CURDIR)/$(FRAMEWORK):)$(CURDIR)"
# The framework with a YAML parser alone, so that a pull request of documents installs nothing else,
# and no other package runs beside a token.
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

# On the path of no Python: ml/core/imports.py of the framework says why.
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

# The main lock last: a thin fork's own may ask for more than the framework's others.
$(VENV)/dev.stamp: $(LOCKS)/dev.lock $(VENV)/main.stamp
	@$(INSTALL) --require-hashes -r $<
	@$(INSTALL) --require-hashes -r $(MAIN_LOCK)
	@touch $@

# The build for the GPU that is there, or for none: PyPI's own brings gigabytes of CUDA. torch.lock has
# the other packages of the extra, such as peft.
$(VENV)/torch.stamp: $(LOCKS)/torch.txt $(LOCKS)/torch.lock $(VENV)/main.stamp
	@$(INSTALL) $(if $(PIP_FIND_LINKS),,--torch-backend auto) -r $<
	@$(INSTALL) --no-deps --require-hashes -r $(LOCKS)/torch.lock
	@$(INSTALL) --require-hashes -r $(MAIN_LOCK)
	@touch $@

# torchvision of the same build as torch. Where torch comes from a folder, PyPI's is for CUDA: without
# its packages, and a project registers the operators that it cannot load.
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

# An environment of its own, for `init`, `update` and `wheel`.
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
# Of variables on make's own command line alone: others' NAME may be in the environment.
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
# The project of `demo` and `ask`, with what its train.yml is given for a quick first model and for a
# bad one; these two lines are all that name it: ml/projects/README.md.
PROJECT := faq_matching
DEMO := --first inputs.trees=2 --first inputs.matches=3 --first inputs.seed=1 --bad inputs.shuffled=true

.PHONY: demo
demo: setup ## the main job: sweep, select, gate, apply with a canary, ask; what is bad is refused
	@$(BIN)/ml demo $(PROJECT) $(DEMO)

# The same with AutoML in it, and a sweep of the family that fits best: both meet the same gates.
.PHONY: fraud-demo
fraud-demo: automl ## a table with rare positives: AutoML and a sweep, gates, canary, endpoint
	@$(BIN)/ml demo fraud_scoring --bad inputs.trees=1

.PHONY: ask
ask: setup ## ask the served model: make ask Q="how do I use spot nodes?"
	@$(BIN)/ml invoke $(PROJECT) "$(Q)"

##@ a change
# The revision that a change is compared with, and where the checks write what the comment shows.
BASE := origin/main
RESULTS := .local/check
AFFECTED := $(BARE) ml.repository.affected.projects $(if $(PULL),--pull "$(PULL)",--base "$(BASE)")
# A thin fork type-checks what is source there, by the framework's settings unless it has its own.
TYPES = $(or $(wildcard requirements/mypy.ini),$(LOCKS)/mypy.ini)
TYPED := ml
# What the affected projects need besides the main job's packages, such as torch.
INSTALL_EXTRAS = extras="$$($(AFFECTED) --extras)"; [ -z "$$extras" ] || $(MAKE) --no-print-directory -f Makefile $$extras

.PHONY: lint
lint: $(VENV)/dev.stamp $(VENV)/infra.stamp ## ruff, mypy and the checks of every spec
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy --config-file $(TYPES) $(TYPED:%=--package %)
	@$(BIN)/ml check $(if $(GITHUB_ACTIONS),--format github)

# Not over a hook of yours. Git runs hooks in the root of the work tree.
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
links: ## the relative links of every page, and no markers of an unfinished merge
	@$(BARE) ml.repository.forks.links

.PHONY: smoke
smoke: setup | $(RESULTS) ## a small training run of each project that the change since BASE touches
	@$(INSTALL_EXTRAS)
	@$(BIN)/ml smoke --base "$(BASE)" --json > $(RESULTS)/smoke.json

.PHONY: preview
preview: infra | $(RESULTS) ## what a merge into BASE would change in the stacks, with policies and cost
	@$(BIN)/infra preview --format $(FORMAT) --against "$(BASE)" --save $(RESULTS)/infra.json
FORMAT := text

# The framework's own tests are `make test`; here are those of projects, policies and workflows.
.PHONY: affected-tests
affected-tests: setup $(VENV)/dev.stamp ## the tests of what the change since BASE touches
	@$(INSTALL_EXTRAS)
	@paths="$$($(AFFECTED) --tests)"; [ -z "$$paths" ] || $(PYTEST) $$paths

##@ Azure
# Deploys one stack: make deploy ENV=dev. The state and the sign-in are those of the environment:
# `infra bootstrap`. Pulumi runs the program with this environment's Python. Its update begins with a
# preview: rules of the whole stack refuse it there, before anything has changed. It reads Azure first:
# what a release set of an endpoint would be lost otherwise (pulumi/pulumi-azure-native#1280).
PULUMI = PATH="$(abspath $(BIN)):$$PATH" $(BARE) infra.live.sign_in pulumi $(1) --refresh --non-interactive --policy-pack ../policies/infra --stack "$(ENV)" --cwd infra

.PHONY: doctor
doctor: infra ## would Azure refuse the update of a stack: make doctor ENV=dev
	@$(BIN)/infra doctor "$(ENV)"

# Without a stack it asks the workspace of the variables alone. ENV is `local` where nobody sets it.
.PHONY: azure-first-day
azure-first-day: infra ## compare Azure's answers with the expected ones: make azure-first-day ENV=dev
	@$(if $(filter-out local,$(ENV)),$(BIN)/infra doctor "$(ENV)")
	@$(INSTALLED) ml.backends.azure.first_day --record $(or $(wildcard tests/stand_ins/azure),.local/azure-first-day)/recorded

.PHONY: plan
plan: infra ## what Pulumi would change in a stack, with policies: make plan ENV=dev
	@$(if $(filter md,$(FORMAT)),echo '```diff';) $(call PULUMI,preview --diff)$(if $(filter md,$(FORMAT)), && echo '```')

.PHONY: deploy
deploy: infra ## let Pulumi change a stack, with policies: make deploy ENV=dev
	@$(call PULUMI,up --yes)

.PHONY: stacks
stacks: ## workflows: the stacks in the order of their deployment; WORKFLOW=infra.yml: those it has not deployed
	@$(BARE) ml.repository.affected.stacks $(if $(WORKFLOW),--not-deployed-by "$(WORKFLOW)")

.PHONY: needed
needed: ## workflows: has this run of infra.yml deployed what a stack refers to: make needed ENV=dev
	@$(BARE) ml.repository.affected.stacks --needed-by "$(ENV)"

.PHONY: infra-drift
infra-drift: infra | $(RESULTS) ## what in Azure differs from what a stack declares: make infra-drift ENV=dev
	@$(BIN)/infra drift "$(ENV)" --json > $(RESULTS)/drift.json

.PHONY: release-drift
release-drift: setup | $(RESULTS) ## what serves beside what is declared, and its requests beside the evaluation: make release-drift ENV=dev
	@$(BIN)/ml release drift --env "$(ENV)" --on azure --since 7d --json > $(RESULTS)/watch.json

.PHONY: released
released: setup ## would the gates of today reject what serves; trains and changes nothing: make released ENV=dev
	@echo '```'
	@$(BIN)/ml gate --released --env "$(ENV)" --on "$(ON)" || [ $$? = 3 ]
	@echo '```'

.PHONY: release-drift-issue
release-drift-issue: ## workflows: open, update or close the issues about releases and models, after `make release-drift`
	@$(BARE) ml.repository.github.drift_issue --env "$(ENV)" --watched $(RESULTS)/watch.json

.PHONY: infra-drift-issue
infra-drift-issue: ## workflows: open, update or close the issue about a stack, after `make infra-drift`
	@$(BARE) ml.repository.github.drift_issue --env "$(ENV)" --differences $(RESULTS)/drift.json

# What an environment declares, brought about: make release ENV=dev BY=ana. In a workflow its
# reviewer is asked of GitHub.
RELEASES := $(BARE) ml.repository.github.releases
.PHONY: release
release: setup | $(RESULTS) ## apply every release.yml to an environment on Azure: make release ENV=dev BY=NAME
	@rm -f $(RESULTS)/release.json
	@by="$(or $(BY),$$($(RELEASES) approver "$(ENV)"))" && \
	$(BIN)/ml release apply --env "$(ENV)" --on azure --approved-by "$$by" --json > $(RESULTS)/release.json

.PHONY: releases
releases: ## workflows: the environments to release, in order; WORKFLOW=release.yml: what it has not released
	@$(RELEASES) environments $(if $(WORKFLOW),--not-released-by "$(WORKFLOW)")

.PHONY: release-summary
release-summary: ## workflows: what became of each project, after `make release`
	@$(RELEASES) summary $(RESULTS)/release.json

.PHONY: release-issue
release-issue: ## workflows: open, update or close the issues about versions that were rolled back
	@$(RELEASES) issue $(RESULTS)/release.json

.PHONY: release-revert
release-revert: ## workflows: open the pull requests that take back what was rolled back
	@$(RELEASES) revert --environments "$$ENVIRONMENTS"

# ON: this machine or Azure; ENV: the environment whose champion is the one to beat; TREE: the files.
ON := local
ENV := local
TREE := .

# Of a TREE that others wrote, this work tree's `ml` reads files; what they import is not found there.
# A training may take longer than a runner lives: TIMEOUT ends the waiting, and the next run of the
# workflow waits for the same jobs, which `make unfinished` finds.
UNFINISHED := $(RESULTS)/unfinished.json
.PHONY: train
train: setup | $(RESULTS) ## train NAME, or what the change since BASE touches, and compare with the champion
	@cd "$(TREE)" && MLOPS_HOME="$${MLOPS_HOME:-$(CURDIR)/.local}" PYTHONSAFEPATH=1 "$(CURDIR)/$(BIN)/ml" train $(if $(NAME),"$(NAME)",--base "$(BASE)") --on "$(ON)" --env "$(ENV)" $(if $(TIMEOUT),--timeout "$(TIMEOUT)") $(if $(wildcard $(UNFINISHED)),--continue "$(CURDIR)/$(UNFINISHED)") --json > "$(CURDIR)/$(RESULTS)/train.json"

# After a merge: train, evaluate, register and collect the evidence; then, once it is attested
# (ATTESTATION names the bundle), ask the gates. A refusal is a result: the summary has it.
PROMOTIONS := $(BARE) ml.repository.github.pull_requests.promotions
PROMOTION := $(RESULTS)/promotion.json

.PHONY: merged-projects
merged-projects: ## workflows: the projects to train again; WORKFLOW=merge.yml: for what it has not trained yet
	@$(PROMOTIONS) projects $(if $(WORKFLOW),--not-trained-by "$(WORKFLOW)")

.PHONY: trained
trained: | $(RESULTS) ## workflows: what `make train NAME=P` left in another job of this workflow run: make trained NAME=P
	@$(PROMOTIONS) trained --project "$(NAME)" --save $(RESULTS)/train.json

.PHONY: unfinished
unfinished: | $(RESULTS) ## workflows: the jobs that earlier runs had not waited for to the end: make unfinished NAME=P, or of /train
	@$(PROMOTIONS) unfinished $(if $(NAME),--project "$(NAME)") --save $(UNFINISHED)

.PHONY: continue
continue: ## workflows: start another run if a training of this one has not ended: NAMES=P, or a JSON list
	@$(PROMOTIONS) continue --projects "$$NAMES"

.PHONY: evidence
evidence: setup | $(RESULTS) ## workflows: register what `make train NAME=P` trained and collect the evidence: make evidence NAME=P
	@$(BIN)/ml release collect "$(NAME)" --env "$(ENV)" --on "$(ON)" --trained $(RESULTS)/train.json --save $(RESULTS)

.PHONY: promote
promote: setup | $(RESULTS) ## ask the gates: make promote NAME=P ATTESTATION=FILE; NAME=P ENV=staging: what dev declares
	@rm -f $(PROMOTION)
	@$(BIN)/ml release propose "$$NAME" --env "$(ENV)" --on "$(ON)" $(if $(ATTESTATION),--attestation "$(ATTESTATION)" --trained $(RESULTS)/train.json) --save $(PROMOTION) || [ $$? = 3 ]

.PHONY: train-summary
train-summary: ## workflows: candidate against champion, after `make train`
	@$(PROMOTIONS) summary $(RESULTS)/train.json

.PHONY: promotion-summary
promotion-summary: ## workflows: what the gates decided, after `make promote`
	@$(PROMOTIONS) summary $(PROMOTION)

.PHONY: promotion-request
promotion-request: ## workflows: open the pull requests of a run's promotions: NAMES=P, or a JSON list
	@$(PROMOTIONS) open --projects "$$NAMES"

.PHONY: train-request
train-request: | $(RESULTS) ## workflows: which commit the comment `/train` of a workflow's event asks for
	@$(BARE) ml.repository.github.pull_requests.training_request ask --save $(RESULTS)/request.json

.PHONY: pull-request
pull-request: ## workflows: the files of a pull request's commit as data: make pull-request PULL=12 COMMIT=SHA
	@$(BARE) ml.repository.github.pull_requests.training_request fetch --pull "$(PULL)" --commit "$(COMMIT)" --to .local/pull-request

##@ packages
# osv.dev's export of what is known about packages of PyPI; it signs nothing.
ADVISORIES := https://osv-vulnerabilities.storage.googleapis.com/PyPI/all.zip
.PHONY: advisories
advisories: | $(RESULTS) ## today's advisories, for MLOPS_ADVISORIES=.local/check/advisories.zip
	@curl --fail --silent --show-error --location --retry 3 --output $(RESULTS)/advisories.zip "$(ADVISORIES)"

LOCKED := $(INSTALLED) policies.supply_chain.locks

.PHONY: sbom
sbom: setup | $(RESULTS) ## workflows: a bill of materials of every lock (CycloneDX), .local/check/sbom.json
	@$(LOCKED) $(MAIN_LOCK) $(LOCKS)/*.lock requirements/uv.lock > $(RESULTS)/sbom.json

.PHONY: vulnerabilities
vulnerabilities: setup ## what is known about the locked packages, after `make advisories`
	@$(LOCKED) --advisories $(RESULTS)/advisories.zip $(MAIN_LOCK) $(LOCKS)/*.lock requirements/uv.lock

.PHONY: comment
comment: ## workflows: post the comment about a run of check.yml or train.yml: make comment RUN=ID
	@$(BARE) ml.repository.github.pull_requests.posting --run "$(RUN)"

$(RESULTS):
	@mkdir -p $@

# A worker that is done takes from another what that has not begun.
PYTEST := $(BIN)/pytest -n auto --dist worksteal
TESTED := $(VENV)/infra.stamp $(VENV)/parser.stamp

ifdef FRAMEWORK
# Empty: make brings it up to date before anything else, since most targets use the framework.
include $(VENV)/framework.stamp

# What the wheel asks for are ranges: pyproject.toml may ask for more of a package. What nothing asks
# for anew stays as the framework's lock has it, or else the own one.
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
# A project's conftest.py is its team's: in a process of its own it silences no other test.
	@$(if $(ARGS),,$(PYTEST) -m "" tests/projects)

.PHONY: clean
clean: ## stop the local endpoints and remove .local and the caches; the environment stays
	@if [ -x $(BIN)/ml ]; then $(BIN)/ml serve --stop-all; fi
	@rm -rf .local .mypy_cache .pytest_cache .ruff_cache build ./*.egg-info
