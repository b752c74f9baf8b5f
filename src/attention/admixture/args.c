/* SPDX-License-Identifier: Apache-2.0 */
/* Admixture family: the run-time arguments of its kernels, and their sizes. */
#include "attention/admixture/admixture.h"

mgk_forward_args mgk_admixture_args_of(const mgk_attention_request *request)
{
    mgk_forward_args args = mgk_attention_args_of(request);
    const bool own = !request->traits.shared_mix && request->traits.hidden == 0;
    args.mix_head = own ? request->desc->components : 0;
    return args;
}

int64_t mgk_admixture_held(const mgk_attention_traits *traits)
{
    if (traits->hidden > 0)
        return traits->hidden;
    return traits->shared_mix ? 1 : traits->components;
}
