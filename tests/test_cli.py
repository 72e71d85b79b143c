"""The command line as a whole: help that is quick to come, results that programs can read."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from agentkit import cli

SLOW = ("torch", "pandas", "numpy", "scipy", "transformers", "plotly", "papermill", "pyarrow")


def test_help_loads_nothing_slow():
    command = [sys.executable, "-X", "importtime", "-m", "agentkit.cli", "--help"]
    child = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert child.returncode == 0 and "usage: agentkit" in child.stdout
    loaded = {line.rpartition("|")[2].strip() for line in child.stderr.splitlines()}
    assert loaded.isdisjoint(SLOW)


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_every_command_explains_itself(command, capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main([command, "--help"])
    shown = capsys.readouterr().out
    assert stop.value.code == 0 and f"usage: agentkit {command}" in shown


@pytest.mark.parametrize("command", sorted(cli.COMMANDS.keys() - {"serve"}))
def test_every_command_that_prints_a_result_takes_json(command, capsys):
    with pytest.raises(SystemExit):
        cli.main([command, "--help"])
    assert "--json" in capsys.readouterr().out


def test_json_is_all_that_is_printed(capsys):
    assert cli.main(["tasks", "--n", "60", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["family"] for row in rows[::2]] == ["A", "B", "C"]


@pytest.mark.parametrize(
    "words",
    [
        ["fly"],
        ["run"],
        ["cost", "x.yaml", "--gpus", "0"],
        ["merge", "a", "--dtype", "int8"],
        ["tasks", "--fly"],
    ],
)
def test_what_cannot_be_parsed_ends_with_status_2(words, capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(words)
    assert stop.value.code == 2 and "--help" in capsys.readouterr().err


@pytest.mark.parametrize("words", [[], ["somewhere", "--measure", "3"]])
def test_alarms_are_of_a_run_or_measured(words, capsys):
    assert cli.main(["alarms", *words]) == 2
    assert "one of the two" in capsys.readouterr().err


def test_a_terminal_without_unicode_shows_help_all_the_same():
    command = [sys.executable, "-m", "agentkit.cli", "--help"]
    child = subprocess.run(
        command, capture_output=True, env=os.environ | {"PYTHONIOENCODING": "ascii"}, timeout=60
    )
    assert child.returncode == 0 and b"preflight" in child.stdout
