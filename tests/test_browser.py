"""The views in a real headless Chromium, offline: as files opened from disk, in a frame as a notebook holds them, and live."""

import json
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from hostile.widget_texts import SCRIPTS
from playwright.sync_api import expect
from widget_cases import TASKS, group, traced, trajectory, widget

from agentkit.evaluation.html import task_links
from agentkit.records import Table, Task, ToolResult, Turn
from agentkit.views.widgets import compare_trajectories, group_view, mask_xray

VIEWS = {"compare": widget, "group": lambda: group_view(group(), TASKS), "xray": lambda: mask_xray(traced())}


@contextmanager
def opened(browser, file, fragment=""):
    """A page opened from disk with the network off. What fails or asks for the network is an error."""
    context = browser.new_context(offline=True, viewport={"width": 1100, "height": 760})
    page = context.new_page()
    errors = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("dialog", lambda dialog: errors.append(dialog.message))
    page.on("request", lambda request: request.url.startswith("file:") or errors.append(request.url))
    page.goto(file.as_uri() + fragment)
    yield page
    assert [e for e in errors if not e.startswith(("blob:", "about:"))] == []
    context.close()


@pytest.fixture
def framed(tmp_path):
    """Writes a view as a notebook opened as a file holds it."""

    def write(view, more=""):
        file = tmp_path / "notebook.html"
        file.write_text(f"<!doctype html><meta charset=utf-8><body>{view.html()}{more}", encoding="utf-8")
        return file

    return write


def wait_for_text(locator, text):
    locator.filter(has_text=text).wait_for(timeout=20_000)


def test_what_a_task_shows(browser, tmp_path):
    with opened(browser, widget().save(tmp_path / "page.html")) as page:
        wait_for_text(page.locator("output").first, "task 1 of 3")
        assert page.locator(".prompt").inner_text() == TASKS[0].prompt
        sft, grpo = page.get_by_label("sft", exact=True), page.get_by_label("grpo", exact=True)
        assert "✗ wrong" in sft.inner_text() and "✓ right" in grpo.inner_text()
        assert "1 of 3 samples right" in sft.inner_text() and "30 is not 33" in sft.inner_text()
        assert page.locator(".first").inner_text() == "first different action: turn 2"
        marked = page.locator("summary.differs code")
        assert marked.all_inner_texts() == ['search {"query": "lima"}', 'search {"query": "peru people"}']
        odd = page.locator("summary .differs").all_inner_texts()
        assert odd == ['"query": "lima"', '"query": "peru people"'], "of a call the arguments that differ"
        turn = page.get_by_label("all, turn 1")
        assert page.locator(".same > summary").inner_text() == "first turn equal" and not turn.is_visible()
        page.locator(".same > summary").click()
        assert 'search {"query": "peru"}' in turn.inner_text()
        boxes = [page.get_by_label(f"{name}, turn 2", exact=True).bounding_box() for name in ("sft", "grpo")]
        assert boxes[0]["y"] == boxes[1]["y"] and boxes[0]["x"] < boxes[1]["x"]
        page.get_by_label("sample 1, ✓ right").click()
        wait_for_text(sft.locator("h3"), "✓ right")
        assert page.locator(".first").inner_text() == "first different action: turn 1"
        wait_for_text(page.get_by_label("sft, turn 2"), "ended with an answer")
        assert page.locator(".same").count() == 0
        page.get_by_label("next task").click()
        wait_for_text(page.locator(".prompt"), TASKS[1].prompt)
        differ = page.locator(".chips .differs").all_inner_texts()
        assert differ == ["reward 0.98", "correct 1", "reward 0", "correct 0"]
        assert "format not scored" in sft.inner_text()
        page.get_by_label("next task").click()
        wait_for_text(grpo, "stopped: no turn was left (max_turns), and it still called a tool")


def test_in_a_frame_notes_and_links_go_through_the_page(browser, framed):
    file = framed(widget(), more=task_links("t2"))
    with opened(browser, file, "#task=t1") as page:
        frame = page.frame_locator("iframe")
        wait_for_text(frame.locator(".prompt"), TASKS[1].prompt)
        frame.get_by_label("note on this task").fill("from a frame")
        wait_for_text(frame.locator(".note output"), "saved in this browser")
        frame.get_by_label("next task").click()
        page.wait_for_function("location.hash === '#task=t2'")
        page.reload()
        wait_for_text(frame.locator(".prompt"), TASKS[2].prompt)
        frame.get_by_label("previous task").click()
        wait_for_text(frame.locator(".prompt"), TASKS[1].prompt)
        expect(frame.get_by_label("note on this task")).to_have_value("from a frame", timeout=20_000)
        page.locator("a").click()  # of a table on the page that holds the frame
        wait_for_text(frame.locator(".prompt"), TASKS[2].prompt)
        frame.get_by_label("previous task").click()
        with page.expect_download() as download:
            frame.get_by_text("export notes").click()
        assert json.loads(Path(download.value.path()).read_text())["text"] == "from a frame"


def test_xray_shows_masks_values_and_ids(browser, tmp_path):
    with opened(browser, VIEWS["xray"]().save(tmp_path / "page.html")) as page:
        tokens = page.locator(".tokens span")
        tokens.first.wait_for()
        assert tokens.all_inner_texts() == ["#1", "#2", "#3", "#4", "#5"]
        on = ["on" in (t.get_attribute("class") or "") for t in tokens.all()]
        assert on == [True, True, False, True, True]
        said = "7 tokens: 2 of the prompt, 4 sampled and trained on, 1 not trained on"
        assert said in page.locator(".task").inner_text()
        tokens.nth(1).hover()
        wait_for_text(page.locator(".detail"), "position 3")
        shown = " ".join(page.locator(".detail").inner_text().split())
        assert shown == (
            "#2 position 3 id 2 source model, turn 1 mask 1 log-probability at sampling −0.2 "
            "advantage (mean of the trajectory) +0.5"
        )
        page.keyboard.press("ArrowRight")
        wait_for_text(page.locator(".detail"), "source observation, turn 1")
        colours = page.get_by_label("colour by")
        names = ["action mask", "log-probability at sampling", "advantage (mean of the trajectory)"]
        assert colours.locator("option").all_inner_texts() == names

        def strengths():
            return tokens.evaluate_all("spans => spans.map((s) => Number(s.style.getPropertyValue('--w')))")

        assert strengths() == [0.45, 0.45, 0, 0.45, 0.45]
        colours.select_option("advantage (mean of the trajectory)")
        assert strengths() == [1, 1, 0, 1, 1]
        assert "+0.5" in page.get_by_label("legend").inner_text()
        page.locator("summary").click()
        wait_for_text(tokens.first, "#8")


def test_group_tells_the_best_from_the_worst(browser, tmp_path):
    with opened(browser, VIEWS["group"]().save(tmp_path / "page.html")) as page:
        head = page.locator(".contrast h3")
        wait_for_text(head, "What tells sample 2 (the best) from sample 1 (the worst)")
        shown = page.get_by_label("differences").locator("tbody tr").all_inner_texts()
        rows = [row.split("\t") for row in shown]
        assert rows == [
            ["reward", "1", "−0.2"], ["reward component correct", "1", "0"], ["answer", "33", "30"], ["failed calls", "0", "1"],
            ["first different action (turn 2)", 'search {"query": "peru people"}', 'search {"query": "lima"}'],
        ]  # fmt: skip
        said = "4 trajectories, 1 right · reward 0.3 on average, standard deviation 0.624"
        assert said in page.locator(".task").inner_text()
        assert page.get_by_label("trajectories", exact=True).locator("tbody tr").count() == 4
        page.get_by_label("trajectories", exact=True).locator("tbody tr").first.click()
        wait_for_text(page.locator(".contrast h3"), "What tells sample 2 (the best) from sample 0")


class Showing:
    """Its state after a turn is a table of what the model wrote."""

    @classmethod
    def render(cls, task, trajectory, turn):
        said = trajectory.turns[turn].text
        return Table((said,), ((said,),))


def hostile_views(texts):
    """Every view with each text in every place a model or a user can write to: (kind, view)."""
    tasks, trajectories = [], []
    for text in texts:
        short = text[:5000]
        results = (ToolResult(text, {short: text}, text, True), ToolResult("", {}, text, False))
        turns = (Turn(text, (0, 1), results), Turn(text, (1, 3)))
        fields = {"turns": turns, "answer": text, "why": text, "policy": short, "step": 1}
        fields["components"] = {short: 1.0}
        trajectories += [trajectory(short, 0.5 * i, sample=i, reward=0.1 * i, **fields) for i in range(2)]
        tasks.append(Task(short, text, text, family=short, difficulty=short))
    one, whole = texts[0][:5000], "".join(texts)
    environments = {task.family: Showing for task in tasks}
    view = compare_trajectories(tasks, {one: trajectories, "b": trajectories}, environments=environments)
    many = {"completion_ids": tuple(range(60)), "action_mask": (1,) * 60, "old_logprobs": (-1.0,) * 60}
    part = len(whole) // 60 + 1
    yield "compare", view
    yield "group", group_view(trajectories, tasks)
    long = replace(trajectories[0], **many)
    yield "xray", mask_xray(long, lambda ids: "".join(whole[i * part : i * part + part] for i in ids))


def leaf(page, where, kind, n):
    """Each page of a view in turn, all of it open, once it is drawn."""
    for i in range(1 if kind == "xray" else n):
        if i:
            where.get_by_label("next").click()
        if kind != "xray":
            wait_for_text(where.locator("output").first, f"{i + 1} of {n}")
        where.locator("section, .tokens span").first.wait_for(state="attached")
        page.frames[-1].evaluate("document.querySelectorAll('details').forEach((d) => { d.open = true })")
        yield i


ACTIVE = "img, svg, math, iframe, object, embed, link, base, form, body meta, .ak script, a[href], [onerror], [onload]"


@pytest.mark.parametrize("kind", VIEWS)
def test_markup_stays_text(browser, tmp_path, framed, kind):
    texts = list(SCRIPTS.values())
    view = dict(hostile_views(texts))[kind]
    with opened(browser, view.save(tmp_path / "page.html")) as page:
        for i in leaf(page, page, kind, len(texts)):
            page.mouse.move(300, 300 + i)
            assert page.evaluate("active => document.querySelectorAll(active).length", ACTIVE) == 0
            assert len(page.locator("style").all_text_contents()) == 2
            if kind != "xray":
                assert texts[i].splitlines()[0] in page.locator(".prompt").inner_text()
        assert page.evaluate("window.hacked") is None
    with opened(browser, framed(view, more="<p id=after>after")) as page:
        for _ in leaf(page, page.frame_locator("iframe"), kind, len(texts)):
            assert len(page.frames) == 2
        assert page.locator("#after").inner_text() == "after"
        found = page.evaluate("[window.hacked, document.querySelectorAll('img, svg, a, form').length]")
        assert found == [None, 0]
        assert page.frames[1].evaluate("window.hacked") is None


@pytest.mark.slow
def test_a_frame_reaches_nothing_around_it(browser, framed):
    with opened(browser, framed(widget())) as page:
        page.frame_locator("iframe").locator(".columns").wait_for()
        inner = page.frames[1]
        assert inner.evaluate("try { parent.document.title; 'reached' } catch { 'refused' }") == "refused"
        assert inner.evaluate("try { localStorage.length; 'reached' } catch { 'refused' }") == "refused"
        fetched = inner.evaluate("fetch('https://example.org').then(() => 'reached', () => 'refused')")
        assert fetched == "refused"
        bad = "{task: '\"><img src=x onerror=hacked=1>', note: 5, key: {}}"
        inner.evaluate(f"parent.postMessage({{agentkit: {bad}}}, '*')")
        page.wait_for_function("location.hash.startsWith('#task=%22')")
        forged = "{ready: true, key: 'x', note: 'forged', task: 'forged'}"
        page.evaluate(f"postMessage({{agentkit: {forged}}}, '*')")  # not the frame
        page.wait_for_timeout(200)
        found = page.evaluate("[window.hacked, localStorage.length, location.hash.includes('forged')]")
        assert found == [None, 0, False]


DRAW = """async ([source, blocks]) => {
    const url = URL.createObjectURL(new Blob([source], { type: "text/javascript" }));
    const { default: widget } = await import(url);
    const data = blocks.map((block) => new DataView(new Uint8Array(block).buffer));
    const [heard, values] = [{}, { data, task_id: "t0", notes: [], status: "" }];
    window.model = {
        get: (key) => values[key],
        set: (key, value) => { values[key] = value; },
        save_changes: () => { window.saved = structuredClone({ ...values, data: null }); },
        on: (event, act) => { heard[event] = act; },
        off: (event) => { delete heard[event]; },
    };
    window.heard = heard;
    window.clean = await widget.render({ model: window.model, el: document.body });
}"""


def test_the_module_draws_the_live_view(browser):
    """The same file as an ES module behind a stand-in for anywidget's model; the JupyterLab test has the real one."""
    view, page = widget(), browser.new_page()
    page.goto("about:blank")
    page.evaluate(DRAW, [view.source, [list(block) for block in view.data]])
    page.locator("section, .tokens span").first.wait_for()
    page.get_by_label("next task").click()
    page.wait_for_function("window.saved?.task_id === 't1'")
    page.get_by_label("note on this task").fill("live")
    page.wait_for_function("saved.notes[0]?.text === 'live' && saved.notes[0].task_id === 't1'")
    page.evaluate("model.set('status', 'saved in demo'); heard['change:status']()")
    wait_for_text(page.locator(".note output"), "saved in demo")
    page.evaluate("model.set('task_id', 't2'); heard['change:task_id']()")
    wait_for_text(page.locator(".prompt"), TASKS[2].prompt)
    page.evaluate("document.body.insertAdjacentHTML('beforeend', '<a href=#task=t0>t0</a>')")
    page.locator("a").click()
    wait_for_text(page.locator(".prompt"), TASKS[0].prompt)
    assert page.evaluate("clean(); Object.keys(heard).length") == 0
    page.close()
