/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Operations and parameters of attention and of its layer, as the papers count them (MGK paper, Appendix B; FiSH paper,
 * section 3 and Appendix D; LRB paper, section 3), of every variant, forward and backward. No device is needed.
 *
 *     clmgk_counts counts = CLMGK_COUNTS_INIT;
 *     clmgk_count_attention(&desc, width, 0, width, &counts, &error);
 *     operations = clmgk_sum_operations(&counts, CLMGK_PASS_FORWARD, CLMGK_PART_ALL);
 *
 * The rule: a matrix product that sums T products into R results takes T multiplications and T - R additions, and each
 * other product or sum of two numbers is one operation. Left out are the softmax with all that works on its logits
 * alone (scale, variance, prior, bias, ALiBi, soft-cap, sinks, dropout, drawing noise), functions of one number (exp,
 * feature maps, ReLU, reciprocals) and their derivatives; of the layer rotary positions, normalisations, biases,
 * dropout and residual. Gaussian distances count as dot products. All pairs of a query and a key count, also hidden
 * ones.
 *
 * With the symbols of attention.h, of each sequence, for each pair of a query and a key (P) and for other numbers:
 *
 *     softmax, gaussian   P: H D products
 *     MGK                 P: H M D products, M - 1 additions for each head
 *     SMGK                P: H D products; M additions of q . b_r and M - 1 of components for each head; q . b_r: N H M
 * D admixture           P: M D products, M additions of noise (shared_noise; else H M), H M products of the mixing, or
 *                         M where all heads have one mixture (MISH with shared noise, HARD_MISH); w: once more as many;
 *                         c: an addition
 *     values              P: H E products
 *     linear              key and head: M F products with the prior; F E for C, F additions for z; admixture: M F E and
 *                         M F. Query and head: F E for the numerator, F for the denominator, E for their ratio;
 *                         admixture: M F E, M F, E, and M F for the mixing. FAVOR: R D for each vector; DPFP: F
 *
 * Backward: gradients of inputs, weights and all parameters, from matrices that forward kept, as the papers' models do:
 * two products for each of forward's, and an addition wherever gradients of the same number meet.
 */
#ifndef CLMGK_COUNTS_H
#define CLMGK_COUNTS_H

#include "layer.h"

/* Parts of a layer. The MGK paper counts all; the FiSH paper QUERY_KEY and SCORES, "attention matrices". */
typedef enum clmgk_part {
    CLMGK_PART_QUERY_KEY, /* projections of Q and K */
    CLMGK_PART_VALUE,     /* projection of V */
    CLMGK_PART_SCORES,    /* attention matrices; linear family: features, and their mixing */
    CLMGK_PART_VALUES,    /* their product with V; linear family: states, and what queries read of them */
    CLMGK_PART_OUTPUT,    /* output projection */
    CLMGK_PART_NORM,      /* layer normalisation: parameters alone */
    CLMGK_PARTS
} clmgk_part;

#define CLMGK_PART_ALL 63U /* set of all parts; a set has bit 1 << part */

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
 * Counts attention with projections. `width`: D_x, of the input of which Q, K and V are made; 0: they are given.
 * `width_k`: of a second input, of S tokens, of which K and V are made; 0: there is none, and K and V have N tokens.
 * `width_out`: of the output projection's result; 0: there is none. Parameters: the projections' matrices, and the
 * arrays prior, variance, shift, sinks, mix, mix_weight, mix_offset and noise that the descriptor uses. Gradients that
 * the descriptor names do not matter. Errors: those of clmgk_attention_validate, INVALID_VALUE (NULL, a negative width,
 * struct_size).
 */
CLMGK_API clmgk_status clmgk_count_attention(const clmgk_attention_desc *desc, int64_t width, int64_t width_k,
                                             int64_t width_out, clmgk_counts *counts, clmgk_error *error);

/* Counts a layer: the above with its widths, that of a third input included, and the parameters of biases, gains and
 * normalisation. Errors: those of clmgk_layer_validate, INVALID_VALUE. */
CLMGK_API clmgk_status clmgk_count_layer(const clmgk_layer_desc *desc, clmgk_counts *counts, clmgk_error *error);

/* Multiplications and additions of a set of parts in the pass FORWARD or BACKWARD; of other passes 0. */
CLMGK_API double clmgk_sum_operations(const clmgk_counts *counts, clmgk_pass pass, uint32_t parts);

/* Parameters of a set of parts. */
CLMGK_API double clmgk_sum_parameters(const clmgk_counts *counts, uint32_t parts);

#endif
