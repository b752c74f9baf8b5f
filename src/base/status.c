/* SPDX-License-Identifier: Apache-2.0 */
/* Texts of status codes, traits of variants, and the version. */
#include "base/base.h"
#include "clmgk/variants.h"
#include "clmgk/version.h"

const char *clmgk_status_text(clmgk_status status)
{
    switch (status) {
#define TEXT(name, value, text)                                                                                        \
    case CLMGK_##name:                                                                                                 \
        return text;
        CLMGK_STATUS_LIST(TEXT)
    }
    return "unknown status";
}

uint32_t clmgk_variant_traits(clmgk_variant variant)
{
    static const uint32_t traits_by_variant[] = {
#define TRAITS(name, value, text, family, traits) [CLMGK_VARIANT_##name] = (traits),
        CLMGK_VARIANT_LIST(TRAITS)};
    return (unsigned)variant < MGK_COUNT(traits_by_variant) ? traits_by_variant[variant] : 0;
}

const char *clmgk_version(void)
{
    return CLMGK_VERSION;
}
