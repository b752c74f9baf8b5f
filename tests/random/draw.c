/* SPDX-License-Identifier: Apache-2.0 */
#include "random/random.h"

#include <stdio.h>
#include <string.h>

enum { LONGEST = 70, LONGEST_BROAD = 200 };

static bool has_trait(const clmgk_attention_desc *desc, clmgk_variant_trait trait)
{
    return (clmgk_variant_traits(desc->variant) & (uint32_t)trait) != 0;
}

/* ---- sizes ------------------------------------------------------------------------------------------------------- */

/* Mostly short; now and then one, now and then none. */
static int64_t draw_length(uint64_t *state)
{
    if (th_chance(state, 24))
        return 0;
    if (th_chance(state, 8))
        return 1;
    return th_pick(state, 2, th_chance(state, 2) ? 20 : LONGEST);
}

static void draw_heads(const rd_configuration *from, clmgk_attention_desc *d, uint64_t *state)
{
    const bool mixed = has_trait(d, CLMGK_TRAIT_ADMIXTURE);
    d->kv_heads = th_pick(state, 1, 2);
    d->heads = d->kv_heads * (mixed ? from->ratio : th_pick(state, 1, 3));
    if (has_trait(d, CLMGK_TRAIT_SQUARE))
        d->heads = d->kv_heads = d->components;
}

/* A size of the class of `size`; of classes above 32 only the smallest one, unless the configuration is broad. */
static int64_t draw_size(const rd_configuration *from, const clmgk_attention_desc *d, int64_t size, uint64_t *state)
{
    const int64_t most = size < 34 || from->broad ? size : 33;
    return th_pick(state, rd_class_below(d, most) + 1, most);
}

/* Several tiles of the parameters that plans choose. */
static void draw_long(const rd_configuration *from, clmgk_attention_desc *d, uint64_t *state)
{
    if (!from->broad || !th_chance(state, 3))
        return;
    d->batch = d->kv_heads = 1;
    d->heads = has_trait(d, CLMGK_TRAIT_SQUARE) ? d->heads : has_trait(d, CLMGK_TRAIT_ADMIXTURE) ? from->ratio : 2;
    d->kv_heads = has_trait(d, CLMGK_TRAIT_SQUARE) ? d->heads : 1;
    d->length = from->few > 0 ? d->length : th_pick(state, 1, LONGEST_BROAD);
    d->length_k = th_pick(state, 1, LONGEST_BROAD);
}

static void draw_sizes(const rd_configuration *from, clmgk_attention_desc *d, uint64_t *state)
{
    d->batch = d->sequences > 0 ? 1 : th_pick(state, 1, 3);
    draw_heads(from, d, state);
    d->length = from->few > 0 ? th_pick(state, 1, from->few) : draw_length(state);
    d->length_k = draw_length(state);
    draw_long(from, d, state);
    /* rows that need several ranges of keys to be worth it */
    const int64_t splits = has_trait(d, CLMGK_TRAIT_LINEAR) ? 1 : from->splits;
    if (splits > 1 && d->length * (splits - 1) > d->length_k)
        d->length_k = LONGEST - th_pick(state, 0, 10);
    if (splits > 1 && d->length * (splits - 1) > d->length_k)
        d->length = d->length_k / (splits - 1) - th_pick(state, 0, 3);
    d->head_size = draw_size(from, d, d->head_size, state);
    if (d->feature == CLMGK_FEATURE_DPFP) /* 2 D nu features: D of one class of features */
        d->head_size = from->desc.head_size - th_pick(state, 0, 1);
    if (d->feature == CLMGK_FEATURE_FAVOR)
        d->features -= th_pick(state, 0, 15);
    d->value_size = draw_size(from, d, d->value_size, state);
}

/* ---- options ----------------------------------------------------------------------------------------------------- */

static void draw_masks(const rd_configuration *from, clmgk_attention_desc *d, uint64_t *state)
{
    const bool packed = d->sequences > 0, linear = has_trait(d, CLMGK_TRAIT_LINEAR);
    d->causal = linear ? d->causal : th_chance(state, 3); /* linear: another program */
    d->use_window = th_chance(state, 4) && !linear;
    d->window_left = th_pick(state, -1, 30);
    d->window_right = th_pick(state, -1, 30);
    if (!d->use_window)
        d->window_left = d->window_right = 0;
    d->use_lengths = !packed && th_chance(state, 3);
    d->use_lengths_q = !packed && th_chance(state, 4);
    d->alignment = (clmgk_alignment)th_pick(state, 0, d->use_lengths ? 2 : 1);
    if (!packed)
        return;
    d->sequences = th_pick(state, 1, 5);
    d->use_offsets_k = !th_chance(state, 3);
    if (!d->use_offsets_k && !from->paged)
        d->length_k = d->length;
}

/* Pages of any size, in batches or in packed sequences of any number of queries and keys. Few pages are in several
 * tables, or in one several times. */
static void draw_pages(const rd_configuration *from, clmgk_attention_desc *d, uint64_t *state)
{
    static const int64_t sizes[] = {1, 2, 3, 5, 8, 16, 17, 64};
    if (!from->paged)
        return;
    const int64_t problems = d->sequences > 0 ? d->sequences : d->batch;
    d->page_size = sizes[th_pick(state, 0, TH_COUNT(sizes) - 1)];
    d->table_pages = (d->length_k + d->page_size - 1) / d->page_size + th_pick(state, 0, 2);
    d->table_pages = d->table_pages > 0 ? d->table_pages : 1;
    if (d->length_k > 0 && th_chance(state, 2))
        d->length_k = d->table_pages * d->page_size;
    d->pages = th_pick(state, 1, 2 * d->table_pages);
    d->use_offsets_k = 0;
    d->use_page_offsets = th_chance(state, 3);
    d->use_lengths = !d->use_page_offsets && !th_chance(state, 4);
    if (d->use_page_offsets)
        d->table_pages *= problems;
    d->alignment = (clmgk_alignment)th_pick(state, 0, d->use_lengths || d->use_page_offsets ? 2 : 1);
}

/* Numbers of a block of K or V. */
static int64_t block_of(clmgk_storage type)
{
    return type == CLMGK_STORAGE_AS_Q ? 1 : clmgk_dtype_get_info((clmgk_dtype)(type - 1)).block;
}

/* Whole blocks; scales of rows, of heads, or of all. */
static void draw_types(const rd_configuration *from, clmgk_attention_desc *d, uint64_t *state)
{
    static const clmgk_layout scales[] = {{.strided = 0}, {.strided = 1, .head = 1}, {.strided = 1}};
    if (block_of(d->dtype_k) > 1)
        d->head_size = from->desc.head_size;
    if (block_of(d->dtype_v) > 1)
        d->value_size = from->desc.value_size;
    if (d->use_scale_k)
        d->scale_k = scales[th_pick(state, 0, TH_COUNT(scales) - 1)];
    if (d->use_scale_v)
        d->scale_v = scales[th_pick(state, 0, TH_COUNT(scales) - 1)];
}

/* The gradient of a state makes another program: only where the configuration has a state. */
static void draw_states(clmgk_attention_desc *d, uint64_t *state)
{
    static const double guards[] = {0.0, 0.0, 1e-6, 1e-2, 2.0};
    if (!has_trait(d, CLMGK_TRAIT_LINEAR))
        return;
    d->guard = guards[th_pick(state, 0, TH_COUNT(guards) - 1)];
    if (d->feature == CLMGK_FEATURE_RELU)
        d->feature_epsilon = d->guard; /* as any of them */
    d->unnormalised = d->guard == 0.0 && th_chance(state, 3);
    d->use_new_state = d->sequences == 0 && th_chance(state, 3);
    if (d->use_state)
        return;
    d->use_state = d->sequences == 0 && th_chance(state, 3);
    d->gradients &= ~(uint32_t)(CLMGK_GRADIENT_STATE_C | CLMGK_GRADIENT_STATE_Z);
}

static void draw_modifiers(clmgk_attention_desc *d, uint64_t *state)
{
    static const double probabilities[] = {0.1, 0.25, 0.5, 0.9};
    static const double caps[] = {0.5, 2.0, 15.0, 50.0};
    if (d->use_bias) {
        d->bias_batch = th_chance(state, 2) ? 1 : d->batch;
        if (d->bias_heads == 0)
            d->bias_heads = th_chance(state, 3) ? 1 : th_softmax_heads(d);
    }
    if (d->dropout > 0.0)
        d->dropout = probabilities[th_pick(state, 0, 3)];
    if (d->softcap > 0.0)
        d->softcap = caps[th_pick(state, 0, 3)];
    if (d->prior_shape != CLMGK_PRIOR_UNIFORM)
        d->prior_shape = (clmgk_prior_shape)th_pick(state, CLMGK_PRIOR_M, CLMGK_PRIOR_HMS);
    if (d->variance_shape != CLMGK_VARIANCE_NUMBER)
        d->variance_shape = (clmgk_variance_shape)th_pick(state, CLMGK_VARIANCE_M, CLMGK_VARIANCE_HM);
    else if (!has_trait(d, CLMGK_TRAIT_ADMIXTURE) && !has_trait(d, CLMGK_TRAIT_LINEAR) && th_chance(state, 2))
        d->variance = (double)d->head_size * (0.1 + 2.0 * th_uniform(state));
}

/* What the variant lacks. */
static void drop_outputs(clmgk_attention_desc *d)
{
    const bool dot = d->variant == CLMGK_VARIANT_SOFTMAX || d->score == CLMGK_SCORE_DOT;
    d->gradients &= th_all_gradients(d);
    if (dot)
        d->statistics &= ~(uint32_t)CLMGK_STATISTIC_NLL;
}

/* ---- parameters of the kernels ----------------------------------------------------------------------------------- */

static const char *blocks_of(const rd_configuration *from, bool backward)
{
    const bool lane = from->engine == CLMGK_ENGINE_LANE;
    const bool mixed = has_trait(&from->desc, CLMGK_TRAIT_ADMIXTURE);
    if (from->parameters)
        return from->parameters[0] != '\0' ? from->parameters : NULL;
    if (has_trait(&from->desc, CLMGK_TRAIT_LINEAR))
        return from->wide ? "chunk=64" : "chunk=16";
    if (from->engine == CLMGK_ENGINE_MATRIX && from->wide)
        return mixed ? "warps=2,row-tiles=2,key-tiles=4,heads=1" : "warps=2,row-tiles=2,key-tiles=4";
    if (from->engine == CLMGK_ENGINE_MATRIX)
        return mixed ? "warps=1,row-tiles=1,key-tiles=2,heads=2" : "warps=1,row-tiles=1,key-tiles=2";
    if (!lane)
        return mixed ? "rows=1,keys=1,heads=1" : "rows=1,keys=1";
    if (from->few > 0 && !backward)
        return NULL; /* the form for few rows is taken where nothing asks for another */
    if (from->wide)
        return mixed ? "panels=2,vectors=2,heads=2" : "panels=2,vectors=2";
    return mixed ? "panels=1,vectors=1,tile=16,heads=2" : "panels=1,vectors=1,tile=16";
}

static void draw_parameters(const rd_configuration *from, rd_case *c, uint64_t *state)
{
    const bool linear = has_trait(&from->desc, CLMGK_TRAIT_LINEAR);
    const bool split = from->splits > 1 && (linear || c->desc.length * (from->splits - 1) <= c->desc.length_k);
    const char *const blocks = blocks_of(from, false), *const backward = blocks_of(from, true);
    const bool tail = split && !linear && !from->wide && from->engine != CLMGK_ENGINE_LANE;
    snprintf(c->parameters, RD_PARAMETERS, "%s%ssplits=%d%s", blocks ? blocks : "", blocks ? "," : "",
             split ? (int)from->splits : 1, tail ? ",split-from=1" : "");
    snprintf(c->backward_parameters, RD_PARAMETERS, "%s%ssplits=%d", backward ? backward : "", backward ? "," : "",
             1 << th_pick(state, 0, 2));
}

/* ---- layouts ----------------------------------------------------------------------------------------------------- */

/* Strides for the axes batch, head, component, token in the order of permutation `number`, the last one varying
 * fastest, with a gap after each. */
static clmgk_layout permuted(int number, const int64_t shape[4], int64_t innermost, int64_t gap)
{
    int64_t stride[4] = {0};
    bool taken[4] = {false};
    int64_t next = innermost + gap;
    for (int left = 4; left > 0; left--) {
        int choice = number % left, axis = 0;
        number /= left;
        while (taken[axis] || choice-- > 0)
            axis++;
        taken[axis] = true;
        stride[axis] = next;
        next = next * (shape[axis] > 0 ? shape[axis] : 1) + gap;
    }
    return (clmgk_layout){
        .strided = 1, .batch = stride[0], .head = stride[1], .component = stride[2], .token = stride[3]};
}

static clmgk_layout tokens_first(const int64_t shape[4], int64_t innermost)
{
    const int64_t head = innermost * shape[2], token = head * shape[1];
    return (clmgk_layout){.strided = 1,
                          .batch = token * (shape[3] > 0 ? shape[3] : 1),
                          .head = head,
                          .component = innermost,
                          .token = token};
}

static void set_layouts(const rd_case *c, clmgk_attention_desc *d)
{
    const bool mixed = has_trait(d, CLMGK_TRAIT_ADMIXTURE);
    const int64_t components = has_trait(d, CLMGK_TRAIT_KEYS) ? d->components : 1;
    const int64_t q[4] = {d->batch, mixed ? d->components : d->heads, 1, d->length};
    const int64_t caches = d->page_size > 0 ? d->pages : d->batch;
    const int64_t keys = d->page_size > 0 ? d->page_size : d->length_k;
    const int64_t k[4] = {caches, mixed ? d->components : d->kv_heads, components, keys};
    const int64_t v[4] = {caches, d->kv_heads, 1, keys}, o[4] = {d->batch, d->heads, 1, d->length};
    const int64_t lse[4] = {d->batch, th_softmax_heads(d), 1, d->length};
    const int64_t key = d->head_size / block_of(d->dtype_k), value = d->value_size / block_of(d->dtype_v);
    const struct {
        clmgk_layout *layout;
        const int64_t *shape;
        int64_t innermost;
    } arrays[] = {{&d->q, q, d->head_size},
                  {&d->k, k, key},
                  {&d->v, v, value},
                  {&d->o, o, d->value_size},
                  {&d->grad_o, o, d->value_size},
                  {&d->grad_q, q, d->head_size},
                  {&d->grad_k, k, d->head_size},
                  {&d->grad_v, v, d->value_size},
                  {&d->lse, lse, 1}};
    for (size_t n = 0; n < TH_COUNT(arrays) && c->layout != RD_DENSE; n++) {
        const int number = c->layout - RD_PERMUTED + 5 * (int)n;
        if (c->layout >= RD_PERMUTED)
            *arrays[n].layout = permuted(number % 24, arrays[n].shape, arrays[n].innermost, number % 4);
        else if (arrays[n].layout != &d->lse)
            *arrays[n].layout = tokens_first(arrays[n].shape, arrays[n].innermost);
    }
    int64_t *const zero[] = {&d->k.head,       &d->k.token,     &d->v.head,      &d->v.token,     &d->q.batch,
                             &d->q.head,       &d->q.token,     &d->k.batch,     &d->k.component, &d->v.batch,
                             &d->grad_o.batch, &d->grad_o.head, &d->grad_o.token};
    for (size_t n = 0; n < TH_COUNT(zero) && c->layout != RD_DENSE; n++)
        if ((c->repeated >> n & 1) != 0)
            *zero[n] = 0;
}

/* Tokens, or batches, of Q, K, V or dO have their rows in one place. */
static bool repeats_tokens(const rd_case *c)
{
    enum { K_TOKEN = 1, V_TOKEN = 3, Q_BATCH = 4, Q_TOKEN = 6, K_BATCH = 7, V_BATCH = 9, O_BATCH = 10, O_TOKEN = 12 };
    const int axes = 1 << K_TOKEN | 1 << V_TOKEN | 1 << Q_BATCH | 1 << Q_TOKEN | 1 << K_BATCH | 1 << V_BATCH |
                     1 << O_BATCH | 1 << O_TOKEN; /* places in set_layouts */
    return c->layout != RD_DENSE && (c->repeated & axes) != 0;
}

bool rd_make_problem(rd_case *c, uint64_t seed)
{
    clmgk_attention_desc desc = c->desc;
    desc.struct_size = sizeof(desc);
    if (clmgk_attention_validate(&desc, &desc, NULL) != CLMGK_OK)
        return false;
    desc = c->desc;
    desc.heads = desc.heads > 0 ? desc.heads : 1;
    set_layouts(c, &desc);
    c->problem = th_problem_make(&desc, seed);
    th_fit_tables(&c->problem);
    c->problem.accumulate = c->accumulate & desc.gradients;
    c->problem.array[TH_GRAD_LSE].used = c->grad_lse && desc.gradients != 0 && !has_trait(&desc, CLMGK_TRAIT_LINEAR);
    return true;
}

/* ---- the whole --------------------------------------------------------------------------------------------------- */

/* Arrays whose offsets are drawn last, so that values of problems without them stay as they were. */
static bool is_later(size_t name)
{
    return name == TH_SCALE_K || name == TH_SCALE_V || (name >= TH_APPEND_K && name <= TH_PREFIX_LENGTH);
}

static void draw_offsets(th_problem *problem, bool later, uint64_t *state)
{
    for (size_t name = 0; name < TH_ARRAYS; name++)
        if (is_later(name) == later)
            problem->array[name].offset = (uint64_t)th_pick(state, 0, 130);
}

rd_case rd_draw(uint64_t seed, uint64_t number)
{
    const rd_configuration from = rd_configuration_of(seed, number);
    uint64_t state = seed * 0x9e3779b97f4a7c15U + number;
    rd_case c = {.desc = from.desc, .engine = from.engine};
    draw_sizes(&from, &c.desc, &state);
    draw_masks(&from, &c.desc, &state);
    draw_pages(&from, &c.desc, &state);
    draw_types(&from, &c.desc, &state);
    c.desc.length_k = th_keys(c.desc.length_k);
    draw_modifiers(&c.desc, &state);
    draw_states(&c.desc, &state);
    drop_outputs(&c.desc);
    draw_parameters(&from, &c, &state);
    if (th_chance(&state, 2))
        c.layout = (int)th_pick(&state, RD_TOKENS_FIRST, RD_LAYOUTS - 1);
    if (th_chance(&state, 8))
        c.repeated = 1 << th_pick(&state, 0, from.broad ? 12 : 3);
    if (th_chance(&state, 3))
        c.accumulate = (uint32_t)th_random(&state) & CLMGK_GRADIENT_ALL;
    c.grad_lse = !th_chance(&state, 3);
    assert_true(rd_make_problem(&c, th_random(&state)));
    c.problem.seed = th_random(&state);
    draw_offsets(&c.problem, false, &state);
    rd_spoil_values(&c.problem, !repeats_tokens(&c), &state);
    draw_offsets(&c.problem, true, &state);
    return c;
}

void rd_case_free(rd_case *c)
{
    th_problem_free(&c->problem);
}
