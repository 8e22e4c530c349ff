# One command each; people and CI call the same. Every target makes its own environment.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
READY = $(VENV)/.ready

.PHONY: demo test test-slow check bench clean

demo: $(READY)
	$(BIN)/sps demo --again

test: $(READY)
	$(BIN)/python -m pytest -m "not slow and not gpu and not vllm"

test-slow: $(READY)
	$(BIN)/python -m pytest -m "slow"

check: $(READY)
	$(BIN)/ruff format --check src tests bench examples
	$(BIN)/ruff check src tests bench examples
	$(BIN)/pyrefly check
	$(BIN)/lint-imports

bench: $(READY)
	$(BIN)/python -m bench

$(READY): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet "torch==2.13.0"
	$(BIN)/python -m pip install --quiet --editable ".[test]"
	touch $(READY)

clean:
	rm -rf $(VENV) runs build dist
