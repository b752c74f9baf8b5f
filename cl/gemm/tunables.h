/* SPDX-License-Identifier: Apache-2.0 */
/* Parameters of products by matrix units (gemm/fragments.cl), in the form of engine/lane/tunables.h. */
#ifndef MGK_GEMM_TUNABLES_H
#define MGK_GEMM_TUNABLES_H

#include "engine/units.clh"

#define MGK_FRAGMENTS_TUNABLES(T)                                                                                      \
    T(warps, "warps", "WARPS", 4, 4, "warps of a work-group", 1, 2, 4, 8)                                              \
    T(column_warps, "column-warps", "COLUMN_WARPS", 2, 2, "of these, warps side by side", 1, 2, 4)                     \
    T(row_tiles, "row-tiles", "ROW_TILES", 4, 4, "fragments of the unit's rows (mma.sync: 16) of a warp", 1, 2, 4)     \
    T(column_tiles, "column-tiles", "COLUMN_TILES", 8, 8, "fragments of 8 columns of a warp", 2, 4, 8, 16)             \
    T(depth, "depth", "DEPTH", 32, 32, "numbers of a row in a tile; half as many of f32", 16, 32, 64)                  \
    T(stages, "stages", "STAGES", 3, 3, "tiles in flight, and the one in use", 2, 3, 4, 5)                             \
    T(unit, "unit", NULL, 0, 0,                                                                                        \
      "the device's matrix unit (1: mma.sync, 2: wgmma, 5 to 9: as `emulates`); 0: emulated", 0, 1, 2,                 \
      MATRIX_DIRECT_NUMBERS)                                                                                           \
    T(emulates, "emulates", NULL, 0, 0,                                                                                \
      "with unit 0, for tests: the unit whose layout is emulated, as of the engine matrix", 0, MATRIX_DIRECT_NUMBERS)  \
    T(splits, "splits", NULL, 0, 0, "ranges of k that work-groups share out", 1, 2, 4, 8, 16, 32, 64)                  \
    T(slices, "slices", NULL, 0, 0, "f32: bf16 numbers whose sum a factor is; 0: factors of tf32", 0, 2, 3)

/* Rows of a tile have at least 64 bytes, also where it is transposed. Registers hold at most 128 sums of a work-item.
 * The host compares other units' fragments with blocks. wgmma multiplies rows of four warps by 64 columns. mma.sync has
 * too few registers for slices. */
#define MGK_FRAGMENTS_CONSTRAINTS(C)                                                                                   \
    C(warps % column_warps == 0)                                                                                       \
    C(warps / column_warps * row_tiles >= 2)                                                                           \
    C(column_warps *column_tiles >= 4)                                                                                 \
    C(row_tiles *column_tiles <= 32)                                                                                   \
    C(unit != 1 || slices == 0)                                                                                        \
    C(depth > 16 || (unit == 2 && slices == 0))                                                                        \
    C(unit != 2 || (warps % 4 == 0 && column_warps == 1 && column_tiles >= 8))                                         \
    C(unit == 0 || emulates == 0)

#endif
