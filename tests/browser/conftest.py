"""A real JupyterLab and a real browser: started once, ended by their own pids, and nothing downloaded.

Without Debian's chromium these tests skip; where CI says so, they fail: `tests/install-packages` gets it.
"""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, Page, sync_playwright

ROOT = Path(__file__).parents[2]
FAILED = pytest.StashKey[bool]()
PATIENCE = 60_000
"""Milliseconds. What takes a blink may take long on a busy machine, and nothing here waits longer than it must."""


def wait_until(what, true, seconds: float = 60.0):
    """The first true answer of `true()`; without one in time, the test fails saying `what`."""
    end = time.monotonic() + seconds
    while not (answer := true()):
        assert time.monotonic() < end, f"after {seconds:.0f} s: {what}"
        time.sleep(0.1)
    return answer


def processes() -> dict[int, tuple[int, str]]:
    """pid -> (parent's pid, command line) of whatever runs here and is no zombie."""
    found = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                stat, command = (folder / "stat").read_text(), (folder / "cmdline").read_text()
            except (FileNotFoundError, ProcessLookupError):
                continue  # it ended while we looked
            if command:
                found[int(folder.name)] = (int(stat.rpartition(")")[2].split()[1]), command.replace("\0", " "))
    return found


class Server:
    """JupyterLab on a free loopback port, all its folders its own."""

    def __init__(self, home: Path) -> None:
        self.folder = home / "labs"
        self.folder.mkdir(parents=True)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.url = f"http://127.0.0.1:{free.getsockname()[1]}"
        settings = home / "settings" / "@jupyterlab" / "apputils-extension"
        settings.mkdir(parents=True)
        (settings / "notification.jupyterlab-settings").write_text('{"fetchNews": "false", "checkForUpdates": false}')
        self.log = home / "jupyter.log"
        flags = {
            "IdentityProvider.token": "",
            "ServerApp.disable_check_xsrf": "True",
            "ServerApp.port": self.url.rpartition(":")[2],
            "ServerApp.port_retries": "0",
            "ServerApp.root_dir": str(self.folder),
            "LabApp.expose_app_in_browser": "True",
            # Should the tests be killed, it ends by itself.
            "MappingKernelManager.cull_idle_timeout": "240",
            "MappingKernelManager.cull_interval": "60",
            "ServerApp.shutdown_no_activity_timeout": "300",
            "LabApp.user_settings_dir": str(home / "settings"),
            "LabApp.workspaces_dir": str(home / "workspaces"),
        }
        private = {f"JUPYTER_{kind}_DIR": str(home / kind.lower()) for kind in ("CONFIG", "DATA", "RUNTIME")}
        private["IPYTHONDIR"] = str(home / "ipython")
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root"]
                + [f"--{name}={value}" for name, value in flags.items()],
                env={**os.environ, **private, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
                cwd=self.folder,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        wait_until("JupyterLab does not answer", self._answers)

    def get(self, path: str):
        with urllib.request.urlopen(f"{self.url}/api/{path}", timeout=10) as answer:
            return json.load(answer)

    def _answers(self) -> bool:
        assert self.process.poll() is None, self.log.read_text()
        try:
            return bool(self.get("status"))
        except OSError:
            return False

    def write(self, name: str, *cells: str) -> str:
        """A notebook of code cells; the answer is its path as the browser names it."""
        kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
        code = [
            {"cell_type": "code", "id": f"c{n}", "metadata": {}, "outputs": [], "execution_count": None, "source": cell}
            for n, cell in enumerate(cells)
        ]
        notebook = {"cells": code, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
        (self.folder / f"{name}.ipynb").write_text(json.dumps(notebook))
        return f"{name}.ipynb"

    def descendants(self, pattern: str = "") -> dict[int, str]:
        """pid -> command line of what this server started, directly or not, and whose command line matches."""
        table, ours = processes(), {self.process.pid}
        while more := {pid for pid, (parent, _) in table.items() if parent in ours} - ours:
            ours |= more
        return {pid: table[pid][1] for pid in sorted(ours & set(table)) if re.search(pattern, table[pid][1])}

    def workers(self) -> dict[int, str]:
        """The children that train."""
        return self.descendants(r"-m grpo_lab\.worker")

    def end(self) -> dict[int, str]:
        """Ask it to end; the answer is whatever of its processes would not."""
        ours = self.descendants()
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(30)
        try:
            wait_until("processes were left behind", lambda: not set(ours) & set(processes()), 15)
        except AssertionError:
            return {pid: ours[pid] for pid in set(ours) & set(processes())}
        return {}


class Notebook:
    """A notebook open in the browser, driven by JupyterLab's own commands; widgets are found by their CSS class."""

    def __init__(self, server: Server, page: Page, path: str, mode: str = "lab") -> None:
        self.server, self.page, self.path = server, page, path
        self.open(mode, reset=True)

    def open(self, mode: str = "lab", reset: bool = False) -> None:
        """Load the page, again or for the first time (`reset`), and wait for its kernel."""
        self.page.goto(f"{self.server.url}/{mode}/tree/{self.path}" + ("?reset" if reset else ""))
        self.page.locator(".jp-Notebook").wait_for()
        self.page.wait_for_function("globalThis.jupyterapp?.shell.currentWidget?.sessionContext?.session?.kernel")
        if not reset:
            return  # a kernel that waits in a cell says nothing, and need not
        # Not before the session itself is ready, or JupyterLab still asks which kernel to take.
        self.page.evaluate(
            """async () => { const context = jupyterapp.shell.currentWidget.sessionContext;
                await context.ready; await context.session.kernel.info }"""
        )
        self.idle()

    def idle(self) -> None:
        """Wait until the kernel has nothing to do."""
        self.page.locator(".jp-Notebook-ExecutionIndicator[data-status=idle]").wait_for()

    def command(self, name: str) -> None:
        """Begin one of JupyterLab's commands; it goes on by itself."""
        self.page.evaluate("name => { void jupyterapp.commands.execute(name) }", name)

    def run_cell(self, number: int) -> None:
        """Begin to run one cell; its end is awaited by looking for what it shows."""
        self.page.evaluate(
            "n => { jupyterapp.shell.currentWidget.content.activeCellIndex = n;"
            " void jupyterapp.commands.execute('notebook:run-cell') }",
            number,
        )

    def run_all(self) -> None:
        self.command("notebook:run-all-cells")

    def save(self) -> None:
        self.page.evaluate("jupyterapp.commands.execute('docmanager:save')")

    def output(self, number: int) -> Locator:
        """What a cell shows."""
        return self.page.locator(".jp-Notebook .jp-Cell").nth(number).locator(".jp-Cell-outputArea")

    def find(self, css: str, which: int = 0) -> Locator:
        """The widget of this CSS class, say `start` for grpo-lab-start."""
        return self.page.locator(f".grpo-lab-{css}").nth(which)

    def count_frames(self, which: int = 0) -> None:
        """From now on, `frames` counts how often the plot's picture is replaced."""
        self.find("plot", which).evaluate(
            """plot => { const image = plot.matches('img') ? plot : plot.querySelector('img'); window.frames_ = 0;
                new MutationObserver(changes => { window.frames_ += changes.length })
                    .observe(image, {attributes: true, attributeFilter: ['src']}) }"""
        )

    def frames(self) -> int:
        return self.page.evaluate("window.frames_")

    def picture(self, which: int = 0) -> str:
        """The pixels that the plot shows, by their digest."""
        return self.find("plot", which).evaluate(
            """async plot => { const image = plot.matches('img') ? plot : plot.querySelector('img');
                const pixels = await (await fetch(image.src)).arrayBuffer();
                return Array.from(new Uint8Array(await crypto.subtle.digest('SHA-256', pixels))).join(' ') }"""
        )


@pytest.fixture(name="wait_until", scope="session")
def wait_until_fixture():
    """`wait_until(what, true)`: see above; tests share by fixtures."""
    return wait_until


@pytest.fixture(scope="session")
def chromium() -> str:
    """Debian's browser."""
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    if path:
        return path
    missing = "no chromium here: run tests/install-packages, or install Debian's package `chromium`"
    if os.environ.get("CI") == "true":
        pytest.fail(missing)
    pytest.skip(missing)


@pytest.fixture(scope="session")
def server(chromium, tmp_path_factory) -> Iterator[Server]:
    """One JupyterLab for all tests. At its end no process that it started may be left."""
    started = Server(tmp_path_factory.mktemp("jupyter"))
    yield started
    assert started.end() == {}


@pytest.fixture(scope="module")
def browser(chromium) -> Iterator[Browser]:
    """One browser a file of tests: as long as it lives, playwright's event loop is the one that runs in this thread."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item):
    report = yield
    if report.when == "call":
        item.stash[FAILED] = report.failed
    return report


@pytest.fixture
def page(browser, request, tmp_path_factory) -> Iterator[Page]:
    """A fresh window; when the test fails, a picture of it is kept and named."""
    context = browser.new_context(viewport={"width": 1280, "height": 1000})
    context.set_default_timeout(PATIENCE)
    page = context.new_page()
    yield page
    if request.node.stash.get(FAILED, False):
        picture = tmp_path_factory.getbasetemp() / f"{request.node.name}.png"
        page.screenshot(path=picture)
        print(f"what the browser showed: {picture}")
    context.close()


@pytest.fixture
def notebook(server, page, request):
    """Opens a notebook of these cells; at the end its kernel is shut down, as a person who closes it would."""
    opened = []

    def open_notebook(*cells: str, mode: str = "lab") -> Notebook:
        path = server.write(re.sub(r"\W", "_", request.node.name), *cells)
        opened.append(Notebook(server, page, path, mode))
        return opened[-1]

    yield open_notebook
    for session in server.get("sessions"):
        address = f"{server.url}/api/sessions/{session['id']}"
        urllib.request.urlopen(urllib.request.Request(address, method="DELETE"), timeout=30).close()
    wait_until("children outlive their kernel", lambda: not server.workers(), 30)
