// Sums and maxima. Short runs are accumulated in float, their results in double, so that the error
// does not grow with the length. The order depends only on the launch.

template <bool MAX, typename A>
__device__ __forceinline__ A fold(A a, A b) {
    return MAX ? larger(a, b) : a + b;
}

template <bool MAX>
__device__ __forceinline__ double nothing() {
    return MAX ? (double)negative_infinity() : 0.0;
}

// Reduces `n` elements `step` apart.
template <bool MAX, typename X>
__device__ __forceinline__ double fold_line(const X* x, i64 n, i64 step) {
    double total = nothing<MAX>();
    i64 i = 0;
    for (; i + 8 <= n; i += 8, x += 8 * step) {
        float v[8];
#pragma unroll
        for (int k = 0; k < 8; k++) v[k] = ld(x + k * step);
#pragma unroll
        for (int half = 4; half > 0; half /= 2)
            for (int k = 0; k < half; k++) v[k] = fold<MAX>(v[k], v[k + half]);
        total = fold<MAX>(total, (double)v[0]);
    }
    for (; i < n; i++, x += step) total = fold<MAX>(total, (double)ld(x));
    return total;
}

// `[outer, len, inner]` to `[outer, inner]`, a thread for each result.
template <bool MAX, typename X, typename Y, typename I>
__global__ void reduce_each(const X* x, Y* y, i64 n, i64 len, i64 inner) {
    EACH(i, n) {
        i64 outer = (I)i / (I)inner;
        const X* from = x + outer * len * inner + (i - outer * inner);
        st(y + i, (float)fold_line<MAX>(from, len, inner));
    }
}

template <bool MAX, int G>
__device__ __forceinline__ double fold_group(double v) {
    return MAX ? group_max<G>(v) : group_sum<G>(v);
}

// `[lines, len]` to `[lines]`, `G` threads for each result.
template <bool MAX, typename X, typename Y, int G>
__global__ void reduce_lines(const X* x, Y* y, i64 lines, i64 len) {
    int lane = threadIdx.x % G, own = threadIdx.x % 32 / G;
    i64 thread = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    i64 stride = (i64)gridDim.x * blockDim.x / G;
    // All groups of a warp continue as long as its first one does, because they shuffle together.
    for (i64 first = thread / 32 * 32 / G; first < lines; first += stride) {
        i64 line = first + own;
        double v = nothing<MAX>();
        if (line < lines && lane < len)
            v = fold_line<MAX>(x + line * len + lane, (len - lane + G - 1) / G, G);
        v = fold_group<MAX, G>(v);
        if (line < lines && lane == 0) st(y + line, (float)v);
    }
}

// Arbitrary axes: loops of sizes `K` are kept, a warp for each result; loops of sizes `R` are
// reduced.
template <bool MAX, typename X, typename Y, typename I, typename K, typename SK, typename R, typename SR>
__global__ void reduce_axes(const X* x, Y* y, i64 n, i64 len) {
    int lane = threadIdx.x % 32;
    i64 stride = (i64)gridDim.x * blockDim.x / 32;
    for (i64 i = ((i64)blockIdx.x * blockDim.x + threadIdx.x) / 32; i < n; i += stride) {
        const X* from = x + distance((I)i, K(), SK());
        double v = nothing<MAX>();
        for (i64 k = lane; k < len; k += 32)
            v = fold<MAX>(v, (double)ld(from + distance((I)k, R(), SR())));
        v = fold_group<MAX, 32>(v);
        if (lane == 0) st(y + i, (float)v);
    }
}

// Reduces the rows of a block's threads, `TX` threads per row, into its first row.
template <bool MAX, int W, int TX>
__device__ __forceinline__ void fold_rows(double (&v)[W]) {
    __shared__ double warps[8][TX * W];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
    for (int m = 16; m >= TX; m /= 2)
        for (int k = 0; k < W; k++) v[k] = fold<MAX>(v[k], __shfl_xor_sync(0xffffffff, v[k], m));
    if (lane < TX)
        for (int k = 0; k < W; k++) warps[warp][lane * W + k] = v[k];
    __syncthreads();
    if (threadIdx.x < TX * W) {
        double total = warps[0][threadIdx.x];
#pragma unroll
        for (int k = 1; k < 8; k++) total = fold<MAX>(total, warps[k][threadIdx.x]);
        warps[0][threadIdx.x] = total;
    }
    __syncthreads();
    if (threadIdx.x < TX)
        for (int k = 0; k < W; k++) v[k] = warps[0][threadIdx.x * W + k];
    __syncthreads();
}

// Rows of columns `W` wide that a thread loads at a time.
template <int W>
__device__ constexpr int run_length() {
    return 32 / W > 8 ? 8 : 32 / W;
}

// Rows `first, first + TY..` below `end` of columns `W` wide.
template <bool MAX, typename X, int W, int TY>
__device__ __forceinline__ void fold_columns(const X* x, i64 first, i64 end, i64 ld, double (&v)[W]) {
    constexpr int RUN = run_length<W>();
    i64 r = first;
    for (; r + (RUN - 1) * TY < end; r += RUN * TY) {
        float run[RUN][W];
#pragma unroll
        for (int k = 0; k < RUN; k++) load_lanes(x + (r + k * TY) * ld, run[k]);
#pragma unroll
        for (int half = RUN / 2; half > 0; half /= 2)
            for (int k = 0; k < half; k++)
                for (int w = 0; w < W; w++) run[k][w] = fold<MAX>(run[k][w], run[k + half][w]);
#pragma unroll
        for (int w = 0; w < W; w++) v[w] = fold<MAX>(v[w], (double)run[0][w]);
    }
    for (; r < end; r += TY) {
        float one[W];
        load_lanes(x + r * ld, one);
#pragma unroll
        for (int w = 0; w < W; w++) v[w] = fold<MAX>(v[w], (double)one[w]);
    }
}

// `[outer, len, inner]` to `[outer, inner]`, rows `ld` apart. A block of 256 threads takes `TX * W`
// columns of one of `splits` parts of the rows; the last block of a tile reduces the parts.
template <bool MAX, typename X, typename Y, int W, int TX>
__global__ void reduce_columns(const X* x, Y* y, i64 len, i64 inner, i64 ld, i64 tiles, i64 splits,
                               double* parts, u32* counters) {
    constexpr int TY = 256 / TX;
    int tx = threadIdx.x % TX, ty = threadIdx.x / TX;
    u32 tile = blockIdx.x % (u32)tiles, rest = blockIdx.x / (u32)tiles;
    u32 split = rest % (u32)splits, outer = rest / (u32)splits;
    i64 column = ((i64)tile * TX + tx) * W;
    bool live = column < inner;
    i64 chunk = (len + splits - 1) / splits, run = TY * run_length<W>();
    // Rows that do not fill a run are loaded one by one.
    if (chunk > run) chunk = (chunk + run - 1) / run * run;
    i64 start = split * chunk, end = start + chunk < len ? start + chunk : len;

    double v[W];
    for (int w = 0; w < W; w++) v[w] = nothing<MAX>();
    if (live) fold_columns<MAX, X, W, TY>(x + outer * len * ld + column, start + ty, end, ld, v);
    fold_rows<MAX, W, TX>(v);
    if (splits > 1) {
        double* own = parts + (i64)outer * splits * inner + column;
        if (live && ty == 0)
            for (int w = 0; w < W; w++) own[split * inner + w] = v[w];
        if (!last_block(counters + (i64)outer * tiles + tile, (u32)splits)) return;
        for (int w = 0; w < W; w++) v[w] = nothing<MAX>();
#pragma unroll 8
        for (i64 s = ty; s < (live ? splits : 0); s += TY)
            for (int w = 0; w < W; w++) v[w] = fold<MAX>(v[w], own[s * inner + w]);
        fold_rows<MAX, W, TX>(v);
    }
    if (live && ty == 0)
        for (int w = 0; w < W; w++) st(y + (i64)outer * inner + column + w, (float)v[w]);
}

struct RowSum {
    const float* from;
    float* to;
    i64 rows, columns, ld, side;
};

// Sums over rows; a block of 256 threads has `side` columns of one of them, a power of two.
__global__ void sum_many(const RowSum* sums, i64 tiles) {
    __shared__ double all[256];
    const RowSum s = sums[blockIdx.x / (u32)tiles];
    int side = (int)s.side, lanes = 256 / side;
    int lane = (int)threadIdx.x / side;
    i64 column = (i64)(blockIdx.x % (u32)tiles) * side + threadIdx.x % side;
    double sum = 0.0;
    if (column < s.columns && lane < s.rows) {
        i64 n = (s.rows - lane + lanes - 1) / lanes;
        sum = fold_line<false>(s.from + lane * s.ld + column, n, lanes * s.ld);
    }
    all[threadIdx.x] = sum;
    for (int half = 128; half >= side; half /= 2) {
        __syncthreads();
        if ((int)threadIdx.x < half) all[threadIdx.x] += all[threadIdx.x + half];
    }
    if (lane == 0 && column < s.columns) s.to[column] = (float)all[threadIdx.x];
}

// Sums or products of the elements up to each one, a warp for each line of `len` elements, `inner` apart.
template <typename X, typename Y>
__global__ void cumulative(const X* x, Y* y, i64 lines, i64 len, i64 inner, int product, int reverse) {
    int lane = threadIdx.x % 32;
    i64 stride = (i64)gridDim.x * blockDim.x / 32;
    for (i64 i = ((i64)blockIdx.x * blockDim.x + threadIdx.x) / 32; i < lines; i += stride) {
        i64 first = i / inner * len * inner + i % inner;
        double before = product ? 1.0 : 0.0;
        for (i64 k = 0; k < len; k += 32) {
            i64 own = k + lane, at = first + (reverse ? len - 1 - own : own) * inner;
            double v = own < len ? (double)ld(x + at) : product ? 1.0 : 0.0;
#pragma unroll
            for (int step = 1; step < 32; step *= 2) {
                double other = __shfl_up_sync(0xffffffff, v, step);
                if (lane >= step) v = product ? v * other : v + other;
            }
            v = product ? before * v : before + v;
            if (own < len) st(y + at, (float)v);
            before = __shfl_sync(0xffffffff, v, 31);
        }
    }
}
