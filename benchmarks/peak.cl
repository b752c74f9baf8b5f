/* SPDX-License-Identifier: Apache-2.0 */
/* What a device can do at most: fused multiply-adds out of registers, copying, reading. WIDTH floats make a vector. */

#ifndef WIDTH
#define WIDTH 1
#endif

#define JOIN_(a, b) a##b
#define JOIN(a, b)  JOIN_(a, b)
#if WIDTH == 1
#define REAL           float
#define STORE(x, i, p) (p)[i] = (x)
#define LOAD(i, p)     (p)[i]
#else
#define REAL  JOIN(float, WIDTH)
#define STORE JOIN(vstore, WIDTH)
#define LOAD  JOIN(vload, WIDTH)
#endif

/* Compilers for these CPUs cut vectors into halves unless a function asks for whole ones. */
#if defined(__AVX512F__) && WIDTH == 16
#define WHOLE_VECTORS __attribute__((min_vector_width(512)))
#else
#define WHOLE_VECTORS
#endif

/* As many as hide the latency of two units, and few enough for 32 registers beside the two operands. */
#define CHAINS 16
/* Keeps the loop's own instructions out of the figure. */
#define UNROLL 8

/* out [work-items, WIDTH]. Executes 2 CHAINS UNROLL WIDTH rounds operations a work-item. */
WHOLE_VECTORS __kernel void fma_peak(__global float *out, const int rounds, const float factor, const float term)
{
    const size_t item = get_global_id(0);
    const REAL f = (REAL)(factor);
    const REAL t = (REAL)(term);
    REAL x[CHAINS];
#pragma unroll
    for (int c = 0; c < CHAINS; c++)
        x[c] = (REAL)((float)(item + c));
    for (int r = 0; r < rounds; r++) {
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
#pragma unroll
            for (int c = 0; c < CHAINS; c++)
                x[c] = fma(x[c], f, t);
        }
    }
    REAL sum = x[0];
#pragma unroll
    for (int c = 1; c < CHAINS; c++)
        sum += x[c];
    STORE(sum, item, out);
}

/* to [work-items, WIDTH] = from */
WHOLE_VECTORS __kernel void copy_peak(__global float *restrict to, __global const float *restrict from)
{
    const size_t item = get_global_id(0);
    STORE(LOAD(item, from), item, to);
}

/* out [work-items, WIDTH]: sums of from [work-items * count, WIDTH]; a work-item's vectors are `step` apart. */
WHOLE_VECTORS __kernel void read_peak(__global float *restrict out, __global const float *restrict from,
                                      const int count, const int step)
{
    const size_t item = get_global_id(0);
    const size_t first = step == 1 ? item * count : item;
    REAL sum[4] = {(REAL)(0.0f), (REAL)(0.0f), (REAL)(0.0f), (REAL)(0.0f)};
    for (int n = 0; n < count; n += 4) {
#pragma unroll
        for (int u = 0; u < 4; u++)
            sum[u] += LOAD(first + (size_t)(n + u) * step, from);
    }
    STORE((sum[0] + sum[1]) + (sum[2] + sum[3]), item, out);
}
