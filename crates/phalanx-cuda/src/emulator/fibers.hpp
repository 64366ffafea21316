// The interface of the scheduler in `fibers.cpp` for kernels: the running thread, barriers and
// exchanges within a warp.
#include <setjmp.h>
#include <stdint.h>
#include <string.h>
#include <ucontext.h>

// Every library of kernels contains the scheduler. Its symbols are private to the library.
#define INTERNAL __attribute__((visibility("hidden")))

struct uint3 { unsigned x, y, z; };

// Set to the values of the running thread.
extern INTERNAL __thread uint3 threadIdx, blockIdx, blockDim, gridDim;

namespace emu {

constexpr unsigned MAX_THREADS = 1024, WARP = 32;
constexpr uint64_t CANARY = 0x5bd1e9955bd1e995;

// Must match `Launch` of `library.rs`.
struct Launch {
    void (*body)(void** args);
    void** args;
    unsigned grid[3], threads;
    // Selects the order of blocks and threads; 0 for program order.
    uint64_t seed;
    // Dynamic shared memory.
    char* shared;
    size_t shared_bytes;
    // `MAX_THREADS + 2` stacks; the last one is the run's own.
    char* stacks;
    size_t stack_bytes;
    char* error;
    size_t error_bytes;
};

enum State { READY, AT_BARRIER, AT_EXCHANGE, DONE };

struct Site { const char* op; const char* file; int line; };

struct Fiber { ucontext_t start; jmp_buf at; bool started; };

struct Thread {
    State state;
    Fiber* fiber;
    Site site;
    // For an exchange within a warp: the participants, the value published, and the value that
    // others see.
    unsigned mask;
    uint64_t value, published;
};

// A launch in flight.
struct Run {
    const Launch* launch;
    jmp_buf scheduler, failed;
    Thread threads[MAX_THREADS];
    unsigned order[MAX_THREADS];
    // Threads of `order` that have started.
    unsigned started;
    unsigned current;
    Fiber* idle[MAX_THREADS + 1];
    unsigned idles, fibers;
};

static_assert(sizeof(Run) <= 128 * 1024, "fits in place of a stack");

extern INTERNAL __thread Run* run;

// Ends the launch with an error.
[[noreturn]] INTERNAL void fail(const char* format, ...);
// Waits at a barrier or an exchange.
INTERNAL void wait(State state, Site site);
// Publishes a value and waits for every lane in `mask`.
INTERNAL void exchange(unsigned mask, uint64_t value, Site site);
// The value that a lane published; poison if the block has no such lane.
INTERNAL uint64_t received(unsigned lane);

}  // namespace emu
