/* SPDX-License-Identifier: Apache-2.0 */
/* Mixture family, forward pass: engine parameters, launch, split keys and their combination, query log-likelihood. */
#include "attention/mixture/mixture.h"

/* ---- blocks ------------------------------------------------------------------------------------------------- */

/* Floats of a tile for each key, in addition to its features: mixture_keys in cl/mixture/forward.cl. */
static int64_t key_terms(const mgk_attention_traits *t)
{
    const int64_t m = t->components;
    const bool has_log_prior = t->has_prior || t->has_variance; /* the second: for the density alone */
    return (t->gaussian || t->shifted ? m : 1) + (has_log_prior ? m : 1) + (t->shifted && t->has_factor ? m : 1) + 2;
}

/* Rows up to which causal problems have panels of one vector: longer ones lose little on the diagonal. */
#define SHORT_CAUSAL 1024

/* Whether panels of one vector of rows are faster (docs/engine.md): they compute less beyond the diagonal, and with
 * narrow heads exponentials run beside the next products. */
static bool one_vector(const mgk_attention_request *request)
{
    const clmgk_attention_desc *const d = request->desc;
    const mgk_attention_traits *const t = &request->traits;
    return (d->causal && mgk_attention_rows(d) <= SHORT_CAUSAL) || (t->head_size <= 8 && t->value_size <= 8);
}

/* Whether a work-item of an NVIDIA GPU has twice the rows, 128 in a block: fewer loads and copies for a product, where
 * the registers are enough (tests/offline) and no unit is left without a block. */
static bool double_rows(const mgk_attention_request *request)
{
    enum { ROWS = 128 };
    const clmgk_attention_desc *const d = request->desc;
    const mgk_attention_traits *const t = &request->traits;
    const int64_t blocks = mgk_attention_problems(d) * d->heads * ((mgk_attention_rows(d) + ROWS - 1) / ROWS);
    return mgk_gpu_of(request->facts) == MGK_GPU_NVIDIA && blocks >= (int64_t)request->facts->info.compute_units &&
           t->components <= (t->shifted ? 1 : 2) && !t->modified && !t->has_prior && !t->has_variance;
}

static mgk_footprint footprint_of(const mgk_attention_request *request)
{
    static const char *const shrink[] = {"values", "values", "keys", "keys", "rows", "rows", "rows", NULL};
    const clmgk_attention_desc *const d = request->desc;
    const mgk_attention_traits *const t = &request->traits;
    const mgk_device_facts *const facts = request->facts;
    const int64_t keys = (int64_t)t->products * t->head_size, width = t->head_size + t->value_size;
    const int64_t row_terms = t->shifted ? 2 * t->components + 2 : t->components;
    /* few rows read keys in place, with norms or shifts several times: a tile stays in the first-level cache */
    const bool again = d->gradients == 0 && mgk_attention_rows(d) <= MGK_FEW_ROWS && (t->gaussian || t->shifted);
    const bool alone = d->gradients == 0 && d->statistics == 0; /* no other pass computes the scores again */
    /* more rows would spill: with several components and modifiers, on Intel's also with one; of many components
     * without them NVIDIA's compiler alone keeps four rows (tests/offline) */
    const bool gpu = facts->info.device_class != CLMGK_DEVICE_CPU;
    const bool many = t->components > 2 && mgk_gpu_of(facts) != MGK_GPU_NVIDIA;
    return (mgk_footprint){.forward = true,
                           /* the backward pass computes its scores by the usual form's operations */
                           .few_rows = d->gradients == 0,
                           .one_vector = one_vector(request),
                           .short_panels = true,
                           .any_order = alone,
                           .rows = mgk_attention_rows(d),
                           .heads = d->heads,
                           .problems = mgk_attention_problems(d),
                           .value_size = t->value_size,
                           .row_terms = row_terms,
                           .key_terms = key_terms(t),
                           .products = t->products,
                           .query_size = t->head_size,
                           .arrays = {.row = width + row_terms + 3,
                                      .key = keys + t->value_size + key_terms(t),
                                      .score = d->use_bias ? 3 : 2,
                                      .fixed = 4 * (int64_t)t->components},
                           .block = {.row = width},
                           .staged = {.key = keys},
                           .block_bytes = INT64_C(288) << 10,
                           .staged_bytes = (int64_t)(again ? 4 : 96) << 10,
                           .least_tile = 16,
                           .row_part = gpu && (t->modified || many) ? 2 : 1,
                           .key_part = 1,
                           .double_rows = double_rows(request),
                           .row_sums = t->value_size,
                           /* more spill on GPUs; rusticl of Mesa 22 miscompiles private arrays beyond 48 */
                           .most_sums = facts->runtime == MGK_RUNTIME_RUSTICL ? 32 : 64,
                           .scores = 2,
                           .shrink = shrink};
}

/* ---- steps -------------------------------------------------------------------------------------------------- */

MGK_BINDING(bind_forward, MGK_MIXTURE_FORWARD_BUFFERS)
MGK_BINDING(bind_density, MGK_MIXTURE_DENSITY_BUFFERS)

static mgk_attention_step kernel_of(const mgk_forward *x)
{
    return (mgk_attention_step){
        .file = "mixture/forward.cl", .name = "mixture_forward", .flags = x->flags, .bind = bind_forward};
}

/* ---- plans -------------------------------------------------------------------------------------------------- */

clmgk_status mgk_mixture_plan_forward(const mgk_attention_request *request, mgk_pass_plan *plan, clmgk_error *error)
{
    const mgk_footprint footprint = footprint_of(request);
    mgk_forward_args args = mgk_mixture_args_of(request);
    mgk_forward x;
    MGK_TRY(mgk_forward_begin(request, &footprint, &x, error));
    const mgk_attention_step kernel = kernel_of(&x);
    return mgk_forward_plan(&x, &kernel, &args, plan, error);
}

/* The descriptor of the mixture's density: uses the given prior even with the hard E-step, and no modifiers except a
 * bias that hides keys. */
static void make_density(const mgk_attention_request *request, clmgk_attention_desc *d, mgk_attention_request *density)
{
    *d = *request->desc;
    d->estep = CLMGK_ESTEP_SOFT;
    d->use_alibi = d->use_sinks = 0;
    d->softcap = d->dropout = 0.0;
    *density = *request;
    density->desc = d;
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
    clmgk_attention_desc d;
    mgk_attention_request density;
    mgk_forward x;
    make_density(request, &d, &density);
    const mgk_footprint footprint = footprint_of(&density);
    MGK_TRY(mgk_forward_begin(&density, &footprint, &x, error));
    if (plan->steps.count == 0) { /* else another step is the main one */
        plan->tunables = x.tunables;
        plan->steps.main = 0;
    }
    mgk_forward_args args = mgk_mixture_args_of(&density);
    mgk_attention_step kernel = kernel_of(&x);
    kernel.flags.DENSITY = true;
    args.parts_lse = mgk_steps_region(&plan->steps, d.batch * d.heads * d.length);
    mgk_forward_add(&x, kernel, &args, plan);
    add_density_sum(&density, &args, plan);
    return CLMGK_OK;
}
