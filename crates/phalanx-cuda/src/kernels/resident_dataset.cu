// Steps on a resident dataset: the inputs of a step are read from a list, its rows from the columns
// of a table.

// The list begins with the number of completed steps.
static const i64 LIST_HEAD = 256;

enum Kind { FLOATS, INTEGERS, BYTES };
enum Fill { NEAREST, CONSTANT, REFLECT, WRAP };

struct Column {
    const void* cells;
    void* to;
    const float* offset;
    i64 row, kind;
    Word divisor;
    // Dimensions of an image, if rows may be augmented.
    i64 height, width, channels, fill;
    Word value;
};

struct Augment {
    double map[6];
    u32 flip_horizontal, flip_vertical, active, unused;
};

// The two pixels of an axis that are interpolated, and the weight of the second.
struct Tap {
    int first, second;
    float share;
};

__device__ int mirrored(i64 i, int n) {
    i64 m = i % (2 * n);
    if (m < 0) m += 2 * n;
    return (int)(m < n ? m : 2 * n - 1 - m);
}

// Returns false if the fill value applies. Must match `phalanx`'s `data/affine.rs` bit by bit.
__device__ bool find_tap(double at, int n, i64 fill, Tap& tap) {
    const double last = n - 1.0;
    if (fill == NEAREST) {
        at = at < 0.0 ? 0.0 : at > last ? last : at;
    } else if (fill == CONSTANT) {
        if (at < 0.0 || at > last) return false;
    } else if (fill == WRAP) {
        if (n == 1) at = 0.0;
        else if (at < 0.0) at = __dadd_rn(at, __dmul_rn(last, trunc(-at / last) + 1.0));
        else if (at > last) at = __dadd_rn(at, -__dmul_rn(last, trunc(at / last)));
    }
    const double low = floor(at);
    tap.share = (float)(at - low);
    const i64 first = (i64)low, second = first + 1;
    if (fill == REFLECT) {
        tap.first = mirrored(first, n), tap.second = mirrored(second, n);
    } else {
        tap.first = (int)(first < 0 ? 0 : first > n - 1 ? n - 1 : first);
        tap.second = (int)(second < 0 ? 0 : second > n - 1 ? n - 1 : second);
    }
    return true;
}

__device__ float blend(float a, float b, float share) {
    return __fadd_rn(__fmul_rn(a, __fsub_rn(1.0f, share)), __fmul_rn(b, share));
}

// Element `at` of row `row`.
__device__ float cell(const Column& c, i64 row, u32 at) {
    if (c.kind == FLOATS) return ((const float*)c.cells)[row * c.row + at];
    float v = __fdiv_rn((float)((const u8*)c.cells)[row * c.row + at], c.divisor.real());
    return c.offset ? __fsub_rn(v, c.offset[at]) : v;
}

__device__ float augmented(const Column& c, i64 row, u32 at, const Augment& m) {
    const u32 width = (u32)c.width, channels = (u32)c.channels;
    const u32 pixel = at / channels, channel = at - pixel * channels;
    u32 y = pixel / width, x = pixel - y * width;
    if (m.flip_vertical) y = (u32)c.height - 1 - y;
    if (m.flip_horizontal) x = width - 1 - x;
    double source[2];
    for (int k = 0; k < 2; k++) {
        const double* r = m.map + 3 * k;
        source[k] = __dadd_rn(__dadd_rn(__dmul_rn(r[0], y), __dmul_rn(r[1], x)), r[2]);
    }
    Tap v, h;
    if (!find_tap(source[0], (int)c.height, c.fill, v) ||
        !find_tap(source[1], (int)c.width, c.fill, h)) {
        return c.value.real();
    }
    const u32 above = v.first * width, below = v.second * width;
    const float left = blend(cell(c, row, (above + h.first) * channels + channel),
                             cell(c, row, (below + h.first) * channels + channel), v.share);
    const float right = blend(cell(c, row, (above + h.second) * channels + channel),
                              cell(c, row, (below + h.second) * channels + channel), v.share);
    return blend(left, right, h.share);
}

__device__ void take_column(const Column& c, const u32* indices, const Augment* augments,
                            i64 rows) {
    const u32 row = (u32)c.row;
    EACH(i, rows * c.row) {
        const u32 r = (u32)(i / row), at = (u32)(i - (i64)r * row);
        if (c.kind == INTEGERS) {
            ((int*)c.to)[i] = ((const int*)c.cells)[indices[r] * c.row + at];
        } else if (augments && c.channels && augments[r].active) {
            ((float*)c.to)[i] = augmented(c, indices[r], at, augments[r]);
        } else {
            ((float*)c.to)[i] = cell(c, indices[r], at);
        }
    }
}

// Writes a step's head, its feeds without a row axis, and its rows.
__global__ void take(const u8* list, u32* head, const Column* columns, i64 count,
                     const Word* others, i64 n_others, i64 rows, i64 step_bytes, i64 rows_at,
                     i64 augments_at) {
    const u8* step = list + LIST_HEAD + *(const u32*)list * step_bytes;
    if (blockIdx.x == 0) {
        for (u32 i = threadIdx.x; i < sizeof(Inputs) / 4; i += blockDim.x) {
            head[i] = ((const u32*)step)[i];
        }
        const float* numbers = (const float*)(step + LIST_HEAD);
        for (i64 i = threadIdx.x; i < n_others; i += blockDim.x) *others[i].ptr<float>() = numbers[i];
    }
    const u32* indices = (const u32*)(step + rows_at);
    const Augment* augments = augments_at ? (const Augment*)(step + augments_at) : nullptr;
    for (i64 k = 0; k < count; k++) take_column(columns[k], indices, augments, rows);
}

// Stores the fetches of a step and advances to the next.
__global__ void leave(u32* list, const u32* fetched, u32* results, i64 words) {
    const u32 done = *list;
    for (i64 i = threadIdx.x; i < words; i += blockDim.x) results[done * words + i] = fetched[i];
    __syncthreads();
    if (threadIdx.x == 0) *list = done + 1;
}
