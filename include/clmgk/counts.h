/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Numbers of operations and parameters of attention and of its layer, as the papers count them (MGK paper, Appendix B;
 * FiSH paper, section 3 and Appendix D; LRB paper, section 3), for every variant, forward and backward. The functions
 * need no device.
 *
 *     clmgk_counts counts = CLMGK_COUNTS_INIT;
 *     clmgk_count_attention(&desc, width, 0, width, &counts, &error);
 *     operations = clmgk_sum_operations(&counts, CLMGK_PASS_FORWARD, CLMGK_PART_ALL);
 *
 * Rule: a matrix product that sums T products into R results takes T multiplications and T - R additions. Every other
 * product or sum of two numbers is one operation. The count leaves out the softmax and everything that acts on its
 * logits alone (scale, variance, prior, bias, ALiBi, soft-cap, sinks, dropout, drawing noise), functions of one number
 * (exp, feature maps, ReLU, reciprocals) and their derivatives; in a layer also rotary positions, normalisations,
 * biases, dropout and the residual. Gaussian distances count as dot products. All pairs of a query and a key count,
 * including hidden pairs.
 *
 * Counts for one sequence, with the symbols of attention.h. "Pair" means each pair of a query and a key:
 *
 *     softmax, gaussian   pair: H D products
 *     MGK                 pair: H M D products; M - 1 additions for each head
 *     SMGK                pair: H D products; for each head M additions of q . b_r, and M - 1 of the components.
 *                         All q . b_r: N H M D products
 *     admixture           pair: M D products; M additions of noise (shared_noise), else H M; H M products of the
 *                         mixing, or M if all heads have the same mixture (MISH with shared noise, HARD_MISH); with w
 *                         the products of the mixing count twice; c: one addition. Hidden layer of U units: M
 *                         additions of noise (shared_noise), else U M; U M and (with w) H U products; b: U additions
 *     values              pair: H E products
 *     linear              each key and head: M F products with the prior, F E products for C, F additions for z
 *                         (admixture variants: M F E and M F). Each query and head: F E for the numerator, F for the
 *                         denominator, E for their ratio (admixture variants: M F E, M F, E, and M F for the mixing).
 *                         FAVOR: R D for each vector; DPFP: F
 *
 * Backward: gradients of inputs, weights and all parameters from matrices that the forward pass kept, as in the papers'
 * models: two products for each product of the forward pass, and one addition wherever two gradients of the same number
 * are summed.
 */
#ifndef CLMGK_COUNTS_H
#define CLMGK_COUNTS_H

#include "layer.h"

/* Parts of a layer. The MGK paper counts all; the FiSH paper counts QUERY_KEY and SCORES ("attention matrices"). */
typedef enum clmgk_part {
    CLMGK_PART_QUERY_KEY, /* projections of Q and K */
    CLMGK_PART_VALUE,     /* projection of V */
    CLMGK_PART_SCORES,    /* attention matrices; linear family: features and their mixing */
    CLMGK_PART_VALUES,    /* product of the attention matrices with V; linear family: states and their products with
                             queries */
    CLMGK_PART_OUTPUT,    /* output projection */
    CLMGK_PART_NORM,      /* layer normalisation: has parameters but no counted operations */
    CLMGK_PARTS
} clmgk_part;

#define CLMGK_PART_ALL 63U /* the set of all parts; the bit of a part is 1 << part */

typedef struct clmgk_operations {
    double multiplications; /* whole numbers; exact up to 2^53 */
    double additions;
} clmgk_operations;

typedef struct clmgk_counts {
    size_t struct_size; /* sizeof(clmgk_counts); CLMGK_COUNTS_INIT sets it */
    clmgk_operations forward[CLMGK_PARTS];
    clmgk_operations backward[CLMGK_PARTS];
    double parameters[CLMGK_PARTS];
} clmgk_counts;

#define CLMGK_COUNTS_INIT CLMGK_INIT(clmgk_counts)

/*
 * Counts attention with projections.
 *
 *     width       D_x, the width of the input that is projected to Q, K and V; 0: no projections
 *     width_k     width of a second input of S tokens, which is projected to K and V; 0: no second input, K and V are
 *                 projected from N tokens
 *     width_out   width of the output projection's result; 0: no output projection
 *
 * Parameters are the projections' matrices, and the arrays prior, variance, shift, sinks, mix, mix_weight, mix_offset,
 * mix_hidden_offset, mix_after and noise if the descriptor uses them. The descriptor's set of gradients has no effect.
 * Errors: those of clmgk_attention_validate, INVALID_VALUE (NULL, a negative width, struct_size).
 */
CLMGK_API clmgk_status clmgk_count_attention(const clmgk_attention_desc *desc, int64_t width, int64_t width_k,
                                             int64_t width_out, clmgk_counts *counts, clmgk_error *error);

/* Counts a layer: like clmgk_count_attention with the layer's widths, including that of a third input, and the
 * parameters of biases, gains and normalisation. Errors: those of clmgk_layer_validate, INVALID_VALUE. */
CLMGK_API clmgk_status clmgk_count_layer(const clmgk_layer_desc *desc, clmgk_counts *counts, clmgk_error *error);

/* Sum of the multiplications and additions of a set of parts in the pass FORWARD or BACKWARD; 0 for other passes. */
CLMGK_API double clmgk_sum_operations(const clmgk_counts *counts, clmgk_pass pass, uint32_t parts);

/* Number of parameters of a set of parts. */
CLMGK_API double clmgk_sum_parameters(const clmgk_counts *counts, uint32_t parts);

#endif
