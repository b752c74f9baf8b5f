/* SPDX-License-Identifier: Apache-2.0 */
/* What a problem costs: the products that kernels execute, and the arrays they must move. */
#ifndef TOOL_WORK_H
#define TOOL_WORK_H

#include "clmgk/clmgk.h"

#include <stdbool.h>

/* Whether the heads of a variant are mixed: none of them is a problem of its own. */
bool tool_is_mixed(clmgk_variant variant);

/* The type of an array of floating-point numbers. */
clmgk_dtype tool_array_dtype(const clmgk_attention_desc *desc, clmgk_array array);

/* Pairs of a query and a key that it sees, over the whole batch and all heads of a resolved descriptor; a bias hides
 * none. Of `arrays` the lengths and offsets that the descriptor uses are read; NULL: it uses none. */
double tool_visible_pairs(const clmgk_attention_desc *desc, const clmgk_host_args *arrays);

/* Multiply-adds of a query and a key over all heads of a resolved descriptor, for scores: P D, with P = H M for MGK, H
 * for the others of its family (the components of SMGK share their product), M for the admixture family (mixing, of M H
 * numbers a pair, is not counted); and for values: H E. */
double tool_score_products(const clmgk_attention_desc *desc);
double tool_value_products(const clmgk_attention_desc *desc);

/* Floating-point operations of the forward pass: 2 (P D + H E) for a query and a key that see each other. */
double tool_forward_flops(const clmgk_attention_desc *desc, double visible_pairs);

/* The same of the backward pass of the descriptor's gradients: the scores once more (P D) and dO . V (H E, where
 * more than dV is wanted), then dV (H E), dQ (P D), dK and the shift's (P D together). */
double tool_backward_flops(const clmgk_attention_desc *desc, double visible_pairs);

#endif
