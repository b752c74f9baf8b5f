/* SPDX-License-Identifier: Apache-2.0 */
/* The lane engine: a work-item is a whole block, whose rows are the lanes of its vectors. */
#include "engine/engine.h"
#include "engine/lane/tunables.h"
#include "engine/units.clh"

#include <inttypes.h>
#include <string.h>

MGK_TUNABLE_TABLE(lane, "lane", MGK_LANE_TUNABLES, MGK_LANE_CONSTRAINTS);

/* The shortest tile, assumed when heads and panels are chosen. */
#define SHORT_TILE 16

/* The largest value of the parameter `block`. */
#define MOST_BLOCK 16

/* AMX: 16-bit numbers in a row of its registers, and f32 numbers. */
enum { ROW = 32, LANES = 16 };

typedef struct lane_block {
    int64_t lanes, panel_rows, panels, tile, heads;
    int64_t padding; /* on AMX, the largest factor by which arrays of the narrowest heads grow */
} lane_block;

static bool has_heads(const mgk_footprint *f)
{
    return f->held_heads > 0;
}

/* ---- memory ------------------------------------------------------------------------------------------------- */

/* Floats of a row in the backward pass: its keys, a copy of them, and their gradients. */
static int64_t row_floats(const mgk_footprint *f)
{
    return (f->forward ? 1 : 3) * f->block.features + f->block.terms;
}

/* Floats of a row and head in the backward pass: its values and their gradients. */
static int64_t head_row_floats(const mgk_footprint *f)
{
    return (f->forward ? 1 : 2) * f->value_size + f->head_terms;
}

/* The scores, and one vector of weights, for each key. */
static int64_t pair_floats(const mgk_footprint *f)
{
    return f->scores > 0 ? f->scores + 1 + f->pair_terms : 0;
}

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* Bytes of all arrays of a work-item that holds sums of `heads` heads and values of `value_heads`. */
static int64_t bytes_with(const mgk_footprint *f, const lane_block *b, int64_t heads, int64_t value_heads)
{
    const int64_t of_rows = b->panels * b->panel_rows * (row_floats(f) + heads * head_row_floats(f));
    const int64_t of_keys = b->tile * (f->tile.features + f->tile.terms + value_heads * f->tile_heads * f->value_size +
                                       b->lanes * f->tile_sums);
    const int64_t of_pairs = b->tile * b->panel_rows * pair_floats(f);
    return (of_rows + of_keys + of_pairs + f->fixed + heads * f->head_fixed) * b->padding * (int64_t)sizeof(float);
}

static int64_t bytes_of(const mgk_footprint *f, const lane_block *b)
{
    return bytes_with(f, b, b->heads, b->heads);
}

/* Bytes that every tile reads again, which should stay in a core's second-level cache. In the forward pass of one head
 * only the rows count, since keys are copied to few places. With several heads the existing heads count, not the
 * block's room for heads. */
static int64_t block_bytes(const mgk_footprint *f, const lane_block *b)
{
    if (f->forward && !has_heads(f))
        return b->panels * b->panel_rows * (f->block.features + f->value_size) * (int64_t)sizeof(float);
    if (f->forward)
        return bytes_with(f, b, least(b->heads, f->held_heads), least(b->heads, f->value_heads));
    return bytes_of(f, b);
}

/* Most bytes of a block. With several heads a block may exceed the cache, because fewer blocks stream fewer tiles. */
static int64_t most_block_bytes(const mgk_footprint *f)
{
    const int64_t kilobytes = has_heads(f) ? (f->forward ? 1280 : 1664) : (f->forward ? 288 : 880);
    return kilobytes << 10;
}

/* Bytes that every panel reads again, which should stay in the first-level cache: a tile's keys, or with several heads
 * the kept scores. */
static int64_t staged_bytes(const mgk_footprint *f, const lane_block *b)
{
    const int64_t floats = has_heads(f) ? b->panel_rows * f->scores : f->tile.features;
    return b->tile * floats * (int64_t)sizeof(float);
}

/* Most of these bytes. The form for few rows reads keys in place, several times where it needs norms or shifts: the
 * tile stays in the cache. */
static int64_t most_staged_bytes(const mgk_footprint *f)
{
    const bool again = f->keys_read_again && mgk_few_rows(f) > 0;
    return (int64_t)(has_heads(f) ? 16 : again ? 4 : 96) << 10;
}

/* On a CPU private arrays lie on a worker's stack. GPUs, on which this engine is the last resort, hang or fail with
 * arrays of that size. */
static int64_t private_limit(const mgk_device_facts *facts)
{
    return facts->info.device_class == CLMGK_DEVICE_CPU ? INT64_C(2) << 20 : INT64_C(16) << 10;
}

/* ---- blocks ------------------------------------------------------------------------------------------------- */

/* True if there are fewer blocks than the compute units need. The backward pass distributes work differently. */
static bool too_few(const mgk_footprint *f, const lane_block *b, int64_t groups)
{
    const int64_t rows = b->panels * b->panel_rows;
    return f->forward && (f->rows + rows - 1) / rows * ((f->heads + b->heads - 1) / b->heads) * f->problems < groups;
}

/* Takes as many heads as fit beside one panel, or fewer if blocks of rows alone can't keep the compute units busy. */
static void choose_heads(const mgk_footprint *f, const mgk_device_facts *facts, lane_block *b)
{
    const int64_t limit = private_limit(facts) / (f->forward ? 2 : 1);
    while (b->heads < f->held_heads)
        b->heads *= 2;
    while (b->heads > 1 && (block_bytes(f, b) > limit || too_few(f, b, (int64_t)facts->info.compute_units)))
        b->heads /= 2;
}

/* Takes the most panels that keep the compute units busy and fit into the cache: all panels share the loading of a
 * tile. */
static void choose_panels(const mgk_footprint *f, const mgk_device_facts *facts, lane_block *b)
{
    while (b->panels > 1 && (block_bytes(f, b) > most_block_bytes(f) || f->rows <= b->panels / 2 * b->panel_rows ||
                             too_few(f, b, 4 * (int64_t)facts->info.compute_units)))
        b->panels /= 2;
}

/* True if the tile has the parameter's default length, and the rows are chosen for it. */
static bool has_fixed_tile(const mgk_footprint *f)
{
    return !f->forward && !has_heads(f);
}

/* Takes the longest tile that fits into the caches. With several heads, shorter tiles than a limit cost more than the
 * first-level cache gains. */
static void choose_tile(const mgk_footprint *f, lane_block *b, int64_t shortest)
{
    const int64_t least_tile = has_heads(f) ? INT64_C(2) * SHORT_TILE : shortest;
    if (has_fixed_tile(f))
        return;
    while (b->tile > least_tile && staged_bytes(f, b) > most_staged_bytes(f))
        b->tile /= 2;
    while (b->tile > shortest && block_bytes(f, b) > most_block_bytes(f))
        b->tile /= 2;
}

/* Longest tile. Twice the tile halves the work at its begin and end, if the block has more rows and its keys fit beside
 * the rest. Measured only with two units, on which products take half the time. The length depends on the block, not on
 * the problem, which would make more programs. */
static int64_t longest_tile(const mgk_footprint *f, const mgk_device_facts *facts, const lane_block *b, int64_t tile)
{
    enum { WIDEST = 64 };
    const bool fits = (f->forward && f->products > 1 ? f->products : 1) * f->widest <= WIDEST;
    return facts->x86_two_units && fits && b->panels * b->panel_rows > tile ? 2 * tile : tile;
}

static bool uses_unit(const mgk_tunables *p)
{
    return mgk_tunable_get(p, MGK_NAMED(unit)) != 0;
}

/* The unit's products of f16 numbers need all arrays in f16. Its products of bf16 numbers round other types. */
static bool unit_serves(int unit, uint32_t dtypes, clmgk_precision precision)
{
    return unit == MATRIX_AMX_F16 ? dtypes == 1U << CLMGK_DTYPE_F16
                                  : dtypes == 1U << CLMGK_DTYPE_BF16 || precision >= CLMGK_PRECISION_BF16;
}

/* True if the unit rounds the problem's arrays. */
static bool rounds_arrays(const mgk_footprint *f, int unit)
{
    return unit == MATRIX_AMX && f->dtypes != 1U << CLMGK_DTYPE_BF16;
}

/* The newest of the device's units that serves the problem; 0: none. */
static int newest_unit(const mgk_footprint *f, const mgk_device_facts *facts)
{
    int unit = f->unit ? facts->matrix_unit.unit : 0;
    while (unit != 0 && !(unit_serves(unit, f->dtypes, f->precision) && mgk_matrix_unit_allows(facts, unit)))
        unit = mgk_matrix_unit_older(unit);
    return unit;
}

/* True if panels of one vector of rows are faster (docs/engine.md). With vectors of 16 floats and one unit for them
 * such panels compute less beyond the diagonal, which matters in short problems. With narrow heads exponentials overlap
 * the next products, but not a matrix unit's. */
static bool one_vector(const mgk_footprint *f, const mgk_device_facts *facts, int lanes, bool unit)
{
    enum { SHORT_CAUSAL = 1024, NARROW = 8 };
    const bool faster = !has_heads(f) && ((f->causal && f->rows <= SHORT_CAUSAL) || (f->widest <= NARROW && !unit));
    return f->forward && (f->rows <= lanes || (faster && lanes >= 16 && !facts->x86_two_units));
}

/* The table's defaults are for vectors of 16 floats. */
static void choose_vectors(const mgk_footprint *f, const mgk_device_facts *facts, mgk_tunables *p)
{
    const clmgk_device_class kind = facts->info.device_class;
    const int part = facts->info.native_float_lanes >= 16 ? 1 : 2;
    mgk_tunable_default(p, MGK_NAMED(lanes), mgk_tunable_base(p, MGK_NAMED(lanes), kind) / part);
    mgk_tunable_default(p, MGK_NAMED(block), mgk_tunable_base(p, MGK_NAMED(block), kind) / part);
    const int lanes = mgk_tunable_get(p, MGK_NAMED(lanes));
    /* narrow heads have short loops; wider heads gain nothing from more copies, which only take longer to compile */
    const bool narrow = 2 * f->widest <= lanes;
    mgk_tunable_default(p, MGK_NAMED(unroll), mgk_tunable_base(p, MGK_NAMED(unroll), kind) / (narrow ? 1 : 2));
    mgk_tunable_default(p, MGK_NAMED(vectors),
                        one_vector(f, facts, lanes, uses_unit(p)) ? 1 : mgk_tunable_base(p, MGK_NAMED(vectors), kind));
}

/* Rows of the form whose lanes are keys: for decoding, where most row lanes would be idle. */
static int few_rows(const mgk_footprint *f, const mgk_tunables *p)
{
    return mgk_tunable_is_default(p, MGK_NAMED(vectors)) && mgk_tunable_is_default(p, MGK_NAMED(panels))
               ? mgk_few_rows(f)
               : 0;
}

/* True if the linear family is faster on the unit (measured). Rounding and packing of factors take a part of what
 * products save. AVX512-BF16 gains only with wide heads. It loses with f32 arrays, for which memory is too slow, and
 * with a causal mask, where f32 lanes need fewer products. */
static bool products_gain(const mgk_footprint *f, const bool dots)
{
    enum { LEAST_TOKENS = 128, WIDE = 64 };
    return f->streamed >= LEAST_TOKENS && (!dots || (f->narrowest >= WIDE && !f->singles && !f->causal));
}

/* True if AMX is faster. It multiplies 32 rows and 32 keys at once, and transposes as many values, however few there
 * are: problems that do not fill one such block are faster without it. Arrays in other types are also rounded, for all
 * rows of a problem; in short problems this takes longer than a panel's rows save (measured; less so without AMX
 * itself). With several components of the narrowest heads, the backward pass takes longer to round and pair weights
 * than its products save. */
static bool gains_by_unit(const mgk_footprint *f, const mgk_device_facts *facts, int unit)
{
    enum { BLOCK = 32 * 32, SHORT_ROUNDED = 64, SHORT_FOR_DOTS = 48 };
    const bool dots = mgk_matrix_unit_has_dots(facts, MATRIX_AMX);
    if (f->scores == 0)
        return products_gain(f, dots);
    const int64_t rounded = dots ? SHORT_FOR_DOTS : SHORT_ROUNDED;
    if (dots && f->components > 1 && f->widest < LANES && !f->only_pass)
        return false;
    return rounds_arrays(f, unit) ? f->rows > rounded && f->streamed > rounded : f->rows * f->streamed >= BLOCK;
}

static void choose_unit(const mgk_footprint *f, const mgk_device_facts *facts, mgk_tunables *p)
{
    /* 0: not given */
    const int lanes = mgk_tunable_get(p, MGK_NAMED(lanes)), tile = mgk_tunable_get(p, MGK_NAMED(tile));
    const bool fits = (lanes == 0 || lanes == LANES) && tile % ROW == 0 && mgk_tunable_get(p, MGK_NAMED(vectors)) <= 2;
    const int unit = newest_unit(f, facts);
    const bool takes = unit > 0 && fits && gains_by_unit(f, facts, unit) && few_rows(f, p) == 0;
    mgk_tunable_default(p, MGK_NAMED(unit), takes ? unit : 0);
}

/* Growth of the narrowest heads' rows in the unit's tiles, in 16 bits. */
static int64_t row_padding(const mgk_footprint *f)
{
    return f->narrowest < ROW ? ROW / f->narrowest : 1;
}

/* Growth beside the counted rows of f32 and the padding of sums, which is no larger. */
static int64_t padding(const mgk_footprint *f, const mgk_tunables *p)
{
    const int64_t rows = uses_unit(p) ? row_padding(f) / 2 : 1;
    return rows > 1 ? rows : 1;
}

/* Longest tile that fits beside the rest in the second-level cache: each panel loads and stores its sums for every
 * tile, which costs more than reading the tile from there. */
static int64_t tile_of_unit(const mgk_footprint *f)
{
    enum { MOST = 128, FORWARD_BYTES = 64 << 10, BACKWARD_BYTES = 32 << 10 };
    const int64_t row = 2 * row_padding(f) * (f->tile.features + f->value_size),
                  most = f->forward ? FORWARD_BYTES : BACKWARD_BYTES;
    int64_t tile = MOST;
    while (tile > ROW && tile * row > most)
        tile /= 2;
    return tile;
}

static clmgk_status check_unit(const mgk_footprint *f, const mgk_device_facts *facts, const mgk_tunables *p,
                               clmgk_error *error)
{
    if (!uses_unit(p))
        return CLMGK_OK;
    const int unit = mgk_tunable_get(p, MGK_NAMED(unit));
    if (!mgk_matrix_unit_allows(facts, unit))
        return mgk_fail(error, CLMGK_ERROR_UNSUPPORTED, "engine lane: the device has no such matrix unit");
    if (!f->unit || !unit_serves(unit, f->dtypes, f->precision) || few_rows(f, p) > 0)
        return mgk_fail(error, CLMGK_ERROR_UNSUPPORTED,
                        "engine lane: its kernels for this matrix unit do not serve this problem");
    return CLMGK_OK;
}

static void choose(const mgk_footprint *f, const mgk_device_facts *facts, mgk_tunables *p)
{
    choose_unit(f, facts, p);
    choose_vectors(f, facts, p);
    const int64_t lanes = mgk_tunable_get(p, MGK_NAMED(lanes));
    const int tile = mgk_tunable_base(p, MGK_NAMED(tile), facts->info.device_class);
    lane_block b = {.lanes = lanes,
                    .panel_rows = lanes * mgk_tunable_get(p, MGK_NAMED(vectors)),
                    .panels = 1,
                    .tile = SHORT_TILE,
                    .heads = 1,
                    .padding = padding(f, p)};
    if (has_heads(f)) {
        choose_heads(f, facts, &b);
        mgk_tunable_default(p, MGK_NAMED(heads), (int)b.heads);
        b.heads = mgk_tunable_get(p, MGK_NAMED(heads));
    }
    if (has_fixed_tile(f)) {
        mgk_tunable_default(p, MGK_NAMED(tile), tile);
        b.tile = mgk_tunable_get(p, MGK_NAMED(tile));
    }
    b.panels = mgk_tunable_base(p, MGK_NAMED(panels), facts->info.device_class);
    if (f->one_block && f->rows <= 2 * b.panels * b.panel_rows)
        b.panels *= 2;
    choose_panels(f, facts, &b);
    if (uses_unit(p) && !has_heads(f)) {
        b.tile = tile_of_unit(f);
    } else {
        b.tile = longest_tile(f, facts, &b, tile);
        choose_tile(f, &b, uses_unit(p) ? ROW : SHORT_TILE);
    }
    mgk_tunable_default(p, MGK_NAMED(tile), (int)b.tile);
    mgk_tunable_default(p, MGK_NAMED(panels), (int)b.panels);
    mgk_tunable_at_most(p, MGK_NAMED(panels), (int)b.panels);
}

/* True if the last panel has at most half of its rows plus one, as in Swin's windows of 49, and there are few enough
 * panels that it matters. */
static bool short_panel(const mgk_footprint *f, const mgk_tunables *p)
{
    enum { MOST_PANELS = 4 };
    const int64_t lanes = mgk_tunable_get(p, MGK_NAMED(lanes)), vectors = mgk_tunable_get(p, MGK_NAMED(vectors));
    const int64_t last = f->rows % (vectors * lanes);
    return f->short_panels && vectors > 1 && f->narrowest >= lanes && f->rows <= MOST_PANELS * vectors * lanes &&
           last > 0 && last <= vectors / 2 * lanes + 1;
}

static mgk_flags flags_of(const mgk_footprint *f, const mgk_device_facts *facts, const mgk_tunables *p)
{
    const bool pocl = facts->runtime == MGK_RUNTIME_POCL;
    const int unit = mgk_tunable_get(p, MGK_NAMED(unit)), few = few_rows(f, p);
    const bool is_short = few == 0 && unit == 0 && short_panel(f, p);
    mgk_flags flags = {.MATRIX_UNIT = unit,
                       .DOT_PRODUCTS = mgk_matrix_unit_has_dots(facts, unit),
                       .FEW_ROWS = few,
                       .SHORT_PANEL = is_short};
    /* wide vectors: PoCL's compiler by default uses only 256 bits, and accepts inline assembly */
    flags.WIDE_VECTORS = flags.EXP2_SCALEF = mgk_tunable_get(p, MGK_NAMED(lanes)) == 16 && facts->x86_avx512dq && pocl;
    /* measured on a Zen 5; an Intel Xeon loads fewer lines at once */
    flags.EAGER_LINES = flags.WIDE_VECTORS && facts->x86_two_units && strcmp(facts->info.vendor, "AuthenticAMD") == 0;
    /* PoCL compiles a kernel's text three times, but a called function once. Intel's compiler takes three times as long
     * for called functions. */
    flags.KERNEL_CALLS = pocl;
    flags.ONE_SPACE = pocl && facts->info.device_class == CLMGK_DEVICE_CPU;
    return flags;
}

static clmgk_status fit(const mgk_footprint *f, const mgk_device_facts *facts, mgk_tunables *p, mgk_block *block,
                        clmgk_error *error)
{
    choose(f, facts, p);
    MGK_TRY(mgk_tunables_check(p, true, error));
    MGK_TRY(check_unit(f, facts, p, error));
    const int64_t lanes = mgk_tunable_get(p, MGK_NAMED(lanes));
    const lane_block b = {.lanes = lanes,
                          .panel_rows = lanes * mgk_tunable_get(p, MGK_NAMED(vectors)),
                          .panels = mgk_tunable_get(p, MGK_NAMED(panels)),
                          .tile = mgk_tunable_get(p, MGK_NAMED(tile)),
                          .heads = has_heads(f) ? mgk_tunable_get(p, MGK_NAMED(heads)) : 1,
                          .padding = padding(f, p)};
    const int64_t bytes = bytes_of(f, &b), limit = private_limit(facts);
    if (bytes > limit)
        return mgk_fail(error, CLMGK_ERROR_UNSUPPORTED,
                        "engine lane: head_size, value_size and components need %" PRId64
                        " bytes of private memory, expected at most %" PRId64,
                        bytes, limit);
    *block = (mgk_block){.tile = b.tile,
                         .threads = 1,
                         .few_rows = few_rows(f, p),
                         .private_bytes = (uint64_t)bytes,
                         .unit = mgk_tunable_get(p, MGK_NAMED(unit)),
                         .precision = CLMGK_PRECISION_EXACT};
    if (rounds_arrays(f, block->unit))
        block->precision = CLMGK_PRECISION_BF16;
    block->rows = block->few_rows > 0 ? block->few_rows : b.panel_rows * b.panels;
    block->bias_lanes = block->few_rows > 0 ? 0 : (int)lanes;
    block->bias_keys = MOST_BLOCK;
    block->flags = flags_of(f, facts, p);
    return CLMGK_OK;
}

/* Products are summed over features in order; norms of keys, and products with shifts, lane by lane. */
static const char *const in_order[] = {MGK_NAMED_TEXT(unit), NULL};
static const char *const by_lanes[] = {MGK_NAMED_TEXT(lanes), MGK_NAMED_TEXT(unit), NULL};

static mgk_rank rank(const mgk_device_facts *facts, const clmgk_attention_desc *desc)
{
    (void)desc;
    if (facts->simd_vectors)
        return (mgk_rank){MGK_RANK_MADE_FOR, "the compiler makes SIMD registers of a work-item's vectors"};
    return (mgk_rank){MGK_RANK_LAST_RESORT, "works without local memory and barriers"};
}

static int feature_block(const mgk_device_facts *facts)
{
    (void)facts;
    return 64;
}

static const int units[] = {MATRIX_AMX, MATRIX_AMX_F16, 0};

const mgk_engine mgk_engine_lane = {.value = CLMGK_ENGINE_LANE,
                                    .tunables = &lane_table,
                                    .dtypes = MGK_ALL_DTYPES,
                                    .private_tiles = true,
                                    .fewest_rows = MGK_FEW_ROWS,
                                    .most_packed = MGK_FEW_ROWS,
                                    .units = units,
                                    .unit_serves = unit_serves,
                                    .rank = rank,
                                    .sum_tunables = {in_order, in_order, by_lanes},
                                    .fit = fit,
                                    .tile_limit = private_limit,
                                    .feature_block = feature_block};
