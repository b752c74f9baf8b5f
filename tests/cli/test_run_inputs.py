# SPDX-License-Identifier: Apache-2.0
"""clmgk-run: bad input of every kind is refused before anything is written."""
import os
import unittest

import numpy as np

from program_test import RunTest


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
        self.save("q", self.normal(2, 4, 5, 513))
        self.save("k", self.normal(2, 2, 7, 513))
        self.refuse_run("513")

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
                (np.array([1, 8]), "element 1 is 8"), (np.array([1, 2**31]), "2147483648"),
                (np.array([-2**31 - 1, 1]), "-2147483649"),
            ):
                with self.subTest(option=name, array=array):
                    self.refuse_array(name, array, word, **{name: self.save("bad", array)})


class Values(RunTest):
    def test_prior(self):
        for value in ("-0.1", "nan", "inf", "1e39", "-1e-30"):
            with self.subTest(value=value):
                self.refuse_run("--prior", "element 1", variant="mgk", prior=f"1,{value},1")
        self.refuse_run("--prior", "element 5", variant="mgk",
                        prior=self.save("bad", np.array([1, 1, 1, 1, 1, np.nan] + 6 * [1.0]).reshape(4, 3)))

    def test_variance(self):
        for value in ("0", "-1", "nan", "inf", "-inf", "1e-60", "1e39"):
            for variant, text in (("softmax", value), ("mgk", value), ("mgk", f"1,{value},1")):
                with self.subTest(variant=variant, text=text):
                    self.refuse_run("--variance", "above 0", variant=variant, variance=text)

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
                                ("lengths-q", "softmax")):
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
