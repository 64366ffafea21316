// The scheduler of emulated kernels. The threads of a block run one after another; a thread that
// has to wait for others gets its own stack. Blocks also run one after another: nothing runs in
// parallel.
#include "fibers.hpp"
#include <link.h>
#include <stdarg.h>
#include <stdio.h>

__thread uint3 threadIdx, blockIdx, blockDim, gridDim;

namespace emu {

__thread Run* run;

[[noreturn]] __attribute__((no_sanitize("undefined"))) void fail(const char* format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(run->launch->error, run->launch->error_bytes, format, args);
    va_end(args);
    _longjmp(run->failed, 1);
}

static uint64_t* canary(unsigned fiber) {
    return (uint64_t*)(run->launch->stacks + fiber * run->launch->stack_bytes);
}

static void check_stacks() {
    for (unsigned i = 0; i < run->fibers; i++)
        if (*canary(i) != CANARY) fail("a thread needs more than %zu bytes of stack", run->launch->stack_bytes);
}

static void to_scheduler(Fiber* fiber) {
    if (_setjmp(fiber->at) == 0) _longjmp(run->scheduler, 1);
}

// Runs threads that have not started until one has to wait, then continues with that one.
static void fiber_main() {
    for (;;) {
        while (run->started < run->launch->threads) {
            unsigned number = run->order[run->started++];
            // The fiber that started this one runs here.
            Fiber* fiber = run->threads[run->current].fiber;
            run->current = number;
            run->threads[number].fiber = fiber;
            threadIdx.x = number;
            run->launch->body(run->launch->args);
            run->threads[run->current].state = DONE;
        }
        Fiber* fiber = run->threads[run->current].fiber;
        run->idle[run->idles++] = fiber;
        to_scheduler(fiber);
    }
}

static Fiber* new_fiber() {
    unsigned number = run->fibers++;
    *canary(number) = CANARY;
    char* stack = (char*)canary(number);
    size_t bytes = (run->launch->stack_bytes - sizeof(Fiber)) & ~(size_t)63;
    Fiber* fiber = (Fiber*)(stack + bytes);
    getcontext(&fiber->start);
    fiber->start.uc_stack.ss_sp = stack;
    fiber->start.uc_stack.ss_size = bytes;
    fiber->start.uc_link = nullptr;
    makecontext(&fiber->start, fiber_main, 0);
    fiber->started = false;
    return fiber;
}

static void resume(Fiber* fiber) {
    if (_setjmp(run->scheduler) != 0) return;
    if (fiber->started) _longjmp(fiber->at, 1);
    fiber->started = true;
    setcontext(&fiber->start);
}

void wait(State state, Site site) {
    unsigned number = run->current;
    Thread& thread = run->threads[number];
    thread.state = state;
    thread.site = site;
    to_scheduler(thread.fiber);
    run->current = number;
    threadIdx.x = number;
}

static bool same(const Thread& a, const Thread& b) {
    return a.state == b.state && a.site.line == b.site.line && strcmp(a.site.file, b.site.file) == 0;
}

// Whether all lanes of an exchange have arrived.
static bool complete(unsigned number) {
    const Thread& thread = run->threads[number];
    for (unsigned lane = 0; lane < WARP; lane++) {
        unsigned other = number / WARP * WARP + lane;
        if (!(thread.mask >> lane & 1) || other >= run->launch->threads) continue;
        const Thread& t = run->threads[other];
        if (!same(t, thread) || t.mask != thread.mask) return false;
    }
    return true;
}

// Resumes threads that no longer have to wait. Returns whether there are any.
static bool release() {
    bool some = false, barrier = true;
    unsigned n = run->launch->threads;
    bool go[MAX_THREADS];
    for (unsigned i = 0; i < n; i++) {
        go[i] = run->threads[i].state == AT_EXCHANGE && complete(i);
        some |= go[i];
        barrier &= run->threads[i].state == AT_BARRIER && same(run->threads[i], run->threads[0]);
    }
    for (unsigned i = 0; i < n; i++) {
        if (!go[i] && !barrier) continue;
        run->threads[i].state = READY;
        run->threads[i].published = run->threads[i].value;
    }
    return some || barrier;
}

static void describe(const Thread& t, char* text, size_t bytes) {
    if (t.state == DONE) snprintf(text, bytes, "has finished");
    else snprintf(text, bytes, "waits at %s (%s:%d)", t.site.op, t.site.file, t.site.line);
}

[[noreturn]] static void diverged() {
    unsigned first = 0;
    while (run->threads[first].state == DONE) first++;
    const Thread& a = run->threads[first];
    unsigned other = 0, end = run->launch->threads;
    if (a.state == AT_EXCHANGE) other = first / WARP * WARP;
    while (other < end - 1 && same(run->threads[other], a) && run->threads[other].mask == a.mask) other++;
    char at[2][512];
    describe(a, at[0], sizeof at[0]);
    describe(run->threads[other], at[1], sizeof at[1]);
    fail("block %u: thread %u %s, but thread %u %s", blockIdx.x, first, at[0], other, at[1]);
}

static uint64_t random_below(uint64_t* state, uint64_t n) {
    *state += 0x9e3779b97f4a7c15;
    uint64_t z = (*state ^ *state >> 30) * 0xbf58476d1ce4e5b9;
    return (z ^ z >> 29) % n;
}

static void run_block(uint64_t* random) {
    unsigned n = run->launch->threads;
    for (unsigned i = 0; i < n; i++) {
        run->order[i] = i;
        run->threads[i].state = READY;
    }
    for (unsigned i = n; *random && i > 1; i--) {
        unsigned j = random_below(random, i), kept = run->order[j];
        run->order[j] = run->order[i - 1];
        run->order[i - 1] = kept;
    }
    run->started = 0;
    for (;;) {
        while (run->started < n) {
            Fiber* fiber = run->idles ? run->idle[--run->idles] : new_fiber();
            run->current = run->order[run->started];
            run->threads[run->current].fiber = fiber;
            resume(fiber);
        }
        unsigned done = 0;
        for (unsigned i = 0; i < n; i++) done += run->threads[i].state == DONE;
        if (done == n) break;
        if (!release()) diverged();
        for (unsigned i = 0; i < n; i++)
            if (run->threads[run->order[i]].state == READY) resume(run->threads[run->order[i]].fiber);
    }
    check_stacks();
}

// The memory of this library's thread-local variables: all `__shared__` ones, and the few above.
struct Locals { char* at; size_t bytes; };

static int find_locals(dl_phdr_info* info, size_t, void* found) {
    uintptr_t here = (uintptr_t)&find_locals;
    bool ours = false;
    size_t bytes = 0;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr)& p = info->dlpi_phdr[i];
        uintptr_t start = info->dlpi_addr + p.p_vaddr;
        ours |= p.p_type == PT_LOAD && start <= here && here < start + p.p_memsz;
        if (p.p_type == PT_TLS) bytes = p.p_memsz;
    }
    if (ours) *(Locals*)found = {(char*)info->dlpi_tls_data, info->dlpi_tls_data ? bytes : 0};
    return ours;
}

// Poisons shared memory, so that no block sees the data of another.
static void poison(const Locals& locals) {
    Run* kept = run;
    uint3 dims = blockDim, blocks = gridDim, index = blockIdx;
    memset(locals.at, 0xff, locals.bytes);
    memset(kept->launch->shared, 0xff, kept->launch->shared_bytes);
    // The compiler does not know that these variables were overwritten.
    asm volatile("" ::: "memory");
    run = kept;
    blockDim = dims, gridDim = blocks, blockIdx = index;
    threadIdx = {0, 0, 0};
}

static void run_blocks() {
    const Launch& l = *run->launch;
    Locals locals = {nullptr, 0};
    dl_iterate_phdr(find_locals, &locals);
    uint64_t random = l.seed, blocks = (uint64_t)l.grid[0] * l.grid[1] * l.grid[2];
    // A stride that is coprime to the number of blocks visits every block.
    uint64_t step = 1, at = 0;
    if (random) {
        auto divisor = [](uint64_t a, uint64_t b) { while (b) { uint64_t c = a % b; a = b; b = c; } return a; };
        do step = 1 + random_below(&random, blocks); while (divisor(step, blocks) != 1);
        at = random_below(&random, blocks);
    }
    for (uint64_t i = 0; i < blocks; i++, at = (at + step) % blocks) {
        blockIdx.x = at % l.grid[0];
        blockIdx.y = at / l.grid[0] % l.grid[1];
        blockIdx.z = at / l.grid[0] / l.grid[1];
        poison(locals);
        run_block(&random);
    }
}

void exchange(unsigned mask, uint64_t value, Site site) {
    unsigned lane = run->current % WARP;
    Thread& thread = run->threads[run->current];
    if (!(mask >> lane & 1)) fail("%s (%s:%d): lane %u is not in its own mask", site.op, site.file, site.line, lane);
    thread.mask = mask;
    thread.value = value;
    wait(AT_EXCHANGE, site);
}

// No lane publishes again before all have read.
uint64_t received(unsigned lane) {
    unsigned number = run->current / WARP * WARP + lane;
    return number < run->launch->threads ? run->threads[number].published : ~(uint64_t)0;
}

}  // namespace emu

// Runs a launch; returns whether it succeeded.
extern "C" __attribute__((visibility("default"))) int phalanx_launch(const emu::Launch* launch) {
    emu::run = (emu::Run*)(launch->stacks + (emu::MAX_THREADS + 1) * launch->stack_bytes);
    emu::run->launch = launch;
    emu::run->idles = emu::run->fibers = 0;
    if (_setjmp(emu::run->failed)) return 0;
    blockDim = {launch->threads, 1, 1};
    gridDim = {launch->grid[0], launch->grid[1], launch->grid[2]};
    emu::run_blocks();
    return 1;
}

// --- What the compiler checks: array bounds, alignment, division by zero ---------------------------

namespace emu {
struct Place { const char* file; unsigned line, column; };
[[noreturn]] __attribute__((no_sanitize("undefined"))) static void fault(const Place* p, const char* what) {
    fail("%s:%u: %s (block %u, thread %u)", p->file, p->line, what, blockIdx.x, threadIdx.x);
}
}  // namespace emu
#define FAULT(name, what, ...) \
    extern "C" INTERNAL void __ubsan_handle_##name##_abort(emu::Place* p, ##__VA_ARGS__) { emu::fault(p, what); }
FAULT(out_of_bounds, "an index lies outside its array", void*)
FAULT(type_mismatch_v1, "an address is not aligned as its type asks", void*)
FAULT(divrem_overflow, "division by zero", void*, void*)
#undef FAULT
