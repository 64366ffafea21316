// Convolutions as plain loops, N(D)HWC, filters [f][kd][kh][kw][c / groups]: for geometries that the
// vendor's library does not support. Images have one slice.

struct Geometry {
    i64 rows, h, w, c, oh, ow, f, kh, kw, sh, sw, dh, dw, top, left, groups, ldx, ldy;
    i64 d, od, kd, sd, dd, front;
};

// The input position that a tap reads, or -1 outside.
__device__ __forceinline__ i64 reads(i64 out, i64 stride, i64 tap, i64 dilation, i64 pad, i64 size) {
    i64 at = out * stride + tap * dilation - pad;
    return at >= 0 && at < size ? at : -1;
}

// The output position that reads `at` through a tap, or -1 if none does.
__device__ __forceinline__ i64 writes(i64 at, i64 stride, i64 tap, i64 dilation, i64 pad, i64 size) {
    i64 from = at + pad - tap * dilation;
    return from >= 0 && from % stride == 0 && from / stride < size ? from / stride : -1;
}

template <typename T, typename W>
__global__ void conv_forward(const Geometry* table, const T* x, const W* w, T* y) {
    const Geometry g = *table;
    const i64 cg = g.c / g.groups, fg = g.f / g.groups;
    EACH(i, g.rows * g.od * g.oh * g.ow * g.f) {
        const i64 f = i % g.f, pixel = i / g.f;
        const i64 ox = pixel % g.ow, oy = pixel / g.ow % g.oh, slice = pixel / (g.ow * g.oh);
        const i64 first = f / fg * cg;
        float sum = 0;
        // The rows of all slices of the filter.
        for (i64 k = 0; k < g.kd * g.kh; k++) {
            const i64 iz = reads(slice % g.od, g.sd, k / g.kh, g.dd, g.front, g.d);
            const i64 iy = reads(oy, g.sh, k % g.kh, g.dh, g.top, g.h);
            for (i64 kx = 0; iz >= 0 && iy >= 0 && kx < g.kw; kx++) {
                const i64 ix = reads(ox, g.sw, kx, g.dw, g.left, g.w);
                if (ix < 0) continue;
                const i64 line = (slice / g.od * g.d + iz) * g.h + iy;
                const T* from = x + (line * g.w + ix) * g.ldx + first;
                const W* tap = w + ((f * g.kd * g.kh + k) * g.kw + kx) * cg;
                for (i64 c = 0; c < cg; c++) sum += ld(from + c) * ld(tap + c);
            }
        }
        st(y + pixel * g.ldy + f, sum);
    }
}

template <typename T, typename W>
__global__ void conv_grad_input(const Geometry* table, T* dx, const W* w, const T* dy) {
    const Geometry g = *table;
    const i64 cg = g.c / g.groups, fg = g.f / g.groups;
    EACH(i, g.rows * g.d * g.h * g.w * g.c) {
        const i64 c = i % g.c, pixel = i / g.c;
        const i64 ix = pixel % g.w, iy = pixel / g.w % g.h, slice = pixel / (g.w * g.h);
        const i64 group = c / cg;
        float sum = 0;
        // The rows of all slices of the filter.
        for (i64 k = 0; k < g.kd * g.kh; k++) {
            const i64 oz = writes(slice % g.d, g.sd, k / g.kh, g.dd, g.front, g.od);
            const i64 oy = writes(iy, g.sh, k % g.kh, g.dh, g.top, g.oh);
            for (i64 kx = 0; oz >= 0 && oy >= 0 && kx < g.kw; kx++) {
                const i64 ox = writes(ix, g.sw, kx, g.dw, g.left, g.ow);
                if (ox < 0) continue;
                const i64 line = (slice / g.d * g.od + oz) * g.oh + oy;
                const T* from = dy + (line * g.ow + ox) * g.ldy;
                for (i64 f = group * fg; f < (group + 1) * fg; f++) {
                    const i64 tap = ((f * g.kd * g.kh + k) * g.kw + kx) * cg + c % cg;
                    sum += ld(from + f) * ld(w + tap);
                }
            }
        }
        st(dx + pixel * g.ldx + c, sum);
    }
}

// One block for each filter tap and channel; its threads share the rows and pixels.
template <typename T, typename W>
__global__ void conv_grad_kernel(const Geometry* table, const T* x, W* dw, const T* dy) {
    const Geometry g = *table;
    const i64 cg = g.c / g.groups, fg = g.f / g.groups;
    __shared__ float sums[256];
    for (i64 i = blockIdx.x; i < g.f * g.kd * g.kh * g.kw * cg; i += gridDim.x) {
        const i64 c = i % cg, kx = i / cg % g.kw, ky = i / (cg * g.kw) % g.kh;
        const i64 kz = i / (cg * g.kw * g.kh) % g.kd;
        const i64 f = i / (cg * g.kw * g.kh * g.kd), first = f / fg * cg;
        float sum = 0;
        for (i64 pixel = threadIdx.x; pixel < g.rows * g.od * g.oh * g.ow; pixel += blockDim.x) {
            const i64 ox = pixel % g.ow, oy = pixel / g.ow % g.oh, slice = pixel / (g.ow * g.oh);
            const i64 iz = reads(slice % g.od, g.sd, kz, g.dd, g.front, g.d);
            const i64 iy = reads(oy, g.sh, ky, g.dh, g.top, g.h);
            const i64 ix = reads(ox, g.sw, kx, g.dw, g.left, g.w);
            if (iz < 0 || iy < 0 || ix < 0) continue;
            const i64 line = (slice / g.od * g.d + iz) * g.h + iy;
            const T* from = x + (line * g.w + ix) * g.ldx + first;
            sum += ld(from + c) * ld(dy + pixel * g.ldy + f);
        }
        sums[threadIdx.x] = sum;
        __syncthreads();
        for (int half = blockDim.x / 2; half > 0; half /= 2) {
            if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
            __syncthreads();
        }
        if (threadIdx.x == 0) st(dw + i, sums[0]);
        __syncthreads();
    }
}
