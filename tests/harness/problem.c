/* SPDX-License-Identifier: Apache-2.0 */
#include "harness/harness.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const clmgk_variant th_variants[4] = {CLMGK_VARIANT_SOFTMAX, CLMGK_VARIANT_GAUSSIAN, CLMGK_VARIANT_MGK,
                                      CLMGK_VARIANT_SMGK};
const clmgk_variant th_admixtures[7] = {CLMGK_VARIANT_FISH,         CLMGK_VARIANT_HARD_FISH, CLMGK_VARIANT_MISH,
                                        CLMGK_VARIANT_HARD_MISH,    CLMGK_VARIANT_GFISH,     CLMGK_VARIANT_HARD_GFISH,
                                        CLMGK_VARIANT_TALKING_HEADS};
const clmgk_variant th_linears[9] = {CLMGK_VARIANT_LINEAR,     CLMGK_VARIANT_MLK,        CLMGK_VARIANT_SMLK,
                                     CLMGK_VARIANT_LFISH,      CLMGK_VARIANT_LHARD_FISH, CLMGK_VARIANT_LMISH,
                                     CLMGK_VARIANT_LHARD_MISH, CLMGK_VARIANT_LGFISH,     CLMGK_VARIANT_LHARD_GFISH};
#define DTYPE(NAME, ...) CLMGK_DTYPE_##NAME,
const clmgk_dtype th_dtypes[CLMGK_DTYPES] = {CLMGK_DTYPE_LIST(DTYPE)};
#undef DTYPE
const clmgk_score th_scores[2] = {CLMGK_SCORE_DOT, CLMGK_SCORE_GAUSSIAN};
const clmgk_estep th_esteps[2] = {CLMGK_ESTEP_SOFT, CLMGK_ESTEP_HARD};

/* Elements before an array: canaries. */
#define GUARD 64

/* splitmix64 (Steele, Lea, Flood 2014) */
uint64_t th_random(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15U;
    z = (z ^ (z >> 30U)) * 0xbf58476d1ce4e5b9U;
    z = (z ^ (z >> 27U)) * 0x94d049bb133111ebU;
    return z ^ (z >> 31U);
}

double th_uniform(uint64_t *state)
{
    return ldexp((double)(th_random(state) >> 11U), -53);
}

int64_t th_pick(uint64_t *state, int64_t low, int64_t high)
{
    return low + (int64_t)(th_random(state) % (uint64_t)(high - low + 1));
}

bool th_chance(uint64_t *state, int64_t one_in)
{
    return th_pick(state, 1, one_in) == 1;
}

double th_normal(uint64_t *state)
{
    const double radius = sqrt(-2.0 * log(1.0 - th_uniform(state)));
    return radius * cos(6.283185307179586 * th_uniform(state));
}

/* Dense strides; axes of one element may have any, here 0. */
static void set_shape(th_array *array, int64_t b, int64_t h, int64_t r, int64_t n, int64_t d)
{
    const int64_t shape[TH_RANK] = {b, h, r, n, d};
    int64_t stride = 1;
    for (int axis = TH_RANK - 1; axis >= 0; axis--) {
        array->shape[axis] = shape[axis];
        array->stride[axis] = stride;
        stride *= shape[axis];
    }
    array->count = (size_t)stride;
}

static void set_layout(th_array *array, const clmgk_layout *layout)
{
    const int64_t stride[TH_RANK] = {layout->batch, layout->head, layout->component, layout->token, 1};
    memcpy(array->stride, stride, sizeof(stride));
}

static void same_shape(th_problem *problem, th_name name, th_name as)
{
    th_array *const array = &problem->array[name];
    memcpy(array->shape, problem->array[as].shape, sizeof(array->shape));
    memcpy(array->stride, problem->array[as].stride, sizeof(array->stride));
    array->count = problem->array[as].count;
}

/* Gradients and statistics: the shapes of what they belong to. */
static void shape_training(th_problem *problem)
{
    const clmgk_attention_desc *const d = &problem->desc;
    th_array *const a = problem->array;
#define GRADIENT(name, ...) same_shape(problem, TH_GRAD_##name, TH_##name);
    CLMGK_ARRAY_LIST(CLMGK_ARRAY_NONE, GRADIENT, CLMGK_ARRAY_NONE)
#undef GRADIENT
    same_shape(problem, TH_GRAD_O, TH_O);
    same_shape(problem, TH_GRAD_LSE, TH_LSE);
    same_shape(problem, TH_GRAD_NEW_STATE_C, TH_NEW_STATE_C);
    same_shape(problem, TH_GRAD_NEW_STATE_Z, TH_NEW_STATE_Z);
    set_layout(&a[TH_GRAD_O], &d->grad_o);
    set_layout(&a[TH_GRAD_Q], &d->grad_q);
    set_layout(&a[TH_GRAD_K], &d->grad_k);
    set_layout(&a[TH_GRAD_V], &d->grad_v);
    if (d->variance_shape == CLMGK_VARIANCE_NUMBER)
        set_shape(&a[TH_GRAD_VARIANCE], 1, 1, 1, 1, 1);
    same_shape(problem, TH_COUNTS, TH_PRIOR);
    same_shape(problem, TH_NEW_PRIOR, TH_PRIOR);
    set_shape(&a[TH_RESPONSIBILITIES], d->batch, d->heads, d->components, d->length, d->length_k);
    set_shape(&a[TH_NLL], d->sequences > 0 ? d->sequences : d->batch, d->heads, 1, 1, 1);
}

static bool has_trait(const clmgk_attention_desc *desc, clmgk_variant_trait trait)
{
    return (clmgk_variant_traits(desc->variant) & (uint32_t)trait) != 0;
}

/* A state from C, z and m on: [B,H,F,E], [B,H,F], [B,H]; mixed heads [B,H,M,F,E], [B,M,F], [B]; a pool has P places in
 * place of B. */
static void shape_state(th_problem *problem, th_name first)
{
    const clmgk_attention_desc *const d = &problem->desc;
    th_array *const a = &problem->array[first];
    const bool mixed = has_trait(d, CLMGK_TRAIT_ADMIXTURE);
    const int64_t states = d->state_pool > 0 ? d->state_pool : d->batch;
    set_shape(&a[0], states, d->heads, mixed ? d->components : 1, d->features, d->value_size);
    set_shape(&a[1], states, mixed ? d->components : d->heads, 1, d->features, 1);
    set_shape(&a[2], states, mixed ? 1 : d->heads, 1, 1, 1);
}

/* Captured arrays have their axes first. */
static void shape_captures(th_problem *problem)
{
    int64_t count = 0;
    for (int c = 0; c < CLMGK_MAX_CAPTURES; c++) {
        const clmgk_capture *const capture = &problem->desc.captures[c];
        th_array *const array = &problem->array[TH_CAPTURE_0 + c];
        int64_t shape[CLMGK_MAX_CAPTURE_AXES];
        for (int axis = 0; axis < CLMGK_MAX_CAPTURE_AXES; axis++)
            shape[axis] = axis < capture->axes ? capture->shape[axis] : 1;
        set_shape(array, shape[0], shape[1], shape[2], shape[3], 1);
        set_shape(&problem->array[TH_GRAD_CAPTURE_0 + c], shape[0], shape[1], shape[2], shape[3], 1);
        memcpy(array->stride, capture->strides, (size_t)capture->axes * sizeof(capture->strides[0]));
    }
    while (count < CLMGK_MAX_NUMBERS && problem->desc.numbers[count])
        count++;
    const clmgk_shape blocks = clmgk_array_shape(&problem->desc, CLMGK_ARRAY_MASK_BLOCKS);
    if (blocks.rank > 0)
        set_shape(&problem->array[TH_MASK_BLOCKS], blocks.size[0], blocks.size[1], 1, blocks.size[2], blocks.size[3]);
    set_shape(&problem->array[TH_NUMBERS], count, 1, 1, 1, 1);
    set_shape(&problem->array[TH_GRAD_NUMBERS], count, 1, 1, 1, 1);
}

/* Tokens first; slots of pages, or of caches. */
static void shape_append(th_problem *problem)
{
    const clmgk_attention_desc *const d = &problem->desc;
    th_array *const a = problem->array;
    const th_array *const k = &a[TH_K];
    set_shape(&a[TH_APPEND_K], d->append, k->shape[1], k->shape[2], 1, d->head_size);
    set_shape(&a[TH_APPEND_V], d->append, d->kv_heads, 1, 1, d->value_size);
    set_layout(&a[TH_APPEND_K], &d->append_k);
    set_layout(&a[TH_APPEND_V], &d->append_v);
    a[TH_APPEND_K].stride[0] = d->append_k.token;
    a[TH_APPEND_V].stride[0] = d->append_v.token;
    set_shape(&a[TH_APPEND_SLOTS], d->append, 1, 1, 1, 1);
    set_shape(&a[TH_APPEND_POSITIONS], d->append, 1, 1, 1, 1);
}

static void shape_arrays(th_problem *problem)
{
    const clmgk_attention_desc *const d = &problem->desc;
    th_array *const a = problem->array;
    const int64_t key_components = has_trait(d, CLMGK_TRAIT_KEYS) ? d->components : 1;
    const bool mixed = has_trait(d, CLMGK_TRAIT_ADMIXTURE);
    const int64_t heads = th_softmax_heads(d);
    set_shape(&a[TH_Q], d->batch, mixed ? d->components : d->heads, 1, d->length, d->head_size);
    const int64_t problems = d->sequences > 0 ? d->sequences : d->batch;
    const int64_t caches = d->page_size > 0 ? d->pages : d->use_lengths ? problems : d->batch;
    const int64_t room = d->page_size > 0 ? d->page_size : d->length_k;
    set_shape(&a[TH_K], caches, mixed ? d->components : d->kv_heads, key_components, room, d->head_size);
    set_shape(&a[TH_V], caches, d->kv_heads, 1, room, d->value_size);
    set_shape(&a[TH_SCALE_K], caches, mixed ? d->components : d->kv_heads, key_components, room, 1);
    set_shape(&a[TH_SCALE_V], caches, d->kv_heads, 1, room, 1);
    set_shape(&a[TH_PAGE_TABLE], d->use_page_offsets ? 1 : problems, d->table_pages, 1, 1, 1);
    set_shape(&a[TH_PAGE_OFFSETS], problems + 1, 1, 1, 1, 1);
    set_shape(&a[TH_LAST_PAGE], problems, 1, 1, 1, 1);
    set_shape(&a[TH_O], d->batch, d->heads, 1, d->length, d->value_size);
    set_shape(&a[TH_LSE], d->batch, heads, 1, d->length, 1);
    set_shape(&a[TH_LSE_LOW], d->batch, heads, 1, d->length, 1);
    set_layout(&a[TH_Q], &d->q);
    set_layout(&a[TH_K], &d->k);
    set_layout(&a[TH_V], &d->v);
    set_layout(&a[TH_SCALE_K], &d->scale_k);
    set_layout(&a[TH_SCALE_V], &d->scale_v);
    set_layout(&a[TH_O], &d->o);
    set_layout(&a[TH_LSE], &d->lse);
    set_layout(&a[TH_LSE_LOW], &d->lse);
    set_shape(&a[TH_PRIOR], 1, d->prior_shape >= CLMGK_PRIOR_HM ? d->heads : 1, d->components,
              d->prior_shape == CLMGK_PRIOR_HMS ? d->length_k : 1, 1);
    set_shape(&a[TH_VARIANCE], 1, d->variance_shape == CLMGK_VARIANCE_HM ? d->heads : 1, d->components, 1, 1);
    set_shape(&a[TH_SHIFT], 1, d->heads, d->components, 1, d->head_size);
    set_shape(&a[TH_LENGTHS], problems, 1, 1, 1, 1);
    set_shape(&a[TH_LENGTHS_Q], d->batch, 1, 1, 1, 1);
    set_shape(&a[TH_OFFSETS], d->sequences + 1, 1, 1, 1, 1);
    set_shape(&a[TH_OFFSETS_K], d->sequences + 1, 1, 1, 1, 1);
    set_shape(&a[TH_POSITIONS], d->batch, d->length, 1, 1, 1);
    set_shape(&a[TH_POSITIONS_K], d->batch, d->length_k, 1, 1, 1);
    set_shape(&a[TH_BIAS], d->bias_batch, d->bias_heads, 1, d->bias_length, d->bias_length_k);
    set_shape(&a[TH_SLOPES], 1, heads, 1, 1, 1);
    set_shape(&a[TH_SINKS], 1, heads, 1, 1, 1);
    const int64_t mixings = has_trait(d, CLMGK_TRAIT_SHARED_MIX) ? 1 : d->mix_hidden > 0 ? d->mix_hidden : heads;
    set_shape(&a[TH_MIX], 1, mixings, d->components, 1, 1);
    set_shape(&a[TH_MIX_WEIGHT], 1, heads, d->mix_hidden > 0 ? d->mix_hidden : d->components, 1, 1);
    set_shape(&a[TH_MIX_OFFSET], 1, heads, 1, 1, 1);
    set_shape(&a[TH_MIX_AFTER], 1, d->heads, d->mix_after_heads, 1, 1);
    set_shape(&a[TH_MIX_HIDDEN_OFFSET], 1, d->mix_hidden, 1, 1, 1);
    set_shape(&a[TH_NOISE], 1, 1, d->components, 1, 1);
    set_shape(&a[TH_PROJECTION], 1, 1, 1, d->features, d->head_size);
    shape_state(problem, TH_STATE_C);
    shape_state(problem, TH_NEW_STATE_C);
    set_shape(&a[TH_STATE_SLOTS], problems, 1, 1, 1, 1);
    set_shape(&a[TH_NEW_STATE_SLOTS], problems, 1, 1, 1, 1);
    set_shape(&a[TH_DENOMINATOR], d->batch, d->heads, 1, d->length, 2);
    shape_training(problem);
    shape_captures(problem);
    shape_append(problem);
    set_shape(&a[TH_PREFIX_TABLE], d->prefix_pages, 1, 1, 1, 1);
    set_shape(&a[TH_PREFIX_LENGTH], 1, 1, 1, 1, 1);
}

static bool has_scale(const clmgk_attention_desc *desc)
{
    return desc->feature == CLMGK_FEATURE_EXP || desc->feature == CLMGK_FEATURE_FAVOR;
}

static bool is_used_in_attention(const clmgk_attention_desc *desc, th_name name)
{
    const clmgk_array_info *const info = clmgk_array_get_info((clmgk_array)name);
    switch (name) {
    case TH_PRIOR:
        return desc->prior_shape != CLMGK_PRIOR_UNIFORM;
    case TH_VARIANCE:
        return desc->variance_shape != CLMGK_VARIANCE_NUMBER;
    case TH_SHIFT:
        return has_trait(desc, CLMGK_TRAIT_SHIFT);
    case TH_LENGTHS:
        return desc->use_lengths != 0;
    case TH_LENGTHS_Q:
        return desc->use_lengths_q != 0;
    case TH_OFFSETS:
        return desc->sequences > 0;
    case TH_OFFSETS_K:
        return desc->use_offsets_k != 0;
    case TH_POSITIONS:
    case TH_POSITIONS_K:
        return desc->use_positions != 0;
    case TH_BIAS:
        return desc->use_bias != 0;
    case TH_SLOPES:
        return desc->use_alibi != 0;
    case TH_SINKS:
        return desc->use_sinks != 0;
    case TH_MIX:
        return has_trait(desc, CLMGK_TRAIT_ADMIXTURE);
    case TH_MIX_WEIGHT:
        return desc->use_mix_weight != 0;
    case TH_MIX_OFFSET:
        return desc->use_mix_offset != 0;
    case TH_MIX_HIDDEN_OFFSET:
        return desc->use_mix_hidden_offset != 0;
    case TH_MIX_AFTER:
        return desc->mix_after_heads > 0;
    case TH_NOISE:
        return has_trait(desc, CLMGK_TRAIT_NOISE);
    case TH_LSE:
        return !has_trait(desc, CLMGK_TRAIT_LINEAR);
    case TH_LSE_LOW:
        return desc->use_lse_low != 0;
    case TH_PROJECTION:
        return desc->feature == CLMGK_FEATURE_FAVOR;
    case TH_STATE_C:
    case TH_STATE_Z:
        return desc->use_state != 0;
    case TH_STATE_M:
        return desc->use_state != 0 && has_scale(desc);
    case TH_NEW_STATE_C:
    case TH_NEW_STATE_Z:
        return desc->use_new_state != 0;
    case TH_NEW_STATE_M:
        return desc->use_new_state != 0 && has_scale(desc);
    case TH_DENOMINATOR:
        return has_trait(desc, CLMGK_TRAIT_LINEAR);
    case TH_GRAD_O:
        return desc->gradients != 0;
    case TH_GRAD_LSE:
        return desc->gradients != 0 && !has_trait(desc, CLMGK_TRAIT_LINEAR);
    case TH_GRAD_NEW_STATE_C:
    case TH_GRAD_NEW_STATE_Z:
        return desc->gradients != 0 && desc->use_new_state != 0;
    case TH_NUMBERS:
        return desc->numbers[0] != NULL;
    case TH_MASK_BLOCKS:
        return desc->use_mask_blocks != 0;
    case TH_PARTS_O:
    case TH_PARTS_LSE:
    case TH_PARTS_LSE_LOW:
    case TH_WORKSPACE:
        return false;
    default:
        if (name >= TH_CAPTURE_0 && name <= TH_CAPTURE_7)
            return desc->captures[name - TH_CAPTURE_0].name != NULL;
        return !info->gradient && !info->statistic
                   ? true
                   : ((desc->gradients & info->gradient) | (desc->statistics & info->statistic)) != 0;
    }
}

static bool is_used(const clmgk_attention_desc *desc, th_name name)
{
    if (name >= TH_PAGE_TABLE && name <= TH_LAST_PAGE)
        return name == TH_PAGE_TABLE ? desc->page_size > 0 : desc->use_page_offsets != 0;
    if (name >= TH_APPEND_K && name <= TH_APPEND_POSITIONS)
        return name == TH_APPEND_POSITIONS ? desc->append_rotary != 0 : desc->append > 0;
    if (name == TH_PREFIX_TABLE || name == TH_PREFIX_LENGTH)
        return desc->prefix_pages > 0;
    if (name == TH_STATE_SLOTS || name == TH_NEW_STATE_SLOTS)
        return desc->state_pool > 0 && (name == TH_STATE_SLOTS ? desc->use_state : desc->use_new_state) != 0;
    if (name == TH_SCALE_K || name == TH_SCALE_V)
        return name == TH_SCALE_K ? desc->use_scale_k != 0 : desc->use_scale_v != 0;
    return is_used_in_attention(desc, name);
}

bool th_is_gradient(th_name name)
{
    return name >= TH_GRAD_Q && name <= TH_GRAD_MIX_AFTER;
}

bool th_is_input(th_name name)
{
    return (name <= TH_STATE_M && name != TH_O && name != TH_LSE) || (name >= TH_CAPTURE_0 && name <= TH_MASK_BLOCKS) ||
           name == TH_PREFIX_TABLE || name == TH_PREFIX_LENGTH || name == TH_SCALE_K || name == TH_SCALE_V ||
           name == TH_STATE_SLOTS || name == TH_NEW_STATE_SLOTS;
}

bool th_is_output(th_name name)
{
    return name == TH_O || name == TH_LSE || name == TH_LSE_LOW || (name >= TH_NEW_STATE_C && name <= TH_DENOMINATOR);
}

static bool is_whole(const clmgk_attention_desc *desc, th_name name)
{
    return name >= TH_CAPTURE_0 && name <= TH_CAPTURE_7 &&
           desc->captures[name - TH_CAPTURE_0].type == CLMGK_CAPTURE_I32;
}

/* The size of stored integers, whose rows have scales of about its inverse. */
#define INTEGERS 40.0

static bool has_integers(const clmgk_attention_desc *desc, th_name name)
{
    const bool keys = name == TH_K || name == TH_SCALE_K;
    return clmgk_array_dtype(desc, keys ? CLMGK_ARRAY_K : CLMGK_ARRAY_V) == CLMGK_DTYPE_INT8;
}

static double random_value(const clmgk_attention_desc *desc, th_name name, uint64_t *state)
{
    switch (name) {
    case TH_K:
    case TH_V:
        return th_normal(state) * (has_integers(desc, name) ? INTEGERS : 1.0);
    case TH_SCALE_K:
    case TH_SCALE_V:
        return (0.5 + th_uniform(state)) / (has_integers(desc, name) ? INTEGERS : 1.0);
    case TH_PRIOR:
        return 0.05 + 0.95 * th_uniform(state);
    case TH_VARIANCE:
        return (double)desc->head_size * (0.5 + th_uniform(state));
    case TH_LENGTHS:
    case TH_OFFSETS_K:
        return floor(th_uniform(state) * (double)(desc->length_k + 1));
    case TH_OFFSETS:
    case TH_LENGTHS_Q:
        return floor(th_uniform(state) * (double)(desc->length + 1));
    case TH_POSITIONS:
    case TH_POSITIONS_K:
        return floor(th_uniform(state) * (double)(desc->length_k + 1));
    case TH_PREFIX_LENGTH:
        return floor(th_uniform(state) * (double)(desc->prefix_pages * desc->page_size + 1));
    case TH_PREFIX_TABLE:
    case TH_PAGE_TABLE:
        return floor(th_uniform(state) * (double)desc->pages);
    case TH_PAGE_OFFSETS:
        return floor(th_uniform(state) * (double)(desc->table_pages + 1));
    case TH_LAST_PAGE:
        return floor(th_uniform(state) * (double)(desc->page_size + 1));
    case TH_APPEND_SLOTS:
        return floor(th_uniform(state) *
                     (double)(desc->page_size > 0 ? desc->pages * desc->page_size : desc->length_k));
    case TH_STATE_SLOTS:
    case TH_NEW_STATE_SLOTS:
        return floor(th_uniform(state) * (double)desc->state_pool);
    case TH_APPEND_POSITIONS:
        return floor(1000 * th_uniform(state));
    case TH_BIAS:
        return th_random(state) % 8 == 0 ? (double)-INFINITY : th_normal(state);
    case TH_SLOPES:
        return 0.5 * th_uniform(state);
    case TH_NOISE:
        return th_uniform(state);
    case TH_STATE_Z:
        return 0.1 + th_uniform(state);
    case TH_MASK_BLOCKS:
        return floor(3 * th_uniform(state));
    default:
        return is_whole(desc, name) ? floor(4 * th_uniform(state)) : th_normal(state);
    }
}

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Random places become offsets: ascending, from 0 to the end of the axis. */
static void make_offsets(th_array *array, int64_t axis)
{
    if (!array->used)
        return;
    qsort(array->values, array->count, sizeof(double), ascending);
    array->values[0] = 0.0;
    array->values[array->count - 1] = (double)axis;
}

static void make_values(th_problem *problem, th_name name)
{
    th_array *const array = &problem->array[name];
    array->used = true;
    free(array->values);
    array->values = calloc(array->count + 1, sizeof(double)); /* + 1: no elements is no failure */
    assert_non_null(array->values);
}

void th_add_parts(th_problem *problem, int64_t parts)
{
    const clmgk_attention_desc *const d = &problem->desc;
    problem->parts = parts;
    set_shape(&problem->array[TH_PARTS_O], parts * d->batch, d->heads, 1, d->length, d->value_size);
    set_shape(&problem->array[TH_PARTS_LSE], parts * d->batch, d->heads, 1, d->length, 1);
    make_values(problem, TH_PARTS_O);
    make_values(problem, TH_PARTS_LSE);
    set_shape(&problem->array[TH_PARTS_LSE_LOW], parts * d->batch, d->heads, 1, d->length, 1);
    if (d->use_lse_low)
        make_values(problem, TH_PARTS_LSE_LOW);
}

/* Arrays of the linear family alone. */
static bool is_linear(th_name name)
{
    return (name >= TH_PROJECTION && name <= TH_DENOMINATOR) ||
           (name >= TH_GRAD_NEW_STATE_C && name <= TH_GRAD_NEW_STATE_Z) ||
           (name >= TH_GRAD_STATE_C && name <= TH_GRAD_STATE_Z);
}

/* Of the hidden layer and of the mixing after the softmax. */
static bool is_layer(th_name name)
{
    return name == TH_MIX_HIDDEN_OFFSET || name == TH_MIX_AFTER || name == TH_GRAD_MIX_HIDDEN_OFFSET ||
           name == TH_GRAD_MIX_AFTER;
}

/* The number at which an array's random numbers begin. Arrays that were added to the list later have the last numbers,
 * so that the values of the older ones stay the same. */
static uint64_t first_state(uint64_t seed, th_name name)
{
    enum { MIXING = 4, OTHERS = 31, EARLIER = 55 };
    uint64_t earlier = 0, layers = 0; /* of the linear family; of layers of the mixing */
    for (th_name other = 0; other < name; other++) {
        earlier += is_linear(other);
        layers += is_layer(other);
    }
    if (is_layer(name))
        return seed * OTHERS + OTHERS + (uint64_t)2 * MIXING + EARLIER + layers;
    if (is_linear(name))
        return seed * OTHERS + OTHERS + (uint64_t)2 * MIXING + earlier;
    if (name >= TH_MIX && name <= TH_NOISE)
        return seed * OTHERS + OTHERS + (name - TH_MIX) - layers;
    if (name >= TH_GRAD_MIX && name <= TH_GRAD_NOISE)
        return seed * OTHERS + OTHERS + MIXING + (name - TH_GRAD_MIX);
    return seed * OTHERS + name - earlier - layers - (name >= TH_PRIOR && name < TH_MIX ? 2 : 0) -
           (name > TH_NOISE ? MIXING : 0) - (name > TH_GRAD_NOISE ? MIXING : 0);
}

th_problem th_problem_make(const clmgk_attention_desc *desc, uint64_t seed)
{
    th_problem problem = {.desc = *desc, .seed = seed * 0x9e3779b97f4a7c15U};
    problem.desc.struct_size = sizeof(problem.desc);
    th_expect_ok(clmgk_attention_validate(&problem.desc, &problem.desc, &th_error));
    shape_arrays(&problem);
    for (th_name name = 0; name < TH_ARRAYS; name++) {
        th_array *const array = &problem.array[name];
        uint64_t state = first_state(seed, name);
        array->integer =
            clmgk_array_get_info((clmgk_array)name)->element == CLMGK_ELEMENT_I32 || is_whole(&problem.desc, name);
        array->dtype = clmgk_array_dtype(&problem.desc, (clmgk_array)name);
        array->element = clmgk_ref_dtype_size(array->dtype);
        array->block = clmgk_ref_block(array->dtype);
        array->home = name;
        array->offset = GUARD;
        if (!is_used(&problem.desc, name))
            continue;
        make_values(&problem, name);
        for (size_t n = 0; n < array->count; n++)
            array->values[n] = random_value(&problem.desc, name, &state);
    }
    make_offsets(&problem.array[TH_OFFSETS], problem.desc.length);
    make_offsets(&problem.array[TH_OFFSETS_K], problem.desc.length_k);
    make_offsets(&problem.array[TH_PAGE_OFFSETS], problem.desc.table_pages);
    return problem;
}

void th_problem_free(th_problem *problem)
{
    for (size_t name = 0; name < TH_ARRAYS; name++)
        free(problem->array[name].values);
    *problem = (th_problem){0};
}

int64_t th_keys(int64_t count)
{
    return count == 0 ? CLMGK_NO_KEYS : count;
}

clmgk_attention_desc th_small_desc(clmgk_variant variant, int64_t length, int64_t length_k)
{
    const uint32_t traits = clmgk_variant_traits(variant);
    const bool free_heads = (traits & CLMGK_TRAIT_ADMIXTURE) != 0 && (traits & CLMGK_TRAIT_SQUARE) == 0;
    return (clmgk_attention_desc){.struct_size = sizeof(clmgk_attention_desc),
                                  .variant = variant,
                                  .heads = 2,
                                  .components = free_heads ? 3 : 0,
                                  .length = length,
                                  .length_k = th_keys(length_k),
                                  .head_size = 17,
                                  .value_size = 8};
}

void th_set_bias_axes(clmgk_attention_desc *desc, size_t axes)
{
    desc->use_bias = 1;
    desc->bias_heads = axes & 1U ? 1 : 0;
    desc->bias_length = axes & 2U ? 1 : 0;
    desc->bias_length_k = axes & 4U ? 1 : 0;
}

clmgk_attention_desc th_full_desc(void)
{
    clmgk_attention_desc desc = th_small_desc(CLMGK_VARIANT_SMGK, 5, 6);
    desc.batch = 2;
    desc.prior_shape = CLMGK_PRIOR_HMS;
    desc.variance_shape = CLMGK_VARIANCE_HM;
    desc.use_lengths = desc.use_lengths_q = 1;
    return desc;
}

void th_scale(th_problem *problem, th_name name, double factor)
{
    const th_array *const array = &problem->array[name];
    for (size_t n = 0; array->used && n < array->count; n++)
        array->values[n] *= factor;
}

void th_move(th_problem *problem, th_name name, double distance, uint64_t seed)
{
    const th_array *const array = &problem->array[name];
    const size_t width = (size_t)array->shape[TH_RANK - 1];
    for (size_t n = 0; n < array->count; n++) {
        uint64_t state = seed + n % width;
        array->values[n] += distance * th_normal(&state);
    }
}

th_problem th_far_problem(clmgk_attention_desc desc)
{
    th_problem out = th_problem_make(&desc, 1);
    for (th_name name = TH_Q; name <= TH_K; name++)
        th_move(&out, name, 30.0, 1);
    return out;
}

void th_fill(th_problem *problem, th_name name, double value)
{
    assert_true(problem->array[name].used);
    for (size_t n = 0; n < problem->array[name].count; n++)
        problem->array[name].values[n] = value;
}

void th_set(th_problem *problem, th_name name, int64_t b, int64_t h, int64_t r, int64_t n, int64_t d, double value)
{
    const th_array *const array = &problem->array[name];
    const int64_t index[TH_RANK] = {b, h, r, n, d};
    int64_t flat = 0;
    assert_true(array->used);
    for (size_t axis = 0; axis < TH_RANK; axis++) {
        assert_true(index[axis] >= 0 && index[axis] < array->shape[axis]);
        flat = flat * array->shape[axis] + index[axis];
    }
    array->values[flat] = value;
}

void th_describe(const th_problem *problem, clmgk_engine engine, char *text, size_t capacity)
{
    const clmgk_attention_desc *const d = &problem->desc;
    const int size = snprintf(
        text, capacity,
        "%s %s %s %s %s,%s,%s,%s B=%lld H=%lld G=%lld M=%lld N=%lld S=%lld D=%lld E=%lld prior=%d variance=%d "
        "causal=%d "
        "align=%d lengths=%d lengths_q=%d",
        clmgk_engine_name(engine), clmgk_variant_name(d->variant), clmgk_score_name(d->score),
        clmgk_estep_name(d->estep), clmgk_dtype_name(d->dtype), clmgk_dtype_name(problem->array[TH_K].dtype),
        clmgk_dtype_name(problem->array[TH_V].dtype), clmgk_dtype_name(problem->array[TH_O].dtype), (long long)d->batch,
        (long long)d->heads, (long long)d->kv_heads, (long long)d->components, (long long)d->length,
        (long long)d->length_k, (long long)d->head_size, (long long)d->value_size, (int)d->prior_shape,
        (int)d->variance_shape, (int)d->causal, (int)d->alignment, (int)d->use_lengths, (int)d->use_lengths_q);
    const size_t used = size > 0 && (size_t)size < capacity ? (size_t)size : capacity;
    if (used < capacity)
        snprintf(text + used, capacity - used,
                 " window=%d:%lld:%lld sequences=%lld own_k=%d bias=%d:%lld,%lld,%lld,%lld alibi=%d sinks=%d "
                 "softcap=%g dropout=%g weight=%d offset=%d hidden=%lld:%d after=%lld shared=%d",
                 (int)d->use_window, (long long)d->window_left, (long long)d->window_right, (long long)d->sequences,
                 (int)d->use_offsets_k, (int)d->use_bias, (long long)d->bias_batch, (long long)d->bias_heads,
                 (long long)d->bias_length, (long long)d->bias_length_k, (int)d->use_alibi, (int)d->use_sinks,
                 d->softcap, d->dropout, (int)d->use_mix_weight, (int)d->use_mix_offset, (long long)d->mix_hidden,
                 (int)d->use_mix_hidden_offset, (long long)d->mix_after_heads, (int)d->shared_noise);
    const size_t modified = strlen(text);
    if (has_trait(d, CLMGK_TRAIT_LINEAR))
        snprintf(text + modified, capacity - modified,
                 " feature=%s:%d F=%lld guard=%g unnormalised=%d state=%d new_state=%d", clmgk_feature_name(d->feature),
                 (int)d->feature_order, (long long)d->features, d->guard, (int)d->unnormalised, (int)d->use_state,
                 (int)d->use_new_state);
}

void th_poison(th_problem *problem, th_name name, int64_t b, int64_t first)
{
    th_array *const array = &problem->array[name];
    for (size_t flat = 0; array->used && flat < array->count; flat++) {
        const int64_t token = (int64_t)flat / array->shape[4] % array->shape[3];
        const int64_t batch = (int64_t)flat / (array->shape[4] * array->shape[3] * array->shape[2] * array->shape[1]);
        if (batch == b && token >= first)
            array->values[flat] = (double)NAN;
    }
}

void th_reverse_tokens(th_problem *problem, th_name name)
{
    const th_array *const array = &problem->array[name];
    const int64_t tokens = array->shape[3], size = array->shape[4];
    for (int64_t row = 0; row < (int64_t)array->count / size; row++) {
        const int64_t partner = row - row % tokens + (tokens - 1 - row % tokens);
        for (int64_t d = 0; row < partner && d < size; d++) {
            const double value = array->values[row * size + d];
            array->values[row * size + d] = array->values[partner * size + d];
            array->values[partner * size + d] = value;
        }
    }
}
