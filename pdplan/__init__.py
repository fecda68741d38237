"""pdplan: least-cost fleets for serving large language models with prefill and decode on separate machines."""

__version__ = "0.1.0"
