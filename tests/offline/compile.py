#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compiles the configurations that plans make (offline_plans prints them) for devices that need not be here, and prints
what they take.

The SIMT engine's kernels exchange numbers in sub-groups as each target can (cl/engine/shuffle.clh; lint: not at all).
Fails on a compile error, a warning of clang (drivers print them), and where a work-item's registers spill, or its
private arrays are in memory (a stack), beyond the target's limits.
Targets: lint (portable OpenCL C 1.2, all engines), lint-old (by an older clang), x86 (lane engine, also with AMX, optimised:
pragmas that cannot be met), AMD gfx*, NVIDIA sm_* by clang and cuda_* by nvcc, Intel names (SIMT engine). A target whose
compiler is absent is skipped and said so (exit status 77 if nothing ran); with CLMGK_TEST_REQUIRE_ALL set it is a failure, but
for cuda_*: Debian's free packages have no nvcc.
"""
import argparse
import concurrent.futures
import functools
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
PLANS = HERE.parent.parent / "build/bin/offline_plans"
KERNELS = HERE.parent.parent / "cl"
CLANG = "clang-19"
LINTS = {"lint": CLANG, "lint-old": "clang"}  # the system's is near those of installed drivers: it warns of other things
AMD_LIBRARY = pathlib.Path("/usr/lib/x86_64-linux-gnu/amdgcn/bitcode")
# Debian's device library ends before these; a processor's file holds one constant.
AMD_LATER = {"gfx942": 9402, "gfx1100": 11000, "gfx1201": 12001}
# Matrix units of AMD's processors (cl/engine/units.clh), and work-items of a wave.
AMD_UNITS = {"gfx90a": ("mfma", 64), "gfx942": ("mfma", 64), "gfx1100": ("wmma", 32), "gfx1201": ("wmma-gfx12", 32)}
QUICK_GPU = ["gfx90a", "gfx1100", "sm_80", "pvc"]  # share a sample among them, unless they are asked for
QUICK = [*LINTS, "x86"] + QUICK_GPU
FULL = QUICK + ["gfx942", "gfx1201", "sm_75", "sm_90", "skl", "tgllp", "dg2-g10"]
# Bytes that a work-item spills in clang's PTX: MGK's hard E-step; dQ of MGK with priors, variances, all masks and modifiers. 0
# elsewhere.
CLANG_PTX_LIMIT = {("mixture/forward.cl", "sm_75"): 4, ("mixture/backward_queries.cl", "sm_80"): 8}
# By CUDA's compiler, which spills to keep a further work-group on a multiprocessor: seen are 24 (MGK, softmax's dQ).
CUDA_LIMIT = 64
# Registers that a work-item of AMD's spills: RDNA 3 has 256, where CDNA has accumulation registers besides.
AMD_SPILLS = {
    ("gfx1100", "backward-softmax-f16-64", "backward"): 1, ("gfx1100", "hard-mish2-64", "forward"): 3,
    ("gfx1100", "smlk2-favor-64", "forward"): 4, ("gfx1100", "backward-smlk2-favor-64", "backward_rows"): 40,
    ("gfx1100", "backward-smlk2-favor-64", "backward_keys"): 100, ("gfx1201", "hard-mish2-64", "forward"): 3,
    ("gfx1201", "backward-smlk2-favor-64", "backward_rows"): 42, ("gfx1201", "backward-smlk2-favor-64", "backward_keys"): 87,
}
AMD_PRIVATE = re.compile(r"^\s+(buffer|scratch)_(load|store)_", re.MULTILINE)  # an instruction of a work-item's own memory
AMD_STACK, AMD_PROBE = 12, 64  # what arrays in private memory take by themselves; of a unit's probe
# Largest stack: private arrays that did not become registers, on Intel's also spills, of a work-item or of all those of
# a hardware thread. 0 elsewhere: these are processors without 256 registers, for which no block is chosen.
FEW_REGISTERS = {"skl": 16384, "tgllp": 16384}
# The same where work-groups of 128 work-items copy more numbers each, whose addresses clang makes before the loop over
# tiles, and where a plan limits the registers. NVIDIA's own compiler spills none of either.
CLANG_PTX_SMALL_GROUP = 48
CLANG_PTX_LIMITED = 192
# The same for sMGK's blocks of 8 x 4 scores with wide heads: clang's code spills, NVIDIA's does not.
CLANG_PTX_WIDE = {"smgk2-128": 240}
# The matrix engine's blocks that keep more than fits: the most bytes that a work-item spills on sm_80 or sm_90, by
# configuration and file, by ptxas of CUDA 13.0 (13.5 spills 440 bytes where that spills 436). clang's optimizer is newer than
# the driver's, which is that of CUDA's compiler; what the code on a card spills is below.
MATRIX_SPILLS = {
    ("mgk2-bf16-128-wgmma", "forward"): 192, ("mgk4-bf16-64-wgmma", "forward"): 136, ("smgk2-bf16-128-wgmma", "forward"): 152,
    ("softmax-bf16-128-wgmma-cuda", "forward"): 80, ("softmax-f16-128-wgmma-cuda", "forward"): 80,
    ("backward-softmax-bf16-128-wgmma-cuda", "backward"): 132, ("backward-softmax-f16-128-wgmma-cuda", "backward"): 144,
    ("backward-softmax-bf16-64-wgmma-cuda", "backward_queries"): 24,
    ("backward-softmax-f16-64-wgmma-cuda", "backward_queries"): 40,
    ("backward-mgk2-bf16-128-wgmma-cuda", "backward"): 292, ("backward-mgk2-bf16-128-wgmma-cuda", "backward_queries"): 96,
    ("mgk2-bf16-128-wgmma-cuda", "forward"): 104, ("mgk4-bf16-64-wgmma-cuda", "forward"): 68,
    ("softmax-bf16-128-wgmma-cuda-turns", "forward"): 156, ("mgk2-bf16-128-wgmma-cuda-turns", "forward"): 116,
    ("hard-fish2-bf16-64-wgmma", "forward"): 212, ("hard-fish2-bf16-128-wgmma", "forward"): 52,
    ("backward-softmax-bf16-texts-64-wgmma", "backward"): 128,
    ("backward-softmax-bf16-64-wgmma", "backward"): 16, ("backward-softmax-f16-64-wgmma", "backward"): 16,
    ("backward-softmax-bf16-128-wgmma", "backward"): 316, ("backward-softmax-f16-128-wgmma", "backward"): 320,
    ("backward-smgk2-bf16-64-wgmma", "backward"): 220, ("backward-smgk2-bf16-128-wgmma", "backward"): 224,
    ("backward-smlk2-favor-tf32-64", "forward"): 40, ("backward-smlk2-favor-tf32-64", "backward_keys"): 36,
    ("mgk2-bf16-128", "forward"): 472, ("smgk2-bf16-128", "forward"): 80, ("hard-fish2-bf16-64", "forward"): 60,
    ("hard-fish2-bf16-128", "forward"): 92, ("backward-softmax-bf16-64", "backward"): 336,
    ("backward-softmax-f16-64", "backward"): 508, ("backward-softmax-bf16-64", "backward_queries"): 16,
    ("backward-softmax-f16-64", "backward_queries"): 16, ("backward-softmax-bf16-128", "backward"): 208,
    ("backward-softmax-f16-128", "backward"): 392, ("backward-mgk2-bf16-64", "backward"): 24,
    ("backward-mgk2-bf16-128", "backward"): 288, ("backward-smgk2-bf16-64", "backward"): 96,
    ("backward-smgk2-bf16-128", "backward"): 100, ("product-f32-nn", "fragments"): 72, ("product-f32-nt", "fragments"): 60,
    ("product-f32-tn", "fragments"): 120, ("product-f32-tt", "fragments"): 60, ("product-f32x4-nn", "fragments"): 48,
    ("product-f32x4-tt", "fragments"): 100, ("softmax-f32-64", "forward"): 8, ("softmax-f32-128", "forward"): 28,
    ("smgk2-f32-64", "forward"): 12, ("softmax-f32-128-wgmma", "forward"): 248,
    ("backward-softmax-f32-64-wgmma", "backward"): 16, ("backward-softmax-f32-128-wgmma", "backward"): 140,
    ("backward-softmax-tf32-64-wgmma", "backward"): 36, ("backward-mgk2-f32-64-wgmma", "backward"): 48,
    ("backward-smgk2-f32-64-wgmma", "backward"): 36, ("backward-softmax-f32-64", "backward"): 272,
    ("backward-softmax-tf32-64", "backward"): 108, ("backward-mgk2-f32-64", "backward"): 68,
    ("backward-smgk2-f32-64", "backward"): 292, ("backward-smgk2-f32-64", "backward_queries"): 24,
    ("backward-softmax-f32-128", "backward"): 292, ("backward-hard-fish2-bf16-64", "backward"): 28,
    ("backward-hard-fish2-f16-64", "backward"): 40, ("backward-hard-fish2-f16-64", "backward_queries"): 4,
    ("softmax-bf16-64", "forward"): 32, ("softmax-f16-64", "forward"): 32, ("softmax-bf16-128", "forward"): 48,
    ("softmax-f16-128", "forward"): 48, ("backward-hard-fish2-bf16-128", "backward"): 112,
    ("backward-mgk2-bf16-128-wgmma", "backward"): 440, ("backward-hard-fish2-bf16-128-wgmma", "backward"): 252,
    ("backward-hard-fish2-bf16-128-wgmma", "backward_queries"): 236, ("backward-hard-mish2-bf16-128-wgmma", "backward"): 52,
    ("backward-hard-mish2-bf16-128-wgmma", "backward_queries"): 40, ("smgk2-bf16-64", "forward"): 4,
    ("mgk4-bf16-64", "forward"): 228, ("backward-hard-fish2-f16-64-wgmma", "backward"): 8,
    ("softmax-bf16-pages-64", "forward"): 140, ("softmax-f16-e4m3-64", "forward"): 384,
    ("softmax-f16-pages-e4m3-64", "forward"): 384, ("softmax-f16-pages-e4m3-64-wgmma", "forward"): 72,
    ("softmax-f16-q8_0-64", "forward"): 32, ("hard-fish2-f16-pages-int8-64", "forward"): 156,
    ("softmax-f16-128-wgmma", "forward"): 208, ("mgk2-bf16-64-wgmma", "forward"): 148,
    ("backward-softmax-bf16-64-wgmma", "backward_queries"): 28, ("backward-softmax-f16-64-wgmma", "backward_queries"): 36,
    ("backward-mgk2-bf16-64-wgmma", "backward"): 52, ("hard-mish2-f16-64-wgmma", "forward"): 20,
    ("hard-mish2-bf16-128-wgmma", "forward"): 188,
}
# The same by CUDA's compiler (13.0), where it is more than CUDA_LIMIT.
MATRIX_CUDA_SPILLS = {
    ("backward-smlk2-favor-tf32-64", "forward"): 200,
    ("smgk2-bf16-128", "forward"): 68, ("hard-fish2-bf16-128", "forward"): 100, ("product-f32-nn", "fragments"): 104,
    ("product-f32x4-nn", "fragments"): 140, ("product-f32x4-tt", "fragments"): 156,
    ("backward-softmax-bf16-128-wgmma", "backward"): 112, ("backward-softmax-bf16-64", "backward"): 120,
    ("backward-softmax-bf16-64-wgmma", "backward"): 68, ("backward-softmax-f16-128-wgmma", "backward"): 100,
    ("backward-softmax-f16-64", "backward"): 76, ("backward-softmax-f16-64-wgmma", "backward"): 68,
    ("hard-fish2-bf16-64-wgmma", "forward"): 128, ("backward-mgk2-bf16-128-wgmma", "backward"): 164,
    ("hard-fish2-bf16-128-wgmma", "forward"): 72, ("product-f32-tn", "fragments"): 144,
    ("softmax-f16-e4m3-64", "forward"): 228, ("softmax-f16-pages-e4m3-64", "forward"): 228,
    ("backward-mgk2-bf16-64-wgmma", "backward"): 48, ("backward-softmax-bf16-128-wgmma-cuda", "backward"): 132,
    ("backward-softmax-f16-128-wgmma-cuda", "backward"): 132, ("backward-mgk2-bf16-128-wgmma-cuda", "backward"): 180,
}
# Bytes of a work-item's arrays by head: of eight heads' weights that are mixed after the softmax, in loops over the heads that
# no compiler unrolls, and (Intel's: of a hardware thread) what these take beside registers.
HELD_STACK = {("talking-heads8-after-64", "mixed"): 600, ("backward-talking-heads8-after-64", "backward"): 1008,
              ("backward-talking-heads8-after-64", "backward_queries"): 936}
INTEL_HELD = 16384
# What 32 work-items of a hardware thread with 128 registers spill where teams combine parts, whose loads wait together: four
# parts at once; three spill nothing, but would take a round more.
INTEL_TEAMS = {"mgk2-few-128": 2048}
INTEL_TEAM = 512
MATRIX_RESIDENTS = 2  # work-groups of the matrix engine that a multiprocessor must hold
# Parts of a CUDA toolkit that PyPI has.
CUDA_PACKAGES = {"nvdisasm": "nvidia-cuda-nvdisasm", "ptxas": "nvidia-cuda-nvcc"}
# Of a multiprocessor, and what a work-group takes for itself (CUDA's occupancy rules).
LOCAL_BYTES = {"sm_80": 164 << 10, "sm_90": 228 << 10}
REGISTERS, WARPS, GROUPS, LOCAL_OF_GROUP = 65536, 64, 32, 1 << 10
# Before instructions of sm_90a, in assembly: OpenCL's compilers take them for comments, and the library removes the marks from
# their PTX (wgmma).
MARK = "//@"
INCLUDE = re.compile(r'\s*#\s*include\s*(?:"(?P<name>[^"]+)"|ENGINE_FILE\((?P<engine>[^)]+)\))')
# What ptxas says where it waits for a product of four warps before the program does.
SERIAL = re.compile(r".*wgmma\.mma_async instructions are serialized.*|.*warpgroup\.wait is injected.*")
# What ptxas -v says.
PTXAS_FIGURES = {"registers": r"Used (\d+) registers", "B spilled": r"(\d+) bytes spill stores",
                 "B stack": r"(\d+) bytes cumulative stack", "B local": r"(\d+) bytes smem"}


def cache_folder():
    return pathlib.Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")) / "clmgk-test"


def libclc_folder():
    return cache_folder() / "libclc-19/usr/lib/clc"


def find_cuda(program):
    home = os.environ.get("CUDA_HOME", "/usr/local/cuda")
    return shutil.which(program) or shutil.which(program, path=f"{home}/bin")


def fetch_cuda(program):
    """Of a CUDA toolkit, or PyPI's copy in the cache; None where neither can be had."""
    own = find_cuda(program)
    if own is not None:
        return own
    folder = cache_folder() / program
    if not any(folder.rglob(program)):
        subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", folder,
                        CUDA_PACKAGES[program]], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    return next((path for path in folder.rglob(program) if os.access(path, os.X_OK)), None)


class Failure(Exception):
    pass


LIMIT_S = 1800  # nvdisasm takes minutes for the largest kernels, more beside other work


def run(command, folder):
    done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          timeout=LIMIT_S)
    if done.returncode != 0:
        raise Failure(" ".join(map(str, command)) + "\n" + done.stdout)
    return done.stdout


def figures(text, patterns):
    """{label: number} from a compiler's report, the most of any kernel (what the report leaves out is 0)."""
    return {label: max(map(int, re.findall(pattern, text)), default=0) for label, pattern in patterns.items()}


def unmarked(text):
    """PTX with the marked instructions, for sm_90a; these are in PTX from 8.0 on."""
    text = re.sub(r"^\.version 7\.\d+", ".version 8.0", text.replace(MARK, ""), flags=re.MULTILINE)
    return re.sub(r"^\.target sm_90\b", ".target sm_90a", text, flags=re.MULTILINE)


def dynamic_local(options):
    """Bytes of local memory that a launch in CUDA gives tiles, as the library asks for them; 0: tiles are the kernel's own."""
    tiles = tunable(options, "DYNAMIC_LOCAL", 0)
    return tiles and tiles + 1024


def dynamic(text):
    """PTX whose tiles' memory a launch gives, as the library edits it."""
    arrays = re.findall(r"^\s*\.shared (.*_tiles)\[\d+\];", text, re.MULTILINE)
    text = re.sub(r"^\s*\.shared .*_tiles\[\d+\];.*\n", "", text, flags=re.MULTILINE)
    return text.replace(".address_size 64\n", ".address_size 64\n" + "".join(f".extern .shared {one}[];\n" for one in arrays), 1)


def residents(architecture, registers, local_bytes, threads):
    """Work-items that fit a multiprocessor together."""
    warps = threads // 32
    by_registers = REGISTERS // (-(-registers // 8) * 8 * 32) // warps
    by_local = LOCAL_BYTES[architecture] // (local_bytes + LOCAL_OF_GROUP)
    return min(by_registers, by_local, WARPS // warps, GROUPS) * threads


def tunable(options, name, rest):
    return next((int(x.split("=")[1]) for x in options if x.startswith(f"-D{name}=")), rest)


class Texts:
    """A user's score and mask, whose OpenCL C takes the place of a kernel file."""

    file, code = "attention/mods_text.clh", None


def whole(source, options, folder):
    """A kernel file with all that it includes, as the library gives it to a driver: a file's first include is its text, even
    where a condition excludes it, and later ones are nothing (src/device/source.c)."""
    engine = next((x.split("=")[1] for x in options if x.startswith("-DENGINE=")), None)
    seen = set()

    def expand(name):
        if name in seen:
            return
        seen.add(name)
        yield f'#line 1 "{name}"'
        text = Texts.code if Texts.code and name == Texts.file else (KERNELS / name).read_text()
        for number, line in enumerate(text.splitlines(), 1):
            included = INCLUDE.match(line)
            if not included:
                yield line
                continue
            yield from expand(included["name"] or f"engine/{engine}/{included['engine']}")
            yield f'#line {number + 1} "{name}"'

    path = folder / "whole.cl"
    path.write_text("\n".join(expand(str(source).removeprefix(f"{KERNELS}/"))) + "\n")
    return path


def clang(target, compiler=CLANG):
    return [compiler, "-x", "cl", "-target", target, f"-I{KERNELS}", "-Werror"]


def registers_of(options):
    """The options of a text, and ptxas' for NVIDIA's limit of registers."""
    limit = "-cl-nv-maxrregcount="
    return ([x for x in options if not x.startswith(limit)],
            ["-maxrregcount=" + x.removeprefix(limit) for x in options if x.startswith(limit)])


class Lint:
    """Portable OpenCL C 1.2 without extensions: stray doubles, undeclared functions, implicit conversions. Of Intel's matrix
    units the types of their instructions: Debian's ocloc takes these for calls."""

    kind = "lint"
    engines = ("simt", "lane", "matrix", "matrix-dpas", "matrix-dpas-8")

    def __init__(self, compiler):
        self.compiler = compiler

    def missing(self):
        return None if shutil.which(self.compiler) else self.compiler

    def compile(self, source, options, folder):
        # Flags decide which parameters, variables and helpers a configuration uses.
        warnings = ["-Wall", "-Wextra", "-Wundef", "-Wdouble-promotion", "-Wno-unused-parameter",
                    "-Wno-unused-function", "-Wno-unused-variable", "-Wno-unused-but-set-variable",
                    "-Wno-unused-but-set-parameter"]
        common = ["-Xclang", "-finclude-default-header", "-fsyntax-only", *warnings, *options,
                  whole(source, options, folder)]
        if {"-DMATRIX_UNIT=8", "-DMATRIX_UNIT=9"}.intersection(options):
            common += ["-include", HERE / "dpas.h"]
        extensions = ["-Xclang", "-cl-ext=-all"] if self.compiler == CLANG else []
        run(clang("spir64", self.compiler) + extensions + common, folder)
        return {}


class X86:
    """As PoCL's front end compiles: its clang warns of an unroll pragma that cannot be met, and of functions with vectors wider
    than registers, as they are without AVX. Of kernels for matrix units the instructions are assembled, too, of both forms."""

    kind = "x86"
    engines = ("lane", "lane-amx")

    def missing(self):
        return None if shutil.which(CLANG) else CLANG

    def compile(self, source, options, folder):
        text = whole(source, options, folder)

        def compiled(*more, wide=1):
            run(clang("x86_64-linux-gnu") + ["-Xclang", "-finclude-default-header", "-O3", f"-DWIDE_VECTORS={wide}",
                                             "-DKERNEL_CALLS=1", *options, *more, "-c", text, "-o", "k.o"], folder)

        if "-DMATRIX_UNIT=3" in options:
            for form in (0, 1):
                compiled("-march=sapphirerapids", f"-DDOT_PRODUCTS={form}")
        elif "-DMATRIX_UNIT=4" in options:
            compiled("-march=sapphirerapids")
        else:
            compiled("-march=skylake-avx512", "-emit-llvm")
            compiled("-march=x86-64", "-O0", "-emit-llvm", wide=0)
        return {}


class Amd:
    """Of the matrix engine, the blocks that plans have with the processor's unit."""

    kind = "amd"

    def __init__(self, processor, work):
        self.processor = processor
        self.unit, self.wave = AMD_UNITS[processor]
        self.engines = ("simt", "matrix-" + self.unit)
        self.library = work / "amd"

    def missing(self):
        if not shutil.which(CLANG):
            return CLANG
        return None if AMD_LIBRARY.is_dir() else "rocm-device-libs"

    def prepare(self):
        self.library.mkdir(exist_ok=True)
        for name in AMD_LIBRARY.iterdir():
            link = self.library / name.name
            if not link.exists():
                link.symlink_to(name)
        constant = AMD_LATER.get(self.processor)
        if constant is not None:
            stub = self.library / f"{self.processor}.cl"
            stub.write_text(f"__constant const int __oclc_ISA_version = {constant};\n")
            run(clang("amdgcn-amd-amdhsa") + ["-nogpulib", "-emit-llvm", "-c", stub, "-o",
                                             self.library / f"oclc_isa_version_{self.processor[3:]}.bc"], self.library)

    def compile(self, source, options, folder):
        text = run(clang("amdgcn-amd-amdhsa") + [f"-mcpu={self.processor}", "-O3", "-Rpass-analysis=kernel-resource-usage",
                                                 f"--rocm-device-lib-path={self.library}", *options, "-DSHUFFLE=4",
                                                 f"-DSUB_GROUP_SIZE={self.wave if '-DENGINE=matrix' in options else 32}", "-S",
                                                 whole(source, options, folder), "-o", "k.s"], folder)
        values = figures(text, {"registers": r" VGPRs: (\d+)", "accumulation": r"AGPRs: (\d+)",
                                "spilled": r"VGPRs Spill: (\d+)", "scalars spilled": r"SGPRs Spill: (\d+)",
                                "B stack": r"ScratchSize [^:]*: (\d+)", "B local": r"LDS Size [^:]*: (\d+)",
                                "waves": r"Occupancy [^:]*: (\d+)"})
        # clang also counts places of scalars, which went to lanes of vector registers: no instruction reaches them there
        if not AMD_PRIVATE.search((folder / "k.s").read_text()):
            values["B stack"] = 0
        return values


def nvidia_engines(architecture):
    return ("simt-nvidia", "matrix-nvidia") if architecture >= "sm_80" else ("simt-nvidia",)


class Nvidia:
    kind = "nvidia"
    sub_groups = ["-DSHUFFLE=3", "-DSUB_GROUP_SIZE=32"]

    def __init__(self, architecture, ptxas=None, with_nvcc=False):
        """`with_nvcc`: PTX by CUDA's compiler, whose optimizer is that of the OpenCL driver, in place of clang's."""
        self.architecture, self.ptxas, self.with_nvcc = architecture, ptxas or find_cuda("ptxas"), with_nvcc
        if with_nvcc:
            self.kind = Cuda.kind
        self.engines = nvidia_engines(architecture)

    def missing(self):
        if not shutil.which(CLANG):
            return CLANG
        return None if libclc_folder().is_dir() else "libclc-19"

    def compile(self, source, given, folder):
        options = registers_of(given)[0]
        if self.with_nvcc:
            Cuda(self.architecture).build(source, given, folder, "ptx")
            return self.assemble(given, folder)
        run(clang("nvptx64-nvidia-nvcl") + ["-Xclang", "-target-cpu", "-Xclang", self.architecture, "-Xclang",
                                            "-target-feature", "-Xclang", "+ptx78", "-O3", "-Xclang",
                                            "-mlink-builtin-bitcode", "-Xclang", libclc_folder() / "nvptx64--nvidiacl.bc",
                                            "-Wno-linker-warnings", *options, *self.sub_groups, "-S",
                                            whole(source, options, folder), "-o", "k.ptx"], folder)
        return self.assemble(given, folder)

    def assemble(self, options, folder):
        """Machine code of k.ptx: k.cubin."""
        options, limit = registers_of(options)
        architecture, text = self.architecture, (folder / "k.ptx").read_text()
        if MARK in text and architecture == "sm_90":
            architecture, text = "sm_90a", unmarked(text)
        given = dynamic_local(options)
        (folder / "k.ptx").write_text(dynamic(text) if given else text)
        if self.ptxas is None:
            return {}
        report = run([self.ptxas, f"-arch={architecture}", *limit, "-v", "k.ptx", "-o", "k.cubin"], folder)
        serial = SERIAL.search(report)
        if serial:
            raise Failure(serial[0])
        values = figures(report, PTXAS_FIGURES)
        values["B local"] += given
        threads = 32 * tunable(options, "WARPS", 0)
        if threads > 0:
            values["groups"] = residents(self.architecture, values["registers"], values["B local"], threads) // threads
        return values


class Cuda:
    """NVIDIA's own compiler (clang's PTX is another's), for which the text becomes CUDA C++: near what NVIDIA's OpenCL
    makes of it. Both know the size of a work-group, and rather spill some bytes than lose a group on a multiprocessor."""

    kind = "cuda"
    left_out = ("layer/", "gemm/product.cl", "gemm/combine.cl")  # their vectors are not in opencl.cuh
    sub_groups = Nvidia.sub_groups
    EDITS = [(re.compile(pattern, re.MULTILINE), text) for pattern, text in [
        (r"^#pragma OPENCL .*$", ""),
        (r"__attribute__\(\(reqd_work_group_size\((.*?), 1, 1\)\)\)", r"__launch_bounds__(\1)"),
        (r"__kernel", r'extern "C" __global__'),
        # of functions that differ by address spaces, which C++ does not have, one is left
        (r"^static inline [^\n;]*overloadable[^{]*(\(__local |\((const )?float \*)[^}]*^\}", ""),
        (r"__attribute__\(\(overloadable\)\)", ""),
        (r"static inline __attribute__\(\(always_inline\)\)", "DEVICE"),
        (r"__local (?=\w+ \w+\[)", "__shared__ "),
        (r"__(local|global|private) ", ""),
        (r"\bclass\b", "class_"),  # a name in C
        (r"\(((?:float|u?int|ushort)[24]|piece|i?u?real)\)\(", r"\1("),
        # C++ has no address spaces: an address of local memory is that of any, and what an asm statement returns might be
        # anywhere
        (r"return \(uint\)\(size_t\)p;", r"return (uint)__cvta_generic_to_shared(p);"),
        (r"return \(uint \*\)\(size_t\)address;", r"return (uint *)__cvta_shared_to_generic(address);"),
        (r'(__asm__ volatile\("" : "\+l"\((?!address)(.*?)\)\))(?!\))', r"\1; __builtin_assume(__isGlobal(\2))"),
        # a condition that is a vector (bf16's rounding)
        (r"(\w+) != \1 \? (bits \| 0x400000u) : (bits \+ 0x7fffu \+ \(\(bits >> 16\) & 1u\));",
         r"choose(\1 != \1, \2, \3);"),
        # C++ has no operand that becomes a constant by inlining
        (r'__asm__ volatile\("cp.async.wait_group %0;" : : "n"\((\w+)\) : "memory"\);',
         "".join(rf'if (\1 == {n}) __asm__ volatile("cp.async.wait_group {n};" : : : "memory"); ' for n in range(4))),
        # a compound literal of arrays
        (r"x\.keys = \(mixture_keys\)(\{.*?\});", r"x.keys = mixture_keys\1;"),
    ]]

    def __init__(self, architecture):
        self.architecture = architecture
        self.engines = nvidia_engines(architecture)

    def missing(self):
        return None if find_cuda("nvcc") else "nvcc (a CUDA toolkit, in PATH or CUDA_HOME)"

    def build(self, source, options, folder, kind="cubin"):
        """Makes k.cubin or k.ptx; returns the report of ptxas."""
        text = run(["cc", "-E", "-P", "-undef", "-x", "c", "-D__OPENCL_C_VERSION__=120",
                    "-DCHOOSE(condition,x,y)=choose(condition,x,y)", f"-I{KERNELS}",
                    *[x for x in [*options, *self.sub_groups] if x.startswith("-D")],
                    whole(source, options, folder)], folder)
        for pattern, replacement in self.EDITS:
            text = pattern.sub(replacement, text)
        (folder / "k.cu").write_text(f'#include "{HERE / "opencl.cuh"}"\n{text}')
        limit = registers_of(options)[1]
        return run([find_cuda("nvcc"), f"-arch={self.architecture}", "-std=c++17", "-O3", "-w", "-fmad=false", *limit,
                    "-Xptxas", "-v", f"-{kind}", "k.cu", "-o", f"k.{kind}"], folder)

    def compile(self, source, options, folder):
        """The matrix engine's PTX may have marks, which ptxas does not get."""
        if "-DENGINE=matrix" in options:
            return Nvidia(self.architecture, with_nvcc=True).compile(source, options, folder)
        return figures(self.build(source, options, folder), PTXAS_FIGURES)


class Intel:
    kind = "intel"
    engines = ("simt-intel",)

    def __init__(self, device):
        self.device = device
        # 16 on processors with registers of 64 bytes
        size = 16 if device == "pvc" else 8
        self.sub_groups = [f"-DLEAST_SUB_GROUP={size}", "-DSHUFFLE=2", f"-DSUB_GROUP_SIZE={size}"]

    def missing(self):
        return None if shutil.which("ocloc") else "ocloc"

    def compile(self, source, options, folder):
        text = run(["ocloc", "compile", "-file", whole(source, options, folder), "-device", self.device, "--format", "zebin", "-options",
                    " ".join([f"-I{KERNELS}", *options, *self.sub_groups])], folder)
        if "Build succeeded" not in text:
            raise Failure(text)
        (folder / "parts").mkdir()
        run(["ocloc", "disasm", "-file", next(folder.glob("*.bin")), "-device", self.device, "-dump", "parts"], folder)
        # spills and private arrays, in whichever memory and of a work-item or all of a hardware thread
        return figures((folder / "parts/.ze_info").read_text(),
                       {"registers": r"grf_count: +(\d+)", "B stack": r"usage: +\w+_space\n +size: +(\d+)"})


def make_target(name, work):
    if name in LINTS:
        return Lint(LINTS[name])
    if name == "x86":
        return X86()
    if name.startswith("gfx"):
        return Amd(name, work)
    if name.startswith("sm_"):
        return Nvidia(name)
    if name.startswith("cuda_"):
        return Cuda(name.replace("cuda_", "sm_"))
    return Intel(name)


@functools.lru_cache(None)
def configuration_lines(program):
    """What the program offline_plans prints: engine, name, file, options."""
    return run([program], None).splitlines()


def read_configurations(program):
    """Each program once, by the name of the first configuration that has it."""
    seen = set()
    for line in configuration_lines(program):
        engine, name, source, *options = line.split()
        key = (engine, source, *options)
        if key not in seen:
            seen.add(key)
            yield engine, name, source, options


def configurations_of(target, plans):
    """Those of its engines; instructions of sm_90a would be comments on older NVIDIA GPUs."""
    by_four = "-DMATRIX_UNIT=2"
    return [one for one in read_configurations(plans)
            if one[0] in target.engines and (by_four not in one[3] or getattr(target, "architecture", "sm_90") == "sm_90")]


def is_flag(option):
    return option.endswith("=1") or option.startswith("-DENGINE=")


def parts(configuration):
    """What all samples together have once: sources and flags, and each of AMD's and Intel's matrix units."""
    source, options = configuration[2:]
    units = {option for option in options if re.match(r"-DMATRIX_UNIT=[5-9]$", option)}
    if units:
        return units
    return {source} | set(filter(is_flag, options))


def share(lists):
    """A sample of each list: each of what configurations have is in one of them."""
    have = {name: [(parts(configuration), configuration) for configuration in mine] for name, mine in lists.items()}
    left = set().union(*(own for mine in have.values() for own, _ in mine))
    samples = {name: [] for name in lists}
    while left:
        for name, mine in have.items():
            own, best = max(mine, key=lambda one: len(left & one[0]))
            if left & own:
                samples[name].append(best)
                left -= own
    return samples


def promoted_bytes(source, options):
    """Private memory of a work-item of the matrix engine: for sums of more than 4,096 products each, and those that are
    stored (cl/engine/matrix/backward.clh, chain.clh, gemm.clh), and for a block's own rows: their slices, wide queries of
    mixed heads, and keys that registers do not hold (block.clh). Mixed heads also have places of copies there, and the
    kernel of keys sums."""
    head, value = (max(16, tunable(options, name, 64)) for name in ("HEAD_SIZE", "VALUE_SIZE"))
    if "-DMATRIX_UNIT=2" in options and source.endswith("/forward.cl"):
        queries = head * tunable(options, "COMPONENTS", 1) if source.startswith("admixture") else 0
        return (2 * value + 8) * tunable(options, "HEADS", 1) + (queries if queries > 128 else 0)
    if source == "gemm/fragments.cl" and tunable(options, "TF32_PRODUCTS", 0) <= 1 and tunable(options, "BF16_SLICES", 0) <= 2:
        return 16 * tunable(options, "ROW_TILES", 4) * tunable(options, "COLUMN_TILES", 8) * ("-DENGINE=matrix" in options)
    mixed = source.startswith("admixture/backward")
    if "-DENGINE=matrix" not in options or not (mixed or source.startswith("mixture/backward")):
        return 0
    products = 1 if "-DKEYS_SHIFTED=1" in options else tunable(options, "COMPONENTS", 1)
    heads = tunable(options, "HEADS", 1) if mixed else 1
    of_keys = products * head * ("-DWANT_K=1" in options) + heads * value * ("-DWANT_V=1" in options)
    is_queries = source.endswith("/backward_queries.cl")
    columns = (products if mixed else 1) * head if is_queries else of_keys
    slices = tunable(options, "BF16_SLICES", 0)
    own = slices * ((1 if is_queries else products) * head + value)
    if "-DMATRIX_UNIT=2" in options and slices == 0:
        most = 256 if tunable(options, "COMPONENTS", 1) == 1 else 128  # of a row of keys and values, in registers
        if mixed:
            own = products * head if not is_queries or products * head > 128 else 0
        elif not is_queries and (products > 1 or head + value > most):
            own = products * head + value
    sums = not is_queries and any(f"-DWANT_{x}=1" in options for x in ("MIX", "MIX_WEIGHT", "MIX_OFFSET", "NOISE"))
    gaussian = "-DSCORE_GAUSSIAN=1" in options and "-DKEYS_SHIFTED=1" not in options and slices == 0
    summed = 1 if is_queries else -(-products // (1 if tunable(options, "TYPE_Q", 0) == 1 else 2))  # SLOT_SUM_ARRAYS
    own += 16 * summed * (gaussian and (is_queries or tunable(options, "TURNS", 1) == 1))
    return tunable(options, "ROW_TILES", 1) * (4 * 2 * columns // 4 + own) + (32 + 128 * sums if mixed else 0)


def limits(name, kind, configuration, source, options):
    """The most of each figure that has a limit."""
    spills = CLANG_PTX_LIMIT.get((source, name), 0)
    if kind == "nvidia" and "-DENGINE=matrix" in options:
        spills = MATRIX_SPILLS.get((configuration, pathlib.Path(source).stem), 0)
    if kind == "nvidia" and source == "mixture/forward.cl" and "-DTHREADS_ROW=8" in options:
        spills = CLANG_PTX_WIDE.get(configuration, CLANG_PTX_SMALL_GROUP)
    if kind == "nvidia" and registers_of(options)[1]:
        spills = max(spills, CLANG_PTX_LIMITED)
    if kind == "amd":
        spills = AMD_SPILLS.get((name, configuration, pathlib.Path(source).stem), 0)
    if kind == "cuda":
        spills = MATRIX_CUDA_SPILLS.get((configuration, pathlib.Path(source).stem), CUDA_LIMIT)
    promoted = AMD_PROBE if source == "engine/direct_probe.cl" else promoted_bytes(source, options)
    held = HELD_STACK.get((configuration, pathlib.Path(source).stem), 0)
    promoted += INTEL_HELD if kind == "intel" and held else held
    if kind == "intel" and source == "attention/combine.cl" and tunable(options, "PART_TEAMS", 1) > 1:
        promoted += INTEL_TEAMS.get(configuration, INTEL_TEAM)
    stack = 2 * spills + promoted
    if kind == "amd" and stack > 0:
        stack = 4 * spills + promoted + AMD_STACK
    return {"spilled": spills, "B spilled": spills, "B stack": FEW_REGISTERS.get(name, stack)}


def compile_one(job):
    name, target, engine, configuration, source, options, work = job
    folder = pathlib.Path(tempfile.mkdtemp(dir=work))
    title = f"{name:8s} {engine} {configuration:20s}"
    try:
        values = target.compile(KERNELS / source, options, folder)
    except (Failure, subprocess.TimeoutExpired) as failure:
        return f"{title} FAILED\n{failure}", False
    finally:
        shutil.rmtree(folder)
    over = [f"{label}, at most {most}" for label, most in limits(name, target.kind, configuration, source,
                                                                 options).items() if values.get(label, 0) > most]
    fours = max(tunable(options, "WARPS", 0) // 4, 1)
    if "groups" in values and values["groups"] * fours < MATRIX_RESIDENTS:
        over.append(f"work-groups of four warps of a multiprocessor, at least {MATRIX_RESIDENTS}")
    row = "".join(f"{value:6d} {label}" for label, value in values.items())
    return f"{title} {row}  {source}" + (f"  FAILED: {' and '.join(over)}" if over else ""), not over


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--targets", help="names separated by commas; default: " + ",".join(QUICK))
    parser.add_argument("--full", action="store_true", help="all targets: " + ",".join(FULL))
    parser.add_argument("--engine", help="alone, as offline_plans names it")
    parser.add_argument("--plans", type=pathlib.Path, default=PLANS, help="the program offline_plans")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    arguments = parser.parse_args()
    require = bool(os.environ.get("CLMGK_TEST_REQUIRE_ALL"))
    chosen = arguments.targets or arguments.full
    names = arguments.targets.split(",") if arguments.targets else FULL if arguments.full else QUICK

    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        jobs, failed, samples = [], 0, {}
        if not chosen:
            targets = {name: make_target(name, work) for name in QUICK_GPU}
            samples = share({name: configurations_of(target, arguments.plans)
                             for name, target in targets.items() if target.missing() is None})
            linted = [one for one in read_configurations(arguments.plans) if one[0] in Lint.engines]
            wide = configurations_of(X86(), arguments.plans)
            few = [one for one in wide if any("FEW_ROWS" in x for x in one[3])]
            samples |= {"lint": share({"": linted})[""], "x86": wide[::32] + share({"": few})[""]}
            samples["lint-old"] = samples["lint"]
        for name in names:
            target = make_target(name, work)
            missing = target.missing()
            if missing is not None:
                needed = require and target.kind != "cuda"
                print(f"{name}: {'FAILED' if needed else 'skipped'}: {missing} is not installed")
                failed += needed
                continue
            if isinstance(target, Amd):
                target.prepare()
            mine = samples.get(name) or configurations_of(target, arguments.plans)
            mine = [one for one in mine if not one[2].startswith(getattr(target, "left_out", ())) and
                    (arguments.engine is None or (one[0] + "-").startswith(arguments.engine + "-"))]
            jobs += [(name, target, engine, configuration, source, options, work)
                     for engine, configuration, source, options in mine]
        with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
            for line, good in pool.map(compile_one, jobs):
                print(line, flush=True)
                failed += not good
    print(f"{len(jobs)} compiled, {failed} failed")
    if failed:
        return 1
    return 0 if jobs else 77


if __name__ == "__main__":
    sys.exit(main())
