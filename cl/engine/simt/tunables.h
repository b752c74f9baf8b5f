/* SPDX-License-Identifier: Apache-2.0 */
/* The SIMT engine's kernel parameters, in the form of engine/lane/tunables.h. In the backward pass rows and keys
 * exchange roles: a block holds keys. */
#ifndef MGK_SIMT_TUNABLES_H
#define MGK_SIMT_TUNABLES_H

/* On a CPU this engine is only for tests: small blocks compile several times faster there, and longer chunks of
 * features need fewer barriers. */
#define MGK_SIMT_TUNABLES(T)                                                                                           \
    T(row_threads, "row-threads", "THREADS_ROW", 8, 8, "work-items along the rows", 1, 2, 4, 8, 16, 32)                \
    T(key_threads, "key-threads", "THREADS_KEY", 16, 16, "work-items that share a row", 2, 4, 8, 16)                   \
    T(rows, "rows", "ROWS_PER_THREAD", 2, 4, "rows of a work-item", 1, 2, 4, 8)                                        \
    T(keys, "keys", "KEYS_PER_THREAD", 2, 4, "keys of a work-item", 1, 2, 4, 8)                                        \
    T(features, "features", "FEATURE_CHUNK", 32, 16, "features staged at a time", 8, 16, 32)                           \
    T(values, "values", "VALUE_CHUNK", 16, 16, "keys of values staged at a time", 2, 4, 8, 16)                         \
    T(direct, "direct", NULL, 0, 0, "1: tiles are read where they lie, not copied to local memory", 0, 1)              \
    T(splits, "splits", NULL, 0, 0, "ranges of keys that work-groups share out", 1, 2, 4, 8, 16, 32, 64, 128)          \
    T(split_from, "split-from", NULL, 0, 0,                                                                            \
      "first block of rows that splits concern: 0 the first, 1 the second, 2 the first one behind whole waves", 0, 1,  \
      2)

/*
 * The second constraint limits a work-group's registers. NVIDIA's processors have 65,536, at most 255 per work-item:
 * 256 work-items always fit. The estimate follows the forward pass of softmax as ptxas compiles it for sm_90
 * (softmax-64 of tests/offline, 8 x 16 work-items): at rows x keys of 1 x 1, 2 x 2, 4 x 2, 4 x 4, 4 x 8, 8 x 2 it takes
 * 64, 94, 134, 164, 198, 209 registers, estimated 78, 104, 144, 168, 216, 224. NVIDIA's OpenCL driver takes 121 forward
 * and 168 backward at 4 x 4. The estimate does not cover kernels that need more (backward, components, wide values): a
 * plan whose compiled kernel does not fit takes a smaller work-group.
 */
#define MGK_SIMT_CONSTRAINTS(C)                                                                                        \
    C((key_threads * keys) % values == 0)                                                                              \
    C((row_threads * key_threads <= 256) ||                                                                            \
      (row_threads * key_threads * (56 + 16 * rows + 4 * keys + 2 * rows * keys) <= 65536))

#endif
