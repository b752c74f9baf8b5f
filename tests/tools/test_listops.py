# SPDX-License-Identifier: Apache-2.0
"""The example listops as a program: the same bits again, checkpoints, exported heads, comparison, refusals."""
import json
import resource
import signal
import struct
import subprocess
import unittest

import numpy as np

from program_test import BIN, LIMIT_S, QUICK, ProgramTest, run

SMALL = ["--layers", 2, "--width", 16, "--head-size", 16, "--hidden", 32, "--tokens", 128, "--min-length", 6, "--max-length",
         40, "--depth", 3, "--arguments", 5, "--steps", 6, "--warm-up", 2, "--report", 2, "--test", 9]
DIGITS = 10


class ListopsTest(ProgramTest):
    """All tests train one small network with MGK."""

    program = "listops"

    def train(self, *args, **options):
        return json.loads(self.accept(*SMALL, "--variant", "mgk:2", "--quiet", "--json", *args, **options).stdout)

    @property
    def checkpoint(self):
        return self.folder / "run.checkpoint"

    # ---- runs

    def test_same_bits_again_also_when_resumed(self):
        (self.folder / "mine.txt").write_text("mine")
        for name in ("whole.tsv.tmp", "run.checkpoint.tmp"):  # links that are in the way are not followed
            (self.folder / name).symlink_to("mine.txt")
        whole = self.train("--curve", "whole.tsv")
        self.assertEqual(self.train()["digest"], whole["digest"])
        self.assertNotEqual(self.train("--seed", 2)["digest"], whole["digest"])
        self.train("--checkpoint", self.checkpoint, "--until", 3)
        resumed = self.train("--checkpoint", self.checkpoint, "--curve", "resumed.tsv")
        self.assertEqual((resumed["digest"], resumed["loss"]), (whole["digest"], whole["loss"]))
        self.assertEqual((self.folder / "resumed.tsv").read_text(), (self.folder / "whole.tsv").read_text())
        self.assertEqual(self.train("--checkpoint", self.checkpoint)["digest"], whole["digest"])  # nothing left to do
        self.assertEqual((self.folder / "mine.txt").read_text(), "mine")
        self.assertFalse(self.checkpoint.is_symlink())

    def test_signal_leaves_a_checkpoint(self):
        command = [BIN / "listops", *SMALL, "--steps", 1000000, "--variant", "mgk:2", "--checkpoint", self.checkpoint]
        with subprocess.Popen([str(word) for word in command], stderr=subprocess.PIPE, env=QUICK, text=True) as child:
            self.assertIn("step 2/1000000", child.stderr.readline())
            child.send_signal(signal.SIGINT)
            child.communicate(timeout=LIMIT_S)
        self.assertEqual(child.returncode, 0)
        self.assertEqual([path.name for path in self.folder.iterdir()], ["run.checkpoint"])

    def test_em_learns_other_priors(self):
        self.train("--export", "sgd")
        self.train("--export", "em", "--prior", "em", "--em-every", 3)
        sgd, em = (np.load(self.folder / name / "prior.1.npy") for name in ("sgd", "em"))
        self.assertEqual(em.shape, (2, 2))
        np.testing.assert_allclose(em.sum(axis=1), 1, atol=1e-5)
        self.assertGreater(np.abs(em - sgd).max(), 1e-4)

    # ---- checkpoints

    def refuse_checkpoint(self, *words, args=()):
        self.refuse(2, *SMALL, "--variant", "mgk:2", "--quiet", *args, "--checkpoint", self.checkpoint, words=words)

    def test_checkpoints_that_do_not_fit(self):
        self.train("--checkpoint", self.checkpoint)
        good = self.checkpoint.read_bytes()
        self.refuse_checkpoint("another run", args=("--hidden", 48))
        self.refuse_checkpoint("another run", args=("--seed", 2))
        for at in (20, 200, len(good) // 2, len(good) - 1):
            self.checkpoint.write_bytes(good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :])
            self.refuse_checkpoint("damaged")
        for size in (len(good) - 1, len(good) - 64, 300):
            self.checkpoint.write_bytes(good[:size])
            self.refuse_checkpoint("damaged")
        self.checkpoint.write_bytes(good[:8] + struct.pack("=I", 2) + good[12:])
        self.refuse_checkpoint("version 2", "expected 1")
        for other in (b"", good[:20], b"something else" * 100):
            self.checkpoint.write_bytes(other)
            self.refuse_checkpoint("no checkpoint")
        self.checkpoint.write_bytes(good)
        self.train("--checkpoint", self.checkpoint)

    def test_full_disk_leaves_the_older_checkpoint(self):
        large = ["--checkpoint", self.checkpoint, "--width", 128, "--hidden", 1024]  # than the files that PoCL writes
        self.train(*large, "--until", 2)
        size = self.checkpoint.stat().st_size

        def limit():  # of what may be written to a file: in the middle of the next checkpoint
            resource.setrlimit(resource.RLIMIT_FSIZE, (size // 2, size // 2))

        self.refuse(4, *SMALL, "--variant", "mgk:2", "--quiet", *large, preexec_fn=limit, words=(".checkpoint", "cannot write"))
        self.train(*large)

    # ---- outputs

    def test_exported_heads(self):
        self.train("--export", "heads")
        heads = self.folder / "heads"
        tokens, lengths, answers = (np.load(heads / f"{name}.npy") for name in ("tokens", "lengths", "answers"))
        count = len(lengths)
        self.assertEqual((tokens.shape, answers.shape), ((count, lengths.max()), (count,)))
        self.assertTrue(((answers >= 0) & (answers < DIGITS)).all())
        for layer in (1, 2):
            q, k, v = (np.load(heads / f"{name}.{layer}.npy") for name in "qkv")
            self.assertEqual((q.shape, k.shape, v.shape),
                             ((count, 2, lengths.max(), 16), (count, 2, 2, lengths.max(), 16), (count, 2, lengths.max(), 16)))
            beyond = np.arange(lengths.max()) >= lengths[:, None]
            self.assertTrue((q.swapaxes(1, 2)[beyond] == 0).all() and (np.abs(q.swapaxes(1, 2)[~beyond]).sum(-1) > 0).all())
            arrays = [f"--{name}={heads}/{name}.{layer}.npy" for name in ("q", "k", "v", "prior", "variance")]
            done = run("clmgk-run", "--variant", "mgk", *arrays, f"--lengths={heads}/lengths.npy",
                       f"--lengths-q={heads}/lengths.npy", f"--out={heads}/o.npy", "--check")
            self.assertEqual(done.returncode, 0, done.stderr)
        # The first layer's Q of the first place depends on the token alone.
        first = np.load(heads / "q.1.npy")[:, :, 0]
        for one, other in np.ndindex(count, count):
            alike = np.allclose(first[one], first[other], rtol=1e-5, atol=1e-6)
            self.assertEqual(alike, tokens[one, 0] == tokens[other, 0])

    def test_comparison_goes_on_where_it_stopped(self):
        args = [*SMALL, "--quiet", "--compare", "mgk:2,mgk:1", "--seeds", 2, "--folder", "runs"]
        self.assertEqual(self.accept(*args, "--until", 3).stdout, "")
        self.assertEqual(len(list((self.folder / "runs").iterdir())), 1)
        done = self.accept(*args, "--json", "--plot", "curves.svg")
        found = json.loads(done.stdout)["variants"]
        self.assertEqual([one["variant"] for one in found], ["mgk:2", "mgk:1"])
        self.assertEqual(len(list((self.folder / "runs").iterdir())), 4)
        alone = self.train("--checkpoint", self.folder / "runs" / "mgk:2.1.checkpoint")
        self.assertEqual(found[0]["accuracy"][0], alone["accuracy"])
        self.assertEqual(found[0]["parameters"], alone["parameters"])
        self.assertGreater(min(one[key] for one in found for key in ("step_ms", "attention_ms", "memory_bytes")), 0)
        self.assertIn("</svg>", (self.folder / "curves.svg").read_text())
        table = self.accept(*args).stdout
        self.assertIn("mgk:1", table)

    def test_usage(self):
        self.assertIn("--checkpoint", self.accept("--help").stdout)
        self.assertTrue(self.accept("--version").stdout.startswith("listops "))
        self.assertIn("-> ", self.accept("--describe", "--max-length", 120).stdout)
        for args, words in (
            (["--stepps", 3], ["--stepps"]),
            (["--steps"], ["--steps"]),
            (["--steps", "1x"], ["--steps", "1x"]),
            (["--rate", "nan"], ["--rate"]),
            (["--seed", "-1"], ["--seed"]),
            (["file"], ["file"]),
            (["--variant", "mgk"], ["NAME:HEADS"]),
            (["--variant", "mgk:x"], ["heads"]),
            (["--variant", "nothing:4"], ["nothing"]),
            (["--prior", "no"], ["sgd or em"]),
            (["--pooling", "no"], ["first or mean"]),
            (["--variant", "softmax:2", "--prior", "em"], ["softmax"]),
            (["--width", 20], ["multiple of 16"]),
            (["--tokens", 320], ["--max-length"]),
            (["--min-length", 50, "--max-length", 40], ["--min-length"]),
            (["--describe", "--depth", 1, "--arguments", 4], ["no expression"]),
            (["--device", "no such device"], ["no such device"]),
        ):
            self.refuse(3 if "--device" in args else 2, *args, words=words)


if __name__ == "__main__":
    unittest.main()
