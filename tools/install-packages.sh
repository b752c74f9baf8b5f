#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs the Debian packages that are missing: tools/install-packages.sh build|test|release|site
#   build    packages to build and run the library and its programs
#   test     also packages for the tests: other compilers, other OpenCL implementations, offline compilers
#   release  packages for tools/release.sh: also Debian's tools, a compiler for 64-bit Arm
#   site     packages for tools/site.sh
# Needs no network if nothing is missing, else root or sudo.
set -euo pipefail

build=(gcc libc6-dev cmake ninja-build pkg-config ocl-icd-opencl-dev pocl-opencl-icd libxxhash-dev libjansson-dev
    gnuplot-nox libclblast-dev libopenblas-dev)
test=("${build[@]}" g++ make git libcmocka-dev python3 python3-numpy python3-matplotlib python3-venv python3-dev
    clang libclang-rt-14-dev clang-format clang-tidy shellcheck
    libdnnl-dev
    libmpich-dev mpich
    mesa-opencl-icd oclgrind
    clang-19 rocm-device-libs intel-opencl-icd)
release=("${build[@]}" git python3-venv python3-dev dpkg-dev file)
if [[ $(uname -m) == x86_64 ]]; then
    release+=(gcc-aarch64-linux-gnu mmdebstrap qemu-user)
fi

# Bit code for NVIDIA: libclc-19 can't be installed beside the libclc-15 of Mesa, so it is unpacked into a cache.
libclc_dir=${XDG_CACHE_HOME:-$HOME/.cache}/clmgk-test/libclc-19

as_root() {
    if [[ $(id -u) -eq 0 ]]; then
        "$@"
    elif command -v sudo >/dev/null; then
        sudo "$@"
    else
        echo "install-packages.sh: root or sudo is needed to install packages" >&2
        exit 1
    fi
}

update_once() {
    [[ ${updated:-0} -eq 1 ]] || as_root apt-get update -qq
    updated=1
}

install_missing() {
    local package missing=()
    for package in "$@"; do
        if [[ $(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null) != installed ]]; then
            missing+=("$package")
        fi
    done
    [[ ${#missing[@]} -gt 0 ]] || return 0
    echo "Installing ${missing[*]}"
    update_once
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}"
}

unpack_libclc() {
    [[ -e $libclc_dir/usr/lib/clc/nvptx64--nvidiacl.bc ]] && return
    local folder
    folder=$(mktemp -d)
    chmod 755 "$folder" # apt downloads as its own user
    echo "Unpacking libclc-19"
    update_once
    (cd "$folder" && apt-get download -qq libclc-19 && dpkg-deb -x libclc-19_*.deb unpacked)
    mkdir -p "$(dirname "$libclc_dir")"
    rm -rf "$libclc_dir"
    mv "$folder/unpacked" "$libclc_dir"
    rm -rf "$folder"
}

case ${1:-} in
build) install_missing "${build[@]}" ;;
test)
    install_missing "${test[@]}"
    unpack_libclc
    ;;
release) install_missing "${release[@]}" ;;
site) install_missing doxygen git python3-venv ;;
*)
    echo "usage: install-packages.sh build|test|release|site" >&2
    exit 2
    ;;
esac
