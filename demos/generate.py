"""A server that streams text, as OpenAI's does: a language model, with a cache of keys and values for each text.

The transformer of `train_text.py` learns Python's help in the first minutes, or is loaded. All texts take their steps
together. A step is captured once for each number of texts. The caches are donated to it, so they are written in place.
A request reserves its caches' bytes before it is answered, or gets a 503. The page at / shows texts as they are
written, and the caches' bytes beside their limit. `generate_guest.py` does the same with PyTorch.

    python demos/generate.py [--port 8000] [--caches 12] [--model text.safetensors]
    curl -Nd '{"prompt": "The with statement ", "max_tokens": 99, "stream": true}' localhost:8000/v1/completions
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    print(__doc__.splitlines()[0], "Loading ...", flush=True)  # now, since the imports below take a while

import numpy as np
import train_text
import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, StreamingResponse
from starlette.routing import Route

import asyncsched as asc
from asyncsched import nn
from asyncsched.serving import Problem, Serving

train_text.CONTEXT, train_text.BATCH = CONTEXT, _ = 256, 8  # longer texts than in `train_text.py`, and fewer at a time
WIDTH, HEADS, LAYERS = train_text.WIDTH, train_text.HEADS, train_text.LAYERS
CACHE = LAYERS, 2, HEADS, CONTEXT, WIDTH // HEADS
BYTES, WAIT, EVERY = 4 * 2 * LAYERS * CONTEXT * WIDTH, 2.0, 0.25  # of a cache; seconds for room, between events


def line(found: Any) -> str:
    return f"data: {found if isinstance(found, str) else json.dumps(found)}\n\n"


class Texts:
    """A request for `count` texts with the same prompt. `at` characters of each are in its cache."""

    def __init__(self, prompt: list[int], most: int, count: int, temperature: float, seed: int | None) -> None:
        self.prompt, self.left, self.temperature, self.rng = prompt, most, temperature, np.random.default_rng(seed)
        self.last, self.at, self.caches = [prompt[0]] * count, 0, list[Any]()

    def take(self, logits: Any) -> Any:
        """The output of a step: nothing while the prompt is read, then a character of each text, as numbers."""
        self.at += 1
        if self.at < len(self.prompt):
            self.last = [self.prompt[self.at]] * len(self.last)
            return asc.SKIP
        self.left -= 1
        self.last = (logits + self.temperature * self.rng.gumbel(size=logits.shape)).argmax(axis=1).tolist()
        return self.last if self.left else asc.Last(self.last)


class Transformer:
    """The model of `train_text`, a character at a time."""

    async def open(self, s: asc.Scheduler, text: train_text.Text, options: argparse.Namespace) -> None:
        self.scheduler, self.graphs = s, dict[int, asc.Graph]()
        self.model = train_text.Model(len(text.characters), np.random.default_rng(0))
        try:
            self.model.load_state_dict(await asc.load(options.model))
        except FileNotFoundError:
            async for _ in train_text.learn(s, text, self.model, options.steps):
                pass
            await asc.save(options.model, self.model.state_dict())

    def cache(self) -> asc.Tensor:
        return asc.zeros(CACHE, dtype=np.float32, scheduler=self.scheduler)

    async def __call__(self, members: list[Texts]) -> list[Any]:
        s, count = self.scheduler, sum(len(member.last) for member in members)
        last = [number for member in members for number in member.last]
        at = [member.at for member in members for _ in member.last]
        with asc.no_grad():  # one `put` for both, since each is a pass through the event loop
            given = await s.put(np.array([last, at])), *[cache for member in members for cache in member.caches]
            if count not in self.graphs:
                self.graphs[count] = await s.capture(self.decode, *given, donate=range(1, 1 + count))
            logits, *caches = self.graphs[count](*given)
        for member in members:
            member.caches, caches = caches[: len(member.last)], caches[len(member.last) :]
        rows = np.split(await logits.numpy(), np.cumsum([len(member.last) for member in members])[:-1])
        return [member.take(some) for member, some in zip(members, rows, strict=True)]

    def decode(self, numbers: asc.Tensor, *caches: asc.Tensor) -> list[asc.Tensor]:
        """Logits of the character after the last one of each text, which is at this place; and the updated caches."""
        last, at = numbers
        x = self.model.character(last) + self.model.place(at)
        seen = asc.arange(CONTEXT) <= at[:, None]
        for layer, block in enumerate(self.model.blocks):
            heads, within = [], block.attention
            qkv = nn.functional.linear(block.norm1(x), within.in_proj_weight, within.in_proj_bias)
            qkv = qkv.reshape(len(caches), 3, HEADS, WIDTH // HEADS)
            for i, cache in enumerate(caches):
                cache[layer, :, :, at[i : i + 1]] = qkv[i : i + 1, 1:]
                q, k, v = qkv[i, 0, :, None], cache[layer, 0], cache[layer, 1]
                heads.append(nn.functional.scaled_dot_product_attention(q, k, v, seen[i]))
            x = x + within.out_proj(asc.stack(heads).reshape(len(caches), WIDTH))
            x = x + block.inner(block.norm2(x))
        return [self.model.out(self.model.norm(x)), *caches]


class Site:
    """The answers, by path."""

    def __init__(self, model: Any, options: argparse.Namespace) -> None:
        self.model, self.options, self.text, self.limit = model, options, train_text.Text(), int(options.caches * 2**20)
        self.scheduler = asc.Scheduler("cpu", max_bytes=self.limit + 96 * 2**20)  # for training, and for steps
        self.stepper: asc.Stepper[Texts, list[int]] = asc.Stepper(model, cost=lambda texts: len(texts.last))
        self.here = set[Texts]()  # being written, or waiting for room
        page, live = Route("/", lambda _: FileResponse(Path(__file__).with_suffix(".html"))), Route("/live", self.live)
        self.routes = [page, live, Route("/v1/completions", self, methods=["POST"])]

    @asynccontextmanager
    async def lifespan(self, app: Starlette) -> AsyncIterator[None]:
        await self.model.open(self.scheduler, self.text, self.options)
        async with self.scheduler.scope(name="caches", reserve=self.limit) as self.room:
            print(f"open http://127.0.0.1:{self.options.port}", flush=True)
            yield

    def asked(self, body: bytes) -> tuple[Texts, dict[str, Any]]:
        """The request, by OpenAI's names."""
        try:
            given = {name: value for name, value in json.loads(body).items() if value is not None}
            numbers = [self.text.number.get(character, 0) for character in given["prompt"].ljust(1)]
            most, count, temperature = given.get("max_tokens", 16), given.get("n", 1), given.get("temperature", 1)
            if not (1 <= most <= CONTEXT - len(numbers) and 1 <= count <= 64 and 0 <= temperature <= 2):
                raise ValueError(f"at most {CONTEXT} characters with the prompt, n=64, and temperature=2")
            if wanted := {"best_of", "echo", "logprobs", "stop", "suffix"} & {name for name in given if given[name]}:
                raise ValueError(f"{wanted} is not possible here")
            return Texts(numbers, int(most), int(count), float(temperature), given.get("seed")), given
        except (ValueError, TypeError, AttributeError, KeyError, RecursionError) as error:
            told = f'Send JSON: {{"prompt": "a text", "max_tokens": 16}}. {error!r}'
            raise Problem(400, told, error={"message": told, "type": "invalid_request_error"}) from None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """/v1/completions: whole texts, or their characters as server-sent events. The caches live as long."""
        texts, given = self.asked(await Request(scope, receive).body())
        whole = {"id": f"cmpl-{id(texts):x}", "object": "text_completion", "created": int(time.time()), "model": "text"}
        read, made, names = len(texts.prompt), texts.left * len(texts.last), self.text.characters
        usage = {"prompt_tokens": read, "completion_tokens": made, "total_tokens": read + made}

        def told(parts: list[str], reason: str | None = None) -> dict[str, Any]:
            choices = [{"index": i, "text": t, "logprobs": None, "finish_reason": reason} for i, t in enumerate(parts)]
            return {**whole, "choices": choices}

        async def events() -> AsyncIterator[str]:
            async for numbers in outputs:
                yield line(told([names[i] for i in numbers]))
            yield line(told([""] * len(texts.last), "length"))
            if given.get("stream_options", {}).get("include_usage"):
                yield line({**whole, "choices": [], "usage": usage})
            yield line("[DONE]")

        async with AsyncExitStack() as stack:
            self.here.add(texts)
            stack.callback(self.here.discard, texts)
            # A request that would have to wait longer gets a 503, with the time to come back.
            await stack.enter_async_context(self.room.scope(reserve=BYTES * len(texts.last), wait=WAIT))
            texts.caches = [self.model.cache() for _ in texts.last]
            outputs = await stack.enter_async_context(self.stepper.join(texts))
            if given.get("stream"):
                await StreamingResponse(events(), media_type="text/event-stream")(scope, receive, send)
                return
            written = zip(*[numbers async for numbers in outputs], strict=True)
            answer = told(["".join([names[i] for i in numbers]) for numbers in written], "length")
            await JSONResponse({**answer, "usage": usage})(scope, receive, send)

    async def live(self, request: Request) -> StreamingResponse:
        """The server's state as server-sent events, until the client leaves or the server drains."""

        async def events() -> AsyncIterator[str]:
            while request.state.serving.ready:
                has, waiting = [sum(len(one.last) for one in self.here if bool(one.caches) == room) for room in (1, 0)]
                yield line({"bytes": has * BYTES, "limit": self.limit, "texts": has, "waiting": waiting})
                await asyncio.sleep(EVERY)

        return StreamingResponse(events(), media_type="text/event-stream", headers={"cache-control": "no-store"})


def main(model: Any) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--caches", type=float, default=12, help="most MiB of all caches")
    parser.add_argument("--steps", type=int, default=600, help="of training")
    parser.add_argument("--model", metavar="PATH", default="generate.safetensors", help="load it there, or save it")
    site = Site(model, parser.parse_args())
    serving = Middleware(Serving, scheduler=lambda: site.scheduler, steppers={"text": site.stepper}, drain_timeout=10.0)
    app = Starlette(routes=site.routes, middleware=[serving], lifespan=site.lifespan)
    uvicorn.run(app, host="127.0.0.1", port=site.options.port, log_level="warning", access_log=False)


if __name__ == "__main__":
    main(Transformer())
