/* SPDX-License-Identifier: Apache-2.0 */
/* What a test tells the library that stands in for CUDA's driver, and what it counts. */
#ifndef CLMGK_TESTS_CUDA_STAND_IN_H
#define CLMGK_TESTS_CUDA_STAND_IN_H

#include <stddef.h>

typedef struct cuda_state {
    const char *fails; /* a function that fails; NULL: none */
    int after;         /* ... after so many calls that don't */
    int code;          /* ... with this code of CUDA */
    int hidden;        /* CUDA has another device alone, as with CUDA_VISIBLE_DEVICES */
    int most_items;    /* of a work-group of a kernel; 0: enough */
    int any_memory;    /* all memory is the device's, not only what was allocated here */
    int most_local;    /* bytes of local memory that a launch may ask for */

    int retained, modules, allocations,
        current;                /* primary contexts and what else is held; current ones of this thread */
    int loads, launches, waits; /* calls */
    int registers;              /* limit of the last program that was loaded; 0: none */
    int local;                  /* bytes of local memory that the last launch gave */
    const void *stream;         /* of the last launch */
} cuda_state;

typedef cuda_state *cuda_stand_in_state_fn(void);

#endif
