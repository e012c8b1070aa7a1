"""Errors that a user can act on. The command line prints their one line and exits with code 2."""


class SdpgError(Exception):
    """Something the user can fix; the message is one line that names the fix."""
