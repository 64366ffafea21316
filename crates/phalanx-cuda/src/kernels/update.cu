// What surrounds the optimizer's rule: filters from one order into another, norms of gradients. The
// rule itself is generated; see `ops/update.rs`.

#define SIDE 64

// Transposes many matrices, a tile to a block. Words of a block: source, result, rows, columns, and
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

// The squared norm of each parameter's gradient, a block to each, from those of its chunks. Words of
// a block: the first chunk and the one behind the last.
__global__ void __launch_bounds__(256)
squared_norms(const Word* table, const double* chunks, double* squares) {
    i64 first = table[2 * blockIdx.x].number(), end = table[2 * blockIdx.x + 1].number();
    double sum = 0.0;
    for (i64 i = first + threadIdx.x; i < end; i += 256) sum += chunks[i];
    sum = sum_of_256(sum);
    if (threadIdx.x == 0) squares[blockIdx.x] = sum;
}
