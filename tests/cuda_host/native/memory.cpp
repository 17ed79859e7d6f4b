// Memory: mapped when it is given, full of 0xff, and unmapped for good when it is freed; copies.
#include <sys/mman.h>

#include <cstring>
#include <map>

#include "host.h"

struct Block {
    size_t size;
    int device, type;
};
static std::mutex& lock = *new std::mutex;
static auto& blocks = *new std::map<const char*, Block>;

static const Block* find(const void* p) {  // the lock is held
    auto after = blocks.upper_bound((const char*)p);
    if (after == blocks.begin()) return nullptr;
    auto& [start, block] = *--after;
    return (const char*)p < start + block.size ? &block : nullptr;
}

bool pageable(const void* p) {
    Guard g(lock);
    return !find(p);
}

static size_t pages(size_t n) { return (n + 4095) & ~(size_t)4095; }

static cudaError_t allocate(void** out, size_t n, int type) {
    *out = nullptr;
    if (!n) return error(0);
    auto& used = devices[current].used;
    bool counts = type == cudaMemoryTypeDevice;
    if (counts && used.fetch_add(pages(n)) + pages(n) > MEMORY) {
        used -= pages(n);
        return error(cudaErrorMemoryAllocation);
    }
    // One page more, which is never accessible: for what reads too far.
    void* p = mmap(nullptr, pages(n) + 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED || mprotect(p, pages(n), PROT_READ | PROT_WRITE)) return error(cudaErrorMemoryAllocation);
    memset(p, 0xff, n);  // what was never written reads as NaN
    Guard g(lock);
    blocks[(char*)p] = {n, current, type};
    *out = p;
    return error(0);
}

static cudaError_t release(void* p) {
    Guard g(lock);
    auto it = blocks.find((char*)p);
    if (it == blocks.end()) return error(p ? cudaErrorInvalidValue : 0);
    Block block = it->second;
    blocks.erase(it);
    if (block.type == cudaMemoryTypeDevice) devices[block.device].used -= pages(block.size);
    madvise(p, pages(block.size), MADV_DONTNEED);
    mprotect(p, pages(block.size), PROT_NONE);  // these addresses are never given again
    return error(0);
}

// -- giving and freeing --
API cudaError_t cudaMalloc(void** p, size_t n) {
    count("cudaMalloc");
    STICKY;
    return capturing() ? error(cudaErrorStreamCaptureUnsupported) : allocate(p, n, cudaMemoryTypeDevice);
}
API cudaError_t cudaMallocManaged(void** p, size_t n, unsigned) { return cudaMalloc(p, n); }
API cudaError_t cudaMallocAsync(void** p, size_t n, cudaStream_t) { return cudaMalloc(p, n); }

API cudaError_t cudaFree(void* p) {  // waits for the device
    count("cudaFree");
    if (!p) return error(0);
    STICKY;
    if (capturing()) return error(cudaErrorStreamCaptureUnsupported);
    int device = current;
    {
        Guard g(lock);
        if (auto* block = find(p)) device = block->device;
    }
    drain(device);
    return release(p);
}
API cudaError_t cudaFreeAsync(void* p, cudaStream_t s) {
    enqueue(at(s), [p] { release(p); });
    return error(0);
}

API cudaError_t cudaHostAlloc(void** p, size_t n, unsigned) {
    count("cudaHostAlloc");
    STICKY;
    return allocate(p, n, cudaMemoryTypeHost);
}
API cudaError_t cudaFreeHost(void* p) {  // waits for the device
    count("cudaFreeHost");
    STICKY;
    drain(current);
    return release(p);
}
API cudaError_t cudaHostRegister(void*, size_t, unsigned) { return error(0); }
API cudaError_t cudaHostUnregister(void*) { return error(0); }

API cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
    STICKY;
    *total = MEMORY;
    *free = MEMORY - devices[current].used;
    return error(0);
}

API cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* found, const void* p) {
    Guard g(lock);
    auto* block = find(p);
    memset(found, 0, sizeof *found);
    found->type = block ? (cudaMemoryType)block->type : cudaMemoryTypeUnregistered;
    found->device = block ? block->device : -2;
    if (block) found->devicePointer = (void*)p;
    if (found->type != cudaMemoryTypeDevice) found->hostPointer = (void*)p;
    return error(0);
}

// -- copies: what is pageable is staged on the way in, and waited for on the way out --
API cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t n, cudaMemcpyKind, cudaStream_t stream) {
    STICKY;
    if (!known(stream)) return error(cudaErrorInvalidResourceHandle);
    if (!n) return error(0);
    Stream* s = at(stream);
    bool staged = pageable(from), waits = !staged && pageable(to);
    if (staged || waits) {
        count(staged ? "cudaMemcpyAsync from pageable" : "cudaMemcpyAsync to pageable");
        if (s->capture) return error(cudaErrorStreamCaptureUnsupported);
    }
    if (staged)
        enqueue(s, [to, bytes = std::string((const char*)from, n)] { memcpy(to, bytes.data(), bytes.size()); });
    else
        enqueue(s, [=] { memcpy(to, from, n); });
    if (waits) mark(s)->wait();
    STICKY;
    return error(0);
}
API cudaError_t cudaMemcpy(void* to, const void* from, size_t n, cudaMemcpyKind kind) {
    count("cudaMemcpy");
    cudaError_t code = cudaMemcpyAsync(to, from, n, kind, 0);
    if (code) return code;
    mark(at(0))->wait();
    STICKY;
    return error(0);
}
API cudaError_t cudaMemcpyPeerAsync(void* to, int, const void* from, int, size_t n, cudaStream_t s) {
    return cudaMemcpyAsync(to, from, n, cudaMemcpyDefault, s);
}
API cudaError_t cudaMemcpyPeer(void* to, int, const void* from, int, size_t n) {
    return cudaMemcpy(to, from, n, cudaMemcpyDefault);
}

API cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width,
                                  size_t rows, cudaMemcpyKind, cudaStream_t s) {
    STICKY;
    enqueue(at(s), [=] {
        for (size_t i = 0; i < rows; i++) memcpy((char*)to + i * to_pitch, (const char*)from + i * from_pitch, width);
    });
    if (pageable(to) || pageable(from)) mark(at(s))->wait();
    return error(0);
}

API cudaError_t cudaMemsetAsync(void* p, int value, size_t n, cudaStream_t s) {
    STICKY;
    enqueue(at(s), [=] { memset(p, value, n); });
    return error(0);
}
API cudaError_t cudaMemset(void* p, int value, size_t n) { return cudaMemsetAsync(p, value, n, 0); }
