#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""benchmarks/scaling.py finds the model behind numbers that a model made."""
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "benchmarks" / "scaling.py"
PAIR, LATENCY, BYTE, TOKEN = 1e-8, 5e-4, 2e-9, 2000  # seconds; bytes of a token


def row(ranks, tokens):
    pairs, sent = tokens * tokens / 2, ranks * (ranks - 1) * TOKEN * tokens / ranks
    time = pairs * PAIR / ranks + (ranks - 1) * LATENCY + sent / ranks * BYTE
    return {"schedule": "all-gather", "pass": "forward", "ranks": ranks, "tokens": tokens, "pairs": pairs, "bytes": sent,
            "time_ms": 1e3 * time}


class Scaling(unittest.TestCase):
    def run_script(self, rows, *options):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "rows.json"
            path.write_text(json.dumps({"parallel": rows}))
            return subprocess.run([sys.executable, "-B", SCRIPT, path, *options], capture_output=True, text=True)

    def test_fit(self):
        done = self.run_script([row(ranks, tokens) for ranks in (1, 2, 4) for tokens in (512, 2048)], "--tokens", "1000")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("100 Mpair/s, 500 us and 2 ns/byte of a message, 2000 bytes of a token; by the model 1.00 to 1.00", done.stdout)
        self.assertIn("below 910 tokens of a device", done.stdout)  # n * n * 1e-8 / 2 = 5e-4 + n * 2000 * 2e-9
        self.assertIn("| 1 | 1000 | 0.005 | 1 | 0.005 | 1 | 1, 1 |", done.stdout)
        self.assertIn("| 1024 | 1024000 | 5.12 | 1 | 9.72 | 0.53 |", done.stdout)

    def test_another_device(self):
        done = self.run_script([row(1, 512), row(2, 512), row(2, 1024)], "--rate", "10", "--line", "1", "--latency", "0")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("below 4000 tokens of a device", done.stdout)

    def test_one_rank(self):
        done = self.run_script([row(1, 512)])
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("of one rank and of several", done.stderr)


if __name__ == "__main__":
    unittest.main()
