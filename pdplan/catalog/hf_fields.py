"""Reading a Hugging Face ``config.json`` field by field, with a sentence for whatever is missing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pdplan.errors import InputError

__all__ = ["Fields"]


class Fields:
    """A config's fields under any of several names.

    Parameters
    ----------
    data : dict
        The language model's part of the config.
    file : str
        For messages.
    prefix : str
        Where `data` sits in the file (``text_config.``).
    """

    def __init__(self, data: dict[str, Any], file: str, prefix: str = "") -> None:
        self.data = data
        self.file = file
        self.prefix = prefix

    def fault(self, field: str, text: str) -> InputError:
        """An error naming file and field."""
        return InputError(f"{self.file}: {self.prefix}{field}: {text}")

    def get(self, *names: str, default: Any = None) -> Any:
        """The first of these fields that is given and not null."""
        for name in names:
            if self.data.get(name) is not None:
                return self.data[name]
        return default

    def integer(self, *names: str, default: int | None = None, least: int = 1) -> int:
        """A whole number; without `default` the field must be there."""
        value = self.get(*names)
        if value is None:
            if default is None:
                other = f" (or {', '.join(names[1:])})" if len(names) > 1 else ""
                raise self.fault(names[0], f"is missing{other}; a whole number is expected")
            return default
        name = next(name for name in names if self.data.get(name) is not None)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 2**40:
            raise self.fault(name, f"{_short(value)} is not accepted; a whole number of at least {least} is expected")
        return value

    def flag(self, *names: str, default: bool = False) -> bool:
        """True or false."""
        value = self.get(*names)
        if value is None:
            return default
        if not isinstance(value, bool):
            name = next(name for name in names if self.data.get(name) is not None)
            raise self.fault(name, f"{_short(value)} is not accepted; true or false is expected")
        return value

    def per_layer(self, name: str, layers: int) -> list[Any] | None:
        """A list with one entry per layer (further entries are MTP layers), or None where it is not given."""
        value = self.get(name)
        if value is None:
            return None
        if isinstance(value, str) or not isinstance(value, Sequence) or len(value) < layers:
            raise self.fault(name, f"a list of {layers} entries, one per layer, is expected")
        return list(value[:layers])

    def table(self, name: str) -> Fields | None:
        """A nested mapping as Fields of its own."""
        value = self.get(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.fault(name, "a mapping is expected")
        return Fields(value, self.file, f"{self.prefix}{name}.")


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
