// Pooling over windows. Padding never wins a maximum and never counts in an average; a NaN wins
// every maximum. The geometry is a type, so that kernels need no division and small windows unroll.
// A thread has V channels of a pixel; I counts the items of a launch.

template <int H, int W, int OUT_H, int OUT_W, int KERNEL_H, int KERNEL_W, int STRIDE_H, int STRIDE_W,
          int DILATION_H, int DILATION_W, int PAD_H, int PAD_W, int CHANNELS>
struct Geom {
    static const int h = H, w = W, out_h = OUT_H, out_w = OUT_W;
    static const int kernel_h = KERNEL_H, kernel_w = KERNEL_W, stride_h = STRIDE_H;
    static const int stride_w = STRIDE_W, dilation_h = DILATION_H, dilation_w = DILATION_W;
    static const int pad_h = PAD_H, pad_w = PAD_W, channels = CHANNELS;
    // Whether windows extend beyond the image.
    static const bool beyond = PAD_H > 0 || PAD_W > 0
                            || (OUT_H - 1) * STRIDE_H + (KERNEL_H - 1) * DILATION_H >= H
                            || (OUT_W - 1) * STRIDE_W + (KERNEL_W - 1) * DILATION_W >= W;
    // Loops over large windows are not unrolled.
    static const int unroll = KERNEL_H * KERNEL_W <= 64 ? 64 : 1;
};

#define POOL template <typename T, int V, typename I, typename G>

// A pixel of an image and its channels.
struct Spot {
    i64 row;
    int y, x, channel;
};

template <int V, typename I> __device__ __forceinline__ Spot spot(I item, int h, int w, int c) {
    Spot s;
    I vectors = (I)(c / V), pixel = item / vectors, line = pixel / (I)w;
    s.channel = (int)(item - pixel * vectors) * V;
    s.x = (int)(pixel - line * (I)w);
    s.row = (i64)(line / (I)h);
    s.y = (int)(line - (I)s.row * (I)h);
    return s;
}

template <typename G> __device__ __forceinline__ i64 input_pixel(const Spot& s, int y, int x) {
    return (s.row * G::h + y) * G::w + x;
}

template <typename G> __device__ __forceinline__ i64 output_pixel(const Spot& s, int y, int x) {
    return (s.row * G::out_h + y) * G::out_w + x;
}

// Whether tap (a, b) of a window lies in the image, and where.
template <typename G>
__device__ __forceinline__ bool tap(int out_y, int out_x, int a, int b, int& y, int& x) {
    y = out_y * G::stride_h + a * G::dilation_h - G::pad_h;
    x = out_x * G::stride_w + b * G::dilation_w - G::pad_w;
    return !G::beyond || (y >= 0 && y < G::h && x >= 0 && x < G::w);
}

// Taps of a window along one axis that lie in the image.
__device__ __forceinline__ int taps(int at, int size, int kernel, int stride, int dilation,
                                    int pad) {
    int start = at * stride - pad;
    int skipped = start < 0 ? min((-start + dilation - 1) / dilation, kernel) : 0;
    int fit = (size - start - skipped * dilation + dilation - 1) / dilation;
    return max(min(fit, kernel - skipped), 0);
}

template <typename G> __device__ __forceinline__ float window_share(int y, int x) {
    int n = taps(y, G::h, G::kernel_h, G::stride_h, G::dilation_h, G::pad_h)
          * taps(x, G::w, G::kernel_w, G::stride_w, G::dilation_w, G::pad_w);
    return 1.0f / (float)max(n, 1);
}

POOL __global__ void max_pool(const T* x, i64 x_ld, T* y, i64 y_ld, i64 items) {
    EACH(item, items) {
        Spot s = spot<V, I>((I)item, G::out_h, G::out_w, G::channels);
        float best[V];
        EVERY(V) best[k] = __uint_as_float(0xff800000u);
#pragma unroll(G::unroll)
        for (int a = 0; a < G::kernel_h; a++) {
#pragma unroll(G::unroll)
            for (int b = 0; b < G::kernel_w; b++) {
                int in_y, in_x;
                if (!tap<G>(s.y, s.x, a, b, in_y, in_x)) continue;
                float v[V];
                load_lanes<V>(x + input_pixel<G>(s, in_y, in_x) * x_ld + s.channel, v);
                EVERY(V) best[k] = larger(best[k], v[k]);
            }
        }
        store_lanes<V>(y + output_pixel<G>(s, s.y, s.x) * y_ld + s.channel, best);
    }
}

POOL __global__ void average_pool(const T* x, i64 x_ld, T* y, i64 y_ld, i64 items) {
    EACH(item, items) {
        Spot s = spot<V, I>((I)item, G::out_h, G::out_w, G::channels);
        float sum[V];
        EVERY(V) sum[k] = 0.0f;
#pragma unroll(G::unroll)
        for (int a = 0; a < G::kernel_h; a++) {
#pragma unroll(G::unroll)
            for (int b = 0; b < G::kernel_w; b++) {
                int in_y, in_x;
                if (!tap<G>(s.y, s.x, a, b, in_y, in_x)) continue;
                float v[V];
                load_lanes<V>(x + input_pixel<G>(s, in_y, in_x) * x_ld + s.channel, v);
                EVERY(V) sum[k] += v[k];
            }
        }
        float share = window_share<G>(s.y, s.x);
        EVERY(V) sum[k] *= share;
        store_lanes<V>(y + output_pixel<G>(s, s.y, s.x) * y_ld + s.channel, sum);
    }
}

// Windows that tile the image without overlap: each writes all of its pixels.
POOL __global__ void max_pool_grad_apart(const T* x, i64 x_ld, const T* y, i64 y_ld, const T* dy,
                                         i64 dy_ld, T* dx, i64 dx_ld, i64 items) {
    EACH(item, items) {
        Spot s = spot<V, I>((I)item, G::out_h, G::out_w, G::channels);
        i64 pixel = output_pixel<G>(s, s.y, s.x);
        float best[V], rest[V];
        load_lanes<V>(y + pixel * y_ld + s.channel, best);
        load_lanes<V>(dy + pixel * dy_ld + s.channel, rest);
#pragma unroll(G::unroll)
        for (int a = 0; a < G::kernel_h; a++) {
#pragma unroll(G::unroll)
            for (int b = 0; b < G::kernel_w; b++) {
                int in_y, in_x;
                if (!tap<G>(s.y, s.x, a, b, in_y, in_x)) continue;
                i64 at = input_pixel<G>(s, in_y, in_x);
                float v[V], g[V];
                load_lanes<V>(x + at * x_ld + s.channel, v);
                EVERY(V) {
                    // The first hit takes the whole derivative; the others get zero. NaN is a hit.
                    bool hit = v[k] == best[k] || v[k] != v[k];
                    g[k] = hit ? rest[k] : 0.0f;
                    rest[k] = hit ? 0.0f : rest[k];
                }
                store_lanes<V>(dx + at * dx_ld + s.channel, g);
            }
        }
    }
}

// The windows along one axis that may contain position `at`: from `first` to `last`.
__device__ __forceinline__ void windows(int at, int outputs, int kernel, int stride, int dilation,
                                        int pad, int& first, int& last) {
    int past = at + pad - (kernel - 1) * dilation;
    first = past > 0 ? (past + stride - 1) / stride : 0;
    last = min((at + pad) / stride, outputs - 1);
}

// The position of the maximum in each window that touches a band of an image's lines.
template <typename G, int V, int LINES, int CHUNK> struct Band {
    static const int lines = LINES, chunk = CHUNK;
    static const int bands = (G::h + LINES - 1) / LINES;
    static const int chunks = (G::channels / V + CHUNK - 1) / CHUNK;
    // Maximum lines of windows that touch a band.
    static const int reach = LINES - 1 + (G::kernel_h - 1) * G::dilation_h;
    static const int met = reach / G::stride_h + 1 < G::out_h ? reach / G::stride_h + 1 : G::out_h;
    // Maximum windows that contain a pixel, along each axis.
    static const int over_h = ((G::kernel_h - 1) * G::dilation_h) / G::stride_h + 1;
    static const int over_w = ((G::kernel_w - 1) * G::dilation_w) / G::stride_w + 1;
};

// The tap of a window's first maximum, where NaN is the largest.
template <typename T, int V, typename G>
__device__ __forceinline__ Pack<u8, V> first_maximum(const T* x, i64 x_ld, int out_y, int out_x) {
    float best[V];
    Pack<u8, V> at;
    bool seen = false;
#pragma unroll(G::unroll)
    for (int a = 0; a < G::kernel_h; a++) {
#pragma unroll(G::unroll)
        for (int b = 0; b < G::kernel_w; b++) {
            int y, x_at;
            if (!tap<G>(out_y, out_x, a, b, y, x_at)) continue;
            float v[V];
            load_lanes<V>(x + (i64)(y * G::w + x_at) * x_ld, v);
            EVERY(V) {
                bool takes = !seen || v[k] > best[k] || (v[k] != v[k] && best[k] == best[k]);
                best[k] = takes ? v[k] : best[k];
                at.v[k] = takes ? (u8)(a * G::kernel_w + b) : at.v[k];
            }
            seen = true;
        }
    }
    return at;
}

// A block has a band of an image's lines and a chunk of its channels. It finds the maximum of every
// window that touches the band; then every pixel gathers from the windows whose maximum it is.
template <typename T, int V, typename G, typename B>
__global__ void __launch_bounds__(256)
max_pool_grad_bands(const T* x, i64 x_ld, const T* dy, i64 dy_ld, T* dx, i64 dx_ld) {
    __shared__ Pack<u8, V> firsts[B::met * G::out_w * B::chunk];
    u32 band = blockIdx.x / B::chunks, row = band / B::bands;
    int channel = (int)(blockIdx.x % B::chunks) * B::chunk;
    int vectors = min(B::chunk, G::channels / V - channel);
    int start = (int)(band % B::bands) * B::lines, end = min(start + B::lines, G::h);
    int top, bottom, unused;
    windows(start, G::out_h, G::kernel_h, G::stride_h, G::dilation_h, G::pad_h, top, unused);
    windows(end - 1, G::out_h, G::kernel_h, G::stride_h, G::dilation_h, G::pad_h, unused, bottom);
    x += (i64)row * (G::h * G::w) * x_ld + channel * V;
    dx += (i64)row * (G::h * G::w) * dx_ld + channel * V;
    dy += (i64)row * (G::out_h * G::out_w) * dy_ld + channel * V;
    int found = (bottom - top + 1) * G::out_w * B::chunk;
    for (int i = (int)threadIdx.x; i < found; i += 256) {
        int vector = i % B::chunk, pixel = i / B::chunk;
        if (vector >= vectors) continue;
        int out_y = top + pixel / G::out_w, out_x = pixel % G::out_w;
        firsts[i] = first_maximum<T, V, G>(x + vector * V, x_ld, out_y, out_x);
    }
    __syncthreads();
    for (int i = (int)threadIdx.x; i < (end - start) * G::w * B::chunk; i += 256) {
        int vector = i % B::chunk, pixel = i / B::chunk;
        if (vector >= vectors) continue;
        int at_y = start + pixel / G::w, at_x = pixel % G::w;
        float sum[V];
        EVERY(V) sum[k] = 0.0f;
        int first_y, last_y, first_x, last_x;
        windows(at_y, G::out_h, G::kernel_h, G::stride_h, G::dilation_h, G::pad_h, first_y, last_y);
        windows(at_x, G::out_w, G::kernel_w, G::stride_w, G::dilation_w, G::pad_w, first_x, last_x);
#pragma unroll(G::unroll)
        for (int j = 0; j < B::over_h; j++) {
#pragma unroll(G::unroll)
            for (int l = 0; l < B::over_w; l++) {
                int out_y = first_y + j, out_x = first_x + l;
                int down = at_y + G::pad_h - out_y * G::stride_h;
                int along = at_x + G::pad_w - out_x * G::stride_w;
                bool holds = out_y <= last_y && out_x <= last_x && down % G::dilation_h == 0
                          && along % G::dilation_w == 0;
                if (!holds) continue;
                int mine = down / G::dilation_h * G::kernel_w + along / G::dilation_w;
                int window = out_y * G::out_w + out_x;
                Pack<u8, V> hit = firsts[(window - top * G::out_w) * B::chunk + vector];
                float g[V];
                load_lanes<V>(dy + (i64)window * dy_ld + vector * V, g);
                EVERY(V) sum[k] += hit.v[k] == mine ? g[k] : 0.0f;
            }
        }
        store_lanes<V>(dx + (i64)(at_y * G::w + at_x) * dx_ld + vector * V, sum);
    }
}

// Calls `each(out_y, out_x, a, b)` for every window that contains the spot as its tap (a, b), in
// order.
template <typename G, typename Each>
__device__ __forceinline__ void each_window(const Spot& s, Each each) {
    int top, bottom, left, right;
    windows(s.y, G::out_h, G::kernel_h, G::stride_h, G::dilation_h, G::pad_h, top, bottom);
    windows(s.x, G::out_w, G::kernel_w, G::stride_w, G::dilation_w, G::pad_w, left, right);
    for (int y = top; y <= bottom; y++) {
        int down = s.y + G::pad_h - y * G::stride_h;
        if (down % G::dilation_h != 0) continue;
        for (int x = left; x <= right; x++) {
            int along = s.x + G::pad_w - x * G::stride_w;
            if (along % G::dilation_w != 0) continue;
            each(y, x, down / G::dilation_h, along / G::dilation_w);
        }
    }
}

// The same, for bands that touch too many windows.
POOL __global__ void max_pool_grad(const T* x, i64 x_ld, const T* y, i64 y_ld, const T* dy,
                                   i64 dy_ld, T* dx, i64 dx_ld, i64 items) {
    EACH(item, items) {
        Spot s = spot<V, I>((I)item, G::h, G::w, G::channels);
        i64 here = input_pixel<G>(s, s.y, s.x);
        float value[V], sum[V];
        load_lanes<V>(x + here * x_ld + s.channel, value);
        EVERY(V) sum[k] = 0.0f;
        each_window<G>(s, [&](int out_y, int out_x, int a, int b) {
            i64 pixel = output_pixel<G>(s, out_y, out_x);
            float best[V], g[V];
            load_lanes<V>(y + pixel * y_ld + s.channel, best);
            bool hit[V], any = false;
            EVERY(V) {
                hit[k] = value[k] == best[k] || value[k] != value[k];
                any |= hit[k];
            }
            if (!any) return;
            for (int before = 0; before < a * G::kernel_w + b; before++) {
                int in_y, in_x;
                int up = before / G::kernel_w, left = before % G::kernel_w;
                if (!tap<G>(out_y, out_x, up, left, in_y, in_x)) continue;
                float v[V];
                load_lanes<V>(x + input_pixel<G>(s, in_y, in_x) * x_ld + s.channel, v);
                EVERY(V) hit[k] = hit[k] && !(v[k] == best[k] || v[k] != v[k]);
            }
            load_lanes<V>(dy + pixel * dy_ld + s.channel, g);
            EVERY(V) sum[k] += hit[k] ? g[k] : 0.0f;
        });
        store_lanes<V>(dx + here * dx_ld + s.channel, sum);
    }
}

// Every pixel gathers its share from all windows that contain it.
POOL __global__ void average_pool_grad(const T* dy, i64 dy_ld, T* dx, i64 dx_ld, i64 items) {
    EACH(item, items) {
        Spot s = spot<V, I>((I)item, G::h, G::w, G::channels);
        float sum[V];
        EVERY(V) sum[k] = 0.0f;
        each_window<G>(s, [&](int out_y, int out_x, int, int) {
            float g[V], share = window_share<G>(out_y, out_x);
            load_lanes<V>(dy + output_pixel<G>(s, out_y, out_x) * dy_ld + s.channel, g);
            EVERY(V) sum[k] = fmaf(g[k], share, sum[k]);
        });
        store_lanes<V>(dx + input_pixel<G>(s, s.y, s.x) * dx_ld + s.channel, sum);
    }
}

// Windows that tile the image without overlap: a thread writes one line of a window.
POOL __global__ void average_pool_grad_apart(const T* dy, i64 dy_ld, T* dx, i64 dx_ld, i64 items) {
    EACH(item, items) {
        I vectors = (I)(G::channels / V), rest = (I)item / vectors;
        int channel = (int)((I)item - rest * vectors) * V;
        I line = rest / (I)G::out_w, top = line / (I)G::kernel_h;
        int out_x = (int)(rest - line * (I)G::out_w), a = (int)(line - top * (I)G::kernel_h);
        Spot s;
        s.row = (i64)(top / (I)G::out_h);
        int out_y = (int)(top - (I)s.row * (I)G::out_h), y, x;
        float g[V], share = window_share<G>(out_y, out_x);
        load_lanes<V>(dy + output_pixel<G>(s, out_y, out_x) * dy_ld + channel, g);
        EVERY(V) g[k] *= share;
#pragma unroll(G::unroll)
        for (int b = 0; b < G::kernel_w; b++) {
            if (!tap<G>(out_y, out_x, a, b, y, x)) continue;
            store_lanes<V>(dx + input_pixel<G>(s, y, x) * dx_ld + channel, g);
        }
    }
}
