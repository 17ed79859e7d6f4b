// Calls that may block on a card, and work for it, counted by name, and by whether the process's main thread made them.
#include <sys/syscall.h>
#include <unistd.h>

#include <cstring>
#include <map>

#include "host.h"

static std::mutex& lock = *new std::mutex;
static auto& counts = *new std::map<std::string, std::pair<long, long>>;  // by the main thread, by others
static thread_local const bool on_main = syscall(SYS_gettid) == getpid();

void count(const std::string& what) {
    Guard g(lock);
    auto& [main, others] = counts[what];
    (on_main ? main : others)++;
}

API void hostcuda_count(const char* what) { count(what); }  // for the libraries

API void hostcuda_reset() {
    Guard g(lock);
    counts.clear();
}

// Lines of "main others name", as far as there is room.
API void hostcuda_report(char* out, size_t room) {
    Guard g(lock);
    std::string text;
    for (auto& [name, by] : counts)
        text += std::to_string(by.first) + " " + std::to_string(by.second) + " " + name + "\n";
    strncpy(out, text.c_str(), room);
}
