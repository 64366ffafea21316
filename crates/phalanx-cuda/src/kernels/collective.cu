// Sums and means over the replicas that share a GPU, in index order; and batched small copies.

struct Pair {
    const void* from;
    void* to;
};

// Writes the sum over all replicas to every replica.
template <typename T>
__global__ void all_reduce(const Pair* replicas, i64 count, i64 n) {
    EACH(i, n) {
        T sum = ((const T*)replicas[0].from)[i];
        for (i64 r = 1; r < count; r++) sum += ((const T*)replicas[r].from)[i];
        for (i64 r = 0; r < count; r++) ((T*)replicas[r].to)[i] = sum;
    }
}

// `sum + weight * x`, both rounded, so that means have the same bits on every code path.
__device__ __forceinline__ float add_times(float sum, float weight, float x) {
    return __fadd_rn(sum, __fmul_rn(weight, x));
}
__device__ __forceinline__ double add_times(double sum, double weight, double x) {
    return __dadd_rn(sum, __dmul_rn(weight, x));
}
__device__ __forceinline__ int add_times(int sum, int weight, int x) { return sum + weight * x; }

struct Share {
    const float* from;
    float* to;
    float share;
    float unused;
};

// Writes the mean over all replicas, weighted by their shares of the rows, to every replica.
__global__ void replica_mean(const Share* replicas, i64 count, i64 n) {
    EACH(i, n) {
        float mean = 0;
        for (i64 r = 0; r < count; r++) {
            if (replicas[r].share > 0) mean = add_times(mean, replicas[r].share, replicas[r].from[i]);
        }
        for (i64 r = 0; r < count; r++) replicas[r].to[i] = mean;
    }
}

struct Move {
    const void* from;
    float* to;
    i64 n;
    i64 kind;
};

// Copies to 32-bit floats, with `blocks` blocks per copy.
__global__ void copy_many(const Move* moves, i64 blocks) {
    const Move m = moves[blockIdx.x / blocks];
    const i64 first = (blockIdx.x % blocks) * blockDim.x + threadIdx.x;
    for (i64 i = first; i < m.n; i += blocks * blockDim.x) {
        switch (m.kind) {
            case 0: m.to[i] = ((const float*)m.from)[i]; break;
            case 1: m.to[i] = (float)((const double*)m.from)[i]; break;
            case 2: m.to[i] = (float)((const int*)m.from)[i]; break;
            case 3: m.to[i] = ld((const bf16*)m.from + i); break;
            case 4: m.to[i] = ld((const half*)m.from + i); break;
        }
    }
}

template <typename T>
__device__ __forceinline__ void gather(const Word* sum, i64 count, i64 first, i64 stride) {
    T* to = sum[0].ptr<T>();
    const i64 n = sum[1].number();
    const Word* sources = sum + 3;
    for (i64 i = first; i < n; i += stride) {
        T total = T(0);
        for (i64 r = 0; r < count; r++) {
            const float weight = sources[2 * r + 1].real();
            if (weight == 0.0f) continue;
            const T x = sources[2 * r].ptr<const T>()[i];
            total = add_times(total, T(weight), x);
        }
        to[i] = total;
    }
}

// Weighted sums over the replicas, with `blocks` blocks per sum. Words of a sum: result, length,
// type, then source and weight of each replica.
__global__ void gather_many(const Word* table, i64 blocks, i64 count) {
    const Word* sum = table + (blockIdx.x / blocks) * (3 + 2 * count);
    const i64 first = (blockIdx.x % blocks) * blockDim.x + threadIdx.x;
    const i64 stride = blocks * blockDim.x;
    switch (sum[2].number()) {
        case 0: gather<float>(sum, count, first, stride); break;
        case 1: gather<double>(sum, count, first, stride); break;
        case 2: gather<int>(sum, count, first, stride); break;
    }
}
