import sys
from pathlib import Path

import pytest

from attnres.train import RunConfig, load_recipe

RECIPES = sorted((Path(__file__).parents[2] / "recipes").glob("*.py"))


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_shipped_recipes(path):
    assert isinstance(load_recipe(path), RunConfig)
    docstring = path.read_text(encoding="utf-8").split('"""')[1]
    assert f"recipes/{path.name}" in docstring, "a recipe's docstring gives its command"


def test_a_recipe_derives_from_its_neighbour_wherever_it_lies(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "base_of_mine.py").write_text(
        "from attnres.train import RunConfig\nconfig = RunConfig(steps=3)\n"
    )
    path = list(sys.path)
    for name in ("base_of_mine", "mine.base_of_mine"):
        text = f"from dataclasses import replace\nfrom {name} import config as base\nconfig = replace(base, seed=7)\n"
        (tmp_path / "mine" / "run.py").write_text(text)
        assert load_recipe(tmp_path / "mine" / "run.py") == RunConfig(steps=3, seed=7)
    assert sys.path == path
