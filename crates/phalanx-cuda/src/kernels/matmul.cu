// Products of two values with any strides: for those that the vendor's library does not support.

// Loops of sizes `N` are the elements of the result, with strides `A`, `B` and `C` in the operands and
// the result; loops of sizes `K` are summed over, with strides `S` and `T`.
template <typename X, typename W, typename Y, typename I, typename N, typename A, typename B, typename C,
          typename K, typename S, typename T>
__global__ void matmul(const X* x, const W* w, Y* y, i64 n, i64 depth) {
    EACH(i, n) {
        const X* left = x + distance((I)i, N(), A());
        const W* right = w + distance((I)i, N(), B());
        double sum = 0;
        // With a 32-bit `k`, NVRTC's unrolled loop computed offsets of 2^32 elements.
        for (i64 k = 0; k < depth; k++)
            sum += (double)ld(left + distance(k, K(), S())) * (double)ld(right + distance(k, K(), T()));
        st(y + distance((I)i, N(), C()), (float)sum);
    }
}
