/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/engine.h"

int mgk_few_rows(const mgk_footprint *footprint)
{
    if (!footprint->few_rows || footprint->rows > MGK_FEW_ROWS)
        return 0;
    return footprint->rows <= 1 ? 1 : footprint->rows == 2 ? 2 : 4;
}
