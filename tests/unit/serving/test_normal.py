import numpy as np
import pytest
from scipy.special import betainc, gammaincinv, ndtr, ndtri

from pdplan.serving.normal import beta_tail, gamma_quantile, normal_quantile, normal_tail


def test_normal_tail_is_the_exact_one() -> None:
    z = np.linspace(-7.5, 7.5, 4001)

    assert np.abs(normal_tail(z) - ndtr(-z)).max() < 3e-7


def test_normal_quantile_is_the_exact_one() -> None:
    q = np.concatenate([np.linspace(0.001, 0.999, 999), [1e-6, 1 - 1e-6]])

    assert np.abs(normal_quantile(q) - ndtri(q)).max() < 1e-5


@pytest.mark.parametrize(("shape", "error"), [(1.0, 0.03), (3.0, 0.006), (20.0, 0.0006)])
def test_gamma_quantile_is_within_its_stated_error(shape: float, error: float) -> None:
    """Relative to the mean, 2.0 here with variance 4 / shape."""
    q = np.linspace(0.1, 0.99, 90)
    exact = 2.0 * gammaincinv(shape, q) / shape

    assert np.abs(gamma_quantile(q, 2.0, 4.0 / shape) - exact).max() < error * 2.0


@pytest.mark.parametrize(
    ("a", "b", "error"),
    [
        (1.0, 1.0, 0.012),
        (3.0, 1.0, 0.013),
        (1.0, 100.0, 0.007),
        (30.0, 50.0, 1e-3),
        (0.5, 0.5, 0.052),
        (0.3, 0.3, 0.11),
    ],
)
def test_beta_tail_is_within_its_stated_error(a: float, b: float, error: float) -> None:
    x = np.linspace(0.001, 0.999, 500)

    assert np.abs(beta_tail(x, a / (a + b), 1 / (a + b + 1)) - (1 - betainc(a, b, x))).max() < error


def test_beta_tail_ends() -> None:
    assert beta_tail([-1.0, 0.0, 1.0, 2.0], 0.3, 0.1).tolist() == [1.0, 1.0, 0.0, 0.0]
