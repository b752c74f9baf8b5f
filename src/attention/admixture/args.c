/* SPDX-License-Identifier: Apache-2.0 */
/* Admixture family: the run-time arguments of its kernels, and their sizes. */
#include "attention/admixture/admixture.h"

mgk_forward_args mgk_admixture_args_of(const mgk_attention_request *request)
{
    mgk_forward_args args = mgk_attention_args_of(request);
    args.mix_head = request->traits.shared_mix ? 0 : request->desc->components;
    return args;
}

int64_t mgk_admixture_held(const mgk_attention_traits *traits)
{
    return traits->shared_mix ? 1 : traits->components;
}
