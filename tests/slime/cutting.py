"""A proxy before Ray's job server that cuts the connections to a job's log."""

import socket
import struct
import threading
from contextlib import suppress

SECONDS = 2.0


class CuttingProxy:
    """Passes everything on, but ends the first `cuts` connections to a log after `SECONDS`, and then calls `done`."""

    def __init__(self, port, cuts, done):
        self._target, self._left, self._done = ("127.0.0.1", port), cuts, done
        self._server = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._server.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            client, _ = self._server.accept()
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client):
        server, first = socket.create_connection(self._target), client.recv(65536)
        server.sendall(first)
        if b"/logs/tail" in first and self._left:
            self._left -= 1
            threading.Timer(SECONDS, self._cut, [client, server]).start()
        threading.Thread(target=self._pump, args=(server, client), daemon=True).start()
        self._pump(client, server)

    def _pump(self, source, target):
        with suppress(OSError):
            while chunk := source.recv(65536):
                target.sendall(chunk)
            target.shutdown(socket.SHUT_WR)

    def _cut(self, *sides):
        for side in sides:
            with suppress(OSError):
                side.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset, no goodbye
                side.shutdown(socket.SHUT_RDWR)
            side.close()
        if not self._left:
            self._done()
