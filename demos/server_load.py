"""Sends load to the server demo: many clients at once, each of which asks again as soon as it is answered.

Refused clients are impatient: they come back after a fifth of a second, sooner than the server says. Every half second
a line of JSON has the number of answers so far, by status.

    python demos/server_load.py [--clients 240] [--seconds 8] 127.0.0.1 8000
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
from collections import Counter
from contextlib import suppress
from time import monotonic

IMPATIENT, EVERY = 0.2, 0.5  # seconds


async def main(host: str, port: int, clients: int, seconds: float) -> None:
    print(f"{clients} clients send digits to {host}:{port} for {seconds:g} s", file=sys.stderr, flush=True)
    heard: Counter[str] = Counter()
    end = monotonic() + seconds
    async with asyncio.TaskGroup() as group:
        for _ in range(clients):
            group.create_task(client(host, port, end, heard))
        while monotonic() < end:
            await asyncio.sleep(EVERY)
            print(json.dumps(heard), flush=True)
    print(json.dumps(heard), flush=True)


async def client(host: str, port: int, end: float, heard: Counter[str]) -> None:
    """Ask, on one connection, until the time is over."""
    await asyncio.sleep(random.random())  # not all at the same moment
    try:
        reader, writer = await asyncio.open_connection(host, port)
    except OSError:
        heard["no answer"] += 1
        return
    with suppress(OSError, asyncio.IncompleteReadError):  # the server went away
        while monotonic() < end:
            body = json.dumps({"pixels": random.choices(range(17), k=64)})
            head = f"POST /predict HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\n"
            writer.write(f"{head}content-length: {len(body)}\r\n\r\n{body}".encode())
            status = await answer(reader)
            heard[status] += 1
            if status != "200":
                await asyncio.sleep(IMPATIENT)
    writer.close()


async def answer(reader: asyncio.StreamReader) -> str:
    """The status of an answer, which is read to its end."""
    first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().lower().split("\r\n")
    length = next((line.partition(":")[2] for line in lines if line.startswith("content-length:")), "0")
    await reader.readexactly(int(length))
    return first.split()[1]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("host")
    parser.add_argument("port", type=int)
    parser.add_argument("--clients", type=int, default=240, help="how many clients at once (default %(default)s)")
    parser.add_argument("--seconds", type=float, default=8, help="how many seconds (default %(default)g)")
    options = parser.parse_args()
    asyncio.run(main(options.host, options.port, options.clients, options.seconds))
