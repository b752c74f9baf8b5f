/* SPDX-License-Identifier: Apache-2.0 */
#include "harness/layer.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Elements before an array, bytes after it: canaries. */
enum { GUARD = 64, TRAIL = 320 };

/* A line of the list. */
typedef struct layer_line {
    bool storage, integer, output, gradient;
    const char *passes;
} layer_line;

static const layer_line lines[] = {
#define ARRAY(name, field, element, access, passes, axes, has)                                                         \
    {CLMGK_ELEMENT_##element == CLMGK_ELEMENT_STORAGE, CLMGK_ELEMENT_##element == CLMGK_ELEMENT_I32,                   \
     (#access)[0] == 'O', false, passes},
#define GRADIENT(name, field, element, bit, axes, has)                                                                 \
    {CLMGK_ELEMENT_##element == CLMGK_ELEMENT_STORAGE, CLMGK_ELEMENT_##element == CLMGK_ELEMENT_I32, true, true, "-r"},
    CLMGK_LAYER_ARRAY_LIST(ARRAY, GRADIENT)
#undef ARRAY
#undef GRADIENT
};

/* For each array: its bit if it is a gradient, else 0. */
static const uint32_t bits[] = {
#define ARRAY(...)                                     0,
#define GRADIENT(name, field, element, bit, axes, has) bit,
    CLMGK_LAYER_ARRAY_LIST(ARRAY, GRADIENT)
#undef ARRAY
#undef GRADIENT
};

/* ---- problems --------------------------------------------------------------------------------------------------- */

/* What the layer makes itself. */
static bool is_kept(th_name name)
{
    static const th_name kept[] = {TH_Q,           TH_K,      TH_V,        TH_O,      TH_LSE,    TH_LSE_LOW,
                                   TH_DENOMINATOR, TH_GRAD_O, TH_GRAD_LSE, TH_GRAD_Q, TH_GRAD_K, TH_GRAD_V};
    for (size_t n = 0; n < TH_COUNT(kept); n++)
        if (kept[n] == name)
            return true;
    return false;
}

static double random_value(const tl_problem *problem, clmgk_layer_array array, uint64_t *state)
{
    const clmgk_attention_desc *const a = &problem->attention.desc;
    switch (array) {
    case CLMGK_LAYER_ARRAY_WEIGHT_QKV:
    case CLMGK_LAYER_ARRAY_WEIGHT_Q:
        return th_normal(state) / sqrt((double)problem->desc.width);
    case CLMGK_LAYER_ARRAY_WEIGHT_K:
        return th_normal(state) / sqrt((double)problem->desc.width_k);
    case CLMGK_LAYER_ARRAY_WEIGHT_V:
        return th_normal(state) / sqrt((double)problem->desc.width_v);
    case CLMGK_LAYER_ARRAY_WEIGHT_O:
        return th_normal(state) / sqrt((double)(a->heads * a->value_size));
    case CLMGK_LAYER_ARRAY_GAIN_Q:
    case CLMGK_LAYER_ARRAY_GAIN_K:
    case CLMGK_LAYER_ARRAY_NORM_GAIN:
        return 1.0 + 0.3 * th_normal(state);
    case CLMGK_LAYER_ARRAY_POSITIONS: /* tokens before position 0 among them */
        return (double)th_pick(state, 0, 3000);
    default:
        return th_normal(state);
    }
}

static void make_array(tl_problem *problem, clmgk_layer_array name, int64_t count, uint64_t *state)
{
    th_array *const array = &problem->array[name];
    array->dtype = lines[name].storage ? problem->attention.desc.dtype : CLMGK_DTYPE_F32;
    if (name == CLMGK_LAYER_ARRAY_CACHE_K || name == CLMGK_LAYER_ARRAY_CACHE_V)
        array->dtype = clmgk_array_dtype(&problem->attention.desc,
                                         name == CLMGK_LAYER_ARRAY_CACHE_K ? CLMGK_ARRAY_K : CLMGK_ARRAY_V);
    array->element = clmgk_ref_dtype_size(array->dtype);
    array->block = (size_t)clmgk_dtype_get_info(array->dtype).block;
    array->integer = lines[name].integer;
    array->offset = GUARD;
    array->count = (size_t)count;
    for (size_t axis = 0; axis < TH_RANK; axis++)
        array->shape[axis] = array->stride[axis] = 1;
    array->shape[TH_RANK - 1] = count;
    array->used = count > 0 && (!lines[name].gradient || (problem->desc.gradients & bits[name]) != 0);
    array->values = calloc(array->count + 1, sizeof(double)); /* + 1: no elements is no failure */
    assert_non_null(array->values);
    for (size_t n = 0; n < array->count; n++)
        array->values[n] = random_value(problem, name, state);
}

tl_problem tl_make(const clmgk_layer_desc *desc, uint64_t seed)
{
    tl_problem problem = {0};
    clmgk_attention_desc attention = CLMGK_ATTENTION_DESC_INIT, given = *desc->attention;
    clmgk_layer_desc sized = *desc;
    given.struct_size = sizeof(given);
    sized.struct_size = sizeof(sized);
    sized.attention = &given;
    problem.desc = sized;
    th_expect_ok(clmgk_layer_validate(&sized, &problem.desc, &attention, &th_error));
    problem.desc.attention = NULL;
    problem.attention = th_problem_make(&attention, seed);
    for (th_name name = 0; name < TH_ARRAYS; name++)
        if (is_kept(name)) {
            free(problem.attention.array[name].values);
            problem.attention.array[name].values = NULL;
            problem.attention.array[name].used = false;
        }
    const clmgk_ref_layer layer = {.desc = problem.desc, .attention = {.desc = problem.attention.desc}};
    uint64_t state = seed;
    for (clmgk_layer_array array = 0; array < CLMGK_LAYER_ARRAYS; array++)
        make_array(&problem, array, clmgk_ref_layer_count(&layer, array), &state);
    return problem;
}

void tl_free(tl_problem *problem)
{
    th_reference_free(&problem->integers);
    th_problem_free(&problem->attention);
    for (size_t array = 0; array < CLMGK_LAYER_ARRAYS; array++)
        free(problem->array[array].values);
    *problem = (tl_problem){0};
}

clmgk_layer_desc tl_desc(const tl_problem *problem)
{
    clmgk_layer_desc desc = problem->desc;
    desc.attention = &problem->attention.desc;
    return desc;
}

clmgk_ref_layer tl_reference(tl_problem *problem)
{
    th_reference_free(&problem->integers);
    problem->integers = th_reference_of(&problem->attention);
    clmgk_ref_layer layer = {.desc = problem->desc, .attention = problem->integers.problem};
#define SET(name, field, ...) layer.field = problem->array[CLMGK_LAYER_ARRAY_##name].values;
    CLMGK_LAYER_ARRAY_LIST(SET, CLMGK_ARRAY_NONE)
#undef SET
    return layer;
}

uint32_t tl_all_gradients(const clmgk_layer_desc *desc)
{
    const clmgk_layer_desc *const d = desc;
    uint32_t set = 0;
#define GRADIENT(name, field, element, bit, axes, has) set |= (has) ? (uint32_t)(bit) : 0;
    CLMGK_LAYER_ARRAY_LIST(CLMGK_ARRAY_NONE, GRADIENT)
#undef GRADIENT
    return set;
}

static bool has_backward(const tl_problem *problem)
{
    return problem->desc.gradients != 0 || problem->attention.desc.gradients != 0;
}

/* ---- runs ------------------------------------------------------------------------------------------------------ */

clmgk_layer *tl_layer(th_session *session, const tl_problem *problem)
{
    const clmgk_layer_desc desc = tl_desc(problem);
    clmgk_plan_options options = th_options(session, problem->engine);
    clmgk_layer_info info = CLMGK_LAYER_INFO_INIT;
    clmgk_layer *layer = NULL;
    if (problem->attention.desc.length <= 4) /* few rows have a form of their own, which parameters would rule out */
        options.parameters = NULL;
    th_expect_ok(clmgk_layer_create(session->context, &desc, &options, &layer, &th_error));
    th_expect_ok(clmgk_layer_get_info(layer, &info, &th_error));
    session->plans++;
    session->built_ms += info.compile_ms;
    session->layers = realloc(session->layers, (session->layer_count + 1) * sizeof(clmgk_layer *));
    assert_non_null(session->layers);
    session->layers[session->layer_count++] = layer;
    return layer;
}

/* Contents of an output before the call: a cache, or values to which a gradient is added. */
static bool is_read(const tl_problem *problem, clmgk_layer_array array)
{
    return array == CLMGK_LAYER_ARRAY_CACHE_K || array == CLMGK_LAYER_ARRAY_CACHE_V ||
           (problem->desc.accumulate & bits[array]) != 0;
}

static void upload_array(const th_session *session, const tl_problem *problem, clmgk_layer_array name,
                         tl_device *device)
{
    const th_array *const array = &problem->array[name];
    th_device_buffer *const buffer = &device->buffer[name];
    th_make_image(buffer, (GUARD + array->count) * array->element + TRAIL);
    if (!lines[name].output || is_read(problem, name))
        th_write_values(array, buffer);
    if (lines[name].output)
        th_mark_output(array, buffer);
    th_make_memory(session, buffer);
    for (size_t pass = 0; pass < 2; pass++)
        if (lines[name].passes[pass] != '-')
            *clmgk_layer_array_buffer(&device->args[pass], name) = (clmgk_buffer){buffer->memory, GUARD};
}

/* Of `bytes`, for all passes. */
static void upload_bytes(const th_session *session, clmgk_layer_array name, uint64_t bytes, tl_device *device)
{
    th_device_buffer *const buffer = &device->buffer[name];
    if (bytes == 0)
        return;
    th_make_image(buffer, GUARD + bytes + TRAIL);
    memset(buffer->output + GUARD, 1, bytes);
    th_make_memory(session, buffer);
    for (size_t pass = 0; pass < 2; pass++)
        *clmgk_layer_array_buffer(&device->args[pass], name) = (clmgk_buffer){buffer->memory, GUARD};
}

tl_device tl_upload(const th_session *session, tl_problem *problem, const clmgk_layer *layer)
{
    tl_device device = {0};
    clmgk_layer_info info = CLMGK_LAYER_INFO_INIT;
    th_expect_ok(clmgk_layer_get_info(layer, &info, &th_error));
    const uint64_t forward = info.workspace_bytes, backward = info.backward_workspace_bytes;
    for (size_t pass = 0; pass < 2; pass++)
        device.args[pass] = (clmgk_layer_args)CLMGK_LAYER_ARGS_INIT;
    for (clmgk_layer_array array = 0; array < CLMGK_LAYER_ARRAYS; array++)
        if (problem->array[array].used)
            upload_array(session, problem, array, &device);
    upload_bytes(session, CLMGK_LAYER_ARRAY_ACTIVATIONS, info.activation_bytes, &device);
    upload_bytes(session, CLMGK_LAYER_ARRAY_WORKSPACE, forward > backward ? forward : backward, &device);
    device.attention[TH_FORWARD] = th_upload_for(session, &problem->attention, TH_FORWARD, 0);
    if (has_backward(problem))
        device.attention[TH_BACKWARD] = th_upload_for(session, &problem->attention, TH_BACKWARD, 0);
    return device;
}

void tl_device_free(tl_device *device)
{
    for (size_t name = 0; name < CLMGK_LAYER_ARRAYS; name++) {
        free(device->buffer[name].image);
        free(device->buffer[name].output);
        if (device->buffer[name].memory)
            assert_int_equal(clReleaseMemObject(device->buffer[name].memory), CL_SUCCESS);
    }
    th_device_free(&device->attention[TH_FORWARD]);
    th_device_free(&device->attention[TH_BACKWARD]);
    *device = (tl_device){0};
}

clmgk_layer_args tl_args(const tl_device *device, th_pass pass)
{
    clmgk_layer_args args = device->args[pass];
    args.attention = &device->attention[pass].args;
    return args;
}

void tl_enqueue(clmgk_layer *layer, cl_command_queue queue, const tl_device *device, th_pass pass)
{
    const clmgk_layer_args args = tl_args(device, pass);
    th_expect_ok((pass == TH_FORWARD ? clmgk_enqueue_layer_forward
                                     : clmgk_enqueue_layer_backward)(layer, queue, &args, 0, NULL, NULL, &th_error));
}

/* Of an array in the pass's arguments. */
static bool take(const th_session *session, tl_problem *problem, clmgk_layer_array name, const tl_device *device,
                 bool backward, th_message *message)
{
    const th_device_buffer *const buffer = &device->buffer[name];
    th_array *const array = &problem->array[name];
    if (buffer->bytes == 0)
        return true;
    unsigned char *const bytes = th_read_back(session, buffer);
    bool ok = th_has_canaries(buffer, bytes, name, false, message);
    if (ok && array->used && lines[name].output && (backward || lines[name].passes[0] != '-'))
        ok = th_take_output(array, bytes, name, (problem->desc.accumulate & bits[name]) != 0, message);
    free(bytes);
    return ok;
}

void tl_download(const th_session *session, tl_problem *problem, const tl_device *device, bool backward)
{
    for (clmgk_layer_array array = 0; array < CLMGK_LAYER_ARRAYS; array++) {
        th_message message;
        if (!take(session, problem, array, device, backward, &message))
            fail_msg("%s: %s", clmgk_layer_array_name(array), message.text);
    }
    th_download(session, &problem->attention, &device->attention[TH_FORWARD]);
    if (backward)
        th_download(session, &problem->attention, &device->attention[TH_BACKWARD]);
}

static void enqueue_all(th_session *session, tl_problem *problem, clmgk_layer *layer, const tl_device *device)
{
    tl_enqueue(layer, session->queue, device, TH_FORWARD);
    if (has_backward(problem))
        tl_enqueue(layer, session->queue, device, TH_BACKWARD);
    assert_int_equal(clFinish(session->queue), CL_SUCCESS);
    tl_download(session, problem, device, has_backward(problem));
}

void tl_run_with(th_session *session, tl_problem *problem, clmgk_layer *layer)
{
    TL_DEVICE device = tl_upload(session, problem, layer);
    enqueue_all(session, problem, layer, &device);
}

void tl_run(th_session *session, tl_problem *problem)
{
    tl_run_with(session, problem, tl_layer(session, problem));
}

/* ---- checks ------------------------------------------------------------------------------------------------------ */

static void check_array(const clmgk_ref_arrays *exact, int which, const double *given, const char *name)
{
    th_message message = {""};
    if (exact->exact[which])
        clmgk_ref_check_array(exact, which, given, message.text, sizeof(message.text));
    if (message.text[0] != '\0')
        fail_msg("%s: %s", name, message.text);
}

/* In the units of the exact one. */
static void check_state(const tl_problem *problem, const clmgk_ref_arrays *exact, const char *name)
{
    const th_array *const state = &problem->attention.array[TH_NEW_STATE_C];
    const double *const m = state[CLMGK_REF_STATE_M].used ? state[CLMGK_REF_STATE_M].values : NULL;
    for (int which = CLMGK_REF_STATE_C; which <= CLMGK_REF_STATE_Z && exact->exact[which]; which++) {
        const size_t bytes = state[which].count * sizeof(double);
        double *const values = malloc(bytes + 1);
        assert_non_null(values);
        memcpy(values, state[which].values, bytes);
        clmgk_ref_rescale_state(exact, which, m, values);
        check_array(exact, which, values, name);
        free(values);
    }
}

void tl_check(th_session *session, const tl_problem *problem, const clmgk_ref_layer_answer *answer, const char *name)
{
    static const clmgk_layer_array outputs[] = {CLMGK_LAYER_ARRAY_OUT, CLMGK_LAYER_ARRAY_CACHE_K,
                                                CLMGK_LAYER_ARRAY_CACHE_V};
    for (size_t which = 0; which < TH_COUNT(outputs); which++)
        check_array(&answer->outputs, (int)which, problem->array[outputs[which]].values, name);
    check_state(problem, &answer->state, name);
    int which = 0;
    for (clmgk_layer_array array = 0; array < CLMGK_LAYER_ARRAYS; array++)
        if (lines[array].gradient) {
            if (problem->array[array].used)
                check_array(&answer->gradients, which, problem->array[array].values, name);
            which++;
        }
    for (which = CLMGK_REF_GRAD_PRIOR; which < CLMGK_REF_GRADIENTS; which++)
        if (problem->attention.array[TH_GRAD_Q + which].used)
            check_array(&answer->attention, which, problem->attention.array[TH_GRAD_Q + which].values, name);
    session->cases++;
}

void tl_expect(th_session *session, tl_problem *problem, const char *name)
{
    TL_ANSWER answer;
    clmgk_layer *const layer = tl_layer(session, problem);
    TL_DEVICE device = tl_upload(session, problem, layer);
    const clmgk_ref_layer reference = tl_reference(problem); /* before a cache is overwritten */
    assert_true(clmgk_ref_layer_solve(&reference, has_backward(problem), &answer));
    enqueue_all(session, problem, layer, &device);
    tl_check(session, problem, &answer, name);
}
