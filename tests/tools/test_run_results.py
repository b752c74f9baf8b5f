# SPDX-License-Identifier: Apache-2.0
"""clmgk-run: its results and their form."""
import itertools
import json
import subprocess
import unittest

import numpy as np

from program_test import BIN, FULL, QUICK, RunTest


class Results(RunTest):
    def output(self, variant="softmax", **changes):
        self.accept_run(variant, **changes)
        return self.load(changes.get("out", "o.npy"))

    def result(self, variant="softmax", **changes):
        return json.loads(self.accept_run(variant, json=True, **changes).stdout)

    def test_outputs_are_plain_float32(self):
        self.accept_run(lse="l.npy")
        for name, shape in (("o.npy", (2, 4, 5, 6)), ("l.npy", (2, 4, 5))):
            array = self.load(name)
            self.assertEqual((array.shape, array.dtype.str), (shape, "<f4"))
            self.assertTrue(array.flags.c_contiguous)
            self.assertTrue(np.isfinite(array).all())
            data = (self.folder / name).read_bytes()
            self.assertEqual(data[:8], b"\x93NUMPY\x01\x00")
            self.assertEqual((len(data) - array.nbytes) % 64, 0)

    def test_values_against_numpy(self):
        q, k, v = (self.arrays[name].astype(np.float64) for name in ("q", "k", "v"))
        k, v = np.repeat(k, 2, axis=1), np.repeat(v, 2, axis=1)
        scores = q @ np.swapaxes(k, -1, -2) / np.sqrt(8.0)
        weights = np.exp(scores)
        self.accept_run(lse="l.npy")
        np.testing.assert_allclose(self.load("o.npy"), weights / weights.sum(-1, keepdims=True) @ v, atol=2e-6)
        np.testing.assert_allclose(self.load("l.npy"), np.log(weights.sum(-1)), atol=2e-6)

    def test_awkward_files_hold_the_same_arrays(self):
        expected = self.output()
        for name in ("q", "k", "v"):
            array = self.arrays[name]
            for form in (array.astype(">f4"), np.asfortranarray(array), np.asfortranarray(array.astype(">f8")),
                         array.astype("<f8"), array.astype(">f8")):
                with self.subTest(name=name, type=form.dtype.str):
                    self.save("form", form)
                    np.testing.assert_array_equal(self.output(**{name: "form.npy"}), expected)
            for version in ((1, 0), (2, 0), (3, 0)):
                with self.subTest(name=name, version=version):
                    with open(self.folder / "form.npy", "wb") as file:
                        np.lib.format.write_array(file, array, version=version)
                    np.testing.assert_array_equal(self.output(**{name: "form.npy"}), expected)

    def test_awkward_integers(self):
        expected = self.output(lengths=self.save("lengths", np.array([3, 7], "<i4")))
        for type_name in ("<i8", ">i4", ">i8"):
            with self.subTest(type=type_name):
                self.save("lengths", np.array([3, 7], type_name))
                np.testing.assert_array_equal(self.output(lengths="lengths.npy"), expected)

    def test_storage_type_follows_q(self):
        self.assertEqual(self.result()["dtype"], "f32")
        self.save("q", self.arrays["q"].astype(">f2"))
        self.assertEqual(self.result(check=True)["dtype"], "f16")
        self.assertEqual(self.result(check=True, dtype="f32")["dtype"], "f32")

    def test_storage_types_pass_the_check(self):
        variants, types = ("softmax", "gaussian", "mgk", "smgk"), ("f16", "f32", "bf16")
        every = itertools.product(variants, types)
        for variant, dtype in every if FULL else zip(variants, itertools.cycle(types)):
            with self.subTest(variant=variant, dtype=dtype):
                result = self.result(variant, dtype=dtype, check=True)
                self.assertEqual((result["variant"], result["dtype"]), (variant, dtype))
                self.assertTrue(result["check"]["ok"])

    def test_types_of_arrays_that_are_those_of_q(self):
        """Naming Q's type again changes nothing: the same parameters, the same bits."""
        for dtype in ("f16", "bf16"):
            with self.subTest(dtype=dtype):
                plain = self.result(dtype=dtype, lse="l.npy")
                expected = [self.load(name) for name in ("o.npy", "l.npy")]
                named = self.result(dtype=dtype, dtype_k=dtype, dtype_v=dtype, dtype_o=dtype, lse="l.npy")
                self.assertEqual({key: named[key] for key in ("dtype", "dtype_k", "dtype_v", "dtype_o", "parameters")},
                                 {"dtype": dtype, "dtype_k": None, "dtype_v": None, "dtype_o": None,
                                  "parameters": plain["parameters"]})
                for name, array in zip(("o.npy", "l.npy"), expected):
                    np.testing.assert_array_equal(self.load(name), array)

    def test_a_precision_that_no_unit_uses(self):
        """It is allowed, and the result says that the products were exact."""
        expected = self.result(dtype="f32")
        self.assertEqual([expected[key] for key in ("precision", "precision_used")], [None, "exact"])
        exact = self.load("o.npy")
        for name in ("tf32", "bf16"):
            result = self.result(dtype="f32", precision=name, check=True)
            self.assertEqual([result[key] for key in ("precision", "precision_used")], [name, "exact"])
            np.testing.assert_array_equal(self.load("o.npy"), exact)

    def test_types_by_array(self):
        """Every file is converted to its array's type, and O and gradients are held to the bounds of theirs."""
        self.save("k", self.arrays["k"].astype("<f2"))
        self.save("g", self.random.standard_normal((2, 4, 5, 6)))
        result = self.result(dtype_k="f16", dtype_v="bf16", grad_out="g.npy", dq="dq.npy", dk="dk.npy", dv="dv.npy",
                             check=True)
        self.assertEqual([result[key] for key in ("dtype", "dtype_k", "dtype_v", "dtype_o")],
                         ["f32", "f16", "bf16", None])
        check = result["check"]
        self.assertTrue(check["ok"])
        for name, part in (("out", 3e-6), ("dq", 1e-5)):
            self.assertLess(check[name]["bound"], 20 * part * check[name]["max"])
        for name, part in (("dk", 1e-3), ("dv", 8e-3)):
            self.assertGreater(check[name]["bound"], part * check[name]["max"])
            written = self.load(f"{name}.npy")
            stored = written.astype("<f2") if name == "dk" else np.uint32(written.view("<u4") & 0xffff0000).view("<f4")
            np.testing.assert_array_equal(stored.astype("<f4"), written)

    def test_tokens_first(self):
        for variant in ("softmax", "mgk", "smgk"):
            with self.subTest(variant=variant):
                expected = self.output(variant, lse="l.npy")
                for name, axes in (("q", (0, 2, 1, 3)), ("k", (0, 2, 1, 3)), ("km", (0, 3, 1, 2, 4)),
                                   ("v", (0, 2, 1, 3))):
                    self.save(f"{name}_t", self.arrays[name].transpose(axes))
                key = "km_t.npy" if variant == "mgk" else "k_t.npy"
                result = self.result(variant, q="q_t.npy", k=key, v="v_t.npy", layout="bnhd", check=True,
                                     out="t.npy", lse="lt.npy")
                self.assertTrue(result["check"]["ok"])
                np.testing.assert_allclose(self.load("t.npy").transpose(0, 2, 1, 3), expected, atol=1e-6)
                np.testing.assert_allclose(self.load("lt.npy"), self.load("l.npy"), atol=1e-6)

    def test_an_axis_of_one_component_is_no_axis(self):
        for variant in ("softmax", "gaussian", "mgk", "smgk"):
            with self.subTest(variant=variant):
                expected = self.output(variant, k="k.npy")
                self.save("k5", self.arrays["k"][:, :, None])
                np.testing.assert_array_equal(self.output(variant, k="k5.npy"), expected)
                self.save("k5", self.arrays["k"].transpose(0, 2, 1, 3)[:, :, :, None])
                for name in ("q", "v"):
                    self.save(f"{name}_t", self.arrays[name].transpose(0, 2, 1, 3))
                result = self.result(variant, q="q_t.npy", k="k5.npy", v="v_t.npy", layout="bnhd", check=True)
                self.assertEqual(result["components"], 3 if variant == "smgk" else 1)

    def test_numbers_as_lists_and_files(self):
        for option, text, array in (
            ("variance", "2.5", np.float32(2.5)), ("variance", "2.5", np.array([2.5])),
            ("variance", "2.5,1,0.5", np.array([2.5, 1, 0.5])), ("prior", "0.5,0,0.25", np.array([0.5, 0, 0.25])),
        ):
            with self.subTest(option=option, text=text):
                expected = self.output("mgk", **{option: text})
                self.save("numbers", array)
                np.testing.assert_array_equal(self.output("mgk", **{option: "numbers.npy"}), expected)

    def test_shapes_of_prior_and_variance(self):
        for option in ("prior", "variance"):
            for shape in ((3,), (4, 3)) + (((4, 3, 7),) if option == "prior" else ()):
                for variant, score in (("mgk", "dot"), ("smgk", "gaussian")):
                    if not FULL and (option == "prior") != (variant == "mgk"):
                        continue
                    with self.subTest(option=option, shape=shape, variant=variant, score=score):
                        self.save("numbers", np.abs(self.normal(*shape)) + 0.5)
                        result = self.result(variant, **{option: "numbers.npy"}, score=score, check=True)
                        self.assertEqual((result["score"], result["check"]["ok"]), (score, True))

    def test_one_component_with_prior_or_variance_per_head(self):
        self.save("per_head", np.array([[1.0], [2.0], [3.0], [4.0]]))
        self.save("per_key", np.abs(self.normal(4, 1, 7)))
        plain = self.output()
        heads = self.output(variance="per_head.npy", check=True)
        self.assertFalse(np.array_equal(plain, heads))
        np.testing.assert_allclose(heads[:, 1], self.output(variance="2")[:, 1], atol=2e-6)
        result = self.result("gaussian", prior="per_key.npy", estep="soft", check=True)
        self.assertEqual((result["variant"], result["score"], result["check"]["ok"]), ("gaussian", "gaussian", True))

    def test_masks(self):
        self.save("lengths", np.array([0, 5]))
        self.save("lengths_q", np.array([4, 0]))
        for align in ("bottom-right", "top-left", "lengths"):
            with self.subTest(align=align):
                result = self.result("mgk", causal=True, causal_align=align, lengths="lengths.npy",
                                     lengths_q="lengths_q.npy", lse="l.npy", check=True)
                self.assertTrue(result["causal"] and result["check"]["ok"])
                self.assertTrue((self.load("o.npy")[1] == 0).all())
                self.assertTrue((self.load("l.npy") == -np.inf).all())
                self.assertEqual(result["flops"], 0)

    def test_nan_behind_a_mask(self):
        v = self.normal(2, 2, 5, 6)
        v[:, :, -1] = np.nan
        for name, array in (("q5", self.normal(2, 4, 5, 8)), ("k5", self.normal(2, 2, 5, 8)), ("v5", v)):
            self.save(name, array)
        result = self.result(q="q5.npy", k="k5.npy", v="v5.npy", causal=True, check=True)
        self.assertTrue(result["check"]["ok"])
        self.assertTrue(np.isnan(self.load("o.npy")[:, :, -1]).all())

    def test_no_queries_and_no_keys(self):
        self.save("q0", self.normal(2, 4, 0, 8))
        self.assertEqual(self.output(q="q0.npy", lse="l.npy", check=True).shape, (2, 4, 0, 6))
        self.save("k0", self.normal(2, 2, 0, 8))
        self.save("v0", self.normal(2, 2, 0, 6))
        self.assertTrue((self.output(k="k0.npy", v="v0.npy", lse="l.npy", check=True) == 0).all())
        self.assertTrue((self.load("l.npy") == -np.inf).all())

    def test_inputs_may_be_the_same_file(self):
        self.save("k", self.normal(2, 4, 5, 8))
        self.assertTrue(self.result(q="k.npy", k="k.npy", v="k.npy", check=True)["check"]["ok"])


class Reports(RunTest):
    def test_json(self):
        done = self.accept_run("smgk", json=True, lse="l.npy", repeat=3, check=True)
        result = json.loads(done.stdout)
        for key, kind in (("clmgk", str), ("variant", str), ("score", str), ("estep", str), ("dtype", str),
                          ("engine", str), ("parameters", str), ("tuning", str), ("device", dict), ("workspace_bytes", int),
                          ("compile_ms", float), ("program", str), ("flops", float), ("gflops", float),
                          ("causal", bool)):
            self.assertIsInstance(result[key], kind, key)
        self.assertEqual([result[key] for key in ("batch", "heads", "kv_heads", "components", "length", "length_k",
                                                  "head_size", "value_size")], [2, 4, 2, 3, 5, 7, 8, 6])
        self.assertEqual(set(result["device"]), {"name", "platform", "driver", "selector"})
        self.assertEqual(result["outputs"], {"out": "o.npy", "lse": "l.npy"})
        self.assertNotIn("backward", result)
        times = result["time_ms"]
        self.assertEqual(times["repeat"], 3)
        self.assertTrue(0 < times["min"] <= times["median"] <= times["max"])
        self.assertEqual(result["flops"], 2 * (8 + 6) * 2 * 4 * 5 * 7)
        for part in ("out", "lse"):
            self.assertLessEqual(result["check"][part]["error"], result["check"][part]["bound"])

    def test_json_flops_count_visible_pairs_and_products(self):
        self.save("lengths", np.array([3, 7]))
        result = json.loads(self.accept_run("mgk", json=True, causal=True, lengths="lengths.npy").stdout)
        pairs = sum(max(0, min(length, i + 2 + 1)) for length in (3, 7) for i in range(5))
        self.assertEqual(result["flops"], 2 * (3 * 8 + 6) * 4 * pairs)

    def test_words(self):
        done = self.accept_run(repeat=2, check=True)
        self.assertRegex(done.stdout, r"time: median [\d.]+ ms.*GFLOP/s\n")
        self.assertRegex(done.stdout, r"check: out error .*; lse error .*, bound .*: passed\n")
        self.assertIn("softmax f32", done.stderr)
        self.assertEqual(self.accept_run().stdout, "")

    def test_masked_rows_are_judged_apart(self):
        """A finite mask over a whole row leaves the bound of the other rows as it is; over a part of a row it is none."""
        bias = np.zeros((2, 1, 5, 7), np.float32)
        bias[0, 0, 1] = bias[1, 0, 2, :4] = -1e9
        check = json.loads(self.accept_run(json=True, check=True, lse="l.npy", bias=self.save("b", bias)).stdout)["check"]
        self.assertEqual(check["lost_rows"], 4)
        self.assertLess(check["out"]["bound"], 1e-4)
        self.assertLess(check["lse"]["bound"], 1e-4)
        self.assertIn("the logits of 4 rows", self.accept_run(check=True, bias="b.npy").stdout)
        np.testing.assert_allclose(self.load("l.npy")[0, :, 1], -1e9)

    def test_nan_is_told(self):
        """It is the reference's, too, so the check passes; it says how many, and where the first is in the file."""
        self.arrays["q"][1, 2, 3, 0] = np.nan
        self.save("q", self.arrays["q"])
        self.save("q_t", self.arrays["q"].transpose(0, 2, 1, 3))
        done = self.accept_run(check=True)
        self.assertRegex(done.stdout, r": passed\ncheck: out has 6 NaN, the first at \(1, 2, 3, 0\)\n"
                                      r"check: lse has 1 NaN, the first at \(1, 2, 3\)\n$")
        for name in ("k", "v"):
            self.save(name + "_t", self.arrays[name].transpose(0, 2, 1, 3))
        check = json.loads(self.accept_run(json=True, check=True, layout="bnhd", q="q_t.npy", k="k_t.npy",
                                           v="v_t.npy").stdout)["check"]
        self.assertTrue(check["ok"])
        self.assertEqual((check["out"]["nan"], check["out"]["first_nan"]), (6, [1, 3, 2, 0]))
        self.assertEqual((check["lse"]["nan"], check["lse"]["first_nan"]), (1, [1, 2, 3]))
        self.assertEqual((check["out"]["infinite"], check["out"]["first_infinite"]), (0, None))

    def test_no_output_file_is_needed(self):
        before = self.snapshot()
        self.accept_run(out=None, check=True)
        self.accept_run(out=None, repeat=1)
        self.assertEqual(self.snapshot(), before)

    def test_a_full_standard_output(self):
        for extra in (["--json"], ["--repeat", "1"], ["--help"], ["--version"]):
            with self.subTest(extra=extra), open("/dev/full", "w") as full:
                done = subprocess.run([str(BIN / "clmgk-run")] + [str(w) for w in self.arguments() + extra],
                                      stdout=full, stderr=subprocess.PIPE, text=True, cwd=self.folder, env=QUICK,
                                      check=False)
                self.assertEqual(done.returncode, 4, done.stderr)
                self.assertIn("standard output", done.stderr)


class Devices(RunTest):
    def test_no_platform(self):
        self.refuse(3, *self.arguments(), env={**QUICK, "OCL_ICD_VENDORS": "/nonexistent"})

    def test_bad_input_is_found_without_a_device(self):
        self.refuse(2, *self.arguments(q="absent.npy"), env={**QUICK, "OCL_ICD_VENDORS": "/nonexistent"})

    def test_selectors(self):
        selector = json.loads(self.accept_run(json=True).stdout)["device"]["selector"]
        self.accept_run(device=selector)
        for bad in ("no such device", "99:0", "0:99"):
            with self.subTest(device=bad):
                self.refuse(3, *self.arguments(device=bad), words=[bad])
                self.refuse(3, *self.arguments(), words=[bad], env={**QUICK, "CLMGK_DEVICE": bad})

    def test_the_option_comes_before_the_environment(self):
        selector = json.loads(self.accept_run(json=True).stdout)["device"]["selector"]
        self.accept(*self.arguments(device=selector), env={**QUICK, "CLMGK_DEVICE": "no such device"})


if __name__ == "__main__":
    unittest.main()
