// Kernels with integer operands or results: embeddings, one-hot, arg-max and counting.

__device__ __forceinline__ bool within(int index, i64 n) { return index >= 0 && index < n; }

// Rows of a table, `packs` of `W` numbers wide; NaN if there is no such row.
template <typename X, typename Y, int W, typename I>
__global__ void gather(const X* table, const int* index, Y* y, i64 n, i64 vocab, i64 packs) {
    EACH(i, n) {
        I row = (I)i / (I)packs;
        i64 c = (i64)((I)i - row * (I)packs) * W;
        int id = index[row];
        float v[W];
        if (within(id, vocab)) load_lanes(table + (i64)id * packs * W + c, v);
        else
            for (int k = 0; k < W; k++) v[k] = not_a_number();
        store_lanes(y + i * W, v);
    }
}

// Maximum uses of a table row that a warp sorts by itself. For rows with more uses, blocks search all indices.
constexpr u32 MAX_LISTED_USES = 32;

// How often each row is used. `counts` must be zero before; `gather_grad` resets them to zero.
__global__ void gather_count(const int* index, u32* counts, i64 n, i64 vocab) {
    EACH(i, n)
    if (within(index[i], vocab)) atomicAdd(counts + index[i], 1u);
}

// The start of each row's uses in a list of all uses; the number of rows with many uses, and these rows in any order.
// One block of 1024 threads.
__global__ void gather_starts(const u32* counts, u32* starts, u32* many, i64 vocab) {
    __shared__ u32 sums[1024];
    int t = threadIdx.x;
    if (t == 0) *many = 0;
    __syncthreads();
    i64 each = (vocab + 1023) / 1024, begin = t * each;
    i64 end = begin + each < vocab ? begin + each : vocab;
    u32 sum = 0;
#pragma unroll 8
    for (i64 v = begin; v < end; v++) sum += counts[v];
    sums[t] = sum;
    for (int step = 1; step < 1024; step *= 2) {
        __syncthreads();
        u32 before = t >= step ? sums[t - step] : 0;
        __syncthreads();
        sums[t] += before;
    }
    u32 at = sums[t] - sum;
#pragma unroll 8
    for (i64 v = begin; v < end; v++) {
        u32 count = counts[v];
        starts[v] = at;
        at += count;
        if (count > MAX_LISTED_USES) many[1 + atomicAdd(many, 1u)] = (u32)v;
    }
}

// Lists the uses of rows with few of them, each row's in any order, and advances the row's start
// past them.
__global__ void gather_place(const int* index, const u32* counts, u32* starts, u32* list, i64 n, i64 vocab) {
    EACH(i, n) {
        int id = index[i];
        if (within(id, vocab) && counts[id] <= MAX_LISTED_USES) list[atomicAdd(starts + id, 1u)] = (u32)i;
    }
}

template <typename X, int W>
__device__ __forceinline__ void add_use(const X* dy, i64 use, i64 width, i64 c, float (&sum)[W]) {
    float v[W];
    load_lanes(dy + use * width + c, v);
#pragma unroll
    for (int k = 0; k < W; k++) sum[k] += v[k];
}

// A table row with few uses, sorted: one warp.
template <typename X, int W>
__device__ __forceinline__ void sum_few(const X* dy, float* to, i64 width, const u32* uses, u32 count) {
    for (i64 c = threadIdx.x % 32 * W; c < width; c += 32 * W) {
        float sum[W];
        for (int k = 0; k < W; k++) sum[k] = 0;
        for (u32 u = 0; u < count; u++) add_use(dy, uses[u], width, c, sum);
        store_lanes(to + c, sum);
    }
}

// Removes the lowest bit of a mask and returns its index; 32 if there is none.
__device__ __forceinline__ int take_lowest(u32& mask) {
    int k = mask == 0 ? 32 : __ffs((int)mask) - 1;
    mask &= mask - 1;
    return k;
}

// Table rows with many uses. A block of 256 threads searches one of `splits` parts of the indices for the uses of a row,
// each warp a part of it, in order; the last block of a row adds the parts.
template <typename X, int W>
__global__ void gather_grad_many(const int* index, const X* dy, float* table, const u32* many, i64 n, i64 width,
                                 i64 splits, float* parts, u32* counters) {
    __shared__ float sums[8][32 * W];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    i64 split = blockIdx.x % (u32)splits, rows = *many;
    i64 share = (n + splits * 256 - 1) / (splits * 256) * 32, begin = (split * 8 + warp) * share;
    i64 end = begin + share < n ? begin + share : n;
    for (i64 row = blockIdx.x / (u32)splits; row < rows; row += gridDim.x / (u32)splits) {
        int id = (int)many[1 + row];
        float* own = parts + (row * splits + split) * width;
        for (i64 first = 0; first < width; first += 32 * W) {
            i64 c = first + lane * W;
            float sum[W];
            for (int k = 0; k < W; k++) sum[k] = 0;
            for (i64 i = begin; i < end; i += 32) {
                u32 uses = __ballot_sync(0xffffffff, i + lane < end && index[i + lane] == id);
                while (uses != 0) {
                    float v[4][W];
#pragma unroll
                    for (int u = 0; u < 4; u++) {
                        int k = take_lowest(uses);
                        for (int w = 0; w < W; w++) v[u][w] = 0;
                        if (k < 32 && c < width) load_lanes(dy + (i + k) * width + c, v[u]);
                    }
#pragma unroll
                    for (int u = 0; u < 4; u++)
                        for (int w = 0; w < W; w++) sum[w] += v[u][w];
                }
            }
            __syncthreads();
            for (int k = 0; k < W; k++) sums[warp][lane * W + k] = sum[k];
            __syncthreads();
            i64 t = threadIdx.x;
            if (t < 32 * W && first + t < width) {
                float total = 0;
                for (int k = 0; k < 8; k++) total += sums[k][t];
                own[first + t] = total;
            }
        }
        if (last_block(counters + row, (u32)splits))
            for (i64 c = threadIdx.x; c < width; c += 256) {
                float total = 0;
                for (i64 s = 0; s < splits; s++) total += parts[(row * splits + s) * width + c];
                table[id * width + c] = total;
            }
        __syncthreads();
    }
}

// Every use of a table row adds its `dy` to that row, in the order of uses; rows with many uses are left out. A block of
// 256 threads for eight rows.
template <typename X, int W>
__global__ void gather_grad(const X* dy, float* table, u32* counts, const u32* starts, const u32* list, i64 vocab,
                            i64 width) {
    __shared__ u32 ordered[8][MAX_LISTED_USES];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (i64 first = (i64)blockIdx.x * 8; first < vocab; first += (i64)gridDim.x * 8) {
        i64 row = first + warp;
        u32 count = row < vocab ? counts[row] : 0;
        bool few = count <= MAX_LISTED_USES;
        u32 use = few && lane < count ? list[starts[row] - count + lane] : 0xffffffffu;
        int rank = 0;
        for (int k = 0; k < 32; k++) {
            u32 other = __shfl_sync(0xffffffff, use, k);
            if (other < use) rank++;
        }
        __syncthreads();
        if (few && lane < count) ordered[warp][rank] = use;
        __syncthreads();
        if (few && row < vocab) sum_few<X, W>(dy, table + row * width, width, ordered[warp], count);
        __syncthreads();
        if (lane == 0 && row < vocab) counts[row] = 0;
    }
}

// The index of each row in the global batch.
__global__ void row_index(int* y, i64 n, i64 first_row) {
    EACH(i, n) y[i] = (int)(first_row + i);
}

// 1 at the index, 0 elsewhere.
template <typename Y, typename I>
__global__ void one_hot(const int* index, Y* y, i64 n, i64 depth) {
    EACH(i, n) {
        I row = (I)i / (I)depth;
        st(y + i, index[row] == (i64)((I)i - row * (I)depth) ? 1.0f : 0.0f);
    }
}

// Loops over vectors, one warp each.
#define EACH_WARP(row, rows)                                                             \
    for (i64 row = ((i64)blockIdx.x * blockDim.x + threadIdx.x) / 32; row < (rows);      \
         row += (i64)gridDim.x * blockDim.x / 32)

// Index of the first maximum; NaN is ignored unless it comes first.
template <typename X>
__global__ void arg_max(const X* x, int* y, i64 rows, int n, i64 ld_x) {
    int lane = threadIdx.x % 32;
    EACH_WARP(r, rows) {
        const X* row = x + r * ld_x;
        float best = negative_infinity();
        int at = n;
        for (int i = lane; i < n; i += 32) {
            float v = ld(row + i);
            if (v > best || (at == n && v == best)) best = v, at = i;
        }
        for (int m = 16; m > 0; m /= 2) {
            float other = __shfl_xor_sync(0xffffffff, best, m);
            int there = __shfl_xor_sync(0xffffffff, at, m);
            if (other > best || (other == best && there < at)) best = other, at = there;
        }
        float start = ld(row);
        if (lane == 0) y[r] = start == start ? at : 0;
    }
}

// 1 if fewer than `k` scores are above the label's; 0 also if the label is out of range or a score
// is not finite.
template <typename X, typename Y>
__global__ void in_top_k(const X* scores, const int* labels, Y* y, i64 rows, int n, int k) {
    int lane = threadIdx.x % 32;
    EACH_WARP(r, rows) {
        const X* row = scores + r * n;
        int label = labels[r];
        bool named = within(label, n);
        float own = named ? ld(row + label) : 0;
        int above = 0, wild = 0;
        for (int i = lane; i < n; i += 32) {
            float v = ld(row + i);
            above += v > own;
            wild += !(v - v == 0.0f);
        }
        above = group_sum<32>(above);
        wild = group_sum<32>(wild);
        if (lane == 0) st(y + r, named && wild == 0 && above < k ? 1.0f : 0.0f);
    }
}

// Threshold `i` of `n`, as in Keras' AUC: evenly spaced over 0..=1, with the ends slightly outside.
__device__ __forceinline__ double threshold(int i, int n) {
    if (i == 0) return -1e-7;
    return i == n - 1 ? 1.0 + 1e-7 : (double)i / (double)(n - 1);
}

// Weights of positives, then of negatives, whose score is above each threshold. Every block of 256
// threads takes a part of the samples; the last block adds the parts.
template <typename X, typename L, typename V>
__global__ void threshold_counts(const X* scores, const L* labels, const V* weights, float* y, i64 count,
                                 int n, double* parts, u32* counter) {
    __shared__ double score[256], positive[256], negative[256];
    int t = threadIdx.x;
    i64 part = (count + gridDim.x - 1) / gridDim.x, begin = blockIdx.x * part;
    i64 end = begin + part < count ? begin + part : count;
    double* own = parts + 2 * (i64)n * blockIdx.x;
    for (int first = 0; first < n; first += 256) {
        int mine = first + t;
        double limit = threshold(mine, n), above = 0, other = 0;
        for (i64 i = begin; i < end; i += 256) {
            __syncthreads();
            if (i + t < end) {
                double weight = (double)ld(weights + i + t);
                bool yes = ld(labels + i + t) > 0.5f;
                score[t] = (double)ld(scores + i + t);
                positive[t] = yes ? weight : 0.0;
                negative[t] = yes ? 0.0 : weight;
            }
            __syncthreads();
            int some = end - i < 256 ? (int)(end - i) : 256;
            for (int k = 0; k < some; k++) {
                bool counts = score[k] > limit;
                above += counts ? positive[k] : 0.0;
                other += counts ? negative[k] : 0.0;
            }
        }
        if (mine < n) own[mine] = above, own[n + mine] = other;
    }
    if (!last_block(counter, gridDim.x)) return;
    for (int i = t; i < 2 * n; i += 256) {
        double sum = 0;
        for (u32 b = 0; b < gridDim.x; b++) sum += parts[2 * (i64)n * b + i];
        y[i] = (float)sum;
    }
}

// A position below `n`, or -1; those below zero count from the end.
__device__ __forceinline__ i64 position(int index, i64 n) {
    i64 at = index < 0 ? (i64)index + n : (i64)index;
    return at >= 0 && at < n ? at : -1;
}

// What positions outside give.
__device__ __forceinline__ float outside(const float*) { return not_a_number(); }
__device__ __forceinline__ int outside(const int*) { return -2147483647 - 1; }

// `y[row, outer, count, inner] = x[row, outer, index, inner]`; every element has its own position if
// `along`.
template <typename X, typename I>
__global__ void take(const X* x, const int* index, X* y, i64 n, i64 outer, i64 size, i64 count, i64 inner,
                     int x_rows, int index_rows, int along) {
    i64 positions = along ? outer * count * inner : count;
    EACH(i, n) {
        I rest = (I)i / (I)inner;
        i64 c = (i64)((I)i - rest * (I)inner);
        I lead = rest / (I)count;
        i64 j = (i64)(rest - lead * (I)count);
        I row = lead / (I)outer;
        i64 o = (i64)(lead - row * (I)outer);
        i64 at = along ? (o * count + j) * inner + c : j;
        i64 k = position(index[index_rows ? (i64)row * positions + at : at], size);
        i64 from = (((x_rows ? (i64)row * outer : 0) + o) * size + k) * inner + c;
        y[i] = k < 0 ? outside(x) : x[from];
    }
}

// The derivative of `take`: every element adds the derivatives of its uses, rows and positions in order.
template <typename I>
__global__ void take_grad(const int* index, const float* dy, float* dx, i64 n, i64 outer, i64 size, i64 count,
                          i64 inner, int x_rows, int index_rows, int along, i64 rows) {
    i64 positions = along ? outer * count * inner : count;
    EACH(i, n) {
        I rest = (I)i / (I)inner;
        i64 c = (i64)((I)i - rest * (I)inner);
        I lead = rest / (I)size;
        i64 k = (i64)(rest - lead * (I)size);
        I own = lead / (I)outer;
        i64 o = (i64)(lead - own * (I)outer);
        double sum = 0;
        for (i64 row = x_rows ? own : 0; row < (x_rows ? (i64)own + 1 : rows); row++)
            for (i64 j = 0; j < count; j++) {
                i64 at = along ? (o * count + j) * inner + c : j;
                if (position(index[index_rows ? row * positions + at : at], size) == k)
                    sum += (double)dy[((row * outer + o) * count + j) * inner + c];
            }
        dx[i] = (float)sum;
    }
}

// Whether number `a` at position `i` comes before number `b` at position `j`: equal numbers keep their
// order, NaN comes last.
__device__ __forceinline__ bool precedes(float a, i64 i, float b, i64 j) {
    bool after = a != a, other = b != b;
    if (after != other) return other;
    return after || a == b ? i < j : a < b;
}

// The positions that sort vectors of `size` numbers. Each thread counts the numbers before its own.
template <typename X, typename I>
__global__ void arg_sort(const X* x, int* y, i64 n, i64 size) {
    EACH(i, n) {
        i64 first = (i64)((I)i / (I)size) * size, own = i - first;
        float v = ld(x + i);
        i64 rank = 0;
        for (i64 k = 0; k < size; k++) rank += precedes(ld(x + first + k), k, v, own);
        y[first + rank] = (int)own;
    }
}
