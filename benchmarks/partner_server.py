"""A service with as little of a server around it as HTTP allows, so that the cores are left to the client.

    python -m benchmarks.partner_server 0.2

Its latency is the argument, in seconds. It accepts every proposal and answers everything else vaguely. It never fails.
`GET` anything tells the most calls that came in within any minute.
"""

import asyncio
import json
from typing import Any

from slim_rl.runtime.cli import argument_parser

_USAGE = {"prompt_tokens": 300, "completion_tokens": 12, "total_tokens": 312}


class Connection(asyncio.Protocol):
    def __init__(self, latency_seconds: float, calls: list[float]):
        self.latency, self.calls, self.received = latency_seconds, calls, b""

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        arrived = asyncio.get_running_loop().time()
        self.received += data
        head, _, body = self.received.partition(b"\r\n\r\n")
        if head.startswith(b"GET "):
            self._answer(str(most_in_a_minute(self.calls)).encode(), arrived)
            return
        length = head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0]
        if not length or len(body) < int(length):
            return
        self.received = b""
        self.calls.append(arrived)
        self._answer(json.dumps(completion(json.loads(body)["messages"])).encode(), arrived + self.latency)

    def _answer(self, body: bytes, at: float) -> None:
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)
        asyncio.get_running_loop().call_at(at, self.transport.write, head + body)


def completion(messages: list[dict[str, str]]) -> dict[str, Any]:
    heard = messages[-1]["content"].rpartition("Partner: ")[2]
    text = "[accept]" if heard.startswith("[propose]") else "[message] Hard to say."
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    return {
        "id": "c", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice], "usage": _USAGE
    }  # fmt: skip


def most_in_a_minute(times: list[float]) -> int:
    first = most = 0
    for count, time in enumerate(times, start=1):
        while times[first] <= time - 60:
            first += 1
        most = max(most, count - first)
    return most


async def serve(latency_seconds: float) -> None:
    loop, calls = asyncio.get_running_loop(), []
    server = await loop.create_server(lambda: Connection(latency_seconds, calls), "127.0.0.1", 0, backlog=1000)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    parser = argument_parser(__doc__)
    parser.add_argument("latency_seconds", type=float)
    asyncio.run(serve(parser.parse_args().latency_seconds))
