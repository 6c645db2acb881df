# Everything runs in .venv, which is made on first use and brought up to date when pyproject.toml or constraints.txt
# change. pip's own settings (an index, a proxy, a folder of wheels) are respected. `make PYTHON=...` picks another Python.

PYTHON ?= $(shell for name in python3.11 python3; do $(call recent,$$name) && echo $$name && break; done)
recent = "$(1)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
TORCH := $(shell sed -n '/^torch==/p' constraints.txt)
# Two workers of one thread each: wider pools only wait for one another. Each begins with its own half of the files, so
# that what a file imports and prepares is needed once, and takes over work of the other when it has none left. Bytecode is
# kept whatever the environment says: the tests start many programs, and each would compile the whole source again.
PYTEST := PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --maxprocesses=2 --dist worksteal \
	--durations=15

.DEFAULT_GOAL := help
.PHONY: help demo test slow check search fuzz faults static bench docs format clean

help: ## List the targets.
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/\1|\2/p' $(MAKEFILE_LIST) | while IFS='|' read -r name text; do \
		printf 'make %-8s %s\n' "$$name" "$$text"; done

demo: $(VENV)/.demo ## What there is, small, on the embedded data: under a minute after set-up.
	$(BIN)/interbasin demo

test: $(VENV)/.dev ## Run the tests that are not marked slow: under five minutes on two cores.
	$(PYTEST) -m "not slow"

slow: $(VENV)/.dev ## Run the other tests: all architectures, killed processes, memory, full disks, servers, pages.
	$(PYTEST) -m slow

static: $(VENV)/.dev ## Check formatting, lint and types.
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

check: test static slow ## Everything that must pass before a change goes in: test, static and slow.

# New examples each time: SEED repeats a search, EXAMPLES says how many each test draws, TESTS where they are looked for.
search: SEED := $(shell od -An -N4 -tu4 /dev/urandom | tr -d ' ')
search: EXAMPLES := 200
search: TESTS := tests
search: $(VENV)/.dev ## Try every law on many new random examples; takes hours.
	@echo "To repeat this search: make search SEED=$(SEED) EXAMPLES=$(EXAMPLES) TESTS='$(TESTS)'"
	INTERBASIN_PROFILE=search INTERBASIN_EXAMPLES=$(EXAMPLES) $(PYTEST) -m hypothesis --hypothesis-seed=$(SEED) $(TESTS)

# New damage each time, of which SEED repeats one run; N says how many files are damaged.
fuzz: SEED := $(shell od -An -N4 -tu4 /dev/urandom | tr -d ' ')
fuzz: N := 10000
fuzz: $(VENV)/.dev ## Damage N files of all formats at random and read them: each is refused in a sentence, or read right.
	@echo "To repeat this run: make fuzz SEED=$(SEED) N=$(N)"
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.fuzz --mutants $(N) --seed $(SEED) --json fuzz.json

faults: MOST := 4
faults: $(VENV)/.dev ## Let the n-th call fail for all that writes, MOST draws for each fault, and kill; needs a C compiler.
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.faults --most $(MOST) --workers 2
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.faults --kills 300

bench: $(VENV)/.dev ## Run the quick benchmarks; peers get environments of their own in .peers.
	$(BIN)/python benchmarks/polar.py --quick
	$(BIN)/python benchmarks/moments.py --quick
	$(BIN)/python benchmarks/recording.py --quick
	$(BIN)/python benchmarks/wiring.py --quick
	$(BIN)/python benchmarks/planted.py --quick
	$(BIN)/python benchmarks/weight_matching.py --quick
	$(BIN)/python benchmarks/orthogonal_rebasin.py --quick
	$(BIN)/python benchmarks/merge.py --quick
	$(BIN)/python benchmarks/stitching.py --quick
	$(BIN)/python benchmarks/translate_speed.py --quick
	$(BIN)/python benchmarks/transport_quality.py --quick
	$(BIN)/python benchmarks/transport_attention.py --quick
	$(BIN)/python benchmarks/transport_language.py --quick
	$(BIN)/python benchmarks/optimal_transport.py --quick
	$(BIN)/python benchmarks/cross_modal.py --quick

docs: $(VENV)/.dev ## Make the generated pages and tables anew, from the program and from benchmarks/results.
	$(BIN)/python docs/generate.py

format: $(VENV)/.dev ## Format the code and fix what lint can fix.
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

clean: ## Remove .venv, builds and caches.
	rm -rf $(VENV) build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# torch goes in first and by its exact version, so that nothing installed later can choose another; setuptools and
# wheel go in beside it, so that the package is built without an environment of its own.
$(VENV)/.torch: constraints.txt
	@$(call recent,$(PYTHON)) || { echo "interbasin needs Python 3.11 or newer; $(or $(PYTHON),python3) is" \
		"$$($(or $(PYTHON),python3) -V 2>&1 || true). Try: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	test -x $(BIN)/python || "$(PYTHON)" -m venv $(VENV)
	$(PIP) install -c constraints.txt "$(TORCH)" setuptools wheel
	touch $@

$(VENV)/.demo: $(VENV)/.torch pyproject.toml
	$(PIP) install -c constraints.txt --no-build-isolation -e ".[ot]"
	touch $@

# dev holds all that demo needs, so one installation serves both.
$(VENV)/.dev: $(VENV)/.torch pyproject.toml
	$(PIP) install -c constraints.txt --no-build-isolation -e ".[dev]"
	touch $(VENV)/.demo $@
