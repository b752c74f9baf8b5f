/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Engines: each computes a block of rows against a tile of keys. To add an engine, write its file here and its files in
 * cl/engine/<name>/, and add a line to CLMGK_ENGINE_LIST.
 */
#ifndef MGK_ENGINE_H
#define MGK_ENGINE_H

#include "clmgk/attention.h"
#include "device/device.h"
#include "device/flags.h"
#include "engine/waves.h"
#include "tuning/tunables.h"

/* Parameters that do not depend on the engine: each engine has `splits`, those with waves `split-from`;
 * families whose blocks hold several heads add `heads`. */
#define MGK_KNOWN_TUNABLES(T) T(splits, "splits") T(split_from, "split-from") T(heads, "heads")
MGK_TUNABLE_NAMES(MGK_KNOWN_TUNABLES)

/* Most rows of the forward pass's form for decoding. */
#define MGK_FEW_ROWS 4

/* Floats of a row of a block, or of a key of a tile. */
typedef struct mgk_side {
    int64_t features; /* of its queries or keys */
    int64_t terms;    /* numbers for the scores, and sums of the row */
} mgk_side;

/*
 * Sizes of a family's pass, for any engine: a block of rows meets tiles of keys. Counts are in floats unless noted.
 * Each engine lays out its own arrays and knows what fits in its registers and caches. In the backward pass a block
 * holds keys and their gradients, and a tile brings queries.
 */
typedef struct mgk_footprint {
    bool forward;

    /* ---- the problem */
    bool causal;
    int64_t rows;            /* of a problem, on average */
    int64_t heads, problems; /* number of heads and problems, whose rows are split into blocks */
    int64_t streamed;        /* rows of a problem in tiles: keys; backward: queries */
    int64_t shared_heads;    /* backward: heads that share a head of keys, whose block serves them all */
    int64_t work_items;      /* busy work-items of a work-group; 0: any number */
    int narrowest, widest;   /* the smaller and the larger of the classes of D and E */

    /* ---- the kernel's forms */
    bool few_rows;     /* it has the form for up to MGK_FEW_ROWS rows, and may use it here */
    bool short_panels; /* it has a form for a nearly empty last panel */
    bool only_pass;    /* no other pass computes the scores again */
    bool turns;        /* the backward pass may take components one after the other */
    bool unit;         /* its products may run on a CPU's matrix unit */
    bool one_block;    /* a block of all rows pays off even at twice the default size */

    /* ---- state */
    mgk_side block, tile;
    int64_t apart_terms; /* backward, where dQ has a kernel of its own: terms of a key in that kernel's tiles */
    int64_t tile_sums;   /* backward: sums over the block for each query of a tile */
    int64_t head_size;   /* class of D */
    int64_t value_size;  /* E: of a head's values, and of its sums of them */
    int64_t held_heads;  /* heads that a block could hold (the parameter `heads`); 0: the kernel has one */
    int64_t value_heads; /* heads of values that the held heads read */
    int64_t tile_heads;  /* heads of E in a tile for each head of the block: values; backward: dO */
    int64_t head_terms;  /* of each row and head */
    int64_t products;    /* of each row and key */
    int64_t scores;      /* kept of each row and key, beside the weights; 0: the family has no softmax over keys */
    int64_t pair_terms;  /* other numbers of each row and key */
    int64_t fixed, head_fixed;

    /* ---- the text of a pair's score: each of these takes registers */
    int64_t components;        /* whose scores are added up or mixed */
    bool keys_read_again;      /* for norms, or products with shifts */
    bool made_terms;           /* forward: terms of a tile's keys that the kernel makes or loads at each tile */
    bool modified;             /* bias, ALiBi, soft-cap, dropout */
    bool priors, variances;    /* arrays */
    bool two_types;            /* mgk_has_two_types */
    bool singles;              /* mgk_has_singles */
    uint32_t dtypes;           /* set of the storage types of Q, K, V and O */
    bool noise, generalised;   /* of mixed heads */
    bool one_softmax;          /* mixed heads share their weights */
    clmgk_precision precision; /* the least precision of products */
    clmgk_precision weights;   /* mgk_weights_precision */
} mgk_footprint;

/* The block that follows from the parameters. */
typedef struct mgk_block {
    int64_t rows, tile;
    size_t threads; /* work-items of a work-group */
    int few_rows;   /* number of rows of the special form; 0: the usual form */
    int bias_lanes; /* rows of a vector that reads a bias faster from a copy with lane = row; 0: no copy */
    int bias_keys;  /* the copy is padded to a multiple of them */
    uint64_t local_bytes, private_bytes;
    int unit;                  /* the matrix unit of its kernels; 0: none */
    bool turns;                /* the backward pass takes components one after the other (cl/mixture/block.clh) */
    clmgk_precision precision; /* precision of the products, if the descriptor and not the arrays decides it */
    int registers;             /* limit of a work-item's registers, set by `compiler`; 0: none */
    const char *compiler;      /* options of the device's compiler; NULL: none */
    const char *of_queries;    /* with a limit: options of the backward pass's kernel of queries; NULL: `compiler` */
    int64_t resident; /* work-groups of the forward pass that a compute unit holds; 0: it runs one after another */
    mgk_flags flags;  /* flags that the engine sets for its kernels */
} mgk_block;

/* An engine's suitability for a device, or a problem on it. A plan takes the engine with the most points among those
 * that can plan all of its passes. */
typedef struct mgk_rank {
    int points;         /* one of the values below, or any number above 0; 0: the engine can't */
    const char *reason; /* a constant text, for people: "the device has local memory" */
} mgk_rank;
enum {
    MGK_RANK_NONE = 0,
    MGK_RANK_TESTS = 1, /* only for callers that name it: measured values can't */
    MGK_RANK_LAST_RESORT = 10,
    MGK_RANK_MADE_FOR = 100
};

/* Sums over features that both passes of a plan compute, and must round alike. */
typedef enum mgk_sums {
    MGK_SUMS_NONE,     /* passes share no scores */
    MGK_SUMS_PRODUCTS, /* products of queries and keys */
    MGK_SUMS_NORMS,    /* also norms of keys, or products of keys with shifts */
    MGK_SUMS_COUNT
} mgk_sums;

/* The storage type that a field of the descriptor states. */
static inline clmgk_dtype mgk_dtype_of(const clmgk_attention_desc *desc, clmgk_storage storage)
{
    return storage == CLMGK_STORAGE_AS_Q ? desc->dtype : (clmgk_dtype)(storage - 1);
}

/* The set of 1 << clmgk_dtype: storage types of the problem's Q, K, V and O. */
static inline uint32_t mgk_dtypes_of(const clmgk_attention_desc *desc)
{
    return 1U << desc->dtype | 1U << mgk_dtype_of(desc, desc->dtype_k) | 1U << mgk_dtype_of(desc, desc->dtype_v) |
           1U << mgk_dtype_of(desc, desc->dtype_o);
}

/* Whether the products of a matrix unit are of f32: Q, K or V is f32; or K or V has a cache's type, and 16 bits do not
 * hold its numbers, or O is f32. */
bool mgk_has_singles(const clmgk_attention_desc *desc);

/* Whether Q and K have two types, also where a matrix unit multiplies them. */
static inline bool mgk_has_two_types(const clmgk_attention_desc *desc)
{
    const clmgk_dtype k = mgk_dtype_of(desc, desc->dtype_k);
    return k != desc->dtype && !mgk_is_cache_type(k) && !mgk_has_singles(desc);
}

/* Precision of products whose weights are rounded to V's type, 16 bits: less than EXACT where O's type is finer. */
clmgk_precision mgk_weights_precision(const clmgk_attention_desc *desc);

/* All types, for an engine whose kernels load and store through cl/base/elements.clh. */
#define MGK_DTYPE_BIT(name, value, ...) | 1U << (value)
#define MGK_ALL_DTYPES                  (0U CLMGK_DTYPE_LIST(MGK_DTYPE_BIT) CLMGK_CACHE_DTYPE_LIST(MGK_DTYPE_BIT))

typedef struct mgk_engine {
    clmgk_engine value;
    const mgk_tunable_table *tunables;

    /* ---- traits, which plans and families ask for instead of an engine's name */
    uint32_t dtypes;        /* set of 1 << clmgk_dtype: storage types of its kernels */
    bool private_tiles;     /* a work-group is one work-item, with its tiles in private arrays; else in local memory */
    bool queries_apart;     /* dQ has a kernel of its own, of queries; else the kernel of keys sums it, in order */
    bool few_rows_of_heads; /* the form for few rows serves blocks of several heads */
    int fewest_rows;        /* rows of a block, which mgk_packed_heads fills; 0: the engine has no use for it */
    int most_packed;        /* rows of packed heads; 0: any number */
    const int *units;       /* matrix units that its kernels have, newer ones after older ones, ended by 0; then rank
                               and kernels need facts->matrix_unit, which is none for other engines; NULL: none */
    bool emulates_units;    /* without a unit its kernels emulate one, for tests */
    /* True if a unit's kernels serve problems of this set of storage types and precision; NULL: all. */
    bool (*unit_serves)(int unit, uint32_t dtypes, clmgk_precision precision);
    bool exchanges;      /* work-items of a sub-group exchange numbers: fit needs facts->sub_group */
    bool key_terms_once; /* sums over a key's features that several blocks need are faster by a kernel of their own */

    /* The engine's rank on a device, for a problem (a resolved descriptor) or, with NULL, in general. mgk_engine_rank
     * looks at the storage types. */
    mgk_rank (*rank)(const mgk_device_facts *facts, const clmgk_attention_desc *desc);

    /* Names, ended by NULL, of the parameters on which these sums' order or precision depends. Two passes of the engine
     * that agree in them round the sums alike; passes on different engines never count as alike. */
    const char *const *sum_tunables[MGK_SUMS_COUNT];

    /* Sets defaults of the parameters that were not given, and computes the block. UNSUPPORTED, with the reason, if it
     * does not fit on the device. */
    clmgk_status (*fit)(const mgk_footprint *footprint, const mgk_device_facts *facts, mgk_tunables *tunables,
                        mgk_block *block, clmgk_error *error);

    /* Memory of a work-group, in bytes, for a family that lays out its tiles itself. */
    int64_t (*tile_limit)(const mgk_device_facts *facts);
    int (*feature_block)(const mgk_device_facts *facts); /* most features that such a family computes at a time */
} mgk_engine;

/* All engines, in the order of CLMGK_ENGINE_LIST. */
#define MGK_ENGINE_DECLARE(NAME, value, name) extern const mgk_engine mgk_engine_##name;
CLMGK_ENGINE_LIST(MGK_ENGINE_DECLARE)
#define MGK_ENGINE_PLACE(NAME, value, name) MGK_PLACE_OF_##NAME,
enum { CLMGK_ENGINE_LIST(MGK_ENGINE_PLACE) MGK_ENGINES };
extern const mgk_engine *const mgk_engines[MGK_ENGINES];

/* Parameters that every engine has, or that a family adds to each: the steps common to families read them. */
#define MGK_COMMON_TUNABLES(X) X(splits, ) X(split_from, ) X(heads, )

/* Fails, UNSUPPORTED, if the device has no work-groups with so many work-items and bytes of local memory; `engine`: for
 * the message. */
clmgk_status mgk_check_group(const char *engine, uint64_t threads, uint64_t local_bytes, const mgk_device_facts *facts,
                             clmgk_error *error);

/* With fewer queries than rows in the engine's blocks: number of query heads that share keys, if the queries of all can
 * be the rows of one head, so that a block reads the keys once; else 1. */
int64_t mgk_packed_heads(const mgk_engine *engine, const clmgk_attention_desc *desc);

/* Makes the problem of these packed heads: heads, length and layouts. */
void mgk_pack_heads(clmgk_attention_desc *desc, int64_t heads);

/* Rows of the form for few rows; 0: the problem has more rows, or the kernel has no such form here. */
int mgk_few_rows(const mgk_footprint *footprint);

/* The parameters of an engine and those added by a family (NULL: none), all values 0. */
mgk_tunables mgk_engine_tunables(const mgk_engine *engine, const mgk_added_tunables *added);

/* True if the device should have a matrix unit that the engine's kernels have. */
bool mgk_engine_has_unit(const mgk_engine *engine, const mgk_device_facts *facts);

/* Facts for an engine: without a matrix unit that its kernels do not have. */
mgk_device_facts mgk_engine_facts(const mgk_engine *engine, const mgk_device_facts *facts);

/* The engine's rank; NONE if its kernels lack a storage type of the problem. */
mgk_rank mgk_engine_rank(const mgk_engine *engine, const mgk_device_facts *facts, const clmgk_attention_desc *desc);

/* Newest matrix unit of the device for which an engine has kernels of a problem (NULL: of any); 0: none. */
int mgk_engines_newest_unit(const mgk_device_facts *facts, const clmgk_attention_desc *desc);

/* All engines, by descending points. */
typedef struct mgk_ranked {
    const mgk_engine *engine;
    mgk_rank rank;
} mgk_ranked;
void mgk_engines_rank(const mgk_device_facts *facts, const clmgk_attention_desc *desc, mgk_ranked ranked[MGK_ENGINES]);

/* The engine of this value or name; NULL if there is none. */
const mgk_engine *mgk_engine_of(clmgk_engine value);
const mgk_engine *mgk_engine_named(const char *name);

#endif
