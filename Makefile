# Every target sets up what it needs in .venv; no step comes before.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
VERL := .venv-verl
PYREFLY := .venv-pyrefly

# The tests run many small tensors; more threads per process only make them wait for each other.
export OMP_NUM_THREADS ?= 1

.DEFAULT_GOAL := help
.PHONY: help demo test check lint types instrumented wheel verl verl-test bench docs clean

help:
	@echo "make demo    watch a policy learn through validated batches (two minutes on two cores)"
	@echo "make test    run the tests"
	@echo "make instrumented  run the tests with every annotation checked at run time"
	@echo "make verl-test  compare with verl's own losses, in an environment of its own"
	@echo "make check   what CI runs: lint, types, tests, tests with run-time types, verl, wheel"
	@echo "make bench   measure against plain PyTorch"
	@echo "make docs    write the generated pages under docs/"

# torch first and by its exact version: the wheel that pip picks for a bare "torch" may be another, larger one.
$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check "$$(grep '^torch==' constraints.txt)"
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $(READY)

demo: $(READY)
	$(BIN)/python examples/demo.py

test: $(READY) $(PYREFLY)/.ready
	$(BIN)/pytest -n 2

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

# The second line of pyright asks for the types of the public names alone, and that they are complete.
types: $(READY) $(PYREFLY)/.ready
	$(BIN)/mypy
	$(BIN)/pyright
	mkdir -p build
	PATH="$(CURDIR)/$(BIN):$$PATH" pyright --verifytypes rollout_contract --ignoreexternal > build/types.txt || \
		{ cat build/types.txt; exit 1; }
	$(PYREFLY)/bin/pyrefly check --python-interpreter-path=$(BIN)/python

# The suite once more, with every annotation of the library checked at run time. As for type checkers, an int is good for
# a float. beartype draws the one list item that it looks at, which hypothesis does not like to see inside of a strategy.
CHECKER := beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))

instrumented: $(READY)
	$(BIN)/pytest -n 2 -m "not uninstrumented" -W "ignore:Do not use the" \
		"--jaxtyping-packages=rollout_contract,$(CHECKER)"

# Three packages without torch: what they look at is installed in .venv. Their stubs would mislead mypy and pyright.
$(PYREFLY)/.ready: constraints-pyrefly.txt
	test -x $(PYREFLY)/bin/python || $(PYTHON) -m venv $(PYREFLY)
	$(PYREFLY)/bin/pip install --quiet --disable-pip-version-check --no-deps -r constraints-pyrefly.txt
	touch $@

# The wheel is what users get, so it is imported from where it was unpacked and not from the source tree.
wheel: $(READY)
	rm -rf dist build/wheel
	$(BIN)/python -m build --no-isolation --outdir dist . > /dev/null
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --target build/wheel dist/*.whl
	test -f build/wheel/rollout_contract/py.typed
	cd build && PYTHONPATH=wheel ../$(BIN)/python ../tests/readme.py

# verl asks for older packages than the rest, so it has an environment of its own.
$(VERL)/.ready: constraints.txt constraints-verl.txt
	test -x $(VERL)/bin/python || $(PYTHON) -m venv $(VERL)
	$(VERL)/bin/pip install --quiet --disable-pip-version-check --no-compile "$$(grep '^torch==' constraints.txt)"
	$(VERL)/bin/pip install --quiet --disable-pip-version-check --no-compile --no-deps -r constraints-verl.txt
	touch $@

verl: $(VERL)/.ready

verl-test: verl
	PYTHONPATH=src $(VERL)/bin/python -m pytest tests/integrations/verl --confcutdir tests/integrations/verl -p no:cacheprovider

check: lint types test instrumented verl-test wheel

bench: $(READY)
	$(BIN)/python -m benchmarks.run

docs: $(READY)
	$(BIN)/python docs/generate.py

clean:
	rm -rf $(VENV) $(VERL) $(PYREFLY) dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis demo_output
