/* SPDX-License-Identifier: Apache-2.0 */
#include "harness/harness.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* ---- values and layouts ------------------------------------------------------------------------------------------ */

void th_copy_values(th_problem *to, const th_problem *from, th_name name)
{
    if (!to->array[name].used || !from->array[name].used)
        return;
    assert_int_equal(to->array[name].count, from->array[name].count);
    memcpy(to->array[name].values, from->array[name].values, to->array[name].count * sizeof(double));
}

void th_copy_inputs(th_problem *to, const th_problem *from)
{
    for (th_name name = TH_Q; name <= TH_NOISE; name++)
        if (th_is_input(name))
            th_copy_values(to, from, name);
}

void th_round_values(th_session *session, th_problem *problem, th_pass pass)
{
    TH_DEVICE device = th_upload_for(session, problem, pass, 0);
}

void th_accumulate_some(th_problem *problem, uint64_t *state)
{
    problem->accumulate = (uint32_t)th_random(state) & CLMGK_GRADIENT_ALL;
    for (th_name name = TH_GRAD_Q; name <= TH_GRAD_NOISE; name++)
        th_scale(problem, name, 0.0625);
}

static clmgk_layout tokens_first(int64_t tokens, int64_t heads, int64_t components, int64_t size)
{
    const int64_t head = size * components, token = head * heads;
    return (clmgk_layout){1, token * tokens, head, size, token};
}

void th_put_tokens_first(clmgk_attention_desc *desc, int64_t query_heads, int64_t key_heads, int64_t components,
                         int64_t gap, bool one_grad_o)
{
    const int64_t rows = desc->length, keys = desc->length_k;
    desc->q = desc->grad_q = tokens_first(rows, query_heads, 1, desc->head_size + gap);
    desc->k = desc->grad_k = tokens_first(keys, key_heads, components, desc->head_size + gap);
    desc->v = desc->grad_v = tokens_first(keys, desc->kv_heads, 1, desc->value_size + gap);
    desc->o = tokens_first(rows, desc->heads, 1, desc->value_size + gap);
    desc->lse = tokens_first(rows, desc->heads, 1, 1 + gap);
    desc->grad_o = one_grad_o ? (clmgk_layout){1, 0, 0, 0, 0} : desc->o;
}

void th_share_keys(clmgk_attention_desc *desc, const th_group *shape, size_t masks)
{
    desc->batch = desc->kv_heads = 2;
    desc->heads = shape->group * desc->kv_heads;
    desc->length = shape->length;
    desc->length_k = shape->length_k;
    desc->causal = masks % 2 == 1;
    desc->use_lengths = masks % 4 == 1;
    desc->use_window = masks % 4 == 2;
    desc->window_left = desc->use_window ? 20 : 0;
    desc->window_right = desc->use_window ? 2 : 0;
    if (shape->tokens_first)
        th_put_tokens_first(desc, desc->heads, desc->kv_heads, 1, 3, false);
}

void th_offset_arrays(th_problem *problem, uint64_t step, uint64_t first)
{
    for (size_t name = 0; name < TH_ARRAYS; name++)
        problem->array[name].offset = step * name + first;
}

void th_expect_equal_bits(const th_problem *one, const th_problem *other, th_name name)
{
    assert_int_equal(one->array[name].count, other->array[name].count);
    assert_memory_equal(one->array[name].values, other->array[name].values, one->array[name].count * sizeof(double));
}

/* ---- hidden keys ------------------------------------------------------------------------------------------------- */

void th_hide_keys(th_problem *problem)
{
    const th_array *const bias = &problem->array[TH_BIAS];
    const int64_t heads = bias->shape[1], rows = bias->shape[3], keys = bias->shape[4];
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < keys; j++) {
            if (i % 4 == 0 || (i % 4 == 1 && j < keys - 1) || (i % 4 == 2 && j < 128))
                th_set(problem, TH_BIAS, 0, i % heads, 0, i, j, -(double)INFINITY);
            else if (i % 8 == 3 && j % 3 == 0)
                th_set(problem, TH_BIAS, 0, i % heads, 0, i, j, -3.4e38);
            else if (i % 8 == 7)
                th_set(problem, TH_BIAS, 0, i % heads, 0, i, j, 5.0 * (double)j);
        }
}

/* ---- random numbers ---------------------------------------------------------------------------------------------- */

const th_philox_answer th_philox_answers[3] = {
    {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
    {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
     {0xffffffff, 0xffffffff},
     {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
    {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
     {0xa4093822, 0x299f31d0},
     {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
};

void th_fill_irregularly(double *values, size_t count, double *state)
{
    for (size_t n = 0; n < count; n++) {
        *state += 1.0;
        const double x = sin(*state * 12.9898) * 43758.5453;
        values[n] = 2.0 * (x - floor(x)) - 1.0;
    }
}

/* ---- threads ----------------------------------------------------------------------------------------------------- */

void th_run_threads(void *(*run)(void *), void *workers, size_t size, size_t count)
{
    pthread_t *const threads = calloc(count, sizeof(*threads));
    assert_non_null(threads);
    for (size_t n = 0; n < count; n++)
        assert_int_equal(pthread_create(&threads[n], NULL, run, (unsigned char *)workers + n * size), 0);
    for (size_t n = 0; n < count; n++)
        assert_int_equal(pthread_join(threads[n], NULL), 0);
    free(threads);
}

void *th_run_chain(void *worker)
{
    th_chain *const chain = worker;
    cl_event last = NULL;
    bool ok = true;
    for (int round = 0; ok && round < chain->rounds; round++) {
        cl_event next = NULL;
        ok = chain->enqueue(worker, last ? 1 : 0, last ? &last : NULL, &next);
        if (last)
            clReleaseEvent(last);
        last = next;
    }
    chain->ok = ok && clFlush(chain->queue) == CL_SUCCESS && clWaitForEvents(1, &last) == CL_SUCCESS;
    if (last)
        clReleaseEvent(last);
    return NULL;
}

void th_keep_sums(th_problem *problem)
{
    static const th_name positive[] = {TH_MIX, TH_MIX_WEIGHT, TH_STATE_Z};
    for (size_t n = 0; n < TH_COUNT(positive); n++) {
        const th_array *const array = &problem->array[positive[n]];
        for (size_t i = 0; array->used && i < array->count; i++)
            array->values[i] = 0.1 + fabs(array->values[i]);
    }
    th_scale(problem, TH_NOISE, 0.1);
}
