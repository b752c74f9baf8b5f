#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs the Python package into a virtual environment of its own and tests it: python/test.sh [--full]
#   --full   all golden cases, and PyTorch's tests, which fetch PyTorch and its libraries (several GB)
# The environment lies in the cache and keeps its packages, which are wheels from PyPI. Without PyPI (and without a filled
# environment) the script says so, and passes.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

packages=(cffi ml_dtypes mypy numpy pocl-binary-distribution pyopencl pytest 'scikit-build-core>=0.11')
# Types of clmgk.torch are checked where PyTorch is.
types=(--exclude clmgk/torch/)
name=python
if [[ ${1:-} == --full ]]; then
    export CLMGK_TEST_FULL=1
    packages+=(torch)
    types=()
    name="python-full"
fi
folder=${XDG_CACHE_HOME:-$HOME/.cache}/clmgk-test/$name
python=$folder/bin/python

# A list beside the environment says which packages it has.
if [[ "$(cat "$folder/packages" 2>/dev/null)" != "${packages[*]}" ]]; then
    rm -rf "$folder"
    /usr/bin/python3 -m venv "$folder"
    if ! "$python" -m pip install --quiet --disable-pip-version-check --only-binary :all: "${packages[@]}"; then
        echo "skipped: the Python package's tests need wheels from PyPI"
        exit 0
    fi
    echo "${packages[*]}" >"$folder/packages"
fi
"$python" -m pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps --force-reinstall .

cd python
"$python" -m mypy "${types[@]}"
# Not in this folder, whose sources would come before the installed package. Unoptimised programs, as in the other quick tests
# (tests/CMakeLists.txt).
cd tests
POCL_EXTRA_BUILD_FLAGS="-cl-opt-disable -DFUNCTION=static" CLMGK_CACHE_DIR=$PWD/../../build/tests/cache-unoptimised \
    CLMGK_BIN=$PWD/../../build/bin "$python" -m pytest -q -p no:cacheprovider
