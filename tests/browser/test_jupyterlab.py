"""Panel, lab, feedback and lecture in JupyterLab. Tests wait for texts and frames, never for a time.

With GRPO_LAB_PICTURES=docs/figures the panel of the run that was saved is kept as saved.png, which the README shows.
"""

import json
import os
import re
from pathlib import Path

import pytest
from playwright.sync_api import expect

LABS = Path(__file__).parents[2] / "labs"
LINES = """node => {
    const range = document.createRange();
    range.selectNodeContents(node);
    return new Set([...range.getClientRects()].map(box => Math.round(box.top))).size
}"""
"""The number of lines that a text takes."""
LINES_OF_WORDS = """pre => { const words = pre.firstChild, range = document.createRange();
    return [...words.data.matchAll(/[^ ]+/g)].map(found => {
        range.setStart(words, found.index); range.setEnd(words, found.index + found[0].length);
        return new Set([...range.getClientRects()].map(box => Math.round(box.top))).size }) }"""


def step_shown(nb) -> int:
    """The step that the status names; -1 while it names none."""
    found = re.search(r"step (\d+)", nb.find("status").inner_text())
    return int(found[1]) if found else -1


def says(nb, part: str, words: str | re.Pattern) -> None:
    """Wait until the widget contains the words."""
    expect(nb.find(part)).to_contain_text(words)


def test_a_run_is_started_changed_reloaded_and_stopped_and_leaves_a_picture(notebook, server, wait_until):
    nb = notebook(
        "from grpo_lab.ui.widgets import Panel\nfrom grpo_lab.events import Changed\n"
        "panel = Panel(preset='stable', overrides=('run.num_steps=1000',))\npanel",
        "print([event.overrides for event in panel.session.events if isinstance(event, Changed)])",
        "print(panel.session.status, len(panel.session.records))",
    )
    nb.run_cell(0)
    nb.count_frames()
    before = nb.picture()
    nb.find("start").click()
    says(nb, "status", re.compile(r"step [1-9]"))
    first = step_shown(nb)
    wait_until("ten new pictures", lambda: nb.frames() >= 10)
    wait_until("a later step", lambda: step_shown(nb) > first)
    assert nb.picture() != before

    number = nb.find("set-learning_rate").locator("input[type=text], input[type=number]").first
    number.fill("1e-5")
    number.press("Enter")
    changed = nb.output(1)
    wait_until("the change is an event", lambda: nb.run_cell(1) or "learning_rate=1e-05" in changed.inner_text())

    nb.find("stop").click()
    says(nb, "status", "stopped")
    nb.run_cell(2)
    expect(nb.output(2)).to_contain_text("stopped")
    expect(nb.find("picture").locator("img")).to_be_attached()
    expect(nb.find("picture")).not_to_be_visible()

    nb.find("start").click()
    says(nb, "status", re.compile(r"step [1-9]"))
    nb.save()
    nb.load()
    nb.count_frames()
    wait_until("the plot goes on", lambda: nb.frames() >= 3)
    old = set(server.workers())
    server.call(f"kernels/{nb.kernel}/restart", restart=True)
    wait_until("a restart leaves no child behind", lambda: not old & set(server.workers()))
    nb.load()
    expect(nb.find("picture").locator("img")).to_be_visible()
    assert (nb.find("picture").locator("img").get_attribute("alt") or "").startswith("stable: stopped after ")
    says(nb, "picture", "Run the cell above to use this panel.")
    expect(nb.page.get_by_text("model not found")).not_to_be_visible()
    nb.page.goto(f"{server.url}/lab?reset")  # for the next test, whose page must not open this notebook again
    nb.page.wait_for_function("globalThis.jupyterapp?.restored.then(() => true)")


BLAMED = """import json, re, statistics, time
from grpo_lab.events import Stepped
panel.frames.settle(60)
event = max((e for e in panel.session.events if isinstance(e, Stepped)), key=lambda e: e.metrics["kl"])
link = max((note for note in event.links if note.link == "kl_delta"), key=lambda note: note.magnitude)
number, token = map(int, re.findall("[0-9]+", link.where))
note = next(note for note in event.completions if note.number == number)
x, y = panel.figure._axes["kl"].transData.transform((event.step, event.metrics["kl"]))
(cut, high), _ = panel.figure.sizes
click, took = {"half": "curves", "x": x / cut, "y": 1 - y / high}, []
for _ in range(5):
    begun = time.perf_counter()
    panel._look(click)
    took.append(time.perf_counter() - begun)
panel._controls.microscope.close()
print(json.dumps({**click, "step": event.step, "number": number, "token": note.tokens[token], "seconds": min(took)}))"""


def test_a_click_on_a_spike_shows_the_token_that_the_events_name(notebook):
    nb = notebook(
        "from grpo_lab.ui.widgets import Panel\npanel = Panel(recording='lecture-bad-batch')\npanel",
        BLAMED,
    )
    nb.run_cell_to_its_end(0)
    says(nb, "microscope", "Click a point of a curve")
    nb.run_cell_to_its_end(1)
    spike = json.loads(nb.output(1).inner_text())
    assert spike["seconds"] < 0.3, "from the click to the page of the tokens, in the kernel"
    nb.idle()
    says(nb, "microscope", "Click a point of a curve")
    size = nb.find("plot").evaluate("plot => plot.getBoundingClientRect().toJSON()")
    nb.find("plot").click(position={"x": spike["x"] * size["width"], "y": spike["y"] * size["height"]})
    says(nb, "microscope", f"Tokens of step {spike['step']}")
    culprit = nb.find("culprit")
    expect(culprit).to_have_text(spike["token"])
    expect(culprit).to_have_attribute("title", re.compile("log-ratio -1[0-9].*KL to reference"))
    says(nb, "microscope", f"completion {spike['number']}, update 0")
    expect(nb.find("microscope").locator("tr[aria-current]").first).to_contain_text(spike["token"])
    nb.find("plot").press("ArrowRight")
    says(nb, "microscope", f"Tokens of step {spike['step'] + 1}")
    assert nb.page.locator(".jp-Cell").count() == 2, "JupyterLab's own keys kept out"


@pytest.mark.slow
def test_a_chinese_panel_fits_a_dark_and_narrow_page(notebook, wait_until):
    use = "from grpo_lab import messages\nmessages.use({!r})"
    panel = "from grpo_lab.ui.widgets import Panel\nPanel(recording='lecture-cuda-001')"
    nb = notebook(f"{use.format('zh')}\n{panel}", use.format("en"))
    nb.run_cell_to_its_end(0)
    says(nb, "start", "开始")
    expect(nb.find("panel").get_by_role("tab", name="防护")).to_be_visible()
    says(nb, "status", "步")
    light, boxes = nb.picture(), "node => node.getBoundingClientRect().toJSON()"
    plot, chain = (nb.find(part).evaluate(boxes) for part in ("plot", "chain"))
    assert chain["left"] >= plot["right"] - 1 and chain["top"] == plot["top"]
    for theme in ("Dark", "Light"):
        nb.page.evaluate(
            "theme => jupyterapp.commands.execute('apputils:change-theme', {theme})", f"JupyterLab {theme}"
        )
        nb.page.wait_for_function(
            """dark => { const ink = document.querySelector('.grpo-lab-panel .widget-label');
                const paper = document.querySelector('.grpo-lab-panel');
                const light = (style) => Math.max(...style.match(/[0-9]+/g).slice(0, 3).map(Number)) > 127;
                const words = light(getComputedStyle(ink).color), page = light(getComputedStyle(paper).backgroundColor);
                return words === dark && page === !dark }""",
            arg=theme == "Dark",
        )
        if theme == "Dark":
            wait_until("the picture is dark", lambda: nb.picture() != light)
    nb.page.set_viewport_size({"width": 900, "height": 1000})

    def narrow():
        plot, chain, panel = (nb.find(part).evaluate(boxes) for part in ("plot", "chain", "panel"))
        return chain["top"] >= plot["bottom"] - 1 and max(plot["right"], chain["right"]) <= panel["right"]

    wait_until("the chain stands below the curves, and both inside the panel", narrow)  # the page is laid out anew
    assert set(nb.find("banner").locator("pre").evaluate(LINES_OF_WORDS)) == {1}, "no word is broken"
    nb.page.set_viewport_size({"width": 1280, "height": 1000})
    nb.run_cell_to_its_end(1)  # other tests share the kernel


@pytest.mark.slow
def test_a_panel_of_a_kernel_that_restarted_keeps_its_picture_and_says_what_to_do(notebook):
    nb = notebook("from grpo_lab.ui.widgets import Panel\nPanel(recording='lecture-cuda-001')")
    nb.run_cell_to_its_end(0)
    says(nb, "status", "crashed")
    before = nb.picture()
    nb.page.evaluate("jupyterapp.shell.currentWidget.sessionContext.session.kernel.restart()")  # as its button does
    gone = "nodes => nodes.map(node => getComputedStyle(node, '::before')).map(it => [it.content, it.display])"
    left = nb.page.locator(".grpo-lab-panel.jupyter-widgets-disconnected")
    expect(left).to_be_attached()
    ((words, shown),) = left.evaluate_all(gone)
    assert words == '"Run the cell above to use this panel."' and shown != "none"
    inside = left.locator(".jupyter-widgets-disconnected")
    assert inside.count() > 20 and {shown for _, shown in inside.evaluate_all(gone)} == {"none"}, "no broken links"
    assert nb.picture() == before
    if folder := os.environ.get("GRPO_LAB_PICTURES"):
        left.screenshot(path=Path(folder) / "restarted.png")


FORKED = """
from grpo_lab.events import Forked, Stepped
from tests.steps import told
def steps(run): return [told(event) for event in run.events if isinstance(event, Stepped)]
(event,) = (event for event in panel.session.events if isinstance(event, Forked))
same = sum(mine == theirs for mine, theirs in zip(steps(panel.session), steps(doomed)))
known, beside = event.parent == doomed.directory.name, [*panel.screens()[1]]
print(f"left {known} before {event.at}, {same} equal steps, beside {beside}")
"""


@pytest.mark.slow
def test_a_fork_before_the_crash_is_the_same_run_without_a_guard_and_saved_with_one(notebook):
    faulty = "overrides=('run.num_steps=24', 'data.num_prompts=2', 'faults.shift_log_ratio.at_step=20')"
    nb = notebook(
        f"from grpo_lab.ui.widgets import Panel\npanel = Panel(preset='plain', {faulty})\npanel",
        "doomed = panel.session\npanel.timeline.slider.value = 19",
        FORKED,
        "panel.timeline.slider.value = 19",
    )
    pictures = os.environ.get("GRPO_LAB_PICTURES")

    def shot(name):
        if pictures:
            nb.find("panel").screenshot(path=Path(pictures) / f"{name}.png")

    nb.run_cell_to_its_end(0)
    nb.find("start").click()
    says(nb, "status", "crashed in torch.multinomial")
    expect(nb.find("fork")).to_be_enabled()
    nb.run_cell_to_its_end(1)
    says(nb, "status", "step 18")
    nb.find("fork").click()
    expect(nb.find("status")).not_to_contain_text("step 18")
    says(nb, "status", "crashed in torch.multinomial")
    expect(nb.find("fork")).to_be_enabled()
    nb.run_cell_to_its_end(2)
    expect(nb.output(2)).to_contain_text("left True before 19, 22 equal steps, beside ['A']")
    nb.run_cell_to_its_end(3)
    says(nb, "status", "step 18")
    nb.page.get_by_role("tab", name="Guards").click()
    nb.find("guard-clamp_log_ratio").locator("input[type=checkbox]").check()
    nb.find("fork").click()
    says(nb, "status", "done")
    expect(nb.find("fork")).to_be_enabled()
    shot("fork")
    for theme in ("Dark", "Light"):
        nb.page.evaluate(
            "theme => jupyterapp.commands.execute('apputils:change-theme', {theme})", f"JupyterLab {theme}"
        )
        nb.page.set_viewport_size({"width": 900 if theme == "Light" else 1280, "height": 1000})
        shot(f"fork-{theme}")
    nb.page.set_viewport_size({"width": 1280, "height": 1000})
    nb.find("start").click()
    says(nb, "status", "starting")
    says(nb, "status", "done")  # the guard is still on
    shot("ghost")


def test_exercises_answer_in_words(notebook, server):
    register = f"""
import os
os.environ["GRPO_LAB_DATA"] = {str(Path(__file__).parents[1] / "own")!r}
import grpo_lab as gl
lab = gl.Lab("sample")
"""
    book = notebook(
        register,
        "%%exercise guess\nanswer = ...  # your answer",
        "%%exercise double\ndef double(x):\n    return x + '<b>'",
        "%%exercise double\ndef double(x):\n    return x + x",
        'run = lab.run(gl.preset("smoke"), "short")',
        "lab.questions()",
    )
    for number in range(6):
        book.run_cell_to_its_end(number)
    book.output(1).get_by_text("waits for your answer in line 2").wait_for()
    assert "Traceback" not in book.output(1).inner_text()
    feedback = book.output(2).locator(".grpo-lab-feedback")
    expect(feedback).to_contain_text("Double it: not yet, 0 of 1 right")
    expect(feedback).to_contain_text("TypeError")
    assert feedback.locator("b").count() == 0  # the learner's text is text
    assert feedback.get_by_text("✗ not yet", exact=True).evaluate(LINES) == 1, "no word is broken"
    book.output(2).get_by_text("NotYet: Double it: 0 of 1 right so far").wait_for()
    assert "Traceback" not in book.output(2).inner_text()
    book.output(3).get_by_text("✓ Double it: right").wait_for()
    expect(book.output(3).get_by_text("three numbers")).to_be_hidden()
    book.output(3).get_by_text("✓ Double it: right").click()
    book.output(3).get_by_text("three numbers").wait_for()
    assert (server.folder / "answers/sample/double.py").read_text().startswith("# %%exercise double\ndef double")
    expect(book.output(4).locator(".grpo-lab-run summary")).to_contain_text("done")
    assert book.output(4).locator(".jp-OutputArea-child").count() == 1  # one line, that changed
    questions = book.output(5).locator(".grpo-lab-questions")
    questions.get_by_label("no", exact=True).check()
    questions.get_by_text("Not this one. It is.").wait_for()
    questions.get_by_label("yes", exact=True).check()
    questions.get_by_text("Right. So it is, & always.").wait_for()


def test_a_prediction_by_radio_buttons_is_in_the_notebook_and_the_first_screen_asks_no_manual(notebook, server):
    """The cell of lab 0 is folded, and gets the chosen answer; what stopped it is gone from the file that is graded."""
    nb = notebook(copy=LABS / "00_start" / "00_start.ipynb")
    cells = json.loads((server.folder / nb.path).read_text())["cells"]
    ids = [each["id"] for each in cells]
    first, guess = (
        next(n for n, each in enumerate(cells) if "Lecture(" in "".join(each["source"])),
        ids.index("00_start-guess"),
    )
    nb.run_cell_to_its_end(first)
    says(nb, "says", "its run dies")
    for css in ("start", "set-learning_rate", "healthy", "scenario-1"):
        expect(nb.find(css)).not_to_be_visible()
    nb.find("side-b").click()
    says(nb, "says", "learns to the end")
    nb.run_cell_to_its_end(guess)
    expect(nb.output(guess)).to_contain_text("choose above and press the button")
    nb.find("form").locator("input[type=radio]").nth(2).click()
    nb.find("give").click()
    says(nb, "reply", "Locked in: answer = 'c'")
    expect(nb.output(guess)).not_to_contain_text("choose above and press the button")
    nb.page.evaluate("jupyterapp.commands.execute('docmanager:save')")  # awaited
    saved = json.loads((server.folder / nb.path).read_text())["cells"][guess]
    assert saved["source"][-1] == 'answer = "c"' and saved["metadata"]["jupyter"] == {"source_hidden": True}
    assert [each["output_type"] for each in saved["outputs"]] == ["display_data"]


@pytest.mark.slow
def test_a_guard_switched_on_during_the_run_saves_it(notebook):
    """Lab 0: the run without a guard crashes; the same run, steered on one screen while its cell waits, is saved."""
    lab = LABS / "00_start" / "00_start.ipynb"
    cells = ["".join(cell["source"]).partition("\n")[0] for cell in json.loads(lab.read_bytes())["cells"]]
    first, alone, saved, said = map(
        cells.index,
        (
            "import grpo_lab as gl",
            "rescue = lab.panel(",
            'rescue.keep("no guard")',
            "from grpo_lab.runs.summary import summary",
        ),
    )

    def full_speed(output):
        output.locator(".grpo-lab-pace-menu select").select_option(label="full speed")

    book = notebook(copy=lab)
    book.run_cell_to_its_end(first)
    book.run_cell(alone)
    full_speed(book.output(alone))
    expect(book.output(alone).locator(".grpo-lab-status")).to_contain_text("crashed in torch.multinomial")
    book.run_cell(saved)
    panel = book.output(saved)
    expect(panel.locator(".grpo-lab-status")).to_contain_text(re.compile(r"healthy\s+step [1-9]"))
    for part in ("status", "plot", "chain", "pause"):
        expect(panel.locator(f".grpo-lab-{part}")).to_be_in_viewport(ratio=1)
    panel.get_by_role("tab", name="Guards").click()
    panel.locator(".grpo-lab-guard-sanitize_rewards input[type=checkbox]").check()
    full_speed(panel)
    expect(panel.locator(".grpo-lab-status")).to_contain_text("done, learned")
    alt = panel.locator(".grpo-lab-plot").evaluate(
        "plot => (plot.matches('img') ? plot : plot.querySelector('img')).alt"
    )
    assert "sanitize_rewards acted from step 20 on" in alt
    book.run_cell(said)
    rewards = re.compile(r"held-out reward: ([\d.]+) before, ([\d.]+) after")
    expect(book.output(said)).to_contain_text(rewards)
    before, after = map(float, rewards.findall(book.output(said).inner_text())[0])
    assert before < 0.35 and after >= 0.5
    if folder := os.environ.get("GRPO_LAB_PICTURES"):
        book.page.set_viewport_size({"width": 1600, "height": 1000})
        panel.locator(".grpo-lab-panel").screenshot(path=Path(folder) / "saved.png")
        book.page.set_viewport_size({"width": 1280, "height": 1000})


@pytest.mark.slow
def test_lecture_by_keys(notebook):
    nb = notebook("from grpo_lab.ui.widgets import Lecture\n\nLecture()")
    nb.load("doc")  # the notebook alone, as `grpo-lab lecture` shows it
    nb.page.evaluate("async () => { await jupyterapp.shell.currentWidget.sessionContext.ready }")
    nb.idle()
    nb.run_cell(0)
    says(nb, "says", "A healthy run")
    keys, shown = nb.page.keyboard, nb.find("time").locator(".widget-readout")
    expect(nb.find("lecture")).to_be_focused()
    expect(nb.page.locator(".jp-Cell-inputWrapper").first).to_be_hidden()

    keys.press("5")
    says(nb, "says", "From a finite loss")
    keys.press("End")
    says(nb, "status", "crashed in torch.multinomial")
    picture = nb.picture()
    keys.press("b")
    keys.press("End")
    says(nb, "status", "done")
    assert nb.picture() != picture
    says(nb, "heal", "loss.log_ratio=old")
    nb.find("plot").click()
    keys.press("ArrowLeft")
    keys.press("ArrowLeft")
    expect(shown).to_have_text("58")  # also after a click on a curve, where they would move the tokens shown
    keys.press("Space")
    says(nb, "status", "done")

    nb.find("scenario-1").click(position={"x": 3, "y": 3})  # no strip of JupyterLab's lies over its left edge
    says(nb, "says", "One corrupt sample")
    nb.find("scenario-2").click()
    says(nb, "says", "explodes")
    keys.press("Space")  # the key of the lecture, not of the button that the mouse left
    says(nb, "play", "Play")
    says(nb, "says", "explodes")
    keys.press("r")
    says(nb, "says", "A healthy run")
    assert nb.page.locator(".jp-Cell").count() == 1  # JupyterLab's own keys, a and b among them, kept out
    expect(nb.find("start")).to_be_hidden()
    nb.find("live").click()
    expect(nb.find("start")).to_be_visible()


def test_a_click_on_a_cell_of_the_chain_shows_the_line_of_the_installed_file(notebook):
    """And the view fits a page of 900 pixels, in Chinese and in the dark."""
    from grpo_lab.analysis.run_state import fold
    from grpo_lab.runs import recordings
    from grpo_lab.runs.session import Session
    from grpo_lab.ui.plots import strip
    from grpo_lab.ui.widgets.live import LiveFigure

    nb = notebook("from grpo_lab.ui.widgets import Panel\n\nPanel(recording='lecture-cuda-001')")
    nb.run_cell(0)
    says(nb, "status", "crashed in torch.multinomial")
    figure, screen = LiveFigure(), fold(Session.open(recordings.find("lecture-cuda-001")).events)
    figure.draw(screen, {}, (screen,))
    (cut, high), (rest, _) = figure.sizes
    for link, at, file, code in (
        ("ratio", -0.12, "core/loss.py", "ratio = log_ratio.exp()"),
        ("gradients", -0.12, "core/train.py", "loss.backward()"),
    ):
        x, y = figure._axes["strip"].transData.transform((at, list(strip.ROWS).index(link)))
        box = nb.find("chain").bounding_box()
        position = {"x": (x - cut) / rest * box["width"], "y": (1 - y / high) * box["height"]}
        nb.find("chain").click(position=position)
        line = nb.find("opened").locator(".grpo-lab-computed").first
        expect(line).to_contain_text(code)
        path, _, number = nb.find("opened").locator("p code").first.inner_text().rpartition(":")
        assert path.endswith(file)
        installed = Path(path).read_text(encoding="utf-8").split("\n")[int(number) - 1]
        assert line.inner_text().strip() == f"{number}  {installed}", "the line of the file that the kernel runs"
    assert nb.find("opened").evaluate("it => it.scrollWidth <= it.clientWidth + 1")
