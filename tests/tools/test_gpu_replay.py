# SPDX-License-Identifier: Apache-2.0
"""record_layer and gpu_replay: the recordings of a run, and launches by a stand-in for CUDA's driver."""
import json
import os
import re
import subprocess
import unittest

import numpy as np

from program_test import BIN, ProgramTest, quick_environment

LIB = BIN.parent / "lib"
PTX = b""".version 8.0
.target sm_90, texmode_independent
.entry kernel_name()
{ mov.u32 %r1, %envreg3; mov.u32 %r2, %envreg17; }
"""
VALUE, WORD = 7 * 2**32 + 5, 1000


def recording(groups="3 2 1", items="64 1 1", head="clmgk recording 1\nkernel_name\n", tail=b""):
    arguments = (b"value 8\n" + VALUE.to_bytes(8, "little") + b"buffer 12\n" + WORD.to_bytes(12, "little") +
                 b"buffer 0\n")
    return f"{head}{groups}\n{items}\n".encode() + arguments + tail


class Replay(ProgramTest):
    def setUp(self):
        super().setUp()
        self.fake = self.folder / "driver"
        self.fake.mkdir()
        self.write(recording())

    def write(self, launch, program=PTX):
        (self.folder / "k.rec").write_bytes(launch)
        (self.folder / "k.bin").write_bytes(program)

    def replay(self, *arguments, **changes):
        environment = {**os.environ, "LD_LIBRARY_PATH": str(self.fake), **changes}
        return subprocess.run([BIN / "gpu_replay", "--recording", self.folder / "k.rec", *arguments],
                              capture_output=True, text=True, timeout=60, check=False, env=environment)

    def use_fake(self):
        (self.fake / "libcuda.so.1").symlink_to(LIB / "fake_cuda.so")

    def refused(self, status, words, **changes):
        done = self.replay(**changes)
        self.assertEqual((done.returncode, done.stdout), (status, ""), done.stderr)
        self.assertIn(words, done.stderr)

    def test_launch(self):
        self.use_fake()
        done = self.replay("--repeats", "3")
        self.assertEqual(done.returncode, 0, done.stderr)
        answer = json.loads(done.stdout)
        self.assertEqual(answer, answer | {
            "kernel": "kernel_name", "groups": [3, 2, 1], "items": [64, 1, 1], "arguments": 3, "buffers": 2,
            "buffer_bytes": 12, "ms": 0.25, "registers": 104, "stack_bytes": 103, "local_bytes": 101, "resident": 2,
            "multiprocessors": 4, "waves": 0.75})
        launches = re.findall(r"launch: (.*)", done.stderr)
        self.assertEqual([launch.strip() for launch in launches],
                         [f"3 2 1 of 64 1 1, 0 bytes, value {VALUE}, buffer {WORD + 6 * n}, NULL" for n in (1, 2, 3)])
        self.assertIn("kernel: kernel_name\n", done.stderr)
        program = done.stderr.split("program: ")[1]
        self.assertNotIn("envreg", program)
        self.assertNotIn("texmode", program)
        self.assertRegex(program, r"mov.u32 %r1, 0 *; mov.u32 %r2, 0 *;")

    def test_text_as_the_driver_ends_it(self):
        self.use_fake()
        self.write(recording(), PTX + b"\0")
        done = self.replay("--registers", "128")
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_refusals_of_the_driver(self):
        (self.fake / "libcuda.so.1").write_text("no library")
        self.refused(3, "there is no CUDA driver")
        (self.fake / "libcuda.so.1").unlink()
        self.use_fake()
        for function in ("cuInit", "cuDeviceGet", "cuEventCreate", "cuModuleGetFunction", "cuMemAlloc_v2",
                         "cuMemcpyHtoD_v2", "cuLaunchKernel", "cuCtxSynchronize"):
            self.refused(3, "the fake refuses (999)", FAKE_CUDA_REFUSES=function)
        self.write(recording(), PTX + b"// refused")
        self.refused(3, "kernel_name: ptxas says no")

    def test_bad_recordings(self):
        self.use_fake()
        self.write(recording(), b"ELF")
        self.refused(2, "is no PTX")
        self.write(recording(), PTX + b"\0" + PTX)
        self.refused(2, "is no PTX")
        for launch, words in ((recording(head="clmgk recording 2\nkernel_name\n"), "a recording of record_layer"),
                              (recording(groups="3 0 1"), "a recording of record_layer"),
                              (recording(tail=b"local 64\n"), "no argument in local memory"),
                              (recording(tail=b"image 64\n"), "arguments of a recording"),
                              (recording(tail=b"value 64\nshort"), "a whole recording"),
                              (recording(tail=b"value 99999999999\n"), "fewer and smaller"),
                              (recording(tail=b"value 1\n." * 30), "fewer and smaller"),
                              (b"", "a recording of record_layer")):
            self.write(launch)
            self.refused(2, words)
        (self.folder / "k.bin").unlink()
        self.write(recording())
        (self.folder / "k.bin").unlink()
        self.refused(2, "k.bin': cannot be read")

    def test_recorded_run(self):
        """The recordings that the layer wrote in a run of clmgk-run on this device."""
        folder, values = self.folder / "record", {}
        folder.mkdir()
        for name in "qkv":
            values[name] = np.random.default_rng(ord(name)).standard_normal((1, 1, 5, 8), np.float32)
            np.save(self.folder / f"{name}.npy", values[name])
        inputs = [word for name in "qkv" for word in (f"--{name}", self.folder / f"{name}.npy")]
        done = subprocess.run(
            [BIN / "clmgk-run", "--variant", "softmax", *inputs, "--out", self.folder / "o.npy"],
            capture_output=True, text=True, check=False,
            env={**quick_environment(), "OPENCL_LAYERS": str(LIB / "record_layer.so"), "CLMGK_RECORD": str(folder)})
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("record layer: active", done.stderr)
        launches = list(folder.glob("*-mixture_forward.rec"))
        self.assertEqual(len(launches), 1)
        for name, array in values.items():
            self.assertTrue(array.tobytes() in launches[0].read_bytes(), name)
        (self.folder / "k.rec").write_bytes(launches[0].read_bytes())
        (self.folder / "k.bin").write_bytes(launches[0].with_suffix(".bin").read_bytes())
        answer = json.loads(self.replay("--describe").stdout)
        self.assertEqual(answer["kernel"], "mixture_forward")
        self.assertGreaterEqual(answer["buffers"], 4)
        self.assertGreater(answer["program_bytes"], 0)


if __name__ == "__main__":
    unittest.main()
