"""docs/examples/http_judge.py in the pool, against a server of these tests that is slow, wrong, busy or down."""

import json
import threading
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from grpo_lab.config.sections import JudgeConfig
from grpo_lab.tasks import rewards
from grpo_lab.tasks.tasks import Problem

NAME = f"{Path(__file__).parents[1]}/docs/examples/http_judge.py:HttpJudge"
KEY = "Zk9-secret-of-this-test"


class Server(ThreadingHTTPServer):
    """An OpenAI-compatible server; `answer(number)` gives a text, (status, headers, body), or nothing."""

    daemon_threads = True

    def __init__(self, answer):
        super().__init__(("127.0.0.1", 0), Handler)
        self.answer, self.requests = answer, []
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()


class Handler(BaseHTTPRequestHandler):
    """Answers what the server's function says."""

    server: Server  # pyright: ignore[reportIncompatibleVariableOverride]

    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.requests.append((self.path, self.headers["Authorization"], request))
        found = self.server.answer(len(self.server.requests) - 1)
        if isinstance(found, str):
            found = 200, {}, json.dumps({"choices": [{"message": {"role": "assistant", "content": found}}]})
        if found is None:  # the process died
            return
        status, headers, body = found
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
    with ExitStack() as servers:

        def start(answer):
            server = servers.enter_context(Server(answer))
            servers.callback(server.shutdown)
            monkeypatch.setenv("JUDGE_URL", f"http://127.0.0.1:{server.server_address[1]}/v1/")
            return server

        yield start


def ask(completion="2", **more):
    """The result of the example for a completion."""
    settings = JudgeConfig(**{"workers": 4, "retries": 0, "backoff": 0.0, **more})
    return rewards.begin([rewards.load(NAME, settings)], [Problem("1+1=", {"answer": "2"})], [completion], settings)()


def failures(found):
    assert found.calls is not None
    return [why for _, why in found.calls.failures]


@pytest.mark.parametrize("key", [None, KEY])
def test_the_request_is_a_chat_completion(serve, monkeypatch, key):
    monkeypatch.setenv("JUDGE_API_KEY", f" {key}\n" if key else "")
    server = serve(lambda number: " 7\n")
    found = ask("{2}")
    assert found.values.tolist() == [7.0] and found.scorable.all() and failures(found) == []
    ((path, authorization, request),) = server.requests
    assert (path, authorization) == ("/v1/chat/completions", f"Bearer {key}" if key else None)
    (message,) = request.pop("messages")
    assert message["role"] == "user"
    assert message["content"].startswith("Question: 1+1=\nReference: 2\nAnswer: {2}\nRate the answer from 0 (wrong)")
    assert request == {"model": "judge-model", "temperature": 0}


@pytest.mark.parametrize(
    ("reply", "why", "times"),
    [
        ("I think so", "answered 'I think so', no number", 1),
        ((500, {}, "oops"), "answered 500", 3),
        ((429, {"Retry-After": "soon"}, ""), "answered 429", 3),
        ((400, {}, "{}"), "answered 400", 1),
        ((200, {}, '{"choices": []}'), "answered something that is no chat completion", 3),
        (None, "raised RemoteDisconnected: Remote end closed connection without response", 3),
    ],
)
def test_anything_else_is_a_failed_call_and_only_what_may_pass_is_asked_again(serve, reply, why, times):
    server = serve(lambda number: reply)
    found = ask(retries=2)
    assert failures(found) == [why] and not found.scorable.any() and len(server.requests) == times


def test_a_busy_server_is_asked_again_when_it_says(serve):
    server = serve(lambda number: (429, {"Retry-After": "1"}, "{}") if number == 0 else "7")
    found = ask(retries=1)
    assert found.values.tolist() == [7.0] and len(server.requests) == 2
    assert found.calls is not None and found.calls.failures == () and found.calls.waited >= 1
