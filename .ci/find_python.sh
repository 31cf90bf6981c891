#!/bin/sh
# Print the path of a Python >= 3.12 that can make virtual environments, or say what to install.
# Usage: find_python.sh [PYTHON]     PYTHON, if given, is the only one tried.
# 3.12 comes first because constraints.txt was made with it.

# A name on PATH proves nothing (a pyenv shim refuses to run without a chosen version; Debian's
# Python comes without ensurepip), so each candidate is asked.
try() {
    found=$("$1" -c 'import sys, venv, ensurepip
print(sys.executable if sys.version_info >= (3, 12) else "")' 2>/dev/null) &&
        [ -n "$found" ] && echo "$found" && exit 0
}

if [ -n "$1" ]; then
    try "$1"
    echo "PYTHON=$1 doesn't run, is older than 3.12, or lacks venv. Name another." >&2
    exit 2
fi

for name in python3.12 python3.13 python3 python python3.14; do
    old_ifs=$IFS
    IFS=:
    for folder in $PATH; do
        IFS=$old_ifs
        [ -x "${folder:-.}/$name" ] && try "${folder:-.}/$name"
    done
    IFS=$old_ifs
done

for version in 3.12 3.13 3.14; do
    for candidate in "${PYENV_ROOT:-$HOME/.pyenv}/versions/$version"*/bin/python; do
        [ -x "$candidate" ] && try "$candidate"
    done
done

if command -v uv >/dev/null 2>&1; then
    candidate=$(uv python find --no-project --system '>=3.12' 2>/dev/null) && try "$candidate"
    uv python install 3.12 >&2 &&
        candidate=$(uv python find --no-project --system 3.12) && try "$candidate"
fi

echo "gaploop needs Python >= 3.12 with venv, and none was found. Install one (apt install" \
    "python3.12-venv, or pyenv install 3.12, or uv python install 3.12) or name one:" \
    "make setup PYTHON=/path/to/python3.12" >&2
exit 2
