// Depthwise convolutions, NHWC: every channel has filters of its own, [kh][kw][channels] of floats as the weights are
// stored.
//
// They move many bytes for little arithmetic, so a pixel should be loaded as few times as possible. A thread has V
// neighbouring channels of a strip: N neighbouring columns of a band of lines, which it follows downwards. The filter
// stays in registers, and so do the sums of all lines that the current line adds to. The next line is loaded while the
// current one is used.
//
// Along an axis, output `phase + dilation * i` reads the inputs `phase + dilation * (stride * i + tap) - pad`. The
// pixels of a dilated window thus form one lattice for each phase, and a strip lies in one of them. Either the stride
// or the dilation is 1; the kernels `.._any` at the end are for everything else.

#define THREADS 128

// Height and width, in one argument.
struct Pair {
    int h, w;
    __device__ __forceinline__ Pair(i64 both) : h((int)(both >> 32)), w((int)both) {}
};

// The channels of a thread, and its first strip.
template <int V> struct Share {
    int tiles;        // of `tile` vectors of channels
    int lane, lanes;  // among the threads of this block with these channels
    int channel;      // the first one
    int strip, step;
    bool active;

    __device__ __forceinline__ Share(int channels, int tile) {
        int vectors = channels / V;
        tiles = (vectors + tile - 1) / tile;
        int vector = (int)blockIdx.x % tiles * tile + (int)threadIdx.x % tile;
        lane = (int)threadIdx.x / tile;
        lanes = THREADS / tile;
        channel = vector * V;
        strip = (int)blockIdx.x / tiles * lanes + lane;
        step = (int)gridDim.x / tiles * lanes;
        active = lane < lanes && vector < vectors;
    }
};

// The place of a strip: its phases, and its first line and column in the lattice.
struct Strip {
    int image, phase_y, phase_x, line, column;

    // `down.w` strips lie side by side in an image, `down.h` above each other.
    __device__ __forceinline__ Strip(int index, Pair count, Pair dilation, int band, int columns) {
        u32 rest = (u32)index / (u32)count.w, across = (u32)index - rest * (u32)count.w;
        image = (int)(rest / (u32)count.h);
        u32 down = rest - (u32)image * (u32)count.h;
        u32 y = down / (u32)dilation.h, x = across / (u32)dilation.w;
        phase_y = (int)(down - y * (u32)dilation.h);
        phase_x = (int)(across - x * (u32)dilation.w);
        line = (int)y * band;
        column = (int)x * columns;
    }
};

// A bit for each of COUNT columns that lies in an image of this width.
template <int COUNT> __device__ __forceinline__ u32 inside(int first, int apart, int width) {
    u32 bits = 0;
    EVERY(COUNT) bits |= (u32)((u32)(first + k * apart) < (u32)width) << k;
    return bits;
}

// Columns of a line as they are in memory, zero outside of the image. With more columns from one window to the next
// than in a window, some are never used.
template <typename T, int V, int COUNT, int USED, int OF> struct Line {
    typedef Bits<sizeof(T) * V> Raw;
    Raw at[COUNT];

    __device__ __forceinline__ void load(const T* from, int apart, u32 inside) {
#pragma unroll
        for (int k = 0; k < COUNT; k++) {
            if (k % OF >= USED) continue;
            at[k] = Raw{};
            if (inside >> k & 1) at[k] = *(const Raw*)(from + k * apart);
        }
    }
    __device__ __forceinline__ void unpack(int k, float (&to)[V]) const {
        Pack<T, V> pack;
        memcpy(&pack, &at[k], sizeof(pack));
        pack.unpack(to);
    }
};

// Lines of an image from which a thread loads its columns.
template <typename T, int V, int COUNT, int USED, int OF> struct Source {
    typedef Line<T, V, COUNT, USED, OF> Columns;
    const T* at;      // the first column of line 0
    int apart;        // elements from column to column
    i64 line;         // elements from line to line
    int top, step;    // the position of line 0 of the walk, and from one to the next
    int height, lines;
    u32 bits;

    // `x` is the first pixel of the image; the walk has `lines` lines from `top` on.
    __device__ __forceinline__ Source(const T* x, int ld, Pair size, Pair dilation, int top, int left, int lines)
        : at(x + (i64)left * ld), apart(dilation.w * ld), line((i64)size.w * ld), top(top), step(dilation.h),
          height(size.h), lines(lines), bits(inside<COUNT>(left, dilation.w, size.w)) {}

    // Loads line `index` of the walk. Returns false if it is not in the image.
    __device__ __forceinline__ bool load(int index, Columns& to) const {
        int y = top + step * index;
        bool exists = index >= 0 && index < lines && (u32)y < (u32)height;
        to.load(at + (exists ? y * line : 0), apart, exists ? bits : 0u);
        return exists;
    }
};

// The taps of the V channels of a thread.
template <int TAPS, int V>
__device__ __forceinline__ void load_filter(const float* from, int channels, float (&filter)[TAPS][V]) {
#pragma unroll
    for (int k = 0; k < TAPS; k++) load_lanes<V>(from + k * channels, filter[k]);
}

// `y = x * w`, and with EPILOGUE `relu(y + bias)`, both optional. Input channel `c` feeds the outputs from
// `multiplier * c` on. The lattice has `band.h` lines; a strip has up to `band.w` of them.
template <typename T, int V, int N, int KH, int KW, int SH, int SW, bool EPILOGUE>
__global__ void __launch_bounds__(THREADS, 3)
depthwise_forward(const T* x, int x_ld, const float* filters, const float* bias, int rectify, T* y, int y_ld,
                  int channels, int multiplier, int tile, int strips, i64 counts, i64 bands, i64 inputs, i64 outputs,
                  i64 pads, i64 dilations) {
    // Output lines that an input line adds to, input lines that are read for each output line, input columns.
    constexpr int LINES = (KH + SH - 1) / SH, READ = KH < SH ? KH : SH, COLUMNS = (N - 1) * SW + KW;
    const Pair in = inputs, out = outputs, pad = pads, dilation = dilations, band = bands;
    const Share<V> share(channels, tile);
    if (!share.active || share.strip >= strips) return;
    const Strip strip(share.strip, counts, dilation, band.w, N);
    const int lines = min(band.w, band.h - strip.line);
    const T* image = x + (i64)strip.image * in.h * in.w * x_ld + share.channel / multiplier;
    const Source<T, V, COLUMNS, KW, SW> source(
        image, x_ld, in, dilation, strip.phase_y + dilation.h * SH * strip.line - pad.h,
        strip.phase_x + dilation.w * SW * strip.column - pad.w, SH * (lines - 1) + KH);
    const int left = strip.phase_x + dilation.w * strip.column;
    const u32 stored = inside<N>(left, dilation.w, out.w);
    T* to = y + ((i64)strip.image * out.h * out.w + left) * y_ld + share.channel;

    float filter[KH * KW][V], shift[V], sums[LINES][N][V];
    load_filter<KH * KW, V>(filters + share.channel, channels, filter);
    EVERY(V) shift[k] = EPILOGUE && bias ? bias[share.channel + k] : 0.0f;
    EVERY(LINES * N * V) sums[k / (N * V)][k / V % N][k % V] = 0.0f;
    typename Source<T, V, COLUMNS, KW, SW>::Columns now, next;
    bool exists = source.load(0, next);
#pragma unroll 1
    for (int i = 0; i < lines + LINES - 1; i++) {
#pragma unroll
        for (int e = 0; e < READ; e++) {
            const bool use = exists;
            now = next;
            exists = source.load(e + 1 < READ ? SH * i + e + 1 : SH * (i + 1), next);
            if (!use) continue;
#pragma unroll
            for (int c = 0; c < COLUMNS; c++) {
                if (c % SW >= KW) continue;
                float v[V];
                now.unpack(c, v);
#pragma unroll
                for (int n = 0; n < N; n++) {
                    const int kx = c - n * SW;
                    if (kx < 0 || kx >= KW) continue;
#pragma unroll
                    for (int m = 0; m < LINES; m++) {
                        const int ky = e + SH * m;
                        if (ky >= KH) continue;
                        EVERY(V) sums[m][n][k] = fmaf(v[k], filter[ky * KW + kx][k], sums[m][n][k]);
                    }
                }
            }
        }
        const int line = i - (LINES - 1), at = strip.phase_y + dilation.h * (strip.line + line);
        if (line >= 0 && at < out.h) {
            T* pixel = to + (i64)at * out.w * y_ld;
#pragma unroll
            for (int n = 0; n < N; n++) {
                float v[V];
                EVERY(V) {
                    v[k] = sums[LINES - 1][n][k];
                    if (EPILOGUE) v[k] += shift[k];
                    if (EPILOGUE && rectify) v[k] = relu(v[k]);
                }
                if (stored >> n & 1) store_lanes<V>(pixel + n * dilation.w * y_ld, v);
            }
        }
#pragma unroll
        for (int m = LINES - 1; m >= 0; m--) {
            EVERY(N * V) sums[m][k / V][k % V] = m > 0 ? sums[m > 0 ? m - 1 : 0][k / V][k % V] : 0.0f;
        }
    }
}

// `dx = dy * wᵀ`. A line of `dy` adds to KH lines of `dx`, of which the first SH are then complete. Lines and columns
// of the lattice are those of `dy`, from `first` on; N columns of `dy` stand for N * SW of `dx`.
template <typename T, int V, int N, int KH, int KW, int SH, int SW>
__global__ void __launch_bounds__(THREADS, 3)
depthwise_grad_input(const T* dy, int dy_ld, const float* filters, T* dx, int dx_ld, int channels, int tile,
                     int strips, i64 counts, i64 bands, i64 firsts, i64 inputs, i64 outputs, i64 pads, i64 dilations) {
    constexpr int LINES = KH > SH ? KH : SH, WIDTH = N * SW;
    // Earlier lines and columns of `dy` that add to the same pixels.
    constexpr int ABOVE = (KH - 1) / SH, BEFORE = (KW - 1) / SW, COLUMNS = N + BEFORE;
    const Pair in = inputs, out = outputs, pad = pads, dilation = dilations, band = bands, first = firsts;
    const Share<V> share(channels, tile);
    if (!share.active || share.strip >= strips) return;
    const Strip strip(share.strip, counts, dilation, band.w, N);
    const int lines = min(band.w, band.h - strip.line);
    const int line = first.h + strip.line, column = first.w + strip.column;
    const T* image = dy + (i64)strip.image * out.h * out.w * dy_ld + share.channel;
    const Source<T, V, COLUMNS, 1, 1> source(image, dy_ld, out, dilation, strip.phase_y + dilation.h * (line - ABOVE),
                                             strip.phase_x + dilation.w * (column - BEFORE), lines + ABOVE);
    const int left = strip.phase_x + dilation.w * SW * column - pad.w;
    const u32 stored = inside<WIDTH>(left, dilation.w, in.w);
    T* to = dx + ((i64)strip.image * in.h * in.w + left) * dx_ld + share.channel;

    float filter[KH * KW][V], sums[LINES][WIDTH][V];
    load_filter<KH * KW, V>(filters + share.channel, channels, filter);
    EVERY(LINES * WIDTH * V) sums[k / (WIDTH * V)][k / V % WIDTH][k % V] = 0.0f;
    typename Source<T, V, COLUMNS, 1, 1>::Columns now, next;
    bool exists = source.load(0, next);
#pragma unroll 1
    for (int i = 0; i < lines + ABOVE; i++) {
        const bool use = exists;
        now = next;
        exists = source.load(i + 1, next);
#pragma unroll
        for (int c = 0; c < COLUMNS; c++) {
            if (!use) break;
            float v[V];
            now.unpack(c, v);
#pragma unroll
            for (int kx = 0; kx < KW; kx++) {
                const int x = (c - BEFORE) * SW + kx;
                if (x < 0 || x >= WIDTH) continue;
#pragma unroll
                for (int ky = 0; ky < KH; ky++) {
                    EVERY(V) sums[ky][x][k] = fmaf(v[k], filter[ky * KW + kx][k], sums[ky][x][k]);
                }
            }
        }
#pragma unroll
        for (int e = 0; e < SH; e++) {
            const int at = strip.phase_y + dilation.h * (SH * (line + i - ABOVE) + e) - pad.h;
            if (i < ABOVE || (u32)at >= (u32)in.h) continue;
            T* pixel = to + (i64)at * in.w * dx_ld;
#pragma unroll
            for (int x = 0; x < WIDTH; x++) {
                if (stored >> x & 1) store_lanes<V>(pixel + x * dilation.w * dx_ld, sums[e][x]);
            }
        }
#pragma unroll
        for (int m = 0; m < LINES; m++) {
            EVERY(WIDTH * V) {
                sums[m][k / V][k % V] = m + SH < LINES ? sums[m + SH < LINES ? m + SH : 0][k / V][k % V] : 0.0f;
            }
        }
    }
}

// The filter's gradient, `dw = xᵀ * dy`, of KH * KW taps; a line of the window may have more of them: `taps`. A block
// adds up its strips and writes the sums of its channels. The sums of two blocks are `apart` floats from each other.
template <typename T, int V, int N, int KH, int KW, int SH, int SW>
__global__ void __launch_bounds__(THREADS, 3)
depthwise_grad_filter(const T* x, int x_ld, const T* dy, int dy_ld, float* partial, i64 apart, int taps, int channels,
                      int multiplier, int tile, int strips, i64 counts, i64 bands, i64 inputs, i64 outputs, i64 pads,
                      i64 dilations) {
    constexpr int LINES = (KH + SH - 1) / SH, READ = KH < SH ? KH : SH, COLUMNS = (N - 1) * SW + KW;
    constexpr int TAPS = KH * KW;
    __shared__ float all[TAPS * V][THREADS];
    const Pair in = inputs, out = outputs, pad = pads, dilation = dilations, band = bands;
    const Share<V> share(channels, tile);
    float sums[TAPS][V];
    EVERY(TAPS * V) sums[k / V][k % V] = 0.0f;
#pragma unroll 1
    for (int index = share.strip; share.active && index < strips; index += share.step) {
        const Strip strip(index, counts, dilation, band.w, N);
        const int lines = min(band.w, band.h - strip.line);
        const T* image = x + (i64)strip.image * in.h * in.w * x_ld + share.channel / multiplier;
        const Source<T, V, COLUMNS, KW, SW> source(
            image, x_ld, in, dilation, strip.phase_y + dilation.h * SH * strip.line - pad.h,
            strip.phase_x + dilation.w * SW * strip.column - pad.w, SH * (lines - 1) + KH);
        const Source<T, V, N, 1, 1> gradient(
            dy + (i64)strip.image * out.h * out.w * dy_ld + share.channel, dy_ld, out, dilation,
            strip.phase_y + dilation.h * strip.line, strip.phase_x + dilation.w * strip.column, lines);
        typename Source<T, V, COLUMNS, KW, SW>::Columns now, next;
        // The gradients of the outputs that the current line of inputs added to.
        typename Source<T, V, N, 1, 1>::Columns used[LINES], coming;
#pragma unroll
        for (int m = 0; m < LINES; m++) used[m].load(dy, 0, 0);
        bool exists = source.load(0, next);
        gradient.load(0, coming);
#pragma unroll 1
        for (int i = 0; i < lines + LINES - 1; i++) {
#pragma unroll
            for (int m = LINES - 1; m > 0; m--) used[m] = used[m - 1];
            used[0] = coming;
            gradient.load(i + 1, coming);
#pragma unroll
            for (int e = 0; e < READ; e++) {
                const bool use = exists;
                now = next;
                exists = source.load(e + 1 < READ ? SH * i + e + 1 : SH * (i + 1), next);
                if (!use) continue;
                float v[COLUMNS][V];
#pragma unroll
                for (int c = 0; c < COLUMNS; c++) {
                    if (c % SW < KW) now.unpack(c, v[c]);
                }
#pragma unroll
                for (int m = 0; m < LINES; m++) {
                    const int ky = e + SH * m;
                    if (ky >= KH) continue;
#pragma unroll
                    for (int n = 0; n < N; n++) {
                        float g[V];
                        used[m].unpack(n, g);
#pragma unroll
                        for (int kx = 0; kx < KW; kx++) {
                            float (&sum)[V] = sums[ky * KW + kx];
                            EVERY(V) sum[k] = fmaf(v[n * SW + kx][k], g[k], sum[k]);
                        }
                    }
                }
            }
        }
    }
    EVERY(TAPS * V) all[k][threadIdx.x] = sums[k / V][k % V];
    __syncthreads();
    float* to = partial + (i64)blockIdx.x / share.tiles * apart;
    for (int i = (int)threadIdx.x; i < TAPS * V * tile; i += THREADS) {
        const int k = i / (V * tile), c = i % (V * tile);
        const int channel = (int)blockIdx.x % share.tiles * tile * V + c;
        if (channel >= channels) continue;
        double sum = 0.0;
        for (int lane = 0; lane < share.lanes; lane++) sum += (double)all[k * V + c % V][lane * tile + c / V];
        to[((i64)(k / KW) * taps + k % KW) * channels + channel] = (float)sum;
    }
}

// ---- Any window, stride, dilation and multiplier: every result is computed by itself ----

template <typename T, int V>
__global__ void depthwise_forward_any(const T* x, int x_ld, const float* filters, const float* bias, int rectify, T* y,
                                      int y_ld, int channels, int multiplier, i64 windows, i64 strides, i64 inputs,
                                      i64 outputs, i64 pads, i64 dilations, i64 items) {
    const Pair in = inputs, out = outputs, pad = pads, dilation = dilations, window = windows, stride = strides;
    const int vectors = channels / V;
    EACH(i, items) {
        const i64 pixel = i / vectors, line = pixel / out.w, image = line / out.h;
        const int c = (int)(i - pixel * vectors) * V;
        const int top = (int)(line - image * out.h) * stride.h - pad.h;
        const int left = (int)(pixel - line * out.w) * stride.w - pad.w;
        float sums[V];
        EVERY(V) sums[k] = bias ? bias[c + k] : 0.0f;
        for (int ky = 0; ky < window.h; ky++) {
            const int iy = top + ky * dilation.h;
            for (int kx = 0; kx < window.w && (u32)iy < (u32)in.h; kx++) {
                const int ix = left + kx * dilation.w;
                if ((u32)ix >= (u32)in.w) continue;
                float v[V], w[V];
                load_lanes<V>(x + ((image * in.h + iy) * in.w + ix) * x_ld + c / multiplier, v);
                load_lanes<V>(filters + (i64)(ky * window.w + kx) * channels + c, w);
                EVERY(V) sums[k] = fmaf(v[k], w[k], sums[k]);
            }
        }
        EVERY(V) sums[k] = rectify ? relu(sums[k]) : sums[k];
        store_lanes<V>(y + pixel * y_ld + c, sums);
    }
}

// The output that reads input `at` through a tap, or -1.
__device__ __forceinline__ int output_of(int at, int tap, int stride, int dilation, int pad, int count) {
    const int from = at + pad - tap * dilation;
    return from >= 0 && from % stride == 0 && from / stride < count ? from / stride : -1;
}

template <typename T>
__global__ void depthwise_grad_input_any(const T* dy, int dy_ld, const float* filters, T* dx, int dx_ld, int channels,
                                         int multiplier, i64 windows, i64 strides, i64 inputs, i64 outputs, i64 pads,
                                         i64 dilations, i64 items) {
    const Pair in = inputs, out = outputs, pad = pads, dilation = dilations, window = windows, stride = strides;
    EACH(i, items) {
        const i64 pixel = i / channels, line = pixel / in.w, image = line / in.h;
        const int c = (int)(i - pixel * channels), iy = (int)(line - image * in.h), ix = (int)(pixel - line * in.w);
        float sum = 0.0f;
        for (int ky = 0; ky < window.h; ky++) {
            const int oy = output_of(iy, ky, stride.h, dilation.h, pad.h, out.h);
            for (int kx = 0; kx < window.w && oy >= 0; kx++) {
                const int ox = output_of(ix, kx, stride.w, dilation.w, pad.w, out.w);
                if (ox < 0) continue;
                const T* from = dy + ((image * out.h + oy) * out.w + ox) * dy_ld + (i64)c * multiplier;
                const float* w = filters + ((i64)(ky * window.w + kx) * channels + c) * multiplier;
                for (int m = 0; m < multiplier; m++) sum = fmaf(ld(from + m), w[m], sum);
            }
        }
        st(dx + pixel * dx_ld + c, sum);
    }
}
