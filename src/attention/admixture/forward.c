/* SPDX-License-Identifier: Apache-2.0 */
/* Admixture family, forward pass: engine parameters and launch. */
#include "attention/admixture/admixture.h"

MGK_BINDING(bind_forward, MGK_ADMIXTURE_FORWARD_BUFFERS)

clmgk_status mgk_admixture_plan_forward(const mgk_attention_request *request, mgk_pass_plan *plan, clmgk_error *error)
{
    if (request->traits.after > 0)
        return mgk_admixture_plan_mixed(request, plan, error);
    const mgk_footprint footprint = mgk_admixture_footprint(request);
    mgk_forward_args args = mgk_admixture_args_of(request);
    mgk_forward x;
    MGK_TRY(mgk_forward_begin(request, &footprint, &x, error));
    mgk_attention_step kernel = {
        .file = "admixture/forward.cl", .name = "admixture_forward", .flags = x.flags, .bind = bind_forward};
    kernel.flags.SHARED_SOFTMAX = mgk_admixture_shares_softmax(request);
    return mgk_forward_plan(&x, &kernel, &args, plan, error);
}
