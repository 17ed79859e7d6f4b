"""What others call it: names that users of NumPy, PyTorch, MXNet, Dask and asyncio type first, and what to write here.

For the errors of names that are not there. A name that exists here is in none of these tables; a test sees to that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from inspect import CO_VARARGS
from typing import TYPE_CHECKING, Any, NoReturn, ParamSpec, TypeVar

import numpy as np

P = ParamSpec("P")
T = TypeVar("T")


def no_attribute(owner: str, name: str, instead: Mapping[str, str], kind: type[object]) -> AttributeError:
    """The error of a name that an object has not. It knows the class alone, so that who keeps it keeps no object.

    Where there is a cure it knows no class either, or Python would add a guess: "use `t.size`. Did you mean: 'numpy'?"
    """
    if name in instead:
        return AttributeError(f"{owner} has no attribute {name!r}: use {instead[name]}", name=name, obj=None)
    return AttributeError(f"{owner} has no attribute {name!r}", name=name, obj=kind)


def no_name(module: str, name: str, instead: Mapping[str, str]) -> AttributeError:
    """The error of a name that a module has not. Where a cure is known, Python has nothing to guess."""
    cure = instead.get(name) or _numpys(module, name)
    if cure is None:
        return AttributeError(f"module {module!r} has no attribute {name!r}")
    return AttributeError(f"module {module!r} has no attribute {name!r}: {cure}", name=name, obj=None)


def explain_missing(
    namespace: dict[str, Any], module: str, instead: Mapping[str, str], *, listed: bool = False
) -> None:
    """Have a module raise the error of `no_name` for whatever it has not. If `listed`, `dir()` shows its `__all__`.

    By a call, and not by a `__getattr__` in its text: type checkers would take that for a promise of any name.
    """

    def __getattr__(name: str) -> NoReturn:
        raise no_name(module, name, instead)

    namespace["__getattr__"] = __getattr__
    if listed:
        namespace["__dir__"] = lambda: [*namespace["__all__"], "__doc__"]


class OnlyAsync:
    """What is entered by `async with`, and says so in a plain `with`."""

    __slots__ = ()

    if not TYPE_CHECKING:  # type checkers know that it has none of these

        def __enter__(self) -> NoReturn:
            raise TypeError(
                f"a {type(self).__name__} waits at the end of its block, as a plain `with` cannot: use `async with`, in"
                " an `async def` that `asyncsched.run(main)` runs"
            )

        def __exit__(self, *_: object) -> None:
            raise AssertionError("it is never entered")


def naming_arguments(function: Callable[P, T]) -> Callable[P, T]:
    """Have a function name the argument that was meant, where it is called with one that it has not.

    Python itself refuses such a call, before any line of the function runs. A call that is right pays for the wrapper
    alone, some 0.2 us; a wrong one is looked at.
    """

    @wraps(function)
    def call(*args: P.args, **options: P.kwargs) -> T:
        try:
            return function(*args, **options)
        except TypeError as error:
            trace = error.__traceback__
            if trace is not None and trace.tb_next is None:  # no line of the function has run
                meant = _meant(function, args, options)
                if meant:
                    error.args = (f"{str(error).partition('. Did you mean')[0]}: {meant}",)
            del trace  # which holds this frame
            raise

    return call


def parameters(function: Any) -> tuple[str, ...]:
    """The names of a function's parameters, but for `*args` and the like."""
    code = function.__code__
    names: tuple[str, ...] = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    return names


def _meant(function: Any, args: tuple[Any, ...], options: Mapping[str, Any]) -> str:
    code = function.__code__
    known = parameters(function)
    named = [name for name in known[code.co_posonlyargcount :] if name != "self"]
    unknown = [name for name in options if name not in known]
    meant = [ours for name in unknown for ours in _nearest(name, named)]
    if len(args) > code.co_argcount and not meant and not code.co_flags & CO_VARARGS:
        if several := _as_one(function.__qualname__, known[: code.co_argcount], args):
            return f"use {several}"
        meant = [name for name in known[code.co_argcount :] if name not in options][:1]
        if not meant and len(args) == code.co_argcount + 1 and hasattr(args[-1], "shape"):
            unknown = ["out"]  # as a universal function of NumPy's takes it
    if not meant and function.__module__.startswith((f"{__package__}.tensors.", f"{__package__}.array_api.")):
        cures = [NUMPYS_KEYWORDS[name] for name in unknown if name in NUMPYS_KEYWORDS]
        return cures[0].format(f=_called(function)) if cures else ""
    return "use " + ", ".join(f"`{name}=`" for name in meant) if meant else ""


def _called(function: Any) -> str:
    """How a function or a method of tensors is called."""
    owner, _, name = function.__qualname__.rpartition(".")
    part = function.__module__.rpartition(".")[2]
    return f"t.{name}" if owner else f"asc.{part}.{name}" if part in ("fft", "linalg") else f"asc.{name}"


def _nearest(name: str, known: list[str]) -> list[str]:
    """The keyword that was meant: by what others call it, or by how it is spelt."""
    from difflib import get_close_matches  # which a program that is right never needs

    return [ours for ours in KEYWORDS.get(name, ()) if ours in known][:1] or get_close_matches(name, known, 1, 0.7)


def _as_one(name: str, taken: tuple[str, ...], args: tuple[Any, ...]) -> str:
    """What was meant by `ones(2, 3)`, `concat(a, b)` and `sum(x, 0, 1)`; empty, if it was something else."""
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
    """The cure of a function that is NumPy's alone, in the part of NumPy that has this module's name."""
    part = module.removeprefix("asyncsched").removeprefix(".")
    home = getattr(np, part) if part in ("linalg", "fft") else np if part in ("", "array_api") else None
    if not is_numpys(home, name):
        return None
    if part == "array_api":
        return f"`xp.asarray(np.{name}(np.asarray(x)))`, which waits"
    return numpys_cure(f"{part}.{name}" if part else name)


def numpys_cure(dotted: str) -> str:
    """What to write for a function that is NumPy's, as "linalg.norm"."""
    return NUMPY.get(dotted) or f"`await s.call(np.{dotted}, t)`, which computes NumPy's as a task and waits for it"


def is_numpys(home: Any, name: str) -> bool:
    """Whether a part of NumPy has a function of arrays with this name: `median`, not `set_printoptions`."""
    return isinstance(getattr(home, name, None), _NUMPY_FUNCTIONS)


_NUMPY_FUNCTIONS = (np.ufunc, type(np.median))


_SEVERAL = ("shape", "axes", "axis", "arrays", "repetitions", "device")  # parameters that take several things as one
_STREAMS = ("streams", "workers", "concurrency")
_BYTES = ("max_bytes", "reserve")
# Keywords by the names that others give them: those that they may have here. A function has one of these.
KEYWORDS = {
    **dict.fromkeys(("dim", "dims", "axis", "axes"), ("axis", "axes")),
    **dict.fromkeys(("ddof", "correction", "unbiased"), ("ddof", "correction")),
    "keepdim": ("keepdims",),
    "newshape": ("shape",),
    "kind": ("stable",),
    "a_min": ("min",),
    "a_max": ("max",),
    **dict.fromkeys(("sampler", "shuffle"), ("order",)),
    "interpolation": ("method",),
    **dict.fromkeys(("num_shards", "num_replicas", "shard_count"), ("count",)),
    **dict.fromkeys(("rank", "shard_index"), ("index",)),
    **dict.fromkeys(("count", "num_epochs"), ("epochs",)),
    **dict.fromkeys(("workers", "num_workers", "n_workers", "max_workers", "threads", "num_threads"), _STREAMS),
    **dict.fromkeys(("n_jobs", "num_parallel_calls", "num_streams", "concurrency", "parallelism"), _STREAMS),
    **dict.fromkeys(("memory", "memory_limit", "max_memory", "limit", "nbytes", "max_bytes"), _BYTES),
    **dict.fromkeys(("maxsize", "max_queue", "queue_size", "backlog"), ("max_pending", "max_queue", "buffer")),
    **dict.fromkeys(("prefetch", "prefetch_factor", "buffer_size", "depth"), ("buffer", "depth")),
    **dict.fromkeys(("max_batch_size", "batch_size"), ("max_batch_cost", "size")),
    "timeout": ("deadline", "stall_timeout"),
    "drop_remainder": ("drop_last",),
    "learning_rate": ("lr",),
}

_ALL = "use `asc.unique_all(x)`, `unique_counts` or `unique_inverse`"
_LEFT_OUT = "there is nothing to choose: leave it out"
# Keywords of NumPy's functions that none of those here has, by what is written in their place.
NUMPYS_KEYWORDS = {
    "out": "use `c[...] = {f}(...)`, which writes to what is there",
    "where": "use `asc.where(mask, a, b)`, of the operands or of what {f} gives",
    "dtype": "use `asc.astype(x, dtype)`, of the operands or of what {f} gives",
    "casting": "use `asc.astype(x, dtype)` of the operands, which converts in any case",
    **dict.fromkeys(("subok", "signature", "like", "ndmin", "overwrite_input", "assume_unique"), _LEFT_OUT),
    "order": "use `asc.permute_dims(x, axes)` first, if elements are to go in another order; else leave it out",
    "initial": "use `initial + asc.sum(x)`, `initial * asc.prod(x)` or `asc.maximum(asc.max(x), initial)`",
    "weights": "use `asc.sum(w * x) / asc.sum(w)`",
    "decimals": "use `asc.round(x * 10**n) / 10**n`",
    "retstep": "use `x[1] - x[0]`, which is the step",
    "mode": "use `asc.take(x, indices % n)`, which wraps around, or `asc.clip(indices, 0, n - 1)`",
    "sparse": "use `asc.expand_dims(x, axis=...)`, and broadcasting",
    "compute_uv": "use `asc.linalg.svdvals(x)`",
    **dict.fromkeys(("axis1", "axis2"), "use `asc.moveaxis(x, (i, j), (-2, -1))` first: {f} takes the last two"),
    **dict.fromkeys(("return_counts", "return_index", "return_inverse"), _ALL),
}

_BARRIER = "`await s.barrier()`, which waits for everything"
_MAKE = "`x = await s.put(a)` makes a tensor of an array or a list"
_DRAW = "`asc.random.default_rng(seed)` has `normal`, `random`, `integers`, ..., as NumPy's has"
_SEED = "what draws takes a seed, as `asc.random.default_rng(0)` does"
_NETWORKS = "it is in `asyncsched.nn`, as in `nn.relu(t)`"
_DATA = "`s.pipeline(dataset).map(fn, workers=4).batch(64).to_device(depth=2)` loads data"
_ON_A_DEVICE = "`asc.Scheduler('cuda')` computes there, and `python -m asyncsched` prints what there is"

PACKAGE = {
    **dict.fromkeys(("array", "as_tensor", "device_put", "from_array", "from_numpy", "tensor"), _MAKE),
    **dict.fromkeys(("synchronize", "wait", "waitall"), _BARRIER),
    **dict.fromkeys(("Client", "LocalCluster"), "`async with asc.Scheduler() as s`; `asc.cluster` for Dask's"),
    "delayed": "`await s.submit(fn, *args)`, or `s.submit_nowait`: a task, which other tasks take as an argument",
    **dict.fromkeys(("manual_seed", "seed"), _SEED),
    **dict.fromkeys(("rand", "randn", "randint", "randperm"), _DRAW),
    **dict.fromkeys(("cat", "concatenate", "hstack", "vstack"), "`asc.concat(ts, axis=0)`, or `asc.stack`"),
    **dict.fromkeys(("split", "chunk"), "`t[:n]` and `t[n:]`, which are views"),
    **dict.fromkeys(("relu", "softmax", "log_softmax", "sigmoid", "gelu", "dropout", "Module"), _NETWORKS),
    **dict.fromkeys(("mm", "bmm"), "`a @ b`"),
    **{name: f"`asc.linalg.{name}(t)`" for name in ("cholesky", "det", "diagonal", "inv", "qr", "svd", "trace")},
    **{name: f"`asc.linalg.{name}(a, b)`" for name in ("cross", "outer", "solve")},
    **dict.fromkeys(("flatten", "ravel"), "`t.flatten()`, or `t.reshape((t.shape[0], -1))` of all but the first axis"),
    **dict.fromkeys(("allclose", "array_equal", "isclose"), "NumPy's, of what `await asc.gather(a, b)` gives"),
    **dict.fromkeys(("DataLoader", "Dataset", "TensorDataset", "data", "utils"), _DATA),
    **dict.fromkeys(("compile", "jit", "vmap"), "`graph = await s.capture(fn, x)` makes one task of a step"),
    **dict.fromkeys(("cuda", "device"), _ON_A_DEVICE),
    **dict.fromkeys(("enable_grad", "inference_mode", "set_grad_enabled"), "`with asc.no_grad():` records nothing"),
    **dict.fromkeys(("double", "float", "half", "int", "long"), "dtypes are `asc.float32`, `asc.int64`, ..."),
    **{
        name: f"`await s.{name}(...)`, of `async with asc.Scheduler() as s`"
        for name in ("barrier", "call", "put", "submit")
    },
    "bucketize": "`asc.digitize(t, bins)`",
    "histc": "`asc.histogram(t, bins, range=(low, high))`",
    "as_completed": "`asyncio.as_completed(ts)` takes tensors",
    **dict.fromkeys(("amp", "autocast"), "nothing changes dtypes by itself: `t.astype(...)`, `dtype=` of layers"),
    "clamp": "`asc.clip(t, low, high)`",
    **dict.fromkeys(("block_until_ready", "compute"), "`await t` waits for one, `await asc.gather(*ts)` for several"),
    "device_get": "`await t.numpy()`, or `await asc.gather(*[t.numpy() for t in ts])`",
    **dict.fromkeys(("grad", "value_and_grad"), "`loss.backward()`, or `asc.autograd.grad`"),
    "logsumexp": "`t.max() + asc.log(asc.exp(t - t.max()).sum())`, with `axis=` and `keepdims=` as needed",
    "nan_to_num": "`asc.where(asc.isnan(t), 0, t)`",
    "norm": "`asc.linalg.vector_norm`, or `matrix_norm`",
    "pipeline": "`s.pipeline(source)`, of `async with asc.Scheduler() as s`",
    "scope": "`s.scope(...)`, of `async with asc.Scheduler() as s`",
    "to_thread": "`await s.call(fn, *args)` is that, within bounds",
    "swapaxes": "`asc.permute_dims(t, axes)`, or `t.mT` for the last two",
    "transpose": "`asc.permute_dims(t, axes)`, or `t.T`",
    "trapz": "`asc.trapezoid(y, x)`",
    "unique": "`asc.unique_values(t)`, or `unique_counts`, `unique_inverse`, `unique_all`",
    "unsqueeze": "`asc.expand_dims(t, axis=...)`",
    "vdot": "`asc.linalg.vecdot(a, b)`",
    "wait_for": "`asyncio.wait_for(t, seconds)`, or `async with asyncio.timeout(seconds)`",
    "window": "`s.window(2)`, of `async with asc.Scheduler() as s`",
}

RANDOM = {
    **dict.fromkeys(("choice", "normal", "permutation", "rand", "randint", "randn", "shuffle", "uniform"), _DRAW),
    **dict.fromkeys(("manual_seed", "seed"), _SEED),
}

LINALG = {"norm": "`asc.linalg.vector_norm(t)`, or `matrix_norm`"}

_NOT_HERE = (
    "AdaptiveMaxPool2d", "Conv3d", "ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d", "Dropout2d", "ELU", "GRU",
    "Hardswish", "Hardtanh", "LSTM", "LSTMCell", "MaxPool1d", "MaxPool3d", "Mish", "PReLU", "ReLU6", "RNN", "SELU",
    "Transformer", "Unfold", "Upsample",
)  # fmt: skip

NN = {
    **dict.fromkeys(("Parameter", "parameter"), "a tensor with `t.requires_grad = True`, set as an attribute, is one"),
    **dict.fromkeys(_NOT_HERE, "it is not here; a PyTorch module is a task: `await s.call(module, x)`"),
    **dict.fromkeys(
        ("TransformerEncoderLayer", "TransformerEncoder", "TransformerDecoderLayer", "TransformerDecoder"),
        "a module of `MultiheadAttention`, `LayerNorm` and `Linear`, as `Block` in demos/train_text.py",
    ),
    **dict.fromkeys(("DataParallel", "parallel"), "see `asyncsched.cluster`"),
    **dict.fromkeys(("ParameterDict", "ParameterList"), "a list of tensors, set as an attribute"),
    "init": "assign to it: `with asc.no_grad(): layer.weight[...] = values`",
    "BCELoss": "`nn.BCEWithLogitsLoss()`, of what comes before the sigmoid",
    "InstanceNorm2d": "`nn.GroupNorm(channels, channels)`",
}

FUNCTIONAL = {
    "binary_cross_entropy": "`binary_cross_entropy_with_logits`, of what comes before the sigmoid",
    "one_hot": "`asc.eye(classes)[t]`",
    "pad": "`asc.pad(t, widths, mode)`, NumPy's: (before, after) for each axis, from the first on",
    "normalize": "`t / asc.linalg.vector_norm(t, axis=-1, keepdims=True)`",
}

NN |= {name: FUNCTIONAL[name] for name in ("binary_cross_entropy", "normalize", "one_hot", "pad")}

OPTIONS = {  # of the layers' constructors
    "batch_first": "the batch is first",
    "dropout": "`nn.Dropout(p)` of what comes out; attention itself drops nothing",
    "groups": "convolutions have one group; a PyTorch module is a task: `await s.call(module, x)`",
    "padding_idx": "its row is one like any other; a mask leaves out what is padding",
    "padding_mode": "the padding is zeros",
}

UTILS = {
    "clip_grad_value_": "`clip_grad_norm_(parameters, max_norm)`, or `p.grad = p.grad.clip(-v, v)` for each",
    "parameters_to_vector": "`asc.concat([p.flatten() for p in module.parameters()])`",
}

OPTIM = {
    **dict.fromkeys(("LBFGS", "Adagrad", "Adadelta", "Adamax", "NAdam", "RAdam", "Rprop"), "it is not here"),
    "lr_scheduler": "`optim.schedules` has StepLR, CosineAnnealingLR, OneCycleLR, ...",
}

TENSOR = {
    "bool": "`t.astype(asc.bool)`",
    "half": "`t.astype(asc.float16)`",
    **dict.fromkeys(("float", "bfloat16"), "`t.astype(asc.float32)`"),
    **dict.fromkeys(("double", "type"), "`t.astype(asc.float64)`"),
    "int": "`t.astype(asc.int32)`",
    "long": "`t.astype(asc.int64)`",
    **{name: f"`asc.nn.{name}(t)`" for name in ("relu", "softmax", "log_softmax", "sigmoid")},
    **{name: PACKAGE[name] for name in ("mm", "bmm", "split", "chunk", "swapaxes")},
    **{name: f"`asc.{name}(t)`" for name in ("corrcoef", "cov", "percentile")},
    **{name: f"`t {sign} other`" for name, sign in {"ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}.items()},
    **dict.fromkeys(("new_zeros", "new_ones", "new_full"), "`asc.zeros(shape, dtype=t.dtype)`, or `ones`, `full`"),
    **dict.fromkeys(("block_until_ready", "compute", "persist", "wait", "wait_to_read"), "`await t`"),
    "at": "`t[index] = value`, which moves `t` to a new version",
    "visualize": "`s.graph(t)`, which draws what it depends on",
    **dict.fromkeys(("element_size", "itemsize"), "`t.dtype.itemsize`"),
    **dict.fromkeys(("stride", "strides"), "`(await t).strides`"),
    **dict.fromkeys(("byteswap", "ctypes"), "`await t.numpy()` first"),
    "add_done_callback": "`asyncio.ensure_future(t)`, where an asyncio task is wanted, as `asyncio.wait` does",
    "as_in_context": "`t.to(device)`",
    "asnumpy": "`await t.numpy()`",
    "asscalar": "`await t.item()`",
    "attach_grad": "`t.requires_grad = True`",
    "base": "nothing: tensors are values, and views of one another where NumPy's are",
    "cancelled": "`t.done()`, and `t.exception()`, which is TaskCancelled then",
    "choose": "`asc.where` or `asc.take_along_axis`",
    "clamp": "`t.clip(low, high)`",
    "clone": "`t.copy()`",
    "compress": "`t[mask]`",
    "contiguous": "`t.copy()`, if at all: what needs another layout makes it",
    "cpu": "`await t.numpy()`, or `t.to('cpu')` for a tensor there",
    "cuda": "`t.to('cuda')`",
    "data": "`await t.numpy()`, or `t.detach()` for a tensor that is not recorded",
    "diagonal": "`asc.linalg.diagonal(t)`",
    "dim": "`t.ndim`",
    "dump": "`asc.save`",
    "eq": "`t == other`",
    "expand": "`asc.broadcast_to(t, shape)`",
    "fill": "`t[...] = value`",
    "flags": "`(await t).flags`",
    "flat": "`t.flatten()`",
    "gather": "`asc.take_along_axis(t, indices, axis=...)`",
    "index_select": "`asc.take(t, indices, axis=...)`",
    "is_cuda": "`t.device`",
    "itemset": "`t[index] = value`",
    "masked_fill": "`asc.where(mask, value, t)`, or `t[mask] = value`",
    "norm": "`asc.linalg.vector_norm(t)`",
    "numel": "`t.size`",
    "partition": "`asc.sort(t)`",
    "permute": "`asc.permute_dims(t, axes)`, or `t.transpose(*axes)`",
    "pow": "`t**n`",
    "ptp": "`t.max() - t.min()`",
    "put": "`t[indices] = values`",
    "ready": "`t.done()`",
    "requires_grad_": "`t.requires_grad = True`",
    "resize": "`t.reshape(...)`, or `asc.concat`",
    "setflags": "nothing: what is awaited is read-only, and `await t.numpy()` is yours",
    "sort": "`asc.sort(t)`, which makes a new tensor",
    "t": "`t.T`",
    "tobytes": "`(await t).tobytes()`",
    "tofile": "`asc.save`, or `(await t).tofile(...)`",
    "matmul": "`a @ b`",
    "trace": "`asc.linalg.trace(t)`",
    "unfold": "`asc.sliding_window_view(t, size, axis)`, whose windows come last",
    "unsqueeze": "`asc.expand_dims(t, axis)`",
    "view": "`t.reshape(...)`, which is a view where NumPy's is; `t.astype(dtype)` for another dtype",
}

TASK = {name: TENSOR[name] for name in ("add_done_callback", "cancelled")}  # the rest is of no array, or says so

MODULE = {
    **dict.fromkeys(("double", "float", "half", "bfloat16", "type"), "`dtype=` of the layers' constructors"),
    **dict.fromkeys(
        ("register_forward_hook", "register_forward_pre_hook", "register_full_backward_hook"),
        "a `forward` of your own: there are no hooks",
    ),
    "add_module": "`setattr(module, name, child)`",
    "cpu": "`module.to('cpu')`",
    "cuda": "`module.to('cuda')`, in a scheduler with that device",
    "register_parameter": "an attribute: a tensor with `requires_grad` set is a parameter",
    "requires_grad_": "`p.requires_grad = ...` for each of `module.parameters()`, or `asc.no_grad()`",
}

SUBMITTER = {
    **dict.fromkeys(("join", "synchronize", "wait", "waitall", "wait_all", "drain"), _BARRIER),
    **dict.fromkeys(("close", "shutdown", "stop"), "`await s.aclose()`, or the end of its `async with` block"),
    **dict.fromkeys(("stats", "memory_allocated", "memory_stats"), "`s.statistics()`, or `s.load()`"),
    **dict.fromkeys(("max_ops", "max_bytes"), "`s.statistics()`, which has the limits"),
    **dict.fromkeys(("map", "gather"), "`await asc.gather(*tasks)`, of tasks that `await s.submit(fn, x)` gives"),
    **dict.fromkeys(
        ("run", "create_task", "start_soon", "spawn"), "`await s.submit(fn, *args)`; asyncio for coroutines"
    ),
    **dict.fromkeys(("DataLoader", "data_loader"), "`s.pipeline(dataset)`"),
    **dict.fromkeys(("array", "device_put", "scatter", "tensor"), "`await s.put(a)`"),
    **dict.fromkeys(("compute", "persist", "result"), "`await t`, or `await asc.gather(*ts)`"),
    "to_thread": "`await s.call(fn, *args)`",
    "cancel": "an exception that leaves the block, or a `deadline=`, or `t.cancel()`: each cancels",
}

SCOPE = SUBMITTER | {
    name: f"`s.{name}(...)` of the scheduler: what is submitted in the scope's block is the scope's, there too"
    for name in ("pipeline", "window")
}

PIPELINE = {
    **dict.fromkeys(("prefetch", "cache", "buffer"), "`map(fn, buffer=)` and `to_device(depth=)`, which read ahead"),
    **dict.fromkeys(
        ("sample", "sampler"), "`s.pipeline(source, order=lambda epoch: indices)`, `shuffle(1000, seed=0)`"
    ),
    **dict.fromkeys(
        ("take", "skip", "enumerate", "zip", "unbatch", "flat_map"),
        "a generator as the source: `s.pipeline(lambda epoch: (x for x in data if ...))`",
    ),
    **dict.fromkeys(("collect", "to_list"), "`async with pipe.open() as items: [x async for x in items]`"),
    "to": "`to_device(device=...)`",
}

# NumPy's functions that have another name here, or none; as `np.NAME`.
NUMPY = {
    **{f"arc{name}": f"`asyncsched.a{name}(t)`" for name in ("cos", "cosh", "sin", "sinh", "tan", "tan2", "tanh")},
    **dict.fromkeys(("amax", "amin"), "`asyncsched.max(t)`, or `min`"),
    "absolute": "`asyncsched.abs(t)`",
    "concatenate": "`asyncsched.concat(ts)`",
    "cumprod": "`asyncsched.cumulative_prod(t)`",
    "cumsum": "`asyncsched.cumulative_sum(t)`",
    "linalg.norm": "`asyncsched.linalg.vector_norm(t)`, or `matrix_norm`",
    "ndim": "`t.ndim`",
    "save": "`await asyncsched.save(path, {'x': t})`, or `await t` first",
    "power": "`t**n`",
    "shape": "`t.shape`",
    "size": "`t.size`",
    "transpose": "`asyncsched.permute_dims(t, axes)`, or `t.T`",
}

# Of `array_api`, where nobody awaits anything, and of its arrays, which have the standard's few attributes.
ARRAY_API = {
    **{name: cure.replace("asyncsched.", "xp.") for name, cure in NUMPY.items() if "." not in name and name != "save"},
    **dict.fromkeys(("array", "tensor"), "`xp.asarray(a)`"),
    **dict.fromkeys(("ravel", "flatten"), "`xp.reshape(x, (-1,))`"),
    **dict.fromkeys(("hstack", "vstack", "cat"), "`xp.concat(xs, axis=0)`, or `xp.stack`"),
    **dict.fromkeys(("random", "rand", "randn"), "`xp.asarray(np.random.default_rng(seed).normal(size=3))`"),
    "unique": "`xp.unique_values(x)`, or `unique_counts`, `unique_inverse`, `unique_all`",
    "copy": "`xp.asarray(x, copy=True)`",
}

ARRAY = {
    **{name: ARRAY_API[name] for name in ("ravel", "flatten", "cumsum", "cumprod", "copy")},
    **dict.fromkeys(("numpy", "tolist", "cpu", "get"), "`np.asarray(x)`, which waits"),
    "item": "`float(x)`, `int(x)` or `bool(x)`, which wait",
    "transpose": "`xp.permute_dims(x, axes)`, or `x.T`",
    "swapaxes": "`xp.permute_dims(x, axes)`, or `x.mT` for the last two",
    "fill": "`x[...] = value`",
    "dot": "`x @ y`",
}
