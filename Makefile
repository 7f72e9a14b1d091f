# VENV, NP, FRAMEWORK and ARGS can be set on the command line: make train NP=4 FRAMEWORK=mxnet
# Of the image: DEVICE (cpu, cuda), ENGINE (docker, podman), and CMD: make docker-run CMD='python -m hvdtrain doctor'
VENV ?= .venv
NP ?= 2
FRAMEWORK ?= torch
ARGS ?=
FUZZ_MINUTES ?= 10
CHAOS_MINUTES ?= 10
# horovodrun starts its processes by name and looks for mpirun on PATH.
ACTIVE = PATH="$$(cd "$(VENV)/bin" && pwd):$$PATH"

# Data sets that lie beside the checkout are used unless the user names another folder.
ifneq ($(wildcard ../shared/data/.),)
export HVDTRAIN_DATA ?= $(CURDIR)/../shared/data
endif
export VENV
# horovodrun loads TensorFlow to see what is there, which otherwise greets with notices.
export TF_CPP_MIN_LOG_LEVEL ?= 1

export DEVICE NP CMD ENGINE
LOCK = --universal --python-version 3.10 --generate-hashes --no-annotate --custom-compile-command 'make lock'

.PHONY: help setup train test fuzz chaos lint format bench lock audit docker-build docker-run docker-test clean distclean
.DEFAULT_GOAL := help

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' Makefile

setup: ## Make the virtual environment, with Horovod built for the frameworks
	@setup/environment.sh

train: setup ## Train LeNet on NP processes with FRAMEWORK (torch, mxnet, tensorflow) and ARGS
	@$(ACTIVE) horovodrun -np $(NP) python -m hvdtrain.$(FRAMEWORK)_lenet $(ARGS)

test: setup ## Run the tests, with ARGS for pytest
	@$(ACTIVE) python -m pytest $(ARGS)

fuzz: setup ## Give every parser FUZZ_MINUTES (10) of damaged input; ARGS names some of them
	@$(ACTIVE) FUZZ_MINUTES="$(FUZZ_MINUTES)" python tests/test_fuzz.py $(ARGS)

chaos: setup ## Do harm to real jobs for CHAOS_MINUTES (10), and see that they train on; ARGS for tests/chaos.py
	@$(ACTIVE) python tests/chaos.py --minutes "$(CHAOS_MINUTES)" $(ARGS)

lint: setup ## Check style, types and shell scripts
	@$(ACTIVE) ruff check .
	@$(ACTIVE) ruff format --check .
	@$(ACTIVE) mypy hvdtrain
	@$(ACTIVE) shellcheck setup/*.sh launch/*.sh docker/*.sh .ci/run
	@$(ACTIVE) hadolint docker/Dockerfile

format: setup ## Put the code into the project's style
	@$(ACTIVE) ruff check --fix .
	@$(ACTIVE) ruff format .

bench: setup ## Measure hvdtrain against hand-written loops, all strategies side by side, and allreduces
	@$(ACTIVE) python benchmarks/run.py --steps 120 --repeats 3
	@$(ACTIVE) python -m hvdtrain bench $(ARGS)
	@$(ACTIVE) python -m hvdtrain bench allreduce --repeats 1

lock: ## Write the sums of all pinned packages anew (needs uv)
	@uv pip compile -q $(LOCK) --no-deps setup/constraints.txt -o setup/requirements.lock
	@uv pip compile -q $(LOCK) setup/audit.in -o setup/audit.lock

audit: setup ## Ask for the published weaknesses of all pinned packages, with ARGS for pip-audit
	@setup/audit.sh "$(VENV)" $(ARGS)

docker-build: ## Build the image for DEVICE (cpu or cuda), with ARGS for docker or podman build
	@docker/image.sh build $(ARGS)

docker-run: ## Train in the image on NP processes, on GPUs where there are some, or run CMD
	@docker/image.sh run

docker-test: ## Try the image: the doctor, and a short training in each framework
	@docker/image.sh test

clean: ## Delete what tools left behind
	@rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	@find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +

distclean: clean ## Delete the virtual environment too (built Horovod wheels are kept)
	@rm -rf "$(VENV)"

.PHONY: docs-pictures
docs-pictures: setup ## Draw the pictures of docs/ again (needs graphviz)
	@$(ACTIVE) python docs/terminal.py
	@dot -Tsvg docs/architecture.dot -o docs/architecture.svg
