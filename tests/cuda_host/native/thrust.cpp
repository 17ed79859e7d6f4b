// What CuPy's thrust module calls: sorting. Stands in for cupy_thrust.cu, and as that does it takes temporary memory by
// CuPy's allocator, and gives it back before the stream has come so far.
#include <algorithm>
#include <cmath>
#include <complex>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <stdexcept>
#include <vector>

#include "library.h"

// Numbers that are none come last, as in NumPy.
template <class T>
bool less(T a, T b) {
    if constexpr (std::is_same_v<T, _Float16>)
        return less((float)a, (float)b);
    else if constexpr (std::is_floating_point_v<T>)
        return !(a != a) && (b != b || a < b);
    else
        return a < b;
}
template <class F>
bool less(std::complex<F> a, std::complex<F> b) {
    bool none = std::isnan(a.real()), none_b = std::isnan(b.real());
    if (none != none_b) return none_b;
    return none || a.real() == b.real() ? less(a.imag(), b.imag()) : a.real() < b.real();
}

template <class F>
void with(int type, F f) {  // f with a zero of the type
    switch (type) {
        case 0: return f((int8_t)0);
        case 1: return f((uint8_t)0);
        case 2: return f((int16_t)0);
        case 3: return f((uint16_t)0);
        case 4: return f((int32_t)0);
        case 5: return f((uint32_t)0);
        case 6: return f((int64_t)0);
        case 7: return f((uint64_t)0);
        case 8: return f((_Float16)0);
        case 9: return f(0.0f);
        case 10: return f(0.0);
        case 11: return f(std::complex<float>());
        case 12: return f(std::complex<double>());
        case 13: return f(false);
    }
    throw std::runtime_error("Unsupported dtype ID");
}

extern "C" char* cupy_malloc(void* manager, size_t size);  // of CuPy's module
extern "C" int cupy_free(void* manager, char* memory);

static void enqueue_with_temporary(void* manager, size_t bytes, intptr_t stream, std::function<void()> sort) {
    char* temporary = cupy_malloc(manager, bytes);
    if (bytes && !temporary) throw std::bad_alloc();
    enqueue((void*)stream, [=] { with_scratch(temporary, bytes, sort); });
    cupy_free(manager, temporary);
}

static size_t product(const std::vector<ptrdiff_t>& shape) {
    return std::accumulate(shape.begin(), shape.end(), (size_t)1, std::multiplies<>());
}

template <class T>
void sort_indices(size_t* first, size_t* last, const T* keys) {
    std::stable_sort(first, last, [=](size_t a, size_t b) { return less(keys[a], keys[b]); });
}

void thrust_sort(int type, void* data, size_t*, const std::vector<ptrdiff_t>& shape, intptr_t stream, void* manager) {
    size_t size = product(shape), row = shape.back();
    with(type, [=](auto zero) {
        using T = decltype(zero);
        enqueue_with_temporary(manager, size * sizeof(T), stream, [=] {
            for (T* at = (T*)data; at < (T*)data + size; at += row)
                std::stable_sort(at, at + row, [](T a, T b) { return less(a, b); });
        });
    });
}

void thrust_lexsort(int type, size_t* index, void* keys, size_t count, size_t n, intptr_t stream, void* manager) {
    with(type, [=](auto zero) {
        using T = decltype(zero);
        enqueue_with_temporary(manager, n * sizeof(size_t), stream, [=] {
            std::iota(index, index + n, 0);
            for (size_t i = 0; i < count; i++) sort_indices(index, index + n, (T*)keys + i * n);
        });
    });
}

void thrust_argsort(int type, size_t* index, void* data, void*, const std::vector<ptrdiff_t>& shape, intptr_t stream,
                    void* manager) {
    size_t size = product(shape), row = shape.back();
    with(type, [=](auto zero) {
        using T = decltype(zero);
        enqueue_with_temporary(manager, size * sizeof(size_t), stream, [=] {
            for (size_t i = 0; i < size; i += row) {
                std::iota(index + i, index + i + row, 0);
                sort_indices(index + i, index + i + row, (T*)data + i);
            }
        });
    });
}
