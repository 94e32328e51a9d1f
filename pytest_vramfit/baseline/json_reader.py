"""JSON values read with their place, so that what is wrong can be pointed at."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

_LARGEST = 2**63 - 1


class BaselineError(ValueError):
    """A file that cannot be used: its path, the place in it, the value, what was expected."""


class Value:
    """One JSON value and its place: ``entries[3].processes[0]``."""

    def __init__(self, value: Any, file: Path, place: str = "") -> None:
        self._value = value
        self._file = file
        self._place = place

    @classmethod
    def of_file(cls, file: Path) -> Value:
        """The value of a whole file. Raises BaselineError."""
        try:
            text = file.read_text(encoding="utf-8")
        except OSError as error:
            raise BaselineError(f"{file} cannot be read: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise BaselineError(f"{file} is not a text file: {error}") from error

        def once(members: list[tuple[str, Any]]) -> dict[str, Any]:
            keys = [key for key, _ in members]
            for key in keys if len({*keys}) < len(keys) else ():
                if keys.count(key) > 1:
                    raise BaselineError(f"{file}: an object has the key {json.dumps(key)} twice")
            return dict(members)

        try:
            value = cls(json.loads(text, object_pairs_hook=once), file)
            value.expect_writable()
        except BaselineError:
            raise
        except (ValueError, RecursionError) as error:
            raise BaselineError(f"{file} is not JSON: {error}") from error
        return value

    def expect_schema(self, schema: str) -> None:
        """Raise BaselineError where this document is of another schema."""
        seen = self["schema"]
        if seen.text() != schema:
            newer = seen.text().startswith(schema.rpartition("/")[0])
            hint = " (written by a newer pytest-vramfit?)" if newer else ""
            raise BaselineError(f"{seen.error(json.dumps(schema))}{hint}")

    def error(self, expected: str) -> BaselineError:
        """What to raise where this value is not ``expected``."""
        shown = json.dumps(self._value)
        shown = shown if len(shown) <= 80 else f"{shown[:77]}..."  # noqa: PLR2004
        return BaselineError(
            f"{self._file}: {self._place or 'the file'} is {shown}, not {expected}"
        )

    def __getitem__(self, key: str) -> Value:
        """A member that must be there."""
        found = self.get(key)
        if found is None:
            raise BaselineError(f"{self._file}: {self._inside(key)} is missing")
        return found

    def get(self, key: str) -> Value | None:
        """A member; None where it is null or not there."""
        value = self.object().get(key)
        return None if value is None else Value(value, self._file, self._inside(key))

    def object(self) -> Mapping[str, Any]:
        """The members as they are."""
        if not isinstance(self._value, dict):
            raise self.error("an object")
        return self._value

    def texts(self) -> dict[str, str]:
        """An object of texts, which may be empty."""
        for key, value in self.object().items():
            if not isinstance(value, str):
                raise Value(value, self._file, self._inside(key)).error("a text")
        return dict(self.object())

    def __iter__(self) -> Iterator[Value]:
        """The values of a list."""
        if not isinstance(self._value, list):
            raise self.error("a list")
        for index, value in enumerate(self._value):
            yield Value(value, self._file, f"{self._place}[{index}]")

    def text(self) -> str:
        """A text that is not empty."""
        if not isinstance(self._value, str) or not self._value:
            raise self.error("a text")
        return self._value

    def boolean(self) -> bool:
        """True or false."""
        if not isinstance(self._value, bool):
            raise self.error("true or false")
        return self._value

    def positive(self) -> int:
        """An integer above 0, of 64 bits."""
        if type(self._value) is not int or not 0 < self._value <= _LARGEST:
            raise self.error("an integer above 0")
        return self._value

    def number(self) -> float:
        """A finite number of at least 0."""
        if type(self._value) not in {int, float} or not 0 <= self._value <= _LARGEST:
            raise self.error("a number of at least 0")
        return float(self._value)

    def expect_writable(self) -> None:
        """Raise BaselineError for half of a surrogate pair in any text or key."""
        if isinstance(self._value, str) and not _writable(self._value):
            raise self.error("text that can be written")
        if isinstance(self._value, list):
            for one in self:
                one.expect_writable()
        elif isinstance(self._value, dict):
            for key, value in self._value.items():
                if not _writable(key):
                    place, shown = self._place or "the file", json.dumps(key)
                    raise BaselineError(
                        f"{self._file}: {place} has the key {shown}, not text that can be written"
                    )
                Value(value, self._file, self._inside(key)).expect_writable()

    def _inside(self, key: str) -> str:
        return f"{self._place}.{key}" if self._place else key


def _writable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
