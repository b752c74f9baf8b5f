/* SPDX-License-Identifier: Apache-2.0 */
/* Making a pass: places of operands, operations, the layout of the workspace. */
#include "layer/layer.h"

/* ---- places ---------------------------------------------------------------------------------------------------- */

mgk_layer_place mgk_layer_at(const clmgk_layer *layer, clmgk_layer_array array)
{
    return (mgk_layer_place){MGK_LAYER_ARRAY, array, 0, layer->line[array].element};
}

mgk_layer_place mgk_layer_attention_at(clmgk_array array)
{
    return (mgk_layer_place){MGK_LAYER_ATTENTION, array, 0, 0};
}

static uint64_t aligned(uint64_t bytes)
{
    return (bytes + MGK_LAYER_ALIGNMENT - 1) / MGK_LAYER_ALIGNMENT * MGK_LAYER_ALIGNMENT;
}

mgk_layer_place mgk_layer_keep(clmgk_layer *layer, int64_t count, size_t element)
{
    const uint64_t begin = layer->info.activation_bytes;
    layer->info.activation_bytes = begin + aligned((uint64_t)count * element);
    return (mgk_layer_place){MGK_LAYER_ACTIVATIONS, 0, (int64_t)(begin / element), element};
}

mgk_layer_place mgk_layer_room(mgk_layer_builder *b, int64_t count, size_t element)
{
    mgk_layer_pass *const pass = b->pass;
    pass->region[pass->regions] =
        (mgk_layer_region){.bytes = aligned((uint64_t)count * element), .first = MGK_LAYER_OPERATIONS};
    return (mgk_layer_place){MGK_LAYER_WORKSPACE, (int)pass->regions++, 0, element};
}

mgk_layer_place mgk_layer_behind(mgk_layer_place place, int64_t elements)
{
    place.offset += elements;
    return place;
}

/* ---- operations ------------------------------------------------------------------------------------------------ */

static mgk_layer_operation *append(mgk_layer_builder *b, mgk_steps *steps)
{
    mgk_layer_operation *const operation = &b->pass->operation[b->pass->count++];
    operation->steps = steps;
    return operation;
}

void mgk_layer_bind(mgk_layer_builder *b, mgk_layer_operation *operation, int buffer, mgk_layer_place place)
{
    const size_t number = (size_t)(operation - b->pass->operation);
    if (place.base == MGK_LAYER_NOWHERE)
        return;
    operation->operand[operation->count++] = (mgk_layer_operand){buffer, place};
    if (place.base != MGK_LAYER_WORKSPACE)
        return;
    mgk_layer_region *const region = &b->pass->region[place.index];
    region->first = number < region->first ? number : region->first;
    region->last = number;
}

void mgk_layer_note_access(mgk_layer_builder *b, mgk_layer_place place, int access)
{
    static const int buffers[] = {
        [MGK_LAYER_ACTIVATIONS] = CLMGK_LAYER_ARRAY_ACTIVATIONS, [MGK_LAYER_WORKSPACE] = CLMGK_LAYER_ARRAY_WORKSPACE};
    if (place.base != MGK_LAYER_NOWHERE && place.base != MGK_LAYER_ATTENTION)
        b->pass->access[place.base == MGK_LAYER_ARRAY ? place.index : buffers[place.base]] |= (unsigned char)access;
}

/* Binds the workspace that the steps themselves need. */
static void bind_scratch(mgk_layer_builder *b, mgk_layer_operation *operation, int buffer, uint64_t bytes,
                         size_t element)
{
    if (bytes > 0 || b->layer->attention.sizes_at_call) /* calls of any sizes have the same regions */
        mgk_layer_bind(b, operation, buffer, mgk_layer_room(b, (int64_t)((bytes + element - 1) / element), element));
}

/* The next operation, of a call with sizes of its own; NULL: none is. */
static mgk_layer_call_operation *of_call(const mgk_layer_builder *b)
{
    const clmgk_layer *const limits = b->layer->limits;
    return limits != NULL ? &limits->calls->operation[b->which][b->pass->count] : NULL;
}

/* The same operation of the layer that has the limits. */
static const mgk_layer_operation *of_limits(const mgk_layer_builder *b)
{
    return &b->layer->limits->pass[b->which].operation[b->pass->count];
}

/* Keeps the first failure. */
static void note_status(mgk_layer_builder *b, clmgk_status status)
{
    b->status = b->status == CLMGK_OK ? status : b->status;
}

mgk_rows_list mgk_layer_rows(mgk_layer_builder *b)
{
    clmgk_layer *const layer = b->layer;
    mgk_layer_call_operation *const own = of_call(b);
    if (own != NULL) {
        mgk_steps_clear_call(&own->steps);
        return (mgk_rows_list){&own->steps, &layer->context->facts, layer->attention.dtype};
    }
    const clmgk_allocator *const allocator = &layer->context->allocator;
    size_t next = 0;
    while (layer->rows[next] != NULL)
        ++next;
    mgk_steps *const steps = b->status == CLMGK_OK ? mgk_alloc(allocator, 1, sizeof(*steps)) : NULL;
    if (steps == NULL && b->status == CLMGK_OK)
        b->status = mgk_fail_memory(b->error, "a layer");
    mgk_steps_clear(steps != NULL ? steps : &b->spare, allocator);
    layer->rows[next] = steps;
    (steps != NULL ? steps : &b->spare)->any_size = layer->attention.sizes_at_call != 0;
    return (mgk_rows_list){steps != NULL ? steps : &b->spare, &layer->context->facts, layer->attention.dtype};
}

mgk_layer_operation *mgk_layer_append_rows(mgk_layer_builder *b, const mgk_rows_list *list, int buffer)
{
    if (of_call(b) != NULL)
        note_status(b, mgk_steps_borrow(list->steps, of_limits(b)->steps, b->error));
    mgk_layer_operation *const operation = append(b, list->steps);
    bind_scratch(b, operation, buffer, list->steps->workspace_bytes, sizeof(float));
    return operation;
}

/* ---- products -------------------------------------------------------------------------------------------------- */

static bool same_product(const clmgk_gemm_desc *a, const clmgk_gemm_desc *b)
{
    return a->m == b->m && a->n == b->n && a->k == b->k && a->transpose_a == b->transpose_a &&
           a->transpose_b == b->transpose_b && a->lda == b->lda && a->ldb == b->ldb && a->ldc == b->ldc &&
           a->beta == b->beta && a->precision == b->precision;
}

/* A plan of the product, shared with an equal product of the layer; NULL after a failure. */
static clmgk_gemm_plan *plan_product(mgk_layer_builder *b, const clmgk_gemm_desc *product)
{
    clmgk_layer *const layer = b->layer;
    clmgk_gemm_desc resolved;
    if (b->status == CLMGK_OK)
        b->status = mgk_gemm_resolve(product, &resolved, b->error);
    if (b->status != CLMGK_OK)
        return NULL;
    size_t i = 0;
    while (layer->product[i] != NULL && !same_product(&layer->product[i]->desc, &resolved))
        ++i;
    if (layer->product[i] == NULL)
        b->status = mgk_gemm_plan_make(layer->context, product, NULL, layer->attention.sizes_at_call != 0,
                                       &layer->product[i], b->error);
    return layer->product[i];
}

/* The product of few tokens, by its own provider. */
static const clmgk_gemm_plan *plan_few(mgk_layer_builder *b, const clmgk_gemm_desc *product)
{
    clmgk_gemm_desc few = *product;
    few.m = mgk_gemm_own.few_rows;
    return b->layer->attention.sizes_at_call && product->transpose_a == 0 && product->m > few.m ? plan_product(b, &few)
                                                                                                : NULL;
}

/* The call's product, by the plan that suits it; NULL after a failure. */
static const clmgk_gemm_plan *resize_product(mgk_layer_builder *b, const clmgk_gemm_desc *product)
{
    mgk_layer_call_operation *const own = of_call(b);
    const mgk_layer_operation *const made = of_limits(b);
    const bool is_few = made->few != NULL && product->m <= made->few->desc.m;
    own->product.steps = &own->steps;
    note_status(b, mgk_gemm_resize(is_few ? made->few : made->product,
                                   product->transpose_a != 0 ? product->k : product->m, &own->product, b->error));
    return b->status == CLMGK_OK ? &own->product : NULL;
}

void mgk_layer_multiply(mgk_layer_builder *b, clmgk_gemm_desc product, mgk_layer_place a, mgk_layer_place right,
                        mgk_layer_place c)
{
    product.struct_size = sizeof(product);
    product.dtype = b->layer->attention.dtype;
    product.precision = b->layer->attention.precision;
    const clmgk_gemm_plan *const plan = of_call(b) != NULL ? resize_product(b, &product) : plan_product(b, &product);
    const clmgk_gemm_plan *const few = of_call(b) == NULL ? plan_few(b, &product) : NULL;
    mgk_layer_operation *const operation = append(b, plan != NULL ? plan->steps : NULL);
    mgk_layer_bind(b, operation, MGK_GEMM_A, a);
    mgk_layer_bind(b, operation, MGK_GEMM_B, right);
    mgk_layer_bind(b, operation, MGK_GEMM_C, c);
    if (plan == NULL)
        return;
    operation->product = plan;
    operation->few = few;
    const size_t room = clmgk_gemm_plan_workspace_size(plan), of_few = clmgk_gemm_plan_workspace_size(few);
    bind_scratch(b, operation, MGK_GEMM_WORKSPACE, room > of_few ? room : of_few, mgk_gemm_workspace_unit(plan));
    mgk_layer_note_access(b, a, mgk_gemm_host_access(plan, MGK_GEMM_A));
    mgk_layer_note_access(b, right, mgk_gemm_host_access(plan, MGK_GEMM_B));
    mgk_layer_note_access(b, c, mgk_gemm_host_access(plan, MGK_GEMM_C));
}

/* ---- attention ------------------------------------------------------------------------------------------------- */

mgk_layer_operation *mgk_layer_attend(mgk_layer_builder *b, clmgk_pass pass)
{
    mgk_steps *const steps = b->layer->limits != NULL ? &b->layer->limits->calls->attention[pass]->pass.steps
                                                      : &b->layer->plan->pass[pass]->plan.steps;
    mgk_layer_operation *const operation = append(b, steps);
    operation->is_attention = true;
    bind_scratch(b, operation, CLMGK_ARRAY_WORKSPACE, steps->workspace_bytes, sizeof(float));
    return operation;
}

bool mgk_layer_wants(const clmgk_layer *layer, uint32_t gradient)
{
    return (layer->desc.gradients & gradient) != 0;
}

double mgk_layer_adds(const clmgk_layer *layer, uint32_t gradient)
{
    return (layer->desc.accumulate & gradient) != 0 ? 1.0 : 0.0;
}

/* ---- workspace ------------------------------------------------------------------------------------------------- */

static bool live_together(const mgk_layer_region *a, const mgk_layer_region *b)
{
    return a->first <= b->last && b->first <= a->last;
}

/* The largest region that some operation uses and that has no place yet; NULL: none. */
static mgk_layer_region *next_region(mgk_layer_pass *pass)
{
    mgk_layer_region *next = NULL;
    for (size_t i = 0; i < pass->regions; ++i) {
        mgk_layer_region *const region = &pass->region[i];
        if (!region->placed && region->first < MGK_LAYER_OPERATIONS && (next == NULL || region->bytes > next->bytes))
            next = region;
    }
    return next;
}

/* Moves the region up until it overlaps no other region that is in use at the same time. */
static void place_region(mgk_layer_pass *pass, mgk_layer_region *region)
{
    bool moved = true;
    while (moved) {
        moved = false;
        for (size_t i = 0; i < pass->regions; ++i) {
            const mgk_layer_region *const other = &pass->region[i];
            if (!other->placed || !live_together(region, other) || region->begin >= other->begin + other->bytes ||
                other->begin >= region->begin + region->bytes)
                continue;
            region->begin = other->begin + other->bytes;
            moved = true;
        }
    }
    region->placed = true;
    const uint64_t end = region->begin + region->bytes;
    pass->workspace_bytes = end > pass->workspace_bytes ? end : pass->workspace_bytes;
}

/* False: a region is larger than the limits'. */
static bool take_layout(mgk_layer_pass *pass, const mgk_layer_pass *limits)
{
    bool fits = true;
    for (size_t i = 0; i < pass->regions; ++i) {
        pass->region[i].begin = limits->region[i].begin;
        fits = fits && pass->region[i].bytes <= limits->region[i].bytes;
    }
    pass->workspace_bytes = limits->workspace_bytes;
    return fits;
}

static bool make_layout(mgk_layer_pass *pass)
{
    for (mgk_layer_region *next = next_region(pass); next != NULL; next = next_region(pass))
        place_region(pass, next);
    return true;
}

bool mgk_layer_lay_out(mgk_layer_pass *pass, const mgk_layer_pass *limits)
{
    const bool fits = limits != NULL ? take_layout(pass, limits) : make_layout(pass);
    for (size_t i = 0; i < pass->count; ++i)
        for (size_t k = 0; k < pass->operation[i].count; ++k) {
            mgk_layer_place *const place = &pass->operation[i].operand[k].place;
            if (place->base == MGK_LAYER_WORKSPACE)
                place->offset += (int64_t)(pass->region[place->index].begin / place->element);
        }
    return fits;
}
