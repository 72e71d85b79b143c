"""The run card and executed notebooks as pages: what they show, what they mask, and that nothing stops them."""

import base64
import gzip
import html
import json
import re

import nbformat
import pytest
from hostile.widget_texts import CHARACTERS, SCRIPTS
from nbformat.v4 import new_code_cell, new_notebook, new_output

from agentkit.cli import main
from agentkit.evaluation import Comparison, compare
from agentkit.records import StopReason, Task, ToolResult, Trajectory, Turn
from agentkit.runs import Run, append_jsonl, load_run, write_json, write_tasks, write_trajectories
from agentkit.runs.stages import STAGES
from agentkit.views.card import SECTIONS, write_report
from agentkit.views.plots import training_curves
from agentkit.views.redact import MASK, is_secret_name, redact

HOSTILE = " ".join((*SCRIPTS.values(), *CHARACTERS.values()))
RECIPE = {"seed": 3, "model": "nano", "steps": 4, "n_tasks": 40, "prompts_per_step": 2, "group_size": 2}


def trajectory(task_id, policy, sample, success, observation="Found it."):
    seen = ToolResult("search", {"query": "it"}, observation, True)
    turns = Turn("Let me look.<|im_end|>", (0, 1), (seen,)), Turn("Answer: 5<|im_end|>", (2, 3))
    tokens = (9,), (1, 2, 3), (1, 0, 1), (0.0,) * 3
    verdict = "5", success, "because", {"correctness": success}, success
    return Trajectory(task_id, policy, sample, 0, *tokens, turns, StopReason.ANSWER, *verdict)


def policies(tasks, **options):
    """Two samples of each task, two in three of them right."""

    def own(name, shift):
        pairs = [(i, k) for i in range(len(tasks)) for k in (0, 1)]
        return [trajectory(tasks[i].id, name, k, float((i + k + shift) % 3 > 0), **options) for i, k in pairs]

    return {name: own(name, shift) for shift, name in enumerate(("sft", "grpo"))}


def make_run(path, n=12, tasks=None, **options):
    """A finished run with every file a run card reads."""
    run, levels = Run.create(path), ("easy", "medium", "hard")
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
        row = {"step": step, "reward": 0.1 * step, "reward/correctness": 0.1, "success": 0.2, "seconds": 3.0}
        row |= {"rollout_seconds": 2.0, "update_seconds": 1.0}
        if step % 2 == 0:
            row |= {"val_success": 0.3 + step / 10, "val_seconds": 1.0, "val_ci_low": 0.2, "val_ci_high": 0.8}
        append_jsonl(run.file("train", "metrics.jsonl"), row)
    alarm = {"step": 3, "alarm": "kl_spike", "severity": "critical", "value": 0.5, "evidence": ["3:A-0000#1"]}
    alarm |= {"cause": "It is so.", "advice": "Lower the rate."}
    append_jsonl(run.file("train", "alarms.jsonl"), alarm)
    write_json(run.file("preflight.json"), {"light": "green", "items": []})
    run.update(
        recipe=RECIPE, stages={name: {"status": "done", "seconds": 150} for name in STAGES},
        versions={"python": "3.11", "torch": "2.13.0"}, git={"commit": "abc123", "dirty": True}, hashes={},
    )  # fmt: skip
    return run


def notebook(run, stage, *texts):
    """An executed notebook of the run with these outputs and a figure."""
    figure = json.loads(training_curves(run.metrics).to_json())
    shown = [new_output("stream", name="stdout", text=text) for text in texts]
    shown.append(new_output("display_data", {"application/vnd.plotly.v1+json": figure}))
    cell = new_code_cell("api_key = 'sk-12345678'", outputs=shown)
    nbformat.write(new_notebook(cells=[cell]), run.file(f"{stage}.ipynb"))


def payload(page):
    """What the card's viewer holds, unpacked."""
    frame = html.unescape(re.search(r'srcdoc="([^"]*)"', page)[1])
    blocks = re.search(r'id="payload">([^<]*)<', frame)[1].split("\n")
    return "".join(gzip.decompress(base64.b64decode(block)).decode() for block in blocks)


def test_every_part_is_there(tmp_path, capsys):
    run = make_run(tmp_path / "a")
    notebook(run, "05_compare", "hello")
    assert main(["report", str(run.path)]) == 0
    path = run.file("report.html")
    assert str(path) in capsys.readouterr().out and path.stat().st_mode & 0o777 == 0o600
    page = path.read_text()
    assert [title for title in SECTIONS if f"<h2>{title}</h2>" in page] == list(SECTIONS)
    lead = re.search(r'class="lead">(.*?)</p>', page)[1]
    said = "GRPO solves 66.7 % of 12 held-out tasks, and SFT 66.7 %: a difference is not shown"
    assert lead.startswith(said)
    parts = ("sft → grpo:", "kl spike", "Lower the rate.", "3:A-0000#1", "abc123", "seed 3", "n_tasks")
    assert [part for part in parts if part not in page] == [] and "Missing." not in page
    assert 'href="05_compare.html"' in page and "hello" in run.file("05_compare.html").read_text()
    assert "Let me look." in payload(page) and page.count("Plotly.newPlot(") == 2


def test_flaws_and_a_measured_last_step_are_said_first(tmp_path):
    run = make_run(tmp_path / "a")
    run.update(recipe=RECIPE | {"flaws": {"in_head": 0.4}})
    run.update(stages={"03_grpo": {"status": "done", "best_step": 0, "measured_step": 4}})
    comparison = Comparison.from_json(run.comparison).of_run(run)
    write_json(run.file("comparison.json"), comparison.to_json())
    flaws, lead = re.findall(r'class="lead">(.*?)</p>', write_report(run).read_text())
    assert flaws.startswith("SFT imitates an expert with planted flaws (in_head 0.4)")
    assert lead.startswith("Validation preferred the start") and "the last step, 4, was measured" in lead


def test_it_opens_offline_and_runs_nothing_a_model_wrote(tmp_path, browser):
    run = make_run(tmp_path / "a", observation=HOSTILE)
    notebook(run, "03_grpo", HOSTILE.encode("utf-8", "replace").decode())
    page, requests = browser.new_page(), []
    page.on("request", lambda request: requests.append(request.url))
    for file in (write_report(run), run.file("03_grpo.html")):
        page.goto(file.as_uri())
        page.wait_for_selector(".js-plotly-plot .xtick")
        assert page.evaluate("window.pwned") is None
    assert [u for u in requests if not u.startswith(("file:", "data:", "blob:", "about:"))] == []


@pytest.mark.parametrize("content", [None, b"", b'{"policies": {"x": 3}}'])
@pytest.mark.parametrize("removed", ["comparison.json", "train/metrics.jsonl", "eval/sft.parquet"])
@pytest.mark.filterwarnings("ignore")
def test_what_is_missing_or_damaged_is_said_and_the_rest_is_shown(tmp_path, removed, content):
    run = make_run(tmp_path / "a")
    if content is None:
        run.file(removed).unlink()
    else:
        run.file(removed).write_bytes(content)
    page = write_report(load_run(run.path)).read_text()
    assert "Missing." in page or "No optimiser step" in page or "No two policies" in page
    assert page.count("<h2>") == len(SECTIONS) and page.count('class="missing"') <= 2


def test_tasks_that_must_not_be_shared_are_not_shown(tmp_path):
    private = Task("g", "Private question", "5", "exact", "GAIA", "hard", "test", meta={"share": False})
    run = make_run(tmp_path / "a", tasks=[private])
    page = write_report(run).read_text()
    assert "Private question" not in page and "may be shown" in page


def test_secrets_are_masked_in_card_and_pages(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_verysecret")
    run = make_run(tmp_path / "a", observation="the token is hf_verysecret")
    run.update(recipe=RECIPE | {"judge_api_key": "k9-secret-k9", "model": "https://hf_verysecret@host/m"})
    notebook(run, "02_baseline", "using hf_verysecret")
    page = write_report(run).read_text()
    shown = page + payload(page) + run.file("02_baseline.html").read_text()
    assert "hf_verysecret" not in shown and "k9-secret-k9" not in shown and "sk-12345678" not in shown
    assert f"the token is {MASK}" in shown and f"using {MASK}" in shown


def test_names_of_secrets():
    secret = ("api_key", "HF_TOKEN", "dbPassword", "client_secret", "authorization", "AWS_SECRET_ACCESS_KEY",
              "AWS_SESSION_TOKEN", "admin_token", "auth_key")  # fmt: skip
    harmless = ("max_tokens", "eos_token", "key", "tokens", "author", "pattern")
    assert all(map(is_secret_name, secret)) and not any(map(is_secret_name, harmless))


def test_masking_keeps_everything_else(monkeypatch):
    value = {"a": [1, 2.5, None, "text"], "n": {"tokens": 3, "password": ""}, "stop": StopReason.ANSWER}
    assert redact(value) == value and redact(value)["stop"] is StopReason.ANSWER
    task = Task("t", "password: hunter22", "5")
    assert redact(task) == Task("t", f"password: {MASK}", "5")
    monkeypatch.setenv("STORE_KEY", "a b&c/d")
    shown = redact({"url": "x?k=a%20b%26c%2Fd", "said": "a b&c/d!"})
    assert shown == {"url": f"x?k={MASK}", "said": f"{MASK}!"}
    assert redact("token=" * 200_000), "the time is linear"
