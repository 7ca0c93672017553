"""OpenAI's chat completions as messages of ours, and back.

What the model cannot be told, or what could not be trained on as it was asked for, is refused in a sentence; it is never
dropped. Sampling parameters are the run's, so that log-probs are those of the policy: `temperature`, `top_p` and `seed`
of a request change nothing.
"""

import json
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from slim_rl.core.message import Message, Tool, ToolCall
from slim_rl.core.player import Constraint

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
MODEL = "policy"
"""The only model behind the door; a request may name any."""


class Refusal(Exception):
    """An error that the client reads, in OpenAI's form.

    Args:
        code: for programs, such as `context_length_exceeded`.
    """

    def __init__(self, text: str, code: str = "invalid_request", status: int = 400):
        super().__init__(text)
        self.status = status
        self.body = {"error": {"message": text, "type": "invalid_request_error", "param": None, "code": code}}


class Request(NamedTuple):
    """A request for completions."""

    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()
    constraint: Constraint | None = None
    stop: tuple[str, ...] = ()
    """The reply is cut before the first of these texts. What was sampled stays what it was."""
    choices: int = 1
    stream: bool = False
    stream_usage: bool = False


def read_request(body: Any) -> Request:
    """A request's JSON. Raises Refusal: it is malformed, or asks for what is not offered."""
    if not isinstance(body, Mapping):
        raise Refusal("The body is no JSON object.")
    get = body.get
    for name in ("top_logprobs", "audio", "functions"):
        if get(name):
            raise Refusal(f"{name} is not offered here.", "unsupported_parameter")
    form = get("response_format")
    if form and (not isinstance(form, Mapping) or form.get("type") != "text"):
        raise Refusal("response_format is not offered here, but for text.", "unsupported_parameter")
    tools = tuple(map(_tool, _list(get("tools"), "tools")))
    stop = get("stop")
    stop = (stop,) if isinstance(stop, str) else tuple(_list(stop, "stop"))
    if not all(isinstance(text, str) and text for text in stop):
        raise Refusal("stop is a text or a list of texts.")
    options = get("stream_options") or {}
    return Request(
        tuple(_messages(_list(get("messages"), "messages"))),
        tools,
        _constraint(body, tools),
        stop,
        _count(get("n"), "n") or 1,
        bool(get("stream")),
        isinstance(options, Mapping) and bool(options.get("include_usage")),
    )


def same(a: Message, b: Message) -> bool:
    """Whether two messages say the same, but for white space around them and how calls are written as JSON."""
    calls = [[(call.name, call.arguments) for call in message.tool_calls] for message in (a, b)]
    return a.role == b.role and a.text.strip() == b.text.strip() and calls[0] == calls[1]


def reply_to(request: Request, message: Message) -> Message:
    """What the client reads of a turn: cut at a stop text, and a call that no tool can take as text."""
    malformed = [f"<tool_call>\n{call.raw}\n</tool_call>" for call in message.tool_calls if call.status != "ok"]
    text = "\n".join(filter(None, (message.text, *malformed)))
    ends = [place for place in map(text.find, request.stop) if place >= 0]
    if ends:
        return Message("assistant", text[: min(ends)])
    return Message("assistant", text, tuple(call for call in message.tool_calls if call.status == "ok"))


def completion(replies: Sequence[tuple[Message, Message]]) -> dict[str, Any]:
    """The JSON of a reply.

    Args:
        replies: for each choice what the client reads, and the turn of the model with its numbers.
    """
    choices = [
        {"index": n, "message": _assistant(reply), "finish_reason": _finish(reply, turn), "logprobs": _logprobs(turn)}
        for n, (reply, turn) in enumerate(replies)
    ]
    counts = [turn.sampled for _, turn in replies if turn.sampled]
    prompt, sampled = sum(c.prompt_tokens for c in counts[:1]), sum(c.tokens for c in counts)
    usage = {"prompt_tokens": prompt, "completion_tokens": sampled, "total_tokens": prompt + sampled}
    return {**_head("chat.completion"), "choices": choices, "usage": usage}


def chunks(whole: Mapping[str, Any], usage: bool) -> Iterable[dict[str, Any]]:
    """A completion as the events of a stream."""
    head = {**whole, "object": "chat.completion.chunk"}
    del head["usage"]

    def chunk(index: int, delta: Mapping[str, Any], reason: str | None = None, logprobs: Any = None) -> dict[str, Any]:
        return {**head, "choices": [{"index": index, "delta": delta, "finish_reason": reason, "logprobs": logprobs}]}

    for choice in whole["choices"]:
        number, message = choice["index"], choice["message"]
        yield chunk(number, {"role": "assistant", "content": message["content"] or ""}, logprobs=choice["logprobs"])
        for place, call in enumerate(message.get("tool_calls", ())):
            yield chunk(number, {"tool_calls": [{"index": place, **call}]})
        yield chunk(number, {}, choice["finish_reason"])
    if usage:
        yield {**head, "choices": [], "usage": whole["usage"]}


def _head(kind: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{uuid.uuid4().hex}", "object": kind, "created": int(time.time()), "model": MODEL}


def _assistant(reply: Message) -> dict[str, Any]:
    calls = [
        {"id": f"call_{uuid.uuid4().hex[:24]}", "type": "function",
         "function": {"name": call.name, "arguments": json.dumps(call.arguments, ensure_ascii=False)}}
        for call in reply.tool_calls
    ]  # fmt: skip
    return {"role": "assistant", "content": reply.text or (None if calls else ""), "refusal": None} | (
        {"tool_calls": calls} if calls else {}
    )


def _logprobs(turn: Message) -> dict[str, Any] | None:
    """The log-probs of all that was sampled: thoughts, markers and the end are tokens, too."""
    tokens = turn.sampled.logprobs if turn.sampled else ()
    content = [{"token": t, "logprob": p, "bytes": list(t.encode()), "top_logprobs": []} for t, p in tokens]
    return {"content": content, "refusal": None} if content else None


def _finish(reply: Message, turn: Message) -> str:
    if reply.tool_calls:
        return "tool_calls"
    return "length" if turn.sampled and turn.sampled.cut else "stop"


def _messages(bodies: Sequence[Any]) -> Iterable[Message]:
    """The messages of a request; results of calls in the order of the calls."""
    if not bodies:
        raise Refusal("messages is empty.")
    waiting: dict[str, str | None] = {}
    for number, body in enumerate(bodies):
        where = f"messages[{number}]"
        role = _ROLES.get(str(body.get("role"))) if isinstance(body, Mapping) else None
        if role is None:
            raise Refusal(f"{where} has no role of {', '.join(_ROLES)}.")
        if role == "tool":
            name = body.get("tool_call_id")
            if waiting.get(name, "") is not None:
                raise Refusal(f"{where} answers no tool call of the message before it.")
            waiting[name] = _text(body, where)
            if None not in waiting.values():
                yield from (Message("tool", text) for text in waiting.values() if text is not None)
                waiting = {}
            continue
        if waiting:
            raise Refusal(f"{where} comes before the results of the calls {', '.join(waiting)}.")
        calls = []
        for call in _list(body.get("tool_calls"), f"{where}.tool_calls") if role == "assistant" else ():
            name, parsed = _call(call, where)
            waiting[name] = None
            calls.append(parsed)
        yield Message(role, _text(body, where), tuple(calls))  # type: ignore[arg-type]
    if waiting:
        raise Refusal(f"There are no results of the calls {', '.join(waiting)}.")


def _text(body: Mapping[str, Any], where: str) -> str:
    content = body.get("content")
    parts = content if isinstance(content, list) else [{"type": "text", "text": "" if content is None else content}]
    texts = []
    for part in parts:
        if not isinstance(part, Mapping) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise Refusal(f"{where} has content that is no text.", "unsupported_content")
        texts.append(part["text"])
    return _encodable("".join(texts), where)


def _call(body: Any, where: str) -> tuple[str, ToolCall]:
    try:
        function = body["function"]
        arguments = json.loads(function["arguments"] or "{}")
        raw = _encodable(json.dumps({"name": function["name"], "arguments": arguments}, ensure_ascii=False), where)
        if isinstance(body["id"], str) and isinstance(arguments, dict) and isinstance(function["name"], str):
            return body["id"], ToolCall(function["name"], arguments, raw=raw)
    except (KeyError, TypeError, ValueError, RecursionError):
        pass
    raise Refusal(f"{where} has a tool call without an id, a name or arguments that are a JSON object.")


def _tool(body: Any) -> Tool:
    try:
        function = body["function"]
        tool = Tool(function["name"], function.get("description") or "", function.get("parameters") or {})
        if isinstance(tool.name, str) and isinstance(tool.description, str) and isinstance(tool.parameters, dict):
            return tool
    except (KeyError, TypeError, AttributeError):
        pass
    raise Refusal("Each of tools is a function with a name, a description and parameters.")


def _constraint(body: Mapping[str, Any], tools: Sequence[Tool]) -> Constraint | None:
    limits = [_count(body.get(name), name) for name in ("max_tokens", "max_completion_tokens")]
    tokens = min((limit for limit in limits if limit is not None), default=None)
    choice = body.get("tool_choice") or "auto"
    names = [tool.name for tool in tools]
    if isinstance(choice, Mapping):
        function = choice.get("function")
        names = [str(function.get("name"))] if isinstance(function, Mapping) else []
    if choice not in ("auto", "none", "required") and not set(names) & {tool.name for tool in tools}:
        raise Refusal("tool_choice is auto, none, required, or names one of the tools.")
    if choice != "auto" and choice != "none" and not names:
        raise Refusal("tool_choice needs tools.")
    begins: tuple[str, ...] = ()
    if choice not in ("auto", "none"):  # what all of these calls begin with
        calls = (f'<tool_call>\n{{"name": "{name}", "arguments": {rest}' for name in names for rest in ('{"', "{}"))
        begins = tuple(calls)
    logprobs = bool(body.get("logprobs"))
    if tokens is None and choice == "auto" and not logprobs:
        return None
    return Constraint(begins, calls=choice != "none", max_new_tokens=tokens, logprobs=logprobs)


def _count(value: Any, name: str) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 10**6:
        raise Refusal(f"{name} is {value!r}; it must be a whole number of at least 1.")
    return value


def _list(value: Any, name: str) -> Sequence[Any]:
    if value is None:
        return ()
    if not isinstance(value, list):
        raise Refusal(f"{name} is no list.")
    return value


def _encodable(text: str, where: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise Refusal(f"{where} has an unpaired surrogate.") from None
    return text


def turns_of(messages: Iterable[Message]) -> list[Message]:
    """What the model said."""
    return [message for message in messages if message.role == "assistant"]
