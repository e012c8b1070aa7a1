# demo, test, check, nightly, bench, clean. The first call sets up .venv.

PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
DEMO := runs/demo
# Tests side by side.
JOBS ?= 2

.PHONY: demo test check nightly style bench clean

$(STAMP): pyproject.toml runtime/pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[dev,ppo,dreamer,export]' -e './runtime[dds]'
	touch $@

demo: $(STAMP)
	rm -rf $(DEMO)
	$(BIN)/sdpg train cartpole --obs pixels --minutes 5 --run $(DEMO)
	$(BIN)/sdpg eval $(DEMO) --episodes 32
	$(BIN)/sdpg play $(DEMO) --video $(DEMO)/demo.mp4
	@echo
	@echo "Learned from pixels: watch $(DEMO)/demo.mp4 (or live: $(BIN)/sdpg view $(DEMO)). Next, a robot: $(BIN)/sdpg train hopper --obs pixels"

test: $(STAMP) style
	$(BIN)/python -m pytest -q -n $(JOBS) --dist worksteal -m "not nightly" \
		--cov --cov-report=term-missing:skip-covered --cov-fail-under=90

# What is long, too: whole learning runs, every scene at full number.
nightly: $(STAMP)
	$(BIN)/python -m pytest -q -n $(JOBS) --dist worksteal

# About a minute: what a change of the core would break.
CORE := env episodes sdpg returns theory rng nn checkpoint log imports
check: $(STAMP) style
	$(BIN)/python -m pytest -q -n $(JOBS) -m "not slow and not nightly" $(CORE:%=tests/unit/test_%.py) tests/contract/test_algorithms.py

style: $(STAMP)
	$(BIN)/ruff format --check -q .
	$(BIN)/ruff check -q .
	$(BIN)/mypy

bench: $(STAMP)
	$(BIN)/sdpg bench sim hopper
	$(BIN)/sdpg bench iteration hopper --num-nominal 64 --num-auxiliary 63
	$(BIN)/sdpg bench render hopper
	$(BIN)/sdpg bench smoothing

clean:
	rm -rf .venv build dist src/*.egg-info runtime/src/*.egg-info runtime/build .pytest_cache .ruff_cache .mypy_cache .hypothesis .coverage $(DEMO)
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
