"""What the user did wrong, said so that they can mend it. Anything else that fails is our bug."""


class UserError(Exception):
    """Bad input: the command line prints the message as one paragraph and exits with code 2."""


class RunFailed(Exception):
    """The work could not be finished for a reason that is not the user's; exit code 1, no traceback."""
