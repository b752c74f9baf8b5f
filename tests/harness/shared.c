/* SPDX-License-Identifier: Apache-2.0 */
/* Descriptors and problems that tests of several families, or of both passes, share. */
#include "harness/harness.h"

#include <math.h>

/* ---- descriptors ------------------------------------------------------------------------------------------------- */

clmgk_attention_desc th_sized_desc(clmgk_variant variant, th_sizes sizes)
{
    return (clmgk_attention_desc){.struct_size = sizeof(clmgk_attention_desc),
                                  .variant = variant,
                                  .batch = sizes.batch,
                                  .heads = sizes.heads,
                                  .kv_heads = sizes.kv_heads,
                                  .components = sizes.components,
                                  .length = sizes.length,
                                  .length_k = sizes.length_k,
                                  .head_size = sizes.head_size,
                                  .value_size = sizes.value_size};
}

clmgk_attention_desc th_mix_desc(const th_mix *mix)
{
    clmgk_attention_desc desc =
        th_sized_desc(mix->variant, (th_sizes){.head_size = mix->head_size, .value_size = mix->value_size});
    desc.dtype = mix->q;
    desc.dtype_k = mix->k;
    desc.dtype_v = mix->v;
    desc.dtype_o = mix->o;
    return desc;
}

void th_set_lengths(clmgk_attention_desc *desc)
{
    desc->batch = 2;
    desc->use_lengths = desc->use_lengths_q = 1;
}

void th_set_window(clmgk_attention_desc *desc, size_t n)
{
    static const int64_t sides[TH_WINDOWS][2] = {{0, 0},   {1, 0},   {-1, 3},        {20, -1},
                                                 {64, 64}, {7, 130}, {INT64_MAX, 1}, {1000, 1000}};
    desc->use_window = 1;
    desc->window_left = sides[n % TH_WINDOWS][0];
    desc->window_right = sides[n % TH_WINDOWS][1];
    desc->alignment = (clmgk_alignment)(n % 3);
    desc->use_lengths = desc->alignment == CLMGK_ALIGN_LENGTHS;
}

void th_set_packing(clmgk_attention_desc *desc, int64_t sequences, int64_t keys, size_t n)
{
    desc->sequences = sequences;
    desc->use_offsets_k = keys > 0;
    desc->length_k = keys > 0 ? keys : desc->length;
    desc->causal = n / 2 % 2 == 1;
    desc->use_window = n % 4 == 3;
    desc->window_left = desc->use_window ? 11 : 0;
    desc->window_right = desc->use_window ? 2 : 0;
    desc->heads = 4;
    desc->kv_heads = 2;
}

void th_set_split(clmgk_attention_desc *desc, size_t n)
{
    desc->dtype = th_dtypes[n / 5];
    desc->batch = 2;
    desc->use_lengths = desc->use_lengths_q = n % 2 == 1;
    desc->causal = n % 3 == 0;
    desc->use_sinks = n >= 5;
}

void th_set_random_masks(clmgk_attention_desc *desc, int64_t most_kv_heads, uint64_t *state)
{
    const bool packed = desc->sequences > 0;
    desc->kv_heads = th_pick(state, 1, most_kv_heads);
    desc->heads = desc->kv_heads * th_pick(state, 1, most_kv_heads);
    desc->batch = packed ? 1 : th_pick(state, 1, 3);
    desc->sequences = packed ? th_pick(state, 1, 9) : 0;
    desc->use_offsets_k = packed && th_chance(state, 2);
    desc->length = th_pick(state, 0, 150);
    desc->length_k = packed && !desc->use_offsets_k ? desc->length : th_keys(th_pick(state, 0, 300));
    desc->causal = th_chance(state, 2);
    desc->use_lengths = !packed && th_chance(state, 2);
    desc->use_lengths_q = !packed && th_chance(state, 2);
    desc->alignment = (clmgk_alignment)th_pick(state, 0, desc->use_lengths ? 2 : 1);
    desc->use_window = th_chance(state, 2);
    desc->window_left = th_pick(state, -1, 90);
    desc->window_right = th_pick(state, -1, 90);
    if (!desc->use_window)
        desc->window_left = desc->window_right = 0;
    if (desc->use_bias)
        th_set_bias_axes(desc, (size_t)th_pick(state, 0, 7));
    desc->bias_batch = desc->use_bias && th_chance(state, 2) ? 1 : 0;
}

/* ---- problems ---------------------------------------------------------------------------------------------------- */

th_problem th_sinks_problem(clmgk_attention_desc desc, int64_t head, size_t n)
{
    static const double logits[TH_SINK_LOGITS] = {-INFINITY, -200.0, 0.5, 200.0, 2.5e38, -2.5e38};
    desc.use_sinks = 1;
    desc.causal = 1;
    desc.batch = 2;
    desc.use_lengths_q = n % 2 == 1;
    th_problem problem = th_problem_make(&desc, n);
    th_set(&problem, TH_SINKS, 0, head, 0, 0, 0, logits[n % TH_SINK_LOGITS]);
    return problem;
}

th_problem th_tied_problem(clmgk_attention_desc desc)
{
    desc.estep = CLMGK_ESTEP_HARD;
    desc.components = 3;
    th_problem problem = th_problem_make(&desc, 1);
    const th_array *const k = &problem.array[TH_K];
    const size_t size = (size_t)(k->shape[3] * k->shape[4]);
    for (size_t n = 0; n < k->count; n++)
        if (n / size % 3 == 1)
            k->values[n] = k->values[n - size];
    return problem;
}

void th_poison_row(th_problem *problem, th_name name, int64_t b, int64_t h, int64_t n)
{
    const th_array *const array = &problem->array[name];
    for (int64_t r = 0; r < array->shape[2]; r++)
        for (int64_t d = 0; d < array->shape[4]; d++)
            th_set(problem, name, b, h, r, n, d, (double)NAN);
}

th_problem th_poisoned_problem(clmgk_attention_desc desc, int64_t head, size_t n, uint64_t seed)
{
    static const struct {
        th_name name;
        int64_t at;
    } rows[TH_POISONS] = {{TH_Q, 0}, {TH_Q, 20}, {TH_K, 0}, {TH_K, 199}, {TH_V, 100}};
    desc.batch = 2;
    th_problem problem = th_problem_make(&desc, seed);
    th_poison_row(&problem, rows[n].name, 1, head, rows[n].at);
    return problem;
}

th_problem th_padded_problem(clmgk_attention_desc desc, uint64_t seed)
{
    static const int64_t lengths[] = {70, 3}, lengths_q[] = {33, 65};
    static const th_name of_keys[] = {TH_K, TH_V}, of_queries[] = {TH_Q, TH_GRAD_O, TH_GRAD_LSE};
    th_set_lengths(&desc);
    th_problem problem = th_problem_make(&desc, seed);
    for (int64_t b = 0; b < 2; b++) {
        th_set(&problem, TH_LENGTHS, b, 0, 0, 0, 0, (double)lengths[b]);
        th_set(&problem, TH_LENGTHS_Q, b, 0, 0, 0, 0, (double)lengths_q[b]);
        for (size_t n = 0; n < TH_COUNT(of_keys); n++)
            th_poison(&problem, of_keys[n], b, lengths[b]);
        for (size_t n = 0; n < TH_COUNT(of_queries); n++)
            th_poison(&problem, of_queries[n], b, lengths_q[b]);
    }
    th_poison(&problem, TH_PRIOR, 0, lengths[0]);
    return problem;
}

/* Puts three arrays from `first` on into the first one's buffer, `step` elements apart. */
static void interleave(th_problem *problem, th_name first, size_t offset, size_t step)
{
    for (size_t n = 0; n < 3; n++) {
        problem->array[first + n].home = first;
        problem->array[first + n].offset = offset + n * step;
    }
}

th_problem th_packed_problem(clmgk_attention_desc desc, uint64_t seed)
{
    const int64_t row = desc.heads * desc.head_size, token = 3 * row;
    const clmgk_layout packed = {.strided = 1, .batch = desc.length * token, .head = desc.head_size, .token = token};
    desc.length_k = desc.length;
    desc.value_size = desc.head_size;
    desc.causal = 1;
    desc.q = desc.k = desc.v = packed;
    if (desc.gradients != 0)
        desc.grad_q = desc.grad_k = desc.grad_v = packed;
    else
        desc.o = (clmgk_layout){.strided = 1, .batch = desc.length * row, .head = desc.head_size, .token = row};
    th_problem problem = th_problem_make(&desc, seed);
    interleave(&problem, TH_Q, 5, (size_t)row);
    if (desc.gradients != 0)
        interleave(&problem, TH_GRAD_Q, 7, (size_t)row);
    return problem;
}

th_problem th_hidden_rows_problem(clmgk_attention_desc desc)
{
    desc.use_bias = desc.use_sinks = desc.use_alibi = 1;
    desc.gradients = th_all_gradients(&desc);
    th_problem problem = th_problem_make(&desc, 3);
    const th_array *const bias = &problem.array[TH_BIAS];
    for (int64_t i = 0; i < bias->shape[3]; i += 3)
        for (int64_t j = 0; j < bias->shape[4]; j++)
            th_set(&problem, TH_BIAS, 0, i / 3 % bias->shape[1], 0, i, j, -(double)INFINITY);
    return problem;
}
