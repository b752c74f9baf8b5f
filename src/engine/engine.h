/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Engines: how a block of rows meets a tile of keys. To add one, write its file here and its files of cl/engine, and
 * give CLMGK_ENGINE_LIST and the lists of cl/engine (engine.clh, backward.clh) a line each.
 */
#ifndef MGK_ENGINE_H
#define MGK_ENGINE_H

#include "device/device.h"
#include "device/flags.h"
#include "tuning/tunables.h"

/* Up to so many rows the forward pass may have a form of its own, for decoding. */
#define MGK_FEW_ROWS 4

/* Floats of a work-item's arrays for each row of a block, key of a tile, row and key of a panel's tile, key and vector
 * lane; the same for each head, where a block holds several. */
typedef struct mgk_floats {
    int64_t row, key, score, key_lane, fixed;
    int64_t head_row, head_key, head_fixed;
    int64_t most_heads, most_key_heads; /* that are counted; 0: all that a block has room for */
} mgk_floats;

/*
 * What a family's pass makes of blocks: counts, and limits beyond which blocks are made smaller (0: none). In the
 * backward pass rows and keys change roles: a block is of keys, a tile of queries.
 */
typedef struct mgk_footprint {
    bool forward;
    bool few_rows;                /* the kernel has the form for MGK_FEW_ROWS, and nothing forbids it here */
    int64_t rows;                 /* of a problem, on average */
    int64_t heads, problems;      /* whose rows blocks share out */
    int64_t held_heads;           /* that one block could hold (the parameter `heads`); 0: the kernel has one */
    int64_t value_size;           /* of a head's staged values; backward: of its accumulators */
    int64_t row_terms, key_terms; /* floats that are kept of every row, and of every key of a tile */
    int64_t head_terms;           /* floats that are kept of every row and head */

    /* Where a work-item has the whole block in private memory: bytes that should stay in a core's caches. */
    mgk_floats arrays;
    mgk_floats block;  /* of them, what is gone over for every tile: second-level cache */
    mgk_floats staged; /* what is gone over for every panel: first-level cache */
    int64_t block_bytes, staged_bytes;
    int least_tile;  /* shorter ones cost more than staged_bytes gain */
    bool fixed_tile; /* block_bytes makes no tile shorter */

    /* Where work-items share it: registers that a work-item may take. */
    int row_part, key_part;                           /* of the default rows and keys of a work-item */
    int64_t row_sums, most_sums;                      /* accumulators of a row, of a work-item's rows */
    int64_t scores, most_scores, most_scores_of_rows; /* kept of a row and key; the second bound is met by fewer rows */
    int64_t most_head_sums;                           /* accumulators of a work-item's rows and heads */
    const char *const *shrink; /* parameters, in the order in which they are halved until local memory suffices */
} mgk_footprint;

/* The block that parameters make. */
typedef struct mgk_block {
    int64_t rows, tile;
    size_t threads; /* work-items of a work-group */
    int few_rows;   /* the form for so many rows; 0: the usual one */
    uint64_t local_bytes, private_bytes;
} mgk_block;

typedef struct mgk_engine {
    clmgk_engine value;
    const mgk_tunable_table *tunables;
    const char *const *sum_tunables; /* names, ended by NULL: on them depends how a key's features are summed up */

    /* Sets defaults of the parameters that were not given, and says what block all of them make. UNSUPPORTED, with the
     * reason: none that the device has room for. */
    clmgk_status (*fit)(const mgk_footprint *footprint, const mgk_device_facts *facts, mgk_tunables *tunables,
                        mgk_block *block, clmgk_error *error);

    /* Flags of a kernel with such blocks; NULL: none. */
    void (*set_flags)(const mgk_device_facts *facts, const mgk_tunables *tunables, const mgk_block *block,
                      mgk_flags *flags);
} mgk_engine;

/* All engines, in the order of CLMGK_ENGINE_LIST. */
#define MGK_ENGINE_DECLARE(NAME, value, name) extern const mgk_engine mgk_engine_##name;
CLMGK_ENGINE_LIST(MGK_ENGINE_DECLARE)
#define MGK_ENGINE_PLACE(NAME, value, name) MGK_PLACE_OF_##NAME,
enum { CLMGK_ENGINE_LIST(MGK_ENGINE_PLACE) MGK_ENGINES };
extern const mgk_engine *const mgk_engines[MGK_ENGINES];

/* The parameters of an engine with those that a family adds (NULL: none), all values 0. */
mgk_tunables mgk_engine_tunables(const mgk_engine *engine, const mgk_added_tunables *added);

/* The engine of this value or name; NULL: there is none. */
const mgk_engine *mgk_engine_of(clmgk_engine value);
const mgk_engine *mgk_engine_named(const char *name);

#endif
