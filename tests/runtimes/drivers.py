#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes a folder for OCL_ICD_VENDORS in which PoCL 3.1 has a small library of OpenCL C's functions.

    drivers.py FOLDER DECLARATIONS LIBPOCL DRIVER [ICD_FILE...]

PoCL reads its library, 23,000 functions of which kernels use a few dozen, for each context that compiles: this takes
longer than compiling a small kernel. FOLDER gets copies of the ICD_FILEs, of which PoCL's names DRIVER, a library that
loads PoCL from FOLDER (quick_pocl.c). FOLDER/pocl has what a PoCL in another place would find beside itself: links to
the installed files, and the functions that DECLARATIONS names with all that they call. Processors for which PoCL has a
better library than the one that is made smaller get a link to theirs. A function that the small library lacks is an
error of PoCL's linker.
"""
import ctypes
import pathlib
import re
import shutil
import sys

PRIVATE_DATA = pathlib.Path("/usr/share/pocl")
EXTERNAL, INTERNAL = 0, 8  # LLVMLinkage
POINTER, TEXT = ctypes.c_void_p, ctypes.c_char_p
FUNCTIONS = {  # of LLVM's C interface: results, arguments
    "LLVMContextCreate": (POINTER, []),
    "LLVMCreateMemoryBufferWithContentsOfFile": (ctypes.c_int, [TEXT, POINTER, POINTER]),
    "LLVMParseBitcodeInContext2": (ctypes.c_int, [POINTER, POINTER, POINTER]),
    "LLVMGetFirstFunction": (POINTER, [POINTER]),
    "LLVMGetNextFunction": (POINTER, [POINTER]),
    "LLVMGetValueName2": (TEXT, [POINTER, POINTER]),
    "LLVMIsDeclaration": (ctypes.c_int, [POINTER]),
    "LLVMGetLinkage": (ctypes.c_int, [POINTER]),
    "LLVMSetLinkage": (None, [POINTER, ctypes.c_int]),
    "LLVMGetFirstBasicBlock": (POINTER, [POINTER]),
    "LLVMGetNextBasicBlock": (POINTER, [POINTER]),
    "LLVMGetFirstInstruction": (POINTER, [POINTER]),
    "LLVMGetNextInstruction": (POINTER, [POINTER]),
    "LLVMIsALoadInst": (POINTER, [POINTER]),
    "LLVMIsAStoreInst": (POINTER, [POINTER]),
    "LLVMSetAlignment": (None, [POINTER, ctypes.c_uint]),
    "LLVMCreatePassBuilderOptions": (POINTER, []),
    "LLVMRunPasses": (POINTER, [POINTER, TEXT, POINTER, POINTER]),
    "LLVMWriteBitcodeToFile": (ctypes.c_int, [POINTER, TEXT]),
}


def load_llvm():
    llvm = ctypes.CDLL("libLLVM-15.so.1")
    for name, (result, arguments) in FUNCTIONS.items():
        function = getattr(llvm, name)
        function.restype, function.argtypes = result, arguments
    return llvm


def is_wanted(name, words):
    """Whether kernels may call this function of the library, whose names are C++'s, or PoCL itself."""
    mangled = re.match(r"_Z(\d+)(.*)", name)
    if mangled is None:
        return not name.startswith("Sleef")  # which are called by OpenCL C's functions alone
    base = mangled[2][:int(mangled[1])].removeprefix("_cl_")
    # The declarations form names of vectors' functions (vload4, vstore_half8_rte, convert_float16) by macros.
    return base in words or re.sub(r"\d*(_rte)?$", "", base) in words or re.fullmatch(r"convert_[a-z]+\d*", base)


def chain(first, following, owner):
    item = first(owner)
    while item:
        yield item
        item = following(item)


def correct_alignment(llvm, function):
    """PoCL's functions for vectors at any place say that these are aligned, which LLVM's fastest way to make code believes."""
    for block in chain(llvm.LLVMGetFirstBasicBlock, llvm.LLVMGetNextBasicBlock, function):
        for instruction in chain(llvm.LLVMGetFirstInstruction, llvm.LLVMGetNextInstruction, block):
            if llvm.LLVMIsALoadInst(instruction) or llvm.LLVMIsAStoreInst(instruction):
                llvm.LLVMSetAlignment(instruction, 1)


def reduce_library(llvm, source, target, words):
    buffer, module = ctypes.c_void_p(), ctypes.c_void_p()
    if llvm.LLVMCreateMemoryBufferWithContentsOfFile(str(source).encode(), ctypes.byref(buffer), ctypes.byref(TEXT())):
        sys.exit(f"cannot read {source}")
    if llvm.LLVMParseBitcodeInContext2(llvm.LLVMContextCreate(), buffer, ctypes.byref(module)):
        sys.exit(f"not a module of LLVM 15: {source}")

    def functions():
        for function in chain(llvm.LLVMGetFirstFunction, llvm.LLVMGetNextFunction, module):
            yield function, llvm.LLVMGetValueName2(function, ctypes.byref(ctypes.c_size_t())).decode()

    hidden = set()
    for function, name in functions():
        is_external = not llvm.LLVMIsDeclaration(function) and llvm.LLVMGetLinkage(function) == EXTERNAL
        if is_external and not is_wanted(name, words):
            llvm.LLVMSetLinkage(function, INTERNAL)
            hidden.add(name)
    if llvm.LLVMRunPasses(module, b"globaldce", None, llvm.LLVMCreatePassBuilderOptions()):
        sys.exit("LLVM does not remove functions")
    for function, name in functions():
        if name in hidden:
            llvm.LLVMSetLinkage(function, EXTERNAL)
        if re.match(r"_Z\d+(_cl_)?v(load|store)", name):
            correct_alignment(llvm, function)
    if llvm.LLVMWriteBitcodeToFile(module, str(target).encode()):
        sys.exit(f"cannot write {target}")


def best_library():
    """The library that PoCL takes for this processor, if it is one of the usual two."""
    flags = set(re.findall(r"\w+", pathlib.Path("/proc/cpuinfo").read_text()))
    kind = "avx512" if {"avx512f", "avx512bw", "avx512vl"} <= flags else "avx2" if "avx2" in flags else None
    return f"kernel-x86_64-pc-linux-gnu-{kind}.bc"


def main():
    folder, declarations, libpocl, driver = (pathlib.Path(argument) for argument in sys.argv[1:5])
    shutil.rmtree(folder, ignore_errors=True)
    libraries, data = folder / "pocl/lib/host", folder / "pocl/share/pocl"
    libraries.mkdir(parents=True)
    data.mkdir(parents=True)
    (libraries / "libpocl.so.2").symlink_to(libpocl)
    (libraries / "pocl").symlink_to(libpocl.parent / "pocl")
    for file in PRIVATE_DATA.iterdir():
        if file.name == best_library():
            reduce_library(load_llvm(), file, data / file.name, set(re.findall(r"\w+", declarations.read_text())))
        else:
            (data / file.name).symlink_to(file)
    for file in sys.argv[5:]:
        text = pathlib.Path(file).read_text()
        name = pathlib.Path(file).name
        (folder / name).write_text(f"{driver}\n" if name == "pocl.icd" else text)


if __name__ == "__main__":
    main()
