/* SPDX-License-Identifier: Apache-2.0 */
/* Units that multiply small matrices. A device's architecture says which one it should have; a probe kernel shows
 * whether the compiler takes its instructions, and whether it multiplies rightly. */
#include "device/probe.h"
#include "engine/units.clh"

#include <stdio.h>

/* As in cl/engine/unit_probe.cl: for f16 and for bf16, the products A B^T and A B. */
enum { WARP_SIZE = 32, SIZE = 16, TYPES = 2, TRANSPOSED = 0, PLAIN = 1, FORMS };
typedef struct probe_products {
    float of[TYPES][FORMS][SIZE][SIZE];
} probe_products;

int mgk_matrix_unit_of(const mgk_device_facts *facts)
{
    enum { LEAST_CAPABILITY = 80 };
    const bool has = facts->runtime == MGK_RUNTIME_NVIDIA && mgk_nvidia_capability(facts) >= LEAST_CAPABILITY;
    return has ? MATRIX_MMA : 0;
}

const char *mgk_matrix_unit_name(int unit)
{
    return unit == MATRIX_MMA ? "mma.sync" : "";
}

void mgk_matrix_unit_options(int unit, char *options, size_t size)
{
    (void)snprintf(options, size, "-cl-std=CL1.2 -DENGINE=matrix -DMATRIX_UNIT=%d", unit);
}

static int left_number(int row, int column)
{
    return (7 * row + 3 * column) % 13 - 6;
}

static int right_number(int row, int column)
{
    return (5 * row + 11 * column) % 17 - 8;
}

static int expected_sum(int form, int row, int column)
{
    int sum = 0;
    for (int d = 0; d < SIZE; ++d)
        sum += left_number(row, d) * (form == TRANSPOSED ? right_number(column, d) : right_number(d, column));
    return sum;
}

static bool are_right(const probe_products *products)
{
    bool right = true;
    for (int row = 0; row < SIZE; ++row)
        for (int column = 0; column < SIZE; ++column)
            for (int form = 0; form < FORMS; ++form)
                for (int type = 0; type < TYPES; ++type)
                    right &= products->of[type][form][row][column] == (float)expected_sum(form, row, column);
    return right;
}

static mgk_matrix_unit find(clmgk_context *context)
{
    static const mgk_probe probe = {.file = MGK_UNIT_PROBE,
                                    .kernel = "unit_probe",
                                    .items = WARP_SIZE,
                                    .group = WARP_SIZE,
                                    .bytes = sizeof(probe_products)};
    const int unit = mgk_matrix_unit_of(&context->facts);
    probe_products products;
    char options[MGK_UNIT_OPTIONS];
    clmgk_error reason;
    if (unit == 0)
        return (mgk_matrix_unit){.known = true};
    mgk_matrix_unit_options(unit, options, sizeof(options));
    if (mgk_probe_run(context, &probe, options, &products, &reason) != CLMGK_OK)
        return (mgk_matrix_unit){.known = true, .why = "the compiler or the device refuses mma.sync"};
    if (!are_right(&products))
        return (mgk_matrix_unit){.known = true, .why = "mma.sync gives wrong products here"};
    return (mgk_matrix_unit){.known = true, .unit = unit};
}

mgk_matrix_unit mgk_context_matrix_unit(clmgk_context *context)
{
    mgk_matrix_unit found;
    mgk_monitor_copy(&context->monitor, &found, &context->matrix_unit, sizeof(found));
    if (!found.known) {
        found = find(context); /* builds programs, which takes the mutex; threads at the same time find the same */
        mgk_monitor_copy(&context->monitor, &context->matrix_unit, &found, sizeof(found));
    }
    return found;
}
