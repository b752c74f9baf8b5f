/* SPDX-License-Identifier: Apache-2.0 */
/* The passes of the admixture family, a file for each. */
#ifndef MGK_ADMIXTURE_H
#define MGK_ADMIXTURE_H

#include "admixture/buffers.clh"
#include "attention/core/attention.h"

/* The run-time arguments of a problem: common ones, and the stride of the mixing. */
mgk_forward_args mgk_admixture_args_of(const mgk_attention_request *request);

/* Scores that a tile keeps for all heads: HELD_SCORES of the kernels. */
int64_t mgk_admixture_held(const mgk_attention_traits *traits);

clmgk_status mgk_admixture_plan_forward(const mgk_attention_request *request, mgk_pass_plan *plan, clmgk_error *error);
clmgk_status mgk_admixture_plan_backward(const mgk_attention_request *request, mgk_pass_plan *plan, clmgk_error *error);

#endif
