"""Agents for tests, named by their import paths."""

import asyncio
import json
import select
import socket
from contextlib import suppress
from random import Random

import httpx2
import openai
import psutil

from slim_rl.core.player import Player
from tests.echo import PROMPT, SYSTEM, TOOLS


class Silent(Player):
    async def respond(self, observation, tools=()):
        raise NotImplementedError


FUNCTIONS = [
    {"type": "function", "function": {"name": t.name, "description": t.description, "parameters": t.parameters}}
    for t in TOOLS
]


async def looks(task, client):
    """Runs the calls until the model answers."""
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": PROMPT}]
    while True:
        reply = await client.chat.completions.create(model="any", messages=messages, tools=FUNCTIONS)
        message = reply.choices[0].message
        messages.append(message.model_dump(exclude_none=True))
        if not message.tool_calls:
            return {"reward": float(message.content == task["word"]), "prompt_tokens": reply.usage.prompt_tokens}
        for call in message.tool_calls:
            text = f"The word is {task['word']}."
            messages.append({"role": "tool", "tool_call_id": call.id, "content": text})


async def wanders(task, client):
    """Does all that clients do: streams, several choices, changed, edited and branched histories, equal requests, retries,
    streams that are broken off, limits."""
    random, messages = Random(task["seed"]), [{"role": "user", "content": PROMPT}]
    for _ in range(random.randint(1, 8)):
        options = {"model": "any", "tools": FUNCTIONS, "messages": messages}
        match random.randrange(10):
            case 0:
                options |= {"stream": True, "stream_options": {"include_usage": True}}
            case 1:
                options |= {"n": 3}
            case 2:
                options |= {"max_tokens": 2, "stop": ["river", "\n"]}
            case 3:
                options |= {"tool_choice": random.choice(["none", "required"])}
            case 4:
                said = [n for n, message in enumerate(messages) if message["role"] == "assistant"]
                messages = [*messages[: random.choice([0, *said])], {"role": "user", "content": "Once more."}]
                options |= {"messages": messages}
            case 5:
                await asyncio.gather(*(client.chat.completions.create(**options) for _ in range(2)))
            case 6:
                again = {**options, "extra_headers": {"x-stainless-retry-count": "1"}}
                first, second = [await client.chat.completions.create(**asked) for asked in (options, again)]
                assert first.id == second.id
            case 7:
                stream = await client.chat.completions.create(**options, stream=True)
                await anext(aiter(stream))
                await stream.close()
            case 8 if len(messages) > 1:
                place = random.choice([n for n, message in enumerate(messages) if message["role"] == "assistant"])
                edited = {"role": "assistant", "content": "something else"}
                messages = [*messages[:place], edited, {"role": "user", "content": "Go on."}]
                options |= {"messages": messages}
        message = await _read(client, options)
        messages = [*messages, _restated(message, random)]
        for call in message.get("tool_calls", ()):
            messages.append(
                {"role": "tool", "tool_call_id": call["id"], "content": random.choice(["river", "<|im_end|>"])}
            )
        messages.append(
            {"role": "user", "content": [{"type": "text", "text": "And "}, {"type": "text", "text": "now?"}]}
        )
    return random.random()


async def _read(client, options):
    if "stream" not in options:
        reply = await client.chat.completions.create(**options)
        return reply.choices[-1].message.model_dump(exclude_none=True)
    message = {"role": "assistant", "content": ""}
    async for chunk in await client.chat.completions.create(**options):
        for choice in chunk.choices:
            message["content"] += choice.delta.content or ""
            for call in choice.delta.tool_calls or ():
                message.setdefault("tool_calls", []).append(call.model_dump(exclude={"index"}))
    return message


def _restated(message, random):
    """The same message as another client may send it back."""
    if random.random() < 0.5 and message.get("content"):
        message = {**message, "content": [{"type": "text", "text": f"  {message['content']}\n"}]}
    if random.random() < 0.5 and "tool_calls" in message:
        calls = [json.loads(json.dumps(call)) for call in message["tool_calls"]]
        for call in calls:
            arguments = json.loads(call["function"]["arguments"])
            call["function"]["arguments"] = json.dumps(dict(sorted(arguments.items())), indent=2)
        message = {**message, "tool_calls": calls}
    return message


async def measures(task, client):
    """Reads the log-probs of a completion, and of a stream."""
    options = {"model": "any", "messages": [{"role": "user", "content": PROMPT}], "logprobs": True}
    reply = await client.chat.completions.create(**options)
    chunks = [chunk async for chunk in await client.chat.completions.create(**options, stream=True)]
    told = [choice.logprobs for answer in (reply, *chunks) for choice in answer.choices if choice.logprobs]
    tokens = [token for logprobs in told for token in logprobs.content]
    return {"reward": 1.0, "tokens": len(tokens), "logprob": sum(token.logprob for token in tokens)}


async def compacts(task, client):
    """Talks until its context is full, then begins anew."""
    messages = [{"role": "user", "content": PROMPT}]
    while True:
        try:
            reply = await client.chat.completions.create(model="any", messages=messages)
        except openai.BadRequestError as error:
            assert error.code == "context_length_exceeded"
            reply = await client.chat.completions.create(model="any", messages=messages[:1])
            return 1.0
        messages += [{"role": "assistant", "content": reply.choices[0].message.content}, messages[0]]


async def chats(task, client):
    """Never ends by itself."""
    while True:
        await client.chat.completions.create(model="any", messages=[{"role": "user", "content": "Hello"}])


async def fails(task, client):
    await client.chat.completions.create(model="any", messages=[{"role": "user", "content": "Hello"}])
    raise KeyError("a bug of the agent", client.api_key)


async def sleeps(task, client):
    await client.chat.completions.create(model="any", messages=[{"role": "user", "content": "Hello"}])
    await asyncio.sleep(3600)


async def idles(task, client):
    return 1.0


async def judges_nothing(task, client):
    await client.chat.completions.create(model="any", messages=[{"role": "user", "content": "Hello"}])
    return "good"


async def crowds(task, client):
    """Many clients connect before the door can look up, and one asks."""
    clients = [socket.socket() for _ in range(300)]
    for one in clients:
        one.setblocking(False)
        one.connect_ex((client.base_url.host, client.base_url.port))
    connected = select.select([], clients, [], 0)[1]
    for one in clients:
        one.close()
    assert len(connected) == len(clients)
    assert client.timeout is None
    return await _well_behaved(client)


LEFT = []
"""The keys of episodes that have ended, or are about to."""


async def hostile(task, client):
    """Sends what no client should; the door answers with an error, and the episode goes on."""
    url = str(client.base_url) + "chat/completions"
    http, good = client._client, {"Authorization": f"Bearer {client.api_key}"}
    body = {"messages": [{"role": "user", "content": "Hello"}]}
    if not LEFT:
        LEFT.append(client.api_key)
        return await _well_behaved(client)
    other = {"Authorization": f"Bearer {LEFT.pop()}"}
    while (await http.get(f"{client.base_url}models", headers=other)).status_code == 200:
        await asyncio.sleep(0.01)

    async def endless():
        while True:
            yield b" " * 2**16

    with suppress(httpx2.TransportError):  # it may not read the answer before the connection closes
        assert (await http.post(url, headers=good, content=endless())).status_code == 413
    statuses = []
    for headers, content in (
        ({}, json.dumps(body)),
        ({"Authorization": "Bearer sk-other"}, json.dumps(body)),
        (other, json.dumps(body)),
        (good, "{"),
        (good, "[" * 100_000),
        (good, '{"messages": []}'),
        (good, '{"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}'),
        (good, '{"messages": [{"role": "tool", "tool_call_id": "x", "content": ""}]}'),
        (good, json.dumps({**body, "logprobs": True, "top_logprobs": 5})),
        (good, json.dumps({**body, "n": 0})),
        (good, " " * 10_000_000),
        (good, json.dumps(body)),
    ):
        answer = await http.post(url, headers={"Content-Type": "application/json", **headers}, content=content)
        assert answer.status_code == 200 or answer.json()["error"]["message"]
        statuses.append(answer.status_code)
    assert statuses == [401] * 3 + [400] * 7 + [413, 200], statuses
    _, writer = await asyncio.open_connection(client.base_url.host, client.base_url.port)
    writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: 1000\r\n\r\n{")  # and never more
    await writer.drain()
    mine = [c.laddr for c in psutil.Process().net_connections("tcp") if c.status == psutil.CONN_LISTEN]
    assert [place.ip for place in mine if place.port == client.base_url.port] == ["127.0.0.1"]
    return 1.0


async def _well_behaved(client):
    await client.chat.completions.create(model="any", messages=[{"role": "user", "content": "Hello"}])
    return 1.0


async def restates(task, client):
    """Sends the history back as other clients write it."""
    random, messages = Random(1), [{"role": "user", "content": PROMPT}]
    for _ in range(3):
        reply = await client.chat.completions.create(model="any", messages=messages, tools=FUNCTIONS)
        message = reply.choices[0].message.model_dump(exclude_none=True)
        messages.append(_restated(message, random))
        messages += [{"role": "tool", "tool_call_id": c["id"], "content": "7"} for c in message.get("tool_calls", ())]
        messages.append({"role": "user", "content": "And now?"})
    return 1.0


async def edits(task, client):
    """Says the same twice, then something else instead of the second turn."""
    messages = [{"role": "user", "content": PROMPT}]
    for _ in range(2):
        reply = await client.chat.completions.create(model="any", messages=messages)
        messages += [{"role": "assistant", "content": reply.choices[0].message.content}, messages[0]]
    messages[3] = {"role": "assistant", "content": "something else"}
    await client.chat.completions.create(model="any", messages=messages)
    return 1.0


async def rewrites(task, client):
    """Tells the model in other words what it said."""
    await client.chat.completions.create(model="any", messages=[{"role": "user", "content": PROMPT}])
    rewritten = [("user", PROMPT), ("assistant", "Calling tools: none"), ("user", "And now?")]
    messages = [{"role": role, "content": content} for role, content in rewritten]
    await client.chat.completions.create(model="any", messages=messages)
    return 1.0


async def repeats(task, client):
    """Asks the same again: after an error, by itself, twice at once, and after its connection broke before the reply."""
    asked = {"model": "any", "messages": [{"role": "user", "content": PROMPT}]}
    again = {"extra_headers": {"x-stainless-retry-count": "1"}}
    first = await client.chat.completions.create(**asked)
    repeated = await client.chat.completions.create(**asked, **again)
    anew = await client.chat.completions.create(**asked)
    body = json.dumps({"messages": [{"role": "user", "content": "Hello"}]}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {client.api_key}\r\n"
    _, writer = await asyncio.open_connection(client.base_url.host, client.base_url.port)
    writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    await writer.drain()
    writer.transport.abort()
    headers = {"Authorization": f"Bearer {client.api_key}"}
    lost = await client._client.post(f"{client.base_url}chat/completions", content=body, headers=headers)
    assert lost.status_code == 200
    twins = await asyncio.gather(*(client.chat.completions.create(**asked) for _ in range(2)))
    others = len({answer.id for answer in (first, anew, *twins)}) == 4
    return {"reward": 1.0, "same": first.id == repeated.id, "other": others}
