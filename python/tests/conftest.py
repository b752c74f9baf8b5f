# SPDX-License-Identifier: Apache-2.0
import os

import numpy as np
import pytest

FULL = os.environ.get("CLMGK_TEST_FULL") == "1"


@pytest.fixture
def rng():
    return np.random.default_rng(20)


def normal(rng, *shape, dtype=np.float32):
    return rng.standard_normal(shape).astype(dtype)
