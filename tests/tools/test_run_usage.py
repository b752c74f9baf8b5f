# SPDX-License-Identifier: Apache-2.0
"""clmgk-run: its command line."""
import re
import unittest

from program_test import ADMIXTURES, FULL, GENERALISED, NOISY, QUICK, SHARED_MIX, RunTest

LABELS = "state-in.c state-out.m denominator dstate-in.z capture.0 grad-capture.7 numbers grad-numbers".split()  # of arrays, in results
OPTIONS = (
    "variant q k v layout out lse score estep prior variance shift causal causal-align lengths lengths-q dtype dtype-k dtype-v dtype-o dtype-grad precision check "
    "repeat device json help version engine parameters backward-parameters window offsets offsets-k positions positions-k bias alibi sinks "
    "softcap dropout seed grad-out grad-lse dq dk dv dprior dvariance dshift dbias dsinks new-prior nll "
    "responsibilities counts mix mix-weight mix-offset noise shared-noise heads dmix dmix-weight dmix-offset "
    "mix-hidden-offset dmix-hidden-offset mix-after dmix-after dnoise score-mod mask-mod capture number grad-capture grad-number feature feature-order projection guard unnormalised state-in state-out").split()


class Usage(RunTest):
    def test_help_names_every_option(self):
        done = self.accept("--help", env={**QUICK, "OCL_ICD_VENDORS": "/nonexistent"})
        self.assertEqual(done.stderr, "")
        for option in OPTIONS:
            self.assertRegex(done.stdout, rf"(?m)^  --{option}( |$)")
        for label in LABELS:
            self.assertNotIn(f"--{label}", done.stdout)

    def test_help_names_variants_and_engines(self):
        text = self.accept("--help").stdout
        word = "expected one of "
        for option in ("variant", "engine"):
            names = self.refuse_run(word, **{option: "x"}).stderr.split(word)[1].strip().split(", ")
            self.assertGreater(len(names), 2)
            words = re.search(rf"  --{option} NAME((.|\n)*?)\n  --", text)[1]
            self.assertLessEqual(set(names), set(re.findall(r"[\w-]+", words)))

    def test_version(self):
        self.assertRegex(self.accept("--version").stdout, r"^clmgk-run \d+\.\d+\.\d+\n$")

    def test_both_forms_of_values(self):
        self.accept("--variant=softmax", "--q=q.npy", "--k", "k.npy", "--v=v.npy", "--out=a.npy")
        self.accept_run(out="b.npy")
        self.assertEqual((self.folder / "a.npy").read_bytes(), (self.folder / "b.npy").read_bytes())

    def test_malformed_command_lines(self):
        plain = self.arguments()
        for extra, word in (
            (["--unknown"], "--unknown"),
            (["--unknown=3"], "--unknown"),
            (["--caus"], "--caus"),
            (["--lay", "bhnd"], "--lay"),
            (["--caus=1"], "--caus"),
            (["--causal=1"], "--causal takes no value"),
            (["--lse"], "--lse needs a value"),
            (["--q", "q.npy"], "--q is given more than once"),
            (["--json", "--json"], "--json is given more than once"),
            (["extra.npy"], "extra.npy"),
            (["-c"], "-c"),
            (["-"], "-"),
            (["--", "extra.npy"], "extra.npy"),
        ):
            with self.subTest(extra=extra):
                self.refuse(2, *plain, *extra, words=[word])

    def test_nothing_given(self):
        self.refuse(2, words=["--variant"])

    def test_required_options(self):
        for name in ("variant", "q", "k", "v"):
            with self.subTest(option=name):
                self.refuse_run(f"--{name}", "required", **{name: None})
        self.refuse_run("--shift", "required", variant="smgk", shift=None)
        for variant in ADMIXTURES:
            with self.subTest(variant=variant):
                self.refuse_run(f"--mix is required with {variant}", variant=variant, mix=None)
        for variant in NOISY:
            with self.subTest(variant=variant):
                self.refuse_run(f"--noise is required with {variant}", variant=variant, noise=None)
        self.refuse_run("nothing to do", out=None)

    def test_labels_are_refused(self):
        for label in LABELS:
            with self.subTest(label=label):
                self.refuse_run(f"--{label}", "not an option of clmgk-run", **{label: "x.npy"})

    def test_unknown_variants(self):
        for variant in ("", "SOFTMAX", "soft"):
            with self.subTest(variant=variant):
                self.refuse_run("--variant", f"'{variant}'", "expected one of softmax, gaussian, mgk, smgk, fish",
                                variant=variant)

    def test_options_that_do_not_apply(self):
        for variant, option, value in (
            ("softmax", "prior", "1"),
            ("softmax", "score", "dot"),
            ("gaussian", "score", "gaussian"),
            ("softmax", "shift", "shift.npy"),
            ("gaussian", "shift", "shift.npy"),
            ("mgk", "shift", "shift.npy"),
            ("softmax", "new-prior", "x.npy"),
            ("softmax", "counts", "x.npy"),
        ):
            with self.subTest(variant=variant, option=option):
                self.refuse_run(f"--{option} does not apply to {variant}", variant=variant, **{option: value})

    def test_options_that_do_not_apply_to_mixed_scores(self):
        options = (("prior", "1,1,1"), ("variance", "2"), ("score", "dot"), ("estep", "soft"), ("shift", "shift.npy"),
                   ("new-prior", "x.npy"), ("counts", "x.npy"), ("responsibilities", "x.npy"), ("nll", "x.npy"))
        for row, variant in enumerate(ADMIXTURES):
            for option, value in options if FULL else options[row % 3::3]:
                with self.subTest(variant=variant, option=option):
                    self.refuse_run(f"--{option} does not apply to {variant}", variant=variant, **{option: value})
        for option, value, variants in (
            ("noise", "1,1,1", NOISY), ("shared-noise", True, NOISY), ("mix-weight", "mix.npy", GENERALISED),
            ("mix-offset", "1,1,1,1", GENERALISED), ("mix-hidden-offset", "1,1,1,1", GENERALISED), ("heads", "4", SHARED_MIX), ("mix", "mix.npy", ADMIXTURES),
            ("mix-after", "mix.npy", ADMIXTURES),
        ):
            others = [variant for variant in ("softmax", "gaussian", "mgk", "smgk") + ADMIXTURES if variant not in variants]
            for variant in others if FULL else others[len(option) % 2::2]:
                with self.subTest(variant=variant, option=option):
                    self.refuse_run(f"--{option} does not apply to {variant}", variant=variant, **{option: value})

    def test_gradients_that_do_not_apply(self):
        self.save("g", self.normal(2, 4, 5, 6))
        for option, variants in (("dprior", ()), ("dvariance", ()), ("dshift", ()), ("dnoise", NOISY),
                                 ("dmix-weight", GENERALISED), ("dmix-offset", GENERALISED),
                                 ("dmix-hidden-offset", GENERALISED)):
            for variant in ADMIXTURES:
                if variant not in variants:
                    with self.subTest(variant=variant, option=option):
                        self.refuse_run(f"--{option} does not apply to {variant}", variant=variant,
                                        **{"grad-out": "g.npy", option: "x.npy"})
        self.refuse_run("--dmix does not apply to mgk", variant="mgk", dmix="x.npy", **{"grad-out": "g.npy"})
        for variant, option in (("softmax", "dprior"), ("softmax", "dshift"), ("gaussian", "dshift"),
                                ("mgk", "dshift")):
            with self.subTest(variant=variant, option=option):
                self.refuse_run(f"--{option} does not apply to {variant}", variant=variant,
                                **{"grad-out": "g.npy", option: "x.npy"})

    def test_options_that_one_score_has(self):
        for variant, score in (("gaussian", None), ("mgk", None), ("mgk", "gaussian"), ("smgk", "gaussian")):
            with self.subTest(variant=variant, score=score):
                self.refuse_run("--softcap does not apply to gaussian scores", variant=variant, score=score,
                                softcap="5")
        for variant, score in (("softmax", None), ("mgk", "dot"), ("smgk", "dot")):
            with self.subTest(variant=variant, score=score):
                self.refuse_run("--nll does not apply to dot scores", variant=variant, score=score, nll="x.npy")
        for variant in ("mgk", "smgk"):
            self.refuse_run("--softcap 5", "M = 3", variant=variant, score="dot", softcap="5")

    def test_options_that_need_another(self):
        self.save("g", self.normal(2, 4, 5, 6))
        for option in ("grad-lse", "dq", "dk", "dv", "dvariance", "dbias", "dsinks"):
            with self.subTest(option=option):
                self.refuse_run(f"--{option} needs --grad-out", **{option: "x.npy"})
        for option in ("dprior", "dshift"):
            with self.subTest(option=option):
                self.refuse_run(f"--{option} needs --grad-out", variant="smgk", **{option: "x.npy"})
        for option in ("dmix", "dmix-weight", "dmix-offset", "dmix-hidden-offset", "dnoise"):
            with self.subTest(option=option):
                self.refuse_run(f"--{option} needs --grad-out", variant="gfish", **{option: "x.npy"})
        for option, needs in (("dbias", "bias"), ("dsinks", "sinks")):
            with self.subTest(option=option):
                self.refuse_run(f"--{option} needs --{needs}", **{option: "x.npy", "grad-out": "g.npy"})
        self.refuse_run("--offsets-k needs --offsets", **{"offsets-k": "x.npy"})
        self.refuse_run("--positions needs --positions-k", positions="x.npy")
        self.refuse_run("--positions-k needs --positions", **{"positions-k": "x.npy"})
        self.refuse_run("--mix-hidden-offset needs --mix-weight", variant="gfish", mix_hidden_offset="0,0,0,0")
        self.refuse_run("--dmix-after needs --mix-after", variant="gfish", dmix_after="x.npy", grad_out="g.npy")
        self.refuse_run("--mix-after does not apply to lfish", variant="lfish", mix_after="mix.npy")
        self.refuse_run("--dmix-hidden-offset", "a hidden layer", variant="gfish", dmix_hidden_offset="x.npy",
                        grad_out="g.npy")
        for variant in ("softmax", "hard-fish"):
            self.refuse_run("--seed needs --dropout or --noise", variant=variant, seed="1")

    def test_options_that_exclude_each_other(self):
        self.refuse_run("--lengths-q does not apply to packed sequences", offsets="o.npy", lengths_q="lengths.npy")
        self.refuse_run("--lengths does not apply to packed sequences", variant="linear", offsets="o.npy",
                        lengths="lengths.npy")
        self.refuse_run("--offsets-k does not apply to caches and pages of keys", offsets="o.npy", offsets_k="o.npy",
                        lengths="lengths.npy")

    def test_an_alignment_of_nothing(self):
        self.refuse_run("--causal-align top-left: expected --causal, --window or --alibi", causal_align="top-left")

    def test_outputs_are_files(self):
        self.refuse_run("--out -: expected a file name", out="-")
        for name in ("", "d/", "/"):
            self.refuse_run(f"--out '{name}': expected a file name", out=name)
            self.refuse_run(f"--state-out '{name}': expected a file name", variant="linear", state_out=name)
        self.refuse_run("--state-out -: expected a file name", variant="linear", state_out="-")

    def test_an_empty_device(self):
        self.refuse_run("--device '': expected", device="")
        done = self.run_program(*self.arguments(), env={**QUICK, "CLMGK_DEVICE": ""})
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_a_device_of_the_environment(self):
        """Nobody who did not type it would find it."""
        for name, status in (("no such device", 3), ("7:7", 3)):
            done = self.run_program(*self.arguments(), env={**QUICK, "CLMGK_DEVICE": name})
            self.assertEqual(done.returncode, status, done.stderr)
            self.assertIn(f'CLMGK_DEVICE: device selector "{name}" matches none', done.stderr)
        done = self.run_program(*self.arguments(device="nothing"), env={**QUICK, "CLMGK_DEVICE": "pocl"})
        self.assertIn('clmgk-run: device selector "nothing" matches none', done.stderr)

    def test_a_folder_of_kernels_that_is_none(self):
        done = self.run_program(*self.arguments(), env={**QUICK, "CLMGK_KERNEL_DIR": "/nonexistent"})
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("CLMGK_KERNEL_DIR: /nonexistent", done.stderr)

    def test_bad_values(self):
        for option, value in (
            ("layout", "nbhd"), ("layout", ""), ("dtype", "f64"), ("dtype", "F32"), ("dtype_k", "f64"), ("dtype_v", ""), ("dtype_o", "q"), ("precision", "f32"), ("precision", ""), ("engine", "fast"),
            ("repeat", "0"), ("repeat", "-1"), ("repeat", "1.5"), ("repeat", ""), ("repeat", "3x"),
            ("repeat", "99999999999999999999"), ("causal_align", "middle"), ("causal_align", "lengths"),
            ("estep", "medium"), ("window", ""), ("window", "3"), ("window", "3,"), ("window", ",3"),
            ("window", "1,2,3"), ("window", "-2,1"), ("window", "1,-2"), ("window", "1.5,2"), ("window", "1, x"),
            ("window", "1,99999999999999999999"), ("softcap", "0"), ("softcap", "-1"), ("softcap", "nan"),
            ("softcap", "inf"), ("softcap", "5x"), ("dropout", "1"), ("dropout", "-0.1"),
            ("dropout", "nan"), ("dropout", "1e-3x"), ("dropout", ""),
        ):
            with self.subTest(option=option, value=value):
                self.refuse_run("--" + option.replace("_", "-"), value, **{option: value})
        for value in ("-1", "+1", "", "1.0", "0x10", "18446744073709551616", " 1"):
            with self.subTest(seed=value):
                self.refuse_run("--seed", f"'{value}'", dropout="0.5", seed=value)
        for value in ("0", "-4", "", "4.0", "1073741825"):
            with self.subTest(heads=value):
                self.refuse_run("--heads", f"'{value}'", variant="hard-mish", heads=value)
        self.refuse_run("--window '5': expected left,right: two whole numbers", window="5")
        self.refuse_run("--score", "'cosine'", variant="mgk", score="cosine")
        self.refuse_run("nonsense", parameters="nonsense=3")
        self.refuse_run("--backward-parameters", "--grad-out", backward_parameters="splits=1")
        self.refuse_run("--dtype-grad", "--grad-out", dtype_grad="f16")
        self.refuse_run("--dtype-grad", "'f8'", dtype_grad="f8", grad_out="g.npy")
        self.refuse_run("softcap", "1e-60", softcap="1e-60")

    def test_values_may_begin_with_a_dash(self):
        self.refuse_run("--variance -1", variance="-1")
        self.refuse_run("--prior -0.5,1,1", variant="mgk", prior="-0.5,1,1")
        self.accept_run(window="-1,2", out="-o.npy")
        self.assertTrue((self.folder / "-o.npy").exists())


if __name__ == "__main__":
    unittest.main()
