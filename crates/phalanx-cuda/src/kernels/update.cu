// Kernels around the optimizer's rule: layout conversion of filters, norms of gradients, the loss
// scale. The rule itself is generated; see `ops/update.rs`.

#define SIDE 64

// Transposes many matrices, a tile per block. Words of a block: source, result, rows, columns, and
// the tile's first row and column.
template <typename From, typename To>
__global__ void __launch_bounds__(256) transpose_many(const Word* table) {
    __shared__ float tile[SIDE][SIDE + 1];
    const Word* block = table + (i64)blockIdx.x * 6;
    const From* from = block[0].ptr<const From>();
    To* to = block[1].ptr<To>();
    i64 rows = block[2].number(), columns = block[3].number();
    i64 top = block[4].number(), left = block[5].number();
    int x = (int)threadIdx.x % SIDE, first = (int)threadIdx.x / SIDE, step = 256 / SIDE;
#pragma unroll
    for (int y = first; y < SIDE; y += step) {
        if (top + y < rows && left + x < columns) {
            tile[y][x] = ld(from + (top + y) * columns + left + x);
        }
    }
    __syncthreads();
#pragma unroll
    for (int y = first; y < SIDE; y += step) {
        if (left + y < columns && top + x < rows) {
            st(to + (left + y) * rows + top + x, tile[x][y]);
        }
    }
}

// The squared norm of each parameter's gradient, a block per parameter, from those of its chunks.
// Words of a block: the first chunk and the end of the range.
__global__ void __launch_bounds__(256)
squared_norms(const Word* table, const double* chunks, double* squares) {
    i64 first = table[2 * blockIdx.x].number(), end = table[2 * blockIdx.x + 1].number();
    double sum = 0.0;
    for (i64 i = first + threadIdx.x; i < end; i += 256) sum += chunks[i];
    sum = sum_of_256(sum);
    if (threadIdx.x == 0) squares[blockIdx.x] = sum;
}

// Computes the scale of the gradients to apply, zero if any is not finite, from the number of
// non-finite gradients of each chunk; and the state of every replica after the step, as in
// `phalanx_graph::loss_scale`.
__global__ void __launch_bounds__(256)
loss_scale(const double* wrong, i64 chunks, int growth_steps, const Word* states, int replicas,
           float* verdict) {
    double sum = 0.0;
    for (i64 i = threadIdx.x; i < chunks; i += 256) sum += wrong[i];
    const bool finite = sum_of_256(sum) == 0.0;
    if (threadIdx.x != 0) return;
    const float* state = states[0].ptr<const float>();
    float scale = state[0], steps = state[1] + 1.0f;
    *verdict = finite ? scale : 0.0f;
    if (!finite) {
        scale = larger(scale * 0.5f, 1.17549435e-38f);
        steps = 0.0f;
    } else if (steps >= (float)growth_steps) {
        scale = scale < 8.50705917e37f ? scale * 2.0f : 1.70141183e38f;
        steps = 0.0f;
    }
    for (int r = 0; r < replicas; r++) {
        float* to = states[r].ptr<float>();
        to[0] = scale, to[1] = steps, to[2] = finite ? 1.0f : 0.0f;
    }
}
