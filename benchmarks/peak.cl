/* SPDX-License-Identifier: Apache-2.0 */
/* The most a device can do: fused multiply-adds out of registers, copying, reading. The host defines REAL, the type
 * that is multiplied, VECTOR, the type that is moved, and TILES, the unit that multiplies bf16 numbers. */

#define AMX         1
#define AVX512_BF16 2 /* REAL is float16 */

/* Compilers for these CPUs cut vectors into halves unless a function asks for whole ones. */
#if defined(__AVX512F__)
#define WHOLE_VECTORS __attribute__((min_vector_width(512)))
#else
#define WHOLE_VECTORS
#endif

/* As many as hide the latency of two units, and few enough for 32 registers beside the two operands. */
#define CHAINS 16
/* Keeps the loop's own instructions out of the figure. */
#define UNROLL 8

/* out [work-items]. Executes 2 CHAINS UNROLL rounds operations for each float of REAL and work-item. */
WHOLE_VECTORS __kernel void fma_peak(__global REAL *out, const int rounds, const float factor, const float term)
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
    out[item] = sum;
}

/* tile_peak: executes 4 products of 2 16 16 32 operations of bf16 numbers in each round, out of registers. */
#if TILES == AVX512_BF16
/* out [work-items]: 0 */
WHOLE_VECTORS __kernel void tile_peak(__global REAL *out, const int rounds)
{
    const REAL factor = (REAL)(0.0f);
    REAL x[CHAINS];
#pragma unroll
    for (int c = 0; c < CHAINS; c++)
        x[c] = factor;
#pragma unroll 1
    for (int r = 0; r < rounds * (4 * 16 * 16 * 32 / (CHAINS * UNROLL * 16 * 2)); r++) {
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
#pragma unroll
            for (int c = 0; c < CHAINS; c++)
                __asm__ volatile("vdpbf16ps %1,%1,%0" : "+v"(x[c]) : "v"(factor));
        }
    }
    REAL sum = x[0];
#pragma unroll
    for (int c = 1; c < CHAINS; c++)
        sum += x[c];
    out[get_global_id(0)] = sum;
}
#elif TILES == AMX
/* out [work-items]: 0 */
__kernel void tile_peak(__global REAL *out, const int rounds)
{
    uchar layout[64] __attribute__((aligned(64))) = {1};
    for (int i = 0; i < 8; i++) {
        layout[16 + 2 * i] = 64;
        layout[48 + i] = 16;
    }
    __asm__ volatile("ldtilecfg (%0)" : : "r"(layout) : "memory");
    for (int r = 0; r < rounds; r++)
        __asm__ volatile("tdpbf16ps %%tmm6,%%tmm4,%%tmm0; tdpbf16ps %%tmm6,%%tmm5,%%tmm1;"
                         "tdpbf16ps %%tmm7,%%tmm4,%%tmm2; tdpbf16ps %%tmm7,%%tmm5,%%tmm3"
                         :
                         :
                         : "memory");
    __asm__ volatile("tilerelease" : : : "memory");
    out[get_global_id(0)] = (REAL)(0.0f);
}
#endif

/* to [work-items] = from */
WHOLE_VECTORS __kernel void copy_peak(__global VECTOR *restrict to, __global const VECTOR *restrict from)
{
    const size_t item = get_global_id(0);
    to[item] = from[item];
}

/* out [work-items]: sums of from [work-items * count]; a work-item's vectors are `step` apart. With an offset of
 * work-items (step 1), of a later part of `from`. */
WHOLE_VECTORS __kernel void read_peak(__global VECTOR *restrict out, __global const VECTOR *restrict from,
                                      const int count, const int step)
{
    const size_t item = get_global_id(0);
    const size_t first = step == 1 ? item * count : item;
    VECTOR sum[4] = {(VECTOR)(0.0f), (VECTOR)(0.0f), (VECTOR)(0.0f), (VECTOR)(0.0f)};
    for (int n = 0; n < count; n += 4) {
#pragma unroll
        for (int u = 0; u < 4; u++)
            sum[u] += from[first + (size_t)(n + u) * step];
    }
    out[item - get_global_offset(0)] = (sum[0] + sum[1]) + (sum[2] + sum[3]);
}
