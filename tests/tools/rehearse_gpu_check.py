# SPDX-License-Identifier: Apache-2.0
"""tools/gpu-check.sh from the bundle to the last stage, as on a card, with few and small cases."""
import json
import os
import pathlib
import signal
import subprocess
import tempfile
import time
import unittest

BUILD = pathlib.Path(os.environ["CLMGK_BIN"]).parent
SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "tools" / "gpu-check.sh"
STAGES = ("facts", "matrix", "golden", "numbers", "tensors", "table", "builds", "tune", "profile", "bench", "peaks")
MOST_BYTES = 64 << 20


class Rehearsal(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)
        prepared = cls.folder / "here" / "bundle"
        subprocess.run(["bash", SCRIPT, "prepare", "--build", BUILD, "--output", prepared], check=True)
        cls.archive = prepared.with_suffix(".tar.gz")
        subprocess.run(["tar", "xf", cls.archive], cwd=cls.folder, check=True)
        cls.bundle = cls.folder / "bundle"

    def command(self, results, *arguments):
        return ["bash", self.bundle / "gpu-check.sh", "--rehearse", "--output", self.folder / results, *arguments]

    def run_script(self, results, *arguments):
        environment = {**os.environ, "TMPDIR": str(self.folder)}
        return subprocess.run(self.command(results, *arguments), capture_output=True, text=True, check=False,
                              env=environment, cwd=self.folder)

    def accept(self, *arguments):
        done = self.run_script(*arguments)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done

    def answers(self, results, name):
        return [json.loads(line) for line in (self.folder / results / f"{name}.jsonl").read_text().splitlines()]

    def test_bundle_is_small(self):
        self.assertLess(self.archive.stat().st_size, MOST_BYTES)
        unpacked = sum(path.stat().st_size for path in self.bundle.rglob("*") if path.is_file())
        self.assertLess(unpacked, MOST_BYTES)

    def test_all(self):
        done = self.accept("results", "all")
        found = {stage: self.answers("results", stage) for stage in STAGES}
        self.assertEqual([answer["stage"] for answer in self.answers("results", "stages")], list(STAGES))
        self.assertEqual({answer["build"] for answer in found["builds"]}, {"CL_SUCCESS"})
        self.assertGreater(found["builds"][0]["kernels"][0]["max_work_group"], 0)
        names = [answer["case"] for answer in found["numbers"]]
        self.assertIn("test_combine", names)
        self.assertIn("softmax-align-lengths", [answer["case"] for answer in found["golden"]])
        for stage in ("golden", "matrix", "numbers", "table", "bench", "tune"):
            self.assertEqual({answer["status"] for answer in found[stage]}, {0})
        self.assertEqual({(answer["case"], answer["status"]) for answer in self.answers("results", "matrix-golden")},
                         {("softmax-align-lengths bf16", 0)})
        self.assertLessEqual({f"{name} {direction}" for name, direction in (
            ("small", "forward"), ("emulated", "forward"), ("emulated", "backward"))}, {answer["case"] for answer in found["matrix"]})
        saved = list((self.folder / "results/programs").iterdir())
        self.assertEqual(len(saved), len(found["builds"]))
        self.assertGreater(min(path.stat().st_size for path in saved), 0)
        self.assertGreater(found["peaks"][0]["result"]["devices"][0]["peak_fma_gflops"], 0)
        self.assertTrue(all(answer["right"] for answer in found["peaks"][1:]))
        for answer in found["table"] + found["bench"]:
            for case in answer["result"]["cases"]:
                self.assertRegex(done.stdout, rf"{case['variant']} +{case['heads']} +f32 +{case['pass']} +[\d.]+ ms")
        self.assertEqual({case["variant"] for answer in found["table"] for case in answer["result"]["cases"]},
                         {"softmax", "mgk", "linear"})
        self.assertTrue((self.folder / "results/tuning.txt").stat().st_size > 0)
        for answer in found["tensors"]:  # without PyTorch the only answer is the reason
            self.assertTrue(answer.get("status") == 0 or (answer["case"] == "none" and answer["reason"] in done.stderr), answer)
        self.check_profile(found["profile"], done.stderr)
        # In a second run nothing is left to do.
        self.accept("results", "all")
        self.assertEqual({stage: self.answers("results", stage) for stage in STAGES}, found)

    def check_profile(self, answers, said):
        """Records kernels of this device, which CUDA's driver, if there is one, can't run."""
        records = [answer for answer in answers if answer["case"].startswith("record ")]
        self.assertEqual([record["case"] for record in records],
                         ["record softmax-forward", "record softmax-backward"])
        self.assertEqual({record["status"] for record in records}, {0})
        kernels = {path.stem.split("-", 1)[1] for path in self.folder.glob("gpu-check-*/*/recordings/*/*.rec")}
        self.assertLessEqual({"mixture_forward", "mixture_backward"}, kernels)
        if len(answers) == len(records) + sum("path" in answer for answer in answers):
            self.assertIn("recorded and not replayed", said)

    def test_short(self):
        done = self.accept("short", "short")
        self.assertEqual([answer["stage"] for answer in self.answers("short", "stages")], ["facts", "matrix", "table", "builds", "numbers", "tensors", "golden"])
        self.assertIn("short left out: other numeric tests, stage tune, stage profile, stage bench, stage peaks\n", done.stderr)
        self.assertIn(done.stderr.splitlines()[-1], (self.folder / "short/output.txt").read_text())
        self.assertRegex(done.stdout, r"linear +2 +f32 +backward +[\d.]+ ms")

    def test_own_c_library(self):
        self.accept("own", "--own-libc", "golden")
        done = self.run_script("own", "--own-libc", "tune")
        self.assertEqual(done.returncode, 1)
        self.assertIn("needs a machine with glibc", done.stderr)

    def test_failures_are_told(self):
        configurations = self.bundle / "configurations.txt"
        text = configurations.read_text()
        self.addCleanup(configurations.write_text, text)
        other = "simt good mixture/new_prior.cl -cl-std=CL1.2\n" * 24  # it takes every 25th
        configurations.write_text(f"{other}simt absent mixture/none.cl -cl-std=CL1.2\n"
                                  f"{other}simt wrong mixture/forward.cl -cl-std=CL1.2 -DENGINE=lane -DLANES=7\n")
        done = self.run_script("failed", "--jobs", "1", "builds")
        self.assertEqual(done.returncode, 1)
        self.assertIn("builds: 2 failed", done.stderr)
        absent, wrong = self.answers("failed", "builds")
        self.assertEqual(absent["build"], "status 3")
        self.assertIn("error:", wrong["log"])

    def test_stopped(self):
        """After the end of the time, or Ctrl-C, all results are complete, and the next run continues."""
        done = self.run_script("late", "--limit", "10", "bench")
        self.assertEqual(done.returncode, 1)
        self.assertIn("out of time", done.stderr)
        cut = self.answers("late", "bench")[-1]
        self.assertIn(" (cut off)", cut["case"])
        self.accept("late", "bench")
        # The case that was cut off, whichever it was, has a result now.
        done = [answer["case"] for answer in self.answers("late", "bench") if answer["status"] == 0]
        self.assertIn(cut["case"].removesuffix(" (cut off)"), done)
        environment = {**os.environ, "TMPDIR": str(self.folder)}
        stage = self.command("stopped", "facts")
        with subprocess.Popen(stage, env=environment, stderr=subprocess.PIPE, text=True) as run:
            file = self.folder / "stopped/facts.jsonl"
            while run.poll() is None and not file.exists():
                time.sleep(0.05)
            run.send_signal(signal.SIGTERM)
            self.assertIn("stopped", run.communicate(timeout=60)[1])
        self.assertEqual(run.returncode, 1)
        count = len(self.answers("stopped", "facts"))
        self.accept("stopped", "facts")
        self.assertGreater(len(self.answers("stopped", "facts")), count)


if __name__ == "__main__":
    unittest.main()
