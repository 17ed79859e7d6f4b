// What CuPy's random.Generator calls: numbers from a counter. Stands in for cupy_distributions.cu.
#include <sys/types.h>

#include <cmath>
#include <cstdint>

#include "library.h"

static double uniform(uint64_t seed, uint64_t n) {  // splitmix64
    uint64_t z = seed * 0x9e3779b97f4a7c15u + (n + 1) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (double)((z ^ (z >> 31)) >> 11) / 9007199254740992.0;
}
static double normal(uint64_t seed, uint64_t n) {
    return std::sqrt(-2 * std::log1p(-uniform(seed, 2 * n))) * std::cos(2 * M_PI * uniform(seed, 2 * n + 1));
}

template <class T>
void fill(intptr_t state, intptr_t out, ssize_t size, intptr_t stream, double (*next)(uint64_t, uint64_t)) {
    enqueue((void*)stream, [=] {
        uint64_t *seed = (uint64_t*)state, *counter = seed + 1;
        for (ssize_t i = 0; i < size; i++) {
            T value = (T)next(*seed, *counter + i);
            ((T*)out)[i] = next == uniform && value >= T(1) ? T(0) : value;  // 1 after rounding to T
        }
        *counter += size;
    });
}

void init_curand_generator(int, intptr_t state, uint64_t seed, ssize_t, intptr_t stream) {
    enqueue((void*)stream, [=] {
        ((uint64_t*)state)[0] = seed;
        ((uint64_t*)state)[1] = 0;
    });
}
void random_uniform(int, intptr_t state, ssize_t, intptr_t out, ssize_t size, intptr_t stream) {
    fill<double>(state, out, size, stream, uniform);
}
void random_uniform_float(int, intptr_t state, ssize_t, intptr_t out, ssize_t size, intptr_t stream) {
    fill<float>(state, out, size, stream, uniform);
}
void standard_normal(int, intptr_t state, ssize_t, intptr_t out, ssize_t size, intptr_t stream) {
    fill<double>(state, out, size, stream, normal);
}
void standard_normal_float(int, intptr_t state, ssize_t, intptr_t out, ssize_t size, intptr_t stream) {
    fill<float>(state, out, size, stream, normal);
}
