# SPDX-License-Identifier: Apache-2.0
"""clmgk-bench: figures, JSON, comparison, plot, refusals."""
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import time
import unittest
import xml.etree.ElementTree

from program_test import BIN, FULL, LIMIT_S, QUICK, ProgramTest, small_buffers, wait_until_empty

PEAK_BYTES = 1 << (27 if FULL else 25)
if not FULL:
    QUICK.update(small_buffers(PEAK_BYTES))

SIZES = ["--batch", 2, "--heads", 4, "--length", 40, "--length-k", 50, "--head-size", 16, "--value-size", 24]
SHORT = ["--seconds", 0.01, "--keep-caches"]
NUMBER = (int, float)
MAYBE = (int, float, type(None))
DEVICE_KEYS = {
    "name": str,
    "platform": str,
    "driver": str,
    "compute_units": int,
    "peak_fma_gflops": NUMBER,
    "peak_matrix_gflops": MAYBE,
    "peak_copy_gbps": NUMBER,
    "peak_read_gbps": NUMBER,
    "peak_buffer_bytes": int,
}
CASE_KEYS = {
    "device": int,
    "shape": (str, type(None)),
    "variant": str,
    "engine": str,
    "dtype": str,
    "pass": str,
    "dtype_k": (str, type(None)),
    "dtype_v": (str, type(None)),
    "dtype_o": (str, type(None)),
    "precision": (str, type(None)),
    "precision_used": str,
    "batch": int,
    "heads": int,
    "kv_heads": int,
    "components": int,
    "length": int,
    "length_k": int,
    "head_size": int,
    "value_size": int,
    "causal": bool,
    "gradients": (str, type(None)),
    "window": (list, type(None)),
    "sequences": (int, type(None)),
    "bias": (list, type(None)),
    "alibi": (bool, type(None)),
    "sinks": (bool, type(None)),
    "dropout": MAYBE,
    "softcap": MAYBE,
    "score_mod": (str, type(None)),
    "mask_mod": (str, type(None)),
    "feature": (str, type(None)),
    "features": (int, type(None)),
    "state": (bool, type(None)),
    "time_ms": dict,
    "flops": NUMBER,
    "gflops": NUMBER,
    "fraction_of_peak": NUMBER,
    "peak_note": (str, type(None)),
    "kv_fraction_of_read": NUMBER,
    "bytes": int,
    "memory_bytes": int,
    "workspace_bytes": int,
    "private_bytes": int,
    "compile_ms": NUMBER,
    "program": str,
    "cache_note": str,
    "first_call_cold_ms": MAYBE,
    "first_call_warm_ms": MAYBE,
    "error": dict,
    "tuned": bool,
    "tuning": str,
    "parameters": str,
    "options": str,
    "ratio_to_baseline": MAYBE,
    "ratio_to_linear": MAYBE,
    "state_fraction_of_copy": MAYBE,
    "paper_operations": (dict, type(None)),
    "counts": dict,
    "process_peak_bytes": int,
}

ERROR_KEYS = {
    "max": NUMBER,
    "bound": NUMBER,
    "sampled": int,
    "array": str,
    "batch": int,
    "heads": int,
    "length": int,
    "length_k": int,
}
MODIFIERS = ("gradients", "window", "sequences", "bias", "alibi", "sinks", "dropout", "feature", "features", "state",
             "softcap", "score_mod", "mask_mod")


class BenchTest(ProgramTest):
    program = "clmgk-bench"

    def check_keys(self, found, keys):
        self.assertEqual(set(found), set(keys))
        for key, kind in keys.items():
            self.assertIsInstance(found[key], kind, key)

    def bench(self, *args, **options):
        return json.loads(self.accept(*SIZES, *SHORT, "--json", *args, **options).stdout)

    def check_counts_of_a_layer(self, case):
        m, h, found = case["components"], case["heads"], case["counts"]
        queries, keys = {"softmax": (h, h), "mgk": (h, m * h), "hard-fish": (m, m)}[case["variant"]]
        extra = {"softmax": 0, "mgk": 2 * h, "hard-fish": m * h}[case["variant"]]
        self.assertEqual(found["width"], 4 * 16)
        self.assertEqual(found["parameters"], 64 * ((queries + keys) * 16 + 2 * h * 24) + extra)
        products = 2 * 64 * (40 * queries * 16 + 50 * keys * 16 + (50 + 40) * h * 24)
        mixing = m * h if case["variant"] == "hard-fish" else 0
        products += 2 * 40 * 50 * (keys * 16 + h * 24 + mixing)
        self.assertEqual(found["multiplications"], products * (2 if case["pass"] == "backward" else 1))
        for key in ("operations_ratio", "parameters_ratio"):
            self.assertTrue(case["variant"] == "softmax" or 0 < found[key] < 1)


class Figures(BenchTest):
    def test_all_variants(self):
        scratch = self.folder / "scratch"
        scratch.mkdir()
        variants = ["softmax:4", "mgk:2", "smgk:2", "gaussian:4"] if FULL else ["softmax:4", "mgk:2"]
        command = [*SIZES, "--seconds", 0.01, "--json", "--variants", ",".join(variants)]
        found = json.loads(self.accept(*command, env={**QUICK, "TMPDIR": str(scratch)}).stdout)
        self.assertEqual(list(scratch.iterdir()), [])
        self.assertEqual(list(found), ["clmgk", "devices", "cases", "failures"])
        self.assertEqual(len(found["devices"]), 1)
        self.check_keys(found["devices"][0], DEVICE_KEYS)
        self.assertGreater(found["devices"][0]["peak_copy_gbps"], 0)
        self.assertGreater(found["devices"][0]["peak_read_gbps"], 0)
        self.assertGreaterEqual(found["devices"][0]["peak_buffer_bytes"], PEAK_BYTES)
        self.assertEqual(found["failures"], [])
        cases = {case["variant"]: case for case in found["cases"]}
        self.assertEqual(list(cases), [name.split(":")[0] for name in variants])
        for case in found["cases"]:
            self.check_case(case, found["devices"][0], cases["softmax"])
            self.assertEqual([case[key] for key in MODIFIERS], [None] * len(MODIFIERS))
            self.assertEqual(case["error"]["sampled"], 8 * 2 * case["heads"])
            self.assertEqual(case["error"]["array"], "o")
            self.assertGreater(case["first_call_cold_ms"], 0)
        # 2 (P D + E) a pair: batch 2, 40 queries, 50 keys
        self.assertEqual(cases["softmax"]["flops"], 2 * (16 + 24) * 2 * 4 * 40 * 50)
        self.assertEqual(cases["mgk"]["flops"], 2 * (2 * 16 + 24) * 2 * 2 * 40 * 50)
        # Q, K, V, O and L of softmax; MGK has two keys a position, half the heads, and a prior [H,M]
        self.assertEqual(cases["softmax"]["bytes"], 4 * 2 * 4 * (40 * 16 + 50 * 16 + 50 * 24 + 40 * 24 + 40))
        self.assertEqual(cases["mgk"]["bytes"], 4 * (2 * 2 * (40 * 16 + 2 * 50 * 16 + 50 * 24 + 40 * 24 + 40) + 2 * 2))
        self.assertEqual(cases["softmax"]["ratio_to_baseline"], 1)

    def check_case(self, case, device, softmax):
        self.check_keys(case, CASE_KEYS)
        times = case["time_ms"]
        self.check_keys(
            times, {"median": NUMBER, "min": NUMBER, "max": NUMBER, "repetitions": int, "calls": int, "clock": str}
        )
        self.assertGreater(times["min"], 0)
        self.assertLessEqual(times["min"], times["median"])
        self.assertLessEqual(times["median"], times["max"])
        self.assertGreaterEqual(times["repetitions"], 3)
        self.assertAlmostEqual(case["gflops"], case["flops"] / times["median"] / 1e6, delta=1e-5 * case["gflops"])
        tiles = "-DMATRIX_UNIT=3" in case["options"]
        part = case["gflops"] / device["peak_matrix_gflops" if tiles else "peak_fma_gflops"]
        self.assertAlmostEqual(case["fraction_of_peak"], part, delta=1e-5 * part)
        self.assertEqual(case["peak_note"] is not None, case["fraction_of_peak"] > 1)
        ratio = times["median"] / softmax["time_ms"]["median"]
        self.assertAlmostEqual(case["ratio_to_baseline"], ratio, delta=1e-5 * ratio)
        self.assertEqual(case["memory_bytes"], case["bytes"] + case["workspace_bytes"])
        error = case["error"]
        self.check_keys(error, ERROR_KEYS)
        self.assertLessEqual(error["max"], error["bound"])
        self.assertGreater(case["compile_ms"], 0)
        self.assertGreater(case["first_call_warm_ms"], 0)

    def test_causal_storage_types_and_grouped_heads(self):
        """Visible pairs are counted, and bytes of each type."""
        found = self.bench("--variants", "softmax", "--dtype", "f32,bf16", "--kv-heads", 2, "--causal")
        self.assertEqual([case["dtype"] for case in found["cases"]], ["f32", "bf16"])
        for case, size in zip(found["cases"], (4, 2)):
            self.assertEqual(case["kv_heads"], 2)
            self.assertEqual(case["flops"], 2 * (16 + 24) * 2 * 4 * sum(i + 11 for i in range(40)))
            self.assertEqual(case["bytes"], size * 2 * (4 * 40 * (16 + 24) + 2 * 50 * (16 + 24)) + 4 * 2 * 4 * 40)

    @unittest.skipUnless(FULL, "in the full tier")
    def test_types_that_are_those_of_q(self):
        """Options that name Q's type again make the same program."""
        plain, named = (self.bench("--variants", "softmax", "--dtype", "f16", *words)["cases"][0]
                        for words in ([], ["--dtype-k", "f16", "--dtype-v", "f16", "--dtype-o", "f16"]))
        for key in ("options", "parameters", "engine", "dtype", "dtype_k", "dtype_v", "dtype_o", "bytes"):
            self.assertEqual(named[key], plain[key], key)

    def test_a_precision_is_a_case_of_its_own(self):
        """Not that of an exact case; what the plan made of it stands beside it."""
        case, = self.bench("--variants", "softmax", "--precision", "tf32")["cases"]
        self.assertEqual((case["precision"], case["precision_used"]), ("tf32", "exact"))

    @unittest.skipUnless(FULL, "in the full tier")
    def test_storage_types_by_array(self):
        """Bytes count each array by its own type."""
        found = self.bench("--variants", "softmax", "--dtype-k", "f16", "--dtype-v", "bf16", "--kv-heads", 2)
        case = found["cases"][0]
        self.assertEqual([case[key] for key in ("dtype", "dtype_k", "dtype_v", "dtype_o")], ["f32", "f16", "bf16", None])
        self.assertEqual(case["bytes"], 2 * (4 * 4 * 40 * (16 + 24) + 2 * 2 * 50 * (16 + 24)) + 4 * 2 * 4 * 40)

    @unittest.skipUnless(FULL, "in the full tier")
    def test_types_of_caches(self):
        """Integers have a scale for each row; results are checked."""
        found = self.bench("--variants", "softmax", "--dtype-k", "int8", "--dtype-v", "e4m3", "--kv-heads", 2)
        case = found["cases"][0]
        self.assertEqual(found["failures"], [])
        self.assertEqual([case[key] for key in ("dtype", "dtype_k", "dtype_v")], ["f32", "int8", "e4m3"])
        self.assertEqual(case["bytes"], 2 * (4 * 4 * 40 * (16 + 24) + 2 * 50 * (16 + 4 + 24)) + 4 * 2 * 4 * 40)

    def test_both_passes(self):
        found = self.bench("--variants", "softmax:4,mgk:2,smgk:2", "--pass", "both")
        self.assertEqual(found["failures"], [])
        passes = {(case["pass"], case["variant"]): case for case in found["cases"]}
        self.assertEqual(len(passes), 6)
        for (name, variant), case in passes.items():
            self.check_case(case, found["devices"][0], passes[name, "softmax"])
            if variant != "smgk":
                self.check_counts_of_a_layer(case)
        # S, dQ and dK: D each, for every key of mgk; dP and dV: E each
        for variant, heads, keys in (("softmax", 4, 1), ("mgk", 2, 2), ("smgk", 2, 1)):
            case = passes["backward", variant]
            self.assertEqual(case["flops"], 2 * (3 * keys * 16 + 2 * 24) * 2 * heads * 40 * 50)
            self.assertEqual(case["gradients"], "q,k,v,shift" if variant == "smgk" else "q,k,v")
            self.assertIn(case["error"]["array"], ("dq", "dk", "dv", "dshift"))
            forward = passes["forward", variant]
            self.assertIsNone(forward["gradients"])
            self.assertEqual(forward["flops"], 2 * (keys * 16 + 24) * 2 * heads * 40 * 50)

    @unittest.skipUnless(FULL, "in the full tier")
    def test_gradients(self):
        found = self.bench("--variants", "smgk:2", "--pass", "backward", "--gradients", "prior,variance,shift,q")["cases"]
        self.assertEqual([case["gradients"] for case in found], ["q,prior,variance,shift"])
        self.assertIsNone(found[0]["ratio_to_baseline"])

    def test_masks_and_modifiers(self):
        square = ["--heads", 2, "--length", 60, "--head-size", 16, *SHORT, "--json", "--variants", "softmax"]
        for extra, expected in (
            (
                ["--window", "5,-1", "--bias", "1hns", "--alibi", "--sinks"],
                {"window": [5, -1], "bias": [1, 2, 60, 60], "alibi": True, "sinks": True},
            ),
            (["--packed", 3, "--dropout", 0.25, "--pass", "backward"], {"sequences": 3, "dropout": 0.25}),
        ):
            with self.subTest(extra=extra):
                case = json.loads(self.accept(*square, *extra).stdout)["cases"][0]
                self.assertEqual({key: case[key] for key in expected}, expected)
                self.assertLessEqual(case["error"]["max"], case["error"]["bound"])
                if case["window"]:
                    pairs = sum(60 - max(0, i - 5) for i in range(60))
                    self.assertEqual(case["flops"], 2 * (16 + 16) * 2 * pairs)

    def test_text(self):
        done = self.accept(*SIZES, *SHORT)
        for word in ("measured peaks: FMA", "softmax 4", "mgk 2", "smgk 2", "of peak", "1st cold", "spread", "mem. MB"):
            self.assertEqual(done.stdout.count(word), 2 if word == "mgk 2" else 1, done.stdout)
        self.assertIn("given (1 of 1)", done.stderr)
        found = self.accept(*SIZES, *SHORT, "--verbose").stdout
        for word in ("measured peaks: FMA", "softmax 4", "mgk 2", "smgk 2", "of peak", "first cold", "bound"):
            self.assertIn(word, found)
        ratio = re.search(r"(?m)^  forward: mgk with half the heads takes (\S+) of softmax's time", found)
        self.assertTrue(ratio, found)
        self.assertGreater(found.index("In short"), found.index("GFLOP"))
        self.assertLessEqual(len(re.search(r"(?m)^  variant, heads .*$", found)[0]), 110)

    def test_programs(self):
        """Those of the cases, for an application to ship."""
        folder = self.folder / "shipped"
        self.bench("--variants", "softmax", "--programs", folder)
        self.assertEqual([path.suffix for path in folder.iterdir()], [".bin"])
        case = self.bench("--variants", "softmax", env={**QUICK, "CLMGK_PROGRAM_DIR": str(folder)})["cases"][0]
        self.assertEqual(case["program"], "shipped")
        link = self.foreign_link("programs", "../shipped")
        self.refuse(4, *SIZES, *SHORT, "--programs", link / "new", words=["is a link of user 12346"])

    def test_two_devices(self):
        """Tables of each, and one of both. One device does not count twice."""
        both = {**QUICK, "POCL_DEVICES": "pthread pthread"}
        command = [*SIZES, *SHORT, "--variants", "softmax"]
        text = self.accept(*command, "--device", "0:1", "--device=0:0", env=both).stdout
        places = [text.index(word) for word in ("0:1 ", "0:0 ", "ratio to A", "  A: ", "  B: ")]
        self.assertEqual(places, sorted(places))
        self.assertEqual(text.count("measured peaks"), 2)
        row = re.search(r"(?m)^  softmax +forward .* (\S+) +(\S+) +(\d+\.\d\d)[~ ]$", text)
        self.assertAlmostEqual(float(row[2]) / float(row[1]), float(row[3]), delta=0.02 * float(row[3]) + 0.01)
        found = json.loads(self.accept(*command, "--json", "--all-devices", env=both).stdout)
        self.assertEqual([case["device"] for case in found["cases"]], [0, 1])
        self.refuse(2, *command, "--device", "0:0", "--device", "pocl", words=["--device 'pocl'", "same device as --device '0:0'"])

    def test_interrupt_leaves_nothing(self):
        scratch = self.folder / "scratch"
        scratch.mkdir()
        command = [BIN / self.program, "--shapes", "square-64", "--seconds", "0.01", "--variants", "softmax", "--json"]
        with subprocess.Popen(
            command, env={**QUICK, "TMPDIR": str(scratch)}, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        ) as process:
            while process.poll() is None and not any(scratch.rglob("*/*")):
                time.sleep(0.05)
            process.send_signal(signal.SIGINT)
            found = json.loads(process.stdout.read())
            self.assertEqual(process.wait(LIMIT_S), -signal.SIGINT)
        self.assertTrue(wait_until_empty(scratch))
        self.assertEqual((found["cases"], found["failures"], found["ended_early"]), ([], [], True))

    def interrupted(self, number, word, *args):
        """The output of a run that a signal ends at the second line of progress with that word."""
        command = [BIN / self.program, "--variants", "softmax", "--keep-caches", *args]
        with subprocess.Popen(command, env=QUICK, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            lines = (line for line in process.stderr if word in line)
            self.assertNotEqual([next(lines, ""), next(lines, "")][1], "")
            process.send_signal(number)
            text = process.stdout.read()
            process.stderr.read()
            self.assertEqual(process.wait(LIMIT_S), -number)
        return text

    def check_interrupted(self, text):
        found = json.loads(text)
        self.assertEqual(list(found), ["clmgk", "devices", "cases", "failures", "ended_early"])
        self.check_keys(found["devices"][0], DEVICE_KEYS)
        self.check_keys(found["cases"][0], CASE_KEYS)
        self.assertGreater(found["cases"][0]["time_ms"]["repetitions"], 0)

    def test_interrupt_prints_what_there_is(self):
        """The first shape's cases; the second shape takes minutes."""
        shapes = ["--shapes", "scores-alibi-128,square-64", "--seconds", "0.01"]
        self.check_interrupted(self.interrupted(signal.SIGINT, " of 2)", *shapes, "--json"))
        text = self.interrupted(signal.SIGTERM, " of 2)", *shapes)
        for word in ("median ms", "softmax 8 as text", "measured peaks: FMA", "\nended early\n"):
            self.assertEqual(text.count(word), 1, text)

    @unittest.skipUnless(FULL, "in the full tier")
    def test_interrupt_between_rounds(self):
        sizes = ["--heads", "16", "--length", "1024", "--head-size", "16", "--seconds", "600"]
        self.check_interrupted(self.interrupted(signal.SIGINT, ": timing\n", *sizes, "--json"))


class Layer(BenchTest):
    """The multi-head layer: width 32, and the decoding step. In bf16."""

    KEYS = {"device": int, "step": str, "variant": str, "dtype": str, "heads": int, "width": int, "head_size": int,
            "batch": int, "length": int, "cache": int, "time_ms": dict, "ratio_to_softmax": MAYBE, "ratio_to_reading": MAYBE,
            "activation_bytes": int, "workspace_bytes": NUMBER, "enqueue_us": NUMBER, "enqueue_backward_us": MAYBE,
            "compile_ms": NUMBER, "provider": str, "note": str, "error": dict}

    def test_steps(self):
        sizes = ["--batch", 2, "--heads", 2, "--length", 24, "--head-size", 16, "--variants", "softmax", "--dtype", "bf16"]
        found = json.loads(self.accept("--suite", "layer", *sizes, *SHORT, "--json").stdout)
        self.assertEqual((found["cases"], found["failures"]), ([], []))
        self.assertEqual([case["step"] for case in found["layers"]], ["forward", "training", "decoding"])
        for case in found["layers"]:
            self.check_keys(case, self.KEYS)
            self.assertEqual((case["width"], case["heads"], case["ratio_to_softmax"], case["dtype"]), (32, 2, 1, "bf16"))
            self.assertLessEqual(case["error"]["max"], case["error"]["bound"])
        forward, training, decoding = found["layers"]
        self.assertEqual((forward["batch"], forward["length"], forward["cache"]), (2, 24, 0))
        self.assertEqual((decoding["batch"], decoding["length"], decoding["cache"]), (1, 1, 96))
        self.assertEqual((forward["activation_bytes"], decoding["activation_bytes"]), (0, 0))
        self.assertGreaterEqual(training["activation_bytes"], 4 * 48 * 2 * 32)  # Q, K, V and O
        self.assertIsNone(forward["enqueue_backward_us"])
        for case in found["layers"]:
            self.assertGreater(case["enqueue_us"], 0)
        self.assertGreater(training["enqueue_backward_us"], 0)
        self.assertGreater(decoding["ratio_to_reading"], 0)

    def test_other_options(self):
        self.refuse(2, "--suite", "layer", "--precision", "tf32", words=["--precision is given", "--suite layer"])
        self.refuse(2, "--suite", "layer", "--dtype", "f32,bf16", words=["--dtype 'f32,bf16'"])
        self.refuse(2, "--suite", "call", "--dtype", "f16", words=["--dtype is given", "--suite call"])


class Call(BenchTest):
    """One call of a small problem: 5 queries and keys, D 8."""

    KEYS = {"device": int, "variant": str, "batch": int, "heads": int, "components": int, "length": int,
            "length_k": int, "head_size": int, "value_size": int, "time_us": dict, "empty_us": dict, "ratio": NUMBER,
            "enqueue_us": NUMBER, "empty_enqueue_us": NUMBER, "repetitions": int, "error": dict}
    SIZES = ["--suite", "call", "--length", 5, "--head-size", 8]

    def test_json(self):
        found = json.loads(self.accept(*self.SIZES, *SHORT, "--json").stdout)
        self.assertEqual((found["cases"], found["failures"], len(found["calls"])), ([], [], 1))
        call = found["calls"][0]
        self.check_keys(call, self.KEYS)
        self.assertEqual((call["variant"], call["heads"], call["length_k"], call["value_size"]), ("softmax", 1, 5, 8))
        self.assertGreaterEqual(call["repetitions"], 100)
        self.assertAlmostEqual(call["ratio"], call["time_us"]["median"] / call["empty_us"]["median"])
        self.assertLess(call["enqueue_us"], call["time_us"]["max"])
        self.assertLessEqual(call["error"]["max"], call["error"]["bound"])

    def test_text(self):
        text = self.accept(*self.SIZES, *SHORT).stdout
        self.assertIn("one call, enqueue to finish: batch 1, N 5, S 5, D 8, E 8", text)
        self.assertRegex(text, r"\n  softmax 1 +\d")

    def test_other_options(self):
        self.refuse(2, "--suite", "call", "--pass", "both", words=["--pass is given", "--suite call"])


class Serving(BenchTest):
    """Two sequences of 20 keys."""

    KEYS = {"device": int, "case": str, "dtype": str, "sequences": int, "keys": int, "heads": int, "kv_heads": int,
            "head_size": int, "beside": str, "time_ms": dict, "bytes": NUMBER, "fraction_of_rate": NUMBER, "speed": NUMBER,
            "error": dict}
    SIZES = ["--suite", "serving", "--batch", 2, "--heads", 2, "--kv-heads", 1, "--length", 20, "--head-size", 8]

    @unittest.skipUnless(FULL, "in the full tier")
    def test_json(self):
        found = json.loads(self.accept(*self.SIZES, *SHORT, "--json").stdout)["serving"]
        self.assertEqual([case["case"] for case in found], ["equal lengths", "lengths", "pages in order", "pages of 16",
                                                            "lengths", "prefix by each", "prefix once", "copy", "append"])
        for case in found:
            self.check_keys(case, self.KEYS)
            self.assertEqual((case["keys"], case["heads"], case["kv_heads"]), (40, 2, 1))
            self.assertGreaterEqual(case["time_ms"]["repetitions"], 5)
            self.assertLessEqual(case["error"]["max"], case["error"]["bound"])
        dense, eight = found[1], found[4]
        self.assertEqual((eight["dtype"], eight["beside"], dense["bytes"]), ("int8", "lengths", 2 * eight["bytes"]))
        self.assertAlmostEqual(eight["speed"], dense["time_ms"]["median"] / eight["time_ms"]["median"])

    @unittest.skipUnless(FULL, "in the full tier")
    def test_text(self):
        text = self.accept(*self.SIZES, *SHORT).stdout
        self.assertIn("serving: 2 sequences of 20 to 20 keys, 40 in all; 2 heads over 1, D 8; read ", text)
        self.assertRegex(text, r"\n  append +f16 +\d")

    def test_other_options(self):
        self.refuse(2, "--suite", "serving", "--variants", "mgk", words=["--variants is given", "--suite serving"])
        self.refuse(2, "--suite", "serving", "--heads", 3, words=["--kv-heads: 2", "a divisor of the 3 heads"])


class Parallel(BenchTest):
    """Causal attention of 40 tokens over two ranks, which are threads."""

    KEYS = {"schedule": str, "variant": str, "scaling": str, "pass": str, "ranks": int, "tokens": int, "batch": int,
            "heads": int, "head_size": int, "time_ms": NUMBER, "pairs": NUMBER, "rate_per_rank": NUMBER, "bytes": NUMBER,
            "least_bytes": NUMBER, "delayed_ms": (float, type(None)), "hidden": (float, type(None)),
            "most_pairs_to_mean": NUMBER, "error": NUMBER}
    SIZES = ["--heads", 2, "--length", 40, "--head-size", 16]

    def rows(self, schedule, *options):
        found = json.loads(self.accept("--parallel", schedule, *self.SIZES, *options, *SHORT, "--json").stdout)
        rows = found["parallel"]
        self.assertEqual([(row["scaling"], row["ranks"], row["tokens"], row["pass"]) for row in rows[::2]],
                         [("strong", 1, 40, "forward"), ("strong", 2, 40, "forward"), ("weak", 2, 80, "forward")])
        for row in rows:
            self.check_keys(row, self.KEYS)
            self.assertLess(row["error"], 1e-4)
            self.assertLess(row["most_pairs_to_mean"], 1.02)
        return rows

    def test_ring(self):
        rows = self.rows("ring", "--send-rate", "equal")
        for row in rows[2:]:
            self.assertEqual(row["bytes"], row["least_bytes"])
            self.assertTrue(0 <= row["hidden"] <= 1 and row["delayed_ms"] > 0)
        self.assertEqual((rows[0]["bytes"], rows[0]["hidden"], rows[0]["rate_per_rank"]), (0, None, 1))

    def test_all_gather(self):
        for row in self.rows("all-gather"):
            self.assertEqual(row["bytes"], row["least_bytes"])
            self.assertIsNone(row["hidden"])

    def test_text(self):
        text = self.accept("--parallel", "all-to-all", *self.SIZES, *SHORT).stdout
        self.assertIn("causal attention over ranks, schedule all-to-all: batch 1, D 16", text)
        self.assertRegex(text, r"\n +weak +2 +80 backward +\d")

    def test_other_options(self):
        self.refuse(2, "--parallel", "star", words=["--parallel 'star'", "all-to-all"])
        self.refuse(2, "--parallel", "ring", "--pass", "both", words=["--pass is given"])
        self.refuse(2, "--ranks", 2, words=["--ranks is given", "--parallel"])
        self.refuse(2, "--parallel", "ring", "--send-rate", 0, words=["--send-rate '0'"])


class Admixture(BenchTest):
    """Global heads times local ones: batch 2, 40 queries, 50 keys, D 16, E 24."""

    ALL = {"hard-fish": (2, 4), "hard-mish": (3, 2), "talking-heads": (4, 4), "fish": (2, 4), "mish": (3, 2),
           "hard-gfish": (2, 3), "gfish": (5, 2)}
    QUICK = {"forward": ("hard-fish", "hard-mish", "talking-heads", "fish"), "backward": ("hard-fish",)}

    def test_both_passes(self):
        cases = {}
        for which in ("forward", "backward"):
            names = self.ALL if FULL else self.QUICK[which]
            variants = [f"{name}:{self.ALL[name][0]}x{self.ALL[name][1]}" for name in names]
            found = self.bench("--variants", ",".join(["softmax:4", *variants]), "--pass", which)
            self.assertEqual(found["failures"], [])
            self.assertEqual([case["variant"] for case in found["cases"]], ["softmax", *names])
            cases.update({(case["variant"], which): case for case in found["cases"]})
        self.check_operations_of_the_paper(list(cases.values()))
        hard, noisy = (cases[name, "forward"]["error"]["sampled"] for name in ("hard-fish", "fish"))
        self.assertEqual(hard, 8 * 2 * 4)  # rows: as many in each (b,h)
        self.assertEqual(noisy, 2 * 4 * 40)  # a smaller problem: here the whole
        pairs = 2 * 40 * 50
        for name in self.ALL if FULL else self.QUICK["forward"]:
            (m, h), forward, backward = self.ALL[name], cases[name, "forward"], cases.get((name, "backward"))
            for case in filter(None, (forward, backward)):
                if name == "hard-fish":
                    self.check_counts_of_a_layer(case)
                self.assertEqual(set(case), set(CASE_KEYS))
                self.assertEqual((case["components"], case["heads"]), (m, h))
                self.assertLessEqual(case["error"]["max"], case["error"]["bound"])
            # M products of scores, H of values; backward S, dQ and dK, then dP and dV
            self.assertEqual(forward["flops"], 2 * (m * 16 + h * 24) * pairs)
            if backward:
                self.assertEqual(backward["flops"], 2 * (3 * m * 16 + 2 * h * 24) * pairs)
                self.assertEqual(backward["gradients"], "q,k,v,mix")
            # Q and K have M heads, V and O have H; then L, p, w, c and sigma
            small = {"hard-fish": m * h, "talking-heads": m * h, "hard-mish": m, "fish": m * h + m, "mish": m + m,
                     "hard-gfish": 2 * m * h + h, "gfish": 2 * m * h + h + m}[name]
            stored = 2 * (m * (40 + 50) * 16 + h * (40 + 50) * 24)
            self.assertEqual(forward["bytes"], 4 * (stored + 2 * h * 40 + small))

    def check_operations_of_the_paper(self, cases):
        counts = {case["variant"]: case["paper_operations"] for case in cases if case["pass"] == "forward"}
        self.assertEqual({case["paper_operations"] for case in cases if case["pass"] == "backward"}, {None})
        for name in {"softmax", "gfish", "hard-gfish"} & set(counts):
            self.assertIsNone(counts[name])
        # additions and multiplications one by one: of M matrices of D products, of their mixtures, of the noise
        dot, project = 2 * 16 - 1, (40 + 50) * 16 * (2 * 4 * 16 - 1)
        for name in counts:
            if not counts[name]:
                continue
            m, h = self.ALL[name]
            noise = m if "hard" not in name and name != "talking-heads" else 0
            matrices = 1 if "mish" in name else h  # one for all heads
            mixed = 40 * 50 * (m * dot + noise + matrices * (m + m - 1))
            softmax = 40 * 50 * 4 * dot
            self.assertAlmostEqual(counts[name]["matrices"], mixed / softmax, places=7)
            whole = (mixed + m * project) / (softmax + 4 * project)
            self.assertAlmostEqual(counts[name]["with_projections"], whole, places=7)

    @unittest.skipUnless(FULL, "in the full tier")
    def test_gradients(self):
        names = "k,mix,mix-weight,mix-offset,noise"
        expected = {"gfish:2x3": names, "mish:2x3": "k,mix,noise"} if FULL else {"gfish:2x3": names}
        found = self.bench("--variants", ",".join(expected), "--pass", "backward", "--gradients", names)["cases"]
        self.assertEqual([case["gradients"] for case in found], list(expected.values()))

    def test_heads_of_the_shape(self):
        found = self.bench("--variants", "hard-fish:3,hard-fish,talking-heads", "--components", 2)["cases"]
        self.assertEqual([(case["components"], case["heads"]) for case in found], [(2, 3), (2, 4), (4, 4)])

    @unittest.skipUnless(FULL, "in the full tier")
    def test_grouped_values_and_modifiers(self):
        case = self.bench("--variants", "hard-fish:3x4", "--kv-heads", 2, "--bias", "bhns", "--sinks", "--causal")["cases"][0]
        self.assertEqual(case["kv_heads"], 2)
        self.assertLessEqual(case["error"]["max"], case["error"]["bound"])
        self.assertEqual(case["flops"], 2 * (3 * 16 + 4 * 24) * 2 * sum(i + 11 for i in range(40)))

    def test_text(self):
        variants = "softmax:4,hard-fish:2x4,hard-gfish:2x3x4,talking-heads:4"
        text = self.accept(*SIZES, *SHORT, "--variants", variants, "--verbose").stdout
        for word in ("hard-fish 2x4", "hard-gfish 2x3x4", "talking-heads 4", "FiSH paper, Appendix D", "with projections", "10^6 par."):
            self.assertIn(word, text)


class Linear(BenchTest):
    """The linear family: batch 2, 40 queries, 50 keys, D 16, E 24."""

    def test_both_passes(self):
        cases = {}
        backward = "linear:4,lgfish:2x3" if FULL else "linear:4"
        for which, names in (("forward", "linear:4,mlk:2,lgfish:2x3"), ("backward", backward)):
            found = self.bench("--variants", names, "--pass", which)
            self.assertEqual(found["failures"], [])
            cases.update({(case["variant"], which): case for case in found["cases"]})
        # queries and keys have 16 features, those of mixed heads 2 x 16; the state has 24 + 1 columns
        for name, heads, width in (("linear", 4, 16), ("mlk", 2, 16), ("lgfish", 3, 32)):
            forward, backward = cases[name, "forward"], cases.get((name, "backward"))
            for case in filter(None, (forward, backward)):
                self.check_keys(case, CASE_KEYS)
                self.assertLessEqual(case["error"]["max"], case["error"]["bound"])
                self.assertEqual((case["feature"], case["features"], case["state"]), ("elu1", 16, None))
                self.assertIsNone(case["state_fraction_of_copy"])
                times = [one["time_ms"]["median"] for one in (case, cases["linear", case["pass"]])]
                self.assertAlmostEqual(case["ratio_to_linear"], times[0] / times[1], places=6)
            self.assertEqual(forward["flops"], 2 * 2 * heads * (40 + 50) * width * 25)
            if not backward:
                continue
            products = (40 + 50) * 25 + 40 * 25 + 50 * 25 + 50 * 24  # dPhi with its state, the queries' sum, dpsi, dV
            self.assertEqual(backward["flops"], 2 * 2 * heads * products * width)
            self.assertEqual(backward["gradients"], "q,k,v,mix" if name == "lgfish" else "q,k,v")
        # no L; MLK has two keys a position and a prior [H,M], the mixed heads p and w [3,2] and sigma [2]
        self.assertEqual(cases["linear", "forward"]["bytes"], 4 * 2 * 4 * (40 + 50) * (16 + 24))
        self.assertEqual(cases["mlk", "forward"]["bytes"], 4 * (2 * 2 * (40 * 40 + 50 * 24 + 2 * 50 * 16) + 2 * 2))
        stored = 2 * (40 + 50) * (2 * 16 + 3 * 24)
        self.assertEqual(cases["lgfish", "forward"]["bytes"], 4 * (stored + 2 * 6 + 2))
        # backward: the denominators, and the gradients of q, k, v and o
        self.assertEqual(cases["linear", "backward"]["bytes"], 4 * 2 * 4 * (2 * (40 + 50) * (16 + 24) + 2 * 40))

    def test_chunks_are_counted(self):
        """Products of pairs inside chunks. The lane engine proceeds by steps and has none."""
        for engine in ("lane", "simt"):
            case = self.bench("--variants", "linear", "--causal", "--engine", engine)["cases"][0]
            self.assertEqual(case["engine"], engine)
            chunk = int(dict(word.split("=") for word in case["parameters"].split(","))["chunk"])
            # row i sees the keys up to 10 + i; chunks begin with key 10
            pairs = sum(i % chunk + 1 for i in range(40)) if engine == "simt" else 0
            self.assertEqual(case["flops"], 2 * 2 * 4 * ((40 + 50) * 16 * 25 + pairs * (16 + 24)))

    @unittest.skipUnless(FULL, "in the full tier")
    def test_states(self):
        found = self.bench("--variants", "mlk:2", "--causal", "--state")["cases"][0]
        self.assertTrue(found["state"])
        self.assertLessEqual(found["error"]["max"], found["error"]["bound"])
        without = 4 * (2 * 2 * (40 * 40 + 50 * 24 + 2 * 50 * 16) + 2 * 2)
        states = 2 * 4 * 2 * 2 * 16 * 25
        self.assertEqual(found["bytes"], without + states)
        self.assertGreater(found["state_fraction_of_copy"], 0)
        done = self.accept("--length", 1, "--head-size", 16, "--state", *SHORT, "--variants", "linear:2", "--verbose")
        self.assertIn("states in and out", done.stdout)
        self.assertIn("states are read and written at", done.stdout)

    @unittest.skipUnless(FULL, "in the full tier")
    def test_features(self):
        done = self.accept(*SIZES, *SHORT, "--variants", "linear:4,mlk:2", "--feature", "favor", "--features", 24, "--verbose")
        for word in ("linear 4 favor-24", "mlk 2 favor-24", "mlk 2 favor-24 / linear 4: "):
            self.assertIn(word, done.stdout)
        case = self.bench("--variants", "linear:4", "--feature", "dpfp", "--feature-order", 2)["cases"][0]
        self.assertEqual((case["feature"], case["features"]), ("dpfp", 64))


PRODUCT_KEYS = {
    "device": int,
    "dtype": str,
    "m": int,
    "n": int,
    "k": int,
    "transpose_a": bool,
    "transpose_b": bool,
    "precision": (str, type(None)),
    "precision_used": str,
    "provider": str,
    "untuned": bool,
    "tuning": str,
    "parameters": str,
    "note": str,
    "time_ms": dict,
    "gflops": NUMBER,
    "ratio_to_untuned": MAYBE,
    "plan_ms": NUMBER,
    "first_ms": NUMBER,
}


class Scores(BenchTest):
    """Scores and masks as text beside those that are built in."""

    def test_a_text_beside_its_twin(self):
        command = ["--shapes", "scores-alibi-128,scores-documents-256", "--variants", "softmax", *SHORT, "--json"]
        built_in, text, full, documents, classes = cases = json.loads(self.accept(*command).stdout)["cases"]
        for case in cases:
            self.check_keys(case, CASE_KEYS)
            self.assertLessEqual(case["error"]["max"], case["error"]["bound"])
        self.assertEqual((built_in["alibi"], built_in["score_mod"]), (True, None))
        self.assertEqual((text["alibi"], text["score_mod"]), (None, "s - slope[h] * abs(i - j)"))
        self.assertEqual([text[key] for key in ("flops", "bytes")], [built_in[key] for key in ("flops", "bytes")])
        self.assertEqual((documents["mask_mod"], documents["flops"]), ("doc[i] == doc[j]", full["flops"] / 8))
        self.assertEqual(documents["bytes"], full["bytes"] + 4 * 256)
        self.assertEqual([classes[key] for key in ("pass", "flops", "mask_mod")], ["mask", 0, documents["mask_mod"]])
        self.assertEqual(classes["bytes"], 4 * 256 + 4 * 4 * 4)
        for one, baseline in ((text, built_in), (documents, full), (classes, full)):
            ratio = one["time_ms"]["median"] / baseline["time_ms"]["median"]
            self.assertAlmostEqual(one["ratio_to_baseline"], ratio, delta=1e-5 * ratio)

    @unittest.skipUnless(FULL, "in the full tier")
    def test_suite(self):
        shapes = ("scores-softcap", "scores-alibi", "scores-window", "scores-causal", "scores-documents")
        text = self.accept("--suite", "scores", *SHORT).stdout
        for word, count in (*((f"{name}: batch 1, N ", 1) for name in shapes), (", soft-cap 30", 1), ("softmax 8", 12),
                            ("softmax 8 as text ", 4), ("softmax 8 by array ", 1), ("softmax 8 by position ", 1), ("softmax 8 classes ", 1)):
            self.assertEqual(text.count(word), count, word + text)

    @unittest.skipUnless(FULL, "in the full tier")
    def test_documents(self):
        """Each text is a program of its own. Backward is checked where the mask hides keys."""
        command = ["--shapes", "scores-documents", "--variants", "softmax", "--pass", "backward", "--seconds", 0.01, "--json"]
        full, *texts = json.loads(self.accept(*command).stdout)["cases"]
        self.assertEqual([case["mask_mod"] for case in texts], ["doc[i] == doc[j]", "i / 512 == j / 512"])
        self.assertEqual([case["bytes"] - full["bytes"] for case in texts], [4 * 4096, 0])
        for case in texts:
            self.assertAlmostEqual(case["flops"], full["flops"] / 8, delta=1e-5 * case["flops"])
            self.assertGreater(case["first_call_cold_ms"], 0)
            self.assertGreater(case["error"]["length_k"], 512)
            self.assertLessEqual(case["error"]["max"], case["error"]["bound"])


class Products(BenchTest):
    SHAPE = ["--gemm", "33x65x17", "--seconds", 0.01, "--keep-caches"]

    def test_figures(self):
        found = json.loads(self.accept(*self.SHAPE, "--json").stdout)
        self.assertEqual(found["cases"], [])
        ways = found["products"]
        for one in ways:
            self.assertEqual(set(one), set(PRODUCT_KEYS))
            for key, kind in PRODUCT_KEYS.items():
                self.assertIsInstance(one[key], kind, key)
            self.assertEqual((one["m"], one["n"], one["k"], one["dtype"]), (33, 65, 17, "f32"))
            self.assertAlmostEqual(one["gflops"] / (2e-6 * 33 * 65 * 17 / one["time_ms"]["median"]), 1, places=6)
        untuned = [one for one in ways if one["untuned"]]
        self.assertEqual([one["provider"] for one in untuned], ["clblast"])
        self.assertIn("clblast", [one["provider"] for one in ways if not one["untuned"]])
        for one in ways:
            ratio = untuned[0]["time_ms"]["median"] / one["time_ms"]["median"]
            self.assertAlmostEqual(one["ratio_to_untuned"] / ratio, 1, places=6)

    def test_text(self):
        text = self.accept(*self.SHAPE).stdout
        for word in ("clblast", "33", "65", "17", "GFLOP/s"):
            self.assertIn(word, text)

    def test_other_types(self):
        found = json.loads(self.accept(*self.SHAPE, "--dtype", "bf16", "--json").stdout)["products"]
        self.assertEqual({one["dtype"] for one in found}, {"bf16"})
        self.assertIn("clmgk", [one["provider"] for one in found])

    def test_refused_provider(self):
        """The driver refuses its kernel: the others are measured all the same."""
        kernels = self.folder / "cl"
        shutil.copytree(pathlib.Path(__file__).resolve().parents[2] / "cl", kernels)
        (kernels / "gemm/product.cl").write_text("no kernel\n")
        environment = {**QUICK, "CLMGK_KERNEL_DIR": str(kernels)}
        ways = json.loads(self.accept(*self.SHAPE, "--json", env=environment).stdout)["products"]
        refused = [one for one in ways if "refused" in one]
        self.assertEqual([(one["provider"], one["m"], one["dtype"]) for one in refused], [("clmgk", 33, "f32")])
        self.assertIn("gemm/product.cl", refused[0]["refused"])
        self.assertIn("clblast", [one["provider"] for one in ways if "gflops" in one])
        self.assertRegex(self.accept(*self.SHAPE, env=environment).stdout, r"clmgk +not measured: .*gemm/product\.cl")

    def test_refusals(self):
        for words, args in (
                (["--gemm"], ["--gemm", "3x4"]),
                (["--dtype"], ["--gemm", "3x4x5", "--dtype", "f8"]),
                (["--gemm"], ["--gemm", "3x4x0"]),
                (["--gemm"], ["--gemm", ""]),
                (["--gemm"], ["--gemm", "3x4x5,"]),
                (["--pass", "--gemm"], ["--gemm", "3x4x5", "--pass", "both"]),
                (["--shapes", "--gemm"], ["--gemm", "3x4x5", "--shapes", "long"])):
            with self.subTest(args):
                self.refuse(2, *args, words=words)


class Comparison(BenchTest):
    measured = None  # the text of one object, for all tests

    def earlier(self, factor):
        """The JSON object of a made-up run that took `factor` times as long."""
        if not Comparison.measured:
            Comparison.measured = self.accept(*SIZES, *SHORT, "--json", "--variants", "softmax").stdout
        found = json.loads(Comparison.measured)
        times = found["cases"][0]["time_ms"]
        for key in ("median", "min", "max"):
            times[key] *= factor
        (self.folder / "old.json").write_text(json.dumps(found))
        return "old.json"

    def test_regression(self):
        """Of the one case in common with the earlier run."""
        self.earlier(0.01)
        found = json.loads((self.folder / "old.json").read_text())
        other = {**found["cases"][0], "length": 41}
        found["cases"] = [other, found["cases"][0], {**other, "length": 42}]
        (self.folder / "old.json").write_text(json.dumps(found))
        command = [*SIZES, *SHORT, "--variants", "softmax", "--compare", "old.json"]
        done = self.run_program(*command)
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("REGRESSION", done.stdout)
        self.assertIn("slower by more than 5 %", done.stderr)
        self.assertIn("1 case compared: 0 faster", done.stdout)
        self.assertIn("\n  2 cases of the earlier run are not in this run\n", done.stdout)
        self.assertNotIn("In short", done.stdout)  # of one variant
        self.assertIn("1 slower, 0 slower by more", self.accept(*command, "--threshold", 1e6).stdout)
        found["cases"] = [other]
        (self.folder / "old.json").write_text(json.dumps(found))
        done = self.run_program(*command)
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("\n  1 case of the earlier run is not in this run\n", done.stdout)
        self.assertIn("--compare old.json: has no case in common with this run\n", done.stderr)

    def test_gain(self):
        """JSON stays JSON."""
        done = self.accept(*SIZES, *SHORT, "--variants", "softmax", "--json", "--compare", self.earlier(100))
        self.assertEqual(len(json.loads(done.stdout)["cases"]), 1)
        self.assertIn("1 faster", done.stderr)

    def test_another_device(self):
        self.earlier(2)
        found = json.loads((self.folder / "old.json").read_text())
        found["devices"][0]["name"] = "a card"
        (self.folder / "card.json").write_text(json.dumps(found))
        done = self.accept(*SIZES, *SHORT, "--variants", "softmax", "--compare", "card.json")
        self.assertIn("A: a card (card.json)", done.stdout)
        self.assertRegex(done.stdout, r"B: .* \(this run\)\n")
        self.assertNotIn("earlier run", done.stdout)

    def test_several_files(self):
        def write(name, device, *cases):
            device = {"name": device}
            cases = [{"device": 0, "variant": variant, "pass": "forward", "dtype": "f32", "components": 1, "heads": 8,
                      "length": 64, "length_k": 64, "head_size": 32, "causal": False,
                      "time_ms": {"median": time, "min": 0.9 * time, "max": 1.5 * time}} for variant, time in cases]
            (self.folder / name).write_text(json.dumps({"devices": [device], "cases": cases}))
        write("a.json", "it's one", ("softmax", 8.0), ("mgk", 4.0))
        write("b.json", "two", ("softmax", 2.0))
        write("c.json", "three", ("softmax", 8.5), ("smgk", 1.0))
        done = self.accept("--compare", "a.json", "b.json", "c.json", "--plot", "x.svg")
        self.assertIn("  A: it's one (a.json)\n  B: two (b.json)\n  C: three (c.json)\n", done.stdout)
        rows = {line.split()[0]: line.split()[line.split().index("32") + 1:] for line in done.stdout.splitlines()
                if " forward " in line}
        self.assertEqual(rows["softmax"], ["8.000", "2.000", "0.25", "8.500", "1.06~"])
        self.assertEqual(rows["mgk"], ["4.000", "-", "-"])
        self.assertEqual(rows["smgk"], ["-", "-", "1.000"])
        picture = (self.folder / "x.svg").read_text()
        for word in ("one (a.json)", "two (b.json)", "three (c.json)", "smgk forward M 1 8 heads f32 N 64 S 64 D 32"):
            self.assertIn(word, picture)
        self.assertEqual(done.stdout, self.accept("--plot=y.svg", "--compare=a.json", "b.json", "c.json").stdout)
        self.refuse(2, "--compare", "a.json", "b.json", "--suite", "quick", words=["--suite", "only --plot"])
        self.refuse(2, "--compare", "a.json", "absent.json", words=["--compare absent.json: No such file"])
        self.refuse(2, "--compare", *(17 * ["a.json"]), words=["at most 16 files"])

    def test_not_an_object(self):
        (self.folder / "damaged.json").write_text('{"cases": [')
        (self.folder / "other.json").write_text('{"cases": 3}')
        for name, word in (("absent.json", "No such file"), ("damaged.json", "an object of --json"),
                           ("other.json", "an object of --json"), (self.folder, "not a regular file")):
            self.refuse(2, "--compare", name, words=[f"--compare {name}", word])

    def test_damaged_files(self):
        """Alone and among several, nothing is measured: one line names the file and the place."""
        self.earlier(1)
        for place, value in (("cases[0]", 3), ("cases[0].device", -1), ("cases[0].device", 1), ("cases[0].device", "0"),
                             ("cases[0].variant", None), ("cases[0].dtype", "f32\x1b[2J"), ("cases[0].pass", "'"),
                             ("cases[0].length", -40), ("cases[0].length", 40.5), ("cases[0].heads", 1 << 31),
                             ("cases[0].components", 0), ("cases[0].causal", 0), ("cases[0].time_ms.median", "1"),
                             ("cases[0].time_ms.median", 0), ("cases[0].time_ms.median", -1),
                             ("cases[0].time_ms.median", 1e9), ("cases[0].time_ms.min", 1e9), ("cases[0].time_ms.max", None),
                             ("devices[0]", []), ("devices[0].name", 3)):
            found = json.loads((self.folder / "old.json").read_text())
            *path, last = place.replace("[0]", ".0").split(".")
            at = found
            for word in path:
                at = at[int(word) if word == "0" else word]
            at[int(last) if last == "0" else last] = value
            (self.folder / "bad.json").write_text(json.dumps(found))
            if value == 1e9:  # what comes after it is too small
                place = place.replace("median", "max").replace("min", "median")
            for files in (["bad.json"], ["old.json", "bad.json"]):
                with self.subTest(place=place, value=value, files=files):
                    self.refuse(2, "--compare", *files, words=[f"--compare bad.json: {place}: expected "])
        (self.folder / "bad.json").write_text('{"devices": [],\n"cases": [}')
        self.refuse(2, "--compare", "bad.json", words=["bad.json: line 2, column 11: "])

    def test_names_command_no_terminal(self):
        self.earlier(2)
        found = json.loads((self.folder / "old.json").read_text())
        found["devices"][0]["name"] = "a\x1b[2J\u009b1m\ncard"
        (self.folder / "a\nb.json").write_text(json.dumps(found))
        done = self.accept("--compare", "a\nb.json", "old.json")
        self.assertIn("  A: a [2J  1m card (a b.json)\n", done.stdout)
        self.assertNotIn("\x1b", done.stdout)

    def test_a_fifo_is_not_waited_for(self):
        os.mkfifo(self.folder / "fifo")
        done = self.run_program("--compare", "fifo")
        self.assertEqual((done.returncode, done.stdout), (2, ""), done.stderr)
        self.assertIn("--compare fifo: is not a regular file", done.stderr)


class Plot(BenchTest):
    def test_links_of_other_users(self):
        (self.folder / "x.svg").write_text("old")
        self.refuse(4, *SIZES, *SHORT, "--plot", self.foreign_link("f.svg", "../x.svg"), words=["is a link of user 12346"])

    @unittest.skipUnless(shutil.which("gnuplot"), "gnuplot is not installed")
    def test_picture(self):
        self.accept(*SIZES, *SHORT, "--plot", "f.svg", "--variants", "softmax,hard-fish:2x4")
        root = xml.etree.ElementTree.parse(self.folder / "f.svg").getroot()
        text = "".join(root.itertext())
        for word in ("given", "softmax", "hard-fish, 4 heads, 2 global", "time / softmax", "part of"):
            self.assertIn(word, text)
        lines = (self.folder / "f.svg").read_text().count("'rgb( 68,  68,  68)'")
        self.assertGreaterEqual(lines, 4, "two bars of times and two of rates have lines from least to largest")

    @unittest.skipUnless(shutil.which("gnuplot"), "gnuplot is not installed")
    def test_picture_without_a_baseline(self):
        """No softmax with the size's heads: times in milliseconds in the place of ratios."""
        self.accept("--length", 16, "--head-size", 8, *SHORT, "--variants", "mgk:4", "--plot", "f.svg")
        text = "".join(xml.etree.ElementTree.parse(self.folder / "f.svg").getroot().itertext())
        for word in ("given", "mgk, 4 heads", "milliseconds", "part of"):
            self.assertIn(word, text)
        self.assertNotIn("time / softmax", text)

    def test_without_gnuplot(self):
        self.refuse(4, "--plot", "f.svg", words=["gnuplot"], env={**QUICK, "PATH": str(self.folder)})

    def test_an_earlier_run_is_not_overwritten(self):
        (self.folder / "a.json").write_text('{"devices": [], "cases": []}')
        (self.folder / "link.svg").symlink_to("a.json")
        for files in (["a.json"], ["a.json", "a.json"]):
            for target in ("a.json", "./a.json", "link.svg"):
                self.refuse(2, "--compare", *files, "--plot", target,
                            words=["--plot would overwrite the input --compare a.json"])

    def test_folder_that_is_not_there(self):
        self.refuse(4, "--plot", "nowhere/f.svg", words=["nowhere/f.svg"])


class Refusals(BenchTest):
    def test_bad_usage(self):
        for words, args in (
            (["--pass"], ["--pass", "sideways"]),
            (["--gradients", "--pass"], ["--gradients", "q"]),
            (["--gradients"], ["--pass", "backward", "--gradients", "noise"]),
            (["--gradients", "shift"], ["--pass", "backward", "--gradients", "shift", "--variants", "mgk"]),
            (["--backward-parameters", "--pass"], ["--backward-parameters", "tile=64"]),
            (["--window", "left,right"], ["--length", 8, "--head-size", 8, "--window", "-2,3"]),
            (["--packed"], ["--length", 8, "--head-size", 8, "--packed", 0]),
            (["--bias"], ["--length", 8, "--head-size", 8, "--bias", "hn"]),
            (["dropout"], ["--length", 8, "--head-size", 8, "--dropout", 1]),
            (["--suite", "--window"], ["--suite", "quick", "--window", "1,1"]),
            (["--feature", "linear family"], ["--feature", "relu"]),
            (["--feature", "elu1"], ["--feature", "elu2", "--variants", "linear"]),
            (["--feature-order", "dpfp"], ["--feature-order", 2, "--variants", "linear"]),
            (["--feature-order"], ["--feature", "dpfp", "--feature-order", 4, "--variants", "mlk"]),
            (["--features", "favor"], ["--features", 8, "--variants", "linear"]),
            (["--features"], ["--feature", "favor", "--features", 0, "--variants", "linear"]),
            (["use_window", "linear"], ["--length", 8, "--head-size", 8, "--window", "1,1", "--variants", "linear"]),
            (["--suite", "short", "linear", "gpu", "scores", "layer", "call"], ["--suite", "long"]),
            (["--shapes", "lra-retrieval"], ["--shapes", "nothing"]),
            (["--shapes"], ["--shapes", "swin,"]),
            (["--suite", "--shapes"], ["--suite", "quick", "--shapes", "swin"]),
            (["--length", "--head-size"], ["--heads", 8]),
            (["--length"], ["--length", 0, "--head-size", 8]),
            (["--variants"], ["--variants", "softmax:"]),
            (["--variants"], ["--variants", "softmax:0"]),
            (["--variants", "softmax"], ["--variants", "softmax:2x8"]),
            (["--variants"], ["--variants", "fish:2x"]),
            (["--variants"], ["--variants", "fish:x8"]),
            (["--variants"], ["--variants", "fish:0x8"]),
            (["components", "heads"], ["--variants", "talking-heads:2x8"]),
            (["heads"], ["--variants", "hard-fish:2x257"]),
            (["--variants"], ["--variants", "gfish:2xx8"]),
            (["--variants"], ["--variants", "gfish:2x3x4x8"]),
            (["mix_hidden", "hard-fish"], ["--variants", "hard-fish:2x3x8"]),
            (["--gradients", "mix-weight"], ["--pass", "backward", "--gradients", "mix-weight", "--variants", "fish"]),
            (["--gradients", "noise"], ["--pass", "backward", "--gradients", "noise", "--variants", "hard-gfish"]),
            (["--variants"], ["--variants", ""]),
            (["--dtype"], ["--dtype", "f64"]),
            (["--dtype"], ["--dtype", "f32,f32"]),
            (["--dtype-k"], ["--dtype-k", "f16,bf16"]),
            (["--dtype-v", "blocks"], ["--dtype-v", "q8_0"]),
            (["--engine"], ["--engine", "tensor"]),
            (["--seconds"], ["--seconds", "-1"]),
            (["--seconds"], ["--seconds", "nan"]),
            (["--threshold", "--compare"], ["--threshold", 3]),
            (["--device ''"], ["--device", ""]),
            (["--device ''"], ["--device", "0:0", "--device="]),
            (["--device needs a value"], ["--device", "0:0", "--device"]),
            (["more than once", "--suite layer"], ["--suite", "layer", "--device", "0:0", "--device", "0:1"]),
            (["--device", "--all-devices"], ["--device", "0:0", "--device", "0:1", "--all-devices"]),
            (["--verbose", "--json"], ["--verbose", "--json"]),
            (["--state"], [*SIZES, "--state", "--variants", "softmax,mgk:2"]),
            (["--state"], [*SIZES, "--state"]),
            (["--variants: 'softmax' is given twice"], ["--variants", "softmax:2,mgk:2,softmax:2"]),
            (["--variants: 'fish' is given twice"], ["--variants", "fish:2x4,fish:2x8,fish:2x4"]),
            (["--shapes: 'long' is given twice"], ["--shapes", "long,long"]),
            (["--device", "--all-devices"], ["--device", "0:0", "--all-devices"]),
            (["kv_heads"], ["--heads", 8, "--kv-heads", 3, "--length", 4, "--head-size", 4]),
            (["head_size"], ["--length", 4, "--head-size", 100000]),
            (["--nothing"], ["--nothing"]),
            (["word"], ["word"]),
        ):
            with self.subTest(args=args):
                self.refuse(2, *args, words=words)

    def test_parameters(self):
        for option, words in (("--parameters", []), ("--backward-parameters", ["--pass", "both"])):
            for text in ("nothing=3", "unroll=2,nothing=3", "nothing"):
                self.refuse(2, *SIZES, *SHORT, "--variants", "softmax", *words, option, text,
                            words=[f"{option} '{text}'", "not 'nothing'"])
        done = self.run_program(*SIZES, *SHORT, "--variants", "softmax", "--parameters", "unroll=3")
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn("unroll=3", done.stderr)

    def test_too_little_memory(self):
        done = self.run_program("--length", 1000000000, "--head-size", 32, "--keep-caches")
        self.assertEqual(done.returncode, 4, done.stderr)
        self.assertIn("the device has", done.stderr)
        self.assertEqual(done.stdout.count("not measured"), 3)
        self.assertNotIn("peaks", done.stdout + done.stderr)

    def test_no_device(self):
        self.refuse(3, env={**QUICK, "OCL_ICD_VENDORS": str(self.folder)})
        self.refuse(3, "--all-devices", env={**QUICK, "OCL_ICD_VENDORS": str(self.folder)})
        self.refuse(3, "--device", "no such device", words=["no such device"])

    def test_help_and_version(self):
        self.assertIn("--compare", self.accept("--help").stdout)
        self.assertIn(".", self.accept("--version").stdout)


if __name__ == "__main__":
    unittest.main()
