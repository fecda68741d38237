"""One module per report format, each with ``FORMAT = Format(...)``."""
