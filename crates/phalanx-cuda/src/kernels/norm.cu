// Batch normalisation: moments, statistics, the normalisation and its derivative. Channels lie
// innermost. A block has a tile of channels, V to a thread, and a share of the pixels; so a thread
// keeps its channels for the whole launch. Sums run in float over short runs, then in double: over a
// thread's runs, over a block's threads, over the blocks of a tile in the last of them.
//
// `bias`, where there is one, is added to `x` first: a convolution need not add its own.
// Whether a ReLU let a value pass is not stored: forward and backward evaluate the same `fmaf`.

// Threads of a block that sums.
#define SUM_THREADS 512
// Most channels of a tile.
#define MOST_CHANNELS 256
// Pixels a thread sums in float, in units of those whose loads are in flight together.
#define RUN 8

// What a thread works on.
struct Share {
    int tile;    // vectors of channels in a tile
    int tiles;   // in all
    int index;   // this block's tile
    int part;    // this block's share of the pixels
    int parts;   // in all
    int lane;    // this thread's pixel among those its block reads together
    int lanes;   // in all
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

// Calls `each.load(i, pixel)` for a few pixels, then `each.use(i, pixel)` for the same ones.
template <typename Each>
__device__ __forceinline__ void few_pixels(Each& each, i64 pixel, i64 step, i64 pixels) {
#pragma unroll
    for (int i = 0; i < Each::AHEAD; i++) {
        if (pixel + i * step < pixels) each.load(i, pixel + i * step);
    }
#pragma unroll
    for (int i = 0; i < Each::AHEAD; i++) {
        if (pixel + i * step < pixels) each.use(i, pixel + i * step);
    }
}

template <typename Each>
__device__ __forceinline__ void each_pixel(const Share& s, i64 pixels, Each& each) {
    i64 step = (i64)s.parts * s.lanes;
    for (i64 p = (i64)s.part * s.lanes + s.lane; p < pixels; p += Each::AHEAD * step) {
        few_pixels(each, p, step, pixels);
    }
}

// The same for an `Each` that adds to `sum`, which moves to `total` after every run.
template <int N, int V, typename Each>
__device__ __forceinline__ void sum_pixels(const Share& s, i64 pixels, Each& each,
                                           double (&total)[N][V]) {
    i64 step = (i64)s.parts * s.lanes;
    i64 p = (i64)s.part * s.lanes + s.lane;
    while (p < pixels) {
#pragma unroll
        for (int n = 0; n < N; n++) {
#pragma unroll
            for (int v = 0; v < V; v++) each.sum[n][v] = 0.0f;
        }
        for (int r = 0; r < RUN && p < pixels; r++, p += Each::AHEAD * step) {
            few_pixels(each, p, step, pixels);
        }
#pragma unroll
        for (int n = 0; n < N; n++) {
#pragma unroll
            for (int v = 0; v < V; v++) total[n][v] += (double)each.sum[n][v];
        }
    }
}

// Adds up `rows` of `columns` numbers in shared memory; thread `i < columns` gets column `i`.
__device__ __forceinline__ double column_sum(double* at, int rows, int columns) {
    int column = (int)threadIdx.x % columns, first = (int)threadIdx.x / columns;
    int step = min((int)blockDim.x / columns, rows);
    double sum = 0.0;
    if (first < step) {
        for (int r = first; r < rows; r += step) sum += at[r * columns + column];
    }
    __syncthreads();
    if (first < step) at[first * columns + column] = sum;
    __syncthreads();
    double all = 0.0;
    if ((int)threadIdx.x < columns) {
        for (int r = 0; r < step; r++) all += at[r * columns + threadIdx.x];
    }
    __syncthreads();
    return all;
}

// Adds up every thread's `total`. In the last block of a tile `whole[n * columns + i]` becomes sum
// `n` of the tile's channel `i`, and the result is true; in the others it is false.
template <int N, int V>
__device__ bool add_blocks(const Share& s, const double (&total)[N][V], double* partial,
                           u32* counters, double* whole) {
    __shared__ double buffer[SUM_THREADS * V];
    __shared__ int is_last;
    int t = (int)threadIdx.x, columns = s.tile * V;
    double* mine = partial + ((i64)s.index * s.parts + s.part) * N * columns;
#pragma unroll
    for (int n = 0; n < N; n++) {
        if (s.lane < s.lanes) {
#pragma unroll
            for (int v = 0; v < V; v++) {
                buffer[s.lane * columns + s.vector * V + v] = total[n][v];
            }
        }
        __syncthreads();
        double sum = column_sum(buffer, s.lanes, columns);
        if (t < columns) mine[n * columns + t] = sum;
    }
    __threadfence();
    __syncthreads();
    if (t == 0) is_last = atomicAdd(counters + s.index, 1u) == (u32)s.parts - 1;
    __syncthreads();
    if (!is_last) return false;
    __threadfence();
    int all = N * columns, column = t % all, first = t / all;
    int step = min((int)blockDim.x / all, s.parts);
    const double* parts = partial + (i64)s.index * s.parts * all;
    if (first < step) {
        double sum = 0.0;
#pragma unroll 8
        for (int r = first; r < s.parts; r += step) sum += parts[(i64)r * all + column];
        buffer[first * all + column] = sum;
    }
    __syncthreads();
    if (t < all) {
        double sum = 0.0;
        for (int r = 0; r < step; r++) sum += buffer[r * all + t];
        whole[t] = sum;
    }
    if (t == 0) counters[s.index] = 0;
    __syncthreads();
    return true;
}

template <typename T, int V> struct MomentTerms {
    static const int AHEAD = 4;
    const T* x;
    i64 ld;
    Raw<T, V> at[AHEAD];
    float bias[V], sum[2][V];

    __device__ __forceinline__ void load(int i, i64 p) { at[i] = load_raw<V>(x + p * ld); }
    __device__ __forceinline__ void use(int i, i64) {
        float values[V];
        at[i].unpack(values);
#pragma unroll
        for (int v = 0; v < V; v++) {
            float value = values[v] + bias[v];
            sum[0][v] += value;
            sum[1][v] = fmaf(value, value, sum[1][v]);
        }
    }
};

// Mean and variance of channel `c` from sums over `count` numbers.
__device__ __forceinline__ void write_stats(float* stats, i64 channels, i64 c, double sum,
                                            double squares, i64 count) {
    double mean = count > 0 ? sum / (double)count : 0.0;
    double square = count > 0 ? squares / (double)count : 0.0;
    // NaN must stay NaN, so no `max`.
    double variance = square - mean * mean;
    stats[c] = (float)mean;
    stats[channels + c] = variance < 0.0 ? 0.0f : (float)variance;
}

// Sums, then sums of squares, of every channel; also mean and variance where `stats` is there.
template <typename T, int V>
__global__ void __launch_bounds__(SUM_THREADS, 2)
moments(const T* x, i64 ld, const float* bias, double* sums, float* stats, i64 count, i64 pixels,
        i64 channels, int tile, double* partial, u32* counters) {
    Share s = share(channels, V, tile);
    double total[2][V] = {};
    if (s.active) {
        i64 c = first_channel<V>(s);
        MomentTerms<T, V> terms;
        terms.x = x + c;
        terms.ld = ld;
#pragma unroll
        for (int v = 0; v < V; v++) terms.bias[v] = bias ? bias[c + v] : 0.0f;
        sum_pixels<2, V>(s, pixels, terms, total);
    }
    __shared__ double whole[2 * MOST_CHANNELS];
    if (!add_blocks<2, V>(s, total, partial, counters, whole)) return;
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

// A normalisation: what forward and backward share.
struct Norm {
    const float *stats, *gamma, *beta;
    i64 channels;
    float epsilon;

    __device__ __forceinline__ double inverse_deviation(i64 c) const {
        return 1.0 / sqrt((double)stats[channels + c] + (double)epsilon);
    }
    // `y = x * scale + shift`, the one place where these two numbers are made.
    __device__ __forceinline__ void scale_shift(i64 c, double inverse, float& scale,
                                                float& shift) const {
        scale = (float)((double)gamma[c] * inverse);
        shift = (float)((double)beta[c] - (double)stats[c] * (double)scale);
    }
};

// Parameters of a tile's channels, made once in a block.
struct Params {
    float bias[MOST_CHANNELS], scale[MOST_CHANNELS], shift[MOST_CHANNELS];
    float slope[MOST_CHANNELS], offset[MOST_CHANNELS];
};

template <typename T, int V> struct Normalize {
    static const int AHEAD = 4;
    const T* x;
    T* y;
    i64 x_ld, y_ld;
    int relu;
    Raw<T, V> at[AHEAD];
    float bias[V], scale[V], shift[V];

    __device__ __forceinline__ void load(int i, i64 p) { at[i] = load_raw<V>(x + p * x_ld); }
    __device__ __forceinline__ void use(int i, i64 p) {
        float values[V], out[V];
        at[i].unpack(values);
#pragma unroll
        for (int v = 0; v < V; v++) {
            float value = fmaf(values[v] + bias[v], scale[v], shift[v]);
            out[v] = relu && value < 0.0f ? 0.0f : value;
        }
        store_lanes<V>(y + p * y_ld, out);
    }
};

template <typename T, int V>
__global__ void __launch_bounds__(256)
batch_norm(const T* x, i64 x_ld, const float* bias, const float* stats, const float* gamma,
           const float* beta, float epsilon, int relu, T* y, i64 y_ld, i64 pixels, i64 channels,
           int tile) {
    __shared__ Params params;
    Share s = share(channels, V, tile);
    Norm norm = {stats, gamma, beta, channels, epsilon};
    for (int k = (int)threadIdx.x; k < tile * V; k += (int)blockDim.x) {
        i64 c = (i64)s.index * tile * V + k;
        if (c >= channels) break;
        norm.scale_shift(c, norm.inverse_deviation(c), params.scale[k], params.shift[k]);
        params.bias[k] = bias ? bias[c] : 0.0f;
    }
    __syncthreads();
    if (!s.active) return;
    i64 c = first_channel<V>(s);
    Normalize<T, V> each;
    each.x = x + c;
    each.y = y + c;
    each.x_ld = x_ld;
    each.y_ld = y_ld;
    each.relu = relu;
#pragma unroll
    for (int v = 0; v < V; v++) {
        int k = s.vector * V + v;
        each.bias[v] = params.bias[k];
        each.scale[v] = params.scale[k];
        each.shift[v] = params.shift[k];
    }
    each_pixel(s, pixels, each);
}

template <typename T, int V> struct GradTerms {
    static const int AHEAD = 2;
    const T *dy, *x;
    i64 dy_ld, x_ld;
    int relu;
    Raw<T, V> dy_at[AHEAD], x_at[AHEAD];
    float bias[V], mean[V], scale[V], shift[V], sum[2][V];

    __device__ __forceinline__ void load(int i, i64 p) {
        dy_at[i] = load_raw<V>(dy + p * dy_ld);
        x_at[i] = load_raw<V>(x + p * x_ld);
    }
    __device__ __forceinline__ void use(int i, i64) {
        float dys[V], xs[V];
        dy_at[i].unpack(dys);
        x_at[i].unpack(xs);
#pragma unroll
        for (int v = 0; v < V; v++) {
            float value = xs[v] + bias[v];
            bool passes = !relu || fmaf(value, scale[v], shift[v]) > 0.0f;
            float g = passes ? dys[v] : 0.0f;
            sum[0][v] += g;
            sum[1][v] = fmaf(g, value - mean[v], sum[1][v]);
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
    __shared__ double whole[2 * MOST_CHANNELS];
    Share s = share(channels, V, tile);
    Norm norm = {stats, gamma, beta, channels, epsilon};
    double total[2][V] = {};
    if (s.active) {
        i64 c = first_channel<V>(s);
        GradTerms<T, V> terms;
        terms.dy = dy + c;
        terms.x = x + c;
        terms.dy_ld = dy_ld;
        terms.x_ld = x_ld;
        terms.relu = relu;
#pragma unroll
        for (int v = 0; v < V; v++) {
            terms.bias[v] = bias ? bias[c + v] : 0.0f;
            terms.mean[v] = stats[c + v];
            terms.scale[v] = terms.shift[v] = 0.0f;
            if (relu) {
                double inverse = norm.inverse_deviation(c + v);
                norm.scale_shift(c + v, inverse, terms.scale[v], terms.shift[v]);
            }
        }
        sum_pixels<2, V>(s, pixels, terms, total);
    }
    if (!add_blocks<2, V>(s, total, partial, counters, whole)) return;
    int t = (int)threadIdx.x, columns = s.tile * V;
    i64 c = (i64)s.index * columns + t;
    if (t >= columns || c >= channels) return;
    sums[c] = (float)whole[t];
    sums[channels + c] = (float)(whole[columns + t] * norm.inverse_deviation(c));
}

template <typename T, int V> struct GradInput {
    static const int AHEAD = 2;
    const T *dy, *x;
    T* dx;
    i64 dy_ld, x_ld, dx_ld;
    int relu;
    Raw<T, V> dy_at[AHEAD], x_at[AHEAD];
    float bias[V], scale[V], shift[V], slope[V], offset[V], sum[1][V];

    __device__ __forceinline__ void load(int i, i64 p) {
        dy_at[i] = load_raw<V>(dy + p * dy_ld);
        x_at[i] = load_raw<V>(x + p * x_ld);
    }
    __device__ __forceinline__ void use(int i, i64 p) {
        float dys[V], xs[V], out[V];
        dy_at[i].unpack(dys);
        x_at[i].unpack(xs);
#pragma unroll
        for (int v = 0; v < V; v++) {
            float value = xs[v] + bias[v];
            bool passes = !relu || fmaf(value, scale[v], shift[v]) > 0.0f;
            float g = passes ? dys[v] : 0.0f;
            out[v] = fmaf(g, scale[v], fmaf(value, slope[v], offset[v]));
            sum[0][v] += out[v];
        }
        store_lanes<V>(dx + p * dx_ld, out);
    }
};

// `dx = gamma/σ · (dy - Σdy/N - x̂ · Σdy·x̂/N)`, which is `k·dy + slope·x + offset` with `k = gamma/σ`;
// where SUMS, also the sums of `dx` over all pixels.
template <typename T, int V, bool SUMS>
__global__ void __launch_bounds__(SUMS ? SUM_THREADS : 256, SUMS ? 2 : 3)
batch_norm_grad_input(const T* dy, i64 dy_ld, const T* x, i64 x_ld, const float* bias,
                      const float* stats, const float* gamma, const float* beta, float epsilon,
                      int relu, const float* sums, i64 count, T* dx, i64 dx_ld, i64 pixels,
                      i64 channels, int tile, float* column_sums, double* partial, u32* counters) {
    __shared__ Params params;
    Share s = share(channels, V, tile);
    Norm norm = {stats, gamma, beta, channels, epsilon};
    for (int i = (int)threadIdx.x; i < tile * V; i += (int)blockDim.x) {
        i64 c = (i64)s.index * tile * V + i;
        if (c >= channels) break;
        double inverse = norm.inverse_deviation(c), share = count > 0 ? 1.0 / (double)count : 0.0;
        norm.scale_shift(c, inverse, params.scale[i], params.shift[i]);
        double k = (double)gamma[c] * inverse;
        float slope = (float)(-k * inverse * share * (double)sums[channels + c]);
        params.slope[i] = slope;
        double moved = (double)slope * (double)stats[c];
        params.offset[i] = (float)(-k * share * (double)sums[c] - moved);
        params.bias[i] = bias ? bias[c] : 0.0f;
    }
    __syncthreads();
    double total[1][V] = {};
    if (s.active) {
        i64 c = first_channel<V>(s);
        GradInput<T, V> each;
        each.dy = dy + c;
        each.x = x + c;
        each.dx = dx + c;
        each.dy_ld = dy_ld;
        each.x_ld = x_ld;
        each.dx_ld = dx_ld;
        each.relu = relu;
#pragma unroll
        for (int v = 0; v < V; v++) {
            int i = s.vector * V + v;
            each.bias[v] = params.bias[i];
            each.scale[v] = params.scale[i];
            each.shift[v] = params.shift[i];
            each.slope[v] = params.slope[i];
            each.offset[v] = params.offset[i];
            each.sum[0][v] = 0.0f;
        }
        if constexpr (SUMS) {
            sum_pixels<1, V>(s, pixels, each, total);
        } else {
            each_pixel(s, pixels, each);
        }
    }
    if constexpr (SUMS) {
        __shared__ double whole[MOST_CHANNELS];
        if (!add_blocks<1, V>(s, total, partial, counters, whole)) return;
        int t = (int)threadIdx.x, columns = s.tile * V;
        i64 c = (i64)s.index * columns + t;
        if (t < columns && c < channels) column_sums[c] = (float)whole[t];
    }
}
