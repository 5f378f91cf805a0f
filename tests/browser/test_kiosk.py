"""The lecture as a kiosk: a real Voilà and a real browser, without JupyterLab around the panel."""

import os
import signal
import socket
import subprocess
import sys
import urllib.request
from importlib.util import find_spec

import pytest
from playwright.sync_api import expect

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not find_spec("voila"), reason="Voilà comes with the extra `kiosk`"),
]


@pytest.fixture
def kiosk(tmp_path, wait_until):
    """Starts `grpo-lab lecture --kiosk` in a language; its address. Ctrl-C must end it, and its kernels."""
    started = []

    def start(language: str) -> str:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        words = ["lecture", "--kiosk", f"--port={port}", "--no-browser", "--language", language]
        with (tmp_path / "voila.log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "grpo_lab", *words],
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                stdout=log,
                stderr=subprocess.STDOUT,
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
            )
        started.append(process)
        url = f"http://127.0.0.1:{port}/"

        def answers() -> bool:
            assert process.poll() is None, (tmp_path / "voila.log").read_text()
            try:
                return urllib.request.urlopen(f"{url}voila/static/voila.js", timeout=10).status == 200
            except OSError:
                return False

        wait_until("Voilà does not answer", answers)
        return url

    yield start
    for process in started:
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0, (tmp_path / "voila.log").read_text()


@pytest.mark.parametrize(
    ("language", "first", "second"), [("en", "A healthy run", "explodes"), ("zh", "健康的训练", "爆炸")]
)
def test_the_kiosk_begins_by_itself_and_obeys_keys(browser, kiosk, language, first, second):
    page = browser.new_page(viewport={"width": 1440, "height": 900})
    page.goto(kiosk(language))
    says = page.locator(".grpo-lab-says")
    expect(says).to_contain_text(first)
    assert page.locator("text=Shift+Enter").count() == 0  # words for JupyterLab
    assert page.locator(".jp-InputArea").count() == 0  # code
    page.keyboard.press("2")
    expect(says).to_contain_text(second)
    page.keyboard.press("End")
    expect(page.locator(".grpo-lab-time .widget-readout")).to_have_text("60")
    page.close()
