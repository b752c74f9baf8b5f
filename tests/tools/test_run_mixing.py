# SPDX-License-Identifier: Apache-2.0
"""clmgk-run: the variants that mix scores across heads."""
import unittest

import numpy as np

from program_test import ADMIXTURES, FULL, GENERALISED, NOISY, SHARED_MIX, TrainingTest

TOKENS_FIRST = (0, 2, 1, 3)


class MixingTest(TrainingTest):
    def output(self, variant, **changes):
        return self.run_for(variant, ("out",), **changes)[1]["out"]


class Forward(MixingTest):
    def test_every_variant(self):
        for variant in ADMIXTURES:
            with self.subTest(variant=variant):
                result, arrays = self.run_for(variant, ("out", "lse"))
                self.assertEqual((arrays["out"].shape, arrays["lse"].shape), ((2, 4, 5, 6), (2, 4, 5)))
                heads = 4 if variant == "talking-heads" else 3
                self.assertEqual([result[key] for key in ("variant", "score", "heads", "kv_heads", "components")],
                                 [variant, "dot", 4, 2, heads])
                self.assertEqual(result["flops"], 2 * (heads * 8 + 4 * 6) * 2 * 5 * 7)

    def mixed_by_numpy(self, mix, weight=None, offset=None):
        """O and L, without noise; weight None: the plain form."""
        q, k, v = (self.arrays[name].astype(np.float64) for name in ("qx", "kx", "v"))
        scores = np.einsum("bmid,bmjd->bmij", q, k)
        if weight is None:
            mixed = np.einsum("hm,bmij->bhij", mix, scores)
        else:
            terms = mix[None, :, :, None, None] * scores[:, None]
            mixed = np.einsum("hm,bhmij->bhij", weight, np.maximum(terms, 0)) + offset[None, :, None, None]
        mixed /= np.sqrt(8.0)
        weights = np.exp(mixed - mixed.max(-1, keepdims=True))
        total = weights.sum(-1, keepdims=True)
        return weights / total @ np.repeat(v, 2, axis=1), np.log(total[..., 0]) + mixed.max(-1)

    def expect(self, variant, expected, **changes):
        _, arrays = self.run_for(variant, ("out", "lse"), **changes)
        np.testing.assert_allclose(arrays["out"], expected[0], atol=5e-6)
        np.testing.assert_allclose(arrays["lse"], expected[1], atol=1e-5)

    def test_values_against_numpy(self):
        mix, weight = self.arrays["mix"].astype(np.float64), self.normal(4, 3)
        offset = np.array([0.5, -1, 2, 0])
        self.save("weight", weight)
        self.expect("hard-fish", self.mixed_by_numpy(mix))
        self.expect("hard-mish", self.mixed_by_numpy(np.tile([0.5, -1, 2], (4, 1))))
        self.expect("hard-gfish", self.mixed_by_numpy(mix, np.ones((4, 3)), np.zeros(4)))
        self.expect("hard-gfish", self.mixed_by_numpy(mix, weight.astype(np.float64), offset), mix_weight="weight.npy",
                    mix_offset="0.5,-1,2,0")

    def hidden_by_numpy(self, mix, weight, hidden_offset, offset=0.0):
        q, k, v = (self.arrays[name].astype(np.float64) for name in ("qx", "kx", "v"))
        units = np.einsum("um,bmid,bmjd->buij", mix, q, k) + hidden_offset[:, None, None]
        mixed = np.einsum("hu,buij->bhij", weight, np.maximum(units, 0)) + np.reshape(offset, (-1, 1, 1))
        mixed /= np.sqrt(8.0)
        weights = np.exp(mixed - mixed.max(-1, keepdims=True))
        total = weights.sum(-1, keepdims=True)
        return weights / total @ np.repeat(v, 2, axis=1), np.log(total[..., 0]) + mixed.max(-1)

    def test_a_hidden_layer(self):
        """Its sizes are those of the arrays; where they could also be [H,M], the hidden units' offset decides."""
        mix, weight = self.normal(5, 3), self.normal(4, 5)
        self.save("p", mix)
        self.save("w", weight)
        offset, zeros = np.array([0.5, -1, 2, 0, 1]), np.zeros(5)
        arrays = {"mix": "p.npy", "mix_weight": "w.npy"}
        self.expect("hard-gfish", self.hidden_by_numpy(mix, weight, zeros), **arrays)
        expected = self.hidden_by_numpy(mix, weight, offset, [1, 0, -1, 2])
        self.expect("hard-gfish", expected, mix_hidden_offset="0.5,-1,2,0,1", mix_offset="1,0,-1,2", **arrays)
        lists = {name: ",".join(repr(float(x)) for x in array.ravel()) for name, array in
                 (("mix", mix), ("mix_weight", weight))}
        self.expect("hard-gfish", expected, mix_hidden_offset="0.5,-1,2,0,1", mix_offset="1,0,-1,2", **lists)
        result, _ = self.run_for("gfish", ("out",), noise="0,0,0", **arrays)
        self.assertEqual((result["heads"], result["components"], result["mix_hidden"]), (4, 3, 5))
        square = self.normal(3, 3)
        self.save("s", square)
        self.save("v", self.arrays["v"][:, :1])
        self.arrays["v"] = np.repeat(self.arrays["v"][:, :1], 2, axis=1)
        changes = {"mix": "s.npy", "mix_weight": "s.npy"}
        plain, _ = self.run_for("hard-gfish", ("out",), **changes)
        self.assertNotIn("mix_hidden", plain)
        result, arrays = self.run_for("hard-gfish", ("out",), mix_hidden_offset="0,0,0", **changes)
        self.assertEqual((result["heads"], result["mix_hidden"]), (3, 3))
        expected = self.hidden_by_numpy(square, np.vstack([square, square[:1]]), np.zeros(3))[0]
        np.testing.assert_allclose(arrays["out"], expected[:, :3], atol=5e-6)

    def test_mixing_after_the_softmax(self):
        """m [H,A] gives both numbers of heads; L, p and c have A heads."""
        mix, after = self.normal(5, 3), self.normal(2, 5)
        self.save("p", mix)
        self.save("m", after)
        self.save("bias", self.normal(1, 5, 1, 7))
        q, k, v = (self.arrays[name] for name in ("qx", "kx", "v"))
        mixed = np.einsum("hk,bkij->bhij", mix, q @ k.swapaxes(-1, -2)) / np.sqrt(8.0)
        weights = np.exp(mixed - mixed.max(-1, keepdims=True))
        total = weights.sum(-1, keepdims=True)
        expected = np.einsum("ha,baij->bhij", after, weights / total) @ v, np.log(total[..., 0]) + mixed.max(-1)
        self.expect("hard-fish", expected, mix="p.npy", mix_after="m.npy")
        self.save("g2", self.normal(2, 2, 5, 6))
        result, arrays = self.run_for("hard-fish", ("out", "lse", "dmix_after"), mix="p.npy", mix_after="m.npy",
                                      bias="bias.npy", alibi="0,0.5,1,0,2", grad_out="g2.npy")
        self.assertEqual(arrays["dmix_after"].shape, (2, 5))
        self.assertEqual((result["heads"], result["components"], result["mix_after_heads"]), (2, 3, 5))
        self.assertEqual(result["flops"], 2 * (2 * 3 * 8 + 2 * 6) * 2 * 5 * 7)

    def test_lists_and_files(self):
        mix = self.arrays["mix"].astype(np.float32)
        text = ",".join(repr(float(value)) for value in mix.ravel())
        np.testing.assert_array_equal(self.output("hard-gfish", mix=text), self.output("hard-gfish"))
        numbers = self.save("numbers", np.array([0.5, -1, 2, 0]))
        np.testing.assert_array_equal(self.output("hard-gfish", mix_weight=text, mix_offset="0.5,-1,2,0"),
                                      self.output("hard-gfish", mix_weight="mix.npy", mix_offset=numbers))
        three = self.save("three", np.array([0.5, 1, 0], ">f8"))
        np.testing.assert_array_equal(self.output("mish"), self.output("mish", mix="0.5,-1,2", noise=three))

    def test_tokens_first(self):
        expected = self.output("fish")
        for name in ("qx", "kx", "v"):
            self.save(name + "_t", self.arrays[name].transpose(TOKENS_FIRST))
        found = self.output("fish", q="qx_t.npy", k="kx_t.npy", v="v_t.npy", layout="bnhd")
        np.testing.assert_allclose(found.transpose(TOKENS_FIRST), expected, atol=1e-6)

    def test_heads_of_one_mixing(self):
        self.save("g6", self.normal(2, 6, 5, 6))
        for variant in SHARED_MIX if FULL else ("hard-mish",):
            with self.subTest(variant=variant):
                self.assertEqual(self.output(variant, heads=None).shape[1], 2)
                self.assertEqual(self.output(variant, heads=6).shape[1], 6)
                self.assertEqual(self.output(variant, heads=None, grad_out="g6.npy").shape[1], 6)
                self.assertEqual(self.output(variant, heads=6, grad_out="g6.npy").shape[1], 6)
        one = self.output("hard-mish", heads=2)
        np.testing.assert_allclose(self.output("hard-mish", heads=4), np.repeat(one, 2, axis=1), atol=1e-6)

    def test_talking_heads_are_hard_fish(self):
        np.testing.assert_array_equal(self.output("talking-heads"),
                                      self.output("hard-fish", q="q.npy", k="kt.npy", mix="mixt.npy"))

    def test_modifiers(self):
        self.save("lengths", np.array([0, 5]))
        self.save("bias", self.normal(1, 4, 5, 7))
        for variant, changes in (("hard-fish", {"softcap": "2", "alibi": "0.5,0.25,0,1", "bias": "bias.npy"}),
                                 ("fish", {"causal": True, "lengths": "lengths.npy", "dropout": "0.25", "seed": "3"}),
                                 ("hard-mish", {"sinks": "0.5,1,-1,0", "window": "2,0"})):
            with self.subTest(variant=variant, changes=changes):
                plain = self.output(variant)
                self.assertFalse(np.array_equal(self.output(variant, **changes), plain))

    def test_storage_types(self):
        for variant, dtype in (("fish", "f16"), ("hard-mish", "bf16")) if FULL else (("hard-mish", "bf16"),):
            with self.subTest(variant=variant, dtype=dtype):
                result, _ = self.run_for(variant, ("out",), dtype=dtype)
                self.assertEqual(result["dtype"], dtype)


class Noise(MixingTest):
    def test_none_is_the_form_without(self):
        for variant in NOISY:
            with self.subTest(variant=variant):
                hard = self.output("hard-" + variant)
                np.testing.assert_array_equal(self.output(variant, noise="0,0,0", seed="5"), hard)
                self.assertFalse(np.array_equal(self.output(variant), hard))

    def test_seeds(self):
        default = self.output("fish")
        np.testing.assert_array_equal(self.output("fish", seed="0"), default)
        large = self.output("fish", seed=str(2**64 - 1))
        self.assertFalse(np.array_equal(large, default))
        np.testing.assert_array_equal(self.output("fish", seed=str(2**64 - 1)), large)

    def test_shared_noise(self):
        """With one mixing, values and noise for all heads, the heads are equal."""
        self.save("v", self.normal(2, 1, 7, 6))
        own = self.output("mish")
        shared = self.output("mish", shared_noise=True)
        np.testing.assert_array_equal(shared[:, 0], own[:, 0])
        for head in range(1, 4):
            np.testing.assert_allclose(shared[:, head], shared[:, 0], atol=1e-6)
            self.assertGreater(np.abs(own[:, head] - own[:, 0]).max(), 1e-2)


class Backward(MixingTest):
    def gradients(self, variant):
        names = ["dq", "dk", "dv", "dmix"]
        names += ["dmix-weight", "dmix-offset"] if variant in GENERALISED else []
        return names + (["dnoise"] if variant in NOISY else [])

    def test_gradients_have_the_shape_of_their_parameters(self):
        for variant in ADMIXTURES if FULL else ("hard-fish", "mish", "gfish"):
            with self.subTest(variant=variant):
                heads = 4 if variant == "talking-heads" else 3
                shapes = {"dq": (2, heads, 5, 8), "dk": (2, heads, 7, 8), "dv": (2, 2, 7, 6),
                          "dmix": (3,) if variant in SHARED_MIX else (4, heads), "dmix-weight": (4, 3),
                          "dmix-offset": (4,), "dnoise": (3,)}
                names = self.gradients(variant)
                result, arrays = self.run_for(variant, names, grad_out="g.npy", grad_lse="gl.npy")
                self.assertEqual({name: array.shape for name, array in arrays.items()},
                                 {name: shapes[name] for name in names})
                for name, array in arrays.items():
                    self.assertTrue(np.abs(array).max() > 0, name)
                self.assertEqual(result["backward"]["gradients"], names)

    def test_lists_count_in_the_shape_that_they_stand_for(self):
        text = ",".join(12 * ["0.5"])
        _, arrays = self.run_for("gfish", self.gradients("gfish"), grad_out="g.npy", mix=text, mix_weight=text,
                                 mix_offset="1,2,3,4")
        self.assertEqual([arrays[name].shape for name in self.gradients("gfish")[3:]], [(4, 3), (4, 3), (4,), (3,)])

    def test_gradients_of_a_hidden_layer(self):
        self.save("p", self.normal(5, 3))
        self.save("w", self.normal(4, 5))
        names = self.gradients("gfish")[3:] + ["dmix-hidden-offset"]
        _, arrays = self.run_for("gfish", names, grad_out="g.npy", grad_lse="gl.npy", mix="p.npy",
                                 mix_weight="w.npy")
        self.assertEqual([arrays[name].shape for name in names], [(5, 3), (4, 5), (4,), (3,), (5,)])
        for name, array in arrays.items():
            self.assertTrue(np.abs(array).max() > 0, name)

    def test_an_offset_moves_nothing_but_l(self):
        _, arrays = self.run_for("gfish", self.gradients("gfish"), grad_out="g.npy", mix_weight="mix.npy",
                                 mix_offset="1,2,3,4")
        np.testing.assert_allclose(arrays["dmix-offset"], 0, atol=1e-4)

    def test_tokens_first(self):
        names = self.gradients("gfish")
        _, expected = self.run_for("gfish", names, grad_out="g.npy")
        for name in ("qx", "kx", "v"):
            self.save(name + "_t", self.arrays[name].transpose(TOKENS_FIRST))
        self.save("g_t", self.load("g.npy").transpose(TOKENS_FIRST))
        _, found = self.run_for("gfish", names, q="qx_t.npy", k="kx_t.npy", v="v_t.npy", grad_out="g_t.npy",
                                layout="bnhd")
        for name in names:
            axes = TOKENS_FIRST if expected[name].ndim == 4 else range(expected[name].ndim)
            np.testing.assert_allclose(found[name], expected[name].transpose(axes), atol=1e-4, err_msg=name)

    def test_runs_are_bit_equal(self):
        names = self.gradients("gfish")
        first = self.run_for("gfish", names, grad_out="g.npy")[1]
        again = self.run_for("gfish", names, grad_out="g.npy", repeat="2")[1]
        for name in names:
            np.testing.assert_array_equal(again[name], first[name], err_msg=name)

    def test_flops(self):
        """Scores three times, values twice."""
        result, _ = self.run_for("hard-fish", self.gradients("hard-fish"), grad_out="g.npy")
        self.assertEqual(result["backward"]["flops"], 2 * (3 * 3 * 8 + 2 * 4 * 6) * 2 * 5 * 7)


if __name__ == "__main__":
    unittest.main()
