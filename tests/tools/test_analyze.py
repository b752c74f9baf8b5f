# SPDX-License-Identifier: Apache-2.0
"""clmgk-analyze: analyses against values known by construction, and its command line."""
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import unittest
import xml.dom.minidom

# While other tests use the cores, OpenBLAS's threads wait for each other many times longer than one thread needs.
os.environ["OPENBLAS_NUM_THREADS"] = "1"

import numpy as np

from program_test import ADMIXTURES, BIN, FULL, LIMIT_S, LINEARS, QUICK, RunTest, run

sys.path.insert(0, str(BIN.parent / "share/clmgk"))
import analyze
import analyze._matrices  # once for all runs, as Matplotlib
import analyze._pictures
import analyze._theorems


class AnalyzeTest(RunTest):
    program = "clmgk-analyze"

    def run_program(self, *args, **options):
        """As the program, which takes longer to load its modules than for most of what is tested: a fork of this process
        runs the same function. The program itself runs where an environment is given."""
        if "env" in options:
            return super().run_program(*args, **options)
        words = [str(word) for word in args]
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as messages:
            child = os.fork()
            if child == 0:
                self.become(words, out, messages)
            _, status = os.waitpid(child, 0)
            texts = [pathlib.Path(f"/proc/self/fd/{file.fileno()}").read_text() for file in (out, messages)]
        return subprocess.CompletedProcess(words, os.waitstatus_to_exitcode(status), *texts)

    def become(self, words, out, messages):
        status = 70
        try:
            os.chdir(self.folder)
            os.environ.update(QUICK)
            for file, number in ((out, 1), (messages, 2)):
                os.dup2(file.fileno(), number)
            sys.stderr = os.fdopen(2, "w", buffering=1)
            status = analyze.main(words, rows=str(BIN / "clmgk-analyze-rows"), run=str(BIN / "clmgk-run"))
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)

    def arguments(self, variant="softmax", **changes):
        return super().arguments(variant, **{"out": None, "v": None, **changes})

    def analyze(self, variant="softmax", **changes):
        return json.loads(self.accept(*self.arguments(variant, json=True, **changes)).stdout)

    def save_matrices(self, p):
        """Arrays whose attention matrices are p [B,H,N,S]: queries of 0, and a bias."""
        b, h, n, s = p.shape
        self.save("q0", np.zeros((b, h, n, 1), np.float32))
        self.save("k0", np.zeros((b, h, s, 1), np.float32))
        with np.errstate(divide="ignore"):
            self.save("bias", np.log(p).astype(np.float32))
        return {"q": "q0.npy", "k": "k0.npy", "bias": "bias.npy"}

    def stochastic(self, *shape):
        p = self.random.random(shape) + 0.05
        return p / p.sum(-1, keepdims=True)


class Values(AnalyzeTest):
    def test_uniform(self):
        found = self.analyze(**self.save_matrices(np.full((1, 2, 6, 8), 1 / 8)))
        for head in found["matrices"]:
            self.assertAlmostEqual(head["row_entropy"], np.log(8), places=6)
            self.assertAlmostEqual(head["largest"], 1 / 8, places=7)
        self.assertEqual([head["rank"] for head in found["rank"]["heads"]], [1, 1])
        self.assertEqual(found["distances"]["mean"], 0)
        self.assertEqual(found["components_of_variance"]["count"], 1)
        self.assertEqual(found["components_of_variance"]["count_about_mean"], 0)

    def test_rank_of_repeated_rows(self):
        p = self.stochastic(1, 1, 3, 9)[:, :, np.arange(12) % 3]
        found = self.analyze(**self.save_matrices(p))["rank"]["heads"][0]
        self.assertEqual(found["rank"], 3)
        self.assertEqual(found["rank_bounds"], [3, 3])
        self.assertAlmostEqual(found["largest_singular_value"], np.linalg.svd(p[0, 0])[1][0], places=5)

    def test_rank_above_threshold(self):
        """A diagonal of known singular values in every row's last key."""
        values = np.array([0.5, 1e-2, 1e-4, 1e-6, 1e-8])
        p = np.concatenate([np.diag(values), 1 - values[:, None]], axis=1)[None, None]
        exact = np.linalg.svd(p[0, 0])[1]
        for threshold in (0.1, 1e-3, 1e-5, 1e-7):
            found = self.analyze(analyses="rank", threshold=threshold, **self.save_matrices(p))
            self.assertEqual(found["rank"]["heads"][0]["rank"], (exact > threshold).sum())

    def test_large_ranks(self):
        """By the Gram matrix: few distinct rows, and a key to which all queries attend."""
        n, s = (1200, 1200) if FULL else (320, 3400)
        few = self.stochastic(1, 1, 7, s)[:, :, np.arange(n) % 7]
        sink = 1e-2 * self.stochastic(1, 1, 40, s)[:, :, np.arange(n) % 40]
        sink[..., 0] += 1 - sink.sum(-1)
        for p, rank in ((few, 7), (sink, 40)):
            arrays = self.save_matrices(p)
            found = self.analyze(analyses="rank", **arrays)["rank"]
            exact = self.analyze(analyses="rank", full_svd=True, **arrays)["rank"]
            self.assertEqual([found["method"], exact["method"]], ["dsyrk, dsyevd", "dgesdd"])
            self.assertEqual(exact["heads"][0]["rank"], rank)
            self.assertEqual(found["heads"][0]["rank_bounds"], [rank, rank])
            for key in ("largest_singular_value", "smallest_singular_value"):
                self.assertAlmostEqual(found["heads"][0][key], exact["heads"][0][key], places=6)

    def test_orthogonal_heads(self):
        """Head h attends only to key h: squared distances are 2 N, matrices are orthogonal and of equal length."""
        p = np.zeros((1, 4, 6, 8))
        for h in range(4):
            p[0, h, :, h] = 1
        arrays = self.save_matrices(p)
        for rows in (None, 2):  # sampled: the estimate is exact
            found = self.analyze(rows=rows, **arrays)
            self.assertEqual([found["rows"], found["sampled"]], [rows or 6, rows is not None])
            self.assertAlmostEqual(found["distances"]["mean"], 12)
            self.assertAlmostEqual(found["distances"]["variance"], 0)
            self.assertEqual(found["distances"]["pairs"], 6)
            np.testing.assert_allclose(found["distances"]["matrix"], 12 * (1 - np.eye(4)))
            self.assertEqual(found["components_of_variance"]["count"], 4)
            self.assertEqual(found["components_of_variance"]["count_about_mean"], 3)

    def test_distances_and_components(self):
        p = self.stochastic(3, 4, 10, 12)
        found = self.analyze(fraction=0.9, **self.save_matrices(p))
        flat = np.exp(np.log(p).astype(np.float32).astype(float)).reshape(3, 4, -1)
        squared = ((flat[:, :, None] - flat[:, None]) ** 2).sum(-1)
        pairs = squared[(slice(None), *np.triu_indices(4, 1))]
        self.assertAlmostEqual(found["distances"]["mean"], pairs.mean(), places=6)
        self.assertAlmostEqual(found["distances"]["variance"], pairs.var(), places=6)
        np.testing.assert_allclose(found["distances"]["matrix"], squared.mean(0), atol=1e-6)
        whole = flat.reshape(12, -1)
        for key, rows in (("", whole), ("_about_mean", whole - whole.mean(0))):
            values = np.linalg.svd(rows)[1] ** 2 / 12
            expected = np.searchsorted(np.cumsum(values) / values.sum(), 0.9) + 1
            self.assertEqual(found["components_of_variance"]["count" + key], expected)
            np.testing.assert_allclose(found["components_of_variance"]["eigenvalues" + key], values, atol=1e-6)

    def test_components_of_a_known_spectrum(self):
        """Matrices U +- a_c E_c about U, the E_c at right angles: eigenvalues 2 a_c^2 |E_c|^2 / 8."""
        n, heights = 8, np.array([0.08, 0.04, 0.02, 0.01])
        p = np.full((1, 8, n, n), 1 / n)
        for c, a in enumerate(heights):
            for sign in (0, 1):
                p[0, 2 * c + sign, :, 2 * c] += a * (-1) ** sign
                p[0, 2 * c + sign, :, 2 * c + 1] -= a * (-1) ** sign
        values = 2 * (2 * n * heights**2) / 8
        found = self.analyze(**self.save_matrices(p))["components_of_variance"]
        np.testing.assert_allclose(found["eigenvalues_about_mean"], [*values, 0, 0, 0, 0], atol=1e-6)
        self.assertEqual(found["count_about_mean"], np.searchsorted(np.cumsum(values) / values.sum(), 0.95) + 1)

    def test_statistics_are_those_of_the_library(self):
        for variant in ("mgk", "smgk"):
            outputs = {"nll": "nll.npy", "responsibilities": "gamma.npy"}
            done = run("clmgk-run", *RunTest.arguments(variant, causal=True, causal_align="top-left", **outputs),
                       cwd=self.folder)
            self.assertEqual(done.returncode, 0, done.stderr)
            found = self.analyze(variant, causal=True, causal_align="top-left")
            nll, gamma = self.load("nll.npy"), self.load("gamma.npy").astype(float)
            self.assertEqual(len(found["nll"]), 8)
            for item in found["nll"]:
                self.assertAlmostEqual(item["nll"], nll[item["batch"], item["head"]], places=4)
            for item in found["responsibilities"]:
                own = gamma[item["batch"], item["head"]]
                pairs = own.sum()
                np.testing.assert_allclose(item["share"], own.sum((1, 2)) / pairs, atol=1e-5)
                with np.errstate(divide="ignore", invalid="ignore"):
                    entropy = -np.nansum(own * np.log(own)) / pairs
                self.assertAlmostEqual(item["entropy"], entropy, places=4)

    def test_every_variant(self):
        """With what clmgk-run takes for it; V changes nothing."""
        for variant in ("softmax", "gaussian", "mgk", "smgk", *ADMIXTURES, *LINEARS):
            with self.subTest(variant=variant):
                found = self.analyze(variant)
                self.assertEqual(found["variant"], variant)
                self.assertEqual(len(found["rank"]["heads"]), 8)
                self.assertEqual(found["distances"]["pairs"], 12)
                if FULL or variant in ("mgk", "fish", "linear"):
                    self.assertEqual(self.analyze(variant, v="v.npy")["rank"], found["rank"])

    def test_chosen_heads(self):
        all_heads = self.analyze("mgk")
        some = self.analyze("mgk", batch_list="1", head_list="3,0")
        self.assertEqual([some["batch_list"], some["head_list"]], [[1], [3, 0]])
        for key in ("matrices", "nll"):
            self.assertEqual(some[key], [all_heads[key][7], all_heads[key][4]])

    def test_packed_sequences(self):
        """Each sequence has its own likelihood; the matrix has the sequences' blocks on its diagonal."""
        n = 6
        q, k = self.normal(1, 2, n, 8), self.normal(1, 2, n, 8)
        self.save("qp", q)
        self.save("kp", k)
        self.save("offsets", np.array([0, 2, 2, n], np.int32))
        found = self.analyze("gaussian", q="qp.npy", k="kp.npy", offsets="offsets.npy")
        for s, (first, end) in enumerate(((0, 2), (2, 2), (2, n))):
            if first == end:
                self.assertEqual(found["nll"][2 * s]["nll"], 0)
                continue
            self.save("qs", q[:, :, first:end])
            self.save("ks", k[:, :, first:end])
            alone = self.analyze("gaussian", q="qs.npy", k="ks.npy")
            for h in range(2):
                self.assertEqual(found["nll"][2 * s + h]["batch"], s)
                self.assertAlmostEqual(found["nll"][2 * s + h]["nll"], alone["nll"][h]["nll"], places=6)

    def test_layouts_and_types(self):
        plain = self.analyze()
        for name in ("q", "k"):
            self.save(name + "t", self.arrays[name].transpose(0, 2, 1, 3).astype(">f8"))
        other = self.analyze(q="qt.npy", k="kt.npy", layout="bnhd")
        self.assertEqual(other["matrices"], plain["matrices"])
        self.assertNotEqual(self.analyze(dtype="bf16")["matrices"], plain["matrices"])

    def test_types_by_array(self):
        """With another type for K, results are as if the file's numbers had that type. O has no type here."""
        found = self.analyze(dtype_k="f16")
        self.save("kr", self.arrays["k"].astype("<f2").astype("<f4"))
        self.assertEqual(found["matrices"], self.analyze(k="kr.npy")["matrices"])
        self.assertEqual([found[key] for key in ("dtype", "dtype_k", "dtype_v", "dtype_o")], ["f32", "f16", None, None])
        self.refuse_run("--dtype-o", dtype_o="f16")


class Program(AnalyzeTest):
    def test_words(self):
        words = self.accept(*self.arguments("mgk", rows=3), env=QUICK).stdout
        for word in ("row entropy", "rank", "3 of 5 rows", "squared L2 distances", "95 %", "negative log-likelihood",
                     "shares"):
            self.assertIn(word, words)

    def test_help_and_version(self):
        words = self.accept("--help", env=QUICK).stdout
        for option in ("variant", "q", "analyses", "plots", "theorems", "threshold", "window"):
            self.assertRegex(words, rf"(?m)^  --{option}( |$)")
        for option in ("out", "dq", "engine", "repeat", "state-out"):
            self.assertNotRegex(words, rf"(?m)^  --{option}( |$)")
        self.assertRegex(self.accept("--version", env=QUICK).stdout, r"^clmgk-analyze \d+\.\d+\.\d+\n$")

    def test_options_of_other_analyses(self):
        for option, value, analyses in (("threshold", 0.1, "components,distances"), ("full_svd", True, "matrices"),
                                        ("fraction", 0.5, "rank")):
            with self.subTest(option=option):
                self.refuse_run(f"--{option.replace('_', '-')} does not apply without the analysis", analyses=analyses,
                                **{option: value})
        self.refuse_run("--fraction does not apply without the analysis components", fraction=0.5, batch_list=0, head_list=0)
        self.refuse_run("--analyses: 'rank' is given twice", analyses="rank,matrices,rank")

    def test_plots_are_files(self):
        for name in ("''", "'/'", "'p/'", "-"):
            with self.subTest(name=name):
                self.refuse_run(f"--plots {name}: expected a file name", plots=name.strip("'"))

    def test_bad_usage(self):
        for words, changes in (
            (("--k", "required"), {"k": None}),
            (("--analyses", "expected one of matrices"), {"analyses": "rank,x"}),
            (("nll does not apply to dot scores",), {"analyses": "nll"}),
            (("--head-list", "from 0 to 3"), {"head_list": "0,4"}),
            (("--head-list", "more than once"), {"head_list": "1,1"}),
            (("--batch-list",), {"batch_list": "0,"}),
            (("distances does not apply to one head",), {"analyses": "distances", "head_list": "2"}),
            (("--rows 6", "at most N = 5"), {"rows": 6}),
            (("--threshold", "above 0"), {"threshold": 0}),
            (("--fraction", "at most 1"), {"fraction": 1.5}),
            (("--plot-format needs --plots",), {"plot_format": "png"}),
            (("--plot-format 'gif'", "svg, png, pdf"), {"plot_format": "gif", "plots": "p"}),
            (("--plots", "No such file"), {"plots": "none/p"}),
            (("--device does not apply without --theorems",), {"device": "pocl"}),
            (("--tokens does not apply without --theorems",), {"tokens": 4}),
            (("--out is not an option of clmgk-analyze",), {"out": "o.npy"}),
            (("--state-in does not apply to softmax",), {"state_in": "s"}),
        ):
            with self.subTest(words=words):
                self.refuse(4 if changes.get("plots") == "none/p" else 2, *self.arguments(**changes), words=words)
        self.refuse(2, *self.arguments()[2:], words=["--variant", "required"])
        self.refuse(2, *self.arguments("mish", heads=None), words=["--heads is required with mish without --v"])
        self.refuse(2, *self.arguments("fish", analyses="responsibilities"), words=["does not apply to fish"])
        self.refuse(2, "--theorems", "--q", "q.npy", words=["--q does not apply with --theorems"])
        self.refuse(2, "--theorems", "--tokens", "33", words=["from 2 to 32"])

    def test_bad_arrays(self):
        self.save("qn", np.where(np.arange(320).reshape(2, 4, 5, 8) == 200, np.nan, self.arrays["q"]))
        self.refuse_run("batch 1, head 1", "query 0", "nan", q="qn.npy", plots="p")
        self.save("q_empty", self.arrays["q"][:, :, :0])
        self.refuse_run("--q q_empty.npy: has N = 0", q="q_empty.npy")
        self.save("k_empty", self.arrays["k"][:, :, :0])
        self.refuse_run("--k k_empty.npy: has S = 0", k="k_empty.npy")
        self.refuse(2, *self.arguments(q="none.npy"), words=["--q none.npy"], env=QUICK)

    def test_numbers_beyond_the_storage_type(self):
        for name, dtype, value in (("q", "f32", -1e300), ("k", "f32", 1e300), ("q", "f16", 7e4), ("k", "bf16", 3.4e38)):
            with self.subTest(name=name, dtype=dtype):
                array = self.arrays[name].astype(np.float64)
                array.flat[9] = value
                self.refuse_run(f"--{name} bad.npy: element 9 is {value:g}; expected a number in the range of {dtype}",
                                dtype=dtype, **{name: self.save("bad", array)})
        self.refuse_run("--sinks", "element 3 is 1e300;", "range of f32", sinks="0,0,0,1e300")

    def test_hidden_rows_are_zero(self):
        """A row without keys has no likelihood and no weight."""
        self.save("lengths", np.array([0, 7], np.int32))
        found = self.analyze("gaussian", lengths="lengths.npy")
        self.assertEqual([head["rank"] for head in found["rank"]["heads"]][:4], [0] * 4)
        self.assertEqual([item["nll"] for item in found["nll"]][:4], [0] * 4)

    def test_plots(self):
        kinds = ["matrices", "rank", "distances", "components", "responsibilities"]
        found = self.analyze("mgk", plots="p", head_list="3,0")
        self.assertEqual(found["plots"], {kind: f"p-{kind}.svg" for kind in kinds})
        words = {"matrices": ["sequence 1, head 3", ">key<", ">query<", "weight (white: 0)"],
                 "rank": ["number of the singular value", "threshold 1e-06"],
                 "distances": [">head<", "squared distance, mean of 2 sequences"],
                 "components": ["part of the variance", "as in the paper: "],
                 "responsibilities": ["component 2", ">key<", ">query<", "share of the key"]}
        for kind in kinds:
            text = (self.folder / f"p-{kind}.svg").read_text()
            xml.dom.minidom.parseString(text)
            for word in ("mgk", *words[kind]):
                self.assertIn(word, text)
        # Equal pictures are equal files.
        self.analyze("mgk", analyses="rank", plots="again", head_list="3,0")
        self.assertEqual((self.folder / "again-rank.svg").read_bytes(), (self.folder / "p-rank.svg").read_bytes())
        for name, magic in (("png", b"\x89PNG\r\n\x1a\n"), ("pdf", b"%PDF-1.4\n")):
            self.analyze(plots="s", plot_format=name, analyses="rank,matrices", batch_list="1", head_list="2")
            paths = sorted(self.folder.glob(f"s-*.{name}"))
            self.assertEqual([path.name for path in paths], [f"s-matrices.{name}", f"s-rank.{name}"])
            for path in paths:
                self.assertTrue(path.read_bytes().startswith(magic))

    def test_large_matrices_are_shrunk(self):
        self.analyze(plots="p", analyses="matrices", rows=2, **self.save_matrices(self.stochastic(1, 1, 3, 170)))
        self.assertIn("2 of 3 queries, each pixel a mean", (self.folder / "p-matrices.svg").read_text())

    def test_plots_of_one_query(self):
        """One row of a matrix and one singular value are drawn, too."""
        self.save("one", self.arrays["q"][:1, :1, :1])
        self.save("keys", self.arrays["k"][:1, :1])
        self.analyze(q="one.npy", k="keys.npy", plots="p", analyses="matrices,rank")
        matrix, rank = ((self.folder / f"p-{kind}.svg").read_text() for kind in ("matrices", "rank"))
        self.assertIn("<image ", matrix)
        self.assertIn("sequence 0, head 0", rank)

    def test_plots_through_links_of_other_users(self):
        (self.folder / "x.svg").write_text("old")
        link = self.foreign_link("p-rank.svg", "../x.svg")
        self.refuse(4, *self.arguments(plots=link.parent / "p"), words=["--plots", "is a link of user 12346"])

    def test_plots_replace_no_input(self):
        os.rename(self.folder / "q.npy", self.folder / "p-rank.svg")
        self.refuse_run("--plots would overwrite the input", q="p-rank.svg", plots="p", analyses="rank")

    def test_without_modules(self):
        for name, changes in (("numpy", {}), ("matplotlib", {"plots": "p"})):
            with self.subTest(name=name):
                hidden = self.folder / name
                hidden.mkdir()
                (hidden / f"{name}.py").write_text(f"raise ImportError('no {name} here')")
                self.refuse(4, *self.arguments(**changes), words=["python3-" + name, f"no {name} here"],
                            env={**QUICK, "PYTHONPATH": str(hidden)})
                # What needs no matrices works.
                self.accept("--version", env={**QUICK, "PYTHONPATH": str(hidden)})

    def test_standard_output_is_full(self):
        for words in (["--help"], self.arguments(analyses="matrices")):
            with open("/dev/full", "w") as full:
                done = subprocess.run([BIN / "clmgk-analyze", *words], cwd=self.folder, stdout=full, stderr=subprocess.PIPE,
                                      text=True, check=False)
            self.assertEqual(done.returncode, 4)
            self.assertIn("standard output: No space left on device", done.stderr)

    def test_signals_leave_nothing(self):
        """Sends the signal while a picture's temporary file exists, for which the test waits."""
        self.assertTrue(any(self.interrupt() for _ in range(20)), "never caught it drawing")

    def interrupt(self):
        """Whether a run was ended by the signal with a temporary file in place; the folder is soon as before."""
        before = self.snapshot()
        command = [str(BIN / "clmgk-analyze")] + self.arguments(plots="p", analyses="rank,matrices,distances", batch_list="1")
        program = subprocess.Popen(command, cwd=self.folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while program.poll() is None and not any(name.startswith(".clmgk-") for name in os.listdir(self.folder)):
            time.sleep(0.001)
        program.send_signal(signal.SIGINT)
        status = program.wait(LIMIT_S)
        if status == 0:  # it was done before the signal came
            for picture in self.folder.glob("p-*.svg"):
                picture.unlink()
            return False
        self.assertEqual(status, -signal.SIGINT)
        end = time.monotonic() + LIMIT_S
        while self.snapshot() != before and time.monotonic() < end:
            time.sleep(0.01)
        self.assertEqual(self.snapshot(), before)
        return True

    def memory_of(self, heads):
        """Largest resident size, in MiB."""
        self.save("qm", self.normal(1, heads, 512, 1))
        command = [str(BIN / "clmgk-analyze")] + self.arguments(q="qm.npy", k="qm.npy",
                                                                analyses="matrices,distances,components")
        program = subprocess.Popen(command, cwd=self.folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        _, status, usage = os.wait4(program.pid, 0)
        program.returncode = status
        self.assertEqual(status, 0)
        return usage.ru_maxrss / 1024

    def test_memory_is_that_of_one_matrix(self):
        """A matrix is 2 MiB; those of 32 further heads would be 64."""
        self.assertLess(self.memory_of(34) - self.memory_of(2), 20)


class Theorems(AnalyzeTest):
    def test_both_hold(self):
        done = self.accept("--theorems", "--tokens", 4, "--trials", 3, "--json", "--plots", "t")
        found = json.loads(done.stdout)
        self.assertTrue(found["ok"])
        one, two = found["theorem1"], found["theorem2"]
        self.assertEqual([case["head_size"] for case in one["below"]], [1, 2, 3])
        self.assertEqual([case["head_size"] for case in one["at_least"]], [4, 6, 8])
        reached = max(case["error"] for case in one["at_least"])
        for case in one["at_least"]:
            self.assertLess(case["error"], case["bound"])
            self.assertLess(case["bound"], 1e-4)
        for case in one["below"]:
            self.assertLess(case["gradient"], 1e-8)
            self.assertGreater(case["lower_bound_min"], 10 * reached)
            self.assertGreaterEqual(case["distance_min"], case["lower_bound_min"])
            self.assertGreaterEqual(case["distance_mean"], case["distance_min"])
        # [0.5 0.75; 0.5 0.25], whose second column no weights reach: (1 - d / 0.75) (1 - d / 0.25) = 1/3
        self.assertAlmostEqual(one["paper_example"]["distance"], 0.25)
        self.assertAlmostEqual(one["paper_example"]["lower_bound"], (2 - np.sqrt(2)) / 4, places=6)
        # The cases are the same everywhere.
        np.testing.assert_allclose([case["distance_min"] for case in one["below"]], [0.36, 0.224, 0.118], rtol=5e-3)
        np.testing.assert_allclose([case["lower_bound_min"] for case in one["below"]], [0.0473, 0.0381, 0.0302], rtol=5e-3)
        np.testing.assert_allclose([case["bound"] for case in one["at_least"]], [3.37e-6, 4.25e-6, 4.22e-6], rtol=5e-3)
        np.testing.assert_allclose(list(two["least_difference"].values()), [0.996, 0.362, 1.35], rtol=5e-3)
        self.assertLess(two["inclusion_error"], 1e-12)
        text = (self.folder / "t-theorems.svg").read_text()
        xml.dom.minidom.parseString(text)
        self.assertIn("head size D", text)
        self.assertEqual(found["plots"], {"theorems": "t-theorems.svg"})

    def test_no_device(self):
        self.refuse(3, "--theorems", "--device", "nonesuch")


if __name__ == "__main__":
    unittest.main()
