// The transforms of cuFFT that CuPy calls, on the plan's stream: sums as they stand in the definition, not scaled.
//
// A plan has memory of its own, and a work area that it was given. Destroying it waits for the device, as freeing does.
// A graph that runs a plan after that fails the device.
#include <atomic>
#include <complex>
#include <vector>

#include "library.h"

#define API extern "C" __attribute__((visibility("default")))
using Z = std::complex<double>;
enum Type { C2C = 0x29, R2C = 0x2a, C2R = 0x2c, Z2Z = 0x69, D2Z = 0x6a, Z2D = 0x6c };
static const int FORWARD = -1, INVERSE = 1, OK = 0, NO_MEMORY = 2;

struct Layout {  // of one side: how many elements lie along each axis, from one to the next, and between batches
    std::vector<int> embed;
    long stride, distance;

    long at(const std::vector<int>& index, int batch) const {
        long place = 0;
        for (size_t axis = 0; axis < index.size(); axis++) place = place * embed[axis] + index[axis];
        return batch * distance + place * stride;
    }
};
struct Plan {
    void* stream = nullptr;
    std::vector<int> n;
    Layout in, out;
    int batches = 1;
    void *own = nullptr, *work = nullptr;
    size_t work_size = 0;
    std::atomic<bool> destroyed{false};
};
static Plan* plans[1 << 16];      // a handle is a place here, and used once
static std::atomic<int> made{1};  // CuPy takes 0 for none

template <class F>
static void each(const std::vector<int>& n, F f) {
    std::vector<int> index(n.size(), 0);
    long size = 1;
    for (int length : n) size *= length;
    for (long i = 0; i < size; i++) {
        f(index, i);
        for (int axis = n.size() - 1; axis >= 0 && ++index[axis] == n[axis]; axis--) index[axis] = 0;
    }
}

static void transform(std::vector<Z>& x, const std::vector<int>& n, int direction) {
    long step = 1;
    for (int axis = n.size() - 1; axis >= 0; step *= n[axis--]) {
        int length = n[axis];
        std::vector<Z> roots(length), line(length);
        for (int k = 0; k < length; k++) roots[k] = std::polar(1.0, direction * 2 * M_PI * k / length);
        for (long start = 0; start < (long)x.size(); start++) {
            if (start / step % length) continue;  // not the beginning of a line
            for (int k = 0; k < length; k++) {
                line[k] = 0;
                for (int j = 0; j < length; j++) line[k] += x[start + j * step] * roots[(long)j * k % length];
            }
            for (int k = 0; k < length; k++) x[start + k * step] = line[k];
        }
    }
}

// From elements In to elements Out. Of what belongs to real numbers only half lies there, along the last axis.
template <class In, class Out>
static int run(int handle, const void* from, void* to, int direction) {
    Plan* plan = plans[handle];
    bool real_in = std::is_floating_point_v<In>, real_out = std::is_floating_point_v<Out>;
    void* work = plan->work;
    auto transforms = [=] {
        int last = plan->n.back();
        for (int batch = 0; batch < plan->batches; batch++) {
            std::vector<Z> x;
            each(plan->n, [&](const std::vector<int>& index, long) {
                bool mirrored = real_out && index.back() > last / 2;
                auto there = index;
                for (size_t axis = 0; mirrored && axis < there.size(); axis++)
                    there[axis] = (plan->n[axis] - index[axis]) % plan->n[axis];
                Z v = (Z)((const In*)from)[plan->in.at(there, batch)];
                x.push_back(mirrored ? std::conj(v) : v);
            });
            transform(x, plan->n, direction);
            each(plan->n, [&](const std::vector<int>& index, long i) {
                if (real_in && index.back() > last / 2) return;
                Out& out = ((Out*)to)[plan->out.at(index, batch)];
                if constexpr (std::is_floating_point_v<Out>)
                    out = x[i].real();
                else
                    out = (Out)x[i];
            });
        }
    };
    enqueue(plan->stream, [=] {
        if (plan->destroyed) fail_device();
        with_scratch(work, plan->work_size, transforms);
    });
    return OK;
}

API int cufftCreate(int* handle) {
    if (made >= 1 << 16) return NO_MEMORY;
    plans[*handle = made++] = new Plan;
    return OK;
}
API int cufftDestroy(int handle) {
    cudaFree(plans[handle]->own);
    plans[handle]->destroyed = true;
    return OK;
}
API int cufftGetVersion(int* version) { return *version = 11400, OK; }
API int cufftSetStream(int handle, void* stream) { return plans[handle]->stream = stream, OK; }
API int cufftSetAutoAllocation(int, int) { return OK; }
API int cufftSetWorkArea(int handle, void* work) { return plans[handle]->work = work, OK; }

API int cufftMakePlanMany(int handle, int rank, int* n, int* inembed, int istride, int idist, int* onembed, int ostride,
                          int odist, int type, int batches, size_t* work) {
    Plan& p = *plans[handle];
    p.n.assign(n, n + rank);
    p.batches = batches;
    auto side = [&](int* embed, int stride, int distance, bool half) {
        std::vector<int> dense = p.n;
        if (half) dense.back() = dense.back() / 2 + 1;
        long size = 1;
        for (int length : dense) size *= length;
        return embed ? Layout{{embed, embed + rank}, stride, distance} : Layout{dense, 1, size};
    };
    p.in = side(inembed, istride, idist, type == C2R || type == Z2D);
    p.out = side(onembed, ostride, odist, type == R2C || type == D2Z);
    *work = p.work_size = [&] {
        size_t size = batches * sizeof(Z);
        for (int length : p.n) size *= length;
        return size;
    }();
    return cudaMalloc(&p.own, 4096) ? NO_MEMORY : OK;
}
API int cufftMakePlan1d(int handle, int n, int type, int batches, size_t* work) {
    return cufftMakePlanMany(handle, 1, &n, nullptr, 1, 0, nullptr, 1, 0, type, batches, work);
}

API int cufftExecC2C(int h, void* a, void* b, int way) {
    return run<std::complex<float>, std::complex<float>>(h, a, b, way);
}
API int cufftExecZ2Z(int h, void* a, void* b, int way) { return run<Z, Z>(h, a, b, way); }
API int cufftExecR2C(int h, void* a, void* b) { return run<float, std::complex<float>>(h, a, b, FORWARD); }
API int cufftExecD2Z(int h, void* a, void* b) { return run<double, Z>(h, a, b, FORWARD); }
API int cufftExecC2R(int h, void* a, void* b) { return run<std::complex<float>, float>(h, a, b, INVERSE); }
API int cufftExecZ2D(int h, void* a, void* b) { return run<Z, double>(h, a, b, INVERSE); }
