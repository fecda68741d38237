"""Queueing around the latency model: prefill, decode and colocated pools, closed and open loop."""
