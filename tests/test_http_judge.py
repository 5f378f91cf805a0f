"""docs/examples/http_judge.py in the pool, against a server of these tests that is slow, wrong, busy or down."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from grpo_lab.config.sections import JudgeConfig
from grpo_lab.tasks import rewards
from grpo_lab.tasks.tasks import Problem

NAME = f"{Path(__file__).parents[1]}/docs/examples/http_judge.py:HttpJudge"
KEY = "Zk9-secret-of-this-test"


class Server(ThreadingHTTPServer):
    """An OpenAI-compatible server; `answer(number of the request, message)` gives a text or (status, headers, body)."""

    daemon_threads = True

    def __init__(self, answer):
        super().__init__(("127.0.0.1", 0), Handler)
        self.answer = answer
        self.requests: list[dict] = []
        self.paths: list[str] = []
        self.keys: list[str | None] = []
        self.lock = threading.Lock()
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def kill(self):
        """Take no further connection, as a process that died."""
        self.shutdown()
        self.server_close()

    def handle_error(self, request, client_address):
        """A client that left its request is part of these tests."""


class Handler(BaseHTTPRequestHandler):
    """Answers what the server's function says."""

    server: Server  # pyright: ignore[reportIncompatibleVariableOverride]

    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.server.lock:
            number = len(self.server.requests)
            self.server.requests.append(request)
            self.server.paths.append(self.path)
            self.server.keys.append(self.headers["Authorization"])
        found = self.server.answer(number, request["messages"][0]["content"])
        if isinstance(found, str):
            found = 200, {}, json.dumps({"choices": [{"message": {"role": "assistant", "content": found}}]})
        if found is not None:  # else the process died: no answer at all
            self._send(*found)

    def do_GET(self):
        self.server.keys.append(self.headers["Authorization"])
        self.send_error(404)

    def _send(self, status, headers, body):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, format, *args):
        """Write nothing."""


@pytest.fixture
def serve(monkeypatch):
    """`serve(answer)` starts the server that the example asks; it ends with the test."""
    servers = []

    def start(answer):
        servers.append(Server(answer))
        monkeypatch.setenv("JUDGE_URL", f"http://127.0.0.1:{servers[-1].server_address[1]}/v1/")
        return servers[-1]

    yield start
    for server in servers:
        server.kill()


def ask(completions=("2",), **more):
    """The result of the example for completions of one prompt."""
    settings = JudgeConfig(**{"workers": 4, "retries": 0, "backoff": 0.0, **more})
    problems = [Problem("1+1=", {"answer": "2"})] * len(completions)
    return rewards.begin([rewards.load(NAME, settings)], problems, list(completions), settings)()


def failures(found):
    assert found.calls is not None
    return [why for _, why in found.calls.failures]


@pytest.mark.parametrize("key", [None, KEY])
def test_the_request_is_a_chat_completion(serve, monkeypatch, key):
    monkeypatch.setenv("JUDGE_API_KEY", f" {key}\n" if key else "")
    server = serve(lambda number, message: " 7\n")
    found = ask(["{2}"])
    assert found.values.tolist() == [7.0] and found.scorable.all() and failures(found) == []
    assert server.paths == ["/v1/chat/completions"] and server.keys == [f"Bearer {key}" if key else None]
    ((message,),) = (request.pop("messages") for request in server.requests)
    assert message["role"] == "user"
    assert message["content"].startswith("Question: 1+1=\nReference: 2\nAnswer: {2}\nRate the answer from 0 (wrong)")
    assert server.requests == [{"model": "judge-model", "temperature": 0}]


@pytest.mark.parametrize(
    ("reply", "why", "times"),
    [
        ("I think so", "answered 'I think so', no number", 1),
        ("7/10", "answered '7/10', no number", 1),
        ((500, {}, "oops"), "answered 500", 3),
        ((429, {"Retry-After": "soon"}, ""), "answered 429", 3),
        ((400, {}, "{}"), "answered 400", 1),
        ((401, {}, "{}"), "answered 401", 1),
        ((200, {}, "<html>"), "answered something that is no chat completion", 3),
        ((200, {}, '{"choices": []}'), "answered something that is no chat completion", 3),
        (None, "raised RemoteDisconnected: Remote end closed connection without response", 3),
    ],
)
def test_anything_else_is_a_failed_call_and_only_what_may_pass_is_asked_again(serve, reply, why, times):
    server = serve(lambda number, message: reply)
    found = ask(retries=2)
    assert failures(found) == [why] and not found.scorable.any() and len(server.requests) == times


def test_a_busy_server_is_asked_again_when_it_says(serve):
    server = serve(lambda number, message: (429, {"Retry-After": "1"}, "{}") if number == 0 else "7")
    found = ask(retries=1)
    assert found.values.tolist() == [7.0] and len(server.requests) == 2
    assert found.calls is not None and found.calls.failures == () and found.calls.waited >= 1


def test_a_server_that_goes_elsewhere_takes_no_key_along(serve, monkeypatch):
    other = serve(lambda number, message: "7")
    elsewhere = f"http://127.0.0.1:{other.server_address[1]}/v1"
    monkeypatch.setenv("JUDGE_API_KEY", KEY)
    serve(lambda number, message: (302, {"Location": elsewhere}, ""))
    assert failures(ask()) == ["answered 404"]  # a redirected request is a GET
    assert other.keys == [None]
