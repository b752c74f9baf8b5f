/* SPDX-License-Identifier: Apache-2.0 */
/* Mixture family, forward pass: engine parameters, launch, split keys and their combination, query log-likelihood. */
#include "attention/mixture/mixture.h"

/* ---- blocks ------------------------------------------------------------------------------------------------- */

/* Floats of a tile for each key, in addition to its features: mixture_keys in cl/mixture/forward.cl. */
static int64_t key_terms(const mgk_attention_traits *t)
{
    const int64_t m = t->components;
    const bool has_log_prior = t->has_prior || t->has_variance; /* has_variance: for the density alone */
    return (t->gaussian || t->shifted ? m : 1) + (has_log_prior ? m : 1) + (t->shifted && t->has_factor ? m : 1) + 2;
}

/* Terms of keys that are not those of mgk_mixture_has_key_terms, whatever the block; scales of caches, too. */
static bool makes_terms(const mgk_attention_request *request)
{
    const clmgk_attention_desc *const d = request->limits;
    const mgk_attention_traits *const t = &request->traits;
    const bool in_place = mgk_has_caches(d) || d->page_size > 0 || mgk_has_cache_types(d);
    return t->has_prior || t->has_variance || t->shifted || in_place;
}

static mgk_footprint footprint_of(const mgk_attention_request *request)
{
    const clmgk_attention_desc *const d = request->desc;
    const mgk_attention_traits *const t = &request->traits;
    mgk_footprint f = mgk_attention_footprint(request);
    f.forward = true;
    f.few_rows = d->gradients == 0; /* the backward pass computes its scores by the usual form's operations */
    f.short_panels = true;
    f.unit = true;
    f.turns = mgk_mixture_may_take_turns(request);
    f.only_pass = d->gradients == 0 && d->statistics == 0; /* no other pass computes the scores again */
    f.block = (mgk_side){t->head_size, t->shifted ? 2 * t->components + 2 : t->components};
    f.tile = (mgk_side){(int64_t)t->products * t->head_size,
                        key_terms(t) + (d->use_scale_k ? t->products : 0) + (d->use_scale_v ? 1 : 0)};
    f.made_terms = makes_terms(request);
    f.head_terms = 3;
    f.scores = 1;
    f.pair_terms = d->use_bias ? 1 : 0;
    f.fixed = 4 * (int64_t)t->components;
    return f;
}

/* ---- steps -------------------------------------------------------------------------------------------------- */

MGK_BINDING(bind_forward, MGK_MIXTURE_FORWARD_BUFFERS)
MGK_BINDING(bind_density, MGK_MIXTURE_DENSITY_BUFFERS)

/* Kernel over keys, after the kernel of their terms if blocks of rows share these. */
static mgk_attention_step kernel_of(const mgk_forward *x, mgk_forward_args *args, mgk_pass_plan *plan)
{
    mgk_attention_step kernel = {
        .file = "mixture/forward.cl", .name = "mixture_forward", .flags = x->flags, .bind = bind_forward};
    kernel.flags.KEY_TERMS_GIVEN = mgk_mixture_has_key_terms(x->request, &x->block);
    if (kernel.flags.KEY_TERMS_GIVEN)
        args->key_terms = mgk_mixture_add_key_terms(x->request, &x->tunables, &x->block, args, plan);
    return kernel;
}

/* ---- plans -------------------------------------------------------------------------------------------------- */

clmgk_status mgk_mixture_plan_forward(const mgk_attention_request *request, mgk_pass_plan *plan, clmgk_error *error)
{
    clmgk_attention_desc packed = *request->desc, packed_limits = *request->limits;
    mgk_attention_request own = *request;
    /* partial results of a cascade have one order of rows */
    const int64_t heads = request->part != NULL ? 1 : mgk_packed_heads(request->engine, request->limits);
    if (heads > 1) {
        mgk_pack_heads(&packed, heads);
        mgk_pack_heads(&packed_limits, heads);
        own.desc = &packed;
        own.limits = &packed_limits;
    }
    const mgk_footprint footprint = footprint_of(&own);
    mgk_forward_args args = mgk_mixture_args_of(&own);
    args.queries = request->desc->length;
    mgk_forward x;
    MGK_TRY(mgk_forward_begin(&own, &footprint, &x, error));
    x.flags.HEADS_PACKED = heads > 1;
    const mgk_attention_step kernel = kernel_of(&x, &args, plan);
    return mgk_forward_plan(&x, &kernel, &args, plan, error);
}

/* The descriptor of the mixture's density: uses the given prior even with the hard E-step, and no modifiers except a
 * bias and a mask that hide keys. */
static void make_density_desc(const clmgk_attention_desc *whole, clmgk_attention_desc *d)
{
    *d = *whole;
    d->estep = CLMGK_ESTEP_SOFT;
    d->use_alibi = d->use_sinks = 0;
    d->softcap = d->dropout = 0.0;
    d->score_mod = NULL;
    if (d->mask_mod == NULL)
        d->captures[0].name = d->numbers[0] = NULL;
}

/* The request with these descriptors, which it sets. */
static void make_density(const mgk_attention_request *request, clmgk_attention_desc *d, clmgk_attention_desc *limits,
                         mgk_attention_request *density)
{
    make_density_desc(request->desc, d);
    make_density_desc(request->limits, limits);
    *density = *request;
    density->desc = d;
    density->limits = limits;
    density->traits.hard = false;
    density->traits.has_prior = d->prior_shape != CLMGK_PRIOR_UNIFORM;
    density->traits.has_factor = d->components > 1;
    density->traits.value_size = mgk_size_class(request->family, 16); /* no values: as wide as any parameters take */
}

/* A work-group for each (b, h) sums up the rows. */
static void add_density_sum(const mgk_attention_request *request, const mgk_forward_args *args, mgk_pass_plan *plan)
{
    enum { THREADS = 64 };
    const clmgk_attention_desc *const d = request->desc;
    mgk_flags flags = mgk_attention_flags(request);
    flags.GROUP_SIZE = THREADS;
    const mgk_attention_step step = {.file = "mixture/density.cl",
                                     .name = "mixture_density",
                                     .flags = flags,
                                     .bind = bind_density,
                                     .args = args,
                                     .args_bytes = sizeof(*args),
                                     .global = (size_t)(mgk_attention_problems(d) * d->heads) * THREADS,
                                     .local = THREADS};
    mgk_attention_add(&step, plan);
}

clmgk_status mgk_mixture_plan_nll(const mgk_attention_request *request, mgk_pass_plan *plan, clmgk_error *error)
{
    clmgk_attention_desc d, limits;
    mgk_attention_request density;
    mgk_forward x;
    make_density(request, &d, &limits, &density);
    mgk_footprint footprint = footprint_of(&density);
    footprint.made_terms = true; /* variances are terms of keys here */
    MGK_TRY(mgk_forward_begin(&density, &footprint, &x, error));
    const bool alone = plan->steps.count == 0; /* else another step is the main one */
    mgk_forward_args args = mgk_mixture_args_of(&density);
    mgk_attention_step kernel = kernel_of(&x, &args, plan);
    kernel.flags.DENSITY = true;
    if (alone) {
        plan->tunables = x.tunables;
        plan->steps.main = plan->steps.count;
    }
    args.parts_lse = mgk_steps_region(&plan->steps, d.batch * d.heads * d.length);
    mgk_forward_add(&x, kernel, &args, plan);
    add_density_sum(&density, &args, plan);
    return CLMGK_OK;
}
