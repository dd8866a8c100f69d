# The everyday commands. All a fresh machine needs is Python 3.11 or newer (with venv) and a C compiler.
#
#   make demo       paint a contact sheet into out/
#   make test       run the whole test suite
#   make lint       linters and type checkers
#   make test-gpu   the tests that need a CUDA device
#   make clean      remove what was built, .venv included

PYTHON ?= python3
# The release that sidestream is tested with. pip takes the build for CPU or CUDA from whatever index
# it is configured to use; for another one: make demo TORCH="torch==2.13.0 --index-url ..."
TORCH ?= torch==2.13.0
VENV ?= .venv
# Processes that the tests run in. They hold in any order, and beside each other.
JOBS ?= 2

BIN := $(VENV)/bin
# An installation is renewed when one of these changes.
SOURCES := pyproject.toml setup.py build.py $(wildcard ipc_ext/csrc/*.[ch])
PACKAGES := engine ipc_ext workers postprocess server

# flake8 is here for flake8-async alone, with its optional checks but for these:
# 910, 911: a coroutine may return without a checkpoint; nobody is promised one.
# 912, 913: their analysis sees no checkpoint behind a `for` or an `if`.
# 114: every function for `nursery.start` would have to be listed here.
ASYNC_OFF := ASYNC910,ASYNC911,ASYNC912,ASYNC913,ASYNC114
# 124: FastAPI would call a plain function in a thread.
ASYNC_OFF_IN_SERVER := server/*:ASYNC124
# 102, 103: there are no scopes in asyncio; a cancellation is told once.
ASYNC_OFF_IN_ASYNCIO := examples/asyncio_host.py:ASYNC102,ASYNC103
# 103: what is raised goes round C, and is raised behind it.
ASYNC_OFF_AT_STACK_END := ipc_ext/stack_end.py:ASYNC103
# Tests do on purpose what code should not: swallow cancellation, poll, nest nurseries oddly.
ASYNC_OFF_IN_TESTS := ASYNC103,ASYNC104,ASYNC110,ASYNC111,ASYNC112,ASYNC124

.PHONY: demo test test-gpu lint clean

demo: $(VENV)/installed
	$(BIN)/python examples/contact_sheet.py out

# One thread for each process: the tests run several, and tiny models only lose by more.
test: $(VENV)/installed-dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "not gpu" -n $(JOBS) --dist worksteal $(PYTEST_FLAGS)

test-gpu: $(VENV)/installed-dev
	$(BIN)/python -m pytest -m gpu $(PYTEST_FLAGS)

lint: $(VENV)/installed-dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/flake8 --select=ASYNC --ignore=$(ASYNC_OFF) --per-file-ignores="$(ASYNC_OFF_IN_SERVER) $(ASYNC_OFF_IN_ASYNCIO) $(ASYNC_OFF_AT_STACK_END)" $(PACKAGES) examples benchmarks
	$(BIN)/flake8 --select=ASYNC --ignore=$(ASYNC_OFF),$(ASYNC_OFF_IN_TESTS) tests
	MYPYPATH=.types $(BIN)/mypy --strict $(addprefix -p sidestream.,$(PACKAGES))

clean:
	$(MAKE) -C tests/c clean
	rm -rf $(VENV) build dist *.egg-info ipc_ext/*.so .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -r {} +

$(BIN)/python:
	@$(PYTHON) -c "import sys; sys.exit('sidestream needs Python 3.11 or newer' if sys.version_info < (3, 11) else 0)"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip

$(VENV)/installed: $(SOURCES) | $(BIN)/python
	$(BIN)/python -m pip install $(TORCH)
	$(BIN)/python -m pip install -e .
	touch $@

$(VENV)/installed-dev: $(VENV)/installed
	$(BIN)/python -m pip install -e '.[dev]'
	touch $@
