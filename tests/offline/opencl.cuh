/* SPDX-License-Identifier: Apache-2.0 */
/*
 * As much of OpenCL C as the SIMT and the matrix engine's kernels need, in CUDA C++: so that NVIDIA's own compiler, whose
 * optimizer is that of its OpenCL driver, can be asked for their code. No device runs it. compile.py does what macros can't.
 */
#include <cfloat>
#include <cuda_fp16.h>

#define DEVICE static __device__ __forceinline__

typedef unsigned char uchar;
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
struct __align__(8) vector2 {
    float x, y;
    vector2() = default;
    __device__ vector2(float a) : x(a), y(a) {}
    __device__ vector2(float a, float b) : x(a), y(b) {}
};
#define float2 vector2
struct __align__(8) words2 {
    uint x, y;
    words2() = default;
    __device__ words2(uint a) : x(a), y(a) {}
    __device__ words2(uint a, uint b) : x(a), y(b) {}
};
#define uint2 words2
struct __align__(8) integers2 {
    int x, y;
    integers2() = default;
    __device__ integers2(int a, int b) : x(a), y(b) {}
};
#define int2 integers2
struct __align__(16) words4 {
    uint x, y, z, w;
    words4() = default;
    __device__ words4(uint a) : x(a), y(a), z(a), w(a) {}
    __device__ words4(uint a, uint b, uint c, uint d) : x(a), y(b), z(c), w(d) {}
};
#define uint4 words4
struct __align__(16) integers4 { /* also conditions: 0 or -1 */
    int x, y, z, w;
    integers4() = default;
    __device__ integers4(int a) : x(a), y(a), z(a), w(a) {}
    __device__ integers4(int a, int b, int c, int d) : x(a), y(b), z(c), w(d) {}
};
#define int4 integers4

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
#define convert_int(x)   ((int)(x))
#ifndef NAN
#define NAN __int_as_float(0x7fffffff)
#endif
#ifndef INFINITY
#define INFINITY __int_as_float(0x7f800000)
#endif

DEVICE uint mul_hi(uint a, uint b) { return __umulhi(a, b); }
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

#define EACH(type, f) return type(f(a.s0, b.s0), f(a.s1, b.s1), f(a.s2, b.s2), f(a.s3, b.s3))
#define EACH_WORD(type, f) return type(f(a.x, b.x), f(a.y, b.y), f(a.z, b.z), f(a.w, b.w))
#define ADD(x, y) ((x) + (y))
#define SUBTRACT(x, y) ((x) - (y))
#define MULTIPLY(x, y) ((x) * (y))
#define DIVIDE(x, y) ((x) / (y))
#define BELOW(x, y) (-((x) < (y)))
#define AT_MOST(x, y) (-((x) <= (y)))
#define EQUAL(x, y) (-((x) == (y)))
#define UNEQUAL(x, y) (-((x) != (y)))
#define AND(x, y) ((x) & (y))
#define OR(x, y) ((x) | (y))
#define XOR(x, y) ((x) ^ (y))
#define SHIFTED_DOWN(x, y) ((x) >> (y))
DEVICE float2 operator+(float2 a, float2 b) { return float2(a.x + b.x, a.y + b.y); }
DEVICE float2 operator-(float2 a, float2 b) { return float2(a.x - b.x, a.y - b.y); }
DEVICE float2 operator*(float2 a, float2 b) { return float2(a.x * b.x, a.y * b.y); }
DEVICE float2 &operator-=(float2 &a, float2 b) { return a = a - b; }
DEVICE int2 operator!=(float2 a, float2 b) { return int2(-(a.x != b.x), -(a.y != b.y)); }
DEVICE uint2 operator+(uint2 a, uint2 b) { return uint2(a.x + b.x, a.y + b.y); }
DEVICE uint2 operator&(uint2 a, uint2 b) { return uint2(a.x & b.x, a.y & b.y); }
DEVICE uint2 operator|(uint2 a, uint2 b) { return uint2(a.x | b.x, a.y | b.y); }
DEVICE uint2 operator>>(uint2 a, uint2 b) { return uint2(a.x >> b.x, a.y >> b.y); }
DEVICE float4 operator+(float4 a, float4 b) { EACH(float4, ADD); }
DEVICE float4 operator-(float4 a, float4 b) { EACH(float4, SUBTRACT); }
DEVICE float4 operator*(float4 a, float4 b) { EACH(float4, MULTIPLY); }
DEVICE float4 operator/(float4 a, float4 b) { EACH(float4, DIVIDE); }
DEVICE float4 operator-(float4 a) { return float4(0.0f) - a; }
DEVICE float4 &operator+=(float4 &a, float4 b) { return a = a + b; }
DEVICE float4 &operator*=(float4 &a, float4 b) { return a = a * b; }
DEVICE int4 operator<(float4 a, float4 b) { EACH(int4, BELOW); }
DEVICE int4 operator>(float4 a, float4 b) { return b < a; }
DEVICE int4 operator<=(float4 a, float4 b) { EACH(int4, AT_MOST); }
DEVICE int4 operator==(float4 a, float4 b) { EACH(int4, EQUAL); }
DEVICE int4 operator!=(float4 a, float4 b) { EACH(int4, UNEQUAL); }
DEVICE int4 operator&(int4 a, int4 b) { EACH_WORD(int4, AND); }
DEVICE int4 operator||(int4 a, int4 b) { EACH_WORD(int4, OR); }
DEVICE int4 operator+(int4 a, int4 b) { EACH_WORD(int4, ADD); }
DEVICE int4 operator<(int4 a, int4 b) { EACH_WORD(int4, BELOW); }
DEVICE int4 operator>(int4 a, int4 b) { return b < a; }
DEVICE int4 operator==(int4 a, int4 b) { EACH_WORD(int4, EQUAL); }
DEVICE int4 operator/(int4 a, int b) { return int4(a.x / b, a.y / b, a.z / b, a.w / b); }
DEVICE int4 operator%(int4 a, int b) { return int4(a.x % b, a.y % b, a.z % b, a.w % b); }
DEVICE uint4 operator+(uint4 a, uint4 b) { EACH_WORD(uint4, ADD); }
DEVICE uint4 operator-(uint4 a, uint4 b) { EACH_WORD(uint4, SUBTRACT); }
DEVICE uint4 operator*(uint4 a, uint4 b) { EACH_WORD(uint4, MULTIPLY); }
DEVICE uint4 operator&(uint4 a, uint4 b) { EACH_WORD(uint4, AND); }
DEVICE uint4 operator|(uint4 a, uint4 b) { EACH_WORD(uint4, OR); }
DEVICE uint4 operator^(uint4 a, uint4 b) { EACH_WORD(uint4, XOR); }
DEVICE uint4 operator>>(uint4 a, uint4 b) { EACH_WORD(uint4, SHIFTED_DOWN); }
DEVICE int4 operator==(uint4 a, uint4 b) { EACH_WORD(int4, EQUAL); }
DEVICE uint4 mul_hi(uint4 a, uint4 b) { EACH_WORD(uint4, __umulhi); }
DEVICE float4 copysign(float4 a, float4 b) { EACH(float4, copysign); }
DEVICE float4 fmin(float4 a, float4 b) { EACH(float4, fmin); }
DEVICE float4 fmax(float4 a, float4 b) { EACH(float4, fmax); }
DEVICE float4 clamp(float4 x, float4 low, float4 high) { return fmin(fmax(x, low), high); }
DEVICE int any(int4 x) { return (x.x | x.y | x.z | x.w) < 0; }
#define OF_EACH(f) return float4(f(x.s0), f(x.s1), f(x.s2), f(x.s3))
DEVICE float4 native_exp2(float4 x) { OF_EACH(native_exp2); }
DEVICE float4 log2(float4 x) { OF_EACH(log2); }
DEVICE float4 sqrt(float4 x) { OF_EACH(sqrt); }
DEVICE float4 fabs(float4 x) { OF_EACH(fabs); }

/* What a ternary operator is to vectors. */
template <class T> DEVICE T choose(bool condition, T x, T y) { return condition ? x : y; }
DEVICE float choose(bool condition, float x, float y) { return condition ? x : y; }
DEVICE uint2 choose(int2 c, uint2 x, uint2 y) { return uint2(c.x ? x.x : y.x, c.y ? x.y : y.y); }
DEVICE uint4 choose(int4 c, uint4 x, uint4 y)
{
    return uint4(c.x ? x.x : y.x, c.y ? x.y : y.y, c.z ? x.z : y.z, c.w ? x.w : y.w);
}
DEVICE float4 choose(int4 condition, float4 x, float4 y)
{
    return float4(condition.x ? x.s0 : y.s0, condition.y ? x.s1 : y.s1, condition.z ? x.s2 : y.s2,
                  condition.w ? x.s3 : y.s3);
}
DEVICE float4 fma(float4 a, float4 b, float4 c)
{
    return float4(fma(a.s0, b.s0, c.s0), fma(a.s1, b.s1, c.s1), fma(a.s2, b.s2, c.s2), fma(a.s3, b.s3, c.s3));
}

DEVICE float2 fma(float2 a, float2 b, float2 c) { return float2(fma(a.x, b.x, c.x), fma(a.y, b.y, c.y)); }

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
DEVICE uint4 as_uint4(float4 x) { return uint4(as_bits(x.s0), as_bits(x.s1), as_bits(x.s2), as_bits(x.s3)); }
DEVICE uint4 as_uint4(int4 x) { return uint4((uint)x.x, (uint)x.y, (uint)x.z, (uint)x.w); }
DEVICE int4 as_int4(uint4 x) { return int4((int)x.x, (int)x.y, (int)x.z, (int)x.w); }
DEVICE float4 convert_float4(int4 x) { return float4((float)x.x, (float)x.y, (float)x.z, (float)x.w); }

/* Several elements at once. */
template <class T, int N> struct numbers {
    T s[N];
    numbers() = default;
    __device__ numbers(T x) { for (T &one : s) one = x; }
};
template <class T> struct numbers<T, 2> {
    union { T s[2]; struct { T s0, s1; }; };
    numbers() = default;
    __device__ numbers(T a) : s0(a), s1(a) {}
    __device__ numbers(T a, T b) : s0(a), s1(b) {}
};
template <class T> struct numbers<T, 4> {
    union { T s[4]; struct { T x, y, z, w; }; };
    numbers() = default;
    __device__ numbers(T a) : x(a), y(a), z(a), w(a) {}
    __device__ numbers(T a, T b, T c, T d) : x(a), y(b), z(c), w(d) {}
};
#define OF_ALL(type, value) type y; for (int i = 0; i < N; ++i) y.s[i] = value; return y
#define OF_NUMBERS template <class T, int N> DEVICE numbers<T, N>
OF_NUMBERS operator<<(numbers<T, N> a, int b) { OF_ALL(decltype(a), (T)(a.s[i] << b)); }
OF_NUMBERS operator>>(numbers<T, N> a, numbers<T, N> b) { OF_ALL(decltype(a), (T)(a.s[i] >> b.s[i])); }
OF_NUMBERS operator&(numbers<T, N> a, numbers<T, N> b) { OF_ALL(decltype(a), (T)(a.s[i] & b.s[i])); }
OF_NUMBERS operator|(numbers<T, N> a, numbers<T, N> b) { OF_ALL(decltype(a), (T)(a.s[i] | b.s[i])); }
OF_NUMBERS operator+(numbers<T, N> a, numbers<T, N> b) { OF_ALL(decltype(a), (T)(a.s[i] + b.s[i])); }
OF_NUMBERS operator*(numbers<T, N> a, numbers<T, N> b) { OF_ALL(decltype(a), a.s[i] * b.s[i]); }
OF_NUMBERS operator*(numbers<T, N> a, float b) { OF_ALL(decltype(a), a.s[i] * b); }
OF_NUMBERS operator-(numbers<T, N> a, float b) { OF_ALL(decltype(a), a.s[i] - b); }
template <class T, int N> DEVICE numbers<float, N> floats_of(numbers<T, N> x) { typedef numbers<float, N> floats; OF_ALL(floats, (float)x.s[i]); }
template <int N> DEVICE numbers<ushort, N> wide_of(numbers<uchar, N> x) { typedef numbers<ushort, N> wide; OF_ALL(wide, x.s[i]); }
template <int N> DEVICE numbers<float, N> halves_of(const half *p) { typedef numbers<float, N> floats; OF_ALL(floats, __half2float(p[i])); }
#define uchar2 numbers<uchar, 2>
#define uchar4 numbers<uchar, 4>
#define uchar8 numbers<uchar, 8>
#define uchar16 numbers<uchar, 16>
#define char2 numbers<char, 2>
#define char4 numbers<char, 4>
#define char8 numbers<char, 8>
#define char16 numbers<char, 16>
#define ushort2 numbers<ushort, 2>
#define ushort8 numbers<ushort, 8>
#define ushort16 numbers<ushort, 16>
#define float8 numbers<float, 8>
#define float16 numbers<float, 16>
typedef numbers<ushort, 4> shorts4;
#define ushort4 shorts4
DEVICE uchar4 as_uchar4(uint x) { return uchar4(x, x >> 8, x >> 16, x >> 24); }
DEVICE char4 as_char4(uint x) { return char4(x, x >> 8, x >> 16, x >> 24); }
DEVICE ushort2 as_ushort2(uint x) { return ushort2(x, x >> 16); }
DEVICE float2 convert_float2(char2 x) { return float2(x.s0, x.s1); }
DEVICE float2 convert_float2(uchar2 x) { return float2(x.s0, x.s1); }
DEVICE float4 convert_float4(char4 x) { return float4(x.x, x.y, x.z, x.w); }
DEVICE float4 convert_float4(uchar4 x) { return float4(x.x, x.y, x.z, x.w); }
#define convert_float8(x) floats_of(x)
#define convert_float16(x) floats_of(x)
#define convert_ushort2(x) wide_of(x)
#define convert_ushort8(x) wide_of(x)
#define convert_ushort16(x) wide_of(x)
DEVICE shorts4 convert_ushort4(uchar4 x) { return wide_of(x); }
DEVICE float2 vload_half2(long i, const half *p) { return float2(__half2float(p[0]), __half2float(p[1])); }
#define vload_half8(i, p) halves_of<8>(p)
#define vload_half16(i, p) halves_of<16>(p)
DEVICE shorts4 convert_ushort4(words4 x) { return shorts4(x.x, x.y, x.z, x.w); }
DEVICE void vstore4(shorts4 x, long i, ushort *p) { p += 4 * i; p[0] = x.x; p[1] = x.y; p[2] = x.z; p[3] = x.w; }
DEVICE void vstore_half4_rte(float4 x, long i, half *p)
{
    p += 4 * i;
    p[0] = __float2half_rn(x.s0), p[1] = __float2half_rn(x.s1), p[2] = __float2half_rn(x.s2), p[3] = __float2half_rn(x.s3);
}
