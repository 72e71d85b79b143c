import html
import json
import re
import shutil
from contextlib import contextmanager
from pathlib import Path

import pytest

import agentkit.widgets.compare as module
from agentkit.records import StopReason, Task, ToolResult, Trajectory, Turn
from agentkit.widgets import compare_trajectories

FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update",
]  # fmt: skip
HOSTILE = (
    '</script><script>window.hacked = 1; parent.hacked = 1</script><img src=x onerror="window.hacked = 1">'
    '"><iframe srcdoc="<script>top.hacked=1</script>"> <!-- <script> ]]> &lt;b&gt; \u2028 \u202e \ud800'
)


def trajectory(task_id, success, *, sample=0, policy="sft", turns=None, answer="1", why="", components=None, reward=None):
    ids = (1, 2, 3)
    turns = turns or (Turn(f"The answer is {answer}.<|im_end|>", (0, 3)),)
    return Trajectory(
        task_id, policy, sample, 0, ids, ids, (1, 1, 1), (0.0,) * 3, turns, StopReason.ANSWER, answer, success,
        why, components or {}, reward,
    )  # fmt: skip


def call(query, observation="seen", ok=True, text="Let me look.\n<tool_call>\n{}\n</tool_call><|im_end|>"):
    return Turn(text, (0, 1), (ToolResult("search", {"query": query}, observation, ok),))


TASKS = [
    Task("t0", "How many people live in Peru?", "33", family="A", difficulty="easy"),
    Task("t1", "Who directed Alien?", "Ridley Scott", family="B", difficulty="hard"),
    Task("t2", "What is the capital of Chad?", "N'Djamena", family="B", difficulty="easy"),
    Task("unused", "?", "?", family="C"),
]


def widget(**options):
    sft = [
        trajectory("t0", 0.0, turns=(call("peru"), call("lima"), Turn("30", (0, 1))), why="30 is not 33"),
        trajectory("t0", 1.0, sample=1),
        trajectory("t0", 0.0, sample=2),
        trajectory("t1", 1.0, reward=0.98, components={"correct": 1.0, "format": None}),
        trajectory("t2", 0.0, turns=(call("chad", "search failed", ok=False), Turn("x", (0, 1)))),
    ]
    grpo = [
        trajectory("t0", 1.0, policy="grpo", turns=(call("peru"), call("peru population"), Turn("33", (0, 1)))),
        trajectory("t1", 0.0, policy="grpo"),
        trajectory("t2", 0.0, policy="grpo"),
    ]
    return compare_trajectories(TASKS, {"sft": sft, "grpo": grpo}, **options)


# ---- what Python prepares --------------------------------------------------------------------------------------------
def test_payload():
    payload = widget(max_samples=2).payload
    assert payload["policies"] == ["sft", "grpo"]
    assert [task["id"] for task in payload["tasks"]] == ["t0", "t1", "t2"]
    sft, grpo = payload["tasks"][0]["columns"]
    assert (sft["rate"], sft["solved"], sft["count"], len(sft["samples"])) == (0.3333, False, 3, 2)
    assert grpo["solved"] is True
    assert payload["tasks"][1]["columns"][0]["samples"][0]["components"] == {"correct": 1.0, "format": None}
    assert sft["samples"][0]["turns"][0]["results"][0]["arguments"] == '{"query": "peru"}'


def test_payload_of_odd_values():
    odd = trajectory("t0", None, reward=float("nan"), turns=(call("q", "y" * 5000),), answer=None)
    payload = compare_trajectories(TASKS, {"sft": [odd], "grpo": []}).payload
    sft, grpo = payload["tasks"][0]["columns"]
    assert sft["rate"] is None and sft["solved"] is None and sft["samples"][0]["reward"] is None
    assert sft["samples"][0]["turns"][0]["results"][0]["observation"].endswith("(1000 more characters)")
    assert grpo == {"rate": None, "solved": None, "count": 0, "samples": []}
    json.dumps(payload, allow_nan=False)


def test_clear_errors():
    with pytest.raises(ValueError, match="no policy to show"):
        compare_trajectories(TASKS, {})
    with pytest.raises(ValueError, match="no trajectory to show"):
        compare_trajectories(TASKS, {"sft": []})
    with pytest.raises(ValueError, match="the tasks lack 1 that trajectories are about: t9"):
        compare_trajectories(TASKS, {"sft": [trajectory("t9", 1.0)]})


def test_static_page_is_self_contained():
    shown = widget()
    assert set(shown._repr_mimebundle_()) == {"text/html", "text/plain"}
    page = html.unescape(re.search(r'srcdoc="([^"]*)"', shown._repr_html_())[1])
    assert page == shown.page
    assert 'sandbox="allow-scripts"' in shown._repr_html_() and "allow-same-origin" not in shown._repr_html_()
    assert "default-src 'none'" in page
    assert not re.search(r"https?://|\bimport\b[^a-z]*[\"'(]", page)
    source = Path(module.__file__).with_name("compare.js").read_text(encoding="utf-8")
    assert "</script" not in source and "<!--" not in source
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function", source)


def test_live_widget_shares_the_payload():
    shown = widget()
    live = shown.live()
    assert live.payload == shown.payload and live.task_id == "t0"
    live.close()


# ---- what a browser shows --------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def browser():
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if path is None:
        pytest.skip("no Chromium on this machine; install the package 'chromium' to test the widget in a browser")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield browser
        browser.close()


@contextmanager
def opened(browser, tmp_path, shown, body="<body>", scheme="light"):
    """The widget in a page, as a notebook opened as a file shows it: (page, frame, errors)."""
    file = tmp_path / "page.html"
    file.write_text(f"<!doctype html><meta charset=utf-8>{body}{shown._repr_html_()}", encoding="utf-8")
    context = browser.new_context(color_scheme=scheme, offline=True, viewport={"width": 1100, "height": 760})
    page = context.new_page()
    errors = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("request", lambda request: request.url.startswith("http") and errors.append(request.url))
    page.goto(file.as_uri())
    frame = page.frame_locator("iframe")
    frame.locator(".columns").wait_for()
    yield page, frame, errors
    assert errors == []
    context.close()


def test_paging_filters_and_samples(browser, tmp_path):
    with opened(browser, tmp_path, widget()) as (_, frame, _):
        counter = frame.locator("output")
        assert counter.inner_text() == "task 1 of 3"
        assert frame.locator(".prompt").inner_text() == TASKS[0].prompt
        sft, grpo = frame.get_by_label("sft", exact=True), frame.get_by_label("grpo", exact=True)
        assert "✗ wrong" in sft.inner_text() and "✓ right" in grpo.inner_text()
        assert "33 % of 3 samples right" in sft.inner_text() and "30 is not 33" in sft.inner_text()
        marked = frame.locator(".diverges header")
        assert [m.split() for m in marked.all_inner_texts()] == [["turn", "2", "first", "difference"]] * 2
        frame.get_by_label("sample 1, ✓ right").click()
        assert "✓ right" in sft.locator("h3").inner_text()
        frame.locator(".ak").press("ArrowRight")
        assert counter.inner_text() == "task 2 of 3" and "not scored" in sft.inner_text()
        frame.get_by_label("next task").click()
        assert frame.get_by_label("next task").is_disabled() and "✗ failed" in sft.inner_text()
        frame.locator(".ak").press("ArrowLeft")
        assert counter.inner_text() == "task 2 of 3"
        for option, prompts in [("1", TASKS[0].prompt), ("2", TASKS[1].prompt), ("3", TASKS[2].prompt)]:
            frame.get_by_label("outcome").select_option(option)
            assert counter.inner_text() == "task 1 of 1" and frame.locator(".prompt").inner_text() == prompts
        frame.get_by_label("outcome").select_option("4")
        assert counter.inner_text() == "no task" and "No task fits" in frame.locator(".none").inner_text()
        frame.get_by_label("outcome").select_option("0")
        frame.get_by_label("category", exact=True).select_option("category B")
        frame.get_by_label("difficulty").select_option("easy")
        assert frame.locator(".prompt").inner_text() == TASKS[2].prompt
        frame.get_by_label("category", exact=True).select_option("0")
        frame.get_by_label("difficulty").select_option("0")
        frame.get_by_label("search").fill("LIMA")
        assert counter.inner_text() == "task 1 of 1"
        frame.get_by_label("search").fill("samples")  # a key of the payload, not a text
        assert counter.inner_text() == "no task"


def test_results_fold(browser, tmp_path):
    with opened(browser, tmp_path, widget()) as (_, frame, _):
        results = frame.locator("details:has(summary code) pre")
        assert results.first.is_visible()
        frame.get_by_label("fold or open").click()
        assert not results.first.is_visible()
        frame.locator("summary code").first.click()
        assert results.first.is_visible()


def test_hostile_text_stays_text(browser, tmp_path):
    turn = Turn(HOSTILE, (0, 1), (ToolResult(HOSTILE, {HOSTILE: HOSTILE}, HOSTILE, True),))
    bad = trajectory("t", 0.0, turns=(turn,), answer=HOSTILE, why=HOSTILE, components={HOSTILE: 1.0}, policy=HOSTILE)
    task = Task("t", HOSTILE, HOSTILE, family=HOSTILE, difficulty=HOSTILE)
    with opened(browser, tmp_path, compare_trajectories([task], {HOSTILE: [bad], "b": [bad]})) as (page, frame, _):
        frame.locator("details").last.locator("summary").click()
        page.wait_for_timeout(200)
        inner = page.frames[1]
        assert [page.evaluate("window.hacked"), inner.evaluate("window.hacked")] == [None, None]
        assert inner.evaluate("document.querySelectorAll('img, iframe, .ak script').length") == 0
        assert inner.evaluate("document.querySelector('.prompt').textContent") == HOSTILE
        assert frame.locator("pre").first.text_content().startswith("</script><script>")
        assert inner.evaluate("try { parent.document.title; 'reached' } catch { 'refused' }") == "refused"


@pytest.mark.parametrize(
    ("body", "scheme", "theme"),
    [
        ("<body>", "light", "light"),
        ("<body>", "dark", "dark"),
        ('<body data-jp-theme-light="false">', "light", "dark"),
        ('<body data-jp-theme-light="true">', "dark", "light"),
    ],
)
def test_theme_follows_the_page(browser, tmp_path, body, scheme, theme):
    with opened(browser, tmp_path, widget(), body, scheme) as (page, frame, _):
        frame.locator(f".ak[data-theme={theme}]").wait_for(timeout=5000)
        if body != "<body>":
            other = {"light": "dark", "dark": "light"}[theme]
            page.evaluate("light => { document.body.dataset.jpThemeLight = light }", str(other == "light").lower())
            frame.locator(f".ak[data-theme={other}]").wait_for(timeout=5000)


def test_the_module_draws_the_live_widget(browser, tmp_path):
    """The same file as an ES module behind a stand-in for anywidget's model."""
    source = Path(module.__file__).with_name("compare.js").read_text(encoding="utf-8")
    context = browser.new_context()
    page = context.new_page()
    page.goto("about:blank")
    page.evaluate(
        """async ([source, payload]) => {
            const url = URL.createObjectURL(new Blob([source], { type: "text/javascript" }));
            const { default: widget } = await import(url);
            const heard = {};
            const values = { payload, task_id: "t0" };
            window.model = {
                get: (key) => values[key],
                set: (key, value) => { values[key] = value; },
                save_changes: () => { window.saved = values.task_id; },
                on: (event, act) => { heard[event] = act; },
                off: (event) => { delete heard[event]; },
            };
            window.heard = heard;
            window.clean = widget.render({ model: window.model, el: document.body });
        }""",
        [source, widget().payload],
    )
    page.get_by_label("next task").click()
    assert page.evaluate("saved") == "t1"
    page.evaluate("model.set('task_id', 't2'); heard['change:task_id']()")
    assert page.locator(".prompt").inner_text() == TASKS[2].prompt
    assert page.evaluate("clean(); Object.keys(heard).length") == 0
    context.close()
