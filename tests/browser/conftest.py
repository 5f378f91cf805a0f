"""A real JupyterLab and a real browser: one server and one kernel for all tests, one page for each module.

Every test opens a notebook of its own in that page, on the shared kernel, where torch is imported and a child is warm.
Without Debian's chromium these tests skip; with CI=true they fail: `tests/install-packages` installs it.
"""

import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from playwright.sync_api import Browser, Locator, Page, expect, sync_playwright

ROOT = Path(__file__).parents[2]
FAILED = pytest.StashKey[bool]()
PATIENCE = 60_000
"""Milliseconds for anything on a busy machine. Every wait ends with its event."""
expect.set_options(timeout=PATIENCE)


def wait_until(what, true, seconds: float = 60.0):
    """Return the first true answer of `true()`; raise AssertionError with `what` if there is none in time."""
    end = time.monotonic() + seconds
    while not (answer := true()):
        assert time.monotonic() < end, f"after {seconds:.0f} s: {what}"
        time.sleep(0.1)
    return answer


class Server:
    """JupyterLab on a free loopback port, with private folders."""

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
            "MappingKernelManager.cull_idle_timeout": "900",
            "ServerApp.shutdown_no_activity_timeout": "1200",
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

    def call(self, address: str, **body):
        """GET an address of the REST API, or POST a body to it."""
        data = json.dumps(body).encode() if body else None
        with urllib.request.urlopen(urllib.request.Request(f"{self.url}/api/{address}", data), timeout=30) as answer:
            return json.load(answer)

    def _answers(self) -> bool:
        assert self.process.poll() is None, self.log.read_text()
        try:
            return bool(self.call("status"))
        except OSError:
            return False

    def write(self, name: str, *cells: str) -> str:
        """Write a notebook of code cells; returns its path as the browser names it."""
        kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
        code = [
            {"cell_type": "code", "id": f"c{n}", "metadata": {}, "outputs": [], "execution_count": None, "source": cell}
            for n, cell in enumerate(cells)
        ]
        notebook = {"cells": code, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
        (self.folder / f"{name}.ipynb").write_text(json.dumps(notebook))
        return f"{name}.ipynb"

    def workers(self) -> list[psutil.Process]:
        """The training processes."""
        found = []
        for each in psutil.Process(self.process.pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):  # it ended in between
                found += [each] if "grpo_lab.runs.worker" in each.cmdline() else []
        return found

    def end(self) -> list[psutil.Process]:
        """End the server; returns those of its processes that are left."""
        ours = psutil.Process(self.process.pid).children(recursive=True)
        self.process.terminate()
        self.process.wait(30)
        return psutil.wait_procs(ours, 15)[1]


class Notebook:
    """A notebook open in the browser, driven by JupyterLab's own commands; widgets are found by their CSS class."""

    def __init__(self, server: Server, page: Page, kernel: str, path: str) -> None:
        self.server, self.page, self.kernel, self.path = server, page, kernel, path

    def open(self) -> None:
        """Open the notebook in the page that is loaded already, on the shared kernel."""
        self.page.evaluate(
            """async ([path, id]) => {
                const kernel = {id, name: 'python3'}, factory = 'Notebook';
                const widget = await jupyterapp.commands.execute('docmanager:open', {path, factory, kernel});
                await widget.revealed; await widget.sessionContext.ready;
                await widget.sessionContext.session.kernel.info }""",
            [self.path, self.kernel],
        )
        self.page.locator(".jp-Notebook .jp-Cell").first.wait_for()
        self.idle()

    def load(self, mode: str = "lab") -> None:
        """Load a page that shows this notebook."""
        self.page.goto(f"{self.server.url}/{mode}/tree/{self.path}")
        self.page.locator(".jp-Notebook").wait_for()
        self.page.wait_for_function("globalThis.jupyterapp?.shell.currentWidget?.sessionContext?.session?.kernel")

    def close(self) -> None:
        """Close the notebook and its widgets; the kernel goes on."""
        self.page.evaluate(
            """async ([code, patience]) => { const widget = jupyterapp.shell.currentWidget;
                const kernel = widget?.sessionContext?.session?.kernel;
                const late = (_, no) => setTimeout(() => no(new Error('the kernel did not answer')), patience);
                if (kernel) await Promise.race([kernel.requestExecute({code, silent: true}).done, new Promise(late)]);
                widget?.dispose() }""",
            ["import ipywidgets; ipywidgets.Widget.close_all()", PATIENCE],
        )

    def idle(self) -> None:
        """Wait until the kernel has nothing to do."""
        self.page.locator(".jp-Notebook-ExecutionIndicator[data-status=idle]").wait_for()

    def run_cell(self, number: int) -> None:
        """Begin to run one cell; its end is awaited by looking for what it shows."""
        self.page.evaluate(
            "n => { jupyterapp.shell.currentWidget.content.activeCellIndex = n;"
            " void jupyterapp.commands.execute('notebook:run-cell') }",
            number,
        )

    def run_cell_to_its_end(self, number: int) -> None:
        """Run one cell and wait for its end: after a cell that fails, JupyterLab drops those that wait behind it."""
        self.page.evaluate(
            "async n => { jupyterapp.shell.currentWidget.content.activeCellIndex = n;"
            " await jupyterapp.commands.execute('notebook:run-cell') }",
            number,
        )

    def save(self) -> None:
        self.page.evaluate("jupyterapp.commands.execute('docmanager:save')")

    def output(self, number: int) -> Locator:
        """What a cell shows."""
        return self.page.locator(".jp-Notebook .jp-Cell").nth(number).locator(".jp-Cell-outputArea")

    def find(self, css: str) -> Locator:
        """The widget of this CSS class, say `start` for grpo-lab-start."""
        return self.page.locator(f".grpo-lab-{css}").first

    def count_frames(self) -> None:
        """From now on, `frames` counts how often the plot's picture is replaced."""
        self.find("plot").evaluate(
            """plot => { const image = plot.matches('img') ? plot : plot.querySelector('img'); window.frames_ = 0;
                new MutationObserver(changes => { window.frames_ += changes.length })
                    .observe(image, {attributes: true, attributeFilter: ['src']}) }"""
        )

    def frames(self) -> int:
        return self.page.evaluate("window.frames_")

    def picture(self) -> str:
        """The pixels that the plot shows, by their digest."""
        return self.find("plot").evaluate(
            """async plot => { const image = plot.matches('img') ? plot : plot.querySelector('img');
                const pixels = await (await fetch(image.src)).arrayBuffer();
                return Array.from(new Uint8Array(await crypto.subtle.digest('SHA-256', pixels))).join(' ') }"""
        )


@pytest.fixture(name="wait_until", scope="session")
def wait_until_fixture():
    """`wait_until(what, true)` as a fixture, because test files cannot import this one."""
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
    """One JupyterLab for all tests. It must leave no process behind."""
    started = Server(tmp_path_factory.mktemp("jupyter"))
    yield started
    assert started.end() == []


@pytest.fixture(scope="session")
def kernel(server) -> str:
    """The id of the kernel that all tests share."""
    return server.call("kernels", name="python3")["id"]


@pytest.fixture(scope="module")
def browser(chromium) -> Iterator[Browser]:
    """One browser a module: while its event loop runs in this thread, `asyncio.run` of other tests fails."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield browser
        browser.close()


def pytest_collection_modifyitems(items):
    """Keep all browser tests on one worker of pytest-xdist where it groups: they share a server."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.xdist_group("browser"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item):
    report = yield
    if report.when == "call":
        item.stash[FAILED] = report.failed
    return report


@pytest.fixture(scope="module")
def page(browser, server) -> Page:
    """JupyterLab, loaded once a module."""
    context = browser.new_context(viewport={"width": 1280, "height": 1000})
    context.set_default_timeout(PATIENCE)
    page = context.new_page()
    page.goto(f"{server.url}/lab?reset")
    page.wait_for_function("globalThis.jupyterapp?.restored.then(() => true)")
    return page


@pytest.fixture
def notebook(server, kernel, page, request, tmp_path_factory):
    """Opens a notebook of these cells, or a copy of a file. After a failure a picture is kept and the kernel is new."""
    opened = []

    def open_notebook(*cells: str, copy: Path | None = None) -> Notebook:
        path = server.write(re.sub(r"\W", "_", request.node.name), *cells)
        if copy:
            shutil.copy(copy, server.folder / path)
        opened.append(Notebook(server, page, kernel, path))
        opened[-1].open()
        return opened[-1]

    yield open_notebook
    if request.node.stash.get(FAILED, False):
        picture = tmp_path_factory.getbasetemp() / f"{request.node.name}.png"
        page.screenshot(path=picture)
        print(f"what the browser showed: {picture}")
        server.call(f"kernels/{kernel}/restart", restart=True)
    for each in opened:
        each.close()
