import importlib
import sys
from pathlib import Path

import pytest

from attnres.errors import UsageError
from attnres.train import RunConfig, load_recipe

RECIPES = sorted((Path(__file__).parents[2] / "recipes").glob("*.py"))


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_shipped_recipes(path):
    assert isinstance(load_recipe(path), RunConfig)
    docstring = path.read_text(encoding="utf-8").split('"""')[1]
    assert f"recipes/{path.name}" in docstring, "a recipe's docstring gives its command"


def test_a_recipe_derives_from_its_neighbour_wherever_it_lies(tmp_path):
    for folder, steps in (("mine", 3), ("theirs", 4)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "base.py").write_text(
            f"from attnres.train import RunConfig\nconfig = RunConfig(steps={steps})\n"
        )
        derive = "from dataclasses import replace\nfrom {} import config as base\nconfig = replace(base, seed=7)\n"
        (tmp_path / folder / "plain.py").write_text(derive.format("base"))
        (tmp_path / folder / "qualified.py").write_text(derive.format(f"{folder}.base"))
    path = list(sys.path)
    for folder, steps in (("mine", 3), ("theirs", 4)):
        for name in ("plain", "qualified"):
            assert load_recipe(tmp_path / folder / f"{name}.py") == RunConfig(steps=steps, seed=7)
    assert sys.path == path
    assert "base" not in sys.modules


def test_a_recipe_has_dataclasses(tmp_path):
    (tmp_path / "sized.py").write_text(
        "from __future__ import annotations\nfrom dataclasses import dataclass\nfrom attnres.train import RunConfig\n"
        "@dataclass\nclass Size:\n    steps: int = 3\nconfig = RunConfig(steps=Size().steps)\n"
    )
    before = set(sys.modules)
    assert load_recipe(tmp_path / "sized.py").steps == 3
    assert set(sys.modules) == before


def test_what_is_installed_below_a_recipes_folder_is_imported_once(tmp_path, monkeypatch):
    packages, package = tmp_path / ".venv" / "packages", tmp_path / "package"
    for folder, name in ((packages / "installed", "__init__"), (package, "__init__"), (package, "part")):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.py").touch()
    monkeypatch.syspath_prepend(packages)
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("package")
    imports = "import installed, package.part\nfrom attnres.train import RunConfig\nconfig = RunConfig()\n"
    (tmp_path / "recipe.py").write_text(imports)
    load_recipe(tmp_path / "recipe.py")
    for name in ("installed", "package.part", "package"):
        assert sys.modules.pop(name)


DATA = (
    "from pathlib import Path\nimport numpy as np\nfrom attnres.data import DataConfig\n"
    "from attnres.train import OptimizerConfig, RunConfig\nconfig = RunConfig(data="
)


@pytest.mark.parametrize(
    "content, message",
    [
        ("x = 1", "must define config"),
        (f"{DATA}DataConfig(), optimizer=OptimizerConfig(lr=np.float32(0.01)))", "field optimizer.lr must be float"),
    ],
)
def test_bad_recipe(tmp_path, content, message):
    file = tmp_path / "recipe.py"
    file.write_text(content)
    with pytest.raises(UsageError, match=message):
        load_recipe(file)
