"""Predictions against public measurements; skipped where the validation data folder is not beside the project."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

from pdplan.catalog.load import load_catalog
from pdplan.serving.deployments import predict_deployments


@pytest.fixture(scope="module")
def readers(request):
    path = Path(__file__).resolve().parent.parent.parent / "benchmarks" / "public_rows.py"
    spec = importlib.util.spec_from_file_location("public_rows", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["public_rows"] = module
    spec.loader.exec_module(module)
    return module


def test_deepseek_errors_stay_within_what_the_documentation_claims(shared, readers):
    catalog = load_catalog()
    rows = readers.inferencex(shared / "validation" / "inferencex_train.csv", catalog)
    result = predict_deployments(rows.deployments, catalog)
    assert len(rows.deployments) == 403
    tpot, _, tpot_p90, _ = readers.error_line(result.tpot_s, rows.tpot_s)
    rate, *_ = readers.error_line(result.total_tok_per_s_per_card, rows.total_tok_per_s_per_card)
    colocated = rows.labels("mode") == "colocated"
    ttft, *_ = readers.error_line(result.ttft_s[colocated], rows.ttft_s[colocated])
    assert tpot < 8.0
    assert tpot_p90 < 25.0
    assert rate < 9.0
    assert ttft < 18.0


def test_other_models(shared, readers):
    catalog = load_catalog()
    rows = readers.silicon(shared / "validation" / "silicon_extra.csv", catalog)
    rows = rows.take(rows.ttft_s < 10)
    result = predict_deployments(rows.deployments, catalog)
    median, *_ = readers.error_line(result.tpot_s, rows.tpot_s)
    assert len(rows.deployments) > 1000
    assert median < 11.0
    assert np.isfinite(result.tpot_s).mean() > 0.98
