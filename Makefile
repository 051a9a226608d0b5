# make demo [QUICK=1]   compare residual connections on this machine, from nothing
# make test             the whole test suite, from nothing
# Both make .venv first. PYTHON chooses the interpreter.

PYTHON ?= python3
BIN := .venv/bin
export OMP_NUM_THREADS := 1

.PHONY: demo test lint clean

demo: .venv/demo-ready
	$(BIN)/attnres compare $(if $(QUICK),--quick)

test: .venv/test-ready lint
	$(BIN)/pytest -n 2

lint: .venv/test-ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports --verbose

.venv/demo-ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --constraint constraints.txt torch
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[lab]'
	touch $@

.venv/test-ready: .venv/demo-ready
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

clean:
	rm -rf .venv build *.egg-info .pytest_cache .ruff_cache
