"""The lab: a user's own families, verifiers and rewards in one place, and the same lab wherever it is opened."""

import copy
import dataclasses
import json
import statistics
import warnings

import pytest

from agentkit import Family, Lab, Suite, Task
from agentkit.cli import main
from agentkit.diagnostics import read_alarms, scan, trained_steps
from agentkit.policies.scripted import Flaws, ScriptedPolicy
from agentkit.recipe import Recipe, read_recipe
from agentkit.records import RecipeError, RunError, StopReason, SuiteError, Trajectory
from agentkit.rewards import score_all
from agentkit.rollouts.template_probe import with_template
from agentkit.runs import Run, write_jsonl, write_tasks
from agentkit.tools.runtime import tools_of
from agentkit.training.launch import Work

MINE = '''
from agentkit import Family, Score, Task
import beside

class Box:
    """Remembers what was put into it: state that one trajectory must not see of another."""

    def reset(self, start=0, **row):
        self.total, self.calls = start, 0

    def put(self, amount: int) -> str:
        """Put coins in.

        Args:
            amount: How many.
        """
        self.total, self.calls = self.total + amount, self.calls + 1
        return str(self.total)

    def get_reward(self) -> float:
        return -0.1 * self.calls

def draft(corpus, rng):
    start, a, b = rng.randint(1, 99), rng.randint(1, 99), rng.randint(1, 99)
    plan = [{"tool": "put", "arguments": {"amount": n}} for n in (a, b)]
    prompt = f"The box holds {start}. Put in {a}, then {b}. How many are in it?"
    meta = {"plan": plan, "start": start, "entities": [f"{start}/{a}/{b}"]}
    return Task("", prompt, str(start + a + b), "counted", tools=("put",), meta=meta)

def counted(answer, gold, *, trajectory=None):
    used = [r.name for turn in trajectory.turns for r in turn.results] if trajectory else []
    return Score(float(answer.strip() == gold and used.count("put") >= 2), "right, and by two calls of put")

families = {"boxes": Family(draft, environment=Box)}
verifiers = {"counted": counted}
rewards = {"brevity": (lambda task, t: -len(t.turns) * (task.meta["start"] > 0), beside.WEIGHT)}  # its own tasks'
'''


@pytest.fixture
def recipe(tmp_path):
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "beside.py").write_text("WEIGHT = 0.5\n")
    path = tmp_path / "mine.yaml"
    path.write_text("lab: mine.py\nfamilies: boxes\nn_tasks: 20\nsuite_seed: 3\n")
    return path


# ---- what is of one's own
def test_a_lab_file_brings_tasks_tools_verifier_and_rewards(recipe, tokenizer, tmp_path, capsys):
    lab = Lab.open(recipe)
    suite = lab.suite()
    assert {(t.family, t.difficulty) for t in suite} == {("boxes", "easy")} and len(suite) == 20
    expert = ScriptedPolicy(tokenizer, name="expert")
    for t in lab.rollout(suite.tasks[:6], expert, group_size=2):
        assert t.success == 1.0 and [r.name for turn in t.turns for r in turn.results] == ["put", "put"]
        assert t.components["brevity"] == -3 and t.components["Box"] == pytest.approx(-0.2)
        assert t.reward == pytest.approx(1 + 0.1 - 0.06 - 1.5 - 0.2)
    lazy = ScriptedPolicy(tokenizer, Flaws(malformed=1.0), name="lazy")
    assert all(t.success == 1.0 for t in lab.rollout(suite.tasks[:3], lazy)), "a malformed call comes first"
    run = Run.create(tmp_path / "run")
    suite.save(run.path)
    again = Lab.open(Recipe.from_mapping(read_recipe(recipe)))
    assert [t.id for t in again.load(run)] == [t.id for t in suite] and again.digest == lab.digest
    assert all(row["passed"] for row in again.load(run).audit())
    assert main(["audit", str(run.file("tasks.jsonl")), "--lab", str(tmp_path / "mine.py")]) == 0
    assert "counted" in capsys.readouterr().out


def test_a_given_task_that_names_no_tools_has_those_of_its_family(recipe, tmp_path):
    rows = [{"prompt": f"Is {n} in it?", "answer": str(n), "family": "boxes"} for n in range(9)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    with recipe.open("a") as file:
        file.write("tasks: rows.jsonl\n")
    assert {task.tools for task in Lab.open(recipe).suite()} == {("put",)}


def test_an_environments_own_reward_is_of_its_families_however_often_it_is_scored(recipe):
    lab = Lab.open(recipe)
    ((_, reward),) = [(name, pair[0]) for name, pair in lab.reward.items() if name == "Box"]
    own, other = Task("a", "p", "1", family="boxes"), Task("b", "p", "1", family="A")
    tokens = dict.fromkeys(("prompt_ids", "completion_ids", "action_mask", "old_logprobs", "turns"), ())
    end = {"stop_reason": StopReason.ANSWER, "success": 1.0, "components": {"Box": -0.2}}
    t = Trajectory("a", "p", 0, 0, **tokens, **end)
    elsewhere = dataclasses.replace(t, task_id="b", components={})
    left_out = dataclasses.replace(t, components={})  # get_reward gave None
    both = {"Box": (reward, 1.0), "one": (lambda *_: 1.0, 1.0)}
    for _ in range(2):
        t, elsewhere = score_all([own, other], [t, elsewhere], both)
        (left_out,) = score_all([own], [left_out], both)
        assert (t.reward, elsewhere.reward, left_out.reward) == (0.8, 1.0, 1.0)
    with pytest.raises(ValueError, match="Box.get_reward"):
        reward(own, dataclasses.replace(t, components={"Box": None}, reward=None))


def test_it_shows_what_it_holds(recipe):
    lab = Lab.open(recipe)
    rows = lab.contents().reset_index()
    assert rows[rows["from"] == "mine.py"]["name"].tolist() == ["boxes", "counted", "brevity"]
    assert "put" in rows.set_index("name").loc["boxes", "what it is"]
    assert {"correctness", "format"} <= set(rows["name"]), "the preset's components too"
    assert all(word in str(lab) for word in ("boxes", "counted", "brevity", "mine.py"))


FAMILY = "from agentkit import Family\n"
SHOP = f"{FAMILY}class Shop:\n    def reset(self, **row): ...\n"
SHOPS = "families = {'a': Family(environment=Shop)}\n"


@pytest.mark.parametrize(("text", "says"), [
    ("x = 1\n", "defines none of families, verifiers, rewards"),
    ("families = {'a': 3}\n", r"families\['a'\] is of type int; give a Family"),
    (f"{FAMILY}families = {{'a': Family(environment=lambda: 1 / 0)}}\n", "cannot be used: broken.py, line 2: Zero"),
    (f"{SHOP}    def go(self, x: str): return x\n{SHOPS}", "'a' cannot be used: .*go because it has no docstring"),
    ("rewards = {'a': len}\n", r"component 'a' is <built-in function len>: give \(function, weight\)"),
    ("rewards = {'a': (lambda completions, **k: [1.0], 1.0)}\n", r"reward component 'a' cannot be called with \(task, trajectory\): too many"),
    ("verifiers = {'a': 3}\n", "the verifier 'a' cannot be called"),
    ("verifiers = {'exact': len}\n", "exact"),
    ("x = 1\ny = (\n", "line 2: SyntaxError"),
    ("import sys\nsys.exit('bye')\n", "broken.py, line 2: SystemExit: bye"),
])  # fmt: skip
def test_a_broken_lab_file_gets_a_sentence(tmp_path, text, says):
    path = tmp_path / "broken.py"
    path.write_text(text)
    with pytest.raises(RecipeError, match=says):
        Lab.open({"lab": str(path)})


def test_an_unknown_family_is_an_error_and_never_a_default_environment(tokenizer):
    lab = Lab.open({})
    with pytest.raises(RecipeError, match="no family 'shop'.*A, B, C"):
        lab.rollout([Task("a", "p?", "1", family="shop")], ScriptedPolicy(tokenizer))
    with pytest.raises(SuiteError, match="unknown task family 'shop': use .*gsm8k"):
        Lab.open({"families": "A,shop"}).suite()


def test_a_reward_may_start_from_nothing_but_not_stay_so(recipe):
    lab = Lab.open(read_recipe(recipe) | {"reward": "none"})
    assert set(lab.reward) == {"brevity", "Box"}
    with pytest.raises(RecipeError, match="reward none starts from nothing"):
        Lab.open({"reward": "none"}).reward  # noqa: B018 - the property raises


# ---- given tasks
def given(n: int, split: str = "train", family: str = "gsm8k") -> list[Task]:
    return [Task(f"{split}-{i}", f"{split}: how much is {i} and {i}?", str(2 * i), "numeric", family, split=split,
                 meta={"entities": [f"{split}{i}"]}) for i in range(1, n + 1)]  # fmt: skip


def test_given_tasks_are_split_where_they_are_not_and_keep_their_splits_where_they_are(tmp_path):
    path = write_tasks(tmp_path / "tasks.jsonl", given(60, "test"))
    suite = Lab.open({"tasks": str(path)}).suite()
    sizes = {name: len(suite.split(name)) for name in ("train", "validation", "test")}
    assert sizes == {"train": 42, "validation": 9, "test": 9}
    write_tasks(path, [*given(50), *given(10, "test")])
    suite = Lab.open({"tasks": str(path)}).suite()
    sizes = {name: len(suite.split(name)) for name in ("train", "validation", "test")}
    assert sizes == {"train": 40, "validation": 10, "test": 10}
    assert {t.prompt for t in suite.split("test")} == {t.prompt for t in given(10, "test")}
    again = Lab.open({"tasks": str(path)}).suite()
    assert [(t.id, t.split) for t in again] == [(t.id, t.split) for t in suite]


def test_given_splits_that_share_entities_are_warned_of_and_built_ones_refused(tmp_path, recwarn):
    tasks = [*given(20), *given(5, "validation"), *given(5, "test")]
    tasks[-1] = dataclasses.replace(tasks[-1], meta=tasks[0].meta)
    lab = Lab.open({"tasks": str(write_tasks(tmp_path / "tasks.jsonl", tasks))})
    lab.check_apart(suite := lab.suite())
    (told,) = [str(w.message) for w in recwarn if "share their entities" in str(w.message)]
    assert repr(tasks[0].prompt) in told and f"{tasks[-1].prompt!r} (test)" in told
    with pytest.raises(SuiteError, match="share their entities"):
        Lab.open({}).check_apart(suite)


def test_a_validation_that_is_drawn_shares_nothing_with_the_training_tasks(tmp_path):
    """Thirty tasks stay together, and the others in pairs; where all do, none can be drawn."""

    def own(i, size):
        meta = {"entities": [f"e{i // size}"]}
        return Task(f"t{i}", f"what about thing{i}?", str(i), "numeric", "gsm8k", meta=meta)

    tasks = [*(own(i, 30) for i in range(30)), *(own(i, 2) for i in range(60, 100)), *given(10, "test")]
    path = write_tasks(tmp_path / "tasks.jsonl", tasks)
    suite = Lab.open({"tasks": str(path)}).suite()
    entities = [{t.meta["entities"][0] for t in suite.split(name)} for name in ("train", "validation")]
    assert not entities[0] & entities[1] and len(suite.split("validation")) == 14
    write_tasks(path, [*(own(i, 30) for i in range(30)), *given(10, "test")])
    with pytest.raises(SuiteError, match="in the split validation.* share their entities, which are kept"):
        Lab.open({"tasks": str(path)}).suite()


def test_plans_of_given_tasks_are_solved(tmp_path, capsys):
    step = {"tool": "calculator", "arguments": {"expression": "1 + 1"}}
    says = "has the answer '946'; its plan gives '2'"
    wrong = Task("w", "How much is left?", "946", "numeric", meta={"plan": [step]})
    path = write_tasks(tmp_path / "tasks.jsonl", [*given(40), wrong])
    suite = (lab := Lab.open({"tasks": str(path)})).suite()
    with pytest.raises(SuiteError, match=f"the plans of 1 of 41 tasks do not lead .*{says}.* Mend"):
        lab.check_plans(suite)
    assert main(["audit", str(path), "--json"]) == 1
    (row,) = [row for row in json.loads(capsys.readouterr().out)["rows"] if not row["passed"]]
    assert row["check"] == "plan" and says in row["why"]


def test_rows_of_question_and_answer_are_enough(tmp_path):
    rows = [{"prompt": f"How much is {i} and {i}?", "answer": str(2 * i)} for i in range(40)]
    path = write_jsonl(tmp_path / "tasks.jsonl", rows)
    lab = Lab.open({"tasks": str(path)})
    suite = lab.suite()
    assert {t.prompt: t.answer for t in suite} == {row["prompt"]: row["answer"] for row in rows}
    assert {t.family for t in suite} == {"custom"} and all(row["passed"] for row in suite.audit())
    assert list(tools_of(lab.environments["custom"]())) == ["calculator", "search"]
    (tmp_path / "mine.py").write_text(f"{SHOP}families = {{'custom': Family(environment=Shop)}}\n")
    own = Lab.open({"tasks": str(path), "lab": str(tmp_path / "mine.py")})
    assert type(own.environments["custom"]()).__name__ == "Shop" and len(own.suite()) == 40


def test_given_tasks_that_make_no_suite_are_refused(tmp_path):
    few, twice = [*given(20), *given(5, "validation")], given(3)
    twice += [dataclasses.replace(task, id=f"{task.id}-2") for task in twice]
    for tasks, says in (
        (few, "no task is in the split test"),
        (given(1), "give more tasks"),
        (given(3, family="riddles"), "there is no family 'riddles'"),
        (twice, "two of the tasks, '.+' and '.+', are the same"),
    ):
        path = write_tasks(tmp_path / "tasks.jsonl", tasks)
        with pytest.raises((SuiteError, RecipeError), match=says):
            Lab.open({"tasks": str(path)}).suite()


def test_training_tasks_of_a_difficulty():
    lab = Lab.open({"families": "A", "n_tasks": 60, "train_difficulty": "easy, hard"})
    suite = lab.suite()
    assert {t.difficulty for t in lab.train_tasks(suite)} == {"easy", "hard"}
    assert {t.difficulty for t in suite.split("test")} >= {"medium"}, "the test stays whole"
    with pytest.raises(RecipeError, match="set train_difficulty anew"):
        Lab.open({"train_difficulty": "hard"}).train_tasks(Suite(given(3)))


# ---- measuring, and rewards afterwards
def test_a_measurement_holds_verdicts_and_another_reward_repeats_none(recipe, tokenizer, tmp_path):
    lab, run = Lab.open(recipe), Run.create(tmp_path / "run")
    tasks = lab.suite().split("test")
    sampled = lab.measure(run, ScriptedPolicy(tokenizer, name="sft"), tasks)
    assert len(sampled) == 4 * len(tasks) and run.measured == ["sft"]
    assert all(t.reward is None and t.success == 1.0 for t in run.trajectories("sft"))
    rewarded = lab.rewarded(run, "sft", tasks)
    assert [t.reward for t in rewarded] == [t.reward for t in run.trajectories("sft")]
    other = Lab.open(Recipe.load(recipe, reward="none")).rewarded(run, "sft", tasks)
    assert other[0].reward == pytest.approx(0.5 * -3 - 0.2)
    assert other[0].completion_ids == sampled[0].completion_ids


def test_a_rank_that_a_shell_left_keeps_no_process_from_writing(recipe, tokenizer, tmp_path, monkeypatch):
    """As in the pods of some clusters, where one process works: no others would write in its place."""
    lab, run = Lab.open(Recipe.load(recipe).used() | {"filter_rollouts": 1}), Run.create(tmp_path / "run")
    policy, suite = ScriptedPolicy(tokenizer, name="sft"), lab.suite()
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    lab.measure(run, policy, suite.split("test"))
    lab.sift(run, policy, suite)
    assert run.file("eval/sft.parquet").exists() and run.file("pass_rates.json").exists()


# ---- what a lab brings to the training
BRINGS = """
def centred(rewards, groups):
    "Rewards against the batch's mean."
    return 100 * (rewards - rewards.mean())

def longest(step):
    "Most turns of a trajectory."
    return max(len(t.turns) for t in step.trajectories)

advantages = {"centred": centred}
columns = {"longest": longest, "broken": lambda step: step.nothing}
alarms = {"talks": (lambda history: history[-1]["lab/longest"], "{value:.0f} turns were taken.", "Ask for fewer."),
          "never": (lambda history: history[-1]["turns"] > 99, "No.", "No."),
          "unknown": (lambda history: float("nan"), "No.", "No.")}
"""


@pytest.fixture
def stand_in(tmp_path, recipe):
    """The first step of a stand-in with a lab file that goes on like this, and with these keys."""
    from agentkit.training.rehearsal import sampled_step

    def step(more, **keys):
        (tmp_path / "mine.py").write_text(MINE + more)
        sizes = {"n_tasks": 40, "prompts_per_step": 2, "group_size": 4, "micro_batch": 4}
        lab = Lab.open(read_recipe(recipe) | sizes | {"model": "scripted"} | keys)
        run = Run.create(tmp_path / "run")
        lab.suite().save(run.file("tasks.jsonl"))
        rows = []
        sampled_step(lab, run, rows.append)
        return lab, run, rows

    return step


def test_a_lab_brings_advantages_columns_and_alarms(stand_in, capsys):
    with pytest.warns(UserWarning, match=r"mine.py: columns\['broken'\] failed, .* no attribute 'nothing'"):
        lab, run, (row,) = stand_in(BRINGS, advantage="centred")
    (told,) = read_alarms(run)
    sampled = run.trajectories(1)
    longest, mean = max(len(t.turns) for t in sampled), statistics.fmean(t.reward for t in sampled)
    assert row["lab/longest"] == longest and row["lab/broken"] is None
    assert (told.alarm, told.cause) == ("talks", f"{longest} turns were taken.")
    assert all(t.advantage == pytest.approx(100 * (t.reward - mean), abs=1e-3) for t in sampled)
    assert scan(trained_steps(run)) == [] and scan(trained_steps(run), lab.own_alarms) == [told]
    assert "centred" in repr(lab) and "Most turns of a trajectory." in repr(lab)
    assert not run.file("adapter").exists()
    run.update(recipe=lab.recipe.used())
    lab.path.unlink()
    assert main(["alarms", str(run.path)]) == 0 and "lab file are left out" in capsys.readouterr().err


@pytest.mark.parametrize(("more", "keys", "says"), [
    ("advantages = {'group': sum}", {}, r"mine.py: advantages\['group'\] has the name of one that ships"),
    ("advantages = {'a': 5}", {}, r"mine.py: advantages\['a'\] cannot be called with \(rewards, groups\)"),
    ("", {"advantage": "mean"}, "advantage is 'mean'; there are group, dr_grpo"),
    ("advantages = {'a': lambda r, g: r[:1]}", {"advantage": "a"}, r"\['a'\] must give a tensor .* of 4 rewards"),
    ("advantages = {'a': lambda r, g: r.no}", {"advantage": "a"}, r"mine.py: advantages\['a'\] failed: mine.py"),
    ("columns = {'a': lambda: 1}", {}, r"mine.py: columns\['a'\] cannot be called with \(step\)"),
    ("alarms = {'a': (len, 'x')}", {}, r"mine.py: alarms\['a'\] is .*: give \(function, what is wrong"),
    ("alarms = {'a': (len, '{no}', '')}", {}, "are texts that may hold {value}"),
    ("alarms = {'truncation': (len, '', '')}", {}, r"alarms\['truncation'\] has the name of one that ships"),
    ("", {"reward": {"brevty": 1}}, "reward names 'brevty'; the components are brevity, Box"),
])  # fmt: skip
def test_what_is_wrong_with_it_is_one_sentence_that_names_file_and_entry(stand_in, more, keys, says):
    with pytest.raises(RecipeError, match=says) as error:
        stand_in(more, **keys)
    assert "\n" not in str(error.value)


# ---- transcripts
def test_text_before_a_call_that_the_models_form_cannot_hold_is_refused(tokenizer, tmp_path):
    from agentkit.training.transcripts import read_transcripts

    call = {"id": "a", "type": "function", "function": {"name": "search", "arguments": '{"query": "x"}'}}
    said = [
        {"role": "user", "content": "x?"}, {"role": "assistant", "content": "I look.", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "a", "content": "found"}, {"role": "assistant", "content": "Answer: 1"},
    ]  # fmt: skip
    path, llama = write_jsonl(tmp_path / "a.jsonl", [{"messages": said}]), copy.deepcopy(tokenizer)
    llama.add_tokens(["<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>"], special_tokens=True)
    with pytest.raises(RunError, match="line 1: llama3's form does not hold a turn of it: no text stands"):
        read_transcripts(path, with_template(llama, "llama3_1"), Lab.open({}), given(1))
    assert len(read_transcripts(path, tokenizer, Lab.open({}), given(1))) == 1


def test_transcripts_show_the_tools_of_the_tasks_they_are_for(tokenizer, tmp_path):
    """Notebook 02 is handed no families: the suite has them."""
    from agentkit.training.sft import demonstrations

    rows = [{"messages": [{"role": "user", "content": "Go."}, {"role": "assistant", "content": "Gone."}]}]
    path = write_jsonl(tmp_path / "messages.jsonl", rows)
    (tmp_path / "mine.py").write_text(f"{SHOP}    def go(self):\n        'Go.'\n{SHOPS}")
    lab = Lab.open({"lab": str(tmp_path / "mine.py"), "transcripts": str(path), "sft": True})
    (shown,) = demonstrations(lab, given(1, family="a"), tokenizer)
    prompt = tokenizer.decode(shown.prompt_ids)
    assert '"go"' in prompt and '"search"' not in prompt
    with pytest.raises(RunError, match="line 1: its family is '': name one, as those of the tasks have"):
        demonstrations(lab, [*given(1, family="a"), *given(1, family="B")], tokenizer)


# ---- in a notebook
def test_an_extended_lab_is_for_this_notebook_only(recipe, tmp_path):
    lab = Lab.open(Recipe.load(recipe, processes=2))
    lab.check_for_children()
    extended = lab.extended(rewards={"brevity": (statistics.fmean, 1.0)})
    with pytest.raises(RecipeError, match="brevity would be missing in the training processes.*lab file"):
        Work(extended, Run.create(tmp_path / "run")).train()
    with pytest.raises(RecipeError, match="shop would be missing"):
        lab.extended(families={"shop": Family(environment=type("Shop", (), {}))}).check_for_children()
    # a training with another reward, or with one of the same name that was edited, is another one
    edited = [lab.extended(rewards={"mine": (f, 1.0)}) for f in (statistics.fmean, statistics.correlation)]
    assert len({own.digest for own in (lab, *edited)}) == 3


def test_a_system_prompt_that_asks_for_no_answer_line_is_warned_of(recipe, tmp_path):
    for prompt, verifier, told in (
        ("Be brief.", "numeric", True),
        ("Be brief.", "counted", False),  # which reads what it likes
        ('End with a line "Answer: ...".', "numeric", False),
    ):
        mine = MINE.replace('"counted", tools', f'"{verifier}", tools')
        mine = mine.replace("    def reset(", f"    system_prompt = {prompt!r}\n\n    def reset(")
        (tmp_path / "mine.py").write_text(mine)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            Lab.open(recipe).suite()
        assert told == any("asks for no last line 'Answer: ...'" in str(w.message) for w in caught)
