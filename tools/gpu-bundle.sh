#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes the bundle that gpu-check.sh runs from. `gpu-check.sh prepare` sources this file, which needs a checkout.
# shellcheck disable=SC2154 # gpu-check.sh sets the names of programs and libraries

# Prints NAME PATH of each library that a program needs.
needed_by() {
    ldd "$1" | sed -nE 's|^\s*(\S+) => (/\S+) .*|\1 \2|p; s|^\s*(/\S*/)(ld-linux\S+) .*|\2 \1\2|p'
}

# Copies the Python package and its checks of CUDA tensors, if the Python tests have built its module.
bundle_python() { # BUNDLE BUILD ROOT
    local module
    module=$(find "$2/python" -name '_native.abi3.so' 2>/dev/null | head -n 1) || true # there may be no such folder
    if [[ -z $module ]]; then
        say "no Python package in $2/python, which python/test.sh builds: the stage tensors will have nothing to run"
        return
    fi
    mkdir "$1/python"
    (cd "$3/python" && find clmgk -name '*.py' -exec cp --parents -t "$1/python" {} +)
    strip -o "$1/python/clmgk/_native.abi3.so" "$module"
    cp "$3"/python/tests/{cuda_tensors,formulas}.py "$1/python/"
}

copy_library() { # BUNDLE NAME PATH
    local folder=lib
    [[ $2 =~ $c_library ]] && folder=libc
    [[ -e $1/$folder/$2 ]] || cp -L "$3" "$1/$folder/$2"
}

bundle_libraries() { # BUNDLE BUILD
    local clblast program name path
    clblast=$(ldconfig -p | sed -nE 's|.*\slibclblast\.so\.1 .* => (\S+)$|\1|p' | head -n 1)
    [[ -z $clblast ]] || copy_library "$1" libclblast.so.1 "$clblast"
    for program in "${programs[@]/#/$2/bin/}" $clblast; do
        while read -r name path; do
            copy_library "$1" "$name" "$path"
        done < <(needed_by "$program")
    done
}

# Prints "NAME ARGUMENT...", quoted for the shell, for each golden case; outputs go to ./.
list_golden() { # FOLDER
    python3 - "$1" <<'TEXT'
import json, pathlib, shlex, sys
for path in sorted(pathlib.Path(sys.argv[1]).glob("*/case.json")):
    case = json.loads(path.read_text())
    outputs = [word for option, name in case["outputs"].items() for word in (option, "$target/" + name)]
    print(path.parent.name, *map(shlex.quote, case["args"]), *(f'"{word}"' for word in outputs))
TEXT
}

newest_glibc() { # FILE... : the newest version of the C library that these files require
    objdump -T "$@" | grep -o 'GLIBC_2\.[0-9]*' | sort -uV | tail -n 1 | sed 's/GLIBC_//'
}

prepare() {
    local root build=$1 bundle=$2
    root=$(dirname "$here")
    if [[ -z $build ]]; then
        build=$root/build
        if ! (cd "$root" && cmake --preset gcc && cmake --build --preset gcc) >&2; then
            fail 4 "prepare: the build failed"
        fi
    fi
    build=$(realpath "$build")
    local program missing=()
    for program in "${programs[@]}"; do
        [[ -x $build/bin/$program ]] || missing+=("$program")
    done
    [[ -f $build/lib/record_layer.so ]] || missing+=(../lib/record_layer.so)
    [[ ${#missing[@]} -eq 0 ]] || fail 2 "prepare: $build/bin lacks ${missing[*]}: expected a whole build with tests"
    [[ ! -e $bundle || -f $bundle/MANIFEST ]] || fail 2 "prepare: --output '$bundle' is there and is no bundle"
    rm -rf "$bundle"
    mkdir -p "$bundle"/{bin,lib,libc,golden}
    say "copying programs, libraries and golden cases to $bundle"
    for program in "${programs[@]}"; do
        strip -o "$bundle/bin/$program" "$build/bin/$program"
    done
    bundle_libraries "$bundle" "$build"
    bundle_python "$bundle" "$build" "$root"
    strip -o "$bundle/lib/record_layer.so" "$build/lib/record_layer.so"
    cp -r "$root"/tests/golden/*/ "$bundle/golden/"
    list_golden "$root/tests/golden" >"$bundle/golden.txt"
    "$build/bin/offline_plans" | grep -E '^(simt|simt-nvidia|matrix-nvidia) ' | awk '!seen[$1, $3, substr($0, index($0, $4))]++' \
        >"$bundle/configurations.txt"
    cp "$self" "$root/tools/gpu-tables.sh" "$root/benchmarks/peers/gpu.py" "$root/docs/gpu.md" "$root/LICENSE" "$bundle/"
    {
        echo "commit $(git -C "$root" describe --always --dirty 2>/dev/null || echo unknown)"
        echo "machine $(uname -m)"
        echo "glibc $(newest_glibc "$bundle"/bin/* "$bundle"/lib/libclmgk* "$bundle"/lib/libOpenCL*)"
    } >"$bundle/MANIFEST"
    tar -C "$(dirname "$bundle")" -czf "$bundle.tar.gz" "$(basename "$bundle")"
    say "$(du -sh --apparent-size "$bundle" | cut -f 1) in $bundle," \
        "$(du -h "$bundle.tar.gz" | cut -f 1) in $bundle.tar.gz"
    say "on the card: tar xf $(basename "$bundle").tar.gz && $(basename "$bundle")/gpu-check.sh all"
}
