// Dropout and random numbers: pure functions of (seed, step, global row, key, element).

// A thread for each block of four words. Rows of `len` elements have `blocks` of them. `W` is 4 if
// all blocks are complete and aligned, otherwise 1. `x` and `y` may be the same.
template <typename X, typename Y, int W, typename I>
__global__ void dropout(const Inputs* in, const X* x, Y* y, i64 n, i64 blocks, i64 len, i64 first_row,
                        u32 key, u32 kept_from, float scale) {
    EACH(i, n) {
        I row = (I)i / (I)blocks;
        u32 block = (u32)((I)i - row * (I)blocks);
        u32 words[4];
        draw(in, key, (u32)(first_row + row), block, words);
        i64 at = (i64)row * len + 4 * (i64)block;
        i64 left = len - 4 * (i64)block;
#pragma unroll
        for (int k = 0; k < 4; k += W) {
            float v[W];
            if (k >= left) break;
            load_lanes(x + at + k, v);
#pragma unroll
            for (int w = 0; w < W; w++) v[w] = words[k + w] >> 8 >= kept_from ? v[w] * scale : 0.0f;
            store_lanes(y + at + k, v);
        }
    }
}

// A thread for each element. Elements at the same offset in a row of sizes `N` with strides `S`
// share their word.
template <typename X, typename Y, typename I, typename N, typename S>
__global__ void dropout_shared(const Inputs* in, const X* x, Y* y, i64 n, i64 len, i64 first_row,
                               u32 key, u32 kept_from, float scale) {
    EACH(i, n) {
        I row = (I)i / (I)len;
        i64 element = distance((I)i - row * (I)len, N(), S());
        u32 words[4];
        draw(in, key, (u32)(first_row + row), (u32)(element / 4), words);
        int lane = (int)(element % 4);
        u32 word = lane == 0 ? words[0] : lane == 1 ? words[1] : lane == 2 ? words[2] : words[3];
        st(y + i, word >> 8 >= kept_from ? ld(x + i) * scale : 0.0f);
    }
}

// Numbers in [0, 1), a thread for each block of four.
template <typename Y, typename I>
__global__ void uniform(const Inputs* in, Y* y, i64 n, i64 blocks, i64 len, i64 first_row, u32 key) {
    EACH(i, n) {
        I row = (I)i / (I)blocks;
        u32 block = (u32)((I)i - row * (I)blocks);
        u32 words[4];
        draw(in, key, (u32)(first_row + row), block, words);
        i64 left = len - 4 * (i64)block;
        Y* to = y + (i64)row * len + 4 * (i64)block;
#pragma unroll
        for (int k = 0; k < 4; k++)
            if (k < left) st(to + k, (float)(words[k] >> 8) * (1.0f / 16777216.0f));
    }
}
