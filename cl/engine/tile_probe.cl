/* SPDX-License-Identifier: Apache-2.0 */
/* Tests that AMX multiplies rightly: A B^T of numbers of the unit's type, where A and B have 32 rows and columns of
 * small whole numbers. All sums are exact. */
#include "base/common.clh"
#include "engine/files.clh"

#define BLOCK_ROWS 2
#define PANEL_ROWS 32

#include "engine/lanes.clh"

#include ENGINE_FILE(tile_products.clh)

#include "engine/probe_numbers.clh"

FUNCTION ushort whole_number(int x)
{
    return rounded_half((real)((float)x)).s0;
}

__kernel KERNEL_ATTRIBUTES void tile_probe(__global float *products)
{
    ushort a[PANEL_ROWS][KEY_CHUNK];
    ureal b[KEY_CHUNK / 2][BLOCK_ROWS];
    real c[PANEL_ROWS][BLOCK_ROWS];
    for (int row = 0; row < PANEL_ROWS; ++row)
        for (int d = 0; d < KEY_CHUNK; ++d) {
            a[row][d] = whole_number(left_number(row, d));
            ((ushort *)b[d / 2])[2 * row + d % 2] = whole_number(right_number(row, d));
        }
    const tile_matrix rows = {(const uchar *)a, sizeof(a[0]), sizeof(a[0])};
    tiles_begin();
    panel_product(c, false, PANEL_ROWS, &rows, (const ureal(*)[BLOCK_ROWS])b, 1, KEY_CHUNK);
    tiles_end();
    for (int i = 0; i < PANEL_ROWS * PANEL_ROWS; ++i)
        products[i] = ((const float *)c)[i];
}
