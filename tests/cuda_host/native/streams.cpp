// Streams: the order of work. Before an operation a stream sleeps now and then, so that what nobody ordered comes in
// another order.
#include <random>
#include <set>

#include "host.h"

static const long DELAY = setting("HOSTCUDA_DELAY_US", 200);    // at most
static const long LAZY = setting("HOSTCUDA_LAZY_PERCENT", 10);  // how often
static const long SEED = setting("HOSTCUDA_SEED", 1);

static std::mutex& lock = *new std::mutex;  // streams outlive what is destroyed at exit
static auto& streams = *new std::set<Stream*>;

// -- points --
void Point::reach() {
    Guard g(m);
    done = true;
    at = std::chrono::steady_clock::now();
    changed.notify_all();
}
bool Point::reached() {
    Guard g(m);
    return done;
}
void Point::wait() {
    Guard g(m);
    changed.wait(g, [this] { return done; });
}

// -- a stream's thread --
Stream::Stream(int device, unsigned flags, int priority) : device(device), flags(flags), priority(priority) {
    static std::atomic<long> made{0};
    thread = std::thread([this, number = made++] { run(number); });
}

void Stream::run(long number) {
    current = device;
    std::mt19937 random(SEED * 7919 + number);
    Guard g(m);
    for (;;) {
        changed.wait(g, [this] { return closing || !queue.empty(); });
        if (queue.empty()) return;
        Work work = std::move(queue.front());
        queue.pop_front();
        busy = true;
        g.unlock();
        if ((long)(random() % 100) < LAZY) std::this_thread::sleep_for(std::chrono::microseconds(random() % DELAY));
        work();
        work = nullptr;  // what it holds goes before the stream is idle
        g.lock();
        busy = false;
        changed.notify_all();
    }
}

void Stream::push(Work work) {
    Guard g(m);
    queue.push_back(std::move(work));
    changed.notify_all();
}

bool Stream::idle() {
    Guard g(m);
    return queue.empty() && !busy;
}

void Stream::close() {
    Guard g(m);
    closing = true;
    changed.notify_all();
    thread.detach();
}

// -- which there are --
static Stream* legacy(int device) {
    static Stream* found[16];
    static std::mutex making;
    Guard g(making);
    if (!found[device]) found[device] = new Stream(device, 0, 0);
    return found[device];
}

Stream* at(cudaStream_t handle) { return (size_t)handle <= 2 ? legacy(current) : (Stream*)handle; }

bool known(cudaStream_t handle) {
    if ((size_t)handle <= 2) return true;
    Guard g(lock);
    return streams.count((Stream*)handle);
}

// Under the lock: a stream that is destroyed meanwhile would never come to what it is given.
template <class F>
static void each(int device, F f) {
    Guard g(lock);
    for (auto* s : streams)
        if (s->device == device) f(s);
}

// What this thread minds of others' captures: unless it is relaxed, it may not take memory during a global one.
static thread_local CUstreamCaptureMode minds = CU_STREAM_CAPTURE_MODE_GLOBAL;
API CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
    std::swap(minds, *mode);
    return CUDA_SUCCESS;
}

bool capturing() {
    if (minds == CU_STREAM_CAPTURE_MODE_RELAXED) return false;
    Guard g(lock);
    for (auto* s : streams)
        if (s->capture && (s->mode == cudaStreamCaptureModeGlobal ||
                           (s->mode == cudaStreamCaptureModeThreadLocal && s->captor == std::this_thread::get_id())))
            return true;
    return false;
}

bool spoils(int device) {
    bool found = false;
    each(device, [&](Stream* s) {
        if (s->capture) found = s->invalid = true;
    });
    return found;
}

bool implicates(Stream* s) {
    if (s != legacy(s->device)) return false;
    bool found = false;
    each(s->device, [&](Stream* other) { found |= other->blocking() && other->capture; });
    return found;
}

// -- order --
std::shared_ptr<Point> mark(Stream* s) {
    auto point = std::make_shared<Point>();
    point->device = s->device;
    s->push([point] { point->reach(); });
    return point;
}

static void wait_for(Stream* s, Stream* other) {
    if (!other->idle()) s->push([point = mark(other)] { point->wait(); });
}

void order(Stream* s) {
    if (!s->blocking()) return;
    if (s != legacy(s->device)) return wait_for(s, legacy(s->device));
    each(s->device, [=](Stream* other) {
        if (other->blocking()) wait_for(s, other);
    });
}

void drain(int device) {
    std::vector<std::shared_ptr<Point>> points{mark(legacy(device))};
    each(device, [&](Stream* s) { points.push_back(mark(s)); });
    for (auto& point : points) point->wait();
}

// -- the interface --
API cudaError_t cudaStreamCreateWithPriority(cudaStream_t* out, unsigned flags, int priority) {
    count("cudaStreamCreate");
    STICKY;
    auto* s = new Stream(current, flags, priority);
    Guard g(lock);
    streams.insert(s);
    *out = (cudaStream_t)s;
    return error(0);
}
API cudaError_t cudaStreamCreateWithFlags(cudaStream_t* out, unsigned flags) {
    return cudaStreamCreateWithPriority(out, flags, 0);
}
API cudaError_t cudaStreamCreate(cudaStream_t* out) { return cudaStreamCreateWithPriority(out, 0, 0); }

API cudaError_t cudaStreamGetFlags(cudaStream_t h, unsigned* flags) {
    *flags = at(h)->flags;
    return error(0);
}
API cudaError_t cudaStreamGetPriority(cudaStream_t h, int* priority) {
    *priority = at(h)->priority;
    return error(0);
}

API cudaError_t cudaStreamDestroy(cudaStream_t h) {
    count("cudaStreamDestroy");
    {
        Guard g(lock);
        if (!streams.erase((Stream*)h)) return error(cudaErrorInvalidResourceHandle);
    }
    at(h)->close();  // the object stays: its thread uses it
    return error(0);
}

API cudaError_t cudaStreamSynchronize(cudaStream_t h) {
    count("cudaStreamSynchronize");
    STICKY;
    if (!known(h)) return error(cudaErrorInvalidResourceHandle);
    Stream* s = at(h);
    if (s->capture) {
        s->invalid = true;
        return error(cudaErrorStreamCaptureUnsupported);
    }
    order(s);
    mark(s)->wait();
    STICKY;
    return error(0);
}

API cudaError_t cudaStreamQuery(cudaStream_t h) {
    STICKY;
    return at(h)->idle() ? error(0) : cudaErrorNotReady;
}
