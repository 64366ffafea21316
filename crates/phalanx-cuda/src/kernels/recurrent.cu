// Recurrent cells over a sequence, and their derivatives. Rows do not depend on each other, so a block runs its row
// through all steps without waiting for other blocks: its threads hold the recurrent kernel in registers. Cells with
// too many units for that take one launch per step.

// One unit of a cell. `forward` turns the states `s` into those after a step and gives the gates that the derivative
// needs. `backward` takes what the step kept, the `c` before it and the cotangents of the states after it; it gives
// the cotangents of the gates, and turns those of the states into those before the step, without the product.
struct Lstm {
    static constexpr int GATES = 4, STATES = 2;
    // Where the cotangent of a gate inside of the product is.
    static __device__ __forceinline__ constexpr int inside(int gate) { return gate; }
    static __device__ __forceinline__ void forward(const float (&x)[4], const float (&inner)[4], float (&s)[2],
                                                   float (&kept)[4]) {
        kept[0] = sigmoid(x[0] + inner[0]);
        kept[1] = sigmoid(x[1] + inner[1]);
        kept[2] = tanhf(x[2] + inner[2]);
        kept[3] = sigmoid(x[3] + inner[3]);
        s[1] = kept[1] * s[1] + kept[0] * kept[2];
        s[0] = kept[3] * tanhf(s[1]);
    }
    static __device__ __forceinline__ void backward(const float (&y)[6], float c, float (&ds)[2], float (&d)[4]) {
        float shown = tanhf(y[1]), i = y[2], f = y[3], g = y[4], o = y[5], dh = ds[0];
        float dc = ds[1] + dh * o * (1.0f - shown * shown);
        d[0] = dc * g * i * (1.0f - i);
        d[1] = dc * c * f * (1.0f - f);
        d[2] = dc * i * (1.0f - g * g);
        d[3] = dh * shown * o * (1.0f - o);
        ds[0] = 0.0f;
        ds[1] = dc * f;
    }
};

struct Gru {
    static constexpr int GATES = 3, STATES = 1;
    static __device__ __forceinline__ constexpr int inside(int gate) { return gate < 2 ? gate : 3; }
    static __device__ __forceinline__ void forward(const float (&x)[4], const float (&inner)[4], float (&s)[2],
                                                   float (&kept)[4]) {
        kept[0] = sigmoid(x[0] + inner[0]);
        kept[1] = sigmoid(x[1] + inner[1]);
        kept[2] = tanhf(x[2] + kept[1] * inner[2]);
        kept[3] = inner[2];
        s[0] = kept[0] * s[0] + (1.0f - kept[0]) * kept[2];
    }
    static __device__ __forceinline__ void backward(const float (&y)[6], float, float (&ds)[2], float (&d)[4]) {
        float z = y[1], r = y[2], n = y[3], inner = y[4], h = y[5], dh = ds[0];
        d[2] = dh * (1.0f - z) * (1.0f - n * n);
        d[0] = dh * (h - n) * z * (1.0f - z);
        d[1] = d[2] * inner * r * (1.0f - r);
        d[3] = d[2] * r;
        ds[0] = dh * z;
        ds[1] = 0.0f;
    }
};

// Vectors of a step that the derivative needs besides the states.
constexpr int SAVED_PER_UNIT = 5;

// The states of a row before the first step, and the mask. Absent ones are null.
struct Given {
    const float *h, *c, *mask;
    __device__ __forceinline__ float state(int which, i64 at) const {
        const float* from = which == 0 ? h : c;
        return from ? from[at] : 0.0f;
    }
    __device__ __forceinline__ bool valid(i64 pixel) const { return !mask || mask[pixel] != 0.0f; }
};

// ---- All steps in one launch ----

// The product of a vector in shared memory with weights in registers, of which there are a multiple of four.
template <int K>
__device__ __forceinline__ float product(const float* v, const float (&w)[K]) {
    float sums[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
    for (int k = 0; k < K; k += 4) {
        float part[4];
        load_lanes<4>(v + k, part);
#pragma unroll
        for (int j = 0; j < 4; j++) sums[j] += w[k + j] * part[j];
    }
    return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

// The projected input of a unit at a step, loaded while the step before it is computed.
template <typename C>
struct Ahead {
    float x[4];
    bool valid;
    __device__ __forceinline__ void load(const float* z, i64 ld, int units, int unit, i64 pixel, const Given& given) {
#pragma unroll
        for (int g = 0; g < C::GATES; g++) x[g] = z[pixel * ld + g * units + unit];
        valid = given.valid(pixel);
    }
};

// Writes the states of a unit after a step, and what the derivative needs.
template <typename C, bool KEEP>
__device__ __forceinline__ void write(float* y, int units, const float (&s)[2], const float (&kept)[4], float h) {
#pragma unroll
    for (int i = 0; i < C::STATES; i++) y[i * units] = s[i];
    if (KEEP) {
#pragma unroll
        for (int i = 0; i < 4; i++) y[(C::STATES + i) * units] = kept[i];
        y[(C::STATES + 4) * units] = h;
    }
}

// A block for each row, a thread for each column of the kernel.
template <typename C, int U, bool KEEP>
__global__ void __launch_bounds__((C::GATES * U + 31) / 32 * 32)
recurrent(const float* z, i64 z_ld, const float* kernel, const float* bias, const float* h0, const float* c0,
          const float* mask, float* y, i64 rows, int steps, int reverse) {
    constexpr int COLUMNS = C::GATES * U, K = (U + 3) / 4 * 4, W = C::STATES + (KEEP ? SAVED_PER_UNIT : 0);
    __shared__ Bits<16> state[K / 4];
    __shared__ float sums[COLUMNS];
    float* h = (float*)state;
    const Given given = {h0, c0, mask};
    int column = threadIdx.x;
    bool owns = column < COLUMNS, unit = column < U;
    float w[K];
#pragma unroll
    for (int k = 0; k < K; k++) w[k] = owns && k < U ? kernel[k * COLUMNS + column] : 0.0f;
    float start = owns && bias ? bias[column] : 0.0f;
    for (i64 row = blockIdx.x; row < rows; row += gridDim.x) {
        float s[2] = {0.0f, 0.0f};
        Ahead<C> now, next;
        if (unit) {
            s[0] = given.state(0, row * U + column);
            if (C::STATES == 2) s[1] = given.state(1, row * U + column);
            next.load(z, z_ld, U, column, row * steps + (reverse ? steps - 1 : 0), given);
        }
        if (column < K) h[column] = s[0];
        __syncthreads();
        for (int i = 0; i < steps; i++) {
            i64 pixel = row * steps + (reverse ? steps - 1 - i : i);
            now = next;
            if (unit && i + 1 < steps) next.load(z, z_ld, U, column, pixel + (reverse ? -1 : 1), given);
            float sum = start + product<K>(h, w);
            if (owns) sums[column] = sum;
            __syncthreads();
            if (unit) {
                float inner[4], kept[4], before = s[0], held[2] = {s[0], s[1]};
#pragma unroll
                for (int g = 0; g < C::GATES; g++) inner[g] = sums[g * U + column];
                C::forward(now.x, inner, s, kept);
                if (!now.valid) s[0] = held[0], s[1] = held[1];
                write<C, KEEP>(y + pixel * (W * U) + column, U, s, kept, before);
                h[column] = s[0];
            }
            __syncthreads();
        }
    }
}

// What a step kept of a unit, and its cotangents, loaded while the step after it is computed.
template <typename C>
struct AheadGrad {
    float y[6], c, dh, dc;
    bool valid;
    __device__ __forceinline__ void load(const float* from, int units, int unit, i64 pixel, i64 before, i64 row,
                                         const float* first, i64 first_ld, const float* second, i64 second_ld,
                                         const Given& given) {
        int width = (C::STATES + SAVED_PER_UNIT) * units;
        EVERY(6) y[k] = from[pixel * width + k * units + unit];
        c = 0.0f;
        if (C::STATES == 2) c = before < 0 ? given.state(1, row * units + unit) : from[before * width + units + unit];
        dh = first[pixel * first_ld + unit];
        dc = second ? second[pixel * second_ld + unit] : 0.0f;
        valid = given.valid(pixel);
    }
};

// The cotangents of a unit at a step; a masked step hands those of the states on.
template <typename C>
__device__ __forceinline__ void unit_grad(const AheadGrad<C>& at, float (&ds)[2], float (&d)[4]) {
    ds[0] += at.dh;
    ds[1] += at.dc;
    EVERY(4) d[k] = 0.0f;
    if (at.valid) C::backward(at.y, at.c, ds, d);
}

// A block for each row. A thread multiplies the cotangents of one gate by the kernel's part for one unit.
template <typename C, int U>
__global__ void __launch_bounds__((C::GATES * U + 31) / 32 * 32)
recurrent_grad(const float* y, const float* kernel, const float* c0, const float* mask, const float* dh, i64 dh_ld,
               const float* dc, i64 dc_ld, float* d, i64 rows, int steps, int reverse, int initial) {
    constexpr int COLUMNS = C::GATES * U, K = (U + 3) / 4 * 4;
    __shared__ Bits<16> cotangents[C::GATES * K / 4];
    __shared__ float sums[COLUMNS];
    float* inside = (float*)cotangents;
    const Given given = {nullptr, c0, mask};
    int column = threadIdx.x, own = column % U, gate = column / U;
    bool owns = column < COLUMNS, unit = column < U;
    float w[K];
#pragma unroll
    for (int k = 0; k < K; k++) w[k] = owns && k < U ? kernel[own * COLUMNS + gate * U + k] : 0.0f;
    for (int i = threadIdx.x; i < C::GATES * K; i += blockDim.x) inside[i] = 0.0f;
    if (!owns) gate = 0;
    __syncthreads();
    for (i64 row = blockIdx.x; row < rows; row += gridDim.x) {
        float ds[2] = {0.0f, 0.0f};
        AheadGrad<C> now, next;
        i64 first = row * steps, last = first + steps - 1, end = reverse ? first : last, back = reverse ? 1 : -1;
        if (unit)
            next.load(y, U, column, end, steps > 1 ? end + back : -1, row, dh, dh_ld, dc, dc_ld, given);
        for (int i = steps - 1; i >= 0; i--) {
            i64 pixel = end + back * (steps - 1 - i);
            float direct = 0.0f;
            now = next;
            if (unit) {
                if (i > 0)
                    next.load(y, U, column, pixel + back, i > 1 ? pixel + 2 * back : -1, row, dh, dh_ld, dc, dc_ld,
                              given);
                float gates[4];
                unit_grad<C>(now, ds, gates);
                direct = ds[0];
                float* to = d + (pixel + row * initial) * (4 * U) + column;
                EVERY(4) to[k * U] = gates[k];
#pragma unroll
                for (int g = 0; g < C::GATES; g++) inside[g * K + column] = gates[C::inside(g)];
            }
            __syncthreads();
            float sum = product<K>(inside + gate * K, w);
            if (owns) sums[column] = sum;
            __syncthreads();
            if (unit) {
#pragma unroll
                for (int g = 0; g < C::GATES; g++) direct += sums[g * U + column];
                ds[0] = direct;
            }
        }
        if (initial && unit) {
            float* to = d + ((row + 1) * (steps + 1) - 1) * (4 * U) + column;
            to[0] = ds[0];
            to[U] = C::STATES == 2 ? ds[1] : 0.0f;
            to[2 * U] = to[3 * U] = 0.0f;
        }
        __syncthreads();
    }
}

// ---- A launch per step ----

// One step: a warp has 32 units of a row. `before` is the step before it, or -1.
template <typename C, bool KEEP>
__global__ void __launch_bounds__(256)
recurrent_step(const float* z, i64 z_ld, const float* kernel, const float* bias, const float* h0, const float* c0,
               const float* mask, float* y, i64 rows, int units, int steps, int step, int before) {
    const Given given = {h0, c0, mask};
    i64 width = (C::STATES + (KEEP ? SAVED_PER_UNIT : 0)) * (i64)units;
    i64 groups = (units + 31) / 32;
    // Blocks have the same units for neighbouring rows, so that they read the same columns of the kernel.
    for (i64 item = (i64)blockIdx.x * 8 + threadIdx.x / 32; item < groups * rows; item += (i64)gridDim.x * 8) {
        i64 row = item % rows;
        int unit = (int)(item / rows) * 32 + threadIdx.x % 32;
        if (unit >= units) continue;
        i64 pixel = row * steps + step;
        const float* from = before < 0 ? nullptr : y + (row * steps + before) * width;
        const float* h = from ? from : h0 ? h0 + row * units : nullptr;
        float inner[4], x[4], kept[4];
#pragma unroll
        for (int g = 0; g < C::GATES; g++) {
            inner[g] = bias ? bias[g * units + unit] : 0.0f;
            x[g] = z[pixel * z_ld + g * units + unit];
        }
        int summed = h ? units : 0;
#pragma unroll 4
        for (int k = 0; k < summed; k++) {
            float v = h[k];
            const float* weights = kernel + (i64)k * C::GATES * units + unit;
#pragma unroll
            for (int g = 0; g < C::GATES; g++) inner[g] += v * weights[g * units];
        }
        float s[2] = {h ? h[unit] : 0.0f, 0.0f};
        if (C::STATES == 2) s[1] = from ? from[units + unit] : given.state(1, row * units + unit);
        float held[2] = {s[0], s[1]};
        C::forward(x, inner, s, kept);
        if (!given.valid(pixel)) s[0] = held[0], s[1] = held[1];
        write<C, KEEP>(y + pixel * width + unit, units, s, kept, held[0]);
    }
}

// One step of the derivative: a warp has a unit of eight rows. `after` is the step that was computed after this one,
// or -1; `step` is -1 for the initial states. `carried` holds the cotangents of the states, without the product.
template <typename C>
__global__ void __launch_bounds__(256)
recurrent_grad_step(const float* y, const float* kernel, const float* c0, const float* mask, const float* dh,
                    i64 dh_ld, const float* dc, i64 dc_ld, float* d, float* carried, i64 rows, int units, int steps,
                    int step, int before, int after, int initial) {
    const Given given = {nullptr, c0, mask};
    constexpr int ROWS = 8;
    int lane = threadIdx.x % 32;
    i64 groups = (rows + ROWS - 1) / ROWS;
    for (i64 item = (i64)blockIdx.x * 8 + threadIdx.x / 32; item < groups * units; item += (i64)gridDim.x * 8) {
        int unit = (int)(item % units);
        i64 first = item / units * ROWS;
        float sums[ROWS];
        EVERY(ROWS) sums[k] = 0.0f;
        if (after >= 0) {
            const float* weights = kernel + (i64)unit * C::GATES * units;
#pragma unroll
            for (int g = 0; g < C::GATES; g++)
                for (int j = lane; j < units; j += 32) {
                    float w = weights[g * units + j];
                    EVERY(ROWS) {
                        i64 row = first + k < rows ? first + k : rows - 1;
                        i64 pixel = row * (steps + initial) + after;
                        sums[k] += w * d[(pixel * 4 + C::inside(g)) * units + j];
                    }
                }
        }
        float ds[2] = {0.0f, 0.0f};
        EVERY(ROWS) {
            float sum = group_sum<32>(sums[k]);
            if (lane == k) ds[0] = sum;
        }
        i64 row = first + lane;
        if (lane >= ROWS || row >= rows) continue;
        float* held = carried + (row * units + unit) * 2;
        if (after >= 0) ds[0] += held[0], ds[1] = held[1];
        float gates[4] = {0.0f, 0.0f, 0.0f, 0.0f};
        if (step >= 0) {
            AheadGrad<C> at;
            i64 start = row * steps;
            at.load(y, units, unit, start + step, before < 0 ? -1 : start + before, row, dh, dh_ld, dc, dc_ld, given);
            unit_grad<C>(at, ds, gates);
            held[0] = ds[0], held[1] = ds[1];
        } else {
            gates[0] = ds[0];
            if (C::STATES == 2) gates[1] = ds[1];
        }
        i64 pixel = row * (steps + initial) + (step >= 0 ? step : steps);
        EVERY(4) d[(pixel * 4 + k) * units + unit] = gates[k];
    }
}
