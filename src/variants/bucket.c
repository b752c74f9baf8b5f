/* SPDX-License-Identifier: Apache-2.0 */
#include "variants/bucket.h"

#include "variants/attention.h"

#include <stdio.h>

/* Beyond this many components they are rounded up to powers of two. */
#define EXACT_COMPONENTS 8

static int component_class(int64_t components)
{
    int rounded = EXACT_COMPONENTS;
    if (components <= EXACT_COMPONENTS)
        return (int)components;
    while (rounded < components)
        rounded *= 2;
    return rounded;
}

static int64_t mean(int64_t total, int64_t parts)
{
    return parts > 0 ? (total + parts - 1) / parts : total;
}

mgk_tuning_key mgk_attention_key(const clmgk_attention_desc *desc, mgk_pass pass)
{
    const clmgk_attention_desc *const d = desc;
    const bool forward = pass == MGK_FORWARD;
    const bool modified = d->use_bias || d->use_alibi || d->softcap > 0.0 || d->dropout > 0.0;
    const int64_t rows = mean(d->length, d->sequences), keys = mean(d->length_k, d->sequences);
    mgk_tuning_key key = {.operation = forward ? "forward" : "backward", .axes = 3};
    /* the kernels for decoding are others, and not for plans with a backward pass */
    const bool few = forward && rows <= MGK_FEW_ROWS && d->gradients == 0;
    snprintf(key.exact, sizeof(key.exact),
             "variant=%s dtype=%s score=%s estep=%s components=%d head=%d value=%d causal=%d window=%d packed=%d"
             " modified=%d few=%d",
             clmgk_variant_name(d->variant), clmgk_dtype_name(d->dtype),
             d->score == CLMGK_SCORE_GAUSSIAN ? "gaussian" : "dot", d->estep == CLMGK_ESTEP_HARD ? "hard" : "soft",
             component_class(d->components), mgk_size_class(d->head_size), mgk_size_class(d->value_size),
             d->causal != 0, d->use_window != 0, d->sequences > 0, modified, few);
    key.axis[0].name = "rows";
    key.axis[0].value = mgk_tuning_bucket(rows);
    key.axis[1].name = "keys";
    key.axis[1].value = mgk_tuning_bucket(keys);
    key.axis[2].name = "tasks";
    key.axis[2].value = mgk_tuning_bucket(mgk_attention_problems(d) * d->heads);
    return key;
}
