// Upsampling of images, affine sampling with a matrix per sample, and their derivatives.

// The two neighbours of a position of the large image along one axis, and the second's weight.
struct Between {
    i64 low, high;
    float weight;
};

// Pixel centres are at halves: converts a position of the large image to units of the small one.
__device__ __forceinline__ Between between(i64 at, i64 size, i64 small) {
    double centre = ((double)at + 0.5) / (double)size - 0.5;
    double low = floor(centre);
    i64 first = (i64)low, last = small - 1;
    Between b;
    b.low = first < 0 ? 0 : first > last ? last : first;
    b.high = first + 1 > last ? last : first + 1;
    b.weight = (float)(centre - low);
    return b;
}

// A thread for `W` channels of a large pixel; `[h, w]` and `packs` of channels are the small
// image's.
template <typename X, typename Y, int W, bool BILINEAR, typename I>
__global__ void upsample(const X* x, Y* y, i64 n, i64 h, i64 w, i64 packs, i64 size_h, i64 size_w,
                         i64 ldx, i64 ldy) {
    I wide = (I)(w * size_w), high = (I)(h * size_h);
    EACH(item, n) {
        I p = (I)item / (I)packs;
        i64 c = ((I)item - p * (I)packs) * W;
        I line = p / wide, row = line / high;
        I j = p - line * wide, i = line - row * high;
        const X* image = x + (i64)row * h * w * ldx + c;
        float v[W];
        if (BILINEAR) {
            Between b = between(i, size_h, h), a = between(j, size_w, w);
            float v00[W], v01[W], v10[W], v11[W];
            load_lanes(image + (b.low * w + a.low) * ldx, v00);
            load_lanes(image + (b.low * w + a.high) * ldx, v01);
            load_lanes(image + (b.high * w + a.low) * ldx, v10);
            load_lanes(image + (b.high * w + a.high) * ldx, v11);
#pragma unroll
            for (int k = 0; k < W; k++) {
                float top = (v01[k] - v00[k]) * a.weight + v00[k];
                float bottom = (v11[k] - v10[k]) * a.weight + v10[k];
                v[k] = (bottom - top) * b.weight + top;
            }
        } else {
            load_lanes(image + ((i64)(i / (I)size_h) * w + j / (I)size_w) * ldx, v);
        }
        store_lanes(y + (i64)p * ldy + c, v);
    }
}

// The weight of small pixel `i` at a position of the large image.
template <bool BILINEAR>
__device__ __forceinline__ float share(i64 at, i64 size, i64 small, i64 i) {
    if (!BILINEAR) return 1.0f;
    Between b = between(at, size, small);
    return (b.low == i ? 1.0f - b.weight : 0.0f) + (b.high == i ? b.weight : 0.0f);
}

// A thread for `W` channels of a small pixel.
template <typename X, typename Y, int W, bool BILINEAR, typename I>
__global__ void upsample_grad(const X* dy, Y* dx, i64 n, i64 h, i64 w, i64 packs, i64 size_h, i64 size_w,
                              i64 ldy, i64 ldx) {
    i64 wide = w * size_w, high = h * size_h;
    EACH(item, n) {
        I p = (I)item / (I)packs;
        i64 c = ((I)item - p * (I)packs) * W;
        I line = p / (I)w, row = line / (I)h;
        i64 j = p - line * (I)w, i = line - row * (I)h;
        // Interpolated pixels also contribute to their neighbours.
        i64 reach = BILINEAR ? 1 : 0;
        i64 i0 = i < reach ? 0 : (i - reach) * size_h, i1 = (i + 1 + reach) * size_h;
        i64 j0 = j < reach ? 0 : (j - reach) * size_w, j1 = (j + 1 + reach) * size_w;
        const X* image = dy + (i64)row * high * wide * ldy + c;
        float sum[W];
        for (int k = 0; k < W; k++) sum[k] = 0;
        for (i64 a = i0; a < i1 && a < high; a++) {
            float down = share<BILINEAR>(a, size_h, h, i);
            for (i64 b = j0; b < j1 && b < wide; b++) {
                float weight = down * share<BILINEAR>(b, size_w, w, j);
                if (weight == 0.0f) continue;
                float v[W];
                load_lanes(image + (a * wide + b) * ldy, v);
#pragma unroll
                for (int k = 0; k < W; k++) sum[k] += weight * v[k];
            }
        }
        store_lanes(dx + (i64)p * ldx + c, sum);
    }
}

enum Fill { CONSTANT, NEAREST, REFLECT, WRAP };

// The pixel that fills position `i` along an axis of `n`, -1 for the constant.
__device__ __forceinline__ i64 filled(int fill, i64 i, i64 n) {
    if (i >= 0 && i < n) return i;
    if (fill == CONSTANT) return -1;
    if (fill == NEAREST) return i < 0 ? 0 : n - 1;
    i64 period = fill == REFLECT ? 2 * n : n;
    i64 at = i % period;
    at = at < 0 ? at + period : at;
    return at < n ? at : period - 1 - at;
}

// The neighbours of a coordinate along an axis and their weights; without interpolation only the
// first counts. Clamps coordinates far outside any image, so that they fit an integer.
__device__ __forceinline__ void taps(double at, bool bilinear, int fill, i64 n, i64 (&pixel)[2],
                                     double (&weight)[2]) {
    const double furthest = 1099511627776.0;
    at = at > furthest ? furthest : at < -furthest ? -furthest : at;
    double low = bilinear ? floor(at) : round(at);
    i64 first = low == low ? (i64)low : 0;
    weight[0] = bilinear ? 1.0 - (at - low) : 1.0;
    weight[1] = at - low;
    pixel[0] = filled(fill, first, n);
    pixel[1] = bilinear ? filled(fill, first + 1, n) : -1;
}

// The four pixels that a pixel of the result reads, -1 beyond the border, and their weights.
struct Corners {
    i64 pixel[4];
    float weight[4];
};

template <typename M>
__device__ __forceinline__ Corners corners(const M* m, i64 y, i64 x, i64 h, i64 w, bool bilinear, int fill) {
    double a = (double)x, b = (double)y;
    i64 rows[2], columns[2];
    double down[2], across[2];
    taps((double)ld(m + 3) * a + (double)ld(m + 4) * b + (double)ld(m + 5), bilinear, fill, h, rows, down);
    taps((double)ld(m) * a + (double)ld(m + 1) * b + (double)ld(m + 2), bilinear, fill, w, columns, across);
    Corners c;
#pragma unroll
    for (int k = 0; k < 4; k++) {
        i64 i = rows[k / 2], j = columns[k % 2];
        c.pixel[k] = i < 0 || j < 0 ? -1 : i * w + j;
        c.weight[k] = (float)(down[k / 2] * across[k % 2]);
    }
    return c;
}

// A thread for each pixel of the result.
template <typename X, typename M, typename Y, typename I>
__global__ void affine_sample(const X* x, const M* matrices, Y* y, i64 n, i64 h, i64 w, i64 c, i64 oh,
                              i64 ow, int fill, int bilinear, float fill_value) {
    EACH(p, n) {
        I line = (I)p / (I)ow, row = line / (I)oh;
        Corners at = corners(matrices + 6 * (i64)row, line - row * (I)oh, (I)p - line * (I)ow, h, w,
                             bilinear, fill);
        const X* image = x + (i64)row * h * w * c;
        for (i64 k = 0; k < c; k++) {
            float v[4];
#pragma unroll
            for (int q = 0; q < 4; q++)
                v[q] = at.pixel[q] < 0 || (q > 0 && !bilinear) ? fill_value : ld(image + at.pixel[q] * c + k);
            float sum = v[0];
            if (bilinear) {
                sum = at.weight[0] * v[0];
                for (int q = 1; q < 4; q++) sum += at.weight[q] * v[q];
            }
            st(y + p * c + k, sum);
        }
    }
}

// Every thread owns pixels of one image's `dx` and adds to them, in the order of the result's
// pixels, the derivatives of those that read them. `shares` blocks work on an image and own all of
// its `dx`.
template <typename X, typename M>
__global__ void affine_sample_grad(const X* dy, const M* matrices, float* dx, i64 h, i64 w, i64 c, i64 oh,
                                   i64 ow, i64 shares, int fill, int bilinear) {
    __shared__ Corners read[256];
    i64 row = blockIdx.x / (u32)shares, owners = shares * 256;
    i64 me = blockIdx.x % (u32)shares * 256 + threadIdx.x;
    float* image = dx + row * h * w * c;
    const X* from = dy + row * oh * ow * c;
    for (i64 p = me; p < h * w; p += owners)
        for (i64 k = 0; k < c; k++) image[p * c + k] = 0;
    for (i64 first = 0; first < oh * ow; first += 256) {
        i64 mine = first + threadIdx.x;
        __syncthreads();
        if (mine < oh * ow)
            read[threadIdx.x] = corners(matrices + 6 * row, mine / ow, mine % ow, h, w, bilinear, fill);
        __syncthreads();
        i64 left = oh * ow - first < 256 ? oh * ow - first : 256;
        for (i64 q = 0; q < left * 4; q++) {
            i64 pixel = read[q / 4].pixel[q % 4];
            if (pixel < 0 || (u32)pixel % (u32)owners != (u32)me || (q % 4 > 0 && !bilinear)) continue;
            float weight = read[q / 4].weight[q % 4];
            for (i64 k = 0; k < c; k++) image[pixel * c + k] += weight * ld(from + (first + q / 4) * c + k);
        }
    }
}
