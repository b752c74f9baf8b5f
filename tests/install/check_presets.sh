#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# tools/test.sh has tests to run whatever made build/ before: tools/bench.sh, or a build with another compiler. Both scripts
# run in copies of the sources and configure; nothing is compiled, and tests are only listed.
#   check_presets.sh SOURCE_DIR
set -euo pipefail

source=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cmake=$(command -v cmake) ctest=$(command -v ctest)
export PATH=$work/bin:$PATH
unset CLMGK_TEST_REQUIRE_ALL

stand_in() { # FILE TEXT
    printf '#!/bin/sh\n%s\n' "$2" >"$1"
    chmod +x "$1"
}

mkdir "$work/bin"
for program in clang-format clang-tidy shellcheck; do
    stand_in "$work/bin/$program" true
done
# Only build/ matters.
stand_in "$work/bin/cmake" "case \"\$*\" in *--build*|*asan*|*tsan*) ;; *) exec $cmake \"\$@\" ;; esac"
stand_in "$work/bin/ctest" "case \"\$*\" in *asan*|*tsan*) ;; *) exec $ctest -N \"\$@\" ;; esac"

copy() { # NAME: the sources, without what a build made
    mkdir "$work/$1"
    tar -C "$source" --exclude=./.git --exclude='./build*' --exclude=./tests/golden -cf - . | tar -C "$work/$1" -xf -
    for script in tools/install-packages.sh tests/lint/circles.py tests/lint/functions.py tests/lint/units.py \
        python/test.sh tools/site.sh; do
        stand_in "$work/$1/$script" true
    done
    git init -q "$work/$1"
}

expect_tests() { # NAME
    local log=$work/$1.log
    if ! "$work/$1/tools/test.sh" >"$log" 2>&1 || ! grep -q '^CLMGK_BUILD_TESTS:BOOL=ON$' "$work/$1/build/CMakeCache.txt" ||
        ! grep -q '^Total Tests: [1-9][0-9]' "$log"; then
        cat "$log"
        echo "$1: tools/test.sh finds no tests" >&2
        exit 1
    fi
}

copy bench
if "$work/bench/tools/bench.sh" >"$work/log" 2>&1; then # it ends where the program is missing
    echo "bench: expected to configure only" >&2
    exit 1
fi
[[ -s $work/bench/build/build.ninja ]] || { cat "$work/log"; exit 1; }
expect_tests bench

copy clang
CC=clang cmake -S "$work/clang" -B "$work/clang/build" -G Ninja >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
expect_tests clang
