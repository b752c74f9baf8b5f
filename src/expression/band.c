/* SPDX-License-Identifier: Apache-2.0 */
/* Masks that leave a band of keys around a diagonal, as causal masks and windows do. */
#include "expression/expression.h"

/* Such masks are short. */
enum { MOST_NODES = 32 };

/* i row + j key + N queries + S keys + one. */
typedef struct linear_form {
    bool known;
    int64_t row, key, queries, keys, one;
} linear_form;

static int64_t size(int64_t x)
{
    return x < 0 ? -x : x;
}

/* The form, unless a value of it may overflow where i, j, N and S are at most `most`. */
static linear_form checked(linear_form x, int64_t most)
{
    const int64_t names = size(x.row) + size(x.key) + size(x.queries) + size(x.keys);
    x.known = names <= INT32_MAX / (most + 1) && names * most + size(x.one) <= INT32_MAX;
    return x;
}

static linear_form scaled_sum(const linear_form *a, const linear_form *b, int64_t factor)
{
    return (linear_form){a->known && b->known,       a->row + factor * b->row,
                         a->key + factor * b->key,   a->queries + factor * b->queries,
                         a->keys + factor * b->keys, a->one + factor * b->one};
}

static linear_form form_of(const mgk_node *node, const linear_form *forms, int64_t most)
{
    const linear_form *const a = &forms[node->arguments[0]], *const b = &forms[node->arguments[1]];
    const linear_form zero = {.known = true};
    linear_form x = {.known = node->type == MGK_INT};
    switch (node->operation) {
    case MGK_CONSTANT:
        x.one = node->type == MGK_INT ? (int64_t)node->value : 0;
        break;
    case MGK_NAME:
        x.row = node->slot == MGK_NAME_ROW;
        x.key = node->slot == MGK_NAME_KEY;
        x.queries = node->slot == MGK_NAME_QUERIES;
        x.keys = node->slot == MGK_NAME_KEYS;
        x.known = x.row + x.key + x.queries + x.keys == 1;
        break;
    case MGK_ADD:
        x = scaled_sum(a, b, 1);
        break;
    case MGK_SUBTRACT:
        x = scaled_sum(a, b, -1);
        break;
    case MGK_NEGATE:
        x = scaled_sum(&zero, a, -1);
        break;
    default:
        x.known = false;
    }
    return x.known && node->type == MGK_INT ? checked(x, most) : (linear_form){.known = false};
}

/* The pairs that two bands leave. */
static bool join(mgk_band *band, const mgk_band *other)
{
    const bool limits = other->low > INT64_MIN || other->high < INT64_MAX;
    const bool limited = band->low > INT64_MIN || band->high < INT64_MAX;
    if (limits && limited && band->at_end != other->at_end)
        return false;
    band->at_end = limits ? other->at_end : band->at_end;
    band->low = other->low > band->low ? other->low : band->low;
    band->high = other->high < band->high ? other->high : band->high;
    return true;
}

/* x >= least, as a band. */
static bool bound(const linear_form *x, int64_t least, mgk_band *band)
{
    const int64_t side = x->row; /* 1: j has an upper limit; -1: a lower one */
    mgk_band own = {INT64_MIN, INT64_MAX, x->keys != 0};
    if (!x->known || (side != 1 && side != -1) || x->key != -side || x->queries != -x->keys ||
        (x->keys != 0 && x->keys != side))
        return false;
    if (side > 0)
        own.high = x->one - least;
    else
        own.low = least - x->one;
    return join(band, &own);
}

/* A comparison of linear forms, or of an absolute value with one. */
static bool compare(const mgk_node *nodes, const mgk_node *node, const linear_form *forms, mgk_band *band)
{
    const int64_t least = node->operation == MGK_LESS;
    const mgk_node *const smaller = &nodes[node->arguments[0]];
    const bool absolute = smaller->operation == MGK_ABS;
    const linear_form *const a = &forms[absolute ? smaller->arguments[0] : node->arguments[0]];
    const linear_form below = scaled_sum(&forms[node->arguments[1]], a, -1);
    const linear_form above = scaled_sum(&forms[node->arguments[1]], a, 1);
    return bound(&below, least, band) && (!absolute || bound(&above, least, band));
}

bool mgk_find_band(const mgk_expression *mask, int64_t most, mgk_band *band)
{
    linear_form forms[MOST_NODES];
    bool found[MOST_NODES];
    mgk_band bands[MOST_NODES];
    if (mask->count > MOST_NODES)
        return false;
    for (size_t n = 0; n < mask->count; ++n) {
        const mgk_node *const node = &mask->nodes[n];
        const bool compares = node->operation == MGK_LESS || node->operation == MGK_LESS_EQUAL;
        const int32_t *const of = node->arguments;
        forms[n] = form_of(node, forms, most);
        bands[n] = (mgk_band){INT64_MIN, INT64_MAX, false};
        if (node->operation == MGK_AND)
            found[n] = found[of[0]] && found[of[1]] && join(&bands[n], &bands[of[0]]) && join(&bands[n], &bands[of[1]]);
        else if (compares && node->from == MGK_INT)
            found[n] = compare(mask->nodes, node, forms, &bands[n]);
        else
            found[n] = node->operation == MGK_CONSTANT && node->type == MGK_BOOL && node->value != 0;
    }
    *band = bands[mask->count - 1];
    return found[mask->count - 1];
}
