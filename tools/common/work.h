/* SPDX-License-Identifier: Apache-2.0 */
/* What a problem costs: the products that kernels execute, and the arrays they must move. */
#ifndef TOOL_WORK_H
#define TOOL_WORK_H

#include "clmgk/clmgk.h"

/* Pairs of a query and a key that it sees, over the whole batch and all heads of a resolved descriptor. `lengths` and
 * `lengths_q` as in clmgk_host_args: needed where the descriptor uses them. */
double tool_visible_pairs(const clmgk_attention_desc *desc, const int32_t *lengths, const int32_t *lengths_q);

/* Floating-point operations of the forward pass: 2 (P D + E) a visible pair. P, the products of query and key, is M
 * for MGK and 1 for the others: the components of SMGK share theirs. */
double tool_forward_flops(const clmgk_attention_desc *desc, double visible_pairs);

#endif
