"""The core knows no loop, thread, clock or array; floors import downwards; importing is cheap."""

from __future__ import annotations

import ast
import functools
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import asyncsched

PACKAGE = Path(asyncsched.__file__).parent
FOREIGN_TO_THE_CORE = {"anyio", "asyncio", "concurrent", "contextvars", "numpy", "threading", "threadpoolctl", "time"}
THIRD_PARTY = {"anyio", "numpy", "threadpoolctl"}
NAMED_BY_WHO_HAS_IT = {  # what has to do with it alone, and is imported by nobody else
    "testing": {"pytest", "pytest_asyncio"},
    "cluster.compute": {"dask"},
    "cluster.graph": {"dask"},
    "cluster.run": {"dask"},
}
# Imported by one function, where that is installed.
BEHIND_AN_EXTRA = {
    "ops.kernels.loops": {"numba"},
    "observe.spans": {"opentelemetry"},
    "observe.view": {"rich"},
}
LOADED_ONLY_WHEN_USED = {
    "cloudpickle",
    "cupy",
    "dask",
    "distributed",
    "ittapi",
    "jax",
    "matplotlib",
    "numba",
    "opentelemetry",
    "pandas",
    "prometheus_client",
    "psutil",
    "rich",
    "safetensors",
    "scipy",
    "starlette",
    "torch",
    "tqdm",
    "uvloop",
}

# The rooms, from the ground up; those of one floor do not know each other. A module is in the room of its first name.
FLOORS: list[tuple[str, ...]] = [
    ("_arguments", "_interrupts"),
    ("errors", "_blocks", "_instead", "_system", "_tree"),
    ("ops", "_core", "pictures"),
    ("devices",),
    ("runtime",),
    ("tensors",),
    ("flow",),
    ("autograd",),
    ("nn", "optim"),
    ("scheduler",),
    ("observe", "background"),
    ("_reference", "array_api", "cluster", "serving", "testing"),
    ("",),  # the face
    ("gpu_check",),
    ("__main__",),
]
# The array API's way back from an array to its functions, which are the package itself.
THE_ONE_WAY_UP = ("tensors.tensor", "")


def modules() -> dict[str, Path]:
    """Every module of the package by its name below it, as in `devices.host`; packages by their own name."""
    found = {}
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules()


def room_of(name: str) -> str:
    return name.partition(".")[0]


def floor_of(name: str) -> int:
    found = [level for level, rooms in enumerate(FLOORS) if room_of(name) in rooms]
    assert found, f"{name} is in no room: give it one in FLOORS"
    return found[0]


@functools.cache
def arrows(name: str) -> set[str]:
    """Every module of the package that a module imports, wherever the import stands."""
    found = {other for other, ours in imports(name, everywhere=True) if ours and other != name}
    return {other for other in found if (name, other) != THE_ONE_WAY_UP}


def top_level(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements that run when a module is imported. Not those for type checkers, nor inside functions."""
    for statement in body:
        yield statement
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if isinstance(statement, ast.If) and "TYPE_CHECKING" in ast.unparse(statement.test):
            yield from top_level(statement.orelse)
            continue
        for field in ("body", "orelse", "finalbody"):
            yield from top_level(getattr(statement, field, []))
        for handler in getattr(statement, "handlers", []):
            yield from top_level(handler.body)


def imports(name: str, *, everywhere: bool = False) -> Iterator[tuple[str, bool]]:
    """What a module imports: names below the package, and True; or absolute names, and False."""
    path = MODULES[name]
    tree = ast.parse(path.read_text())
    package = name.split(".") if name else []
    if path.name != "__init__.py":
        package = package[:-1]
    for node in ast.walk(tree) if everywhere else top_level(tree.body):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield _below(alias.name)
        elif isinstance(node, ast.ImportFrom):
            if not node.level:
                base, ours = _below(node.module or "")
            else:
                start = package[: len(package) - node.level + 1]
                base, ours = ".".join([*start, *(node.module or "").split(".")]).strip("."), True
            for alias in node.names:
                deeper = f"{base}.{alias.name}".strip(".")
                yield (deeper if ours and deeper in MODULES else base), ours


def _below(name: str) -> tuple[str, bool]:
    top, _, rest = name.partition(".")
    return (rest, True) if top == "asyncsched" else (name, False)


def reachable(start: str) -> dict[str, set[str]]:
    """Every module of the package that importing `start` runs, with the absolute names each imports."""
    found: dict[str, set[str]] = {}
    todo = [start]
    while todo:
        name = todo.pop()
        if name in found:
            continue
        found[name] = set()
        for other, ours in imports(name, everywhere=name.startswith("_core")):
            if ours:
                todo.append(other)
            else:
                found[name].add(other.partition(".")[0])
    return found


CORE = sorted(name for name in MODULES if name.startswith("_core."))


def test_there_is_a_core_to_look_at():
    assert {
        "_core.engine",
        "_core.admission",
        "_core.failure",
        "_core.completions",
        "_core.model",
    } <= set(CORE)


@pytest.mark.parametrize("name", CORE)
def test_the_core_is_a_plain_state_machine(name):
    found = reachable(name)
    assert all(module in ("errors", "_interrupts") or module.startswith("_core") for module in found), sorted(found)
    used = set().union(*found.values())
    assert not used & FOREIGN_TO_THE_CORE
    assert used <= set(sys.stdlib_module_names)


def test_a_room_imports_only_from_rooms_below_it():
    upwards = [
        f"{name} -> {other}"
        for name in sorted(MODULES)
        for other in sorted(arrows(name))
        if room_of(other) != room_of(name) and floor_of(other) >= floor_of(name)
    ]
    assert upwards == []


def test_no_two_files_import_each_other():
    """Nor more in a circle: an order is found in which each file comes after all that it imports."""
    order = list(TopologicalSorter({name: arrows(name) for name in MODULES}).static_order())
    assert set(order) == set(MODULES)


def test_the_one_way_up_is_still_there():
    name, other = THE_ONE_WAY_UP
    assert (other, True) in set(imports(name, everywhere=True))


def test_only_declared_dependencies_are_imported_at_import_time():
    for name in MODULES:
        absolute = {other.partition(".")[0] for other, ours in imports(name) if not ours}
        extra = NAMED_BY_WHO_HAS_IT.get(name, set()) | BEHIND_AN_EXTRA.get(name, set())
        assert absolute <= THIRD_PARTY | extra | set(sys.stdlib_module_names), name


def test_locks_are_those_that_a_signal_leaves_free():
    """Python's stay taken where Ctrl-C comes between acquiring one and the block: `_interrupts`, `runtime.loops`."""
    pythons = re.compile(r"threading\.R?Lock\b|self\..*threading\.Event|threading import .*(Lock|Event)|Condition\(\)")
    assert [name for name, path in MODULES.items() if pythons.search(path.read_text())] == []


def test_finalisers_are_finished_if_a_signal_interrupts_them():
    """Python loses what is raised in a `__del__`, or in the callback of a weak reference: see `_interrupts`."""
    marked, called = set[str](), set[str]()
    for name, path in MODULES.items():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef):
                is_marked = any(ast.unparse(kind).startswith("finaliser(") for kind in node.decorator_list)
                assert is_marked or node.name != "__del__" or name == "devices.cuda.graph", (
                    name
                )  # it is freed all the same
                marked |= {node.name} if is_marked else set()
            elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("ref", "weakref.ref", "Escape"):
                called |= {ast.unparse(callback) for callback in node.args[1:] if name != "_interrupts"}
    names = {callback.removeprefix("partial(").split(",")[0].rpartition(".")[2].rstrip(")") for callback in called}
    assert names - marked == {"discard", "_gone"}  # one in C, and one that runs on streams' threads


# They ask about users' own objects: to find who is in a deadlock, or to let a frame's snapshot of its variables go. Of
# memory it is `Escape.visible`, which shows the search the array that users have.
ASK_FOR_COUNTS = {"runtime.holders", "_core.free_threading", "devices.memory"}


def counts_read(tree: ast.AST) -> set[str]:
    """Names by which a file could read reference counts, also as text for `getattr`."""
    found = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    found |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    found |= {node.name.rpartition(".")[2] for node in ast.walk(tree) if isinstance(node, ast.alias)}
    found |= {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    return {name for name in found if re.fullmatch(r"(get_?)?ref_?counts?|references|ob_refcnt|Py_REFCNT", name, re.I)}


def test_reference_counts_are_read_only_to_explain():
    """Nothing is decided by them: who holds a buffer is known."""
    found = {name for name, path in MODULES.items() if counts_read(ast.parse(path.read_text()))}
    assert found <= ASK_FOR_COUNTS
    assert counts_read(ast.parse("from sys import getrefcount as n")) == {"getrefcount"}
    assert counts_read(ast.parse("getattr(sys, 'getrefcount')(x)")) == {"getrefcount"}


# What a captured step records, and a simulated replay: values without arrays. Constants have a lease each.
STAND_INS = {
    ("tensors.capture", "constants"),
    ("tensors.capture", "inputs"),
    ("tensors.capture", "_steps"),
    ("observe.replay", "_values"),
}
ENGINE = ("_core", "devices", "runtime", "cluster")


def values_kept(tree: ast.AST) -> Iterator[str]:
    """The attributes that are declared to hold a `Value`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            declared = [one for one in node.body if isinstance(one, ast.AnnAssign)]
        else:
            declared = [node] if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Attribute) else []
        for one in declared:
            if any(isinstance(part, ast.Name) and part.id == "Value" for part in ast.walk(one.annotation)):
                yield one.target.attr if isinstance(one.target, ast.Attribute) else ast.unparse(one.target)


def test_outside_the_engine_leases_are_kept_and_no_values():
    """A value that somebody keeps without a lease could be written over in silence."""
    above = {name: path for name, path in MODULES.items() if name.partition(".")[0] not in ENGINE}
    found = {(name, kept) for name, path in above.items() for kept in values_kept(ast.parse(path.read_text()))}
    assert found == STAND_INS
    assert list(values_kept(ast.parse("class A:\n    x: list[Value]\n    def f(self): self.y: Value = 1"))) == [
        "x",
        "y",
    ]


def test_the_checks_above_find_errors():
    source = """
if TYPE_CHECKING:
    import a
else:
    import b
try:
    import c
except ImportError:
    import d
def function():
    import e
"""
    tree = ast.parse(source)
    names = [node.names[0].name for node in top_level(tree.body) if isinstance(node, ast.Import)]
    assert names == ["b", "c", "d"]
    assert {"numpy", "asyncio", "threading"} <= set().union(*reachable("runtime.runtime").values())
    assert ("_core.model", True) in set(imports("runtime.runtime"))
    assert floor_of("_core.model") < floor_of("devices.cpu") < floor_of("runtime.runtime") < floor_of("flow.window")


def test_importing_loads_nothing_heavy():
    loaded = {name.partition(".")[0] for name in _fresh("import sys, asyncsched; print(*sys.modules)")}
    assert "asyncsched" in loaded
    assert not loaded & LOADED_ONLY_WHEN_USED
    assert not loaded & {"tkinter", "hypothesis", "pytest"}


def _fresh(code: str) -> list[str]:
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()


def test_the_core_runs_without_numpy_asyncio_or_threads():
    """The core's files alone, in an interpreter where importing anything foreign fails."""
    program = f"""
import importlib.util, json, sys, types

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {FOREIGN_TO_THE_CORE!r} - {{"time"}}:
            raise ImportError(f"the core imported {{name}}")

sys.meta_path.insert(0, Refuse())
package = types.ModuleType("asyncsched")
package.__path__ = [{str(PACKAGE)!r}]
sys.modules["asyncsched"] = package
before = set(sys.modules)
from asyncsched._core.engine import Engine
from asyncsched._core.completions import Completions
from asyncsched._core.instrument import Host
from asyncsched._core.ledger import Limits
from asyncsched._core.model import CallPlan, Lane, Task, Value, new_value
started = []
class Starts(Host):
    def launch(self, task, waits):
        started.append(task)
engine = Engine(Limits(1, 10), Completions(print), Starts())
value = new_value(engine.ledger.account, None, None)
task = Task(engine.root, CallPlan("task"), value, None, (), None, None, [Lane(stream=Starts())], 5)
engine.submit(task, hold=True)
engine.dispatch()
assert started == [task]
task.refund, task.value = 5, None
engine.completions.completed(task, True)
engine.dispatch()
assert not engine.ledger.unfinished
print(json.dumps(sorted(set(sys.modules) - before)))
"""
    loaded = json.loads(" ".join(_fresh(program)))
    assert "asyncsched._core.engine" in loaded
    assert not {name.partition(".")[0] for name in loaded} & FOREIGN_TO_THE_CORE


def test_context_managers_are_the_houses_own() -> None:
    """Those of `contextlib` do not let every exception pass: see `_blocks`."""
    wrong = [
        name
        for name, path in MODULES.items()
        if re.search(r"^from contextlib import .*contextmanager", path.read_text(), re.M)
    ]
    assert not wrong


def test_every_thread_is_started_where_a_refusal_is_told() -> None:
    """See `_system`."""
    wrong = [name for name, path in MODULES.items() if re.search(r"_?thread\w*\.start\(\)", path.read_text())]
    assert wrong == ["_system"]


def test_every_path_that_ci_names_is_there():
    named = re.findall(r"\btests/[\w/]+(?:\.py)?", (PACKAGE.parent / ".ci" / "run").read_text())
    assert len(named) > 30
    assert [path for path in named if not (PACKAGE.parent / path).exists()] == []
