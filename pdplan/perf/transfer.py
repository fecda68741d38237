"""Moving one request's cache from its prefill replica to its decode replica (pdplan latency model, section 2.8)."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pdplan.perf.constants import GENERAL

__all__ = ["FIBRE_S_PER_KM", "kv_transfer_s"]

FIBRE_S_PER_KM = 4.9e-6
"""One-way propagation in fibre: light at 1/1.468 of its speed in vacuum (ITU-T G.652)."""
_CONTROL_ROUND_TRIPS = 1.0
"""The decode side asks, the prefill side sends: half a round trip each, before the first byte arrives."""


def kv_transfer_s(
    transfer_bytes: ArrayLike,
    *,
    sender_bandwidth_bytes_per_s: ArrayLike,
    parallel_senders: ArrayLike = 1.0,
    efficiency_frac: ArrayLike = GENERAL["transfer_efficiency"],
    handshake_s: ArrayLike = GENERAL["transfer_latency_s"],
    distance_km: ArrayLike = 0.0,
    path_bandwidth_bytes_per_s: ArrayLike = np.inf,
    layers: int = 1,
    layerwise_overlap: bool = False,
    prefill_s: ArrayLike = 0.0,
) -> NDArray[np.float64]:
    r"""Seconds between the end of prefill and the moment the decode replica holds the whole cache.

    .. math:: t = a_{kv} + 2 d\, l + \frac{S}{R},\quad R = \min(e\, n\, W,\; R_{path})

    With layer-wise overlap each layer leaves as soon as it is computed; what remains after prefill is the last
    layer, or what the path could not carry away meanwhile: the last term becomes
    :math:`\max(S / (R\,L),\; S / R - t_{prefill})`.

    Parameters
    ----------
    transfer_bytes : array_like
        Bytes that leave the prefill replica for one request (``LatencyModel.kv_transfer_bytes``). [byte]
    sender_bandwidth_bytes_per_s : array_like
        Of one sending card: its NIC, or its scale-up link where both replicas share one domain.
    parallel_senders : array_like
        Cards that send at once (``LatencyModel.kv_transfer_senders``).
    efficiency_frac : array_like
        Achieved over nominal bandwidth of the senders.
    handshake_s : array_like
        Fixed cost of a hand-over in one site: handshake, queueing, routing hop. Fitted together with the
        bandwidth term, trust it to +-30 ms.
    distance_km : array_like
        Length of the fibre; the request for the cache and the cache itself travel it.
    path_bandwidth_bytes_per_s : array_like
        What the path between the sites gives one transfer; infinite inside a site.
    layers : int
        Layers of the model.
    layerwise_overlap : bool
        Whether layers are sent while later ones are computed.
    prefill_s : array_like
        Time of the prefill pass that overlaps. [s]

    Returns
    -------
    ndarray
        [s], broadcast over all arguments.
    """
    size = np.asarray(transfer_bytes, dtype=np.float64)
    senders = np.asarray(sender_bandwidth_bytes_per_s) * np.asarray(parallel_senders) * np.asarray(efficiency_frac)
    rate = np.minimum(senders, np.asarray(path_bandwidth_bytes_per_s, dtype=np.float64))
    stream = size / rate
    if layerwise_overlap:
        stream = np.maximum(stream / layers, stream - np.asarray(prefill_s))
    propagation = (1.0 + _CONTROL_ROUND_TRIPS) * np.asarray(distance_km) * FIBRE_S_PER_KM
    return np.asarray(np.asarray(handshake_s) + propagation + stream, dtype=np.float64)
