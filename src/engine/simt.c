/* SPDX-License-Identifier: Apache-2.0 */
/* The SIMT engine: the work-items of a work-group share a block's rows and a tile's keys. */
#include "engine/engine.h"
#include "engine/simt/tunables.h"

MGK_TUNABLE_TABLE(simt, "simt", MGK_SIMT_TUNABLES, MGK_SIMT_CONSTRAINTS);

static bool exceeds(int64_t count, int64_t most)
{
    return most > 0 && count > most;
}

static bool has_heads(const mgk_footprint *f)
{
    return f->held_heads > 0;
}

/* Terms of a tile's key. In the backward pass the same block serves the kernel of queries. */
static int64_t key_terms(const mgk_footprint *f)
{
    return !f->forward && f->apart_terms > f->tile.terms ? f->apart_terms : f->tile.terms;
}

/* True if tiles are read where they lie. Tiles of the linear family are computed, not read: they have no such form. */
static bool is_direct(const mgk_footprint *f, const mgk_tunables *p)
{
    return f->scores > 0 && mgk_tunable_get(p, MGK_NAMED(direct)) != 0;
}

/* Layout: cl/engine/simt/block.clh, backward.clh. */
static uint64_t local_bytes_of(const mgk_footprint *f, const mgk_tunables *p)
{
    enum { PADS = 2 * 32 };
    const int64_t rows = (int64_t)mgk_tunable_get(p, MGK_NAMED(row_threads)) * mgk_tunable_get(p, MGK_NAMED(rows));
    const int64_t keys = (int64_t)mgk_tunable_get(p, MGK_NAMED(key_threads)) * mgk_tunable_get(p, MGK_NAMED(keys));
    const int64_t products = mgk_tunable_get(p, MGK_NAMED(features)) * (rows + keys) + PADS;
    const int64_t values =
        2 * (int64_t)mgk_tunable_get(p, MGK_NAMED(values)) * (f->forward ? f->value_size : f->widest);
    const bool direct = is_direct(f, p);
    const int64_t work = direct || keys * rows > products ? keys * rows : products;
    const int64_t floats = (direct ? 0 : products > values ? products : values) + work + keys * key_terms(f);
    return (uint64_t)floats * sizeof(float) + 64;
}

static int64_t threads_of(const mgk_tunables *p)
{
    return (int64_t)mgk_tunable_get(p, MGK_NAMED(row_threads)) * mgk_tunable_get(p, MGK_NAMED(key_threads));
}

/* Layout: cl/engine/simt/few_rows.clh. */
static uint64_t few_local_bytes(const mgk_footprint *f, const mgk_tunables *p, int rows)
{
    enum { TEAM = 4, SEGMENTS = 8 };
    const int64_t threads = threads_of(p), team = 2 * threads * (TEAM + 1), reduction = (threads + SEGMENTS) * rows;
    const int64_t scratch = team > reduction ? team : reduction;
    const int64_t floats = rows * f->block.features + threads * (rows + key_terms(f)) + scratch;
    return (uint64_t)floats * sizeof(float) + 64;
}

#define MOST_PIECE 8 /* most columns of a value in a work-item of this form */

/* Rows of the form whose work-items are keys: for decoding, where most rows of a block would be empty. */
static int few_rows(const mgk_footprint *f, const mgk_device_facts *facts, const mgk_tunables *p)
{
    enum { LEAST_PIECE = 4, MOST_TERMS = 8, MOST_TERMS_OF_ROW = 40 }; /* in a work-item's registers */
    const int64_t terms = f->products + f->block.terms;
    int rows = mgk_few_rows(f);
    while (rows > 1 && rows * terms > MOST_TERMS)
        rows /= 2;
    const bool fits = threads_of(p) * LEAST_PIECE >= f->value_size && terms <= MOST_TERMS_OF_ROW &&
                      few_local_bytes(f, p, rows) <= facts->info.local_memory_bytes;
    return fits && mgk_tunable_is_default(p, MGK_NAMED(rows)) && mgk_tunable_is_default(p, MGK_NAMED(keys)) ? rows : 0;
}

static int at_most(int value, int limit)
{
    return value < limit ? value : limit;
}

static void halve(mgk_tunables *p, mgk_tunable_name name)
{
    const int value = mgk_tunable_get(p, name);
    if (value > 1)
        mgk_tunable_default(p, name, value / 2);
}

/* Work-items that share a row own whole numbers of features and values. */
static void choose_threads(const mgk_footprint *f, const mgk_device_facts *facts, mgk_tunables *p)
{
    const clmgk_device_class kind = facts->info.device_class;
    const int key_threads = at_most(mgk_tunable_base(p, MGK_NAMED(key_threads), kind), f->narrowest);
    int row_threads = mgk_tunable_base(p, MGK_NAMED(row_threads), kind);
    while (row_threads > 1 && (uint64_t)row_threads * (uint64_t)key_threads > facts->info.max_work_group)
        row_threads /= 2;
    while (row_threads > 1 && f->work_items > 0 && (int64_t)row_threads * key_threads > f->work_items)
        row_threads /= 2;
    mgk_tunable_default(p, MGK_NAMED(key_threads), key_threads);
    mgk_tunable_default(p, MGK_NAMED(row_threads), row_threads);
}

/* ---- registers ---------------------------------------------------------------------------------------------- */

/* Limits of a work-item's rows, keys and heads, found by compiling (tests/offline): beyond them registers spill. 0: no
 * limit. */
typedef struct share {
    int row_part, key_part;                   /* divisors of its default rows and keys */
    bool double_rows;                         /* twice the default rows */
    int64_t row_sums, most_sums;              /* sums of a row that work-items share, and of a work-item's rows */
    int64_t scores;                           /* of a row and key */
    int64_t most_scores, most_scores_of_rows; /* beyond the first, fewer keys; beyond the second, fewer rows */
    int64_t most_head_sums;                   /* sums of a work-item's rows and heads */
    int64_t most_few_head_sums;               /* the same in the form for few rows */
} share;

/* A form of a block on NVIDIA's GPUs. */
typedef struct block_form {
    bool double_rows;
    int row_threads; /* at most */
} block_form;

static bool is_cpu(const mgk_device_facts *facts)
{
    return facts->info.device_class == CLMGK_DEVICE_CPU;
}

/* True if a work-item of an NVIDIA GPU may have twice the rows, where registers suffice: fewer loads and copies for a
 * product. */
static bool may_double_rows(const mgk_footprint *f)
{
    enum { MOST_COMPONENTS = 2 };
    return f->components <= MOST_COMPONENTS && !f->modified && !f->priors && !f->variances;
}

/* Modifiers take the registers of rows. So do more than two components, except with NVIDIA's compiler, which keeps four
 * rows. */
static share share_of_forward(const mgk_footprint *f, const mgk_device_facts *facts, const block_form *form)
{
    const bool many = f->components > 2 && mgk_gpu_of(facts) != MGK_GPU_NVIDIA;
    return (share){.row_part = !is_cpu(facts) && (f->modified || many) ? 2 : 1,
                   .key_part = 1,
                   .double_rows = form->double_rows && may_double_rows(f),
                   .row_sums = f->value_size,
                   /* rusticl of Mesa 22 miscompiles private arrays beyond 48 */
                   .most_sums = facts->runtime == MGK_RUNTIME_RUSTICL ? 32 : 64};
}

/* Wide heads take registers for their sums, as do components with variances. Intel's compiler also needs some for
 * addresses. */
static share share_of_backward(const mgk_footprint *f, const mgk_device_facts *facts)
{
    enum { WIDE = 128 };
    const bool cpu = is_cpu(facts), several = f->components > 1, intel = mgk_gpu_of(facts) == MGK_GPU_INTEL;
    const bool halved = cpu || (several && mgk_gpu_of(facts) != MGK_GPU_NVIDIA) || f->modified;
    const bool half_rows = (halved && !cpu) || intel || f->narrowest + f->widest > WIDE;
    const bool quarter_rows = (!cpu && several && f->variances) || (intel && halved);
    return (share){.row_part = (half_rows ? 2 : 1) * (quarter_rows && half_rows ? 2 : 1), .key_part = halved ? 2 : 1};
}

enum { MANY_SCORES = 8 }; /* of mixed heads: a row and key have one for each global head */

/* NVIDIA's compiler gives a work-item more registers, hence a larger block of scores with fewer loads for each. The
 * sums of each head then limit the number of heads with small values. Where many scores are held, a work-item keeps two
 * rows and fewer heads: other work-groups compute the products again, but a single row would need three loads for each
 * multiply-add. Noise, relu and modifiers take further registers. */
static share share_of_heads_forward(const mgk_footprint *f, const mgk_device_facts *facts)
{
    const bool large = mgk_gpu_of(facts) == MGK_GPU_NVIDIA, many = large && f->scores >= MANY_SCORES;
    const int64_t scores = many ? 64 : large ? 32 : 16, head_sums = large && f->value_size < 64 ? 32 : 64;
    const int more = (f->noise || f->generalised ? 4 : 1) * (f->modified ? 2 : 1);
    return (share){.row_part = 1,
                   .key_part = 1,
                   .row_sums = f->value_size,
                   .most_sums = 64,
                   .scores = f->scores,
                   .most_scores = f->modified ? 8 : scores,
                   .most_scores_of_rows = many ? 64 : 32,
                   .most_head_sums = (many ? 32 : head_sums) / more,
                   .most_few_head_sums = head_sums / more};
}

/* For few components NVIDIA's larger block, and Intel's usual one. Noise or wide heads halve the keys, and noise also
 * halves the heads, because their code spilled. */
static share share_of_heads_backward(const mgk_footprint *f, const mgk_device_facts *facts)
{
    enum { MOST_COMPONENTS = 4, WIDE = 256 };
    const mgk_gpu gpu = mgk_gpu_of(facts);
    const bool few = f->components <= MOST_COMPONENTS;
    const bool large = gpu == MGK_GPU_NVIDIA && few && !f->generalised && !f->modified;
    return (share){.row_part = (large || is_cpu(facts) ? 1 : 2) * (gpu == MGK_GPU_INTEL && !few ? 2 : 1),
                   .key_part = large && !f->noise && f->narrowest + f->widest <= WIDE ? 1 : 2,
                   .row_sums = f->value_size + f->block.features,
                   .most_sums = 128,
                   .scores = f->scores + 1,
                   .most_scores = large ? 96 : 24,
                   .most_head_sums = large && !f->noise ? 64 : 32};
}

static share share_of(const mgk_footprint *f, const mgk_device_facts *facts, const block_form *form)
{
    if (f->scores == 0) /* no softmax over keys: the block has no rows and keys to choose */
        return (share){.row_part = 1, .key_part = 1};
    if (has_heads(f))
        return f->forward ? share_of_heads_forward(f, facts) : share_of_heads_backward(f, facts);
    return f->forward ? share_of_forward(f, facts, form) : share_of_backward(f, facts);
}

/* Takes as many rows and keys of a work-item as fit in its registers. Returns the rows. */
static int64_t choose_rows(const share *s, const mgk_device_facts *facts, mgk_tunables *p)
{
    const clmgk_device_class kind = facts->info.device_class;
    const int key_threads = mgk_tunable_get(p, MGK_NAMED(key_threads));
    int64_t rows = mgk_tunable_base(p, MGK_NAMED(rows), kind) * (s->double_rows ? 2 : 1) / s->row_part;
    int64_t keys = mgk_tunable_base(p, MGK_NAMED(keys), kind) / s->key_part;
    while (rows > 1 && (exceeds(rows * (s->row_sums / key_threads), s->most_sums) ||
                        exceeds(rows * keys * s->scores, s->most_scores_of_rows)))
        rows /= 2;
    while (keys > 1 && exceeds(rows * keys * s->scores, s->most_scores))
        keys /= 2;
    mgk_tunable_default(p, MGK_NAMED(rows), (int)rows);
    mgk_tunable_default(p, MGK_NAMED(keys), (int)keys);
    return rows;
}

/* Takes as many heads of a work-item as fit in its registers. */
static void choose_heads(const mgk_footprint *f, const share *s, int64_t rows, const mgk_device_facts *facts,
                         mgk_tunables *p)
{
    const int few = few_rows(f, facts, p);
    const int64_t usual = (f->forward ? mgk_tunable_get(p, MGK_NAMED(rows)) : rows) *
                          (f->value_size / mgk_tunable_get(p, MGK_NAMED(key_threads)));
    const int64_t sums = few > 0 ? (int64_t)few * MOST_PIECE : usual;
    int heads = 1;
    /* On a CPU this engine is for tests: fewer unrolled copies compile faster. Intel's compiler does not unroll a loop
     * that contains loops, and spills where the kernel's text has the copies. */
    while (!is_cpu(facts) && mgk_gpu_of(facts) != MGK_GPU_INTEL && heads < f->held_heads)
        heads *= 2;
    while (heads > 1 && exceeds(heads * sums, few > 0 ? s->most_few_head_sums : s->most_head_sums))
        heads /= 2;
    mgk_tunable_default(p, MGK_NAMED(heads), heads);
}

static void choose_share(const mgk_footprint *f, const mgk_device_facts *facts, const block_form *form, mgk_tunables *p)
{
    const share s = share_of(f, facts, form);
    const int64_t rows = choose_rows(&s, facts, p);
    if (has_heads(f))
        choose_heads(f, &s, rows, facts, p);
}

/* ---- blocks ------------------------------------------------------------------------------------------------- */

/* Rows of a block. More rows share the copying of a tile among more products. In the backward pass of a family without
 * mixed heads, blocks of fewer keys serve problems that have few. */
static void choose_block(const mgk_footprint *f, const mgk_device_facts *facts, const block_form *form, mgk_tunables *p)
{
    const int64_t key_threads = mgk_tunable_get(p, MGK_NAMED(key_threads)), rows = mgk_tunable_get(p, MGK_NAMED(rows));
    int64_t row_threads = mgk_tunable_get(p, MGK_NAMED(row_threads));
    if (mgk_gpu_of(facts) != MGK_GPU_NVIDIA)
        return;
    if (!f->forward && !has_heads(f)) {
        mgk_tunable_default(p, MGK_NAMED(row_threads), at_most((int)row_threads, form->row_threads));
        return;
    }
    while (row_threads < form->row_threads && row_threads * rows < f->rows && row_threads * key_threads < 256 &&
           2 * (uint64_t)row_threads * (uint64_t)key_threads <= facts->info.max_work_group)
        row_threads *= 2;
    mgk_tunable_default(p, MGK_NAMED(row_threads), (int)row_threads);
}

/* Keys of a chunk of values: a divisor of the tile, which depends on the other parameters; on a GPU two chunks take at
 * most 8 KB. */
static void choose_values(const mgk_footprint *f, const mgk_device_facts *facts, mgk_tunables *p)
{
    enum { CHUNKS = 2048 };
    const int tile = mgk_tunable_get(p, MGK_NAMED(key_threads)) * mgk_tunable_get(p, MGK_NAMED(keys));
    const bool limited = f->forward && facts->info.device_class != CLMGK_DEVICE_CPU;
    int values = mgk_tunable_get(p, MGK_NAMED(values));
    while (limited && values > 4 && 2 * (int64_t)values * f->value_size > CHUNKS)
        values /= 2;
    while (values > 2 && tile % values != 0)
        values /= 2;
    mgk_tunable_default(p, MGK_NAMED(values), values);
}

/* Intel's compiler spills with longer chunks (tests/offline). */
static int chunk_of(const mgk_device_facts *facts, const mgk_tunables *p, mgk_tunable_name name)
{
    enum { INTEL_CHUNK = 8 };
    const int chunk = mgk_tunable_base(p, name, facts->info.device_class);
    return mgk_gpu_of(facts) == MGK_GPU_INTEL ? at_most(chunk, INTEL_CHUNK) : chunk;
}

/* Parameters in the order in which they are halved until local memory suffices, ended by NULL. */
static const char *const *shrink_order(const mgk_footprint *f)
{
    static const char *const none[] = {NULL};
    static const char *const forward[] = {"values", "values", "keys", "keys", "rows", "rows", "rows", NULL};
    static const char *const backward[] = {"keys",     "rows",   "keys",   "rows", "features",
                                           "features", "values", "values", NULL};
    static const char *const heads[] = {"keys", "keys", "rows", "rows", "rows", "values", "values", "features", NULL};
    return f->scores == 0 ? none : has_heads(f) ? heads : f->forward ? forward : backward;
}

static void choose_with(const mgk_footprint *f, const mgk_device_facts *facts, const block_form *form, mgk_tunables *p)
{
    mgk_tunable_default(p, MGK_NAMED(direct), facts->local_is_global && !is_cpu(facts));
    choose_threads(f, facts, p);
    mgk_tunable_default(p, MGK_NAMED(features), at_most(chunk_of(facts, p, MGK_NAMED(features)), f->narrowest));
    mgk_tunable_default(p, MGK_NAMED(values), chunk_of(facts, p, MGK_NAMED(values)));
    choose_share(f, facts, form, p);
    choose_block(f, facts, form, p);
    choose_values(f, facts, p);
    for (const char *const *name = shrink_order(f); *name != NULL; ++name)
        if (local_bytes_of(f, p) > facts->info.local_memory_bytes)
            halve(p, (mgk_tunable_name){*name});
    choose_values(f, facts, p);
}

/* ---- the form of a block -------------------------------------------------------------------------------------- */

/* NVIDIA's compiler gives a work-item of softmax with heads up to 32 about 160 registers: one work-group of 256
 * work-items fits a compute unit. With this limit two fit, and little spills (tests/offline). With heads of 64 the loop
 * over tiles would spill; blocks then have 128 work-items without a limit. */
enum { LIMITED_SIZE = 32, LIMITED_REGISTERS = 128 };

/* True if the kernel with twice the rows takes the limit. */
static bool takes_limit(const mgk_footprint *f, const mgk_device_facts *facts)
{
    return facts->runtime == MGK_RUNTIME_NVIDIA && f->forward && !has_heads(f) && f->scores > 0 && f->components == 1 &&
           may_double_rows(f) && !f->keys_read_again && f->widest <= LIMITED_SIZE;
}

static bool limits_registers(const mgk_footprint *f, const mgk_device_facts *facts, const mgk_tunables *p, int few)
{
    enum { ROWS = 8, KEYS = 4, KEY_THREADS = 16 }; /* blocks with other numbers have other code */
    return takes_limit(f, facts) && few == 0 && mgk_tunable_get(p, MGK_NAMED(rows)) == ROWS &&
           mgk_tunable_get(p, MGK_NAMED(keys)) == KEYS && mgk_tunable_get(p, MGK_NAMED(key_threads)) == KEY_THREADS;
}

/* Work-groups of the forward pass that a unit holds. ptxas 13.0 gives most kernels of tests/offline all registers of
 * sm_90, and less than this to those for few rows. */
static int64_t resident_of(const mgk_footprint *f, const mgk_device_facts *facts, const mgk_tunables *p, int few)
{
    enum { MOST = 255, OF_FEW = 168 };
    const mgk_unit unit = mgk_unit_of(facts);
    const int registers = limits_registers(f, facts, p, few) ? LIMITED_REGISTERS : few > 0 ? OF_FEW : MOST;
    const uint64_t local = few > 0 ? few_local_bytes(f, p, few) : local_bytes_of(f, p);
    return unit.registers == 0 || !f->forward ? 0 : mgk_resident_groups(&unit, threads_of(p), registers, local);
}

/* True if each unit has a block of so many rows. */
static bool has_blocks(const mgk_footprint *f, const mgk_device_facts *facts, const mgk_tunables *p)
{
    const int64_t rows = (int64_t)mgk_tunable_get(p, MGK_NAMED(row_threads)) * mgk_tunable_get(p, MGK_NAMED(rows));
    const int64_t heads = has_heads(f) ? mgk_tunable_get(p, MGK_NAMED(heads)) : 1;
    const int64_t lists = f->problems * ((f->heads + heads - 1) / heads) / f->shared_heads;
    return lists * ((f->rows + rows - 1) / rows) >= (int64_t)facts->info.compute_units;
}

/* On NVIDIA's GPUs takes the largest block of which each unit has one. With twice the rows a unit holds two work-groups
 * of 256 only with the limit of registers. Few rows have one form. So have mixed heads in the backward pass or with
 * many scores, whose code would spill in smaller work-groups. */
static void choose(const mgk_footprint *f, const mgk_device_facts *facts, mgk_tunables *p)
{
    const bool one = mgk_few_rows(f) > 0 || (has_heads(f) && (!f->forward || f->scores >= MANY_SCORES));
    const bool nvidia = mgk_gpu_of(facts) == MGK_GPU_NVIDIA && f->scores > 0 && !one;
    const bool twice = nvidia && f->forward && !has_heads(f) && may_double_rows(f);
    const block_form forms[] = {{.double_rows = twice, .row_threads = twice && !takes_limit(f, facts) ? 8 : 16},
                                {.double_rows = false, .row_threads = 8},
                                {.double_rows = false, .row_threads = 4}};
    const size_t count = !nvidia ? 1 : f->forward ? 2 : 3;
    const mgk_tunables given = *p;
    for (size_t i = 0; i < count; ++i) {
        *p = given;
        choose_with(f, facts, &forms[i], p);
        if (i + 1 == count || has_blocks(f, facts, p))
            return;
    }
}

/* Private bytes of the forward pass; the backward pass's kernels hold too much for an estimate. */
static int64_t private_bytes_of(const mgk_footprint *f, const mgk_tunables *p)
{
    const int64_t heads = has_heads(f) ? mgk_tunable_get(p, MGK_NAMED(heads)) : 1;
    const int64_t row = f->block.terms + (f->scores + 1) * mgk_tunable_get(p, MGK_NAMED(keys)) +
                        heads * (f->value_size / mgk_tunable_get(p, MGK_NAMED(key_threads)) + f->head_terms);
    const int64_t floats = mgk_tunable_get(p, MGK_NAMED(rows)) * row + f->fixed + heads * f->head_fixed;
    return f->forward ? floats * (int64_t)sizeof(float) : 0;
}

static const char *compiler_of(const mgk_device_facts *facts, int registers)
{
    if (registers > 0)
        return MGK_REGISTERS_LIMIT "128";
    return mgk_gpu_of(facts) == MGK_GPU_INTEL ? MGK_MOST_REGISTERS : NULL;
}

static clmgk_status fit(const mgk_footprint *f, const mgk_device_facts *facts, mgk_tunables *p, mgk_block *block,
                        clmgk_error *error)
{
    choose(f, facts, p);
    MGK_TRY(mgk_tunables_check(p, true, error));
    const int key_threads = mgk_tunable_get(p, MGK_NAMED(key_threads)), few = few_rows(f, facts, p);
    const uint64_t threads = (uint64_t)threads_of(p);
    const uint64_t local = few > 0 ? few_local_bytes(f, p, few) : local_bytes_of(f, p);
    if (key_threads > f->narrowest || mgk_tunable_get(p, MGK_NAMED(features)) > f->narrowest)
        return mgk_fail(error, CLMGK_ERROR_UNSUPPORTED,
                        "engine simt: key-threads=%d, features=%d: expected at most %d for head_size and value_size",
                        key_threads, mgk_tunable_get(p, MGK_NAMED(features)), f->narrowest);
    MGK_TRY(mgk_check_group("simt", threads, local, facts, error));
    const int64_t rows = (int64_t)mgk_tunable_get(p, MGK_NAMED(row_threads)) * mgk_tunable_get(p, MGK_NAMED(rows));
    *block =
        (mgk_block){.rows = few > 0 ? few : rows,
                    .tile = few > 0 ? (int64_t)threads : (int64_t)key_threads * mgk_tunable_get(p, MGK_NAMED(keys)),
                    .threads = (size_t)threads,
                    .few_rows = few,
                    .local_bytes = local,
                    .private_bytes = (uint64_t)private_bytes_of(f, p),
                    .registers = limits_registers(f, facts, p, few) ? LIMITED_REGISTERS : 0,
                    .resident = resident_of(f, facts, p, few)};
    block->compiler = compiler_of(facts, block->registers);
    block->flags = (mgk_flags){.KERNEL_CALLS = facts->runtime == MGK_RUNTIME_POCL,
                               .FEW_ROWS = few,
                               .DIRECT_TILES = few == 0 && is_direct(f, p),
                               .WHOLE_CHUNKS = mgk_gpu_of(facts) == MGK_GPU_NVIDIA,
                               .ANY_GROUP_SIZE = block->registers > 0,
                               .SHUFFLE = facts->sub_group.shuffle,
                               .SUB_GROUP_SIZE = facts->sub_group.size,
                               .LEAST_SUB_GROUP = facts->least_sub_group};
    return CLMGK_OK;
}

/* No parameter matters: all sums over features are in order or by fours. */
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

/* On NVIDIA's GPUs local memory holds several work-groups with tiles of 64. */
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
                                    .key_terms_once = true,
                                    .rank = rank,
                                    .sum_tunables = {no_tunables, no_tunables, no_tunables},
                                    .fit = fit,
                                    .tile_limit = tile_limit,
                                    .feature_block = feature_block};
