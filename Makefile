# Two commands do everything on a fresh machine with Python >= 3.11: `make demo` and `make test`.
PYTHON ?= python3.11
VENV   ?= .venv
BIN    := $(VENV)/bin
WORKERS ?= 2
# A worker begins with a half of the tests, so that neighbours share what they export, and ends with what others left.
SPREAD := -n $(WORKERS) --dist worksteal
DATA   ?= data
MODELS ?= models
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

# Containers often forbid it: every process that a test starts would compile the package, and every worker all tests.
export PYTHONDONTWRITEBYTECODE =

.PHONY: demo test test-long test-times fuzz same lint types imports bench docs site dist olive clean

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# A stamp per extra, renewed when the requirements change.
$(VENV)/.demo: $(BIN)/python pyproject.toml constraints.txt
	$(PIP) -e .
	touch $@

# torch is named first: with its pin installed, no later requirement fetches another build.
$(VENV)/.test: $(BIN)/python pyproject.toml constraints.txt
	$(PIP) torch
	$(PIP) -e ".[test]"
	touch $@

$(VENV)/.dev: $(VENV)/.test
	$(PIP) -e ".[dev]"
	touch $@

$(VENV)/.bench: $(VENV)/.test
	$(PIP) -e ".[bench]"
	touch $@

demo: $(VENV)/.demo
	$(BIN)/onnxfold demo --out demo_output

test: $(VENV)/.test
	$(BIN)/python -m pytest -q $(SPREAD)

# Checks that take more than five seconds each, and sweeps. Files without one need not be imported.
LONG = -m long $(shell grep -rlE --include='test_*.py' 'mark\.long' tests)
test-long: $(VENV)/.test
	$(BIN)/python -m pytest -q $(SPREAD) $(LONG)

# Seconds per test file.
test-times: $(VENV)/.test
	$(BIN)/python -m pytest -q $(SPREAD) --junitxml=build/test.xml
	$(BIN)/python -m pytest -q $(SPREAD) $(LONG) --junitxml=build/test_long.xml
	$(BIN)/python -m benchmarks.test_times build/test.xml build/test_long.xml

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/yamllint --strict .
	$(BIN)/check-jsonschema --builtin-schema vendor.github-actions action.yml
	$(BIN)/zizmor --offline --quiet action.yml
	$(BIN)/hadolint Dockerfile
	$(BIN)/shellcheck .ci/run integrations/action/*.sh

# Two kernels of OpenBLAS that this machine has: what is lossless is so whatever the rounding. `make test` folds the
# graphs of the first hundred seeds.
fuzz: $(VENV)/.test
	$(BIN)/python -m benchmarks.fuzz --graphs 200 --seed0 100 --coretypes SkylakeX Haswell Nehalem --most 2

# Every method's bytes at the parent commit and here.
same: $(VENV)/.test
	$(BIN)/python -m benchmarks.same_bytes

types: $(VENV)/.dev
	$(BIN)/mypy

imports: $(VENV)/.dev
	$(BIN)/lint-imports

bench: $(VENV)/.bench
	$(BIN)/python -m benchmarks.fold_time
	$(BIN)/python -m benchmarks.accuracy --data $(DATA) --models $(MODELS) --out benchmarks/out --page benchmarks/accuracy.md --resume

docs: $(VENV)/.dev
	$(BIN)/python -m docs.generate

# The documentation as a site, in build/site; whatever is broken in it is an error.
site: $(VENV)/.dev
	$(BIN)/mkdocs build --strict --quiet

# What would be uploaded, in dist/: a source distribution, the wheel that is built from it, and a README that renders.
dist: $(VENV)/.dev
	rm -rf dist
	$(BIN)/python -m build --outdir dist
	$(BIN)/twine check --strict dist/*

# Olive in an environment of its own, which sees the packages of the other one, torch above all.
$(VENV)-olive/.olive: $(VENV)/.test
	$(PYTHON) -m venv $(VENV)-olive
	echo "import site; site.addsitedir('$$($(BIN)/python -c 'import site; print(site.getsitepackages()[0])')')" \
		>$$($(VENV)-olive/bin/python -c 'import site; print(site.getsitepackages()[0])')/onnxfold.pth
	$(VENV)-olive/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt olive-ai==0.13.0 requests
	touch $@

olive: $(VENV)-olive/.olive
	$(VENV)-olive/bin/python -m pytest -q tests/integrations/test_olive.py

clean:
	rm -rf $(VENV) $(VENV)-olive build dist *.egg-info demo_output
