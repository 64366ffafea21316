// Batch normalisation: moments, statistics, the normalisation and its derivative. Channels are
// innermost. A block processes a tile of channels, V per thread, and a share of the pixels, so that
// a thread keeps its channels for the whole launch. Sums are accumulated in float over short runs,
// then in double: over a thread's runs, over a block's threads, and over the blocks of a tile in
// the last of them.
//
// The optional `bias` belongs to `x`: a convolution need not add its own. It is folded into the
// shift of a channel.
// Whether a ReLU passed a value is not stored: forward and backward evaluate the same `fmaf`.

// Threads per block of summing kernels.
#define SUM_THREADS 512
// Maximum channels per tile.
#define MAX_CHANNELS 256
// Pixels that a thread sums in float, in units of those whose loads are in flight together.
#define RUN 8

// The work of a thread.
struct Share {
    int tile;    // vectors of channels in a tile
    int tiles;   // total
    int index;   // this block's tile
    int part;    // this block's share of the pixels
    int parts;   // total
    int lane;    // this thread's pixel among those its block reads together
    int lanes;   // total
    int vector;  // this thread's vector within the tile
    bool active;
};

__device__ __forceinline__ Share share(i64 channels, int V, int tile) {
    Share s;
    int vectors = (int)(channels / V);
    s.tile = tile;
    s.tiles = (vectors + tile - 1) / tile;
    s.index = (int)blockIdx.x % s.tiles;
    s.part = (int)blockIdx.x / s.tiles;
    s.parts = (int)gridDim.x / s.tiles;
    s.lane = (int)threadIdx.x / tile;
    s.lanes = (int)blockDim.x / tile;
    s.vector = (int)threadIdx.x % tile;
    s.active = s.lane < s.lanes && s.index * tile + s.vector < vectors;
    return s;
}

// The first channel of a thread.
template <int V> __device__ __forceinline__ i64 first_channel(const Share& s) {
    return (i64)(s.index * s.tile + s.vector) * V;
}

// Calls `each.load(i)` for a few pixels ahead, then `each.use(i)` for the same ones, and advances.
// `left` counts the remaining pixels.
template <typename Each>
__device__ __forceinline__ void few_pixels(Each& each, int left) {
    if (left >= Each::AHEAD) {
        EVERY(Each::AHEAD) each.load(k);
        EVERY(Each::AHEAD) each.use(k);
    } else {
        EVERY(Each::AHEAD - 1) if (k < left) each.load(k);
        EVERY(Each::AHEAD - 1) if (k < left) each.use(k);
    }
    each.move();
}

// The first pixel of a thread, the distance between its pixels, and their number.
struct Walk {
    i64 first, step;
    int count;
};

__device__ __forceinline__ Walk walk(const Share& s, i64 pixels) {
    Walk w;
    w.first = (i64)s.part * s.lanes + s.lane;
    w.step = (i64)s.parts * s.lanes;
    w.count = 0;
    if (w.first < pixels) {
        i64 behind = pixels - 1 - w.first;
        bool small = (behind | w.step) >> 32 == 0;
        w.count = 1 + (int)(small ? (u32)behind / (u32)w.step : behind / w.step);
    }
    return w;
}

template <typename Each>
__device__ __forceinline__ void each_pixel(int count, Each& each) {
#pragma unroll 1
    for (; count > 0; count -= Each::AHEAD) few_pixels(each, count);
}

// The sums of a block's threads: sum `n` of channel `v` of every thread's vector.
template <int N, int V> struct Totals {
    double at[N * V][SUM_THREADS];

    __device__ __forceinline__ void clear() {
        EVERY(N * V) at[k][threadIdx.x] = 0.0;
    }
    // Column `q` of `tile` adjacent threads, over every `step`th lane.
    __device__ __forceinline__ double lanes(const Share& s, int q, int first, int step) const {
        const double* column = at[q / s.tile] + q % s.tile;
        double sum = 0.0;
        for (int r = first; r < s.lanes; r += step) sum += column[r * s.tile];
        return sum;
    }
};

// The same for an `Each` that adds to `sum`, which is moved to `totals` after every run.
template <int N, int V, typename Each>
__device__ __forceinline__ void sum_pixels(int count, Each& each, Totals<N, V>& totals) {
    while (count > 0) {
        EVERY(N * V) each.sum[k / V][k % V] = 0.0f;
#pragma unroll 1
        for (int r = 0; r < RUN && count > 0; r++, count -= Each::AHEAD) few_pixels(each, count);
        EVERY(N * V) totals.at[k][threadIdx.x] += (double)each.sum[k / V][k % V];
    }
}

// Sums every `step`th of `parts` numbers that are `apart` from each other, with many loads in
// flight.
__device__ __forceinline__ double sum_parts(const double* at, int first, int parts, int step,
                                            int apart) {
    const int AHEAD = 12;
    double sum = 0.0;
    for (int r = first; r < parts; r += AHEAD * step) {
        double v[AHEAD];
        EVERY(AHEAD) v[k] = r + k * step < parts ? at[(i64)(r + k * step) * apart] : 0.0;
        EVERY(AHEAD) sum += v[k];
    }
    return sum;
}

// Adds up every thread's sums. In the last block of a tile, `whole[n * columns + i]` becomes sum
// `n` of the tile's channel `i`, and the result is true; in the others it is false.
template <int N, int V>
__device__ bool add_blocks(const Share& s, const Totals<N, V>& totals, double* partial,
                           u32* counters, double* whole) {
    __shared__ double buffer[SUM_THREADS];
    int t = (int)threadIdx.x, all = N * V * s.tile;
    int q = t % all, first = t / all, threads = (int)blockDim.x / all;
    __syncthreads();
    int step = min(threads, s.lanes);
    if (first < step) buffer[first * all + q] = totals.lanes(s, q, first, step);
    __syncthreads();
    double* mine = partial + (i64)s.index * s.parts * all;
    if (t < all) {
        double sum = 0.0;
        for (int r = 0; r < step; r++) sum += buffer[r * all + t];
        mine[(i64)s.part * all + t] = sum;
    }
    if (!last_block(counters + s.index, (u32)s.parts)) return false;
    step = min(threads, s.parts);
    if (first < step) buffer[first * all + q] = sum_parts(mine + q, first, s.parts, step, all);
    __syncthreads();
    if (t < all) {
        double sum = 0.0;
        for (int r = 0; r < step; r++) sum += buffer[r * all + t];
        // Columns are ordered by sum, lane of the vector, vector.
        int n = t / (V * s.tile), v = t / s.tile % V, vector = t % s.tile;
        whole[(n * s.tile + vector) * V + v] = sum;
    }
    __syncthreads();
    return true;
}

// A tensor that a thread iterates over: its current position, and the distance between pixels.
template <typename T> struct Path {
    T* at;
    i64 step;

    __device__ __forceinline__ Path(T* first, i64 ld, const Walk& w)
        : at(first + w.first * ld), step(w.step * ld) {}
    __device__ __forceinline__ T* ahead(int i) const { return at + i * step; }
    __device__ __forceinline__ void move(int pixels) { at += pixels * step; }
};

template <typename T, int V> struct MomentTerms {
    static const int AHEAD = 4;
    Path<const T> x;
    float bias[V], sum[2][V];
    Pack<T, V> values[AHEAD];

    __device__ __forceinline__ void load(int i) { values[i] = load_pack<V>(x.ahead(i)); }
    __device__ __forceinline__ void move() { x.move(AHEAD); }
    __device__ __forceinline__ void use(int i) {
        float xs[V];
        values[i].unpack(xs);
        EVERY(V) {
            float value = xs[k] + bias[k];
            sum[0][k] += value;
            sum[1][k] = fmaf(value, value, sum[1][k]);
        }
    }
};

// Mean and variance of channel `c` from sums over `count` numbers.
__device__ __forceinline__ void write_stats(float* stats, i64 channels, i64 c, double sum,
                                            double squares, i64 count) {
    double mean = count > 0 ? sum / (double)count : 0.0;
    double square = count > 0 ? squares / (double)count : 0.0;
    // NaN must stay NaN, so `max` cannot be used.
    double variance = square - mean * mean;
    stats[c] = (float)mean;
    stats[channels + c] = variance < 0.0 ? 0.0f : (float)variance;
}

// Sums, then sums of squares, of every channel; also mean and variance if `stats` is given.
template <typename T, int V>
__global__ void __launch_bounds__(SUM_THREADS, 2)
moments(const T* x, i64 ld, const float* bias, double* sums, float* stats, i64 count, i64 pixels,
        i64 channels, int tile, double* partial, u32* counters) {
    __shared__ Totals<2, V> totals;
    __shared__ double whole[SUM_THREADS];
    Share s = share(channels, V, tile);
    totals.clear();
    if (s.active) {
        i64 c = first_channel<V>(s);
        Walk w = walk(s, pixels);
        MomentTerms<T, V> terms = {Path<const T>(x + c, ld, w)};
        EVERY(V) terms.bias[k] = bias ? bias[c + k] : 0.0f;
        sum_pixels(w.count, terms, totals);
    }
    if (!add_blocks(s, totals, partial, counters, whole)) return;
    int t = (int)threadIdx.x, columns = s.tile * V;
    i64 c = (i64)s.index * columns + t;
    if (t >= columns || c >= channels) return;
    sums[c] = whole[t];
    sums[channels + c] = whole[columns + t];
    if (stats) write_stats(stats, channels, c, whole[t], whole[columns + t], count);
}

__global__ void batch_stats(const double* sums, i64 count, i64 channels, float* stats) {
    EACH(c, channels) write_stats(stats, channels, c, sums[c], sums[channels + c], count);
}

// The parameters of a normalisation that forward and backward share.
struct Norm {
    const float *bias, *stats, *gamma, *beta;
    i64 channels;
    float epsilon;

    __device__ __forceinline__ double inverse_deviation(i64 c) const {
        return 1.0 / sqrt((double)stats[channels + c] + (double)epsilon);
    }
    // The mean of `x` without its bias.
    __device__ __forceinline__ double mean(i64 c) const {
        return (double)stats[c] - (bias ? (double)bias[c] : 0.0);
    }
    // `y = x * scale + shift`. Forward and backward both compute these two numbers here.
    __device__ __forceinline__ void scale_shift(i64 c, double inverse, float& scale,
                                                float& shift) const {
        scale = (float)((double)gamma[c] * inverse);
        shift = (float)((double)beta[c] - mean(c) * (double)scale);
    }
};

// Calls `each(i, c)` for the channels of a block's tile: `i` within the tile, `c` among all.
template <int V, typename Each>
__device__ __forceinline__ void each_channel(const Share& s, i64 channels, Each each) {
    for (int i = (int)threadIdx.x; i < s.tile * V; i += (int)blockDim.x) {
        i64 c = (i64)s.index * s.tile * V + i;
        if (c < channels) each(i, c);
    }
}

template <typename T, int V> struct Normalize {
    static const int AHEAD = 4;
    Path<const T> x;
    Path<T> y;
    int relu;
    Pack<T, V> values[AHEAD];
    float scale[V], shift[V];

    __device__ __forceinline__ void load(int i) { values[i] = load_pack<V>(x.ahead(i)); }
    __device__ __forceinline__ void move() { x.move(AHEAD), y.move(AHEAD); }
    __device__ __forceinline__ void use(int i) {
        float xs[V], out[V];
        values[i].unpack(xs);
        EVERY(V) {
            float value = fmaf(xs[k], scale[k], shift[k]);
            out[k] = relu && value < 0.0f ? 0.0f : value;
        }
        store_lanes<V>(y.ahead(i), out);
    }
};

template <typename T, int V>
__global__ void __launch_bounds__(256, V > 4 ? 3 : 4)
batch_norm(const T* x, i64 x_ld, const float* bias, const float* stats, const float* gamma,
           const float* beta, float epsilon, int relu, T* y, i64 y_ld, i64 pixels, i64 channels,
           int tile) {
    __shared__ float scale[MAX_CHANNELS], shift[MAX_CHANNELS];
    Share s = share(channels, V, tile);
    Norm norm = {bias, stats, gamma, beta, channels, epsilon};
    each_channel<V>(s, channels, [&](int i, i64 c) {
        norm.scale_shift(c, norm.inverse_deviation(c), scale[i], shift[i]);
    });
    __syncthreads();
    if (!s.active) return;
    i64 c = first_channel<V>(s);
    Walk w = walk(s, pixels);
    Normalize<T, V> each = {Path<const T>(x + c, x_ld, w), Path<T>(y + c, y_ld, w), relu};
    EVERY(V) {
        each.scale[k] = scale[s.vector * V + k];
        each.shift[k] = shift[s.vector * V + k];
    }
    each_pixel(w.count, each);
}

template <typename T, int V> struct GradTerms {
    static const int AHEAD = 3;
    Path<const T> dy, x;
    int relu;
    Pack<T, V> dy_at[AHEAD], x_at[AHEAD];
    float mean[V], scale[V], shift[V], sum[2][V];

    __device__ __forceinline__ void load(int i) {
        dy_at[i] = load_pack<V>(dy.ahead(i));
        x_at[i] = load_pack<V>(x.ahead(i));
    }
    __device__ __forceinline__ void move() { dy.move(AHEAD), x.move(AHEAD); }
    __device__ __forceinline__ void use(int i) {
        float dys[V], xs[V];
        dy_at[i].unpack(dys);
        x_at[i].unpack(xs);
        EVERY(V) {
            bool passes = !relu || fmaf(xs[k], scale[k], shift[k]) > 0.0f;
            float g = passes ? dys[k] : 0.0f;
            sum[0][k] += g;
            sum[1][k] = fmaf(g, xs[k] - mean[k], sum[1][k]);
        }
    }
};

// Sums of `dy`, then of `dy * x̂`, of every channel.
template <typename T, int V>
__global__ void __launch_bounds__(SUM_THREADS, 2)
batch_norm_grad_sums(const T* dy, i64 dy_ld, const T* x, i64 x_ld, const float* bias,
                     const float* stats, const float* gamma, const float* beta, float epsilon,
                     int relu, float* sums, i64 pixels, i64 channels, int tile, double* partial,
                     u32* counters) {
    __shared__ Totals<2, V> totals;
    __shared__ double whole[SUM_THREADS];
    __shared__ float mean[MAX_CHANNELS], scale[MAX_CHANNELS], shift[MAX_CHANNELS];
    __shared__ double inverses[MAX_CHANNELS];
    Share s = share(channels, V, tile);
    Norm norm = {bias, stats, gamma, beta, channels, epsilon};
    each_channel<V>(s, channels, [&](int i, i64 c) {
        inverses[i] = norm.inverse_deviation(c);
        mean[i] = (float)norm.mean(c);
        norm.scale_shift(c, inverses[i], scale[i], shift[i]);
    });
    totals.clear();
    __syncthreads();
    if (s.active) {
        i64 c = first_channel<V>(s);
        Walk w = walk(s, pixels);
        GradTerms<T, V> terms = {Path<const T>(dy + c, dy_ld, w), Path<const T>(x + c, x_ld, w),
                                 relu};
        EVERY(V) {
            terms.mean[k] = mean[s.vector * V + k];
            terms.scale[k] = scale[s.vector * V + k];
            terms.shift[k] = shift[s.vector * V + k];
        }
        sum_pixels(w.count, terms, totals);
    }
    if (!add_blocks(s, totals, partial, counters, whole)) return;
    int t = (int)threadIdx.x, columns = s.tile * V;
    i64 c = (i64)s.index * columns + t;
    if (t >= columns || c >= channels) return;
    sums[c] = (float)whole[t];
    sums[channels + c] = (float)(whole[columns + t] * inverses[t]);
}

template <typename T, int V> struct GradInput {
    static const int AHEAD = 2;
    Path<const T> dy, x;
    Path<T> dx;
    int relu;
    Pack<T, V> dy_at[AHEAD], x_at[AHEAD];
    float scale[V], shift[V], slope[V], offset[V], sum[1][V];

    __device__ __forceinline__ void load(int i) {
        dy_at[i] = load_pack<V>(dy.ahead(i));
        x_at[i] = load_pack<V>(x.ahead(i));
    }
    __device__ __forceinline__ void move() { dy.move(AHEAD), x.move(AHEAD), dx.move(AHEAD); }
    __device__ __forceinline__ void use(int i) {
        float dys[V], xs[V], out[V];
        dy_at[i].unpack(dys);
        x_at[i].unpack(xs);
        EVERY(V) {
            bool passes = !relu || fmaf(xs[k], scale[k], shift[k]) > 0.0f;
            float g = passes ? dys[k] : 0.0f;
            out[k] = fmaf(g, scale[k], fmaf(xs[k], slope[k], offset[k]));
            sum[0][k] += out[k];
        }
        store_lanes<V>(dx.ahead(i), out);
    }
};

// `dx = gamma/σ · (dy - Σdy/N - x̂ · Σdy·x̂/N)`, which is `k·dy + slope·x + offset` with `k =
// gamma/σ`; if SUMS, also the sums of `dx` over all pixels.
template <typename T, int V, bool SUMS>
__global__ void __launch_bounds__(SUMS ? SUM_THREADS : 256, SUMS ? 2 : V > 4 ? 3 : 4)
batch_norm_grad_input(const T* dy, i64 dy_ld, const T* x, i64 x_ld, const float* bias,
                      const float* stats, const float* gamma, const float* beta, float epsilon,
                      int relu, const float* sums, i64 count, T* dx, i64 dx_ld, i64 pixels,
                      i64 channels, int tile, float* column_sums, double* partial, u32* counters) {
    __shared__ float scale[MAX_CHANNELS], shift[MAX_CHANNELS];
    __shared__ float slope[MAX_CHANNELS], offset[MAX_CHANNELS];
    Share s = share(channels, V, tile);
    Norm norm = {bias, stats, gamma, beta, channels, epsilon};
    each_channel<V>(s, channels, [&](int i, i64 c) {
        double inverse = norm.inverse_deviation(c), share = count > 0 ? 1.0 / (double)count : 0.0;
        double factor = (double)gamma[c] * inverse;
        norm.scale_shift(c, inverse, scale[i], shift[i]);
        slope[i] = (float)(-factor * inverse * share * (double)sums[channels + c]);
        offset[i] = (float)(-factor * share * (double)sums[c] - (double)slope[i] * norm.mean(c));
    });
    Walk w = walk(s, pixels);
    i64 c = first_channel<V>(s);
    GradInput<T, V> each = {Path<const T>(dy + c, dy_ld, w), Path<const T>(x + c, x_ld, w),
                            Path<T>(dx + c, dx_ld, w), relu};
    __syncthreads();
    EVERY(V) {
        int i = s.vector * V + k;
        each.scale[k] = scale[i];
        each.shift[k] = shift[i];
        each.slope[k] = slope[i];
        each.offset[k] = offset[i];
        each.sum[0][k] = 0.0f;
    }
    if constexpr (SUMS) {
        __shared__ Totals<1, V> totals;
        __shared__ double whole[SUM_THREADS];
        totals.clear();
        if (s.active) sum_pixels(w.count, each, totals);
        if (!add_blocks(s, totals, partial, counters, whole)) return;
        int t = (int)threadIdx.x, columns = s.tile * V;
        i64 first = (i64)s.index * columns + t;
        if (t < columns && first < channels) column_sums[first] = (float)whole[t];
    } else if (s.active) {
        each_pixel(w.count, each);
    }
}
