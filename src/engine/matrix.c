/* SPDX-License-Identifier: Apache-2.0 */
/* The matrix engine: warps multiply fragments of small matrices of 16-bit numbers, or of f32. */
#include "engine/engine.h"
#include "engine/matrix/memory.clh"
#include "engine/matrix/tunables.h"
#include "engine/shuffles.clh"
#include "engine/units.clh"

MGK_TUNABLE_TABLE(matrix, "matrix", MGK_MATRIX_TUNABLES, MGK_MATRIX_CONSTRAINTS);

enum {
    TILE_ROWS = 16, /* of NVIDIA's units, of which the bounds below are */
    LEAST_WIDTH = 16,
    TILE_KEYS = 8,
    WORD_BYTES = 4,
    WIDEST = 256,
    WIDEST_SINGLES = 128, /* f32 */
    MOST_HELD = 8,
    MOST_TILE_TERMS = 3,
    ONES_WORDS = 64,     /* at most, behind the tiles (cl/engine/matrix/block.clh) */
    GRAD_ONES_WORDS = 72 /* the same, backward.clh */
};
enum { GROUP_WARPS = 4, TWO_GROUPS = 2 * GROUP_WARPS }; /* warps of wgmma */

static const mgk_unit_sizes *sizes_of(const mgk_tunables *p)
{
    const int unit = mgk_tunable_get(p, MGK_NAMED(unit)), emulated = mgk_tunable_get(p, MGK_NAMED(emulates));
    return mgk_matrix_unit_sizes(unit != 0 ? unit : emulated != 0 ? emulated : MATRIX_MMA);
}

/* Work-items of a work-group. */
static int64_t threads_of(const mgk_tunables *p)
{
    return (int64_t)mgk_tunable_get(p, MGK_NAMED(warps)) * sizes_of(p)->lanes;
}

/* Fewest fragments of keys of a tile: those of a product. */
static int least_tiles(const mgk_tunables *p)
{
    enum { LEAST = 2 };
    const int tiles = sizes_of(p)->columns / TILE_KEYS;
    return tiles > LEAST ? tiles : LEAST;
}

/* Fewest warps: a row has no more pieces than the work-group has work-items to copy them. */
static int least_warps(const mgk_footprint *f, const mgk_tunables *p)
{
    enum { PIECE = 8 };
    const int64_t copied = (int64_t)sizes_of(p)->lanes * PIECE;
    int warps = 1;
    while (warps * copied < f->widest)
        warps *= 2;
    return warps;
}

/* Numbers of a row of D or E, for choices between blocks. */
static int64_t width_of(int64_t size)
{
    return WIDTH_OF(size, LEAST_WIDTH);
}

static bool uses_wgmma(const mgk_tunables *p)
{
    return mgk_tunable_get(p, MGK_NAMED(unit)) == MATRIX_WGMMA;
}

/* True of units whose copies are made when their function returns, of their layouts' emulation, too. */
static bool copies_at_once(const mgk_tunables *p)
{
    return mgk_matrix_unit_is_direct(mgk_tunable_get(p, MGK_NAMED(unit))) ||
           mgk_matrix_unit_is_direct(mgk_tunable_get(p, MGK_NAMED(emulates)));
}

/* True where a ring has places of its items, not stages of tiles: of wgmma, and of the emulation that tests it. */
static bool has_ring_of_places(const mgk_tunables *p)
{
    return uses_wgmma(p) || (mgk_tunable_get(p, MGK_NAMED(unit)) == 0 && !copies_at_once(p));
}

/* Number of bf16 slices of an f32 factor (cl/engine/matrix/slices.clh). */
static int bf16_slices_of(const mgk_footprint *f)
{
    enum { EXACT = 3, ROUNDED = 2 };
    return !f->singles ? 0 : f->precision == CLMGK_PRECISION_EXACT ? EXACT : ROUNDED;
}

/* Precision of the products: f32 factors are rounded unless the descriptor wants them exact, weights to V's type. */
static clmgk_precision precision_of(const mgk_footprint *f)
{
    if (!f->singles)
        return f->weights;
    return f->precision == CLMGK_PRECISION_EXACT ? CLMGK_PRECISION_EXACT : CLMGK_PRECISION_TF32;
}

/* Rows of a block. */
static int64_t rows_of(const mgk_tunables *p)
{
    return (int64_t)mgk_tunable_get(p, MGK_NAMED(warps)) * mgk_tunable_get(p, MGK_NAMED(row_tiles)) * sizes_of(p)->rows;
}

/* Rows of a tile. */
static int64_t tile_of(const mgk_tunables *p)
{
    return (int64_t)mgk_tunable_get(p, MGK_NAMED(key_tiles)) * TILE_KEYS;
}

/* Words of local memory (cl/engine/matrix/memory.clh) for rows of D and of E. */
typedef struct words {
    int64_t key, value;
} words;

static words words_of(const mgk_footprint *f, const mgk_tunables *p, int64_t rows)
{
    const int columns = sizes_of(p)->columns;
    return (words){.key = LAYOUT_WORDS(uses_wgmma(p), rows, WIDTH_OF(f->head_size, columns)),
                   .value = LAYOUT_WORDS(uses_wgmma(p), rows, WIDTH_OF(f->value_size, columns))};
}

/* Words of a tile of sliced numbers and of its unsliced copy. In the forward pass keys and values take turns. */
static int64_t slices_words_of(const mgk_footprint *f, const mgk_tunables *p)
{
    const words slice = words_of(f, p, tile_of(p));
    const int64_t key = bf16_slices_of(f) * slice.key, value = bf16_slices_of(f) * slice.value;
    const int64_t copied_key = tile_of(p) * width_of(f->head_size), copied_value = tile_of(p) * width_of(f->value_size);
    return f->forward ? TURNS_WORDS(f->products, key, value) + TURNS_WORDS(f->products, copied_key, copied_value)
                      : STAGES_WORDS(f->products, key, copied_key, value, copied_value);
}

/* Words of a work-item for a block's own keys and values. */
static int64_t own_words_of(const mgk_footprint *f, const mgk_tunables *p)
{
    const mgk_unit_sizes *const unit = sizes_of(p);
    const int64_t steps =
        (WIDTH_OF(f->head_size, unit->columns) + WIDTH_OF(f->value_size, unit->columns)) / unit->depth;
    return mgk_tunable_get(p, MGK_NAMED(row_tiles)) * steps * unit->words;
}

/* Words of the ring of the kernel of queries, without slices. */
static int64_t queries_ring_words_of(const mgk_footprint *f, const mgk_tunables *p)
{
    const words tile = words_of(f, p, tile_of(p));
    const bool once = has_ring_of_places(p) && HAVE_ONE_PLACE(f->products, tile.key, tile.value);
    return STAGES_WORDS(f->products, tile.key, tile.key, tile.value, once ? 0 : tile.value);
}

/* True if scores have no modifiers, priors or variances, which take registers. */
static bool is_plain(const mgk_footprint *f)
{
    return !f->modified && !f->priors && !f->variances;
}

/* True if registers may hold the sums of a larger block: softmax with few features. */
static bool is_plain_softmax(const mgk_footprint *f, int64_t widest)
{
    return f->held_heads == 0 && f->components == 1 && f->products == 1 && !f->keys_read_again && is_plain(f) &&
           width_of(f->widest) <= widest;
}

static bool fits_large_block(const mgk_footprint *f)
{
    enum { WIDEST_SUMS = 64 };
    return is_plain_softmax(f, WIDEST_SUMS);
}

/* In CUDA local memory has room for the keys and values of a block beside tiles of 64 queries, whose scores take the
 * registers of the former (OWN_STAGED in cl/engine/matrix/block.clh). Several products have too many sums anyway. */
static bool stages_own(const mgk_footprint *f, const mgk_device_facts *facts, const mgk_tunables *p)
{
    enum { WIDEST_SUMS = 128 };
    return facts->dynamic_local > 0 && uses_wgmma(p) && !f->forward && !f->singles && f->held_heads == 0 &&
           f->components == 1 && f->products == 1 && is_plain(f) && width_of(f->widest) <= WIDEST_SUMS;
}

/* Words of the tiles and of a work-group's own rows, in the backward pass without mixed heads. Layout:
 * cl/engine/matrix/backward.clh; TILE_RING in block.clh states when keys and values are not in local memory. */
static int64_t backward_words_of(const mgk_footprint *f, const mgk_device_facts *facts, const mgk_tunables *p)
{
    if (bf16_slices_of(f) > 0)
        return slices_words_of(f, p);
    const words tile = words_of(f, p, tile_of(p)), held = words_of(f, p, rows_of(p));
    if (stages_own(f, facts, p))
        return STAGES_WORDS(1, tile.key, tile.key, tile.value, tile.value) + held.key + held.value;
    const bool apart =
        uses_wgmma(p) || HOLDS_FEW_WORDS(f->components, f->products, own_words_of(f, p), sizes_of(p)->held);
    const int64_t of_keys =
        apart ? LARGER_OF(STAGES_WORDS(1, tile.key, tile.key, tile.value, tile.value), LARGER_OF(held.key, held.value))
              : f->products * held.key + held.value + tile.key + tile.value;
    return LARGER_OF(of_keys, queries_ring_words_of(f, p)) + (uses_wgmma(p) ? GRAD_ONES_WORDS : 0);
}

/* Backward, wgmma: registers hold no gradients of several components and 64 queries beside other terms of scores. */
enum { SHORT_TILES = 4 };
static bool takes_short_tiles(const mgk_footprint *f, const mgk_tunables *p)
{
    return uses_wgmma(p) && !f->forward && !f->singles && f->products > 1 && !is_plain(f);
}

/* In CUDA softmax of 65 to 128 numbers has tiles of 128 keys, and three places of the ring, in two work-groups a
 * multiprocessor: a fifth fewer instructions for a key, and half of the barriers. */
enum { LONG_TILES = 16 };
static bool takes_long_tiles(const mgk_footprint *f, const mgk_device_facts *facts, const mgk_tunables *p)
{
    enum { WIDEST_SUMS = 128 };
    return facts->dynamic_local > 0 && uses_wgmma(p) && f->forward && !f->singles && !fits_large_block(f) &&
           is_plain_softmax(f, WIDEST_SUMS);
}

/* Two groups of warps that take turns (cl/engine/matrix/turns.clh). */
static bool has_two_groups(const mgk_tunables *p)
{
    return uses_wgmma(p) && mgk_tunable_get(p, MGK_NAMED(warps)) == TWO_GROUPS;
}

/* Most registers of a work-item of wgmma's forward pass; 0: no limit. Three work-groups, softmax's with few features
 * four, share a multiprocessor, because they hide each other's exponentials. With f32 arrays three do if numbers have
 * two slices; more slices would spill. */
static int most_registers(const mgk_footprint *f, const mgk_tunables *p)
{
    enum { OF_FOUR = 128, OF_THREE = 168, WIDEST_OF_THREE = 128, FEW_SLICES = 2, MOST_COMPONENTS = 2 };
    enum { WIDE = 64, FEW_KEYS = 32 }; /* scores of several components, beside wide sums */
    const bool spills = f->components > 1 && width_of(f->widest) > WIDE && tile_of(p) > FEW_KEYS;
    const bool has_limit = f->products == f->components && f->components <= MOST_COMPONENTS && uses_wgmma(p) &&
                           f->forward && f->held_heads == 0 && width_of(f->widest) <= WIDEST_OF_THREE && !spills;
    if (f->singles)
        return has_limit && fits_large_block(f) && bf16_slices_of(f) == FEW_SLICES ? OF_THREE : 0;
    if (!has_limit || mgk_tunable_get(p, MGK_NAMED(key_tiles)) >= LONG_TILES)
        return 0;
    return fits_large_block(f) ? OF_FOUR : has_two_groups(p) ? 0 : OF_THREE;
}

/* Bytes of local memory that a work-group may have: the device's or, of wgmma's forward pass in CUDA, a part of the
 * unit's for each of the work-groups that fit by their registers; the same of its backward pass where it stages the
 * block's own rows. Other backward passes and slices of f32 have no registers for longer tiles: ptxas would serialize
 * products, or spill. */
static uint64_t local_limit(const mgk_footprint *f, const mgk_device_facts *facts, const mgk_tunables *p)
{
    enum { MOST = 255 };
    const uint64_t of_device = facts->info.local_memory_bytes;
    if (facts->dynamic_local <= of_device || !uses_wgmma(p) || f->singles || !(f->forward || stages_own(f, facts, p)))
        return of_device;
    const mgk_unit unit = mgk_unit_of(facts);
    if (unit.registers == 0)
        return facts->dynamic_local;
    const int registers = most_registers(f, p);
    const int64_t groups = mgk_resident_groups(&unit, threads_of(p), registers > 0 ? registers : MOST, 0);
    const uint64_t part = unit.local_bytes / (uint64_t)groups;
    const uint64_t of_group = part > unit.local_of_group ? part - unit.local_of_group - 1 : 0;
    return LARGER_OF(of_device, LESSER_OF(of_group, facts->dynamic_local));
}

/* Words of a place of the forward pass's ring, of the keys of a component or of values. */
static int64_t place_words_of(const mgk_footprint *f, const mgk_tunables *p)
{
    const words tile = words_of(f, p, tile_of(p));
    return PLACES_WORDS(1, tile.key, tile.value);
}

/* Words of local memory for the forward pass's ring, and of them for alignment, rows' terms and votes. */
enum { RING_WORDS = 12287, ROWS_WORDS = 640, RING_OTHERS = ROWS_WORDS + PART_ALIGNMENT / WORD_BYTES };

/* Words of mixed heads' queries in local memory. */
static int64_t mixed_queries_words_of(const mgk_footprint *f, const mgk_tunables *p)
{
    const bool staged = STAGES_QUERIES(uses_wgmma(p), f->products, width_of(f->head_size));
    return staged ? f->products * words_of(f, p, rows_of(p)).key : 0;
}

/* Places of the ring of mixed heads; 0: none. It needs values of each head's own, and blocks with all of their heads.
 * With wgmma it makes room for tiles of 64 keys; shorter ones gain nothing.
 * Queries in local memory meet the keys of all components together. */
static int heads_places(const mgk_footprint *f, const mgk_tunables *p)
{
    enum { LEAST = 2, BESIDE = 2, LONG_KEYS = 64 };
    const bool has_ring = has_ring_of_places(p) && (!uses_wgmma(p) || tile_of(p) >= LONG_KEYS) && f->forward &&
                          bf16_slices_of(f) == 0 && mgk_tunable_get(p, MGK_NAMED(row_tiles)) == 1 &&
                          f->held_heads == f->value_heads && f->held_heads % mgk_tunable_get(p, MGK_NAMED(heads)) == 0;
    const int64_t queries = mixed_queries_words_of(f, p), least = queries > 0 ? f->products + 1 : LEAST;
    const int64_t room = (RING_WORDS - RING_OTHERS - queries) / place_words_of(f, p);
    return has_ring && room >= least ? (int)LESSER_OF(room, f->products + BESIDE) : 0;
}

/* Places of the forward pass's ring; 0: it has no ring. With places for the keys of two tiles and the values of one, if
 * a kernel has the memory, all of a tile is copied a whole tile ahead; the terms of keys come with it. Else the keys of
 * several components follow each other, if there is no room for all of a tile and copies are under way meanwhile.
 * Two row tiles leave no registers. If one product's tiles take all of the 48 KB (D = 128), an H200 is 3 % faster
 * without the ring; else it is 4 to 7 % faster with it. */
static int ring_places(const mgk_footprint *f, const mgk_device_facts *facts, const mgk_tunables *p)
{
    enum { LEAST = 2, MOST = 5, UNUSED_TERMS = 5 };
    if (f->held_heads > 0)
        return heads_places(f, p);
    const bool has_ring = f->forward && bf16_slices_of(f) == 0 && mgk_tunable_get(p, MGK_NAMED(row_tiles)) == 1;
    const bool has_terms = f->tile.terms > UNUSED_TERMS;
    const int64_t sets = has_two_groups(p) ? RING_STAGES - 1 : 1; /* of the terms of tiles that are copied */
    const int64_t terms = has_terms ? tile_of(p) * (f->tile.terms + sets * f->components) + ROWS_WORDS : 0;
    const bool has_more =
        facts->dynamic_local > 0 && (f->products > 1 || takes_long_tiles(f, facts, p) || has_two_groups(p));
    const int64_t most = has_more ? (int64_t)(local_limit(f, facts, p) / WORD_BYTES) - RING_OTHERS : RING_WORDS;
    const int64_t room = (most - terms) / place_words_of(f, p), ahead = 2 * f->products + 1;
    if (!has_ring)
        return 0;
    if (has_two_groups(p)) {
        const int64_t places = RING_STAGES * (f->products + 1);
        return room >= places ? (int)places : 0;
    }
    if (room >= ahead)
        return (int)ahead;
    const bool streams = room >= LEAST && room <= f->products && !copies_at_once(p);
    return streams ? (int)LESSER_OF(room, MOST) : 0;
}

/* Words of mixed heads' kernel of keys. On a GPU one kernel makes dV, with dO of two heads in turn, and one all else,
 * with the values of one head; on a CPU one makes all. wgmma: keys are in private memory. */
static int64_t mixed_keys_words_of(const mgk_footprint *f, const mgk_device_facts *facts, const mgk_tunables *p)
{
    const bool is_cpu = facts->info.device_class == CLMGK_DEVICE_CPU;
    const words tile = words_of(f, p, tile_of(p)), held = words_of(f, p, rows_of(p));
    const int64_t heads = mgk_tunable_get(p, MGK_NAMED(heads));
    const int64_t own = uses_wgmma(p) ? 0 : f->products * held.key, tiles = f->products * tile.key + 2 * tile.value;
    const int64_t of_keys = held.value + f->products * tile.key + (f->tile_heads > 1 ? 2 : 1) * tile.value;
    return own + (is_cpu ? heads * held.value + tiles : LARGER_OF(of_keys, tiles));
}

/* Words of mixed heads. Queries are in local memory, and dO in the kernel of queries; the forward pass has a ring, or
 * the values of all heads of a block. */
static int64_t mixed_words_of(const mgk_footprint *f, const mgk_device_facts *facts, const mgk_tunables *p)
{
    const words tile = words_of(f, p, tile_of(p)), held = words_of(f, p, rows_of(p));
    const int64_t queries = mixed_queries_words_of(f, p), keys = f->products * tile.key;
    const int places = heads_places(f, p);
    if (f->forward)
        return queries +
               (places > 0 ? places * place_words_of(f, p) : keys + mgk_tunable_get(p, MGK_NAMED(heads)) * tile.value);
    return LARGER_OF(queries + keys + held.value + tile.value, mixed_keys_words_of(f, facts, p));
}

static int64_t forward_words_of(const mgk_footprint *f, const mgk_device_facts *facts, const mgk_tunables *p)
{
    const words tile = words_of(f, p, tile_of(p));
    const int places = ring_places(f, facts, p);
    return bf16_slices_of(f) > 0 ? slices_words_of(f, p)
           : places > 0          ? places * place_words_of(f, p)
                                 : f->products * tile.key + tile.value;
}

/* Words of the tiles of all kernels of the pass. Layout: cl/engine/matrix/block.clh, backward.clh. */
static int64_t tiles_words_of(const mgk_footprint *f, const mgk_device_facts *facts, const mgk_tunables *p)
{
    return f->held_heads > 0 ? mixed_words_of(f, facts, p)
           : f->forward      ? forward_words_of(f, facts, p)
                             : backward_words_of(f, facts, p);
}

static uint64_t local_bytes_of(const mgk_footprint *f, const mgk_device_facts *facts, const mgk_tunables *p)
{
    enum { MOST_OF_ROWS = 128, OTHER_ALIGNMENT = 64 };
    const bool is_cpu = facts->info.device_class == CLMGK_DEVICE_CPU;
    const int64_t of_rows = f->components > 1 ? f->components + 1 : 0; /* at most */
    const int64_t ahead = f->forward ? 0 : MOST_TILE_TERMS + of_rows;
    const int64_t own = rows_of(p) * sizes_of(p)->row_lanes / threads_of(p); /* rows of a work-item */
    const int64_t exchange = threads_of(p) * (is_cpu ? MOST_OF_ROWS : own);
    const int64_t all = tiles_words_of(f, facts, p) + tile_of(p) * (f->tile.terms + ahead) + exchange;
    const uint64_t bytes = (uint64_t)all * WORD_BYTES + (uses_wgmma(p) ? PART_ALIGNMENT : OTHER_ALIGNMENT);
    const uint64_t most = local_limit(f, facts, p);
    return bytes > most && ring_places(f, facts, p) > 0 ? most : bytes;
}

static bool fits(const mgk_footprint *f, const mgk_device_facts *facts, const mgk_tunables *p)
{
    const bool has_memory = !has_two_groups(p) || ring_places(f, facts, p) > 0;
    return has_memory && local_bytes_of(f, facts, p) <= local_limit(f, facts, p);
}

/* Halves a parameter unless the caller gave it; false: the caller did, or it is the least. */
static bool halve(mgk_tunables *p, mgk_tunable_name name, int least)
{
    const int value = mgk_tunable_get(p, name);
    if (value <= least)
        return false;
    mgk_tunable_default(p, name, value / 2);
    return mgk_tunable_get(p, name) < value;
}

/* Number of scores of a row and key that a tile keeps for all heads; the backward pass also keeps their gradients. */
static int64_t held_of(const mgk_footprint *f)
{
    return f->forward ? f->scores : f->scores / 2;
}

/* Columns of D of a work-item's sums in the backward pass: a row of dK or dQ for each product. */
static int64_t gradient_columns(const mgk_footprint *f)
{
    return f->forward ? 0 : f->products * width_of(f->head_size);
}

/* True if the code of a mixed score takes many registers. */
static bool score_is_costly(const mgk_footprint *f)
{
    return f->noise || f->generalised || f->modified;
}

/* Most heads of mixed heads: registers hold their sums beside the scores of a tile, which is short for that; found by
 * compiling (tests/offline). On a CPU, for tests, fewer copies compile faster. */
static int most_heads(const mgk_footprint *f, const mgk_device_facts *facts, const mgk_tunables *p)
{
    enum { MOST_HEADS = 4, FEW_HEADS = 2, FEW_SCORES = 2, WIDE = 64, MOST_SUMS = 256, MOST_WIDE_SUMS = 192 };
    const bool is_cpu = facts->info.device_class == CLMGK_DEVICE_CPU;
    const bool few =
        is_cpu || held_of(f) > FEW_SCORES || mgk_matrix_unit_is_direct(mgk_tunable_get(p, MGK_NAMED(unit)));
    const bool has_room = width_of(f->value_size) <= WIDE || (!few && (f->forward || uses_wgmma(p)));
    const int64_t width = width_of(f->value_size), most_sums = has_room ? MOST_SUMS : MOST_WIDE_SUMS;
    const int most = score_is_costly(f) && !is_cpu ? 1 : few ? FEW_HEADS : MOST_HEADS;
    int heads = 1;
    const int64_t most_of_unit = sizes_of(p)->widest;
    while (heads < most && heads < f->held_heads && 2 * width * heads <= LESSER_OF(most_sums, most_of_unit))
        heads *= 2;
    return heads;
}

/* Takes tiles of 64 keys if wgmma's ring has them and registers hold their scores: beside one block of scores the sums
 * of all heads, beside two of two short heads (docs/gpu.md). */
static bool choose_long_tiles(const mgk_footprint *f, const mgk_device_facts *facts, mgk_tunables *p)
{
    enum { LONG = 8, TWO_SCORES = 2, HEADS_OF_TWO = 2, WIDEST_OF_TWO = 64 };
    const bool two = f->scores == TWO_SCORES && width_of(f->widest) <= WIDEST_OF_TWO;
    if (!uses_wgmma(p) || !f->forward || score_is_costly(f) || !(f->one_softmax || two))
        return false;
    const int most = most_heads(f, facts, p);
    mgk_tunable_default(p, MGK_NAMED(heads), two ? LESSER_OF(most, HEADS_OF_TWO) : most);
    mgk_tunable_default(p, MGK_NAMED(key_tiles), LONG);
    return heads_places(f, p) > 0 && fits(f, facts, p);
}

/* Takes the most heads, then the most rows, then the longest tile for which local memory suffices: heads share the
 * products, and rows share the copies. */
static void choose_mixed(const mgk_footprint *f, const mgk_device_facts *facts, mgk_tunables *p)
{
    enum { TILES = 4, FEW_SCORES = 2, FEW_COLUMNS = 128 };
    const int least = least_tiles(p), fewest = uses_wgmma(p) ? mgk_tunable_get(p, MGK_NAMED(warps)) : least_warps(f, p);
    const int64_t most_columns = uses_wgmma(p) ? WIDEST : FEW_COLUMNS;
    const bool is_short = held_of(f) > FEW_SCORES || gradient_columns(f) > most_columns || score_is_costly(f);
    if (choose_long_tiles(f, facts, p))
        return;
    const int most_warps = mgk_tunable_get(p, MGK_NAMED(warps));
    const int most_tiles = is_short ? least : LESSER_OF(TILES, sizes_of(p)->most_tiles / 2);
    for (int heads = most_heads(f, facts, p); heads >= 1; heads /= 2) {
        mgk_tunable_default(p, MGK_NAMED(heads), heads);
        for (int warps = most_warps; warps >= fewest; warps /= 2) {
            mgk_tunable_default(p, MGK_NAMED(warps), warps);
            for (int tiles = most_tiles; tiles >= least; tiles /= 2) {
                mgk_tunable_default(p, MGK_NAMED(key_tiles), tiles);
                if (fits(f, facts, p))
                    return;
            }
        }
    }
}

/* Work-groups of the forward pass that a unit holds, with a work-item's registers as ptxas gives them for sm_90
 * (docs/gpu.md); 0: unknown. */
static int64_t resident_of(const mgk_footprint *f, const mgk_device_facts *facts, const mgk_tunables *p)
{
    enum { MOST = 255, OF_FEW_SUMS = 168 };
    const mgk_unit unit = mgk_unit_of(facts);
    const int64_t threads = threads_of(p);
    const bool few = fits_large_block(f) && !f->singles && mgk_tunable_get(p, MGK_NAMED(row_tiles)) == 1;
    const int limit = most_registers(f, p);
    if (unit.registers == 0 || facts->matrix_unit.unit == 0 || mgk_matrix_unit_is_direct(facts->matrix_unit.unit) ||
        !f->forward)
        return 0;
    return mgk_resident_groups(&unit, threads,
                               limit > 0 ? limit
                               : few     ? OF_FEW_SUMS
                                         : MOST,
                               local_bytes_of(f, facts, p));
}

/* Fragments of 16 rows of a warp. Two share the loads of keys and values, if registers hold the sums of both (found by
 * compiling: tests/offline) and each unit has a block. In the backward pass the kernel of keys also has keys and values
 * in registers, and each unit has two blocks. An H200 is 22 % faster with two fragments if it has several blocks for
 * each unit (docs/gpu.md). */
static int row_tiles_of(const mgk_footprint *f, const mgk_device_facts *facts, const mgk_tunables *p)
{
    enum { ROW_TILES = 2, BACKWARD_BLOCKS = 2 };
    const int base = mgk_tunable_base(p, MGK_NAMED(row_tiles), facts->info.device_class);
    const int64_t rows = (int64_t)mgk_tunable_get(p, MGK_NAMED(warps)) * ROW_TILES * TILE_ROWS;
    if (mgk_tunable_get(p, MGK_NAMED(unit)) != MATRIX_MMA || !fits_large_block(f) || f->singles)
        return base;
    const int64_t units = (int64_t)facts->info.compute_units * (f->forward ? 1 : BACKWARD_BLOCKS);
    const int64_t of_rows = f->rows / rows * (f->heads / f->shared_heads), of_tiles = f->streamed / rows * f->heads;
    const int64_t blocks = f->forward || of_rows < of_tiles ? of_rows : of_tiles;
    return blocks * f->problems >= units ? ROW_TILES : base;
}

/* Numbers of a row of dK and dV in the kernel of keys. */
static int64_t gradient_sums_of(const mgk_footprint *f)
{
    return f->products * width_of(f->head_size) + width_of(f->value_size);
}

/* Most of them for which the device's unit has registers; without one as wgmma. */
static int64_t most_gradient_sums(const mgk_device_facts *facts)
{
    const int unit = facts->matrix_unit.unit;
    return mgk_matrix_unit_sizes(unit != 0 ? unit : MATRIX_WGMMA)->most_sums;
}

/* True if the backward pass takes components one after the other, so that registers hold the sums of one; by either
 * pass's footprint. */
static bool takes_turns(const mgk_footprint *f, const mgk_device_facts *facts)
{
    return f->turns && gradient_sums_of(f) > most_gradient_sums(facts);
}

/* Footprint of a kernel of the backward pass in a turn. */
static mgk_footprint turn_of(const mgk_footprint *f)
{
    mgk_footprint one = *f;
    one.products = one.components = one.scores = 1;
    return one;
}

/* True if a plan with a backward pass has room for wgmma in that pass: registers for the sums of 64 rows of dK and dV,
 * and local memory for the least tiles; by either pass's footprint. */
static bool has_room_for_gradients(const mgk_footprint *f, const mgk_device_facts *facts, const mgk_tunables *least)
{
    enum { OTHERS = 4096 }; /* bytes: terms, exchange, alignment */
    mgk_footprint own = takes_turns(f, facts) ? turn_of(f) : *f;
    own.forward = false;
    if (f->held_heads > 0)
        return gradient_columns(&own) <= WIDEST && fits(&own, facts, least);
    return gradient_sums_of(&own) <= most_gradient_sums(facts) &&
           (uint64_t)backward_words_of(&own, facts, least) * WORD_BYTES + OTHERS <= local_limit(&own, facts, least);
}

/* True if wgmma has room for the least block. */
static bool has_room(const mgk_footprint *f, const mgk_device_facts *facts, const mgk_tunables *p)
{
    mgk_tunables least = *p;
    mgk_tunable_default(&least, MGK_NAMED(unit), MATRIX_WGMMA);
    mgk_tunable_default(&least, MGK_NAMED(warps), GROUP_WARPS);
    mgk_tunable_default(&least, MGK_NAMED(row_tiles), 1);
    mgk_tunable_default(&least, MGK_NAMED(key_tiles), 2);
    mgk_tunable_default(&least, MGK_NAMED(heads), 1);
    return fits(f, facts, &least) && (f->only_pass || has_room_for_gradients(f, facts, &least));
}

static bool is_given(const mgk_tunables *p, mgk_tunable_name name, int usual)
{
    return !mgk_tunable_is_default(p, name) && mgk_tunable_get(p, name) != usual;
}

/* The device's newest unit that suits the problem. wgmma multiplies 64 rows of four warps. It reads keys from local
 * memory, so their numbers can't be split into two types. All passes of a plan must round scores alike, and units may
 * add up in different orders. So the forward pass of a plan with gradients asks whether the backward pass suits, too:
 * blocks of keys have as many rows. */
static int unit_of(const mgk_footprint *f, const mgk_device_facts *facts, const mgk_tunables *p)
{
    const int64_t few = (int64_t)GROUP_WARPS * TILE_ROWS / 2;
    const bool gradients_suit = f->only_pass || f->streamed > few;
    const bool suits = gradients_suit && !f->two_types && f->rows > few && has_room(f, facts, p) &&
                       !is_given(p, MGK_NAMED(warps), GROUP_WARPS) && !is_given(p, MGK_NAMED(row_tiles), 1);
    const int unit = facts->matrix_unit.unit;
    return unit == MATRIX_WGMMA && !suits ? MATRIX_MMA : unit;
}

static void choose(const mgk_footprint *f, const mgk_device_facts *facts, mgk_tunables *p)
{
    const clmgk_device_class kind = facts->info.device_class;
    mgk_tunable_default(p, MGK_NAMED(unit), unit_of(f, facts, p));
    const int usual_warps = mgk_tunable_base(p, MGK_NAMED(warps), kind), warps = least_warps(f, p);
    const int usual_tiles = mgk_tunable_base(p, MGK_NAMED(key_tiles), kind), tiles = least_tiles(p);
    mgk_tunable_default(p, MGK_NAMED(warps), uses_wgmma(p) ? GROUP_WARPS : LARGER_OF(usual_warps, warps));
    mgk_tunable_default(p, MGK_NAMED(row_tiles), row_tiles_of(f, facts, p));
    mgk_tunable_default(p, MGK_NAMED(key_tiles), LESSER_OF(LARGER_OF(usual_tiles, tiles), sizes_of(p)->most_tiles));
    if (takes_long_tiles(f, facts, p))
        mgk_tunable_default(p, MGK_NAMED(key_tiles), LONG_TILES);
    if (takes_short_tiles(f, p))
        mgk_tunable_default(p, MGK_NAMED(key_tiles), SHORT_TILES);
    const int64_t usual_rows = rows_of(p);
    bool halved = true;
    if (f->held_heads > 0) {
        choose_mixed(f, facts, p);
        return;
    }
    while (halved && !uses_wgmma(p) && rows_of(p) >= 2 * f->rows) /* half of the warps would have no rows */
        halved = halve(p, MGK_NAMED(warps), warps);
    if (rows_of(p) < usual_rows) /* a compute unit holds more small work-groups with smaller tiles */
        halve(p, MGK_NAMED(key_tiles), tiles);
    for (halved = true; halved && !fits(f, facts, p);)
        halved = halve(p, MGK_NAMED(key_tiles), tiles) || (!uses_wgmma(p) && halve(p, MGK_NAMED(warps), warps));
}

static const char *why_not(const mgk_footprint *f)
{
    if (f->singles && width_of(f->widest) > WIDEST_SINGLES)
        return "registers hold at most 128 numbers of a head of f32 arrays";
    if (f->held_heads > 0 && held_of(f) > MOST_HELD)
        return "registers hold the scores of at most 8 global heads";
    if (f->held_heads > 0 && gradient_columns(f) > WIDEST)
        return "registers hold the gradients of global heads of 256 numbers together";
    return width_of(f->widest) > WIDEST ? "head_size and value_size exceed 256" : NULL;
}

static const char no_exact_tiles[] = "without a softmax its products are of tf32, which the precision must allow";

static const char *compiler_of(const mgk_footprint *f, const mgk_tunables *p)
{
    switch (most_registers(f, p)) {
    case 128:
        return MGK_EDITED_PTX " " MGK_REGISTERS_LIMIT "128";
    case 168:
        return MGK_EDITED_PTX " " MGK_REGISTERS_LIMIT "168";
    default:
        return uses_wgmma(p)                                                    ? MGK_EDITED_PTX
               : mgk_matrix_unit_is_direct(mgk_tunable_get(p, MGK_NAMED(unit))) ? MGK_UNTRIED_UNIT
                                                                                : NULL;
    }
}

/* Softmax's kernel of queries with few features needs no more registers than three work-groups have. */
static const char *compiler_of_queries(const mgk_footprint *f, const mgk_tunables *p)
{
    const bool has_limit = uses_wgmma(p) && !f->forward && !f->singles && fits_large_block(f);
    return has_limit ? MGK_EDITED_PTX " " MGK_REGISTERS_LIMIT "168" : NULL;
}

static mgk_flags unit_flags(const mgk_device_facts *facts, const mgk_tunables *p)
{
    return (mgk_flags){.MATRIX_UNIT = mgk_tunable_get(p, MGK_NAMED(unit)),
                       .EMULATED_UNIT = mgk_tunable_get(p, MGK_NAMED(emulates)),
                       .SHUFFLE = facts->sub_group.shuffle,
                       .SUB_GROUP_SIZE = facts->sub_group.size,
                       .LEAST_SUB_GROUP = facts->least_sub_group};
}

/* Products of tiles that a family lays out itself (cl/engine/matrix/product.clh): one of tf32 each, by mma.sync. */
static clmgk_status fit_tiles(const mgk_footprint *f, const mgk_device_facts *facts, mgk_tunables *p, mgk_block *block,
                              clmgk_error *error)
{
    const int newest = facts->matrix_unit.unit == 0 ? 0 : MATRIX_MMA;
    if (f->precision == CLMGK_PRECISION_EXACT)
        return mgk_fail(error, CLMGK_ERROR_UNSUPPORTED, "engine matrix: %s", no_exact_tiles);
    mgk_tunable_default(p, MGK_NAMED(unit), newest);
    while (f->work_items > 0 && threads_of(p) > f->work_items)
        if (!halve(p, MGK_NAMED(warps), 1))
            break;
    if (!mgk_matrix_unit_includes(newest, mgk_tunable_get(p, MGK_NAMED(unit))) ||
        !mgk_matrix_unit_allows(facts, mgk_tunable_get(p, MGK_NAMED(unit))))
        return mgk_fail(error, CLMGK_ERROR_UNSUPPORTED, "engine matrix: %s",
                        newest == 0 ? "the device has no such matrix unit" : "wgmma has no products without a softmax");
    MGK_TRY(mgk_tunables_check(p, true, error));
    const uint64_t threads = (uint64_t)threads_of(p);
    MGK_TRY(mgk_check_group("matrix", threads, 0, facts, error));
    *block = (mgk_block){.threads = (size_t)threads,
                         .unit = mgk_tunable_get(p, MGK_NAMED(unit)),
                         .precision = CLMGK_PRECISION_TF32,
                         .flags = unit_flags(facts, p)};
    block->flags.TF32_PRODUCTS = 1;
    return CLMGK_OK;
}

/* Parameters that the caller gave, and the problem, for the unit's sizes. */
static clmgk_status check_sizes(const mgk_footprint *f, const mgk_tunables *p, clmgk_error *error)
{
    if (f->singles && (mgk_matrix_unit_is_direct(mgk_tunable_get(p, MGK_NAMED(unit))) ||
                       mgk_tunable_get(p, MGK_NAMED(emulates)) != 0))
        return mgk_fail(error, CLMGK_ERROR_UNSUPPORTED, "engine matrix: the unit has no products of f32");
    if (tile_of(p) % sizes_of(p)->columns != 0)
        return mgk_fail(error, CLMGK_ERROR_UNSUPPORTED, "engine matrix: key-tiles: expected a multiple of %d",
                        least_tiles(p));
    if (mgk_tunable_get(p, MGK_NAMED(warps)) < least_warps(f, p))
        return mgk_fail(error, CLMGK_ERROR_UNSUPPORTED, "engine matrix: warps: expected at least %d",
                        least_warps(f, p));
    return CLMGK_OK;
}

/* Whether two groups of warps may take turns. The loop over tiles then has no barrier of the work-group, which terms of
 * keys that are made there need, and local memory has the ring. Norms of keys are made before the loop if they serve
 * several blocks. */
static clmgk_status check_groups(const mgk_footprint *f, const mgk_device_facts *facts, const mgk_tunables *p,
                                 clmgk_error *error)
{
    if (!has_two_groups(p))
        return CLMGK_OK;
    enum { WIDEST_OF_TURNS = 192 }; /* with more, registers spill */
    const bool makes_norms = f->keys_read_again && f->rows <= rows_of(p);
    if (width_of(f->widest) > WIDEST_OF_TURNS)
        return mgk_fail(error, CLMGK_ERROR_UNSUPPORTED,
                        "engine matrix: warps: expected %d of wgmma with more than %d numbers of a head", GROUP_WARPS,
                        WIDEST_OF_TURNS);
    if (!f->forward || f->singles || f->held_heads > 0 || f->made_terms || makes_norms)
        return mgk_fail(
            error, CLMGK_ERROR_UNSUPPORTED,
            "engine matrix: warps: expected %d of wgmma but in the forward pass of softmax, and of Gaussian "
            "and MGK attention of several blocks, in f16 or bf16, without caches, priors and variances",
            GROUP_WARPS);
    if (ring_places(f, facts, p) == 0)
        return mgk_fail(error, CLMGK_ERROR_UNSUPPORTED,
                        "engine matrix: warps: expected %d of wgmma, there is no local memory for %d tiles",
                        GROUP_WARPS, RING_STAGES);
    return CLMGK_OK;
}

/* Whether registers hold the block, with a direct unit. */
static clmgk_status check_registers(const mgk_footprint *f, const mgk_tunables *p, clmgk_error *error)
{
    const mgk_unit_sizes *const unit = sizes_of(p);
    if (!mgk_matrix_unit_is_direct(mgk_tunable_get(p, MGK_NAMED(unit))))
        return CLMGK_OK;
    if (width_of(f->widest) > unit->widest)
        return mgk_fail(error, CLMGK_ERROR_UNSUPPORTED,
                        "engine matrix: registers hold at most %d numbers of a head with this unit", unit->widest);
    const int most = f->components > 1 || f->turns ? unit->most_of_several : unit->most_sums;
    if (!f->forward && gradient_sums_of(f) > most)
        return mgk_fail(error, CLMGK_ERROR_UNSUPPORTED,
                        "engine matrix: registers hold at most %d numbers of a key's gradients with this unit", most);
    return CLMGK_OK;
}

static clmgk_status fit(const mgk_footprint *whole, const mgk_device_facts *facts, mgk_tunables *p, mgk_block *block,
                        clmgk_error *error)
{
    if (whole->scores == 0)
        return fit_tiles(whole, facts, p, block, error);
    const bool turns = !whole->forward && takes_turns(whole, facts);
    const mgk_footprint of_turn = turn_of(whole), *const f = turns ? &of_turn : whole;
    const char *const reason = why_not(f);
    if (reason != NULL)
        return mgk_fail(error, CLMGK_ERROR_UNSUPPORTED, "engine matrix: %s", reason);
    choose(f, facts, p);
    if (!mgk_matrix_unit_allows(facts, mgk_tunable_get(p, MGK_NAMED(unit))))
        return mgk_fail(error, CLMGK_ERROR_UNSUPPORTED, "engine matrix: the device has no such matrix unit");
    if (uses_wgmma(p) && f->two_types)
        return mgk_fail(error, CLMGK_ERROR_UNSUPPORTED, "engine matrix: wgmma needs one type for Q and K");
    MGK_TRY(mgk_tunables_check(p, true, error));
    MGK_TRY(check_sizes(f, p, error));
    MGK_TRY(check_registers(f, p, error));
    MGK_TRY(check_groups(f, facts, p, error));
    const uint64_t threads = (uint64_t)threads_of(p);
    const uint64_t local = local_bytes_of(f, facts, p);
    mgk_device_facts of_launch = *facts;
    of_launch.info.local_memory_bytes = local_limit(f, facts, p);
    MGK_TRY(mgk_check_group("matrix", threads, local, &of_launch, error));
    *block = (mgk_block){.rows = rows_of(p),
                         .tile = (int64_t)mgk_tunable_get(p, MGK_NAMED(key_tiles)) * TILE_KEYS,
                         .threads = (size_t)threads,
                         .local_bytes = local,
                         .compiler = compiler_of(f, p),
                         .of_queries = compiler_of_queries(f, p),
                         .registers = most_registers(f, p),
                         .resident = resident_of(f, facts, p),
                         .unit = mgk_tunable_get(p, MGK_NAMED(unit)),
                         .turns = turns,
                         .precision = precision_of(f),
                         .flags = unit_flags(facts, p)};
    block->flags.ANY_GROUP_SIZE = block->registers > 0;
    block->flags.BF16_SLICES = bf16_slices_of(f);
    block->flags.RING_PLACES = ring_places(f, facts, p);
    if (local > facts->info.local_memory_bytes)
        block->flags.DYNAMIC_LOCAL = (int)((tiles_words_of(f, facts, p) + ONES_WORDS) * WORD_BYTES);
    return CLMGK_OK;
}

/* The order of a score's sum depends on the unit alone. */
static const char *const sum_tunables[] = {"unit", NULL};

/* Why the engine does not take a problem's types; NULL: it takes them. Where Q and K differ, it splits a number of f16
 * into two of bf16 (cl/engine/matrix/mma_products.clh). It rounds weights to V's type, which must be as fine as the
 * result's unless the descriptor's precision allows less. */
static const char *why_not_types(const clmgk_attention_desc *desc)
{
    const clmgk_dtype k = mgk_dtype_of(desc, desc->dtype_k), v = mgk_dtype_of(desc, desc->dtype_v),
                      o = mgk_dtype_of(desc, desc->dtype_o);
    const bool singles = mgk_has_singles(desc);
    if (singles && (clmgk_variant_traits(desc->variant) & CLMGK_TRAIT_ADMIXTURE) != 0)
        return "the scores of mixed heads leave no registers for slices of f32";
    if (!singles && mgk_weights_precision(desc) > desc->precision)
        return "O in a finer type than V needs finer weights than those that multiply V, unless the precision is V's";
    const bool backward = desc->gradients != 0 || desc->statistics != 0;
    return backward && (k != desc->dtype || v != o)
               ? "its backward pass needs one type for Q and K, and one for V and O"
               : NULL;
}

/* `piece`: numbers of 16 bytes, TILE_PIECE in cl/engine/matrix/layout.clh. */
static bool are_pieces(const clmgk_layout *layout, int64_t size, int64_t piece)
{
    return (size % piece | layout->batch % piece | layout->head % piece | layout->component % piece |
            layout->token % piece) == 0;
}

/* Why the engine does not take a problem; NULL: it takes it. */
static const char *why_not_problem(const clmgk_attention_desc *desc)
{
    if (desc->mix_after_heads > 0)
        return "it has no kernels for weights that are mixed after the softmax";
    if (desc->use_positions)
        return "it has no kernels for positions";
    return desc->mix_hidden > 0 ? "it has no kernels for a hidden layer of mixed heads" : why_not_types(desc);
}

/* True if rows of all tiles begin and end at multiples of 16 bytes, provided the arrays do. Kernels check each
 * array. */
static bool copies_pieces(const clmgk_attention_desc *desc)
{
    enum { SINGLES = 4, HALVES = 8 };
    const int64_t head = desc->head_size, value = desc->value_size;
    const bool backward = desc->gradients != 0 || desc->statistics != 0;
    const int64_t piece = desc->dtype == CLMGK_DTYPE_F32 ? SINGLES : HALVES;
    return are_pieces(&desc->k, head, piece) && are_pieces(&desc->v, value, piece) &&
           (!backward || (are_pieces(&desc->q, head, piece) && are_pieces(&desc->grad_o, value, piece)));
}

static bool is_linear(const clmgk_attention_desc *desc)
{
    return (clmgk_variant_traits(desc->variant) & CLMGK_TRAIT_LINEAR) != 0;
}

/* Why a direct unit does not serve a problem; NULL: it does, or the unit is none. */
static const char *why_not_unit(const mgk_matrix_unit *found, const clmgk_attention_desc *desc)
{
    if (!mgk_matrix_unit_is_direct(found->unit))
        return NULL;
    if (is_linear(desc))
        return "without a softmax its products are of tf32, which the device's matrix units lack";
    const uint32_t types = mgk_dtypes_of(desc);
    if ((types & 1U << CLMGK_DTYPE_F32) != 0)
        return "the device's matrix units multiply f16 and bf16 alone";
    if (mgk_has_singles(desc))
        return "the device's matrix units multiply f16 and bf16 alone, which do not hold a block's numbers";
    if (mgk_has_two_types(desc))
        return "the device's matrix units need one type for Q and K";
    return (types & found->wrong_types) != 0 ? "the device's matrix units give wrong products of this type" : NULL;
}

/* True if keys and values are copied number by number into tiles of another type. */
static bool converts(const clmgk_attention_desc *desc)
{
    const clmgk_dtype k = mgk_dtype_of(desc, desc->dtype_k), v = mgk_dtype_of(desc, desc->dtype_v);
    return mgk_is_cache_type(k) || mgk_is_cache_type(v) ||
           (mgk_has_singles(desc) && (k != CLMGK_DTYPE_F32 || v != CLMGK_DTYPE_F32));
}

/* Above or below the engine for such devices without matrix units. */
static mgk_rank rank(const mgk_device_facts *facts, const clmgk_attention_desc *desc)
{
    enum {
        HEADS_WORTH = 4, /* the other engine reads keys once for each */
        BELOW = MGK_RANK_MADE_FOR - 10,
        ABOVE = MGK_RANK_MADE_FOR + 10
    };
    const bool linear = desc != NULL && is_linear(desc);
    const bool exact = desc != NULL && desc->precision == CLMGK_PRECISION_EXACT;
    const char *const of_unit = desc != NULL ? why_not_unit(&facts->matrix_unit, desc) : NULL;
    const char *const reason = of_unit != NULL ? of_unit
                               : linear        ? (exact ? no_exact_tiles : NULL)
                               : desc != NULL  ? why_not_problem(desc)
                                               : NULL;
    if (reason != NULL)
        return (mgk_rank){MGK_RANK_NONE, reason};
    if (facts->matrix_unit.unit == 0)
        return (mgk_rank){MGK_RANK_TESTS, "emulates matrix units, for tests"};
    if (desc == NULL)
        return (mgk_rank){BELOW, "its matrix units multiply f16, bf16 and tf32"};
    if (desc->length < TILE_ROWS && (linear || mgk_packed_heads(&mgk_engine_matrix, desc) < HEADS_WORTH))
        return (mgk_rank){BELOW, "there are fewer queries than a fragment has rows"};
    if (!linear && converts(desc))
        return (mgk_rank){ABOVE,
                          "its products run on matrix units, and numbers are converted on the way into its tiles"};
    if (!linear && !copies_pieces(desc))
        return (mgk_rank){ABOVE,
                          "its products run on matrix units, but rows are copied number by number, because their "
                          "sizes or strides are no multiples of 16 bytes"};
    return (mgk_rank){ABOVE, "its products run on matrix units"};
}

static int64_t tile_limit(const mgk_device_facts *facts)
{
    return (int64_t)facts->info.local_memory_bytes;
}

/* As the other engine for such devices. */
static int feature_block(const mgk_device_facts *facts)
{
    enum { GPU_BLOCK = 64, CPU_BLOCK = 32 };
    return facts->info.device_class == CLMGK_DEVICE_CPU ? CPU_BLOCK : GPU_BLOCK;
}

#define NUMBER_OF(unit, ...) unit,
static const int units[] = {MATRIX_ENGINE_UNITS(NUMBER_OF) 0};

const mgk_engine mgk_engine_matrix = {.value = CLMGK_ENGINE_MATRIX,
                                      .tunables = &matrix_table,
                                      .dtypes = MGK_ALL_DTYPES,
                                      .queries_apart = true,
                                      .fewest_rows = TILE_ROWS,
                                      .units = units,
                                      .emulates_units = true,
                                      .exchanges = true,
                                      .key_terms_once = true,
                                      .rank = rank,
                                      .sum_tunables = {sum_tunables, sum_tunables, sum_tunables},
                                      .fit = fit,
                                      .tile_limit = tile_limit,
                                      .feature_block = feature_block};
