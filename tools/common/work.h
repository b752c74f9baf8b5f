/* SPDX-License-Identifier: Apache-2.0 */
/* What a problem costs: the products that kernels execute, and the arrays they must move. */
#ifndef TOOL_WORK_H
#define TOOL_WORK_H

#include "clmgk/clmgk.h"

/* Pairs of a query and a key that it sees, over the whole batch and all heads of a resolved descriptor; a bias hides
 * none. Of `arrays` the lengths and offsets that the descriptor uses are read; NULL: it uses none. */
double tool_visible_pairs(const clmgk_attention_desc *desc, const clmgk_host_args *arrays);

/* Floating-point operations of the forward pass: 2 (P D + E) a visible pair. P, the products of query and key, is M
 * for MGK and 1 for the others: the components of SMGK share theirs. */
double tool_forward_flops(const clmgk_attention_desc *desc, double visible_pairs);

/* The same of the backward pass of the descriptor's gradients: the scores once more (P D) and dO . V (E, where more
 * than dV is wanted), then dV (E), dQ (P D), dK and the shift's (P D together). */
double tool_backward_flops(const clmgk_attention_desc *desc, double visible_pairs);

#endif
