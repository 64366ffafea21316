// Samples of a dataset that stays in device memory: rows picked by number, images moved on the way.

// How an image is moved: shifts as whole pixels and the share of the next one, then flips.
struct Motion {
    int right, down;
    float right_share, down_share;
    int flips;  // 1: left to right, 2: top to bottom
};

__device__ __forceinline__ float stored(const u8* p) { return (float)*p; }
__device__ __forceinline__ float stored(const float* p) { return *p; }

// The two pixels of an axis that make a new one, and the share of the second; beyond the ends the
// nearest pixel alone.
struct Tap {
    int first, second;
    float share;
};

__device__ __forceinline__ Tap tap(int at, int shift, float share, int n) {
    int first = at + shift;
    Tap t;
    t.share = first < 0 || first >= n - 1 ? 0.0f : share;
    t.first = min(max(first, 0), n - 1);
    t.second = min(t.first + 1, n - 1);
    return t;
}

__device__ __forceinline__ float blend(float a, float b, float share) {
    return a * (1.0f - share) + b * share;
}

// Element `e` of a moved image.
template <typename X>
__device__ __forceinline__ float moved(const X* image, u32 e, const Motion& m, int h, int w, int c) {
    u32 pixel = e / (u32)c, channel = e - pixel * (u32)c, line = pixel / (u32)w;
    int y = (int)line, x = (int)(pixel - line * (u32)w);
    if (m.flips & 1) x = w - 1 - x;
    if (m.flips & 2) y = h - 1 - y;
    Tap down = tap(y, m.down, m.down_share, h), right = tap(x, m.right, m.right_share, w);
    const X* top = image + (i64)down.first * w * c + channel;
    const X* bottom = image + (i64)down.second * w * c + channel;
    float left = blend(stored(top + right.first * c), stored(bottom + right.first * c), down.share);
    float next = blend(stored(top + right.second * c), stored(bottom + right.second * c), down.share);
    return blend(left, next, right.share);
}

// `out[r] = scale * data[index[r]]`, moved as `motions[r]` says where MOVED; each row is shared by
// `parts` blocks. A number that the dataset does not have gives a row of zeros.
template <typename X, typename T, bool MOVED>
__global__ void gather_rows(const X* data, i64 count, const int* index, const Motion* motions,
                            float scale, T* out, i64 h, i64 w, i64 c, i64 parts) {
    i64 row = blockIdx.x / (u32)parts, len = h * w * c;
    int sample = index[row];
    bool there = sample >= 0 && sample < count;
    const X* from = data + (there ? sample * len : 0);
    u32 first = (blockIdx.x % (u32)parts) * blockDim.x + threadIdx.x;
    for (u32 e = first; e < (u32)len; e += (u32)parts * blockDim.x) {
        float v = 0.0f;
        if (there) {
            if constexpr (MOVED) v = moved(from, e, motions[row], (int)h, (int)w, (int)c);
            else v = stored(from + e);
        }
        st(out + row * len + e, v * scale);
    }
}
