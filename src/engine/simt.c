/* SPDX-License-Identifier: Apache-2.0 */
/* The SIMT engine: the work-items of a work-group share a block's rows and a tile's keys. */
#include "engine/engine.h"
#include "engine/simt/tunables.h"

#include <inttypes.h>

MGK_TUNABLE_TABLE(simt, "simt", MGK_SIMT_TUNABLES, MGK_SIMT_CONSTRAINTS);

static bool exceeds(int64_t count, int64_t most)
{
    return most > 0 && count > most;
}

/* Layout: cl/engine/simt/block.clh, backward.clh. */
static uint64_t local_bytes_of(const mgk_footprint *f, const mgk_tunables *p)
{
    enum { PADS = 2 * 32 };
    const int64_t rows = (int64_t)mgk_tunable_get(p, "row-threads") * mgk_tunable_get(p, "rows");
    const int64_t keys = (int64_t)mgk_tunable_get(p, "key-threads") * mgk_tunable_get(p, "keys");
    const int64_t products = mgk_tunable_get(p, "features") * (rows + keys) + PADS;
    const int64_t values = 2 * (int64_t)mgk_tunable_get(p, "values") * (f->forward ? f->value_size : f->widest);
    const int64_t work = keys * rows > products ? keys * rows : products;
    const int64_t floats = (products > values ? products : values) + work + keys * f->key_terms;
    return (uint64_t)floats * sizeof(float) + 64;
}

static int64_t threads_of(const mgk_tunables *p)
{
    return (int64_t)mgk_tunable_get(p, "row-threads") * mgk_tunable_get(p, "key-threads");
}

/* Layout: cl/engine/simt/few_rows.clh. */
static uint64_t few_local_bytes(const mgk_footprint *f, const mgk_tunables *p, int rows)
{
    enum { TEAM = 4, SEGMENTS = 8 };
    const int64_t threads = threads_of(p), team = 2 * threads * (TEAM + 1), reduction = (threads + SEGMENTS) * rows;
    const int64_t scratch = team > reduction ? team : reduction;
    const int64_t floats = rows * f->query_size + threads * (rows + f->key_terms) + scratch;
    return (uint64_t)floats * sizeof(float) + 64;
}

#define MOST_PIECE 8 /* columns of a value that a work-item of this form has */

/* Rows of a block whose work-items are keys: for decoding, where most rows of a block would be empty. */
static int few_rows(const mgk_footprint *f, const mgk_device_facts *facts, const mgk_tunables *p)
{
    enum { LEAST_PIECE = 4, MOST_TERMS = 8, MOST_TERMS_OF_ROW = 40 }; /* of a work-item's registers */
    const int64_t terms = f->products + f->row_terms;
    int rows = mgk_few_rows(f);
    while (rows > 1 && rows * terms > MOST_TERMS)
        rows /= 2;
    const bool fits = threads_of(p) * LEAST_PIECE >= f->value_size && terms <= MOST_TERMS_OF_ROW &&
                      few_local_bytes(f, p, rows) <= facts->info.local_memory_bytes;
    return fits && mgk_tunable_is_default(p, "rows") && mgk_tunable_is_default(p, "keys") ? rows : 0;
}

static int at_most(int value, int limit)
{
    return value < limit ? value : limit;
}

static void halve(mgk_tunables *p, const char *name)
{
    const int value = mgk_tunable_get(p, name);
    if (value > 1)
        mgk_tunable_default(p, name, value / 2);
}

/* Work-items that share a row own whole numbers of features and values. */
static void choose_threads(const mgk_footprint *f, const mgk_device_facts *facts, mgk_tunables *p)
{
    const clmgk_device_class kind = facts->info.device_class;
    const int key_threads = at_most(mgk_tunable_base(p, "key-threads", kind), f->narrowest);
    int row_threads = mgk_tunable_base(p, "row-threads", kind);
    while (row_threads > 1 && (uint64_t)row_threads * (uint64_t)key_threads > facts->info.max_work_group)
        row_threads /= 2;
    mgk_tunable_default(p, "key-threads", key_threads);
    mgk_tunable_default(p, "row-threads", row_threads);
}

/* Rows, keys and heads of a work-item, as many as fit in its registers. */
static void choose_share(const mgk_footprint *f, const mgk_device_facts *facts, mgk_tunables *p)
{
    const clmgk_device_class kind = facts->info.device_class;
    const int key_threads = mgk_tunable_get(p, "key-threads");
    int64_t rows = mgk_tunable_base(p, "rows", kind) * (f->double_rows ? 2 : 1) / f->row_part;
    int64_t keys = mgk_tunable_base(p, "keys", kind) / f->key_part;
    while (rows > 1 && (exceeds(rows * (f->row_sums / key_threads), f->most_sums) ||
                        exceeds(rows * keys * f->scores, f->most_scores_of_rows)))
        rows /= 2;
    while (keys > 1 && exceeds(rows * keys * f->scores, f->most_scores))
        keys /= 2;
    mgk_tunable_default(p, "rows", (int)rows);
    mgk_tunable_default(p, "keys", (int)keys);
    if (f->held_heads == 0)
        return;
    const int few = few_rows(f, facts, p);
    const int64_t usual = (f->forward ? mgk_tunable_get(p, "rows") : rows) * (f->value_size / key_threads);
    const int64_t sums = few > 0 ? (int64_t)few * MOST_PIECE : usual;
    int heads = 1;
    /* on a CPU this engine is for tests: fewer unrolled copies compile faster; Intel's compiler makes no copies of a
     * loop with loops inside, and spills with those that a kernel has */
    while (kind != CLMGK_DEVICE_CPU && mgk_gpu_of(facts) != MGK_GPU_INTEL && heads < f->held_heads)
        heads *= 2;
    while (heads > 1 && exceeds(heads * sums, few > 0 ? f->most_few_head_sums : f->most_head_sums))
        heads /= 2;
    mgk_tunable_default(p, "heads", heads);
}

/* Blocks of more rows: the copying of a tile is shared by more products. */
static void choose_block(const mgk_footprint *f, const mgk_device_facts *facts, mgk_tunables *p)
{
    enum { NVIDIA_ROW_THREADS = 16 };
    const int64_t key_threads = mgk_tunable_get(p, "key-threads"), rows = mgk_tunable_get(p, "rows");
    int64_t row_threads = mgk_tunable_get(p, "row-threads");
    if ((!f->forward && f->held_heads == 0) || mgk_gpu_of(facts) != MGK_GPU_NVIDIA)
        return;
    while (row_threads < NVIDIA_ROW_THREADS && row_threads * rows < f->rows && row_threads * key_threads < 256 &&
           2 * (uint64_t)row_threads * (uint64_t)key_threads <= facts->info.max_work_group)
        row_threads *= 2;
    mgk_tunable_default(p, "row-threads", (int)row_threads);
}

/* A divisor of the tile, which depends on the other parameters; on a GPU two chunks of no more than 8 KB. */
static void choose_values(const mgk_footprint *f, const mgk_device_facts *facts, mgk_tunables *p)
{
    enum { CHUNKS = 2048 };
    const int tile = mgk_tunable_get(p, "key-threads") * mgk_tunable_get(p, "keys");
    const bool limited = f->forward && facts->info.device_class != CLMGK_DEVICE_CPU;
    int values = mgk_tunable_get(p, "values");
    while (limited && values > 4 && 2 * (int64_t)values * f->value_size > CHUNKS)
        values /= 2;
    while (values > 2 && tile % values != 0)
        values /= 2;
    mgk_tunable_default(p, "values", values);
}

/* Intel's compiler spills with longer chunks (tests/offline). */
static int chunk_of(const mgk_device_facts *facts, const mgk_tunables *p, const char *name)
{
    enum { INTEL_CHUNK = 8 };
    const int chunk = mgk_tunable_base(p, name, facts->info.device_class);
    return mgk_gpu_of(facts) == MGK_GPU_INTEL ? at_most(chunk, INTEL_CHUNK) : chunk;
}

static void choose(const mgk_footprint *f, const mgk_device_facts *facts, mgk_tunables *p)
{
    choose_threads(f, facts, p);
    mgk_tunable_default(p, "features", at_most(chunk_of(facts, p, "features"), f->narrowest));
    mgk_tunable_default(p, "values", chunk_of(facts, p, "values"));
    choose_share(f, facts, p);
    choose_block(f, facts, p);
    choose_values(f, facts, p);
    for (const char *const *name = f->shrink; *name != NULL; ++name)
        if (local_bytes_of(f, p) > facts->info.local_memory_bytes)
            halve(p, *name);
    choose_values(f, facts, p);
}

/* Of the forward pass; the backward pass's kernels hold too much for an estimate. */
static int64_t private_bytes_of(const mgk_footprint *f, const mgk_tunables *p)
{
    const int64_t heads = f->held_heads > 0 ? mgk_tunable_get(p, "heads") : 1;
    const int64_t row = f->row_terms + f->scores * mgk_tunable_get(p, "keys") +
                        heads * (f->value_size / mgk_tunable_get(p, "key-threads") + f->head_terms);
    const int64_t floats = mgk_tunable_get(p, "rows") * row + f->arrays.fixed + heads * f->arrays.head_fixed;
    return f->forward ? floats * (int64_t)sizeof(float) : 0;
}

static clmgk_status fit(const mgk_footprint *f, const mgk_device_facts *facts, mgk_tunables *p, mgk_block *block,
                        clmgk_error *error)
{
    choose(f, facts, p);
    MGK_TRY(mgk_tunables_check(p, true, error));
    const int key_threads = mgk_tunable_get(p, "key-threads"), few = few_rows(f, facts, p);
    const uint64_t threads = (uint64_t)threads_of(p);
    const uint64_t local = few > 0 ? few_local_bytes(f, p, few) : local_bytes_of(f, p);
    if (key_threads > f->narrowest || mgk_tunable_get(p, "features") > f->narrowest)
        return mgk_fail(error, CLMGK_ERROR_UNSUPPORTED,
                        "engine simt: key-threads=%d, features=%d: expected at most %d for head_size and value_size",
                        key_threads, mgk_tunable_get(p, "features"), f->narrowest);
    if (threads > facts->info.max_work_group || threads > facts->work_item_limit)
        return mgk_fail(error, CLMGK_ERROR_UNSUPPORTED,
                        "engine simt: a work-group of %" PRIu64 ", the device takes %" PRIu64, threads,
                        facts->info.max_work_group);
    if (local > facts->info.local_memory_bytes)
        return mgk_fail(error, CLMGK_ERROR_UNSUPPORTED,
                        "engine simt: value_size and components need %" PRIu64
                        " bytes of local memory, the device has %" PRIu64,
                        local, facts->info.local_memory_bytes);
    const int64_t rows = (int64_t)mgk_tunable_get(p, "row-threads") * mgk_tunable_get(p, "rows");
    *block = (mgk_block){.rows = few > 0 ? few : rows,
                         .tile = few > 0 ? (int64_t)threads : (int64_t)key_threads * mgk_tunable_get(p, "keys"),
                         .threads = (size_t)threads,
                         .few_rows = few,
                         .whole_chunks = mgk_gpu_of(facts) == MGK_GPU_NVIDIA,
                         .local_bytes = local,
                         .private_bytes = (uint64_t)private_bytes_of(f, p),
                         .compiler = mgk_gpu_of(facts) == MGK_GPU_INTEL ? MGK_MOST_REGISTERS : NULL};
    return CLMGK_OK;
}

static void set_flags(const mgk_device_facts *facts, const mgk_tunables *p, const mgk_block *block, mgk_flags *flags)
{
    (void)p;
    flags->KERNEL_CALLS = facts->runtime == MGK_RUNTIME_POCL;
    flags->FEW_ROWS = block->few_rows;
    flags->WHOLE_CHUNKS = block->whole_chunks;
    flags->SHUFFLE = facts->sub_group.shuffle;
    flags->SUB_GROUP_SIZE = facts->sub_group.size;
    flags->LEAST_SUB_GROUP = facts->least_sub_group;
}

/* All sums over features are in order, or by fours, whatever the parameters. */
static const char *const no_tunables[] = {NULL};

static mgk_rank rank(const mgk_device_facts *facts, const clmgk_attention_desc *desc)
{
    (void)desc;
    if (facts->simd_vectors)
        return (mgk_rank){MGK_RANK_LAST_RESORT, "runs where work-items are loops, for tests"};
    return (mgk_rank){MGK_RANK_MADE_FOR, "work-items share tiles in local memory"};
}

static int64_t tile_limit(const mgk_device_facts *facts)
{
    return (int64_t)facts->info.local_memory_bytes;
}

/* Local memory holds several work-groups with tiles of 64 on NVIDIA's. */
static int feature_block(const mgk_device_facts *facts)
{
    return mgk_gpu_of(facts) == MGK_GPU_NVIDIA ? 64 : 32;
}

const mgk_engine mgk_engine_simt = {.value = CLMGK_ENGINE_SIMT,
                                    .tunables = &simt_table,
                                    .dtypes = MGK_ALL_DTYPES,
                                    .queries_apart = true,
                                    .few_rows_of_heads = true,
                                    .exchanges = true,
                                    .rank = rank,
                                    .sum_tunables = {no_tunables, no_tunables, no_tunables},
                                    .fit = fit,
                                    .tile_limit = tile_limit,
                                    .feature_block = feature_block,
                                    .set_flags = set_flags};
