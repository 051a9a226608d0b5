"""Run the protocol's checks on a connection and print the result of each.

    attnres check mine.py:MyRule
    attnres check mine.py:MyRule:rate=0.5
    attnres check block:query=input

A custom connection is a class in any Python file; every command that takes a connection takes FILE.py:CLASS.
CONTRIBUTING.md says what it has to define.
"""

from __future__ import annotations

from typing import Annotated

import tyro

from attnres.errors import UsageError


def command(connection: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="CONNECTION")]) -> int:
    """Check.

    Args:
        connection: NAME or FILE.py:CLASS, with :OPTION=VALUE,OPTION=VALUE where it has options.
    """
    from attnres.cli._tables import Output, print_line
    from attnres.connections import Connection, make_connection
    from attnres.connections.check import DIM, SITES, findings

    made = make_connection(connection, DIM, SITES)  # a bad name or option is one line
    asked_for = ("weigh", "gather", "scatter")
    if missing := [name for name in asked_for if getattr(type(made), name) is getattr(Connection, name)]:
        raise UsageError(f"{type(made).__name__} defines no {' and no '.join(missing)}; see CONTRIBUTING.md")
    console, wrong, told = Output(), 0, set[str]()
    for asked, problem in findings(lambda sites: make_connection(connection, DIM, sites)):
        if problem is None:
            print_line(console, f"ok  {asked}")
            continue
        wrong += 1
        print_line(console, f"NO  {asked}: {'as above' if problem in told else problem}")
        told.add(problem)
    print_line(
        console,
        f"{connection} keeps the protocol" if not wrong else f"{wrong} check{'s' * (wrong != 1)} found something wrong",
    )
    return 1 if wrong else 0
