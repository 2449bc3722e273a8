"""Play the demo against a real Arize Phoenix and read the caught loops back through its REST API.

Run it from a clone, with nothing else prepared:

    python -m pip install '.[otel]'
    python examples/phoenix_demo.py --install .phoenix --keep

The first run installs Phoenix into a virtual environment of its own (a minute, about 850 MB).
`--phoenix PATH` takes one that is installed already, `--endpoint URL` one that is running.
With `--keep` Phoenix goes on until you press Ctrl-C, so that you can open the printed address.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

EVENT = "on_loop_detected"
START_TIMEOUT = 120.0  # seconds; Phoenix needs 12 to 18 on two cores


@dataclass(frozen=True)
class Phoenix:
    """A running Phoenix, seen through its REST API."""

    endpoint: str

    def spans(self, trace_id: str | None = None, *, project: str = "default") -> list[dict[str, Any]]:
        """The stored spans of a project, of one trace (32 hex digits) if given; empty for an unknown project."""
        query = {"limit": "1000"} | ({"trace_id": trace_id} if trace_id else {})
        path = f"/v1/projects/{urllib.parse.quote(project, safe='')}/spans?{urllib.parse.urlencode(query)}"
        try:
            with urllib.request.urlopen(self.endpoint + path, timeout=10) as answer:
                spans: list[dict[str, Any]] = json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            error.close()
            if error.code == 404:
                return []
            raise
        return spans

    def wait_for_events(self, *, project: str, timeout: float = 15.0) -> list[dict[str, Any]]:
        """The spans of a project once they have settled, with at least one loop event among them.

        Raises:
            TimeoutError: No loop event arrived within `timeout` seconds.
        """
        end = time.monotonic() + timeout
        before = -1
        while time.monotonic() < end:
            spans = self.spans(project=project)
            if len(spans) == before and any(loop_events(span) for span in spans):
                return spans
            before = len(spans)
            time.sleep(0.3)
        message = f"no {EVENT} in Phoenix project {project!r} after {timeout:g} s ({before} spans)"
        raise TimeoutError(message)


def loop_events(span: dict[str, Any]) -> list[dict[str, Any]]:
    """The attributes of the loop events of one span."""
    return [event["attributes"] for event in span["events"] if event["name"] == EVENT]


@contextmanager
def started(binary: str | os.PathLike[str]) -> Iterator[Phoenix]:
    """Start Phoenix on free ports of this machine with an empty data folder; end it when the block ends."""
    port, grpc_port = free_port(), free_port()
    endpoint = f"http://127.0.0.1:{port}"
    with tempfile.TemporaryDirectory(prefix="phoenix-", ignore_cleanup_errors=True) as folder:
        log = Path(folder, "phoenix.log")
        env = {name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "PYTHON"))}
        env |= {
            "PHOENIX_WORKING_DIR": folder,
            "PHOENIX_HOST": "127.0.0.1",
            "PHOENIX_PORT": str(port),
            "PHOENIX_GRPC_PORT": str(grpc_port),
            "PHOENIX_TELEMETRY_ENABLED": "false",
            "PHOENIX_ALLOW_EXTERNAL_RESOURCES": "false",
            "PHOENIX_DISABLE_AGENT_ASSISTANT": "true",
        }
        with log.open("wb") as sink:
            process = subprocess.Popen(
                [os.fspath(binary), "serve"], env=env, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink
            )
        try:
            wait_until_healthy(process, endpoint, log)
            yield Phoenix(endpoint)
        finally:
            process.terminate()
            try:
                process.wait(timeout=15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def free_port() -> int:
    """A TCP port that nothing listens on at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def wait_until_healthy(process: subprocess.Popen[bytes], endpoint: str, log: Path) -> None:
    """Return when Phoenix answers; raise a RuntimeError with the end of its log if it ends or takes too long."""
    end = time.monotonic() + START_TIMEOUT
    while process.poll() is None and time.monotonic() < end:
        try:
            with urllib.request.urlopen(f"{endpoint}/healthz", timeout=2):
                return
        except OSError:
            time.sleep(0.25)
    message = f"Phoenix did not start; the end of its log:\n{log.read_text(errors='replace')[-3000:]}"
    raise RuntimeError(message)


def installed(folder: Path) -> Path:
    """The Phoenix program in a virtual environment at `folder`, which is made if it is missing."""
    scripts = folder / ("Scripts" if os.name == "nt" else "bin")
    if not (scripts / "phoenix").exists():
        print(f"installing Phoenix into {folder} ...", flush=True)
        venv.create(folder, with_pip=True)
        subprocess.run([scripts / "python", "-m", "pip", "install", "--quiet", "arize-phoenix"], check=True)
    return scripts / "phoenix"


def play_demo(phoenix: Phoenix, *, project: str) -> str:
    """Run `python -m loopguard demo` with its spans sent to a project of Phoenix; returns what it printed."""
    env = os.environ | {
        "OTEL_EXPORTER_OTLP_ENDPOINT": phoenix.endpoint,
        "OTEL_RESOURCE_ATTRIBUTES": f"openinference.project.name={project}",
        "PYTHONUTF8": "1",
    }
    done = subprocess.run(
        [sys.executable, "-m", "loopguard", "demo", "--plain"],
        env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, encoding="utf-8", timeout=120,
        check=False,
    )  # fmt: skip
    if done.returncode != 0:
        message = f"the demo ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
        raise RuntimeError(message)
    return done.stdout


def show(phoenix: Phoenix, *, project: str, keep: bool) -> None:
    """Play the demo and print each loop event that Phoenix stored, with the address of its page."""
    print(play_demo(phoenix, project=project))
    print(f"What {phoenix.endpoint} stored of it:")
    for span in sorted(phoenix.wait_for_events(project=project), key=lambda span: span["start_time"]):
        for event in loop_events(span):
            action, message = event["loopguard.loop.action"], event["loopguard.loop.message"]
            print(f"  {action:7}{span['name']:24}{message}")
    if keep:
        print(
            f"Open {phoenix.endpoint}, project {project!r}, a trace, tab Events. Ctrl-C ends Phoenix.",
            flush=True,
        )
        try:
            while True:
                time.sleep(60)
        except KeyboardInterrupt:
            pass


def main() -> None:
    """Read the command line, find or start Phoenix, show what arrives there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--install", metavar="DIR", type=Path, help="install Phoenix there if needed, and start it")
    where.add_argument("--phoenix", metavar="PATH", type=Path, help="start this phoenix program")
    where.add_argument("--endpoint", metavar="URL", help="use the Phoenix that runs there")
    parser.add_argument("--project", default="loopguard-demo", help="the project in Phoenix (default: %(default)s)")
    parser.add_argument("--keep", action="store_true", help="leave Phoenix running until Ctrl-C")
    options = parser.parse_args()
    if options.endpoint:
        show(Phoenix(options.endpoint.rstrip("/")), project=options.project, keep=False)
        return
    with started(options.phoenix or installed(options.install)) as phoenix:
        show(phoenix, project=options.project, keep=options.keep)


if __name__ == "__main__":
    main()
