/* SPDX-License-Identifier: Apache-2.0 */
/* The layer's exact values and their bounds. */
#include "reference/layer.h"

#include "reference/arrays.h"
#include "reference/layer_pass.h"
#include "reference/linear.h"

#include <stdlib.h>
#include <string.h>

/* ---- sets of arrays ---------------------------------------------------------------------------------------------- */

/* The pass's arrays of a kind, NULL where there is none. */
typedef double *const *(*layer_pick)(const layer_pass *pass);

static double *const *pick_state(const layer_pass *pass)
{
    return pass->state;
}

static double *const *pick_gradients(const layer_pass *pass)
{
    return pass->gradient;
}

static double *const *pick_attention(const layer_pass *pass)
{
    return pass->of_attention;
}

static double *const *pick_outputs(const layer_pass *pass)
{
    return pass->output;
}

typedef struct layer_kind {
    size_t offset; /* in the answer */
    int arrays;
    int first; /* those before it are not the answer's */
    layer_pick pick;
    int64_t (*count)(const clmgk_ref_layer *layer, int which);
    const char *const *names;
    bool gradients, of_f32;
} layer_kind;

static int64_t count_outputs(const clmgk_ref_layer *layer, int which)
{
    static const clmgk_layer_array arrays[] = {CLMGK_LAYER_ARRAY_OUT, CLMGK_LAYER_ARRAY_CACHE_K,
                                               CLMGK_LAYER_ARRAY_CACHE_V};
    return clmgk_ref_layer_count(layer, arrays[which]);
}

static int64_t count_state(const clmgk_ref_layer *layer, int which)
{
    const clmgk_attention_desc *const a = &layer->attention.desc;
    return a->use_new_state ? ref_state_count(a, (clmgk_ref_state)which) : 0;
}

static int64_t count_gradients(const clmgk_ref_layer *layer, int which)
{
    return ref_layer_gradient_count(layer, (clmgk_ref_layer_gradient)which);
}

static int64_t count_attention(const clmgk_ref_layer *layer, int which)
{
    return clmgk_ref_gradient_count(&layer->attention.desc, (clmgk_ref_gradient)which);
}

static const char *const output_names[] = {"out", "cache_k", "cache_v"};
static const char *const state_names[] = {"new_state_c", "new_state_z", "new_state_m"};
#define NAME(name, field, ...) "d" #field,
static const char *const gradient_names[] = {CLMGK_LAYER_ARRAY_LIST(CLMGK_ARRAY_NONE, NAME)};
static const char *const attention_names[] = {CLMGK_ARRAY_LIST(CLMGK_ARRAY_NONE, NAME, CLMGK_ARRAY_NONE)};
#undef NAME

static const layer_kind kinds[] = {
    {offsetof(clmgk_ref_layer_answer, outputs), CLMGK_REF_LAYER_OUTPUTS, 0, pick_outputs, count_outputs, output_names,
     false, false},
    {offsetof(clmgk_ref_layer_answer, state), CLMGK_REF_STATES, 0, pick_state, count_state, state_names, false, true},
    {offsetof(clmgk_ref_layer_answer, gradients), CLMGK_REF_LAYER_GRADIENTS, 0, pick_gradients, count_gradients,
     gradient_names, true, false},
    {offsetof(clmgk_ref_layer_answer, attention), CLMGK_REF_GRADIENTS, CLMGK_REF_GRAD_PRIOR, pick_attention,
     count_attention, attention_names, true, false},
};
enum { KINDS = sizeof(kinds) / sizeof(kinds[0]) };

static clmgk_ref_arrays *arrays_of(clmgk_ref_layer_answer *answer, const layer_kind *kind)
{
    return (clmgk_ref_arrays *)((char *)answer + kind->offset);
}

static double *copy_of(const double *values, int64_t count)
{
    double *const copy = malloc(((size_t)count + 1) * sizeof(double)); /* + 1: NULL means failure only */
    if (copy)
        memcpy(copy, values, (size_t)count * sizeof(double));
    return copy;
}

/* The exact values of a kind. */
static bool take_exact(const layer_pass *pass, const layer_kind *kind, clmgk_ref_arrays *arrays)
{
    bool ok = true;
    arrays->names = kind->names;
    for (int which = kind->first; which < kind->arrays; which++) {
        const double *const values = kind->pick(pass)[which];
        const int64_t count = values ? kind->count(pass->layer, which) : 0;
        if (count == 0)
            continue;
        arrays->set |= 1U << (unsigned)which;
        arrays->count[which] = count;
        arrays->exact[which] = copy_of(values, count);
        ok = ok && arrays->exact[which];
        if (kind->pick != pick_attention)
            continue;
        arrays->floor[which] = copy_of(pass->floor[which], count);
        ok = ok && arrays->floor[which];
        for (int64_t n = 0; ok && n < count; n++)
            arrays->floor[which][n] = ldexp(arrays->floor[which][n], -22);
    }
    return ok;
}

/* The errors of a plain pass. */
static bool observe(const layer_pass *pass, const layer_kind *kind, clmgk_ref_arrays *arrays)
{
    for (int which = kind->first; which < kind->arrays; which++) {
        const int64_t count = arrays->count[which];
        float *const plain = malloc(((size_t)count + 1) * sizeof(float)); /* + 1: NULL means failure only */
        if (!plain)
            return false;
        for (int64_t n = 0; n < count; n++)
            plain[n] = (float)kind->pick(pass)[which][n];
        ref_observe(&arrays->bound[which], count, arrays->exact[which], plain);
        free(plain);
    }
    return true;
}

/* ---- solving ----------------------------------------------------------------------------------------------------- */

/* Caches are heads first, as keys and values of the attention are. */
static bool list_outputs(layer_pass *pass)
{
    const layer_stream *const k = &pass->stream[LAYER_K], *const v = &pass->stream[LAYER_V];
    pass->output[CLMGK_REF_LAYER_OUT] = pass->out;
    pass->output[CLMGK_REF_LAYER_CACHE_K] = k->cache ? k->heads : NULL;
    pass->output[CLMGK_REF_LAYER_CACHE_V] = v->cache ? v->heads : NULL;
    return !pass->failed;
}

static bool solve_plain(const clmgk_ref_layer *layer, const ref_way *way, bool backward, clmgk_ref_layer_answer *answer)
{
    layer_pass pass;
    ref_layer_open(layer, way, &pass);
    bool ok = ref_layer_forward(&pass, answer->state.exact[CLMGK_REF_STATE_M]) && list_outputs(&pass) &&
              (!backward || ref_layer_backward(&pass));
    for (int n = 0; ok && n < KINDS; n++)
        ok = observe(&pass, &kinds[n], arrays_of(answer, &kinds[n]));
    ref_layer_close(&pass);
    return ok;
}

bool clmgk_ref_layer_solve(const clmgk_ref_layer *layer, bool backward, clmgk_ref_layer_answer *answer)
{
    const clmgk_attention_desc *const a = &layer->attention.desc;
    layer_pass pass;
    *answer = (clmgk_ref_layer_answer){0};
    ref_layer_open(layer, NULL, &pass);
    bool ok = ref_layer_forward(&pass, NULL) && list_outputs(&pass) && (!backward || ref_layer_backward(&pass));
    for (int n = 0; ok && n < KINDS; n++)
        ok = take_exact(&pass, &kinds[n], arrays_of(answer, &kinds[n]));
    ref_layer_close(&pass);
    ref_way way;
    for (int number = 0; ok && ref_way_of(a, number, &way); number++)
        ok = solve_plain(layer, &way, backward, answer);
    for (int n = 0; ok && n < KINDS; n++) {
        const clmgk_dtype dtype = kinds[n].of_f32 ? CLMGK_DTYPE_F32 : a->dtype;
        for (int which = 0; which < kinds[n].arrays; which++)
            ref_finish_bound(&arrays_of(answer, &kinds[n])->bound[which],
                             kinds[n].gradients ? ref_tolerance_of_gradients(dtype) : ref_tolerance_of_outputs(dtype));
    }
    if (!ok)
        clmgk_ref_layer_answer_free(answer);
    return ok;
}

void clmgk_ref_layer_answer_free(clmgk_ref_layer_answer *answer)
{
    for (int n = 0; n < KINDS; n++)
        clmgk_ref_arrays_free(arrays_of(answer, &kinds[n]));
}

bool clmgk_ref_layer_forward(const clmgk_ref_layer *layer, double *out, double *const state[CLMGK_REF_STATES])
{
    layer_pass pass;
    ref_layer_open(layer, NULL, &pass);
    const bool ok = ref_layer_forward(&pass, NULL);
    if (ok)
        memcpy(out, pass.out, (size_t)(pass.rows * pass.width) * sizeof(double));
    for (int which = 0; ok && state && which < CLMGK_REF_STATES; which++)
        memcpy(state[which], pass.state[which], (size_t)count_state(layer, which) * sizeof(double));
    ref_layer_close(&pass);
    return ok;
}
