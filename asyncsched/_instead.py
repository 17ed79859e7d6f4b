"""Names that users of NumPy, PyTorch, MXNet, Dask and asyncio type first, with what to write here instead.

They are for the errors of missing names. No table contains a name that exists here; a test holds that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from importlib import import_module
from inspect import CO_VARARGS
from operator import attrgetter
from os.path import dirname, join
from typing import TYPE_CHECKING, Any, NoReturn, ParamSpec, TypeVar

import numpy as np

from ._arguments import require_package

P = ParamSpec("P")
T = TypeVar("T")
Names = Mapping[str, str]


def no_attribute(owner: str, name: str, instead: Mapping[str, str], kind: type[object]) -> AttributeError:
    """The error for an attribute that an object lacks. It refers only to the class, so keeping it keeps no object.

    With a cure it does not refer to the class either, or Python would add a guess: "use `t.size`. Did you mean:
    'numpy'?"
    """
    if name in instead:
        return AttributeError(f"{owner} has no attribute {name!r}: use {instead[name]}", name=name, obj=None)
    return AttributeError(f"{owner} has no attribute {name!r}", name=name, obj=kind)


def no_name(module: str, name: str, instead: Mapping[str, str]) -> AttributeError:
    """The error for a name that a module lacks. With a cure, Python has nothing to guess from."""
    cure = instead.get(name) or _numpys(module, name)
    if cure is None:
        return AttributeError(f"module {module!r} has no attribute {name!r}")
    return AttributeError(f"module {module!r} has no attribute {name!r}: {cure}", name=name, obj=None)


def explain_missing(
    namespace: dict[str, Any],
    module: str,
    instead: Names,
    *,
    when_used: Names | None = None,
    needs: tuple[str, str] | None = None,
    listed: bool = False,
) -> None:
    """Make a module raise the error of `no_name` for every missing name. If `listed`, `dir()` shows its `__all__`.

    Modules call this instead of defining `__getattr__`: type checkers would take that as a promise of any name.

    Args:
        when_used: by module below this one ("" for this one itself), the names in it, which are imported at their first
            use.
        needs: the package that those names need, and the extra that installs it.
    """
    homes = {name: home for home, names in (when_used or {}).items() for name in names.split()}

    def __getattr__(name: str) -> Any:
        if name not in homes:
            raise no_name(module, name, instead)
        if needs is not None:
            require_package(f"{module}.{name}", *needs)
        home = import_module(f".{homes[name]}", module)
        namespace[name] = vars(home)[name] if name in vars(home) else import_module(f".{name}", home.__name__)
        return namespace[name]

    namespace["__getattr__"] = __getattr__
    if listed:
        namespace["__dir__"] = lambda: [*namespace["__all__"], "__doc__"]


class OnlyAsync:
    """A class to enter by `async with`. A plain `with` raises an error that says so."""

    __slots__ = ()

    if not TYPE_CHECKING:  # type checkers know that these methods do not exist

        def __enter__(self) -> NoReturn:
            raise TypeError(
                f"a {type(self).__name__} waits at the end of its block, as a plain `with` cannot: use `async with`, in"
                " an `async def` that `asyncsched.run(main)` runs"
            )

        __exit__ = __enter__  # without one, Python says nothing of `__enter__`


def naming_arguments(function: Callable[P, T]) -> Callable[P, T]:
    """Make a function's TypeError for an unknown argument name the one that was meant.

    Python raises for such a call before any line of the function runs. A correct call pays only for the wrapper, about
    0.2 us; a wrong one is examined.
    """

    @wraps(function)
    def call(*args: P.args, **options: P.kwargs) -> T:
        try:
            return function(*args, **options)
        except TypeError as error:
            trace = error.__traceback__
            unbegun = trace is not None and trace.tb_next is None  # no line of the function has run
            if unbegun and (meant := _meant(function, args, options)):
                error.args = (f"{str(error).partition('. Did you mean')[0]}: {meant}",)
            del trace  # it holds this frame
            raise

    return call


def refuse_keywords(function: Any, keywords: Mapping[str, object]) -> NoReturn:
    """Raise as Python does for unknown keywords, and name the one that was meant. For coroutine functions, which
    `naming_arguments` would hide from `inspect.iscoroutinefunction`: they take `**keywords: NoReturn`."""
    meant = _meant(function, (), keywords)
    told = f"{function.__qualname__}() got an unexpected keyword argument {next(iter(keywords))!r}"
    raise TypeError(f"{told}: {meant}" if meant else told)


def parameters(function: Any) -> tuple[str, ...]:
    """The names of a function's parameters, without `*args` and the like."""
    code = function.__code__
    return tuple(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount])


def _meant(function: Any, args: tuple[Any, ...], options: Mapping[str, Any]) -> str:
    code, told = function.__code__, OPTIONS_OF.get(function.__qualname__, {})
    known = parameters(function)
    named = [name for name in known[code.co_posonlyargcount :] if name != "self"]
    unknown = [name for name in options if name not in known]
    meant = [told.get(name) or _nearest(name, named) for name in unknown]
    if len(args) > code.co_argcount and not any(meant) and not code.co_flags & CO_VARARGS:
        if several := _as_one(function.__qualname__, known[: code.co_argcount], args):
            return f"use {several}"
        free = [name for name in known[code.co_argcount :] if name not in options]
        meant = [told.get("") or _of_its_type(args[code.co_argcount], free, function.__kwdefaults__ or {})]
        if not any(meant) and len(args) == code.co_argcount + 1 and hasattr(args[-1], "shape"):
            unknown = ["out"]  # passed as NumPy's universal functions take it
    if not any(meant) and function.__module__.startswith((f"{__package__}.tensors.", f"{__package__}.array_api.")):
        cures = [NUMPYS_KEYWORDS[name] for name in unknown if name in NUMPYS_KEYWORDS]
        return cures[0].format(f=_called(function)) if cures else ""
    return "use " + ", ".join(dict.fromkeys(filter(None, meant))) if any(meant) else ""


def _called(function: Any) -> str:
    """The name by which a function or a method of tensors is called."""
    owner, _, name = function.__qualname__.rpartition(".")
    part = function.__module__.rpartition(".")[2]
    return f"t.{name}" if owner else f"asc.{part}.{name}" if part in ("fft", "linalg") else f"asc.{name}"


def _of_its_type(given: object, names: list[str], defaults: Mapping[str, object]) -> str:
    """The first keyword that a positional value may be meant for; a boolean one for a bool."""
    kinds = {name: type(defaults[name]) for name in names if defaults.get(name) is not None}
    fit = [name for name in names if isinstance(given, kinds.get(name, object))]
    fit = [name for name in fit if kinds.get(name) is bool] if isinstance(given, bool) else fit
    return "".join(f"`{name}=`" for name in (fit or names)[:1])


def _nearest(name: str, known: list[str]) -> str:
    """The keyword that was meant: by its name in other libraries, or by its spelling."""
    from difflib import get_close_matches  # never needed by a correct program

    ours = [ours for ours in KEYWORDS.get(name, "").split() if ours in known] or get_close_matches(name, known, 1, 0.7)
    return f"`{ours[0]}=`" if ours else ""


def _as_one(name: str, taken: tuple[str, ...], args: tuple[Any, ...]) -> str:
    """The correct form of `ones(2, 3)`, `concat(a, b)` and `sum(x, 0, 1)`; empty for other mistakes."""
    place = next((place for place, name in enumerate(taken) if name in _SEVERAL), None)
    if place is None:
        return ""
    last = place + 1 + len(args) - len(taken)
    one = args[place:last]
    if isinstance(one[0], list | tuple) or any(type(other) is not type(one[0]) for other in one):
        return ""
    first = repr(one) if isinstance(one[0], int) else repr(list(one)) if isinstance(one[0], str) else "[a, b]"
    if taken[place] == "axis":
        return f"`axis={first}`"
    before = [name for name in taken[:place] if name != "self"]
    return f"`asc.{name.removesuffix('.__init__')}({', '.join([*before, first, *map(repr, args[last:])])})`"


def _numpys(module: str, name: str) -> str | None:
    """The cure for a function that only NumPy has, in the part of NumPy with this module's name."""
    part = module.removeprefix("asyncsched").removeprefix(".")
    home = getattr(np, part) if part in ("linalg", "fft") else np if part in ("", "array_api") else None
    if not is_numpys(home, name):
        return None
    if part == "array_api":
        if given_to(getattr(home, name)) != "t":
            return f"`xp.asarray(np.{name}(...))`, with `np.asarray(x)` for arrays, which waits"
        return f"`xp.asarray(np.{name}(np.asarray(x)))`, which waits"
    return numpys_cure(f"{part}.{name}" if part else name)


def numpys_cure(dotted: str) -> str:
    """The cure for a function that only NumPy has, named as in "linalg.norm"."""
    if (cure := NUMPY.get(dotted)) is not None:
        return cure
    given = given_to(attrgetter(dotted)(np))
    return f"`await s.call(np.{dotted}, {given})`, which runs NumPy's function as a task and waits for it"


def given_to(function: Any, first: str = "") -> str:
    """The arguments that a function needs, as "t", or "a, b"; with a tensor as `first`, as "t, k"."""
    if isinstance(function, np.ufunc):
        names = ["t", "other"][: function.nin]
    else:
        from inspect import signature  # never needed by a correct program

        all_of = signature(function).parameters.values()
        names = [one.name for one in all_of if one.default is one.empty and one.kind <= one.POSITIONAL_OR_KEYWORD]
    return ", ".join([first, *names[1:]]) if first else ", ".join(names) if len(names) > 1 else "t"


def is_numpys(home: Any, name: str) -> bool:
    """Whether a part of NumPy has a function of arrays with this name: `median`, but not `set_printoptions`."""
    return isinstance(getattr(home, name, None), np.ufunc | type(np.median))


def _tables(text: str) -> dict[str, dict[str, str]]:
    """The cures by name, by section. A section begins with "[section]", and has lines such as "this that: the cure of
    both". Lines that begin with a space go on. In a cure, `{name}` is the name."""
    found: dict[str, dict[str, str]] = {}
    for row in text.replace("\n    ", " ").splitlines():
        if row.startswith("["):
            table = found[row[1:-1]] = {}
        elif row:
            names, cure = row.split(": ", 1)
            table |= {name: cure.replace("{name}", name) for name in names.split()}
    return found


with open(join(dirname(__file__), "_instead.txt"), encoding="utf-8") as _file:  # `pathlib` takes 3 ms to import
    _TABLES = _tables(_file.read())
_SEVERAL = ("shape", "axes", "axis", "arrays", "repetitions", "device")  # parameters that take several values as one
# Keywords of other libraries, with the names that they may have here. A function has one of these.
KEYWORDS = _TABLES["keywords"]

# Keywords of NumPy's functions that none has here, with what to write instead.
NUMPYS_KEYWORDS = _TABLES["numpys_keywords"]

# For `s.pipeline(dataset, ...)`: parameters of PyTorch's DataLoader, with the stage to use instead.
STAGES = _TABLES["stages"]

_PUT = {"dtype": "`np.asarray(array, dtype)`, or `t.astype(dtype)`"}

# By the qualified name of a function: options that it has elsewhere. "" is one positional argument too many.
OPTIONS_OF: dict[str, dict[str, str]] = {
    "Scheduler.pipeline": STAGES | {"": STAGES["batch_size"]},
    "Tasks.put": _PUT,
    "Tasks.put_nowait": _PUT,
    "Tensor.to": {"dtype": "`t.astype(dtype)`", "non_blocking": "`t.to(device)`, which waits for nothing"},
    "Module.to": {"dtype": "`dtype=` of the layers' constructors"},
    "dropout": {"training": "`asc.nn.Dropout(p)`, which drops nothing after `model.eval()`", "": "`seed=`"},
    "Methods.flatten": {"": "`t.reshape((t.shape[0], -1))` for all but the first axis"},
    "Methods.round": {"": "`(t * 100).round() / 100` for two decimals", "decimals": "`(t * 100).round() / 100`"},
    "Optimizer.step": dict.fromkeys(("", "closure"), "`loss.backward()`, then `optimizer.step()`"),
}

# Functions elsewhere, and methods of other libraries' tensors.
_FUNCTIONS = _TABLES["functions"]

PACKAGE = _FUNCTIONS | _TABLES["package"]

RANDOM = {name: PACKAGE[name] for name in ("manual_seed", "normal", "rand", "randint", "randn", "seed")} | {
    **dict.fromkeys(("choice", "permutation", "shuffle", "uniform"), PACKAGE["rand"]),
    **dict.fromkeys(("PRNGKey", "RandomState", "key"), "`asc.random.default_rng(seed)`"),
}

LINALG = {"norm": PACKAGE["norm"]}

FUNCTIONAL = _TABLES["functional"]

NN = FUNCTIONAL | _TABLES["nn"]

# Of the layers' constructors.
OPTIONS = _TABLES["options"]

UTILS = {"parameters_to_vector": "`asc.concat([p.flatten() for p in module.parameters()])`"}

OPTIM = _TABLES["optim"]

AUTOGRAD = {name: PACKAGE[name] for name in ("enable_grad", "inference_mode", "set_grad_enabled")} | _TABLES["autograd"]

TENSOR = _FUNCTIONS | _TABLES["tensor"]

TASK = {name: TENSOR[name] for name in ("add_done_callback", "cancelled")}  # the others are for arrays, or say so

MODULE = _TABLES["module"]

SUBMITTER = _TABLES["submitter"]

SCOPE = SUBMITTER | _TABLES["scope"]

PIPELINE = _TABLES["pipeline"]

OPTIMIZER = _TABLES["optimizer"]

# NumPy's functions that have another name here, or no equivalent; as `np.NAME`.
NUMPY = _TABLES["numpy"]
NUMPY |= {f"arc{name}": f"`asyncsched.a{name}(t)`" for name in ("cos", "cosh", "sin", "sinh", "tan", "tanh")}

# For `array_api`, where nobody awaits anything, and for its arrays, which have the standard's few attributes.
ARRAY_API = {
    name: cure.replace("asyncsched.", "xp.") for name, cure in NUMPY.items() if "." not in name and "save" not in name
} | _TABLES["array_api"]

ARRAY = {name: ARRAY_API[name] for name in ("ravel", "flatten", "cumsum", "cumprod", "copy")} | _TABLES["array"]
