// The subset of CUDA that kernels use, for a C++ compiler on the host. Float atomics are omitted on
// purpose: sums in order of arrival are not reproducible.
#include <math.h>

#define PHALANX_EMULATED 1
#define __global__
#define __device__
#define __host__
#define __constant__
#define __shared__ thread_local
#define __forceinline__ inline
#define __inline__ inline
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __align__(n) alignas(n)
#define __builtin_align__(n) alignas(n)

constexpr int warpSize = 32;

// --- Vectors -------------------------------------------------------------------------------------

#define VECTORS(T, name, a2, a4)                                                              \
    struct alignas(a2) name##2 { T x, y; };                                                   \
    struct alignas(a4) name##4 { T x, y, z, w; };                                             \
    inline name##2 make_##name##2(T x, T y) { return {x, y}; }                                \
    inline name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }
VECTORS(float, float, 8, 16)
VECTORS(int, int, 8, 16)
VECTORS(unsigned, uint, 8, 16)
VECTORS(short, short, 4, 8)
VECTORS(unsigned short, ushort, 4, 8)
VECTORS(unsigned char, uchar, 2, 4)
VECTORS(double, double, 16, 16)
VECTORS(long long, longlong, 16, 16)
VECTORS(unsigned long long, ulonglong, 16, 16)
#undef VECTORS
struct float3 { float x, y, z; };
struct int3 { int x, y, z; };
inline float3 make_float3(float x, float y, float z) { return {x, y, z}; }
inline int3 make_int3(int x, int y, int z) { return {x, y, z}; }
inline uint3 make_uint3(unsigned x, unsigned y, unsigned z) { return {x, y, z}; }

// --- Bits and numbers ----------------------------------------------------------------------------

namespace emu {
template <class To, class From> inline To bits(From v) {
    static_assert(sizeof(To) == sizeof(From), "of one size");
    To to;
    memcpy(&to, &v, sizeof to);
    return to;
}
}  // namespace emu

inline float __uint_as_float(unsigned v) { return emu::bits<float>(v); }
inline float __int_as_float(int v) { return emu::bits<float>(v); }
inline unsigned __float_as_uint(float v) { return emu::bits<unsigned>(v); }
inline int __float_as_int(float v) { return emu::bits<int>(v); }
inline long long __double_as_longlong(double v) { return emu::bits<long long>(v); }
inline double __longlong_as_double(long long v) { return emu::bits<double>(v); }
inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned long long)a * b >> 32; }
inline int __mulhi(int a, int b) { return (long long)a * b >> 32; }
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    return (unsigned __int128)a * b >> 64;
}
inline int __popc(unsigned v) { return __builtin_popcount(v); }
inline int __popcll(unsigned long long v) { return __builtin_popcountll(v); }
inline int __clz(int v) { return v ? __builtin_clz(v) : 32; }
inline int __clzll(long long v) { return v ? __builtin_clzll(v) : 64; }
inline int __ffs(int v) { return __builtin_ffs(v); }
inline unsigned __brev(unsigned v) {
    unsigned r = 0;
    for (int i = 0; i < 32; i++) r |= (v >> i & 1) << (31 - i);
    return r;
}
inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fsqrt_rn(float v) { return sqrtf(v); }
inline float __frcp_rn(float v) { return 1.0f / v; }
inline double __dadd_rn(double a, double b) { return a + b; }
inline double __dmul_rn(double a, double b) { return a * b; }
inline float rsqrtf(float v) { return (float)(1.0 / sqrt((double)v)); }
inline double rsqrt(double v) { return 1.0 / sqrt(v); }
inline float __saturatef(float v) { return fminf(fmaxf(v, 0.0f), 1.0f); }

// Converts to integers like a GPU: saturates out-of-range values, and turns NaN into zero.
namespace emu {
template <class I> inline I saturate(double v, double lo, double hi) {
    return v != v ? (I)0 : v <= lo ? (I)lo : v >= hi ? (I)hi : (I)v;
}
inline int to_int(double v) { return saturate<int>(v, -2147483648.0, 2147483647.0); }
inline unsigned to_uint(double v) { return saturate<unsigned>(v, 0.0, 4294967295.0); }
}  // namespace emu
inline int __float2int_rn(float v) { return emu::to_int(rintf(v)); }
inline int __float2int_rz(float v) { return emu::to_int(truncf(v)); }
inline int __float2int_rd(float v) { return emu::to_int(floorf(v)); }
inline int __float2int_ru(float v) { return emu::to_int(ceilf(v)); }
inline unsigned __float2uint_rz(float v) { return emu::to_uint(truncf(v)); }
inline float __int2float_rn(int v) { return (float)v; }
inline float __uint2float_rn(unsigned v) { return (float)v; }
inline float __double2float_rn(double v) { return (float)v; }

#define MIN_MAX(T)                                  \
    inline T min(T a, T b) { return a < b ? a : b; } \
    inline T max(T a, T b) { return a > b ? a : b; }
MIN_MAX(int)
MIN_MAX(unsigned)
MIN_MAX(long)
MIN_MAX(unsigned long)
MIN_MAX(long long)
MIN_MAX(unsigned long long)
#undef MIN_MAX
inline float min(float a, float b) { return fminf(a, b); }
inline float max(float a, float b) { return fmaxf(a, b); }
inline double min(double a, double b) { return fmin(a, b); }
inline double max(double a, double b) { return fmax(a, b); }

// --- 16-bit floats, as the conversions of `prelude.cuh` ------------------------------------------

inline float half_to_float(unsigned short h) {
    float sign = h & 0x8000 ? -1.0f : 1.0f;
    int exponent = h >> 10 & 31, fraction = h & 1023;
    if (exponent == 31) return fraction ? NAN : sign * INFINITY;
    if (exponent == 0) return sign * ldexpf((float)fraction, -24);
    return sign * ldexpf((float)(1024 + fraction), exponent - 25);
}

inline unsigned short float_to_half(float v) {
    unsigned short sign = __float_as_uint(v) >> 16 & 0x8000;
    float size = fabsf(v);
    if (v != v) return 0x7fff;
    if (size >= 65520.0f) return sign | 0x7c00;
    // In units of the last place; a sum that overflows the fraction carries into the exponent.
    int exponent = 0;
    frexpf(size, &exponent);
    int place = (exponent < -13 ? -13 : exponent) - 11;
    int steps = (int)rintf(ldexpf(size, -place));
    return sign | (steps < 1024 ? steps : ((place + 24) << 10) + steps);
}

inline unsigned short float_to_bf16(float v) {
    unsigned b = __float_as_uint(v);
    if (v != v) return 0x7fff;
    return (b + 0x7fff + (b >> 16 & 1)) >> 16;
}

// --- Memory --------------------------------------------------------------------------------------

template <class T> inline T __ldg(const T* p) { return *p; }
template <class T> inline T __ldcs(const T* p) { return *p; }
template <class T> inline T __ldcg(const T* p) { return *p; }
template <class T> inline T __ldca(const T* p) { return *p; }
template <class T, class V> inline void __stcs(T* p, V v) { *p = v; }
template <class T, class V> inline void __stcg(T* p, V v) { *p = v; }
inline void __threadfence() {}
inline void __threadfence_block() {}
inline void __threadfence_system() {}

#define ATOMICS(T)                                                                             \
    inline T atomicAdd(T* p, T v) { T old = *p; *p = old + v; return old; }                     \
    inline T atomicSub(T* p, T v) { T old = *p; *p = old - v; return old; }                     \
    inline T atomicExch(T* p, T v) { T old = *p; *p = v; return old; }                          \
    inline T atomicMin(T* p, T v) { T old = *p; *p = min(old, v); return old; }                 \
    inline T atomicMax(T* p, T v) { T old = *p; *p = max(old, v); return old; }                 \
    inline T atomicOr(T* p, T v) { T old = *p; *p = old | v; return old; }                      \
    inline T atomicAnd(T* p, T v) { T old = *p; *p = old & v; return old; }                     \
    inline T atomicXor(T* p, T v) { T old = *p; *p = old ^ v; return old; }                     \
    inline T atomicCAS(T* p, T is, T v) { T old = *p; *p = old == is ? v : old; return old; }
ATOMICS(int)
ATOMICS(unsigned)
ATOMICS(unsigned long long)
#undef ATOMICS
inline unsigned atomicInc(unsigned* p, unsigned v) {
    unsigned old = *p;
    *p = old >= v ? 0 : old + 1;
    return old;
}

// --- Threads -------------------------------------------------------------------------------------

#define CALLER const char* file = __builtin_FILE(), int line = __builtin_LINE()

inline void __syncthreads(CALLER) { emu::wait(emu::AT_BARRIER, {"__syncthreads()", file, line}); }
inline void __syncwarp(unsigned mask = ~0u, CALLER) { emu::exchange(mask, 0, {"__syncwarp()", file, line}); }

namespace emu {
template <class T> inline T shuffle(unsigned mask, T v, unsigned lane, Site site) {
    static_assert(sizeof(T) <= 8, "one register or two");
    uint64_t value = 0;
    memcpy(&value, &v, sizeof v);
    exchange(mask, value, site);
    if (!(mask >> lane & 1)) fail("%s (%s:%d): lane %u is not in the mask", site.op, site.file, site.line, lane);
    value = received(lane);
    memcpy(&v, &value, sizeof v);
    return v;
}
inline unsigned lane() { return run->current % WARP; }
inline unsigned voted(unsigned mask, bool v, Site site) {
    exchange(mask, v, site);
    unsigned votes = 0, first = run->current / WARP * WARP;
    for (unsigned i = 0; i < WARP && first + i < run->launch->threads; i++)
        if (mask >> i & 1) votes |= (unsigned)(received(i) & 1) << i;
    return votes;
}
inline unsigned present(unsigned mask) {
    unsigned left = run->launch->threads - run->current / WARP * WARP;
    return left >= WARP ? mask : mask & ((1u << left) - 1);
}
}  // namespace emu

// Lanes outside the segment of `width` get their own value.
template <class T> inline T __shfl_sync(unsigned mask, T v, int from, int width = 32, CALLER) {
    unsigned base = emu::lane() & ~(width - 1);
    return emu::shuffle(mask, v, base + (from & (width - 1)), {"__shfl_sync()", file, line});
}
template <class T> inline T __shfl_down_sync(unsigned mask, T v, unsigned by, int width = 32, CALLER) {
    unsigned lane = emu::lane(), within = lane & (width - 1);
    unsigned from = within + by < (unsigned)width ? lane + by : lane;
    return emu::shuffle(mask, v, from, {"__shfl_down_sync()", file, line});
}
template <class T> inline T __shfl_up_sync(unsigned mask, T v, unsigned by, int width = 32, CALLER) {
    unsigned lane = emu::lane(), within = lane & (width - 1);
    return emu::shuffle(mask, v, within >= by ? lane - by : lane, {"__shfl_up_sync()", file, line});
}
template <class T> inline T __shfl_xor_sync(unsigned mask, T v, int with, int width = 32, CALLER) {
    unsigned lane = emu::lane(), from = lane ^ with;
    if (from / width > lane / width) from = lane;
    return emu::shuffle(mask, v, from, {"__shfl_xor_sync()", file, line});
}
inline unsigned __ballot_sync(unsigned mask, int v, CALLER) { return emu::voted(mask, v, {"__ballot_sync()", file, line}); }
inline int __any_sync(unsigned mask, int v, CALLER) { return emu::voted(mask, v, {"__any_sync()", file, line}) != 0; }
inline int __all_sync(unsigned mask, int v, CALLER) {
    return emu::voted(mask, v, {"__all_sync()", file, line}) == emu::present(mask);
}
inline unsigned __activemask() { return emu::present(~0u); }
#undef CALLER

// --- Kernels by their name -------------------------------------------------------------------------

namespace emu {
// One letter per argument.
template <class T> struct Letter { static constexpr char of = '?'; };
template <class T> struct Letter<T*> { static constexpr char of = 'p'; };
template <> struct Letter<int> { static constexpr char of = 'i'; };
template <> struct Letter<unsigned> { static constexpr char of = 'i'; };
template <> struct Letter<long long> { static constexpr char of = 'l'; };
template <> struct Letter<unsigned long long> { static constexpr char of = 'l'; };
template <> struct Letter<float> { static constexpr char of = 'f'; };

template <unsigned... I> struct Numbers {};
template <unsigned N, unsigned... I> struct Count : Count<N - 1, N - 1, I...> {};
template <unsigned... I> struct Count<0, I...> { typedef Numbers<I...> To; };

template <class... A, unsigned... I> inline void call(void (*kernel)(A...), void** args, Numbers<I...>) {
    kernel(*(A*)args[I]...);
}
template <class... A> inline void call(void (*kernel)(A...), void** args) {
    call(kernel, args, typename Count<sizeof...(A)>::To());
}
template <class... A> inline const char* letters(void (*)(A...)) {
    static const char text[] = {Letter<A>::of..., 0};
    return text;
}
}  // namespace emu

#define PHALANX_KERNEL(number, ...)                                                                        \
    extern "C" __attribute__((visibility("default"))) void phalanx_body_##number(void** args) {            \
        emu::call(&__VA_ARGS__, args);                                                                     \
    }                                                                                                      \
    extern "C" __attribute__((visibility("default"))) const char* phalanx_letters_##number() {             \
        return emu::letters(&__VA_ARGS__);                                                                 \
    }
