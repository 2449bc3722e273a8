"""The version, where everything inside can read it without importing the package root."""

from __future__ import annotations

#: As in ``pyproject.toml``; a test holds them equal.
VERSION = "0.1.0"
