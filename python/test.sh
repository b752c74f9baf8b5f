#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs the Python package into a virtual environment of its own and tests it: python/test.sh [--full]
#   (none)   the package around the library of build/, with NumPy, PyOpenCL and Matplotlib
#   --full   the package as `pip install .` builds it, the types (mypy), the extra [cpu], all golden cases and random problems,
#            the examples, and PyTorch, which is fetched with its libraries (several GB), with models of transformers
# The environment lies in the cache and keeps its packages, which are wheels from PyPI. Without PyPI (and without a filled
# environment) the script says so, and passes.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

packages=(cffi matplotlib ml_dtypes numpy pyopencl pytest 'scikit-build-core>=0.11')
name=python
build=()
if [[ ${1:-} == --full ]]; then
    export CLMGK_TEST_FULL=1
    packages+=(attn-gym mypy pocl-binary-distribution torch 'transformers>=5.24')
    name="python-full"
else
    # The library and the program of clmgk.analyze are not compiled a second time.
    [[ -e build/build.ninja ]] || cmake --preset gcc
    cmake --build build --target clmgk_static clmgk-analyze-rows
    build=(--config-settings=build-dir="$PWD/build/python"
        --config-settings=cmake.define.CLMGK_STATIC_LIBRARY="$PWD/build/lib/libclmgk.a")
fi
folder=${XDG_CACHE_HOME:-$HOME/.cache}/clmgk-test/$name
python=$folder/bin/python
pip=("$python" -m pip install --quiet --disable-pip-version-check --no-compile)

# A list beside the environment says which packages it has.
if [[ "$(cat "$folder/packages" 2>/dev/null)" != "${packages[*]}" ]]; then
    rm -rf "$folder"
    /usr/bin/python3 -m venv "$folder"
    if ! "${pip[@]}" --only-binary :all: "${packages[@]}"; then
        echo "skipped: the Python package's tests need wheels from PyPI"
        exit 0
    fi
    echo "${packages[*]}" >"$folder/packages"
fi
"${pip[@]}" --no-build-isolation --no-deps --force-reinstall "${build[@]}" .

cd python
[[ ${1:-} != --full ]] || "$python" -m mypy
# Not in this folder, whose sources would come before the installed package. Unoptimised programs, as in the other quick tests
# (tests/CMakeLists.txt).
cd tests
drivers=$PWD/../../build/tests/drivers
[[ ! -d $drivers ]] || export OCL_ICD_VENDORS=$drivers
POCL_EXTRA_BUILD_FLAGS=$(<../../build/tests/unoptimised) CLMGK_CACHE_DIR=$PWD/../../build/tests/cache-unoptimised \
    CLMGK_BIN=$PWD/../../build/bin "$python" -m pytest -q -p no:cacheprovider
