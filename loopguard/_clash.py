"""Other distributions that install a package ``loopguard`` too, and what they did to ours.

Files of two distributions in one folder replace each other, and removing one takes files of both.
Nothing here runs unless an import inside the package failed, or somebody asked ``loopguard doctor``.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import re
from importlib import metadata
from pathlib import Path
from typing import Final

#: Our distribution; its name is not the import name, which another project has on the package index.
DISTRIBUTION: Final = "loopguard-otel"
PACKAGE: Final = "loopguard"

_COUNTS: Final = {2: "two", 3: "three", 4: "four"}


def explain(error: BaseException) -> str | None:
    """Why an import inside the package failed, if other distributions share its folder.

    Returns:
        The sentence to show, with the command that repairs it. None if the error has another reason, such as a
        missing dependency.
    """
    try:
        others = other_owners()
        if not others:
            return None
        missing = str(getattr(error, "name", None) or "").partition(".")[0]
        # A missing dependency is no clash, unless a file of theirs, standing in for one of ours, asked for it.
        if missing not in ("", PACKAGE) and not damaged_files():
            return None
        return describe(others)
    except Exception:  # noqa: BLE001 - a broken installation must not hide the error that is being explained
        return None


def wrap(error: ImportError) -> ImportError:
    """The error to raise in place of one that came up inside the package: the same one, or one that explains it."""
    text = explain(error)
    if text is None:
        return error
    explained = ImportError(text, name=error.name, path=error.path)
    explained.__cause__ = error
    return explained


def describe(others: list[str]) -> str:
    """The sentence for these other distributions."""
    names = [f"{name} {metadata.version(name)}" for name in others]
    names.append(f"{DISTRIBUTION} {own_version() or '(not installed)'}")
    listed = f"{', '.join(names[:-1])} and {names[-1]}"
    return (
        f"{_COUNTS.get(len(names), len(names))} distributions share the folder of {PACKAGE!r}: {listed}. "
        f"Ours needs: pip uninstall -y {' '.join(others)} && "
        f"pip install --force-reinstall --no-deps {DISTRIBUTION}"
    )


def own_version() -> str | None:
    """The installed version of ours; None where only the folder is there, such as in a clone."""
    try:
        return metadata.version(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return None


def other_owners() -> list[str]:
    """Names of the installed distributions, ours excepted, that have files in the folder ``loopguard``. Slow."""
    owners = {_normal(name): name for name in metadata.packages_distributions().get(PACKAGE, ())}
    owners.pop(_normal(DISTRIBUTION), None)
    return [owners[name] for name in sorted(owners)]


def damaged_files() -> list[str]:
    """Files of our distribution that are gone or have another content than it installed. Slow.

    Empty where it is not installed, or in place from a clone.
    """
    try:
        distribution = metadata.distribution(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return []
    damaged = []
    # Not ``distribution.files``: newer Pythons leave out what is gone.
    for name, fingerprint, *_ in csv.reader((distribution.read_text("RECORD") or "").splitlines()):
        if not name.startswith(f"{PACKAGE}/") or not name.endswith(".py") or "=" not in fingerprint:
            continue
        mode, _, wanted = fingerprint.partition("=")
        try:
            content = Path(str(distribution.locate_file(name))).read_bytes()
        except OSError:
            damaged.append(name)
            continue
        digest = base64.urlsafe_b64encode(hashlib.new(mode, content).digest()).rstrip(b"=").decode()
        if digest != wanted:
            damaged.append(name)
    return damaged


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
