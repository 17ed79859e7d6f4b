// For the libraries (cublas.cpp, thrust.cpp, random.cpp): work on a stream.
#pragma once
#include <functional>

extern "C" void hostcuda_enqueue(void* stream, void (*call)(void*), void* what, void (*drop)(void*));
extern "C" void hostcuda_count(const char* what);

inline void enqueue(void* stream, std::function<void()> work) {
    using Work = std::function<void()>;
    auto call = [](void* w) { (*(Work*)w)(); };
    auto drop = [](void* w) { delete (Work*)w; };
    hostcuda_enqueue(stream, call, new Work(std::move(work)), drop);
}
