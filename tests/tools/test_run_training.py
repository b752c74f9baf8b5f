# SPDX-License-Identifier: Apache-2.0
"""clmgk-run: gradients, statistics, masks and modifiers: their files, their checks, their reports."""
import json
import re
import unittest

import numpy as np

from program_test import FULL, QUICK, TrainingTest

TOKENS_FIRST = {4: (0, 2, 1, 3), 5: (0, 3, 1, 2, 4)}
# Tests share these sets, because another set needs another program.
OF_MGK = ("dq", "dk", "dv", "dprior", "dvariance")
EVERY_STATISTIC = ("responsibilities", "counts", "new-prior", "nll")
EVERY_GRADIENT = ("dq", "dk", "dv", "dprior", "dvariance", "dshift", "dbias", "dsinks")


class GradientTest(TrainingTest):
    def gradients(self, variant, outputs, **changes):
        changes.setdefault("grad-out", "g.npy")
        return self.run_for(variant, outputs, **changes)


class Shapes(GradientTest):
    def test_gradients_have_the_shape_of_their_parameters(self):
        self.save("prior", np.abs(self.normal(4, 3, 7)) + 0.5)
        self.save("variance", np.abs(self.normal(4, 3)) + 1)
        self.save("bias", self.normal(2, 1, 5, 7))
        self.save("sinks", self.normal(4))
        result, arrays = self.gradients("smgk", EVERY_GRADIENT, prior="prior.npy", variance="variance.npy",
                                        bias="bias.npy", sinks="sinks.npy", **{"grad-lse": "gl.npy"})
        shapes = {"dq": (2, 4, 5, 8), "dk": (2, 2, 7, 8), "dv": (2, 2, 7, 6), "dprior": (4, 3, 7),
                  "dvariance": (4, 3), "dshift": (4, 3, 8), "dbias": (2, 1, 5, 7), "dsinks": (4,)}
        self.assertEqual({name: array.shape for name, array in arrays.items()}, shapes)
        for name, array in arrays.items():
            self.assertEqual(array.dtype.str, "<f4")
            self.assertTrue(np.abs(array).max() > 0, name)
        self.assertEqual(result["backward"]["gradients"], list(EVERY_GRADIENT))

    def test_defaults(self):
        _, arrays = self.gradients("mgk", OF_MGK)
        self.assertEqual([arrays[name].shape for name in OF_MGK[1:]],
                         [(2, 2, 3, 7, 8), (2, 2, 7, 6), (3,), (1,)])
        _, arrays = self.gradients("mgk", OF_MGK, variance=self.save("number", np.float32(2.5)))
        self.assertEqual(arrays["dvariance"].shape, ())
        _, arrays = self.gradients("mgk", OF_MGK, variance="2.5")
        self.assertEqual(arrays["dvariance"].shape, (1,))

    def test_a_component_axis_of_one_is_kept(self):
        self.save("k5", self.arrays["k"][:, :, None])
        _, five = self.gradients("smgk", ("dk",), k="k5.npy")
        _, four = self.gradients("smgk", ("dk",))
        self.assertEqual(five["dk"].shape, (2, 2, 1, 7, 8))
        np.testing.assert_array_equal(five["dk"][:, :, 0], four["dk"])

    def test_tokens_first(self):
        outputs = OF_MGK
        _, expected = self.gradients("mgk", outputs, **{"grad-lse": "gl.npy"})
        for name in ("q", "km", "v"):
            array = self.arrays[name]
            self.save(name + "_t", array.transpose(TOKENS_FIRST[array.ndim]))
        self.save("g_t", self.load("g.npy").transpose(TOKENS_FIRST[4]))
        _, found = self.gradients("mgk", outputs, q="q_t.npy", k="km_t.npy", v="v_t.npy", layout="bnhd",
                                  **{"grad-out": "g_t.npy", "grad-lse": "gl.npy"})
        for name in outputs:
            axes = TOKENS_FIRST.get(expected[name].ndim, range(expected[name].ndim))
            np.testing.assert_allclose(found[name], expected[name].transpose(axes), atol=1e-5)

    def test_statistics(self):
        self.save("prior", np.abs(self.normal(4, 3)) + 0.5)
        outputs = EVERY_STATISTIC
        _, arrays = self.run_for("mgk", outputs)
        self.assertEqual({name: array.shape for name, array in arrays.items()},
                         {"responsibilities": (2, 4, 3, 5, 7), "counts": (3,), "new-prior": (3,), "nll": (2, 4)})
        np.testing.assert_allclose(arrays["responsibilities"].sum(2), 1, atol=1e-6)
        _, arrays = self.run_for("mgk", outputs, prior="prior.npy")
        self.assertEqual(arrays["counts"].shape, (4, 3))
        gamma = arrays["responsibilities"].astype(np.float64)
        np.testing.assert_allclose(arrays["counts"], gamma.sum((0, 3, 4)), rtol=1e-5)
        np.testing.assert_allclose(arrays["new-prior"], gamma.sum((0, 3, 4)) / gamma.sum((0, 2, 3, 4))[:, None],
                                   rtol=1e-5)

    def test_empty_axes(self):
        self.save("q0", self.normal(2, 4, 0, 8))
        self.save("g0", self.normal(2, 4, 0, 6))
        _, arrays = self.gradients("softmax", ("dq", "dk", "dv"), q="q0.npy", **{"grad-out": "g0.npy"})
        self.assertEqual(arrays["dq"].shape, (2, 4, 0, 8))
        self.assertTrue((arrays["dk"] == 0).all() and (arrays["dv"] == 0).all())
        self.save("k0", self.normal(2, 2, 0, 8))
        self.save("v0", self.normal(2, 2, 0, 6))
        _, arrays = self.gradients("softmax", ("dq", "dk", "dv"), k="k0.npy", v="v0.npy")
        self.assertEqual((arrays["dk"].shape, arrays["dv"].shape), ((2, 2, 0, 8), (2, 2, 0, 6)))
        self.assertTrue((arrays["dq"] == 0).all())


class Values(GradientTest):
    def test_softmax_against_numpy(self):
        q, k, v = (self.arrays[name].astype(np.float64) for name in ("q", "k", "v"))
        k, v, g = np.repeat(k, 2, axis=1), np.repeat(v, 2, axis=1), self.load("g.npy").astype(np.float64)
        scores = q @ np.swapaxes(k, -1, -2) / np.sqrt(8.0)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        slopes = g @ np.swapaxes(v, -1, -2)
        slopes = weights * (slopes - (weights * slopes).sum(-1, keepdims=True)) / np.sqrt(8.0)
        expected = {"dq": slopes @ k, "dk": np.swapaxes(slopes, -1, -2) @ q, "dv": np.swapaxes(weights, -1, -2) @ g}
        for name in ("dk", "dv"):  # each key head is read by two query heads
            expected[name] = expected[name].reshape(2, 2, 2, 7, -1).sum(2)
        _, arrays = self.gradients("softmax", expected)
        for name, array in arrays.items():
            np.testing.assert_allclose(array, expected[name], atol=5e-6)

    def test_one_gradient_alone_is_the_same(self):
        _, together = self.gradients("softmax", ("dq", "dk", "dv"))
        for name, array in together.items():
            if name == "dk" and not FULL:
                continue
            with self.subTest(name=name):
                _, alone = self.gradients("softmax", (name,))
                np.testing.assert_allclose(alone[name], array, atol=1e-6)

    def test_runs_are_bit_equal(self):
        first = self.gradients("mgk", OF_MGK)[1]
        again = self.gradients("mgk", OF_MGK, repeat="2")[1]
        for name, array in first.items():
            np.testing.assert_array_equal(again[name], array)

    def expect_same_bits(self, names, **changes):
        """PoCL's variable says how many threads there are."""
        outputs = {name: name + ".npy" for name in names}
        results = []
        for threads in (1, 2, 3, 2):
            self.accept(*self.arguments("smgk", lse="l.npy", **{"grad-out": "g.npy"}, **outputs, **changes),
                        env={**QUICK, "POCL_MAX_PTHREAD_COUNT": str(threads)})
            results.append([self.load(name + ".npy").tobytes() for name in ("o", "l", *names)])
        self.assertTrue(all(result == results[0] for result in results))

    def test_threads_change_no_bit(self):
        # one head, and keys for two splits, whatever the number of threads
        for name, shape in (("q", (1, 1, 40, 8)), ("k", (1, 1, 600, 8)), ("v", (1, 1, 600, 6)), ("g", (1, 1, 40, 6)),
                            ("b", (1, 3, 8))):
            self.save(name, self.normal(*shape))
        self.expect_same_bits(("dq", "dk", "dv", "dvariance", "dshift"), shift="b.npy")
        # a bias that many batches share
        for name, shape in (("q", (16, 1, 20, 8)), ("k", (16, 1, 30, 8)), ("v", (16, 1, 30, 6)), ("g", (16, 1, 20, 6)),
                            ("bias", (1, 1, 20, 30))):
            self.save(name, self.normal(*shape))
        self.expect_same_bits(("dq", "dbias"), shift="b.npy", bias="bias.npy")

    def test_storage_types(self):
        for dtype in ("f16", "bf16") if FULL else ("bf16",):
            with self.subTest(dtype=dtype):
                result, arrays = self.gradients("softmax", ("dq", "dk", "dv"), dtype=dtype)
                self.assertEqual((result["dtype"], arrays["dq"].dtype.str), (dtype, "<f4"))

    def test_overflow_is_told(self):
        self.save("g", np.full((2, 4, 5, 6), 6e4))
        names = {"out": None, "dv": "dv.npy", "grad-out": "g.npy"}
        done = self.run_program(*self.arguments(dtype="f16", check=True, **names))
        self.assertEqual(done.returncode, 1, done.stderr)
        infinite = np.isinf(self.load("dv.npy"))
        first = tuple(map(int, np.argwhere(infinite)[0]))
        self.assertIn(f"check: dv has {infinite.sum()} infinities where the reference has none, the first at {first}\n",
                      done.stdout)

    def test_seeds(self):
        def output(**changes):
            self.accept_run(dropout="0.5", check=True, **changes)
            return self.load("o.npy")

        default = output()
        np.testing.assert_array_equal(output(seed="0"), default)
        large = output(seed=str(2**64 - 1))
        self.assertFalse(np.array_equal(large, default))
        np.testing.assert_array_equal(output(seed=str(2**64 - 1)), large)

    def test_a_bias_hides_keys(self):
        bias = np.zeros((1, 1, 5, 7), np.float32)
        bias[0, 0, 1] = -np.inf
        bias[0, 0, 2, 3:] = -np.inf
        self.save("bias", bias)
        _, arrays = self.gradients("softmax", ("lse", "dq", "dbias"), bias="bias.npy")
        self.assertTrue((arrays["lse"][:, :, 1] == -np.inf).all())
        self.assertTrue((arrays["dq"][:, :, 1] == 0).all())
        self.assertTrue((arrays["dbias"][0, 0, 1] == 0).all() and (arrays["dbias"][0, 0, 2, 3:] == 0).all())

    def test_window(self):
        self.save("v", np.ones((2, 2, 7, 6), np.float32))
        self.accept_run("softmax", window="1,0", lse="l.npy", check=True)
        one = self.load("l.npy")
        self.accept_run("softmax", window="1,-1", causal=True, lse="l.npy", check=True)
        np.testing.assert_allclose(self.load("l.npy"), one, atol=1e-6)
        self.accept_run("softmax", window="-1,-1", lse="l.npy", check=True)
        wide = self.load("l.npy")
        self.accept_run("softmax", lse="l.npy")
        np.testing.assert_allclose(self.load("l.npy"), wide, atol=1e-6)

    def test_packed_sequences_are_sequences_of_their_own(self):
        q, k, v, g = (self.normal(1, 2, 12, width) for width in (8, 8, 6, 6))
        for name, array in (("q", q), ("k", k), ("v", v), ("g", g)):
            self.save(name, array)
        self.save("offsets", np.array([0, 5, 5, 12]))
        outputs = ("out", "dq", "dk", "dv", "nll")
        _, whole = self.gradients("gaussian", outputs, offsets="offsets.npy", causal=True)
        self.assertEqual(whole["nll"].shape, (3, 2))
        self.assertTrue((whole["nll"][1] == 0).all())
        for number, part in ((0, slice(0, 5)), (2, slice(5, 12))):
            for name, array in (("q", q), ("k", k), ("v", v), ("g", g)):
                self.save(name, array[:, :, part])
            _, alone = self.gradients("gaussian", outputs, causal=True)
            for name in outputs[:-1]:
                np.testing.assert_allclose(whole[name][:, :, part], alone[name], atol=1e-5, err_msg=name)
            np.testing.assert_allclose(whole["nll"][number], alone["nll"][0], rtol=1e-5)


class Reports(GradientTest):
    def test_json(self):
        result, _ = self.gradients("softmax", ("dq",), repeat="2")
        backward = result["backward"]
        self.assertEqual(set(backward), {"gradients", "flops", "time_ms", "gflops"})
        self.assertEqual(backward["gradients"], ["dq"])
        times = backward["time_ms"]
        self.assertEqual(times["repeat"], 2)
        self.assertTrue(0 < times["min"] <= times["median"] <= times["max"])
        pairs = 2 * 4 * 5 * 7  # scores and dQ: a product of 8 each; dO . v: one of 6
        self.assertEqual(backward["flops"], 2 * (8 + 6 + 8) * pairs)
        self.assertEqual(set(result["check"]), {"ok", "lost_rows", "out", "lse", "dq"})
        part = result["check"]["dq"]
        self.assertEqual(set(part), {"error", "bound", "max", "nan", "first_nan", "infinite", "first_infinite"})
        self.assertLessEqual(part["error"], part["bound"])
        self.assertEqual(result["outputs"], {"dq": "dq.npy"})

    def test_flops_of_components(self):
        result, _ = self.gradients("mgk", OF_MGK)
        self.assertEqual(result["backward"]["flops"], 2 * (3 * 3 * 8 + 2 * 6) * 2 * 4 * 5 * 7)

    def test_flops_of_all_gradients(self):
        result, _ = self.gradients("softmax", ("dq", "dk", "dv"))
        self.assertEqual(set(result["backward"]), {"gradients", "flops"})
        self.assertEqual(result["backward"]["flops"], 2 * (3 * 8 + 2 * 6) * 2 * 4 * 5 * 7)

    def test_flops_of_packed_sequences(self):
        for name in ("q", "k", "v"):
            self.save(name, self.normal(1, 2, 12, 8))
        self.save("offsets", np.array([0, 5, 12]))
        result = json.loads(self.accept_run(offsets="offsets.npy", json=True).stdout)
        self.assertEqual(result["flops"], 2 * 16 * 2 * (5 * 5 + 7 * 7))

    def test_without_a_gradient_named(self):
        result, _ = self.gradients("softmax", ())
        self.assertEqual(result["backward"]["gradients"], ["dq", "dk", "dv"])
        self.assertEqual(set(result["check"]), {"ok", "lost_rows", "out", "lse", "dq", "dk", "dv"})

    def test_statistics(self):
        result, _ = self.run_for("mgk", EVERY_STATISTIC)
        self.assertEqual(set(result["check"]), {"ok", "lost_rows", "out", "lse", *EVERY_STATISTIC})
        self.assertEqual(result["outputs"], {name: name + ".npy" for name in EVERY_STATISTIC})
        self.assertNotIn("backward", result)

    def test_words(self):
        done = self.accept_run(out=None, repeat="2", check=True, dq="dq.npy", **{"grad-out": "g.npy"})
        self.assertRegex(done.stdout, r"(?m)^time: median [\d.]+ ms.*GFLOP/s$")
        self.assertRegex(done.stdout, r"(?m)^backward: median [\d.]+ ms.*GFLOP/s$")
        self.assertEqual(re.findall(r"(\w+) error", done.stdout), ["out", "lse", "dq"])
        self.assertTrue(done.stdout.endswith(": passed\n"))


class Files(GradientTest):
    def test_nothing_but_what_was_asked_for(self):
        before = set(self.snapshot())
        self.gradients("softmax", ("dv",))
        self.assertEqual({str(path) for path in set(self.snapshot()) - before}, {"dv.npy"})

    def test_outputs_that_are_inputs_or_each_other(self):
        for name, file, word in (("dq", "q.npy", "--q"), ("dk", "g.npy", "--grad-out"), ("dv", "o.npy", "--out"),
                                 ("dbias", "bias.npy", "--bias")):
            with self.subTest(name=name):
                self.save("bias", self.normal(1, 1, 1, 7))
                self.refuse_run(f"--{name}", word, bias="bias.npy", **{"grad-out": "g.npy", name: file})

    def test_an_error_leaves_every_output_as_it_was(self):
        (self.folder / "dq.npy").write_bytes(b"old")
        self.save("bad", self.normal(2, 4, 5))
        self.refuse_run("--grad-out bad.npy", dq="dq.npy", dk="dk.npy", **{"grad-out": "bad.npy"})


if __name__ == "__main__":
    unittest.main()
