"""`python -m benchmarks.judge`: the time that a step waits for a judge of 0.5 s, by the number of workers.

The judge is a function that sleeps, or a local server that sleeps before it answers, asked by `http_judge`. A step has
32 completions, so that n workers need 32 / n rounds of 0.5 s at least. Writes results/judge.json.
"""

from __future__ import annotations

import json
import statistics
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.__main__ import write
from benchmarks.timing import Run
from grpo_lab.analysis.markdown import number
from grpo_lab.config.catalog import preset
from grpo_lab.ui import console

SECONDS = 0.5
WORKERS = (1, 4, 8, 16, 32)
REPLY = json.dumps({"choices": [{"message": {"content": "0.5"}}]}).encode()
CALLS = 32


class Handler(BaseHTTPRequestHandler):
    """Answers every request with 0.5, after 0.5 s."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # head and body are two packets, and the second would wait 40 ms

    def do_GET(self) -> None:
        """Say at once that the server is there."""
        self.send_response(204)
        self.end_headers()

    def do_POST(self) -> None:
        """Answer with a chat completion."""
        self.rfile.read(int(self.headers["Content-Length"]))
        time.sleep(SECONDS)
        self.send_response(200)
        self.send_header("Content-Length", str(len(REPLY)))
        self.end_headers()
        self.wfile.write(REPLY)

    def log_message(self, format: str, *args: Any) -> None:
        """Write nothing."""


def sleeps(prompts: list[str], completions: list[str], **columns: object) -> list[float]:
    """A judge that takes 0.5 s for each call."""
    time.sleep(SECONDS)
    return [float(len(completion)) for completion in completions]


def measured(kind: str, workers: int, steps: int, url: str) -> dict[str, float]:
    """Median seconds of a step, those that it waited for the judge, and the least possible."""
    settings = ("run.device=cpu", "run.threads=1", "data.num_prompts=4", f"run.num_steps={steps + 1}")
    judge = (f"judge.workers={workers}", f"judge.url={url}", "judge.retries=0", "data.rewards=http_judge,")
    run = Run(preset("plain").with_(*settings, *judge), rewards=[sleeps] if kind == "function" else None)
    run.advance(1)  # the first one opens the connections
    run.advance(steps)
    kept = run.steps[1:]
    assert all(step.metrics["judge/failed"] == 0 for step in kept)
    found = {
        "step": statistics.median(step.metrics["step_time"] for step in kept),
        "waited": statistics.median(step.metrics["judge/time"] for step in kept),
        "least": -(-CALLS // workers) * SECONDS,
    }
    return {name: round(value, 3) for name, value in found.items()}


def main(
    steps: Annotated[int, typer.Option(min=1, help="Measured steps for each number of workers.")] = 3,
    out: Annotated[Path, typer.Option(help="File to write.")] = Path("benchmarks/results/judge.json"),
) -> None:
    """Measure, print a table, and write one JSON file."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_address[1]}/v1"
    results: dict[str, Any] = {}
    rows = [["judge", "workers", "step, s", "waited, s", "least possible, s"]]
    for kind in ("function", "http"):
        results[kind] = {str(workers): measured(kind, workers, steps, url) for workers in WORKERS}
        rows += [[kind, workers, *map(number, found.values())] for workers, found in results[kind].items()]
        results[kind]["step, 4 / 8 workers"] = round(results[kind]["4"]["step"] / results[kind]["8"]["step"], 3)
    server.shutdown()
    write(out, results)
    console.out.print(console.table(rows))
    console.out.print({kind: found["step, 4 / 8 workers"] for kind, found in results.items()})


if __name__ == "__main__":
    typer.run(main)
