/* SPDX-License-Identifier: Apache-2.0 */
/* The list of families. */
#include "attention/core/family.h"

#define FAMILY_MIXTURE   &mgk_mixture_family
#define FAMILY_ADMIXTURE &mgk_admixture_family

const mgk_family *mgk_family_of(clmgk_variant variant)
{
    switch (variant) {
#define FAMILY_CASE(name, value, text, family, traits)                                                                 \
    case CLMGK_VARIANT_##name:                                                                                         \
        return FAMILY_##family;
        CLMGK_VARIANT_LIST(FAMILY_CASE)
#undef FAMILY_CASE
    }
    return NULL;
}
