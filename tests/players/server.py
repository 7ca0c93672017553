"""An OpenAI-compatible service as a real HTTP server, which can fail on purpose.

It plays the matching game's shy partner and counts calls: `GET /counts`. It is a program of its own, whose first line is
its address. `POST /options` with a list of command-line options starts over with them.
"""

import argparse
import asyncio
import json
import random
import re
import time
from collections import Counter, defaultdict

from aiohttp import web

FAULTS = (
    "429", "429 with retry-after", "500", "503", "dropped", "hang", "truncated", "no choices", "refusal",
)  # fmt: skip


class Partner:
    def __init__(self, options):
        self.options, self.random = options, random.Random(options.seed)
        self.calls = self.good = self.under_way = 0
        self.faults = Counter()
        self.accepted = Counter()  # by board: dialogues that ended
        self.turns = defaultdict(set)  # by board: the different dialogues it has read
        self.times, self.keys, self.broken_pauses = [], set(), 0
        self.quiet_until = 0.0

    async def complete(self, request):
        self.under_way += 1
        try:
            return await self.answer(request)
        finally:
            self.under_way -= 1

    async def answer(self, request):
        arrived = time.monotonic()
        body = await request.json()
        self.calls += 1
        self.times.append(arrived)
        self.keys.add(request.headers.get("authorization", ""))
        self.broken_pauses += arrived < self.quiet_until
        if self.options.key and request.headers.get("authorization") != f"Bearer {self.options.key}":
            told = f"Incorrect API key provided: {request.headers.get('authorization')}"
            return error(401, told, "invalid_api_key")
        if self.options.model and body["model"] != self.options.model:
            return error(404, f"The model {body['model']} does not exist", "model_not_found")
        if self.options.no_quota:
            return error(429, "You exceeded your current quota", "insufficient_quota")
        await asyncio.sleep(self.options.latency)
        if self.random.random() < self.options.faults:
            return await self.fail(self.random.choice(self.options.kinds), request, body)
        if self.good == self.options.hold_after:
            await asyncio.sleep(3600)
        self.good += 1
        return web.json_response(completion(self.say(body["messages"])))

    async def fail(self, kind, request, body):
        self.faults[kind] += 1
        match kind:
            case "429":
                return error(429, "Rate limit reached", "rate_limit_exceeded")
            case "429 with retry-after":
                self.quiet_until = time.monotonic() + self.options.retry_after
                response = error(429, "Rate limit reached", "rate_limit_exceeded")
                response.headers["retry-after"] = str(self.options.retry_after)
                return response
            case "500" | "503":
                return error(int(kind), "The server had an error", None)
            case "dropped":
                request.transport.close()
                return web.Response()
            case "hang":
                await asyncio.sleep(30)
                return web.Response()
            case "garbage":
                request.transport.write(b"This is not HTTP.\r\n\r\n")
                request.transport.close()
                return web.Response()
            case "truncated":
                whole = json.dumps(completion("[message] I see."))
                return web.Response(text=whole[: len(whole) // 2], content_type="application/json")
            case "nonsense":
                return web.json_response({"choices": "none", "usage": 7})
            case "no choices":
                return web.json_response({**completion(""), "choices": []})
            case "refusal":
                refused = completion(None)
                refused["choices"][0]["message"]["refusal"] = "I cannot help with that."
                return web.json_response(refused)

    def say(self, messages):
        if self.options.says:
            return self.options.says
        if len(messages) < 2:
            return "[accept]"
        board = messages[1]["content"].partition("\nPartner: ")[0]
        heard = messages[-1]["content"].rpartition("Partner: ")[2]
        self.turns[board].add(hash(tuple(message["content"] for message in messages[1:])))
        if heard.startswith("[propose]"):
            self.accepted[board] += 1
            return "[accept]"
        told = []
        for reviewer, paper in re.findall(r"What is (.+?)'s score for (.+?)\?", heard):
            number = re.search(rf"^{reviewer} - {paper}: (.+)$", board, re.MULTILINE)[1]
            pair = f"{reviewer}'s score for {paper}"
            told.append(f"I do not know {pair}." if number == "?" else f"{pair} is {number}.")
        return "[message] " + (" ".join(told) or "Hard to say in general.")

    async def counts(self, request):
        in_a_minute = (
            max(
                (sum(t <= later < t + 60 for later in self.times[i:]) for i, t in enumerate(self.times)),
                default=0,
            )
            if len(self.times) < 5000
            else None
        )
        return web.json_response(
            {
                "calls": self.calls,
                "good": self.good,
                "under_way": self.under_way,
                "faults": self.faults,
                "accepted": list(self.accepted.values()),
                "needed": sum(map(len, self.turns.values())),
                "most_in_a_minute": in_a_minute,
                "broken_pauses": self.broken_pauses,
                "keys": list(self.keys),
            }
        )  # fmt: skip


def completion(text):
    message = {"role": "assistant", "content": text, "refusal": None}
    usage = {"prompt_tokens": 300, "completion_tokens": 12, "total_tokens": 312}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    return {
        "id": "c", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice], "usage": usage
    }  # fmt: skip


def error(status, message, code):
    return web.json_response(
        {"error": {"message": message, "type": code, "code": code, "param": None}}, status=status
    )


def options(arguments=None):
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--faults", type=float, default=0.0, help="share of the calls that fail")
    parser.add_argument("--kinds", nargs="*", default=FAULTS)
    parser.add_argument("--latency", type=float, default=0.0, help="seconds")
    parser.add_argument("--retry-after", type=float, default=0.2, help="seconds")
    parser.add_argument("--key", help="the only right one")
    parser.add_argument("--model", help="the only one there is")
    parser.add_argument("--no-quota", action="store_true")
    parser.add_argument("--hold-after", type=int, help="number of good replies, after which none comes")
    parser.add_argument("--says", help="always this")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args(arguments)


def main():
    partner = Partner(options())

    async def start_over(request):
        nonlocal partner
        partner = Partner(options(await request.json()))
        return web.Response()

    async def serve():
        app = web.Application()
        app.router.add_post("/options", start_over)
        app.router.add_post("/v1/chat/completions", lambda request: partner.complete(request))
        app.router.add_get("/counts", lambda request: partner.counts(request))
        runner = web.AppRunner(app, handler_cancellation=True)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", partner.options.port)
        await site.start()
        print(f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}", flush=True)
        await asyncio.Event().wait()

    asyncio.run(serve())


if __name__ == "__main__":
    main()
