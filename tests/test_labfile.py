"""Lab files are loaded anew, each with its own modules, and their digest holds what they import."""

from __future__ import annotations

import sys

import pytest

from agentkit.recipe import RecipeError
from agentkit.runs.labfile import lab_digest, load_module


def write(path, text):
    path.write_text(text)
    return path


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


def test_a_module_beside_a_lab_file_hides_no_library(tmp_path, monkeypatch):
    lab = write(tmp_path / "lab.py", "from own_beside import name\nimport colorsys\n")
    write(tmp_path / "own_beside.py", "name = 1\n")
    write(tmp_path / "colorsys.py", "")
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    assert load_module(lab).colorsys.rgb_to_hsv and load_module(lab).name == 1
