// Running a kernel: block by block, thread by thread. Where a kernel's threads wait for each other (__syncthreads,
// shuffles) the threads of a block are fibers of the stream's thread.
#include <sys/mman.h>

#include <algorithm>
#include <cstdio>

#include "host.h"

struct Context {  // as in device.h
    Dim thread, block, block_dim, grid_dim;
    void* shared;
    void* slots;
};
extern "C" {
__attribute__((tls_model("initial-exec"), visibility("default"))) thread_local Context hostcuda_now;
void hostcuda_switch(void** save, void* to);  // to another stack
}
asm(R"(.text
.globl hostcuda_switch
.type hostcuda_switch,@function
hostcuda_switch:
  pushq %rbp; pushq %rbx; pushq %r12; pushq %r13; pushq %r14; pushq %r15
  movq %rsp,(%rdi); movq %rsi,%rsp
  popq %r15; popq %r14; popq %r13; popq %r12; popq %rbx; popq %rbp
  ret
)");

static const size_t STACK = 128 << 10, WARP = 32, MOST = 1024;
enum State { RUNS, AT_WARP, AT_BLOCK, DONE };
struct Fiber {
    void* sp;
    State state;
    Dim index;
};
struct Team {  // the threads of one block
    std::vector<Fiber> fibers;
    char* stacks = nullptr;
    void* home = nullptr;
    size_t now = 0;
    const Kernel* kernel = nullptr;
    void** arguments = nullptr;
    char slots[MOST / WARP][WARP * 16];  // what a warp exchanges

    void begin(const Kernel& of, void** with, Dim dim);
    void go_on(size_t which);
    size_t done() const { return in(0, fibers.size(), DONE); }
    size_t in(size_t from, size_t to, State state) const {
        return std::count_if(&fibers[from], &fibers[to], [=](const Fiber& f) { return f.state == state; });
    }
    // Those that stand at a barrier go on once all that have not ended stand there. Returns whether they do.
    bool pass(size_t from, size_t to, State barrier) {
        size_t there = in(from, to, barrier);
        if (!there || there + in(from, to, DONE) < to - from) return false;
        for (size_t i = from; i < to; i++)
            if (fibers[i].state == barrier) fibers[i].state = RUNS;
        return true;
    }
};
static thread_local Team team;

static void fiber_main() {
    Team& t = team;
    t.kernel->call(t.arguments);
    t.fibers[t.now].state = DONE;
    hostcuda_switch(&t.fibers[t.now].sp, t.home);
    abort();
}

API void hostcuda_barrier(int warp) {
    Fiber& f = team.fibers[team.now];
    f.state = warp ? AT_WARP : AT_BLOCK;
    hostcuda_switch(&f.sp, team.home);
}

void Team::begin(const Kernel& of, void** with, Dim dim) {
    if (!stacks)
        stacks = (char*)mmap(nullptr, STACK * MOST, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                             -1, 0);
    kernel = &of;
    arguments = with;
    fibers.resize((size_t)dim.x * dim.y * dim.z);
    for (unsigned i = 0; i < fibers.size(); i++) {
        void** sp = (void**)(stacks + STACK * (i + 1));
        *--sp = nullptr;
        *--sp = (void*)fiber_main;
        fibers[i] = {sp - 6, RUNS, {i % dim.x, i / dim.x % dim.y, i / dim.x / dim.y}};
    }
}

void Team::go_on(size_t which) {
    now = which;
    hostcuda_now.thread = fibers[which].index;
    hostcuda_now.slots = slots[which / WARP];
    hostcuda_switch(&home, fibers[which].sp);
}

static void run_block(const Kernel& kernel, void** arguments, Dim dim) {
    Team& t = team;
    t.begin(kernel, arguments, dim);
    size_t n = t.fibers.size();
    while (t.done() < n) {
        bool moved = false;
        for (size_t warp = 0; warp < n; warp += WARP) {
            size_t end = std::min(n, warp + WARP);
            for (size_t i = warp; i < end; i++)
                if (t.fibers[i].state == RUNS) {
                    t.go_on(i);
                    moved = true;
                }
            moved |= t.pass(warp, end, AT_WARP);
        }
        moved |= t.pass(0, n, AT_BLOCK);
        if (!moved) {
            fprintf(stderr, "hostcuda: threads of a block wait for each other for ever\n");
            abort();
        }
    }
}

template <class F>
static void each(Dim dim, Dim& at, F f) {
    for (at.z = 0; at.z < dim.z; at.z++)
        for (at.y = 0; at.y < dim.y; at.y++)
            for (at.x = 0; at.x < dim.x; at.x++) f();
}

void run_grid(const Kernel& kernel, void** arguments, Dim grid, Dim block, unsigned shared) {
    static thread_local std::vector<char> room;
    if (room.size() < shared + 64u) room.resize(shared + 64);
    Context& c = hostcuda_now;
    c.shared = (void*)(((size_t)room.data() + 63) & ~(size_t)63);
    if (kernel.how == Kernel::ONE_LOOP) grid = block = {1, 1, 1};
    c.grid_dim = grid;
    c.block_dim = block;
    each(grid, c.block, [&] {
        if (kernel.how == Kernel::FIBERS)
            run_block(kernel, arguments, block);
        else
            each(block, c.thread, [&] { kernel.call(arguments); });
    });
}
