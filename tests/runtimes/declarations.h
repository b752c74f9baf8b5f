/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Declares the functions of OpenCL C that kernels use, for quick tests on PoCL 3.1 (tests/CMakeLists.txt). With each
 * program PoCL parses a header of 15 thousand declarations, which takes longer than compiling a small kernel. A
 * function that this header lacks is an error of the compiler. Optimised programs and those for other devices are
 * compiled with the declarations of their compilers.
 */
#include <pocl_types.h> /* first: it tells the next one the sizes of types */

#include <_builtin_renames.h>
#include <opencl-c-base.h>

#define PLAIN      __attribute__((overloadable))
#define CONST      __attribute__((overloadable, const))
#define CONVERGENT __attribute__((overloadable, convergent))

#define WIDTHS(X, ...)  X(__VA_ARGS__, ) X(__VA_ARGS__, 2) X(__VA_ARGS__, 4) X(__VA_ARGS__, 8) X(__VA_ARGS__, 16)
#define VECTORS(X, ...) X(__VA_ARGS__, 2) X(__VA_ARGS__, 4) X(__VA_ARGS__, 8) X(__VA_ARGS__, 16)
#define SPACES(X, ...)                                                                                                 \
    X(__VA_ARGS__, __global) X(__VA_ARGS__, __local) X(__VA_ARGS__, __private) X(__VA_ARGS__, __constant)
#define WRITABLE(X, ...) X(__VA_ARGS__, __global) X(__VA_ARGS__, __local) X(__VA_ARGS__, __private)
#define INTEGERS(X)      X(char) X(uchar) X(short) X(ushort) X(int) X(uint) X(long) X(ulong)

size_t CONST get_global_id(uint);
size_t CONST get_global_offset(uint);
size_t CONST get_global_size(uint);
size_t CONST get_group_id(uint);
size_t CONST get_local_id(uint);
size_t CONST get_local_size(uint);
size_t CONST get_num_groups(uint);
void CONVERGENT barrier(cl_mem_fence_flags);

#define ONE(NAME, N)   float##N CONST NAME(float##N);
#define TWO(NAME, N)   float##N CONST NAME(float##N, float##N);
#define THREE(NAME, N) float##N CONST NAME(float##N, float##N, float##N);
WIDTHS(ONE, cos)
WIDTHS(ONE, erf)
WIDTHS(ONE, exp)
WIDTHS(ONE, exp2)
WIDTHS(ONE, fabs)
WIDTHS(ONE, floor)
WIDTHS(ONE, log)
WIDTHS(ONE, log1p)
WIDTHS(ONE, log2)
WIDTHS(ONE, native_exp2)
WIDTHS(ONE, round)
WIDTHS(ONE, sin)
WIDTHS(ONE, sqrt)
WIDTHS(ONE, tanh)
WIDTHS(TWO, copysign)
WIDTHS(TWO, fmax)
WIDTHS(TWO, fmin)
WIDTHS(TWO, max)
WIDTHS(TWO, min)
WIDTHS(TWO, pow)
float CONST ldexp(float, int);
WIDTHS(THREE, clamp)
WIDTHS(THREE, fma)
WIDTHS(THREE, mad)
WIDTHS(THREE, mix)

#define WITH_NUMBER(NAME, N) float##N CONST NAME(float##N, float);
VECTORS(WITH_NUMBER, fmax)
VECTORS(WITH_NUMBER, fmin)

#define IS_NAN(NAME, N)   int##N CONST NAME(float##N);
#define OF_SIGNS(NAME, N) int CONST NAME(int##N);
WIDTHS(IS_NAN, isnan)
WIDTHS(OF_SIGNS, all)
WIDTHS(OF_SIGNS, any)

#define SELECT(T, C, N) T##N CONST select(T##N, T##N, C##N);
WIDTHS(SELECT, float, int)
WIDTHS(SELECT, float, uint)
WIDTHS(SELECT, int, int)
WIDTHS(SELECT, uint, uint)
WIDTHS(SELECT, uint, int)
WIDTHS(SELECT, ushort, ushort)
WIDTHS(SELECT, ushort, short)

#define INTEGER_TWO(NAME, T, N)   T##N CONST NAME(T##N, T##N);
#define INTEGER_THREE(NAME, T, N) T##N CONST NAME(T##N, T##N, T##N);
#define INTEGER(T)                                                                                                     \
    WIDTHS(INTEGER_TWO, max, T)                                                                                        \
    WIDTHS(INTEGER_TWO, min, T) WIDTHS(INTEGER_TWO, mul_hi, T) WIDTHS(INTEGER_THREE, clamp, T)
INTEGERS(INTEGER)

#define CONVERT(TO, FROM, N) TO##N CONST convert_##TO##N(FROM##N);
#define CONVERT_FROM(T)                                                                                                \
    WIDTHS(CONVERT, float, T) WIDTHS(CONVERT, int, T) WIDTHS(CONVERT, uint, T) WIDTHS(CONVERT, ushort, T)
INTEGERS(CONVERT_FROM)
CONVERT_FROM(float)
WIDTHS(CONVERT, uchar, uint)

#define LOAD(T, N, SPACE)       T##N PLAIN vload##N(size_t, const SPACE T *);
#define STORE(T, N, SPACE)      void PLAIN vstore##N(T##N, size_t, SPACE T *);
#define MOVE(T, N)              SPACES(LOAD, T, N) WRITABLE(STORE, T, N)
#define LOAD_HALF(N, SPACE)     float##N PLAIN vload_half##N(size_t, const SPACE half *);
#define STORE_HALF(N, R, SPACE) void PLAIN vstore_half##N##R(float##N, size_t, SPACE half *);
#define MOVE_HALF(_, N)         SPACES(LOAD_HALF, N) WRITABLE(STORE_HALF, N, ) WRITABLE(STORE_HALF, N, _rte)
#define PREFETCH(T)             void PLAIN prefetch(const __global T *, size_t);
#define MEMORY(T)               VECTORS(MOVE, T) PREFETCH(T)
INTEGERS(MEMORY)
MEMORY(float)
WIDTHS(MOVE_HALF, )

#undef PLAIN
#undef CONST
#undef CONVERGENT
#undef WIDTHS
#undef VECTORS
#undef SPACES
#undef WRITABLE
#undef INTEGERS
#undef ONE
#undef TWO
#undef THREE
#undef WITH_NUMBER
#undef IS_NAN
#undef OF_SIGNS
#undef SELECT
#undef INTEGER_TWO
#undef INTEGER_THREE
#undef INTEGER
#undef CONVERT
#undef CONVERT_FROM
#undef LOAD
#undef STORE
#undef MOVE
#undef LOAD_HALF
#undef STORE_HALF
#undef MOVE_HALF
#undef PREFETCH
#undef MEMORY
