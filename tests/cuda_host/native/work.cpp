// Work on a stream, and its faults: a bad access of a kernel's is the device's, and what comes after it is skipped.
#include <setjmp.h>
#include <signal.h>

#include "host.h"

static thread_local sigjmp_buf* landing = nullptr;

static void on_bad_access(int signal_number, siginfo_t*, void*) {
    if (landing) siglongjmp(*landing, 1);
    signal(signal_number, SIG_DFL);  // not the device's: it happens again, and ends the process
}

static Work guarded(int device, Work work) {
    static std::once_flag once;
    std::call_once(once, [] {
        struct sigaction action = {};
        action.sa_sigaction = on_bad_access;
        action.sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK;
        for (int number : {SIGSEGV, SIGBUS}) sigaction(number, &action, nullptr);
    });
    return [device, work = std::move(work)] {
        if (devices[device].fault) return;
        sigjmp_buf here;
        if (sigsetjmp(here, 1))
            devices[device].fault = cudaErrorIllegalAddress;
        else
            landing = &here, work();
        landing = nullptr;
    };
}

void enqueue(Stream* s, Work work) {
    count("work enqueued");
    work = guarded(s->device, std::move(work));
    if (s->capture) return s->capture->work.push_back(std::move(work));
    order(s);
    s->push(std::move(work));
}

// For the libraries: called once or, captured, as often as its graph is launched; dropped when nobody can call it any
// more.
API void hostcuda_enqueue(void* stream, void (*call)(void*), void* what, void (*drop)(void*)) {
    std::shared_ptr<void> held(what, drop);
    enqueue(at((cudaStream_t)stream), [call, held] { call(held.get()); });
}

API cudaError_t cudaStreamAddCallback(cudaStream_t h, cudaStreamCallback_t f, void* data, unsigned) {
    count("cudaStreamAddCallback");
    enqueue(at(h), [=] { f(h, (cudaError_t)0, data); });
    return error(0);
}
API cudaError_t cudaLaunchHostFunc(cudaStream_t h, cudaHostFn_t f, void* data) {
    count("cudaLaunchHostFunc");
    enqueue(at(h), [=] { f(data); });
    return error(0);
}
