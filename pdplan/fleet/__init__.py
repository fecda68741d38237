"""Candidates, capacity tables, the fleet program, rounding, evaluation, certificate: a scenario becomes a plan."""
