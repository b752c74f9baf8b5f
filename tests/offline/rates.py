# SPDX-License-Identifier: Apache-2.0
"""What a tile of the matrix engine's kernels takes on an NVIDIA GPU, by its machine code, and the rates that model.py makes
of it: for matrix.py."""
import dataclasses

import compile as offline
import model
import passes
import predictions

ARCHITECTURE = "sm_90"
TILE_KEYS, FRAGMENT_ROWS = 8, 16
EDGE = 8  # rows, or keys, of a block or tile that is not whole
# Kinds of instructions of a table, by their mnemonics; the rest are integers, addresses and control.
KINDS = {"LDSM": ("LDSM",), "MUFU": ("MUFU",), "F2FP": ("F2FP",), "FMNMX": ("FMNMX",),
         "FFMA, FADD, FMUL": ("FFMA", "FADD", "FMUL"), "FSEL, FSETP": ("FSEL", "FSETP"),
         "LDS, STS": ("LDS", "STS"), "LDGSTS": ("LDGSTS",), "LDG": ("LDG",), "MOV": ("MOV", "HFMA2", "CS2R"),
         "SHFL": ("SHFL",)}
MUFU_RATE = 0.5  # instructions of a warp that a multiprocessor takes in a cycle
# The most issue slots and passes through the banks, to the cycles of products or of exponentials, whichever are more, by
# words of a configuration and a kernel: what they take now. The aim is 1 for all.
LIMITS = {("-tf32-", "forward"): (0.75, 1.45), ("-f32-", "forward"): (0.8, 1.1),
          ("smgk2-bf16-64", "forward"): (1.7, 1.95), ("smgk2-bf16-128", "forward"): (1.0, 1.8),
          ("mgk4", "forward"): (2.2, 1.8), ("mgk2", "forward"): (1.35, 1.75), ("softmax", "forward"): (0.9, 1.5),
          ("-tf32-", "backward"): (0.85, 1.25), ("-tf32-", "backward_queries"): (0.8, 1.3),
          ("-f32-", "backward"): (0.75, 0.95), ("-f32-", "backward_queries"): (0.85, 1.0),
          ("softmax", "backward"): (0.95, 1.5), ("softmax", "backward_queries"): (0.95, 1.5),
          ("smgk2-bf16-128", "backward"): (1.8, 2.3), ("smgk2", "backward"): (1.8, 2.15),
          ("smgk2", "backward_queries"): (2.35, 2.05),
          ("mgk2", "backward"): (2.0, 2.3), ("mgk2", "backward_queries"): (2.0, 2.0),
          ("hard-fish2-bf16-128", "admixture_forward"): (2.0, 2.35),
          ("hard-fish", "admixture_forward"): (2.15, 2.3), ("hard-mish", "admixture_forward"): (1.5, 1.7),
          ("-bf16-128", "admixture_backward"): (2.7, 3.4), ("-bf16-128", "admixture_backward_queries"): (2.4, 3.2),
          ("hard-fish", "admixture_backward"): (2.7, 2.65), ("hard-fish", "admixture_backward_queries"): (2.4, 2.25)}
# The same where four warps multiply together, which takes two thirds of the cycles.
WGMMA_LIMITS = {("-tf32-", "forward"): (0.95, 1.4), ("mgk4-f32-", "forward"): (1.25, 1.1), ("-f32-", "forward"): (0.85, 1.15),
                ("softmax-bf16-128", "forward"): (1.05, 0.95), ("softmax-f16-128", "forward"): (1.05, 0.95),
                ("softmax", "forward"): (1.3, 0.95), ("mgk4", "forward"): (1.55, 1.0), ("smgk2", "forward"): (2.15, 1.6),
                ("mgk2", "forward"): (1.6, 1.15), ("hard-fish2-bf16-128", "admixture_forward"): (2.0, 2.2),
                ("hard-fish", "admixture_forward"): (2.55, 1.15), ("hard-mish", "admixture_forward"): (1.75, 1.3),
                ("-tf32-", "backward"): (0.85, 1.05), ("-tf32-", "backward_queries"): (0.9, 1.15),
                ("-f32-", "backward"): (0.75, 0.9), ("-f32-", "backward_queries"): (0.85, 0.97),
                ("softmax", "backward"): (1.1, 1.0), ("softmax", "backward_queries"): (1.05, 0.8),
                ("smgk2", "backward"): (2.15, 1.7), ("smgk2", "backward_queries"): (2.25, 1.3),
                ("mgk2", "backward"): (1.2, 1.0), ("mgk2", "backward_queries"): (1.4, 1.0),
                ("hard-fish2-bf16-128", "admixture_backward"): (2.4, 2.0),
                ("hard-fish2-bf16-128", "admixture_backward_queries"): (1.9, 1.75),
                ("hard-fish", "admixture_backward"): (4.3, 2.3), ("hard-fish", "admixture_backward_queries"): (3.35, 2.0),
                ("hard-mish", "admixture_backward"): (1.75, 1.95), ("hard-mish", "admixture_backward_queries"): (1.6, 1.75)}


class Tile:
    """The counts of a further tile of a kernel's work-group."""

    def __init__(self, name, step, program, counts, tiles):
        self.name, self.step, self.figures = name, step, program.figures
        more, fewer = counts
        self.counts = {key: (more[key] - fewer[key]) / tiles for key in more}
        self.rows = FRAGMENT_ROWS * get(step, "WARPS") * get(step, "ROW_TILES")
        self.keys = TILE_KEYS * get(step, "KEY_TILES")
        self.resident = self.figures["groups"]

    @property
    def kernel(self):
        return self.step.kernel.removeprefix("mixture_")

    @property
    def by_four(self):
        """Whether four warps multiply together (wgmma)."""
        return self.counts.get("hgmma", 0) > 0

    def products(self):
        """Of 16 x 8 x 16."""
        return self.counts.get("hmma", 0) + self.counts.get("hgmma", 0)

    def per_product(self, mnemonics):
        return sum(self.counts.get(one, 0) for one in mnemonics) / self.products()

    def others(self):
        """Instructions that are no product, for each product."""
        return (self.counts["slots"] - self.counts.get("HMMA", 0) - self.counts.get("HGMMA", 0)) / self.products()

    def tile(self):
        """For the model."""
        c, unit = self.counts, "hgmma" if self.by_four else "hmma"  # of both kinds, as the tables say
        return model.Tile(slots=c["slots"] / 4, fma=0, banks=c["passes"], load_bytes=c.get("load bytes", 0),
                          barriers=c["barriers"] * 32 / self.step.threads, waits=c.get("waits", 0),
                          mufu=c["mufu"], copied=c.get("copied bytes", 0), **{unit: self.products()})

    def summary(self):
        c = self.counts
        return (f"{self.rows} x {self.keys} {self.resident} resident {self.figures['registers']:4d} registers "
                f"{c['slots']:6.0f} slots {self.products():5.0f} products {c['mufu']:5.0f} MUFU {c['passes']:5.0f} passes "
                f"{self.others():5.2f} others for each product, {c.get('stack', 0):.0f} of spilled registers")

    def over_limits(self):
        """What keeps the multiprocessor busier than products and exponentials do."""
        c = self.counts
        units = max(model.HMMA * c.get("hmma", 0) + model.HGMMA * c.get("hgmma", 0), c["mufu"] / MUFU_RATE)
        most = next((limit for (name, kernel), limit in (WGMMA_LIMITS if self.by_four else LIMITS).items()
                     if name in self.name and kernel == self.kernel), (1, 1))
        return [f"{self.name}, {self.kernel}: {what} take {cycles / units:.2f} of the units' cycles, at most {limit}"
                for what, cycles, limit in (("issue slots", c["slots"] / 4, most[0]),
                                            ("banks of local memory", c["passes"], most[1])) if cycles > limit * units]

    def row(self):
        """A table's cells, under predictions.MATRIX_COLUMNS or WGMMA_COLUMNS; the times are those of the counts as they are
        shown."""
        tile = self.tile()
        tile = dataclasses.replace(tile, **{name: round(value) for name, value in vars(tile).items() if isinstance(value, float)})
        ms = [predictions.matrix_ms(tile, self.rows, self.keys, self.resident, causal) for causal in (False, True)]
        return [f"{self.name}, {self.kernel}", f"{self.rows} x {self.keys}", self.resident,
                *(f"{x:.0f}" for x in (tile.slots, self.products(), tile.mufu, tile.banks, tile.load_bytes, tile.barriers,
                                       tile.waits, *([tile.copied] if self.by_four else []))),
                self.figures["registers"], f"{self.others():.2f}", *(f"{x:.3f}" for x in ms)]

    def kinds(self):
        """(Kind, instructions for each product)."""
        own = {kind: self.per_product(names) for kind, names in KINDS.items()}
        return {**own, "integers, addresses, control": self.others() - sum(own.values())}


def get(step, name):
    return offline.tunable(step.options, name, 0)


def heads_of(name):
    """Mixed heads: as many as a block holds."""
    return 4 if "fish" in name or "mish" in name else 1


def lengths_of(name, parameters, plans):
    """N and S of two problems, which differ by whole tiles or blocks. Each has a block of few rows and a tile of few keys,
    too."""
    plan = passes.Plan(plans, name, {"batch": 1, "heads": heads_of(name), "parameters": parameters})
    main = next(step for step in plan.steps if get(step, "KEY_TILES"))
    rows, keys = FRAGMENT_ROWS * get(main, "WARPS") * get(main, "ROW_TILES"), TILE_KEYS * get(main, "KEY_TILES")
    if "backward" not in name:
        return [(rows + EDGE, count * keys + EDGE) for count in (2, 4)]
    block = max(rows, keys)
    return [(count * block + EDGE, count * block + EDGE) for count in (1, 2)]


def programs_of(name):
    """(File, options) of a configuration's lines; of a program with several lines, the first one has it."""
    return [key for key, line in passes.configurations().items() if line.split()[1] == name]


def own_parameters(name):
    """Those with which short problems have the blocks of a configuration."""
    tiles = [offline.tunable(options, "ROW_TILES", 0) for _, options in programs_of(name)]
    return f"splits=1,row-tiles={max(tiles)}"


def measure(name, programs, plans, parameters=None):
    """(Tiles of a configuration's kernels, faults of the results of the smaller problem)."""
    parameters = parameters or own_parameters(name)
    lengths = lengths_of(name, parameters, plans)
    short, long = (passes.Pass(passes.Plan(plans, name, {"batch": 1, "heads": heads_of(name), "length": n, "length_k": s,
                                                          "parameters": parameters})) for n, s in lengths)
    few = short.run(programs)
    known, executed = passes.configurations(), {(step.source, tuple(step.options)) for step in short.plan.steps}
    faults = short.faults()
    faults += [f"{source} has other options than in configurations.txt" for source, options in executed
               if (source, options) not in known]
    faults += [f"{source} is in configurations.txt and was not executed" for source, options in programs_of(name)
               if (source, options) not in executed and source != "attention/reduce.cl"]  # its form depends on lengths
    # the first or the last work-group has the block of few rows, and stores less than the other
    whole = [0 if first["STG"] >= last["STG"] else -1 for _, _, first, last in few]
    tiles = []
    for place, (_, _, *fewer), (step, program, more, _) in zip(whole, few, long.run(programs, only=whole)):
        if more["hmma"] + more["hgmma"]:
            further = (lengths[1][1] - lengths[0][1]) / (TILE_KEYS * get(step, "KEY_TILES"))
            tiles.append(Tile(name, step, program, (more, fewer[place]), further))
    return tiles, faults
