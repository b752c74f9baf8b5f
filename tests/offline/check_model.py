#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks the model of GPU kernels' times, and that docs/gpu-bounds.md follows from it: each row of its first table from
the row's own counts, the launches of measured.txt and the measurements; and the errors that its text states. Compiles
nothing."""
import re
import unittest

import model
import predictions

DOCUMENT = predictions.HERE.parent.parent / "docs/gpu-bounds.md"


def rows(columns=None):
    """The cells by their column of the table with these columns."""
    columns = columns or predictions.LAUNCH_COLUMNS
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in DOCUMENT.read_text().splitlines()]
    begin = lines.index(columns)
    for cells in lines[begin + 2:]:
        if len(cells) != len(columns):
            return
        yield dict(zip(columns, cells))


def figures_of(row):
    height, width = map(int, row["tile"].split(" x "))
    tile = model.Tile(*(float(row[name]) for name in ("slots", "FMA", "banks", "bytes", "barriers", "waits")))
    return {"tile": tile, "rows": height, "keys": width, "resident": int(row["resident"])}


class Document(unittest.TestCase):
    def test_rows(self):
        launches = {f"{launch.shape}, {launch.kernel}": launch
                    for launch in predictions.read_launches(predictions.MEASURED_LAUNCHES)}
        times, seen = predictions.measured(), set()
        for row in rows():
            name = row["shape, kernel"]
            launch = launches[name]
            seen.add((launch.shape, launch.kernel))
            self.assertEqual(int(row["groups"]), launch.groups, name)
            ms = predictions.predict(launch, figures_of(row))
            # counts are printed as whole numbers
            self.assertAlmostEqual(float(row["predicted ms"]), ms, delta=0.001 + 2e-4 * ms, msg=name)
            real = times.get((launch.shape, launch.kernel))
            self.assertEqual(row["measured"], f"{real:.3f}" if real else "", name)
            error = 100 * (float(row["predicted ms"]) / real - 1) if real else 0
            self.assertEqual(row["off by"], f"{error:+.0f} %" if real else "", name)
        self.assertLessEqual(set(times), seen, "measurements without a row")

    def test_errors(self):
        """The text's numbers: how many are near, and how near these are."""
        errors = [100 * (float(row["predicted ms"]) / float(row["measured"]) - 1) for row in rows() if row["measured"]]
        stated = re.search(r"within (\d+) % of (\d+) of (\d+) measured times, (\d+) % in the root of the mean square of "
                           r"these", re.sub(r"\s+", " ", DOCUMENT.read_text()))
        self.assertIsNotNone(stated)
        most, near, count, average = map(int, stated.groups())
        self.assertEqual(count, len(errors))
        good = [error for error in errors if abs(error) < most + 0.5]
        self.assertEqual(near, len(good))
        self.assertEqual(average, round((sum(error ** 2 for error in good) / near) ** 0.5))


def matrix_tile(row):
    """Of a table of mma.sync, or of wgmma, which counts copies."""
    counts = {name: float(row[name]) for name in predictions.WGMMA_COUNTS[2:] if name in row}
    unit = {"hgmma": counts["products"], "mufu": counts["MUFU"], "copied": counts["copied"]} if "copied" in row else \
        {"hmma": counts["products"]}
    tile = model.Tile(slots=counts["slots"], fma=0, banks=counts["banks"], load_bytes=counts["bytes"],
                      barriers=counts["barriers"], waits=counts["waits"], **unit)
    return (tile, *map(int, row["tile"].split(" x ")), int(row["resident"]))


class MatrixEngine(unittest.TestCase):
    def test_prototypes(self):
        """What ran on a card is predicted within 10 %."""
        for columns, count in ((predictions.PROTOTYPE_COLUMNS, 7), (predictions.WGMMA_PROTOTYPE_COLUMNS, 6)):
            found = list(rows(columns))
            self.assertEqual(len(found), count)
            for row in found:
                name = row[columns[0]]
                size, causal = int(re.search(r"D = (\d+)", name)[1]), "causal" in name
                rate = predictions.matrix_tflops(size, predictions.matrix_ms(*matrix_tile(row), causal), causal)
                self.assertAlmostEqual(float(row["predicted TFLOP/s"]), rate, delta=0.5, msg=name)
                error = 100 * (rate / float(row["measured"]) - 1)
                self.assertEqual(row["off by"], f"{error:+.0f} %")
                self.assertLess(abs(error), 10)

    def test_rows(self):
        for columns in (predictions.MATRIX_COLUMNS, predictions.WGMMA_COLUMNS):
            found = list(rows(columns))
            for row in found:
                tile = matrix_tile(row)
                for column, causal in (("ms", False), ("causal", True)):
                    ms = predictions.matrix_ms(*tile, causal)
                    self.assertAlmostEqual(float(row[column]), ms, delta=0.001 + 2e-3 * ms, msg=row)
            self.assertGreater(len(found), 4)

    def test_products(self):
        """Of matrices; a step along K is 32 numbers deep."""
        for row in rows(predictions.PRODUCT_COLUMNS):
            counts = {name: float(row[name]) for name in ("slots", "banks", "barriers", "waits", "copied")}
            unit = "hgmma" if row["product"].endswith("-wgmma") else "hmma"
            tile = model.Tile(fma=0, load_bytes=0, **counts, **{unit: float(row["products"])})
            depth = 16 if "f32" in row["product"] or unit == "hgmma" else 32  # of tf32, too
            ms = predictions.product_ms(tile, int(row["resident"]), int(row["groups"]), depth)
            self.assertAlmostEqual(float(row["ms"]), ms, delta=0.001 + 2e-3 * ms, msg=row)
            self.assertAlmostEqual(float(row["TFLOP/s"]), predictions.product_tflops(ms), delta=2, msg=row)


class Model(unittest.TestCase):
    tile = model.Tile(slots=8000, fma=6400, banks=4000, load_bytes=32768, barriers=10, waits=500)

    def test_tile(self):
        alone = model.tile_cycles(self.tile, 1)
        units, memory = 8000 + 0.16 * 6400, 4000 + 256
        self.assertAlmostEqual(alone, (units ** 4 + memory ** 4) ** 0.25 + 10 * model.BARRIER + 500 * model.WAIT)
        times = [model.tile_cycles(self.tile, count) for count in range(1, 9)]
        self.assertEqual(times, sorted(times, reverse=True))  # more residents, more of the units' time is used
        self.assertGreater(times[-1], units)
        self.assertLess(times[-1], 1.05 * (units ** 4 + memory ** 4) ** 0.25)

    def test_waves(self):
        ms = [model.kernel_ms(self.tile, 1, [16] * groups) for groups in (1, 132, 133, 264)]
        self.assertEqual(ms[0], ms[1])
        self.assertAlmostEqual(ms[2], 2 * ms[0])
        self.assertEqual(ms[2], ms[3])
        # Two residents: of 133 work-groups, one multiprocessor has two.
        self.assertEqual(model.kernel_ms(self.tile, 2, [16] * 132), ms[0])
        self.assertLess(model.kernel_ms(self.tile, 2, [16] * 133), ms[2])

    def test_order(self):
        lengths = [1] * 132 + [64]
        times = [model.kernel_ms(self.tile, 1, order) for order in (lengths, lengths[::-1])]
        self.assertGreater(times[0], times[1])
        self.assertAlmostEqual(times[1], model.kernel_ms(self.tile, 1, [64]))

    def test_residents_of_unequal_length(self):
        """A long work-group has its multiprocessor for itself when the short one beside it has ended, which it does at
        half of the pace; the next begins where one has ended."""
        short, long = model.kernel_ms(self.tile, 2, [1]), model.kernel_ms(self.tile, 2, [64])
        beside = model.kernel_ms(self.tile, 2, [64] * 132 + [1] * 132)
        self.assertGreater(beside, long + 0.5 * short)
        self.assertLess(beside, long + short)
        next_ones = model.kernel_ms(self.tile, 2, [64] * 132 + [1] * 5 * 132)
        self.assertGreater(next_ones, long + 2.5 * short)
        self.assertLess(next_ones, long + 5 * short)


class Launches(unittest.TestCase):
    def test_tiles(self):
        """All launches together visit all pairs of tiles, causal ones about half of them."""
        figures = {"rows": 128, "keys": 64}
        for launch in predictions.read_launches(predictions.MEASURED_LAUNCHES):
            if launch.source != "mixture/forward.cl":
                continue
            blocks = launch.heads * launch.queries // 128
            launch = launch._replace(groups=blocks * 2)
            pairs = launch.heads * launch.queries * launch.keys / (128 * 64)
            lengths = predictions.lengths_of(launch, figures)
            self.assertEqual(len(lengths), launch.groups)
            self.assertAlmostEqual(sum(lengths) / pairs, 1 if launch.mask == "full" else 0.5, delta=0.05)
            self.assertEqual(lengths[0], max(lengths))


if __name__ == "__main__":
    unittest.main()
