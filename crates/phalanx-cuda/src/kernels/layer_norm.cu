// Normalisation of the vectors along the last axis, and its derivative: `G` threads for each vector, up to a warp, or a
// block of 256.

template <int G>
__device__ __forceinline__ double over_line(double v) {
    return G <= 32 ? group_sum<G>(v) : sum_of_256(v);
}

// The mean and the reciprocal deviation of a vector of `n` numbers.
template <bool RMS, int G, int PER, int W, typename X>
__device__ __forceinline__ void statistics(const Vector<X, G, PER, W>& x, int n, float epsilon, float& mean,
                                           float& scale) {
    mean = 0;
    if (!RMS) {
        double sum = 0;
        x.each_value([&](float v) { sum += (double)v; });
        mean = (float)(over_line<G>(sum) / n);
    }
    double squares = 0;
    x.each_value([&](float v) {
        float d = v - mean;
        squares += (double)(d * d);
    });
    scale = (float)(1.0 / sqrt(over_line<G>(squares) / n + (double)epsilon));
}

// Loops over vectors. All groups of a warp continue as long as its first one does, because they shuffle together; `live`
// says whether a group has a vector.
#define EACH_LINE(line, lines)                                                                        \
    for (i64 first = ((i64)blockIdx.x * blockDim.x + threadIdx.x) / (G < 32 ? 32 : G) * (G < 32 ? 32 / G : 1), \
             line = first + (G < 32 ? threadIdx.x % 32 / G : 0);                                      \
         first < (lines);                                                                             \
         first += (i64)gridDim.x * blockDim.x / G, line += (i64)gridDim.x * blockDim.x / G)

template <bool RMS, int G, int PER, int W, typename X, typename Y>
__global__ void layer_norm(const X* x, Y* y, i64 lines, int n, float epsilon) {
    EACH_LINE(line, lines) {
        Vector<X, G, PER, W> own;
        own.load(x + line * n, line < lines ? n : 0);
        float mean, scale;
        statistics<RMS>(own, n, epsilon, mean, scale);
        own.write(y + line * n, [&](int k, int i) { return (own.value(k, i) - mean) * scale; });
    }
}

template <bool RMS, int G, int PER, int W, typename X, typename D, typename Y>
__global__ void layer_norm_grad(const X* x, const D* dy, Y* dx, i64 lines, int n, float epsilon) {
    EACH_LINE(line, lines) {
        int size = line < lines ? n : 0;
        Vector<X, G, PER, W> own;
        Vector<D, G, PER, W> d;
        own.load(x + line * n, size);
        d.load(dy + line * n, size);
        float mean, scale;
        statistics<RMS>(own, n, epsilon, mean, scale);
        double sum = 0, product = 0;
        d.each([&](int k, int i) {
            float g = d.value(k, i);
            sum += (double)g;
            product += (double)((own.value(k, i) - mean) * g);
        });
        float shift = RMS ? 0.0f : (float)(over_line<G>(sum) / n);
        float slope = (float)(over_line<G>(product) / n * scale * scale);
        d.write(dx + line * n, [&](int k, int i) {
            return (d.value(k, i) - shift - (own.value(k, i) - mean) * slope) * scale;
        });
    }
}
