/* SPDX-License-Identifier: Apache-2.0 */
/* The texts of a descriptor's score and mask. */
#ifndef MGK_FORMULAS_H
#define MGK_FORMULAS_H

#include "clmgk/attention.h"
#include "expression/expression.h"

/* The gradients of captured arrays and numbers. */
#define MGK_GRADIENTS_OF_TEXTS ((uint32_t)(2 * CLMGK_GRADIENT_NUMBERS - CLMGK_GRADIENT_CAPTURE_0))

/* Whether the descriptor has one. */
bool mgk_has_texts(const clmgk_attention_desc *desc);

/* Whether kernels ask for the places of pairs: it has one, or classes of blocks. */
bool mgk_has_mods(const clmgk_attention_desc *desc);

/* The number of its captured arrays. */
int mgk_count_captures(const clmgk_attention_desc *desc);

/* Parses the texts of a descriptor whose captured arrays have legal types, and derives what its gradients need. */
clmgk_status mgk_formulas_of(const clmgk_attention_desc *desc, const clmgk_allocator *allocator, mgk_formulas *formulas,
                             clmgk_error *error);

/* Checks the texts, captured arrays and numbers of a descriptor, and fills in the strides. */
clmgk_status mgk_resolve_texts(clmgk_attention_desc *desc, clmgk_error *error);

/* Turns a mask that is a causal mask or a window into that: kernels have bounds for these, which need no text. The
 * arrays and numbers of a descriptor without a score go with it. */
clmgk_status mgk_mask_to_window(const clmgk_allocator *allocator, clmgk_attention_desc *resolved, clmgk_error *error);

#endif
