/* SPDX-License-Identifier: Apache-2.0 */
#include "attention/core/key.h"

#include "attention/core/attention.h"

#include <stdio.h>
#include <string.h>

/* Beyond this many components, or heads that are mixed, they are rounded up to powers of two. */
#define EXACT_COUNT 8

static int count_class(int64_t count)
{
    int rounded = EXACT_COUNT;
    if (count <= EXACT_COUNT)
        return (int)count;
    while (rounded < count)
        rounded *= 2;
    return rounded;
}

static int64_t mean(int64_t total, int64_t parts)
{
    return parts > 0 ? (total + parts - 1) / parts : total;
}

/* Where heads are mixed, how many there are decides what fits into a work-group. */
static void add_mixed_heads(const clmgk_attention_desc *desc, mgk_tuning_key *key)
{
    const size_t used = strlen(key->exact);
    snprintf(key->exact + used, sizeof(key->exact) - used, " heads=%d kv_heads=%d shared_noise=%d",
             count_class(desc->heads), count_class(desc->kv_heads), desc->shared_noise != 0);
}

mgk_tuning_key mgk_attention_key(const clmgk_attention_desc *desc, clmgk_pass pass)
{
    const clmgk_attention_desc *const d = desc;
    const bool forward = pass == CLMGK_PASS_FORWARD;
    const bool modified = d->use_bias || d->use_alibi || d->softcap > 0.0 || d->dropout > 0.0;
    const int64_t rows = mean(d->length, d->sequences), keys = mean(d->length_k, d->sequences);
    mgk_tuning_key key = {.operation = forward ? "forward" : "backward", .axes = 3};
    const bool mixed = (clmgk_variant_traits(d->variant) & CLMGK_TRAIT_ADMIXTURE) != 0;
    const int64_t tasks = mgk_attention_problems(d) * (mixed ? 1 : d->heads);
    /* the mixture's kernels for decoding are others, and not for plans with a backward pass */
    const bool few = !mixed && forward && rows <= MGK_FEW_ROWS && d->gradients == 0;
    snprintf(key.exact, sizeof(key.exact),
             "variant=%s dtype=%s score=%s estep=%s components=%d head=%d value=%d causal=%d window=%d packed=%d"
             " modified=%d few=%d",
             clmgk_variant_name(d->variant), clmgk_dtype_name(d->dtype),
             d->score == CLMGK_SCORE_GAUSSIAN ? "gaussian" : "dot", d->estep == CLMGK_ESTEP_HARD ? "hard" : "soft",
             count_class(d->components), mgk_size_class(d->head_size), mgk_size_class(d->value_size), d->causal != 0,
             d->use_window != 0, d->sequences > 0, modified, few);
    if (mixed)
        add_mixed_heads(d, &key);
    key.axis[0].name = "rows";
    key.axis[0].value = mgk_tuning_bucket(rows);
    key.axis[1].name = "keys";
    key.axis[1].value = mgk_tuning_bucket(keys);
    key.axis[2].name = "tasks";
    key.axis[2].value = mgk_tuning_bucket(tasks);
    return key;
}
