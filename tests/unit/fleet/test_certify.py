"""The certificate's own arithmetic."""

from __future__ import annotations

import pytest

from pdplan.fleet.certify import _cards_taken
from pdplan.fleet.plan import PeriodPool, PoolLayout


def pool(replicas: int, tp: int, pp: int = 1) -> PeriodPool:
    """Replicas of tp x pp cards."""
    layout = PoolLayout(tp=tp, pp=pp, ep=1, attention_dp=1, cards_per_replica=tp * pp, max_batch=1, token_budget=0)
    return PeriodPool(
        role="decode",
        site="a",
        node_type="h",
        destination_site="a",
        layout=layout,
        replicas=replicas,
        rate_req_per_s=1.0,
    )


@pytest.mark.parametrize(
    ("pools", "cards"),
    [
        ([pool(3, 1), pool(1, 4)], 7),  # on one node of 8 together
        ([pool(4, 1, pp=3)], 16),  # two of three cards to a node
        ([pool(5, 1, pp=3)], 24),
        ([pool(1, 1, pp=3), pool(1, 1)], 9),  # the three cards have a node of their own
        ([pool(2, 8)], 16),
        ([pool(2, 8, pp=2)], 32),
        ([pool(2, 4, pp=3)], 32),  # twelve cards are two nodes
    ],
)
def test_cards_that_replicas_take_of_nodes_of_eight(pools: list[PeriodPool], cards: int) -> None:
    """By hand; at peak and in every operating state alike."""
    assert _cards_taken(pools, 8) == cards
