/* SPDX-License-Identifier: Apache-2.0 */
/* Enqueues a layer: checks all of the call's buffers once, then enqueues its operations in order. Never compiles,
 * allocates or waits. */
#include "device/checks.h"
#include "layer/layer.h"

#include <inttypes.h>
#include <string.h>

_Static_assert((int)CLMGK_ARRAYS + (int)CLMGK_LAYER_ARRAYS <= (int)MGK_OPERANDS, "arrays of a call");

/* A call's arguments, converted to this version. */
typedef struct layer_call {
    clmgk_layer *layer;
    clmgk_pass pass;
    clmgk_layer_args args;
    clmgk_attention_args attention;
} layer_call;

/* ---- checks ---------------------------------------------------------------------------------------------------- */

/* "attention.prior" */
static const char *inner_name(clmgk_array array)
{
    static const char *const names[] = {
#define NAME(name, field, ...)             "attention." #field,
#define NAME_OF_GRADIENT(name, field, ...) "attention.grad_" #field,
        CLMGK_ARRAY_LIST(NAME, NAME_OF_GRADIENT, NAME)};
    return names[array];
}

/* True if the layer itself makes this array of the attention. */
static bool is_inner(clmgk_array array)
{
    switch (array) {
    case CLMGK_ARRAY_Q:
    case CLMGK_ARRAY_K:
    case CLMGK_ARRAY_V:
    case CLMGK_ARRAY_O:
    case CLMGK_ARRAY_LSE:
    case CLMGK_ARRAY_LSE_LOW:
    case CLMGK_ARRAY_DENOMINATOR:
    case CLMGK_ARRAY_GRAD_O:
    case CLMGK_ARRAY_GRAD_LSE:
    case CLMGK_ARRAY_GRAD_Q:
    case CLMGK_ARRAY_GRAD_K:
    case CLMGK_ARRAY_GRAD_V:
    case CLMGK_ARRAY_WORKSPACE:
        return true;
    default:
        return false;
    }
}

static clmgk_status fail_unused(const char *name, clmgk_error *error)
{
    return mgk_fail(error, CLMGK_ERROR_INVALID_BUFFER, "%s: given, but the layer's descriptor does not use it", name);
}

/* Adds an array that the call gives. */
static clmgk_status add_array(mgk_operand operand, clmgk_presence presence, mgk_operands *operands, clmgk_error *error)
{
    if (operand.buffer->memory != NULL)
        operands->item[operands->count++] = operand;
    else if (presence == CLMGK_REQUIRED && operand.extent->bytes > 0) /* OpenCL has no empty buffers */
        return mgk_fail(error, CLMGK_ERROR_INVALID_BUFFER, "%s: NULL: expected a buffer", operand.name);
    return CLMGK_OK;
}

/* grad_x may be grad_out's memory: it is written last, element by element. */
static bool in_place(const clmgk_layer *layer, const clmgk_layer_args *args)
{
    return args->grad_x.memory == args->grad_out.memory && args->grad_x.offset == args->grad_out.offset &&
           mgk_layer_wants(layer, CLMGK_LAYER_GRADIENT_X) && mgk_layer_adds(layer, CLMGK_LAYER_GRADIENT_X) == 0.0;
}

static clmgk_status add_own_arrays(layer_call *call, mgk_operands *operands, clmgk_error *error)
{
    const clmgk_layer *const layer = call->layer;
    for (int i = 0; i < CLMGK_LAYER_ARRAYS; ++i) {
        const clmgk_layer_array array = (clmgk_layer_array)i;
        const mgk_layer_line *const line = &layer->line[i];
        const mgk_layer_array_info *const info = mgk_layer_array_get_info(array);
        const clmgk_buffer *const buffer = clmgk_layer_array_buffer(&call->args, array);
        /* some gradients are accumulated in place, and a cache is read */
        const int usual = !info->is_output                 ? MGK_READ
                          : array == CLMGK_LAYER_ARRAY_OUT ? MGK_WRITE
                                                           : MGK_READ | MGK_WRITE;
        const int access = usual | layer->pass[call->pass].access[i];
        if (info->element == CLMGK_ELEMENT_BYTE) /* activations and workspace: add_bytes */
            continue;
        if (array == CLMGK_LAYER_ARRAY_GRAD_OUT && call->pass == CLMGK_PASS_BACKWARD && in_place(layer, &call->args))
            continue;
        if (line->presence[call->pass] != CLMGK_ABSENT)
            MGK_TRY(add_array((mgk_operand){info->name, buffer, &line->extent, line->element, access, NULL, 0},
                              line->presence[call->pass], operands, error));
        else if (buffer->memory != NULL && mgk_layer_array_is_of_pass(call->pass, array))
            return fail_unused(info->name, error);
    }
    return CLMGK_OK;
}

static clmgk_status add_attention_array(layer_call *call, clmgk_array array, mgk_operands *operands, clmgk_error *error)
{
    const clmgk_pass pass = call->pass;
    const mgk_plan_array *const line = &mgk_layer_attention_arrays(call->layer, pass)[array];
    const clmgk_buffer *const buffer = clmgk_array_buffer(&call->attention, array);
    const bool scales =
        mgk_array_is_output(&call->layer->attention, CLMGK_PASS_APPEND, array); /* of a cache: computed */
    const bool output = scales || mgk_array_is_output(&call->layer->attention, pass, array);
    if (is_inner(array))
        return buffer->memory == NULL
                   ? CLMGK_OK
                   : mgk_fail(error, CLMGK_ERROR_INVALID_BUFFER,
                              "%s: given, but expected to be empty: the layer supplies it", inner_name(array));
    if (line->presence[pass] != CLMGK_ABSENT) {
        const int access =
            !output ? MGK_READ : (pass == CLMGK_PASS_BACKWARD || scales ? MGK_READ | MGK_WRITE : MGK_WRITE);
        return add_array((mgk_operand){inner_name(array), buffer, &line->extent, line->element, access, NULL, 0},
                         line->presence[pass], operands, error);
    }
    const bool known = line->presence[CLMGK_PASS_FORWARD] != CLMGK_ABSENT;
    return buffer->memory == NULL || known || !mgk_array_is_of_pass(pass, array)
               ? CLMGK_OK
               : fail_unused(inner_name(array), error);
}

/* Adds activations or a workspace, whose unit is the byte. */
static clmgk_status add_bytes(const char *name, const clmgk_buffer *buffer, uint64_t bytes, int access,
                              mgk_extent *extent, mgk_operands *operands, clmgk_error *error)
{
    if (bytes == 0)
        return CLMGK_OK;
    if (buffer->memory == NULL)
        return mgk_fail(error, CLMGK_ERROR_INVALID_BUFFER, "%s: NULL: expected a buffer of %" PRIu64 " bytes", name,
                        bytes);
    if (buffer->offset % MGK_LAYER_ALIGNMENT != 0)
        return mgk_fail(error, CLMGK_ERROR_INVALID_BUFFER, "%s: offset %" PRIu64 ": expected a multiple of %d bytes",
                        name, buffer->offset, MGK_LAYER_ALIGNMENT);
    *extent = mgk_extent_dense((int64_t)bytes);
    operands->item[operands->count++] = (mgk_operand){name, buffer, extent, 1, access, NULL, 0};
    return CLMGK_OK;
}

static clmgk_status check_arrays(layer_call *call, clmgk_error *error)
{
    const clmgk_layer *const layer = call->layer;
    const mgk_layer_pass *const pass = &layer->pass[call->pass];
    const int kept = (call->pass == CLMGK_PASS_FORWARD ? MGK_READ | MGK_WRITE : MGK_READ) |
                     pass->access[CLMGK_LAYER_ARRAY_ACTIVATIONS];
    const int room = MGK_READ | MGK_WRITE | pass->access[CLMGK_LAYER_ARRAY_WORKSPACE];
    mgk_operands operands;
    mgk_extent activations;
    operands.count = 0;
    MGK_TRY(add_own_arrays(call, &operands, error));
    for (int i = 0; i < CLMGK_ARRAYS; ++i)
        MGK_TRY(add_attention_array(call, (clmgk_array)i, &operands, error));
    MGK_TRY(add_bytes("activations", &call->args.activations, layer->info.activation_bytes, kept, &activations,
                      &operands, error));
    MGK_TRY(add_bytes("workspace", &call->args.workspace, pass->workspace_bytes, room, &operands.workspace, &operands,
                      error));
    return mgk_check_operands(layer->context, &operands, error);
}

/* ---- calls ----------------------------------------------------------------------------------------------------- */

/* The buffer of a place. */
static clmgk_buffer find(layer_call *call, const mgk_layer_place *place)
{
    clmgk_buffer buffer = {NULL, 0};
    switch (place->base) {
    case MGK_LAYER_NOWHERE:
        return buffer;
    case MGK_LAYER_ARRAY:
        buffer = *clmgk_layer_array_buffer(&call->args, (clmgk_layer_array)place->index);
        break;
    case MGK_LAYER_ATTENTION:
        buffer = *clmgk_array_buffer(&call->attention, (clmgk_array)place->index);
        break;
    case MGK_LAYER_ACTIVATIONS:
        buffer = (clmgk_buffer){call->args.activations.memory, call->args.activations.offset / place->element};
        break;
    case MGK_LAYER_WORKSPACE:
        buffer = (clmgk_buffer){call->args.workspace.memory, call->args.workspace.offset / place->element};
        break;
    }
    buffer.offset += (uint64_t)place->offset;
    return buffer;
}

/* The parameters of the attention, which lie in the caller's arrays. */
static void bind_attention(layer_call *call, mgk_call *steps)
{
    for (int i = 0; i < CLMGK_ARRAYS; ++i) {
        const clmgk_array array = (clmgk_array)i;
        if (is_inner(array) ||
            mgk_layer_attention_arrays(call->layer, call->pass)[i].presence[call->pass] == CLMGK_ABSENT)
            continue;
        steps->buffers[i] = clmgk_array_buffer(&call->attention, array);
        if ((clmgk_array_get_info(array)->gradient & call->attention.accumulate) != 0)
            steps->added |= UINT64_C(1) << i;
    }
}

/* An operation's buffers: of its steps' call, which points to `buffers`. */
static mgk_call bind(layer_call *call, const mgk_layer_operation *operation, clmgk_buffer buffers[MGK_LAYER_OPERANDS])
{
    mgk_call steps = mgk_empty_call();
    steps.seed = call->attention.seed;
    steps.added = operation->added;
    if (operation->is_attention)
        bind_attention(call, &steps);
    for (size_t i = 0; i < operation->count; ++i) {
        buffers[i] = find(call, &operation->operand[i].place);
        steps.buffers[operation->operand[i].buffer] = &buffers[i];
    }
    return steps;
}

/* Checks offsets of products whose provider does not take every offset. */
static clmgk_status check_offsets(layer_call *call, clmgk_error *error)
{
    const mgk_layer_pass *const pass = &call->layer->pass[call->pass];
    for (size_t i = 0; i < pass->count; ++i) {
        clmgk_buffer buffers[MGK_LAYER_OPERANDS];
        const clmgk_gemm_plan *const product = pass->operation[i].product;
        if (product == NULL || product->provider->check_offsets == NULL)
            continue;
        const mgk_call steps = bind(call, &pass->operation[i], buffers);
        MGK_TRY(product->provider->check_offsets(product, &steps, error));
    }
    return CLMGK_OK;
}

static clmgk_status enqueue_operation(layer_call *call, const mgk_layer_operation *operation, const mgk_queue_place *at,
                                      clmgk_error *error)
{
    clmgk_buffer buffers[MGK_LAYER_OPERANDS];
    const mgk_call steps = bind(call, operation, buffers);
    return mgk_steps_enqueue(operation->steps, &steps, at, error);
}

/* Each operation waits for the previous one, because the queue may be out of order. */
static clmgk_status enqueue_all(layer_call *call, const mgk_queue_place *at, clmgk_error *error)
{
    const mgk_layer_pass *const pass = &call->layer->pass[call->pass];
    clmgk_status status = CLMGK_OK;
    cl_event before = NULL;
    for (size_t i = 0; status == CLMGK_OK && i < pass->count; ++i) {
        cl_event done = NULL;
        const mgk_queue_place here = {at->queue, before != NULL ? 1 : at->num_wait,
                                      before != NULL ? &before : at->wait_list,
                                      i + 1 < pass->count ? &done : at->event};
        status = enqueue_operation(call, &pass->operation[i], &here, error);
        if (before != NULL)
            clReleaseEvent(before);
        before = done;
    }
    return status;
}

/* ---- the public calls ------------------------------------------------------------------------------------------ */

static clmgk_status read_call(layer_call *call, const clmgk_layer_args *args, clmgk_error *error)
{
    const clmgk_layer *const layer = call->layer;
    if (layer == NULL || args == NULL)
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "%s: NULL: expected %s", layer == NULL ? "layer" : "args",
                        layer == NULL ? "a layer" : "the call's arrays");
    if (call->pass == CLMGK_PASS_BACKWARD && !mgk_layer_has_backward(&layer->desc))
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "layer: expected a layer whose descriptor has gradients");
    MGK_TRY(mgk_struct_read(args, "args", MGK_SIZE_WITH(clmgk_layer_args, workspace), &call->args, sizeof(call->args),
                            error));
    call->attention = (clmgk_attention_args)CLMGK_ATTENTION_ARGS_INIT;
    if (call->args.attention != NULL)
        MGK_TRY(mgk_struct_read(call->args.attention, "attention", sizeof(call->attention), &call->attention,
                                sizeof(call->attention), error));
    if (call->pass == CLMGK_PASS_BACKWARD && (call->attention.accumulate & ~(uint32_t)CLMGK_GRADIENT_ALL) != 0)
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE,
                        "attention.accumulate: %" PRIu32 ": expected a set of flags, at most %d",
                        call->attention.accumulate, CLMGK_GRADIENT_ALL);
    return CLMGK_OK;
}

static clmgk_status submit(layer_call *call, const mgk_queue_place *at, clmgk_error *error)
{
    MGK_TRY(check_arrays(call, error));
    MGK_TRY(check_offsets(call, error));
    return enqueue_all(call, at, error);
}

/* Calls of one layer share the room of their plans. */
static clmgk_status enqueue_sized(layer_call *call, const mgk_queue_place *at, clmgk_error *error)
{
    clmgk_layer *const layer = call->layer;
    if (layer->calls == NULL)
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE,
                        "attention.sizes: given, but the layer's descriptor has attention.sizes_at_call = 0");
    pthread_mutex_lock(&layer->calls->mutex);
    clmgk_status status = mgk_layer_calls_plan(layer, call->pass, call->attention.sizes, error);
    call->layer = layer->calls->layer[call->pass];
    if (status == CLMGK_OK)
        status = submit(call, at, error);
    pthread_mutex_unlock(&layer->calls->mutex);
    return status;
}

static clmgk_status enqueue(clmgk_layer *layer, clmgk_pass pass, const clmgk_layer_args *args,
                            const mgk_queue_place *at, clmgk_error *error)
{
    layer_call call = {.layer = layer, .pass = pass};
    MGK_TRY(read_call(&call, args, error));
    MGK_TRY(mgk_check_queue(layer->context, at->queue, error));
    MGK_TRY(mgk_check_wait_list(layer->context, at->num_wait, at->wait_list, error));
    return layer->calls != NULL || call.attention.sizes != NULL ? enqueue_sized(&call, at, error)
                                                                : submit(&call, at, error);
}

clmgk_status clmgk_enqueue_layer_forward(clmgk_layer *layer, cl_command_queue queue, const clmgk_layer_args *args,
                                         cl_uint num_wait, const cl_event *wait_list, cl_event *event,
                                         clmgk_error *error)
{
    return enqueue(layer, CLMGK_PASS_FORWARD, args, &(mgk_queue_place){queue, num_wait, wait_list, event}, error);
}

clmgk_status clmgk_enqueue_layer_backward(clmgk_layer *layer, cl_command_queue queue, const clmgk_layer_args *args,
                                          cl_uint num_wait, const cl_event *wait_list, cl_event *event,
                                          clmgk_error *error)
{
    return enqueue(layer, CLMGK_PASS_BACKWARD, args, &(mgk_queue_place){queue, num_wait, wait_list, event}, error);
}
