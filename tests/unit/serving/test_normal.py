import numpy as np
from scipy.special import gammaincc, ndtr

from pdplan.serving.normal import gamma_tail, normal_tail


def test_normal_tail_is_the_exact_one() -> None:
    z = np.linspace(-7.5, 7.5, 4001)

    assert np.abs(normal_tail(z) - ndtr(-z)).max() < 3e-7


def test_gamma_tail_is_within_its_stated_error() -> None:
    x = np.linspace(0.01, 6, 400)
    for shape, error in ((1.0, 0.013), (3.0, 0.0022), (20.0, 0.0003), (1e4, 1e-6)):
        exact = gammaincc(shape, shape * x)
        upper = exact < 0.15
        assert np.abs(gamma_tail(x, shape) - exact)[upper].max(initial=0.0) < 0.003, shape
        assert np.abs(gamma_tail(x, shape) - gammaincc(shape, shape * x)).max() < error, shape
