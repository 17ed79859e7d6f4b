// What the files of the runtime share: streams, points in them, devices with their faults, memory, and counts.
//
// A stream is a thread with a queue of work. An event is the point in a stream at which it was last recorded. A device
// is a number, a sum of bytes, and the error that it failed with, which stays (it is "sticky", as on a card).
#pragma once
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdlib>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#define API extern "C" __attribute__((visibility("default")))
using Work = std::function<void()>;
using Guard = std::unique_lock<std::mutex>;

inline long setting(const char* name, long otherwise) {
    const char* found = getenv(name);
    return found ? atol(found) : otherwise;
}

// -- what was called where (counting.cpp) --
void count(const std::string& what);

// -- devices (devices.cpp) --
struct Device {
    std::atomic<int> fault{0};
    std::atomic<size_t> used{0};
};
extern const int DEVICES;
extern const size_t MEMORY;  // bytes of each
extern Device devices[16];
extern thread_local int current;
cudaError_t error(int code);  // what a call returns; remembered for cudaGetLastError
void make_context(int device);
int forked();  // the error, if the process that began to use CUDA was another
inline int fault_here() { return devices[current].fault ? (int)devices[current].fault : forked(); }
#define STICKY \
    if (int code = fault_here()) return error(code)

// -- streams (streams.cpp) --
struct Point {  // in a stream: reached when all before it is done
    int device = 0;
    std::chrono::steady_clock::time_point at;
    void reach();
    bool reached();
    void wait();

  private:
    std::mutex m;
    std::condition_variable changed;
    bool done = false;
};

struct Graph {
    std::vector<Work> work;
};

struct Stream {
    const int device;
    const unsigned flags;
    const int priority;
    std::unique_ptr<Graph> capture;  // while it captures: then work goes there
    bool invalid = false;            // the capture
    int mode = 0;                    // of the capture
    std::thread::id captor;

    Stream(int device, unsigned flags, int priority);
    bool blocking() const { return !(flags & cudaStreamNonBlocking); }
    void push(Work work);
    bool idle();
    void close();  // what is queued still runs

  private:
    void run(long number);
    std::mutex m;
    std::condition_variable changed;
    std::deque<Work> queue;
    bool closing = false, busy = false;
    std::thread thread;
};

Stream* at(cudaStream_t handle);  // also of the null stream
bool known(cudaStream_t handle);  // or destroyed meanwhile
void order(Stream* stream);       // behind the legacy stream, or that behind the blocking ones
std::shared_ptr<Point> mark(Stream* stream);
void drain(int device);
bool capturing();                 // whether any stream is, in a way that forbids this thread what may block
bool spoils(int device);          // all captures there, by a wait for the whole device: seen on a card; whether any
bool implicates(Stream* stream);  // whether it is the legacy stream while a blocking one captures

// -- work (work.cpp) --
void enqueue(Stream* stream, Work work);  // skipped after a fault; a bad access of its own is one

// -- memory (memory.cpp) --
bool pageable(const void* pointer);  // whether CUDA has never heard of it

// -- kernels (kernels.cpp) --
struct Dim {
    unsigned x, y, z;
};
struct Kernel {
    void (*call)(void**);
    std::vector<unsigned> sizes;  // of its arguments
    enum How { ONE_LOOP, THREAD_BY_THREAD, FIBERS } how;
};
void run_grid(const Kernel& kernel, void** arguments, Dim grid, Dim block, unsigned shared);
