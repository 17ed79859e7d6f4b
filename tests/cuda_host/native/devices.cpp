// Devices: which is current, what they are, and how they fail.
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <map>

#include "host.h"

const int DEVICES = setting("HOSTCUDA_DEVICES", 2);
const size_t MEMORY = (size_t)setting("HOSTCUDA_MEMORY_MB", 4096) << 20;
Device devices[16];
thread_local int current = 0;
static thread_local int last_error = 0;

cudaError_t error(int code) {
    if (code) last_error = code;
    return (cudaError_t)code;
}

// What device 0 answers to whatever would make a context there: that it has no room, or is another process's alone.
static const int REFUSES = (devices[0].fault = setting("HOSTCUDA_REFUSES", 0));

int forked() {
    static const pid_t began = getpid();  // in the process that asked first
    return getpid() == began ? 0 : cudaErrorInitializationError;
}

// For tests: the device fails with this error, as a card does that was lost.
API void hostcuda_fail(int device, int code) { devices[device].fault = code; }

API cudaError_t cudaGetLastError() {
    int code = last_error;
    last_error = 0;
    return (cudaError_t)code;
}

API const char* cudaGetErrorName(cudaError_t code) {
    static const std::map<int, const char*> names = {
        {0, "cudaSuccess"},
        {1, "cudaErrorInvalidValue"},
        {2, "cudaErrorMemoryAllocation"},
        {3, "cudaErrorInitializationError"},
        {35, "cudaErrorInsufficientDriver"},
        {46, "cudaErrorDevicesUnavailable"},
        {100, "cudaErrorNoDevice"},
        {101, "cudaErrorInvalidDevice"},
        {400, "cudaErrorInvalidResourceHandle"},
        {401, "cudaErrorIllegalState"},
        {600, "cudaErrorNotReady"},
        {700, "cudaErrorIllegalAddress"},
        {704, "cudaErrorPeerAccessAlreadyEnabled"},
        {801, "cudaErrorNotSupported"},
        {900, "cudaErrorStreamCaptureUnsupported"},
        {901, "cudaErrorStreamCaptureInvalidated"},
        {905, "cudaErrorStreamCaptureIsolation"},
        {906, "cudaErrorStreamCaptureImplicit"},
        {907, "cudaErrorCapturedEvent"},
    };
    auto found = names.find(code);
    return found == names.end() ? "cudaErrorUnknown" : found->second;
}
API const char* cudaGetErrorString(cudaError_t code) { return cudaGetErrorName(code); }

static const int CUDA = 12090;  // what the runtime is of
static const int DRIVER = setting("HOSTCUDA_DRIVER", CUDA);

API cudaError_t cudaGetDeviceCount(int* n) {
    *n = DRIVER / 1000 < CUDA / 1000 ? 0 : DEVICES;
    if (int code = forked()) return error(code);
    return error(DRIVER / 1000 < CUDA / 1000 ? cudaErrorInsufficientDriver : DEVICES ? 0 : cudaErrorNoDevice);
}

API cudaError_t cudaGetDevice(int* device) {
    *device = current;
    return error(0);
}

void make_context(int device) {  // by the first call that needs it: since CUDA 12 cudaSetDevice, which then takes long
    static std::once_flag made[16];
    std::call_once(made[device], [device] { count("context of device " + std::to_string(device)); });
}

API cudaError_t cudaSetDevice(int device) {
    if (device < 0 || device >= DEVICES) return error(cudaErrorInvalidDevice);
    current = device;
    if (REFUSES && device == 0) return error(REFUSES);
    make_context(device);
    return error(0);
}

API cudaError_t cudaDeviceSynchronize() {
    count("cudaDeviceSynchronize");
    if (spoils(current)) return error(cudaErrorStreamCaptureUnsupported);
    drain(current);
    STICKY;
    return error(0);
}

API cudaError_t cudaDriverGetVersion(int* v) {
    *v = DRIVER;
    return error(0);
}
API cudaError_t cudaRuntimeGetVersion(int* v) {
    *v = CUDA;
    return error(0);
}

API cudaError_t cudaGetDeviceProperties_v2(cudaDeviceProp* p, int) {
    memset(p, 0, sizeof *p);
    const char* name = getenv("HOSTCUDA_NAME");
    snprintf(p->name, sizeof p->name, "%s", name ? name : "host memory");
    p->major = 8;
    p->totalGlobalMem = MEMORY;
    p->sharedMemPerBlock = 49152;
    p->regsPerBlock = 65536;
    p->warpSize = 32;
    p->maxThreadsPerBlock = p->maxThreadsDim[0] = p->maxThreadsDim[1] = 1024;
    p->maxThreadsDim[2] = 64;
    p->maxGridSize[0] = 0x7fffffff;
    p->maxGridSize[1] = p->maxGridSize[2] = 65535;
    p->multiProcessorCount = 4;
    p->maxThreadsPerMultiProcessor = 2048;
    p->concurrentKernels = p->unifiedAddressing = p->managedMemory = 1;
    p->asyncEngineCount = 2;
    p->clockRate = p->memoryClockRate = 1000000;
    p->memoryBusWidth = 256;
    p->l2CacheSize = 1 << 20;
    return error(0);
}

API cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
    static const std::map<int, int> known = {
        {cudaDevAttrComputeCapabilityMajor, 8},
        {cudaDevAttrComputeCapabilityMinor, 0},
        {cudaDevAttrMultiProcessorCount, 4},
        {cudaDevAttrMaxThreadsPerBlock, 1024},
        {cudaDevAttrWarpSize, 32},
        {cudaDevAttrMaxSharedMemoryPerBlock, 49152},
        {cudaDevAttrMaxBlockDimX, 1024},
        {cudaDevAttrMaxGridDimX, 0x7fffffff},
        {cudaDevAttrMaxGridDimY, 65535},
        {cudaDevAttrMaxThreadsPerMultiProcessor, 2048},
        {cudaDevAttrUnifiedAddressing, 1},
    };
    auto found = known.find(attribute);
    *value = found == known.end() ? 0 : found->second;
    return error(0);
}

API cudaError_t cudaDeviceCanAccessPeer(int* can, int a, int b) {
    *can = a != b;
    return error(0);
}

API cudaError_t cudaDeviceEnablePeerAccess(int other, unsigned) {
    static std::atomic<bool> enabled[16][16];
    make_context(other);
    return error(enabled[current][other].exchange(true) ? cudaErrorPeerAccessAlreadyEnabled : 0);
}
API cudaError_t cudaDeviceDisablePeerAccess(int) { return error(0); }

API cudaError_t cudaDeviceGetPCIBusId(char* id, int room, int device) {
    snprintf(id, room, "0000:%02x:00.0", device);
    return error(0);
}
