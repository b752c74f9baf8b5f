/* SPDX-License-Identifier: Apache-2.0 */
/* Checks of a distributed problem, and its plan. */
#include "plan.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- checks ------------------------------------------------------------------------------------------------------ */

static bool has_trait(const clmgk_attention_desc *d, clmgk_variant_trait trait)
{
    return (clmgk_variant_traits(d->variant) & (uint32_t)trait) != 0;
}

/* The first field that a list says is set; NULL: none. */
typedef struct rule {
    bool broken;
    const char *text;
} rule;

static const char *broken_rule(const rule *rules, size_t count)
{
    for (size_t i = 0; i < count; ++i)
        if (rules[i].broken)
            return rules[i].text;
    return NULL;
}

static bool is_f32(const clmgk_attention_desc *d, clmgk_array array)
{
    return clmgk_array_dtype(d, array) == CLMGK_DTYPE_F32;
}

static const char *why_not(const clmgk_attention_desc *d)
{
    const rule rules[] = {{d->use_lengths != 0, "use_lengths: 1"},
                          {d->page_size > 0, "page_size: pages"},
                          {d->append > 0, "append: new keys and values"},
                          {clmgk_array_dtype(d, CLMGK_ARRAY_K) >= CLMGK_DTYPE_E4M3, "dtype_k: a type of caches"},
                          {clmgk_array_dtype(d, CLMGK_ARRAY_V) >= CLMGK_DTYPE_E4M3, "dtype_v: a type of caches"},
                          {d->use_mask_blocks != 0, "use_mask_blocks: 1"},
                          {d->use_bias != 0, "use_bias: 1"},
                          {d->prior_shape == CLMGK_PRIOR_HMS, "prior_shape: HMS"},
                          {d->statistics != 0 || d->combine != 0, "statistics, combine"}};
    return broken_rule(rules, DIST_COUNT(rules));
}

static const char *why_no_scan(const clmgk_attention_desc *d)
{
    const rule rules[] = {
        {!has_trait(d, CLMGK_TRAIT_LINEAR), "variant: not of the linear family"},
        {has_trait(d, CLMGK_TRAIT_NOISE), "variant: its noise goes by the numbers of rows"},
        {d->sequences > 0, "sequences: packed sequences"},
        {d->use_state != 0, "use_state: 1"},
        {d->use_new_state != 0, "use_new_state: 1"},
        {d->causal != 0 && d->length != d->length_k, "length_k: with a causal mask not the number of queries"}};
    return broken_rule(rules, DIST_COUNT(rules));
}

/* Sums over ranks. */
static const char *why_no_sums(const clmgk_attention_desc *d)
{
    const rule rules[] = {
        {(d->gradients & CLMGK_GRADIENT_K) != 0 && !is_f32(d, CLMGK_ARRAY_GRAD_K), "dtype_grad_k: not f32"},
        {(d->gradients & CLMGK_GRADIENT_V) != 0 && !is_f32(d, CLMGK_ARRAY_GRAD_V), "dtype_grad_v: not f32"}};
    return broken_rule(rules, DIST_COUNT(rules));
}

static const char *why_no_ring(const clmgk_attention_desc *d)
{
    const rule rules[] = {
        {d->mix_after_heads > 0, "mix_after_heads"},
        {!is_f32(d, CLMGK_ARRAY_O), "dtype_o: not f32"},
        {(d->gradients & CLMGK_GRADIENT_Q) != 0 && !is_f32(d, CLMGK_ARRAY_GRAD_Q), "dtype_grad_q: not f32"}};
    return broken_rule(rules, DIST_COUNT(rules));
}

/* Whether a text reads the number of its head, which is not that of the whole in a part of the heads. */
static bool reads_head(const char *text)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_0123456789";
    while (text != NULL && *text != '\0') {
        const size_t word = strspn(text, letters);
        if (word == 1 && *text == 'h')
            return true;
        text += word > 0 ? word : 1;
    }
    return false;
}

static const char *why_no_split(const clmgk_attention_desc *d, int32_t ranks)
{
    const rule rules[] = {{has_trait(d, CLMGK_TRAIT_ADMIXTURE), "variant: its heads are mixed"},
                          {d->kv_heads < ranks, "kv_heads: less than ranks"},
                          {d->use_lengths_q != 0, "use_lengths_q: 1"},
                          {reads_head(d->score_mod), "score_mod: it reads h"},
                          {reads_head(d->mask_mod), "mask_mod: it reads h"}};
    return broken_rule(rules, DIST_COUNT(rules));
}

/* Options that depend on where a token stands. */
static const char *placed_field(const clmgk_attention_desc *d)
{
    const rule rules[] = {{d->causal != 0, "causal"},
                          {d->use_window != 0, "use_window"},
                          {d->use_alibi != 0, "use_alibi"},
                          {d->dropout > 0.0, "dropout"},
                          {has_trait(d, CLMGK_TRAIT_NOISE), "noise"},
                          {d->score_mod != NULL, "score_mod"},
                          {d->mask_mod != NULL, "mask_mod"}};
    return d->use_positions || has_trait(d, CLMGK_TRAIT_LINEAR) ? NULL : broken_rule(rules, DIST_COUNT(rules));
}

static bool is_dense(const clmgk_layout *layout)
{
    return layout->strided == 0;
}

static clmgk_status check_desc(const clmgk_dist_desc *desc, int32_t ranks, clmgk_error *error)
{
    const clmgk_attention_desc *const d = desc->attention;
    const char *const placed = ranks > 1 ? placed_field(d) : NULL;
    if (!is_dense(&d->k) || !is_dense(&d->v) || !is_dense(&d->grad_k) || !is_dense(&d->grad_v))
        return mgk_dist_fail(error, CLMGK_ERROR_UNSUPPORTED,
                             "attention: layouts: expected K, V, dK and dV to be dense");
    if (desc->schedule == CLMGK_DIST_ALL_TO_ALL &&
        !(is_dense(&d->q) && is_dense(&d->o) && is_dense(&d->lse) && is_dense(&d->grad_o) && is_dense(&d->grad_q)))
        return mgk_dist_fail(error, CLMGK_ERROR_UNSUPPORTED,
                             "attention: layouts: expected all arrays to be dense with the schedule ALL_TO_ALL");
    if (placed != NULL)
        return mgk_dist_fail(error, CLMGK_ERROR_INVALID_VALUE,
                             "attention.use_positions: 0: expected 1 with %s: it depends on where a token stands",
                             placed);
    if ((unsigned)desc->schedule > CLMGK_DIST_SCAN)
        return mgk_dist_fail(error, CLMGK_ERROR_INVALID_VALUE, "schedule: %d: expected a clmgk_dist_schedule",
                             (int)desc->schedule);
    if (!(desc->timeout > 0.0 && isfinite(desc->timeout) && desc->timeout < 1e9))
        return mgk_dist_fail(error, CLMGK_ERROR_INVALID_VALUE, "timeout: %g: expected seconds, above 0 and below 1e9",
                             desc->timeout);
    return CLMGK_OK;
}

/* The option that the schedule lacks; NULL: none. */
static const char *why_not_by(const clmgk_attention_desc *d, clmgk_dist_schedule schedule, int32_t ranks)
{
    if (schedule != CLMGK_DIST_SCAN && has_trait(d, CLMGK_TRAIT_LINEAR))
        return "variant: the linear family";
    switch (schedule) {
    case CLMGK_DIST_RING:
        return why_no_sums(d) != NULL ? why_no_sums(d) : why_no_ring(d);
    case CLMGK_DIST_ALL_TO_ALL:
        return why_no_split(d, ranks);
    case CLMGK_DIST_SCAN:
        return why_no_scan(d);
    default:
        return why_no_sums(d);
    }
}

static clmgk_dist_schedule choose(const clmgk_attention_desc *d, clmgk_dist_schedule wanted)
{
    if (wanted != CLMGK_DIST_AUTO)
        return wanted;
    return has_trait(d, CLMGK_TRAIT_LINEAR) ? CLMGK_DIST_SCAN : CLMGK_DIST_ALL_GATHER;
}

static clmgk_status check_resolved(const clmgk_attention_desc *d, clmgk_dist_schedule schedule, int32_t ranks,
                                   clmgk_error *error)
{
    static const char *const names[] = {"", "ALL_GATHER", "RING", "ALL_TO_ALL", "SCAN"};
    const char *const common = why_not(d), *const own = why_not_by(d, schedule, ranks);
    if (common != NULL)
        return mgk_dist_fail(error, CLMGK_ERROR_UNSUPPORTED, "attention.%s: not over several ranks", common);
    if (own != NULL)
        return mgk_dist_fail(error, CLMGK_ERROR_UNSUPPORTED, "attention.%s: not with the schedule %s", own,
                             names[schedule]);
    return CLMGK_OK;
}

/* Reads the ranks' numbers of keys. */
static clmgk_status take_lengths(clmgk_dist_plan *p, const clmgk_dist_desc *desc, clmgk_error *error)
{
    const int32_t ranks = p->transport.ranks;
    DIST_TRY(mgk_dist_alloc(ranks * (int64_t)sizeof(int64_t), (void **)&p->lengths_k, error));
    for (int32_t r = 0; r < ranks; ++r) {
        const int64_t keys = desc->lengths_k[r];
        if (keys < 0 || keys > INT64_C(1) << 30)
            return mgk_dist_fail(error, CLMGK_ERROR_INVALID_VALUE, "lengths_k[%d]: %lld: expected 0 to 2^30", (int)r,
                                 (long long)keys);
        p->lengths_k[r] = keys;
        p->total += keys;
        p->most = keys > p->most ? keys : p->most;
    }
    if (p->lengths_k[p->transport.rank] != p->desc.length_k)
        return mgk_dist_fail(error, CLMGK_ERROR_INVALID_SHAPE, "lengths_k[%d]: %lld: expected length_k = %lld",
                             (int)p->transport.rank, (long long)p->lengths_k[p->transport.rank],
                             (long long)p->desc.length_k);
    if (p->total > INT64_C(1) << 30)
        return mgk_dist_fail(error, CLMGK_ERROR_OVERFLOW, "lengths_k: %lld keys: expected at most 2^30",
                             (long long)p->total);
    return CLMGK_OK;
}

/* ---- agreement --------------------------------------------------------------------------------------------------- */

enum { FACTS = 32 }; /* behind them the number of queries, each rank's own */

/* The numbers that must be the same on all ranks. */
static void state_facts(const clmgk_dist_plan *p, int64_t *fact)
{
    const clmgk_attention_desc *const d = &p->desc;
    int64_t lengths = 0;
    for (int32_t r = 0; r < p->transport.ranks; ++r)
        lengths = (int64_t)((uint64_t)lengths * UINT64_C(0x9e3779b97f4a7c15) + (uint64_t)p->lengths_k[r] + 1);
    const int64_t facts[FACTS] = {(int64_t)d->variant,
                                  (int64_t)d->score,
                                  (int64_t)d->estep,
                                  d->batch,
                                  d->sequences,
                                  d->heads,
                                  d->kv_heads,
                                  d->components,
                                  d->head_size,
                                  d->value_size,
                                  d->mix_after_heads,
                                  d->mix_hidden,
                                  (int64_t)clmgk_array_dtype(d, CLMGK_ARRAY_Q),
                                  (int64_t)clmgk_array_dtype(d, CLMGK_ARRAY_K),
                                  (int64_t)clmgk_array_dtype(d, CLMGK_ARRAY_V),
                                  (int64_t)clmgk_array_dtype(d, CLMGK_ARRAY_O),
                                  d->causal,
                                  d->use_window,
                                  d->window_left,
                                  d->window_right,
                                  d->use_alibi,
                                  d->use_sinks,
                                  d->use_positions,
                                  d->use_lse_low,
                                  (int64_t)(d->dropout * 4294967296.0),
                                  (int64_t)d->gradients,
                                  (int64_t)d->feature,
                                  d->feature_order,
                                  d->features,
                                  (int64_t)p->schedule,
                                  p->transport.ranks,
                                  lengths};
    memcpy(fact, facts, sizeof(facts));
}

static clmgk_status agree(clmgk_dist_plan *p, clmgk_error *error)
{
    const int32_t ranks = p->transport.ranks;
    int64_t own[FACTS + 1], *all = NULL;
    state_facts(p, own);
    own[FACTS] = p->desc.length;
    DIST_TRY(mgk_dist_alloc(ranks * (int64_t)sizeof(int64_t), (void **)&p->lengths_q, error));
    DIST_TRY(mgk_dist_alloc(ranks * (int64_t)sizeof(own), (void **)&all, error));
    memcpy(all + (int64_t)p->transport.rank * (FACTS + 1), own, sizeof(own));
    clmgk_status status = mgk_dist_share(p, all, (int64_t)sizeof(own), error);
    for (int32_t r = 0; r < ranks && status == CLMGK_OK; ++r) {
        const int64_t *const other = all + (int64_t)r * (FACTS + 1);
        p->lengths_q[r] = other[FACTS];
        p->total_q += other[FACTS];
        if (memcmp(other, own, FACTS * sizeof(*own)) != 0)
            status = mgk_dist_fail(error, CLMGK_ERROR_INVALID_SHAPE,
                                   "rank %d: its descriptor, schedule or lengths_k differ from those of rank %d",
                                   (int)r, (int)p->transport.rank);
    }
    free(all);
    if (status == CLMGK_OK && p->total_q > INT64_C(1) << 30)
        return mgk_dist_fail(error, CLMGK_ERROR_OVERFLOW, "length: %lld queries of all ranks: expected at most 2^30",
                             (long long)p->total_q);
    return status;
}

/* ---- making --------------------------------------------------------------------------------------------------------
 */

static void set_cargo(clmgk_dist_plan *p)
{
    const clmgk_attention_desc *const d = &p->desc;
    const clmgk_shape k = clmgk_array_shape(d, CLMGK_ARRAY_K);
    int64_t lists = 1;
    for (int axis = 0; axis < k.rank - 2; ++axis)
        lists *= k.size[axis];
    const int64_t value_lists = d->batch * d->kv_heads;
    p->keys = (mgk_dist_cargo){{{lists, d->head_size * (int64_t)clmgk_array_element_size(d, CLMGK_ARRAY_K)},
                                {value_lists, d->value_size * (int64_t)clmgk_array_element_size(d, CLMGK_ARRAY_V)},
                                {d->use_positions ? d->batch : 0, (int64_t)sizeof(int32_t)}}};
    p->gradients = (mgk_dist_cargo){
        {{(d->gradients & CLMGK_GRADIENT_K) != 0 ? lists : 0, d->head_size * (int64_t)sizeof(float)},
         {(d->gradients & CLMGK_GRADIENT_V) != 0 ? value_lists : 0, d->value_size * (int64_t)sizeof(float)},
         {0, 0}}};
}

static clmgk_status make_buffer(const clmgk_dist_plan *p, int64_t bytes, cl_mem *memory, clmgk_error *error)
{
    return bytes > 0 ? mgk_dist_make_memory(p, CL_MEM_READ_WRITE, bytes, memory, error) : CLMGK_OK;
}

static clmgk_status make_no_sinks(clmgk_dist_plan *p, clmgk_error *error)
{
    static const float none = -INFINITY;
    const size_t bytes = (size_t)clmgk_array_count(&p->desc, CLMGK_ARRAY_SINKS) * sizeof(float);
    DIST_TRY(make_buffer(p, (int64_t)bytes, &p->no_sinks, error));
    return bytes > 0
               ? mgk_dist_check_cl(
                     error, clEnqueueFillBuffer(p->queue, p->no_sinks, &none, sizeof(none), 0, bytes, 0, NULL, NULL),
                     "clEnqueueFillBuffer")
               : CLMGK_OK;
}

static clmgk_status make_buffers(clmgk_dist_plan *p, clmgk_error *error)
{
    const clmgk_attention_desc *const d = &p->desc;
    const int64_t keys = p->schedule == CLMGK_DIST_RING ? p->most : p->schedule == CLMGK_DIST_ALL_GATHER ? p->total : 0;
    const int64_t rows = d->batch * d->heads * d->length;
    size_t workspace = 0;
    for (int t = 0; t < DIST_TRACKS; ++t)
        DIST_TRY(make_buffer(p, p->keys.track[t].lists * p->keys.track[t].bytes * keys, &p->memory[t], error));
    for (int t = 0; t < 2; ++t)
        DIST_TRY(make_buffer(p, p->gradients.track[t].lists * p->gradients.track[t].bytes * keys, &p->grad[t], error));
    for (clmgk_array a = 0; a < CLMGK_ARRAYS && p->schedule == CLMGK_DIST_ALL_TO_ALL; ++a)
        DIST_TRY(make_buffer(p, mgk_dist_heads_bytes(p, a), &p->heads[a], error));
    for (int32_t n = 0; n < p->plans; ++n) {
        const size_t own = clmgk_plan_workspace_size(p->plan[n]);
        workspace = own > workspace ? own : workspace;
    }
    DIST_TRY(make_buffer(p, (int64_t)workspace, &p->workspace, error));
    DIST_TRY(make_buffer(p, 2 * (int64_t)sizeof(float) * mgk_dist_sums_count(p), &p->sums, error));
    DIST_TRY(mgk_dist_make_host(p, error));
    if (p->schedule == CLMGK_DIST_SCAN)
        DIST_TRY(make_buffer(p, mgk_dist_state_bytes(p), &p->state, error));
    if (p->schedule == CLMGK_DIST_SCAN)
        return make_buffer(p, mgk_dist_state_bytes(p), &p->new_state, error);
    if (p->schedule != CLMGK_DIST_RING)
        return CLMGK_OK;
    const int64_t parts = p->transport.ranks, floats = (int64_t)sizeof(float) * parts * rows;
    DIST_TRY(make_buffer(p, floats * d->value_size, &p->parts_o, error));
    DIST_TRY(make_buffer(p, floats, &p->parts_lse, error));
    DIST_TRY(make_no_sinks(p, error));
    return make_buffer(p, d->use_lse_low ? floats : 0, &p->parts_low, error);
}

/* A plan of this rank's queries and `keys` keys. */
static clmgk_status make_plan(const clmgk_dist_plan *p, clmgk_context *context, const clmgk_dist_desc *desc,
                              const clmgk_plan_options *options, int64_t keys, clmgk_plan **out, clmgk_error *error)
{
    clmgk_attention_desc d = *desc->attention;
    if (d.resolved) /* its strides are those of this rank's keys */
        d.k = d.v = d.grad_k = d.grad_v = (clmgk_layout){.strided = 0};
    d.resolved = 0;
    d.length_k = keys > 0 ? keys : CLMGK_NO_KEYS;
    d.use_offsets_k = d.sequences > 0;
    if (p->schedule == CLMGK_DIST_ALL_TO_ALL)
        d = mgk_dist_heads_desc(p, &d);
    if (p->schedule == CLMGK_DIST_RING) { /* parts are dense */
        d.o = d.lse = (clmgk_layout){.strided = 0};
        d.partial_keys = 1;
    }
    return clmgk_plan_create(context, &d, options, out, error);
}

/* RING: keys of plan number n. */
static int64_t keys_of_plan(const clmgk_dist_plan *p, int32_t n)
{
    if (n < p->transport.ranks)
        return p->lengths_k[n];
    return p->desc.gradients != 0 ? mgk_dist_half_keys(p, n - p->transport.ranks) : 0;
}

static clmgk_status make_plans(clmgk_dist_plan *p, clmgk_context *context, const clmgk_dist_desc *desc,
                               const clmgk_plan_options *options, clmgk_error *error)
{
    clmgk_attention_desc d = p->desc;
    if (p->schedule == CLMGK_DIST_SCAN)
        return mgk_dist_make_scan(p, context, desc->attention, options, error);
    if (p->schedule != CLMGK_DIST_RING)
        return make_plan(p, context, desc, options, p->total, &p->plan[0], error);
    clmgk_plan_options own = options != NULL ? *options : (clmgk_plan_options)CLMGK_PLAN_OPTIONS_INIT;
    for (int32_t n = 0; n < p->plans; ++n) {
        const int64_t keys = keys_of_plan(p, n);
        if (keys == 0)
            continue;
        DIST_TRY(make_plan(p, context, desc, &own, keys, &p->plan[n], error));
        clmgk_plan_info info = CLMGK_PLAN_INFO_INIT;
        DIST_TRY(clmgk_plan_get_info(p->plan[n], &info, error));
        own.engine = info.engine; /* all parts round scores alike */
    }
    d.gradients = 0;
    d.sequences = d.use_offsets_k = 0;
    d.combine = 1;
    return clmgk_plan_create(context, &d, &own, &p->combine, error);
}

static clmgk_status make(clmgk_dist_plan *p, clmgk_context *context, const clmgk_dist_desc *desc,
                         const clmgk_plan_options *options, clmgk_error *error)
{
    const int32_t ranks = p->transport.ranks;
    DIST_TRY(check_desc(desc, ranks, error));
    DIST_TRY(clmgk_attention_validate(desc->attention, &p->desc, error));
    p->schedule = choose(&p->desc, desc->schedule);
    DIST_TRY(check_resolved(&p->desc, p->schedule, ranks, error));
    DIST_TRY(take_lengths(p, desc, error));
    p->timeout = desc->timeout;
    if (p->schedule != CLMGK_DIST_SCAN && (ranks == 1 || p->total == 0))
        p->schedule = CLMGK_DIST_ALL_GATHER;
    p->sequences = p->desc.sequences > 0 ? p->desc.sequences : 1;
    set_cargo(p);
    DIST_TRY(agree(p, error));
    DIST_TRY(mgk_dist_make_pieces(p, error));
    p->plans = p->schedule == CLMGK_DIST_RING ? ranks + 2 : SCAN_PLANS;
    DIST_TRY(mgk_dist_alloc(p->plans * (int64_t)sizeof(clmgk_plan *), (void **)&p->plan, error));
    DIST_TRY(make_plans(p, context, desc, options, error));
    return make_buffers(p, error);
}

static clmgk_status check_arguments(const clmgk_context *context, cl_command_queue queue, const clmgk_dist_desc *desc,
                                    const clmgk_dist_transport *transport, clmgk_error *error)
{
    const struct {
        const char *name;
        bool given;
    } given[] = {{"context", context != NULL},
                 {"queue", queue != NULL},
                 {"desc", desc != NULL},
                 {"desc.attention", desc != NULL && desc->attention != NULL},
                 {"desc.lengths_k", desc != NULL && desc->lengths_k != NULL}};
    for (size_t i = 0; i < DIST_COUNT(given); ++i)
        if (!given[i].given)
            return mgk_dist_fail(error, CLMGK_ERROR_INVALID_VALUE, "%s: NULL", given[i].name);
    if (desc->struct_size != sizeof(*desc) || desc->attention->struct_size != sizeof(*desc->attention))
        return mgk_dist_fail(error, CLMGK_ERROR_INVALID_VALUE,
                             "struct_size: expected those of this version's structures");
    if (transport->ranks < 1 || transport->ranks > CLMGK_DIST_MAX_RANKS || transport->rank < 0 ||
        transport->rank >= transport->ranks)
        return mgk_dist_fail(error, CLMGK_ERROR_INVALID_VALUE, "transport: rank %d of %d", (int)transport->rank,
                             (int)transport->ranks);
    return CLMGK_OK;
}

clmgk_status clmgk_dist_plan_create(clmgk_context *context, cl_command_queue queue, const clmgk_dist_desc *desc,
                                    const clmgk_dist_transport *transport, const clmgk_plan_options *options,
                                    clmgk_dist_plan **out, clmgk_error *error)
{
    if (out == NULL)
        return mgk_dist_fail(error, CLMGK_ERROR_INVALID_VALUE, "out: NULL: expected a place for the plan");
    *out = NULL;
    if (transport == NULL || transport->struct_size != sizeof(*transport) || transport->begin == NULL ||
        transport->wait == NULL || transport->cancel == NULL)
        return mgk_dist_fail(error, CLMGK_ERROR_INVALID_VALUE, "transport: expected all of its functions");
    clmgk_dist_plan *p = NULL;
    clmgk_status status = check_arguments(context, queue, desc, transport, error);
    if (status == CLMGK_OK)
        status = mgk_dist_alloc((int64_t)sizeof(*p), (void **)&p, error);
    if (status == CLMGK_OK) {
        p->queue = queue;
        p->transport = *transport;
        p->desc.struct_size = sizeof(p->desc);
        status = make(p, context, desc, options, error);
    }
    if (status != CLMGK_OK) {
        transport->cancel(transport->state);
        clmgk_dist_plan_release(p);
        return status;
    }
    *out = p;
    return CLMGK_OK;
}

void clmgk_dist_plan_release(clmgk_dist_plan *plan)
{
    if (plan == NULL)
        return;
    mgk_dist_free_host(plan);
    cl_mem *const memory[] = {&plan->memory[0], &plan->memory[1],    &plan->memory[2], &plan->grad[0],
                              &plan->grad[1],   &plan->parts_o,      &plan->parts_lse, &plan->parts_low,
                              &plan->workspace, &plan->no_sinks,     &plan->sums,      &plan->state,
                              &plan->new_state, &plan->pieces.memory};
    for (size_t i = 0; i < DIST_COUNT(memory); ++i)
        if (*memory[i] != NULL)
            (void)clReleaseMemObject(*memory[i]);
    for (clmgk_array a = 0; a < CLMGK_ARRAYS; ++a)
        if (plan->heads[a] != NULL)
            (void)clReleaseMemObject(plan->heads[a]);
    for (int32_t n = 0; plan->plan != NULL && n < plan->plans; ++n)
        clmgk_plan_release(plan->plan[n]);
    clmgk_plan_release(plan->combine);
    free(plan->plan);
    free(plan->pieces.begins);
    free(plan->pieces.places);
    free(plan->pieces.whole);
    free(plan->pieces.half);
    free(plan->lengths_k);
    free(plan->lengths_q);
    free(plan);
}
