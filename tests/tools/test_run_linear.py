# SPDX-License-Identifier: Apache-2.0
"""clmgk-run: the linear family, its options and its state."""
import json
import unittest

import numpy as np

from program_test import ADMIXTURES, GENERALISED, LINEARS, NOISY, SHARED_MIX, RunTest

OTHERS = ("softmax", "gaussian", "mgk", "smgk") + ADMIXTURES
MIXED = {variant: like for variant, like in LINEARS.items() if like in ADMIXTURES}


class Usage(RunTest):
    def test_what_the_family_has_not(self):
        for variant in LINEARS:
            for option, value in (("lse", "x.npy"), ("grad-lse", "x.npy"), ("window", "1,2"), ("bias", "x.npy"),
                                  ("alibi", "1"), ("sinks", "1"), ("softcap", "5"), ("dropout", "0.5"), ("score", "dot"),
                                  ("estep", "soft"), ("variance", "2"), ("mix-offset", "1,1,1,1"), ("nll", "x.npy"),
                                  ("new-prior", "x.npy"), ("counts", "x.npy"), ("responsibilities", "x.npy"),
                                  ("dvariance", "x.npy"), ("dbias", "x.npy"), ("dsinks", "x.npy"),
                                  ("dmix-offset", "x.npy")):
                with self.subTest(variant=variant, option=option):
                    self.refuse_run(f"--{option} does not apply to {variant}", variant=variant, **{option: value})

    def test_what_some_variants_have_not(self):
        for option, value, likes in (
            ("prior", "1,1,1", ("mgk", "smgk")), ("shift", "shift.npy", ("smgk",)), ("mix", "mix.npy", ADMIXTURES),
            ("mix-weight", "mix.npy", GENERALISED), ("noise", "1,1,1", NOISY), ("shared-noise", True, NOISY),
            ("heads", "4", SHARED_MIX),
        ):
            for variant, like in LINEARS.items():
                if like not in likes:
                    with self.subTest(variant=variant, option=option):
                        self.refuse_run(f"--{option} does not apply to {variant}", variant=variant, **{option: value})

    def test_what_other_families_have_not(self):
        for variant in OTHERS:
            for option, value in (("feature", "relu"), ("feature-order", "1"), ("projection", "x.npy"), ("guard", "1"),
                                  ("unnormalised", True), ("state-in", "p"), ("state-out", "p")):
                with self.subTest(variant=variant, option=option):
                    self.refuse_run(f"--{option} does not apply to {variant}", variant=variant, **{option: value})

    def test_required_options(self):
        for variant, like in LINEARS.items():
            for option, likes in (("mix", ADMIXTURES), ("noise", NOISY), ("shift", ("smgk",))):
                if like in likes:
                    with self.subTest(variant=variant, option=option):
                        self.refuse_run(f"--{option} is required with {variant}", variant=variant, **{option: None})
        self.refuse_run("--projection is required with favor", variant="linear", feature="favor")
        self.refuse_run("--k", "one key a position", variant="linear", k="km.npy")

    def test_maps_and_their_options(self):
        self.refuse_run("--feature", "'sigmoid'", "expected one of elu1, relu, exp, dpfp, favor", variant="linear",
                        feature="sigmoid")
        for feature in (None, "elu1", "relu", "exp", "favor"):
            self.refuse_run("--feature-order does not apply to --feature", variant="mlk", feature=feature,
                            feature_order="1")
        for feature in (None, "elu1", "relu", "exp", "dpfp"):
            self.refuse_run("--projection does not apply to --feature", variant="lfish", feature=feature,
                            projection="x.npy")
        for order in ("0", "4", "-1", "1.5", ""):
            self.refuse_run("--feature-order", f"'{order}'", "from 1 to 3", variant="smlk", feature="dpfp",
                            feature_order=order)
        for guard in ("-1", "nan", "inf", "x", "1e+39", "1e-60"):
            self.refuse_run("guard", guard, variant="linear", guard=guard)
        self.refuse_run("guard", "no denominators", variant="linear", guard="1", unnormalised=True)

    def test_projections(self):
        self.save("w", self.normal(5, 7))
        self.refuse_run("--projection w.npy", "(5, 7)", "D = 8", variant="linear", feature="favor", projection="w.npy")
        self.save("w", self.normal(40))
        self.refuse_run("--projection w.npy", "(40,)", "[F,D]", variant="linear", feature="favor", projection="w.npy")
        self.save("w", self.normal(0, 8))
        self.refuse_run("--projection w.npy", "F = 0", variant="linear", feature="favor", projection="w.npy")
        self.save("w", self.normal(4097, 8))
        self.refuse_run("features: 4097", variant="linear", feature="favor", projection="w.npy")
        self.save("w", np.full((5, 8), np.nan))
        self.refuse_run("--projection w.npy", "element 0 is nan", variant="linear", feature="favor",
                        projection="w.npy")
        self.refuse_run("--projection none.npy", variant="linear", feature="favor", projection="none.npy")

    def test_states(self):
        for variant, c, z in (("linear", (2, 4, 8, 6), (2, 4, 8)), ("lhard-fish", (2, 4, 3, 8, 6), (2, 3, 8))):
            self.save("p.c", self.normal(*c))
            self.save("p.z", self.normal(*z[:-1]))
            self.refuse_run("--state-in p.z.npy", variant=variant, state_in="p")
            self.save("p.z", self.normal(*z[:-1], 9))
            self.refuse_run("--state-in p.z.npy", "F = 8", variant=variant, state_in="p")
            self.save("p.z", self.normal(*z))
            self.refuse_run("--state-in p.c.npy", "F = 32 as in --feature", variant=variant, state_in="p",
                            feature="dpfp", feature_order="2")
            self.save("p.c", np.full(c, 1e300))
            self.refuse_run("--state-in p.c.npy", "element 0 is 1e+300", variant=variant, state_in="p")
            (self.folder / "p.c.npy").unlink()
            self.refuse_run("--state-in p.c.npy", variant=variant, state_in="p")
        for option in ("state-in", "state-out"):
            self.refuse_run(f"--{option} does not apply to packed sequences", variant="linear", offsets="o.npy",
                            **{option: "p"})
        self.refuse_run("--state-in: a path of more than", variant="linear", state_in="p" * 5000)

    def test_a_state_is_no_input_and_output(self):
        self.save("p.c", self.normal(2, 4, 8, 6))
        self.save("p.z", self.normal(2, 4, 8))
        self.refuse_run("p.c.npy", variant="linear", state_in="p", state_out="p")
        self.refuse_run("p.z.npy", variant="linear", state_out="p", out="p.z.npy")


class States(RunTest):
    def arrays_of(self, variant, outputs, **changes):
        """The JSON object of a run that passed its check, and the arrays that it wrote."""
        result = json.loads(self.accept_run(variant, json=True, check=True, **changes).stdout)
        self.assertTrue(result["check"]["ok"])
        return result, [self.load(name) for name in outputs]

    def test_prefill_and_decoding_are_one_pass(self):
        for array in ("q", "k", "v"):
            self.arrays[array] = self.normal(2, 4, 7, 8 if array != "v" else 6)
            for name, part in ((array, slice(None)), (array + "1", slice(0, 4)), (array + "2", slice(4, 7))):
                self.save(name, self.arrays[array][:, :, part])
        result, whole = self.arrays_of("linear", ("o.npy", "p.c.npy", "p.z.npy"), causal=True, state_out="p")
        self.assertEqual((result["feature"], result["features"]), ("elu1", 8))
        self.assertEqual(result["outputs"], {"out": "o.npy", "state-out": "p"})
        self.assertLessEqual({"out", "state-out.c", "state-out.z"}, set(result["check"]))
        first = {"q": "q1.npy", "k": "k1.npy", "v": "v1.npy", "causal": True, "state_out": "p1"}
        _, begun = self.arrays_of("linear", ("o.npy",), **first)
        then = {"q": "q2.npy", "k": "k2.npy", "v": "v2.npy", "causal": True, "state_in": "p1", "state_out": "p2"}
        _, ended = self.arrays_of("linear", ("o.npy", "p2.c.npy", "p2.z.npy"), **then)
        np.testing.assert_allclose(np.concatenate([begun[0], ended[0]], 2), whole[0], atol=2e-6)
        np.testing.assert_allclose(ended[1], whole[1], atol=1e-5)
        np.testing.assert_allclose(ended[2], whole[2], atol=1e-5)

    def test_true_values(self):
        """Files hold C and z, whatever scale the kernels have for them; what does not fit is refused."""
        k = self.normal(2, 2, 7, 8)
        self.save("k", k + 60)
        _, (z,) = self.arrays_of("linear", ("p.z.npy",), feature="exp", state_out="p")
        expected = np.exp((k + np.float32(60)).astype(np.float64)).sum(2)
        np.testing.assert_allclose(z, np.repeat(expected, 2, 1), rtol=2e-5)
        for shift in (100, -120):
            self.save("k", k + shift)
            self.refuse_run("--state-out", "does not fit float32", variant="linear", feature="exp", state_out="p2",
                            out="o2.npy")
        self.accept_run("linear", feature="exp", out="o2.npy")  # without the state it is no matter


if __name__ == "__main__":
    unittest.main()
