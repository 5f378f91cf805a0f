"""The judge over HTTP, against a server of these tests that is slow, wrong, busy or down."""

import json
import socket
import threading
import time
from contextlib import closing
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

import grpo_lab as gl
from grpo_lab.config.sections import JudgeConfig
from grpo_lab.core.hooks import Verdict
from grpo_lab.errors import ConfigError, RewardError
from grpo_lab.events import Ended, Evaluated, Started, Stepped
from grpo_lab.runs.session import Session
from grpo_lab.tasks import http_judge, rewards
from grpo_lab.tasks.http_judge import fill, number_in, wait_of
from grpo_lab.tasks.tasks import Problem

KEY = "Zk9-secret-of-this-test"
LONG = 10.0


class Server(ThreadingHTTPServer):
    """An OpenAI-compatible server; `answer(number of the request, message)` gives a text or (status, headers, body)."""

    daemon_threads = True

    def __init__(self, answer):
        super().__init__(("127.0.0.1", 0), Handler)
        self.answer = answer
        self.start = (404, {}, "{}")
        self.requests: list[dict] = []
        self.paths: list[str] = []
        self.keys: list[str | None] = []
        self.lock = threading.Lock()
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_address[1]}/v1"

    def kill(self):
        """Take no further connection, as a process that died; open ones end with their request."""
        self.shutdown()
        self.server_close()

    def handle_error(self, request, client_address):
        """A client that left its request is part of these tests."""


class Handler(BaseHTTPRequestHandler):
    """Answers what the server's function says."""

    protocol_version = "HTTP/1.1"  # which keeps connections open
    server: Server  # pyright: ignore[reportIncompatibleVariableOverride]

    def do_GET(self):
        self.server.keys.append(self.headers["Authorization"])
        self._send(*self.server.start)

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
        if found is None:  # the process died: no answer at all
            self.close_connection = True
        else:
            self._send(*found)

    def _send(self, status, headers, body):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body.encode())))
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, format, *args):
        """Write nothing."""


@pytest.fixture
def serve():
    """`serve(answer)` starts a server, which ends with the test."""
    servers = []

    def start(answer):
        servers.append(Server(answer))
        return servers[-1]

    yield start
    for server in servers:
        server.kill()


def settings(server, **more):
    return JudgeConfig(**{"workers": 4, "url": server.url, "retries": 0, "backoff": 0.0, **more})


def ask(settings, completions=("2",)):
    """The result of the HTTP judge for completions of one prompt."""
    problems = [Problem("1+1=", {"answer": "2"})] * len(completions)
    return rewards.judge([rewards.load("http_judge", settings)], problems, list(completions), settings)


def failures(found):
    assert found.calls is not None
    return [why for _, why in found.calls.failures]


def test_the_request_is_a_chat_completion(serve):
    server = serve(lambda number, message: " 7\n")
    found = ask(settings(server, model="judge-1", temperature=0, prompt="{prompt}{completion} of {answer} {x}"))
    assert found.values.tolist() == [7.0] and found.scorable.all() and failures(found) == []
    assert server.paths == ["/v1/chat/completions"]
    message = {"role": "user", "content": "1+1=2 of 2 {x}"}
    assert server.requests == [{"messages": [message], "model": "judge-1", "temperature": 0.0}]
    assert server.keys == [None, None]


def test_model_and_temperature_are_left_to_the_server_and_the_address_may_be_whole(serve):
    server = serve(lambda number, message: "7")
    ask(settings(server, url=f"{server.url}/chat/completions/"))
    assert server.paths == ["/v1/chat/completions"] and set(server.requests[0]) == {"messages"}


def test_the_order_is_kept_and_braces_in_a_completion_are_text(serve):
    server = serve(lambda number, message: message.rpartition("|")[2].strip("{}"))
    found = ask(settings(server, prompt="|{completion}"), ["3", "{1}", "2", "4"])
    assert found.values.tolist() == [3, 1, 2, 4]


@pytest.mark.parametrize(
    ("answer", "number"),
    [
        ("7", 7), (" 0.5\n", 0.5), ("-1", -1), ("+3", 3), (".5", 0.5), ("7.", 7), ("1e-2", 0.01), ("`7`", 7),
        ("**7**", 7), ('"7"', 7), ("Score: 7", 7), ("**Score:** 7", 7), ("final score = 0.5.", 0.5),
        ("The rating", None), ("Rating is 3", 3), ('{"score": 7}', 7), ("<think>it is 3 or 4</think>\n8", 8),
        ("", None), ("I think so", None), ("7/10", None), ("70%", None), ("7 or 8", None), ("1,000", None),
        ("about 7", None), ("seven", None), ("nan", None), ("inf", None), ("1e999", None), ("7 8", None), ("٣", None),
        ("Score: high", None), ("10 out of 10", None), ("no. 1", None), ("--7", None),
    ],
)  # fmt: skip
def test_only_an_answer_that_is_one_number_counts(answer, number):
    assert number_in(answer) == number


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        ("I think so", "answered 'I think so', no number"),
        ((500, {}, "oops"), "answered 500"),
        ((400, {}, "{}"), "answered 400"),
        ((200, {}, "<html>"), "answered something that is no chat completion"),
        ((200, {}, "[]"), "answered something that is no chat completion"),
        ((200, {}, '{"choices": []}'), "answered something that is no chat completion"),
        ((200, {}, '{"choices": [{"message": {"content": null}}]}'), "answered '', no number"),
        ((302, {"Location": "http://127.0.0.1:9/"}, ""), "answered 302"),
        (None, "raised RemoteProtocolError: Server disconnected without sending a response."),
    ],
)
def test_anything_else_is_a_failed_call(serve, reply, why):
    found = ask(settings(serve(lambda number, message: reply)))
    assert failures(found) == [why] and not found.scorable.any()


def test_a_call_beyond_the_limit_has_timed_out(serve):
    released = threading.Event()

    def slow_for_one(number, message):
        if "slow" in message:
            released.wait(LONG)
        return "7"

    server = serve(slow_for_one)
    found = ask(settings(server, timeout_s=0.3), ["slow", "fast"])
    released.set()
    assert failures(found) == ["timed out after 0.3 s"] and found.scorable.tolist() == [False, True]


@pytest.mark.parametrize(("status", "times"), [(500, 3), (503, 3), (429, 3), (408, 3), (400, 1), (401, 1), (404, 1)])
def test_only_what_may_pass_is_asked_again(serve, status, times):
    server = serve(lambda number, message: (status, {}, "{}"))
    assert failures(ask(settings(server, retries=2))) == [f"answered {status}"]
    assert len(server.requests) == times


def test_a_busy_server_is_asked_again_when_it_says(serve):
    asked = []

    def busy_once(number, message):
        asked.append(time.monotonic())
        return (429, {"Retry-After": "0.05"}, "{}") if number == 0 else "7"

    found = ask(settings(serve(busy_once), retries=1))
    assert found.values.tolist() == [7.0] and failures(found) == []
    assert asked[1] - asked[0] >= 0.05


def test_the_wait_that_a_server_asks_for():
    assert wait_of("120") == 120.0
    assert 50 < wait_of(formatdate(time.time() + 60, usegmt=True)) <= 60
    for text in ("", "soon", "nan", "inf", "-3", formatdate(0), "9" * 400, "Wed, 99 Foo 2015 07:28:00 GMT"):
        assert wait_of(text) == 0.0


def test_a_value_with_braces_is_not_filled_in_again():
    assert fill("{prompt}|{completion}", {"prompt": "{completion}", "completion": "x"}) == "{completion}|x"


# --- before the run --------------------------------------------------------------------------------------------------

SMALL = ("run.threads=1", "run.device=cpu", "data.num_prompts=2", "run.num_steps=3", "data.rewards=http_judge,")


def config_for(server, *overrides):
    pool = ("judge.workers=4", "judge.backoff=0", "judge.retries=1", f"judge.url={server.url}")
    return gl.preset("plain").with_(*SMALL, *pool, *overrides)


def closed_port():
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_a_server_that_is_down_is_an_error_before_anything_is_loaded(monkeypatch):
    monkeypatch.setattr("grpo_lab.models.loading.load", lambda *_: pytest.fail("a model was loaded"))
    url = f"http://127.0.0.1:{closed_port()}/v1"
    config = gl.preset("plain").with_(*SMALL, "judge.workers=4", f"judge.url={url}")
    with pytest.raises(RewardError, match=f"judge.url = {url}: no answer .ConnectError: .*; start the server first"):
        next(gl.train(config))


def test_a_server_that_does_not_answer_in_time_is_down(monkeypatch):
    monkeypatch.setattr(http_judge, "START_LIMIT", 0.05)
    with closing(socket.create_server(("127.0.0.1", 0))) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(RewardError, match=r"no answer .ReadTimeout: timed out"):
            rewards.load("http_judge", JudgeConfig(workers=1, url=url, timeout_s=0.05))


def test_a_server_that_wants_a_key_says_so_before_the_run(serve):
    server = serve(lambda number, message: "7")
    server.start = (401, {}, "{}")
    with pytest.raises(RewardError, match=r"answered 401; set judge\.api_key_env"):
        rewards.load("http_judge", settings(server))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"workers": 0}, "http_judge needs a pool of calls: judge.workers = 0; set 1 or more"),
        ({"url": ""}, "judge.url = '': give an address such as http://localhost:8000/v1"),
        ({"url": "localhost:8000"}, "judge.url = 'localhost:8000': give an address"),
        ({"url": "ftp://host/v1"}, "judge.url = 'ftp://host/v1': give an address"),
        ({"url": "http://host:x/"}, "is no address"),
        ({"url": "http://me:SECRET@host/v1"}, "judge.url holds a user name, a password or a query"),
        ({"url": "http://host/v1?key=SECRET"}, "judge.url holds a user name, a password or a query"),
        ({"api_key_env": "GRPO_LAB_ABSENT_SECRET"}, "judge.api_key_env names a variable that is not set"),
        ({"api_key_env": "GRPO_LAB_BAD"}, "judge.api_key_env names a variable whose value is no key"),
    ],
)
def test_settings_that_cannot_work_are_an_error_before_the_run(monkeypatch, given, message):
    monkeypatch.setenv("GRPO_LAB_BAD", "two SECRET\nlines")
    with pytest.raises(ConfigError, match=message.replace("?", r"\?")) as caught:
        rewards.load("http_judge", JudgeConfig(**{"workers": 1, "url": "http://127.0.0.1:9", **given}))
    assert "SECRET" not in str(caught.value)


# --- a run with this judge -------------------------------------------------------------------------------------------


def run(config):
    """The steps of a run that ends healthy, in which no failed call counts: the server gives 7 or fails."""
    events = list(gl.train(config))
    assert isinstance(events[-1], Ended) and events[-1].status == "done"
    steps = [event for event in events if isinstance(event, Stepped)]
    assert len(steps) == 3 and all(step.metrics.get("reward", 7.0) == 7.0 for step in steps)
    assert all(event.reward == 7.0 for event in events if isinstance(event, Evaluated))
    assert not any(note.broken for step in steps for note in step.links)
    return steps


def said(step):
    return [action.reason for action in step.actions if action.name == "judge"]


def test_a_server_that_answers_judges_every_step(serve):
    assert [step.metrics["judge/failed"] for step in run(config_for(serve(lambda *_: "7")))] == [0, 0, 0]


def test_a_server_killed_in_mid_step_ends_in_refused_steps(serve):
    server = serve(None)

    def dies(number, message):
        if number == 20:  # of 16 a step
            server.kill()
        return "7" if number < 20 else None

    server.answer = dies
    first, second, third = run(config_for(server))
    assert (first.verdict, second.verdict, third.verdict) == (Verdict.KEEP, Verdict.SKIP_STEP, Verdict.SKIP_STEP)
    assert first.metrics["judge/failed"] == 0 < second.metrics["judge/failed"] <= third.metrics["judge/failed"] == 1
    assert "raised ConnectError: " in said(second)[0] and said(third)[0].startswith("share 1 > 0.5; 16 of 16 calls")


@pytest.mark.slow
def test_a_server_that_is_too_slow_for_some(serve):
    released = threading.Event()

    def slow_once(number, message):
        if number == 2:
            released.wait(LONG)
        return "7"

    server = serve(slow_once)
    steps = run(config_for(server, "judge.timeout_s=0.5", "judge.retries=0"))
    released.set()
    assert said(steps[0]) == ["1 of 16 calls failed: 1 timed out after 0.5 s"] and steps[0].updates == 1


def test_a_server_that_answers_prose_500_and_garbage(serve):
    replies = {3: "I think so", 4: "I think so", 5: (500, {}, ""), 6: (200, {}, "<html>")}
    server = serve(lambda number, message: replies.get(number, "7"))
    steps = run(config_for(server, "judge.retries=0"))
    head, _, kinds = said(steps[0])[0].partition(", no number, ")
    assert head == "4 of 16 calls failed: 2 answered 'I think so'"
    assert set(kinds.split(", ")) == {"1 answered 500", "1 answered something that is no chat completion"}
    assert steps[0].metrics["judge/failed"] == 0.25 and said(steps[1]) == said(steps[2]) == []


def test_a_busy_server_costs_time_and_no_reward(serve):
    busy = (429, {"Retry-After": "0.01"}, "{}")
    server = serve(lambda number, message: busy if number < 8 else "7")
    steps = run(config_for(server, "judge.retries=4"))
    assert [step.metrics["judge/failed"] for step in steps] == [0, 0, 0] and len(server.requests) == 3 * 16 + 8


def test_the_key_is_sent_and_written_nowhere(serve, monkeypatch, tmp_path, capfd, caplog):
    """The server sends the key back, in a message that is quoted."""
    caplog.set_level("DEBUG")
    monkeypatch.setenv("GRPO_LAB_TEST_KEY", f" {KEY}\n")
    server = serve(lambda number, message: f"for {KEY}" if number == 0 else "7")
    config = config_for(server, "judge.api_key_env=GRPO_LAB_TEST_KEY", "run.num_steps=1")
    done = Session(config, tmp_path / "run").run()
    assert done.status == "done" and set(server.keys) == {f"Bearer {KEY}"}
    assert said(next(event for event in done.events if isinstance(event, Stepped))) == [
        "1 of 16 calls failed: 1 answered 'for (key)', no number"
    ]
    written = "".join(path.read_text(errors="replace") for path in (tmp_path / "run").rglob("*") if path.is_file())
    shown = "".join(capfd.readouterr()) + caplog.text
    assert "GRPO_LAB_TEST_KEY" in written and KEY not in written + shown


def test_a_session_says_that_the_server_is_down(tmp_path):
    url = f"http://127.0.0.1:{closed_port()}"
    config = gl.preset("plain").with_(*SMALL, "judge.workers=4", f"judge.url={url}")
    session = Session(config, tmp_path / "run")
    with pytest.raises(RewardError, match="start the server first"):
        session.run(check=True)
    assert not any(isinstance(event, Started | Stepped) for event in session.events)
