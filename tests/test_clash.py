"""Other distributions that share the import name are named when an import inside the package fails."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import pytest

from loopguard import _clash

Install = Callable[..., Path]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Makes a distribution in a folder that comes first on the path."""
    monkeypatch.syspath_prepend(tmp_path)

    def make(name: str, version: str, files: dict[str, str]) -> Path:
        info = tmp_path / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        record = [f"{info.name}/METADATA,,", "not_ours.py,sha256=xyz,1"]
        for path, content in files.items():
            target = tmp_path / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(content)
            digest = base64.urlsafe_b64encode(hashlib.sha256(content.encode()).digest()).rstrip(b"=").decode()
            record.append(f"{path},sha256={digest},{len(content)}")
        (info / "RECORD").write_text("\n".join([*record, ""]))
        return tmp_path

    return make


def inner_error(name: str | None = "loopguard.config") -> ImportError:
    """What comes up when a module of the package lacks a name."""
    return ImportError("cannot import name 'configure'", name=name)


def test_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where only ours is installed nothing is explained, and the error stays the same object."""
    monkeypatch.setattr(metadata, "packages_distributions", lambda: {"loopguard": ["loopguard_otel"]})
    error = inner_error()

    assert _clash.other_owners() == []
    assert _clash.explain(error) is None
    assert _clash.wrap(error) is error


def test_one_other(install: Install) -> None:
    """The sentence names both distributions and the command that repairs it."""
    install("loopguard", "0.2.0", {"loopguard/core.py": "x = 1\n"})
    install("loopguard-otel", "0.1.0", {"loopguard/config.py": "y = 1\n"})

    assert _clash.explain(inner_error()) == (
        "two distributions share the folder of 'loopguard': loopguard 0.2.0 and loopguard-otel 0.1.0. "
        "Ours needs: pip uninstall -y loopguard && pip install --force-reinstall --no-deps loopguard-otel"
    )


def test_two_others(install: Install) -> None:
    """All others are named, in the command too."""
    install("loopguard", "0.2.0", {"loopguard/core.py": ""})
    install("loopguard-runtime", "1.0", {"loopguard/runtime.py": ""})
    install("loopguard-otel", "0.1.0", {"loopguard/config.py": ""})
    text = _clash.explain(inner_error(None))

    assert text is not None
    assert text.startswith(
        "three distributions share the folder of 'loopguard': "
        "loopguard 0.2.0, loopguard-runtime 1.0 and loopguard-otel 0.1.0."
    )
    assert "pip uninstall -y loopguard loopguard-runtime &&" in text


def test_wrap(install: Install) -> None:
    """The error to raise is an ImportError with the sentence, the module's name, and the cause."""
    install("loopguard", "0.2.0", {"loopguard/core.py": ""})
    error = inner_error()
    wrapped = _clash.wrap(error)

    assert type(wrapped) is ImportError
    assert str(wrapped) == _clash.explain(error)
    assert (wrapped.name, wrapped.__cause__) == ("loopguard.config", error)


def test_missing_dependency(install: Install) -> None:
    """A dependency that is not there is no clash, unless files of ours were replaced."""
    folder = install("loopguard", "0.2.0", {"loopguard/core.py": ""})
    install("loopguard-otel", "0.1.0", {"loopguard/config.py": "y = 1\n"})
    missing = ModuleNotFoundError("No module named 'wrapt'", name="wrapt")

    assert _clash.explain(missing) is None
    (folder / "loopguard/config.py").write_text("import theirs\n")
    assert "two distributions" in str(_clash.explain(missing))


def test_damaged_files(install: Install) -> None:
    """Files that are gone or replaced are found by what was installed."""
    folder = install("loopguard-otel", "0.1.0", {"loopguard/a.py": "1", "loopguard/b.py": "2", "loopguard/c.py": "3"})
    assert _clash.damaged_files() == []
    (folder / "loopguard/b.py").write_text("theirs")
    (folder / "loopguard/c.py").unlink()

    assert _clash.damaged_files() == ["loopguard/b.py", "loopguard/c.py"]


def test_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a clone that is not installed there is no version and nothing is damaged."""

    def missing(name: str) -> None:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", missing)
    monkeypatch.setattr(metadata, "packages_distributions", lambda: {"loopguard": ["loopguard"]})
    monkeypatch.setattr(metadata, "version", lambda name: "0.2.0" if name == "loopguard" else missing(name))

    assert _clash.damaged_files() == []
    assert _clash.own_version() is None
    assert "loopguard 0.2.0 and loopguard-otel (not installed)" in str(_clash.explain(inner_error()))


def test_broken_metadata(monkeypatch: pytest.MonkeyPatch) -> None:
    """What goes wrong while looking does not hide the error that was to be explained."""

    def broken() -> None:
        raise OSError

    monkeypatch.setattr(metadata, "packages_distributions", broken)
    error = inner_error()

    assert _clash.wrap(error) is error
