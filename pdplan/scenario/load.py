"""Scenario files in, validated :class:`~pdplan.scenario.schema.ScenarioFile` out; every fault in one go."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from pdplan.errors import InputError, unknown_name
from pdplan.files import read_yaml
from pdplan.scenario.schema import ScenarioFile

__all__ = ["LoadedScenario", "load_scenario", "parse_scenario"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedScenario:
    """A valid scenario, the plain data it came from, and where relative paths in it start."""

    file: ScenarioFile
    given: Mapping[str, Any]
    """As written, JSON-compatible; stored in PLAN.json."""
    name: str
    """File name for messages."""
    folder: Path


def load_scenario(path: str | Path) -> LoadedScenario:
    """Read and validate a scenario file.

    Raises
    ------
    InputError
        One sentence per fault: file, field, value, what would be accepted.
    """
    path = Path(path)
    return parse_scenario(read_yaml(path), name=str(path), folder=path.parent)


def parse_scenario(data: Any, *, name: str = "scenario", folder: Path | None = None) -> LoadedScenario:
    """Validate plain data as a scenario; see :func:`load_scenario`."""
    if not isinstance(data, dict):
        kind = "empty" if data is None else f"a {type(data).__name__}"
        raise InputError(
            f"{name}: is {kind}; a scenario is a mapping with the keys schema, model, workload, slo and sites "
            f"(`pdplan init` writes one)"
        )
    try:
        scenario = ScenarioFile.model_validate(data)
    except ValidationError as fault:
        raise InputError(*dict.fromkeys(_sentence(name, error) for error in fault.errors())) from None
    return LoadedScenario(file=scenario, given=_plain(data), name=name, folder=folder or Path())


def _plain(value: Any) -> Any:
    """JSON-compatible copy (YAML dates become text)."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, str | int | float | bool):
        return value
    return str(value)


def _fields_at(location: tuple[Any, ...]) -> list[str]:
    """Names the schema accepts at a location, for near misses."""
    model: Any = ScenarioFile
    for step in location:
        if isinstance(step, int) or not (isinstance(model, type) and issubclass(model, BaseModel)):
            continue
        for name, info in model.model_fields.items():
            if step in (name, info.alias):
                model = _model_in(info.annotation)
    if isinstance(model, type) and issubclass(model, BaseModel):
        return [info.alias or name for name, info in model.model_fields.items()]
    return []


def _model_in(annotation: Any) -> Any:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for part in get_args(annotation):
        found = _model_in(part)
        if found is not None:
            return found
    return None


def _sentence(name: str, error: Any) -> str:
    location = tuple(step for step in error["loc"] if not (isinstance(step, str) and _is_branch(step)))
    field = ".".join(str(step) for step in location) or "scenario"
    kind, value, context = error["type"], error.get("input"), error.get("ctx", {})
    shown = repr(value) if isinstance(value, str | int | float | bool) or value is None else f"a {type(value).__name__}"
    match kind:
        case "extra_forbidden":
            accepted = _fields_at(location[:-1])
            return f"{name}: {unknown_name('key', field if len(location) == 1 else str(location[-1]), accepted)}" + (
                f" (in {'.'.join(str(s) for s in location[:-1])})" if len(location) > 1 else ""
            )
        case "missing":
            return f"{name}: {field} is missing; it is required"
        case "greater_than":
            return f"{name}: {field} is {shown}; a number greater than {context['gt']:g} is accepted"
        case "greater_than_equal":
            return f"{name}: {field} is {shown}; a number of at least {context['ge']:g} is accepted"
        case "less_than":
            return f"{name}: {field} is {shown}; a number less than {context['lt']:g} is accepted"
        case "less_than_equal":
            return f"{name}: {field} is {shown}; a number of at most {context['le']:g} is accepted"
        case "finite_number":
            return f"{name}: {field} is {shown}; a finite number is accepted"
        case "float_type" | "int_type" | "int_from_float":
            wanted = "a number" if kind == "float_type" else "a whole number"
            hint = " without quotes or unit (YAML reads 1e3 as text; write 1000)" if isinstance(value, str) else ""
            return f"{name}: {field} is {shown}; {wanted}{hint} is accepted"
        case "literal_error":
            return f"{name}: {field} is {shown}; accepted: {context['expected']}"
        case "value_error":
            return f"{name}: {field}: {context['error']}"
        case "too_short":
            return f"{name}: {field} is empty; at least {context['min_length']} entry is needed"
        case "too_long":
            return f"{name}: {field} has too many entries; {context['max_length']} are accepted"
        case _:
            return f"{name}: {field} is {shown}: {error['msg']}"


def _is_branch(step: str) -> bool:
    """Pydantic puts the branch of a union into the location; it is no field of the file."""
    return (
        step.endswith("File") or "[" in step or step in ("str", "int", "float") or step.startswith(("literal", "dict"))
    )
