// What every kernel file starts with: number types, loads and stores, divisions, sums over threads,
// random numbers. No header of the CUDA toolkit is used: a machine with the driver and the runtime
// compiler alone has none.

typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;
typedef unsigned short u16;

// Narrow floats are stored, never computed with.
struct bf16 { u16 bits; };
struct half { u16 bits; };

#ifndef PHALANX_EMULATED
__device__ __forceinline__ float half_to_float(u16 b) {
    float f;
    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(b));
    return f;
}
__device__ __forceinline__ u16 float_to_half(float v) {
    u16 b;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(b) : "f"(v));
    return b;
}
__device__ __forceinline__ u16 float_to_bf16(float v) {
    u16 b;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(b) : "f"(v));
    return b;
}
#endif

__device__ __forceinline__ float ld(const float* p) { return *p; }
__device__ __forceinline__ float ld(const int* p) { return (float)*p; }
__device__ __forceinline__ float ld(const bf16* p) { return __uint_as_float((u32)p->bits << 16); }
__device__ __forceinline__ float ld(const half* p) { return half_to_float(p->bits); }

__device__ __forceinline__ void st(float* p, float v) { *p = v; }
__device__ __forceinline__ void st(bf16* p, float v) { p->bits = float_to_bf16(v); }
__device__ __forceinline__ void st(half* p, float v) { p->bits = float_to_half(v); }

// What the host hands in at every step, as `inputs.rs` has it.
struct Inputs {
    u64 seed, step;
    float scalars[16];
    float keep, weight, mean, unused;
};

// Items of a grid-stride loop.
#define EACH(i, n)                                                        \
    for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < (n);     \
         i += (i64)gridDim.x * blockDim.x)
