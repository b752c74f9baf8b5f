# SPDX-License-Identifier: Apache-2.0
"""Products of matrices by the matrix engine's fragments (cl/gemm/fragments.cl) as plans launch them on an NVIDIA GPU, with
the combination of ranges of K (offline_plans product), executed by warps.py and compared with numpy, and what a step along
K takes: for run.py."""
import dataclasses

import numpy as np

import passes
import warps
from machine import offline

SMALL = "unit=1,warps=2,column-warps=1,row-tiles=1,column-tiles=4,depth=32,stages=3"  # blocks of 32 x 32
GROUP = "unit=2,row-tiles=1,column-tiles=8"  # of 64 x 64
PARAMETERS = {"unit": "MATRIX_UNIT", "warps": "WARPS", "column-warps": "COLUMN_WARPS", "row-tiles": "ROW_TILES",
              "column-tiles": "COLUMN_TILES", "depth": "DEPTH", "stages": "STAGES", "slices": "BF16_SLICES"}
BLOCK, STEPS = 128, (5, 8)  # of the products of which a step is counted
PRODUCT_SIZE = 4096
COLUMNS = ["product", "groups", "resident", "registers", "spilled", "instructions", "products", "passes", "copied", "loaded", "barriers"]
FEW = "f32x4"  # of four products of tf32, which plans have for up to so many numbers of K
FEW_NUMBERS, FEW_STEPS = 64, (2, 4)


@dataclasses.dataclass(frozen=True)
class Case:
    """`offsets`: of the first elements of A, B and C in their buffers. `limits`: the configuration whose limits hold."""
    name: str
    fields: tuple
    alpha: float = 1
    beta: float = 0
    offsets: tuple = (0, 0, 0)
    limits: str = ""


def case(name, m, n, k, form="nn", alpha=1, beta=0, offsets=(0, 0, 0), limits="", **fields):
    own = {"m": m, "n": n, "k": k, "transpose_a": int(form[0] == "t"), "transpose_b": int(form[1] == "t"),
           "dtype": passes.BF16, "parameters": SMALL, **fields}
    return Case(f"product-{name}", tuple(own.items()), alpha, beta, offsets, limits)


# The quick tier has those before FULL.
CASES = [case("nt-edges", 40, 48, 88, "nt", 0.5, 2), case("tn-f16", 72, 40, 64, "tn", dtype=passes.F16),
         case("nn-f32", 40, 44, 88, "nn", 0.5, 2, dtype=passes.F32),
         case("wgmma-nt-edges", 72, 104, 88, "nt", 0.5, 2, parameters=GROUP),
         case("wgmma-nn-slices-edges", 72, 104, 88, "nn", 0.5, 2, dtype=passes.F32, parameters=GROUP)]
FULL = [
    case("tt-f32-edges", 40, 33, 70, "tt", dtype=passes.F32),
    *(case(f"{form}-f32-of-few", 33, 47, 19, form, dtype=passes.F32, offsets=(1, 2, 3)) for form in ("nn", "nt", "tn", "tt")),
    *(case(f"{form}-f32-as-planned", 150, 140, 68, form, dtype=passes.F32, parameters="unit=1,row-tiles=4,column-tiles=8",
           limits=f"product-f32-{form}") for form in ("nn", "nt", "tn", "tt")),
    case("nt-tf32", 40, 44, 88, "nt", dtype=passes.F32, precision=1),
    case("tn-tf32", 40, 44, 88, "tn", dtype=passes.F32, precision=1),
    case("nn-tf32-long-sums", 16, 16, 8256, dtype=passes.F32, precision=1),
    case("nn-f32-deep-wide", 40, 44, 100, dtype=passes.F32, parameters="unit=1,warps=2,row-tiles=2,column-tiles=2,depth=64"),
    case("nt-f32-deep", 40, 44, 100, "nt", dtype=passes.F32, parameters=SMALL.replace("depth=32", "depth=64")),
    case("nn-f32-batch", 33, 34, 40, batch=2, stride_a=33 * 40, stride_b=0, stride_c=33 * 34 + 2, dtype=passes.F32, beta=1),
    case("nn-ranges", 40, 48, 200, parameters=SMALL + ",splits=4", alpha=-1, beta=0.5, batch=2, stride_c=40 * 48 + 3),
    case("tn-f32-ranges", 40, 33, 150, "tn", dtype=passes.F32, parameters=SMALL + ",splits=4"),
    case("wgmma-nt-ranges", 70, 72, 300, "nt", parameters=GROUP + ",splits=4"),
    case("nn-unaligned", 33, 37, 45, offsets=(1, 3, 5), alpha=-1, beta=0.5),
    case("tt-gaps", 40, 33, 70, "tt", lda=50, ldb=76, ldc=41),
    case("nt-batch", 33, 34, 32, "nt", batch=2, stride_a=33 * 32 + 8, stride_b=0, stride_c=33 * 34 + 2),
    case("nn-long-sums", 16, 16, 8256),
    *(case(f"{form}-as-planned", 150, 140, 104, form, parameters="unit=1,row-tiles=4,column-tiles=8")
      for form in ("nn", "nt", "tn", "tt")),
    *(case(f"wgmma-{form}-f16", 70, 72, 104, form, dtype=passes.F16, parameters=GROUP) for form in ("nn", "nt", "tn", "tt")),
    case("wgmma-unaligned", 65, 77, 45, "nt", offsets=(1, 3, 5), parameters=GROUP),
    case("wgmma-eight-warps", 200, 140, 104, parameters="unit=2,warps=8,row-tiles=2,column-tiles=16,stages=2"),
    case("wgmma-three-stages", 70, 72, 200, "nt", parameters=f"{GROUP},depth=32,stages=3"),
    case("wgmma-deep", 70, 72, 200, "nt", parameters=f"{GROUP},depth=64,stages=3"),
    case("wgmma-long-sums", 40, 40, 8256, parameters=GROUP),
    *(case(f"wgmma-{form}-slices-as-planned", 150, 140, 104, form, dtype=passes.F32,
           parameters="unit=2,row-tiles=2,column-tiles=16", limits=f"product-f32-{form}-wgmma") for form in ("nn", "nt", "tn", "tt")),
    *(case(f"wgmma-{form}-slices", 70, 72, 104, form, dtype=passes.F32, parameters=GROUP) for form in ("nt", "tn", "tt")),
    *(case(f"wgmma-{form}-slices-tf32", 70, 72, 40, form, dtype=passes.F32, precision=1, parameters=GROUP)
      for form in ("nn", "nt", "tn", "tt")),
    case("wgmma-slices-unaligned", 65, 77, 75, "nt", offsets=(1, 3, 5), alpha=-1, beta=0.5, dtype=passes.F32, parameters=GROUP),
    case("wgmma-slices-batch", 65, 66, 72, "tn", batch=2, stride_a=65 * 72 + 8, stride_b=0, stride_c=65 * 66 + 2, beta=1,
         dtype=passes.F32, parameters=GROUP),
    case("wgmma-slices-ranges", 70, 72, 300, "nn", dtype=passes.F32, parameters=GROUP + ",splits=4"),
    case("wgmma-slices-eight-warps", 200, 140, 104, "tt", dtype=passes.F32,
         parameters="unit=2,warps=8,row-tiles=1,column-tiles=8"),
    case("wgmma-slices-deep", 70, 72, 200, "nt", dtype=passes.F32, parameters=f"{GROUP},depth=64"),
    case("wgmma-slices-tf32-long-sums", 40, 40, 2104, dtype=passes.F32, precision=1, parameters=GROUP),
]


class Product:
    def __init__(self, plans, one):
        given = dict(one.fields)
        self.plan = passes.Plan(plans, None, {**given, "alpha": one.alpha, "beta": one.beta})
        self.one, self.x, self.step = one, self.plan.problem, self.plan.steps[0]
        self.size = 4 if self.x["dtype"] == passes.F32 else 2
        self.starts = {**dict(zip("abc", one.offsets)), "workspace": 0}
        self.memory, self.values = passes.Memory(), {}
        for name in "abc":
            rows, columns, ld, stride = self.layout(name)
            self.memory.add(name, (self.x["batch"] - 1) * stride + (rows - 1) * ld + columns, self.size, self.starts[name])
        self.memory.add("workspace", self.plan.workspace // 4, 4, 0)
        self.memory.make()
        self.memory.view("workspace", (self.plan.workspace // 4,), (1,), 4)[1][...] |= warps.WRITE
        random = np.random.default_rng(1)
        for name in "abc":
            self.put(name, random.standard_normal(self.shape(name)))

    def layout(self, name):
        x = self.x
        if name == "a":
            return *((x["k"], x["m"]) if x["transpose_a"] else (x["m"], x["k"])), x["lda"], x["stride_a"]
        if name == "b":
            return *((x["n"], x["k"]) if x["transpose_b"] else (x["k"], x["n"])), x["ldb"], x["stride_b"]
        return x["m"], x["n"], x["ldc"], x["stride_c"]

    def shape(self, name):
        return self.x["batch"], *self.layout(name)[:2]

    def view(self, name):
        _, _, ld, stride = self.layout(name)
        return self.memory.view(name, self.shape(name), (stride, ld, 1), self.size)

    def put(self, name, values):
        """Gaps, and C where it is not read, stay NaN."""
        view, access = self.view(name)
        self.values[name] = np.zeros(self.shape(name))
        if name != "c" or self.one.beta:
            pattern, self.values[name] = passes.stored(values, self.x["dtype"])
            view[...] = pattern.view(view.dtype)
        if name == "c":
            access[...] |= warps.WRITE

    def bank(self, step):
        bank = bytearray(1 << 12)
        bank[0:4] = step.threads.to_bytes(4, "little")
        bank[0x28:0x2c] = warps.STACK.to_bytes(4, "little")
        data = step.arguments + b"".join(self.starts[name].to_bytes(8, "little") for name in step.names)
        data += b"".join((warps.GLOBAL + self.memory.place[name][0]).to_bytes(8, "little") for name in step.names)
        bank[warps.PARAMETERS:warps.PARAMETERS + len(data)] = data
        return bytes(bank)

    def run(self, programs, most=None):
        """(Program, counts of the first work-group)."""
        results = []
        for step in self.plan.steps:
            program, groups = programs.get(step.source, step.options), step.items // step.threads
            counts = [warps.Group(program.kernels[step.kernel], step.threads, self.bank(step), self.memory.bytes, number,
                                  program.tables, self.memory.access, program.figures["B local"]).run()
                      for number in range(min(groups, most or groups))]
            results.append((program, counts[0]))
        return results[0]

    def faults(self):
        a, b = (np.swapaxes(self.values[name], 1, 2) if self.x[f"transpose_{name}"] else self.values[name] for name in "ab")
        exact = self.one.alpha * (a @ b) + self.one.beta * self.values["c"]
        terms = abs(self.one.alpha) * (abs(a) @ abs(b)) + abs(self.one.beta * self.values["c"])
        given = passes.loaded(np.ascontiguousarray(self.view("c")[0]), self.x["dtype"])
        rounding = 2.0 ** {passes.F32: -24, passes.F16: -11, passes.BF16: -8}[self.x["dtype"]]
        factors = 2.002 * 2.0 ** -11 if self.x["precision"] else 0
        limit = ((self.x["k"] + 4) * 2.0 ** -24 + factors) * terms + rounding * abs(exact)
        error = abs(given - exact) / (limit + 1e-30)
        return [] if (error <= 1).all() else [f"C is wrong by {np.nanmax(error):.1f} times its limit"
                                              f"{', with NaN' if np.isnan(error).any() else ''}"]


def run_case(one, programs, plans):
    product = Product(plans, one)
    program, counts = product.run(programs)
    faults = product.faults() + over_limits(one.limits or one.name, product.step, program, programs.target.kind)
    text = (f"{one.name:28s} {program.figures['registers']} registers, {counts['products']} products, "
            f"{counts['slots']} slots, {counts['BAR']} barriers of warps in the first group")
    return f"{text}  {'FAILED: ' + '; '.join(faults) if faults else 'right'}", not faults


def over_limits(name, step, program, kind):
    most = offline.limits("sm_90", kind, name, step.source, step.options)
    return [f"{figure} {program.figures[figure]}, at most {most[figure]}" for figure in ("B spilled", "B stack")
            if program.figures[figure] > most[figure]]


def storage_of(name):
    return name.split("-")[1]


def is_few(name):
    return storage_of(name) == FEW


def fields_of(name):
    """Of a configuration's product, but its sizes."""
    storage, form = name.split("-")[1:3]
    return {"transpose_a": int(form[0] == "t"), "transpose_b": int(form[1] == "t"), "precision": int(storage == "tf32"),
            "dtype": {"f16": passes.F16, "bf16": passes.BF16}.get(storage, passes.F32),
            "parameters": f"unit={2 if name.endswith('-wgmma') else 1}"}


def step_of(name, plans):
    """Of the product of PRODUCT_SIZE."""
    size = PRODUCT_SIZE
    return passes.Plan(plans, None, {**fields_of(name), "m": size, "n": size, "k": FEW_NUMBERS if is_few(name) else size}).steps[0]


def depth_of(name, step):
    """Numbers of K of a step along K."""
    return offline.tunable(step.options, "DEPTH", 0) // (1 if storage_of(name) in ("f16", "bf16") else 2)


def short_product(name, step, steps, plans):
    """A block by the program of `step`, of so many steps along K."""
    own = ",".join(f"{option}={offline.tunable(step.options, macro, 0)}" for option, macro in PARAMETERS.items())
    return Product(plans, Case(name, tuple({**fields_of(name), "m": BLOCK, "n": BLOCK, "k": steps * depth_of(name, step),
                                            "parameters": own}.items())))


class Step:
    """What a step along K takes of a configuration's work-group, in a product of PRODUCT_SIZE."""

    def __init__(self, name, programs, plans):
        lengths = FEW_STEPS if is_few(name) else STEPS
        self.name, self.step = name, step_of(name, plans)
        self.groups = self.step.items // self.step.threads
        runs, self.faults = [], []
        for steps in lengths:
            product = short_product(name, self.step, steps, plans)
            program, counts = product.run(programs)
            runs.append(counts)
            self.faults += product.faults() + over_limits(name, product.step, program, programs.target.kind)
            if product.step.options != self.step.options:
                self.faults.append("has other options than the product of its size")
        fewer, more = runs
        self.counts = {key: (more[key] - fewer[key]) / (lengths[1] - lengths[0]) for key in more}
        self.figures, self.depth = program.figures, depth_of(name, self.step)

    def row(self):
        """A table's cells, under COLUMNS."""
        names = ("slots", "products", "passes", "copied bytes", "load bytes", "BAR")
        return [self.name, self.groups, *(self.figures[name] for name in ("groups", "registers", "B spilled")),
                *(f"{self.counts.get(name, 0):.0f}" for name in names)]


def run_configuration(name, programs, plans):
    one = Step(name, programs, plans)
    line = ", ".join(f"{label} {cell}" for label, cell in zip(COLUMNS[1:], one.row()[1:]))
    return f"{name:28s} {line}  {'FAILED: ' + '; '.join(one.faults) if one.faults else 'right'}", not one.faults
