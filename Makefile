# Everything lives in .venv; `make demo` and `make test` are all a new machine needs (Python 3.11 or later).
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test test-cluster test-long lint bench clean

demo: .venv/ready          ## the main job on the sample, through a real local Ray
	$(BIN)/python jobs/demo.py

test: .venv/ready          ## the suite
	$(BIN)/python -m pytest

test-long: .venv/ready     ## and its long rounds
	$(BIN)/python -m pytest -m long

test-cluster: .venv/ready  ## nodes that come, go and die, on clusters of their own
	$(BIN)/python -m pytest -m "cluster and not long"

lint: .venv/ready          ## what CONTRIBUTING.md asks for
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: .venv/ready .venv-peers/ready   ## throughput against the peers, one after the other
	RAY_worker_niceness=0 $(BIN)/python benchmarks/embed_throughput.py
	RAY_worker_niceness=0 $(BIN)/python benchmarks/shared_prefix.py
	RAY_worker_niceness=0 $(BIN)/python benchmarks/fit.py
	RAY_worker_niceness=0 $(BIN)/python benchmarks/search.py

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

.venv-peers/ready: benchmarks/peers.txt
	$(PYTHON) -m venv .venv-peers
	.venv-peers/bin/python -m pip install --quiet --requirement benchmarks/peers.txt
	.venv-peers/bin/python -m pip uninstall --quiet --yes torchvision
	touch $@

clean:
	rm -rf .venv .venv-peers
