# Everything runs in the active environment if it has what is needed (`pip install '.[dev]'`; for
# `make demo` `pip install .`), else in .venv, made on first use from requirements.lock.

PYTHON ?= python3
ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/installed

NEEDED := torch torch_geometric numpy pymetis tqdm
ifneq ($(MAKECMDGOALS),demo)
NEEDED += numba matplotlib pyarrow expecttest hypothesis pytest xdist ruff mypy importlinter
endif
FIND := from importlib.util import find_spec; import sys; print(all(map(find_spec, sys.argv[1:])))
ifdef VIRTUAL_ENV
ifeq ($(shell $(VIRTUAL_ENV)/bin/python -c '$(FIND)' $(NEEDED)),True)
BIN := $(VIRTUAL_ENV)/bin
INSTALLED :=
endif
endif

.DEFAULT_GOAL := help
BENCHMARKS := attention kernels convs limit epoch start scaling accuracy sampling ogbn partition network one_machine

.PHONY: help demo test test-slow test-oldest test-newest test-cuda-sim test-benchmarks docs lint format convs ops published golden fuzz fuzz-sequences bench bench-memory $(BENCHMARKS:%=bench-%) clean

help:  ## show this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 16
	@echo "ARGS='...' is passed on, as in: make test ARGS='-k parity -x'"

demo: $(INSTALLED)  ## partition a graph and train on it, on this machine
	@$(BIN)/python examples/demo.py $(ARGS)

test: $(INSTALLED)  ## run the tests
	@$(BIN)/python -m pytest -m 'not slow and not bench' -n 2 --dist worksteal $(ARGS)

test-slow: $(INSTALLED)  ## run the same for more cuts, sizes and modes, and the examples
	@$(BIN)/python -m pytest -m 'slow and not bench' -n 2 --dist worksteal $(ARGS)

# Plain PyG 2.6.1 gives NaN for the case GENConv: power.
OLDEST := -k 'not power' tests/nn/test_training.py tests/parity/test_parity.py::test_one_process tests/parity/test_parity.py::test_world_sizes

test-oldest: .venv-oldest/installed  ## small trainings and parity with the oldest torch and PyG that are declared
	@.venv-oldest/bin/python -m pytest $(OLDEST) $(ARGS)

test-newest: .venv-newest/installed  ## run the tests with the newest of all packages, pre-releases of torch too
	@.venv-newest/bin/python -m pytest -m 'not slow and not bench' -n 2 --dist worksteal $(ARGS)

test-cuda-sim: $(INSTALLED)  ## run what users of GPUs do on a simulated one, with a simulated NCCL
	@PYTHONPATH=tests/cuda_sim $(BIN)/python -m pytest -p simulated_cuda -m 'cuda_sim and not slow' -n 2 --dist worksteal tests/gpu tests/cuda_sim $(ARGS)

test-benchmarks: $(INSTALLED)  ## run every benchmark in its smallest form, measure what is bounded, and what takes long
	@$(BIN)/python -m pytest -m bench $(ARGS)

docs: .venv-docs/installed  ## build the site into build/docs, without a warning, and list its external links
	@.venv-docs/bin/python -m sphinx -W --keep-going -q -c docs -d build/doctrees . build/docs
	@.venv-docs/bin/python -m sphinx -q -b linkcheck -D 'linkcheck_ignore=https?://.*' -c docs -d build/doctrees . build/links
	@echo "build/docs/index.html; $$(wc -l < build/links/output.json) links, those out of the site not fetched: build/links/output.json"

lint: $(INSTALLED)  ## check style, types and which room imports which
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

format: $(INSTALLED)  ## sort imports and format
	@$(BIN)/ruff check --select I --fix .
	@$(BIN)/ruff format .

convs: $(INSTALLED)  ## run every conv of PyG on ranks and write docs/convs.md
	@$(BIN)/python tests/conformance/table.py

ops: $(INSTALLED)  ## run every function of torch on rows and write docs/ops.md
	@$(BIN)/python tests/rows/ops_table.py

published: $(INSTALLED)  ## run the scripts of a checkout of PyG, CHECKOUT=FOLDER, and write docs/published.md
	@$(BIN)/python tools/published/main.py $(CHECKOUT) --out docs/published.md $(ARGS)

golden: $(INSTALLED)  ## write the losses of small trainings that tests compare with
	@PYTHONPATH=tests $(BIN)/python tests/golden/golden_runs.py

fuzz: $(INSTALLED)  ## load 100,000 damaged files and folders
	@PYG_SAR_EXAMPLES=100000 $(BIN)/python -m pytest tests/fuzz/test_fuzz.py $(ARGS)

fuzz-sequences: $(INSTALLED)  ## draw 20,000 sequences of calls
	@PYG_SAR_EXAMPLES=20000 $(BIN)/python -m pytest tests/properties/test_sequence_properties.py -k "any_sequence_of_calls and not conv" $(ARGS)

bench: $(INSTALLED)  ## the short form of all benchmarks of speed, and the tables of their READMEs
	@for name in $(BENCHMARKS); do echo "benchmarks/$$name"; $(BIN)/python benchmarks/$$name/main.py --quick $(ARGS) || exit 1; done

# bench-kernels, bench-convs ...: one of them in full; see the README.md in its folder
$(BENCHMARKS:%=bench-%): bench-%: $(INSTALLED)
	@$(BIN)/python benchmarks/$*/main.py $(ARGS)

bench-memory: $(INSTALLED)  ## measure the memory of a rank against the number of ranks
	@$(BIN)/python benchmarks/memory/main.py $(ARGS)

clean:  ## remove the environments, caches and build outputs
	rm -rf $(VENV) $(VENV)-* build dist *.egg-info .pytest_cache .ruff_cache .mypy_cache .hypothesis .coverage benchmarks/.cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/installed: requirements.lock pyproject.toml
	@echo 'installing into $(VENV), once (a minute or two) ...'
	@$(PYTHON) -m venv $(VENV)
	@$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check -r requirements.lock
	@$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

# On top of .venv, whose torch and PyG it needs to import what it documents.
.venv-docs/installed: docs/requirements.lock $(INSTALLED)
	@echo 'installing into .venv-docs, once (a minute) ...'
	@$(PYTHON) -m venv .venv-docs
	@.venv-docs/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -r docs/requirements.lock
	@$(BIN)/python -c 'import sysconfig; print("import site; site.addsitedir(%r)" % sysconfig.get_path("purelib"))' \
		> "$$(.venv-docs/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/venv.pth"
	@touch $@

.venv-oldest/installed: requirements-oldest.lock pyproject.toml
	@echo 'installing into .venv-oldest, once (several minutes: 3 GB) ...'
	@$(PYTHON) -m venv .venv-oldest
	@.venv-oldest/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -r requirements-oldest.lock
	@.venv-oldest/bin/python -c 'import pyg_sar'
	@touch $@

# Every package of the lock, without its version. A constraint in pip's settings would hold them back.
.venv-newest/installed: requirements.lock pyproject.toml
	@echo 'installing into .venv-newest, once (several minutes: 3 GB) ...'
	@$(PYTHON) -m venv --clear .venv-newest
	@PIP_CONSTRAINT=/dev/null .venv-newest/bin/python -m pip install --quiet --disable-pip-version-check --pre torch
	@sed -n 's/==.*//p' requirements.lock | grep -v '^torch$$' \
		| PIP_CONSTRAINT=/dev/null xargs .venv-newest/bin/python -m pip install --quiet --disable-pip-version-check
	@.venv-newest/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@
