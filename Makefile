# Everything a user or a developer types. `make` alone prints what there is.
#
# Six environments, each made when it is first needed and again when what it is made from changes:
#   .venv          semspec on transformers; `make test` and `make lint` add the development tools
#   .venv-sglang   SGLang on a CPU with semspec, its server included, for tests/sglang
#   .venv-smollm2  what .venv has, and a package with a real language model, for tests/smollm2
#   .venv-rivals   what .venv has, that package, and the engines that semspec is measured beside, for tests/rivals
#   .venv-clients  what .venv has, and clients that the server is tried with, for tests/clients
#   .venv-aiperf   the same for those that want other versions
# The tests also look at the reports in Chromium, which is the system's: `make env-browser` sees to it.
# A stamp in the environment's folder carries a checksum of its ingredients and is written last, so
# an install that was interrupted is begun again from an empty folder.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory
.DELETE_ON_ERROR:

PYTHON ?= python3
WORKERS ?= 3
# files at a time, each with servers of two or three gigabytes
SGLANG_WORKERS ?= 2

# Of pyproject.toml only what stands before the first [tool.] table goes into an environment.
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
# A file that is of the deep run as a whole has nothing in a quick one, which pytest takes for an error.
SGLANG_TESTS = $(if $(SEMSPEC_DEEP),$(shell grep -l mark.deep $(ALL_SGLANG)),$(shell grep -L "^pytestmark = pytest.mark.deep$$" $(ALL_SGLANG)))
OLDER_TESTS = $(wildcard $(patsubst %,tests/sglang/test_%*.py,plugin verification draft ngram engine_http inside run_inside handed))

# One worker more than two cores have: many tests wait for processes that they start.
# Workers take each other's tests in runs, so that a fixture of a module is made once or twice, and no long file is left
# to one of them at the end.
#
# One thread for each process: more collapse on few cores, and sums then depend on their number.
ONE_THREAD := OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false HF_HUB_OFFLINE=1
# Tests start hundreds of Pythons, which would compile semspec anew each (0.7 s of CPU) where bytecode may not be kept.
TESTING := $(ONE_THREAD) PYTHONDONTWRITEBYTECODE=
PIP := -m pip --disable-pip-version-check --quiet --quiet

# Every file in a process of its own.
each_alone = $(TESTING) $(1)/bin/python -m tests.support.each_alone --workers $(SGLANG_WORKERS) "$(2)" $(ARGS)

##@ Use

.PHONY: run
run: $(CORE) ## Run semspec, offline on the embedded pair unless ARGS="model=... draft=..." say otherwise
	@.venv/bin/python -m semspec.run $(ARGS)

.PHONY: serve
serve: $(CORE) ## Serve OpenAI's API on 127.0.0.1:8000, the embedded pair unless ARGS="model=... draft=..." say otherwise
	@.venv/bin/python -m semspec.serve $(ARGS)

.PHONY: bench
bench: $(CORE) ## Measure passes, the loop, what the pair allows, and every start, a server's included, into runs/bench.json (servers under load: make serving)
	@$(ONE_THREAD) .venv/bin/python scripts/bench.py $(ARGS)

.PHONY: tables
tables: $(CORE) ## Every drafter with every rule on the embedded pair, into docs/results.md and the overview (under an hour)
	@$(ONE_THREAD) .venv/bin/python scripts/tables.py $(ARGS)

.PHONY: never-slower
never-slower: $(CORE) ## Every drafter beside the target alone, into docs/measurements/never_slower.md (on a quiet machine)
	@$(ONE_THREAD) .venv/bin/python scripts/bench_adaptive.py $(ARGS)

.PHONY: never-slower-together
never-slower-together: $(CORE) ## The same with 4 and 16 problems under way, into a table of its own on the same page
	@$(ONE_THREAD) .venv/bin/python scripts/bench_adaptive.py --at-once 4 16 $(ARGS)

.PHONY: never-slower-longer
never-slower-longer: $(CORE) ## The rows that are below the aim, in longer runs, likewise (needs the figures of make never-slower)
	@$(ONE_THREAD) .venv/bin/python scripts/bench_adaptive.py --longer $(ARGS)

.PHONY: rivals
rivals: $(RIVALS) ## semspec beside transformers, llama.cpp and OpenVINO GenAI, into docs/rivals.md (on a quiet machine)
	@$(ONE_THREAD) HF_HOME=$(CURDIR)/.venv-rivals/cache .venv-rivals/bin/python scripts/bench_rivals.py $(ARGS)

.PHONY: certificates
certificates: $(RIVALS) ## Is the speculation of llama.cpp and OpenVINO GenAI lossless? Into docs/certify.md (half an hour)
	@$(ONE_THREAD) HF_HOME=$(CURDIR)/.venv-rivals/cache .venv-rivals/bin/python scripts/certify_rivals.py $(ARGS)

.PHONY: artifacts
artifacts: $(CORE) ## Make again what depends on the pair and is not as its script makes it; ARGS="--check", "--list" or "--only NAME"
	@$(ONE_THREAD) .venv/bin/python scripts/make_artifacts.py $(ARGS)

.PHONY: copying
copying: $(RIVALS) ## What drafters that copy save on edits and corrections, into docs/measurements/copying.md
	@$(ONE_THREAD) HF_HOME=$(CURDIR)/.venv-rivals/cache .venv-rivals/bin/python scripts/bench_copying.py $(ARGS)

.PHONY: serving
serving: $(CORE) ## The server at 1 to 64 clients, with drafts and without, into docs/measurements/serving.md (on a quiet machine)
	@$(ONE_THREAD) .venv/bin/python scripts/bench_serve.py $(ARGS)

.PHONY: serving-sglang
serving-sglang: $(SGLANG) ## The same over SGLang servers on the CPU
	@$(ONE_THREAD) .venv-sglang/bin/python scripts/bench_serve.py --table sglang wrong-sglang $(ARGS)

.PHONY: soak
soak: $(CORE) ## 10,000 requests, right and wrong, to the server with engine=hf, into docs/measurements/serving.md; ARGS="adaptive=true"
	@$(ONE_THREAD) .venv/bin/python scripts/soak.py $(ARGS)

.PHONY: soak-sglang
soak-sglang: $(SGLANG) ## The same over SGLang servers on the CPU, which are killed meanwhile (more than an hour)
	@$(ONE_THREAD) .venv-sglang/bin/python scripts/soak.py engine=sglang $(ARGS)

##@ Check

.PHONY: test
test: $(DEV) $(SGLANG) ## The quick tests, SGLang's included: before every commit
	@status=0; for part in test-core test-sglang; do $(MAKE) $$part || status=1; done; exit $$status

# What a quick run leaves undone, and nothing else: `make test test-deep` is all there is.
.PHONY: test-deep
test-deep: $(DEV) $(SGLANG) ## What `make test` leaves out: every law and every fuzzer in full, and all engines
	@export SEMSPEC_DEEP=1; status=0; $(MAKE) test-core ARGS="-m deep $(ARGS)" || status=1; \
	  $(MAKE) test-sglang ARGS="-m deep $(ARGS)" || status=1; exit $$status

# Loaders, servers and the grader at full number, and every command killed at every write: an hour or two of one core.
# SEMSPEC_MUTANTS=2000 makes fewer of the former, SEMSPEC_KILLS= four kills of the commands that take seconds to start.
ATTACKS = tests/unit/test_hostile_artifacts.py tests/integration/test_serve_hostile.py tests/integration/test_sandbox_attacks.py \
  tests/integration/test_killed_at_every_write.py
.PHONY: test-attack
test-attack: export SEMSPEC_DEEP := 1
test-attack: export SEMSPEC_MUTANTS ?= 20000
test-attack: export SEMSPEC_KILLS ?= every
test-attack: $(DEV) $(SGLANG) ## 20,000 damaged files of every kind, 20,000 hostile requests to each server, hostile programs, kills at every write
	@status=0; $(TESTING) .venv/bin/python -m pytest -s $(ATTACKS) $(ARGS) || status=1; \
	  $(TESTING) .venv-sglang/bin/python -m pytest -s tests/sglang/test_plugin_hostile.py $(ARGS) || status=1; exit $$status

.PHONY: test-core
test-core: $(DEV) env-browser ## The tests that need no SGLang; ARGS="tests/unit -k wheel" chooses some
	@$(TESTING) .venv/bin/python -m pytest -n $(WORKERS) --dist worksteal $(ARGS)

.PHONY: test-sglang
test-sglang: $(SGLANG) ## The tests with real SGLang engines on the CPU
	@$(call each_alone,.venv-sglang,$(SGLANG_TESTS))

.PHONY: test-smollm2
test-smollm2: $(SMOLLM2) $(SGLANG) ## The tests with a real language model (downloads 93 MB once; ten minutes)
	@$(TESTING) .venv-smollm2/bin/python -m pytest tests/smollm2 $(ARGS)

.PHONY: test-rivals
test-rivals: $(RIVALS) ## The tests with other engines: what they write is the same text (a few minutes)
	@$(TESTING) .venv-rivals/bin/python -m pytest tests/rivals $(ARGS)

.PHONY: test-clients
test-clients: $(DEV) $(CLIENTS) $(AIPERF) $(SGLANG) env-fronts ## The server with clients and proxies of others, docs/deploy with its checkers (fifteen minutes)
	@$(TESTING) .venv/bin/python -m pytest tests/clients $(ARGS)

.PHONY: sglang-matrix
sglang-matrix: ## The plugin's and the engine's tests on older SGLangs; SGLANG_VERSIONS="0.5.22" chooses
	@status=0; for version in $(SGLANG_VERSIONS); do $(MAKE) sglang-$$version || status=1; done; exit $$status

.PHONY: lint
lint: $(DEV) ## Style (ruff), nothing is changed
	@.venv/bin/ruff check .
	@.venv/bin/ruff format --check .

.PHONY: format
format: $(DEV) ## Format, and mend what ruff can mend
	@.venv/bin/ruff check --fix .
	@.venv/bin/ruff format .

.PHONY: types
types: $(DEV) ## Types (mypy: strict for semspec, names and arguments for the tests)
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

# Debian's chromium by apt-get where we may install it. Elsewhere one line says what is missing: the tests of the
# reports fail without a browser, all others need none.
.PHONY: env-browser
env-browser: ## Chromium for the tests of the reports (by apt-get, where it is missing and we are root)
	@for name in "$${CHROMIUM:-chromium}" chromium-browser google-chrome google-chrome-stable; do \
	  command -v "$$name" >/dev/null && exit 0; done; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  echo "Installing chromium (once) ..." >&2; \
	  apt-get update -qq && DEBIAN_FRONTEND=noninteractive \
	    apt-get install -y -qq --no-install-recommends chromium >/dev/null && exit 0; fi; \
	echo "No Chromium: the tests of reports will fail; install chromium, or name one: CHROMIUM=/path/to/it" >&2

# Of Debian's prometheus promtool alone is unpacked: to install the package would start a Prometheus.
.PHONY: env-fronts
env-fronts: $(CLIENTS) ## nginx, systemd-analyze and promtool for tests/clients (by apt-get, where they are missing and we are root)
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
clean: ## Remove all environments (the matrix's, too), caches and builds; runs/ stays
	@rm -rf .venv .venv-smollm2 .venv-rivals .venv-clients .venv-aiperf .venv-sglang .venv-sglang-* dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

.PHONY: help
help: ## What there is
	@awk 'BEGIN { FS = ":.*## "; printf "usage: make \033[36mTARGET\033[0m [ARGS=\"...\"] [PYTHON=python3.12]\n" } \
	  /^##@/ { printf "\n\033[1m%s\033[0m\n", substr($$0, 5) } \
	  /^[a-z0-9-]+:.*## / { printf "  \033[36m%-14s\033[0m %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST)) \
	  | if [ -t 1 ] && [ -z "$${NO_COLOR:-}" ]; then cat; else sed 's/\x1b\[[0-9;]*m//g'; fi

# ---- how they are made ------------------------------------------------------------------------

define check_python
version=$$($(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) || version=missing; \
case $$version in 3.1[1-9]|3.[2-9][0-9]) ;; \
  *) echo "semspec needs Python 3.11 or newer; $(PYTHON) is $$version. Name another: make PYTHON=python3.12" >&2; exit 1;; esac
endef

# setuptools is there for hydra's one dependency without a wheel; --no-build-isolation keeps pip from
# fetching build tools that no file pins.
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

# The packages of .venv are found through a .pth file, so that only what is new is installed. The model's package
# requires programs to run it with (llama.cpp's, compiled), which we have no use for.
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

# Older SGLangs differ from the newest one in a few packages, constraints/sglang-VERSION.txt.
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
