# make demo [QUICK=1]   compare residual connections on this machine, from nothing
# make test             the tests, in five minutes, from nothing
# make test-all         the slow ones, too
# make docs             the guides and the API reference as a site, in site/, from nothing
# make torchtitan       the tests that need torchtitan and torch 2.14, in an environment of 3.3 GiB; needs gcc
# Each makes .venv first. PYTHON chooses the interpreter.

PYTHON ?= python3
BIN := .venv/bin
export OMP_NUM_THREADS := 1

.PHONY: demo test test-all lint docs torchtitan clean

demo: .venv/demo-ready
	$(BIN)/attnres compare $(if $(QUICK),--quick)

test: .venv/test-ready lint
	$(BIN)/pytest -n 2

test-all: .venv/test-ready lint
	$(BIN)/pytest -n 2 -m "slow or not slow"
	PYTHONPATH=.venv/torchao $(BIN)/pytest tests/hf/test_torchao.py

lint: .venv/test-ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports --verbose

docs: .venv/docs-ready
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet
	@echo "site/index.html; with its search: python3 -m http.server --directory site"

torchtitan: .venv-torchtitan/ready
	.venv-torchtitan/bin/python -m pytest -n 2 tests/torchtitan tests/test_torch_private.py tests/parallel

.venv/demo-ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --constraint constraints.txt torch
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[lab]'
	touch $@

.venv/test-ready: .venv/demo-ready
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	$(BIN)/pip install --quiet --no-deps --target .venv/torchao torchao==0.18.0  # beside it: tests/hf/test_torchao.py
	touch $@

.venv/docs-ready: .venv/demo-ready
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[docs]'
	touch $@

# torch 2.14 comes as one build, linked to CUDA's libraries: tests/torchtitan/without_cuda.py says how it does without
.venv-torchtitan/ready: pyproject.toml tests/torchtitan/without_cuda.py
	$(PYTHON) -m venv .venv-torchtitan
	.venv-torchtitan/bin/pip install --quiet --no-deps torch==2.14.1 nvidia-cuda-runtime==13.0.96
	.venv-torchtitan/bin/python tests/torchtitan/without_cuda.py
	.venv-torchtitan/bin/pip install --quiet --editable '.[torchtitan,eval]' pytest pytest-timeout pytest-xdist hypothesis
	touch $@

clean:
	rm -rf .venv .venv-torchtitan build site *.egg-info .pytest_cache .ruff_cache
