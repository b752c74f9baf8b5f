/* SPDX-License-Identifier: Apache-2.0 */
#include "reference/problem.h"

#include <stdlib.h>

float *ref_room(const ref_part *parts, size_t count)
{
    size_t total = 0;
    for (size_t n = 0; n < count; n++)
        total += parts[n].count;
    float *const room = calloc(total + 1, sizeof(float)), *next = room; /* + 1: NULL means failure only */
    for (size_t n = 0; room && n < count; next += parts[n++].count)
        *parts[n].array = next;
    return room;
}
