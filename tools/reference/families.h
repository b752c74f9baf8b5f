/* SPDX-License-Identifier: Apache-2.0 */
/* The list of families: only solvers of a whole problem look a family up, and hand its scores down. */
#ifndef CLMGK_REFERENCE_FAMILIES_H
#define CLMGK_REFERENCE_FAMILIES_H

#include "reference/exact.h"
#include "reference/plain.h"

/* A family's scores, in double precision and in the plain formula: the rest is common to the families. The linear
 * family has none: its rows and gradients are its own (linear.h). */
typedef struct ref_family {
    const exact_scores *exact;
    const plain_scores *plain;
    int64_t (*count)(const clmgk_attention_desc *desc, clmgk_ref_gradient which); /* elements of its own gradients */
} ref_family;

#define REF_FAMILY(family) extern const ref_family ref_##family;
CLMGK_FAMILY_LIST(REF_FAMILY)
#undef REF_FAMILY

const ref_family *ref_family_of(clmgk_variant variant);

#endif
