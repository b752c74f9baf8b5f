/* SPDX-License-Identifier: Apache-2.0 */
/*
 * SCAN: the linear family. A rank's keys are summed up in a state; all ranks' states go to all ranks, and each passes
 * the sum of those that its queries see besides its own keys as the state of its call: with a causal mask those of the
 * ranks before it, else of all others. Backward the gradients of these sums go to all ranks likewise, and each passes
 * the sum of those that depend on its keys as the gradient of its new state.
 *
 * Stored states have a log scale m (attention.h). Without a mask all ranks use the largest one, so that no factor
 * between states and their gradients exceeds 1.
 */
#include "plan.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- states on the host ----------------------------------------------------------------------------------------- */

/* Elements of a state, C, z and m one after the other; m is that of `lists` states. Maps without m have one list. */
typedef struct sizes {
    int64_t c, z, m, all, lists;
} sizes;

static sizes sizes_of(const clmgk_dist_plan *p)
{
    const clmgk_attention_desc *const d = &p->part;
    const int64_t c = clmgk_array_count(d, CLMGK_ARRAY_STATE_C), z = clmgk_array_count(d, CLMGK_ARRAY_STATE_Z);
    const int64_t m = clmgk_array_count(d, CLMGK_ARRAY_STATE_M);
    return (sizes){c, z, m, c + z + m, m > 0 ? m : 1};
}

/* The log scale of a list of a state; -inf: the list is zeros, which add nothing. */
static double scale_of(const sizes *n, const float *state, int64_t list)
{
    const int64_t c = n->c / n->lists, z = n->z / n->lists;
    bool some = false;
    for (int64_t i = 0; i < c && !some; ++i)
        some = state[list * c + i] != 0.0F;
    for (int64_t i = 0; i < z && !some; ++i)
        some = state[n->c + list * z + i] != 0.0F;
    return !some ? (double)-INFINITY : n->m > 0 ? (double)state[n->c + n->z + list] : 0.0;
}

/* Whether a rank's queries see the keys of another. */
static bool sees(const clmgk_dist_plan *p, int32_t rank, int32_t other)
{
    return p->desc.causal != 0 ? other < rank : other != rank;
}

/* The log scale of the state that a rank passes in, or (`made`) of that which its call then makes. */
static double common_scale(const clmgk_dist_plan *p, const sizes *n, const float *states, int32_t rank, bool made,
                           int64_t list)
{
    double most = -(double)INFINITY;
    for (int32_t r = 0; r < p->transport.ranks; ++r)
        if (sees(p, rank, r) || p->desc.causal == 0 || (made && r == rank))
            most = fmax(most, scale_of(n, states + r * n->all, list));
    return most;
}

static void add_scaled(double *to, const float *from, int64_t count, double factor)
{
    for (int64_t i = 0; i < count; ++i)
        to[i] += factor * (double)from[i];
}

static void round_sums(const double *from, int64_t count, float *to)
{
    for (int64_t i = 0; i < count; ++i)
        to[i] = (float)from[i];
}

/* The state that this rank passes in. `sums` has room for C and z. */
static void sum_states(const clmgk_dist_plan *p, const sizes *n, const float *states, double *sums, float *to)
{
    const int64_t c = n->c / n->lists, z = n->z / n->lists;
    for (int64_t list = 0; list < n->lists; ++list) {
        const double scale = common_scale(p, n, states, p->transport.rank, false, list);
        for (int32_t r = 0; r < p->transport.ranks; ++r) {
            const float *const from = states + r * n->all;
            const double own = scale_of(n, from, list);
            if (!sees(p, p->transport.rank, r) || !isfinite(own))
                continue;
            add_scaled(sums + list * c, from + list * c, c, exp(own - scale));
            add_scaled(sums + n->c + list * z, from + n->c + list * z, z, exp(own - scale));
        }
        if (n->m > 0)
            to[n->c + n->z + list] = isfinite(scale) ? (float)scale : 0.0F;
    }
    round_sums(sums, n->c + n->z, to);
}

/* The gradient of the state that this rank's call makes, of the gradients of those that others passed in. */
static void sum_gradients(const clmgk_dist_plan *p, const sizes *n, const float *states, const float *gradients,
                          double *sums, float *to)
{
    const int64_t c = n->c / n->lists, z = n->z / n->lists;
    for (int64_t list = 0; list < n->lists; ++list) {
        const double made = common_scale(p, n, states, p->transport.rank, true, list);
        for (int32_t r = 0; r < p->transport.ranks; ++r) {
            const float *const from = gradients + r * (n->c + n->z);
            const double passed = common_scale(p, n, states, r, false, list);
            if (!sees(p, r, p->transport.rank))
                continue;
            const double factor = isfinite(made) && isfinite(passed) ? exp(made - passed) : 1.0;
            add_scaled(sums + list * c, from + list * c, c, factor);
            add_scaled(sums + n->c + list * z, from + n->c + list * z, z, factor);
        }
    }
    round_sums(sums, n->c + n->z, to);
}

/* ---- states between host, device and ranks ------------------------------------------------------------------------
 */

/* Device memory of a state: C, z and m one after the other. */
static void set_state(const sizes *n, cl_mem memory, clmgk_buffer *c, clmgk_buffer *z, clmgk_buffer *m)
{
    *c = (clmgk_buffer){memory, 0};
    *z = (clmgk_buffer){memory, (uint64_t)n->c};
    if (m != NULL)
        *m = n->m > 0 ? (clmgk_buffer){memory, (uint64_t)(n->c + n->z)} : (clmgk_buffer){NULL, 0};
}

/* Every rank's `count` floats come to all[ranks, count], and the own ones go to all. */
static clmgk_status share(const clmgk_dist_plan *p, cl_mem memory, int64_t count, float *all, clmgk_error *error)
{
    const clmgk_buffer own = {memory, 0};
    DIST_TRY(mgk_dist_read(p, &own, 1, count * (int64_t)sizeof(float), all + p->transport.rank * count, error));
    return mgk_dist_share(p, all, count * (int64_t)sizeof(float), error);
}

/* This rank's call with another plan: no queries, or no keys. */
static clmgk_attention_args state_args(const clmgk_dist_plan *p, const clmgk_attention_args *args)
{
    clmgk_attention_args a = *args;
    a.workspace = (clmgk_buffer){p->workspace, 0};
    a.accumulate = 0;
    for (clmgk_array array = 0; array < CLMGK_ARRAYS; ++array)
        if (clmgk_array_get_info(array)->gradient != 0)
            *clmgk_array_buffer(&a, array) = (clmgk_buffer){NULL, 0};
    return a;
}

/* All ranks' states of their own keys. */
static clmgk_status gather_states(const clmgk_dist_plan *p, const clmgk_attention_args *args, const sizes *n,
                                  float *states, clmgk_error *error)
{
    static const cl_uint zero = 0;
    clmgk_attention_args a = state_args(p, args);
    a.denominator = (clmgk_buffer){NULL, 0};
    set_state(n, p->new_state, &a.new_state_c, &a.new_state_z, &a.new_state_m);
    DIST_TRY(mgk_dist_check_cl(error,
                               clEnqueueFillBuffer(p->queue, p->new_state, &zero, sizeof(zero), 0,
                                                   (size_t)n->all * sizeof(float), 0, NULL, NULL),
                               "clEnqueueFillBuffer"));
    if (p->desc.length_k > 0)
        DIST_TRY(clmgk_enqueue_forward(p->plan[SCAN_KEYS], p->queue, &a, 0, NULL, NULL, error));
    return share(p, p->new_state, n->all, states, error);
}

/* Room for all that a pass needs: every rank's state, every rank's gradient, the state passed in, sums. */
typedef struct scan_memory {
    float *states, *gradients, *state;
    double *sums;
} scan_memory;

static void free_scan(scan_memory *m)
{
    free(m->states);
    free(m->gradients);
    free(m->state);
    free(m->sums);
}

static clmgk_status make_scan(const clmgk_dist_plan *p, const sizes *n, scan_memory *m, clmgk_error *error)
{
    const int64_t bytes = n->all * (int64_t)sizeof(float);
    *m = (scan_memory){NULL, NULL, NULL, NULL};
    DIST_TRY(mgk_dist_alloc(bytes * p->transport.ranks, (void **)&m->states, error));
    DIST_TRY(mgk_dist_alloc(bytes * p->transport.ranks, (void **)&m->gradients, error));
    DIST_TRY(mgk_dist_alloc(bytes, (void **)&m->state, error));
    return mgk_dist_alloc(n->all * (int64_t)sizeof(double), (void **)&m->sums, error);
}

/* The state that this rank passes in comes to the device. */
static clmgk_status pass_state_in(const clmgk_dist_plan *p, const clmgk_attention_args *args, const sizes *n,
                                  scan_memory *m, clmgk_error *error)
{
    const clmgk_buffer to = {p->state, 0};
    DIST_TRY(gather_states(p, args, n, m->states, error));
    sum_states(p, n, m->states, m->sums, m->state);
    return mgk_dist_write(p, &to, 1, n->all * (int64_t)sizeof(float), m->state, error);
}

/* ---- passes ----------------------------------------------------------------------------------------------------- */

static clmgk_status forward(const clmgk_dist_plan *p, const clmgk_attention_args *args, const sizes *n, scan_memory *m,
                            clmgk_error *error)
{
    clmgk_attention_args a = *args;
    DIST_TRY(pass_state_in(p, args, n, m, error));
    a.workspace = (clmgk_buffer){p->workspace, 0};
    set_state(n, p->state, &a.state_c, &a.state_z, &a.state_m);
    set_state(n, p->new_state, &a.new_state_c, &a.new_state_z, &a.new_state_m);
    return mgk_dist_finish(p, clmgk_enqueue_forward(p->plan[SCAN_ALL], p->queue, &a, 0, NULL, NULL, error), error);
}

clmgk_status mgk_dist_scan_forward(const clmgk_dist_plan *p, const clmgk_attention_args *args, clmgk_error *error)
{
    const sizes n = sizes_of(p);
    scan_memory m;
    clmgk_status status = make_scan(p, &n, &m, error);
    if (status == CLMGK_OK)
        status = forward(p, args, &n, &m, error);
    free_scan(&m);
    return status;
}

/* The gradient of the state that this rank's queries saw; all ranks' come. */
static clmgk_status gather_gradients(const clmgk_dist_plan *p, const clmgk_attention_args *args, const sizes *n,
                                     float *gradients, clmgk_error *error)
{
    static const cl_uint zero = 0;
    clmgk_attention_args a = state_args(p, args);
    set_state(n, p->state, &a.state_c, &a.state_z, &a.state_m);
    set_state(n, p->new_state, &a.grad_state_c, &a.grad_state_z, NULL);
    DIST_TRY(mgk_dist_check_cl(error,
                               clEnqueueFillBuffer(p->queue, p->new_state, &zero, sizeof(zero), 0,
                                                   (size_t)n->all * sizeof(float), 0, NULL, NULL),
                               "clEnqueueFillBuffer"));
    if (p->desc.length > 0)
        DIST_TRY(clmgk_enqueue_backward(p->plan[SCAN_QUERIES], p->queue, &a, 0, NULL, NULL, error));
    return share(p, p->new_state, n->c + n->z, gradients, error);
}

static clmgk_status backward(const clmgk_dist_plan *p, const clmgk_attention_args *args, const sizes *n, scan_memory *m,
                             clmgk_error *error)
{
    const clmgk_buffer to = {p->new_state, 0};
    const uint32_t own = (uint32_t)(CLMGK_GRADIENT_Q | CLMGK_GRADIENT_K | CLMGK_GRADIENT_V);
    clmgk_attention_args a = *args;
    DIST_TRY(pass_state_in(p, args, n, m, error));
    DIST_TRY(gather_gradients(p, args, n, m->gradients, error));
    memset(m->sums, 0, (size_t)n->all * sizeof(*m->sums));
    sum_gradients(p, n, m->states, m->gradients, m->sums, m->state);
    DIST_TRY(mgk_dist_write(p, &to, 1, (n->c + n->z) * (int64_t)sizeof(float), m->state, error));
    a.workspace = (clmgk_buffer){p->workspace, 0};
    a.accumulate &= own;
    set_state(n, p->state, &a.state_c, &a.state_z, &a.state_m);
    set_state(n, p->new_state, &a.grad_new_state_c, &a.grad_new_state_z, NULL);
    DIST_TRY(mgk_dist_begin_sums(p, true, &a, error));
    DIST_TRY(mgk_dist_finish(p, clmgk_enqueue_backward(p->plan[SCAN_ALL], p->queue, &a, 0, NULL, NULL, error), error));
    return mgk_dist_end_sums(p, args, error);
}

clmgk_status mgk_dist_scan_backward(const clmgk_dist_plan *p, const clmgk_attention_args *args, clmgk_error *error)
{
    const sizes n = sizes_of(p);
    scan_memory m;
    clmgk_status status = make_scan(p, &n, &m, error);
    if (status == CLMGK_OK)
        status = backward(p, args, &n, &m, error);
    free_scan(&m);
    return status;
}

/* ---- plans ------------------------------------------------------------------------------------------------------ */

clmgk_status mgk_dist_make_scan(clmgk_dist_plan *p, clmgk_context *context, const clmgk_attention_desc *given,
                                const clmgk_plan_options *options, clmgk_error *error)
{
    clmgk_attention_desc d = *given, keys, queries;
    clmgk_plan_options own = options != NULL ? *options : (clmgk_plan_options)CLMGK_PLAN_OPTIONS_INIT;
    clmgk_plan_info info = CLMGK_PLAN_INFO_INIT;
    d.use_state = d.use_new_state = 1;
    p->part.struct_size = sizeof(p->part);
    DIST_TRY(clmgk_attention_validate(&d, &p->part, error));
    DIST_TRY(clmgk_plan_create(context, &d, &own, &p->plan[SCAN_ALL], error));
    DIST_TRY(clmgk_plan_get_info(p->plan[SCAN_ALL], &info, error));
    own.engine = info.engine;
    keys = queries = d;
    keys.length = 0;
    keys.causal = queries.causal = 0;
    keys.length_k = p->desc.length_k > 0 ? p->desc.length_k : CLMGK_NO_KEYS;
    keys.use_state = 0;
    keys.gradients = 0;
    DIST_TRY(clmgk_plan_create(context, &keys, &own, &p->plan[SCAN_KEYS], error));
    if (d.gradients == 0)
        return CLMGK_OK;
    queries.length_k = CLMGK_NO_KEYS;
    queries.use_new_state = 0;
    queries.gradients = CLMGK_GRADIENT_STATE_C | CLMGK_GRADIENT_STATE_Z;
    return clmgk_plan_create(context, &queries, &own, &p->plan[SCAN_QUERIES], error);
}

int64_t mgk_dist_state_bytes(const clmgk_dist_plan *p)
{
    return sizes_of(p).all * (int64_t)sizeof(float);
}
