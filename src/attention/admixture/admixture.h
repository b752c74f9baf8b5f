/* SPDX-License-Identifier: Apache-2.0 */
/* The passes of the admixture family, a file for each. */
#ifndef MGK_ADMIXTURE_H
#define MGK_ADMIXTURE_H

#include "admixture/buffers.clh"
#include "attention/core/attention.h"
#include "attention/core/mask.h"

/* The run-time arguments of a problem: common ones, and the stride of the mixing. */
mgk_forward_args mgk_admixture_args_of(const mgk_attention_request *request);

/* Scores that a tile keeps for all heads: HELD_SCORES of the kernels. */
int64_t mgk_admixture_held(const mgk_attention_traits *traits);

/* A part of the forward pass: its footprint without what the parameter `heads` multiplies; whether one softmax serves
 * all heads. */
mgk_footprint mgk_admixture_footprint(const mgk_attention_request *request);
bool mgk_admixture_shares_softmax(const mgk_attention_request *request);

/* The descriptors of the heads that have a softmax. */
typedef struct mgk_softmax_descs {
    clmgk_attention_desc desc, limits;
} mgk_softmax_descs;

/* The request of these heads, with the descriptors, which it sets. */
mgk_attention_request mgk_admixture_softmax_request(const mgk_attention_request *request, mgk_softmax_descs *descs);

/* The forward pass of heads that are mixed after the softmax. */
clmgk_status mgk_admixture_plan_mixed(const mgk_attention_request *request, mgk_pass_plan *plan, clmgk_error *error);

clmgk_status mgk_admixture_plan_forward(const mgk_attention_request *request, mgk_pass_plan *plan, clmgk_error *error);
clmgk_status mgk_admixture_plan_backward(const mgk_attention_request *request, mgk_pass_plan *plan, clmgk_error *error);

#endif
