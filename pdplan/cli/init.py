"""``pdplan init``."""

from __future__ import annotations

from pathlib import Path

import typer

from pdplan.cli.console import note
from pdplan.errors import InputError

__all__ = ["TEMPLATE", "init"]

TEMPLATE = """\
# A planning question for pdplan. Answer it with: pdplan plan {name}
schema: pdplan.scenario/1
name: my first plan

# Catalog id (pdplan catalog list models) or path to a Hugging Face config.json.
model: qwen3-32b
# Number formats; leave out to follow the released checkpoint.
precision: {{weights: fp8, kv_cache: fp8}}
# Serving engine: its measured constants and layout rules (pdplan catalog list engines).
engine: generic

workload:
  rate_req_per_s: 20                       # mean arrivals over the whole fleet
  lengths: azure-conversation-2023         # a shipped shape, or one of:
  # lengths: {{fixed: {{input_tokens: 4000, output_tokens: 500}}}}
  # lengths: {{trace: requests.csv}}
  # lengths: {{input_tokens: {{p50: 1000, p90: 3000, p99: 8000}}, output_tokens: {{p50: 150, p90: 400, p99: 900}}}}
  arrivals: poisson                        # or {{cv: 2.0}} for burstier traffic
  prefix_hit_frac: 0.0                     # share of input tokens found in the prefix cache

# Targets by percentile, seconds.
slo:
  ttft_s: {{p90: 1.0}}                       # time to first token
  tpot_s: {{p90: 0.04}}                      # time per output token

# What can be had where. Prices come from the catalog unless given here.
sites:
  - name: cloud
    nodes:
      - {{type: aws-p5-48xlarge, max_nodes: 16}}
      - {{type: aws-g6e-48xlarge}}           # no max_nodes: no limit
      # - {{type: h100-sxm-8, usd_per_node_hour: 18.50}}   # your own price

# pricing: {{pricing_model: on-demand}}      # or spot, reserved-1y, reserved-3y, purchase
# fleet:
#   budget_usd_per_hour: 500
#   max_power: 400 kW
#   prefill: {{min_cards: 64}}
objective: cost                            # or cards, power
"""


def init(
    path: Path = typer.Argument(Path("scenario.yaml"), help="File to write."),
    force: bool = typer.Option(False, "--force", help="Overwrite an existing file."),
) -> None:
    """Write a commented scenario to start from.

    Example: pdplan init scenario.yaml
    """
    from pdplan.files import write_atomic

    if path.is_dir():
        raise InputError(f"{path}: is a directory; name the file to write, e.g. {path / 'scenario.yaml'}")
    if path.exists() and not force:
        raise InputError(f"{path}: exists; choose another name or pass --force")
    write_atomic(path, TEMPLATE.format(name=path))
    note(f"wrote {path}; answer it with: pdplan plan {path}")
