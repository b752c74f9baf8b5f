/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers in the bits of storage types. */
#include "base/base.h"

#include <math.h>
#include <string.h>

uint32_t mgk_encode(float x, const clmgk_dtype_info *type)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof(bits));
    const uint32_t exponent = bits >> 23 & 0xff, bias = (1U << (type->exponent_bits - 1)) - 1;
    const uint32_t sign = bits >> 31 << (type->exponent_bits + type->significand_bits);
    if (exponent == 0)
        return sign;
    return sign | (exponent - 127 + bias) << type->significand_bits |
           (bits & 0x7fffff) >> (23 - type->significand_bits);
}

double mgk_decode(uint32_t bits, const clmgk_dtype_info *type)
{
    const int digits = type->significand_bits, bias = (1 << (type->exponent_bits - 1)) - 1;
    const uint32_t most = (1U << type->exponent_bits) - 1, exponent = bits >> digits & most;
    const uint32_t fraction = bits & ((1U << digits) - 1);
    const double sign = bits >> (type->exponent_bits + digits) & 1 ? -1.0 : 1.0;
    if (exponent == most)
        return fraction != 0 ? (double)NAN : sign * (double)INFINITY;
    const double significand = exponent == 0 ? ldexp(fraction, 1 - digits) : 1.0 + ldexp(fraction, -digits);
    return sign * ldexp(significand, (int)exponent - bias);
}

void mgk_put_number(void *array, size_t i, float x, const clmgk_dtype_info *type)
{
    const uint32_t bits = mgk_encode(x, type);
    const uint16_t half = (uint16_t)bits;
    memcpy((char *)array + i * type->bytes, type->bytes == sizeof(bits) ? (const void *)&bits : &half, type->bytes);
}

double mgk_number(const void *array, size_t i, const clmgk_dtype_info *type)
{
    const char *const place = (const char *)array + i * type->bytes;
    uint32_t bits;
    uint16_t half;
    if (type->bytes == sizeof(bits)) {
        memcpy(&bits, place, sizeof(bits));
        return mgk_decode(bits, type);
    }
    memcpy(&half, place, sizeof(half));
    return mgk_decode(half, type);
}
