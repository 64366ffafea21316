// Kernels of the emulator's own tests.

template <typename T> __global__ void block_sum(const T* x, float* y, i64 n) {
    __shared__ float parts[8];
    float v = 0.0f;
    for (i64 i = threadIdx.x; i < n; i += blockDim.x) v += ld(x + i);
    for (int d = 16; d > 0; d /= 2) v += __shfl_down_sync(0xffffffff, v, d);
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = v;
    __syncthreads();
    if (threadIdx.x > 0) return;
    float sum = 0.0f;
    for (int w = 0; w < blockDim.x / 32; w++) sum += parts[w];
    *y = sum;
}

// The last block sums the results of all blocks.
__global__ void sum_of_all(const float* x, float* parts, u32* arrived, float* y, i64 n) {
    extern __shared__ float sums[];
    __shared__ bool last;
    float v = 0.0f;
    EACH(i, n) v += x[i];
    sums[threadIdx.x] = v;
    for (int half = blockDim.x / 2; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
    }
    if (threadIdx.x == 0) {
        parts[blockIdx.x] = sums[0];
        __threadfence();
        last = atomicAdd(arrived, 1u) == gridDim.x - 1;
    }
    __syncthreads();
    if (!last || threadIdx.x > 0) return;
    float sum = 0.0f;
    for (int b = 0; b < gridDim.x; b++) sum += parts[b];
    *y = sum;
    *arrived = 0;
}

__global__ void reversed(const float* x, float* y) {
    __shared__ float line[64];
    line[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    y[threadIdx.x] = line[blockDim.x - 1 - threadIdx.x];
}

__global__ void reversed_too_early(const float* x, float* y) {
    __shared__ float line[64];
    line[threadIdx.x] = x[threadIdx.x];
    y[threadIdx.x] = line[blockDim.x - 1 - threadIdx.x];
}

__global__ void leaves_early(float* y) {
    if (threadIdx.x >= 40) return;
    __syncthreads();
    y[threadIdx.x] = 1.0f;
}

__global__ void two_barriers(float* y) {
    if (threadIdx.x < 32) __syncthreads();
    else __syncthreads();
    y[threadIdx.x] = 1.0f;
}

__global__ void half_a_shuffle(float* y) {
    float v = 1.0f;
    if (threadIdx.x % 2) v = __shfl_xor_sync(0xffffffff, v, 1);
    y[threadIdx.x] = v;
}

__global__ void exchanges(const float* x, float* y) {
    float v = x[threadIdx.x];
    // Parts of a warp diverge and converge again.
    if (threadIdx.x < 4) v += __shfl_xor_sync(0xfu, v, 3);
    v += __shfl_sync(0xffffffff, v, 0, 8);
    v += __shfl_up_sync(0xffffffff, v, 1);
    u32 votes = __ballot_sync(0xffffffff, threadIdx.x % 3 == 0);
    y[threadIdx.x] = v + __popc(votes);
}

__global__ void put_one(float* y, i64 at, float v) { y[at] = v; }

__global__ void index_of_array(float* y, int i) {
    __shared__ float line[4];
    line[i] = 1.0f;
    y[0] = line[i];
}

__global__ void vector_load(const float* x, float* y, i64 at) { y[0] = ((const float4*)(x + at))->y; }

__global__ void divides(float* y, int by) { y[0] = 7 / by; }

template <typename T> __global__ void narrow(const float* x, T* y, float* back, i64 n) {
    EACH(i, n) {
        st(y + i, x[i]);
        back[i] = ld(y + i);
    }
}

struct Row { float* y; i64 n; float v; };

__global__ void fill_rows(const Row* rows, i64 n) {
    EACH(r, n) for (i64 i = 0; i < rows[r].n; i++) rows[r].y[i] = rows[r].v;
}
