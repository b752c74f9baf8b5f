#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The first minutes on a card: docs/gpu.md. `pack` makes a bundle on any machine; the copy of this script in it runs on the card,
# where there may be a driver, bash and coreutils, and nothing else.
set -euo pipefail

self=$(realpath "${BASH_SOURCE[0]}")
here=$(dirname "$self")
stages=(facts units golden numbers tensors table profiles bench peers)
declare -A limits=([facts]=60 [units]=300 [golden]=150 [numbers]=480 [tensors]=120 [table]=480 [profiles]=150 [bench]=480
    [peers]=240) # seconds
short_stages=(facts units golden numbers tensors table profiles)
declare -A short_limits=([facts]=45 [units]=75 [golden]=130 [numbers]=200 [tensors]=70 [table]=290 [profiles]=80)
# Libraries that come from the bundle even if the machine has its own: the loader must honour OCL_ICD_VENDORS.
own_libraries='^(libclmgk|libOpenCL|libclblast)\.so'
c_library='^(ld-linux.*|libc|libm|libdl|librt|libpthread|libresolv|libutil)\.so'

usage() {
    cat <<'TEXT'
usage: gpu-bundle.sh pack [--build DIR] [--package DIR] [--output DIR]
       gpu-bundle.sh run [--output DIR] [--device SEL] [--short | --rehearse] [STAGE...]

  pack      bundles a build with its tests (default: build) into build/gpu-bundle.tar.gz: unpack it on the machine with the
            card, and call gpu-bundle/gpu-bundle.sh run. --package: a folder with the Python package clmgk, as pip installs it,
            for the card's own torch and cffi
  run       runs the stages (all, or the named ones) and writes results.json into --output (default: gpu-results). A case
            that has a result is left out, so the same command goes on after Ctrl-C or a lost machine. --short: all stages but
            bench and peers, correctness first, in 15 minutes at most. --rehearse: few and small cases, on any device.
            --device: as of clmgk-info; default: $CLMGK_DEVICE, else gpu

  facts     clmgk-info --json and, but for --rehearse, --selftest: also the matrix unit that was found, used or refused, and why
  units     a few cases of clmgk-bench in bf16, and the same without matrix units
  golden    the golden cases, those of the softmax families and mixed heads also in bf16 and f16, those of the linear family also
            with the precision tf32, against the reference, with the engine of each and the reason
  numbers   the numeric tests that carry ctest's label gpu, on the device's own engine
  tensors   PyTorch's CUDA tensors (cuda_tensors.py), where python3 has torch and the bundle the package
  table     the table of what NVIDIA's cards should reach: bf16, 8,192 tokens; f32 with tf32; PyTorch's attention beside it, and the
            library's by CUDA where there is the package
  profiles  MGK forward and hard FiSH backward under NVIDIA's profiler, ncu, where the machine has it and the package
  bench     clmgk-bench --suite gpu, both passes, and products of matrices
  peers     PyTorch's attention, products and layer, where python3 has torch

Exit status: 0 done; 1 a check failed or a stage ran out of time; 2 bad usage; 3 no usable device; 4 another error.
TEXT
}

fail() { # STATUS WORDS...
    echo "gpu-bundle.sh: ${*:2}" >&2
    exit "$1"
}

say() {
    echo "gpu-bundle: $*" >&2
}

copy_libraries() { # FROM FOLDER : all but the C library that a program or library needs
    ldd "$1" | sed -nE 's|^\s*(\S+) => (/\S+) .*|\1 \2|p' | while read -r name path; do
        [[ $name =~ $c_library || -e $2/$name ]] || cp -L "$path" "$2/$name"
    done
}

# Prints "NAME ARGUMENT...", quoted for the shell, for each golden case, and again in 16-bit types; outputs go to $target.
list_golden() { # FOLDER
    python3 - "$1" <<'TEXT'
import json, pathlib, re, shlex, sys
for path in sorted(pathlib.Path(sys.argv[1]).glob("*/case.json")):
    case = json.loads(path.read_text())
    outputs = [f'{option} "$target/{name}"' for option, name in case["outputs"].items()]
    words = [path.parent.name, *map(shlex.quote, case["args"]), *outputs]
    print(*words)
    given = " ".join(case["args"])
    units = re.search(r"--variant (softmax|gaussian|s?mgk|(hard-)?(fish|mish|gfish)|talking-heads)( |$)", given)
    for dtype in ("bf16", "f16") if units and "--dtype" not in case["args"] else ():
        print(f"{words[0]}:{dtype}", *words[1:], "--dtype", dtype)
    if re.search(r"--variant (linear|s?mlk|l\w*(fish|mish))( |$)", given):
        print(f"{words[0]}:tf32", *words[1:], "--precision", "tf32")
TEXT
}

glibc_of() { # FILE... : the version that these need
    objdump -T "$@" | grep -o 'GLIBC_2\.[0-9]*' | sort -uV | tail -n 1 | sed 's/GLIBC_//'
}

pack() { # BUILD BUNDLE PACKAGE
    local root build=$1 bundle=$2 program file numeric clblast
    root=$(dirname "$here")
    [[ ! -e $bundle || -f $bundle/MANIFEST ]] || fail 2 "pack: --output '$bundle' is there and is no bundle"
    build=${build:-$root/build}
    numeric=$(ctest --test-dir "$build" -N -L '^gpu$' 2>/dev/null | sed -nE 's/.*: gpu_(test_\w+)$/\1/p') || true
    [[ -n $numeric ]] || fail 2 "pack: expected a build with tests in '$build' (cmake --preset gcc && cmake --build --preset gcc)"
    rm -rf "$bundle"
    mkdir -p "$bundle"/{bin,lib,golden}
    for program in clmgk-info clmgk-run clmgk-bench $numeric; do
        [[ -x $build/bin/$program ]] || fail 2 "pack: $build/bin lacks $program: expected a whole build"
        strip -o "$bundle/bin/$program" "$build/bin/$program"
        copy_libraries "$build/bin/$program" "$bundle/lib"
    done
    clblast=$(ldconfig -p | sed -nE 's|.*\slibclblast\.so\.1 .* => (\S+)$|\1|p' | head -n 1)
    if [[ -n $clblast ]]; then
        cp -L "$clblast" "$bundle/lib/libclblast.so.1"
        copy_libraries "$clblast" "$bundle/lib"
    fi
    cp -r "$root"/tests/golden/*/ "$bundle/golden/"
    list_golden "$root/tests/golden" >"$bundle/golden.txt"
    cp "$self" "$root/benchmarks/peers/gpu.py" "$root"/python/tests/{cuda_tensors,formulas}.py "$root/docs/gpu.md" "$root/LICENSE" "$bundle/"
    if [[ -n $3 ]]; then
        [[ -d $3/clmgk ]] || fail 2 "pack: --package '$3': expected a folder with clmgk"
        mkdir "$bundle/python"
        cp -r "$3/clmgk" "$bundle/python/"
    fi
    {
        echo "commit $(git -C "$root" describe --always --dirty 2>/dev/null || echo unknown)"
        echo "machine $(uname -m)"
        echo "glibc $(glibc_of "$bundle"/bin/*)"
        for file in "$bundle"/lib/*; do
            echo "glibc-$(basename "$file") $(glibc_of "$file")"
        done
        echo "numeric ${numeric//$'\n'/ }"
    } >"$bundle/MANIFEST"
    tar -C "$(dirname "$bundle")" -czf "$bundle.tar.gz" "$(basename "$bundle")"
    say "$(du -h "$bundle.tar.gz" | cut -f 1) in $bundle.tar.gz"
}

manifest() { # KEY
    sed -n "s/^$1 //p" "$bundle/MANIFEST"
}

# Drivers: those of the system, and NVIDIA's or AMD's where a container has the library alone.
choose_drivers() {
    local name folder given=${LD_LIBRARY_PATH:-}
    [[ -z ${OCL_ICD_VENDORS:-} ]] || return 0
    mkdir -p "$work/icd"
    cp /etc/OpenCL/vendors/*.icd "$work/icd/" 2>/dev/null || true
    for name in libnvidia-opencl.so.1 libamdocl64.so; do
        for folder in ${given//:/ } /usr/local/nvidia/lib64 /usr/local/cuda/compat /usr/lib/x86_64-linux-gnu /usr/lib64 \
            /usr/lib/wsl/lib /opt/rocm/lib; do
            [[ -e $folder/$name ]] || continue
            grep -qsF "${name%%.*}" "$work"/icd/*.icd || echo "$folder/$name" >"$work/icd/$name.icd"
            libraries+=:$folder
            break
        done
    done
    [[ -n $(ls "$work/icd") ]] ||
        fail 3 "no OpenCL driver: expected /etc/OpenCL/vendors/*.icd or libnvidia-opencl.so.1 (a container must be given it)"
    export OCL_ICD_VENDORS=$work/icd
}

expect_glibc() { # WHAT KEY
    local here_libc needed
    here_libc=$(getconf GNU_LIBC_VERSION | cut -d ' ' -f 2) needed=$(manifest "$2")
    [[ $(printf '%s\n' "$here_libc" "$needed" | sort -V | head -n 1) == "$needed" ]] ||
        fail 2 "this machine has glibc $here_libc, $1 needs $needed: pack on an older system"
}

# Prefers the machine's libraries, of which a driver may need newer versions, but for its own.
choose_libraries() {
    local file name missing
    [[ $(uname -m) == "$(manifest machine)" ]] || fail 2 "the bundle is for $(manifest machine), this machine is $(uname -m)"
    expect_glibc "the bundle" glibc
    mkdir -p "$work"/{lib,cache}
    missing=$(ldd "$bundle"/bin/* "$bundle"/lib/libclblast* 2>/dev/null) || true
    for file in "$bundle"/lib/*; do
        name=$(basename "$file")
        [[ $name =~ $own_libraries || $missing == *"$name => not found"* ]] || continue
        expect_glibc "$name, which it lacks," "glibc-$name"
        ln -sf "$file" "$work/lib/$name"
    done
    export LD_LIBRARY_PATH=$work/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}$libraries
}

# Runs a command for at most so many seconds of the stage's time.
limited() { # SECONDS COMMAND...
    local left=$((deadline - SECONDS)) most=$1
    shift
    [[ $left -gt 0 ]] || return 124
    timeout --foreground -k 10 $((left < most ? left : most)) "$@"
}

# The engine of a program's JSON, and why it was chosen.
engine_of() { # LOG
    sed -nE 's/^  ("engine(_reason)?": .*),$/,\1/p' "$1" | tr -d '\n'
}

# Runs a case, whose status becomes a line. One that the stage's end cuts off has no result, and runs again. What failed cases
# print: STAGE.log.
run_case() { # STAGE CASE SECONDS COMMAND...
    local status=0 start=$SECONDS log
    log=$(mktemp "$work/log-XXXXXX")
    limited "${@:3}" >"$log" 2>&1 || status=$?
    if [[ $status -eq 0 || $SECONDS -lt $deadline ]]; then
        if [[ $status -ne 0 ]]; then
            { echo "==== $2, status $status" && cat "$log"; } >>"$results/$1.log"
            say "$2: FAILED, status $status"
        fi
        echo "{\"case\":\"$2\",\"status\":$status,\"seconds\":$((SECONDS - start))$(engine_of "$log")}" >>"$results/$1.jsonl"
        sync "$results/$1.jsonl"
    fi
}

begin_case() { # as run_case: in the background, at most $jobs at a time, if it has no result
    ! grep -qsF "{\"case\":\"$2\"," "$results/$1.jsonl" || return 0
    while [[ $(jobs -rp | wc -l) -ge $jobs ]]; do
        wait -n || true
    done
    run_case "$@" &
}

# A program's JSON as a file, also where the time is over: then it has the results so far, and the next run makes it again.
write_json() { # FILE SECONDS COMMAND...
    [[ ! -s $results/$1 || -e $results/$1.partial ]] || return 0
    touch "$results/$1.partial"
    ! limited "${@:2}" >"$work/$1" 2>"$results/$1.log" || rm "$results/$1.partial"
    [[ ! -e $results/$1.partial ]] || { say "$1: FAILED, $results/$1.log says why" && failed=1; }
    [[ ! -s $work/$1 ]] || mv "$work/$1" "$results/$1"
}

# Everything in one object, for benchmarks/table.py --cases.
write_results() {
    local name
    {
        echo "{\"commit\":\"$(manifest commit)\",\"date\":\"$(date -u +%F)\""
        for name in facts selftest units without-units table-{64,128,causal-64,causal-128,variants-64,variants-128,mgk,tf32} bench \
            products-bf16 products-f32; do
            [[ ! -s $results/$name.json ]] || echo ",\"$name\":$(cat "$results/$name.json")"
        done
        for name in golden numbers tensors peers; do
            [[ ! -s $results/$name.jsonl ]] || echo ",\"$name\":[$(paste -sd , "$results/$name.jsonl")]"
        done
        echo "}"
    } >"$results/results.json"
}

stage_facts() {
    write_json facts.json 60 clmgk-info --json
    [[ $rehearse -eq 1 ]] || write_json selftest.json 60 clmgk-info --selftest --json
}

stage_units() {
    local cases=(--variants "softmax,mgk,smgk,hard-fish" --heads 8 --length 4096 --head-size 64 --dtype bf16 --pass both --seconds 0.2)
    [[ $rehearse -eq 0 ]] || cases=(--variants softmax --heads 2 --length 64 --head-size 32 --dtype bf16 --seconds 0.1)
    write_json units.json 150 clmgk-bench "${cases[@]}" --keep-caches --json
    CLMGK_UNIT=none write_json without-units.json 150 clmgk-bench "${cases[@]}" --keep-caches --json
}

stage_golden() {
    local name arguments every=1 words target
    [[ $rehearse -eq 0 ]] || every=60
    while read -r name arguments; do
        target=$(mktemp -d "$work/golden-XXXXXX")
        export target # the arguments name it
        eval "words=($arguments)"
        begin_case golden "$name" 120 env -C "$bundle/golden/${name%:*}" clmgk-run "${words[@]}" --check --json
    done < <(awk "NR % $every == 0" "$bundle/golden.txt")
    wait
}

stage_numbers() {
    local name tests
    read -ra tests < <(manifest numeric)
    [[ $rehearse -eq 0 ]] || tests=(test_combine)
    for name in "${tests[@]}"; do
        CLMGK_TEST_ENGINE=own begin_case numbers "$name" 400 "$name"
    done
    wait
}

stage_bench() {
    local cases=(--suite gpu --pass both) product=4096x4096x4096 dtype
    [[ $rehearse -eq 0 ]] || cases=(--heads 2 --length 64 --head-size 32 --variants softmax --seconds 0.1) product=40x72x64
    write_json bench.json 480 clmgk-bench "${cases[@]}" --keep-caches --json
    for dtype in bf16 f32; do
        write_json "products-$dtype.json" 120 clmgk-bench --gemm "$product" --dtype "$dtype" --seconds 0.3 --json
    done
}

# Whether python3 has these modules.
has_modules() {
    python3 -c "import $1" 2>/dev/null || { say "no python3 with $1: no ${FUNCNAME[1]#stage_}" && return 1; }
}

stage_tensors() {
    local device=cuda
    has_modules torch,clmgk.torch || return 0
    [[ $rehearse -eq 0 ]] || device=cpu
    limited 120 python3 -B "$bundle/cuda_tensors.py" --device "$device" --output "$results/tensors.jsonl" >"$results/tensors.log" 2>&1 ||
        failed=1
}

bench_of() { # FILE SECONDS DTYPES PASS WORDS... : of the table
    write_json "$1.json" "$2" clmgk-bench --dtype "$3" --pass "$4" --seconds "$each" "${@:5}" --json
}

# Programs of the first line come from no cache: it has the time of a first plan.
stage_table() {
    local size softmax=softmax:16 variants=softmax:8,mgk:4,smgk:4,hard-fish:2x8,hard-mish:2x8 length=8192 short=4096 each=0.3 options=()
    [[ $rehearse -eq 0 ]] || softmax=softmax:2 variants=softmax:2 length=64 short=64 each=0.05 options=(--rehearse)
    bench_of table-128 90 bf16 both --variants "$softmax" --length "$length" --head-size 128
    ! has_modules torch || limited 60 python3 -B "$bundle/gpu.py" "${options[@]}" --table --seconds 0.2 --output "$results/peers.jsonl" || failed=1
    for size in 64 128; do
        bench_of "table-variants-$size" 90 bf16 both --variants "$variants" --length "$length" --head-size "$size" --keep-caches
    done
    bench_of table-mgk 40 f32,bf16 forward --variants "${variants%%,*},mgk:4" --length "$short" --head-size 64 --keep-caches
    bench_of table-tf32 40 f32 both --variants "${variants%%,*}" --length "$short" --head-size 64 --precision tf32 --keep-caches
    bench_of table-64 60 bf16 both --variants "$softmax" --length "$length" --head-size 64 --keep-caches
    for size in 64 128; do
        bench_of "table-causal-$size" 60 bf16 both --variants "$softmax" --length "$length" --head-size "$size" --causal --keep-caches
    done
}

# The profiler sees kernels that CUDA's driver launches.
stage_profiles() {
    local profiler name
    profiler=$(PATH=$PATH:/usr/local/cuda/bin:/opt/nvidia/nsight-compute type -P ncu) || { say "no ncu: no profiles" && return 0; }
    has_modules torch,clmgk.torch || return 0
    for name in mgk-forward hard-fish-backward; do
        [[ ! -s $results/profile-$name.csv ]] || continue
        limited 75 "$profiler" --csv --page source --section SourceCounters --section WarpStateStats --kernel-name 'regex:(mix|admix)ture_.*ward' \
            python3 -B "$bundle/gpu.py" --profile "$name" >"$work/profile" 2>"$results/profiles.log" || { failed=1 && continue; }
        mv "$work/profile" "$results/profile-$name.csv"
    done
}

stage_peers() {
    local options=()
    python3 -c 'import torch' 2>/dev/null || { say "no python3 with torch: no peers" && return; }
    [[ $rehearse -eq 0 ]] || options=(--rehearse)
    limited 240 python3 -B "$bundle/gpu.py" "${options[@]}" --output "$results/peers.jsonl" || failed=1
}

run() { # STAGE...
    local stage answer found
    bundle=$here work='' failed=0 jobs=$(($(nproc) < 16 ? $(nproc) : 16)) libraries=''
    [[ -f $bundle/MANIFEST ]] || fail 2 "run: there is no bundle in $bundle: pack makes one, with a copy of this script"
    results=$(realpath -m "${output:-gpu-results}")
    mkdir -p "$results" 2>/dev/null || fail 4 "--output '$results': cannot make the folder"
    cmp -s "$bundle/MANIFEST" "$results/MANIFEST" || [[ ! -e $results/MANIFEST ]] ||
        fail 2 "--output '$results' has the results of another bundle: expected another folder"
    cp "$bundle/MANIFEST" "$results/"
    work=$(mktemp -d)
    trap 'trap - EXIT; kill $(jobs -p) 2>/dev/null || true; write_results; rm -rf "$work"' EXIT
    trap 'exit 1' INT TERM HUP
    choose_drivers
    choose_libraries
    [[ ! -d $bundle/python ]] || export PYTHONPATH=$bundle/python${PYTHONPATH:+:$PYTHONPATH}
    export PATH=$bundle/bin:$PATH CLMGK_CACHE_DIR=$work/cache CUDA_CACHE_PATH=$work/cache CUDA_CACHE_MAXSIZE=4294967296
    [[ $rehearse -eq 1 || -n ${CLMGK_DEVICE:-} ]] || export CLMGK_DEVICE=gpu
    answer=$(clmgk-info ${CLMGK_DEVICE:+--device "$CLMGK_DEVICE"} 2>&1) || fail 3 "no device answers: $answer"
    found=$(clmgk-info ${CLMGK_DEVICE:+--device "$CLMGK_DEVICE"} 2>/dev/null | grep -E "engine .* matrix units|matrix units refused" | tr -s ' ') || true
    [[ -z $found ]] || say "$found"
    for stage in "$@"; do
        say "$stage (at most ${limits[$stage]} s)"
        deadline=$((SECONDS + ${limits[$stage]}))
        "stage_$stage"
        [[ $SECONDS -lt $deadline ]] || { say "$stage: out of time; the same command goes on" && failed=1; }
        ! grep -qs '"status":[1-9]' "$results/$stage.jsonl" || failed=1
        write_results
    done
    say "results in $results/results.json"
    return "$failed"
}

main() {
    local command=${1:-} build='' package='' chosen=() stage
    [[ $command != --help ]] || { usage && exit 0; }
    [[ $command =~ ^(pack|run)$ ]] || fail 2 "'$command': expected pack or run (--help says more)"
    shift
    output='' rehearse=0 short=0
    while [[ $# -gt 0 ]]; do
        [[ $1 != --*=* ]] || set -- "${1%%=*}" "${1#*=}" "${@:2}"
        case $1 in
        --help) usage && exit 0 ;;
        --rehearse) rehearse=1 ;;
        --short) short=1 ;;
        --build | --package | --output | --device)
            [[ $# -gt 1 && -n $2 ]] || fail 2 "$1: expected a value"
            [[ $1 != --build ]] || build=$2
            [[ $1 != --package ]] || package=$2
            [[ $1 != --output ]] || output=$2
            [[ $1 != --device ]] || export CLMGK_DEVICE=$2
            shift
            ;;
        *)
            [[ $command == run && " ${stages[*]} " == *" $1 "* ]] || fail 2 "'$1': expected a stage or an option (--help lists them)"
            chosen+=("$1")
            ;;
        esac
        shift
    done
    [[ $command != run || -z $build$package ]] || fail 2 "--build and --package are of pack alone"
    [[ $command != pack || $short$rehearse == 00 ]] || fail 2 "--short and --rehearse are of run alone"
    if [[ $command == pack ]]; then
        pack "$build" "$(realpath -m "${output:-$(dirname "$here")/build/gpu-bundle}")" "$package"
        return
    fi
    if [[ $short -eq 1 ]]; then
        stages=("${short_stages[@]}")
        for stage in "${stages[@]}"; do limits[$stage]=${short_limits[$stage]}; done
    fi
    [[ ${#chosen[@]} -gt 0 ]] || chosen=("${stages[@]}")
    run "${chosen[@]}"
}

main "$@"
