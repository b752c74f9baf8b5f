/* SPDX-License-Identifier: Apache-2.0 */
#include "reference/families.h"

static const ref_family mixture = {&exact_mixture, &plain_mixture};
static const ref_family admixture = {&exact_admixture, &plain_admixture};
#define FAMILY_MIXTURE   &mixture
#define FAMILY_ADMIXTURE &admixture

const ref_family *ref_family_of(clmgk_variant variant)
{
    static const ref_family *const families[] = {
#define FAMILY(name, value, text, family, traits) [value] = FAMILY_##family,
        CLMGK_VARIANT_LIST(FAMILY)};
    return families[variant];
}
