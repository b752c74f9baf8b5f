/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A plan's problem and parameters, made small for a trial. Its programs must be the plan's own, or these have no
 * verdict. So nothing changes that decides about a program's options.
 */
#include "attention/core/attention.h"
#include "attention/core/formulas.h"
#include "attention/trial.h"

#include <string.h>

static int64_t least_of(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t most_of(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* Axes of the bias are 1 or whole. */
static void shrink_bias(const clmgk_attention_desc *desc, clmgk_attention_desc *small)
{
    if (!desc->use_bias)
        return;
    small->bias_batch = desc->bias_batch == 1 ? 1 : small->batch;
    small->bias_heads = desc->bias_heads == 1 ? 1 : mgk_softmax_heads(small);
    small->bias_length = desc->bias_length == 1 ? 1 : small->length;
    small->bias_length_k = desc->bias_length_k == 1 ? 1 : small->length_k;
}

/* Heads decide about the options of mixed heads, so these stay; else the number of query heads that share a head of
 * keys stays. */
static void shrink_heads(const clmgk_plan *plan, clmgk_attention_desc *small)
{
    enum { HEADS = 2 };
    if (plan->family->grouped_heads)
        return;
    const int64_t shared = small->heads / small->kv_heads;
    small->kv_heads = least_of(small->kv_heads, HEADS);
    small->heads = shared * small->kv_heads;
}

/* Captured arrays are dense and small: texts read their nearest elements for positions beyond them. */
static void shrink_captures(clmgk_attention_desc *small)
{
    enum { EXTENT = 32 };
    for (int c = 0; c < mgk_count_captures(small); ++c) {
        small->captures[c].strided = 0;
        for (int axis = 0; axis < small->captures[c].axes; ++axis)
            small->captures[c].shape[axis] = least_of(small->captures[c].shape[axis], EXTENT);
    }
}

/* The same programs serve all masks. So a small problem has a two-sided window, and key lengths: some tiles have hidden
 * first keys, some hidden last keys, some none. */
static void set_mask(clmgk_attention_desc *small, int64_t rows, int64_t keys)
{
    small->causal = 0;
    small->use_window = 1;
    small->window_left = rows + rows / 2 + 5;
    small->window_right = most_of(rows, keys);
    if (small->sequences == 0)
        small->use_lengths = 1;
}

/* Two blocks of rows and three tiles of keys, and parts of further ones. The same holds for the backward pass, whose
 * blocks have keys. */
static void shrink_lengths(const clmgk_plan *plan, clmgk_attention_desc *small)
{
    enum { BATCHES = 2, SEQUENCES = 3 };
    const clmgk_attention_desc *const desc = &plan->desc;
    int64_t rows = 1, keys = 1;
    for (int i = 0; i < CLMGK_PASS_COMBINE; ++i) {
        if (plan->pass[i] == NULL)
            continue;
        const mgk_block *const block = &plan->pass[i]->plan.block;
        rows = most_of(rows, i == CLMGK_PASS_FORWARD ? block->rows : block->tile);
        keys = most_of(keys, i == CLMGK_PASS_FORWARD ? block->tile : block->rows);
    }
    small->batch = least_of(desc->batch, BATCHES);
    small->sequences = least_of(desc->sequences, SEQUENCES);
    const int64_t sequences = most_of(small->sequences, 1);
    small->length = sequences * least_of(mgk_attention_rows(desc), 2 * rows + rows / 4 + 3);
    small->length_k =
        (mgk_has_caches(desc) ? 1 : sequences) * least_of(mgk_attention_keys(desc), 3 * keys + keys / 4 + 5);
    if (desc->sequences > 0 && !desc->use_offsets_k && !desc->use_lengths)
        small->length_k = small->length;
    set_mask(small, rows, keys);
}

clmgk_status mgk_trial_shrink(const clmgk_plan *plan, clmgk_attention_desc *small, clmgk_error *error)
{
    *small = plan->desc;
    shrink_lengths(plan, small);
    shrink_heads(plan, small);
    shrink_bias(&plan->desc, small);
    shrink_captures(small);
    small->combine = 0;
    for (int i = 0; i < CLMGK_ARRAYS; ++i) {
        clmgk_layout *const layout = mgk_array_layout(small, (clmgk_array)i);
        if (layout != NULL)
            *layout = (clmgk_layout){0};
    }
    return mgk_attention_resolve(small, small, error);
}

/* ---- parameters ---------------------------------------------------------------------------------------------------
 */

/* True if the order or precision of sums depends on the parameter. */
static bool is_of_sums(const clmgk_plan *plan, clmgk_engine engine, const char *name)
{
    const char *const *const names = mgk_engine_of(engine)->sum_tunables[plan->family->sums(&plan->desc)];
    for (size_t i = 0; names[i] != NULL; ++i)
        if (strcmp(names[i], name) == 0)
            return true;
    return false;
}

/* Defaults are left out: a small problem has the same ones, and a text of parameters would apply to all kernels of a
 * pass, which may have different defaults. Exceptions: a unit that the plan follows; the number of ranges of keys,
 * which depends on the lengths, may be one that no caller can name, and matters to the program only if it is more than
 * 1; the first block that is split, because with few blocks no wave is whole. */
void mgk_trial_parameters(const clmgk_plan *plan, clmgk_pass pass, mgk_text *text)
{
    const mgk_compiled_pass *const own = plan->pass[pass];
    const mgk_tunables *const tunables = &own->plan.tunables;
    const size_t splits = mgk_tunable_index(tunables, MGK_NAMED(splits));
    const size_t from = mgk_tunable_index(tunables, MGK_NAMED(split_from));
    for (size_t i = 0; i < mgk_tunables_count(tunables); ++i) {
        const char *const name = mgk_tunables_at(tunables, i)->shown.name;
        const int most = i == splits ? 2 : i == from ? 1 : INT32_MAX;
        const int value = (int)least_of(tunables->value[i], most);
        if (i == splits || i == from || tunables->origin[i] != MGK_ORIGIN_DEFAULT ||
            is_of_sums(plan, own->engine, name))
            mgk_text_printf(text, "%s%s=%d", text->length == 0 ? "" : ",", name, value);
    }
}
