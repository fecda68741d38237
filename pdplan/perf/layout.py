"""Candidate layouts as a struct of arrays, and what they run on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pdplan.catalog.specs import AcceleratorSpec, FamilySpec, NodeSpec

__all__ = ["Layouts", "Machine", "Precision"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """Number formats of one deployment.

    `weights` is the checkpoint's format (bf16, fp8, int8, fp4, int4), `attention_weights` and
    `output_projection` differ from it for mixed checkpoints, `kv_cache` is bf16, fp8, int8 or fp4.
    """

    weights: str
    attention_weights: str
    output_projection: str
    kv_cache: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A node type with its accelerator and efficiency family."""

    node: NodeSpec
    accelerator: AcceleratorSpec
    family: FamilySpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Layouts:
    """C replica layouts; every array has shape (C,).

    tp * pp * attention_dp = cards per replica, and ep divides it. Attention-DP replicates attention
    weights over `attention_dp` ranks and splits the sequences between them; expert tensor sharding
    is (tp * attention_dp) / ep within a pipeline stage.
    """

    machine: NDArray[np.int64]
    """Index into the list of machines."""
    tp: NDArray[np.int64]
    pp: NDArray[np.int64]
    ep: NDArray[np.int64]
    attention_dp: NDArray[np.int64]

    @property
    def cards_per_replica(self) -> NDArray[np.int64]:
        """tp * pp * attention_dp, shape (C,)."""
        return self.tp * self.pp * self.attention_dp

    def __len__(self) -> int:
        return len(self.tp)

    def take(self, index: NDArray[np.int64] | NDArray[np.bool_]) -> Layouts:
        """The layouts at `index`."""
        return Layouts(
            machine=self.machine[index],
            tp=self.tp[index],
            pp=self.pp[index],
            ep=self.ep[index],
            attention_dp=self.attention_dp[index],
        )
