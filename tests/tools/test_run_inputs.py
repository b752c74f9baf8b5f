# SPDX-License-Identifier: Apache-2.0
"""clmgk-run: bad input of every kind is refused before anything is written."""
import os
import unittest

import numpy as np

from program_test import NOISY, SHARED_MIX, RunTest


def header(text, version=1, length=None, magic=b"\x93NUMPY"):
    """The first bytes of a .npy file with this dictionary."""
    body = text.encode() + b"\n"
    size = len(body) if length is None else length
    return magic + bytes([version, 0]) + size.to_bytes(2 if version == 1 else 4, "little") + body


class Shapes(RunTest):
    def refuse_array(self, name, array, *words, variant="softmax", **changes):
        changes.setdefault(name, self.save("bad", array))
        self.refuse_run(f"--{name}", "bad.npy", *words, variant=variant, **changes)

    def test_ranks(self):
        for name, axes in (("q", "[B,H,N,D]"), ("k", "[B,G,S,D]"), ("v", "[B,G,S,E]")):
            array = self.arrays[name]
            for wrong in (array[0], array.ravel(), np.float32(1), array[None, :, :, :, :, None]):
                with self.subTest(name=name, axes=wrong.ndim):
                    self.refuse_array(name, wrong, axes)

    def test_lacking_axes(self):
        self.refuse_array("q", self.normal(5, 8), "[B,H,N,D]; with NumPy, x[None, None] has two more axes")
        self.refuse_array("k", self.normal(2, 7, 8), "[B,G,S,D]; with NumPy, x[None] has one more axis")

    def test_tokens_first_ranks(self):
        self.refuse_array("q", self.arrays["q"][0], "[B,N,H,D]", layout="bnhd")

    def test_axes_that_do_not_fit(self):
        for name, shape, symbol in (
            ("k", (3, 2, 7, 8), "B = 2"), ("k", (2, 2, 7, 9), "D = 8"), ("k", (2, 3, 7, 8), "H = 4"),
            ("v", (1, 2, 7, 6), "B = 2"), ("v", (2, 4, 7, 6), "G = 2"), ("v", (2, 2, 6, 6), "S = 7"),
        ):
            with self.subTest(name=name, shape=shape):
                self.refuse_array(name, self.normal(*shape), symbol)

    def test_empty_axes(self):
        for name, shape, symbol in (
            ("q", (0, 4, 5, 8), "B = 0"), ("q", (2, 0, 5, 8), "H = 0"), ("q", (2, 4, 5, 0), "D = 0"),
            ("k", (2, 0, 7, 8), "G = 0"), ("v", (2, 2, 7, 0), "E = 0"),
        ):
            with self.subTest(name=name, shape=shape):
                self.refuse_array(name, self.normal(*shape), symbol)
        self.refuse_array("k", self.normal(2, 2, 0, 7, 8), "M = 0", variant="mgk")
        self.refuse_array("shift", self.normal(4, 0, 8), "M = 0", variant="smgk")

    def test_more_components_than_the_variant_has(self):
        for variant in ("softmax", "gaussian", "smgk"):
            with self.subTest(variant=variant):
                self.refuse_run("--k", "km.npy", "[B,G,S,D]", variant=variant, k="km.npy")

    def test_head_sizes_beyond_the_limit(self):
        self.save("q", self.normal(2, 4, 5, 577))
        self.save("k", self.normal(2, 2, 7, 577))
        self.refuse_run("577")

    def test_prior(self):
        for shape in ((2,), (4, 2), (3, 3), (4, 3, 6), (4, 3, 7, 1), ()):
            with self.subTest(shape=shape):
                self.refuse_array("prior", np.ones(shape, np.float32), "[H,M,S]", variant="mgk")
        self.refuse_run("--prior 1,1", variant="mgk", prior="1,1")

    def test_variance(self):
        for shape in ((2,), (4, 2), (1, 1), (4, 3, 7), (0,)):
            with self.subTest(shape=shape):
                self.refuse_array("variance", np.ones(shape, np.float32), "one number", variant="mgk")
        self.refuse_run("--variance 1,2", variance="1,2")

    def test_shift(self):
        for shape, word in (((3, 8), "[H,M,D]"), ((2, 3, 8), "H = 4"), ((4, 3, 7), "D = 8")):
            with self.subTest(shape=shape):
                self.refuse_array("shift", self.normal(*shape), word, variant="smgk")

    def test_lengths(self):
        for name in ("lengths", "lengths-q"):
            for array, word in (
                (np.array([1, 2, 3]), "B = 2"), (np.array([[1, 2]]), "[B]"), (np.array(3), "[B]"),
                (np.array([1.0, 2.0]), "int32 or int64"), (np.array([-1, 2]), "element 0 is -1"),
                (np.array([1, 8]), "element 1 is 8"), (np.array([1, 2**31]), "element 1 is 2147483648"),
                (np.array([-2**31 - 1, 1]), "element 0 is -2147483649"),
            ):
                with self.subTest(option=name, array=array):
                    self.refuse_array(name, array, word, **{name: self.save("bad", array)})

    def test_lists_of_lengths(self):
        self.refuse_run("--lengths 201:", "B = 2", lengths="201")
        self.refuse_run("--lengths 7,8:", "element 1 is 8", lengths="7,8")
        self.refuse_run("--lengths absent: No such file", lengths="absent")
        self.accept_run(lengths=self.save("lengths", np.array([7, 3])), out="file.npy")
        self.accept_run(lengths="7,3", out="list.npy")
        self.assertEqual((self.folder / "file.npy").read_bytes(), (self.folder / "list.npy").read_bytes())

    def test_gradients_of_outputs(self):
        for shape, word in (((4, 5, 6), "[B,H,N,E]"), ((2, 4, 5, 8), "E = 6 as in --v"), ((2, 4, 7, 6), "N = 5"),
                            ((2, 2, 5, 6), "H = 4"), ((1, 4, 5, 6), "B = 2")):
            with self.subTest(shape=shape):
                self.refuse_array("grad-out", self.normal(*shape), word)
        self.save("t", self.normal(2, 5, 4, 8))
        for shape, word in (((5, 4, 8), "[B,N,H,E]"), ((2, 4, 5, 8), "H = 4")):
            with self.subTest(shape=shape, layout="bnhd"):
                self.refuse_array("grad-out", self.normal(*shape), word, layout="bnhd", q="t.npy", k="t.npy",
                                  v="t.npy")
        self.save("g", self.normal(2, 4, 5, 6))
        for shape, word in (((2, 4, 5, 1), "[B,H,N]"), ((2, 5, 4), "H = 4"), ((2, 4, 6), "N = 5"),
                            ((1, 4, 5), "B = 2")):
            with self.subTest(shape=shape):
                self.refuse_array("grad-lse", self.normal(*shape), word, **{"grad-out": "g.npy"})

    def test_bias(self):
        for shape, word in (((4, 5, 7), "[B,H,N,S]"), ((3, 4, 5, 7), "divisor of B = 2"),
                            ((0, 4, 5, 7), "divisor of B = 2"), ((2, 2, 5, 7), "1 or H = 4"),
                            ((2, 4, 7, 7), "1 or N = 5"), ((1, 1, 1, 5), "1 or S = 7"), ((1, 1, 0, 7), "1 or N = 5")):
            with self.subTest(shape=shape):
                self.refuse_array("bias", self.normal(*shape), word)

    def test_numbers_per_head(self):
        for name in ("alibi", "sinks"):
            for array, word in ((self.normal(3), "H = 4"), (self.normal(4, 1), "[H]"), (self.normal(), "[H]")):
                with self.subTest(name=name, shape=array.shape):
                    self.refuse_array(name, array, word)
            self.refuse_run(f"--{name} 1,2,3", "H = 4", **{name: "1,2,3"})


class MixedShapes(RunTest):
    def refuse_array(self, name, array, *words, variant="gfish", **changes):
        changes.setdefault(name.replace("-", "_"), self.save("bad", array))
        self.refuse_run(f"--{name}", "bad.npy", *words, variant=variant, **changes)

    def test_queries_and_keys(self):
        self.refuse_array("q", self.normal(3, 5, 8), "[B,M,N,D]")
        self.refuse_array("q", self.normal(2, 0, 5, 8), "M = 0")
        self.refuse_array("k", self.normal(3, 7, 8), "[B,M,S,D]")
        self.refuse_array("k", self.normal(2, 2, 3, 7, 8), "[B,M,S,D]", "gfish has one key a position")
        self.refuse_array("k", self.normal(2, 2, 7, 8), "M = 3 as in --q")
        self.refuse_array("q", self.normal(3, 5, 8), "[B,N,M,D]", layout="bnhd")

    def test_values(self):
        self.refuse_array("v", self.normal(2, 3, 7, 6), "divisor of H = 4 as in --mix")
        self.refuse_array("v", self.normal(2, 0, 7, 6), "G = 0")
        self.refuse_array("v", self.normal(2, 3, 7, 6), "divisor of H = 4 as in --heads", variant="hard-mish")

    def test_mixing(self):
        for shape, word in (((3,), "[H,M]"), ((1, 4, 3), "[H,M]"), ((), "[H,M]"), ((4, 2), "M = 3 as in --q"),
                            ((3, 4), "M = 3 as in --q"), ((0, 3), "H = 0")):
            for variant in ("fish", "hard-fish", "gfish", "hard-gfish"):
                with self.subTest(shape=shape, variant=variant):
                    self.refuse_array("mix", np.ones(shape), word, variant=variant)
        for shape, word in (((4, 3), "[M]"), ((1, 3), "[M]"), ((), "[M]"), ((2,), "M = 3 as in --q"), ((0,), "M = 3")):
            for variant in SHARED_MIX:
                with self.subTest(shape=shape, variant=variant):
                    self.refuse_array("mix", np.ones(shape), word, variant=variant)
        for shape, word in (((4,), "[H,M]"), ((4, 3), "M = 4"), ((3, 4), "H = M = 4 as in --q")):
            with self.subTest(shape=shape):
                self.refuse_array("mix", np.ones(shape), word, variant="talking-heads")

    def test_lists(self):
        self.refuse_run("--mix", "4 numbers", "rows of M = 3", variant="hard-fish", mix="1,2,3,4")
        self.refuse_run("--mix 1,2", "M = 3 as in --q", variant="hard-mish", mix="1,2")
        self.refuse_run("--mix 1,1,1", "H = M = 4", variant="talking-heads", mix=",".join(12 * ["1"]))
        self.refuse_run("--mix-weight", "4 numbers", "rows of M = 3", variant="gfish", mix_weight="1,2,3,4")
        self.refuse_run("--mix-weight", "H = 4 as in --mix", variant="gfish", mix_weight="1,2,3")
        self.refuse_run("--noise 1,2", "M = 3 as in --q", variant="fish", noise="1,2")
        self.refuse_run("--mix-offset 1,2,3", "H = 4 as in --mix", variant="gfish", mix_offset="1,2,3")

    def test_other_arrays_of_mixing(self):
        for shape, word in (((4,), "[H,M]"), ((3, 3), "H = 4 as in --mix"), ((4, 5), "M = 3 as in --q")):
            with self.subTest(array="weight", shape=shape):
                self.refuse_array("mix-weight", np.ones(shape), word)
        for shape, word in (((4, 1), "[H]"), ((3,), "H = 4 as in --mix"), ((), "[H]")):
            with self.subTest(array="offset", shape=shape):
                self.refuse_array("mix-offset", np.ones(shape), word)
        for shape, word in (((4, 1), "[U]"), ((5,), "U = 4 as in --mix"), ((), "[U]")):
            with self.subTest(array="hidden offset", shape=shape):
                self.refuse_array("mix-hidden-offset", np.ones(shape), word, mix_weight=self.save("w", np.ones((2, 4))))
        self.refuse_array("mix-weight", np.ones((4, 3)), "U = 4 as in --mix", mix_hidden_offset="0,0,0,0")
        self.refuse_run("--mix-weight", "6 numbers", "[H,U], rows of U = 4 as in --mix", variant="gfish",
                        mix_weight="1,2,3,4,5,6", mix_hidden_offset="0,0,0,0")
        self.refuse_run("--v v.npy", "divisor of H = 3 as in --mix-weight", variant="gfish",
                        mix_weight=self.save("w", np.ones((3, 4))))
        for shape, word in (((4, 3), "[M]"), ((4,), "M = 3 as in --q"), ((), "[M]")):
            for variant in NOISY:
                with self.subTest(array="noise", shape=shape, variant=variant):
                    self.refuse_array("noise", np.ones(shape), word, variant=variant)

    def test_heads_of_gradients_and_modifiers(self):
        self.refuse_array("grad-out", self.normal(2, 3, 5, 6), "H = 4 as in --mix")
        self.refuse_array("grad-out", self.normal(2, 2, 5, 6), "H = 4 as in --heads", variant="hard-mish")
        self.refuse_array("grad-out", self.normal(3, 5, 6), "[B,H,N,E]", variant="hard-mish", heads=None)
        self.save("g", self.normal(2, 3, 5, 6))
        self.refuse_run("--v v.npy", "divisor of H = 3 as in --grad-out", variant="hard-mish", heads=None,
                        grad_out="g.npy")
        self.refuse_run("--sinks 1,2,3", "H = 2 as in --v", variant="hard-mish", heads=None, sinks="1,2,3")

    def test_heads_beyond_the_limit(self):
        self.save("large_q", self.normal(2, 257, 5, 8))
        self.save("large_k", self.normal(2, 257, 7, 8))
        self.save("large_mix", self.normal(4, 257))
        self.refuse_run("components: 257", "1 to 256", variant="hard-fish", q="large_q.npy", k="large_k.npy",
                        mix="large_mix.npy")
        self.refuse_run("heads: 258", "1 to 256", variant="hard-fish", mix=self.save("high", self.normal(258, 3)))
        self.refuse_run("heads: 258", "1 to 256", variant="hard-mish", heads="258")


class Packed(RunTest):
    """B 1, H 2, N 6, S 9."""

    def setUp(self):
        super().setUp()
        self.save("q", self.normal(1, 2, 6, 8))
        self.save("k", self.normal(1, 2, 9, 8))
        self.save("v", self.normal(1, 2, 9, 8))
        self.save("good", np.array([0, 2, 6]))
        self.save("good_k", np.array([0, 9, 9], "<i4"))

    def test_right_ones(self):
        self.accept_run(offsets="good.npy", **{"offsets-k": "good_k.npy"}, check=True)

    def test_offsets(self):
        for array, word in (
            (np.array([[0, 6]]), "[T+1]"), (np.array(6), "[T+1]"), (np.array([0]), "at least one sequence"),
            (np.array([], np.int32), "at least one sequence"), (np.array([0.0, 6.0]), "int32 or int64"),
            (np.array([1, 6]), "element 0 is 1; expected 0"), (np.array([-1, 6]), "element 0 is -1; expected 0"),
            (np.array([0, 4, 3, 6]), "element 2 is 3; expected at least 4"), (np.array([0, 7, 6]), "element 2"),
            (np.array([0, 5]), "ends with 5; expected N = 6"), (np.array([0, 7]), "ends with 7; expected N = 6"),
            (np.array([0, 2**31]), "2147483648"),
        ):
            with self.subTest(array=array):
                self.refuse_run("--offsets bad.npy", word, offsets=self.save("bad", array),
                                **{"offsets-k": "good_k.npy"})

    def test_offsets_of_keys(self):
        for array, word in (
            (np.array([0, 9]), "T + 1 = 3 as in --offsets"), (np.array([0, 4, 8]), "ends with 8; expected S = 9"),
            (np.array([3, 4, 9]), "expected 0"), (np.array([0, 10, 9]), "at least 10"),
        ):
            with self.subTest(array=array):
                self.refuse_run("--offsets-k bad.npy", word, offsets="good.npy",
                                **{"offsets-k": self.save("bad", array)})
        self.refuse_run("N = 6", "S = 9", "--offsets-k", offsets="good.npy")

    def test_a_batch(self):
        for name, shape in (("q", (2, 2, 6, 8)), ("k", (2, 2, 6, 8)), ("v", (2, 2, 6, 8))):
            self.save(name, self.normal(*shape))
        self.refuse_run("--q q.npy", "B = 1", offsets="good.npy")

    def test_caches(self):
        self.save("k", self.normal(3, 2, 9, 8))
        self.save("v", self.normal(3, 2, 9, 8))
        self.save("good", np.array([0, 1, 1, 6]))
        self.accept_run(offsets="good.npy", lengths="9,3,5", causal=True, check=True)
        self.refuse_run("--offsets two.npy", "T + 1 = 4 as in --k", offsets=self.save("two", np.array([0, 2, 6])),
                        lengths="9,3")
        self.refuse_run("--lengths 9,3:", "T = 3", offsets="good.npy", lengths="9,3")
        self.refuse_run("--lengths 9,10,3:", "element 1 is 10", offsets="good.npy", lengths="9,10,3")

    def test_pages(self):
        self.save("k", self.normal(5, 2, 4, 8))
        self.save("v", self.normal(5, 2, 4, 8))
        self.save("good", np.array([0, 1, 1, 6]))
        table = self.save("table", np.array([[4, 4, 9], [9, 9, 9], [0, 3, 9]]))
        packed = {"offsets": "good.npy", "causal": True}
        self.accept_run(page_table=table, lengths="7,0,8", check=True, **packed)
        self.refuse_run("page_table[2]: 9", "0 to 4", page_table=table, lengths="9,0,8", **packed)
        self.refuse_run("--lengths 13,0,8:", "expected 0 to 12", page_table=table, lengths="13,0,8", **packed)
        self.refuse_run("--offsets two.npy", "T + 1 = 4", offsets=self.save("two", np.array([0, 6])), page_table=table)
        self.refuse_run("--last-page needs --page-offsets", page_table=table, last_page="3,0,4", **packed)
        self.refuse_run("--page-offsets needs --page-table", page_offsets="0,2,2,4", last_page="3,0,4", **packed)
        self.refuse_run("--offsets-k does not apply", page_table=table, offsets_k="good.npy", **packed)
        flat = {"page_table": self.save("flat", np.array([4, 4, 0, 3])), "last_page": "3,0,4", **packed}
        self.accept_run(page_offsets="0,2,2,4", check=True, **flat)
        self.refuse_run("page_offsets[2]: 1", "2 to 4", page_offsets="0,2,1,4", **flat)
        self.refuse_run("--page-offsets 0,2,4:", "[T+1] with T = 3", page_offsets="0,2,4", **flat)
        self.refuse_run("--page-table does not apply to linear", variant="linear", page_table=table)
        self.refuse_run("gradients: expected 0 with page_size = 4", page_table=table, lengths="7,0,8",
                        grad_out="q.npy", dq="dq.npy", **packed)

    def test_alignment_of_lengths(self):
        self.refuse_run("--causal-align lengths needs --lengths", offsets="good.npy", causal_align="lengths")


class Values(RunTest):
    """Invalid values of several kinds. RANGE: the message that finite values do not fit."""

    RANGE = "expected a number in the range of "

    def test_prior(self):
        for value in ("-0.1", "nan", "inf", "-1e-30"):
            with self.subTest(value=value):
                self.refuse_run("--prior", "element 1", "not below 0", variant="mgk", prior=f"1,{value},1")
        self.refuse_run("--prior", "element 5", variant="mgk",
                        prior=self.save("bad", np.array([1, 1, 1, 1, 1, np.nan] + 6 * [1.0]).reshape(4, 3)))

    def test_variance(self):
        for value in ("0", "-1", "nan", "inf", "-inf", "1e-60"):
            for variant, text in (("softmax", value), ("mgk", value), ("mgk", f"1,{value},1")):
                with self.subTest(variant=variant, text=text):
                    self.refuse_run("--variance", "above 0", variant=variant, variance=text)

    def test_bias(self):
        for value in (np.inf, np.nan):
            with self.subTest(value=value):
                array = np.zeros((1, 4, 5, 7))
                array[0, 1, 2, 3] = value
                self.refuse_run("--bias bad.npy", "element 52", "a finite number or -inf", bias=self.save("bad", array))

    def test_shift(self):
        for variant in ("smgk", "smlk"):
            for value in (np.nan, np.inf, -np.inf):
                with self.subTest(variant=variant, value=value):
                    array = self.arrays["shift"].copy()
                    array[1, 2, 3] = value
                    self.refuse_run("--shift bad.npy", "element 43", "a finite number", variant=variant,
                                    shift=self.save("bad", array))

    def test_numbers_per_head(self):
        for name in ("alibi", "sinks"):
            for value in ("nan", "inf", "-inf"):
                with self.subTest(name=name, value=value):
                    self.refuse_run(f"--{name}", "element 2", "a finite number", **{name: f"0,1,{value},2"})

    def test_mixing(self):
        for value in ("nan", "inf", "-inf"):
            for option, variant, text in (("mix", "hard-mish", f"0,{value},1"),
                                          ("mix-weight", "gfish", f"0,{value},1" + 9 * ",0"),
                                          ("mix-offset", "gfish", f"0,{value},1,1")):
                with self.subTest(option=option, value=value):
                    self.refuse_run(f"--{option}", "element 1", "a finite number", variant=variant, **{option: text})
        array = np.ones((4, 3))
        array[2, 1] = np.nan
        self.refuse_run("--mix bad.npy", "element 7", "a finite number", variant="fish", mix=self.save("bad", array))

    def test_noise(self):
        for value in ("-0.1", "-1e-30", "nan", "inf", "-inf"):
            for variant in NOISY:
                with self.subTest(value=value, variant=variant):
                    self.refuse_run("--noise", "element 1", "not below 0", variant=variant, noise=f"1,{value},1")
        self.refuse_run("--noise bad.npy", "element 2", "not below 0", variant="fish",
                        noise=self.save("bad", np.array([0.0, 1.0, -1.0])))

    def test_lists_beyond_float32(self):
        for option, variant in (("prior", "mgk"), ("variance", "mgk"), ("alibi", "softmax"), ("sinks", "softmax"),
                                ("mix", "hard-mish"), ("mix-weight", "gfish"), ("mix-offset", "gfish"),
                                ("noise", "fish")):
            for value in ("1e39", "-3.5e38", "1e300", "-1e400"):
                with self.subTest(option=option, value=value):
                    self.refuse_run(f"--{option}", f"element 1 is {value};", self.RANGE + "f32", variant=variant,
                                    **{option: f"0,{value},1"})

    def test_single_numbers_beyond_float32(self):
        for option, variant, words in (("variance", "softmax", "in the range of f32"), ("softcap", "softmax", "to 3.4e+38"),
                                       ("guard", "linear", "in the range of f32")):
            with self.subTest(option=option):
                self.refuse_run(option, words, variant=variant, **{option: "1e300"})

    def test_epsilon_of_other_maps(self):
        option = {"feature-epsilon": "0.1"}
        self.refuse_run("feature-epsilon", "does not apply to --feature elu1", variant="linear", **option)
        self.refuse_run("feature-epsilon", "does not apply to softmax", variant="softmax", **option)
        self.refuse_run("feature_epsilon", "expected 0 or more", variant="linear", feature="relu", **{"feature-epsilon": "-1"})

    def test_files_beyond_float32(self):
        """Each array of floating-point numbers; one element is too large, in both orders of the file."""
        gradients = {"grad-out": self.save("g", self.normal(2, 4, 5, 6)), "out": None, "dq": "dq.npy"}
        for option, shape, variant, changes in (
            ("q", (2, 4, 5, 8), "softmax", {}), ("k", (2, 2, 7, 8), "softmax", {}), ("v", (2, 2, 7, 6), "softmax", {}),
            ("grad-out", (2, 4, 5, 6), "softmax", gradients), ("grad-lse", (2, 4, 5), "softmax", gradients),
            ("prior", (4, 3), "mgk", {}), ("variance", (4, 3), "mgk", {}), ("shift", (4, 3, 8), "smgk", {}),
            ("bias", (1, 1, 5, 7), "softmax", {}), ("alibi", (4,), "softmax", {}), ("sinks", (4,), "softmax", {}),
            ("mix", (4, 3), "hard-fish", {}), ("mix-weight", (4, 3), "gfish", {}), ("mix-offset", (4,), "gfish", {}),
            ("noise", (3,), "fish", {}), ("projection", (5, 8), "linear", {"feature": "favor"}),
        ):
            array = np.abs(self.normal(*shape)).astype(np.float64)
            array.flat[2] = 1e300 if option in ("prior", "variance", "noise") else -1e300
            for order in (np.ascontiguousarray, np.asfortranarray):
                with self.subTest(option=option, order=order.__name__):
                    self.save("bad", order(array))
                    self.refuse_run(f"--{option} bad.npy: element 2 is", "1e+300;", self.RANGE + "f32", variant=variant,
                                    **{**changes, option: "bad.npy"})
        state = {"c": self.normal(2, 4, 8, 6).astype(np.float64), "z": self.normal(2, 4, 8).astype(np.float64)}
        for part in state:
            for other in state:
                self.save(f"p.{other}", state[other])
            bad = state[part].copy()
            bad.flat[2] = 1e300
            self.save(f"p.{part}", bad)
            with self.subTest(state=part):
                self.refuse_run(f"--state-in p.{part}.npy: element 2 is 1e+300;", self.RANGE + "f32", variant="linear",
                                state_in="p")

    def test_ranges_of_storage_types(self):
        """Numbers that round to finite ones are accepted, the next larger ones are not. Infinities and NaN are kept."""
        for name in ("q", "k"):
            self.save(name, np.zeros((1, 1, 1, 8)))
        half, single = 65520.0, 2.0**128 - 2.0**103
        for dtype, least, below, largest in (
            ("f16", half, np.nextafter(half, 0), 65504.0),
            ("f32", single, np.nextafter(single, 0), np.finfo(np.float32).max),
            ("bf16", 2.0**128 - 2.0**119, None, None),
        ):
            with self.subTest(dtype=dtype):
                for sign in (1, -1):
                    self.save("v", np.array([0, sign * least]).reshape(1, 1, 1, 2))
                    self.refuse_run("--v v.npy: element 1 is", self.RANGE + dtype, dtype=dtype)
                if largest:  # of one key, O is its value
                    self.save("v", np.array([below, -largest, np.inf, -np.inf, np.nan], np.float64).reshape(1, 1, 1, 5))
                    self.accept_run(dtype=dtype)
                    np.testing.assert_array_equal(self.load("o.npy").ravel(),
                                                  [largest, -largest, np.inf, -np.inf, np.nan])

    def test_ranges_of_types_by_array(self):
        types = {"dtype_v": "f16", "dtype_o": "f16"}
        self.save("big_v", np.full((2, 2, 7, 6), 7e4))
        self.refuse_run("--v big_v.npy: element 0 is 70000;", self.RANGE + "f16", v="big_v.npy", **types)
        self.save("big_k", np.full((2, 2, 7, 8), 7e4))
        self.accept_run(k="big_k.npy", **types)
        self.save("big_g", np.full((2, 4, 5, 6), 7e4))
        self.refuse_run("--grad-out big_g.npy: element 0 is 70000;", self.RANGE + "f16", grad_out="big_g.npy", **types)

    def test_lists_that_are_none(self):
        for text in ("", ",", "1,", ",1", "1,,2", "1;2", "one", "1 2", "x.txt", "1,2,3 "):
            with self.subTest(text=text):
                self.refuse_run("--variance", "numbers separated by commas", variance=text)


class Files(RunTest):
    def refuse_bytes(self, data, *words, option="q", **changes):
        (self.folder / "bad.npy").write_bytes(data)
        self.refuse_run(f"--{option} bad.npy", *words, **{option: "bad.npy"}, **changes)

    def test_absent_and_unreadable(self):
        (self.folder / "folder.npy").mkdir()
        os.mkfifo(self.folder / "fifo.npy")
        for option, variant in (("q", "softmax"), ("k", "softmax"), ("v", "softmax"), ("prior", "mgk"),
                                ("variance", "mgk"), ("shift", "smgk"), ("lengths", "softmax"),
                                ("lengths-q", "softmax"), ("bias", "softmax"), ("alibi", "softmax"),
                                ("sinks", "softmax"), ("grad-out", "softmax"), ("mix", "fish"), ("mix", "hard-mish"),
                                ("mix-weight", "gfish"), ("mix-offset", "gfish"), ("noise", "fish")):
            for name, word in (("absent.npy", "No such file"), ("folder.npy", "not a regular file")):
                with self.subTest(option=option, name=name):
                    self.refuse_run(f"--{option} {name}", word, variant=variant, **{option: name})
        before = sorted(os.listdir(self.folder))
        done = self.run_program(*self.arguments(q="fifo.npy"))
        self.assertEqual(done.returncode, 2)
        self.assertIn("not a regular file", done.stderr)
        self.assertEqual(sorted(os.listdir(self.folder)), before)

    def test_a_name_with_a_line_break(self):
        self.refuse_run("no file.npy", q="no\nfile.npy")

    def test_element_types(self):
        q = self.arrays["q"]
        for array in (q.astype(bool), q.astype(np.int8), q.astype(np.uint32), q.astype(np.complex64),
                      q.astype("U3"), q.astype(np.longdouble)):
            with self.subTest(type=array.dtype):
                self.save("bad", array)
                self.refuse_run("--q bad.npy", "element type", q="bad.npy")
        for type_name in ("int32", "int64"):
            self.save("bad", q.astype(type_name))
            self.refuse_run("--q bad.npy", f"holds {type_name}", "float16, float32 or float64", q="bad.npy")
            self.refuse_run("--variance bad.npy", f"holds {type_name}", variance="bad.npy")
        self.save("bad", np.zeros(q.shape, [("x", "<f4"), ("y", "<f4")]))
        self.refuse_run("fields", q="bad.npy")
        np.save(self.folder / "bad.npy", np.full(q.shape, None, object), allow_pickle=True)
        self.refuse_run("Python objects", q="bad.npy")

    def test_truncated_and_overlong(self):
        whole = (self.folder / "q.npy").read_bytes()
        for length in (0, 1, 5, 6, 7, 9, 10, 11, 50, 127, 128, 129, len(whole) - 4, len(whole) - 1):
            with self.subTest(length=length):
                self.refuse_bytes(whole[:length])
        self.refuse_bytes(whole + b"\0", "bytes")
        self.refuse_bytes(whole * 2, "bytes")

    def test_damaged_headers(self):
        data = bytes(2 * 4 * 5 * 8 * 4)
        good = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 4, 5, 8), }"
        (self.folder / "fine.npy").write_bytes(header(good) + data)
        self.accept_run(q="fine.npy", out="fine_o.npy")
        for text in (
            "", "{}", "()", good[:-1], good + "x", good.replace("'", "", 1), good.replace("descr", "type"),
            good.replace("False", "0"), good.replace("False", "false"), good.replace("'shape'", "'descr'"),
            good.replace(", 'shape': (2, 4, 5, 8), ", ""), good.replace("(2, 4, 5, 8)", "[2, 4, 5, 8]"),
            good.replace("(2, 4, 5, 8)", "(2, 4, 5, -8)"), good.replace("(2, 4, 5, 8)", "(2, 4, 5, 8.0)"),
            good.replace("(2, 4, 5, 8)", "(2 4 5 8)"), good.replace("(2, 4, 5, 8)", "(2, 4, 5, 8"),
            good.replace("(2, 4, 5, 8)", "(2,, 4, 5, 8)"), good.replace("(2, 4, 5, 8)", "(320)"),
            good.replace("(2, 4, 5, 8)", "(2, 4, 5, 0x8)"), good.replace("(2, 4, 5, 8)", "()"),
            good.replace("(2, 4, 5, 8)", "(2, 4, 5, 9223372036854775808)"),
            good.replace("(2, 4, 5, 8)", "(2, 4, 5, 18446744073709551624)"),
            good.replace("(2, 4, 5, 8)", "(4294967296, 4294967296, 1, 8)"),
            good.replace("(2, 4, 5, 8)", "(2305843009213693952, 1, 1, 2)"),
            good.replace("(2, 4, 5, 8)", "(" + "1, " * 40 + ")"), good.replace("<f4", "|f4"),
            good.replace("<f4", "f4"), good.replace("<f4", "<f16"), good.replace("<f4", "<"), good.replace("<f4", ""),
            good.replace("<f4", "<f4" * 20), good.replace("}", "\0}"), good + "\0", good.replace(":", ";", 1),
            good.replace("}", "'x': 3}"),
        ):
            with self.subTest(text=text):
                self.refuse_bytes(header(text) + data, "bad.npy: ")

    def test_damaged_beginnings(self):
        good = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 4, 5, 8), }"
        data = bytes(2 * 4 * 5 * 8 * 4)
        self.refuse_bytes(header(good, magic=b"\x93NUMPX") + data, "not a .npy file")
        self.refuse_bytes(b"PK\x03\x04" + data, "not a .npy file")
        for version in (0, 4, 255):
            self.refuse_bytes(header(good, version=version) + data, "version")
        self.refuse_bytes(header(good, length=65535) + data, "header")
        self.refuse_bytes(header(good, version=2, length=0xFFFFFFFF) + data, "absurd")
        self.refuse_bytes(header(good, version=3, length=0) + data, "header")

    def test_huge_axes_of_empty_arrays(self):
        for shape in ("(2, 4, 0, 9223372036854775807)", "(9223372036854775807, 9223372036854775807, 0, 8)"):
            with self.subTest(shape=shape):
                self.refuse_bytes(header("{'descr': '<f4', 'fortran_order': False, 'shape': " + shape + ", }"))
                self.refuse_bytes(header("{'descr': '<f4', 'fortran_order': False, 'shape': " + shape + ", }"),
                                  layout="bnhd")


if __name__ == "__main__":
    unittest.main()
