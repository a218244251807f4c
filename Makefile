# make demo: set up what the demo needs and restore the bundled images. make test: set everything up and run the quick tests.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check
# The package alone, for the demo; with it what tests, lint and the page need.
LIGHT := $(VENV)/.installed-light
STAMP := $(VENV)/.installed

.PHONY: demo test test-slow lint check bench docs clean

demo: $(if $(wildcard $(STAMP)),$(STAMP),$(LIGHT))
	$(BIN)/macs demo --out demo

test: $(STAMP) lint check

check: $(STAMP)
	$(BIN)/python -m pytest tests

test-slow: $(STAMP)
	$(BIN)/python -m pytest tests -m slow

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(STAMP)
	$(BIN)/python benchmarks/overhead.py

docs: $(STAMP)
	$(INSTALL) -e '.[docs]'
	$(BIN)/mkdocs build --strict --quiet
	@echo "wrote site/index.html"

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(LIGHT): pyproject.toml | $(BIN)/python
	$(INSTALL) -e .
	touch $@

$(STAMP): pyproject.toml | $(BIN)/python
	$(INSTALL) -e '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) demo dist site .ruff_cache .mypy_cache .pytest_cache
