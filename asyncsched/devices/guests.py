"""Guests: tasks whose function is of PyTorch or JAX, or calls them.

Nothing here imports either: a program that uses one has imported it. `_PRIVATE` lists PyTorch's private names that are
used.

PyTorch's modules take and give arrays, and on CUDA PyTorch's work goes to the task's stream. A jitted function of JAX
returns before its result is computed. The stream's thread waits for that: on the loop's thread, a wait would block
everything else.

On CUDA PyTorch's allocator says how many bytes a body took. On the CPU it has no statistics, so each operation is
watched, also in backward passes: which memory its results bring, and when that is freed. A body may also free memory
from before, such as a graph's in its backward pass. That is set off against new memory, since the task that made it
stays charged for it. Memory that an operation takes only while it runs is not seen. (PyTorch's profiler sees it, but
writes to standard error whenever it is used.)
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache, partial
from importlib import import_module
from types import ModuleType
from typing import Any, Final

import numpy as np

from .._arguments import called, refuse_mask_or_unit
from .._blocks import contextmanager
from .._tree import find, leaves, map_leaves

# Tested with PyTorch 2.13. Without the first, a module that changes its inputs in place is not detected. Without the
# second, nothing is counted on the CPU. Results do not depend on either.
_PRIVATE: Final = {"version": "_version", "watched operations": "torch.utils._python_dispatch"}


@dataclass(slots=True)
class Allocated:
    """The bytes that a body took: the most at one time, and those that it left behind."""

    peak: int = 0
    kept: int = 0


def call(function: Callable[..., Any], args: Sequence[Any], stream: Any = None, device: int = 0) -> Any:
    """Call a task's function. PyTorch's modules and JAX's jitted functions take arrays and return arrays.

    On a CUDA stream PyTorch's own work goes to that stream. JAX's work is over when this returns.
    """
    modules = sys.modules
    torch = _loaded("torch", "nn") if "torch" in modules else None
    jax = _loaded("jax", "stages") if "jax" in modules else None
    if jax is not None and _is_jitted(jax, function):
        return _call_jitted(jax, function, args)
    result = function(*args) if torch is None else _call_beside_torch(torch, function, args, stream, device)
    if "jax" in modules:  # perhaps the function has imported it
        jax = _loaded("jax", "stages")
        if jax is not None:
            _wait(jax, result)
    return result


def is_guest(function: Callable[..., Any]) -> bool:
    """Whether it is a PyTorch module or a function that JAX has jitted: these allocate from allocators of their own."""
    torch, jax = _loaded("torch", "nn"), _loaded("jax", "stages")
    return (torch is not None and _is_module(torch, function)) or (jax is not None and _is_jitted(jax, function))


def cached(device: int) -> int:
    """Bytes of a CUDA device that PyTorch keeps for later tensors."""
    torch = _loaded("torch", "nn")
    if torch is None or not torch.cuda.is_available():
        return 0
    return int(torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device))


def empty_caches() -> None:
    """Have PyTorch give the devices the memory that it keeps for later tensors. May block."""
    torch = _loaded("torch", "nn")
    if torch is not None and torch.cuda.is_available():
        torch.cuda.empty_cache()


def _loaded(name: str, last: str) -> Any:
    """A module, if the program has imported it. `last` is one of its last names, which a half imported module lacks."""
    module = sys.modules.get(name)
    return module if isinstance(module, ModuleType) and hasattr(module, last) else None


# -- PyTorch ----------------------------------------------------------------------------------------------------------


def _is_module(torch: Any, function: Callable[..., Any]) -> bool:
    return isinstance(called(function), torch.nn.Module)


def _call_beside_torch(torch: Any, function: Callable[..., Any], args: Sequence[Any], stream: Any, device: int) -> Any:
    """Call a function where PyTorch is loaded, whose own work goes to the CUDA stream, if there is one."""
    on_cuda = stream is not None and torch.cuda.is_available()
    with torch.cuda.stream(torch.cuda.ExternalStream(stream.ptr, device=device)) if on_cuda else nullcontext():
        return _call_module(torch, function, args) if _is_module(torch, function) else function(*args)


def _call_module(torch: Any, function: Callable[..., Any], args: Sequence[Any]) -> Any:
    """Call a PyTorch module.

    The arrays among its arguments (also those of a `functools.partial`) become tensors that share their memory, and the
    tensors in its result become arrays that do not; gradients are not kept.
    """
    given: list[Any] = []
    tensors = partial(map_leaves, partial(_tensor, torch, given))
    if isinstance(function, partial):
        function = partial(function.func, *tensors(function.args), **tensors(function.keywords))
    with torch.no_grad():
        result = function(*tensors(list(args)))
    if any(getattr(tensor, _PRIVATE["version"], 0) for tensor in given):
        raise ValueError(
            "the module changed its input in place, which others may read: give it inplace=False, or let it change"
            " a clone"
        )
    storages = [tensor.untyped_storage() for tensor in given]
    shared = [range(one.data_ptr(), one.data_ptr() + one.nbytes()) for one in storages]
    return map_leaves(partial(_from_torch, torch, shared), result)


def _tensor(torch: Any, given: list[Any], arg: Any) -> Any:
    """An array as a tensor, which is added to `given`; any other object as it is."""
    if not hasattr(type(arg), "__dlpack__") or isinstance(arg, torch.Tensor):
        return arg
    refuse_mask_or_unit(arg)
    if min(getattr(arg, "strides", ()), default=0) < 0:  # that would end the process in PyTorch
        arg = arg.copy()
    given.append(torch.from_dlpack(arg))
    return given[-1]


def _from_torch(torch: Any, shared: list[range], result: Any) -> Any:
    """A tensor of a module's result as an array; other objects as they are.

    As a copy if it is a part of a larger tensor, whose memory would stay. A tensor or array in the memory of an
    argument becomes a copy, too, since that is read-only.
    """
    if isinstance(result, np.ndarray):
        return result.copy() if any(result.ctypes.data in memory for memory in shared) else result
    if not isinstance(result, torch.Tensor):
        return result
    result = result.detach().resolve_conj().resolve_neg()
    if result.layout is torch.strided and not result.is_nested:
        storage = result.untyped_storage()
        if storage.nbytes() > result.nbytes or any(result.data_ptr() in memory for memory in shared):
            result = result.clone(memory_format=torch.contiguous_format)
    if result.is_cuda:
        import cupy

        return cupy.from_dlpack(result)
    try:
        return np.from_dlpack(result.contiguous())
    except (RuntimeError, BufferError) as error:
        raise TypeError(
            f"a result with dtype {result.dtype} and layout {result.layout} on device {result.device} cannot become an"
            f" array ({error}): let the module return another"
        ) from error


# -- the bytes that PyTorch takes -------------------------------------------------------------------------------------


def allocated(device: int | None = None) -> AbstractContextManager[Allocated]:
    """Counts PyTorch's allocations in a block: on this thread; or, on the CUDA device with this number, by its
    allocator."""
    torch = _loaded("torch", "nn")
    if torch is None:
        return nullcontext(Allocated())
    return counted(torch) if device is None else counted_on(torch, device)


def counted(torch: Any) -> AbstractContextManager[Allocated]:
    """Counts the bytes of the tensors that are made in a block, on this thread."""
    try:
        watched = import_module(_PRIVATE["watched operations"]).TorchDispatchMode
    except (ImportError, AttributeError):
        return nullcontext(Allocated())
    counter: AbstractContextManager[Allocated] = _counter(torch, watched)()
    return counter


@contextmanager
def counted_on(torch: Any, device: int) -> Iterator[Allocated]:
    """Counts the bytes that a CUDA device's allocator gives in a block, to all threads. Resets the peak in its
    statistics."""
    found, cuda = Allocated(), torch.cuda
    if not cuda.is_available():
        yield found
        return
    before = cuda.memory_allocated(device)
    cuda.reset_peak_memory_stats(device)
    yield found
    found.peak = cuda.max_memory_allocated(device) - before
    found.kept = max(0, cuda.memory_allocated(device) - before)


@cache
def _counter(torch: Any, base: Any) -> Any:
    """The class that watches operations. Its base is PyTorch's."""

    class Counter(base):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.peak = 0  # the most bytes above those at the beginning
            self.kept = 0  # bytes that were made here and are alive
            self._above = 0  # bytes above those at the beginning, now
            self._seen: dict[int, weakref.ref[Any]] = {}

        def __exit__(self, *error: Any) -> None:
            super().__exit__(*error)
            self._seen.clear()  # tensors that stay alive are kept

        @classmethod
        def ignore_compile_internals(cls) -> bool:  # compiled code stays compiled, and gives the same bits
            return True

        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            for given in leaves((args, kwargs)):
                self._see(given, new=False)
            result = function(*args, **(kwargs or {}))
            for made in leaves(result):
                self._see(made, new=True)
            return result

        def _see(self, found: Any, new: bool) -> None:
            if not isinstance(found, torch.Tensor) or found.layout is not torch.strided or found.is_meta:
                return
            storage = found.untyped_storage()
            place, nbytes = id(storage), storage.nbytes()  # PyTorch keeps one object for each of them
            if place not in self._seen:
                self._seen[place] = weakref.ref(storage, partial(self._gone, place, nbytes, new))
                if new:
                    self.kept += nbytes
                    self._above += nbytes
                    self.peak = max(self.peak, self._above)

        def _gone(self, place: int, nbytes: int, new: bool, _: object) -> None:
            del self._seen[place]
            self._above -= nbytes
            self.kept -= nbytes * new

    return Counter


# -- JAX --------------------------------------------------------------------------------------------------------------


def _is_jitted(jax: Any, function: Callable[..., Any]) -> bool:
    """Whether JAX has jitted a function, by its type. `Wrapped` is a protocol: `isinstance` would look for attributes
    each time, and a mock has all."""
    kind = type(called(function))
    return issubclass(kind, jax.stages.Wrapped) or issubclass(kind, jax.stages.Compiled)


def _call_jitted(jax: Any, function: Callable[..., Any], args: Sequence[Any]) -> Any:
    """Call a jitted function, and wait for its result.

    The arrays in its result become NumPy's or CuPy's, in the same memory; those that are no numbers (keys of random
    generators) stay what they are.
    """
    # JAX takes NumPy's arrays by itself. A batcher's items may be on a card: it calls this without the stream.
    args = map_leaves(lambda arg: jax.dlpack.from_dlpack(arg) if _on_a_card(arg) else arg, list(args))
    result = jax.block_until_ready(function(*args))
    return jax.tree.map(partial(_from_jax, jax), result)


def _wait(jax: Any, result: Any) -> None:
    """Wait for JAX's arrays in the result of a function that need not be JAX's: it may be anything."""
    try:
        parts = jax.tree.leaves(result)
    except (SystemError, TypeError, ValueError):  # JAX cannot walk a list that contains itself, or keys of two types
        parts = find((jax.Array,), result)
    kinds = {kind for kind in set(map(type, parts)) if issubclass(kind, jax.Array)}  # there may be a million parts
    if kinds:
        jax.block_until_ready([part for part in parts if type(part) in kinds])


def _on_a_card(arg: Any) -> bool:
    return hasattr(arg, "__cuda_array_interface__") and hasattr(arg, "__dlpack__")


def _from_jax(jax: Any, result: Any) -> Any:
    if not isinstance(result, jax.Array) or jax.dtypes.issubdtype(result.dtype, jax.dtypes.prng_key):
        return result
    if all(device.platform == "cpu" for device in result.devices()):
        return np.asarray(result)
    import cupy

    return cupy.from_dlpack(result)
