/* SPDX-License-Identifier: Apache-2.0 */
/* The families of the variants. */
#include "attention/core/family.h"

const mgk_family *mgk_family_of(clmgk_variant variant)
{
    switch (variant) {
#define FAMILY_CASE(name, value, text, family, traits)                                                                 \
    case CLMGK_VARIANT_##name:                                                                                         \
        return &mgk_##family##_family;
        CLMGK_VARIANT_LIST(FAMILY_CASE)
#undef FAMILY_CASE
    }
    return NULL;
}
