/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The lane engine's kernel parameters, for the host. The kernels' own defaults (engine/lane/block.clh) are only used
 * when a kernel file is compiled without the library.
 *
 *     T(identifier, name, macro (NULL: a run-time number), default on CPUs, on GPUs (0: follows from the shape),
 *       meaning, values...)
 *     C(constraint over identifiers)
 *
 * Defaults are upper limits: a plan reduces them to fit the device and the shape.
 */
#ifndef MGK_LANE_TUNABLES_H
#define MGK_LANE_TUNABLES_H

#define MGK_LANE_TUNABLES(T)                                                                                           \
    T(lanes, "lanes", "LANES", 16, 16, "lanes of a vector", 4, 8, 16)                                                  \
    T(vectors, "vectors", "ROW_VECTORS", 2, 2, "vectors of query rows in a panel", 1, 2, 4)                            \
    T(panels, "panels", "PANELS", 8, 8, "panels of rows that share a copied tile of keys", 1, 2, 4, 8, 16)             \
    T(tile, "tile", "TILE_KEYS", 64, 64, "keys of a tile", 16, 32, 64, 128, 256)                                       \
    T(block, "block", "BLOCK_KEYS", 8, 8, "keys or features of a register block", 4, 8, 16)                            \
    T(unroll, "unroll", "UNROLL_PRODUCT", 4, 4, "unrolling of the product loops", 1, 2, 4, 8)                          \
    T(splits, "splits", NULL, 0, 0, "ranges of keys that work-groups share out", 1, 2, 4, 8, 16, 32, 64, 128)          \
    T(unit, "unit", NULL, 0, 0, "the CPU's unit (3: AMX for bf16, or AVX512-BF16; 4: AMX for f16); 0: none", 0, 3, 4)

#define MGK_LANE_CONSTRAINTS(C) C(tile % lanes == 0) C(unit == 0 || (lanes == 16 && tile % 32 == 0 && vectors <= 2))

#endif
