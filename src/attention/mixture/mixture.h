/* SPDX-License-Identifier: Apache-2.0 */
/* The passes of the mixture family, a file for each. */
#ifndef MGK_MIXTURE_H
#define MGK_MIXTURE_H

#include "attention/core/attention.h"
#include "attention/core/mask.h"
#include "mixture/buffers.clh"

/* Run-time arguments of a problem: common ones, priors, variances, and terms that scores omit. */
mgk_forward_args mgk_mixture_args_of(const mgk_attention_request *request);

/* True if the kernels of the backward pass have the form in which components take turns (cl/mixture/block.clh). */
bool mgk_mixture_may_take_turns(const mgk_attention_request *request);

/* True if beta_jr of all keys is computed once, before the blocks of rows `block` of a pass need it. */
bool mgk_mixture_has_key_terms(const mgk_attention_request *request, const mgk_block *block);

/* Appends the kernel that computes them (cl/mixture/keys.cl), and returns their place in the workspace. `args`: of the
 * problem. */
mgk_i64 mgk_mixture_add_key_terms(const mgk_attention_request *request, const mgk_tunables *tunables,
                                  const mgk_block *block, const mgk_forward_args *args, mgk_pass_plan *plan);

clmgk_status mgk_mixture_plan_forward(const mgk_attention_request *request, mgk_pass_plan *plan, clmgk_error *error);
clmgk_status mgk_mixture_plan_backward(const mgk_attention_request *request, mgk_pass_plan *plan, clmgk_error *error);
clmgk_status mgk_mixture_plan_statistics(const mgk_attention_request *request, mgk_pass_plan *plan, clmgk_error *error);
/* Plans the query negative log-likelihood, a part of the statistics. */
clmgk_status mgk_mixture_plan_nll(const mgk_attention_request *request, mgk_pass_plan *plan, clmgk_error *error);

#endif
