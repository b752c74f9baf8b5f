# SPDX-License-Identifier: Apache-2.0
"""Golden cases (tests/golden) through the functions on NumPy arrays."""
import json
import pathlib

import numpy as np
import pytest

import clmgk
from conftest import FULL

GOLDEN = pathlib.Path(__file__).resolve().parents[2] / "tests" / "golden"
# Arguments that no other test passes; --full takes all cases.
QUICK = ("authors-mgk-soft-em-lengths", "fish-noise-packed", "gfish-hidden-noise", "gfish-mixed-after-dropout", "hard-gfish", "lhard-fish-state",
         "mgk-responsibilities", "softmax-alibi")
CASES = sorted(path.parent.name for path in GOLDEN.glob("*/case.json"))
STORAGE = ("q", "k", "v", "grad_o")
DTYPES = {"f32": np.float32, "f16": np.float16}
GRADIENTS = {"--dq": "q", "--dk": "k", "--dv": "v", "--dprior": "prior", "--dvariance": "variance", "--dshift": "shift",
             "--dbias": "bias", "--dsinks": "sinks", "--dmix": "mix", "--dmix-weight": "mix_weight",
             "--dmix-offset": "mix_offset", "--dmix-hidden-offset": "mix_hidden_offset", "--dmix-after": "mix_after",
             "--dnoise": "noise"}
STATISTICS = {"--new-prior": "new_prior", "--responsibilities": "responsibilities", "--nll": "nll"}
RENAMED = {"grad_out": "grad_o", "causal_align": "alignment", "alibi": "slopes"}


def element_type(name):
    if name == "bf16":
        return pytest.importorskip("ml_dtypes").bfloat16
    return DTYPES[name]


class Case:
    """The arguments of clmgk-run as those of Python."""

    def __init__(self, name):
        self.folder = GOLDEN / name
        description = json.loads((self.folder / "case.json").read_text())
        self.outputs = description["outputs"]
        self.bounds = {name: tolerance["bound"] for name, tolerance in description["tolerance"].items()}
        self.options, self.tokens_first, self.types = {}, False, {}
        self.grad_lse, self.state = None, None
        words = description["args"]
        while words:
            option, *words = words
            value = words.pop(0) if words and not words[0].startswith("--") else None
            self.take(option[2:].replace("-", "_"), value)
        self.arrays = {name: self.options.pop(name) for name in STORAGE if name in self.options}
        self.convert()

    def take(self, name, value):
        name = RENAMED.get(name, name)
        if name == "layout":
            self.tokens_first = True
        elif name.startswith("dtype"):
            self.types[name] = element_type(value)
        elif name == "window":
            left, right = map(int, value.split(","))
            self.options.update(window_left=left, window_right=right)
        elif name == "state_in":
            self.state = clmgk.State(*(np.load(self.folder / f"{value}.{part}.npy").astype(np.float32) for part in "cz"))
        elif value is None:
            self.options[name] = True
        elif value.endswith(".npy"):
            self.options[name] = np.load(self.folder / value)
        elif name in ("softcap", "dropout", "guard", "feature_epsilon") or (name == "variance" and "," not in value):
            self.options[name] = float(value)
        elif name in ("seed", "feature_order"):
            self.options[name] = int(value)
        elif value[0].isdigit() or value[0] in "-.":
            self.options[name] = np.array([float(word) for word in value.split(",")])
        else:
            self.options[name] = value

    def convert(self):
        """Gives arrays the types and shapes that Python takes."""
        q = self.types.get("dtype", np.float16 if self.arrays["q"].dtype == np.float16 else np.float32)
        for name in self.arrays:
            dtype = self.types.get({"grad_o": "dtype_o"}.get(name, f"dtype_{name}"), q)
            array = self.arrays[name].astype(dtype, order="C")
            if self.tokens_first:  # the heads' axis first, in place
                array = array.swapaxes(1, 2) if array.ndim == 4 else np.moveaxis(array, 1, -2)
            self.arrays[name] = array
        self.grad_lse = self.options.pop("grad_lse", None)
        mix, v = self.options.get("mix"), self.arrays["v"]
        components = self.arrays["q"].shape[1]
        if mix is not None and mix.ndim == 1 and "mish" not in self.options["variant"]:
            self.options["mix"] = mix.reshape(-1, components)
        weight = self.options.get("mix_weight")
        if weight is not None and weight.ndim == 2 and weight.shape[1] != components:
            self.options["mix_hidden"] = weight.shape[1]
        if mix is not None and "mish" in self.options["variant"] and "grad_o" in self.arrays:
            self.options["heads"] = self.arrays["grad_o"].shape[1]
        if self.options["variant"] in ("mgk", "mlk") and self.arrays["k"].ndim == 4:
            self.arrays["k"] = self.arrays["k"][:, :, None]
        heads = v.shape[1] if mix is None else self.options.get("heads", np.shape(self.options["mix"])[0])
        for name, size in (("mix_weight", components), ("prior", None)):
            array = self.options.get(name)
            if array is not None and array.ndim == 1 and size is not None:
                self.options[name] = array.reshape(heads, size)

    def is_linear(self):
        return self.options["variant"].startswith(("l", "ml", "sml"))

    def forward(self):
        inputs = {name: self.arrays[name] for name in "qkv"}
        if not self.is_linear():
            o, lse = clmgk.attention(**inputs, return_lse=True, **self.options)
            return {"--out": o, "--lse": lse}
        o, state, denominator = clmgk.linear_attention(**inputs, state=self.state, return_state="offsets" not in self.options,
                                                       return_denominator=True, **self.options)
        scale = 1.0 if state.m is None else np.exp(state.m.astype(float))[..., None]
        return {"--out": o, "denominator": denominator, "--state-out": (state.c * np.expand_dims(scale, -1), state.z * scale)}

    def backward(self, results):
        names = {GRADIENTS[option]: option for option in self.outputs if option in GRADIENTS}
        if not names:
            return {}
        inputs = {name: self.arrays[name] for name in (*STORAGE, )}
        if self.is_linear():
            found = clmgk.linear_attention_backward(**inputs, o=results["--out"], denominator=results["denominator"],
                                                    state=self.state, gradients=names, **self.options)
        else:
            found = clmgk.attention_backward(**inputs, o=results["--out"], lse=results["--lse"], grad_lse=self.grad_lse,
                                             gradients=names, **self.options)
        return {option: found[name] for name, option in names.items()}

    def statistics(self):
        names = {STATISTICS[option]: option for option in self.outputs if option in STATISTICS}
        if not names:
            return {}
        found = clmgk.statistics(self.arrays["q"], self.arrays["k"], statistics=names, **self.options)
        return {option: found[name] for name, option in names.items()}


def compare(actual, expected, bound):
    actual = np.asarray(actual, np.float64)
    if actual.shape != expected.shape:  # a list of numbers for [H,M], an axis M of size 1
        actual = actual.reshape(expected.shape)
    finite = np.isfinite(expected)
    np.testing.assert_array_equal(actual[~finite], expected[~finite])
    assert np.abs(actual[finite] - expected[finite]).max(initial=0.0) <= bound


@pytest.mark.parametrize("name", CASES if FULL else QUICK)
def test_golden(name):
    case = Case(name)
    results = case.forward()
    results |= case.backward(results)
    results |= case.statistics()
    compared = 0
    for option, file in case.outputs.items():
        pairs = [(file, results[option])]
        if option == "--state-out":
            pairs = [(f"{file}.{part}.npy", array) for part, array in zip("cz", results[option])]
        for name, array in pairs:
            expected = np.load(case.folder / name)
            if case.tokens_first and array.ndim >= 4:
                array = np.moveaxis(array, -2, 1)
            compare(array, expected, case.bounds[name])
            compared += 1
    assert compared >= 1


def test_there_are_cases():
    assert len(CASES) > 100 and set(QUICK) <= set(CASES)
