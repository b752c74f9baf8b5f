#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes the source distribution and the wheels for other Linux machines, and tests them: python/wheels.sh [--untested] [FOLDER]
# The files (default folder: build-wheels): clmgk-VERSION.tar.gz, and made from it a wheel for this machine's processor and, on
# x86-64, one for 64-bit Arm. A wheel serves every CPython from 3.11 on (stable ABI) and every glibc that has the symbols which
# the compiler used: auditwheel finds the oldest and names the wheel after it. Build on an old system to serve old systems.
# It needs PyPI, and for Arm the packages of `tools/install-packages.sh release` and Debian's mirrors.
# Tests, which --untested leaves out: the machine's wheel is installed, with the CPU runtime of PyPI, into a new environment that
# sees no compiler and no OpenCL driver of the machine, and passes the tests of NumPy and clmgk-analyze there. Arm's wheel is
# imported by qemu-aarch64.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
tested=1
if [[ ${1:-} == --untested ]]; then
    tested=0
    shift
fi
if [[ $# -gt 1 || ${1:-} == -* ]]; then
    echo "usage: python/wheels.sh [--untested] [FOLDER]" >&2
    exit 2
fi
folder=$(realpath -m "${1:-build-wheels}")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
# Folders that differ from run to run leave no trace in the wheels.
export CFLAGS="${CFLAGS:-} -ffile-prefix-map=$work=."
mkdir -p "$folder" "$work/sdist" "$work/fixed"

/usr/bin/python3 -m venv "$work/tools"
tools=$work/tools/bin
"$tools/pip" install --quiet --only-binary :all: -r python/wheel-tools.txt
PYTHONPATH=python "$tools/python" -c 'import from_top, sys; from_top.build_sdist(sys.argv[1])' "$work/sdist"
sdist=$(echo "$work"/sdist/clmgk-*.tar.gz)
tar -C "$work" -xf "$sdist"
cp "$sdist" "$folder"
echo "made $folder/$(basename "$sdist")"

make_wheel() { # MACHINE LIBRARIES CONFIG_SETTING...; prints the wheel's name
    local raw=$work/raw-$1
    # A driver's loader is the machine's own, and the package has a copy for machines without: clmgk/_library.py.
    "$tools/pip" wheel --quiet --no-build-isolation --no-deps --wheel-dir "$raw" \
        --config-settings=build-dir="$work/build-$1" "${@:3}" "$work/$(basename "$sdist" .tar.gz)" &&
        PATH=$tools:$PATH LD_LIBRARY_PATH=$2 "$tools/auditwheel" repair --exclude 'libOpenCL.so.1' \
            --wheel-dir "$work/fixed" "$raw"/*.whl 2>&1 | sed '/^INFO/d' >&2 &&
        cp "$work/fixed"/*"$1.whl" "$folder" &&
        basename "$work/fixed"/*"$1.whl"
}

wheel=$(make_wheel "$(uname -m)" "")
echo "made $folder/$wheel"
if [[ $(uname -m) == x86_64 ]]; then
    export CLMGK_ARM64_ROOT=$work/arm64
    # Beside the libraries a Python that qemu-aarch64 can run.
    mmdebstrap --quiet --architectures=arm64 --variant=extract bookworm "$CLMGK_ARM64_ROOT" http://deb.debian.org/debian \
        --include=libc6-dev,libgcc-12-dev,libjansson-dev,libxxhash-dev,ocl-icd-opencl-dev,libpython3.11-dev,libstdc++6 \
        --include=python3.11-minimal,libpython3.11-stdlib
    arm=$(_PYTHON_HOST_PLATFORM=linux-aarch64 CMAKE_TOOLCHAIN_FILE=$PWD/cmake/aarch64.cmake make_wheel aarch64 \
        "$CLMGK_ARM64_ROOT/usr/lib/aarch64-linux-gnu" \
        --config-settings=cmake.define.Python_INCLUDE_DIR="$CLMGK_ARM64_ROOT/usr/include/python3.11")
    echo "made $folder/$arm"
fi
[[ $tested -eq 1 ]] || exit 0

if [[ -n ${arm:-} ]]; then
    platforms=()
    for glibc in 34 28 17; do
        platforms+=(--platform "manylinux_2_${glibc}_aarch64")
    done
    "$tools/pip" install --quiet --only-binary :all: "${platforms[@]}" --python-version 3.11 --target "$work/arm-packages" \
        "$folder/$arm"
    PYTHONPATH=$work/arm-packages qemu-aarch64 -L "$CLMGK_ARM64_ROOT" "$CLMGK_ARM64_ROOT/usr/bin/python3.11" -c '
import platform, clmgk
assert platform.machine() == "aarch64"
print("imported for aarch64:", clmgk.__version__, "with", len(clmgk.devices()), "devices")'
fi

/usr/bin/python3 -m venv "$work/test"
"$work/test/bin/pip" install --quiet --only-binary :all: "$folder/${wheel}[cpu]" pytest ml_dtypes
mkdir "$work/drivers"
# PoCL starts a linker, and no compiler.
ln -s "$(command -v ld)" "$work/test/bin"
cd python/tests
PATH=$work/test/bin OCL_ICD_VENDORS=$work/drivers POCL_CACHE_DIR=$work/cache CLMGK_CACHE_DIR=$work/cache \
    POCL_EXTRA_BUILD_FLAGS="-cl-opt-disable -DFUNCTION=static" "$work/test/bin/python" -m pytest -q -p no:cacheprovider \
    test_numpy.py test_info.py test_analyze.py
