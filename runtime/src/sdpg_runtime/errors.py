"""What is said in one line."""

from __future__ import annotations


class Refused(Exception):
    """Something does not fit. The message is one line that names the fix; nothing has moved."""
