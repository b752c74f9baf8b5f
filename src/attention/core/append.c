/* SPDX-License-Identifier: Apache-2.0 */
/* The kernel that writes new keys and values into their slots (cl/attention/append.cl). */
#include "attention/core/attention.h"
#include "operation/rows.h"

MGK_BINDING(bind_append, MGK_APPEND_BUFFERS)

static mgk_component_place place_of(const clmgk_layout *layout)
{
    return (mgk_component_place){0, layout->head, layout->component, layout->token};
}

static mgk_append_args args_of(const clmgk_attention_desc *d)
{
    const bool paged = d->page_size > 0, mixed = mgk_has_trait(d, CLMGK_TRAIT_ADMIXTURE);
    const int64_t rows = paged ? d->page_size : d->length_k;
    const int64_t pages = paged ? d->pages : mgk_has_caches(d) ? d->sequences : d->batch;
    return (mgk_append_args){.k = mgk_component_place_of(&d->k),
                             .v = mgk_component_place_of(&d->v),
                             .scale_k = mgk_component_place_of(&d->scale_k),
                             .scale_v = mgk_component_place_of(&d->scale_v),
                             .from_k = place_of(&d->append_k),
                             .from_v = place_of(&d->append_v),
                             .rotary = mgk_rotary_of(d->append_rotary, d->append_rotary_size, d->append_rotary_base),
                             .tokens = (mgk_i32)d->append,
                             .rows = (mgk_i32)(rows > 0 ? rows : 1),
                             .pages = (mgk_i32)(rows > 0 ? pages : 0),
                             .key_heads = (mgk_i32)(mixed ? d->components : d->kv_heads),
                             .components = mgk_has_trait(d, CLMGK_TRAIT_KEYS) ? (mgk_i32)d->components : 1,
                             .kv_heads = (mgk_i32)d->kv_heads,
                             .head_size = (mgk_i32)d->head_size,
                             .value_size = (mgk_i32)d->value_size};
}

/* Tokens of a work-group: on a CPU enough to be worth a task, and few enough that all cores have work. */
static int64_t block_of(const mgk_append_args *args, const mgk_device_facts *facts)
{
    enum { TASK = 8192 }; /* elements */
    const int64_t elements =
        (int64_t)args->key_heads * args->components * args->head_size + (int64_t)args->kv_heads * args->value_size;
    if (facts->info.device_class != CLMGK_DEVICE_CPU || elements >= TASK)
        return 1;
    return TASK / elements;
}

clmgk_status mgk_attention_plan_append(const mgk_attention_request *request, mgk_pass_plan *plan, clmgk_error *error)
{
    const clmgk_attention_desc *const d = request->desc;
    const mgk_row_form form = mgk_rows_form(request->facts);
    mgk_append_args args = args_of(d);
    const int64_t block = block_of(&args, request->facts);
    const bool quantises = mgk_has_cache_types(d); /* rows are kept until all of their numbers are known */
    const mgk_flags flags = {.TYPE_Q = (int)mgk_array_dtype(d, CLMGK_ARRAY_Q),
                             .TYPE_K = (int)mgk_array_dtype(d, CLMGK_ARRAY_K),
                             .TYPE_V = (int)mgk_array_dtype(d, CLMGK_ARRAY_V),
                             .TYPE_O = (int)mgk_array_dtype(d, CLMGK_ARRAY_Q),
                             .HAS_SCALE_K = d->use_scale_k,
                             .HAS_SCALE_V = d->use_scale_v,
                             .HEAD_SIZE = quantises ? mgk_size_class(request->family, d->head_size) : 0,
                             .VALUE_SIZE = quantises ? mgk_size_class(request->family, d->value_size) : 0};
    args.block = (mgk_i32)block;
    plan->tunables = mgk_engine_tunables(request->engine, request->family->added);
    MGK_TRY(mgk_tunables_read(&plan->tunables, &request->parameters, error));
    const mgk_attention_step step = {.file = "attention/append.cl",
                                     .name = "attention_append",
                                     .flags = mgk_rows_flags(request->facts, flags),
                                     .bind = bind_append,
                                     .args = &args,
                                     .args_bytes = sizeof(args),
                                     .global = (size_t)((d->append + block - 1) / block * form.group),
                                     .local = (size_t)form.group};
    mgk_step *const kernel = mgk_attention_add(&step, plan);
    mgk_text_printf(&kernel->options, " -DLANES=%d", form.lanes);
    mgk_rows_most_registers(request->facts, &kernel->options);
    return CLMGK_OK;
}
