# SPDX-License-Identifier: Apache-2.0
"""clmgk-run: output files appear whole or not at all."""
import json
import math
import os
import pathlib
import resource
import signal
import subprocess
import tempfile
import time
import unittest

import numpy as np

from program_test import BIN, LIMIT_S, QUICK, RunTest


class Outputs(RunTest):
    def test_existing_files_are_replaced(self):
        (self.folder / "o.npy").write_bytes(b"old")
        (self.folder / "l.npy").write_bytes(b"old")
        self.accept_run(lse="l.npy")
        self.assertEqual((self.load("o.npy").ndim, self.load("l.npy").ndim), (4, 3))
        self.assertEqual([name for name in os.listdir(self.folder) if name.startswith(".")], [])

    def test_links_keep_pointing(self):
        (self.folder / "there").mkdir()
        (self.folder / "o.npy").symlink_to("there/o.npy")
        (self.folder / "there" / "o.npy").write_bytes(b"old")
        self.accept_run()
        self.assertTrue((self.folder / "o.npy").is_symlink())
        self.assertEqual(np.load(self.folder / "there" / "o.npy").ndim, 4)

    def test_links_to_files_that_are_not_there_yet(self):
        (self.folder / "there").mkdir()
        (self.folder / "o.npy").symlink_to("again")
        (self.folder / "again").symlink_to(self.folder / "there" / ".." / "there" / "o.npy")
        self.accept_run()
        self.assertTrue((self.folder / "o.npy").is_symlink() and (self.folder / "again").is_symlink())
        self.assertEqual(np.load(self.folder / "there" / "o.npy").ndim, 4)

    def test_links_that_lead_nowhere(self):
        (self.folder / "o.npy").symlink_to("o.npy")
        (self.folder / "p.npy").symlink_to("missing/p.npy")
        self.refuse_unwritable("o.npy", "levels of symbolic links")
        self.refuse_unwritable("p.npy", "No such file")
        self.refuse_unwritable(300 * "p", "name too long")

    def test_links_of_other_users(self):
        """Refused in a folder like /tmp, wherever in the path they are and whatever they lead to, also by way of a link of
        one's own. Not refused: links of the folder's owner and one's own."""
        (self.folder / "there").mkdir()
        victim = self.folder / "there" / "x.npy"
        victim.write_bytes(b"old")
        (self.folder / "own.npy").symlink_to(self.foreign_link("o.npy", victim))
        self.foreign_link("new.npy", self.folder / "there" / "new.npy")
        self.foreign_link("folder", "../there")
        self.foreign_link("nowhere", "missing")
        for target in ("shared/o.npy", "own.npy", "shared/new.npy", "shared/folder/x.npy", "there/../shared/./folder/y.npy",
                       "shared/nowhere"):
            with self.subTest(target=target):
                self.refuse(4, *self.arguments(out=target),
                            words=[f"--out {target}: cannot be written: {self.folder}/shared/", " is a link of user 12346",
                                   "expected a link of user 0", "user 12345"])
        link = self.folder / "shared" / "o.npy"
        for change in (lambda: os.chown(link, 0, -1, follow_symlinks=False),
                       lambda: os.chown(link, 12345, -1, follow_symlinks=False),
                       lambda: (os.chown(link, 12346, -1, follow_symlinks=False), link.parent.chmod(0o0777)),
                       lambda: link.parent.chmod(0o1775)):
            change()
            victim.write_bytes(b"old")
            self.accept_run(out="shared/o.npy")
            self.assertTrue(link.is_symlink())
            self.assertEqual(np.load(victim).ndim, 4)

    def test_new_files_get_ordinary_permissions(self):
        self.accept(*self.arguments(), preexec_fn=lambda: os.umask(0o027))
        self.assertEqual((self.folder / "o.npy").stat().st_mode & 0o777, 0o640)

    def test_replaced_files_keep_their_permissions(self):
        target = self.folder / "o.npy"
        target.touch()
        for mode in (0o600, 0o640, 0o664):
            with self.subTest(mode=oct(mode)):
                target.chmod(mode)
                self.accept(*self.arguments(), preexec_fn=lambda: os.umask(0o022))
                self.assertEqual(target.stat().st_mode & 0o7777, mode)
                self.assertGreater(target.stat().st_size, 0)

    def test_targets_that_cannot_be_written(self):
        (self.folder / "folder").mkdir()
        os.mkfifo(self.folder / "fifo")
        for target, word in (("missing/o.npy", "No such file"), ("folder", "not a regular file"),
                             ("/dev/null", "not a regular file"), ("q.npy/o.npy", "Not a directory"),
                             ("/proc/o.npy", "/proc/o.npy")):
            with self.subTest(target=target):
                self.refuse_unwritable(target, word)
        before = sorted(os.listdir(self.folder))
        done = self.run_program(*self.arguments(out="fifo"))
        self.assertEqual((done.returncode, sorted(os.listdir(self.folder))), (4, before))

    def refuse_unwritable(self, target, word):
        self.refuse(4, *self.arguments(out=target), words=["--out", word])
        self.refuse(4, *self.arguments(out=None, lse=target), words=["--lse", word])

    @unittest.skipIf(os.geteuid() == 0, "root may write everywhere")
    def test_read_only_targets(self):
        (self.folder / "o.npy").write_bytes(b"old")
        (self.folder / "o.npy").chmod(0o444)
        self.refuse_unwritable("o.npy", "Permission denied")
        (self.folder / "locked").mkdir(mode=0o555)
        self.refuse_unwritable("locked/o.npy", "Permission denied")

    def test_names_that_are_none(self):
        for target in ("", "folder/"):
            self.refuse_run("--out", "expected a file name", out=target)

    def test_one_file_for_two_outputs(self):
        (self.folder / "there").mkdir()
        (self.folder / "here").symlink_to("there")
        for out, lse in (("x.npy", "x.npy"), ("x.npy", "./x.npy"), ("there/x.npy", "here/x.npy"),
                         ("x.npy", self.folder / "x.npy")):
            with self.subTest(out=out, lse=lse):
                self.refuse_run("same file", out=out, lse=lse)

    def test_outputs_that_are_inputs(self):
        (self.folder / "alias.npy").symlink_to("k.npy")
        self.save("prior", np.ones(3))
        self.save("lengths", np.array([1, 2]))
        for variant, changes in (("softmax", {"out": "q.npy"}), ("softmax", {"lse": "v.npy"}),
                                 ("softmax", {"out": "alias.npy"}), ("softmax", {"q": "q.npy", "out": "./q.npy"}),
                                 ("mgk", {"prior": "prior.npy", "out": "prior.npy"}),
                                 ("smgk", {"out": "shift.npy"}),
                                 ("softmax", {"lengths": "lengths.npy", "out": "lengths.npy"})):
            with self.subTest(variant=variant, changes=changes):
                self.refuse_run("would overwrite", variant=variant, **changes)

    def save_large(self):
        """Little to compute, 16 MB to write."""
        self.save("q", self.normal(2, 4, 8192, 8))
        self.save("k", self.normal(2, 2, 1, 8))
        self.save("v", self.normal(2, 2, 1, 64))

    def test_no_room(self):
        self.save_large()
        self.accept_run(lse="l.npy")
        os.remove(self.folder / "l.npy")
        (self.folder / "o.npy").write_bytes(b"old")

        def limit():
            resource.setrlimit(resource.RLIMIT_FSIZE, (2 << 20, 2 << 20))

        self.refuse(4, *self.arguments(lse="l.npy"), words=["o.npy", "cannot be written"], preexec_fn=limit)

    def test_arrays_larger_than_a_buffer(self):
        """Found before anything is compiled: an empty cache stays empty."""
        facts = json.loads(subprocess.run([BIN / "clmgk-info", "--json"], env=QUICK, capture_output=True, check=True).stdout)
        device = next(one for one in facts["devices"] if one["default"])
        length = math.isqrt(device["max_allocation_bytes"] // 4) + 1
        for name in ("q", "k", "v"):
            self.save(name, np.zeros((1, 1, length, 1), np.float32))
        with tempfile.TemporaryDirectory() as programs:
            self.refuse(4, *self.arguments("gaussian", responsibilities="g.npy"), env={**QUICK, "POCL_CACHE_DIR": programs},
                        words=["responsibilities", str(length**2), str(device["max_allocation_bytes"]), "largest buffer"])
            self.assertEqual(list(pathlib.Path(programs).rglob("mixture*")), [])

    def test_signals_leave_nothing(self):
        """The signal comes while a temporary file is there, which the test waits for."""
        self.save_large()
        self.accept_run()
        os.remove(self.folder / "o.npy")
        before = self.snapshot()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            with self.subTest(signal=number.name):
                self.assertTrue(any(self.interrupt(number) for _ in range(20)), "never caught it writing")
                self.assertEqual(self.snapshot(), before)

    def interrupt(self, number):
        """Whether a run was ended by the signal with a temporary file in place; the folder is as before."""
        program = subprocess.Popen([str(BIN / "clmgk-run")] + self.arguments(), cwd=self.folder,
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=QUICK)
        seen = False
        while program.poll() is None and not seen:
            seen = any(name.startswith(".clmgk-") for name in os.listdir(self.folder))
        if seen:
            program.send_signal(number)
        program.wait(LIMIT_S)
        self.assertFalse(any(name.startswith(".clmgk-") for name in os.listdir(self.folder)))
        if (self.folder / "o.npy").exists():  # it was done before the signal came
            self.assertEqual(self.load("o.npy").shape, (2, 4, 8192, 64))
            os.remove(self.folder / "o.npy")
            return False
        self.assertEqual(program.returncode, -number)
        return True

    def start(self, *args):
        return subprocess.Popen([str(BIN / "clmgk-run"), *args], cwd=self.folder, stdout=subprocess.DEVNULL,
                                stderr=subprocess.DEVNULL, env=QUICK)

    def end(self, program):
        program.send_signal(signal.SIGINT)
        self.assertEqual(program.wait(LIMIT_S), -signal.SIGINT)

    def test_signal_during_a_kernel(self):
        """The kernel alone would take longer than the test may."""
        for name in ("q", "k", "v"):
            self.save(name, np.zeros((1, 1, 1 << 20, 4), np.float32))
        before = self.snapshot()
        program = self.start(*self.arguments())
        time.sleep(2)
        self.end(program)
        self.assertEqual(self.snapshot(), before)

    def test_signal_after_the_results(self):
        """Outputs are there when the first run is done: neither timing nor checking, which take long, can lose them."""
        for name in ("q", "k", "v"):
            self.save(name, np.zeros((1, 1, 1 << 13, 4), np.float32))
        for option in ({"repeat": "1000000"}, {"check": True}):
            with self.subTest(option=option):
                program = self.start(*self.arguments(**option))
                while program.poll() is None and not (self.folder / "o.npy").exists():
                    time.sleep(0.01)
                self.end(program)
                self.assertEqual(self.load("o.npy").shape, (1, 1, 1 << 13, 4))
                os.remove(self.folder / "o.npy")


if __name__ == "__main__":
    unittest.main()
