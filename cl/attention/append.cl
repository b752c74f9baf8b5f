/* SPDX-License-Identifier: Apache-2.0 */
/* Writes new keys and values to their slots of pools or caches, rotated and rounded or quantised on the way. A
 * work-group has a.block tokens, a team of its work-items a head. */
#include "attention/buffers.clh"

#define ARGUMENTS mgk_append_args
#define BUFFERS   MGK_APPEND_BUFFERS
#include "engine/quantise.clh"
#include "engine/rotary.clh"

#define AHEAD 4 /* tokens, whose rows are prefetched */

#define SCALE_0(name, page, row) 0
#define SCALE_1(name, page, row) (name + page * a.name.batch + row * a.name.token)

/* A head's row. */
typedef struct head {
    __global const q_element *in;
    elements out;
    SHARED float *row;
    turns_of_head turns;
    int size;
} head;

FUNCTION real head_load(const head *h, int c, int size)
{
    return load_piece(h->in, c, size);
}

FUNCTION void head_store(const head *h, int c, int size, real x)
{
    put_piece(h->row, h->out, c, size, x);
}

#include "engine/turn_head.clh"

/* A token's heads, from those numbers of elements and scales (0: none) on, with `components` rows each. */
FUNCTION void append_token(head h, elements out, __global float *scales, int heads, int components,
                           const mgk_component_place *from, const mgk_component_place *to,
                           const mgk_component_place *to_scale)
{
    __global const q_element *const in = h.in;
    for (int first = 0; first < heads * components; first += GROUP_SIZE / TEAM) {
        const int row = first + ITEM / TEAM, g = row / components, r = row - g * components;
        h.in = in + g * from->head + r * from->component;
        h.out = elements_at(out, g * to->head + r * to->component);
        if (row < heads * components)
            turn_head(&h);
        finish_row(h.row, h.size, h.out, scales != 0 ? scales + g * to_scale->head + r * to_scale->component : 0,
                   row < heads * components);
    }
}

/* Prefetches a token's heads, which will be written: the slots of tokens may lie anywhere. */
FUNCTION void token_fetch(elements out, int heads, int components, const mgk_component_place *to, const int bytes)
{
#if WIDE_VECTORS
    for (int row = 0; row < heads * components; ++row) {
        const int g = row / components, r = row - g * components;
        __global const uchar *const p = elements_memory(elements_at(out, g * to->head + r * to->component));
        for (int d = 0; d < bytes; d += 64)
            __asm__ volatile("prefetchw %0" : : "m"(p[d]));
    }
#endif
}

/* The same of both arrays for the token of this slot. */
FUNCTION void slot_fetch(const mgk_append_args *a, int slot, __global k_element *k, __global v_element *v)
{
    const int page = slot / a->rows, row = slot - page * a->rows;
    if (slot < 0 || page >= a->pages)
        return;
    token_fetch(elements_of(k + page * a->k.batch + row * a->k.token), a->key_heads, a->components, &a->k,
                row_bytes(TYPE_K, a->head_size));
    if (is_given(&a->bound, SLOT_V))
        token_fetch(elements_of(v + page * a->v.batch + row * a->v.token), a->kv_heads, 1, &a->v,
                    row_bytes(TYPE_V, a->value_size));
}

KERNEL(attention_append)
{
    BEGIN_BUFFERS
    SHARED ulong frequency[MGK_MOST_PAIRS];
    SHARED float cosine[MGK_MOST_PAIRS], sine[MGK_MOST_PAIRS];
    DECLARE_ROWS
    const int first = (int)GROUP_ID * a.block, end = min(first + a.block, a.tokens);
    make_frequencies(&a.rotary, frequency);
    for (int t = first; t < end; ++t) {
        if (WIDE_VECTORS && t + AHEAD < end)
            slot_fetch(&a, append_slots[t + AHEAD], k, v);
        const int slot = append_slots[t], page = slot / a.rows, row = slot - page * a.rows;
        const bool stored = slot >= 0 && page < a.pages;
        if (GROUP_SIZE == 1 && !stored)
            continue;
        if (a.rotary.form != 0) {
            GLOBAL_BARRIER(); /* the frequencies are ready; the angles of the token before are no longer read */
            make_angles(&a.rotary, append_positions[t], frequency, cosine, sine);
            GLOBAL_BARRIER();
        }
        head h = {.row = TEAM_ROW, .turns = {a.rotary.form, a.rotary.pairs, cosine, sine, 1.0f}};
        if (stored) {
            h.in = append_k + t * a.from_k.token;
            h.size = a.head_size;
            append_token(h, elements_of(k + page * a.k.batch + row * a.k.token),
                         CAT(SCALE_, HAS_SCALE_K)(scale_k, page, row), a.key_heads, a.components, &a.from_k, &a.k,
                         &a.scale_k);
        }
        KEEP_APART;
        if (stored && is_given(&a.bound, SLOT_V)) {
            h.in = append_v + t * a.from_v.token;
            h.size = a.value_size;
            h.turns.form = 0;
            append_token(h, elements_of(v + page * a.v.batch + row * a.v.token),
                         CAT(SCALE_, HAS_SCALE_V)(scale_v, page, row), a.kv_heads, 1, &a.from_v, &a.v, &a.scale_v);
        }
        KEEP_APART;
    }
}
