// What CUDA C++ needs to be compiled for the host by g++. Precompiled; goes before every kernel's source.
#pragma once
#include <vector_types.h>

#include <algorithm>
#include <cassert>
#include <cfloat>
#include <climits>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <initializer_list>
#include <tuple>
#include <type_traits>
#include <utility>
#define __CUDACC_VER_MAJOR__ 12
#define __CUDACC_VER_MINOR__ 9
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#undef __shared__
#undef __constant__
#undef __global__
#undef __device__
#undef __host__
#undef __managed__
#undef __launch_bounds__
#define __shared__ static thread_local
#define __constant__
#define __global__
#define __device__
#define __host__
#define __managed__
#define __launch_bounds__(...)
#ifndef __noinline__
#define __noinline__ __attribute__((noinline))
#endif
#ifndef __forceinline__
#define __forceinline__ inline __attribute__((always_inline))
#endif

struct hostcuda_dim {
    unsigned x, y, z;
};
struct hostcuda_context {
    hostcuda_dim thread, block, block_dim, grid_dim;
    void* shared;
    void* slots;
};
extern "C" __attribute__((tls_model("initial-exec"), visibility("default"))) thread_local hostcuda_context hostcuda_now;
extern "C" __attribute__((visibility("default"))) void hostcuda_barrier(int warp);
#define threadIdx (hostcuda_now.thread)
#define blockIdx (hostcuda_now.block)
#define blockDim (hostcuda_now.block_dim)
#define gridDim (hostcuda_now.grid_dim)
static const int warpSize = 32;

inline void __syncthreads() { hostcuda_barrier(0); }
inline void __syncwarp(unsigned = 0xffffffffu) { hostcuda_barrier(1); }
inline void __threadfence() {}
inline void __threadfence_block() {}
inline void __threadfence_system() {}
inline long long clock64() { return (long long)__builtin_ia32_rdtsc(); }
inline long long clock() { return clock64(); }
inline void __nanosleep(unsigned) {}
inline unsigned hostcuda_lane() { return (threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)) & 31; }
template <class T>
T hostcuda_exchange(T value, int from) {
    static_assert(sizeof(T) <= 16);
    char* slots = (char*)hostcuda_now.slots;
    memcpy(slots + 16 * hostcuda_lane(), (void*)&value, sizeof(T));
    hostcuda_barrier(1);
    T result = value;
    if (from >= 0 && from < 32) memcpy((void*)&result, slots + 16 * from, sizeof(T));
    hostcuda_barrier(1);
    return result;
}
template <class T>
T __shfl_sync(unsigned, T v, int lane, int width = 32) {
    int l = hostcuda_lane();
    return hostcuda_exchange(v, (l & ~(width - 1)) | (lane & (width - 1)));
}
template <class T>
T __shfl_up_sync(unsigned, T v, unsigned by, int width = 32) {
    int l = hostcuda_lane(), low = l & ~(width - 1);
    return hostcuda_exchange(v, l - (int)by < low ? l : l - (int)by);
}
template <class T>
T __shfl_down_sync(unsigned, T v, unsigned by, int width = 32) {
    int l = hostcuda_lane(), high = l | (width - 1);
    return hostcuda_exchange(v, l + (int)by > high ? l : l + (int)by);
}
template <class T>
T __shfl_xor_sync(unsigned, T v, int mask, int = 32) {
    return hostcuda_exchange(v, hostcuda_lane() ^ mask);
}

inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __clz(int x) { return x ? __builtin_clz((unsigned)x) : 32; }
inline int __clzll(long long x) { return x ? __builtin_clzll((unsigned long long)x) : 64; }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __ffsll(long long x) { return __builtin_ffsll(x); }
inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)(((unsigned long long)a * b) >> 32); }
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    return (unsigned long long)(((unsigned __int128)a * b) >> 64);
}
template <class To, class From>
To hostcuda_bits(From v) {
    To r;
    memcpy((void*)&r, (void*)&v, sizeof r);
    return r;
}
inline float __int_as_float(int v) { return hostcuda_bits<float>(v); }
inline float __uint_as_float(unsigned v) { return hostcuda_bits<float>(v); }
inline int __float_as_int(float v) { return hostcuda_bits<int>(v); }
inline unsigned __float_as_uint(float v) { return hostcuda_bits<unsigned>(v); }
inline double __longlong_as_double(long long v) { return hostcuda_bits<double>(v); }
inline long long __double_as_longlong(double v) { return hostcuda_bits<long long>(v); }
inline double __hiloint2double(int h, int l) { return hostcuda_bits<double>(((long long)h << 32) | (unsigned)l); }
inline int __double2hiint(double v) { return (int)(hostcuda_bits<long long>(v) >> 32); }
inline int __double2loint(double v) { return (int)hostcuda_bits<long long>(v); }
template <class T>
T __ldg(const T* p) {
    return *p;
}

#define HOSTCUDA_ATOMIC(T)                                                                                   \
    inline T atomicAdd(T* p, T v) { return __atomic_fetch_add(p, v, __ATOMIC_SEQ_CST); }                     \
    inline T atomicSub(T* p, T v) { return __atomic_fetch_sub(p, v, __ATOMIC_SEQ_CST); }                     \
    inline T atomicAnd(T* p, T v) { return __atomic_fetch_and(p, v, __ATOMIC_SEQ_CST); }                     \
    inline T atomicOr(T* p, T v) { return __atomic_fetch_or(p, v, __ATOMIC_SEQ_CST); }                       \
    inline T atomicXor(T* p, T v) { return __atomic_fetch_xor(p, v, __ATOMIC_SEQ_CST); }                     \
    inline T atomicExch(T* p, T v) { return __atomic_exchange_n(p, v, __ATOMIC_SEQ_CST); }                   \
    inline T atomicCAS(T* p, T e, T v) {                                                                     \
        __atomic_compare_exchange_n(p, &e, v, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);                    \
        return e;                                                                                            \
    }                                                                                                        \
    inline T atomicMax(T* p, T v) {                                                                          \
        T o = *p;                                                                                            \
        while (o < v && !__atomic_compare_exchange_n(p, &o, v, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) { \
        }                                                                                                    \
        return o;                                                                                            \
    }                                                                                                        \
    inline T atomicMin(T* p, T v) {                                                                          \
        T o = *p;                                                                                            \
        while (v < o && !__atomic_compare_exchange_n(p, &o, v, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) { \
        }                                                                                                    \
        return o;                                                                                            \
    }
HOSTCUDA_ATOMIC(int)
HOSTCUDA_ATOMIC(unsigned)
HOSTCUDA_ATOMIC(unsigned long long)
template <class F, class I>
F hostcuda_add(F* p, F v) {
    I o = *(I*)p, n;
    do {
        n = hostcuda_bits<I>(hostcuda_bits<F>(o) + v);
    } while (!__atomic_compare_exchange_n((I*)p, &o, n, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST));
    return hostcuda_bits<F>(o);
}
inline float atomicAdd(float* p, float v) { return hostcuda_add<float, unsigned>(p, v); }
inline double atomicAdd(double* p, double v) { return hostcuda_add<double, unsigned long long>(p, v); }

using std::abs;
using std::acos;
using std::acosh;
using std::asin;
using std::asinh;
using std::atan;
using std::atan2;
using std::atanh;
using std::cbrt;
using std::ceil;
using std::copysign;
using std::cos;
using std::cosh;
using std::erf;
using std::erfc;
using std::exp;
using std::exp2;
using std::expm1;
using std::fabs;
using std::floor;
using std::fma;
using std::fmax;
using std::fmin;
using std::fmod;
using std::frexp;
using std::hypot;
using std::isfinite;
using std::isinf;
using std::isnan;
using std::ldexp;
using std::lgamma;
using std::log;
using std::log10;
using std::log1p;
using std::log2;
using std::modf;
using std::nextafter;
using std::pow;
using std::remainder;
using std::rint;
using std::round;
using std::signbit;
using std::sin;
using std::sinh;
using std::sqrt;
using std::tan;
using std::tanh;
using std::tgamma;
using std::trunc;
inline float rsqrt(float x) { return 1 / sqrtf(x); }
inline double rsqrt(double x) { return 1 / sqrt(x); }
inline float rsqrtf(float x) { return 1 / sqrtf(x); }
inline double sinpi(double x) { return std::sin(M_PI * x); }
inline double cospi(double x) { return std::cos(M_PI * x); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __expf(float a) { return expf(a); }

#define HOSTCUDA_MINMAX(A, B, R)                                 \
    inline R min(A a, B b) { return (R)a < (R)b ? (R)a : (R)b; } \
    inline R max(A a, B b) { return (R)a < (R)b ? (R)b : (R)a; }
HOSTCUDA_MINMAX(int, int, int)
HOSTCUDA_MINMAX(unsigned, unsigned, unsigned)
HOSTCUDA_MINMAX(int, unsigned, unsigned)
HOSTCUDA_MINMAX(unsigned, int, unsigned)
HOSTCUDA_MINMAX(long, long, long)
HOSTCUDA_MINMAX(unsigned long, unsigned long, unsigned long)
HOSTCUDA_MINMAX(long, unsigned long, unsigned long)
HOSTCUDA_MINMAX(unsigned long, long, unsigned long)
HOSTCUDA_MINMAX(long long, long long, long long)
HOSTCUDA_MINMAX(unsigned long long, unsigned long long, unsigned long long)
HOSTCUDA_MINMAX(long long, unsigned long long, unsigned long long)
HOSTCUDA_MINMAX(unsigned long long, long long, unsigned long long)
inline float min(float a, float b) { return fminf(a, b); }
inline float max(float a, float b) { return fmaxf(a, b); }
inline double min(double a, double b) { return std::fmin(a, b); }
inline double max(double a, double b) { return std::fmax(a, b); }
inline double min(float a, double b) { return std::fmin(a, b); }
inline double max(float a, double b) { return std::fmax(a, b); }
inline double min(double a, float b) { return std::fmin(a, b); }
inline double max(double a, float b) { return std::fmax(a, b); }

namespace hostcuda {
template <class... A, std::size_t... I>
void call(void (*kernel)(A...), void** p, std::index_sequence<I...>) {
    kernel(*(std::remove_reference_t<A>*)p[I]...);
}
template <class... A>
void invoke(void (*kernel)(A...), void** p) {
    call(kernel, p, std::index_sequence_for<A...>{});
}
template <class... A>
int sizes(void (*)(A...), unsigned* out) {
    unsigned found[] = {(unsigned)sizeof(A)..., 0};
    for (std::size_t i = 0; i < sizeof...(A); i++) out[i] = found[i];
    return sizeof...(A);
}
}  // namespace hostcuda
#define HOSTCUDA_HOW(how) extern "C" __attribute__((visibility("default"))) const int hostcuda_how = how;
#define HOSTCUDA_KERNEL(name, kernel)                                                          \
    extern "C" __attribute__((visibility("default"))) void hostcuda_call_##name(void** p) {    \
        hostcuda::invoke(kernel, p);                                                           \
    }                                                                                          \
    extern "C" __attribute__((visibility("default"))) int hostcuda_sizes_##name(unsigned* s) { \
        return hostcuda::sizes(kernel, s);                                                     \
    }

#include <cupy/math_constants.h>

#include <cupy/atomics.cuh>
#include <cupy/carray.cuh>
#include <cupy/complex.cuh>
