import base64
import dataclasses
import html
import json
import os
import re
import shutil
from contextlib import nullcontext

import pytest
from hostile.widget_texts import CHARACTERS, SCRIPTS

from agentkit.cli import main
from agentkit.evaluation import compare
from agentkit.records import StopReason, Task, ToolResult, Trajectory, Turn
from agentkit.runs import Run, append_jsonl, digest, load_run, write_json, write_tasks, write_trajectories
from agentkit.views import card as report
from agentkit.views.card import render, write_report
from agentkit.views.redact import environment_secrets, is_secret_name, redact, redact_text

HOSTILE = " ".join((*SCRIPTS.values(), *CHARACTERS.values()))
RECIPE = {
    "run": "x",
    "seed": 3,
    "model": "nano",
    "steps": 4,
    "n_tasks": 40,
    "prompts_per_step": 2,
    "group_size": 2,
    "micro_batch": 2,
}


def trajectory(task_id, policy, sample, success, observation="Found it."):
    turns = (
        Turn("Let me look.<|im_end|>", (0, 1), (ToolResult("search", {"query": "it"}, observation, True),)),
        Turn("Answer: 5<|im_end|>", (2, 3)),
    )
    return Trajectory(
        task_id, policy, sample, 0, (9,), (1, 2, 3), (1, 0, 1), (0.0,) * 3, turns, StopReason.ANSWER, "5", success, "because",
        {"correctness": success}, success,
    )  # fmt: skip


def alarm(**fields):
    row = {
        "step": 1,
        "alarm": "x",
        "severity": "warning",
        "value": 0.5,
        "evidence": [],
        "cause": "",
        "advice": "",
    }
    return row | fields


def item(**fields):
    return {"name": "", "light": "green", "finding": "", "advice": "", "evidence": [], "values": {}} | fields


def policies(tasks, **options):
    found = {}
    for shift, name in enumerate(("sft", "grpo")):
        found[name] = [
            trajectory(t.id, name, k, float((i + k + shift) % 3 > 0), **options)
            for i, t in enumerate(tasks)
            for k in (0, 1)
        ]
    return found


def make_run(path, n=12, tasks=None, **options):
    """A finished run with every file a run card reads."""
    run = Run.create(path)
    levels = ("easy", "medium", "hard")
    tasks = tasks or [
        Task(f"{'AB'[i % 2]}-{i:04d}", f"Question {i}?", "5", "numeric", "AB"[i % 2], levels[i % 3], "test")
        for i in range(n)
    ]
    write_tasks(run.file("tasks.jsonl"), tasks)
    found = policies(tasks, **options)
    for name, own in found.items():
        write_trajectories(run.file("eval", f"{name}.parquet"), own)
    comparison = compare(found, tasks).to_json()
    write_json(run.file("comparison.json"), comparison)
    write_json(run.file("baseline.json"), comparison["policies"]["sft"])
    for step in range(5):
        row = {
            "step": step,
            "reward": 0.1 * step,
            "reward/correctness": 0.1,
            "success": 0.2,
            "rollout_seconds": 2.0,
            "update_seconds": 1.0,
        }
        append_jsonl(
            run.file("train", "metrics.jsonl"),
            row | ({"val_success": 0.3 + step / 10, "val_seconds": 1.0} if step % 2 == 0 else {}),
        )
    append_jsonl(run.file("train", "alarms.jsonl"), alarm(step=3, alarm="kl_spike", advice="Lower the rate."))
    write_json(run.file("preflight.json"), {"light": "green", "items": [item(name="dead groups")]})
    stages = {name: {"status": "done", "seconds": 150} for name in report.STAGES}
    hashes = {"tasks.jsonl": digest(run.file("tasks.jsonl"))}
    run.update(
        recipe=RECIPE,
        stages=stages,
        versions={"python": "3.11", "torch": "2.13.0"},
        git={"commit": "abc123", "dirty": True},
        hashes=hashes,
    )
    return run


# ---- what it says
def test_every_part_is_there(tmp_path, capsys):
    run = make_run(tmp_path / "a")
    assert main(["report", str(run.path)]) == 0
    path = run.file("report.html")
    assert str(path) in capsys.readouterr().out and path.stat().st_mode & 0o777 == 0o600
    page = path.read_text()
    for title, _ in report.SECTIONS:
        assert f"<h2>{title}</h2>" in page
    for part in (
        "sft → grpo:",
        "kl_spike",
        "Lower the rate.",
        "dead groups",
        "unchanged",
        "2.13.0",
        "abc123",
        "seed 3",
        "2.5 min",
    ):
        assert part in page, part
    assert "Validation success went from 30.0 % to 70.0 %; the best was 70.0 % at step 4." in page
    assert "Missing." not in page and not re.search(
        r"""(?:src|href)=["']?https?:""", page.split("<script>")[0]
    )
    assert page.count("Plotly.newPlot(") == 3


# ---- what names trajectories
NAMED = ["3:A-0000#1", "3:B-0001#0", "3:A-0099#1"]


def named_run(path, **options):
    """A run whose alarms and preflight name trajectories."""
    run = make_run(path, **options)
    cause = (
        "The KL to the reference is 236.95074548350587 nats a token (at most 1.2345678901234567e-05 before)."
    )
    kl = alarm(
        step=3, alarm="kl_spike", severity="critical", value=236.95074548350587, evidence=NAMED, cause=cause
    )
    append_jsonl(run.file("train", "alarms.jsonl"), kl)
    names = [f"{t.id}#{k}" for t in run.tasks[:4] for k in (0, 1)]
    items = [
        item(name="Success now", finding="0.12345678901234567 of the rollouts are right.", evidence=names),
        item(name="Gold trajectories", light="red", advice="Mend it.", evidence=["gold:A-0000#0"]),
    ]
    write_json(run.file("preflight.json"), {"light": "red", "items": items})
    return run


def words_of(page):
    """What a reader sees of the parts that this kit writes: no script, no style, no trajectory."""
    plain = re.sub(
        r"<(script|style|iframe)\b.*?</\1>|<pre\b.*?</pre>", " ", page.split("<main>")[1], flags=re.DOTALL
    )
    return html.unescape(re.sub(r"<[^>]+>", " ", plain))


def test_alarms_and_preflight_are_sentences_with_the_names_of_what_shows_it(tmp_path):
    run = named_run(tmp_path / "a")
    run.update(
        recipe={"lora_targets": ["q_proj", 0.30000000000000004], "odd": {"a": [1.23456789012345, None]}}
    )
    page = render(load_run(run.path))
    anchors, links = re.findall(r' id="([^"]+)"', page), re.findall(r'<a href="#([^"]+)">', page)
    assert len(set(anchors)) == len(anchors) and set(links) <= set(anchors)
    words = words_of(page)
    assert "is 237 nats a token (at most 1.235e-05 before)" in words and "0.1235 of the rollouts" in words
    assert ", ".join(NAMED) in words and "gold:A-0000#0" in words and "A-0000#0, A-0000#1, B-0001#0" in words
    assert not re.search(r"""\[["']|\{["']|\d\.\d{7,}""", words), (
        "raw JSON, or more digits than anybody reads"
    )
    assert (
        "q_proj, 0.3" in words and "a: 1.235, –" in words and "look" not in words.split("Preflight")[1][:20]
    )


def test_evidence_that_must_not_be_shared_is_a_name_only(tmp_path):
    share = {"share": False}
    tasks = [
        Task(f"g{i}", f"Private question {i}", "5", "exact", "GAIA", "hard", "test", meta=share)
        for i in range(4)
    ]
    run = named_run(tmp_path / "a", tasks=tasks)
    append_jsonl(run.file("train", "alarms.jsonl"), alarm(step=3, evidence=["3:g1#0"]))
    page = render(load_run(run.path))
    assert "3:g1#0" in page and "Let me look." not in page and "Private question" not in page


@pytest.mark.parametrize(
    "evidence", [[3], [None], [["3:A-0000#1"]], ["9" * 5000 + ":x"], ["3:"], [":"], ["\ud800"]]
)
def test_evidence_of_any_form_is_shown_and_stops_nothing(tmp_path, evidence):
    run = named_run(tmp_path / "a")
    append_jsonl(run.file("train", "alarms.jsonl"), alarm(step=3, evidence=evidence, cause="It is so."))
    damaged = not all(isinstance(name, str) for name in evidence)
    with pytest.warns(UserWarning, match="an alarm was left out") if damaged else nullcontext():
        page = render(load_run(run.path))
    assert ("an alarm was left out" in page) is damaged is ("It is so." not in page)
    assert "cannot be shown" not in page


def test_a_run_on_a_cpu_has_no_gpu_hours_and_one_on_a_gpu_has(tmp_path):
    run = make_run(tmp_path / "a")
    assert "GPU-hour" not in words_of(render(run)).replace("no GPU-hours", "")
    run.update(recipe={"model": "some-3b"})
    assert "$/GPU-hour" in words_of(render(load_run(run.path)))
    run.update(versions={"torch": "2.13.0+cpu"})
    assert "$/GPU-hour" not in words_of(render(load_run(run.path)))


def test_a_changed_file_is_told(tmp_path):
    run = make_run(tmp_path / "a")
    tasks = run.tasks
    write_tasks(run.file("tasks.jsonl"), [dataclasses.replace(tasks[0], prompt="Another?"), *tasks[1:]])
    assert "CHANGED to" in render(load_run(run.path))


def test_the_headline_leads_and_tells_of_an_agent_that_was_not_trained(tmp_path):
    run = make_run(tmp_path / "a")
    first = re.compile(r'class="lead">(.*?)</p>')
    assert first.search(render(run))[1].startswith(
        "GRPO solves 66.7 % of 12 held-out tasks, and SFT 66.7 %: a diff"
    )
    old = run.comparison
    del old["headline"]
    write_json(run.file("comparison.json"), old)
    assert first.search(render(run))[1].startswith("GRPO solves"), "of a run from before there were any"
    run.update(stages={"03_grpo": run.manifest["stages"]["03_grpo"] | {"best_step": 0}})
    assert first.search(render(run))[1] == (
        "GRPO kept the adapter of step 0: no step improved on its start, so this is the agent before training, "
        "compared with itself. It solves 66.7 % of 12 held-out tasks, and no gain is claimed."
    )


def test_what_an_earlier_version_measured_greedily_is_no_policy(tmp_path, recwarn):
    run = make_run(tmp_path / "a")
    page = render(run)
    for name in ("sft", "grpo"):
        first = [t for t in run.trajectories(name) if t.sample == 0]
        write_trajectories(run.file("eval", f"{name}_greedy.parquet"), first)
    old = run.comparison
    old["policies"]["sft"]["greedy"] = {"success": 0.5, "ci95": [0.2, 0.8], "n": 12}
    write_json(run.file("comparison.json"), old)
    write_json(run.file("baseline.json"), old["policies"]["sft"])
    assert run.measured == ["grpo", "sft"] and list(report._Card(run).policies) == ["sft", "grpo"]
    again = render(run)
    assert "greedy" not in again and len(again) == len(page) and not recwarn.list


def test_a_torn_gaia_leaves_the_result_in_place(tmp_path):
    run = make_run(tmp_path / "a")
    run.file("gaia.json").write_text('{"policies": [')
    page = render(load_run(run.path))
    assert "gaia.json is not valid JSON" in page
    assert "held-out tasks" in page and page.count("<h2>") == len(report.SECTIONS)


@pytest.mark.parametrize(
    ("removed", "says"),
    [
        ("comparison.json", "This run has no comparison of policies yet."),
        ("baseline.json", "baseline.json does not exist"),
        ("train/metrics.jsonl", "metrics.jsonl does not exist"),
        ("train/alarms.jsonl", "no alarm watched a training, or the file is lost"),
        ("preflight.json", "no preflight was made"),
        ("eval", "no evaluation trajectories"),
        ("tasks.jsonl", "tasks.jsonl does not exist"),
    ],
)
def test_what_is_missing_is_said_and_the_rest_is_shown(tmp_path, removed, says):
    run = make_run(tmp_path / "a")
    path = run.file(removed)
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    page = render(load_run(run.path))
    assert says in page and page.count("<h2>") == len(report.SECTIONS) and "sampled in training" not in page
    assert page.count('class="missing"') <= 4


@pytest.mark.filterwarnings("ignore:.*is torn")
@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"3",
        b'{"a": [[1, {"b": null}]]}\n',
        b"\xff\x00{",
        b'{"policies": {"x": 3}}',
        b"null\n[1]\n",
    ],
)
def test_damaged_files_never_stop_it(tmp_path, content):
    run = make_run(tmp_path / "a")
    for name in (
        "comparison.json",
        "baseline.json",
        "train/metrics.jsonl",
        "train/alarms.jsonl",
        "preflight.json",
        "tasks.jsonl",
    ):
        run.file(name).write_bytes(content)
    run.file("eval", "sft.parquet").write_bytes(content)
    assert render(load_run(run.path)).count("<h2>") == len(report.SECTIONS)


ODD_ITEMS = [3, None, "red", [], {}, item(name="Seen", finding=[1]), item(light={}), item(evidence=5)]


@pytest.mark.parametrize("odd", ODD_ITEMS)
def test_a_preflight_item_of_a_wrong_kind_hides_no_other(tmp_path, odd):
    run = make_run(tmp_path / "a")
    items = [item(name="First", finding="It is so."), odd, item(name="Third", light="red", finding="Not so.")]
    write_json(run.file("preflight.json"), {"light": "red", "items": items})
    words = " ".join(words_of(render(load_run(run.path))).split("Preflight")[-1].split())
    assert "First : It is so." in words and "Third : Not so." in words
    assert ("Item 2 (" in words) == (odd != ODD_ITEMS[-1]) and "cannot be shown" not in words


@pytest.mark.parametrize("manifest", [{}, {"recipe": {"steps": "many", "zz": {}}}])
def test_odd_manifests_never_stop_it(tmp_path, manifest):
    run = make_run(tmp_path / "a")
    write_json(run.file("run.json"), {"stages": {}} | manifest)
    assert render(load_run(run.path)).count("<h2>") == len(report.SECTIONS)
    bare = Run.create(tmp_path / "bare")
    assert render(bare).count("<h2>") == len(report.SECTIONS)


# ---- size
def test_a_thousand_tasks_are_listed_and_huge_observations_cut(tmp_path):
    noise = base64.b64encode(os.urandom(750_000)).decode()  # a megabyte that no compression shrinks
    run = make_run(tmp_path / "a", n=1000)
    found = policies(run.tasks)
    found["grpo"] = [
        trajectory(t.task_id, "grpo", 0, 1.0, noise) if i < 10 else t for i, t in enumerate(found["grpo"])
    ]
    write_trajectories(run.file("eval", "grpo.parquet"), found["grpo"])
    for _ in range(20):
        append_jsonl(run.file("train", "alarms.jsonl"), alarm(advice=noise))
    path = write_report(load_run(run.path))
    assert path.stat().st_size < 10_000_000
    page = path.read_text()
    assert "Success on each of the 1000 measured tasks" in page and "more characters left out" in page
    assert noise[:5000] not in page


def test_epochs_are_told_as_the_steps_they_came_to(tmp_path):
    run = make_run(tmp_path / "a")
    append_jsonl(run.file("train", "metrics.jsonl"), {"step": 5, "reward": 0.1, "planned_steps": 9})
    append_jsonl(run.file("train", "metrics.jsonl"), {"step": 6, "reward": 0.1})  # on the same rollouts
    assert "6 of 9 optimiser steps are recorded." in render(load_run(run.path))


def test_long_trainings_are_thinned(tmp_path):
    run = make_run(tmp_path / "a")
    rows = [
        json.dumps(
            {"step": s, "reward": s / 1e4, "kl": 0.1} | ({"val_success": 0.5} if s % 1000 == 0 else {})
        )
        for s in range(10_000)
    ]
    run.file("train", "metrics.jsonl").write_text("\n".join(rows) + "\n")
    page = render(load_run(run.path))
    assert (
        len(page) < 6_500_000
        and "dots: at most one in 25 steps" in page
        and "9999 of 4 optimiser steps" in page
    )


# ---- secrets
SECRETS = {"environment": "correct-horse-battery", "bearer": "zQ81kfPq0aLx77Rt", "password": "hunter22"}
SENTENCE = "Authorization: Bearer {bearer} password={password} {environment}".format(**SECRETS)


def test_no_planted_secret_is_in_it(tmp_path, monkeypatch):
    monkeypatch.setenv("MY_SERVICE_TOKEN", SECRETS["environment"])
    tasks = [
        Task(f"A-{i}", f"Question {i}? {SENTENCE}", SENTENCE[:1500], "exact", "A", "easy", "test")
        for i in range(4)
    ]
    run = make_run(tmp_path / "a", tasks=tasks, observation="x" * 3_890 + SENTENCE)
    secret_recipe = RECIPE | {
        "hub_token": "plain-looking",
        "note": SENTENCE,
        "nested": {"api_key": "inner-value", "list": [SENTENCE]},
    }
    run.update(
        recipe=secret_recipe,
        stages={"03_grpo": {"status": SENTENCE}},
        versions={SENTENCE: SENTENCE},
        git={"commit": SENTENCE},
    )
    append_jsonl(
        run.file("train", "alarms.jsonl"),
        alarm(alarm=SENTENCE, advice=SENTENCE, cause=SENTENCE, evidence=[SENTENCE]),
    )
    items = [item(name=SENTENCE, finding=SENTENCE, advice=SENTENCE)]
    write_json(run.file("preflight.json"), {"light": "red", "items": items})
    handed = []
    real = report.compare_trajectories
    monkeypatch.setattr(report, "compare_trajectories", lambda *a, **k: handed.append(a) or real(*a, **k))
    page = render(load_run(run.path))
    shown = page + repr(handed)
    for secret in (*SECRETS.values(), "plain-looking", "inner-value"):
        assert secret not in shown, secret
    assert "[masked]" in page and handed and "Let me look." in shown
    assert all(set(t.completion_ids) == {0} and not t.prompt_ids for ts in handed[0][1].values() for t in ts)


@pytest.mark.parametrize(
    "name",
    "api_key HF_TOKEN dbPassword client_secret Authorization x-api-key WANDB_API_KEY token AWS_SECRET_ACCESS_KEY".split(),
)
def test_secret_names(name):
    assert is_secret_name(name) and redact({name: "abc"}) == {name: "[masked]"}


@pytest.mark.parametrize(
    "name",
    "max_tokens max_turn_tokens eos_token tokenizer primary_key key author monkey keyboard tokens top_k".split(),
)
def test_harmless_names(name):
    assert not is_secret_name(name) and redact({name: "abc"}) == {name: "abc"}


@pytest.mark.parametrize(
    "text",
    ["MY_TOKEN={}", "export SERVICE_PASSWORD={}", "a.client_secret: {}", "pwd={}", '{{"api_key": "{}"}}']
    + [
        '{{\\"api_key\\":\\"{}\\"}}',
        "token: {}",
        "Authorization: Basic {}",
        "X-Api-Key:{}",
        "dbPassword => {}",
        "Authorization: Token {}",
        'os.environ["MY_SECRET"] = "{}"',
        "curl --api-key {} --verbose",
    ],
)
def test_values_under_secret_names(text):
    for value in ("swordfish7", "sw@rd;fish&7", "it is, a fish" if '"' in text else "it(is"):
        assert redact_text(text.format(value)) == text.format("[masked]")


@pytest.mark.parametrize(
    "text",
    [
        "The key: France is in Europe.",
        "token-mean loss, basic understanding",
        "the secret is that it works",
        "key=population of Peru",
    ]
    + [
        "Answer: 1234567890123456",
        "commit e8dd7a8f0c1b2a3948576",
        "https://example.org/a:b",
        "a bearer of bad news",
        "sort key: name",
        "serve --auth --port 8000",
        "token = 'it'; the secret-keeper",
    ],
)
def test_ordinary_text_is_kept(text):
    assert redact_text(text) == text


def test_environment_values_and_quick_masking(monkeypatch):
    variables = {
        "A_PASSWORD": "p@ss word",
        "HOME": "somewhere",
        "B_TOKEN": "abc",
        "DB_SECRET": "much-longer-secret",
        "AGENTKIT_JUDGE_KEY": "token-abc123",
        "TAVILY_KEY": "of-a-search",
        "PWD": "research-of-mine",
        "OLDPWD": "another-folder",
    }
    monkeypatch.setattr(os, "environ", variables)
    found = environment_secrets()
    assert found == ("much-longer-secret", "p%40ss%20word", "token-abc123", "of-a-search", "p@ss word")
    for text in (
        "key=" * 250_000,
        "password" + " " * 10**6,
        'password=" password=\\" password=\'x ' * 30_000,
    ):
        redact_text(text)  # linear: quadratic time would take hours


# ---- data that must not be shared
def test_private_tasks_are_ids_and_scores_only(tmp_path):
    share = {"share": False, "source": "GAIA", "licence": "gated"}
    tasks = [
        Task(
            f"g{i}",
            f"Private question {i}",
            f"private answer {i}",
            "exact",
            "GAIA",
            "level 1",
            "test",
            meta=share,
        )
        for i in range(3)
    ]
    run = make_run(tmp_path / "a", tasks=tasks, observation="private observation")
    told = item(name="Questions", finding="'private answer 1'", advice="Take it out ('Private question 1').")
    write_json(run.file("preflight.json"), {"light": "amber", "items": [told]})
    page = render(run)
    assert "<b>Questions</b>: not shown, as tasks of this run must not be shared." in page
    assert "private question" not in page.lower()
    assert (
        "private answer" not in page and "private observation" not in page and "3 tasks are not shown" in page
    )
    assert all(f">g{i}</th>" in page for i in range(3)) and "gated" in page


# ---- in a browser
def opened(browser, path, scheme="light", width=1400):
    context = browser.new_context(color_scheme=scheme, offline=True, viewport={"width": width, "height": 900})
    page, faults = context.new_page(), []
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("console", lambda message: faults.append(message.text) if message.type == "error" else None)
    page.on("request", lambda request: request.url.startswith("http") and faults.append(request.url))
    page.on("dialog", lambda dialog: faults.append(dialog.message))
    page.goto(path.as_uri())
    page.locator(".main-svg").first.wait_for(timeout=60_000)
    return page, faults


@pytest.mark.parametrize(("scheme", "width", "dark"), [("light", 800, False), ("dark", 1400, True)])
def test_it_opens_offline(browser, tmp_path, scheme, width, dark):
    page, faults = opened(browser, write_report(make_run(tmp_path / "a")), scheme, width)
    page.frame_locator("iframe").locator("text=Question").first.wait_for(timeout=60_000)
    assert page.locator(".js-plotly-plot").count() == 3
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", colour)[:3])) < 300) is dark
    ink = "getComputedStyle(document.querySelector('.plot .gtitle')).fill"
    assert page.evaluate(ink) == page.evaluate("getComputedStyle(document.body).color"), (
        "no grey of both themes"
    )
    page.locator("summary").first.click()
    assert faults == []
    page.context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1400, 420])
def test_words_stay_whole(browser, tmp_path, scheme, width):
    page, faults = opened(browser, write_report(named_run(tmp_path / "a")), scheme, width)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate(LINES, "#alarms b, nav a, .stages b, td.number") == []
    assert page.evaluate(OVERLAPS) == []
    assert page.locator("nav").bounding_box()["height"] < 60 and faults == []
    page.context.close()


# texts that stand on more than one line
LINES = """selector => [...document.querySelectorAll(selector)].filter(e => {
  const text = document.createRange();
  text.selectNodeContents(e);
  return e.checkVisibility() && new Set([...text.getClientRects()].map(r => Math.round(r.top))).size > 1;
}).map(e => e.textContent)"""
# titles and labels of a figure's panels that lie on each other
OVERLAPS = """() => [...document.querySelectorAll('.js-plotly-plot')].flatMap(plot => {
  const words = [...plot.querySelectorAll('.annotation-text, .g-gtitle text, .legendtext, .xtitle, .ytitle')];
  const boxes = words.map(e => [e.textContent, e.getBoundingClientRect()]).filter(([_, r]) => r.width > 0);
  return boxes.flatMap(([a, p], i) => boxes.slice(i + 1).filter(([_, q]) =>
    p.left < q.right - 2 && q.left < p.right - 2 && p.top < q.bottom - 2 && q.top < p.bottom - 2).map(([b]) => [a, b]));
})"""


def test_hostile_text_runs_nothing(browser, tmp_path):
    tasks = [
        Task(HOSTILE, HOSTILE, HOSTILE[:1500], "exact", HOSTILE, HOSTILE, "test"),
        Task("t1", "q", "5", "numeric", "A", "easy", "test"),
    ]
    run = make_run(tmp_path / "a", tasks=tasks, observation=HOSTILE)
    comparison = run.comparison
    comparison["policies"][HOSTILE] = comparison["policies"].pop("sft")
    comparison["paired"][0]["a"] = HOSTILE
    comparison["flipped"] = {f"{HOSTILE}->grpo": {"to_right": [HOSTILE], "to_wrong": [HOSTILE]}}
    write_json(run.file("comparison.json"), comparison)
    append_jsonl(
        run.file("train", "metrics.jsonl"),
        {"step": 5, "reward": 1.0, f"reward/{HOSTILE}": 1.0, HOSTILE: HOSTILE},
    )
    told = {"alarm": HOSTILE, "severity": HOSTILE, "cause": HOSTILE, "advice": HOSTILE, "evidence": [HOSTILE]}
    append_jsonl(run.file("train", "alarms.jsonl"), alarm(step=5, **told))
    items = [item(name=HOSTILE, light=HOSTILE, finding=HOSTILE, advice=HOSTILE)]
    write_json(run.file("preflight.json"), {"light": HOSTILE, "items": items})
    run.update(
        recipe={HOSTILE: HOSTILE, "model": HOSTILE, "seed": HOSTILE},
        stages={HOSTILE: {"status": HOSTILE}},
        git={"commit": HOSTILE},
    )
    page, faults = opened(browser, write_report(load_run(run.path)))
    page.wait_for_timeout(500)
    assert [frame.evaluate("window.hacked") for frame in page.frames] == [None] * len(page.frames)
    assert (
        page.evaluate(
            "document.querySelectorAll('img, form, object, embed, template, base, main link, main meta').length"
        )
        == 0
    )
    assert (
        page.evaluate("document.querySelectorAll('iframe').length")
        == 1
        == page.locator("iframe[sandbox]").count()
    )
    links = page.evaluate(
        "[...document.querySelectorAll('a')].map(a => a.getAttribute('href') || a.getAttribute('xlink:href') || '')"
    )
    assert all(link == "" or link.startswith("#") for link in links), links
    assert (
        page.evaluate(
            "[...document.querySelectorAll('main *')].flatMap(e => [...e.attributes]).filter(a => /^on/.test(a.name)).length"
        )
        == 0
    )
    assert "\\u202e" in page.inner_text("main") and faults == []
    page.context.close()
