"""Keys of services, which are in the environment."""

import os

from slim_rl.core.errors import UserError


def read_key(variable: str) -> str:
    """The key in an environment variable; "" if there is none. Raises UserError: it cannot be a key."""
    key = os.environ.get(variable, "").strip()
    if not all("!" <= letter <= "~" for letter in key):
        raise UserError(f"The environment variable {variable} holds a character that no key has; set it again.")
    return key
