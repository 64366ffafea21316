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

__device__ __forceinline__ float ld(const float* p) { return *p; }
__device__ __forceinline__ float ld(const int* p) { return (float)*p; }
__device__ __forceinline__ float ld(const bf16* p) { return __uint_as_float((u32)p->bits << 16); }
__device__ __forceinline__ float ld(const half* p) {
    float f;
    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(p->bits));
    return f;
}

__device__ __forceinline__ void st(float* p, float v) { *p = v; }
__device__ __forceinline__ void st(bf16* p, float v) {
    u16 b;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(b) : "f"(v));
    p->bits = b;
}
__device__ __forceinline__ void st(half* p, float v) {
    u16 b;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(b) : "f"(v));
    p->bits = b;
}

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

// ---- Vectors of neighbouring elements ----

template <int N> struct alignas(4 * N) Words { u32 w[N]; };

template <typename T> __device__ __forceinline__ float from_bits(u32 bits) {
    T narrow;
    narrow.bits = (u16)bits;
    return ld(&narrow);
}

template <typename T> __device__ __forceinline__ u32 to_bits(float v) {
    T narrow;
    st(&narrow, v);
    return narrow.bits;
}

// V elements from an address that is aligned to all of them together.
template <int V> __device__ __forceinline__ void load_lanes(const float* p, float (&v)[V]) {
    Words<V> words = *(const Words<V>*)p;
#pragma unroll
    for (int i = 0; i < V; i++) v[i] = __uint_as_float(words.w[i]);
}

template <int V, typename T> __device__ __forceinline__ void load_lanes(const T* p, float (&v)[V]) {
    if constexpr (V == 1) {
        v[0] = ld(p);
    } else {
        Words<V / 2> words = *(const Words<V / 2>*)p;
#pragma unroll
        for (int i = 0; i < V / 2; i++) {
            v[2 * i] = from_bits<T>(words.w[i] & 0xffff);
            v[2 * i + 1] = from_bits<T>(words.w[i] >> 16);
        }
    }
}

template <int V> __device__ __forceinline__ void store_lanes(float* p, const float (&v)[V]) {
    Words<V> words;
#pragma unroll
    for (int i = 0; i < V; i++) words.w[i] = __float_as_uint(v[i]);
    *(Words<V>*)p = words;
}

template <int V, typename T> __device__ __forceinline__ void store_lanes(T* p, const float (&v)[V]) {
    if constexpr (V == 1) {
        st(p, v[0]);
    } else {
        Words<V / 2> words;
#pragma unroll
        for (int i = 0; i < V / 2; i++) {
            words.w[i] = to_bits<T>(v[2 * i]) | to_bits<T>(v[2 * i + 1]) << 16;
        }
        *(Words<V / 2>*)p = words;
    }
}
