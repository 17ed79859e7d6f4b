// The driver's interface: modules, which are shared libraries that nvrtc.cpp made, and launches.
#include <dlfcn.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <fstream>
#include <map>

#include "host.h"
#include "nvrtc.h"

struct Module {
    void* library;
    void* memory;  // on the device
    std::map<std::string, Kernel> kernels;
};

API CUresult cuModuleLoadData(CUmodule* out, const void* image) {
    count("cuModuleLoadData");
    if (int code = fault_here()) return (CUresult)code;
    std::string body = body_of((const char*)image);
    if (body.empty()) return CUDA_ERROR_INVALID_IMAGE;
    static std::atomic<int> loaded{0};  // each under a name of its own, or the loader takes it for one that it has
    std::string name = cache() + "/load." + std::to_string(getpid()) + "." + std::to_string(loaded++) + ".so";
    std::ofstream(name, std::ios::binary) << body;
    void* library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    unlink(name.c_str());
    if (!library) {
        fprintf(stderr, "hostcuda: %s\n", dlerror());
        return CUDA_ERROR_INVALID_IMAGE;
    }
    void* memory;
    if (int code = cudaMalloc(&memory, 4096)) {
        dlclose(library);
        return (CUresult)code;
    }
    *out = (CUmodule) new Module{library, memory, {}};
    return CUDA_SUCCESS;
}
API CUresult cuModuleUnload(CUmodule h) {  // waits for the device; a graph that runs its kernels later fails that
    auto* module = (Module*)h;
    cudaFree(module->memory);
    for (auto& [name, kernel] : module->kernels) kernel.call = nullptr;
    dlclose(module->library);
    return CUDA_SUCCESS;
}

API CUresult cuModuleGetFunction(CUfunction* out, CUmodule h, const char* name) {
    auto* module = (Module*)h;
    auto found = module->kernels.find(name);
    if (found == module->kernels.end()) {
        auto* call = (void (*)(void**))dlsym(module->library, (std::string("hostcuda_call_") + name).c_str());
        auto* sizes_of = (int (*)(unsigned*))dlsym(module->library, (std::string("hostcuda_sizes_") + name).c_str());
        auto* how = (int*)dlsym(module->library, "hostcuda_how");
        if (!call || !sizes_of || !how) return CUDA_ERROR_NOT_FOUND;
        unsigned sizes[256];
        int n = sizes_of(sizes);
        found = module->kernels.insert({name, {call, {sizes, sizes + n}, (Kernel::How)*how}}).first;
    }
    *out = (CUfunction)&found->second;
    return CUDA_SUCCESS;
}

API CUresult cuModuleGetGlobal_v2(CUdeviceptr* p, size_t* size, CUmodule h, const char* name) {
    *p = (CUdeviceptr)dlsym(((Module*)h)->library, name);
    if (size) *size = 0;
    return *p ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

API CUresult cuLaunchKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                            unsigned shared, CUstream h, void** arguments, void**) {
    if (int code = fault_here()) return (CUresult)code;
    if (!known((cudaStream_t)h) || (size_t)bx * by * bz > 1024) return CUDA_ERROR_INVALID_VALUE;
    Stream* stream = at((cudaStream_t)h);
    if (stream->device != current) return CUDA_ERROR_INVALID_HANDLE;  // as a stream of another context is
    count("cuLaunchKernel");
    auto* kernel = (Kernel*)f;
    using Room = std::vector<std::max_align_t>;
    std::vector<Room> copies;
    for (size_t i = 0; i < kernel->sizes.size(); i++) {
        copies.emplace_back(kernel->sizes[i] / sizeof(std::max_align_t) + 1);
        memcpy(copies.back().data(), arguments[i], kernel->sizes[i]);
    }
    enqueue(stream, [=] {
        auto mine = copies;  // a kernel may write to its arguments, and run again in a graph
        std::vector<void*> pointers;
        for (auto& copy : mine) pointers.push_back(copy.data());
        run_grid(*kernel, pointers.data(), {gx, gy, gz}, {bx, by, bz}, shared);
    });
    return CUDA_SUCCESS;
}

API CUresult cuGetErrorName(CUresult code, const char** name) {
    *name = cudaGetErrorName((cudaError_t)code);
    return CUDA_SUCCESS;
}
API CUresult cuGetErrorString(CUresult code, const char** text) { return cuGetErrorName(code, text); }

API CUresult cuFuncGetAttribute(int* value, CUfunction_attribute attribute, CUfunction) {
    *value = attribute == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? 1024 : 0;
    return CUDA_SUCCESS;
}
API CUresult cuFuncSetAttribute(CUfunction, CUfunction_attribute, int) { return CUDA_SUCCESS; }
API CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int* n, CUfunction, int, size_t) {
    *n = 4;
    return CUDA_SUCCESS;
}
API CUresult cuOccupancyMaxPotentialBlockSize(int* grid, int* block, CUfunction, CUoccupancyB2DSize, size_t, int) {
    *grid = 4;
    *block = 256;
    return CUDA_SUCCESS;
}

// A context is its device's number, and one. Those that a thread pushes lie above the device that it has set.
static thread_local std::vector<int> below;

API CUresult cuInit(unsigned) { return CUDA_SUCCESS; }
API CUresult cuDeviceGet(CUdevice* device, int number) {
    *device = number;
    return number < DEVICES ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}
API CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
    if (int code = devices[device].fault) return (CUresult)code;
    make_context(device);
    *context = (CUcontext)(size_t)(device + 1);
    return CUDA_SUCCESS;
}
API CUresult cuCtxPushCurrent_v2(CUcontext context) {
    below.push_back(current);
    return cuCtxSetCurrent(context);
}
API CUresult cuCtxPopCurrent_v2(CUcontext* context) {
    if (below.empty()) return CUDA_ERROR_INVALID_CONTEXT;
    cuCtxGetCurrent(context);
    current = below.back();
    below.pop_back();
    return CUDA_SUCCESS;
}
API CUresult cuEventQuery(CUevent event) { return (CUresult)cudaEventQuery(event); }
API CUresult cuMemGetInfo_v2(size_t* free, size_t* total) { return (CUresult)cudaMemGetInfo(free, total); }
API CUresult cuDriverGetVersion(int* version) { return (CUresult)cudaDriverGetVersion(version); }
API CUresult cuCtxGetDevice(CUdevice* device) {
    *device = current;
    return CUDA_SUCCESS;
}
API CUresult cuCtxGetCurrent(CUcontext* context) {
    *context = (CUcontext)(size_t)(current + 1);
    return CUDA_SUCCESS;
}
API CUresult cuCtxSetCurrent(CUcontext context) {
    current = (int)(size_t)context - 1;
    return CUDA_SUCCESS;
}
API CUresult cuStreamGetCtx(CUstream s, CUcontext* context) {
    *context = (CUcontext)(size_t)(at((cudaStream_t)s)->device + 1);
    return CUDA_SUCCESS;
}
