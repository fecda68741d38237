"""``pdplan schema``."""

from __future__ import annotations

from pdplan.cli.console import emit

__all__ = ["schema"]


def schema() -> None:
    """Print the JSON Schema of the scenario file.

    Example: pdplan schema > scenario.schema.json
    """
    import json

    from pdplan.scenario.schema import json_schema

    document = json_schema()
    document["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    emit(json.dumps(document, indent=1, ensure_ascii=False))
