#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the library for arm64 (aarch64) and runs it on Debian's arm64 PoCL under qemu's emulation of a processor:
#   tools/arm64.sh [--full] [--build-only] [CASE...]
#       the programs are built, then golden cases (tests/golden) run on the engine lane, by the parameters of a plan and with
#       vectors of 4, and the first on the engine simt. CASE...: these, in place of a few of each kind. --full: all.
# Needs Debian's packages qemu-user, mmdebstrap, gcc-aarch64-linux-gnu, libc6-dev-arm64-cross, cmake, ninja-build,
# pkg-config, libxxhash-dev, python3-numpy and pocl-opencl-icd (for its LLVM); no root. A tree of Debian 12's packages for
# arm64 goes to a cache (500 MB), the build to build-arm64/. A program takes 10 to 20 CPU seconds to compile there.
set -euo pipefail

source=$(cd "$(dirname "$0")/.." && pwd)
build=$source/build-arm64
root=${XDG_CACHE_HOME:-$HOME/.cache}/clmgk-test/arm64
machine=aarch64-linux-gnu
python=/usr/bin/python3 # Debian's, which has its NumPy
library=kernel-aarch64-unknown-linux-gnu-GENERIC.bc
few=(softmax-plain softmax-packed mgk-default mgk-nll smgk-soft fish-noise-packed gfish-hidden-noise hard-mish linear-causal-state
    linear-favor mlk mgk-mixed-types softmax-half softmax-decode softmax-dropout)
packages=(qemu-user mmdebstrap gcc-aarch64-linux-gnu libc6-dev-arm64-cross cmake ninja-build pkg-config)

fail() {
    echo "arm64.sh: $1" >&2
    exit 1
}

check_packages() {
    local package missing=()
    for package in "${packages[@]}"; do
        [[ $(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null) == installed ]] || missing+=("$package")
    done
    [[ ${#missing[@]} -eq 0 ]] || fail "install ${missing[*]}"
}

# PoCL and what the build needs, unpacked. PoCL's library of functions is made smaller, as for the tests: reading it takes longer
# than compiling a program.
make_root() {
    [[ -e $root/done ]] && return
    rm -rf "$root"
    mkdir -p "$(dirname "$root")"
    mmdebstrap --quiet --architectures=arm64 --variant=extract bookworm "$root" http://deb.debian.org/debian \
        --include=pocl-opencl-icd,ocl-icd-opencl-dev,libc6-dev,libgcc-12-dev,libxxhash-dev,libjansson-dev
    mv "$root/usr/share/pocl/$library" "$root/whole.bc"
    (cd "$source/tests/runtimes" && "$python" -B -c '
import pathlib, re, sys, drivers
words = set(re.findall(r"\w+", pathlib.Path("declarations.h").read_text()))
drivers.reduce_library(drivers.load_llvm(), *sys.argv[1:], words)' "$root/whole.bc" "$root/usr/share/pocl/$library")
    touch "$root/done"
}

build_programs() {
    export CLMGK_ARM64_ROOT=$root
    cmake -S "$source" -B "$build" -G Ninja --log-level=WARNING --toolchain "$source/cmake/aarch64.cmake" -DCLMGK_WERROR=ON \
        -DCLMGK_WITH_CLBLAST=OFF -DCLMGK_WITH_OPENBLAS=OFF -DCLMGK_WITH_ONEDNN=OFF -DCLMGK_WITH_MPI=OFF >/dev/null
    cmake --build "$build" --target clmgk-run clmgk-info
}

# Programs that start the emulation, and PoCL's linker, which is this machine's for arm64. qemu finds the tree's files by their
# names in it, but asks for the rights of the file by its own name: so PoCL is loaded, and finds its library, by the tree's name.
make_commands() {
    local commands=$build/emulated program
    rm -rf "$commands"
    mkdir -p "$commands"/{bin,tools,icd}
    echo "$root/usr/lib/$machine/libpocl.so.2" >"$commands/icd/pocl.icd"
    printf '#!/bin/sh\nexec %s-ld --sysroot="%s" -L"%s" -L"%s" "$@"\n' $machine "$root" "$root/usr/lib/$machine" \
        "$root/usr/lib/gcc/$machine/12" >"$commands/tools/ld"
    for program in clmgk-run clmgk-info; do
        # shellcheck disable=SC2016 # PATH is of the run
        printf '#!/bin/sh\nPATH="%s:$PATH" exec qemu-aarch64 -L "%s" "%s" "$@"\n' "$commands/tools" "$root" \
            "$build/bin/$program" >"$commands/bin/$program"
    done
    chmod +x "$commands"/{bin,tools}/*
    mkdir -p "$build/pocl"
    export CLMGK_BIN=$commands/bin OCL_ICD_VENDORS=$commands/icd POCL_CACHE_DIR=$build/pocl CLMGK_CACHE_DIR=
    POCL_EXTRA_BUILD_FLAGS="-cl-opt-disable -DFUNCTION=static"
    POCL_EXTRA_BUILD_FLAGS+=$'\t-D_OPENCL_H_\t'"-I$root/usr/share/pocl/include"$'\t-include\t'"$source/tests/runtimes/declarations.h"
    export POCL_EXTRA_BUILD_FLAGS
}

# run ENGINE [PARAMETERS]
run() {
    echo "engine $1, ${2:-parameters of the plan}"
    CLMGK_TEST_FULL=1 CLMGK_GOLDEN_VALUES=/bin/false CLMGK_GOLDEN_ONLY="${cases[*]}" CLMGK_GOLDEN_PARAMETERS=${2:-} \
        "$python" -B "$source/tests/tools/test_golden.py" "Golden.test_$1_engine"
}

full=0 only=0 cases=()
for argument in "$@"; do
    case $argument in
    --full) full=1 ;;
    --build-only) only=1 ;;
    --help)
        sed -n '3,11s/^# //p' "$0"
        exit 0
        ;;
    -*) fail "unknown option $argument: expected --full, --build-only, --help" ;;
    *) cases+=("$argument") ;;
    esac
done
check_packages
make_root
build_programs
make_commands
"$CLMGK_BIN/clmgk-info" 2>/dev/null
[[ $only -eq 0 ]] || exit 0
[[ ${#cases[@]} -gt 0 || $full -eq 1 ]] || cases=("${few[@]}")
run lane
run lane lanes=4
[[ $full -eq 1 ]] || cases=("${cases[0]}")
run simt
