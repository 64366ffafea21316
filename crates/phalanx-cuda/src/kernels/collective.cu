// Sums and means over the replicas that share a GPU, in index order; and many small copies at once.

struct Pair {
    const void* from;
    void* to;
};

// Every replica's result is the sum of all.
template <typename T>
__global__ void all_reduce(const Pair* replicas, i64 count, i64 n) {
    EACH(i, n) {
        T sum = ((const T*)replicas[0].from)[i];
        for (i64 r = 1; r < count; r++) sum += ((const T*)replicas[r].from)[i];
        for (i64 r = 0; r < count; r++) ((T*)replicas[r].to)[i] = sum;
    }
}

struct Share {
    const float* from;
    float* to;
    float share;
    float unused;
};

// Every replica's result is the mean of all, weighted by their shares of the rows.
__global__ void replica_mean(const Share* replicas, i64 count, i64 n) {
    EACH(i, n) {
        float mean = 0;
        for (i64 r = 0; r < count; r++) {
            if (replicas[r].share > 0) mean += replicas[r].share * replicas[r].from[i];
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

// Copies to floats; each is shared by `blocks` blocks.
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
        bool some = false;
        for (i64 r = 0; r < count; r++) {
            const float weight = sources[2 * r + 1].real();
            if (weight == 0.0f) continue;
            const T x = sources[2 * r].ptr<const T>()[i];
            total = some ? total + T(weight) * x : T(weight) * x;
            some = true;
        }
        to[i] = total;
    }
}

// Weighted sums over the replicas, each shared by `blocks` blocks. Words of a sum: result, length,
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
