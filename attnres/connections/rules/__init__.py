"""The residual connections. A file's name is its connection's name, with `-` for `_`.

To add a connection, add one file here that defines one subclass of `Connection`; nothing else changes.
"""
