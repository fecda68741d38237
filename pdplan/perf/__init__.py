"""Analytic latency of prefill and decode over many layouts at once: operators, memory, transfer, bounds."""
