"""Recipes: values as people write them, one sentence for each mistake, and where the files they name lie."""

import json

import pytest
import yaml
from click.testing import CliRunner
from papermill.cli import papermill

from agentkit.recipe import Recipe, find_file, located, parse_yaml, project_file, project_root, read_recipe
from agentkit.records import RecipeError
from agentkit.runs import Run

ROOT = project_root(__file__)
NANO = ROOT / "params" / "nano.yaml"


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


# ---- keys and values
def test_the_defaults_are_a_recipe_to_copy_from():
    shown = Recipe.defaults()
    assert "beta: 0.05 # weight of the KL penalty against" in " ".join(shown.split())
    assert Recipe.from_mapping(yaml.safe_load(shown)) == Recipe()
    assert all(key.description for key in Recipe.keys().values())


def test_values_are_read_as_people_write_them():
    text = "learning_rate: 1e-6\nbeta: 0\nfamilies: A, B\npreflight: off\nreward: {correctness: 1, format: 1e-1}\n"
    text += "flaws: {in_head: 0.4}\ntemplate_arguments: {thinks: false}\n"
    recipe = Recipe.from_mapping(parse_yaml(text))
    assert (recipe.learning_rate, recipe.families, recipe.preflight) == (1e-6, ["A", "B"], "off")
    assert recipe.reward == {"correctness": 1.0, "format": 0.1} and recipe.flaws == {"in_head": 0.4}
    assert recipe.chat == ("", {"thinks": False})
    injected = Recipe.from_mapping({"sft": "true", "learning_rate": "1e-6", "preflight": False, "gpus": 2})
    assert (injected.sft, injected.learning_rate, injected.preflight) == (True, 1e-6, "off")


@pytest.mark.parametrize(("values", "says"), [
    ({"sede": 1}, "unknown recipe key 'sede': did you mean 'seed'?"),
    ({"seed": 3.5}, "seed is 3.5; it should be a whole number"),
    ({"group_size": 1}, "group_size is 1; it should be greater than or equal to 2 (trajectories in a group, G)"),
    ({"temperature": float("nan")}, "temperature is nan; it should be a finite number"),
    ({"sft": "yes"}, "sft is 'yes'; it should be a valid boolean"),
    ({"reward": "plam"}, "reward is 'plam'; it should be 'plan', 'none'"),
    ({"flaws": {"in_haed": 0.3}}, "flaws.in_haed is 'in_haed'; it should be 'skip_lookup'"),
    ({"base": "nano.yaml"}, "base: nano.yaml is for a recipe's file"),
    ({"micro_batch": 5}, "micro_batch 5 must divide prompts_per_step * group_size = 64"),
    ({"engine": "server"}, "engine server and server_urls belong together"),
    ({"engine": "server", "server_urls": "http://me:secret@a:1"}, "'http://...@a:1'; use http://HOST:PORT"),
    ({"shard": True}, "shard does not go with engine: transformers"),
    ({"model": "scripted", "sft": True}, "model: scripted plays the tasks' plans and learns nothing: set sft: false"),
    ({"loss_type": "cispo"}, "clip_epsilon_high, which is 0.2: set it to 1 or more"),
])  # fmt: skip
def test_a_mistake_is_one_sentence_that_names_the_way_out(values, says):
    with pytest.raises(RecipeError) as error:
        Recipe.from_mapping(values)
    assert says in str(error.value) and "\n" not in str(error.value)


# ---- files
@pytest.mark.parametrize(("text", "says"), [
    ("seed: 010", "seed is '010'; it should be a whole number"),
    ("steps: 1:30", "steps is '1:30'; it should be a whole number"),
    ("seed: [1, 2]", "a list is a grid, for agentkit sweep"),
    ("seed: 1\nbeta: 0\nseed: 2", "'seed' is set twice; keep one of the two"),
    ("- seed", "is no mapping of keys to values"),
    ("a: [", "it is not valid YAML: while parsing a flow node"),
    ("base: none.yaml", "none.yaml cannot be read (No such file or directory): recipes and prices lie in"),
    ("base: nano.yaml\nsede: 1", "did you mean 'seed'?"),
    ("base: r.yaml", "base leads in a circle: r.yaml -> r.yaml"),
])  # fmt: skip
def test_a_broken_file_is_named(tmp_path, text, says):
    path = write(tmp_path / "r.yaml", text)
    with pytest.raises(RecipeError) as error:
        Recipe.load(path)
    assert str(error.value).startswith(str(tmp_path)) and says in str(error.value)
    assert "\n" not in str(error.value)


def test_a_recipe_begins_from_others_and_holds_what_differs(tmp_path):
    write(tmp_path / "a.yaml", "seed: 1\nsteps: 10\nflaws: {in_head: 0.5}\nlab: mine.py\n")
    write(tmp_path / "mine.py", "")
    write(tmp_path / "more" / "b.yaml", "base: ../a.yaml\nsteps: 20\n")
    path = write(tmp_path / "more" / "c.yaml", "base: b.yaml\nflaws: {give_up: 0.1}\n")
    recipe = Recipe.load(path, seed=3)
    assert (recipe.seed, recipe.steps, recipe.flaws) == (3, 20, {"give_up": 0.1})
    assert recipe.lab == str(tmp_path / "mine.py"), "relative to the file that names it"


def test_words_of_yaml_are_words():
    assert parse_yaml("a: off\nb: yes\nno: true") == {"a": "off", "b": "yes", "no": True}
    assert parse_yaml("a: &x {b: 1, c: 2}\nd: {<<: *x, b: 3}")["d"] == {"b": 3, "c": 2}


def test_a_file_is_looked_for_beside_the_recipe_then_from_here(tmp_path, monkeypatch):
    for folder in ("recipes", "work/gsm8k", "work/nano", "work/agent"):
        (tmp_path / folder).mkdir(parents=True)
    recipe = write(tmp_path / "recipes" / "r.yaml", "lab: mine.py\ntasks: gsm8k\nmodel: nano\n")
    here = write(tmp_path / "work" / "mine.py", "")
    monkeypatch.chdir(here.parent)
    monkeypatch.setattr("agentkit.recipe.project_root", lambda: ROOT)
    assert read_recipe(recipe) == {"lab": str(here), "tasks": "gsm8k", "model": "nano"}
    beside = write(recipe.with_name("mine.py"), "")
    recipe.write_text("lab: mine.py\ntasks: gsm8k:gsm8k\nmodel: agent\n")
    there = {"tasks": f"gsm8k:{here.parent / 'gsm8k'}", "model": str(here.parent / "agent")}
    assert read_recipe(recipe) == there | {"lab": str(beside)}
    with pytest.raises(RecipeError, match=r"no file 'gone.py', neither here nor in"):
        find_file("gone.py")


def test_a_run_made_by_another_version_is_refused_by_name(tmp_path):
    run = Run.create(tmp_path / "a")
    run.update(recipe={"seed": 4, "report_to": "wandb"})
    assert Recipe.of(run).used() == {"seed": 4}
    run.update(recipe={"flaw_give_up": 0.3})
    with pytest.raises(RecipeError, match=r"run.json: unknown recipe key 'flaw_give_up'"):
        Recipe.of(run)


# ---- notebooks
def cell(**more):
    return {"recipe": "params/nano.yaml", "run": "outputs/lab", "changes": {}, "In": [""], "Out": {}} | more


def test_what_papermill_injects_wins_over_changes_and_these_over_the_file():
    shipped = Recipe.load(NANO)
    assert Recipe.from_notebook(cell()) == shipped
    assert Recipe.from_notebook(cell(changes={"steps": 7})).steps == 7
    assert Recipe.from_notebook(cell(changes={"steps": 7, "beta": 0}, steps=9)).steps == 9
    assert Recipe.from_notebook(cell(recipe={"steps": 3})).used() == {"steps": 3}


def test_a_second_run_all_reads_the_same_and_a_cell_alone_says_what_to_run():
    namespace = cell()
    first = Recipe.from_notebook(namespace)
    namespace |= {"stepz": 3, "step": 4, "recipe": first}  # what a notebook leaves behind
    with pytest.raises(RecipeError, match="run that cell again first"):
        Recipe.from_notebook(namespace)
    assert Recipe.from_notebook(namespace | {"recipe": "params/nano.yaml"}) == first


def test_a_misspelt_parameter_stops_the_notebook():
    with pytest.raises(RecipeError, match="unknown parameter 'stpes': did you mean 'steps'"):
        Recipe.from_notebook(cell(stpes=3))


def test_plain_papermill_hands_its_parameters_over(tmp_path):
    """-f reads YAML 1.1 and injects False; -p injects text."""
    file = write(tmp_path / "r.yaml", "preflight: off\nsft: on\n")
    out = tmp_path / "03_grpo.ipynb"
    words = ["--prepare-only", "-f", str(file), "-p", "learning_rate", "1e-4", "-p", "families", "A,B"]
    result = CliRunner().invoke(papermill, [str(ROOT / "notebooks" / "03_grpo.ipynb"), str(out), *words])
    assert result.exit_code == 0, result.output
    namespace: dict = {}
    for each in json.loads(out.read_text())["cells"]:
        if {"parameters", "injected-parameters"} & set(each["metadata"].get("tags", ())):
            exec("".join(each["source"]), namespace)
    recipe = Recipe.from_notebook(namespace)
    assert (recipe.preflight, recipe.sft, recipe.learning_rate) == ("off", True, 1e-4)
    assert recipe.families == ["A", "B"]
    assert recipe.n_tasks == Recipe.load(NANO).n_tasks


def test_what_ships_is_found_from_any_folder_and_a_projects_own_wins(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert located("params/nano.yaml") == NANO and located("outputs/a") == tmp_path / "outputs" / "a"
    assert project_file("notebooks", "01_tasks.ipynb") == ROOT / "notebooks" / "01_tasks.ipynb"
    own = write(tmp_path / "params" / "nano.yaml", "seed: 7\n")
    (tmp_path / "notebooks").mkdir()
    monkeypatch.chdir(tmp_path / "notebooks")
    assert located("params/nano.yaml") == own and Recipe.load("params/nano.yaml").seed == 7
