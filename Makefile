# make demo and make test work from a fresh clone; each sets up .venv first where needed.
# PYTHON=/path/to/python3.12 names an interpreter; otherwise .ci/find_python.sh looks for one.

PYTHON ?=
BIN := .venv/bin
STAMP := .venv/.gaploop-setup
PYTEST := $(BIN)/pytest -q
# Three keep two cores busy. Each file by one of them: what a file's tests share is made once.
WORKERS ?= 3
# Where one is ended, another runs its test again; where a second one is, that is the end.
SIDE_BY_SIDE := -n $(WORKERS) --dist=loadfile --no-loadscope-reorder --max-worker-restart=1
# Small models and a shared machine: more threads are slower (measured 4 to 11 times).
export OMP_NUM_THREADS ?= 1
# Memory that is given back to Linux is filled with zeros anew: a tenth of what tests on pictures
# take (glibc; nothing elsewhere).
export MALLOC_TRIM_THRESHOLD_ ?= 1073741824
export MALLOC_MMAP_THRESHOLD_ ?= 1073741824
# Containers often set it; every process would compile all of gaploop and the tests anew.
unexport PYTHONDONTWRITEBYTECODE
# Rendering without a display. macOS has no EGL and needs none.
ifneq ($(shell uname -s),Darwin)
export MUJOCO_GL ?= egl
endif

.PHONY: help setup machine demo bench test test-all tests-alone test-ros2 test-worlds test-lerobot wheels fuzz lint types \
    format clean distclean

help:
	@echo "make setup     .venv with everything (4 to 6 minutes, 7 GB)"
	@echo "make demo      the whole loop on the embedded cell; report in outputs/demo"
	@echo "make bench NAME=cell ARGS='--n=20'   one of the benchmarks; see benchmarks/README.md"
	@echo "make test      lint, types and tests"
	@echo "make test-all  the slow tests too"
	@echo "make test-ros2 the tests that need ROS 2, in .venv-ros2 over .venv (1 minute, 180 MB)"
	@echo "make test-lerobot LEROBOT=FOLDER   the tests that use LeRobot, with its source in that folder"
	@echo "make wheels    gaploop and its plug-ins for LeRobot's own commands, in dist"
	@echo "make test-worlds  simulations of others, in .venv-worlds over .venv (1 minute, 600 MB)"
	@echo "make fuzz      10,000 mutated files for each reader (hours); goes on where it stopped"
	@echo "make lint | types | format | clean | distclean"

setup: $(STAMP) machine

$(STAMP): pyproject.toml constraints.txt
	@$(BIN)/python -c 'import sys; sys.exit(sys.version_info < (3, 12))' 2>/dev/null || { \
	    python=$$(sh .ci/find_python.sh "$(PYTHON)") && \
	    echo "Making .venv with $$python" && "$$python" -m venv --clear .venv; }
	@echo "Installing into .venv (4 to 6 minutes and 7 GB the first time)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check \
	    -c constraints.txt -e '.[all,dev]'
	@$(BIN)/python -m pip check
	@touch $@

machine: $(STAMP)
	@$(BIN)/python .ci/check_setup.py

demo: setup
	@$(BIN)/gaploop demo --output_dir=outputs/demo

bench: setup
	@$(BIN)/python -m benchmarks $(NAME) $(ARGS)

# Types are checked beside the tests: a first time they take a minute and a half of one core.
test: lint
	@$(MAKE) --no-print-directory -j 2 types tests-alone

test-all: lint
	@$(MAKE) --no-print-directory -j 2 types tests-alone WHICH='-m "slow or not slow"'

WHICH ?=
tests-alone: setup
	$(PYTEST) $(SIDE_BY_SIDE) $(WHICH)

# ROS 2's wheels set a library path for every Python of their environment, so they get their own.
ROS2 := .venv-ros2/bin/python
test-ros2: setup
	@test -x $(ROS2) || $(BIN)/python -m venv .venv-ros2
	@echo "import site; site.addsitedir('$(CURDIR)/$$(ls -d .venv/lib/python3*/site-packages)')" > \
	    $$(ls -d .venv-ros2/lib/python3*/site-packages)/over.pth
	@$(ROS2) -m pip install --quiet --disable-pip-version-check ros-kilted-rclpy \
	    ros-kilted-sensor-msgs ros-kilted-trajectory-msgs ros-kilted-rmw-fastrtps-cpp
	$(ROS2) -m pytest -q tests/teleop/lerobot_ros2

# Another version of LeRobot over the installed one, which keeps what both depend on.
LEROBOT ?=
test-lerobot: setup
	@test -d '$(LEROBOT)/src/lerobot' || { \
	    echo "Name a checkout of LeRobot: make test-lerobot LEROBOT=../lerobot"; exit 2; }
	PYTHONPATH='$(abspath $(LEROBOT))/src' $(PYTEST) $(SIDE_BY_SIDE) $(WHICH) \
	    $$(grep -rlE '^ *(import|from) lerobot' tests --include='test_*.py')

wheels: setup
	$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir dist \
	    . plugins/lerobot_robot_gaploop plugins/lerobot_teleoperator_gaploop
	@ls dist/*.whl

# They need a MuJoCo that is older than .venv's, and ask for versions that they do without.
WORLDS := .venv-worlds/bin/python
test-worlds: setup
	@test -x $(WORLDS) || $(BIN)/python -m venv .venv-worlds
	@echo "import site; site.addsitedir('$(CURDIR)/$$(ls -d .venv/lib/python3*/site-packages)')" > \
	    $$(ls -d .venv-worlds/lib/python3*/site-packages)/over.pth
	@$(WORLDS) -m pip install --quiet --disable-pip-version-check --no-deps mujoco==3.8.1 \
	    metaworld==3.1.1 gymnasium-robotics==1.4.2 pettingzoo gym-hil==0.1.14 robosuite==1.5.2 \
	    numba llvmlite gym-pusht==0.1.8 pymunk==6.11.1 shapely imageio
	$(WORLDS) -m pytest -q -n0 tests/benchmarks/test_worlds.py tests/sim/test_worlds.py

# MUTATIONS=100 for fewer; what it found is replayed with the words it prints.
MUTATIONS ?= 10000
fuzz: setup
	cd tests && ../$(BIN)/python -m fuzz --mutations=$(MUTATIONS) --folder=../outputs/fuzz

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

# A package that became a module leaves a folder with its old bytecode, which hides the module.
PACKAGES := core sim teleop datasets collect failure_analysis finetune scripts benchmarks
types: setup
	@find $(PACKAGES) -depth -type d ! -name __pycache__ -exec sh -c \
	    '[ "$$(ls -A "$$1")" != __pycache__ ] || rm -r "$$1"' sh {} \;
	$(BIN)/mypy

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis src/*.egg-info
	find . -path ./.venv -prune -o -name __pycache__ -type d -exec rm -rf {} +

distclean: clean
	rm -rf .venv
