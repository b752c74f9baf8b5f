#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The headers leave the OpenCL version to the program: each one it may set, and none (then no call is hidden), before the
# headers or by including CL/cl.h first, in C and C++, without a warning or a note.
#   check_headers.sh SOURCE_DIR
set -euo pipefail

source=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
warnings=(-Wall -Wextra -Wpedantic -Wshadow -Werror)

check() { # NAME COMPILER... < PROGRAM
    local log
    cat >"$work/program"
    if ! log=$("${@:2}" "${warnings[@]}" -fsyntax-only -I"$source/include" "$work/program" 2>&1) || [[ -n $log ]]; then
        printf '%s: %s\n' "$1" "$log" >&2
        exit 1
    fi
}

for compiler in "gcc -std=c11 -x c" "g++ -std=c++11 -x c++"; do
    read -ra command <<<"$compiler"
    for version in 120 200 300; do
        printf '#define CL_TARGET_OPENCL_VERSION %s\n#include <clmgk/clmgk.h>\n' $version |
            check "$compiler, $version" "${command[@]}"
        printf '#include <CL/cl.h>\n#include <clmgk/clmgk.h>\n' |
            check "$compiler, $version in front" "${command[@]}" -DCL_TARGET_OPENCL_VERSION=$version
    done
    printf '#include <clmgk/clmgk.h>\nint main(void) { return &clSetContextDestructorCallback == 0; }\n' |
        check "$compiler, none: a call of OpenCL 3.0" "${command[@]}" -Wno-address
done
