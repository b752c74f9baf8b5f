/* SPDX-License-Identifier: Apache-2.0 */
/* cl/base/normal.clh as C, with vectors of width 1. */
#ifndef MGK_API_NORMAL_H
#define MGK_API_NORMAL_H

#include <stdint.h>
#include <string.h>
#include <tgmath.h>

#define FUNCTION                static inline
#define CHOOSE(condition, x, y) ((condition) ? (x) : (y))

typedef float real;
typedef int32_t ireal;
typedef uint32_t ureal;

static inline real as_real(ureal bits)
{
    real x = 0.0F;
    memcpy(&x, &bits, sizeof(x));
    return x;
}

static inline ureal as_ureal(real x)
{
    ureal bits = 0;
    memcpy(&bits, &x, sizeof(bits));
    return bits;
}

static inline ireal as_ireal(ureal bits)
{
    ireal i = 0;
    memcpy(&i, &bits, sizeof(i));
    return i;
}

static inline real convert_real(ireal i)
{
    return (real)i;
}

#include "base/normal.clh"

#endif
