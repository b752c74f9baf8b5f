# SPDX-License-Identifier: Apache-2.0
"""What the tests of PyTorch share."""
import pytest

torch = pytest.importorskip("torch")


def normal(*shape, grad=True):
    return torch.randn(shape, requires_grad=grad)


def close(actual, expected, tolerance=5e-5):
    scale = max(1.0, expected.detach().abs().max().item()) if expected.numel() else 1.0
    assert actual.shape == expected.shape
    difference = (actual.detach().double() - expected.detach().double()).abs()
    assert not difference.numel() or difference.max().item() <= tolerance * scale
