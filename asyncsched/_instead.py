"""Names that users of NumPy, PyTorch, MXNet, Dask and asyncio type first, with what to write here instead.

They are for the errors of missing names. No table contains a name that exists here; a test holds that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from importlib import import_module
from inspect import CO_VARARGS
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NoReturn, ParamSpec, TypeVar

import numpy as np

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
    namespace: dict[str, Any], module: str, instead: Names, *, when_used: Names | None = None, listed: bool = False
) -> None:
    """Make a module raise the error of `no_name` for every missing name. If `listed`, `dir()` shows its `__all__`.

    Modules call this instead of defining `__getattr__`: type checkers would take that as a promise of any name.

    Args:
        when_used: by module below this one ("" for this one itself), the names in it, which are imported at their first
            use.
    """
    homes = {name: home for home, names in (when_used or {}).items() for name in names.split()}

    def __getattr__(name: str) -> Any:
        if name not in homes:
            raise no_name(module, name, instead)
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


def _table(rows: str) -> dict[str, str]:
    """The cures by name, from lines such as "this that: the cure of both". In a cure, `{name}` is the name."""
    pairs = [row.strip().split(": ", 1) for row in rows.strip().splitlines()]
    return {name: cure.replace("{name}", name) for names, cure in pairs for name in names.split()}


_SEVERAL = ("shape", "axes", "axis", "arrays", "repetitions", "device")  # parameters that take several values as one
# Keywords of other libraries, with the names that they may have here. A function has one of these.
KEYWORDS = _table("""
    dim dims axis axes: axis axes
    ddof correction unbiased: ddof correction
    keepdim: keepdims
    newshape: shape
    kind: stable
    a_min: min
    a_max: max
    sampler shuffle: order
    interpolation: method
    num_shards num_replicas shard_count: count
    rank shard_index: index
    count num_epochs: epochs
    workers num_workers n_workers max_workers threads num_threads n_jobs: streams workers concurrency
    num_parallel_calls num_streams concurrency parallelism: streams workers concurrency
    memory memory_limit max_memory limit nbytes max_bytes: max_bytes reserve
    maxsize max_queue queue_size backlog: max_pending max_queue buffer ahead
    prefetch prefetch_factor buffer_size depth: buffer depth
    max_batch_size batch_size: max_batch_cost max_cost size
    max_num_seqs max_num_batched_tokens: max_cost
    timeout: deadline stall_timeout
    drop_remainder: drop_last
    learning_rate: lr
""")

# Keywords of NumPy's functions that none has here, with what to write instead.
NUMPYS_KEYWORDS = _table("""
    out: use `c[...] = {f}(...)`, which writes into an existing tensor
    where: use `asc.where(mask, a, b)` on the operands or on the result of {f}
    dtype: use `asc.astype(x, dtype)` on the operands or on the result of {f}
    casting: use `asc.astype(x, dtype)` on the operands, which always converts
    subok signature like ndmin overwrite_input assume_unique: there is nothing to choose: leave it out
    order: use `asc.permute_dims(x, axes)` first, to put elements in another order; else leave it out
    initial: use `initial + asc.sum(x)`, `initial * asc.prod(x)` or `asc.maximum(asc.max(x), initial)`
    weights: use `asc.sum(w * x) / asc.sum(w)`
    decimals: use `asc.round(x * 10**n) / 10**n`
    retstep: use `x[1] - x[0]`, which is the step
    mode: use `asc.take(x, indices % n)`, which wraps around, or `asc.clip(indices, 0, n - 1)`
    sparse: use `asc.expand_dims(x, axis=...)`, and broadcasting
    compute_uv: use `asc.linalg.svdvals(x)`
    axis1 axis2: use `asc.moveaxis(x, (i, j), (-2, -1))` first: {f} takes the last two
    return_counts return_index return_inverse: use `asc.unique_all(x)`, `unique_counts` or `unique_inverse`
""")

# For `s.pipeline(dataset, ...)`: parameters of PyTorch's DataLoader, with the stage to use instead.
STAGES = _table("""
    batch_size: `.batch(size)`
    batch_sampler: `order=`, `.batch(size)`
    collate_fn: `.batch(size, collate=fn)`
    drop_last: `.batch(size, drop_last=True)`
    generator seed shuffle: `order=` with a permutation, or `.shuffle(1000, seed=0)`
    in_order ordered: `.map(fn, workers=4, ordered=False)`
    num_workers workers transform: `.map(fn, workers=4)`
    multiprocessing_context persistent_workers: `.map(fn, workers=4, processes=True)`
    pin_memory device: `.to_device()`
    epochs num_epochs: `.repeat(epochs)`
    num_replicas num_shards rank: `.shard(index, count)`
""")

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
_FUNCTIONS = _table("""
    relu softmax log_softmax sigmoid gelu: `asc.nn.{name}(t)`
    mm bmm: `a @ b`
    split chunk: `t[:n]` and `t[n:]`, which are views
    cholesky det diagonal inv qr svd trace: `asc.linalg.{name}(t)`
    cross outer solve: `asc.linalg.{name}(a, b)`
    clamp: `asc.clip(t, low, high)`
    block_until_ready compute: `await t` waits for one, `await asc.gather(*ts)` for several
    sub: `a - b`
    mul: `a * b`
    div true_divide: `a / b`
    index_select: `asc.take(t, indices, axis=...)`
    masked_select: `t[mask]`
    norm: `asc.linalg.vector_norm(t)`, or `matrix_norm`
    permute: `asc.permute_dims(t, axes)`, or `t.transpose(*axes)`
    rsqrt: `1 / asc.sqrt(t)`
    scatter scatter_add: `t[indices] = values`
    logsumexp: `t.max() + asc.log(asc.exp(t - t.max()).sum())`, with `axis=` and `keepdims=` as needed
    swapaxes: `asc.permute_dims(t, axes)`, or `t.mT` for the last two
    unique: `asc.unique_values(t)`, or `unique_counts`, `unique_inverse`, `unique_all`
    unsqueeze: `asc.expand_dims(t, axis=...)`
""")

PACKAGE = _FUNCTIONS | _table("""
    array as_tensor device_put from_array from_numpy tensor: `x = await s.put(a)` makes a tensor from an array or a list
    synchronize wait waitall: `await s.barrier()`, which waits for everything
    Client LocalCluster: `async with asc.Scheduler() as s`; `asc.cluster` for Dask's
    delayed: `await s.submit(fn, *args)`, or `s.submit_nowait`: a task, which other tasks take as an argument
    manual_seed seed: pass a seed to whatever draws, as in `asc.random.default_rng(0)`
    rand randn randint randperm Generator bernoulli multinomial normal: `asc.random.default_rng(seed)` has `normal`,\
 `random`, `integers`, ..., like NumPy's
    cat concatenate hstack vstack: `asc.concat(ts, axis=0)`, or `asc.stack`
    dropout: `asc.nn.dropout(t, p, seed=0)`, or a layer: `asc.nn.Dropout(p)`
    Module: `asc.nn.Module`
    flatten ravel: `t.flatten()`, or `t.reshape((t.shape[0], -1))` for all but the first axis
    allclose array_equal isclose: NumPy's, on the results of `await asc.gather(a, b)`
    DataLoader Dataset TensorDataset data utils: `s.pipeline(dataset).map(fn, workers=4).batch(64).to_device(depth=2)`\
 loads data
    vmap: the function itself, on a tensor with one more leading axis: functions broadcast
    compile jit: `graph = await s.capture(fn, x)` makes a step one task
    cuda device: `asc.Scheduler('cuda')` computes there, and `python -m asyncsched` lists the devices
    inference_mode set_grad_enabled: `with asc.no_grad():` records nothing
    enable_grad: nothing: everything outside `with asc.no_grad():` is recorded
    double float half int long: dtypes are `asc.float32`, `asc.int64`, ...
    barrier: `await s.barrier()`, of `async with asc.Scheduler() as s`
    call submit: `await s.{name}(fn, *args)`, of `async with asc.Scheduler() as s`
    put: `await s.put(a)`, of `async with asc.Scheduler() as s`
    pipeline: `s.pipeline(source)`, of `async with asc.Scheduler() as s`
    scope: `s.scope(...)`, of `async with asc.Scheduler() as s`
    window: `s.window(2)`, of `async with asc.Scheduler() as s`
    bucketize: `asc.digitize(t, bins)`
    histc: `asc.histogram(t, bins, range=(low, high))`
    as_completed: `asyncio.as_completed(ts)` takes tensors
    amp autocast: nothing changes dtypes by itself: `t.astype(...)`, `dtype=` of layers
    device_get: `await t.numpy()`, or `await asc.gather(*[t.numpy() for t in ts])`
    grad value_and_grad: `loss.backward()`, or `asc.autograd.grad`
    Event Lock Queue Semaphore TaskGroup sleep timeout: `asyncio.{name}`
    create_task ensure_future: `asyncio.ensure_future(t)`; `await s.submit(fn, *args)` for a function
    Future Stream: a tensor, or a task of `await s.submit(fn, *args)`, is the handle to await
    Executor ThreadPoolExecutor Pool run_in_executor: `s.as_executor()`
    get remote map: `await s.submit(fn, *args)` gives a task, and `await asc.gather(*tasks)` results
    init start: `async with asc.Scheduler() as s`, or in a notebook `s = await asc.open()`
    close shutdown: `await s.aclose()`, or the end of the scheduler's block
    set_num_threads get_num_threads: `asc.Scheduler(streams=2)`; `s.devices` has the streams
    set_default_device default_backend local_devices: `asc.Scheduler('cuda')`; `s.devices` has them
    set_default_dtype get_default_dtype: `dtype=` of each function and layer
    dtype bfloat16: dtypes are `asc.float32`, `asc.int64`, ..., and NumPy's
    profiler profile: `asc.Trace`, `asc.Timer`, or `asc.measure`
    distributed multiprocessing: `asc.cluster`
    add_n: `sum(ts)`
    checkpoint: `await asc.save(path, state)`
    is_tensor: `isinstance(t, asc.Tensor)`
    ndarray: `asc.Tensor`, or NumPy's for the result of `await t`
    neg: `-t`
    one_hot: `asc.eye(classes)[t]`
    promote_types: `asc.result_type(a, b)`
    nan_to_num: `asc.where(asc.isnan(t), 0, t)`, which keeps infinity
    to_thread: `await s.call(fn, *args)`, which does the same within bounds
    transpose: `asc.permute_dims(t, axes)`, or `t.T`
    trapz: `asc.trapezoid(y, x)`
    vdot: `asc.linalg.vecdot(a, b)`
    wait_for: `asyncio.wait_for(t, seconds)`, or `async with asyncio.timeout(seconds)`
""")

RANDOM = {name: PACKAGE[name] for name in ("manual_seed", "normal", "rand", "randint", "randn", "seed")} | {
    **dict.fromkeys(("choice", "permutation", "shuffle", "uniform"), PACKAGE["rand"]),
    **dict.fromkeys(("PRNGKey", "RandomState", "key"), "`asc.random.default_rng(seed)`"),
}

LINALG = {"norm": PACKAGE["norm"]}

FUNCTIONAL = _table("""
    binary_cross_entropy: `binary_cross_entropy_with_logits`, on the values before the sigmoid
    one_hot: `asc.eye(classes)[t]`
    pad: `asc.pad(t, widths, mode)`, with (before, after) for each axis from the first on, as in NumPy
    normalize: `t / asc.linalg.vector_norm(t, axis=-1, keepdims=True)`
""")

NN = FUNCTIONAL | _table("""
    Parameter parameter: an attribute: a tensor with `t.requires_grad = True`
    AdaptiveMaxPool2d CTCLoss Conv3d ConvTranspose1d ConvTranspose2d ConvTranspose3d Dropout2d ELU GRU Hardswish\
 Hardtanh LSTM LSTMCell MaxPool1d MaxPool3d Mish PReLU PixelShuffle RNN ReLU6 SELU Transformer Unflatten\
 Unfold Upsample: it is not here; a PyTorch module is a task: `await s.call(module, x)`
    TransformerEncoderLayer TransformerEncoder TransformerDecoderLayer TransformerDecoder: a module of\
 `MultiheadAttention`, `LayerNorm` and `Linear`, such as `Block` in demos/train_text.py
    DataParallel parallel: see `asyncsched.cluster`
    ParameterDict ParameterList: a list of tensors as an attribute
    init: an assignment: `with asc.no_grad(): layer.weight[...] = values`
    F: `nn.functional`
    BCELoss: `nn.BCEWithLogitsLoss()`, on the values before the sigmoid
    InstanceNorm2d: `nn.GroupNorm(channels, channels)`
""")

# Of the layers' constructors.
OPTIONS = _table("""
    batch_first: the batch is first
    dropout: `nn.Dropout(p)` on the result; attention itself drops nothing
    groups: convolutions have one group; a PyTorch module is a task: `await s.call(module, x)`
    padding_idx: no row is special; use a mask to leave out padding
    padding_mode: the padding is zeros
""")

UTILS = {"parameters_to_vector": "`asc.concat([p.flatten() for p in module.parameters()])`"}

OPTIM = _table("""
    swa_utils AveragedModel: `nn.ExponentialAverage(module, 0.999)`
    LBFGS Adagrad Adadelta Adamax NAdam RAdam Rprop: it is not here
    lr_scheduler: `optim.schedules` has StepLR, CosineAnnealingLR, OneCycleLR, ...
    StepLR MultiStepLR ExponentialLR CosineAnnealingLR ReduceLROnPlateau: it is in `optim.schedules`
    CosineAnnealingWarmRestarts LinearLR OneCycleLR LambdaLR SequentialLR: it is in `optim.schedules`
""")

TENSOR = _FUNCTIONS | _table("""
    bool: `t.astype(asc.bool)`
    half: `t.astype(asc.float16)`
    float bfloat16: `t.astype(asc.float32)`
    double: `t.astype(asc.float64)`
    type: `t.astype(dtype)`, or `t.dtype`
    type_as byte char short: `t.astype(dtype)`
    int: `t.astype(asc.int32)`
    long: `t.astype(asc.int64)`
    add: `a + b`
    matmul mv: `a @ b`
    eq: `a == b`
    ne: `a != b`
    lt: `a < b`
    le: `a <= b`
    gt: `a > b`
    ge: `a >= b`
    amax amin: `t.max(axis)`, or `min`
    as_numpy asnumpy copy_to_host_async get: `await t.numpy()`
    is_ready is_done ready: `t.done()`
    eval materialize realize sync synchronize persist wait wait_to_read: `await t`
    expand_as view_as: `asc.broadcast_to(t, other.shape)`, or `t.reshape(other.shape)`
    get_device devices sharding is_cuda: `t.device`
    is_complex is_floating_point: `t.dtype.kind`, which is 'f' for floats and 'c' for complex numbers
    is_leaf grad_fn retain_grad register_hook: `t.requires_grad`, `t.grad`: there are no hooks
    nelement numel: `t.size`
    ndimension dim: `t.ndim`
    narrow select: `t[:, start:stop]`, or `t[:, index]`: a view
    pin_memory share_memory: nothing: `await s.put(a)` copies as fast as it can
    put: `t[indices] = values`
    inverse: `asc.linalg.inv(t)`
    is_contiguous: `(await t).flags.c_contiguous`
    compress: `t[mask]`
    mH: `asc.conj(t.mT)`
    H: `asc.conj(t.T)`
    where: `asc.where(condition, t, other)`
    new_zeros new_ones new_full: `asc.zeros(shape, dtype=t.dtype)`, or `ones`, `full`
    at: `t[index] = value`, which moves `t` to a new version
    visualize: `s.graph(t)`, which draws its dependencies
    element_size itemsize: `t.dtype.itemsize`
    stride strides: `(await t).strides`
    flags: `(await t).{name}`
    byteswap ctypes: `await t.numpy()` first
    add_done_callback: `asyncio.ensure_future(t)` to make an asyncio task, as `asyncio.wait` does
    as_in_context: `t.to(device)`
    asscalar: `await t.item()`
    attach_grad requires_grad_: `t.requires_grad = True`
    base: nothing: tensors are values, and share memory where NumPy's views do
    cancelled: `t.done()`, and `t.exception()`, which is then a TaskCancelled
    choose: `asc.where` or `asc.take_along_axis`
    clone: `t.copy()`
    contiguous: `t.copy()`, if at all: operations change the layout themselves if they must
    cpu: `await t.numpy()`, or `t.to('cpu')` for a tensor there
    cuda: `t.to('cuda')`
    data: `await t.numpy()`, or `t.detach()` for a tensor that is not recorded
    dump: `asc.save`
    expand: `asc.broadcast_to(t, shape)`
    fill: `t[...] = value`
    flat: `t.flatten()`
    gather: `asc.take_along_axis(t, indices, axis=...)`
    itemset: `t[index] = value`
    masked_fill: `asc.where(mask, value, t)`, or `t[mask] = value`
    partition: `asc.sort(t)`
    pow: `t**n`
    ptp: `t.max() - t.min()`
    resize: `t.reshape(...)`, or `asc.concat`
    setflags: nothing: `await t` gives a read-only array, and `await t.numpy()` a copy of your own
    sort: `asc.sort(t)`, which makes a new tensor
    t: `t.T`
    tobytes: `(await t).tobytes()`
    tofile: `asc.save`, or `(await t).tofile(...)`
    unfold: `asc.sliding_window_view(t, size, axis)`, whose windows come last
    view: `t.reshape(...)`, which is a view where NumPy's is; `t.astype(dtype)` for another dtype
""")

TASK = {name: TENSOR[name] for name in ("add_done_callback", "cancelled")}  # the others are for arrays, or say so

MODULE = _table("""
    double float half bfloat16 type: `dtype=` of the layers' constructors
    register_forward_hook register_forward_pre_hook register_full_backward_hook: a `forward` of your own: there are no\
 hooks
    compile hybridize: `graph = await s.capture(model, x)`, in a `with asc.no_grad():`
    device dtype: `next(module.parameters()).device`, or `dtype`
    get_parameter get_submodule: `dict(module.named_parameters())[name]`, or `named_modules`
    collect_params: `module.parameters()`
    load: `module.load_state_dict(await asc.load(path))`
    save: `await asc.save(path, module.state_dict())`
    num_parameters: `sum(p.size for p in module.parameters())`
    add_module: `setattr(module, name, child)`
    cpu: `module.to('cpu')`
    cuda: `module.to('cuda')`, in a scheduler with that device
    register_parameter: an attribute: a tensor with `requires_grad` set is a parameter
    requires_grad_: `p.requires_grad = ...` for each of `module.parameters()`, or `asc.no_grad()`
""")

SUBMITTER = _table("""
    join synchronize wait waitall wait_all drain flush sync fence: `await s.barrier()`, which waits for everything
    close shutdown stop: `await s.aclose()`, or the end of its `async with` block
    stats memory_allocated memory_stats memory_usage status info: `s.statistics()`, or `s.load()`
    pending in_flight queue qsize: `s.statistics()`, or `s.load()`
    tasks all_tasks current_task: `print(s.explain())`, which lists unfinished tasks
    device streams: `s.devices`, whose `streams` are these
    arange empty full ones zeros: `asc.{name}(...)`, in the scheduler's block
    execute apply apply_async enqueue schedule send: `await s.submit(fn, *args)`
    warm warmup precompile preload: `await s.warm_up(fn, *examples)`
    run_in_executor: `await s.call(fn, *args)`; `s.as_executor()` for others' code
    compile jit: `graph = await s.capture(fn, x)`, which makes a step one task
    empty_cache gc clear free: nothing: memory is free once dropped, and `del t` drops a name
    group task_group: `async with s.scope() as scope:`
    Batcher batcher batch: `asc.Batcher(fn)`
    Stepper stepper generate: `asc.Stepper(step)`
    plot visualize show: `s.graph(t)`, which draws its dependencies
    profile trace record: `asc.Trace`, `asc.Timer`, or `asc.measure`
    get fetch compute persist result: `await t`, or `await asc.gather(*ts)`
    copy to to_device upload array asarray device_put scatter tensor: `await s.put(a)`
    backward step: `loss.backward()`, `optimizer.step()`
    cancel_all cancel: an exception that leaves the block, or a `deadline=`, or `t.cancel()`: each cancels
    save: `await asc.save(path, state)`
    timeout: `async with s.scope(deadline=seconds):`
    max_ops max_bytes: `s.statistics()`, which has the limits
    map gather: `await asc.gather(*tasks)`, of tasks that `await s.submit(fn, x)` gives
    run create_task start_soon spawn: `await s.submit(fn, *args)`; asyncio for coroutines
    DataLoader data_loader: `s.pipeline(dataset)`
    to_thread: `await s.call(fn, *args)`
""")

SCOPE = SUBMITTER | _table("""
    pipeline window: `s.{name}(...)` of the scheduler: tasks submitted in the scope's block belong to the scope
""")

PIPELINE = _table("""
    prefetch cache buffer: `map(fn, buffer=)` and `to_device(depth=)`, which read ahead
    sample sampler: `s.pipeline(source, order=lambda epoch: indices)`, `shuffle(1000, seed=0)`
    skip enumerate chain concat concatenate interleave mix merge scan split window: a\
 generator as the source: `s.pipeline(lambda epoch: (x for x in data if ...))`
    aggregate collate collate_fn padded_batch rebatch: `batch(size, collate=fn)`
    apply pipe transform: `map(fn, workers=4)`
    aclose close start stop run read items for_each foreach as_numpy_iterator: `async with pipe.open() as items:`
    get_state state save: `pipe.state_dict()`
    set_state load: `pipe.load_state_dict(state)`
    epoch set_epoch: `pipe.state_dict()['epoch']`: each `open()` is the next epoch
    pin_memory prefetch_to_device add_sink: `to_device(depth=2)`
    seed: `shuffle(1000, seed=0)`
    sharding_filter: `shard(index, count)`
    stats: `pipe.statistics()`
    collect list to_list: `async with pipe.open() as items: [x async for x in items]`
    to: `to_device(device=...)`
""")

OPTIMIZER = _table("""
    minimize apply_gradients update backward: `loss.backward()`, then `optimizer.step()`
    params trainable_variables: `optimizer.param_groups`
    add_param_group: groups when it is made: `SGD([{'params': ..., 'lr': 0.1}, ...], lr=0.01)`
    learning_rate: `optimizer.lr`
""")

# NumPy's functions that have another name here, or no equivalent; as `np.NAME`.
NUMPY = _table("""
    arctan2: `asyncsched.atan2(t, other)`
    amax amin: `asyncsched.max(t)`, or `min`
    absolute: `asyncsched.abs(t)`
    concatenate: `asyncsched.concat(ts)`
    copyto fill_diagonal place put put_along_axis putmask: `t[index] = value`
    save savez savez_compressed: `await asyncsched.save(path, {'x': t})`, or `await t` first
    mod: `t % other`
    true_divide: `t / other`
    cumprod: `asyncsched.cumulative_prod(t, axis=0)`
    cumsum: `asyncsched.cumulative_sum(t, axis=0)`
    linalg.norm: `asyncsched.linalg.vector_norm(t)`, or `matrix_norm`
    ndim shape size: `t.{name}`
    power: `t**n`
    transpose: `asyncsched.permute_dims(t, axes)`, or `t.T`
""")
NUMPY |= {f"arc{name}": f"`asyncsched.a{name}(t)`" for name in ("cos", "cosh", "sin", "sinh", "tan", "tanh")}

# For `array_api`, where nobody awaits anything, and for its arrays, which have the standard's few attributes.
ARRAY_API = {
    name: cure.replace("asyncsched.", "xp.") for name, cure in NUMPY.items() if "." not in name and "save" not in name
} | _table("""
    array tensor: `xp.asarray(a)`
    ravel flatten: `xp.reshape(x, (-1,))`
    hstack vstack cat: `xp.concat(xs, axis=0)`, or `xp.stack`
    random rand randn: `xp.asarray(np.random.default_rng(seed).normal(size=3))`
    unique: `xp.unique_values(x)`, or `unique_counts`, `unique_inverse`, `unique_all`
    copy: `xp.asarray(x, copy=True)`
""")

ARRAY = {name: ARRAY_API[name] for name in ("ravel", "flatten", "cumsum", "cumprod", "copy")} | _table("""
    numpy tolist cpu get: `np.asarray(x)`, which waits
    item: `float(x)`, `int(x)` or `bool(x)`, which wait
    transpose: `xp.permute_dims(x, axes)`, or `x.T`
    swapaxes: `xp.permute_dims(x, axes)`, or `x.mT` for the last two
    fill: `x[...] = value`
    dot: `x @ y`
""")
