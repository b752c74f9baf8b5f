/* SPDX-License-Identifier: Apache-2.0 */
/* Mixture family: run-time arguments of its kernels, and one of their forms. */
#include "attention/mixture/mixture.h"

#include <math.h>

/* The logarithm of (2 pi sigma^2)^(-D/2) */
static float density_of(const clmgk_attention_desc *d)
{
    const double two_pi = 6.283185307179586;
    return d->variance > 0.0 ? (float)(-0.5 * (double)d->head_size * log(two_pi * d->variance) * mgk_attention_unit(d))
                             : 0.0f;
}

mgk_forward_args mgk_mixture_args_of(const mgk_attention_request *request)
{
    const clmgk_attention_desc *const d = request->desc;
    mgk_forward_args args = mgk_attention_args_of(request);
    args.variance_head = d->variance_shape == CLMGK_VARIANCE_HM ? d->components : 0;
    /* a uniform prior is the same for all keys: it only enters L */
    const bool uniform = !request->traits.hard && !request->traits.has_prior;
    args.lse_offset = uniform ? (float)(-log((double)d->components) * mgk_attention_unit(d)) : 0.0f;
    args.density = density_of(d);
    return args;
}

bool mgk_mixture_may_take_turns(const mgk_attention_request *request)
{
    const clmgk_attention_desc *const d = request->desc;
    const mgk_attention_traits *const t = &request->traits;
    const uint32_t of_all = CLMGK_GRADIENT_BIAS | CLMGK_GRADIENT_VARIANCE; /* sums over all components of a key */
    return t->products > 1 && !t->hard && !t->has_variance && d->statistics == 0 && (d->gradients & of_all) == 0;
}
