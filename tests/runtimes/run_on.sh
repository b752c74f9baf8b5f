#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs a test program on one OpenCL implementation, or below one of the test layers.
#   run_on.sh pocl|rusticl PROGRAM [ARGUMENT...]
#   run_on.sh oclgrind-races|oclgrind-uninitialised PROGRAM...   fails if Oclgrind has anything to say
#   run_on.sh layer:FILE PROGRAM...                              on PoCL; fails if the layer was not loaded
#   run_on.sh whole-chunks PROGRAM...                            on PoCL, the SIMT engine's text for NVIDIA's GPUs
#   run_on.sh gpu:CLMGK-INFO PROGRAM...                          on the first GPU, by its own engine
# Exit status 77 if the implementation is not installed; 1 if CLMGK_TEST_REQUIRE_ALL is set.
set -euo pipefail

runtime=$1
shift
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

absent() {
    echo "$1 is not installed" >&2
    if [[ -n ${CLMGK_TEST_REQUIRE_ALL:-} ]]; then exit 1; else exit 77; fi
}

use_only() { # the implementation of $1.icd among the drivers
    local drivers=${OCL_ICD_VENDORS:-/etc/OpenCL/vendors}
    [[ -e $drivers/$1.icd ]] || absent "$1"
    cp "$drivers/$1.icd" "$work/"
    export OCL_ICD_VENDORS=$work
}

run_oclgrind() { # OPTIONS... -- PROGRAM...
    command -v oclgrind >/dev/null || absent oclgrind
    # No cache: Oclgrind is slow, and no other driver can use its programs.
    export CLMGK_CACHE_DIR=
    local options=()
    while [[ $1 != -- ]]; do
        options+=("$1")
        shift
    done
    shift
    oclgrind "${options[@]}" --log "$work/oclgrind.log" "$@"
    # Its exit status is the program's; findings are only in the log.
    if [[ -s $work/oclgrind.log ]]; then
        cat "$work/oclgrind.log" >&2
        exit 1
    fi
}

case $runtime in
pocl)
    use_only pocl
    "$@"
    ;;
rusticl)
    use_only rusticl
    # The lane engine's unrolled kernels take minutes each to compile there, and it is made for other devices.
    CLMGK_TEST_ENGINE=simt RUSTICL_ENABLE=llvmpipe "$@"
    ;;
# Work-items of the lane engine share nothing.
oclgrind-races) CLMGK_TEST_ENGINE=simt run_oclgrind --data-races -- "$@" ;;
# Optimised code holds an instruction that stops this check, as do functions that are inlined where they return a structure
# (llvm.experimental.noalias.scope.decl), and the lane engine's vectors crash it.
oclgrind-uninitialised)
    CLMGK_TEST_ENGINE=simt run_oclgrind --uninitialized --build-options "-cl-opt-disable -DFUNCTION=static" -- "$@"
    ;;
gpu:*)
    export CLMGK_DEVICE=gpu
    "${runtime#gpu:}" --device gpu >/dev/null 2>&1 || exit 77 # a GPU cannot be required
    CLMGK_TEST_ENGINE=own "$@"
    ;;
layer:*)
    use_only pocl
    status=0
    OPENCL_LAYERS=${runtime#layer:} "$@" 2>"$work/stderr" || status=$?
    cat "$work/stderr" >&2
    # The loader ignores a layer that it cannot load.
    grep -q ' layer: active$' "$work/stderr"
    exit "$status"
    ;;
whole-chunks)
    use_only pocl
    cp -r "$(dirname "$0")/../../cl" "$work/cl"
    sed -i 's/^#define WHOLE_CHUNKS 0/#define WHOLE_CHUNKS 1/' "$work/cl/base/flags.clh"
    grep -q '^#define WHOLE_CHUNKS 1' "$work/cl/base/flags.clh"
    CLMGK_KERNEL_DIR=$work/cl CLMGK_CACHE_DIR='' CLMGK_TEST_ENGINE=simt "$@"
    ;;
*)
    echo "run_on.sh: unknown runtime $runtime" >&2
    exit 2
    ;;
esac
