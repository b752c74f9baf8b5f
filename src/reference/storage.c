/* SPDX-License-Identifier: Apache-2.0 */
/* Storage types: f32, f16 (IEEE binary16), bf16 (upper half of an f32). */
#include "reference/reference.h"

#include <math.h>
#include <string.h>

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

/* `value` without its lowest `shift` bits, rounded to nearest even. */
static uint32_t shift_right_even(uint32_t value, unsigned shift)
{
    const uint32_t odd = (value >> shift) & 1U;
    return (value + (1U << (shift - 1U)) - 1U + odd) >> shift;
}

uint16_t clmgk_ref_f32_to_f16(float value)
{
    const uint32_t sign = (bits_of(value) >> 16U) & 0x8000U;
    const uint32_t magnitude = bits_of(value) & 0x7fffffffU;
    uint32_t half = 0;
    if (magnitude > 0x7f800000U) {
        half = 0x7e00U;
    } else if (magnitude >= 0x47800000U) { /* 2^16: infinity */
        half = 0x7c00U;
    } else if (magnitude >= 0x38800000U) { /* 2^-14, the smallest normal; 65520 and above round up to infinity */
        half = shift_right_even(magnitude - 0x38000000U, 13U);
    } else if (magnitude >= 0x33000000U) { /* 2^-25, half of the smallest subnormal */
        const uint32_t significand = (magnitude & 0x7fffffU) | 0x800000U;
        half = shift_right_even(significand, 126U - (magnitude >> 23U));
    }
    return (uint16_t)(sign | half);
}

float clmgk_ref_f16_to_f32(uint16_t bits)
{
    const uint32_t sign = (uint32_t)(bits & 0x8000U) << 16U, exponent = (bits >> 10U) & 0x1fU;
    const uint32_t significand = bits & 0x3ffU;
    if (exponent == 0) {
        const float magnitude = ldexpf((float)significand, -24);
        return sign != 0 ? -magnitude : magnitude;
    }
    const uint32_t wide = exponent == 0x1fU ? 0xffU : exponent + 112U;
    return float_of(sign | wide << 23U | significand << 13U);
}

uint16_t clmgk_ref_f32_to_bf16(float value)
{
    const uint32_t bits = bits_of(value);
    if (isnan(value))
        return (uint16_t)(bits >> 16U | 0x40U); /* the payload may lie in the lost half */
    return (uint16_t)shift_right_even(bits, 16U);
}

float clmgk_ref_bf16_to_f32(uint16_t bits)
{
    return float_of((uint32_t)bits << 16U);
}

size_t clmgk_ref_dtype_size(clmgk_dtype dtype)
{
    return dtype == CLMGK_DTYPE_F32 ? sizeof(float) : sizeof(uint16_t);
}

void clmgk_ref_load(clmgk_dtype dtype, const void *elements, size_t count, double *values)
{
    const float *const wide = elements;
    const uint16_t *const narrow = elements;
    for (size_t n = 0; n < count; n++)
        if (dtype == CLMGK_DTYPE_F32)
            values[n] = wide[n];
        else if (dtype == CLMGK_DTYPE_F16)
            values[n] = clmgk_ref_f16_to_f32(narrow[n]);
        else
            values[n] = clmgk_ref_bf16_to_f32(narrow[n]);
}

void clmgk_ref_store(clmgk_dtype dtype, const double *values, size_t count, void *elements)
{
    float *const wide = elements;
    uint16_t *const narrow = elements;
    for (size_t n = 0; n < count; n++)
        if (dtype == CLMGK_DTYPE_F32)
            wide[n] = (float)values[n];
        else if (dtype == CLMGK_DTYPE_F16)
            narrow[n] = clmgk_ref_f32_to_f16((float)values[n]);
        else
            narrow[n] = clmgk_ref_f32_to_bf16((float)values[n]);
}
