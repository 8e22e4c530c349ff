"""What the user did wrong, said so that they can mend it. Anything else that fails is our bug."""


class UserError(Exception):
    """Bad input: the command line prints the message as one paragraph and exits with code 2."""


class RunFailed(Exception):
    """The work could not be finished, through no fault of the user's; exit code 1."""
