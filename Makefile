# Two commands do everything on a fresh machine with Python >= 3.11: `make demo` and `make test`.
PYTHON ?= python3.11
VENV   ?= .venv
BIN    := $(VENV)/bin
WORKERS ?= 2
DATA   ?= data
MODELS ?= models
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test lint types imports bench docs clean

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
	$(PIP) -e ".[bench,report]"
	touch $@

demo: $(VENV)/.demo
	$(BIN)/onnxfold demo --out demo_output

test: $(VENV)/.test
	$(BIN)/python -m pytest -q -n $(WORKERS)

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev
	$(BIN)/mypy

imports: $(VENV)/.dev
	$(BIN)/lint-imports

bench: $(VENV)/.bench
	$(BIN)/python -m benchmarks.fold_time
	$(BIN)/python -m benchmarks.accuracy --data $(DATA) --models $(MODELS) --out benchmarks/out --page benchmarks/accuracy.md --resume

docs: $(VENV)/.dev
	$(BIN)/python -m docs.generate

clean:
	rm -rf $(VENV) build dist *.egg-info demo_output
