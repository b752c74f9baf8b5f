/* SPDX-License-Identifier: Apache-2.0 */
/* The tuning bucket of an attention problem. */
#include "attention/core/attention.h"
#include "attention/plan.h"

#include <stdio.h>
#include <string.h>

/* Adds types of arrays that differ from Q's, and a precision that is not exact. */
static void add_types(const clmgk_attention_desc *desc, mgk_tuning_key *key)
{
    static const struct {
        const char *name;
        clmgk_array array;
    } others[] = {{"k", CLMGK_ARRAY_K}, {"v", CLMGK_ARRAY_V}, {"o", CLMGK_ARRAY_O}};
    for (size_t n = 0; n < MGK_COUNT(others); ++n) {
        const clmgk_dtype dtype = mgk_array_dtype(desc, others[n].array);
        const size_t used = strlen(key->exact);
        if (dtype != desc->dtype)
            snprintf(key->exact + used, sizeof(key->exact) - used, " %s=%s", others[n].name, clmgk_dtype_name(dtype));
    }
    const size_t used = strlen(key->exact);
    if (desc->precision != CLMGK_PRECISION_EXACT)
        snprintf(key->exact + used, sizeof(key->exact) - used, " precision=%s", clmgk_precision_name(desc->precision));
}

mgk_tuning_key mgk_attention_key(const clmgk_attention_desc *desc, clmgk_pass pass)
{
    const clmgk_attention_desc *const d = desc;
    const bool forward = pass == CLMGK_PASS_FORWARD;
    const bool modified = mgk_is_modified(d);
    const int64_t rows = mgk_attention_rows(d), keys = mgk_attention_keys(d);
    mgk_tuning_key key = {.operation = forward ? "forward" : "backward"};
    const mgk_family *const family = mgk_family_of(d->variant);
    const int64_t tasks = mgk_attention_problems(d) * (family->grouped_heads ? 1 : d->heads);
    const bool few = family->has_few_rows && forward && rows <= MGK_FEW_ROWS && d->gradients == 0;
    snprintf(key.exact, sizeof(key.exact),
             "variant=%s dtype=%s score=%s estep=%s components=%d head=%d value=%d causal=%d window=%d packed=%d"
             " modified=%d few=%d",
             clmgk_variant_name(d->variant), clmgk_dtype_name(d->dtype), clmgk_score_name(d->score),
             clmgk_estep_name(d->estep), mgk_count_class(d->components), mgk_size_class(family, d->head_size),
             mgk_size_class(family, d->value_size), d->causal != 0, d->use_window != 0, d->sequences > 0, modified,
             few);
    size_t used = strlen(key.exact);
    if (d->page_size > 0) /* other programs, without a unit of the CPU */
        snprintf(key.exact + used, sizeof(key.exact) - used, " pages=1");
    used = strlen(key.exact);
    if (family->add_to_key != NULL)
        family->add_to_key(d, key.exact + used, sizeof(key.exact) - used);
    add_types(d, &key);
    mgk_tuning_key_add(&key, "rows", rows);
    mgk_tuning_key_add(&key, "keys", keys);
    mgk_tuning_key_add(&key, "tasks", tasks);
    return key;
}
