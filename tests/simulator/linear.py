# SPDX-License-Identifier: Apache-2.0
"""A pass of the linear family for run.py (passes.py): variants linear and mlk with the map elu1, without states."""
import numpy as np

import passes
import warps

VARIANTS = (11, 12)  # of CLMGK_VARIANT_LIST


def is_linear(plan):
    return plan.problem["variant"] in VARIANTS


class Linear(passes.Pass):
    def shape(self, name):
        rows = self.x["batch"], self.x["heads"], self.x["length"]
        return (*rows, 2) if name == "denominator" else super().shape(name)

    def given(self, name):
        return name not in ("state_m", "prior") and "state_" not in name and super().given(name)

    def features(self, b, h, rows, keys):
        """phi and its slope of the rows, of the keys [component, key, feature], psi, and what rows see."""
        g = h * self.x["kv_heads"] // self.x["heads"]

        def positive(x):
            return np.where(x > 0, x + 1, np.exp(np.minimum(x, 0))), np.where(x > 0, 1, np.exp(np.minimum(x, 0)))
        phi, of_keys = positive(self.values["q"][b, h, rows]), positive(self.values["k"][b, g][:, keys])
        return phi, of_keys, of_keys[0].mean(0), self.visible(rows, keys)

    def heads(self):
        """(batch, head, head of keys, rows, keys)"""
        for b, rows, keys in self.ranges():
            for h in range(self.x["heads"]):
                yield b, h, h * self.x["kv_heads"] // self.x["heads"], rows, keys

    def forward(self):
        """O, and denominators beside a scale of 0."""
        o, sums = np.full(self.shape("o"), np.nan), np.full(self.shape("denominator"), np.nan)
        for b, h, g, rows, keys in self.heads():
            (phi, _), _, psi, seen = self.features(b, h, rows, keys)
            weight = np.where(seen, phi @ psi.T, 0)
            total = weight.sum(1)
            o[b, h, rows] = weight @ self.values["v"][b, g, keys] / np.where(total > 0, total, 1)[:, None]
            sums[b, h, rows] = np.stack([total, np.zeros(total.shape)], 1)
        return o, sums

    def fill(self):
        super().fill()
        if "grad_o" in self.names:
            self.put("denominator", self.masked("denominator", self.forward()[1]))
        else:
            shape = self.shape("denominator")
            self.memory.view("denominator", shape, self.strides("denominator"), 4)[1][...] |= warps.WRITE

    def backward(self):
        results = {name: np.zeros((2, *self.shape(name))) for name in passes.OUTPUTS if name in self.names}
        for b, h, g, rows, keys in self.heads():
            (phi, slope), of_keys, psi, seen = self.features(b, h, rows, keys)
            total = np.where(seen, phi @ psi.T, 0).sum(1)[:, None]
            grad_o = self.values["grad_o"][b, h, rows] * np.where(total > 0, 1 / np.where(total > 0, total, 1), 0)
            v, t = self.values["v"][b, g, keys], -(grad_o * self.values["o"][b, h, rows]).sum(1, keepdims=True)
            weight = np.where(seen, phi @ psi.T, 0)
            pairs, sizes = (np.where(seen, x, 0) for x in (grad_o @ v.T + t, abs(grad_o) @ abs(v).T + abs(t)))
            for name, at, values in (
                    ("grad_q", (b, h, rows), (pairs @ psi * slope, sizes @ psi * slope)),
                    ("grad_k", (b, g, slice(None), keys),
                     [x.T @ phi / self.x["components"] * of_keys[1] for x in (pairs, sizes)]),
                    ("grad_v", (b, g, keys), (weight.T @ grad_o, weight.T @ abs(grad_o)))):
                for own, value in zip(results.get(name, ()), values):
                    own[at] += value
        return results

    def faults(self):
        if "grad_o" in self.names:
            return super().faults()
        o, sums = self.forward()
        given = self.get("denominator")
        wrong = not (abs(given - sums)[np.isfinite(sums)] <= 2.0 ** -9 * np.nanmax(sums)).all()
        return self.compare("o", o, np.full(o.shape, abs(o[np.isfinite(o)]).max(initial=0))) + ["denominators"] * wrong
