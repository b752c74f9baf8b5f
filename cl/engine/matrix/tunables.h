/* SPDX-License-Identifier: Apache-2.0 */
/* The matrix engine's kernel parameters, in the form of engine/lane/tunables.h. In the backward pass rows and keys
 * exchange roles: a block holds keys. */
#ifndef MGK_MATRIX_TUNABLES_H
#define MGK_MATRIX_TUNABLES_H

#include "engine/units.clh"

#define MGK_MATRIX_TUNABLES(T)                                                                                         \
    T(warps, "warps", "WARPS", 1, 4, "warps of a work-group", 1, 2, 4, 8)                                              \
    T(row_tiles, "row-tiles", "ROW_TILES", 1, 1, "fragments of 16 rows of a warp", 1, 2)                               \
    T(key_tiles, "key-tiles", "KEY_TILES", 2, 8, "fragments of 8 keys of a tile", 2, 4, 8, 16)                         \
    T(splits, "splits", NULL, 0, 0, "ranges of keys that work-groups share out", 1, 2, 4, 8, 16, 32, 64, 128)          \
    T(split_from, "split-from", NULL, 0, 0,                                                                            \
      "first block of rows that splits concern: 0 the first, 1 the second, 2 the first one behind whole waves", 0, 1,  \
      2)                                                                                                               \
    T(unit, "unit", NULL, 0, 0,                                                                                        \
      "the device's matrix unit (1: mma.sync, 2: wgmma, 5 to 9: as `emulates`); 0: emulated", 0, 1, 2,                 \
      MATRIX_DIRECT_NUMBERS)                                                                                           \
    T(emulates, "emulates", NULL, 0, 0,                                                                                \
      "with unit 0, for tests: the unit whose layout is emulated (0: mma.sync, 5: AMD's mfma, 6: wmma of RDNA 3, 7: "  \
      "of RDNA 4, 8, 9: Intel's dpas of 16 and 8 work-items)",                                                         \
      0, MATRIX_DIRECT_NUMBERS)

#define MGK_MATRIX_CONSTRAINTS(C)                                                                                      \
    C(unit != 2 || ((warps == 4 || warps == 8) && row_tiles == 1)) C(unit == 0 || emulates == 0)

#endif
