// Softmax over the last axis, and the fused crossentropy.

// Reduces over the `G` threads of a row, which all get the result: a warp, or a block of `G`
// threads.
template <bool MAX, int G>
__device__ __forceinline__ float over_row(float v) {
    v = MAX ? group_max<32>(v) : group_sum<32>(v);
    if (G > 32) {
        __shared__ float warps[G / 32];
        __syncthreads();
        if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = v;
        __syncthreads();
        v = warps[0];
        for (int k = 1; k < G / 32; k++) v = MAX ? larger(v, warps[k]) : v + warps[k];
    }
    return v;
}

// A vector with its maximum and `Σ e^(x - top)`. With `EXP`, numbers in registers become their exponentials.
template <bool EXP, typename X, int G, int PER, int W>
struct Row {
    Vector<X, G, PER, W> vector;
    float top, sum, share;

    __device__ __forceinline__ void read(const X* row, int n) {
        vector.load(row, n);
        float most = negative_infinity(), total = 0;
        if (PER > 0) {
            vector.each_value([&](float v) { most = larger(most, v); });
            top = over_row<true, G>(most);
            if (EXP) vector.replace([&](float v) { return expf(v - top); });
            vector.each_value([&](float v) { total += EXP ? v : expf(v - top); });
        } else {
            // Reads the vector once: the sum so far is scaled when the maximum grows.
            vector.each_value([&](float v) {
                float before = most;
                most = larger(most, v);
                if (most == negative_infinity()) return;
                float e = expf(v - most);
                total = before == most ? total + e : total * expf(before - most) + e;
            });
            top = over_row<true, G>(most);
            total = most == top ? total : total * expf(most - top);
        }
        sum = over_row<false, G>(total);
        share = 1.0f / sum;
    }

    __device__ __forceinline__ float softmax(int k, int i) const {
        float v = vector.value(k, i);
        return (PER > 0 ? v : expf(v - top)) * share;
    }
};

// Loops over vectors, `G` threads each.
#define EACH_ROW(row, rows)                                                              \
    for (i64 row = ((i64)blockIdx.x * blockDim.x + threadIdx.x) / G; row < (rows);       \
         row += (i64)gridDim.x * blockDim.x / G)

template <typename X, typename Y, int G, int PER, int W>
__global__ void softmax(const X* x, Y* y, i64 rows, int n) {
    EACH_ROW(r, rows) {
        Row<true, X, G, PER, W> row;
        row.read(x + r * n, n);
        row.vector.write(y + r * n, [&](int k, int i) { return row.softmax(k, i); });
    }
}

template <typename Y, typename D, typename X, int G, int PER, int W>
__global__ void softmax_grad(const Y* y, const D* dy, X* dx, i64 rows, int n) {
    EACH_ROW(r, rows) {
        Vector<Y, G, PER, W> own;
        Vector<D, G, PER, W> d;
        own.load(y + r * n, n);
        d.load(dy + r * n, n);
        float sum = 0;
        d.each([&](int k, int i) { sum += d.value(k, i) * own.value(k, i); });
        sum = over_row<false, G>(sum);
        d.write(dx + r * n, [&](int k, int i) { return own.value(k, i) * (d.value(k, i) - sum); });
    }
}

template <typename X, typename Y, int G, int PER, int W>
__global__ void log_softmax(const X* x, Y* y, i64 rows, int n) {
    EACH_ROW(r, rows) {
        Row<false, X, G, PER, W> row;
        row.read(x + r * n, n);
        // Two subtractions: adding the logarithm to `top` first would lose its low bits.
        float top = row.top, norm = logf(row.sum);
        row.vector.write(y + r * n, [&](int k, int i) { return row.vector.value(k, i) - top - norm; });
    }
}

template <typename X, typename Y, int G, int PER, int W>
__global__ void sparse_xent(const X* x, const int* labels, Y* y, i64 rows, int n, i64 ld_x) {
    EACH_ROW(r, rows) {
        Row<false, X, G, PER, W> row;
        row.read(x + r * ld_x, n);
        int label = labels[r];
        bool named = label >= 0 && label < n;
        float own = named ? ld(x + r * ld_x + label) : not_a_number();
        if (row.vector.lane == 0) st(y + r, (float)(log((double)row.sum) + ((double)row.top - own)));
    }
}

template <typename X, typename D, typename Y, int G, int PER, int W>
__global__ void sparse_xent_grad(const X* x, const int* labels, const D* dy, Y* dx, i64 rows, int n, i64 ld_x,
                                 i64 ld_dx) {
    EACH_ROW(r, rows) {
        Row<true, X, G, PER, W> row;
        row.read(x + r * ld_x, n);
        int label = labels[r];
        bool named = label >= 0 && label < n;
        float d = named ? ld(dy + r) : not_a_number();
        row.vector.write(dx + r * ld_dx, [&](int k, int i) {
            float p = row.softmax(k, i);
            return (i == label ? p - 1.0f : p) * d;
        });
    }
}
