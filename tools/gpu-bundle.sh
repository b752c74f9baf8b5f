#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The first minutes on a card: docs/gpu.md. `pack` makes a bundle on any machine; the copy of this script in it runs on the card,
# where there may be a driver, bash and coreutils, and nothing else.
set -euo pipefail

self=$(realpath "${BASH_SOURCE[0]}")
here=$(dirname "$self")
short=(facts units golden numbers tensors table profiles)
stages=("${short[@]}" bench peers)
declare -A limits=([facts]=90 [units]=150 [golden]=260 [numbers]=420 [tensors]=140 [table]=580 [profiles]=160 [bench]=480
    [peers]=240) # seconds; --short: half
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
  run       runs stages (default: all) and writes results.json into --output (default: gpu-results). A case that has a result is
            left out, so the same command goes on after Ctrl-C or a lost machine. --short: all stages but bench and peers, in 15
            minutes at most. --rehearse: few and small cases, on any device. --device: as of clmgk-info; default:
            $CLMGK_DEVICE, else gpu

Stages (docs/gpu.md, which is in the bundle, describes them): facts units golden numbers tensors table profiles bench peers
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

pack() {
    local root build bundle program numeric clblast name path
    root=$(dirname "$here")
    build=${given[build]:-$root/build} bundle=$(realpath -m "${given[output]:-$root/build/gpu-bundle}")
    [[ ! -e $bundle || -f $bundle/MANIFEST ]] || fail 2 "pack: --output '$bundle' is there and is no bundle"
    numeric=$(ctest --test-dir "$build" -N -L '^gpu$' 2>/dev/null | sed -nE 's/.*: gpu_(test_\w+)$/\1/p') || true
    [[ -n $numeric ]] || fail 2 "pack: expected a build with tests in '$build' (cmake --preset gcc && cmake --build --preset gcc)"
    rm -rf "$bundle"
    mkdir -p "$bundle"/{bin,lib,golden,python}
    for program in clmgk-info clmgk-run clmgk-bench $numeric; do
        [[ -x $build/bin/$program ]] || fail 2 "pack: $build/bin lacks $program: expected a whole build"
        strip -o "$bundle/bin/$program" "$build/bin/$program"
    done
    clblast=$(ldconfig -p | sed -nE 's|.*\slibclblast\.so\.1 .* => (\S+)$|\1|p' | head -n 1)
    [[ -z $clblast ]] || cp -L "$clblast" "$bundle/lib/libclblast.so.1"
    ldd "$bundle"/bin/* ${clblast:+"$clblast"} | sed -nE 's|^\s*(\S+) => (/\S+) .*|\1 \2|p' | sort -u | while read -r name path; do
        [[ $name =~ $c_library || -e $bundle/lib/$name ]] || cp -L "$path" "$bundle/lib/$name"
    done
    cp -r "$root"/tests/golden/*/ "$bundle/golden/"
    cp "$self" "$root/benchmarks/peers/gpu.py" "$root"/python/tests/{cuda_tensors,formulas}.py "$root/docs/gpu.md" "$root/LICENSE" "$bundle/"
    [[ -z ${given[package]:-} ]] || cp -r "${given[package]}/clmgk" "$bundle/python/" || fail 2 "pack: --package: expected a folder with clmgk"
    echo "commit $(git -C "$root" describe --always --dirty 2>/dev/null || echo unknown)" >"$bundle/MANIFEST"
    echo "numeric ${numeric//$'\n'/ }" >>"$bundle/MANIFEST"
    tar -C "$(dirname "$bundle")" -czf "$bundle.tar.gz" "$(basename "$bundle")"
    say "$(du -h "$bundle.tar.gz" | cut -f 1) in $bundle.tar.gz"
}

# Drivers are those of the system, and NVIDIA's or AMD's where a container has the library alone. Libraries are the machine's, of which a
# driver may need newer versions, but for what it lacks and for the bundle's own.
choose_libraries() {
    local file name folder missing found='' given_path=${LD_LIBRARY_PATH:-}
    mkdir -p "$work"/{icd,lib,cache}
    cp /etc/OpenCL/vendors/*.icd "$work/icd/" 2>/dev/null || true
    for name in libnvidia-opencl.so.1 libamdocl64.so; do
        for folder in ${given_path//:/ } /usr/local/nvidia/lib64 /usr/local/cuda/compat /usr/lib/x86_64-linux-gnu /usr/lib64 \
            /usr/lib/wsl/lib /opt/rocm/lib; do
            [[ -e $folder/$name ]] || continue
            grep -qsF "${name%%.*}" "$work"/icd/*.icd || echo "$folder/$name" >"$work/icd/$name.icd"
            found+=:$folder
            break
        done
    done
    [[ -n ${OCL_ICD_VENDORS:-} || -n $(ls "$work/icd") ]] ||
        fail 3 "no OpenCL driver: expected /etc/OpenCL/vendors/*.icd or libnvidia-opencl.so.1 (a container must be given it)"
    missing=$(ldd "$bundle"/bin/* "$bundle"/lib/libclblast* 2>/dev/null) || true
    for file in "$bundle"/lib/*; do
        name=$(basename "$file")
        [[ ! $name =~ $own_libraries && $missing != *"$name => not found"* ]] || ln -sf "$file" "$work/lib/$name"
    done
    export OCL_ICD_VENDORS=${OCL_ICD_VENDORS:-$work/icd} LD_LIBRARY_PATH=$work/lib:$given_path$found
}

# Runs a command for at most so many seconds of the stage's time.
limited() { # SECONDS COMMAND...
    local left=$((deadline - SECONDS))
    [[ $left -gt 0 ]] || return 124
    timeout --foreground -k 10 $((left < $1 ? left : $1)) "${@:2}"
}

# Runs a case in the background, at most $jobs at a time, unless it has a result: a line with its status. A case that the stage's end
# cuts off has none, and runs again. What failed cases print: STAGE.log.
run_case() { # STAGE CASE SECONDS COMMAND...
    ! grep -qsF "{\"case\":\"$2\"," "$results/$1.jsonl" || return 0
    [[ $(jobs -rp | wc -l) -lt $jobs ]] || wait -n || true
    (
        status=0 start=$SECONDS log=$(mktemp "$work/log-XXXXXX")
        limited "${@:3}" >"$log" 2>&1 || status=$?
        [[ $status -eq 0 || $SECONDS -lt $deadline ]] || exit 0
        if [[ $status -ne 0 ]]; then
            { echo "==== $2, status $status" && cat "$log"; } >>"$results/$1.log"
            say "$2: FAILED, status $status"
        fi
        engine=$(sed -nE 's/^  ("engine(_reason)?": .*),$/,\1/p' "$log" | tr -d '\n')
        echo "{\"case\":\"$2\",\"status\":$status,\"seconds\":$((SECONDS - start))$engine}" >>"$results/$1.jsonl"
        sync "$results/$1.jsonl"
    ) &
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
    local file
    {
        echo "{\"commit\":\"$commit\",\"date\":\"$(date -u +%F)\""
        for file in "$results"/*.json; do
            [[ ! -s $file || $file == */results.json ]] || echo ",\"$(basename "$file" .json)\":$(cat "$file")"
        done
        for file in "$results"/*.jsonl; do
            [[ ! -s $file ]] || echo ",\"$(basename "$file" .jsonl)\":[$(paste -sd , "$file")]"
        done
        echo "}"
    } >"$work/results" && mv "$work/results" "$results/results.json"
}

# Results of clmgk-bench. A rehearsal has a small case in their place.
bench() { # NAME SECONDS ARGUMENT...
    local words=("${@:3}")
    [[ $rehearse -eq 0 ]] || words=(--variants softmax:2 --length 64 --head-size 32 --seconds 0.05)
    write_json "$1.json" "$2" clmgk-bench "${words[@]}" --json
}

stage_facts() {
    write_json facts.json 60 clmgk-info --json
    [[ $rehearse -eq 1 ]] || write_json selftest.json 60 clmgk-info --selftest --json
}

stage_units() {
    local cases=(--variants "softmax,mgk,smgk,hard-fish" --length 4096 --head-size 64 --dtype bf16 --pass both --seconds 0.2)
    bench units 75 "${cases[@]}" --keep-caches
    CLMGK_UNIT=none bench without-units 75 "${cases[@]}" --keep-caches
}

# A case, and again in the types that matrix units may serve.
stage_golden() {
    local folder file target words given again more count=0 every=1
    [[ $rehearse -eq 0 ]] || every=60
    for folder in "$bundle"/golden/*/; do
        [[ $((count++ % every)) -eq 0 ]] || continue
        file=$folder/case.json again=('')
        target=$(mktemp -d "$work/golden-XXXXXX")
        mapfile -t words < <(sed -nE '/"args"/,/\]/s/^  "(.*)",?$/\1/p' "$file" &&
            sed -nE "/\"outputs\"/,/\}/s|^  \"(.*)\": \"(.*)\",?$|\1\n$target/\2|p" "$file")
        given=" ${words[*]} "
        [[ ! $given =~ \ (softmax|gaussian|s?mgk|(hard-)?(fish|mish|gfish)|talking-heads)\  || $given == *" --dtype "* ]] ||
            again+=("--dtype bf16" "--dtype f16")
        [[ ! $given =~ \ (linear|s?mlk|l[a-z-]*(fish|mish))\  ]] || again+=("--precision tf32")
        for more in "${again[@]}"; do
            # shellcheck disable=SC2086 # two words
            run_case golden "$(basename "$folder")${more:+:${more#* }}" 120 env -C "$folder" clmgk-run "${words[@]}" $more --check --json
        done
    done
    wait
}

stage_numbers() {
    local name
    for name in $numeric; do
        [[ $rehearse -eq 1 && $name != test_combine ]] || CLMGK_TEST_ENGINE=own run_case numbers "$name" 400 "$name"
    done
    wait
}

# Whether python3 has these modules.
has_modules() {
    python3 -c "import $1" 2>/dev/null || { say "no python3 with $1: no ${FUNCNAME[1]#stage_}" && return 1; }
}

peers() { # NAME SECONDS ARGUMENT... : PyTorch's figures
    ! has_modules torch || limited "$2" python3 -B "$bundle/gpu.py" ${given[rehearse]:+--rehearse} "${@:3}" --output "$results/$1.jsonl" || failed=1
}

stage_tensors() {
    ! has_modules torch,clmgk.torch || limited 120 python3 -B "$bundle/cuda_tensors.py" ${given[rehearse]:+--device cpu} \
        --output "$results/tensors.jsonl" >"$results/tensors.log" 2>&1 || failed=1
}

# Programs of the first line come from no cache: it has the time of a first plan.
stage_table() {
    local size common=(--dtype bf16 --pass both --seconds 0.3 --length 8192)
    bench table-128 90 --variants softmax:16 "${common[@]}" --head-size 128
    peers peers 60 --table --seconds 0.2
    CLMGK_CUDA_PARAMETERS=unit=2,warps=8 peers turns 30 --table --own --seconds 0.2
    common+=(--keep-caches)
    for size in 64 128; do
        bench "table-variants-$size" 90 --variants softmax:8,mgk:4,smgk:4,hard-fish:2x8,hard-mish:2x8 "${common[@]}" --head-size "$size"
        bench "table-causal-$size" 60 --variants softmax:16 "${common[@]}" --head-size "$size" --causal
    done
    bench table-64 60 --variants softmax:16 "${common[@]}" --head-size 64
    bench table-mgk 40 --variants softmax:8,mgk:4 --dtype f32,bf16 --length 4096 --head-size 64 --seconds 0.3 --keep-caches
    bench table-tf32 40 --variants softmax:8 --length 4096 --head-size 64 --pass both --precision tf32 --seconds 0.3 --keep-caches
}

# The profiler sees kernels that CUDA's driver launches.
stage_profiles() {
    local profiler name
    profiler=$(PATH=$PATH:/usr/local/cuda/bin:/opt/nvidia/nsight-compute type -P ncu) || { say "no ncu: no profiles" && return 0; }
    has_modules torch,clmgk.torch || return 0
    for name in mgk-forward hard-fish-backward; do
        [[ -s $results/profile-$name.csv ]] ||
            limited 75 "$profiler" --csv --page source --section SourceCounters --section WarpStateStats --kernel-name 'regex:(mix|admix)ture_.*ward' \
                python3 -B "$bundle/gpu.py" --profile "$name" >"$work/profile" 2>"$results/profiles.log" &&
            mv "$work/profile" "$results/profile-$name.csv" || failed=1
    done
}

stage_bench() {
    bench bench 480 --suite gpu --pass both --keep-caches
    bench products-bf16 120 --gemm 4096x4096x4096 --dtype bf16 --seconds 0.3
    bench products-f32 120 --gemm 4096x4096x4096 --dtype f32 --seconds 0.3
}

stage_peers() {
    peers peers 240
}

run() { # STAGE...
    local stage limit answer
    bundle=$here failed=0 jobs=$(($(nproc) < 16 ? $(nproc) : 16)) rehearse=${given[rehearse]:-0}
    [[ -f $bundle/MANIFEST ]] || fail 2 "run: there is no bundle in $bundle: pack makes one, with a copy of this script"
    results=$(realpath -m "${given[output]:-gpu-results}")
    mkdir -p "$results" 2>/dev/null || fail 4 "--output '$results': cannot make the folder"
    [[ -e $results/MANIFEST ]] || cp "$bundle/MANIFEST" "$results/"
    cmp -s "$bundle/MANIFEST" "$results/MANIFEST" || fail 2 "--output '$results' has the results of another bundle: expected another folder"
    { read -r _ commit && read -r _ numeric; } <"$bundle/MANIFEST"
    work=$(mktemp -d)
    trap 'trap - EXIT; kill $(jobs -p) 2>/dev/null || true; write_results; rm -rf "$work"' EXIT
    trap 'exit 1' INT TERM HUP
    choose_libraries
    export PYTHONPATH=$bundle/python${PYTHONPATH:+:$PYTHONPATH}
    export PATH=$bundle/bin:$PATH CLMGK_CACHE_DIR=$work/cache CUDA_CACHE_PATH=$work/cache CUDA_CACHE_MAXSIZE=4294967296
    export CLMGK_DEVICE=${given[device]:-${CLMGK_DEVICE:-gpu}}
    answer=$(clmgk-info --device "$CLMGK_DEVICE" 2>&1) || fail 3 "no device answers: $answer"
    for stage in "$@"; do
        limit=$((limits[$stage] / (1 + ${given[short]:-0})))
        say "$stage (at most $limit s)"
        deadline=$((SECONDS + limit))
        "stage_$stage"
        [[ $SECONDS -lt $deadline ]] || { say "$stage: out of time; the same command goes on" && failed=1; }
        ! grep -qs '"status":[1-9]' "$results/$stage.jsonl" || failed=1
        write_results
    done
    say "results in $results/results.json"
    return "$failed"
}

declare -A given=()
chosen=()
[[ " $* " != *" --help "* ]] || { usage && exit 0; }
command=${1:-}
[[ $command =~ ^(pack|run)$ ]] || fail 2 "'$command': expected pack or run (--help says more)"
shift
while [[ $# -gt 0 ]]; do
    [[ $1 != --*=* ]] || set -- "${1%%=*}" "${1#*=}" "${@:2}"
    case $command:$1 in
    run:--short | run:--rehearse) given[${1#--}]=1 ;;
    pack:--build | pack:--package | *:--output | run:--device)
        [[ -n ${2:-} ]] || fail 2 "$1: expected a value"
        given[${1#--}]=$2
        shift
        ;;
    *)
        [[ $command == run && " ${stages[*]} " == *" $1 "* ]] || fail 2 "'$1': expected a stage or an option (--help lists them)"
        chosen+=("$1")
        ;;
    esac
    shift
done
[[ ${#chosen[@]} -gt 0 || ! -v given[short] ]] || chosen=("${short[@]}")
"$command" "${chosen[@]:-${stages[@]}}"
