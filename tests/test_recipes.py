"""Recipes and the command line: every mistake is one sentence that names the way out, and nothing is executed
or made.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

import pytest
import yaml
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from papermill.cli import papermill

from agentkit import cli
from agentkit import lab as laboratory
from agentkit import recipe as recipes
from agentkit.recipe import Recipe, RecipeError, read_recipe
from agentkit.records import RunError, Task
from agentkit.rewards import from_recipe, plan
from agentkit.runs import Run, append_jsonl, project_root, stages
from agentkit.runs.labfile import lab_digest, load_module

NANO = project_root(__file__) / "params" / "nano.yaml"


def write(path, text):
    path.write_text(text)
    return path


# ---- Recipe
def test_defaults_are_within_their_own_bounds():
    recipe = Recipe.from_mapping({name: spec.default for name, spec in Recipe.keys().items()})
    assert recipe == Recipe()
    assert all(spec.metadata["help"] for spec in Recipe.keys().values())


def test_the_defaults_are_shown_as_a_recipe():
    shown = Recipe.defaults()
    assert "\nbeta: 0.05                           # weight of the KL penalty against" in shown
    assert Recipe.from_mapping(yaml.safe_load(shown)) == Recipe()


def test_used_is_what_was_given():
    recipe = Recipe.from_mapping({"seed": 3, "group_size": 4})
    assert recipe.used() == {"seed": 3, "group_size": 4}
    assert recipe.flaws == dict.fromkeys(
        ["skip_lookup", "wrong_operation", "in_head", "give_up", "malformed"], 0.0
    )
    heavier = Recipe.from_mapping({"reward_format": 0.5})
    assert [from_recipe(each) == plan() for each in (recipe, heavier)] == [True, False]


def test_a_recipe_is_loaded_from_its_file():
    recipe = Recipe.load(NANO)
    assert recipe.model == "nano" and set(recipe.used()) == set(read_recipe(NANO)) and "beta" in Recipe.keys()  # noqa: SIM118


@pytest.mark.parametrize(
    ("wrong", "nearest"),
    [("sede", "seed"), ("n_task", "n_tasks"), ("group_sise", "group_size"), ("lr", "lora_r"), ("learningrate", "learning_rate"),
     ("flaw_inhead", "flaw_in_head"), ("given", "seed")],
)  # fmt: skip
def test_an_unknown_key_names_the_nearest(wrong, nearest):
    with pytest.raises(RecipeError, match=f"unknown recipe key '{wrong}'") as error:
        Recipe.from_mapping({wrong: 1})
    assert nearest in str(error.value) or wrong == "given"


@pytest.mark.parametrize("key", [3, None, "", ("a", 1), 1.5, "\ud800"])
def test_a_key_that_is_no_name_is_refused(key):
    with pytest.raises(RecipeError, match="unknown recipe key"):
        Recipe.from_mapping({key: 1})


@pytest.mark.parametrize(
    ("key", "value"),
    [("seed", -1), ("seed", 2**31), ("seed", "three"), ("seed", 3.0), ("seed", True), ("seed", None), ("sft", 1), ("sft", "yes"),
     ("temperature", 0), ("temperature", "nan"), ("temperature", float("nan")), ("temperature", "inf"), ("temperature", "hot"),
     ("learning_rate", 2), ("group_size", 1), ("families", 3), ("run", None), ("model", ["nano"]), ("clip_epsilon", {}),
     ("loss_type", "ppo"), ("n_tasks", 19), ("steps", "true"), ("beta", "false"), ("preflight", "true")],
)  # fmt: skip
def test_a_wrong_value_is_named_with_its_key(key, value):
    with pytest.raises(RecipeError, match=key) as error:
        Recipe.from_mapping({key: value})
    assert "\n" not in str(error.value)


def test_values_are_read_as_people_write_them():
    recipe = Recipe.from_mapping({"learning_rate": "1e-6", "beta": 0, "families": ["A", "B"]})
    assert (recipe.learning_rate, recipe.beta, recipe.families) == (1e-6, 0.0, "A,B")
    recipe = Recipe.from_mapping({"sft": "true", "share_prefixes": "false", "run": "true"})  # papermill's -p
    assert (recipe.sft, recipe.share_prefixes, recipe.run) == (True, False, "true")


OFFERED = [("preflight", "off"), ("mismatch", "off"), ("tool_cache", "off")]


@pytest.mark.parametrize(("key", "word"), OFFERED)
@pytest.mark.parametrize("form", ["{}", "'{}'", "{!u}", "false"])
def test_off_is_the_word_the_help_text_offers(tmp_path, key, word, form):
    """YAML 1.1 reads it as False, in a recipe, in -p, and in papermill."""
    written = word.upper() if form == "{!u}" else form.format(word)
    path = write(tmp_path / "r.yaml", f"{key}: {written}")
    assert Recipe.from_mapping(read_recipe(path)).used() == {key: "off"}
    assert Recipe.from_mapping(cli._overrides([f"{key}={written}"])).used() == {key: "off"}
    assert Recipe.from_notebook({key: yaml.safe_load(written)}).used() == {key: "off"}


@pytest.mark.parametrize("value", [True, False])
@pytest.mark.parametrize("key", sorted(k for k, s in Recipe.keys().items() if isinstance(s.default, str)))
def test_on_off_yes_and_no_are_refused_where_they_are_not_offered(key, value):
    if not value and key in dict(OFFERED):
        return
    words = "on and yes" if value else "off and no"
    with pytest.raises(RecipeError, match=f"{key} is {value}; .*YAML reads {words} as {value}; in quotes"):
        Recipe.from_mapping({key: value})


def test_words_that_are_numbers_need_no_quotes():
    for value, name in {
        25: "25",
        "25": "25",
        "12,16": "12,16",
    }.items():  # papermill's -p makes a number of 25
        assert Recipe.from_mapping({"drawings": value}).drawings == name
    assert Recipe.from_mapping({"drawings": ["lines", 12, 16]}).drawings == "lines,12,16"
    assert Recipe.from_mapping({"gpus": 2}).gpus == "2"
    for key, value in {"drawings": 1.5, "gpus": True, "model": 7, "methods": [1]}.items():
        with pytest.raises(RecipeError, match=f"{key} is "):
            Recipe.from_mapping({key: value})


def test_words_offered_for_on_yes_and_no(monkeypatch):
    words = ("on", "no", "auto")
    offers = dataclasses.make_dataclass("Offers", [("resume", str, recipes._key("auto", "", words=words))])
    keys = Recipe.keys() | {"resume": dataclasses.fields(offers)[0]}
    monkeypatch.setattr(Recipe, "keys", staticmethod(lambda: keys))
    got = [Recipe.from_mapping({"resume": yaml.safe_load(word)}).resume for word in words]
    assert got == ["on", "no", "auto"]


def test_plain_papermill_hands_off_over(tmp_path):
    """-f reads YAML 1.1 and injects False; -p injects the word."""
    path = write(tmp_path / "r.yaml", "preflight: off\nmismatch: OFF\nsft: on\n")
    notebook, out = project_root(__file__) / "notebooks" / "03_grpo.ipynb", tmp_path / "03_grpo.ipynb"
    arguments = [str(notebook), str(out), "--prepare-only", "-f", str(path), "-p", "tool_cache", "off"]
    result = CliRunner().invoke(papermill, arguments)
    assert result.exit_code == 0, result.output
    cells = json.loads(out.read_text())["cells"]
    namespace: dict = {}
    for cell in cells:
        if {"parameters", "injected-parameters"} & set(cell["metadata"].get("tags", ())):
            exec("".join(cell["source"]), namespace)
    recipe = Recipe.from_notebook(namespace)
    assert (recipe.preflight, recipe.mismatch, recipe.tool_cache, recipe.sft) == ("off", "off", "off", True)


def test_micro_batch_must_divide_the_batch():
    with pytest.raises(RecipeError, match="micro_batch 5 must divide .* = 16"):
        Recipe.from_mapping({"micro_batch": 5, "prompts_per_step": 4, "group_size": 4})


KEYS = st.sampled_from(sorted(Recipe.keys())) | st.text(max_size=8) | st.integers() | st.none()


@given(st.dictionaries(KEYS, st.none() | st.text(max_size=5) | st.floats() | st.integers(), max_size=3))
def test_any_mapping_is_a_recipe_or_a_recipe_error(values):
    try:
        assert isinstance(Recipe.from_mapping(values), Recipe)
    except RecipeError as error:
        assert str(error)


def test_a_notebook_hands_over_its_parameters_only():
    namespace = {
        "seed": 3,
        "n_tasks": 50,
        "_private": 1,
        "In": [],
        "Out": {},
        "PAPERMILL_INPUT_PATH": "x",
        "Recipe": Recipe,
    }
    assert Recipe.from_notebook(namespace).used() == {"seed": 3, "n_tasks": 50}
    with pytest.raises(RecipeError, match="did you mean 'n_tasks'"):
        Recipe.from_notebook(namespace | {"n_taks": 5})


SPELT = ["run = ''", 'run="outputs/a"', "run = f'{1}'", 'run: str = "x"', "run = 'outputs/Run'"]


@pytest.mark.parametrize(
    "first", [f"{run}\nseed = 3" for run in SPELT] + ['# mine\nrun = "outputs/a"\nseed = 3']
)
@pytest.mark.parametrize("injected", [[], ['# Parameters\nrun = "b"\nn_tasks = 50\n']])
def test_a_second_run_all_is_not_disturbed_by_what_the_first_left(first, injected):
    """Plain values of later cells, some with the names of keys, are in the same namespace."""
    setup = "recipe = Recipe.from_notebook(globals())"
    earlier = ["", first, *injected, setup, "tasks = {}; low, high = 0.1, 0.2\n", "broken (", "steps = []"]
    left = {"low": 0.1, "high": 0.2, "tasks": {}, "steps": [], "run": "", "seed": 3, "n_tasks": 50}
    for before in ([""], earlier):
        namespace = left | {"In": [*before, first, *injected, setup]}
        used = Recipe.from_notebook(namespace).used()
        assert used == {"run": "", "seed": 3} | ({"n_tasks": 50} if injected else {})
        typed = namespace | {"In": [*before, f"{first}\nstpes = 5", *injected, setup], "stpes": 5}
        with pytest.raises(RecipeError, match="did you mean 'steps'"):
            Recipe.from_notebook(typed)


@pytest.mark.parametrize("opened", ["Run.create(recipe.run)", "load_run('a')", "agentkit.Run('a')"])
def test_a_second_cell_run_again_alone_is_told_to_run_the_first_before(tmp_path, opened):
    setup = f"recipe = Recipe.from_notebook(globals())\nlab = Lab.open(recipe)\nrun = {opened}"
    cells = ["", 'run = "a"\nlab = "mine.py"\nseed = 3', setup]
    values = {"run": "a", "lab": "mine.py", "seed": 3}
    assert Recipe.from_notebook(values | {"In": cells}).used() == values
    left = values | {"run": Run(tmp_path / "a"), "lab": laboratory.Lab(Recipe(), {}), "In": [*cells, setup]}
    with pytest.raises(RecipeError, match="run is no longer the text .* of type Run: run that cell again"):
        Recipe.from_notebook(left)
    assert Recipe.from_notebook(values | {"In": [*cells, cells[1], setup]}).used() == values


@pytest.mark.parametrize("named", ['run = "b"', 'import time\nrun = f"{time.time()}"'])
def test_a_cell_that_only_names_another_run_leaves_the_parameters(named):
    cells = ["", 'run = ""\nseed = 3', named, "recipe = Recipe.from_notebook(globals())"]
    assert Recipe.from_notebook({"run": "b", "seed": 3, "In": cells}).used() == {"run": "b", "seed": 3}


# ---- YAML
def test_the_shipped_recipe_is_read():
    values = read_recipe(NANO)
    assert values["model"] == "nano" and isinstance(Recipe.from_mapping(values).learning_rate, float)


# ten to the ninth strings in 400 bytes
BOMB = "".join(
    ["seed: &a0 [x]\n"] + [f"n{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 10)]
).encode()


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"sede: 3", "did you mean 'seed'"),
        (b"", "flat mapping"),
        (b"- seed: 3", "flat mapping"),
        (b"seed", "flat mapping"),
        (b"seed: [1", "not valid YAML"),
        (b"seed: \xff", "not valid YAML"),
        (b"seed: \x00", "not valid YAML"),
        (b"seed: 2024-99-99", "not valid YAML"),
        (b"seed: !!timestamp foo", "not valid YAML: a value is not of the kind that its tag"),
        (b"sft: !!bool foo", "not valid YAML: a value is not of the kind that its tag"),
        (b"seed: !!int ''", "not valid YAML: a value is not of the kind that its tag"),
        (b"seed: " + b"9" * 6_000, "not valid YAML"),
        (b"seed: " + b"[" * 20_000, "not valid YAML"),
        (b"? [a, b]\n: 1", "line 1 is nested"),
        (b"seed: !!python/object/apply:os.system ['touch /tmp/agentkit-owned']", "not valid YAML"),
        (b"sft: true\nseed:\n  a: 1", "line 2 is nested"),
        (b"seed: 1\nsft: true\nseed: 2", "line 3 sets 'seed' again"),
        (b"seed: 1\n'seed': 1", "line 2 sets 'seed' again"),
        (b"<<: {seed: 1}", "line 1 is nested"),
        (b"families: [A, 3]", "families is ['A', 3]"),
        (BOMB, "line 2 is nested"),
        (b"seed: 1\n---\nseed: 2", "not valid YAML"),
    ],
)
def test_a_broken_recipe_is_named(tmp_path, content, says):
    path = tmp_path / "r.yaml"
    path.write_bytes(content)
    with pytest.raises(RecipeError) as error:
        read_recipe(path)
    message = str(error.value)
    assert says in message and message.startswith(str(path)) and "\n" not in message and len(message) < 600


def test_a_value_of_any_size_is_shown_short():
    nested = ["x"]
    for _ in range(9):
        nested = [nested] * 10
    for key in ("seed", "families", "model"):
        with pytest.raises(RecipeError, match=f"{key} is ") as error:
            Recipe.from_mapping({key: nested})
        assert len(str(error.value)) < 600


def test_a_missing_recipe_says_where_they_lie(tmp_path):
    with pytest.raises(RecipeError, match="params/"):
        read_recipe(tmp_path / "gone.yaml")
    with pytest.raises(RecipeError, match="cannot be read"):
        read_recipe(tmp_path)


# ---- the command line
@pytest.fixture
def no_notebooks(monkeypatch):
    """A record of what would have been executed."""
    executed = []
    monkeypatch.setattr(
        stages, "execute", lambda stage, run, parameters: executed.append((stage, parameters))
    )
    monkeypatch.setattr(cli, "_print_finished", lambda run, as_json: 0)
    return executed


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["-p", "sede=3"], "did you mean 'seed'"),
        (["-p", "seed"], "KEY=VALUE"),
        (["-p", "=3"], "unknown recipe key ''"),
        (["-p", "seed="], "seed is None"),
        (["-p", "seed=["], "not a YAML value"),
        (["-p", "seed=2024-99-99"], "not a YAML value"),
        (["-p", "temperature=nan"], "temperature is nan"),
        (["-p", "micro_batch=7"], "must divide"),
        (["--from", "07"], "no notebook '07'; there are 01, 02, 03, 04, 05"),
        (["--to", "x"], "no notebook 'x'"),
        (["--from", ""], "no notebook ''"),
        (["--from", "04", "--to", "02"], "nothing would run"),
    ],
)
def test_a_mistake_on_the_command_line_is_one_sentence(tmp_path, capsys, no_notebooks, arguments, says):
    assert cli.main(["run", str(NANO), "--run", str(tmp_path / "a"), *arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith("agentkit: ") and says in error and error.count("\n") == 1
    assert list(tmp_path.iterdir()) == [] and no_notebooks == []


@pytest.mark.parametrize("name", ["tensorboard", "wandb", "trackio"])
def test_metrics_for_a_package_that_is_missing_are_refused_before_anything_runs(
    tmp_path, monkeypatch, capsys, no_notebooks, name
):
    installed: dict = {}
    logs = {"wandb": ModuleSpec("wandb", None)}  # a folder in the working directory
    monkeypatch.setattr(laboratory, "find_spec", lambda package: (logs | installed).get(package))
    arguments = ["run", str(NANO), "--run", str(tmp_path / "a"), "-p", f"report_to={name}"]
    assert cli.main(arguments) == 2
    error = capsys.readouterr().err
    assert f"report_to: {name} needs the package {name}" in error and f"pip install {name}" in error
    assert "to none" in error and list(tmp_path.iterdir()) == [] and no_notebooks == []
    finished = Run.create(tmp_path / "b")
    finished.update(recipe={"report_to": name, "steps": 3})
    assert laboratory.Lab.of(finished).recipe.steps == 3  # a finished run is read where the package is not
    package = "tensorboardX" if name == "tensorboard" else name
    installed[package] = ModuleSpec(package, None, origin="somewhere")
    assert laboratory.Lab.open({"report_to": name}).recipe.report_to == name


@pytest.mark.parametrize(
    ("content", "says"),
    [("sede: 3", "did you mean 'seed'"), ("seed: [", "not valid YAML"), (None, "does not exist")],
)
def test_a_mistake_in_the_recipe_is_one_message(tmp_path, capsys, no_notebooks, content, says):
    path = tmp_path / "r.yaml"
    if content:
        path.write_text(content)
    assert cli.main(["run", str(path), "--run", str(tmp_path / "a")]) == 2
    error = capsys.readouterr().err
    assert says in error and str(path) in error and "Traceback" not in error
    assert not (tmp_path / "a").exists() and no_notebooks == []


@pytest.mark.parametrize("name", ["../x", "a/../../x", "..", "a\0b", "x" * 300, ".hidden", "a b"])
def test_a_hostile_run_name_is_refused(tmp_path, monkeypatch, capsys, no_notebooks, name):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert cli.main(["run", str(NANO), "--run", name]) == 2
    assert "refused" in capsys.readouterr().err
    assert [p.name for p in tmp_path.rglob("*")] == ["here"] and no_notebooks == []


def test_a_run_name_that_looks_like_an_option_is_refused(tmp_path, monkeypatch, capsys, no_notebooks):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["run", str(NANO), "--run=-rf"]) == 2
    assert "refused" in capsys.readouterr().err and list(tmp_path.iterdir()) == []


def test_a_file_where_the_run_folder_should_be_is_kept(tmp_path, capsys, no_notebooks):
    path = write(tmp_path / "a", "precious")
    assert cli.main(["run", str(NANO), "--run", str(path)]) == 2
    assert "cannot be made a run folder" in capsys.readouterr().err and path.read_text() == "precious"


def test_the_keys_a_notebook_declares_reach_it_and_done_stages_are_kept(tmp_path, capsys, no_notebooks):
    arguments = [
        "run",
        str(NANO),
        "--run",
        str(tmp_path / "a"),
        "-p",
        "n_tasks=60",
        "-p",
        "learning_rate=1e-4",
    ]
    assert cli.main([*arguments, "--to", "03"]) == 0
    given_to = dict(no_notebooks)
    assert list(given_to) == ["01_tasks", "02_baseline", "03_grpo"]
    assert given_to["01_tasks"]["n_tasks"] == 60 and "learning_rate" not in given_to["01_tasks"]
    assert float(given_to["03_grpo"]["learning_rate"]) == 1e-4 and set(given_to["01_tasks"]) <= set(
        Recipe.keys()
    )

    run = Run(tmp_path / "a")
    run.begin("01_tasks", given_to["01_tasks"])
    run.end("01_tasks")
    no_notebooks.clear()
    assert cli.main([*arguments, "--to", "02"]) == 0
    assert "01_tasks: done, kept" in capsys.readouterr().out and [stage for stage, _ in no_notebooks] == [
        "02_baseline"
    ]
    no_notebooks.clear()
    assert cli.main([*arguments, "-p", "n_tasks=80", "--to", "01"]) == 0
    assert [stage for stage, _ in no_notebooks] == ["01_tasks"]
    no_notebooks.clear()
    assert cli.main([*arguments, "-p", "families=[A, B]", "--to", "01"]) == 0
    run.begin("01_tasks", dict(no_notebooks)["01_tasks"])
    run.end("01_tasks")
    no_notebooks.clear()
    assert cli.main([*arguments, "-p", "families=A,B", "-p", "n_tasks=60", "--to", "01"]) == 0
    assert no_notebooks == [], "another spelling of the same value is the same"
    assert cli.main([*arguments, "--from", "01", "--to", "01_tasks"]) == 0
    assert [stage for stage, _ in no_notebooks] == ["01_tasks"]


def test_a_stage_is_not_done_where_a_key_that_was_set_is_back_at_its_default(tmp_path):
    run, default = Run.create(tmp_path / "a"), Recipe.keys()["beta"].default
    run.begin("03_grpo", {"model": "nano", "beta": 2 * default})
    run.end("03_grpo")
    assert stages.is_done(run, "03_grpo", {"model": "nano", "beta": 2 * default})
    assert not stages.is_done(run, "03_grpo", {"model": "nano"})
    run.begin("03_grpo", {"model": "nano"})
    run.end("03_grpo")
    assert stages.is_done(run, "03_grpo", {"model": "nano", "beta": default, "n_tasks": 60})


def test_a_stage_stays_done_with_other_keys_that_change_no_result(tmp_path):
    run = Run.create(tmp_path / "a")
    recipe = {"model": "nano", "engine": "server", "server_urls": "http://node3:8000"}
    for stage in stages.STAGES[:3]:
        run.begin(stage, stages.parameters_of(stage, recipe))
        run.end(stage)
    free = {"server_urls": "http://node7:8000", "save_every": 9, "preflight": "warn", "max_batch": 9}
    free |= {"engine_memory": 0.5, "report_to": "wandb", "tool_cache": "off"}
    assert all(stages.is_done(run, stage, recipe | free) for stage in stages.STAGES[:3])
    done = [stages.is_done(run, "03_grpo", recipe | {k: 9}) for k in ("patience", "steps", "tool_timeout_s")]
    assert done == [False, False, False]


def test_one_call_at_a_time_works_on_a_run(tmp_path, monkeypatch, capsys):
    run, words = tmp_path / "a", ["run", str(NANO), "--run", str(tmp_path / "a"), "--to", "01"]

    def execute(stage: str, run: Run, parameters: dict) -> None:
        assert cli.main(words) == 2
        assert f"process {os.getpid()} is executing notebooks in {run.path}" in capsys.readouterr().err

    monkeypatch.setattr(stages, "execute", execute)
    assert cli.main(words) == 0 and "run folder" in capsys.readouterr().out
    command = [
        sys.executable,
        "-c",
        f"{HOLDING}with _alone(Run({str(run)!r})):\n print(flush=True)\n input()",
    ]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        other.stdout.readline()
        assert cli.main(words) == 2 and f"process {other.pid} is" in capsys.readouterr().err
        other.kill()
    monkeypatch.setattr(stages, "execute", lambda *_: None)
    assert cli.main(words) == 0, "a killed one holds nothing"


HOLDING = "from agentkit.runs.run import Run\nfrom agentkit.runs.stages import _alone\n"


def test_a_stage_is_not_done_where_an_earlier_one_was_executed_after_it(tmp_path, monkeypatch):
    run, clock = Run.create(tmp_path / "a"), iter(f"2026-01-01T00:00:0{i}+0000" for i in range(9))
    monkeypatch.setattr("agentkit.runs.run._now", lambda: next(clock))
    for stage in ("01_tasks", "02_baseline", "03_grpo", "02_baseline"):
        run.begin(stage, {"model": "nano"})
        run.end(stage)
    done = [stages.is_done(run, stage, {"model": "nano"}) for stage in stages.STAGES[:3]]
    assert done == [True, True, False]


def test_a_stage_stays_done_where_the_next_began_in_another_time_zone(tmp_path, monkeypatch):
    clock = iter(("2026-01-01T12:10:00+0200", "2026-01-01T10:30:00+0000", "2026-01-01T10:40:00+0100"))
    run = Run.create(tmp_path / "a")
    monkeypatch.setattr("agentkit.runs.run._now", lambda: next(clock))
    for stage in stages.STAGES[:3]:
        run.begin(stage, {"model": "nano"})
        run.end(stage)
    done = [stages.is_done(run, stage, {"model": "nano"}) for stage in stages.STAGES[:3]]
    assert done == [True, True, False], "the third began at 09:40, before the others"


def test_a_training_that_was_asked_to_stop_is_not_done(tmp_path):
    run = Run.create(tmp_path / "a")
    for ended, done in (("asked", False), ("steps", True)):
        run.begin("03_grpo", {"model": "nano"})
        assert "interrupted" not in run.manifest["stages"]["03_grpo"], "it goes on from its checkpoint"
        run.end("03_grpo", ended=ended)
        assert stages.is_done(run, "03_grpo", {"model": "nano"}) == done


def test_a_key_that_is_back_at_its_default_leaves_the_runs_recipe(tmp_path):
    run = Run.create(tmp_path / "a")
    run.begin("01_tasks", {"seed": 1})
    run.begin("02_baseline", {"model": "nano", "flaw_give_up": 0.3})
    run.begin("02_baseline", {"model": "nano"})
    assert run.manifest["recipe"] == {"seed": 1, "model": "nano"}
    every = {"seed": 1, "model": "nano", "n_tasks": 60, "sft_learning_rate": 0.5, "steps": 9}
    run.begin("03_grpo", every)  # papermill hands all of a file's keys to each notebook
    run.begin("03_grpo", {"seed": 1, "model": "nano"})
    assert run.manifest["recipe"] == {k: v for k, v in every.items() if k != "steps"}, "those of others stay"


def test_a_key_that_an_earlier_notebook_alone_was_given_leaves_the_runs_recipe(tmp_path):
    run, served = Run.create(tmp_path / "a"), {"engine": "server", "server_urls": "http://localhost:8000"}
    run.begin("02_baseline", {"model": "nano", "sft": True} | served)
    run.begin("03_grpo", {"model": "nano", "sft": True, "engine": "vllm"})
    run.begin("04_diagnostics", {"lab": ""})
    assert run.manifest["recipe"] == {"model": "nano", "sft": True, "engine": "vllm", "lab": ""}
    run.update(recipe=served | {"engine": "vllm"})  # as an older version left it
    assert laboratory.Lab.of(run).with_reward(reward="toolrl").recipe.reward == "toolrl"
    with pytest.raises(RecipeError, match="a weight of reward plan"):
        laboratory.Lab.of(run).with_reward(reward="toolrl", reward_format=0.5)


@pytest.mark.parametrize("name", ["{}/rows.jsonl", "gsm8k:{}/rows.jsonl", "gsm8k:{}"])
def test_a_stage_is_not_done_with_other_content_of_a_file_it_was_handed(tmp_path, monkeypatch, name):
    run, rows = Run.create(tmp_path / "a"), write(tmp_path / "rows.jsonl", "{}")
    recipe = {"n_tasks": 60, "tasks": name.format(tmp_path)}

    def execute(stage: str, run: Run, parameters: dict) -> None:
        run.begin(stage, parameters)
        run.end(stage)

    monkeypatch.setattr(stages, "execute", execute)
    stages.run_stages(run, recipe, 0, 0, files=stages.file_digests(recipe))
    assert stages.is_done(run, "01_tasks", recipe)
    rows.write_text("{ }")
    assert not stages.is_done(run, "01_tasks", recipe)


def test_a_stage_is_not_done_with_other_weights_in_its_model_folder(tmp_path, monkeypatch):
    (tmp_path / "mine").mkdir()
    run, weights = Run.create(tmp_path / "a"), write(tmp_path / "mine" / "model.safetensors", 2**21 * "a")
    recipe = {"model": str(tmp_path / "mine")}

    def execute(stage: str, run: Run, parameters: dict) -> None:
        run.begin(stage, parameters)
        run.end(stage)

    monkeypatch.setattr(stages, "execute", execute)
    stages.run_stages(run, recipe, 2, 2, files=stages.file_digests(recipe))
    os.utime(weights, (0, 0))
    assert stages.is_done(run, "03_grpo", recipe), "a copy has other times"
    weights.write_text(2**21 * "b")
    assert not stages.is_done(run, "03_grpo", recipe)
    run.update(stages={"03_grpo": run.manifest["stages"]["03_grpo"] | {"files": {}}})
    assert stages.is_done(run, "03_grpo", recipe), "an older version did not look"


@pytest.mark.parametrize(
    ("by_hand", "here"),
    [({"lab": "labs/shop.py"}, {"lab": "params/labs/shop.py"}), ({"tasks": "gsm8k:shop.yaml"}, {"tasks": "gsm8k:params/shop.yaml"}),
     ({"model": "outputs/mine"}, {"model": str(NANO.parents[1] / "outputs" / "mine")})],
)  # fmt: skip
def test_a_stage_is_done_however_its_files_are_spelt(tmp_path, by_hand, here):
    run = Run.create(tmp_path / "a")
    stage = "01_tasks" if "tasks" in here else "03_grpo"
    run.begin(stage, by_hand)
    run.end(stage)
    assert stages.is_done(run, stage, here)
    assert not stages.is_done(run, stage, {name: f"{value}.py" for name, value in here.items()})


def test_a_training_that_was_asked_to_stop_ends_the_call_and_the_same_call_goes_on(
    tmp_path, monkeypatch, capsys
):
    executed, asked = [], ["asked"]

    def execute(stage: str, run: Run, parameters: dict) -> None:
        executed.append(stage[:2])
        run.begin(stage, parameters)
        run.end(stage, **({"ended": (asked or ["steps"]).pop()} if stage == "03_grpo" else {}))

    monkeypatch.setattr(stages, "execute", execute)
    words = ["run", str(NANO), "--run", str(tmp_path / "a"), "--to"]
    assert cli.main([*words, "04"]) == 130 and executed == ["01", "02", "03"]
    shown = capsys.readouterr()
    assert "03_grpo: asked to stop" in shown.out and "run the same command to go on" in shown.err
    asked.append("asked")
    assert cli.main([*words, "04", "--from", "03"]) == 130 and executed.pop() == "03"
    assert "same command, --from the notebook that stopped, to go on" in capsys.readouterr().err
    assert cli.main([*words, "04", "--from", "04"]) == 0 and executed[3:] == ["04"]
    assert cli.main([*words, "04"]) == 0 and executed[4:] == ["03", "04"]


def test_a_file_named_on_the_command_line_is_seen_from_where_it_was_called(monkeypatch):
    monkeypatch.chdir(project_root() / "tests")
    assert cli._recipe(NANO, ["tasks=hostile/answers.json"]).tasks == "tests/hostile/answers.json"
    assert cli._recipe(NANO, ["tasks=gsm8k", "model=nano"]).tasks == "gsm8k"


def test_a_file_that_a_recipe_names_is_looked_for_beside_it_then_from_here(tmp_path, monkeypatch):
    for folder in ("recipes", "work/gsm8k", "work/nano", "work/agent"):
        (tmp_path / folder).mkdir(parents=True)
    recipe = write(tmp_path / "recipes" / "r.yaml", "lab: mine.py\ntasks: gsm8k\nmodel: nano\n")
    here = write(tmp_path / "work" / "mine.py", "")
    monkeypatch.chdir(here.parent)
    monkeypatch.setattr(recipes, "project_root", lambda: NANO.parents[1])
    assert read_recipe(recipe) == {"lab": str(here), "tasks": "gsm8k", "model": "nano"}
    beside = write(recipe.with_name("mine.py"), "")
    recipe.write_text("lab: mine.py\ntasks: gsm8k:gsm8k\nmodel: agent\n")
    there = {"tasks": f"gsm8k:{here.parent / 'gsm8k'}", "model": str(here.parent / "agent")}
    assert read_recipe(recipe) == there | {"lab": str(beside)}
    monkeypatch.setenv("HOME", str(here.parent))
    recipe.write_text("lab: ~/mine.py\ntasks: gsm8k:~/gsm8k\nmodel: ~/agent\n")
    assert read_recipe(recipe) == there | {"lab": str(here)}
    assert recipes.find_file("~/mine.py") == here


def test_every_command_finds_a_run_from_inside_the_project(tmp_path, monkeypatch, capsys):
    for name in ("notebooks", "params"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "notebooks")
    for name in ("a", "b"):
        run = Run.create(f"outputs/{name}")
        run.begin("01_tasks", {})
        run.end("01_tasks")
    task = dataclasses.asdict(Task("t", "How many?", "3"))
    append_jsonl(run.file("tasks.jsonl"), task | {"family": "gsm8k", "verifier": {"kind": "numeric"}})
    write(run.file("log.csv"), "step,kl\n1,0.5\n")
    for words, status, says in (
        ("audit outputs/b", 0, "1 tasks"),
        ("alarms outputs/b/log.csv", 0, "no alarm"),
        ("doctor --recipe params/r.yaml", 2, f"{tmp_path / 'params' / 'r.yaml'} does not exist"),
        ("report outputs/b --out outputs/card.html", 0, f"{tmp_path / 'outputs' / 'card.html'} ("),
        ("sweep params/s.yaml --run outputs/s", 2, f"{tmp_path / 'params' / 's.yaml'} does not exist"),
    ):
        assert cli.main(words.split()) == status
        assert says in "".join(capsys.readouterr())
    assert list((tmp_path / "notebooks").iterdir()) == []


def test_a_notebook_is_handed_its_run_from_wherever_the_kernel_works(tmp_path, monkeypatch):
    for name in ("notebooks", "params", "sub/outputs/a"):
        (tmp_path / name).mkdir(parents=True)
    write(tmp_path / "notebooks" / "01_tasks.ipynb", "")
    monkeypatch.chdir(tmp_path / "sub")
    handed = []

    def papermill(notebook: str, out: str, parameters: dict, **options) -> None:
        handed.append(parameters["run"])
        raise OSError("enough")

    monkeypatch.setattr("papermill.execute_notebook", papermill)
    with pytest.raises(RunError, match="enough"):
        stages.execute("01_tasks", Run("outputs/a"), {})
    assert handed == [str(tmp_path / "sub" / "outputs" / "a")]


def test_a_package_beside_a_lab_file_is_part_of_its_digest(tmp_path):
    lab = write(tmp_path / "lab.py", "from shop import prices\n")
    (tmp_path / "shop").mkdir()
    write(tmp_path / "shop" / "__init__.py", "")
    part = write(tmp_path / "shop" / "prices.py", "PRICE = 1\n")
    before = lab_digest(lab)
    part.write_text("PRICE = 2\n")
    assert lab_digest(lab) != before


def test_what_a_lab_file_imports_is_loaded_anew_in_an_open_kernel(tmp_path):
    lab = write(tmp_path / "own_lab.py", "from own_shop.prices import PRICE\n")
    (tmp_path / "own_shop").mkdir()
    write(tmp_path / "own_shop" / "__init__.py", "")
    part = write(tmp_path / "own_shop" / "prices.py", "PRICE = 1\n")
    assert load_module(lab).PRICE == 1
    kept = sys.modules["own_shop.prices"]
    assert load_module(lab).PRICE == 1 and sys.modules["own_shop.prices"] is kept
    part.write_text("PRICE = 22\n")
    assert load_module(lab).PRICE == 22
    part.write_text("PRICE =\n")
    with pytest.raises(RecipeError, match="prices.py, line 1: SyntaxError"):
        load_module(lab)


def test_two_labs_import_each_their_own_module_of_one_name(tmp_path):
    for version in ("v1", "v2"):
        (tmp_path / version).mkdir()
        write(tmp_path / version / "lab.py", "from own_helpers import name\nimport random\n")
        write(tmp_path / version / "own_helpers.py", f"name = {version!r}\n")
        write(tmp_path / version / "random.py", "")
    kept = sys.modules["random"]
    for version in ("v1", "v2", "v1"):
        module = load_module(tmp_path / version / "lab.py")
        assert module.name == version
    assert sys.modules["random"] is kept and str(tmp_path / "v1") not in sys.path[:1]


def test_two_labs_and_an_edited_one_import_their_own_parts_of_a_folder_of_one_name(tmp_path):
    for version in ("v1", "v2"):
        (tmp_path / version / "own_store").mkdir(parents=True)
        write(tmp_path / version / "lab.py", "from own_store import prices\n")
        write(tmp_path / version / "own_store" / "prices.py", f"name = {version!r}\n")
    for version in ("v1", "v2", "v1"):
        assert load_module(tmp_path / version / "lab.py").prices.name == version
    write(tmp_path / "v1" / "own_store" / "prices.py", "name = 'edited'\n")
    assert load_module(tmp_path / "v1" / "lab.py").prices.name == "edited"


def test_a_module_beside_a_lab_file_hides_no_library(tmp_path, monkeypatch):
    lab = write(tmp_path / "lab.py", "from own_beside import name\nimport colorsys\n")
    write(tmp_path / "own_beside.py", "name = 1\n")
    write(tmp_path / "colorsys.py", "")
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    assert load_module(lab).colorsys.rgb_to_hsv and load_module(lab).name == 1


def test_loading_a_lab_file_keeps_modules_that_no_lab_file_imported(tmp_path, monkeypatch):
    lab = write(tmp_path / "lab.py", "from own_kit.sizes import SIZE\ndef later(): import own_notes\n")
    (tmp_path / "own_kit").mkdir()
    sizes = write(tmp_path / "own_kit" / "sizes.py", "SIZE = 1\n")
    write(tmp_path / "own_notes.py", "")
    files = {
        "own_kit._fast": tmp_path / "own_kit" / "_fast.so",
        "own_notes": tmp_path / "nb" / "own_notes.py",
    }
    for name, file in files.items():
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
        sys.modules[name].__file__ = str(file)
    kept = {name: sys.modules[name] for name in files}
    for size in (1, 22):
        sizes.write_text(f"SIZE = {size}\n")
        assert size == load_module(lab).SIZE
        assert all(sys.modules[name] is module for name, module in kept.items())


def test_a_lab_file_with_a_byte_order_mark_is_read(tmp_path):
    lab = tmp_path / "marked_lab.py"
    lab.write_bytes("\ufeffSIZE = 3\n".encode())
    assert load_module(lab).SIZE == 3 and lab_digest(lab)


def test_diagnostics_by_hand_keep_the_lab_of_the_run(tmp_path):
    lab = write(tmp_path / "lab.py", "rewards = {'one': (lambda task, trajectory: 1.0, 0.5)}")
    run = Run.create(tmp_path / "a")
    run.begin("03_grpo", {"lab": str(lab)})
    append_jsonl(run.file("train", "metrics.jsonl"), {"step": 1})
    cells = json.loads((project_root(__file__) / "notebooks" / "04_diagnostics.ipynb").read_text())["cells"]
    first, second = ("".join(cell["source"]) for cell in cells[2:4])
    exec(f"{first}\nrun = {str(run.path)!r}\n{second}", {})
    assert run.manifest["recipe"]["lab"] == str(lab)


def test_a_stage_is_not_done_with_another_lab_file(tmp_path, monkeypatch):
    run, lab, executed = Run.create(tmp_path / "a"), tmp_path / "lab.py", []
    recipe = {"n_tasks": 60, "lab": str(lab)}

    def execute(stage: str, run: Run, parameters: dict) -> None:
        executed.append(stage)
        run.begin(stage, parameters, lab=stages.file_digests(recipe).get("lab", ""))
        run.end(stage)
        if "edit" in lab.read_text():
            lab.write_text("changed = True")

    monkeypatch.setattr(stages, "execute", execute)
    for text, count in (("a = 1", 2), ("a = 1", 2), ("a = 2", 4), ("a = 1", 6)):
        lab.write_text(text)
        stages.run_stages(run, recipe, 0, 1, files=stages.file_digests(recipe))
        assert len(executed) == count
    lab.write_text("a = 'edit'")
    with pytest.raises(RecipeError, match="lab file .* has changed since this began"):
        stages.run_stages(run, recipe, 0, 1, files=stages.file_digests(recipe))
    assert len(executed) == 7, "the second notebook would have run another lab file than the first"
    files = stages.file_digests(recipe)
    monkeypatch.setattr(stages, "execute", lambda stage, run, parameters: run.begin(stage, {}, lab="another"))
    with pytest.raises(RecipeError, match="restore it, or start again"):  # edited when the notebook opened it
        stages.run_stages(run, recipe, 0, 1, files=files)


def test_a_call_from_outside_the_project_says_so(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["run", str(NANO), "--run", "a"]) == 2
    assert "from inside the project" in capsys.readouterr().err


def test_a_torn_line_is_one_sentence_and_the_rest_is_read(tmp_path, capsys):
    run = Run.create(tmp_path / "a")
    run.file("train").mkdir()
    run.file("train", "metrics.jsonl").write_text('{"step": 1, "kl": 0.5}\n{"step": 2, "re')
    assert cli.main(["alarms", str(run.path)]) == 0
    shown = capsys.readouterr()
    assert shown.out.startswith("no alarm in 1 step; ") and "kl_spike" not in shown.out
    assert (
        shown.err.startswith(f"agentkit: {run.file('train', 'metrics.jsonl')}, line 2 is torn")
        and shown.err.count("\n") == 1
    )


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["report"], "run.json"),
        (["merge"], "run.json"),
        (["audit"], "tasks.jsonl"),
        (["cost", str(NANO), "--run"], "run.json"),
    ],
)
def test_a_damaged_run_is_one_sentence(tmp_path, capsys, arguments, says):
    (tmp_path / "a").mkdir()
    for name in ("run.json", "tasks.jsonl"):
        (tmp_path / "a" / name).write_text('{"stages": 3')
    assert cli.main([*arguments, str(tmp_path / "a")]) == 2
    error = capsys.readouterr().err
    assert error.startswith("agentkit: ") and str(tmp_path / "a" / says) in error and error.count("\n") == 1


def test_unknown_families_are_one_sentence(capsys):
    assert cli.main(["preflight", str(NANO), "-p", "families=Z"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("agentkit: ") and "Z" in error and error.count("\n") == 1


def test_an_unknown_command_lists_the_known(capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(["fly"])
    assert stop.value.code == 2 and "run" in capsys.readouterr().err


def test_the_shipped_recipes_overrides_are_plain_scalars():
    values = yaml.safe_load(NANO.read_text())
    assert all(isinstance(v, str | int | float | bool) for v in values.values())
    assert dataclasses.is_dataclass(Recipe.from_mapping(values))


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero"), Path.mkdir])
def test_a_recipe_or_price_file_that_is_no_file_is_a_sentence_and_nobody_waits(tmp_path, capsys, make):
    path = tmp_path / "odd.yaml"
    make(path)
    for words in (
        ["run", str(path), "--run", str(tmp_path / "a")],
        ["cost", str(NANO), "--prices", str(path)],
    ):
        assert cli.main(words) == 2
        (told,) = capsys.readouterr().err.splitlines()
        assert told.startswith(f"agentkit: {path} cannot be read")
