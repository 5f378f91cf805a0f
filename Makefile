# Every target sets up what it needs, once: .venv/.dev is the stamp of the extra `dev`, .venv/.core of no extra at all.
PYTHON ?= python3
OUT ?= benchmarks/results

.PHONY: demo test lab check slow wheel site gpu gpu-1 gpu-2 gpu-3 bench instructor texts
.NOTPARALLEL:  # two stamps would run pip in one .venv at the same time

demo: .venv/.core
	.venv/bin/grpo-lab reproduce

# Two workers with a thread each. Each begins with one half of the files, in order, because a file's tests share what they
# trained; the one that is done first takes from the end of the other's. Bytecode is kept, where the environment forbids it
# too: tests start Python a hundred times, and pytest rewrites each test file.
PYTEST = PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 .venv/bin/pytest -n 2 --dist worksteal

test: .venv/.dev .venv/.packages
	$(PYTEST) -m "not slow"

lab: .venv/.lab
	.venv/bin/grpo-lab labs open

# The texts of each language, data/locale, in the form that is read.
texts: .venv/.dev
	.venv/bin/pybabel -q compile --directory data/locale --domain grpo_lab

check: .venv/.dev
	.venv/bin/ruff format --check . && .venv/bin/ruff check . && .venv/bin/pyright
	$(MAKE) test

# Longer runs of the same, and the tests with TRL, which the extra `bench` brings, and of the site. CI runs them after
# `make check`.
slow: .venv/.dev .venv/.bench .venv/.site .venv/.packages
	$(PYTEST) -m "slow or trl"

# Builds the wheel into dist/ and tries it in an environment and in folders without the checkout.
wheel: .venv/.dev
	rm -f dist/*.whl
	.venv/bin/python -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir dist .
	OMP_NUM_THREADS=1 GRPO_LAB_WHEEL="$$(echo dist/*.whl)" .venv/bin/pytest tests/test_wheel.py

# The static site: labs with their outputs, docs and measurements in build/site/html. The first time takes minutes.
site: .venv/.site
	OMP_NUM_THREADS=1 .venv/bin/python -m website

# The system's Python: a GPU machine brings its own torch, at its own version, so warnings there are not errors. Each of
# the three calls adds to gpu.json, so that they can be made one at a time; a failure of one does not stop the next.
GPU = GRPO_LAB_GPU_DEVICE=cuda OUT="$(OUT)" $(PYTHON) -m pytest -q -W default

gpu:
	$(MAKE) --keep-going gpu-1 gpu-2 gpu-3

gpu-1:
	$(GPU) tests/gpu/test_crash.py tests/gpu/test_numbers.py tests/gpu/test_learning.py

gpu-2:
	$(GPU) tests/gpu/test_scenarios.py

gpu-3:
	$(GPU) tests/gpu/test_speed.py tests/gpu/test_memory.py

bench: .venv/.bench
	OUT="$(OUT)" .venv/bin/python -m benchmarks

# nbgrader, in an environment of its own: in .venv it would put extensions into the JupyterLab that tests drive.
instructor:
	test -x .venv-nbgrader/bin/python || $(PYTHON) -m venv .venv-nbgrader
	.venv-nbgrader/bin/python -m pip install --quiet -c constraints.txt -e '.[instructor]' pytest
	OMP_NUM_THREADS=1 .venv-nbgrader/bin/python -m pytest tests/instructor

# Debian's packages that tests need; without them some skip, but for CI.
.venv/.packages: tests/install-packages | .venv/.dev
	tests/install-packages && touch $@ || test "$(CI)" != true

.venv/.%: pyproject.toml constraints.txt
	test -x .venv/bin/python || $(PYTHON) -m venv .venv
	.venv/bin/python -m pip install --quiet -c constraints.txt -e '.$(if $(filter core,$*),,[$*])'
	touch $@
