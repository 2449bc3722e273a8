"""The command ``loopguard``, the same as ``python -m loopguard``. Only the standard library is needed."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Sequence

__all__ = ["install_hint", "main"]

#: What a shell says of a program whose reader has gone: 128 and the number of SIGPIPE.
READER_GONE = 141


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
        argv: Arguments without the program's name; None = those of the process.

    Returns:
        The exit code: 0 = fine, 1 = ``doctor`` found problems or the installation is broken, 2 = wrong usage,
        141 = whoever read the output, such as ``head``, has gone.
    """
    try:
        code = _run(argv)
        # What is still in the buffer would else be written while the interpreter ends, where nothing can catch it.
        sys.stdout.flush()
    except BrokenPipeError:
        _write_nowhere()
        return READER_GONE
    return code


def _run(argv: Sequence[str] | None) -> int:
    try:
        arguments = _parser().parse_args(argv)
    except SystemExit as leaving:  # argparse has said why
        return leaving.code if isinstance(leaving.code, int) else 2
    try:
        if arguments.command == "doctor":
            from loopguard.cli import doctor

            return doctor.run(arguments.target)
        from loopguard.cli import demo

        return int(demo.run(plain=arguments.plain))
    except ImportError as error:
        from loopguard import _clash

        text = _clash.explain(error)
        if text is None:
            raise
        print(f"ImportError: {text}", file=sys.stderr)
        return 1


def _write_nowhere() -> None:
    """Let what is still in the buffers go: the interpreter flushes them once more at its end."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # a stream that a test put there has no number
            os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def install_hint(extra: str) -> str:
    """The command that installs an extra, from the index and in a clone."""
    return f"pip install 'loopguard-otel[{extra}]' (in a clone: pip install '.[{extra}]')"


def _parser() -> argparse.ArgumentParser:
    from loopguard import _clash

    parser = argparse.ArgumentParser(
        prog="loopguard", description="Notices when an agent's tool calls go round in circles."
    )
    parser.add_argument("--version", action="version", version=f"loopguard {_clash.own_version() or '(not installed)'}")
    parser.add_argument("--plain", action="store_true", help="the demo as plain text, also where rich is installed")
    commands = parser.add_subparsers(title="commands", dest="command", metavar="command")
    parser.set_defaults(command="demo")
    demo = commands.add_parser("demo", help="show a healthy run and loops that are caught (the default)")
    # Suppressed, or the default here would take back what stood before the command.
    demo.add_argument("--plain", action="store_true", default=argparse.SUPPRESS, help="plain text, without rich")
    doctor = commands.add_parser(
        "doctor", help="check the installation, the settings and your tools", description=_DOCTOR
    )
    doctor.add_argument(
        "target", nargs="?", metavar="module:TOOLS", help="a mapping, a list or a module of tools to look at"
    )
    return parser


_DOCTOR = (
    "Prints version, import clashes, settings with where each came from, optional packages and the OpenTelemetry "
    "environment; with module:TOOLS the tools that are not guarded or have no kind. Exit code 1 if there are problems."
)
