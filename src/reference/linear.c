/* SPDX-License-Identifier: Apache-2.0 */
#include "reference/families.h"

static int64_t count(const clmgk_attention_desc *desc, clmgk_ref_gradient which)
{
    (void)desc;
    (void)which;
    return 0;
}

const ref_family ref_linear = {NULL, NULL, count};
