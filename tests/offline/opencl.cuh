/* SPDX-License-Identifier: Apache-2.0 */
/*
 * As much of OpenCL C as the SIMT engine's kernels need, in CUDA C++: so that NVIDIA's own compiler can be asked for
 * their registers. Nothing of it is ever run. compile.py does what macros can't.
 */
#include <cuda_fp16.h>

#define DEVICE static __device__ __forceinline__

typedef unsigned int uint;
typedef unsigned short ushort;
typedef unsigned long ulong;
typedef __half half;

struct __align__(16) vector4 { /* float4, which has no operators in CUDA */
    float s0, s1, s2, s3;
    vector4() = default;
    __device__ vector4(float x) : s0(x), s1(x), s2(x), s3(x) {}
    __device__ vector4(float a, float b, float c, float d) : s0(a), s1(b), s2(c), s3(d) {}
};
#define float4 vector4
struct __align__(16) words4 {
    uint x, y, z, w;
    words4() = default;
    __device__ words4(uint a) : x(a), y(a), z(a), w(a) {}
    __device__ words4(uint a, uint b, uint c, uint d) : x(a), y(b), z(c), w(d) {}
};
#define uint4 words4

#define CLK_LOCAL_MEM_FENCE 0
#define barrier(fence)      __syncthreads()

/* One dimension. */
#define get_local_id(d)  ((size_t)threadIdx.x)
#define get_group_id(d)  ((size_t)blockIdx.x)
#define get_global_id(d) ((size_t)blockIdx.x * blockDim.x + threadIdx.x)

#define as_float(x)      __uint_as_float(x)
#define as_uint(x)       as_bits(x)
#define as_int(x)        ((int)as_bits(x))
#define convert_float(x) ((float)(x))
#define mul_hi(a, b)     __umulhi(a, b)
#ifndef NAN
#define NAN __int_as_float(0x7fffffff)
#endif
#ifndef INFINITY
#define INFINITY __int_as_float(0x7f800000)
#endif

DEVICE uint as_bits(float x) { return __float_as_uint(x); }
DEVICE uint as_bits(int x) { return (uint)x; }
DEVICE uint as_bits(uint x) { return x; }

DEVICE float native_exp2(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

DEVICE int clamp(int x, int low, int high) { return min(max(x, low), high); }

DEVICE float4 operator*(float4 a, float b) { return float4(a.s0 * b, a.s1 * b, a.s2 * b, a.s3 * b); }
DEVICE float4 fma(float4 a, float4 b, float4 c)
{
    return float4(fma(a.s0, b.s0, c.s0), fma(a.s1, b.s1, c.s1), fma(a.s2, b.s2, c.s2), fma(a.s3, b.s3, c.s3));
}

/* The alignment of an element is all that these may expect. */
DEVICE float4 vload4(long i, const float *p) { p += 4 * i; return float4(p[0], p[1], p[2], p[3]); }
DEVICE void vstore4(float4 x, long i, float *p) { p += 4 * i; p[0] = x.s0; p[1] = x.s1; p[2] = x.s2; p[3] = x.s3; }
DEVICE float4 vload_half4(long i, const half *p)
{
    p += 4 * i;
    return float4(__half2float(p[0]), __half2float(p[1]), __half2float(p[2]), __half2float(p[3]));
}
DEVICE float vload_half(long i, const half *p) { return __half2float(p[i]); }
DEVICE void vstore_half_rte(float x, long i, half *p) { p[i] = __float2half_rn(x); }

/* Of bf16 alone. */
DEVICE words4 vload4(long i, const ushort *p) { p += 4 * i; return words4(p[0], p[1], p[2], p[3]); }
DEVICE words4 convert_uint4(words4 x) { return x; }
DEVICE words4 operator<<(words4 x, int n) { return words4(x.x << n, x.y << n, x.z << n, x.w << n); }
DEVICE float4 as_float4(words4 x) { return float4(as_float(x.x), as_float(x.y), as_float(x.z), as_float(x.w)); }
