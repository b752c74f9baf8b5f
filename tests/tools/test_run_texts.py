# SPDX-License-Identifier: Apache-2.0
"""clmgk-run: scores and masks as text."""
import json
import unittest

import numpy as np

from program_test import FULL, RunTest

SCORE = "c * tanh(s / c) + t[h, clamp(i - j, -3, 3) + 3]"
MASK = "doc[b, i] == doc[b, j]"


class Texts(RunTest):
    def setUp(self):
        super().setUp()
        self.save("t", self.normal(4, 7))
        self.save("doc", np.repeat(np.arange(4), 2)[None, :7].repeat(2, 0))

    def texts(self, score=SCORE, mask=MASK, **changes):
        words = self.arguments(**changes)
        for option, value in ("score-mod", score), ("mask-mod", mask):
            words += [] if value is None else [f"--{option}", value]
        return words

    GIVEN = ("--capture", "t=t.npy", "--capture", "doc=doc.npy", "--number", "c=3")

    def test_results_are_checked(self):
        words = [*self.texts(), *self.GIVEN, "--check", "--json"]
        check = json.loads(self.accept(*words).stdout)["check"]
        self.assertTrue(check["ok"])
        self.assertEqual(check["reads_outside"], 0)
        first = self.load("o.npy")
        words[words.index(MASK)] = "doc[b, i] == doc[b, j] && doc[b, j + 9] >= 0"
        words[words.index("c=3")] = "c=0.5"  # compiles nothing
        check = json.loads(self.accept(*words).stdout)["check"]
        self.assertTrue(check["ok"])
        self.assertGreater(check["reads_outside"], 0)
        self.assertFalse(np.array_equal(first, self.load("o.npy")))
        words.remove("--json")
        self.assertIn(f"check: {check['reads_outside']} reads of captured arrays are outside", self.accept(*words).stdout)

    # Every function, and ints where C has no answer: a wrong one adds 1000.
    EVERY = """
        let d = i - j; let x = abs(s) + 0.5; let most = 2147483647; let least = -most - 1;
        let floats = exp(-x) + log(x) + log1p(x) + sqrt(x) + rsqrt(x) + tanh(s) + sin(s) + cos(s) + pow(x, 1.5) + erf(s)
            + sigmoid(s) + gelu(s) + relu(s) + clamp(s, -1, 1) + min(s, 0.3) + max(s, -0.3) + floor(j * 0.5) + s / x;
        let ints = d / 2 + d % 3 + abs(d) + min(d, 1) + max(d, -1) + clamp(d, 0, 2) + relu(d) + (d != 1) + !(d > 0);
        let right = (i + 7) / (j - j) == 0 && (i + 7) % (j - j) == 0 && most + (j + 1) - j == least
            && (least + j - j) / (j - j - 1) == least && (least + j - j) % (j - j - 1) == 0
            && 65536 * (65536 + j - j) == 0 && abs(least + j - j) == least && int(x * 1e30) == most
            && int(x * -1e30) == least && int((x - x) / (x - x)) == 0 && int(-1.75 * (j + 1) / (j + 1.0)) == -1;
        s + 0.05 * floats + 0.1 * ints * s + (right ? 0 : 1000)"""

    def test_every_function(self):
        self.save("g", self.normal(2, 4, 5, 6))
        for engine in "lane", "simt":
            with self.subTest(engine=engine):
                words = [*self.texts(self.EVERY, "(i + j) % 4 != 3 || b == h", out=None, engine=engine), "--check", "--json",
                         *(["--grad-out", "g.npy"] if engine == "lane" else [])]
                check = json.loads(self.accept(*words).stdout)["check"]
                self.assertTrue(check["ok"])
                self.assertLess(check["lse"]["max"], 100)

    def test_gradients(self):
        self.save("g", self.normal(2, 4, 5, 6))
        files = {"grad-capture": ["t=dt.npy"], "grad-number": ["a=da.npy", "c=dc.npy"]}
        words = [*self.texts(SCORE.replace("s /", "a * s /"), out=None), *self.GIVEN, "--number", "a=0.5", "--grad-out", "g.npy"]
        for option, values in files.items():
            for value in values:
                words += [f"--{option}", value]
        result = json.loads(self.accept(*words, "--check", "--json").stdout)
        self.assertTrue(result["check"]["ok"])
        self.assertLessEqual({"grad-capture.0", "grad-numbers"}, set(result["check"]))
        self.assertEqual(result["outputs"]["grad-number.c"], "dc.npy")
        self.assertEqual(self.load("dt.npy").shape, (4, 7))
        self.assertEqual(self.load("da.npy").shape, (1,))
        self.assertNotEqual(self.load("da.npy")[0], self.load("dc.npy")[0])
        self.refuse(2, *words, "--grad-capture", "doc=dd.npy", words=["gradients: CAPTURE_1: expected score_mod, and floats"])
        self.refuse(2, *words, "--grad-number", "c=da.npy", words=["da.npy"])

    def test_hidden_tiles_are_left_out(self):
        """Tiles that the mask hides read nothing: a NaN in V there reaches no row, although its weight would be 0."""
        for name, size in ("q", 8), ("k", 8), ("v", 6), ("g", 6):
            self.save(name, self.normal(1, 2, 600, size))
        words = [*self.texts(None, "i / 200 == j / 200 && i % 3 != 5", out=None), "--grad-out", "g.npy", "--check"]
        self.accept(*words)
        words[words.index("i / 200 == j / 200 && i % 3 != 5")] = "i / 200 == 2 - j / 200"  # the first tiles are hidden
        self.accept(*words)
        values = self.load("v.npy")
        values[:, :, 500:] = np.nan
        self.save("v", values)
        self.accept(*self.texts(None, "i / 200 == j / 200 && i % 3 != 5"))
        nan = np.isnan(self.load("o.npy")).any((0, 1, 3))
        self.assertFalse(nan[:128].any())
        self.assertTrue(nan[400:].all())

    def test_lists_of_blocks(self):
        """A list without a mask; and one that a mask gives has the mask's result."""
        for name, size in ("q", 8), ("k", 8), ("v", 6):
            self.save(name, self.normal(1, 2, 100, size))
        blocks = (np.arange(7)[:, None] - np.arange(4) * 2 >= 0)[None, None] * 2
        self.save("blocks", blocks)
        words = [*self.texts(None, None), "--mask-blocks", "blocks.npy", "--mask-block", "16,32"]
        self.assertTrue(json.loads(self.accept(*words, "--check", "--json").stdout)["check"]["ok"])
        listed = self.load("o.npy")
        self.accept(*self.texts(None, "i / 16 - j / 32 * 2 >= 0"))
        np.testing.assert_allclose(listed, self.load("o.npy"), atol=1e-6)
        self.refuse(2, *words[:-2], words=["has shape (1, 1, 7, 4); expected [B,H,2,2], B 1 or 1, H 1 or 2"])
        words[-1] = "16,24"
        self.refuse(2, *words, words=["--mask-block '16,24': expected queries,keys: two powers of two from 16"])
        self.refuse(2, *self.texts(None, None), "--mask-block", "16,16", words=["--mask-block needs --mask-mod or --mask-blocks"])

    def test_a_text_is_what_it_says(self):
        self.accept(*self.texts("2 * tanh(s / 2)", "j <= i + 2"))
        text = self.load("o.npy")
        self.accept_run(softcap=2, causal=True)
        np.testing.assert_allclose(text, self.load("o.npy"), atol=1e-6)

    def test_bad_texts(self):
        for words, message in (
            ([*self.texts("s + u[h]"), *self.GIVEN], "score_mod: line 1, column 5: unknown name 'u'"),
            ([*self.texts("s +", None)], "score_mod: line 1, column 4: expected a number"),
            ([*self.texts(None, "s > 0")], "mask_mod: line 1, column 1: a mask has no 's'"),
            ([*self.texts(variant="linear"), *self.GIVEN], "--score-mod does not apply to linear"),
            ([*self.texts(None, None), "--capture", "t=t.npy"], "--capture needs --score-mod or --mask-mod"),
            ([*self.texts(None, None), "--number", "c=1"], "--number needs --score-mod or --mask-mod"),
            ([*self.texts(), "--capture", "t.npy"], "--capture 't.npy': expected NAME=F"),
            ([*self.texts(), "--number", "c"], "--number 'c': expected NAME=X"),
            ([*self.texts(), "--number", "c=x"], "--number 'x': expected a finite number"),
            ([*self.texts(), "--capture", f"{'t' * 64}=t.npy"], "a name of at most 63 letters"),
            ([*self.texts(), *["--capture", "t=t.npy"] * 9], "--capture is given more than 8 times"),
            ([*self.texts(), *["--number", "c=1"] * 17], "--number is given more than 16 times"),
            ([*self.texts(), *["--capture", "t=t.npy"] * 2], "captures: the name 't' is taken twice"),
            ([*self.texts(), "--capture", "s=t.npy"], "captures: the name 's' is built in"),
            ([*self.texts(), "--capture", "t=absent.npy"], "--capture absent.npy"),
            ([*self.texts(), "--capture", "t=five.npy"], "has shape (1, 1, 1, 1, 1); expected 1 to 4 axes"),
            ([*self.texts(), *self.GIVEN, "--grad-capture", "t=dt.npy"], "--grad-capture needs --grad-out"),
            ([*self.texts(None), *self.GIVEN, "--grad-number", "c=dc.npy"], "--grad-number needs --score-mod"),
            ([*self.texts(), *self.GIVEN, "--grad-out", "o.npy", "--grad-capture", "x=dt.npy"],
             "--grad-capture x: expected a name that --capture gives"),
            ([*self.texts(), *self.GIVEN, "--grad-out", "o.npy", "--grad-number", "t=dt.npy"],
             "--grad-number t: expected a name that --number gives"),
        ):
            with self.subTest(message=message):
                self.save("five", self.normal(1, 1, 1, 1, 1))
                self.refuse(2, *words, words=[message])


def indices(high):
    """Integers below a number, in an array of a shape."""
    return lambda random, shape: random.integers(0, high, shape)


def normal(random, shape):
    return random.standard_normal(shape, dtype=np.float32)


# Variant, score, mask, arrays by name (axes in letters, or sizes), numbers, options. Arrays of floats have gradients.
PUBLISHED = {
    "relative bias": ("softmax", "s + t[h, clamp(i - j, -8, 8) + 8]", None, {"t": ("H", 17, normal)}, {}, {}),
    "Swin": ("softmax", "s + t[i / 8 - j / 8 + 127, i % 8 - j % 8 + 7, h]", None, {"t": (255, 15, "H", normal)}, {}, {}),
    "T5": ("softmax", """let d = max(i - j, 0); let far = 8 + int(log(max(d, 1) / 8.0) / log(16.0) * 8);
           s + t[d < 8 ? d : min(far, 15), h]""", None, {"t": (16, "H", normal)}, {}, {}),
    "Graphormer": ("softmax", "s + t[h, D[b, i, j]]", None, {"t": ("H", 9, normal), "D": ("B", "N", "S", indices(9))}, {}, {}),
    "forgetting": ("softmax", "s + c[b, h, i] - c[b, h, j]", "j <= i", {"c": ("B", "H", "L", normal)}, {}, {}),
    "Sandwich": ("softmax", "s + 0.1 * (cos((i - j) * 1.0) + cos((i - j) * 0.1) + cos((i - j) * 0.01))", None, {}, {}, {}),
    "learned soft-cap": ("softmax", "let c = 1 + abs(a[h]); c * tanh(s / c)", None, {"a": ("H", normal)}, {}, {}),
    "logarithm": ("softmax", "log(gelu(s) + 1)", None, {}, {}, {}),
    "square": ("softmax", "w[j] * s * s", None, {"w": ("S", normal)}, {}, {}),
    "shared prefix": ("softmax", None, "j < 20 || doc[b, i] == doc[b, j]", {"doc": ("B", "L", indices(3))}, {}, {}),
    "neighbourhood": ("softmax", None, """let x = clamp(i % 16, 2, 13) - j % 16; let y = max(i / 16, 2) - j / 16;
                      abs(x) <= 2 && abs(y) <= 2 || j == 0""", {}, {}, {}),
    "dilated window": ("softmax", None, "abs(i - j) <= 32 && (i - j) % 4 == 0 || j == 0", {}, {}, {}),
    "block diffusion": ("softmax", None, """let n = N / 2; let x = (i >= n ? i - n : i) / 4; let y = (j >= n ? j - n : j) / 4;
                        i < n ? (j < n ? x == y : y < x) : (j >= n && y <= x) || j == i""", {}, {}, {}),
    "tree of drafts": ("softmax", None, "j < 3 || anc[i, j - 3] > 0", {"anc": ("N", "S", indices(2))}, {}, {}),
    "distance": ("mgk", "-c * sqrt(0.1 - s)", None, {}, {"c": 0.5}, {}),
    "mixed heads": ("hard-fish", "s + t[h, clamp(i - j, -8, 8) + 8]", None, {"t": ("H", 17, normal)}, {}, {}),
}


class Published(RunTest):
    """Scores and masks of papers, with gradients, against double precision."""

    def check(self, name, queries, keys):
        variant, score, mask, arrays, numbers, options = PUBLISHED[name]
        sizes = {"B": 2, "H": 2, "N": queries, "S": keys, "L": max(queries, keys)}
        heads = {"q": (2, queries, 8), "k": (2, keys, 8), "v": (2, keys, 6), "g": (2, queries, 6)}
        for array, shape in heads.items():
            self.save(array, self.normal(2, *shape))
        self.save("km", self.normal(2, 2, 2, keys, 8))
        words = self.arguments(variant, out=None, grad_out="g.npy", check=True, **options)
        for option, file in ("--q", "q.npy"), ("--k", "km.npy" if variant == "mgk" else "k.npy"), ("--mix", "0.5,1,-1,0.5"):
            if option in words:
                words[words.index(option) + 1] = file
        for option, text in ("--score-mod", score), ("--mask-mod", mask):
            words += [option, text] if text else []
        for array, (*axes, values) in arrays.items():
            self.save(f"a-{array}", values(self.random, [sizes.get(axis, axis) for axis in axes]))
            words += ["--capture", f"{array}=a-{array}.npy"]
            words += ["--grad-capture", f"{array}=d-{array}.npy"] if score and values is normal else []
        for number, value in numbers.items():
            words += ["--number", f"{number}={value}", "--grad-number", f"{number}=d-{number}.npy"]
        words += ["--dv", "dv.npy", "--dq", "dq.npy", "--dk", "dk.npy"]
        self.accept(*words)

    def test_some(self):
        for name in "Swin", "neighbourhood", "distance":
            with self.subTest(name=name):
                self.check(name, 40, 53)

    @unittest.skipUnless(FULL, "full tier")
    def test_all(self):
        for name in PUBLISHED:
            for lengths in (1, 1), (239, 1), (799, 3), (64, 64), (113, 203), (1023, 1024):
                if name != "block diffusion" or lengths[0] == lengths[1]:
                    with self.subTest(name=name, lengths=lengths):
                        self.check(name, *lengths)


if __name__ == "__main__":
    unittest.main()
