/* SPDX-License-Identifier: Apache-2.0 */
#include "variants/admixture.h"

clmgk_status mgk_admixture_plan_backward(const mgk_attention_request *request, mgk_pass_plan *plan, clmgk_error *error)
{
    (void)request, (void)plan;
    return mgk_fail(error, CLMGK_ERROR_UNSUPPORTED, "kernels are not there yet");
}
