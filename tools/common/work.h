/* SPDX-License-Identifier: Apache-2.0 */
/* What a problem costs: the products that kernels execute, and the arrays they must move. */
#ifndef TOOL_WORK_H
#define TOOL_WORK_H

#include "clmgk/clmgk.h"

#include <stdbool.h>

/* Whether the heads of a variant are mixed: none of them is a problem of its own. */
bool tool_is_mixed(clmgk_variant variant);

/* Whether it is of the linear family. */
bool tool_is_linear(clmgk_variant variant);

/* Pairs of a query and a key that it sees, over the whole batch and all heads of a resolved descriptor; a bias hides
 * none. Of `arrays` the lengths and offsets that the descriptor uses are read; NULL: it uses none. */
double tool_visible_pairs(const clmgk_attention_desc *desc, const clmgk_host_args *arrays);

/* Multiply-adds of a query and a key over all heads of a resolved descriptor, for scores: P D, with P = H M for MGK, H
 * for the others of its family (the components of SMGK share their product), M for the admixture family (mixing, of M H
 * numbers a pair, is not counted); and for values: H E. Linear family: of the products of features, H W, in the place
 * of scores, where W is F, in its admixture forms M F. */
double tool_score_products(const clmgk_attention_desc *desc);
double tool_value_products(const clmgk_attention_desc *desc);

/*
 * Floating-point operations of the forward pass: 2 (P D + H E) for a query and a key that see each other; with mixing
 * after the softmax, whose scores are computed twice, 2 (2 P D + H E). `arrays` are those of tool_visible_pairs.
 *
 * Linear family: for each head, 2 W (E + 1) for a key, which the state C and z takes, and for a query, which reads it;
 * causal by chunks, 2 (W + E) for a query and a key that it sees in its own chunk; by steps, which give each query a
 * state of its own, none. The map favor: 2 R D for each vector that it
 * is made of (M of them for a query or a key of the admixture forms, and for a key of MLK and SMLK). `plan` says
 * which it is, and the size of chunks; NULL: the products inside of chunks are left out.
 */
double tool_forward_flops(const clmgk_attention_desc *desc, const clmgk_host_args *arrays, const clmgk_plan_info *plan);

/*
 * The same of the backward pass of the descriptor's gradients: the scores once more (P D) and dO . V (H E, where
 * more than dV is wanted), then dV (H E), dQ (P D), dK and the shift's (P D together). With mixing after the softmax
 * P D + H E more, for sum_j P dP, where more than dV and the mixing's gradient is wanted.
 *
 * Linear family: the state again and the features' gradient of the queries from it, as forward, where the gradient of
 * anything on the queries' side is wanted; the queries' sum, 2 W (E + 1) for a query, where that of anything on the
 * keys' side is, and of it 2 W E for a key for dV, 2 W (E + 1) for the features' gradient of the keys. Causal by
 * chunks, each of the three has products inside of chunks, as forward. favor: its vectors again, and as much for their
 * gradients.
 */
double tool_backward_flops(const clmgk_attention_desc *desc, const clmgk_host_args *arrays,
                           const clmgk_plan_info *plan);

#endif
