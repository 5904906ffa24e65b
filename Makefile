# Two commands do everything on a new machine with Python 3.11+ and make:
#   make demo    runs the main job
#   make test    runs the tests
# Both set up .venv first.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# A compiled build is installed there, and programs find it before the sources of the checkout, which
# are not to come in by the folder that a program is started in.
COMPILED := .venv-compiled
COMPILED_PIP := $(COMPILED)/bin/python -m pip install --quiet --disable-pip-version-check
ON_COMPILED := DYNATOPS_EXPECT_COMPILED=1 PYTHONSAFEPATH=1 PYTHONPATH=

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-all test-compiled wheels check format proto docs site bench lock clean

help:  ## show this
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

setup: $(STAMP)  ## make .venv with everything needed, once

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "Python 3.11 or newer is needed: make PYTHON=python3.11 ..."; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

demo: setup  ## run a cluster with users and load, and check every event
	$(BIN)/dynatops demo --brokers 16 --seconds 15

test: setup  ## run the tests (minutes)
	$(BIN)/pytest -n 2 --dist loadgroup -m "not slow"

test-all: setup  ## run all tests, the long ones too (tens of minutes)
	$(BIN)/pytest -n 2 --dist loadgroup
	$(BIN)/dynatops simulate --seeds 500 --jobs 2
	$(BIN)/dynatops simulate --reconfigure --seeds 500 --jobs 2
	$(BIN)/dynatops simulate --routing forwarding --seeds 500 --jobs 2
	$(MAKE) test-compiled

test-compiled: setup  ## run the tests of the cores on a compiled build, in .venv-compiled (minutes)
	rm -rf build/compiled
	$(BIN)/python tools/build_wheels.py compiled --into build/compiled
	test -x $(COMPILED)/bin/pytest || { $(PYTHON) -m venv $(COMPILED) && $(COMPILED_PIP) -c constraints.txt \
		"$$(echo build/compiled/*.whl)[dev]"; }
	$(COMPILED_PIP) --no-deps --force-reinstall build/compiled/*.whl
	pwd > "$$($(COMPILED)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/checkout.pth"
	$(ON_COMPILED) $(COMPILED)/bin/pytest -o pythonpath= -n 2 --dist loadgroup -m "not slow" \
		tests/unit tests/property tests/golden tests/simulation
	$(ON_COMPILED) $(COMPILED)/bin/dynatops simulate --seeds 20 --jobs 2
	$(ON_COMPILED) $(COMPILED)/bin/dynatops simulate --reconfigure --seeds 10 --jobs 2
	$(ON_COMPILED) $(COMPILED)/bin/dynatops simulate --routing forwarding --seeds 16 --jobs 2

wheels: setup  ## build a pure and a compiled wheel, in dist/
	$(BIN)/python tools/build_wheels.py

check: setup  ## format, lint, types, import directions, generated code, documentation
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/python tools/generate_wire.py --check
	$(BIN)/python tools/generate_reference.py --check
	$(BIN)/python tools/generate_cli.py --check
	$(BIN)/python tools/draw_concepts.py --check
	$(BIN)/python tools/build_site.py

format: setup  ## format the code, mend what lint can mend
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

proto: setup  ## generate dynatops/v1 from proto/
	$(BIN)/python tools/generate_wire.py

docs: setup  ## generate pages of docs/, the drawings and the dashboard from the code
	$(BIN)/python tools/generate_reference.py
	$(BIN)/python tools/generate_cli.py
	$(BIN)/python tools/draw_concepts.py

site: setup  ## build the documentation as a site; whatever leads nowhere fails
	$(BIN)/python tools/build_site.py

bench: setup  ## measure (minutes)
	for kind in pubsub fanout latency churn; do $(BIN)/dynatops bench $$kind || exit 1; done
	$(BIN)/python -m benchmarks.data_plane
	$(BIN)/python -m benchmarks.solvers --large
	$(BIN)/python -m benchmarks.manager
	$(BIN)/python -m benchmarks.metrics
	$(BIN)/python -m benchmarks.analytics --scale 0.1

lock:  ## resolve dependencies anew and pin them in constraints.txt
	rm -rf build/lock && $(PYTHON) -m venv build/lock
	build/lock/bin/python -m pip install --quiet --disable-pip-version-check '.[dev]'
	{ echo "# What CI installs. Made by \`make lock\`."; \
	  build/lock/bin/python -m pip freeze --exclude dynatops | LC_ALL=C sort -f; } > constraints.txt

clean:  ## remove everything that was built
	rm -rf $(VENV) $(COMPILED) build dist *.egg-info .cache .mypy_cache .pytest_cache .ruff_cache .hypothesis
