// Captures become graphs: the work that was enqueued meanwhile, run in its order as one piece of work.
#include "host.h"

API cudaError_t cudaStreamBeginCapture(cudaStream_t h, cudaStreamCaptureMode mode) {
    STICKY;
    if ((size_t)h <= 2) return error(cudaErrorStreamCaptureUnsupported);  // the null stream
    Stream* s = at(h);
    if (s->capture) return error(cudaErrorIllegalState);
    s->capture = std::make_unique<Graph>();
    s->invalid = false;
    s->mode = mode;
    s->captor = std::this_thread::get_id();
    return error(0);
}

API cudaError_t cudaStreamEndCapture(cudaStream_t h, cudaGraph_t* out) {
    Stream* s = at(h);
    *out = nullptr;
    if (!s->capture) return error(cudaErrorIllegalState);
    auto graph = std::move(s->capture);
    if (s->invalid) return error(cudaErrorStreamCaptureInvalidated);
    *out = (cudaGraph_t)graph.release();
    return error(0);
}

API cudaError_t cudaStreamIsCapturing(cudaStream_t h, cudaStreamCaptureStatus* status) {
    Stream* s = at(h);
    if (implicates(s)) return error(cudaErrorStreamCaptureImplicit);
    *status = !s->capture  ? cudaStreamCaptureStatusNone
              : s->invalid ? cudaStreamCaptureStatusInvalidated
                           : cudaStreamCaptureStatusActive;
    return error(0);
}

API cudaError_t cudaGraphInstantiate(cudaGraphExec_t* out, cudaGraph_t graph, unsigned long long) {
    *out = (cudaGraphExec_t) new Graph(*(Graph*)graph);
    return error(0);
}

API cudaError_t cudaGraphLaunch(cudaGraphExec_t h, cudaStream_t stream) {
    STICKY;
    count("cudaGraphLaunch");
    enqueue(at(stream), [graph = *(Graph*)h] {
        for (auto& work : graph.work) work();
    });
    return error(0);
}

API cudaError_t cudaGraphUpload(cudaGraphExec_t, cudaStream_t) { return error(0); }
API cudaError_t cudaGraphDestroy(cudaGraph_t h) {
    delete (Graph*)h;
    return error(0);
}
API cudaError_t cudaGraphExecDestroy(cudaGraphExec_t h) {
    delete (Graph*)h;
    return error(0);
}
