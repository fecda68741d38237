"""What users send: length distributions, arrivals, traces, prefix reuse."""
