"""What an error of a service means for the call, the episode and the run."""

from collections.abc import Mapping
from contextlib import suppress
from email.utils import parsedate_to_datetime
from textwrap import shorten
from typing import NamedTuple

import openai

from slim_rl.players.config import ServiceConfig

_PATIENCE_SECONDS = 600.0  # a service that asks for a longer pause stops the run
_NO_QUOTA = {"insufficient_quota", "billing_hard_limit_reached", "billing_not_active"}
_ONE_EPISODE = {"context_length_exceeded", "content_filter", "content_policy_violation"}


class Failure(NamedTuple):
    """Why a call brought no reply. A value, not an exception, because OpenAI's exceptions hold the API key."""

    reason: str
    """The error's class and message."""
    sentence: str = ""
    """An error that only the user can fix; it stops the run."""
    again: bool = True
    """Whether the same call may succeed later."""
    down: bool = False
    """Whether the service may be down."""
    crowded: bool = False
    """Whether all calls should pause."""
    after_seconds: float | None = None
    """The pause that the service asked for."""
    words: str = ""
    """All that the service said, where it may refuse the form of the request, or only this dialogue."""


class Failures:
    """Reads the errors of the service `name`, which has this key, or "" if it needs none."""

    def __init__(self, name: str, config: ServiceConfig, key: str):
        self.where = f"The service {name} at {config.base_url}"
        self._name, self._model, self._variable, self._key = name, config.model, config.key_variable, key

    def refused(self, error: openai.APIStatusError) -> Failure:
        """What an HTTP error means."""
        reason, message, status = self.reason(error), self.one_line(error.message), error.status_code
        if status == 401:
            if not self._key:
                where = self._variable or f"the variable that services.{self._name}.key_variable names"
                return Failure(reason, f"{self.where} needs a key; set {where}.")
            return Failure(reason, f"{self.where} refuses the key in {self._variable}; set the right one.")
        if status == 402 or (status == 429 and {str(error.code), str(error.type)} & _NO_QUOTA):
            return Failure(
                reason,
                f"{self.where} says that the account has no quota left ({message}). Add credit and run the same "
                "command again; finished work is kept.",
            )
        words = f"{error.param} {error}"
        if status == 403:
            return Failure(reason, f"{self.where} does not let this key use {self._model} ({message}).", words=words)
        if status == 404:
            return Failure(
                reason,
                f"{self.where} has no model {self._model} ({message}); check services.{self._name}.model and base_url.",
            )
        after = _retry_after(error.response.headers) or None  # after 0 seconds it would refuse again
        if after is not None and after > _PATIENCE_SECONDS:
            return Failure(
                reason,
                f"{self.where} asks for a pause of {after:.0f} seconds ({message}). Run the same command again then; "
                "finished work is kept.",
            )
        if status in (408, 409, 429) or status >= 500:
            crowded = status == 429 or after is not None
            return Failure(reason, down=not crowded, crowded=crowded, after_seconds=after)
        if str(error.code) in _ONE_EPISODE or status == 413:
            return Failure(reason, again=False)
        parameter = "temperature" if "temperature" in words else "max_reply_tokens" if "max_" in words else ""
        advice = f"; set services.{self._name}.{parameter}" if parameter else ""
        sentence = f"{self.where} does not accept a request for {self._model} ({status}: {message}){advice}."
        return Failure(reason, sentence, words=words)

    def reason(self, error: BaseException) -> str:
        return f"{type(error).__name__}: {self.one_line(str(error))}"

    def one_line(self, text: str) -> str:
        """A service's message, without the key, which some services repeat."""
        return shorten(text.replace(self._key, "***") if self._key else text, 200, placeholder=" ...")


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds of pause that the service asks for; None if it does not say."""
    for name, unit in (("retry-after-ms", 1e-3), ("retry-after", 1.0)):
        with suppress(KeyError, ValueError):
            return max(float(headers[name]) * unit, 0.0)
    with suppress(KeyError, ValueError, TypeError):
        after, now = (parsedate_to_datetime(headers[name]) for name in ("retry-after", "date"))  # of one clock
        return max((after - now).total_seconds(), 0.0)
    return None
