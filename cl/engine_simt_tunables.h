/* SPDX-License-Identifier: Apache-2.0 */
/* The SIMT engine's kernel parameters, in the form of engine_lane_tunables.h. In the backward pass rows and keys change
 * roles: a block is of keys. */
#ifndef MGK_ENGINE_SIMT_TUNABLES_H
#define MGK_ENGINE_SIMT_TUNABLES_H

/* On a CPU this engine is for tests: small blocks compile several times faster there. */
#define MGK_SIMT_TUNABLES(T)                                                                                           \
    T(row_threads, "row-threads", "THREADS_ROW", 8, 8, "work-items along the rows", 1, 2, 4, 8, 16, 32)                \
    T(key_threads, "key-threads", "THREADS_KEY", 16, 16, "work-items that share a row", 2, 4, 8, 16)                   \
    T(rows, "rows", "ROWS_PER_THREAD", 2, 4, "rows of a work-item", 1, 2, 4, 8)                                        \
    T(keys, "keys", "KEYS_PER_THREAD", 2, 4, "keys of a work-item", 1, 2, 4, 8)                                        \
    T(features, "features", "FEATURE_CHUNK", 16, 16, "features staged at a time", 4, 8, 16)                            \
    T(values, "values", "VALUE_CHUNK", 16, 16, "keys of values staged at a time", 2, 4, 8, 16)                         \
    T(splits, "splits", NULL, 0, 0, "ranges of keys that work-groups share out", 1, 2, 4, 8, 16, 32, 64, 128)

#define MGK_SIMT_CONSTRAINTS(C) C((key_threads * keys) % values == 0)

#endif
