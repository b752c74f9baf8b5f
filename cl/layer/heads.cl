/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of heads: bias, query/key normalisation, rotary positions, cache, also of 8 or 4 bits (src/layer/rows.h). A
 * work-group has a.block rows. */
#include "layer/args.clh"

#define ARGUMENTS mgk_heads_args
#define BUFFERS   MGK_HEADS_BUFFERS
#include "engine/quantise.clh"
#include "engine/rotary.clh"

#define HEADS_AT_ONCE (GROUP_SIZE / TEAM)

#define GIVEN(slot) is_given(&a.bound, SLOT_##slot)

/* ---- arguments ---- */

/* Field by field: pick (engine/rotary.clh). */
FUNCTION mgk_heads_part part_of(const mgk_heads_args *a, int n)
{
#define PART_FIELD(field) (n == 0 ? a->part[0].field : n == 1 ? a->part[1].field : a->part[2].field)
    return (mgk_heads_part){PART_FIELD(ld), PART_FIELD(ld_out), PART_FIELD(head_out), PART_FIELD(heads),
                            PART_FIELD(size)};
#undef PART_FIELD
}

/* ---- positions ---- */

FUNCTION long position_of(const mgk_heads_args *a, long row, __global const int *lengths, __global const int *offsets)
{
    const int n = (int)(row % a->length);
    if (a->sequences > 0) {
        int low = 0, high = a->sequences;
        while (high - low > 1) {
            const int middle = (low + high) / 2;
            if (offsets[middle] <= n)
                low = middle;
            else
                high = middle;
        }
        return n - max(offsets[low], 0); /* sequences begin as the attention's do */
    }
    return is_given(&a->bound, SLOT_LENGTHS) ? (long)lengths[row / a->length] - a->length + n : n;
}

/* A token's row of a cache, or of a page. */
typedef struct cache_place {
    long number, rows, row;
    bool stored; /* it has one */
} cache_place;

FUNCTION void find_page(const mgk_heads_args *a, __global const int *table, cache_place *x)
{
    const long entry = x->number * a->table_pages + x->row / a->page_size;
    x->number = x->stored ? table[entry] : 0;
    x->rows = a->page_size;
    x->row %= a->page_size;
    x->stored = x->stored && x->number >= 0 && x->number < a->pages;
}

/* ---- a head ---- */

/* A head's row: x = in (+ bias), back to `in` with keep; out = rotated(x scale (gain)). */
typedef struct head {
    __global storage *in;
    elements out;
    SHARED float *row;
    __global const float *bias, *gain; /* 0: none */
    float scale;
    bool keep;
    turns_of_head turns;
    int size;
} head;

FUNCTION real biased(const head *h, int c, int size)
{
    const real x = load_piece(h->in, c, size);
    return h->bias != 0 ? x + key_load(h->bias, c, size, 0.0f) : x;
}

FUNCTION real head_load(const head *h, int c, int size)
{
    const real x = biased(h, c, size);
    if (h->keep)
        store_piece(h->in, c, size, x);
    return h->gain != 0 ? x * h->scale * key_load(h->gain, c, size, 0.0f) : x;
}

FUNCTION void head_store(const head *h, int c, int size, real x)
{
    put_piece(h->row, h->out, c, size, x);
}

#include "engine/turn_head.clh"

/* ---- forward ---- */

/* A row of Q, K or V; in, out, scale (0: none) and the others are of head 0. */
FUNCTION void forward_row(const mgk_heads_args *a, const mgk_heads_part *part, head h, __global float *scale,
                          const mgk_component_place *place, int components, SHARED float *shared)
{
    __global storage *const in = h.in;
    const elements out = h.out;
    __global const float *const bias = h.bias;
    for (int first = 0; first < part->heads; first += HEADS_AT_ONCE) {
        const int number = first + ITEM / TEAM;
        const int at = number * part->size;
        h.size = number < part->heads ? part->size : 0;
        h.in = in + at;
        h.out = elements_at(out, number * part->head_out);
        h.bias = bias != 0 ? bias + at : 0;
        if (h.gain != 0) {
            real squares = (real)(0.0f);
            VECTORS_FOR(c, MEMBER, TEAM, h.size) {
                const real x = biased(&h, c, h.size);
                squares = fma(x, x, squares);
            }
            h.scale = 1.0f / sqrt(team_sum(squares, shared, TEAM) / part->size + a->epsilon);
            KEEP_APART;
        }
        turn_head(&h);
        finish_row(h.row, h.size, h.out,
                   scale != 0 ? scale + number / components * place->head + number % components * place->component : 0,
                   number < part->heads);
        KEEP_APART;
    }
}

/* The first scale of a token's row. */
FUNCTION __global float *scale_at(__global float *scales, const mgk_component_place *place, const cache_place *cached)
{
    return scales + cached->number * place->batch + cached->row * place->token;
}

KERNEL(layer_heads)
{
    BEGIN_BUFFERS
    SHARED_FLOATS(shared, GROUP_SIZE);
    SHARED ulong frequency[MGK_MOST_PAIRS];
    SHARED float cosine[MGK_MOST_PAIRS], sine[MGK_MOST_PAIRS];
    DECLARE_ROWS
    const long first = (long)GROUP_ID * a.block, end = min(first + a.block, a.rows);
    make_frequencies(&a.rotary, frequency);
    for (long row = first; row < end; ++row) {
        const long position = position_of(&a, row, lengths, offsets);
        cache_place cached = {row / a.length, a.capacity, position, position >= 0 && position < a.capacity};
        if (a.page_size > 0)
            find_page(&a, page_table, &cached);
        if (a.rotary.form != 0) {
            GLOBAL_BARRIER(); /* the frequencies are ready; the angles of the row before are no longer read */
            make_angles(&a.rotary, position, frequency, cosine, sine);
            GLOBAL_BARRIER();
        }
        const head rotated = {
            .row = TEAM_ROW, .keep = a.keep_biased, .turns = {a.rotary.form, a.rotary.pairs, cosine, sine, 1.0f}};
        for (int n = 0; n < 3; ++n) {
            const mgk_heads_part part = part_of(&a, n);
            const bool is_cache = n > 0 && a.capacity > 0;
            const long out_row = is_cache ? cached.number * part.heads * cached.rows + cached.row : row;
            head h = rotated;
            h.in = (n == 0 ? q : n == 1 ? k : v) + row * part.ld;
            h.out = elements_at(n == 0   ? elements_of(out_q)
                                : n == 1 ? elements_of(out_k)
                                         : elements_of(out_v),
                                out_row * part.ld_out);
            h.bias = n == 0   ? (GIVEN(BIAS_Q) ? bias_q : 0)
                     : n == 1 ? (GIVEN(BIAS_K) ? bias_k : 0)
                              : (GIVEN(BIAS_V) ? bias_v : 0);
            h.gain = n == 0 ? (GIVEN(GAIN_Q) ? gain_q : 0) : n == 1 && GIVEN(GAIN_K) ? gain_k : 0;
            h.turns.form = n < 2 ? a.rotary.form : 0;
            __global float *const scale = n == 1 && GIVEN(SCALE_K)   ? scale_at(scale_k, &a.scale_k, &cached)
                                          : n == 2 && GIVEN(SCALE_V) ? scale_at(scale_v, &a.scale_v, &cached)
                                                                     : 0;
            if (!is_cache || cached.stored)
                forward_row(&a, &part, h, scale, n == 1 ? &a.scale_k : &a.scale_v, n == 1 ? a.components : 1, shared);
            KEEP_APART;
        }
    }
}

/* ---- backward ---- */

/* A part's row: d holds the gradient, x the normalised numbers; sums of columns, and of each team's gains, or 0. */
typedef struct gradient_row {
    __global storage *d, *x;
    __global const float *gain;
    __global float *biases, *gains;
    bool later; /* not the first row of the work-group */
} gradient_row;

/* With s = 1 / sqrt(mean(x^2) + epsilon) and h = d gain: dx = s h - x s^3 mean(h x). `size` of a head of `whole`: 0 in
 * a team that has none. */
FUNCTION void backward_head(const mgk_heads_args *a, const gradient_row *r, int at, int size, int whole,
                            bool later_gain, SHARED float *shared)
{
    float scale = 1.0f, along = 0.0f;
    if (r->gain != 0) {
        real squares = (real)(0.0f), products = (real)(0.0f);
        VECTORS_FOR(c, MEMBER, TEAM, size) {
            const real x = load_piece(r->x + at, c, size);
            squares = fma(x, x, squares);
            products = fma(load_piece(r->d + at, c, size) * key_load(r->gain, c, size, 0.0f), x, products);
        }
        scale = 1.0f / sqrt(team_sum(squares, shared, TEAM) / whole + a->epsilon);
        along = team_sum(products, shared, TEAM) / whole * scale * scale;
        KEEP_APART;
    }
    const int changed = r->gain != 0 || r->biases != 0 ? size : 0;
    VECTORS_FOR(c, MEMBER, TEAM, changed) {
        real d = load_piece(r->d + at, c, size);
        if (r->gain != 0) {
            const real x = load_piece(r->x + at, c, size);
            if (r->gains != 0)
                add_piece(r->gains, c, size, d * x * scale, later_gain);
            d = scale * fma(d, key_load(r->gain, c, size, 0.0f), -(x * along));
            store_piece(r->d + at, c, size, d);
        }
        if (r->biases != 0)
            add_piece(r->biases + at, c, size, d, r->later);
    }
}

FUNCTION void backward_row(const mgk_heads_args *a, const mgk_heads_part *part, const gradient_row *r, head h,
                           SHARED float *shared)
{
    for (int first = 0; first < part->heads; first += HEADS_AT_ONCE) {
        const int number = first + ITEM / TEAM, at = number * part->size;
        const bool mine = number < part->heads;
        if (h.turns.form != 0) {
            h.in = r->d + at;
            h.out = elements_of(h.in);
            h.size = mine ? 2 * h.turns.pairs : 0; /* the rest stays unchanged */
            turn_head(&h);
            GLOBAL_BARRIER(); /* other members read the numbers that this one rotated */
        }
        backward_head(a, r, at, mine ? part->size : 0, part->size, r->later || first > 0, shared);
        KEEP_APART;
    }
}

KERNEL(layer_heads_backward)
{
    BEGIN_BUFFERS
    SHARED_FLOATS(shared, GROUP_SIZE);
    SHARED ulong frequency[MGK_MOST_PAIRS];
    SHARED float cosine[MGK_MOST_PAIRS], sine[MGK_MOST_PAIRS];
    const long first = (long)GROUP_ID * a.block, end = min(first + a.block, a.rows);
    make_frequencies(&a.rotary, frequency);
    for (long row = first; row < end; ++row) {
        if (a.rotary.form != 0) {
            GLOBAL_BARRIER();
            make_angles(&a.rotary, position_of(&a, row, lengths, offsets), frequency, cosine, sine);
            GLOBAL_BARRIER();
        }
        for (int n = 0; n < 3; ++n) {
            const mgk_heads_part part = part_of(&a, n);
            const mgk_i64 biases = pick(a.region, 3, n), gains = n < 2 ? pick(a.region + 3, 2, n) : -1;
            const long columns = (long)part.heads * part.size;
            const long team = (long)GROUP_ID * min(part.heads, HEADS_AT_ONCE) + ITEM / TEAM;
            const head h = {.turns = {n < 2 ? a.rotary.form : 0, a.rotary.pairs, cosine, sine, -1.0f}};
            const gradient_row r = {.d = (n == 0   ? out_q
                                          : n == 1 ? (__global storage *)out_k
                                                   : (__global storage *)out_v) +
                                         row * part.ld_out,
                                    .x = (n == 0   ? q
                                          : n == 1 ? k
                                                   : v) +
                                         row * part.ld,
                                    .gain = n == 0                    ? (GIVEN(GAIN_Q) ? gain_q : 0)
                                            : n == 1 && GIVEN(GAIN_K) ? gain_k
                                                                      : 0,
                                    .biases = biases >= 0 ? work + biases + (long)GROUP_ID * columns : 0,
                                    .gains = gains >= 0 ? work + gains + team * part.size : 0,
                                    .later = row > first};
            backward_row(&a, &part, &r, h, shared);
            KEEP_APART;
        }
    }
}

#define SUMS(X)                                                                                                        \
    X(0, GRAD_BIAS_Q, grad_bias_q)                                                                                     \
    X(1, GRAD_BIAS_K, grad_bias_k)                                                                                     \
    X(2, GRAD_BIAS_V, grad_bias_v)                                                                                     \
    X(3, GRAD_GAIN_Q, grad_gain_q)                                                                                     \
    X(4, GRAD_GAIN_K, grad_gain_k)
#include "layer/sums.clh"
