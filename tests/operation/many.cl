/* SPDX-License-Identifier: Apache-2.0 */
/* For test_steps.c. */
#include "many.clh"

#define ARGUMENTS many_args
#define BUFFERS   MANY_BUFFERS
#include "base/buffers.clh"

/* The sum of n times array number n, over the arrays that the call has. Absent arrays have names, too. */
__kernel void many(KERNEL_PARAMETERS)
{
    BEGIN_BUFFERS
    const long i = get_global_id(0);
    if (i >= a.count)
        return;
    int n = 0;
    float sum = 0.0f;
#define ADD_ARRAY(NAME, name, type, needed)                                                                            \
    if (SLOT_##NAME != SLOT_OUT && is_given(&a.bound, SLOT_##NAME))                                                    \
        sum += (float)n * name[i];                                                                                     \
    ++n;
    BUFFERS(ADD_ARRAY)
    out[i] = sum;
}
