# SPDX-License-Identifier: Apache-2.0
"""Shared by the tests of the programs: a folder for each test, runs of a program, checks of refusals."""
import json
import os
import pathlib
import subprocess
import tempfile
import time
import unittest

import numpy as np

BIN = pathlib.Path(os.environ["CLMGK_BIN"])
LIMIT_S = 900
FULL = os.environ.get("CLMGK_TEST_FULL", "") not in ("", "0")
BUILD_FLAGS = "POCL_EXTRA_BUILD_FLAGS"
OWNER, STRANGER = 12345, 12346  # users other than root


def quick_environment():
    """This environment, and programs that PoCL builds without optimising.

    Optimising takes it seconds for a program, half a minute for some of the SIMT engine's, and what is tested is the
    text of that engine and what the command-line programs do, not the CPU's code. Such binaries have a cache of their
    own: the names that they have in it don't tell.
    """
    changes = {}
    if not FULL and BUILD_FLAGS not in os.environ:
        changes[BUILD_FLAGS] = (BIN.parent / "tests/unoptimised").read_text()
        if (BIN.parent / "tests/drivers").is_dir():
            changes["OCL_ICD_VENDORS"] = str(BIN.parent / "tests/drivers")
        if os.environ.get("CLMGK_CACHE_DIR"):
            changes["CLMGK_CACHE_DIR"] = str(pathlib.Path(os.environ["CLMGK_CACHE_DIR"]) / "quick")
    return {**os.environ, **changes}


QUICK = quick_environment()


def small_buffers(most):
    """Of an environment: no buffer is larger. Memory is measured with buffers beyond the last-level cache, as far as there is
    room, whose pages take the system longer to give than all that the tests look at."""
    return {"OPENCL_LAYERS": str(BIN.parent / "lib/limits_layer.so"), "CLMGK_TEST_LIMITS": f"buffer={most}"}


def run(program, *args, **options):
    """Runs a program with arguments of any type; output is text."""
    options.setdefault("env", QUICK)
    command = [str(BIN / program)] + [str(argument) for argument in args]
    for _ in range(3):
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False, **options)
        # The leak checker itself may crash while PoCL's threads end, which is no error of the program.
        if "LeakSanitizer has encountered a fatal error" not in done.stderr:
            break
    return done


def wait_until_empty(folder):
    """Waits until another process has removed a killed program's temporary folder."""
    end = time.monotonic() + LIMIT_S
    while any(folder.iterdir()) and time.monotonic() < end:
        time.sleep(0.05)
    return not any(folder.iterdir())


class ProgramTest(unittest.TestCase):
    """Tests of self.program. Each runs in a new folder."""

    program = None

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name).resolve()
        self.random = np.random.default_rng(20240229)

    def run_program(self, *args, **options):
        options.setdefault("cwd", self.folder)
        done = run(self.program, *args, **options)
        done.stderr = done.stderr.replace("limits layer: active\n", "", 1)  # of small_buffers
        return done

    def snapshot(self):
        """All entries of the folder: names, times and contents; for links the names of their targets."""

        def contents(path):
            if path.is_symlink():
                return os.readlink(path)
            return path.read_bytes() if path.is_file() else None

        return {path.relative_to(self.folder): (path.lstat().st_mtime_ns, contents(path))
                for path in self.folder.rglob("*")}

    def foreign_link(self, name, target):
        """A link of another user in a folder like /tmp that belongs to a third one; its path. Only root can make it."""
        if os.geteuid() != 0:
            self.skipTest("only root can make links of other users")
        shared = self.folder / "shared"
        if not shared.exists():
            shared.mkdir()
            os.chown(shared, OWNER, -1)
            shared.chmod(0o1777)
        link = shared / name
        link.symlink_to(target)
        os.chown(link, STRANGER, -1, follow_symlinks=False)
        return link

    def accept(self, *args, **options):
        done = self.run_program(*args, **options)
        self.assertEqual(done.returncode, 0, f"{args}: {done.stderr}")
        return done

    def refuse(self, status, *args, words=(), **options):
        """The program must end with `status`, print the reason in one line, and change no file."""
        before = self.snapshot()
        done = self.run_program(*args, **options)
        self.assertEqual(done.returncode, status, f"{args}: {done.stdout}{done.stderr}")
        self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
        self.assertTrue(done.stderr.startswith(self.program + ": "), done.stderr)
        for word in words:
            self.assertIn(word, done.stderr)
        self.assertEqual(self.snapshot(), before, f"{args}: files changed")
        return done


SHARED_MIX = ("mish", "hard-mish")
NOISY = ("fish", "mish", "gfish")
GENERALISED = ("gfish", "hard-gfish")
ADMIXTURES = ("fish", "hard-fish", "mish", "hard-mish", "gfish", "hard-gfish", "talking-heads")
LINEARS = {"linear": "softmax", "mlk": "mgk", "smlk": "smgk", "lfish": "fish", "lhard-fish": "hard-fish", "lmish": "mish",
           "lhard-mish": "hard-mish", "lgfish": "gfish", "lhard-gfish": "hard-gfish"}  # and those that take the same arrays


class RunTest(ProgramTest):
    """clmgk-run on small arrays: B 2, H 4, G 2, M 3 (talking heads: 4), N 5, S 7, D 8, E 6."""

    program = "clmgk-run"

    def setUp(self):
        super().setUp()
        self.arrays = {
            "q": self.normal(2, 4, 5, 8),
            "k": self.normal(2, 2, 7, 8),
            "km": self.normal(2, 2, 3, 7, 8),
            "v": self.normal(2, 2, 7, 6),
            "shift": self.normal(4, 3, 8),
            "qx": self.normal(2, 3, 5, 8),
            "kx": self.normal(2, 3, 7, 8),
            "kt": self.normal(2, 4, 7, 8),
            "mix": self.normal(4, 3),
            "mixt": self.normal(4, 4),
        }
        for name, array in self.arrays.items():
            self.save(name, array)

    def normal(self, *shape):
        return self.random.standard_normal(shape, dtype=np.float32)

    def save(self, name, array):
        """Saves NAME.npy and returns that name."""
        np.save(self.folder / f"{name}.npy", array)
        return f"{name}.npy"

    def load(self, name):
        return np.load(self.folder / name)

    @staticmethod
    def arguments(variant="softmax", **changes):
        """The options of a plain run; None leaves one out, True makes a flag, _ stands for -."""
        like = LINEARS.get(variant, variant)
        options = {"variant": variant, "q": "q.npy", "k": "km.npy" if like == "mgk" else "k.npy", "v": "v.npy"}
        if like == "smgk":
            options["shift"] = "shift.npy"
        if like in ADMIXTURES:
            options.update(q="qx.npy", k="kx.npy", mix="mix.npy")
        if like == "talking-heads":
            options.update(q="q.npy", k="kt.npy", mix="mixt.npy")
        if like in SHARED_MIX:
            options.update(mix="0.5,-1,2", heads=4)
        if like in NOISY:
            options["noise"] = "0.5,1,0"
        options["out"] = "o.npy"
        options.update(changes)
        words = []
        for name, value in options.items():
            if value is not None:
                words.append("--" + name.replace("_", "-"))
                words += [] if value is True else [value]
        return words

    def refuse_run(self, *words, variant="softmax", **changes):
        return self.refuse(2, *self.arguments(variant, **changes), words=words)

    def accept_run(self, variant="softmax", **changes):
        return self.accept(*self.arguments(variant, **changes))


class TrainingTest(RunTest):
    """RunTest's arrays, dO and dL. A call names the outputs that it requests."""

    def setUp(self):
        super().setUp()
        self.save("g", self.normal(2, 4, 5, 6))
        self.save("gl", self.normal(2, 4, 5))

    def run_for(self, variant, outputs, **changes):
        """The JSON object of a run that passed its check, and the arrays that it wrote."""
        files = {name: name + ".npy" for name in outputs}
        words = {"out": None, **files, **changes}
        result = json.loads(self.accept_run(variant, json=True, check=True, **words).stdout)
        self.assertTrue(result["check"]["ok"])
        return result, {name: self.load(file) for name, file in files.items()}
