/* SPDX-License-Identifier: Apache-2.0 */
/* Writes new keys and values to their slots of pools or caches, rotated and rounded on the way. A work-group has
 * a.block tokens, a team of its work-items a head. */
#include "attention/buffers.clh"

#define ARGUMENTS mgk_append_args
#define BUFFERS   MGK_APPEND_BUFFERS
#include "engine/rotary.clh"

/* A head's row. */
typedef struct head {
    __global const q_element *in;
    elements out;
    turns_of_head turns;
    int size;
} head;

FUNCTION real head_load(const head *h, int c, int size)
{
    return load_piece(h->in, c, size);
}

FUNCTION void head_store(const head *h, int c, int size, real x)
{
    store_piece(h->out, c, size, x);
}

#include "engine/turn_head.clh"

/* A token's heads, from those numbers of elements on, with `components` rows each. */
FUNCTION void append_token(head h, elements out, int heads, int components, const mgk_component_place *from,
                           const mgk_component_place *to)
{
    __global const q_element *const in = h.in;
    for (int row = ITEM / TEAM; row < heads * components; row += GROUP_SIZE / TEAM) {
        const int g = row / components, r = row - g * components;
        h.in = in + g * from->head + r * from->component;
        h.out = elements_at(out, g * to->head + r * to->component);
        turn_head(&h);
    }
}

KERNEL(attention_append)
{
    BEGIN_BUFFERS
    SHARED ulong frequency[MGK_MOST_PAIRS];
    SHARED float cosine[MGK_MOST_PAIRS], sine[MGK_MOST_PAIRS];
    const int first = (int)GROUP_ID * a.block, end = min(first + a.block, a.tokens);
    make_frequencies(&a.rotary, frequency);
    for (int t = first; t < end; ++t) {
        const int slot = append_slots[t], page = slot / a.rows, row = slot - page * a.rows;
        const bool stored = slot >= 0 && page < a.pages;
        if (GROUP_SIZE == 1 && !stored)
            continue;
        if (a.rotary.form != 0) {
            GLOBAL_BARRIER(); /* the frequencies are ready; the angles of the token before are no longer read */
            make_angles(&a.rotary, append_positions[t], frequency, cosine, sine);
            GLOBAL_BARRIER();
        }
        head h = {.turns = {a.rotary.form, a.rotary.pairs, cosine, sine, 1.0f}};
        if (stored) {
            h.in = append_k + t * a.from_k.token;
            h.size = a.head_size;
            append_token(h, elements_of(k + page * a.k.batch + row * a.k.token), a.key_heads, a.components, &a.from_k,
                         &a.k);
        }
        KEEP_APART;
        if (stored && is_given(&a.bound, SLOT_V)) {
            h.in = append_v + t * a.from_v.token;
            h.size = a.value_size;
            h.turns.form = 0;
            append_token(h, elements_of(v + page * a.v.batch + row * a.v.token), a.kv_heads, 1, &a.from_v, &a.v);
        }
        KEEP_APART;
    }
}
