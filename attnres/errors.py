"""The one kind of error a user can cause."""


class UsageError(ValueError):
    """The input cannot be used. The message is one line that says what is wrong and what to do.

    The command line prints it without a traceback and exits with code 2.
    """
