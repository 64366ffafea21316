// Normalisation of the vectors along the last axis, and its derivative: `G` threads for each vector, a
// warp or a block of 256.

template <int G>
__device__ __forceinline__ double over_line(double v) {
    return G == 32 ? group_sum<32>(v) : sum_of_256(v);
}

// The mean and the reciprocal deviation of a vector.
template <bool RMS, int G, typename X>
__device__ __forceinline__ void statistics(const X* x, int n, float epsilon, float& mean, float& scale) {
    int lane = threadIdx.x % G;
    mean = 0;
    if (!RMS) {
        double sum = 0;
        for (int i = lane; i < n; i += G) sum += (double)ld(x + i);
        mean = (float)(over_line<G>(sum) / n);
    }
    double squares = 0;
    for (int i = lane; i < n; i += G) {
        float v = ld(x + i) - mean;
        squares += (double)(v * v);
    }
    scale = (float)(1.0 / sqrt(over_line<G>(squares) / n + (double)epsilon));
}

#define EACH_LINE(line, lines)                                                           \
    for (i64 line = ((i64)blockIdx.x * blockDim.x + threadIdx.x) / G; line < (lines);    \
         line += (i64)gridDim.x * blockDim.x / G)

template <bool RMS, int G, typename X, typename Y>
__global__ void layer_norm(const X* x, Y* y, i64 lines, int n, float epsilon) {
    EACH_LINE(line, lines) {
        float mean, scale;
        statistics<RMS, G>(x + line * n, n, epsilon, mean, scale);
        for (int i = threadIdx.x % G; i < n; i += G)
            st(y + line * n + i, (ld(x + line * n + i) - mean) * scale);
    }
}

template <bool RMS, int G, typename X, typename D, typename Y>
__global__ void layer_norm_grad(const X* x, const D* dy, Y* dx, i64 lines, int n, float epsilon) {
    EACH_LINE(line, lines) {
        const X* own = x + line * n;
        const D* d = dy + line * n;
        float mean, scale;
        statistics<RMS, G>(own, n, epsilon, mean, scale);
        double sum = 0, product = 0;
        for (int i = threadIdx.x % G; i < n; i += G) {
            float g = ld(d + i);
            sum += (double)g;
            product += (double)((ld(own + i) - mean) * g);
        }
        float shift = RMS ? 0.0f : (float)(over_line<G>(sum) / n);
        float slope = (float)(over_line<G>(product) / n * scale * scale);
        for (int i = threadIdx.x % G; i < n; i += G)
            st(dx + line * n + i, (ld(d + i) - shift - (ld(own + i) - mean) * slope) * scale);
    }
}
