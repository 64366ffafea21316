// Prepended to every kernel file: number types, loads and stores, divisions, sums over threads,
// random numbers. It includes no header of the CUDA toolkit, because a machine with only the driver
// and the runtime compiler has none.

typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;
typedef unsigned short u16;
typedef unsigned char u8;

// 16-bit floats are only stored, never computed with.
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

// The head of the inputs, which the host writes at every step. Must match `inputs.rs`.
struct Inputs {
    u64 seed, step;
    float scalars[16];
    float keep, weight, mean, unused;
};

// A grid-stride loop over items.
#define EACH(i, n)                                                        \
    for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < (n);     \
         i += (i64)gridDim.x * blockDim.x)

// ---- Helpers of the general ops ----

__device__ __forceinline__ float negative_infinity() { return __uint_as_float(0xff800000u); }
__device__ __forceinline__ float not_a_number() { return __uint_as_float(0x7fc00000u); }

// The larger; NaN if either is NaN.
template <typename A>
__device__ __forceinline__ A larger(A a, A b) {
    return a != a || a > b ? a : b;
}

// Sizes or strides of nested loops, outermost first, as compile-time constants: divisions by them
// become multiplications.
template <i64... N>
struct Axes {};

// Offset of iteration `i` of loops of sizes `N`, with strides `S`. The outermost size is ignored.
template <typename I, i64... N, i64... S>
__device__ __forceinline__ i64 distance(I i, Axes<N...>, Axes<S...>) {
    constexpr i64 size[] = {N...}, stride[] = {S...};
    i64 sum = 0;
#pragma unroll
    for (int k = sizeof...(N) - 1; k > 0; k--) {
        I outer = i / (I)size[k];
        sum += (i64)(i - outer * (I)size[k]) * stride[k];
        i = outer;
    }
    return sum + (i64)i * stride[0];
}

// Sum over groups of `G` neighbouring threads, returned to all of them.
template <int G, typename A>
__device__ __forceinline__ A group_sum(A v) {
#pragma unroll
    for (int m = G / 2; m > 0; m /= 2) v += __shfl_xor_sync(0xffffffff, v, m);
    return v;
}

// Maximum over groups of `G` neighbouring threads; NaN if one is NaN.
template <int G, typename A>
__device__ __forceinline__ A group_max(A v) {
#pragma unroll
    for (int m = G / 2; m > 0; m /= 2) v = larger(v, __shfl_xor_sync(0xffffffff, v, m));
    return v;
}

// Whether this block is the last of `blocks` that increment this counter; the earlier writes of the
// others are then visible. The counter is reset to zero.
__device__ __forceinline__ bool last_block(u32* counter, u32 blocks) {
    __shared__ bool last;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        last = atomicAdd(counter, 1u) == blocks - 1;
        if (last) *counter = 0;
    }
    __syncthreads();
    __threadfence();
    return last;
}

// Words `4 * block..4 * block + 4` for a row of the global batch, as `phalanx_graph::rng` draws them.
__device__ __forceinline__ void draw(const Inputs* in, u32 stream, u32 row, u32 block, u32 (&c)[4]) {
    u64 seed = in->seed, step = in->step;
    u32 k0 = (u32)seed, k1 = (u32)(seed >> 32) ^ (u32)(step >> 32);
    c[0] = block, c[1] = row, c[2] = (u32)step, c[3] = stream;
#pragma unroll
    for (int round = 0; round < 10; round++) {
        u64 p0 = (u64)c[0] * 0xD2511F53u, p1 = (u64)c[2] * 0xCD9E8D57u;
        c[0] = (u32)(p1 >> 32) ^ c[1] ^ k0;
        c[1] = (u32)p1;
        c[2] = (u32)(p0 >> 32) ^ c[3] ^ k1;
        c[3] = (u32)p0;
        k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
    }
}

// ---- Vectors of neighbouring elements ----

// Bytes that one load or store moves.
template <int BYTES> struct alignas(BYTES) Bits { u32 words[BYTES / 4]; };
template <> struct Bits<2> { u16 word; };
template <> struct Bits<1> { u8 word; };

// V elements, at an address that is aligned to all of them together.
template <typename T, int V> struct alignas(sizeof(T) * V) Pack {
    T v[V];
    __device__ __forceinline__ void unpack(float (&to)[V]) const {
#pragma unroll
        for (int k = 0; k < V; k++) to[k] = ld(&v[k]);
    }
    __device__ __forceinline__ void pack(const float (&from)[V]) {
#pragma unroll
        for (int k = 0; k < V; k++) st(&v[k], from[k]);
    }
};

template <int V, typename T> __device__ __forceinline__ Pack<T, V> load_pack(const T* p) {
    Bits<sizeof(T) * V> bits = *(const Bits<sizeof(T) * V>*)p;
    Pack<T, V> pack;
    memcpy(&pack, &bits, sizeof(pack));
    return pack;
}

template <int V, typename T> __device__ __forceinline__ void load_lanes(const T* p, float (&v)[V]) {
    load_pack<V>(p).unpack(v);
}

template <int V, typename T> __device__ __forceinline__ void store_lanes(T* p, const float (&v)[V]) {
    Pack<T, V> pack;
    pack.pack(v);
    Bits<sizeof(T) * V> bits;
    memcpy(&bits, &pack, sizeof(pack));
    *(Bits<sizeof(T) * V>*)p = bits;
}

// ---- Vectors shared by threads ----

// A vector of `n` numbers, shared by `G` neighbouring threads. Each thread holds `PER` numbers in registers, in packs of
// `W`, or reads them again in every pass if `PER` is 0. Vectors begin at multiples of `W` numbers, so that packs which
// begin below `n` can be read whole.
template <typename X, int G, int PER, int W>
struct Vector {
    const X* x;
    int n, lane;
    float held[PER > 0 ? PER : 1];

    __device__ __forceinline__ void load(const X* from, int size) {
        x = from, n = size, lane = threadIdx.x % G;
#pragma unroll
        for (int p = 0; p < PER; p += W) {
            float v[W];
            int at = (p / W * G + lane) * W;
#pragma unroll
            for (int w = 0; w < W; w++) v[w] = 0.0f;
            if (at < n) load_lanes(x + at, v);
#pragma unroll
            for (int w = 0; w < W; w++) held[p + w] = v[w];
        }
    }

    // Calls `f(k, i)` for every number: its place among the thread's numbers, and in the vector.
    template <typename F>
    __device__ __forceinline__ void each(F f) const {
        if (PER > 0) {
#pragma unroll
            for (int k = 0; k < PER; k++) {
                int i = (k / W * G + lane) * W + k % W;
                if (i < n) f(k, i);
            }
        } else {
            for (int i = lane; i < n; i += G) f(0, i);
        }
    }

    // `v = f(v)` for every number in registers.
    template <typename F>
    __device__ __forceinline__ void replace(F f) {
#pragma unroll
        for (int k = 0; k < PER; k++) held[k] = f(held[k]);
    }

    // Calls `f(v)` for every number.
    template <typename F>
    __device__ __forceinline__ void each_value(F f) const {
        if (PER > 0) {
            each([&](int k, int) { f(held[k]); });
            return;
        }
        constexpr int PACKS = W > 2 ? 4 : 8;
        int i = lane * W;
        for (; i + (PACKS - 1) * G * W + W <= n; i += PACKS * G * W) {
            float v[PACKS][W];
#pragma unroll
            for (int k = 0; k < PACKS; k++) load_lanes(x + i + k * G * W, v[k]);
#pragma unroll
            for (int k = 0; k < PACKS; k++)
                for (int w = 0; w < W; w++) f(v[k][w]);
        }
        for (; i < n; i += G * W) {
            float v[W];
            load_lanes(x + i, v);
#pragma unroll
            for (int w = 0; w < W; w++)
                if (i + w < n) f(v[w]);
        }
    }

    __device__ __forceinline__ float value(int k, int i) const { return PER > 0 ? held[k] : ld(x + i); }

    // `to[i] = f(k, i)` for every number.
    template <typename Y, typename F>
    __device__ __forceinline__ void write(Y* to, F f) const {
        if (PER == 0) {
#pragma unroll 4
            for (int at = lane * W; at < n; at += G * W) {
                float v[W];
#pragma unroll
                for (int w = 0; w < W; w++) v[w] = at + w < n ? f(0, at + w) : 0.0f;
                if (at + W <= n) {
                    store_lanes(to + at, v);
                } else {
                    for (int w = 0; at + w < n; w++) st(to + at + w, v[w]);
                }
            }
        }
#pragma unroll
        for (int p = 0; p < PER; p += W) {
            float v[W];
            int at = (p / W * G + lane) * W;
            if (at >= n) continue;
#pragma unroll
            for (int w = 0; w < W; w++) v[w] = f(p + w, at + w);
            store_lanes(to + at, v);
        }
    }
};

// ---- Tables: words of 8 bytes that are written when a step is prepared ----

struct Word {
    u64 bits;
    template <typename T> __device__ __forceinline__ T* ptr() const { return (T*)bits; }
    __device__ __forceinline__ i64 number() const { return (i64)bits; }
    __device__ __forceinline__ float real() const { return __uint_as_float((u32)bits); }
};

// ---- Elementwise functions ----

__device__ __forceinline__ float sign(float x) {
    return x > 0.0f ? 1.0f : x < 0.0f ? -1.0f : x;
}
// NaN if either is NaN.
__device__ __forceinline__ float larger(float a, float b) { return a > b || a != a ? a : b; }
__device__ __forceinline__ float smaller(float a, float b) { return a < b || a != a ? a : b; }
__device__ __forceinline__ float relu(float x) { return x < 0.0f ? 0.0f : x; }
__device__ __forceinline__ float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

// Lanes of a vector, in registers.
#define EVERY(v) _Pragma("unroll") for (int k = 0; k < (v); k++)

// ---- Sums over a block ----

// The sum over a block of 256 threads, returned to all of them.
__device__ __forceinline__ double sum_of_256(double mine) {
    __shared__ double sums[256];
    sums[threadIdx.x] = mine;
    for (int n = 128; n > 0; n /= 2) {
        __syncthreads();
        if ((int)threadIdx.x < n) sums[threadIdx.x] += sums[threadIdx.x + n];
    }
    __syncthreads();
    double all = sums[0];
    __syncthreads();
    return all;
}

// ---- Gradients for the optimizer ----

// Adds the derivative of `l1·Σ|w| + l2·Σw²`.
__device__ __forceinline__ float penalised(float g, float w, float l1, float l2) {
    return l1 == 0.0f && l2 == 0.0f ? g : g + (l1 * sign(w) + 2.0f * l2 * w);
}
__device__ __forceinline__ float limited(float g, float limit) {
    return g < -limit ? -limit : g > limit ? limit : g;
}
__device__ __forceinline__ bool is_finite(float v) {
    return (__float_as_uint(v) & 0x7f800000u) != 0x7f800000u;
}
// The factor that scales a norm down to its limit.
__device__ __forceinline__ float limit_scale(double square, float limit) {
    double norm = sqrt(square);
    return norm > (double)limit ? (float)((double)limit / norm) : 1.0f;
}
