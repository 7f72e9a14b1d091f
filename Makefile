# Set VENV, NP, FRAMEWORK, WORKERS and ARGS on the command line: make train NP=4 FRAMEWORK=mxnet
# For set-up: STACK (all, pytorch, tensorflow), BASE_PYTHON, USE_SYSTEM_TORCH, TORCH and PACKAGES: make setup STACK=pytorch
# For the image: STACK, DEVICE (cpu, cuda), ENGINE (docker, podman), WHEELS and CMD: make docker-run CMD='python -m hvdtrain doctor'
VENV ?= .venv
NP ?= 2
ARGS ?=
# What test-all and test-matrix run of their tests: 1/4 for the first of four parts; all without it.
PART ?=
# Tests that run at the same time. On two cores two of them leave a quarter of the time unused, as jobs wait for each other.
WORKERS ?= 3
# What make test-gpu writes.
REPORT ?= gpu-report.txt
FUZZ_MINUTES ?= 10
CHAOS_MINUTES ?= 10
# horovodrun finds python and mpirun through PATH. exec, as make's SIGTERM goes to the shell and to nothing below it.
ACTIVE_PATH = PATH="$$(cd "$(VENV)/bin" && pwd):$$PATH"
ACTIVE = $(ACTIVE_PATH) exec

# Data sets next to the checkout are used unless the user names another folder.
ifneq ($(wildcard ../shared/data/.),)
export HVDTRAIN_DATA ?= $(CURDIR)/../shared/data
endif
export VENV
# Hides the informational messages of TensorFlow.
export TF_CPP_MIN_LOG_LEVEL ?= 1
# The user's setting is overridden: with it, each process would compile the modules of the checkout again.
unexport PYTHONDONTWRITEBYTECODE
# As where the environment is activated by hand; and `cd` prints what it has found by CDPATH.
unexport PYTHONHOME CDPATH

# The first framework of the environment's stack, unless FRAMEWORK names another.
framework = $(or $(FRAMEWORK),$$(. "setup/stacks/$$(cat "$(VENV)/.hvdtrain-stack")/stack.conf"; echo "$${FRAMEWORKS%% *}"))

of_part = $(if $(PART),--part $(PART))

export DEVICE NP CMD ENGINE WHEELS
# `make chaos`, `make horovod-test` and `make test-machines` run packages of tests/.
TEST_PATH = PYTHONPATH="$(CURDIR)/tests$${PYTHONPATH:+:$$PYTHONPATH}"
LOCK = --universal --python-version 3.10 --generate-hashes --no-annotate --custom-compile-command 'make lock'

.PHONY: help setup packages wheel train test test-avx2 test-all test-matrix test-gpu test-machines fuzz chaos horovod-test lint format bench lock docs dist audit docker-build docker-run docker-test clean distclean
.DEFAULT_GOAL := help

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' Makefile

setup: ## Create the virtual environment of STACK (all, pytorch, tensorflow) with BASE_PYTHON, and build Horovod
	@setup/environment.sh

packages: ## Download what set-up of STACK, or FOR=test-gpu, reads into a folder: PACKAGES=FOLDER make setup needs no network
	@setup/packages.sh

wheel: setup ## Build a wheel of Horovod into dist/, for machines without a compiler (HOROVOD_WHEELS)
	@setup/wheel.sh "$(VENV)" dist

# Without what only tests need.
train: export FOR = train
train: setup ## Train LeNet on NP processes with FRAMEWORK (default: the stack's first); ARGS are its options
	@$(ACTIVE) horovodrun -np $(NP) python -m hvdtrain.$(framework)_lenet $(ARGS)

test: setup ## Run the short test suite, which tests every guarantee; ARGS are passed to pytest
	@$(ACTIVE) python -m pytest -n $(WORKERS) -m "not matrix" $(ARGS)

# Of one framework, another one each day.
DAYS_FRAMEWORK = $(or $(FRAMEWORK),$$(set -- $$(. "setup/stacks/$$(cat "$(VENV)/.hvdtrain-stack")/stack.conf"; echo $$FRAMEWORKS); \
    shift $$(($$(date +%s) / 86400 % $$#)); echo $$1))
test-avx2: setup ## Run the contracts of FRAMEWORK (default: another one each day) with libraries limited to AVX2
	@$(ACTIVE) python -m pytest -n $(WORKERS) -m "not matrix" --avx2 --framework "$(DAYS_FRAMEWORK)" tests/contracts $(ARGS)

test-all: setup ## Run all tests, or PART=1/4: every framework with every launcher, and print the coverage; ARGS are passed to pytest
	@$(ACTIVE) python -m pytest -n $(WORKERS) --cov=hvdtrain --cov-report=term:skip-covered $(of_part) $(ARGS)

test-matrix: setup ## Run what make test leaves out, or PART=1/14 of it; ARGS are passed to pytest
	@$(ACTIVE) python -m pytest -n $(WORKERS) -m matrix $(of_part) $(ARGS)

# In an environment of its own, beside the one for other work.
test-gpu: VENV = .venv-gpu
test-gpu: SHELL = bash
test-gpu: ## Prove on a GPU, with this machine's PyTorch, what docs/gpus.md says; writes REPORT (gpu-report.txt)
	@STACK=pytorch USE_SYSTEM_TORCH=1 FOR=test-gpu setup/environment.sh
	@set -o pipefail; $(ACTIVE_PATH); python -m torch.utils.collect_env | tee "$(REPORT)"; \
	python -m pytest tests/gpu -v -rA --durations=0 $(ARGS) | tee -a "$(REPORT)"

test-machines: ## Run README's commands on fresh machines made on this one (needs root); ARGS="--only 'debian-12-*'" selects
	@$(TEST_PATH) python3 -m machines $(ARGS)

fuzz: setup ## Fuzz each parser for FUZZ_MINUTES (10); ARGS selects parsers by parts of their names
	@FUZZ_MINUTES="$(FUZZ_MINUTES)" $(ACTIVE) python -m pytest tests/fuzz -v --durations=0 -k "$(ARGS)"

chaos: setup ## Inject faults into real jobs for CHAOS_MINUTES (10); ARGS='--only kill' selects, ARGS=--help lists
	@$(TEST_PATH) $(ACTIVE) python -m faults.chaos --minutes "$(CHAOS_MINUTES)" $(ARGS)

horovod-test: setup ## Run the tests of Horovod's source tree SOURCE with its core as shipped and event-driven, and compare
	@$(TEST_PATH) $(ACTIVE) python -m horovod_suite --source "$(SOURCE)" $(ARGS)

lint: setup ## Check style, types and shell scripts
	@$(ACTIVE) ruff check .
	@$(ACTIVE) ruff format --check .
	@$(ACTIVE) mypy hvdtrain
	@$(ACTIVE) shellcheck setup/*.sh launch/*.sh docker/*.sh .ci/run
	@$(ACTIVE) hadolint docker/Dockerfile

format: setup ## Format the code
	@$(ACTIVE) ruff check --fix .
	@$(ACTIVE) ruff format .

bench: setup ## Compare hvdtrain with hand-written loops, data with and without enough memory, strategies, and allreduces
	@$(ACTIVE) python benchmarks/run.py --steps 120
	@$(ACTIVE) python benchmarks/user_task.py
	@$(ACTIVE) python benchmarks/larger_than_memory.py
	@$(ACTIVE) python -m hvdtrain bench $(ARGS)
	@$(ACTIVE) python benchmarks/allreduce.py --sizes 8 1024 16384 524288 1048576 67108864
	@$(ACTIVE) python benchmarks/idle.py
	@$(ACTIVE) python benchmarks/goals.py

lock: ## Update the hashes of all stacks' pinned packages (needs uv)
	@for stack in setup/stacks/*; do \
	    uv pip compile -q $(LOCK) --no-deps $$stack/constraints.txt $$(ls $$stack/locked-only.txt 2>/dev/null) \
	        -o $$stack/requirements.lock || exit; \
	done
	@uv pip compile -q $(LOCK) setup/audit.in -o setup/audit.lock
	@for tool in uv wheel; do uv pip compile -q $(LOCK) setup/$$tool.in -o setup/$$tool.lock || exit; done
	@uv pip compile -q $(LOCK) setup/docs.in setup.cfg -o setup/docs.lock
	@uv pip compile -q $(LOCK) setup/dist.in -o setup/dist.lock

docs: ## Build the site of the documentation into build/site, and check its links (needs no set-up)
	@setup/docs.sh

dist: setup ## Build the source distribution and the wheel of this version into dist/, and check both
	@setup/dist.sh "$(VENV)" dist

audit: setup ## Check the pinned packages of all stacks for known vulnerabilities; ARGS are passed to pip-audit
	@setup/audit.sh "$(VENV)" $(ARGS)

docker-build: ## Build the image of STACK for DEVICE (cpu or cuda); ARGS are passed to docker or podman build
	@docker/image.sh build $(ARGS)

docker-run: ## Train in the image on NP processes, with GPUs if there are any, or run CMD
	@docker/image.sh run

docker-test: ## Test the image: the doctor, and a short training in each framework
	@docker/image.sh test

clean: ## Delete the files that tools generated
	@rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	@find . -name __pycache__ -not -path './.venv*' -prune -exec rm -rf {} +

distclean: clean ## Also delete the virtual environment that set-up made in VENV (built Horovod wheels stay cached)
	@setup/distclean.sh

.PHONY: docs-pictures
docs-pictures: setup ## Draw the pictures of docs/ again (needs graphviz and chromium)
	@$(ACTIVE) python docs/pictures/terminal.py
	@$(ACTIVE) python docs/pictures/timeline.py
	@$(ACTIVE) python docs/pictures/watch.py
	@$(ACTIVE) python docs/pictures/web.py
	@dot -Tsvg docs/architecture.dot -o docs/architecture.svg

.PHONY: docs-options
docs-options: setup ## Write the tables of options, rules and exit statuses into docs/reference.md and docs/strategies.md
	@$(ACTIVE) python docs/options.py

.PHONY: docs-guarantees
docs-guarantees: setup ## Write the names of the tests that prove each guarantee into docs/guarantees.md
	@$(ACTIVE) python docs/guarantees.py
