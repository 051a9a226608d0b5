"""What config.json says of a connection: the record of an attached model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attnres.connections import canonical_connection, file_digest, from_anywhere, parse_connection
from attnres.connections.files import is_loaded
from attnres.errors import UsageError

RECORD = "attnres"
"""The entry of a configuration that holds the connection and the plain model's type:
{"connection": "block:block_size=8,total=true", "plain": "llama"}. Were that called "model_type", the plain model's own
class would take the record for its configuration."""

FILE = "connection_file"
"""What it holds, too, of a connection FILE.py:CLASS: the hash of that file's text, which decides what tensors mean."""


def recorded_connection(config: Mapping[str, Any], trusted: bool = False) -> str:
    """The connection of config.json's record, in canonical form.

    Raises:
        UsageError: a damaged record, a rule's file that has changed since, or, unless `trusted`, one that this process
            has not run: whoever reads a folder need not want to run what it names.
    """
    record = _sound_record(config)
    connection = record["connection"]
    if not (trusted or _may_be_run(connection)):
        raise UsageError(
            f"config.json names a connection of the file {file_of(connection)}, which is not run unasked; if you trust "
            f"it, call attnres.connections.connection_class({connection!r}) first, "
            "or attnres.hf.load(folder, trust_remote_code=True)"
        )
    canonical = canonical_connection(connection)
    if record.get(FILE) not in (None, file_digest(connection)):
        raise UsageError(
            f"config.json: {file_of(connection)} is not the file that these tensors were saved with; restore it, or "
            f'remove "{FILE}" from "{RECORD}" if they mean the same under it'
        )
    return canonical


def read_record(config: Mapping[str, Any]) -> dict[str, Any]:
    """The record as it is to be kept: the connection in canonical form or, of a file that nobody has run, as written.

    To read a configuration is not to trust it: a model that is made of it asks again.
    """
    record = _sound_record(config)
    return {"connection": recorded_connection(config)} if _may_be_run(record["connection"]) else dict(record)


def written_record(record: Mapping[str, Any]) -> dict[str, Any]:
    """The record as config.json has it, with the whole path of a file that this process has run."""
    connection = record["connection"]
    if (file := file_of(connection)) and is_loaded(file):
        return {**record, "connection": from_anywhere(connection), FILE: file_digest(connection)}
    return dict(record)


def _sound_record(config: Mapping[str, Any]) -> Mapping[str, Any]:
    record = config.get(RECORD)
    if not isinstance(record, Mapping) or "connection" not in record:
        raise UsageError(f'config.json: "{RECORD}" must hold the connection, written NAME:OPTION=VALUE,OPTION=VALUE')
    return record


def file_of(connection: str) -> str:
    """The file of a connection that is written FILE.py:CLASS; "" for one of the library."""
    return parse_connection(connection)[0].rpartition(":")[0]


def _may_be_run(connection: str) -> bool:
    """Whether it needs no file, or one that this process has run."""
    return not (file := file_of(connection)) or is_loaded(file)
