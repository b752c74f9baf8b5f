# SPDX-License-Identifier: Apache-2.0
"""tools/gpu-check.sh: its command line, and its first stage in a bundle of links. rehearse_gpu_check.py has all."""
import json
import os
import pathlib
import subprocess
import tempfile
import unittest

BIN = pathlib.Path(os.environ["CLMGK_BIN"])
SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "tools" / "gpu-check.sh"


class GpuCheck(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.bundle = self.folder / "bundle"
        for name in ("lib", "libc"):
            (self.bundle / name).mkdir(parents=True)
        (self.bundle / "bin").symlink_to(BIN)
        (self.bundle / "gpu-check.sh").write_bytes(SCRIPT.read_bytes())
        self.make_manifest(os.uname().machine)

    def make_manifest(self, machine):
        (self.bundle / "MANIFEST").write_text(f"commit test\nmachine {machine}\nglibc 2.0\n")

    def run_script(self, *arguments, **changes):
        environment = {**os.environ, "TMPDIR": str(self.folder), **changes}
        return subprocess.run(["bash", self.bundle / "gpu-check.sh", *arguments], capture_output=True, text=True,
                              timeout=600, check=False, env=environment, cwd=self.folder)

    def refuse(self, status, words, *arguments, **changes):
        done = self.run_script(*arguments, **changes)
        self.assertEqual(done.returncode, status, f"{arguments}: {done.stderr}")
        self.assertIn(words, done.stderr)

    def answers(self):
        return [json.loads(line) for line in (self.folder / "gpu-results/facts.jsonl").read_text().splitlines()]

    def test_help(self):
        done = self.run_script("--help")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        for word in ("prepare", "facts", "builds", "numbers", "peaks", "bench", "tune", "counters", "Exit status"):
            self.assertIn(word, done.stdout)

    def test_usage(self):
        self.refuse(2, "expected a stage")
        self.refuse(2, "'fact'", "fact")
        self.refuse(2, "'--devices'", "--devices", "x", "facts")
        self.refuse(2, "--limit: expected a value", "facts", "--limit")
        self.refuse(2, "'-1'", "--limit=-1", "facts")
        self.refuse(2, "--limit 600", "--limit", "600", "facts")
        self.refuse(2, "'many'", "--jobs=many", "facts")
        self.refuse(2, "prepare goes alone", "prepare", "facts")
        self.refuse(2, "--build is of prepare alone", "--build", "x", "facts")
        self.refuse(2, "expected a checkout", "prepare")
        self.assertFalse((self.folder / "gpu-results").exists())

    def test_machines(self):
        self.refuse(3, "no device answers", "facts", OCL_ICD_VENDORS=str(self.bundle / "lib"))
        self.refuse(3, "matches none", "facts", "--device", "no such device")
        self.make_manifest("pdp11")
        self.refuse(2, "results of another bundle", "facts")
        self.refuse(2, "the bundle is for pdp11", "facts", "--fresh")
        (self.bundle / "MANIFEST").unlink()
        self.refuse(2, "there is no bundle", "facts")

    def test_facts(self):
        done = self.run_script("facts", "--rehearse")
        self.assertEqual(done.returncode, 0, done.stderr)
        found = {answer["case"]: answer for answer in self.answers()}
        self.assertGreater(found["device"]["local_memory_bytes"], 0)
        self.assertIsInstance(found["device"]["extensions"], str)
        self.assertGreater(found["sub-groups"]["size"], 0)
        for name in ("plain", "null buffer", "no contraction", "fma"):
            self.assertTrue(found[name]["right"], found[name])
        self.assertEqual(len(found), len(self.answers()))
        for answer in found.values():
            self.assertNotIn("status", answer)
        for name in ("exp2", "native_exp2"):
            self.assertGreater(found[name]["worst_error_24_bits"], 0.5)
            self.assertIn("-inf: 0", found[name]["special"])
        # It goes on with what is missing.
        lines = (self.folder / "gpu-results/facts.jsonl").read_text().splitlines(keepends=True)
        (self.folder / "gpu-results/facts.jsonl").write_text("".join(lines[1:]))
        self.assertEqual(self.run_script("facts", "--rehearse").returncode, 0)
        self.assertEqual([answer["case"] for answer in self.answers()[-1:]], ["device"])
        self.assertEqual(len(self.answers()), len(found))


if __name__ == "__main__":
    unittest.main()
