// Events: the point at which each was last recorded.
#include <set>

#include "host.h"

struct Event {
    std::mutex m;
    std::shared_ptr<Point> point;  // null until it is recorded
    const unsigned flags;
    const int device;
    bool captured = false;

    Event(unsigned flags) : flags(flags), device(current) {}
    std::shared_ptr<Point> get() {
        Guard g(m);
        return point;
    }
};
static std::mutex& lock = *new std::mutex;
static auto& events = *new std::set<Event*>;

API cudaError_t cudaEventCreateWithFlags(cudaEvent_t* out, unsigned flags) {
    STICKY;
    count("cudaEventCreate");
    auto* e = new Event(flags);
    Guard g(lock);
    events.insert(e);
    *out = (cudaEvent_t)e;
    return error(0);
}
API cudaError_t cudaEventCreate(cudaEvent_t* out) { return cudaEventCreateWithFlags(out, 0); }

API cudaError_t cudaEventDestroy(cudaEvent_t h) {
    {
        Guard g(lock);
        if (!events.erase((Event*)h)) return error(cudaErrorInvalidResourceHandle);
    }
    delete (Event*)h;
    return error(0);
}

API cudaError_t cudaEventRecord(cudaEvent_t h, cudaStream_t stream) {
    STICKY;
    auto* e = (Event*)h;
    if (!known(stream) || e->device != at(stream)->device) return error(cudaErrorInvalidResourceHandle);
    Stream* s = at(stream);
    if (implicates(s)) return error(cudaErrorStreamCaptureImplicit);
    if (s->capture) {
        e->captured = true;
        return error(0);
    }
    order(s);
    auto point = mark(s);
    Guard g(e->m);
    e->point = point;
    e->captured = false;
    return error(0);
}

API cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t h, unsigned) {
    STICKY;
    if (!known(stream)) return error(cudaErrorInvalidResourceHandle);
    Stream* s = at(stream);
    auto* e = (Event*)h;
    if (s->capture) {
        if (e->captured) return error(0);
        s->invalid = true;
        return error(cudaErrorStreamCaptureIsolation);
    }
    auto point = e->get();
    if (!point) return error(0);  // never recorded: nothing to wait for
    order(s);
    s->push([point] { point->wait(); });
    return error(0);
}

API cudaError_t cudaEventQuery(cudaEvent_t h) {
    STICKY;
    auto* e = (Event*)h;
    if (e->captured) return error(cudaErrorCapturedEvent);
    auto point = e->get();
    return !point || point->reached() ? error(0) : cudaErrorNotReady;
}

API cudaError_t cudaEventSynchronize(cudaEvent_t h) {
    count("cudaEventSynchronize");
    STICKY;
    if (auto point = ((Event*)h)->get()) point->wait();
    STICKY;
    return error(0);
}

API cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t first, cudaEvent_t last) {
    auto *a = (Event*)first, *b = (Event*)last;
    auto p = a->get(), q = b->get();
    if (!p || !q || (a->flags | b->flags) & cudaEventDisableTiming) return error(cudaErrorInvalidResourceHandle);
    if (!p->reached() || !q->reached()) return cudaErrorNotReady;
    *milliseconds = std::chrono::duration<float, std::milli>(q->at - p->at).count();
    return error(0);
}
