"""A reward function that asks a server, and a server to try it with, which fails at times.

    python remote_reward.py grpo-lab train …    # with the server, as long as the command runs

The server judges by the share of digits. Of every ten requests it answers one with status 500 and one a second late.
"""

import http.server
import itertools
import json
import os
import subprocess
import sys
import threading
import time
import urllib.request

ADDRESS = "JUDGE_ADDRESS"
"""The environment variable with the server's address."""
LATE = 1.0


def remote(completions, **kwargs):
    """The server's number for each completion. An exception is a failed call, which grpo_lab makes again."""
    return [asked(text) for text in completions]


def asked(text):
    """The server's number for one completion."""
    with urllib.request.urlopen(os.environ[ADDRESS], json.dumps({"text": text}).encode(), timeout=10) as answer:
        return json.load(answer)["reward"]


class Judge(http.server.BaseHTTPRequestHandler):
    """Answers with a number, with status 500, or late."""

    count = itertools.count()

    def do_POST(self):
        text = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["text"]
        turn = next(self.count) % 10
        if turn == 3:
            return self.send_error(500)
        if turn == 7:
            time.sleep(LATE)
        body = json.dumps({"reward": sum(map(str.isdecimal, text)) / max(1, len(text))}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def handle(self):
        """Answer, unless the caller is gone."""
        try:
            super().handle()
        except ConnectionError:
            self.close_connection = True

    def log_message(self, format, *args):
        """Write nothing."""


def main() -> int:
    """Run the command beside a server, and return its exit code."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Judge)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_address[1]}"
    return subprocess.run(sys.argv[1:], env={**os.environ, ADDRESS: address}).returncode


if __name__ == "__main__":
    sys.exit(main())
