#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs missing packages, builds into build/ (other compilers and sanitizers: build-*/), and runs all checks.
#   tools/test.sh          the checks that every change must pass: within 15 minutes on 2 cores
#   tools/test.sh --full   also all long checks: every compiler with every sanitizer, all shapes, optimised programs,
#                          Oclgrind sweeps, Clang's static analyzer, the mutation run, the files of a release
# All stages run, even after failures; the output ends with CTest's summary of the main build.
# shellcheck disable=SC2317 # stages are called through stage()
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
jobs=$(nproc)
full=0
case "$#:${1:-}" in
0:) ;;
1:--full) full=1 ;;
*)
    echo "usage: tools/test.sh [--full]" >&2
    exit 2
    ;;
esac

# Tests whose requirements are missing fail instead of being skipped.
export CLMGK_TEST_REQUIRE_ALL=1
summary=()
failed=0

stage() { # NAME COMMAND...
    local start=$SECONDS result=passed
    echo "==== $1"
    # errexit is off inside a condition: stages report failure by their status.
    if ! "${@:2}"; then
        result=FAILED
        failed=1
    fi
    summary+=("$(printf '%-12s %s  %d s' "$1" "$result" "$((SECONDS - start))")")
    echo "---- ${summary[-1]}"
}

build() { # PRESET
    cmake --preset "$1" && cmake --build --preset "$1"
}

check_preset() { # PRESET CTEST_ARGUMENT...
    build "$1" && ctest --preset "$1" -j "$jobs" "${@:2}"
}

# Builds only what the tests need (tests/CMakeLists.txt).
check_part() { # PRESET TARGET CTEST_ARGUMENT...
    cmake --preset "$1" && cmake --build --preset "$1" --target "$2" && ctest --preset "$1" -j "$jobs" "${@:3}"
}

# PoCL leaks memory in each process that builds a program. Finding the names of the functions on the stacks of these leaks takes
# longer than the rest of a short run of clmgk-run, so only tests that failed look for names, when they run again.
check_asan() {
    cmake --preset asan && cmake --build --preset asan --target cheap_tests || return 1
    CLMGK_ASAN_OPTIONS=:symbolize=0 ctest --preset asan -j "$jobs" -L quick -LE costly && return
    ctest --preset asan -j "$jobs" --rerun-failed
    return 1
}

lint_format() {
    git ls-files -z '*.c' '*.h' '*.cpp' '*.cl' '*.clh' | xargs -0 -P "$jobs" -n 50 clang-format --dry-run -Werror
}

# clang-tidy counts the warnings in headers that it does not show.
without_counts() {
    sed -E '/^[0-9]+ warnings? (generated|treated)/d'
}

# Clang's static analyzer takes twenty times as long as all other checks together, and the check of suffixes (1u) a fifth of these.
lint_tidy() {
    local status=0 checks=()
    [[ $full -eq 1 ]] || checks=('--checks=-clang-analyzer-*,-cert-dcl16-c')
    python3 -c '
import json, sys
root, build = sys.argv[1] + "/", sys.argv[1] + "/build/"
for name in sorted({entry["file"] for entry in json.load(open("build/compile_commands.json"))}):
    if name.startswith(root) and not name.startswith(build):
        print(name)
' "$PWD" | xargs -P "$jobs" -n 4 clang-tidy -p build --quiet "${checks[@]}" 2>&1 | without_counts || status=1
    # The examples are a separate project.
    clang-tidy --quiet "${checks[@]}" examples/*.c -- -std=c11 -Iinclude 2>&1 | without_counts || status=1
    return "$status"
}

lint() {
    local status=0
    lint_format || status=1
    shellcheck tools/*.sh tools/site/*.sh tests/*/*.sh python/*.sh cmake/completion.bash .ci/run || status=1
    lint_tidy || status=1
    tests/lint/circles.py || status=1
    tests/lint/functions.py || status=1
    tests/lint/units.py || status=1
    return "$status"
}

stage packages tools/install-packages.sh test
[[ $failed -eq 0 ]] || exit 1

# They run before the sanitizers' builds, which then find these kernels in PoCL's cache: there compiling takes twice as long.
run_tests() {
    if [[ $full -eq 1 ]]; then
        CLMGK_TEST_FULL=1 ctest --preset gcc -j "$jobs" -L 'quick|full'
    else
        # Only a part of the sweeps over faults.
        CLMGK_FAULT_STEP=24 ctest --preset gcc -j "$jobs" -L quick
    fi | tee "$log"
}

# A command in the background, for a stage that waits for it and then prints what it has printed.
begin() { # NAME COMMAND...
    "${@:2}" >"$work/$1" 2>&1 &
    begun[$1]=$!
}

finish() { # NAME
    local status=0
    wait "${begun[$1]}" || status=$?
    cat "$work/$1"
    return "$status"
}

work=$(mktemp -d)
log=$work/log
declare -A begun=()
trap 'kill $(jobs -p) 2>/dev/null || true; rm -rf "$work"' EXIT
stage gcc build gcc
stage lint lint
stage tests run_tests
if [[ $full -eq 1 ]]; then
    stage python python/test.sh --full
    stage clang check_preset clang -L quick
    for preset in asan asan-clang tsan tsan-gcc; do
        stage "$preset" check_preset "$preset" -L quick
    done
    stage mutations tests/mutations/run.py
    stage release tools/release.sh build/release
    stage site tools/site.sh
else
    # These use one core each, and the sanitizers' builds not always both.
    begin python python/test.sh
    begin site tools/site.sh
    export CLMGK_FAULT_STEP=192
    stage asan check_asan
    # The only build by Clang has the thread sanitizer; clang-tidy (lint) gives its warnings about the rest of the code.
    stage clang check_part tsan thread_tests -L quick -R '^test_(base|reference)$'
    export CLMGK_TEST_ONLY=thread,at_once,in_flight,wait_lists,_share_,handed_over,held_up,cancelling,release_while,a_rank_
    stage tsan check_part tsan thread_tests -L threads
    stage python finish python
    stage site finish site
fi

echo "==== stages"
printf '%s\n' "${summary[@]}"
echo "==== tests"
sed -n '/tests passed, .* failed out of/,$p' "$log"
if [[ $failed -ne 0 ]]; then
    printf '%s\n' "FAILED. Stages:" "${summary[@]}" >&2
    exit 1
fi
