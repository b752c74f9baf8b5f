# SPDX-License-Identifier: Apache-2.0
"""clmgk-analyze as the package has it; tests/tools/test_analyze.py tests its analyses."""
import json
import os
import subprocess
import sys

import numpy as np
import pytest

import clmgk.analyze
from clmgk.analyze._session import Session

ROWS = os.path.join(os.path.dirname(clmgk.analyze.__file__), "clmgk-analyze-rows")
pytestmark = pytest.mark.skipif(not os.path.exists(ROWS), reason="the package was built without jansson")


def analyze(*arguments: object, status: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run([sys.executable, "-m", "clmgk.analyze", *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == status, done.stderr
    return done


def test_matrices(tmp_path):
    q, k = np.random.default_rng(0).standard_normal((2, 1, 2, 6, 4), dtype=np.float32)
    np.save(tmp_path / "q.npy", q)
    np.save(tmp_path / "k.npy", k)
    found = json.loads(analyze("--variant", "softmax", "--q", tmp_path / "q.npy", "--k", tmp_path / "k.npy", "--json").stdout)
    logits = q.astype(float) @ k.astype(float).swapaxes(2, 3) / 2
    a = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    assert found["distances"]["mean"] == pytest.approx(((a[0, 0] - a[0, 1]) ** 2).sum())
    assert [head["largest"] for head in found["matrices"]] == pytest.approx(a.max((2, 3))[0])


def test_theorems_on_the_package_s_device():
    assert json.loads(analyze("--theorems", "--tokens", 3, "--trials", 1, "--json").stdout)["ok"]
    assert "nonesuch" in analyze("--theorems", "--device", "nonesuch", status=3).stderr


def test_program_ends_with_its_session(tmp_path):
    with Session(ROWS, ["--theorems", "--plots", str(tmp_path / "p")]) as session:
        session.announce("theorems")
        session.send("theorems", b"picture")
    assert session.end() == 0
    assert list(tmp_path.iterdir()) == []  # nothing was committed
