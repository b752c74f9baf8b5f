#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The first 45 minutes on a card: docs/gpu.md. `prepare` makes a bundle on any machine; the other stages run from that
# bundle, where there may be a driver, bash and coreutils, and nothing else.
# shellcheck disable=SC2317 # stages are called by their names
set -euo pipefail

self=$(realpath "${BASH_SOURCE[0]}")
here=$(dirname "$self")
stages=(facts builds numbers peaks bench tune counters)
# Seconds: together 35 minutes, each below 9.
declare -A limits=([facts]=120 [builds]=360 [numbers]=420 [peaks]=120 [bench]=420 [tune]=480 [counters]=180)
declare -A short_limits=([facts]=60 [builds]=180 [numbers]=200 [bench]=120)

usage() {
    cat <<'TEXT'
usage: gpu-check.sh prepare [--build DIR] [--output DIR]
       gpu-check.sh [OPTION...] STAGE...|all|short

  prepare   builds everything and bundles it into build/gpu-check and build/gpu-check.tar.gz: run this where there is
            a compiler, copy the archive to the machine with the card, unpack it there, and run gpu-check/gpu-check.sh

stages, each on its own or several in turn; a case that has a result already is left out:
  facts     what the device states, what its compiler takes, what that computes         facts.jsonl
  builds    all shipped SIMT configurations: seconds, registers, spills, logs           builds.jsonl
  numbers   numeric tests on the device's own engine, and the golden cases              numbers.jsonl, numbers.log
  peaks     FMA, copying and reading 1 GiB, patterns of reading                         peaks.jsonl
  bench     square-32, -64, -128, long, decode-64k, both passes; PyTorch where it is    bench.jsonl, peers.jsonl
  tune      three shapes                                                                tune.jsonl, tuning.txt
  counters  binaries and kernels for profilers, and which profilers are here            counters.jsonl, binaries/
  all       all of these: 35 minutes at most
  short     facts, builds, golden cases, square-64: 10 minutes at most

options:
  --output DIR    folder of the results (default: gpu-results; of prepare: build/gpu-check)
  --device SEL    PLATFORM:DEVICE, gpu (the first one) or a part of a name; default: $CLMGK_DEVICE, else gpu
  --limit SECONDS of each stage, in place of its own
  --jobs N        processes at a time, default: processors, at most 16
  --fresh         begin the given stages anew
  --rehearse      few and small cases, on any device
  --own-libc      run on the bundle's C library even where the machine's is new enough
  --build DIR     of prepare: a build folder that is complete already

Exit status: 0 done; 1 a check failed or a stage ran out of time; 2 bad usage; 3 no usable device; 4 another error.
TEXT
}

fail() { # STATUS WORDS...
    echo "gpu-check.sh: ${*:2}" >&2
    exit "$1"
}

say() {
    echo "gpu-check: $*" >&2
}

# ---- the bundle -----------------------------------------------------------------------------------------------

# Numeric tests, the longest first.
numeric=(test_linear test_admixture_backward test_backward test_admixture test_layer test_forward test_linear_backward
    test_layer_rows test_modifiers test_statistics test_values test_properties test_strides test_differential
    test_random test_combine test_gemm test_warm_up test_first_contact test_enqueue test_threads)
programs=(clmgk-info clmgk-run clmgk-bench clmgk-tune gpu_probe listops "${numeric[@]}")
# Taken from the bundle even where the machine has its own: the loader must honour OCL_ICD_VENDORS.
own_libraries='^(libclmgk|libOpenCL|libclblast)\.so'
c_library='^(ld-linux.*|libc|libm|libdl|librt|libpthread|libresolv|libutil)\.so'

# ---- the machine ----------------------------------------------------------------------------------------------

manifest() { # KEY
    sed -n "s/^$1 //p" "$bundle/MANIFEST"
}

older() { # A B : version A is older than B
    [[ $1 != "$2" && $(printf '%s\n%s\n' "$1" "$2" | sort -V | head -n 1) == "$1" ]]
}

# Writes $run, which starts a program of the bundle. The machine's own are taken where
# there are any, since a driver may need them as new as they are, but for those of $own_libraries.
choose_libraries() {
    local libc file name missing libraries=$work/lib begin=()
    [[ $(uname -m) == "$(manifest machine)" ]] ||
        fail 2 "the bundle is for $(manifest machine), this machine is $(uname -m): prepare it on such a machine"
    rm -rf "$libraries"
    mkdir -p "$libraries"
    libc=$(getconf GNU_LIBC_VERSION 2>/dev/null | cut -d ' ' -f 2) || true
    if [[ $own_libc -eq 1 ]] || older "${libc:-0}" "$(manifest glibc)"; then
        say "glibc here ${libc:-unknown}, programs need $(manifest glibc): they run on the bundle's own"
        ln -s "$bundle"/libc/* "$bundle"/lib/* "$libraries/"
        begin=("$bundle"/libc/ld-linux*)
    else
        missing=$(ldd "$bundle"/bin/* "$bundle"/lib/libclblast* 2>/dev/null) || true
        for file in "$bundle"/lib/*; do
            name=$(basename "$file")
            [[ ! $name =~ $own_libraries && $missing != *"$name => not found"* ]] || ln -s "$file" "$libraries/$name"
        done
    fi
    {
        echo '#!/bin/bash'
        printf 'export LD_LIBRARY_PATH=%q\n' "$libraries${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}$driver_path"
        # shellcheck disable=SC2016 # for the script that is written
        printf 'exec %s%q/bin/"$1" "${@:2}"\n' "${begin[*]:+$(printf '%q ' "${begin[@]}")}" "$bundle"
    } >"$run"
    chmod +x "$run"
}

# Folders in which drivers put their library.
driver_folders() {
    tr ':' '\n' <<<"${LD_LIBRARY_PATH:-}"
    printf '%s\n' /usr/local/nvidia/lib64 /usr/local/nvidia/lib /usr/lib/x86_64-linux-gnu /usr/lib/aarch64-linux-gnu \
        /usr/lib64 /usr/lib/wsl/lib /usr/local/cuda/compat /usr/local/cuda/lib64 /opt/rocm/lib
}

find_driver() { # LIBRARY : its path, or nothing
    local folder
    while read -r folder; do
        if [[ -n $folder && -e $folder/$1 ]]; then
            echo "$folder/$1"
            return
        fi
    done < <(driver_folders)
}

# An ICD folder of our own processes: what the system names, and drivers that nobody has named.
choose_drivers() {
    local icd=$work/icd file name path
    if [[ -n ${OCL_ICD_VENDORS:-} ]]; then
        say "drivers are those of OCL_ICD_VENDORS=$OCL_ICD_VENDORS"
        return
    fi
    rm -rf "$icd"
    mkdir -p "$icd"
    for file in /etc/OpenCL/vendors/*.icd; do
        [[ ! -e $file ]] || cp "$file" "$icd/"
    done
    for name in libnvidia-opencl.so.1 libamdocl64.so; do
        path=$(find_driver "$name")
        [[ -n $path ]] || continue
        cat "$icd"/*.icd 2>/dev/null | grep -qF "${name%%.*}" || echo "$path" >"$icd/$name.icd"
        driver_path+=":$(dirname "$path")"
    done
    [[ -n $(ls "$icd") ]] ||
        fail 3 "no OpenCL driver: expected /etc/OpenCL/vendors/*.icd, or libnvidia-opencl.so.1 in LD_LIBRARY_PATH," \
            "/usr/local/nvidia/lib64 or the system's folders (a container must be given that part of the driver)"
    export OCL_ICD_VENDORS=$icd
}

# NVIDIA's driver compiles by a library of its own.
check_compiler() {
    local driver
    driver=$(find_driver libnvidia-opencl.so.1)
    if [[ -n $driver && -z $(find_driver libnvidia-nvvm.so.4)$(find_driver libnvidia-nvvm.so) ]]; then
        say "libnvidia-nvvm.so, the compiler, is not beside $driver: builds will fail with an empty log"
    fi
}

# The device's facts in $work/device.jsonl.
choose_device() {
    rm -f "$work/device.jsonl"
    timeout --foreground -k 5 60 "$run" gpu_probe --fact device --output "$work/device.jsonl" ||
        fail 3 "no device answers (drivers: $(cat "$OCL_ICD_VENDORS"/*.icd 2>/dev/null | tr '\n' ' '))"
    if [[ $rehearse -eq 0 && -z ${CLMGK_DEVICE:-} ]] && ! grep -q '"class":"gpu"' "$work/device.jsonl"; then
        fail 3 "there is no GPU: --device names another device, --rehearse takes any"
    fi
}

# Those of the device's plans, which are others on NVIDIA's GPUs.
configurations() {
    local plans=simt
    ! grep -q '"vendor":"NVIDIA' "$work/device.jsonl" || plans=simt-nvidia
    grep "^$plans " "$bundle/configurations.txt"
}

# Caches of these stages alone: what a stage compiles the next ones find.
choose_caches() { # FOLDER
    export CLMGK_CACHE_DIR=$1/clmgk CUDA_CACHE_PATH=$1/cuda CUDA_CACHE_MAXSIZE=4294967296
    mkdir -p "$1/clmgk" "$1/cuda"
}

# ---- results ------------------------------------------------------------------------------------------------

record() { # FILE LINE : on the disk when it returns
    printf '%s\n' "$2" >>"$results/$1"
    sync "$results/$1"
}

has() { # FILE CASE
    grep -qsF "{\"case\":\"$2\"," "$results/$1"
}

# Runs a program with a limit, at most what the stage has left.
limited() { # SECONDS COMMAND...
    local left=$((deadline - SECONDS))
    timeout --foreground -k 10 $((left < 1 ? 1 : left < $1 ? left : $1)) "${@:2}"
}

# A case that the stage's end cut off has no result: the same command runs it again.
end_in_time() {
    [[ $SECONDS -lt $deadline ]] || exit 124
}

# One case of a program that prints JSON: its result, or its status, becomes a line of FILE. A program that the stage's
# end cuts off prints what it has.
json_case() { # FILE CASE SECONDS COMMAND...
    local status=0 start=$SECONDS text name=$2
    has "$1" "$2" && return
    say "$2"
    text=$(limited "${@:3}" 2>"$work/stderr" | tr -s ' \n\t' ' ') || status=$?
    [[ $status -eq 0 ]] || sed 's/^/    /' "$work/stderr" >&2
    [[ $text == "{"*"} " ]] || text=null
    [[ $SECONDS -lt $deadline ]] || name+=" (cut off)"
    record "$1" "{\"case\":\"$name\",\"status\":$status,\"seconds\":$((SECONDS - start)),\"result\":$text}"
    end_in_time
}

# At most $jobs of them at a time.
begin_job() { # COMMAND...
    while [[ $(jobs -rp | wc -l) -ge $jobs ]]; do
        wait -n || true
    done
    end_in_time
    "$@" &
}

# ---- stages -------------------------------------------------------------------------------------------------

stage_facts() {
    local name status
    check_compiler
    while read -r name; do
        has facts.jsonl "$name" && continue
        status=0
        limited 60 "$run" gpu_probe --fact "$name" --output "$results/facts.jsonl" 2>>"$work/facts.log" || status=$?
        end_in_time
        [[ $status -eq 0 ]] || record facts.jsonl "{\"case\":\"$name\",\"status\":$status}"
    done < <("$run" gpu_probe --list)
    sed -nE 's/^\{"case":"([^"]*)".*"right":(true|false).*/    \1: \2/p
        s/^\{"case":"([^"]*)","status":([0-9]+).*/    \1: the process ended, status \2/p' "$results/facts.jsonl"
    grep '"case":"plain"' "$results/facts.jsonl" | grep -q '"right":true' ||
        fail 3 "the driver compiles or runs not even a plain kernel: its log is in facts.jsonl, case plain"
}

# Configurations without an answer yet.
builds_to_do() { # LIST
    sed -nE 's/^\{"case":"([^"]*)".*/\1/p' "$results/builds.jsonl" 2>/dev/null >"$1.done" || true
    grep -vxFf "$1.done" "$1" || true
}

# A list in one process; after one that ends it, or never answers, in another.
build_list() { # LIST
    local status first
    while first=$(builds_to_do "$1" | head -n 1) && [[ -n $first ]]; do
        builds_to_do "$1" >"$1.todo"
        status=0
        "$run" gpu_probe --builds "$1.todo" --output "$results/builds.jsonl" 2>>"$1.log" || status=$?
        first=$(builds_to_do "$1" | head -n 1)
        if [[ $status -ne 0 && -n $first ]]; then
            tail -n 1 "$1.log" >&2
            record builds.jsonl "{\"case\":\"$first\",\"build\":\"status $status\"}"
        fi
    done
}

stage_builds() {
    local i every=1 failed
    [[ $rehearse -eq 0 ]] || every=25
    choose_caches "$work/cache-builds"
    export POCL_CACHE_DIR=$work/cache-builds/pocl
    mkdir -p "$POCL_CACHE_DIR"
    for ((i = 0; i < jobs; i++)); do
        configurations | awk "NR % $every == 0 && int(NR / $every) % $jobs == $i" >"$work/builds-$i"
        build_list "$work/builds-$i" &
    done
    wait
    [[ -s $results/builds.jsonl ]] || fail 1 "builds: the bundle's list has nothing for this device"
    failed=$(grep -vc '"build":"CL_SUCCESS"' "$results/builds.jsonl") || true
    say "$(wc -l <"$results/builds.jsonl") configurations, $failed failed," \
        "$(grep -c '"spill_store_bytes":[1-9]' "$results/builds.jsonl") spill registers"
    failures=$failed
}

numeric_case() { # TEST
    local status=0 start=$SECONDS log=$work/$1.log failed
    CLMGK_TEST_ENGINE=own limited 300 "$run" "$1" >"$log" 2>&1 || status=$?
    end_in_time
    failed=$(sed -nE 's/^\[  FAILED  \] (\w+)$/"\1"/p' "$log" | sort -u | paste -sd ,)
    { echo "==== $1" && cat "$log"; } >>"$results/numbers.log"
    record numbers.jsonl "{\"case\":\"$1\",\"status\":$status,\"seconds\":$((SECONDS - start)),\"failed\":[$failed]}"
    say "$1: $([[ $status -eq 0 ]] && echo passed || echo "FAILED, status $status") ($((SECONDS - start)) s)"
}

# Inputs of a golden case; what comes out is held against the reference, which CI holds against the expected values.
golden_case() { # NAME ARGUMENTS, quoted
    local status=0 start=$SECONDS target words
    target=$(mktemp -d "$work/golden-XXXXXX")
    eval "words=($2)"
    (cd "$bundle/golden/$1" && limited 120 "$run" clmgk-run "${words[@]}" --check) >"$target/log" 2>&1 || status=$?
    end_in_time
    if [[ $status -ne 0 ]]; then
        { echo "==== golden $1" && cat "$target/log"; } >>"$results/numbers.log"
        say "golden $1: FAILED, status $status"
    fi
    record numbers.jsonl "{\"case\":\"golden $1\",\"status\":$status,\"seconds\":$((SECONDS - start))}"
    rm -rf "$target"
}

stage_numbers() {
    local name arguments every=1 tests=("${numeric[@]}")
    [[ $rehearse -eq 0 ]] || { every=40 && tests=(test_combine test_warm_up); }
    choose_caches "$work/cache"
    while read -r name arguments; do
        has numbers.jsonl "golden $name" || begin_job golden_case "$name" "$arguments"
    done < <(awk "NR % $every == 0" "$bundle/golden.txt")
    for name in "${tests[@]}"; do
        [[ -n $short ]] || has numbers.jsonl "$name" || begin_job numeric_case "$name"
    done
    wait
    end_in_time
    say "$(wc -l <"$results/numbers.jsonl") cases"
}

stage_peaks() {
    local bytes=()
    [[ $rehearse -eq 0 ]] || bytes=(--bytes 16777216)
    choose_caches "$work/cache"
    json_case peaks.jsonl "peaks" 90 "$run" clmgk-bench --heads 1 --length 64 --head-size 64 --variants softmax \
        --seconds 0.2 --json
    if ! has peaks.jsonl lane_is_feature; then
        limited 60 "$run" gpu_probe --patterns "${bytes[@]}" --output "$results/peaks.jsonl" || failures=1
    fi
    grep -o '"peak_[a-z]*_g[a-z]*": [0-9.]*' "$results/peaks.jsonl" || true
    sed -nE 's/^\{"case":"(lane_[a-z_]*)".*"gbps":([0-9.]*).*/\1: \2 GB\/s/p' "$results/peaks.jsonl"
}

# A line for each case of a result of clmgk-bench: what was measured beside the peak.
print_cases() {
    grep -oE '"shape": [^,]*, "variant": "[^"]*"|"dtype": "[^"]*", "pass": "[^"]*"'\
'|"(median|gflops|fraction_of_peak)": ([0-9.e+-]*|null)' |
        sed -E 's/"(shape|variant|dtype|pass)"://g; s/"median": (.*)/\1 ms/; s/"gflops": (.*)/\1 GFLOP\/s/
            s/"fraction_of_peak": (.*)/\1 of the peak/; s/[",]//g' |
        paste -sd '    \n'
}

bench_case() { # NAME PASS OPTION...
    json_case bench.jsonl "$1 $2" 150 "$run" clmgk-bench "${@:3}" --pass "$2" --variants softmax:8,mgk:4 \
        --seconds 2 --json
}

stage_bench() {
    local shape pass shapes=(square-64 square-32 square-128 long decode-64k)
    [[ -z $short ]] || shapes=(square-64)
    choose_caches "$work/cache"
    for pass in forward backward; do
        if [[ $rehearse -eq 1 ]]; then
            bench_case small "$pass" --heads 2 --length 64 --head-size 32
            continue
        fi
        for shape in "${shapes[@]}"; do
            [[ $shape$pass == decode-64kbackward ]] || bench_case "$shape" "$pass" --shapes "$shape" --dtype f32,bf16
        done
    done
    print_cases <"$results/bench.jsonl"
    bench_peers
}

bench_peers() {
    local options=()
    if ! python3 -c 'import torch' 2>/dev/null; then
        say "no python3 with torch: no peers"
        return
    fi
    [[ $rehearse -eq 0 ]] || options=(--rehearse)
    [[ -z $short ]] || options+=(--shapes square-64)
    limited 150 python3 "$bundle/gpu.py" "${options[@]}" --output "$results/peers.jsonl" || failures=$((failures + 1))
}

tune_case() { # NAME SECONDS OPTION...
    json_case tune.jsonl "$1" $(($2 + 60)) "$run" clmgk-tune "${@:3}" --budget "$2" --json
    ! grep -qs '"outcome": "refused"' "$results/tune.jsonl" || failures=$((failures + 1))
    "$run" clmgk-tune --export "$results/tuning.txt" >/dev/null || failures=$((failures + 1))
}

stage_tune() {
    local shape
    ! grep -qF "$bundle/libc/" "$run" ||
        fail 1 "tune: it starts itself anew, which needs a machine with glibc $(manifest glibc)"
    choose_caches "$work/cache"
    if [[ $rehearse -eq 1 ]]; then
        tune_case small 5 --heads 1 --length 64 --head-size 32 --pass forward --variants softmax --products none
        return
    fi
    for shape in square-64 square-128 decode-64k; do
        tune_case "$shape" $(((deadline - 30) / 3 - 20)) --shapes "$shape" --variants softmax:8,mgk:4
    done
}

# Profilers know nothing of OpenCL's kernels on NVIDIA's cards: the binaries (PTX there) are for replaying.
stage_counters() {
    local tool path kernels
    for tool in ncu nsys cuobjdump ptxas rocprof rocprofv3 unitrace vtune; do
        path=$(command -v "$tool") || path=
        has counters.jsonl "tool $tool" || record counters.jsonl "{\"case\":\"tool $tool\",\"path\":\"$path\"}"
    done
    mkdir -p "$results/binaries"
    choose_caches "$work/cache"
    configurations | grep -E '^\S+ (backward-)?(softmax|mgk2|smgk2)-(64|128) ' |
        awk "$rehearse == 0 || NR == 1" >"$work/counters"
    if ! has counters.jsonl "$(tail -n 1 "$work/counters")"; then
        limited 150 "$run" gpu_probe --builds "$work/counters" --binaries "$results/binaries" \
            --output "$results/counters.jsonl" || failures=1
    fi
    kernels=$(grep -o '"name":"[^"]*"' "$results/counters.jsonl" | sort -u | wc -l)
    say "binaries of $kernels kernels in $results/binaries"
}

# ---- the command line ---------------------------------------------------------------------------------------

# In a process of its own, below `timeout`.
run_inside() { # STAGE
    deadline=$((limit - 5)) # for what programs print at their end
    failures=0
    "stage_$1"
    # A fact that ends its process is a fact; what was cut off is there once more.
    [[ $1 == facts ]] ||
        failures=$((failures + $(grep -v ' (cut off)"' "$results/$1.jsonl" | grep -c '"status":[1-9]' || true)))
    [[ $failures -eq 0 ]] || fail 1 "$1: $failures failed: $results has the details"
}

# Ctrl-C ends the stage's processes; what is recorded stays.
run_stage() { # STAGE LIMIT
    local status=0 start=$SECONDS
    say "$1 (at most $2 s)"
    GPU_CHECK_INSIDE=1 timeout -k 15 "$2" bash "$self" "${options[@]}" --output "$results" --limit "$2" "$1" &
    child=$!
    wait "$child" || status=$?
    [[ $status -ne 124 && $status -ne 137 ]] || say "$1: out of time; the same command goes on with the rest"
    record stages.jsonl "{\"stage\":\"$1\",\"status\":$status,\"seconds\":$((SECONDS - start))}"
    [[ $status -ne 124 && $status -ne 137 ]] || status=1
    [[ $worst -ge $status ]] || worst=$status
}

parse() {
    build='' output='' limit='' jobs='' short='' fresh=0 rehearse=0 own_libc=0 options=() chosen=()
    local value
    while [[ $# -gt 0 ]]; do
        case $1 in
        --*=*)
            value=${1#*=}
            set -- "${1%%=*}" "$value" "${@:2}"
            continue
            ;;
        --help)
            usage
            exit 0
            ;;
        --build | --output | --device | --limit | --jobs)
            [[ $# -gt 1 ]] || fail 2 "$1: expected a value"
            case $1 in
            --build) build=$2 ;;
            --output) output=$2 ;;
            --device) export CLMGK_DEVICE=$2 ;;
            --limit) limit=$2 ;;
            --jobs) jobs=$2 && options+=("$1" "$2") ;;
            esac
            shift
            ;;
        --fresh) fresh=1 ;;
        --rehearse) rehearse=1 && options+=("$1") ;;
        --own-libc) own_libc=1 && options+=("$1") ;;
        all) chosen+=("${stages[@]}") ;;
        short) short=short && chosen+=(facts builds numbers bench) ;;
        prepare | facts | builds | numbers | peaks | bench | tune | counters) chosen+=("$1") ;;
        *) fail 2 "'$1': expected a stage or an option (--help lists them)" ;;
        esac
        shift
    done
    for value in "$limit" "$jobs"; do
        [[ $value =~ ^([1-9][0-9]{0,4})?$ ]] || fail 2 "'$value': expected a positive number after --limit or --jobs"
    done
    [[ ${#chosen[@]} -gt 0 ]] || fail 2 "expected a stage: prepare, all, short, ${stages[*]}"
    [[ -z $limit || ($limit -ge 10 && $limit -lt 540) ]] || fail 2 "--limit $limit: expected 10 to 539"
    [[ -z $build || ${chosen[0]} == prepare ]] || fail 2 "--build is of prepare alone"
    [[ -n $jobs ]] || jobs=$(($(nproc) < 16 ? $(nproc) : 16))
    short=${GPU_CHECK_SHORT:-$short}
}

# The folder of the results, which are of one bundle.
open_results() {
    local stage of
    mkdir -p "$results" || fail 4 "--output '$results': cannot make the folder"
    for stage in "${chosen[@]}"; do
        [[ $fresh -eq 0 ]] || case $stage in
        numbers) rm -f "$results"/numbers.* ;;
        bench) rm -f "$results"/{bench,peers}.jsonl ;;
        *) rm -rf "$results/$stage.jsonl" "$work/cache-$stage" ;;
        esac
    done
    of=$(cat "$results/bundle" 2>/dev/null) || true
    [[ -z $of || $fresh -eq 1 || $of == "$(cat "$bundle/MANIFEST")" ]] ||
        fail 2 "--output '$results' has the results of another bundle: expected another folder, or --fresh"
    cp "$bundle/MANIFEST" "$results/bundle"
    driver_path=
}

# What need not come back from the machine: caches, logs of steps. The same for the same results.
choose_work() {
    local own=${TMPDIR:-/tmp}/gpu-check-$UID
    work=$own/$(cksum <<<"$results" | cut -d ' ' -f 1)
    run=$work/run
    [[ -d $own ]] || mkdir -m 700 "$own"
    [[ -O $own && ! -L $own ]] || fail 4 "'$own': expected a folder of our own"
    mkdir -p "$work"
}

main() {
    local stage
    parse "$@"
    if [[ ${chosen[0]} == prepare ]]; then
        [[ ${#chosen[@]} -eq 1 ]] || fail 2 "prepare goes alone"
        [[ -f $here/gpu-bundle.sh ]] || fail 2 "prepare: expected a checkout of the sources around $here"
        # shellcheck source=tools/gpu-bundle.sh
        source "$here/gpu-bundle.sh"
        prepare "$build" "$(realpath -m "${output:-$(dirname "$here")/build/gpu-check}")"
        return
    fi
    bundle=$here
    [[ -f $bundle/MANIFEST ]] || bundle=$(dirname "$here")/build/gpu-check
    [[ -f $bundle/MANIFEST ]] || fail 2 "there is no bundle: gpu-check.sh prepare makes one"
    results=$(realpath -m "${output:-gpu-results}")
    choose_work
    if [[ -n ${GPU_CHECK_INSIDE:-} ]]; then
        run_inside "${chosen[0]}"
        return
    fi
    open_results
    choose_drivers
    choose_libraries
    choose_device
    [[ -z $short ]] || export GPU_CHECK_SHORT=$short
    worst=0
    trap 'kill -TERM "${child:-0}" 2>/dev/null; wait; fail 1 "stopped: $results has what there is"' INT TERM HUP
    for stage in "${chosen[@]}"; do
        if [[ -n $short ]]; then
            run_stage "$stage" "${limit:-${short_limits[$stage]}}"
        else
            run_stage "$stage" "${limit:-${limits[$stage]}}"
        fi
    done
    say "results in $results"
    return "$worst"
}

main "$@"
