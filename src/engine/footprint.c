/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/engine.h"

int mgk_few_rows(const mgk_footprint *footprint)
{
    if (!footprint->few_rows || footprint->rows > MGK_FEW_ROWS)
        return 0;
    return footprint->rows <= 1 ? 1 : footprint->rows == 2 ? 2 : 4;
}

void mgk_waves_combining(const mgk_footprint *f, mgk_waves *launch)
{
    enum { LAUNCH = 8000, MEMORY_BYTES = 16 }; /* cycles of another kernel; bytes of a unit's share in a cycle */
    const double rows = (double)(f->problems * f->heads * f->rows);
    const double bytes = 2.0 * rows * (double)(f->value_size + 2) * sizeof(float); /* written and read */
    launch->most_splits = f->most_splits;
    launch->combine = LAUNCH;
    launch->part = bytes / (MEMORY_BYTES * (double)launch->units);
}
