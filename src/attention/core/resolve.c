/* SPDX-License-Identifier: Apache-2.0 */
/* Checks of descriptors that families share. */
#include "attention/core/family.h"

#include <inttypes.h>

clmgk_status mgk_check_usual(const clmgk_attention_desc *desc, int64_t value, int64_t usual, const char *field,
                             clmgk_error *error)
{
    if (value == 0 || value == usual)
        return CLMGK_OK;
    return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "%s: %" PRId64 ": expected %s%" PRId64 " with variant %s", field,
                    value, usual != 0 ? "0 or " : "", usual, clmgk_variant_name(desc->variant));
}

static clmgk_status check_heads(const char *field, int64_t heads, clmgk_error *error)
{
    if (heads >= 1 && heads <= CLMGK_MAX_MIXED_HEADS)
        return CLMGK_OK;
    return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "%s: %" PRId64 ": expected 1 to %d with an admixture variant",
                    field, heads, CLMGK_MAX_MIXED_HEADS);
}

clmgk_status mgk_resolve_mixed_heads(clmgk_attention_desc *desc, clmgk_error *error)
{
    if (desc->components == 0)
        desc->components = mgk_softmax_heads(desc);
    MGK_TRY(check_heads("components", desc->components, error));
    return check_heads("heads", desc->heads, error);
}
