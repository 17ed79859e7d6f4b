"""What is told of a server: probes, and Prometheus's metrics."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import asyncsched as asc
from asyncsched.serving import Exchange, Problem, Serving
from asyncsched.serving.http import ASGIScope, Receive, Send
from tests.waiting import until

from .rig import Call, Held, Seen, echo, get, opened, raises, reply, returns, serving


async def scrape(server: Serving) -> dict[str, float]:
    """Every sample by its name and labels."""
    call = get(server, "/metrics")
    status, body = await call.answer()
    assert status == 200
    assert call.headers["content-type"].startswith("text/plain; version=")
    lines = [line.rsplit(" ", 1) for line in body.decode().splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in lines}


async def test_probes() -> None:
    server = serving(echo)
    assert [(await get(server, path).answer())[0] for path in ("/healthz", "/readyz")] == [200, 503]
    async with server.open():
        assert await get(server, "/healthz").answer() == (200, b"ok\n")
        assert await get(server, "/readyz").answer() == (200, b"ready\n")
        head = Call(server, "/healthz", method="HEAD").feed()
        assert await head.answer() == (200, b"")
        assert head.headers["content-length"] == "3"
        post = Call(server, "/healthz", method="POST").feed()
        assert (await post.answer())[0] == 405
        assert post.headers["allow"] == "GET, HEAD"  # which RFC 9110 asks for
        mounted = get(server, "/api/healthz")
        mounted.scope["root_path"] = "/api"
        assert await mounted.answer() == (200, b"ok\n")
    bare = serving(echo, endpoints={})
    async with bare.open():
        assert await get(bare, "/healthz").answer() == (200, b"")


@pytest.mark.usefixtures("may_block")
async def test_metrics() -> None:
    pytest.importorskip("prometheus_client", reason="metrics need prometheus-client")

    async def model(items: list[int]) -> list[int]:
        return items

    batcher: asc.Batcher[int, int] = asc.Batcher(model)

    async def app(scope: ASGIScope, receive: Receive, send: Send) -> None:
        await reply(send, str(await scope["state"]["scheduler"].call(int, await batcher(3))).encode())

    async def step(members: list[list[int]]) -> list[asc.Last[int]]:
        return [asc.Last(len(member)) for member in members]

    stepper: asc.Stepper[list[int], int] = asc.Stepper(step)
    options = {"batchers": {"echo": batcher}, "steppers": {"length": stepper}, "max_requests": 9}
    async with opened(app, lambda: asc.Scheduler("cpu", max_bytes=5000), **options) as server:
        async with stepper.join([1, 2]) as outputs:
            assert [output async for output in outputs] == [2]
        for method in ("POST", "POST", "BREW"):
            await Call(server, method=method).feed().answer()
        found = await scrape(server)
        body = (await get(server, "/statusz").answer())[1]
        dashboard = json.loads((Path(__file__).parents[2] / "demos" / "grafana.json").read_text())
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    asked = {name for query in queries for name in re.findall(r"asyncsched_\w+", query)}
    only_where_it_is_so = {"asyncsched_refusals_total", "asyncsched_tenant_requests_total"}
    assert len(asked) > 20
    assert asked - {name.partition("{")[0] for name in found} == only_where_it_is_so
    assert (body["batchers"]["echo"]["answered"], body["steppers"]["length"]["outputs"]) == (3, 1)
    assert found['asyncsched_requests_total{method="POST",route="other",status="200"}'] == 2
    assert found['asyncsched_requests_total{method="other",route="other",status="200"}'] == 1
    assert found['asyncsched_request_duration_seconds_count{route="other"}'] == 3
    assert found["asyncsched_requests_in_progress"] == 0
    assert found["asyncsched_requests_limit"] == 9
    assert found['asyncsched_tasks_total{outcome="completed"}'] == 3
    assert found["asyncsched_tracked_bytes_limit"] == 5000
    assert found['asyncsched_tracked_bytes{state="retained"}'] == 0
    assert found['asyncsched_batcher_items_total{batcher="echo",outcome="answered"}'] == 3
    assert found['asyncsched_batcher_batches_total{batcher="echo"}'] == 3
    assert found['asyncsched_batcher_retries_total{batcher="echo"}'] == 0
    assert found['asyncsched_stepper_outputs_total{stepper="length"}'] == 1
    assert found['asyncsched_stepper_members{state="paused",stepper="length"}'] == 0
    assert found['asyncsched_stepper_first_output_seconds_sum{stepper="length"}'] > 0
    assert found["asyncsched_ready"] == 1
    assert found['asyncsched_operation_tasks_total{operation="int"}'] == 3
    assert found['asyncsched_operation_seconds_total{operation="int"}'] > 0
    busy = found['asyncsched_stream_busy_seconds_total{stream="cpu stream 0"}']
    assert busy == pytest.approx(found['asyncsched_operation_seconds_total{operation="int"}'])
    assert found['asyncsched_batcher_batch_items_bucket{batcher="echo",le="1.0"}'] == 3
    assert found['asyncsched_batcher_wait_seconds_count{batcher="echo"}'] == 3
    assert found['asyncsched_stepper_first_output_seconds_count{stepper="length"}'] == 1
    assert found['asyncsched_stepper_step_members_sum{stepper="length"}'] == 1
    for name in found:
        assert re.match(r"asyncsched_[a-z_]+(\{.*\})?$", name)
        assert not re.search(r"milli|micro|_ms\b", name)


async def test_metrics_while_closed_and_of_what_went_wrong() -> None:
    pytest.importorskip("prometheus_client", reason="metrics need prometheus-client")
    async with opened(raises(KeyError())) as server:
        with pytest.raises(KeyError):
            await Call(server).feed().task
        server.app = Held()
        await Call(server).feed().leave().task
        server.app = returns
        await Call(server).feed().task
    server.limiter.draining = True
    await Call(server).answer()
    found = await scrape(server)
    assert found['asyncsched_requests_total{method="POST",route="other",status="500"}'] == 2
    assert found['asyncsched_requests_total{method="POST",route="other",status="disconnected"}'] == 1
    assert found['asyncsched_requests_total{method="POST",route="other",status="503"}'] == 1
    assert found['asyncsched_request_duration_seconds_count{route="other"}'] == 3
    assert found["asyncsched_requests_refused_total"] == 1
    assert found['asyncsched_refusals_total{reason="draining"}'] == 1
    assert "asyncsched_tasks_pending" not in found


async def test_an_answer_that_is_cut_off_counts_as_500() -> None:
    pytest.importorskip("prometheus_client", reason="metrics need prometheus-client")

    async def app(scope: ASGIScope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"a", "more_body": True})
        if scope["path"] == "/drained":
            await asyncio.Event().wait()

    async with opened(app, drain_timeout=0.0) as server:
        await Call(server, "/left").feed().task
        call = Call(server, "/drained").feed()
        await until(lambda: len(call.sent) == 2)
        await server.drain()
        await call.task
        found = await scrape(server)
    assert found['asyncsched_requests_total{method="POST",route="other",status="500"}'] == 2
    assert 'asyncsched_requests_total{method="POST",route="other",status="200"}' not in found


async def test_status() -> None:
    async def app(scope: ASGIScope, receive: Receive, send: Send) -> None:
        await reply(send, str(await scope["state"]["scheduler"].call(int, 3)).encode())

    server = serving(app, lambda: asc.Scheduler("cpu", streams=1, max_ops=7, max_bytes=5000), max_requests=9)
    status, body = await get(server, "/statusz").answer()
    assert (status, body["title"]) == (503, "Service Unavailable")
    async with server.open():
        await Call(server, "/secret").feed().answer()
        status, body = await get(server, "/statusz").answer()
        page = Call(server, "/statusz", method="GET", headers={"accept": "text/html,*/*"}).feed()
        assert (await page.answer())[1].startswith(b"<!doctype html>")
        assert page.headers["content-type"].startswith("text/html")
        assert page.headers["vary"] == "accept"
    assert status == 200
    assert body["requests"] == {"in_progress": 0, "limit": 9, "refused": 0}
    told = body["statistics"]
    assert (told["tasks_completed"], told["max_ops"], told["max_bytes"]) == (1, 7, 5000)
    assert body["load"]["tasks_pending"] == 0
    assert [(found["name"], found["count"]) for found in body["operations"]] == [("int", 1)]
    assert [(found["name"], found["running"]) for found in body["streams"]] == [
        ("cpu stream 0", None),
        ("cpu copies", None),
    ]
    assert "secret" not in str(body)
    assert ".py" not in str(body)
    bare = serving(app, endpoints={})
    async with bare.open():
        assert bare.summary is None


def test_making_one_imports_nothing_more() -> None:
    code = """if True:
    import asyncio, sys
    from asyncsched.serving import Serving
    async def app(scope, receive, send): pass
    async def main():
        before = set(sys.modules)
        serving = Serving(app)
        if serving.render_metrics is not None:
            serving.render_metrics()
        print(sorted(set(sys.modules) - before))
    asyncio.run(main())
    """
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


async def test_without_prometheus_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("asyncsched.serving.server._prometheus", lambda: False)
    server = serving(echo)
    assert server.instruments == []
    status, body = await get(server, "/metrics").answer()
    assert status == 501
    assert "asyncsched[serving]" in body["detail"]


async def test_instruments_of_ones_own_see_refusals_too() -> None:
    seen = Seen()
    async with opened(raises(asc.QueueFull("full")), instruments=[seen]) as server:
        await Call(server).feed().answer()
    (exchange,) = seen.exchanges
    assert isinstance(exchange, Exchange)
    assert (exchange.name, exchange.status, exchange.complete) == ("POST /", 503, True)


async def test_who_waits_for_room_is_counted_and_not_named() -> None:
    pytest.importorskip("prometheus_client", reason="metrics need prometheus-client")
    held = Held()
    async with opened(
        held, lambda: asc.Scheduler("cpu", max_bytes=1000), reserve=lambda scope: int(scope["path"][1:])
    ) as server:
        calls = [Call(server, "/900").feed()]
        await until(lambda: held.entered)
        calls += [Call(server, path).feed() for path in ("/200", "/300")]
        await until(lambda: server.scheduler.statistics().reserves_waiting == 2)
        found = await scrape(server)
        assert found["asyncsched_reserved_bytes"] == 900
        assert found['asyncsched_reserves_waiting{who="priority 0"}'] == 2
        assert found['asyncsched_reserves_waiting_bytes{who="priority 0"}'] == 500
        assert found['asyncsched_reserves_waiting_seconds{who="priority 0"}'] > 0
        assert found["asyncsched_scopes_preempted_total"] == 0
        body = (await get(server, "/statusz").answer())[1]
        (waiting,) = body["waiting_for_room"]
        assert (waiting["who"], waiting["count"], waiting["nbytes"]) == ("priority 0", 2, 500)
        assert body["statistics"]["bytes_reserved"] == 900
        assert body["statistics"]["bytes_waiting"] == 500
        held.gate.set()
        assert [(await call.answer())[0] for call in calls] == [200, 200, 200]
        assert (await scrape(server))['asyncsched_reserves_waiting{who="priority 0"}'] == 0


async def test_labels_are_bounded_whatever_clients_send() -> None:
    pytest.importorskip("prometheus_client", reason="metrics need prometheus-client")

    def tenant(scope: ASGIScope) -> str:
        return dict(scope["headers"])[b"tenant"].decode()

    async with opened(echo, tenant=tenant, deadline=60) as server:

        async def told_after(numbers: range) -> tuple[int, int]:
            """The lines of `/metrics`, and the objects that there are."""
            for number in numbers:
                await Call(server, f"/{number}", headers={"tenant": f"{number:x}"}).feed().answer()
            lines = len(await scrape(server))
            gc.collect()
            return lines, len(gc.get_objects())

        lines, objects = await told_after(range(2_000))  # all that is kept of so many is kept by now
        more_lines, more_objects = await told_after(range(2_000, 10_000))
        assert more_lines == lines
        assert abs(more_objects - objects) < 200
        found = await scrape(server)
    tenants = {name: count for name, count in found.items() if name.startswith("asyncsched_tenant_requests_total")}
    assert len(tenants) == 101
    assert tenants['asyncsched_tenant_requests_total{status="200",tenant="other"}'] == 9_900
    assert found['asyncsched_requests_total{method="POST",route="other",status="200"}'] == 10_000


async def test_a_tenant_is_named_as_its_header_says() -> None:
    pytest.importorskip("prometheus_client", reason="metrics need prometheus-client")
    async with opened(echo, tenant=lambda scope: dict(scope["headers"]).get(b"x-key")) as server:
        await Call(server, headers={"x-key": "gold"}).feed().answer()
        found = await scrape(server)
    assert found['asyncsched_tenant_requests_total{status="200",tenant="gold"}'] == 1


@pytest.mark.usefixtures("may_block")
async def test_routes_are_the_frameworks_templates() -> None:
    pytest.importorskip("prometheus_client", reason="metrics need prometheus-client")
    fastapi = pytest.importorskip("fastapi", reason="asyncsched[test]")
    app = fastapi.FastAPI()

    @app.get("/things/{number}")
    async def thing(number: int) -> int:
        return number

    async with opened(app) as server:
        for path in ("/things/1", "/things/2", "/elsewhere"):
            call = get(server, path)
            call.scope["query_string"] = b""
            await call.answer()
        found = await scrape(server)
    assert found['asyncsched_requests_total{method="GET",route="/things/{number}",status="200"}'] == 2
    assert found['asyncsched_requests_total{method="GET",route="other",status="404"}'] == 1
    assert found['asyncsched_request_duration_seconds_count{route="/things/{number}"}'] == 2


async def test_refusals_have_reasons() -> None:
    pytest.importorskip("prometheus_client", reason="metrics need prometheus-client")
    held = Held()
    async with opened(held, max_requests=2, max_requests_per_tenant=1, tenant=lambda scope: scope["path"]) as server:
        calls = [Call(server, "/a").feed()]
        await until(lambda: held.entered)
        assert (await Call(server, "/a").feed().answer())[0] == 429
        calls.append(Call(server, "/b").feed())
        await until(lambda: len(server.limiter) == 2)
        assert (await Call(server, "/c").feed().answer())[0] == 503
        held.gate.set()
        for call in calls:
            await call.answer()
        server.app = raises(asc.QueueFull("full"))
        await Call(server).feed().answer()
        server.app = raises(asc.TaskTooLarge("large", 2, 1))
        await Call(server).feed().answer()
        server.app = raises(Problem(503, "The model is not loaded yet."))  # the handler's own, and no limit
        await Call(server).feed().answer()
        server.limiter.closed = True
        await Call(server).feed().answer()
        server.limiter.closed = False
        found = await scrape(server)
    reasons = {
        re.findall('"(.*)"', name)[0]: n for name, n in found.items() if name.startswith("asyncsched_refusals_t")
    }
    limits = {"max_requests": 1, "max_requests_per_tenant": 1, "draining": 1}
    assert reasons == limits | {"QueueFull": 1, "TaskTooLarge": 1, "status 503": 1}


async def test_buckets_are_of_ones_choice() -> None:
    pytest.importorskip("prometheus_client", reason="metrics need prometheus-client")
    async with opened(echo, buckets=(0.5, 60)) as server:
        await Call(server).feed().answer()
        found = await scrape(server)
    bounds = [name for name in found if name.startswith("asyncsched_request_duration_seconds_bucket")]
    assert [re.findall('le="(.*?)"', name)[0] for name in bounds] == ["0.5", "60.0", "+Inf"]
    for wrong in ((), (2, 1), (0, 1), (1, 1)):
        with pytest.raises(ValueError, match="buckets are seconds above 0 that increase"):
            serving(echo, buckets=wrong)


SEVERAL = """if True:
    import asyncio, os, sys
    import asyncsched as asc
    from asyncsched.serving import Serving
    from tests.serving.rig import Call, echo, get
    async def main():
        server = Serving(echo, lambda: asc.Scheduler("cpu", max_bytes=1000), max_requests=5)
        async with server.open():
            await Call(server).feed().answer()
            if sys.argv[1] == "first":  # it stays while the other begins and ends
                print("up", flush=True)
                await asyncio.to_thread(sys.stdin.readline)
            print((await get(server, "/metrics").answer())[1].decode())
    asyncio.run(main())
"""


def test_several_processes_are_added_up(tmp_path: Path) -> None:
    pytest.importorskip("prometheus_client", reason="metrics need prometheus-client")
    there = os.environ | {"PROMETHEUS_MULTIPROC_DIR": str(tmp_path), "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-c", SEVERAL]
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "env": there}
    with subprocess.Popen([*command, "first"], **pipes) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "up\n"
        both = subprocess.run([*command, "second"], capture_output=True, text=True, check=True, env=there).stdout
        last, _ = first.communicate("\n", timeout=60)
    numbers = [dict(re.findall(r"^(asyncsched_\S+) (\S+)$", text, re.MULTILINE)) for text in (both, last)]
    for found in numbers:
        assert found['asyncsched_requests_total{method="POST",route="other",status="200"}'] == "2.0"
        assert found['asyncsched_request_duration_seconds_count{route="other"}'] == "2.0"
    live = [(found["asyncsched_requests_limit"], found["asyncsched_tracked_bytes_limit"]) for found in numbers]
    assert live == [("10.0", "2000.0"), ("5.0", "1000.0")]
