// Moves elements: copies between strides and element types, transposes, padding. Sizes and strides
// count items: raw words of up to 16 bytes between equal types, packs of elements otherwise.

// Rounds towards zero; saturates out-of-range values; 0 for NaN.
__device__ __forceinline__ void st(int* p, float v) {
    if (v >= 2147483648.0f) *p = 2147483647;
    else if (v <= -2147483648.0f) *p = -2147483647 - 1;
    else *p = v == v ? (int)v : 0;
}

template <typename X, typename Y>
__device__ __forceinline__ void put(Y* y, const X* x) {
    st(y, ld(x));
}

template <typename V>
__device__ __forceinline__ void put(V* y, const V* x) {
    *y = *x;
}

template <typename X, typename Y, int W>
__device__ __forceinline__ void put(Pack<Y, W>* y, const Pack<X, W>* x) {
    Pack<X, W> from = *x;
    Pack<Y, W> to;
#pragma unroll
    for (int k = 0; k < W; k++) st(&to.v[k], ld(&from.v[k]));
    *y = to;
}

template <typename Y>
__global__ void fill(Y* y, i64 n, float v) {
    EACH(i, n) st(y + i, v);
}

// Pixels of `width` items.
template <typename X, typename Y, typename I>
__global__ void copy_pixels(const X* x, Y* y, i64 n, i64 width, i64 ldx, i64 ldy) {
    EACH(i, n) {
        I p = (I)i / (I)width;
        I c = (I)i - p * (I)width;
        put(y + (i64)p * ldy + c, x + (i64)p * ldx + c);
    }
}

// Nested loops of sizes `N`, with strides `S` in the source and `D` in the destination.
template <typename X, typename Y, typename I, typename N, typename S, typename D>
__global__ void copy_axes(const X* x, Y* y, i64 n) {
    EACH(i, n) put(y + distance((I)i, N(), D()), x + distance((I)i, N(), S()));
}

// Like `copy_axes`, around two axes that are swapped: `a` items are contiguous in the source, `b`
// items in the destination.
template <typename V, typename I, typename N, typename S, typename D>
__global__ void transpose_tiles(const V* x, V* y, i64 tiles, i64 a, i64 b, i64 stride_b, i64 stride_a) {
    __shared__ V tile[32][33];
    int column = threadIdx.x % 32, row = threadIdx.x / 32;
    i64 across = (a + 31) / 32, down = (b + 31) / 32;
    for (i64 t = blockIdx.x; t < tiles; t += gridDim.x) {
        i64 outer = t / (across * down);
        i64 i0 = t % across * 32, j0 = t / across % down * 32;
        const V* from = x + distance((I)outer, N(), S());
        V* to = y + distance((I)outer, N(), D());
        __syncthreads();
        for (int r = row; r < 32; r += 8)
            if (j0 + r < b && i0 + column < a) tile[r][column] = from[(j0 + r) * stride_b + i0 + column];
        __syncthreads();
        for (int r = row; r < 32; r += 8)
            if (i0 + r < a && j0 + column < b) to[(i0 + r) * stride_a + j0 + column] = tile[column][r];
    }
}

// The source index of element `i` of a padded value, -1 for its border. `N` are the sizes of the
// padded value, `S` the strides of the source, which has `M` items after the first `B`.
template <typename I, i64... N, i64... S, i64... B, i64... M>
__device__ __forceinline__ i64 inside(I i, Axes<N...>, Axes<S...>, Axes<B...>, Axes<M...>) {
    constexpr i64 size[] = {N...}, stride[] = {S...}, before[] = {B...}, own[] = {M...};
    i64 sum = 0;
    bool in = true;
#pragma unroll
    for (int k = sizeof...(N) - 1; k >= 0; k--) {
        I outer = k > 0 ? i / (I)size[k] : 0;
        i64 at = (i64)(i - outer * (I)size[k]) - before[k];
        in = in && (k == 0 || (at >= 0 && at < own[k]));
        sum += at * stride[k];
        i = outer;
    }
    return in ? sum : -1;
}

// The outermost axis is never padded.
template <typename X, typename Y, typename I, typename N, typename S, typename D, typename B, typename M>
__global__ void pad_axes(const X* x, Y* y, i64 n) {
    EACH(i, n) {
        i64 from = inside((I)i, N(), S(), B(), M());
        Y* to = y + distance((I)i, N(), D());
        if (from < 0) *to = Y();
        else put(to, x + from);
    }
}

// Every `step`-th of `len` blocks of `inner` items, from the last block back if `back`.
template <typename V, typename I>
__global__ void stride_axis(const V* x, V* y, i64 n, i64 len, i64 inner, i64 step, int back) {
    i64 count = (len + step - 1) / step;
    EACH(i, n) {
        I block = (I)i / (I)inner, outer = block / (I)count;
        i64 at = (i64)(block - outer * (I)count) * step;
        if (back) at = len - 1 - at;
        y[i] = x[((i64)outer * len + at) * inner + (i64)((I)i - block * (I)inner)];
    }
}

// The inverse of `stride_axis`: zeros in all other blocks.
template <typename V, typename I>
__global__ void dilate_axis(const V* x, V* y, i64 n, i64 len, i64 inner, i64 step, int back) {
    i64 count = (len + step - 1) / step;
    EACH(i, n) {
        I block = (I)i / (I)inner, outer = block / (I)len;
        i64 at = (i64)(block - outer * (I)len);
        if (back) at = len - 1 - at;
        i64 from = ((i64)outer * count + at / step) * inner + (i64)((I)i - block * (I)inner);
        y[i] = at % step == 0 ? x[from] : V();
    }
}
