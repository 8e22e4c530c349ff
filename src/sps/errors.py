"""How a command ends early: what the user did wrong, what could not be done, what was asked for.

Anything else that fails is our bug.
"""


class UserError(Exception):
    """Bad input: the command line prints the message as one paragraph and exits with code 2."""


class RunFailed(Exception):
    """The work could not be finished, through no fault of the user's; exit code 1."""


class Stopped(BaseException):
    """Asked to stop, and everything is kept; exit code 0.

    A BaseException: it may be raised anywhere, and a library's `except Exception` lets it through.
    """
