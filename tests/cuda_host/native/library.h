// For the libraries (cublas.cpp, cufft.cpp, ...): work on a stream, and the device's memory.
#pragma once
#include <signal.h>

#include <cstring>
#include <functional>

extern "C" void hostcuda_enqueue(void* stream, void (*call)(void*), void* what, void (*drop)(void*));
extern "C" void hostcuda_count(const char* what);
extern "C" int cudaMalloc(void** p, size_t n);
extern "C" int cudaFree(void* p);  // waits for the device
extern "C" int cudaDeviceSynchronize();

inline void enqueue(void* stream, std::function<void()> work) {
    using Work = std::function<void()>;
    auto call = [](void* w) { (*(Work*)w)(); };
    auto drop = [](void* w) { delete (Work*)w; };
    hostcuda_enqueue(stream, call, new Work(std::move(work)), drop);
}

inline void fail_device() { raise(SIGSEGV); }  // within work

// Scratch memory in use: it spoils what others have there, and whoever else writes there fails the device.
template <class F>
void with_scratch(void* scratch, size_t bytes, F routine) {
    memset(scratch, 0x5a, bytes);
    routine();
    for (size_t i = 0; i < bytes; i++)
        if (((volatile char*)scratch)[i] != 0x5a) fail_device();
}
