import html
import json
import zipfile
from pathlib import Path

import pytest
from engines import adapter_on

from agentkit.cli import main
from agentkit.policies.loading import load_agent
from agentkit.records import DataError
from agentkit.runs import Run, write_json
from agentkit.tasks.public.gaia import GaiaEnvironment, load
from agentkit.verifiers import verify
from agentkit.views.card import write_report

ROWS = [
    {"task_id": "g1", "Question": "How many rows are in the file?", "Level": 1, "Final answer": "2", "file_name": "g1.csv"},
    {"task_id": "g2", "Question": "Which city?", "Level": "2", "Final answer": "Paris", "Annotator Metadata": {"a": 1}},
    {"task_id": "g3", "Question": "Which two?", "Level": 3, "Final answer": "a, b", "file_name": ""},
]  # fmt: skip


@pytest.fixture
def folder(tmp_path):
    place = tmp_path / "gaia" / "2023" / "validation"
    place.mkdir(parents=True)
    (place / "metadata.jsonl").write_text("\n".join(map(json.dumps, ROWS)))
    (place / "g1.csv").write_text("a,b\n1,2\n3,4\n")
    return tmp_path / "gaia"


def test_local_files(folder):
    tasks = load(folder)
    assert [t.id for t in tasks] == ["g1", "g2", "g3"]
    assert [t.difficulty for t in tasks] == ["level 1", "level 2", "level 3"]
    assert {(t.family, t.split) for t in tasks} == {("GAIA", "validation")}
    assert all(task.meta["share"] is False for task in tasks)
    assert "Attached file: g1.csv" in tasks[0].prompt
    assert Path(tasks[0].meta["file"]).read_text().startswith("a,b")
    assert [t.id for t in load(folder, levels=[2])] == ["g2"]
    with pytest.raises(DataError, match="holds no metadata.jsonl, .json or .parquet"):
        load(folder.parent)


@pytest.mark.parametrize(("change", "says"), [
    ({"Question": None}, "row 2: it lacks 'Question'"),
    ({"Level": "Which city?"}, "row 2: Level must be 1, 2 or 3. Mend the row.$"),
    ({"file_name": "a\0b"}, "row 2: there is no attachment"),
    ({"file_name": "metadata.jsonl"}, "row 2: there is no attachment 'metadata.jsonl'"),
    ({"file_name": "../../secret.txt"}, "row 2: there is no attachment '../../secret.txt'"),
    ({"task_id": "g1"}, "row 2: its id 'g1' occurs twice"),
])  # fmt: skip
def test_a_broken_row_is_named(tmp_path, change, says):
    place = tmp_path / "in" / "side"
    place.mkdir(parents=True)
    (tmp_path / "secret.txt").write_text("outside")
    rows = [ROWS[0] | {"file_name": ""}, ROWS[1] | change]
    (place / "metadata.jsonl").write_text("\n".join(map(json.dumps, rows)))
    with pytest.raises(DataError, match=says) as error:
        load(place)
    assert "city" not in str(error.value)


def test_attachments_reach_their_own_trajectory_only(folder, corpus):
    attached, without, _ = load(folder)
    first, second = GaiaEnvironment(corpus), GaiaEnvironment(corpus)
    first.reset(prompt=attached.prompt, **attached.meta)
    second.reset(prompt=without.prompt, **without.meta)
    assert first.list_files() == "g1.csv (12 bytes, attached)"
    assert second.list_files() == "the workspace is empty"
    assert first.read_file("g1.csv", 4).startswith("1,2")
    with pytest.raises(ValueError, match="no file 'g1.csv'"):
        second.read_file("g1.csv")
    with pytest.raises(ValueError, match="is the attachment"):
        first.write_file("g1.csv", "changed")
    first.write_file("note.txt", "n")
    assert first.python("print(len(open('g1.csv').readlines()), open('note.txt').read())").strip() == "3 n"
    assert (folder / "2023" / "validation" / "g1.csv").read_text() == "a,b\n1,2\n3,4\n"
    first.reset(**without.meta)
    assert first.list_files() == "the workspace is empty"


SECRETS = "zebra crossings of Quantmoor", "Wexlow", "turnips in row seven", "Brindlewick"  # in no other file
OFFICIAL = [
    {"task_id": f"f{i}", "Question": f"{SECRETS[0]}, number {i}: look into the file?", "Level": 1 + i % 3, "Final answer": answer, "file_name": name,
     "Annotator Metadata": {"Steps": SECRETS[2]}} for i, (answer, name) in enumerate(
         [("Wexlow", "f0.txt"), ("2", "f1.csv"), ("Brindlewick", "f2.xlsx"), ("7", "f3.png"), ("12", "")])
]  # fmt: skip
SHEET = {
    "xl/workbook.xml": '<workbook xmlns="m"><sheets><sheet name="Crops"/></sheets></workbook>',
    "xl/sharedStrings.xml": '<sst xmlns="m"><si><t>crop</t></si><si><r><t>turnips in </t></r><r><t>row seven</t></r></si></sst>',
    "xl/worksheets/sheet1.xml": '<worksheet xmlns="m"><sheetData><row><c r="A1" t="s"><v>0</v></c><c r="C1"><v>4.5</v></c></row>'
    '<row><c r="A2" t="s"><v>1</v></c><c r="B2" t="inlineStr"><is><t>yes</t></is></c><c r="C2" t="s"/></row></sheetData></worksheet>',
}  # fmt: skip


@pytest.fixture
def official(tmp_path):
    """Made-up rows in the official schema, with attachments of four kinds."""
    place = tmp_path / "theirs" / "2023" / "validation"
    place.mkdir(parents=True)
    (place / "metadata.jsonl").write_text("\n".join(map(json.dumps, OFFICIAL)))
    (place / "f0.txt").write_text("The town is Wexlow.")
    (place / "f1.csv").write_text("crop,row\nturnips in row seven,7\n")
    with zipfile.ZipFile(place / "f2.xlsx", "w") as book:
        for name, text in SHEET.items():
            book.writestr(name, text)
    (place / "f3.png").write_bytes(b"\x89PNG\r\n\x1a\n\0\0Brindlewick")
    return tmp_path / "theirs"


def test_a_sheet_is_read_as_rows(official, corpus):
    environment = GaiaEnvironment(corpus)
    environment.reset(**load(official)[2].meta)
    said = environment.read_file("f2.xlsx")
    assert "Crops" in said and "turnips in row seven" in said and "4.5" in said and "yes" in said


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run with two adapters that were trained on nothing."""
    run = Run.create(tmp_path_factory.mktemp("runs") / "tiny")
    keys = {"model": "nano", "sft": True, "test_samples": 1, "max_turns": 2, "max_turn_tokens": 24}
    run.update(recipe=keys)
    for name in ("sft", "adapter"):
        adapter_on(load_agent("nano")[0], 0.0).save_pretrained(run.file(name))
    return run


@pytest.mark.slow
def test_both_agents_by_level_and_no_question_is_written(official, trained, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "scratch"))
    (tmp_path / "scratch").mkdir()
    assert main(["gaia", str(trained.path), "--file", str(official)]) == 0
    said = capsys.readouterr().out
    assert all(part in said for part in ("level 1", "level 2", "level 3", "all", "sft → grpo", "tasks"))
    kept = json.loads(trained.file("gaia.json").read_text())
    assert set(kept["scores"]) == {"sft", "grpo"} and kept["headline"]["sentence"] in said
    assert set(kept["scores"]["grpo"]) == {row["task_id"] for row in OFFICIAL}
    assert [len(samples) for samples in kept["scores"]["sft"].values()] == [1] * 5
    levels = kept["policies"]["sft"]["by_difficulty"]
    assert {name: block["n"] for name, block in levels.items()} == {"level 1": 2, "level 2": 2, "level 3": 1}
    words = ["--levels", "3", "--policies", "grpo", "--json"]
    write_json(trained.file("comparison.json"), kept)
    write_report(trained)
    assert kept["headline"]["sentence"] in html.unescape(trained.file("report.html").read_text())
    assert main(["gaia", str(trained.path), "--file", str(official), *words]) == 0
    assert json.loads(capsys.readouterr().out)["n_tasks"] == 1
    for folder in (trained.path, tmp_path):
        for path in folder.rglob("*"):
            if path.is_file() and official not in path.parents:
                assert not [s for s in SECRETS if s.encode() in path.read_bytes()], path


def test_secret_answers_are_refused_before_anything_runs(tmp_path, trained, capsys):
    path = tmp_path / "metadata.jsonl"
    path.write_text(json.dumps(OFFICIAL[4] | {"Final answer": "?"}))
    (task,) = load(path, split="test")
    assert task.split == "test" and verify(task, "12").value is None and verify(task, "?").value is None
    assert main(["gaia", str(trained.path), "--file", str(tmp_path)]) == 2
    assert "whose answer is known" in capsys.readouterr().err
