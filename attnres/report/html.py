"""HTML through jinja2: every text is escaped, and nothing in it is hidden."""

from __future__ import annotations

import posixpath
import re
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from attnres.texttable import visible


def page(**content: Any) -> str:
    """page.html with this content."""
    templates = Environment(
        loader=PackageLoader("attnres.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return templates.get_template("page.html").render(**content)


IMPORT = re.compile(r'^import (\{[^}]*\}) from "([^"]+)";$', re.MULTILINE)
EXPORT = re.compile(r"^export ((?:async )?(?:function|const|class) (\w+))", re.MULTILINE)


def script(entry: str) -> str:
    """Join a JavaScript module and all that it imports into one script, which a page can hold and run from disk.

    Browsers load modules from servers only. Each module keeps its own scope. What is understood is what our modules
    write: `import { a, b } from "./file.js";` and `export` before a function, class or constant.

    Args:
        entry: the module's path in the package attnres, such as "look/page/app.js".
    """
    parts: dict[str, str] = {}

    def add(path: str) -> str:
        """Add a module after those that it imports; the name of what it exports."""
        name = re.sub(r"\W", "_", path.removesuffix(".js"))
        if name not in parts:
            text = IMPORT.sub(lambda line: f"const {line[1]} = {add(_beside(path, line[2]))};", _read(path))
            exported = ", ".join(line[2] for line in EXPORT.finditer(text))
            text = EXPORT.sub(r"\1", text)
            parts[name] = f"const {name} = (() => {{\n{text}return {{ {exported} }};\n}})();\n"
        return name

    add(entry)
    return '"use strict";\n(() => {\n' + "".join(parts.values()) + "})();\n"


def styles(*paths: str) -> str:
    """Join style sheets, whose paths are those in the package attnres."""
    return "".join(map(_read, paths))


def _read(path: str) -> str:
    return (files("attnres") / path).read_text(encoding="utf-8")


def _beside(path: str, target: str) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(path), target))


def _shown(value: Any) -> Any:
    """Control and formatting characters become visible; markup of our own stays as it is."""
    return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value
