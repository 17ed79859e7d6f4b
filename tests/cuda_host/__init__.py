"""The real CuPy without a card: its wheel on a CUDA runtime that lives in host memory.

    python -m tests.cuda_host DIRECTORY          sets it up: some minutes, 1 GB, from the package index alone
    python -m tests.cuda_host DIRECTORY run      runs all there is to run on it
    DIRECTORY/run python -c 'import cupy; print((cupy.arange(10) + 1).sum())'

What is real: CuPy, all of its Python and of its C++ on the host, and the kernels that it generates, compiled by g++
instead of NVRTC. Imitated (`native/`): the CUDA runtime, the driver, NVRTC, cuBLAS, cuFFT, cuSOLVER (by NumPy's
LAPACK), sorting, random numbers.

A stream is a thread with a queue, non-blocking and legacy streams are ordered as CUDA's, and before an operation a
stream sleeps at random. Memory is full of 0xff when it is given and unmapped for good when it is freed, so a kernel
that uses it later faults, and the fault stays. `cudaFree` and `cudaFreeHost` wait for the device, pageable copies are
staged on the way in and block on the way out, captures become graphs and refuse what CUDA refuses. Libraries use their
workspaces and have memory of their own. A graph that runs a plan or a module after its end fails. Calls that may block
are counted, by the thread that makes them. A kernel's threads run one after the other, as fibers where they wait for
each other.

What is not there: CUB (`CUPY_ACCELERATORS` is empty; a card uses it for reductions), fused multiply-adds, flushing to
zero, eigenvalues of matrices that are not symmetric, cuSPARSE, PyTorch, other distributions than uniform and normal,
textures, cooperative launches, and any meaning of times.

    HOSTCUDA_DEVICES=2            HOSTCUDA_MEMORY_MB=4096      what there is
    HOSTCUDA_LAZY_PERCENT=10      HOSTCUDA_DELAY_US=200        how often a stream sleeps, and how long at most
    HOSTCUDA_SEED=1               HOSTCUDA_DRIVER=12090        of the sleeping; the newest CUDA that the driver knows
    HOSTCUDA_NAME='host memory'   HOSTCUDA_REFUSES=0           of each device; the error that makes no context on 0
    HOSTCUDA_VERBOSE=1                                         shows what g++ refuses
"""
