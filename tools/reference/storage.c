/* SPDX-License-Identifier: Apache-2.0 */
/* Storage types: conversions for every type of up to 32 bits that CLMGK_DTYPE_LIST describes. */
#include "reference/reference.h"

#include <math.h>
#include <string.h>

enum { F32_SIGNIFICAND = 23, F32_BIAS = 127 };

clmgk_ref_format clmgk_ref_format_of(clmgk_dtype dtype)
{
#define FORMAT(NAME, value, name, exponent_bits, significand_bits, has_infinity)                                       \
    [value] = {exponent_bits, significand_bits, (has_infinity) != 0},
#define CACHE_FORMAT(NAME, value, name, exponent_bits, significand_bits, has_infinity, ...)                            \
    FORMAT(NAME, value, name, exponent_bits, significand_bits, has_infinity)
    static const clmgk_ref_format formats[CLMGK_ALL_DTYPES] = {CLMGK_DTYPE_LIST(FORMAT)
                                                                   CLMGK_CACHE_DTYPE_LIST(CACHE_FORMAT)};
#undef FORMAT
#undef CACHE_FORMAT
    return formats[dtype];
}

static uint32_t bits_of(float value)
{
    uint32_t bits = 0;
    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

static float float_of(uint32_t bits)
{
    float value = 0.0F;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

/* Whether the type's numbers are those of f32. */
static bool is_f32(clmgk_ref_format format)
{
    return format.significand_bits == F32_SIGNIFICAND;
}

/* Whether its numbers are integers, or integers times the scale of a block. */
static bool is_integer(clmgk_ref_format format)
{
    return format.exponent_bits == 0;
}

static int bias_of(clmgk_ref_format format)
{
    return (1 << (format.exponent_bits - 1)) - 1;
}

/* The pattern of infinity, or of the only NaN in a type without infinity: larger than the pattern of any number. */
static uint32_t end_of(clmgk_ref_format format)
{
    const uint32_t exponent = ((1U << (unsigned)format.exponent_bits) - 1U) << (unsigned)format.significand_bits;
    return format.has_infinity ? exponent : exponent | ((1U << (unsigned)format.significand_bits) - 1U);
}

/* `value` without its lowest `shift` bits, rounded to nearest even. */
static uint32_t shift_right_even(uint32_t value, unsigned shift)
{
    const uint32_t odd = (value >> shift) & 1U;
    return shift == 0 ? value : (value + (1U << (shift - 1U)) - 1U + odd) >> shift;
}

/* The pattern of a NaN: the payload's upper bits stay, and the NaN is quiet. */
static uint32_t nan_of(clmgk_ref_format format, uint32_t magnitude)
{
    const uint32_t payload = (magnitude & 0x7fffffU) >> (unsigned)(F32_SIGNIFICAND - format.significand_bits);
    const uint32_t quiet = format.has_infinity ? 1U << (unsigned)(format.significand_bits - 1) : 0U;
    return end_of(format) | quiet | payload;
}

/* The pattern of a finite number's magnitude, which may be that of infinity or beyond. */
static uint32_t round_magnitude(clmgk_ref_format format, uint32_t magnitude)
{
    const unsigned shift = (unsigned)(F32_SIGNIFICAND - format.significand_bits);
    const uint32_t least_normal = (uint32_t)(F32_BIAS + 1 - bias_of(format)); /* its exponent in f32 */
    const uint32_t exponent = magnitude >> F32_SIGNIFICAND;
    if (exponent >= least_normal)
        return shift_right_even(magnitude - ((least_normal - 1U) << F32_SIGNIFICAND), shift);
    if (exponent == 0) /* a subnormal f32: subnormal in a type with f32's exponents, else less than its least number */
        return least_normal == 1U ? shift_right_even(magnitude, shift) : 0U;
    const uint32_t significand = (magnitude & 0x7fffffU) | 0x800000U;
    const unsigned subnormal_shift = shift + least_normal - exponent;
    return subnormal_shift > F32_SIGNIFICAND + 1U ? 0U : shift_right_even(significand, subnormal_shift);
}

uint32_t clmgk_ref_encode(clmgk_ref_format format, float value)
{
    const uint32_t bits = bits_of(value), magnitude = bits & 0x7fffffffU;
    if (is_f32(format))
        return bits;
    const uint32_t sign = bits >> 31U << (unsigned)(format.exponent_bits + format.significand_bits);
    if (magnitude > 0x7f800000U)
        return sign | nan_of(format, magnitude);
    const uint32_t rounded = round_magnitude(format, magnitude), end = end_of(format);
    return sign | (rounded < end ? rounded : end);
}

float clmgk_ref_decode(clmgk_ref_format format, uint32_t bits)
{
    if (is_f32(format))
        return float_of(bits);
    const unsigned shift = (unsigned)(F32_SIGNIFICAND - format.significand_bits);
    const uint32_t below_sign = 1U << (unsigned)(format.exponent_bits + format.significand_bits);
    const uint32_t sign = (bits & below_sign) != 0 ? 0x80000000U : 0U, magnitude = bits & (below_sign - 1U);
    const uint32_t rebias = (uint32_t)(F32_BIAS - bias_of(format)) << F32_SIGNIFICAND;
    if (magnitude >= end_of(format))
        return float_of(sign | 0x7f800000U | ((magnitude << shift) & 0x7fffffU));
    if (magnitude >> (unsigned)format.significand_bits != 0 || rebias == 0)
        return float_of(sign | ((magnitude << shift) + rebias));
    const float subnormal = ldexpf((float)magnitude, 1 - bias_of(format) - format.significand_bits);
    return sign != 0 ? -subnormal : subnormal;
}

clmgk_ref_limits clmgk_ref_limits_of(clmgk_dtype dtype)
{
    const clmgk_ref_format format = clmgk_ref_format_of(dtype);
    if (is_integer(format))
        return (clmgk_ref_limits){
            .unit = 0.5, .largest = (double)((1 << format.significand_bits) - 1), .least_normal = 1.0, .least = 1.0};
    const double least_normal = ldexp(1.0, 1 - bias_of(format));
    return (clmgk_ref_limits){.unit = ldexp(1.0, -1 - format.significand_bits),
                              .largest = (double)clmgk_ref_decode(format, end_of(format) - 1U),
                              .least_normal = least_normal,
                              .least = ldexp(least_normal, -format.significand_bits)};
}

size_t clmgk_ref_block(clmgk_dtype dtype)
{
#define BLOCK(NAME, value, name, exponent_bits, significand_bits, has_infinity, block, bytes) [value] = (block),
    static const size_t blocks[CLMGK_ALL_DTYPES] = {CLMGK_CACHE_DTYPE_LIST(BLOCK)};
#undef BLOCK
    return blocks[dtype] > 1 ? blocks[dtype] : 1;
}

size_t clmgk_ref_dtype_size(clmgk_dtype dtype)
{
    const clmgk_ref_format format = clmgk_ref_format_of(dtype);
    const size_t block = clmgk_ref_block(dtype),
                 bits = 1 + (size_t)format.exponent_bits + (size_t)format.significand_bits;
    return block * bits / 8 + (block > 1 ? sizeof(uint16_t) : 0); /* of a block, with its scale */
}

float clmgk_ref_rounded(clmgk_dtype dtype, float value)
{
    const clmgk_ref_format format = clmgk_ref_format_of(dtype);
    return is_f32(format) ? value : clmgk_ref_decode(format, clmgk_ref_encode(format, value));
}

/* ---- arrays -------------------------------------------------------------------------------------------------- */

static uint32_t read_element(const void *elements, size_t bytes, size_t n)
{
    if (bytes == sizeof(uint8_t))
        return ((const uint8_t *)elements)[n];
    return bytes == sizeof(uint16_t) ? ((const uint16_t *)elements)[n] : ((const uint32_t *)elements)[n];
}

static void write_element(void *elements, size_t bytes, size_t n, uint32_t bits)
{
    if (bytes == sizeof(uint8_t))
        ((uint8_t *)elements)[n] = (uint8_t)bits;
    else if (bytes == sizeof(uint16_t))
        ((uint16_t *)elements)[n] = (uint16_t)bits;
    else
        ((uint32_t *)elements)[n] = bits;
}

static float half_at(const unsigned char *bytes)
{
    uint16_t bits = 0;
    memcpy(&bits, bytes, sizeof(bits));
    return clmgk_ref_decode(clmgk_ref_format_of(CLMGK_DTYPE_F16), bits);
}

/* Number n of a block of 32, without its scale. */
static int block_integer(clmgk_dtype dtype, const unsigned char *block, size_t n)
{
    const unsigned char *const q = block + sizeof(uint16_t);
    if (dtype == CLMGK_DTYPE_Q8_0)
        return (int)(int8_t)q[n];
    return (n < 16 ? q[n] & 15 : q[n - 16] >> 4) - 8;
}

static void load_blocks(clmgk_dtype dtype, const unsigned char *blocks, size_t count, double *values)
{
    const size_t block = clmgk_ref_block(dtype), bytes = clmgk_ref_dtype_size(dtype);
    for (size_t n = 0; n < count; n++) {
        const unsigned char *const at = blocks + n / block * bytes;
        values[n] = block_integer(dtype, at, n % block) * (double)half_at(at);
    }
}

/* The scale that gives the integers of a block their range, as ggml chooses it: 127 is Q8_0's largest number in size,
 * and -8 is Q4_0's, with its sign. */
static double block_scale(clmgk_dtype dtype, const double *values, size_t block)
{
    double most = 0.0;
    for (size_t n = 0; n < block; n++)
        most = fabs(values[n]) > fabs(most) || isnan(values[n]) ? values[n] : most;
    return dtype == CLMGK_DTYPE_Q8_0 ? fabs(most) / 127.0 : most / -8.0;
}

static double clamped(double x, double low, double high)
{
    return isnan(x) ? 0.0 : x < low ? low : x > high ? high : x;
}

static void store_block(clmgk_dtype dtype, const double *values, unsigned char *at)
{
    const size_t block = clmgk_ref_block(dtype);
    const double scale = block_scale(dtype, values, block);
    unsigned char *const q = at + sizeof(uint16_t);
    const uint16_t bits = (uint16_t)clmgk_ref_encode(clmgk_ref_format_of(CLMGK_DTYPE_F16), (float)scale);
    memset(at, 0, clmgk_ref_dtype_size(dtype));
    memcpy(at, &bits, sizeof(bits));
    for (size_t n = 0; n < block; n++) {
        const double x = scale == 0.0 ? 0.0 : values[n] / scale;
        if (dtype == CLMGK_DTYPE_Q8_0)
            q[n] = (unsigned char)(int8_t)clamped(nearbyint(x), -127.0, 127.0);
        else
            q[n % 16] |= (unsigned char)((int)clamped(floor(x + 8.5), 0.0, 15.0) << (n < 16 ? 0 : 4));
    }
}

void clmgk_ref_load(clmgk_dtype dtype, const void *elements, size_t count, double *values)
{
    if (clmgk_ref_block(dtype) > 1) {
        load_blocks(dtype, elements, count, values);
        return;
    }
    for (size_t n = 0; dtype == CLMGK_DTYPE_INT8 && n < count; n++)
        values[n] = ((const int8_t *)elements)[n];
    if (dtype == CLMGK_DTYPE_INT8)
        return;
    const clmgk_ref_format format = clmgk_ref_format_of(dtype);
    const size_t bytes = clmgk_ref_dtype_size(dtype);
    for (size_t n = 0; n < count; n++)
        values[n] = (double)clmgk_ref_decode(format, read_element(elements, bytes, n));
}

/* A float that rounds to fewer bits as x does: x, or of its two neighbours the one with an odd pattern. */
static float rounded_to_odd(double x)
{
    const float nearest = (float)x;
    if (isnan(x) || (double)nearest == x || (bits_of(nearest) & 1U) != 0)
        return nearest;
    return nextafterf(nearest, (double)nearest < x ? INFINITY : -INFINITY);
}

void clmgk_ref_store(clmgk_dtype dtype, const double *values, size_t count, void *elements)
{
    const size_t block = clmgk_ref_block(dtype);
    for (size_t n = 0; block > 1 && n < count; n += block)
        store_block(dtype, values + n, (unsigned char *)elements + n / block * clmgk_ref_dtype_size(dtype));
    for (size_t n = 0; dtype == CLMGK_DTYPE_INT8 && n < count; n++)
        ((int8_t *)elements)[n] = (int8_t)clamped(nearbyint(values[n]), -128.0, 127.0);
    if (block > 1 || dtype == CLMGK_DTYPE_INT8)
        return;
    const clmgk_ref_format format = clmgk_ref_format_of(dtype);
    const size_t bytes = clmgk_ref_dtype_size(dtype);
    for (size_t n = 0; n < count; n++) {
        const float value = is_f32(format) ? (float)values[n] : rounded_to_odd(values[n]);
        write_element(elements, bytes, n, clmgk_ref_encode(format, value));
    }
}
