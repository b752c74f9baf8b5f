/* SPDX-License-Identifier: Apache-2.0 */
#include "reference/families.h"

const ref_family *ref_family_of(clmgk_variant variant)
{
    static const ref_family *const families[] = {
#define FAMILY(name, value, text, family, traits) [value] = &ref_##family,
        CLMGK_VARIANT_LIST(FAMILY)};
    return families[variant];
}
