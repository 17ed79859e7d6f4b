// The products of cuBLAS that CuPy calls, on the handle's stream. Column by column, as there.
#include <atomic>
#include <complex>
#include <cstdio>
#include <memory>
#include <type_traits>
#include <vector>

#include "library.h"

#define API extern "C" __attribute__((visibility("default")))
using C = std::complex<float>;
using Z = std::complex<double>;
using H = _Float16;

struct Handle {  // with the workspace that it takes for itself, and the one that it was given
    void* stream = nullptr;
    void *own = nullptr, *given = nullptr;
    int device_pointers = 0, math = 0;
    std::shared_ptr<std::atomic<bool>> destroyed = std::make_shared<std::atomic<bool>>(false);
};
static const size_t WORKSPACE = 4 << 20, USED = 4096;

static void enqueue_with_workspace(void* h, std::function<void()> product) {
    auto* handle = (Handle*)h;
    hostcuda_count("cuBLAS, a product");
    enqueue(handle->stream,
            [product, workspace = handle->given ? handle->given : handle->own, destroyed = handle->destroyed] {
                if (*destroyed) fail_device();  // a graph that outlives its handle
                with_scratch(workspace, USED, product);
            });
}

template <class T>
T conjugate(T v, bool wanted) {
    if constexpr (std::is_same_v<T, C> || std::is_same_v<T, Z>)
        return wanted ? std::conj(v) : v;
    else
        return v;
}

struct Matrix {  // how one lies: t is 0 (as it is), 1 (transposed) or 2 (and conjugated); then from one to the next
    int t;
    long ld, stride = 0;
};
template <class To, class T>
To element(const T* p, Matrix m, long row, long column) {
    return conjugate((To)(m.t ? p[column + row * m.ld] : p[row + column * m.ld]), m.t == 2);
}

// A number that is read when it is called, or, if it lies on the device, when the stream comes to it.
template <class T>
struct Number {
    T value;
    const T* late;
    Number(void* h, const void* p) : value(), late(nullptr) {
        if (((Handle*)h)->device_pointers)
            late = (const T*)p;
        else
            value = *(const T*)p;
    }
    T get() const { return late ? *late : value; }
};

// c = alpha * a @ b + beta * c, where what c holds counts for nothing if beta is 0. Sums are of the type Sum.
template <class In, class Out, class Sum>
void multiply(int m, int n, int k, Sum alpha, const In* a, Matrix la, const In* b, Matrix lb, Sum beta, Out* c,
              long ldc) {
    std::vector<Sum> left((size_t)m * k), sums(m);
    for (int p = 0; p < k; p++)
        for (int i = 0; i < m; i++) left[(size_t)p * m + i] = element<Sum>(a, la, i, p);
    for (int j = 0; j < n; j++) {
        std::fill(sums.begin(), sums.end(), Sum());
        for (int p = 0; p < k; p++) {
            Sum v = element<Sum>(b, lb, p, j);
            const Sum* l = &left[(size_t)p * m];
            for (int i = 0; i < m; i++) sums[i] += l[i] * v;
        }
        for (int i = 0; i < m; i++) {
            Out& out = c[i + j * ldc];
            out = beta == Sum() ? (Out)(alpha * sums[i]) : (Out)(alpha * sums[i] + beta * (Sum)out);
        }
    }
}

struct Sizes {
    int m, n, k;
};
template <class In, class Out, class Sum>
int gemm(void* h, Sizes s, const void* alpha, const void* a, Matrix la, const void* b, Matrix lb, const void* beta,
         void* c, Matrix lc, int count) {
    Number<Sum> x(h, alpha), y(h, beta);
    enqueue_with_workspace(h, [=] {
        for (int i = 0; i < count; i++)
            multiply(s.m, s.n, s.k, x.get(), (const In*)a + i * la.stride, la, (const In*)b + i * lb.stride, lb,
                     y.get(), (Out*)c + i * lc.stride, lc.ld);
    });
    return 0;
}

template <class T>
int batched(void* h, Sizes s, const T* alpha, const T* const* a, Matrix la, const T* const* b, Matrix lb, const T* beta,
            T* const* c, int ldc, int count) {
    Number<T> x(h, alpha), y(h, beta);
    enqueue_with_workspace(h, [=] {
        for (int i = 0; i < count; i++) multiply(s.m, s.n, s.k, x.get(), a[i], la, b[i], lb, y.get(), c[i], ldc);
    });
    return 0;
}

template <class T>
int gemv(void* h, int t, int m, int n, const T* alpha, const T* a, int lda, const T* x, int ix, const T* beta, T* y,
         int iy) {
    Number<T> p(h, alpha), q(h, beta);
    enqueue_with_workspace(h, [=] {
        for (int i = 0; i < (t ? n : m); i++) {
            T sum = T();
            for (int j = 0; j < (t ? m : n); j++) sum += element<T>(a, {t, lda}, i, j) * x[j * ix];
            y[i * iy] = q.get() == T() ? p.get() * sum : p.get() * sum + q.get() * y[i * iy];
        }
    });
    return 0;
}

template <class T>  // c = alpha * a + beta * b
int geam(void* h, int ta, int tb, int m, int n, const T* alpha, const T* a, int lda, const T* beta, const T* b, int ldb,
         T* c, int ldc) {
    Number<T> p(h, alpha), q(h, beta);
    enqueue(((Handle*)h)->stream, [=] {
        for (int j = 0; j < n; j++)
            for (int i = 0; i < m; i++) {
                T u = p.get() == T() ? T() : p.get() * element<T>(a, {ta, lda}, i, j);
                c[i + (long)j * ldc] = q.get() == T() ? u : u + q.get() * element<T>(b, {tb, ldb}, i, j);
            }
    });
    return 0;
}

// -- handles --
API int cublasCreate_v2(void** h) {
    static const int NO_MEMORY = 3;
    hostcuda_count("cublasCreate");
    auto* made = new Handle;
    *h = made;
    return cudaMalloc(&made->own, WORKSPACE) ? NO_MEMORY : 0;
}
API int cublasDestroy_v2(void* h) {
    cudaDeviceSynchronize();
    cudaFree(((Handle*)h)->own);  // waits for the device
    *((Handle*)h)->destroyed = true;
    delete (Handle*)h;
    return 0;
}
API int cublasGetVersion_v2(void*, int* version) {
    *version = 120900;
    return 0;
}
#define PROPERTY(Name, type, field)                                                 \
    API int cublasSet##Name(void* h, type v) { return ((Handle*)h)->field = v, 0; } \
    API int cublasGet##Name(void* h, type* v) { return *v = ((Handle*)h)->field, 0; }
API int cublasSetStream_v2(void* h, void* stream) {
    ((Handle*)h)->stream = stream;
    ((Handle*)h)->given = nullptr;  // as there
    return 0;
}
API int cublasGetStream_v2(void* h, void** stream) { return *stream = ((Handle*)h)->stream, 0; }
API int cublasSetWorkspace_v2(void* h, void* workspace, size_t n) {
    static const int INVALID_VALUE = 7, ALIGNMENT = 256;
    if ((size_t)workspace % ALIGNMENT || n < USED) return INVALID_VALUE;
    ((Handle*)h)->given = workspace;
    return 0;
}
PROPERTY(PointerMode_v2, int, device_pointers)
PROPERTY(MathMode, int, math)

// -- products, by type --
#define PRODUCTS(L, T)                                                                                                 \
    API int cublas##L##gemm_v2(void* h, int ta, int tb, int m, int n, int k, const T* al, const T* a, int lda,         \
                               const T* b, int ldb, const T* be, T* c, int ldc) {                                      \
        return gemm<T, T, T>(h, {m, n, k}, al, a, {ta, lda}, b, {tb, ldb}, be, c, {0, ldc}, 1);                        \
    }                                                                                                                  \
    API int cublas##L##gemmBatched(void* h, int ta, int tb, int m, int n, int k, const T* al, const T* const* a,       \
                                   int lda, const T* const* b, int ldb, const T* be, T* const* c, int ldc,             \
                                   int count) {                                                                        \
        return batched<T>(h, {m, n, k}, al, a, {ta, lda}, b, {tb, ldb}, be, c, ldc, count);                            \
    }                                                                                                                  \
    API int cublas##L##gemmStridedBatched(void* h, int ta, int tb, int m, int n, int k, const T* al, const T* a,       \
                                          int lda, long long sa, const T* b, int ldb, long long sb, const T* be, T* c, \
                                          int ldc, long long sc, int count) {                                          \
        return gemm<T, T, T>(h, {m, n, k}, al, a, {ta, lda, sa}, b, {tb, ldb, sb}, be, c, {0, ldc, sc}, count);        \
    }                                                                                                                  \
    API int cublas##L##gemv_v2(void* h, int t, int m, int n, const T* al, const T* a, int lda, const T* x, int ix,     \
                               const T* be, T* y, int iy) {                                                            \
        return gemv<T>(h, t, m, n, al, a, lda, x, ix, be, y, iy);                                                      \
    }                                                                                                                  \
    API int cublas##L##geam(void* h, int ta, int tb, int m, int n, const T* al, const T* a, int lda, const T* be,      \
                            const T* b, int ldb, T* c, int ldc) {                                                      \
        return geam<T>(h, ta, tb, m, n, al, a, lda, be, b, ldb, c, ldc);                                               \
    }
PRODUCTS(S, float)
PRODUCTS(D, double)
PRODUCTS(C, C)
PRODUCTS(Z, Z)

// -- products whose types are arguments --
enum { R32 = 0, R64 = 1, R16 = 2, C32 = 4, C64 = 5 };  // cudaDataType
API int cublasGemmStridedBatchedEx(void* h, int ta, int tb, int m, int n, int k, const void* al, const void* a, int at,
                                   int lda, long long sa, const void* b, int, int ldb, long long sb, const void* be,
                                   void* c, int ct, int ldc, long long sc, int count, int, int) {
    auto as = [&](auto in, auto out, auto sum) {
        return gemm<decltype(in), decltype(out), decltype(sum)>(h, {m, n, k}, al, a, {ta, lda, sa}, b, {tb, ldb, sb},
                                                                be, c, {0, ldc, sc}, count);
    };
    if (at == R32 && ct == R32) return as(0.0f, 0.0f, 0.0f);
    if (at == R64 && ct == R64) return as(0.0, 0.0, 0.0);
    if (at == R16 && ct == R16) return as(H(), H(), 0.0f);
    if (at == R16 && ct == R32) return as(H(), 0.0f, 0.0f);
    if (at == C32 && ct == C32) return as(C(), C(), C());
    if (at == C64 && ct == C64) return as(Z(), Z(), Z());
    fprintf(stderr, "hostcuda: no product of the types %d and %d\n", at, ct);
    return 15;  // not supported
}
API int cublasGemmEx(void* h, int ta, int tb, int m, int n, int k, const void* al, const void* a, int at, int lda,
                     const void* b, int bt, int ldb, const void* be, void* c, int ct, int ldc, int compute,
                     int algorithm) {
    return cublasGemmStridedBatchedEx(h, ta, tb, m, n, k, al, a, at, lda, 0, b, bt, ldb, 0, be, c, ct, ldc, 0, 1,
                                      compute, algorithm);
}
API int cublasSgemmEx(void* h, int ta, int tb, int m, int n, int k, const float* al, const void* a, int at, int lda,
                      const void* b, int bt, int ldb, const float* be, void* c, int ct, int ldc) {
    return cublasGemmEx(h, ta, tb, m, n, k, al, a, at, lda, b, bt, ldb, be, c, ct, ldc, 0, 0);
}
