// What CuPy's linear algebra calls of cuSOLVER, and the factorisations of cuBLAS: by the LAPACK that NumPy comes with.
#include <dlfcn.h>
#include <algorithm>
#include <complex>
#include <string>
#include <vector>

#include "library.h"

#define API extern "C" __attribute__((visibility("default")))
using C = std::complex<float>;
using Z = std::complex<double>;
enum { COLUMNS = 102, R32 = 0, R64 = 1, C32 = 4 };  // LAPACKE's order; cudaDataType

// -- LAPACK, by its C interface with integers of 64 bits --
template <class T>
constexpr bool COMPLEX = std::is_same_v<T, C> || std::is_same_v<T, Z>;
template <class T>
T conjugate(T v) {
    if constexpr (COMPLEX<T>) return std::conj(v);
    return v;
}
template <class T>
const std::string LETTER = COMPLEX<T> ? sizeof(T) == sizeof(C) ? "c" : "z" : sizeof(T) == sizeof(float) ? "s" : "d";

template <class A>
auto wide(A a) {
    return (std::conditional_t<std::is_same_v<A, int>, long, A>)a;
}
template <class T, class... A>
int lapack(const char* routine, A... a) {
    static void* library = [] {
        void* found = dlopen(LAPACK, RTLD_NOW);
        ((void (*)(int))dlsym(found, "scipy_LAPACKE_set_nancheck64_"))(0);  // what orgqr is given need not be numbers
        return found;
    }();
    auto name = "scipy_LAPACKE_" + LETTER<T> + routine + "64_";
    return (int)((long (*)(int, decltype(wide(a))...))dlsym(library, name.c_str()))(COLUMNS, wide(a)...);
}

struct Handle {  // as that of cublas.cpp begins
    void* stream = nullptr;
    void* own = nullptr;
};
API int cusolverDnCreate(void** h) {
    static const int NO_MEMORY = 2;
    auto* made = new Handle;
    *h = made;
    return cudaMalloc(&made->own, 4096) ? NO_MEMORY : 0;
}
API int cusolverDnDestroy(void* h) {
    cudaFree(((Handle*)h)->own);
    delete (Handle*)h;
    return 0;
}
API int cusolverDnSetStream(void* h, void* stream) { return ((Handle*)h)->stream = stream, 0; }
API int cusolverDnGetStream(void* h, void** stream) { return *stream = ((Handle*)h)->stream, 0; }
API int cusolverGetProperty(int which, int* value) { return *value = which == 0 ? 11 : which == 1 ? 7 : 5, 0; }
#define NOTHING(what)                                                     \
    API int cusolverDnCreate##what(void** it) { return *it = nullptr, 0; } \
    API int cusolverDnDestroy##what(void*) { return 0; }
NOTHING(Params)
NOTHING(SyevjInfo)
NOTHING(GesvdjInfo)
#define ON_STREAM(what) { return enqueue(((Handle*)h)->stream, [=] { what; }), 0; }
#define EACH(what) ON_STREAM(for (int i = 0; i < count; i++) what)
#define IN(work, bytes, what) ON_STREAM(with_scratch(work, bytes, [=] { what; }))
#define EACH_IN(work, bytes, what) IN(work, bytes, for (int i = 0; i < count; i++) what)

static char triangle(int fill) { return fill ? 'U' : 'L'; }

template <class T>
int factor(T* a, int m, int n, int lda, int* pivots) {
    std::vector<long> p(std::min(m, n));
    int info = lapack<T>("getrf", m, n, a, lda, p.data());
    std::copy(p.begin(), p.end(), pivots);
    return info;
}
template <class T>
int solution(int op, int n, int k, const T* a, int lda, const int* pivots, T* b, int ldb) {
    std::vector<long> p(pivots, pivots + n);
    return lapack<T>("getrs", "NTC"[op], n, k, a, lda, (const long*)p.data(), b, ldb);
}
template <class T>
int inverse(int n, const T* a, int lda, const int* pivots, T* c, int ldc) {
    for (int j = 0; j < n; j++)
        for (int i = 0; i < n; i++) c[i + j * ldc] = T(i == j);
    return solution(0, n, n, a, lda, pivots, c, ldc);
}
template <class T, class R>
int singular(char us, char vs, int m, int n, T* a, int lda, R* s, T* u, int ldu, T* v, int ldv) {
    std::vector<R> rest(std::max(std::min(m, n), 2));
    return lapack<T>("gesvd", us, vs, m, n, a, lda, s, u, ldu, v, ldv, rest.data());
}
template <class T, class R>  // gives V, not its adjoint
int jacobi(bool vectors, int m, int n, T* a, int lda, R* s, T* u, int ldu, T* v, int ldv) {
    char job = vectors ? 'A' : 'N';
    std::vector<T> adjoint((size_t)n * n + 1);
    int info = singular(job, job, m, n, a, lda, s, u, ldu, adjoint.data(), n);
    for (int j = 0; vectors && j < n; j++)
        for (int i = 0; i < n; i++) v[i + j * ldv] = conjugate(adjoint[j + i * n]);
    return info;
}
template <class T, class R>
int eigen(int job, int fill, int n, T* a, int lda, R* w) {
    return lapack<T>(COMPLEX<T> ? "heevd" : "syevd", job ? 'V' : 'N', triangle(fill), n, a, lda, w);
}

static const int ROOM = 1000;  // what each wants if CuPy asks: in elements, or in bytes. LAPACKE takes its own
#define SIZE(name, ...) API int cusolverDn##name##_bufferSize(__VA_ARGS__, int* size) { return *size = ROOM, 0; }
#define SIZE_OF_MANY(name, ...) \
    API int cusolverDn##name##_bufferSize(__VA_ARGS__, int* size, void*, int) { return *size = ROOM, 0; }
#define SOLVER(L, T, R, orgqr, syevjBatched)                                                                           \
    SIZE(L##potrf, void*, int, int, T*, int)                                                                           \
    SIZE(L##getrf, void*, int, int, T*, int)                                                                           \
    SIZE(L##geqrf, void*, int, int, T*, int)                                                                           \
    SIZE(L##gesvd, void*, int, int)                                                                                    \
    SIZE(L##orgqr, void*, int, int, int, T*, int, T*)                                                                  \
    SIZE_OF_MANY(L##syevjBatched, void*, int, int, int, T*, int, R*)                                                   \
    SIZE_OF_MANY(L##gesvdjBatched, void*, int, int, int, T*, int, R*, T*, int, T*, int)                                \
    API int cusolverDn##L##potrf(void* h, int fill, int n, T* a, int lda, T* work, int room, int* info)                \
        IN(work, room * sizeof(T), *info = lapack<T>("potrf", triangle(fill), n, a, lda))                              \
    API int cusolverDn##L##potrfBatched(void* h, int fill, int n, T** a, int lda, int* info, int count)                \
        EACH(info[i] = lapack<T>("potrf", triangle(fill), n, a[i], lda))                                               \
    API int cusolverDn##L##getrf(void* h, int m, int n, T* a, int lda, T* work, int* pivots, int* info)                \
        IN(work, ROOM * sizeof(T), *info = factor(a, m, n, lda, pivots))                                               \
    API int cusolverDn##L##getrs(void* h, int op, int n, int k, const T* a, int lda, const int* p, T* b, int ldb,      \
                                 int* info) ON_STREAM(*info = solution(op, n, k, a, lda, p, b, ldb))                   \
    API int cusolverDn##L##geqrf(void* h, int m, int n, T* a, int lda, T* tau, T* work, int room, int* info)           \
        IN(work, room * sizeof(T), *info = lapack<T>("geqrf", m, n, a, lda, tau))                                      \
    API int cusolverDn##L##orgqr(void* h, int m, int n, int k, T* a, int lda, const T* tau, T* work, int room,         \
                                 int* info)                                                                            \
        IN(work, room * sizeof(T), *info = lapack<T>(#orgqr, m, n, k, a, lda, tau))                                    \
    API int cusolverDn##L##gesvd(void* h, signed char us, signed char vs, int m, int n, T* a, int lda, R* s, T* u,     \
                                 int ldu, T* v, int ldv, T* work, int room, R*, int* info)                             \
        IN(work, room * sizeof(T), *info = singular(us, vs, m, n, a, lda, s, u, ldu, v, ldv))                          \
    API int cusolverDn##L##gesvdjBatched(void* h, int job, int m, int n, T* a, int lda, R* s, T* u, int ldu, T* v,     \
                                         int ldv, T* work, int room, int* info, void*, int count)                      \
        EACH_IN(work, room * sizeof(T),                                                                                \
                info[i] = jacobi(job, m, n, a + i * lda * n, lda, s + i * std::min(m, n), u + i * ldu * m, ldu,        \
                                 v + i * ldv * n, ldv))                                                                \
    API int cusolverDn##L##syevjBatched(void* h, int job, int fill, int n, T* a, int lda, R* w, T* work, int room,     \
                                        int* info, void*, int count)                                                   \
        EACH_IN(work, room * sizeof(T), info[i] = eigen(job, fill, n, a + i * lda * n, lda, w + i * n))                \
    API int cublas##L##getrfBatched(void* h, int n, T* const* a, int lda, int* p, int* info, int count)                \
        EACH(info[i] = factor(a[i], n, n, lda, p + i * n))                                                             \
    API int cublas##L##getrsBatched(void* h, int op, int n, int k, const T* const* a, int lda, const int* p,           \
                                    T* const* b, int ldb, int* on_host, int count) {                                   \
        *on_host = 0;                                                                                                  \
        EACH(solution(op, n, k, a[i], lda, p + i * n, b[i], ldb))                                                      \
    }                                                                                                                  \
    API int cublas##L##getriBatched(void* h, int n, const T* const* a, int lda, const int* p, T* const* c, int ldc,    \
                                    int* info, int count) EACH(info[i] = inverse(n, a[i], lda, p + i * n, c[i], ldc))
SOLVER(S, float, float, orgqr, syevjBatched)
SOLVER(D, double, double, orgqr, syevjBatched)
SOLVER(C, C, float, ungqr, heevjBatched)
SOLVER(Z, Z, double, ungqr, heevjBatched)

API int cusolverDnXsyevd_bufferSize(void*, void*, int, int, long, int, void*, long, int, void*, int, size_t* device,
                                    size_t* host) { return *device = *host = ROOM, 0; }
API int cusolverDnXsyevd(void* h, void*, int job, int fill, long n, int type, void* a, long lda, int, void* w, int,
                         void* work, size_t room, void*, size_t, int* info)
    IN(work, room, *info = type == R32   ? eigen(job, fill, n, (float*)a, lda, (float*)w)
                           : type == R64 ? eigen(job, fill, n, (double*)a, lda, (double*)w)
                           : type == C32 ? eigen(job, fill, n, (C*)a, lda, (float*)w)
                                         : eigen(job, fill, n, (Z*)a, lda, (double*)w))
