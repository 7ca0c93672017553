"""The partner of fixtures/partner_server.py with as little of a server around it as HTTP allows.

So that the latency is what it says, and the cores are left to the client. It fails never and counts nothing.
"""

import asyncio
import json
import sys
from types import SimpleNamespace

from fixtures.partner_server import Partner, completion

partner = Partner(SimpleNamespace(seed=0, says=None))


class Connection(asyncio.Protocol):
    def __init__(self, latency_seconds: float):
        self.latency, self.received = latency_seconds, b""

    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        arrived = asyncio.get_running_loop().time()
        self.received += data
        head, _, body = self.received.partition(b"\r\n\r\n")
        length = head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0]
        if not length or len(body) < int(length):
            return
        self.received = b""
        said = json.dumps(completion(partner.say(json.loads(body)["messages"]))).encode()
        answer = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(
            said
        )
        asyncio.get_running_loop().call_at(arrived + self.latency, self.transport.write, answer + said)


async def serve(latency_seconds: float) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Connection(latency_seconds), "127.0.0.1", 0, backlog=1000)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(float(sys.argv[1])))
