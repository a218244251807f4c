# make demo: set everything up and restore the bundled images. make test: set everything up and run all tests.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test test-slow lint check bench docs clean

demo: $(STAMP)
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
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[docs]'
	$(BIN)/mkdocs build --strict --quiet
	@echo "wrote site/index.html"

$(STAMP): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	touch $(STAMP)

clean:
	rm -rf $(VENV) demo dist site .ruff_cache .mypy_cache .pytest_cache
