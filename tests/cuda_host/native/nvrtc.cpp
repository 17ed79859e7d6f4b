// NVRTC's interface: a kernel's source becomes a shared library, by g++, which is kept.
#include "nvrtc.h"

#include <spawn.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <set>
#include <sstream>

#include "host.h"

using std::string;
enum { OK = 0, COMPILATION = 6, NAME_NOT_KNOWN = 9 };
static const string MAGIC = "HOSTCUDA:";

struct Program {
    string source, log, image;
    std::vector<string> expressions, lowered;
};

string cache() {
    const char* found = getenv("HOSTCUDA_CACHE");
    return found ? found : "hostcuda-cache";
}

static string read(const string& path) {
    std::stringstream text;
    text << std::ifstream(path, std::ios::binary).rdbuf();
    return text.str();
}

// The image is the library itself, so that CuPy may keep it in its own cache.
static string image_of(const string& body) {
    size_t n = body.size();
    return MAGIC + string((const char*)&n, sizeof n) + body;
}
string body_of(const char* image) {
    if (strncmp(image, MAGIC.data(), MAGIC.size())) return "";
    size_t n;
    memcpy(&n, image + MAGIC.size(), sizeof n);
    return string(image + MAGIC.size() + sizeof n, n);
}

// -- from CUDA C++ to C++ --
static bool in_name(char c) { return isalnum((unsigned char)c) || c == '_'; }

// The name that ends before `end`, spaces between them skipped; where it begins.
static size_t name_before(const string& s, size_t& end) {
    while (end && isspace((unsigned char)s[end - 1])) end--;
    size_t begin = end;
    while (begin && in_name(s[begin - 1])) begin--;
    return begin;
}

// extern __shared__ T name[];  becomes  T* name = (T*)hostcuda_now.shared;
static string with_shared_memory(string s) {
    const string what = "extern __shared__";
    for (size_t at; (at = s.find(what)) != string::npos;) {
        size_t end = s.find(';', at);
        string declared = s.substr(at + what.size(), end - at - what.size());
        size_t stop = declared.rfind('['), begin = name_before(declared, stop);
        string type = declared.substr(0, begin), name = declared.substr(begin, stop - begin);
        s.replace(at, end - at, type + "* " + name + " = (" + type + "*)hostcuda_now.shared");
    }
    return s;
}

static std::set<string> kernels_of(const string& s) {
    std::set<string> found;
    for (size_t at = 0; (at = s.find("__global__", at)) != string::npos; at += 10) {
        size_t before = s.find_last_of(";}", at);
        if (before == string::npos) before = 0;
        if (s.substr(before, at - before).find("template") != string::npos) continue;
        size_t open = s.find('(', at), bounds = s.find("__launch_bounds__", at);
        if (bounds < open) open = s.find('(', s.find(')', open));
        if (open == string::npos) continue;
        size_t begin = name_before(s, open);
        found.insert(s.substr(begin, open - begin));
    }
    return found;
}

static Kernel::How how_to_run(const string& text) {
    auto has = [&](const char* what) { return text.find(what) != string::npos; };
    if (has("__sync") || has("__shfl") || has("__shared__") || has("hostcuda_now.shared")) return Kernel::FIBERS;
    // CuPy's elementwise kernels are a loop over all, in steps of all threads.
    bool loop = has("CUPY_FOR(") && !has("threadIdx") && !has("blockIdx") && !has("return;");
    return loop ? Kernel::ONE_LOOP : Kernel::THREAD_BY_THREAD;
}

static string translated(Program& p) {
    string text = with_shared_memory(p.source) + "\n";
    for (auto& name : kernels_of(text)) text += "HOSTCUDA_KERNEL(" + name + ", &" + name + ")\n";
    for (auto& expression : p.expressions) {
        p.lowered.push_back("expression_" + std::to_string(p.lowered.size()));
        text += "HOSTCUDA_KERNEL(" + p.lowered.back() + ", (&" + expression + "))\n";
    }
    return text + "HOSTCUDA_HOW(" + std::to_string(how_to_run(text)) + ")\n";
}

// -- compiling --
static int run_shell(const string& command) {
    const char* arguments[] = {"sh", "-c", command.c_str(), nullptr};
    std::vector<char*> environment;  // g++ is not to be preloaded with this
    for (char** e = environ; *e; e++)
        if (strncmp(*e, "LD_PRELOAD=", 11)) environment.push_back(*e);
    environment.push_back(nullptr);
    pid_t pid;
    int status = 1;
    if (posix_spawn(&pid, "/bin/sh", nullptr, nullptr, (char**)arguments, environment.data()) == 0)
        waitpid(pid, &status, 0);
    return status;
}

API int nvrtcCompileProgram(void* h, int n, const char** options) {
    count("nvrtcCompileProgram");
    auto& p = *(Program*)h;
    string text = translated(p), flags;
    for (int i = 0; i < n; i++)
        if (!strncmp(options[i], "-D", 2)) flags += string(" '") + options[i] + "'";
    char key[40];
    std::hash<string> hash;
    snprintf(key, sizeof key, "/%016zx%016zx", hash(text + flags), hash(flags + "2" + text));
    string kept = cache() + key + ".so";
    string mine = cache() + key + "." + std::to_string(getpid()) + "." + std::to_string(syscall(SYS_gettid));
    if (access(kept.c_str(), R_OK)) {
        std::ofstream(mine + ".cpp") << text;
        int status = run_shell("g++ $(cat " + cache() + "/flags)" + flags + " -include " + cache() +
                               "/device.h -shared -o " + mine + ".so " + mine + ".cpp 2> " + mine + ".log");
        p.log = read(mine + ".log");
        unlink((mine + ".log").c_str());
        if (status) {
            if (getenv("HOSTCUDA_VERBOSE"))
                fprintf(stderr, "hostcuda: g++ refused %s.cpp\n%s\n", mine.c_str(), p.log.c_str());
            return COMPILATION;
        }
        unlink((mine + ".cpp").c_str());
        rename((mine + ".so").c_str(), kept.c_str());
    }
    p.image = image_of(read(kept));
    return OK;
}

// -- the rest of the interface --
API int nvrtcVersion(int* major, int* minor) {
    *major = 12;
    *minor = 9;
    return OK;
}
API const char* nvrtcGetErrorString(int code) {
    return code == COMPILATION ? "NVRTC_ERROR_COMPILATION" : "NVRTC_ERROR";
}
API int nvrtcCreateProgram(void** out, const char* source, const char*, int, const char**, const char**) {
    *out = new Program{source};
    return OK;
}
API int nvrtcDestroyProgram(void** h) {
    delete (Program*)*h;
    *h = nullptr;
    return OK;
}
API int nvrtcAddNameExpression(void* h, const char* expression) {
    ((Program*)h)->expressions.push_back(expression);
    return OK;
}
API int nvrtcGetLoweredName(void* h, const char* expression, const char** out) {
    auto& p = *(Program*)h;
    for (size_t i = 0; i < p.expressions.size(); i++)
        if (p.expressions[i] == expression) {
            *out = p.lowered[i].c_str();
            return OK;
        }
    return NAME_NOT_KNOWN;
}

static int give_size(const string& s, size_t* n) {
    *n = s.size() + 1;
    return OK;
}
static int give(const string& s, char* out) {
    memcpy(out, s.c_str(), s.size() + 1);
    return OK;
}
API int nvrtcGetCUBINSize(void* h, size_t* n) { return give_size(((Program*)h)->image, n); }
API int nvrtcGetCUBIN(void* h, char* out) { return give(((Program*)h)->image, out); }
API int nvrtcGetProgramLogSize(void* h, size_t* n) { return give_size(((Program*)h)->log, n); }
API int nvrtcGetProgramLog(void* h, char* out) { return give(((Program*)h)->log, out); }
// CuPy asks for PTX only of an empty program: to learn the compiler's version, which is part of the key of its cache.
static string version() { return "// hostcuda " + read(cache() + "/made_by") + "\n"; }
API int nvrtcGetPTXSize(void*, size_t* n) { return give_size(version(), n); }
API int nvrtcGetPTX(void*, char* out) { return give(version(), out); }

API int nvrtcGetNumSupportedArchs(int* n) {
    *n = 1;
    return OK;
}
API int nvrtcGetSupportedArchs(int* found) {
    *found = 80;
    return OK;
}
