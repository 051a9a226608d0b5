"""What mkdocs cannot say in its configuration: documents outside docs/, links out of the site, and the API's pages."""

from __future__ import annotations

import ast
import html
import os
import re
from pathlib import Path

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PACKAGE = ROOT / "attnres"
OUTSIDE = ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "paper/report.md")
"""Pages of the site that are not in docs/, by their place in the repository and on the site."""
SERVER, NAME = (os.environ.get(f"GITHUB_{name}", "") for name in ("SERVER_URL", "REPOSITORY"))
REPOSITORY = f"{SERVER}/{NAME}" if NAME else ""
"""Where the site is built by GitHub: there it links to what is no page, and to the sources of its pages."""
FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[([](.*?)\\[])]</\1>', re.DOTALL)
"""A formula between dollars, as arithmatex marks it."""
LATER = 1e-4
"""The weight of the API and of the developers' pages in the search: guides, of weight 1, come first."""
LINK = re.compile(r"(?P<image>!?)\[(?P<text>[^\]]*)\]\((?P<path>[^)#:\s]+)(?P<anchor>#[^)]*)?\)")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Add the API's pages to the navigation, and the repository."""
    pages = [{name.split(".")[-1]: _reference_path(name)} for name in _packages()]
    assert config.nav is not None
    config.nav.append({"API reference": ["reference/index.md", {"commands": "reference/commands.md"}, *pages]})
    if REPOSITORY:
        config.nav.append({"Repository": REPOSITORY})
        config.edit_uri = f"{REPOSITORY}/edit/main/docs/"
        config.theme["features"].append("content.action.edit")
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the documents outside docs/, the API's pages and the site's style to the files of docs/."""
    figures = [path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "paper" / "figures").iterdir())]
    made = {name: (ROOT / name).read_text(encoding="utf-8") for name in (*OUTSIDE, *figures)}
    made |= {name: Path(__file__).with_name(name).read_text(encoding="utf-8") for name in ("style.css", "search.js")}
    made["reference/index.md"] = _overview()
    made["reference/commands.md"] = _commands()
    made |= {_reference_path(name): _reference(name) for name in _packages()}
    for path, content in made.items():
        files.append(File.generated(config, path, content=content))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point the repository's links to the site's pages, by their titles, and others to the repository."""
    name = page.file.src_uri
    if name.startswith("dev/") or (page.file.generated_by and name.startswith("reference/")):
        page.meta["search"] = {"boost": LATER}
    folder = ((ROOT if name in OUTSIDE else DOCS) / name).resolve().parent

    def mended(link: re.Match[str]) -> str:
        target = Path(os.path.normpath(folder / link["path"]))
        outside = target.relative_to(ROOT).as_posix() if target.is_relative_to(ROOT) else ""
        at = outside if outside.startswith("paper/figures/") or outside in OUTSIDE else None
        if at is None and target.is_relative_to(DOCS):
            at = target.relative_to(DOCS).as_posix()
        if at is None:
            return f"[{link['text']}]({REPOSITORY}/tree/main/{outside})" if REPOSITORY and outside else link["text"]
        path = os.path.relpath(at, Path(name).parent)
        text = _title(target) if link["text"].endswith(".md") and target.is_file() else link["text"]
        return f"{link['image']}[{text}]({path}{link['anchor'] or ''})"

    return "".join(part if code else LINK.sub(mended, part) for code, part in _split(markdown))


def on_page_content(html_of_page: str, /, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Write formulas as MathML, which browsers draw without a script."""

    def drawn(formula: re.Match[str]) -> str:
        return convert(html.unescape(formula[2]), display="block" if formula[1] == "div" else "inline")

    return FORMULA.sub(drawn, html_of_page)


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Load search.js before the theme's script, and stop at a page that would fetch something from the network."""
    script = os.path.relpath("search.js", Path(page.url).parent)
    output = output.replace("</head>", f'<script src="{script}"></script></head>', 1)
    if fetched := re.search(r"<(?:script|link|img|iframe)\b[^>]*\b(?:src|href)=[\"']?(?:https?:)?//[^>]*>", output):
        raise PluginError(f"{page.file.src_uri} fetches {fetched[0]}")
    return output


def on_post_build(config: MkDocsConfig) -> None:
    """Write the search's index also as a script, which a page that was opened from a folder can load."""
    index = Path(config.site_dir, "search", "search_index.json")
    index.with_suffix(".js").write_text(f"var __index = {index.read_text(encoding='utf-8')}", encoding="utf-8")


def _title(document: Path) -> str:
    return document.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")


def _split(markdown: str) -> list[tuple[bool, str]]:
    """The parts of a document, and whether each is a block of code."""
    parts = re.split(r"(^```.*?^```$)", markdown, flags=re.DOTALL | re.MULTILINE)
    return [(part.startswith("```"), part) for part in parts]


def _packages() -> list[str]:
    """attnres' packages in the order of their names; the commands have a page of their own kind."""
    folders = sorted(path.parent.name for path in PACKAGE.glob("*/__init__.py"))
    return [f"attnres.{name}" for name in folders if name != "cli"]


def _reference_path(name: str) -> str:
    return f"reference/{name.split('.')[-1]}.md"


def _source(name: str) -> ast.Module:
    return ast.parse((ROOT / name.replace(".", "/") / "__init__.py").read_text(encoding="utf-8"))


def _summary(source: ast.Module) -> str:
    return (ast.get_docstring(source) or "").partition("\n")[0]


def _exported(source: ast.Module) -> list[str]:
    """The names in `__all__`, of which a package without one has none."""
    for statement in source.body:
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "__all__":
            return ast.literal_eval(statement.value)
    return []


def _identifier(package: str, name: str) -> str:
    """Where what a package exports is defined: `attnres.hf.attach` is a module, too."""
    imports = [node for node in ast.walk(_source(package)) if isinstance(node, ast.ImportFrom) and node.module]
    homes = {alias.asname or alias.name: (node.module or "", alias.name) for node in imports for alias in node.names}
    home, known_there = homes.get(name, (package, name))
    return _identifier(home, known_there) if home in _packages() and home != package else f"{home}.{known_there}"


def _modules(name: str) -> list[str]:
    return [f"{name}.{file.stem}" for file in sorted((ROOT / name.replace(".", "/")).glob("[!_]*.py"))]


def _reference(name: str) -> str:
    """What a package exports; of one that exports nothing, what its files define; and the connections' rules."""
    source = _source(name)
    exported = _exported(source)
    lines = [f"# {name}", "", ast.get_docstring(source) or "", ""]
    lines += [f"::: {_identifier(name, member)}\n" for member in exported]
    if not exported or name == "attnres.connections":
        rules_or_all = f"{name}.rules" if exported else name
        lines += [f"::: {module}\n" for module in _modules(rules_or_all)]
    return "\n".join(lines)


def _commands() -> str:
    """The help of each command, from the file of its name."""
    files = [*PACKAGE.glob("cli/[!_]*.py"), *PACKAGE.glob("lab/experiments/[!_]*.py")]
    helps = {file.stem: ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) for file in files}
    sections = [f"## {name}\n\n{helps[name]}" for name in sorted(helps)]
    return "\n\n".join(["# Commands", "`attnres COMMAND --help` lists the options of each.", *sections])


def _overview() -> str:
    lines = ["# API reference", "", "Made from the docstrings. The names of the first row are in `attnres` itself.", ""]
    lines += ["| package | what it is for | names |", "|---|---|---|"]
    for name in ("attnres", *_packages()):
        source = _source(name)
        names = ", ".join(_linked(name, exported) for exported in _exported(source))
        link = f"`{name}`" if name == "attnres" else f"[`{name}`]({name.split('.')[-1]}.md)"
        lines.append(f"| {link} | {_summary(source)} | {names} |")
    return "\n".join(lines)


def _linked(package: str, name: str) -> str:
    identifier = _identifier(package, name)
    has_page = ".".join(identifier.split(".")[:2]) in _packages()
    return f"[`{name}`][{identifier}]" if has_page else f"`{name}`"
