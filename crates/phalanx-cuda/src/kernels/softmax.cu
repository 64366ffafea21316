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

// A vector of `n` numbers, shared by `G` threads. Each thread holds `PER` numbers in registers, or
// reads them again in every pass if `PER` is 0.
template <typename X, int G, int PER>
struct Row {
    const X* x;
    int n, lane;
    float kept[PER > 0 ? PER : 1];
    float top, sum;

    // Computes the row's maximum and `Σ e^(x - top)`.
    __device__ __forceinline__ void read(const X* row, int size) {
        x = row, n = size, lane = threadIdx.x % G;
#pragma unroll
        for (int k = 0; k < PER; k++)
            kept[k] = lane + k * G < n ? ld(x + lane + k * G) : negative_infinity();
        float most = negative_infinity();
        each([&](int, float v) { most = larger(most, v); });
        top = over_row<true, G>(most);
        float total = 0;
        each([&](int, float v) { total += expf(v - top); });
        sum = over_row<false, G>(total);
    }

    template <typename F>
    __device__ __forceinline__ void each(F f) {
        if (PER > 0) {
#pragma unroll
            for (int k = 0; k < PER; k++)
                if (lane + k * G < n) f(lane + k * G, kept[k]);
        } else {
            for (int i = lane; i < n; i += G) f(i, ld(x + i));
        }
    }
};

// Loops over vectors, `G` threads each.
#define EACH_ROW(row, rows)                                                              \
    for (i64 row = ((i64)blockIdx.x * blockDim.x + threadIdx.x) / G; row < (rows);       \
         row += (i64)gridDim.x * blockDim.x / G)

template <typename X, typename Y, int G, int PER>
__global__ void softmax(const X* x, Y* y, i64 rows, int n) {
    EACH_ROW(r, rows) {
        Row<X, G, PER> row;
        row.read(x + r * n, n);
        Y* to = y + r * n;
        float top = row.top, sum = row.sum;
        row.each([&](int i, float v) { st(to + i, expf(v - top) / sum); });
    }
}

template <typename X, typename Y, int G, int PER>
__global__ void log_softmax(const X* x, Y* y, i64 rows, int n) {
    EACH_ROW(r, rows) {
        Row<X, G, PER> row;
        row.read(x + r * n, n);
        Y* to = y + r * n;
        // Two subtractions: adding the logarithm to `top` first would lose its low bits.
        float top = row.top, norm = logf(row.sum);
        row.each([&](int i, float v) { st(to + i, v - top - norm); });
    }
}

template <typename X, typename Y, int G, int PER>
__global__ void sparse_xent(const X* x, const int* labels, Y* y, i64 rows, int n) {
    EACH_ROW(r, rows) {
        Row<X, G, PER> row;
        row.read(x + r * n, n);
        int label = labels[r];
        bool named = label >= 0 && label < n;
        float own = named ? ld(x + r * n + label) : not_a_number();
        if (row.lane == 0) st(y + r, (float)(log((double)row.sum) + ((double)row.top - own)));
    }
}

template <typename X, typename D, typename Y, int G, int PER>
__global__ void sparse_xent_grad(const X* x, const int* labels, const D* dy, Y* dx, i64 rows, int n) {
    EACH_ROW(r, rows) {
        Row<X, G, PER> row;
        row.read(x + r * n, n);
        Y* to = dx + r * n;
        int label = labels[r];
        bool named = label >= 0 && label < n;
        float top = row.top, sum = row.sum, d = named ? ld(dy + r) : not_a_number();
        row.each([&](int i, float v) {
            float p = expf(v - top) / sum;
            st(to + i, (i == label ? p - 1.0f : p) * d);
        });
    }
}
