# SPDX-License-Identifier: Apache-2.0
"""tools/gpu-check.sh: its command line, and its first stage in a bundle of links. rehearse_gpu_check.py runs all stages."""
import json
import os
import pathlib
import subprocess
import tempfile
import time
import unittest

from test_gpu_replay import PTX, recording

BIN = pathlib.Path(os.environ["CLMGK_BIN"])
TOOLS = pathlib.Path(__file__).resolve().parents[2] / "tools"
# A stand-in for NVIDIA's profiler: half the multiply-adds that four multiprocessors can do, stalls at barriers.
NCU = r"""#!/bin/bash
echo '==PROF== Connected to process 1'
echo '"ID","Kernel Name","Metric Name","Metric Unit","Metric Value"'
for metric in smsp__sass_thread_inst_executed_op_ffma_pred_on.sum.per_cycle_elapsed=256 \
    smsp__issue_active.avg.pct_of_peak_sustained_elapsed=62 gpu__time_duration.sum=1,234 \
    smsp__average_warps_issue_stalled_barrier_per_issue_active.ratio=1.5 \
    smsp__average_warps_issue_stalled_wait_per_issue_active.ratio=0.01; do
    [[ $* != *${metric%=*}* ]] || echo "\"0\",\"kernel_name(a, b)\",\"${metric%=*}\",\"x\",\"${metric#*=}\""
done
"""
# Stands in for clmgk-bench: notes its arguments, and says that each variant took as many milliseconds as its name has
# letters, at a rate of 1 TFLOP/s for each.
BENCH = r"""#!/usr/bin/env python3
import json, os, sys
words = sys.argv[1:]
value = {name: words[words.index(name) + 1] for name in ("--variants", "--pass", "--head-size") if name in words}
if "--gemm" in words or "--suite" in words:
    name = "step" if "--suite" in words else "dtype"
    dtype = words[words.index("--dtype") + 1]
    case = {"device": 0, "step": "forward", "variant": "softmax", "dtype": dtype} if "--suite" in words else {
        "device": 0, "dtype": dtype, "m": 4096, "n": 4096, "k": 4096, "gflops": 450000, "note": ""}
    refused = {"device": 0, "dtype": dtype, "m": 4096, "n": 4096, "k": 4096, "provider": "absent", "refused": "no room"}
    print(json.dumps({name + "s": [{**case, "time_ms": {"median": 0.25}, "provider": "made up"}] + [refused] * (name == "dtype")},
                     indent=1))
    sys.exit()
if "--backward-parameters" in words and value["--pass"] == "forward":
    sys.exit(2)
with open(os.environ["BENCH_LOG"], "a") as log:
    print(*words, file=log)
unit = 1 if "unit=1" in words else 2
types = [words[words.index("--dtype") + 1]] if "--dtype" in words else ["f32"]
cases = [{"device": 0, "shape": words[words.index("--shapes") + 1] if "--shapes" in words else None, "variant": name,
          "engine": "matrix", "heads": 8, "dtype": types[0], "pass": value["--pass"],
          "causal": "--causal" in words, "time_ms": {"median": len(name)}, "gflops": 1000 * len(name),
          "fraction_of_peak": None, "kv_fraction_of_read": 0.5, "compile_ms": 3456.7,
          "options": f"-DENGINE=matrix -DMATRIX_UNIT={unit}"}
         for name in (variant.split(":")[0] for variant in value["--variants"].split(","))]
print(json.dumps({"cases": cases}, indent=1))
"""
# Stands in for clmgk-run, on a device with matrix units.
RUN = r"""#!/bin/bash
[[ " $* " == *" --check "* || " $* " == *" --repeat 1 "* ]] || exit 2 # nothing to do
echo '{ "engine": "matrix", "engine_reason": "made up" }'
"""


class GpuCheck(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.bundle = self.folder / "bundle"
        for name in ("lib", "libc"):
            (self.bundle / name).mkdir(parents=True)
        (self.bundle / "bin").symlink_to(BIN)
        for name in ("gpu-check.sh", "gpu-tables.sh"):
            (self.bundle / name).write_bytes((TOOLS / name).read_bytes())
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
        for word in ("prepare", "facts", "matrix", "golden", "numbers", "tensors", "table", "builds", "tune", "profile", "bench", "peaks",
                     "Exit status"):
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

    def replace_programs(self, **texts):
        """Of the bundle, by scripts."""
        programs = self.bundle / "bin"
        programs.unlink()
        programs.mkdir()
        for path in BIN.iterdir():
            (programs / path.name).symlink_to(path)
        for name, text in texts.items():
            path = programs / name.replace("_", "-")
            path.unlink()
            path.write_text(text)
            path.chmod(0o755)

    def test_matrix(self):
        """The stage as on a card with matrix units: what it measures, in which order, and its table."""
        results, log = self.folder / "gpu-results", self.folder / "log"
        self.replace_programs(clmgk_bench=BENCH, clmgk_run=RUN)
        names = ("softmax-plain --variant softmax", "mish-noise --variant mish", "linear-relu --variant linear",
                 "softmax-half --variant softmax --dtype f16", "talking-heads --variant talking-heads")
        (self.bundle / "golden.txt").write_text("".join(f"{name} --out x\n" for name in names))
        for name in ("softmax-plain", "mish-noise", "talking-heads"):
            (self.bundle / "golden" / name).mkdir(parents=True)
        results.mkdir()
        (results / "peers.jsonl").write_text('{"case": "matrix-64 forward bf16 FLASH_ATTENTION", "ms": 3.5, "gflops": 300100}\n'
                                             '{"case": "matrix-64 backward bf16 FLASH_ATTENTION", "ms": 9, "gflops": 200000}\n'
                                             '{"case": "matrix-64 backward bf16 CUDNN_ATTENTION", "ms": 5, "gflops": 311000}\n'
                                             '{"case": "mgk-4096 forward bf16 COMPILED", "ms": 13.5, "gflops": 1}\n')
        done = self.run_script("matrix", "--device", "cpu", BENCH_LOG=str(log))
        self.assertEqual(done.returncode, 0, done.stderr)
        found = [json.loads(line) for line in (results / "matrix.jsonl").read_text().splitlines()]
        self.assertEqual({answer["status"] for answer in found}, {0})
        squares, causal = ["matrix-64", "matrix-128", "families-128"], ["matrix-64-causal", "matrix-128-causal"]
        mma = ["mma-64", "mma-128"]
        self.assertEqual([answer["case"] for answer in found],
                         ["choice", "cold-128 backward",
                          *(f"{name} forward" for name in [*squares, "matrix-128-whole", "decode-64k-128", "mgk-4096", *causal]),
                          *(f"{name} backward" for name in squares + causal),
                          *(f"{name} forward" for name in [*mma, "mma-families-128", "mma-64-causal", "mma-128-causal",
                                                           "families-64"]),
                          *(f"{name} backward" for name in [*mma, "families-64"]), "cold-mgk-128 backward"])
        golden = (results / "matrix-golden.jsonl").read_text()
        for name in ("softmax-plain", "mish-noise", "talking-heads"):
            for dtype in ("bf16", "f16"):
                self.assertIn(f'"{name} {dtype}","status":0', golden)
        self.assertEqual(golden.count("\n"), 6)
        calls = log.read_text().splitlines()
        ahead = [call for call in calls if "--seconds 0.01 " in call and "--keep-caches" in call]
        self.assertEqual(len(ahead), 36)  # compiled ahead, each program once
        cold = [call for call in calls if "--keep-caches" not in call]
        self.assertEqual([call.split("--variants ")[1].split()[0] for call in cold], ["softmax:16", "mgk:4"])
        self.assertTrue(all("--engine matrix --dtype bf16" in call for call in calls))
        self.assertEqual({"--backward-parameters unit=1" in call for call in calls if "--parameters unit=1" in call and
                          "--pass backward" in call}, {True})
        for line in (r"softmax forward, D = 64 +7 +450 +520 +300 +- +-  wgmma", r"backward, D = 64 +7 +240 +311 +200 +311 +-  wgmma",
                     r"backward, D = 128 +7 +x1.2 FA2 +cuDNN +- +- +-  wgmma", r"sMGK-4 / softmax-8, D = 128 +0.57 +0.60 +0.53",
                     r"hard MiSH 2x8 / softmax-8, D = 128 +1.29 +0.70 +0.55",
                     r"MGK-4, N = 4096, against PyTorch compiled +4.5 +4 +6 +- +- +13.500ms  wgmma",
                     r"cold compile, both passes, D = 128, s +3.5 +4 +2",
                     r"decoding 64k, D = 128, of the read rate +0.50 +0.85 +0.92 +- +- +-",
                     r"mma.sync: softmax forward, D = 64 +7 +330 +380 +300 +- +-  mma",
                     r"mma.sync: hard MiSH 2x8 / softmax-8, D = 128 +1.29 +0.75 +0.60"):
            self.assertRegex(done.stdout, line)

    def test_table(self):
        """The stage as on a card: tf32 products, products of matrices and a layer, and the table of targets."""
        results = self.folder / "gpu-results"
        results.mkdir()
        (results / "peers.jsonl").write_text('{"case": "layer forward bf16 MODULE", "ms": 0.5, "gflops": 1}\n')
        self.replace_programs(clmgk_bench=BENCH)
        done = self.run_script("table", "--device", "cpu", BENCH_LOG=str(self.folder / "log"))
        self.assertEqual(done.returncode, 0, done.stderr)
        for line in (r"4096 x 4096 +x 4096 +bf16 +absent +not measured: no room", r"f32 softmax forward, ms +7.000 +0.60 +0.35", r"f32 softmax backward, tf32 products, ms +7.000 +0.9 +0.65",
                     r"products, f32 +450 +60 +90 +- +- +-  made up", r"layer forward, .* f32, ms +0.250 +- +- +- +- +-  made up",
                     r"the same layer, bf16, ms +0.250 +- +- +- +- +0.500ms  made up",
                     r"the same layer, bf16, against PyTorch +2.0 +1 +1.3 +- +- +0.500ms  made up"):
            self.assertRegex(done.stdout, line)

    def test_no_matrix_units(self):
        """Where plans choose another engine, the emulation is not measured."""
        self.replace_programs(clmgk_bench="#!/bin/bash\nexit 9\n", clmgk_run=RUN.replace("matrix", "simt"))
        (self.bundle / "golden.txt").write_text("")
        done = self.run_script("matrix", "--device", "cpu")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("plans do not choose the matrix engine: made up\n", done.stderr)

    def test_short_without_time(self):
        """If clmgk-bench never ends, the stages still end in time and report the missing results."""
        results = self.folder / "gpu-results"
        self.replace_programs(clmgk_bench="#!/bin/bash\nexec sleep 600\n", clmgk_run=RUN)
        for name in ("golden.txt", "configurations.txt"):
            (self.bundle / name).write_text("")
        facts = subprocess.run([BIN / "gpu_probe", "--list"], capture_output=True, text=True, check=True).stdout
        results.mkdir()
        (results / "golden.jsonl").write_text("")
        (results / "numbers.jsonl").write_text('{"case":"test_cuda","status":0}\n')
        (results / "facts.jsonl").write_text("".join(f'{{"case":"{name}","right":true}}\n'
                                                     for name in facts.splitlines()))
        start = time.monotonic()
        done = self.run_script("short", "--rehearse", "--limit", "10")
        self.assertLess(time.monotonic() - start, 300)
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("table: out of time", done.stderr)
        self.assertIn("short left out: rest of the table's forward pass, rest of the table's backward pass, "
                      "other numeric tests, stage tune, stage profile, stage bench, stage peaks\n", done.stderr)
        self.assertRegex(done.stdout, "shape +variant +heads")
        printed = (results / "output.txt").read_text()
        for text in ("table: out of time", "short left out: ", "shape "):
            self.assertIn(text, printed)

    def test_profile(self):
        """The output for a recorded kernel, with stand-ins for CUDA's driver and its profiler."""
        results, tools = self.folder / "gpu-results", self.folder / "tools"
        number = subprocess.run(["cksum"], input=f"{results}\n", capture_output=True, text=True, check=True).stdout
        kernels = self.folder / f"gpu-check-{os.getuid()}" / number.split()[0] / "recordings/softmax-forward"
        for folder in (results, tools, kernels):
            folder.mkdir(parents=True)
        (results / "profile.jsonl").write_text("".join(
            json.dumps({"case": f"record softmax-{name}", "status": 0}, separators=(",", ":")) + "\n"
            for name in ("forward", "backward")))
        (kernels / "00-kernel_name.rec").write_bytes(recording())
        (kernels / "00-kernel_name.bin").write_bytes(PTX)
        (tools / "libcuda.so.1").symlink_to(BIN.parent / "lib/fake_cuda.so")
        (tools / "ncu").write_text(NCU)
        (tools / "ncu").chmod(0o755)
        stands_in = {"LD_LIBRARY_PATH": str(tools), "PATH": f"{tools}:{os.environ['PATH']}"}
        done = self.run_script("profile", "--rehearse", **stands_in)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, r"softmax-forward/00-kernel_name +0\.\d+ +0\.50 +0\.62 +2 +0\.75 +104 +103 +"
                                      r"barrier 1\.50\n")
        (kernels / "00-kernel_name.bin").write_bytes(b"ELF")
        (kernels / "00-kernel_name.rec").rename(kernels / "01-other.rec")
        (kernels / "00-kernel_name.bin").rename(kernels / "01-other.bin")
        self.refuse(1, "is no PTX", "profile", "--rehearse", **stands_in)


if __name__ == "__main__":
    unittest.main()
