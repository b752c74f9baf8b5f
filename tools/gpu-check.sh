#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The first minutes on a card: docs/gpu.md. `prepare` makes a bundle on any machine; the other stages run from that
# bundle, where there may be a driver, bash and coreutils, and nothing else.
# shellcheck disable=SC2317 # stages are called by their names
set -euo pipefail

self=$(realpath "${BASH_SOURCE[0]}")
here=$(dirname "$self")
# In the order of their value: the card may be gone at any time.
stages=(facts matrix golden numbers tensors table builds tune profile bench peaks)
short_stages=(facts matrix table builds numbers tensors golden)
# Seconds: together 51 minutes, each below 9.
declare -A limits=([facts]=120 [golden]=120 [matrix]=480 [numbers]=420 [tensors]=240 [table]=240 [builds]=360 [tune]=360
    [profile]=240 [bench]=360 [peaks]=120)
# Of `short`: each stage, each program in it, and all stages together, with half a minute to find the device and to end. The
# stages do not take all of their time, so there is enough for the last ones, unless a program hangs.
declare -A short_limits=([facts]=30 [matrix]=260 [table]=110 [builds]=45 [numbers]=30 [tensors]=60 [golden]=60)
short_limit=510
short_program_limit=60

usage() {
    cat <<'TEXT'
usage: gpu-check.sh prepare [--build DIR] [--output DIR]
       gpu-check.sh [OPTION...] STAGE...|all|short

  prepare   builds everything and bundles it into build/gpu-check and build/gpu-check.tar.gz: run this where there is
            a compiler, copy the archive to the machine with the card, unpack it there, and run gpu-check/gpu-check.sh

stages, in order of value, each on its own or several in turn; a case that has a result already is left out:
  facts     what the device states, what its compiler takes, what that computes         facts.jsonl
  matrix    the engine of matrix units by its name: golden cases with f16 and bf16
            arrays; cold compile times; attention at N = 8192 by wgmma and by mma.sync
            and decoding, beside PyTorch where it is; a table of all this               matrix.jsonl, matrix-golden.jsonl
  golden    the golden cases                                                            golden.jsonl, golden.log
  numbers   numeric tests on the device's own engine                                    numbers.jsonl, numbers.log
  tensors   PyTorch's CUDA tensors through the Python package, where python3 has torch,
            NumPy and cffi: values, gradients, streams, graphs, speed                   tensors.jsonl
  table     all families at square-64 and products of matrices, also with tf32 products,
            both passes, beside PyTorch where it is                                     table.jsonl, peers.jsonl
  builds    all shipped configurations of GPUs: seconds, registers, spills, logs, and
            the programs that the driver makes of them (NVIDIA: PTX)                    builds.jsonl, programs/
  tune      three shapes                                                                tune.jsonl, tuning.txt
  profile   kernels of the table, recorded and replayed through CUDA: multiply-adds,
            issue rate, stalls (by ncu where it is), resident work-groups               profile.jsonl, recordings/
  bench     square-32, -128, long, decode-64k, both passes; PyTorch where it is         bench.jsonl, peers.jsonl
  peaks     FMA, copying and reading 1 GiB, patterns of reading                         peaks.jsonl
  all       all of these: 51 minutes at most
  short     facts, matrix, table, builds (of the matrix engine), the numeric test of CUDA,
            tensors, golden: 9 minutes at most; says what it leaves out

output.txt has what all of them print.

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
numeric=(test_matrix test_linear test_admixture_backward test_backward test_admixture test_layer test_forward test_linear_backward
    test_layer_rows test_modifiers test_statistics test_values test_properties test_strides test_differential
    test_random test_combine test_cuda test_gemm test_warm_up test_first_contact test_enqueue test_threads)
short_numeric=(test_cuda)
programs=(clmgk-info clmgk-run clmgk-bench clmgk-tune gpu_probe gpu_replay "${numeric[@]}")
# Libraries that come from the bundle even if the machine has its own, because the loader must honour OCL_ICD_VENDORS.
own_libraries='^(libclmgk|libOpenCL|libclblast)\.so'
c_library='^(ld-linux.*|libc|libm|libdl|librt|libpthread|libresolv|libutil)\.so'

# ---- the machine ----------------------------------------------------------------------------------------------

manifest() { # KEY
    sed -n "s/^$1 //p" "$bundle/MANIFEST"
}

older() { # A B : version A is older than B
    [[ $1 != "$2" && $(printf '%s\n%s\n' "$1" "$2" | sort -V | head -n 1) == "$1" ]]
}

# Writes $run, which starts a program of the bundle, and $run-python, the machine's Python with the bundle's package. Except
# for $own_libraries they prefer the machine's libraries, because a driver may need their newer versions.
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
    {
        sed '/^exec/d' "$run"
        # shellcheck disable=SC2016
        printf 'export PYTHONPATH=%q\nexec python3 -B "$@"\n' "$bundle/python"
    } >"$run-python"
    chmod +x "$run" "$run-python"
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

# Makes an ICD folder for our processes, with the drivers that the system lists and others that were found.
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

# NVIDIA's driver compiles with a separate library.
check_compiler() {
    local driver
    driver=$(find_driver libnvidia-opencl.so.1)
    if [[ -n $driver && -z $(find_driver libnvidia-nvvm.so.4)$(find_driver libnvidia-nvvm.so) ]]; then
        say "libnvidia-nvvm.so, the compiler, is not beside $driver: builds will fail with an empty log"
    fi
}

# Writes the device's facts to $work/device.jsonl.
choose_device() {
    rm -f "$work/device.jsonl"
    timeout --foreground -k 5 60 "$run" gpu_probe --fact device --output "$work/device.jsonl" ||
        fail 3 "no device answers (drivers: $(cat "$OCL_ICD_VENDORS"/*.icd 2>/dev/null | tr '\n' ' '))"
    if [[ $rehearse -eq 0 && -z ${CLMGK_DEVICE:-} ]] && ! grep -q '"class":"gpu"' "$work/device.jsonl"; then
        fail 3 "there is no GPU: --device names another device, --rehearse takes any"
    fi
}

is_nvidia() {
    grep -q '"vendor":"NVIDIA' "$work/device.jsonl"
}

# The configurations that plans use on this device; NVIDIA's GPUs have others, the first of them those that matter most, to
# which `short` keeps.
configurations() {
    if is_nvidia; then
        grep -E '^matrix-nvidia ' "$bundle/configurations.txt"
        [[ -n $short ]] || grep -E '^simt-nvidia ' "$bundle/configurations.txt"
    else
        grep -E '^simt ' "$bundle/configurations.txt"
    fi
}

# Caches that only these stages share: a stage finds the programs that earlier ones compiled.
choose_caches() { # FOLDER
    export CLMGK_CACHE_DIR=$1/clmgk CUDA_CACHE_PATH=$1/cuda CUDA_CACHE_MAXSIZE=4294967296
    mkdir -p "$1/clmgk" "$1/cuda"
}

# ---- results ------------------------------------------------------------------------------------------------

record() { # FILE LINE : the line is on the disk when this returns
    printf '%s\n' "$2" >>"$results/$1"
    sync "$results/$1"
}

has() { # FILE CASE
    grep -qsF "{\"case\":\"$2\"," "$results/$1"
}

# Runs a program with a limit of time, at most the rest of the stage's time.
limited() { # SECONDS COMMAND...
    local left=$((deadline - SECONDS)) most=$1
    [[ -z $short || $most -le $short_program_limit ]] || most=$short_program_limit
    timeout --foreground -k 10 $((left < 1 ? 1 : left < most ? left : most)) "${@:2}"
}

# A case that was cut off by the end of the stage has no result, so the same command runs it again.
end_in_time() {
    [[ $SECONDS -lt $deadline ]] || exit 124
}

# Runs one case of a program that prints JSON. Its result, or its status, becomes a line of FILE. A program that is cut
# off by the end of the stage prints the results so far.
json_case() { # FILE CASE SECONDS COMMAND...
    local status=0 start=$SECONDS text name=$2
    has "$1" "$2" && return
    say "$2"
    text=$(limited "${@:3}" 2>"$work/stderr" | tr -s ' \n\t' ' ') || status=$?
    if [[ $status -ne 0 ]]; then
        sed 's/^/    /' "$work/stderr" >&2
        { echo "==== $2, status $status" && cat "$work/stderr"; } >>"$results/${1%.jsonl}.log"
    fi
    [[ $text == "{"*"} " ]] || text=null
    [[ $SECONDS -lt $deadline ]] || name+=" (cut off)"
    record "$1" "{\"case\":\"$name\",\"status\":$status,\"seconds\":$((SECONDS - start)),\"result\":$text}"
    end_in_time
}

# Starts a command in the background; at most $jobs run at a time.
begin_job() { # COMMAND...
    while [[ $(jobs -rp | wc -l) -ge $jobs ]]; do
        wait -n || true
    done
    end_in_time
    "$@" &
}

# Runs a program for what it compiles. The output of what starts it, a stage's tables among it, stays.
compiled_by() { # COMMAND...
    limited 120 "$@" >/dev/null 2>&1
}

# shellcheck source=tools/gpu-tables.sh
source "$here/gpu-tables.sh"

# ---- stages -------------------------------------------------------------------------------------------------

stage_facts() {
    local name status
    check_compiler
    while read -r name; do
        has facts.jsonl "$name" && continue
        status=0
        limited 60 "$run" gpu_probe --fact "$name" --output "$results/facts.jsonl" 2>>"$results/facts.log" || status=$?
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

# Builds a list in one process. After a configuration that ends the process, or never answers, another process goes on.
build_list() { # LIST
    local status first
    while first=$(builds_to_do "$1" | head -n 1) && [[ -n $first ]]; do
        builds_to_do "$1" >"$1.todo"
        status=0
        "$run" gpu_probe --builds "$1.todo" --binaries "$results/programs" --output "$results/builds.jsonl" 2>>"$1.log" || status=$?
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
    mkdir -p "$POCL_CACHE_DIR" "$results/programs"
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
golden_case() { # FILE NAME ARGUMENTS, quoted, [TYPE] : of arrays on the matrix engine
    local status=0 start=$SECONDS target words name="$2${4:+ $4}"
    target=$(mktemp -d "$work/golden-XXXXXX")
    eval "words=($3)"
    [[ -z ${4:-} ]] || words+=(--engine matrix --dtype "$4")
    (cd "$bundle/golden/$2" && limited 120 "$run" clmgk-run "${words[@]}" --check) >"$target/log" 2>&1 || status=$?
    end_in_time
    if [[ $status -ne 0 ]]; then
        { echo "==== $name" && cat "$target/log"; } >>"$results/$1.log"
        say "golden $name: FAILED, status $status"
    fi
    record "$1.jsonl" "{\"case\":\"$name\",\"status\":$status,\"seconds\":$((SECONDS - start))}"
    rm -rf "$target"
}

stage_golden() {
    local name arguments every=1
    [[ $rehearse -eq 0 ]] || every=40
    choose_caches "$work/cache"
    while read -r name arguments; do
        has golden.jsonl "$name" || begin_job golden_case golden "$name" "$arguments"
    done < <(awk "NR % $every == 0" "$bundle/golden.txt")
    wait
    end_in_time
    local failed
    failed=$(grep -vc '"status":0,' "$results/golden.jsonl") || true
    say "$(wc -l <"$results/golden.jsonl") golden cases, $failed failed"
}

# Every EVERY-th golden case of the families that the matrix engine has, half of them with bf16 arrays, the others with
# f16; or the other way round.
matrix_golden() { # 0|1 EVERY
    local name arguments dtype only=. number=$1 types=(bf16 f16)
    [[ $rehearse -eq 0 ]] || only='^softmax-align-lengths '
    touch "$results/matrix-golden.jsonl"
    while read -r name arguments; do
        dtype=${types[number++ % 2]}
        has matrix-golden.jsonl "$name $dtype" ||
            begin_job golden_case matrix-golden "$name" "$arguments" "$dtype"
    done < <(grep -E -- "--variant ($matrix_variants) " "$bundle/golden.txt" | grep -v -- --dtype | grep -E -- "$only" |
        awk "NR % $2 == 0")
    wait
    end_in_time
    say "$(wc -l <"$results/matrix-golden.jsonl") golden cases on the matrix engine," \
        "$(grep -vc '"status":0,' "$results/matrix-golden.jsonl" || true) failed"
}
matrix_variants='softmax|gaussian|mgk|smgk|(hard-)?(fish|mish|gfish)|talking-heads'

# Calls COMMAND NAME PASS VARIANTS OPTION... for each measurement by which the matrix engine is judged, in order of value:
# softmax alone, families beside softmax with 8 heads, and decoding with 8 queries for each of 8 heads of keys.
matrix_families=softmax:8,mgk:4,smgk:4,hard-fish:2x8,hard-mish:2x8
matrix_cases() { # PASS COMMAND...
    local size square=(--length 8192 --head-size)
    for size in 64 128; do
        "${@:2}" "matrix-$size" "$1" softmax:16 --heads 16 "${square[@]}" "$size"
    done
    "${@:2}" families-128 "$1" "$matrix_families" --heads 8 "${square[@]}" 128
    # without ranges of keys for the last wave's blocks
    [[ $1 == backward ]] || "${@:2}" matrix-128-whole "$1" softmax:16 --heads 16 "${square[@]}" 128 --parameters splits=1
    [[ $1 == backward ]] || "${@:2}" decode-64k-128 "$1" softmax --batch 4 --heads 64 --kv-heads 8 --length 1 \
        --length-k 65536 --head-size 128
    [[ $1 == backward ]] || "${@:2}" mgk-4096 "$1" mgk:4 --heads 8 --length 4096 --head-size 64
    for size in 64 128; do
        "${@:2}" "matrix-$size-causal" "$1" softmax:16 --heads 16 "${square[@]}" "$size" --causal
    done
}

# Sets `unit` to the options of a case whose products are by this unit.
choose_unit() { # PASS UNIT
    unit=(--parameters "unit=$2")
    [[ $1 == forward ]] || unit+=(--backward-parameters "unit=$2")
}

# The same of what a newer unit than mma.sync computes by default, and of the families with smaller heads.
mma_cases() { # PASS COMMAND...
    local size square=(--length 8192 --head-size) unit
    choose_unit "$1" 1
    for size in 64 128; do
        "${@:2}" "mma-$size" "$1" softmax:16 --heads 16 "${square[@]}" "$size" "${unit[@]}"
    done
    if [[ $1 == forward ]]; then
        "${@:2}" mma-families-128 "$1" "$matrix_families" --heads 8 "${square[@]}" 128 "${unit[@]}"
        for size in 64 128; do
            "${@:2}" "mma-$size-causal" "$1" softmax:16 --heads 16 "${square[@]}" "$size" "${unit[@]}" --causal
        done
    fi
    "${@:2}" families-64 "$1" "$matrix_families" --heads 8 "${square[@]}" 64
}

# One of them. The driver's cache has its programs.
matrix_case() { # NAME PASS VARIANTS OPTION...
    bench_case matrix.jsonl "$1" "$2" --variants "${@:3}" --engine matrix --dtype bf16 --seconds 0.5 --keep-caches
}

# Has its programs compiled, those of all variants at the same time. Masks need no others.
matrix_programs() { # NAME PASS VARIANTS OPTION...
    local variant
    if [[ $1 == *-causal ]] || has matrix.jsonl "$1 $2"; then
        return
    fi
    for variant in ${3//,/ }; do
        begin_job compiled_by "$run" clmgk-bench --pass "$2" --variants "$variant" "${@:4}" --engine matrix --dtype bf16 \
            --seconds 0.01 --keep-caches --json
    done
}

# One whose programs are compiled without any cache: how long that takes for both passes of a plan, which has a verdict apart.
cold_case() { # NAME VARIANTS OPTION...
    bench_case matrix.jsonl "$1" backward --variants "${@:2}" --engine matrix --dtype bf16 --length 8192 --seconds 0.01
}

# Whether plans take the engine by themselves: whether its units' probe was right.
has_matrix_units() {
    grep -qs '^{"case":"choice".*"engine": "matrix"' "$results/matrix.jsonl"
}

stage_matrix() {
    local pass inputs=$bundle/golden/softmax-plain unit
    choose_caches "$work/cache"
    json_case matrix.jsonl choice 60 "$run" clmgk-run --variant softmax --q "$inputs/q.npy" --k "$inputs/k.npy" \
        --v "$inputs/v.npy" --dtype bf16 --repeat 1 --json
    if [[ $rehearse -eq 1 ]]; then
        matrix_golden 0 1
        matrix_case small forward softmax:2 "${small_shape[@]}"
        for pass in forward backward; do
            choose_unit "$pass" 0
            matrix_case emulated "$pass" softmax:2 "${small_shape[@]}" "${unit[@]}"
        done
    elif has_matrix_units; then
        trap 'print_cases matrix.jsonl; print_targets "$matrix_targets" matrix.jsonl' EXIT # also when the time is over
        matrix_golden 0 6
        cold_case cold-128 softmax:16 --heads 16 --head-size 128
        for pass in forward backward; do
            matrix_cases "$pass" matrix_programs
            wait
            matrix_cases "$pass" matrix_case
        done
        bench_peers "matrix-64 matrix-128 decode-64k-128 matrix-64-causal matrix-128-causal mgk-4096" bf16 0.2
        for pass in forward backward; do
            mma_cases "$pass" matrix_programs
        done
        wait
        for pass in forward backward; do
            mma_cases "$pass" matrix_case
        done
        cold_case cold-mgk-128 mgk:4 --heads 8 --head-size 128
        matrix_golden 0 1
        matrix_golden 1 1
    else
        say "plans do not choose the matrix engine: $(sed -nE 's/.*"engine_reason": "([^"]*)".*/\1/p' "$results/matrix.jsonl")"
        ! is_nvidia || failures=$((failures + 1))
    fi
    [[ ! -e $results/matrix-golden.jsonl ]] ||
        failures=$((failures + $(grep -vc '"status":0,' "$results/matrix-golden.jsonl" || true)))
}

stage_numbers() {
    local name tests=("${numeric[@]}")
    [[ $rehearse -eq 0 ]] || tests=(test_combine test_warm_up)
    [[ -z $short ]] || tests=("${short_numeric[@]}")
    choose_caches "$work/cache"
    for name in "${tests[@]}"; do
        has numbers.jsonl "$name" || begin_job numeric_case "$name"
    done
    wait
    end_in_time
    say "$(wc -l <"$results/numbers.jsonl") programs of tests"
}

# PyTorch's tensors on the card, by the bundle's Python package. Where it cannot run, the result is the reason.
stage_tensors() {
    local status=0 device=cuda reason=''
    [[ $rehearse -eq 0 ]] || device=cpu
    choose_caches "$work/cache"
    if [[ ! -d $bundle/python ]]; then
        reason='the bundle has no Python package: python/test.sh, before prepare, builds it'
    elif grep -qF "$bundle/libc/" "$run"; then
        reason="the package needs a machine with glibc $(manifest glibc)"
    elif ! "$run-python" -c 'import cffi, numpy, torch' 2>/dev/null; then
        reason='there is no python3 with torch, NumPy and cffi'
    elif ! "$run-python" -c "import torch; raise SystemExit('$device' == 'cuda' and not torch.cuda.is_available())"; then
        reason='torch finds no CUDA device'
    fi
    ! has tensors.jsonl none || rm -f "$results/tensors.jsonl" # the reason may be gone
    if [[ -n $reason ]]; then
        say "no tensors of PyTorch were checked: $reason"
        record tensors.jsonl "{\"case\":\"none\",\"reason\":\"$reason\"}"
        return
    fi
    limited 220 "$run-python" "$bundle/python/cuda_tensors.py" --device "$device" --output "$results/tensors.jsonl" || status=$?
    end_in_time
    [[ $status -eq 0 || $status -eq 5 ]] || fail 1 "tensors: cuda_tensors.py ended with status $status" # 5: results count
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

bench_case() { # FILE NAME PASS OPTION...
    json_case "$1" "$2 $3" 200 "$run" clmgk-bench "${@:4}" --pass "$3" --json
}

small_shape=(--heads 2 --length 64 --head-size 32)

# Has the programs of the table's cases compiled, at the same time: cold plans of a whole pass take half a minute.
table_programs() { # PASS VARIANTS OPTION...
    local variant
    ! has table.jsonl "families $1" || return 0
    for variant in ${2//,/ }; do
        begin_job compiled_by "$run" clmgk-bench "${@:3}" --pass "$1" --variants "$variant" --seconds 0.01 --keep-caches --json
    done
    begin_job compiled_by "$run" clmgk-bench "${@:3}" --pass "$1" --variants "${2%%,*}" --precision tf32 --seconds 0.01 \
        --keep-caches --json
    wait
}

# All families at one size; softmax also causal and with 16 bits (the shape adds these). A pass that is cut off keeps the
# results so far. What `short` measures is compiled before, and its cases have no times of compiling.
stage_table() {
    local dtype pass shape=(--shapes square-64) seconds=(--seconds 2) peers=square-64 keep=()
    local families=softmax:8,mgk:4,smgk:4,hard-fish:2x8,linear:8,mlk:4 products=4096x4096x4096
    [[ -z $short ]] || seconds=(--seconds 0.5) keep=(--keep-caches)
    [[ $rehearse -eq 0 ]] || shape=("${small_shape[@]}") seconds=(--seconds 0.1) peers='' families=softmax:2,mgk:1,linear:2 \
        products=40x72x64
    choose_caches "$work/cache"
    trap 'print_cases table.jsonl; print_products products.jsonl; print_targets "$table_targets" table.jsonl products.jsonl' EXIT # also when the time is over
    for pass in forward backward; do
        [[ -z $short ]] || table_programs "$pass" "$families" "${shape[@]}"
        bench_case table.jsonl families "$pass" "${shape[@]}" "${seconds[@]}" --variants "$families" "${keep[@]}"
        bench_case table.jsonl tf32 "$pass" "${shape[@]}" "${seconds[@]}" --variants "${families%%,*}" --precision tf32 "${keep[@]}"
    done
    for dtype in f32 bf16; do
        [[ $rehearse -eq 1 ]] || json_case table.jsonl "layer $dtype" 120 "$run" clmgk-bench --suite layer \
            --variants softmax --dtype "$dtype" --seconds 0.5 --json
    done
    bench_products "$products"
    bench_peers "$peers product-4096 mgk-4096 layer"
}

stage_bench() {
    local shape pass shapes=(square-32 square-128 long decode-64k)
    choose_caches "$work/cache"
    trap 'print_cases bench.jsonl' EXIT
    for pass in forward backward; do
        if [[ $rehearse -eq 1 ]]; then
            bench_case bench.jsonl small "$pass" "${small_shape[@]}" --variants softmax:2,mgk:1 --seconds 0.1
            continue
        fi
        for shape in "${shapes[@]}"; do
            [[ $shape$pass == decode-64kbackward ]] ||
                bench_case bench.jsonl "$shape" "$pass" --shapes "$shape" --dtype f32,bf16 --variants softmax:8,mgk:4 \
                    --seconds 2
        done
    done
    bench_peers "${shapes[*]}"
    bench_products 4096x1536x512,4096x512x512
    print_products products.jsonl
}

# Products of matrices by every provider.
bench_products() { # SIZES
    local sizes=$1 dtype
    [[ $rehearse -eq 0 ]] || sizes=40x72x64
    for dtype in bf16 f16 f32; do
        json_case products.jsonl "$sizes $dtype" 120 "$run" clmgk-bench --gemm "$sizes" --dtype "$dtype" --seconds 0.3 --json
    done
}

bench_peers() { # SHAPES [TYPES SECONDS]
    local options=()
    if ! python3 -c 'import torch' 2>/dev/null; then
        say "no python3 with torch: no peers"
        return
    fi
    if [[ $rehearse -eq 0 ]]; then
        options=(--shapes "${1// /,}" ${2:+--dtypes "$2"} ${3:+--seconds "$3"})
    else
        options=(--rehearse)
    fi
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

# Records the kernels of one case, each with its program, arguments and arrays: record_layer lies between clmgk-bench and
# the driver.
record_case() { # NAME OPTION...
    local folder=$work/recordings/$1
    has profile.jsonl "record $1" && return
    rm -rf "$folder"
    mkdir -p "$folder"
    OPENCL_LAYERS=$bundle/lib/record_layer.so CLMGK_RECORD=$folder json_case profile.jsonl "record $1" 120 \
        "$run" clmgk-bench "${@:2}" --seconds 0.1 --json
}

# The counters of a kernel that ncu reads: multiply-adds in a cycle of all multiprocessors, used issue slots, and for each
# issued instruction the waiting warps by reason.
stalls=(barrier branch_resolving dispatch_stall drain lg_throttle long_scoreboard math_pipe_throttle membar mio_throttle
    no_instruction not_selected selected short_scoreboard sleeping tex_throttle wait)
profiled_metrics() {
    local reason
    printf '%s,' smsp__sass_thread_inst_executed_op_ffma_pred_on.sum.per_cycle_elapsed \
        smsp__issue_active.avg.pct_of_peak_sustained_elapsed sm__warps_active.avg.pct_of_peak_sustained_active
    for reason in "${stalls[@]}"; do
        printf 'smsp__average_warps_issue_stalled_%s_per_issue_active.ratio,' "$reason"
    done
    echo gpu__time_duration.sum
}

# The fields of ncu's table ("Metric Name" and "Metric Value" are columns of its CSV) as JSON.
counters_of() { # FILE
    awk -F '","' '
        /"Metric Name"/ {
            gsub(/^"|"$/, "")
            for (i = 1; i <= NF; i++)
                column[$i] = i
            next
        }
        ("Metric Name" in column) && NF > 3 {
            name = $column["Metric Name"]
            value = $column["Metric Value"]
            gsub(/[",]/, "", value)
            if (value ~ /^[0-9.eE+-]+$/)
                text = text (text == "" ? "" : ",") "\"" name "\":" value
        }
        END { print "{" text "}" }' "$1"
}

# Replays a recorded kernel through CUDA: alone, then under ncu if it is installed.
replay_case() { # RECORDING
    local name status=0 text counters='null' ncu
    name="$(basename "$(dirname "$1")")/$(basename "$1" .rec)"
    has profile.jsonl "$name" && return
    text=$(limited 30 "$run" gpu_replay --recording "$1" 2>"$work/stderr") || status=$?
    if [[ $status -ne 0 ]]; then
        sed 's/^/    /' "$work/stderr" >&2
        text=null
    elif ncu=$(command -v ncu); then
        limited 30 "$ncu" --csv --target-processes all --metrics "$(profiled_metrics)" --launch-skip 1 \
            --launch-count 1 "$run" gpu_replay --recording "$1" --repeats 2 >"$work/counters.csv" 2>&1 &&
            counters=$(counters_of "$work/counters.csv")
    fi
    end_in_time
    record profile.jsonl "{\"case\":\"$name\",\"status\":$status,\"result\":$text,\"counters\":$counters}"
}

# A line for each kernel.
print_profile() {
    awk '
        function value(name, rest) {
            rest = $0
            if (!match(rest, "\"" name "\":[^,}]*"))
                return "-"
            rest = substr(rest, RSTART, RLENGTH)
            sub(/^"[^"]*":"?/, "", rest)
            sub(/"$/, "", rest)
            return rest
        }
        function share(x, most) { return x == "-" ? "-" : sprintf("%.2f", x / most) }
        BEGIN {
            printf "    %-46s %8s %5s %6s %6s %7s %5s %6s  %s\n", "kernel", "ms", "FFMA", "issued", "groups", "waves",
                "regs", "stack", "stalls of an issued instruction"
        }
        /"result":\{/ {
            stalls = ""
            rest = $0
            while (match(rest, /issue_stalled_[a-z_]*_per_issue_active.ratio":[0-9.eE+-]+/)) {
                split(substr(rest, RSTART + 14, RLENGTH - 14), one, "_per_issue_active.ratio\":")
                if (one[2] >= 0.1 && one[1] != "selected")
                    stalls = stalls sprintf(" %s %.2f", one[1], one[2])
                rest = substr(rest, RSTART + RLENGTH)
            }
            units = value("multiprocessors")
            printf "    %-46s %8.4f %5s %6s %6s %7.2f %5s %6s %s\n", value("case"), value("ms"),
                share(value("smsp__sass_thread_inst_executed_op_ffma_pred_on.sum.per_cycle_elapsed"), 128 * units),
                share(value("smsp__issue_active.avg.pct_of_peak_sustained_elapsed"), 100), value("resident"),
                value("waves"), value("registers"), value("stack_bytes"), stalls
        }' "$results/profile.jsonl"
}

# NVIDIA's profilers do not see OpenCL's kernels, so these are recorded and replayed through CUDA's driver.
stage_profile() {
    local tool path recording shape=(--shapes square-64) variants=(softmax:8 mgk:4 smgk:4 hard-fish:2x8 linear:8)
    [[ $rehearse -eq 0 ]] || shape=("${small_shape[@]}") variants=(softmax:2)
    for tool in ncu nsys cuobjdump ptxas rocprof rocprofv3 unitrace vtune; do
        path=$(command -v "$tool") || path=
        has profile.jsonl "tool $tool" || record profile.jsonl "{\"case\":\"tool $tool\",\"path\":\"$path\"}"
    done
    choose_caches "$work/cache"
    for tool in "${variants[@]}"; do
        record_case "${tool%%:*}-forward" "${shape[@]}" --variants "$tool"
    done
    for tool in "${variants[@]}"; do
        record_case "${tool%%:*}-backward" "${shape[@]}" --variants "$tool" --pass backward
    done
    if [[ -z $(find_driver libcuda.so.1) ]]; then
        say "no libcuda.so.1 beside the driver: kernels are recorded and not replayed"
        return
    fi
    for recording in "$work"/recordings/*/*.rec; do
        [[ $recording != *_peak.rec ]] || continue # of clmgk-bench
        replay_case "$recording"
    done
    print_profile
}

# ---- the command line ---------------------------------------------------------------------------------------

# In a process of its own, below `timeout`.
run_inside() { # STAGE
    deadline=$((limit - 5)) # leaves time for what programs print at their end
    failures=0
    "stage_$1"
    # A question that ends its process is answered by that. A question that was cut off is asked again.
    [[ $1 == facts ]] ||
        failures=$((failures + $(grep -v ' (cut off)"' "$results/$1.jsonl" | grep -c '"status":[1-9]' || true)))
    [[ $failures -eq 0 ]] || fail 1 "$1: $failures failed: $results has the details"
}

# Ctrl-C ends the stage's processes; recorded results stay.
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

# Runs a stage within the rest of the time for all stages.
run_short_stage() { # STAGE
    local most=${limit:-${short_limits[$1]}} left=$((short_limit - SECONDS))
    if [[ $left -ge 10 ]]; then
        run_stage "$1" $((most < left ? most : left))
    else
        say "$1: no time is left"
        without_time+=("$1")
    fi
}

# Prints what `short` has no results of: golden cases (many of them by their number), passes of the table, stages.
left_out() {
    local stage name words=() golden=() few=3
    for name in forward backward; do
        has table.jsonl "families $name" || words+=("rest of the table's $name pass,")
    done
    while read -r name _; do
        [[ $rehearse -eq 1 ]] || has golden.jsonl "$name" || golden+=("golden $name,")
    done <"$bundle/golden.txt"
    [[ ${#golden[@]} -le $few ]] || golden=("${#golden[@]} golden cases,")
    words+=("${golden[@]}")
    words+=("other numeric tests,")
    ! is_nvidia || words+=("other builds,")
    for stage in "${stages[@]}"; do
        [[ " ${short_stages[*]} " == *" $stage "* && " ${without_time[*]} " != *" $stage "* ]] || words+=("stage $stage,")
    done
    name=${words[*]}
    echo "${name%,}"
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
        short) short=short && chosen+=("${short_stages[@]}") ;;
        prepare) chosen+=("$1") ;;
        *)
            [[ " ${stages[*]} " == *" $1 "* ]] || fail 2 "'$1': expected a stage or an option (--help lists them)"
            chosen+=("$1")
            ;;
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

# Chooses the folder of the results, which belong to one bundle.
open_results() {
    local stage of
    mkdir -p "$results" || fail 4 "--output '$results': cannot make the folder"
    for stage in "${chosen[@]}"; do
        [[ $fresh -eq 0 ]] || case $stage in
        golden | numbers) rm -f "$results/$stage".* ;;
        matrix) rm -f "$results/matrix".* "$results/matrix-golden".* "$results/peers.jsonl" ;;
        builds) rm -rf "$results/builds.jsonl" "$results/programs" "$work/cache-builds" ;;
        table | bench) rm -f "$results/$stage.jsonl" "$results/products.jsonl" "$results/peers.jsonl" ;;
        *) rm -rf "$results/$stage.jsonl" "$work/cache-$stage" ;;
        esac
    done
    of=$(cat "$results/bundle" 2>/dev/null) || true
    [[ -z $of || $fresh -eq 1 || $of == "$(cat "$bundle/MANIFEST")" ]] ||
        fail 2 "--output '$results' has the results of another bundle: expected another folder, or --fresh"
    cp "$bundle/MANIFEST" "$results/bundle"
    driver_path=
}

# A folder for caches and logs of steps, which need not come back from the machine. Equal --output: the same folder.
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
    exec > >(tee -ia "$results/output.txt") 2> >(tee -ia "$results/output.txt" >&2)
    choose_drivers
    choose_libraries
    choose_device
    [[ -z $short ]] || export GPU_CHECK_SHORT=$short
    worst=0 without_time=()
    trap 'kill -TERM "${child:-0}" 2>/dev/null; wait; fail 1 "stopped: $results has what there is"' INT TERM HUP
    for stage in "${chosen[@]}"; do
        if [[ -n $short ]]; then
            run_short_stage "$stage"
        else
            run_stage "$stage" "${limit:-${limits[$stage]}}"
        fi
    done
    [[ -z $short ]] || say "short left out: $(left_out)"
    say "results in $results"
    return "$worst"
}

main "$@"
