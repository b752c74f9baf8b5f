/* SPDX-License-Identifier: Apache-2.0 */
/* The multi-head layer: forward, training steps (forward and backward), a decoding step, and the host's time of a
 * call; variants in turn, each checked on a smaller layer first. */
#include "reference/layer.h"
#include "layer_held.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MIN_ROUNDS 3
#define MAX_ROUNDS 100
#define CALLS      30 /* whose host time is taken */

static const char *const kind_names[] = {"forward", "training", "decoding"};

/* Host time of a call, forward and backward; 0: not this kind. */
typedef struct layer_calls {
    double us[2];
} layer_calls;

typedef struct layer_case {
    bench_variant variant;
    layer_step kind;
    held_layer held;
    const char *refused; /* NULL, or `message` */
    char message[CLMGK_ERROR_MESSAGE_SIZE];
    bench_error_found error;
    layer_calls calls;
    double samples[MAX_ROUNDS];
    int rounds;
    tool_spread time_ms;
} layer_case;

typedef struct layer_run {
    layer_wish wish;
    const bench_options *options;
    layer_case *cases;
    size_t count;
} layer_run;

/* ---- calls ----------------------------------------------------------------------------------------------------- */

/* Enqueues a pass of the case behind `gate` (NULL: at once). */
static tool_exit enqueue_pass(const layer_run *run, const held_layer *held, int pass, cl_event gate, tool_error *error)
{
    return tool_check_library((pass == 0 ? clmgk_enqueue_layer_forward : clmgk_enqueue_layer_backward)(
                                  held->layer, run->wish.device->tool.queue, &held->args, gate != NULL,
                                  gate ? &gate : NULL, NULL, &error->library),
                              error);
}

/* Enqueues the case's passes, and takes the host time of each call. */
static tool_exit enqueue(const layer_run *run, const held_layer *held, cl_event gate, layer_calls *calls,
                         tool_error *error)
{
    *calls = (layer_calls){.us = {0, 0}};
    for (int pass = 0; pass < (held->desc.gradients ? 2 : 1); pass++) {
        const double start = tool_now_ms();
        TOOL_TRY(enqueue_pass(run, held, pass, pass == 0 ? gate : NULL, error));
        calls->us[pass] = 1e3 * (tool_now_ms() - start);
    }
    return TOOL_DONE;
}

static tool_exit time_once(const layer_run *run, const held_layer *held, double *ms, tool_error *error)
{
    layer_calls calls;
    const double start = tool_now_ms();
    const tool_exit status = enqueue(run, held, NULL, &calls, error);
    const cl_int code = clFinish(run->wish.device->tool.queue);
    *ms = tool_now_ms() - start;
    return status == TOOL_DONE ? tool_check_cl(code, "clFinish", error) : status;
}

/* The host's time while the device waits: nothing else takes the processors. */
static tool_exit time_call(const layer_run *run, const held_layer *held, layer_calls *calls, tool_error *error)
{
    cl_int code = CL_SUCCESS;
    const cl_event gate = clCreateUserEvent(run->wish.device->tool.context, &code);
    TOOL_TRY(tool_check_cl(code, "clCreateUserEvent", error));
    tool_exit status = enqueue(run, held, gate, calls, error);
    code = clSetUserEventStatus(gate, CL_COMPLETE);
    if (code == CL_SUCCESS)
        code = clFinish(run->wish.device->tool.queue);
    clReleaseEvent(gate);
    return status == TOOL_DONE ? tool_check_cl(code, "clFinish", error) : status;
}

static tool_exit time_enqueues(const layer_run *run, const held_layer *held, layer_calls *calls, tool_error *error)
{
    double samples[2][CALLS];
    for (int i = 0; i < CALLS; i++) {
        layer_calls now;
        TOOL_TRY(time_call(run, held, &now, error));
        for (int pass = 0; pass < 2; pass++)
            samples[pass][i] = now.us[pass];
    }
    for (int pass = 0; pass < 2; pass++)
        calls->us[pass] = tool_spread_of(samples[pass], CALLS).median;
    return TOOL_DONE;
}

/* ---- checks ---------------------------------------------------------------------------------------------------- */

static tool_exit read_numbers(const layer_run *run, cl_mem memory, clmgk_dtype dtype, size_t count, double **out,
                              tool_error *error)
{
    const size_t bytes = count * clmgk_ref_dtype_size(dtype);
    void *const elements = malloc(bytes);
    *out = malloc(count * sizeof(**out));
    if (!elements || !*out) {
        free(elements);
        return tool_fail_memory(error, "results of a layer");
    }
    const cl_int code =
        clEnqueueReadBuffer(run->wish.device->tool.queue, memory, CL_TRUE, 0, bytes, elements, 0, NULL, NULL);
    const tool_exit status = tool_check_cl(code, "clEnqueueReadBuffer", error);
    if (status == TOOL_DONE)
        clmgk_ref_load(dtype, elements, count, *out);
    free(elements);
    return status;
}

static tool_exit compare(const layer_run *run, cl_mem memory, clmgk_dtype dtype, const clmgk_ref_arrays *exact,
                         int which, bench_error_found *found, tool_error *error)
{
    double *values = NULL;
    char message[sizeof(found->message)];
    tool_exit status = read_numbers(run, memory, dtype, (size_t)exact->count[which], &values, error);
    if (status == TOOL_DONE) {
        const clmgk_ref_error at = clmgk_ref_check_array(exact, which, values, message, sizeof(message));
        if (found->array == NULL || at.error * found->bound > found->max * at.bound) {
            found->max = at.error;
            found->bound = at.bound;
            found->array = exact->names[which];
        }
        if (message[0] != '\0' && found->message[0] == '\0')
            memcpy(found->message, message, sizeof(message));
    }
    free(values);
    return status;
}

static tool_exit compare_all(const layer_run *run, const held_layer *held, const clmgk_ref_layer_answer *answer,
                             bench_error_found *found, tool_error *error)
{
    TOOL_TRY(compare(run, held->memory[CLMGK_LAYER_ARRAY_OUT], bench_layer_dtype(held, CLMGK_LAYER_ARRAY_OUT),
                     &answer->outputs, CLMGK_REF_LAYER_OUT, found, error));
    for (clmgk_layer_array array = 0; array < CLMGK_LAYER_ARRAYS; array++) {
        int which = 0;
        const uint32_t bit = bench_layer_gradient(array);
        while (bit >> which > 1)
            which++;
        if (held->desc.gradients & bit)
            TOOL_TRY(compare(run, held->memory[array], bench_layer_dtype(held, array), &answer->gradients, which, found,
                             error));
    }
    for (int which = 0; which < CLMGK_REF_GRADIENTS; which++) {
        if (held->own[CLMGK_ARRAY_GRAD_Q + which])
            TOOL_TRY(compare(run, held->own[CLMGK_ARRAY_GRAD_Q + which], CLMGK_DTYPE_F32, &answer->attention, which,
                             found, error));
    }
    return TOOL_DONE;
}

/* A smaller layer of the kind against the reference. */
static tool_exit check_small(const layer_run *run, const held_layer *held, bench_error_found *found, tool_error *error)
{
    const int32_t full = (int32_t)held->desc.cache_capacity;
    clmgk_ref_layer layer = {.desc = held->desc, .attention = {.desc = held->attention}};
    clmgk_ref_layer_answer answer;
    double ms = 0;
#define VALUES(name, field, ...) layer.field = held->values[CLMGK_LAYER_ARRAY_##name];
    CLMGK_LAYER_ARRAY_LIST(VALUES, CLMGK_ARRAY_NONE)
#undef VALUES
    void *parameters[CLMGK_ARRAYS];
    for (clmgk_array array = 0; array < CLMGK_ARRAYS; array++)
        parameters[array] = held->own_values[array];
    clmgk_ref_set_arrays(&layer.attention, parameters);
    layer.attention.lengths = full ? &full : NULL;
    TOOL_TRY(time_once(run, held, &ms, error));
    if (!clmgk_ref_layer_solve(&layer, held->desc.gradients != 0, &answer))
        return tool_fail_memory(error, "the reference of a layer");
    const tool_exit status = compare_all(run, held, &answer, found, error);
    clmgk_ref_layer_answer_free(&answer);
    found->ok = found->message[0] == '\0';
    found->sampled = held->attention.length;
    return status;
}

/* ---- cases ----------------------------------------------------------------------------------------------------- */

/* What the device cannot do is the case's to say. */
static tool_exit take_refusal(layer_case *one, tool_exit status, const tool_error *error)
{
    if (status == TOOL_DONE || error->library.status != CLMGK_ERROR_UNSUPPORTED)
        return status;
    snprintf(one->message, sizeof(one->message), "%s", error->library.message);
    one->refused = one->message;
    return TOOL_DONE;
}

static tool_exit prepare(const layer_run *run, layer_case *one, tool_error *error)
{
    held_layer small = {.layer = NULL};
    tool_exit status = bench_open_layer(&run->wish, &one->variant, one->kind, true, &small, error);
    if (status == TOOL_DONE)
        status = check_small(run, &small, &one->error, error);
    if (status == TOOL_DONE)
        status = time_enqueues(run, &small, &one->calls, error);
    bench_close_layer(&small);
    if (status == TOOL_DONE && one->error.ok)
        status = bench_open_layer(&run->wish, &one->variant, one->kind, false, &one->held, error);
    return take_refusal(one, status, error);
}

static bool is_timed(const layer_case *one)
{
    return !one->refused && one->error.ok;
}

/* The cases of a kind in turn. */
static tool_exit measure_kind(const layer_run *run, layer_step kind, tool_error *error)
{
    layer_case *const end = run->cases + run->count;
    for (layer_case *one = run->cases; one < end; one++) {
        if (one->kind != kind)
            continue;
        fprintf(stderr, "clmgk-bench: layer, %s: %s %" PRId64 "\n", kind_names[kind],
                clmgk_variant_name(one->variant.variant), one->variant.heads);
        double ms = 0;
        TOOL_TRY(prepare(run, one, error));
        if (is_timed(one))
            TOOL_TRY(time_once(run, &one->held, &ms, error));
    }
    const double stop = tool_now_ms() + 1e3 * run->options->seconds;
    for (int round = 0; round < MAX_ROUNDS && (round < MIN_ROUNDS || tool_now_ms() < stop); round++) {
        for (layer_case *one = run->cases; one < end; one++) {
            if (one->kind == kind && is_timed(one))
                TOOL_TRY(time_once(run, &one->held, &one->samples[one->rounds++], error));
        }
    }
    for (layer_case *one = run->cases; one < end; one++) {
        if (one->kind == kind && one->rounds)
            one->time_ms = tool_spread_of(one->samples, (size_t)one->rounds);
    }
    return TOOL_DONE;
}

/* ---- results --------------------------------------------------------------------------------------------------- */

/* Time as a part of softmax's with 8 heads; 0: not measured. */
static double ratio_to_softmax(const layer_run *run, const layer_case *one)
{
    for (const layer_case *other = run->cases; other < run->cases + run->count; other++) {
        if (other->variant.variant == CLMGK_VARIANT_SOFTMAX && other->variant.heads == run->wish.shape->heads &&
            other->kind == one->kind && other->rounds)
            return one->time_ms.median / other->time_ms.median;
    }
    return 0;
}

/* Bytes of weights and cache, which a decoding step reads. */
static double bytes_read(const layer_case *one)
{
    static const clmgk_layer_array arrays[] = {CLMGK_LAYER_ARRAY_WEIGHT_QKV, CLMGK_LAYER_ARRAY_WEIGHT_O,
                                               CLMGK_LAYER_ARRAY_CACHE_K, CLMGK_LAYER_ARRAY_CACHE_V};
    double bytes = 0;
    for (size_t i = 0; i < TOOL_COUNT(arrays) && one->kind == DECODING; i++)
        bytes += (double)clmgk_layer_array_bytes(&one->held.desc, arrays[i]);
    return bytes;
}

/* Time over that of reading them once at the measured rate; 0: no decoding step. */
static double ratio_to_reading(const layer_run *run, const layer_case *one)
{
    const double least_ms = bytes_read(one) / (1e6 * run->wish.device->peaks.read_gbps);
    return least_ms > 0 ? one->time_ms.median / least_ms : 0;
}

static double workspace_bytes(const layer_case *one)
{
    const clmgk_layer_info *const info = &one->held.info;
    return fmax((double)info->workspace_bytes, (double)info->backward_workspace_bytes);
}

static void print_number(double number, int width, int digits, FILE *stream)
{
    if (number > 0)
        fprintf(stream, "%*.*f", width, digits, number);
    else
        fprintf(stream, "%*s", width, "-");
}

static void print_case(const layer_run *run, const layer_case *one, FILE *stream)
{
    fprintf(stream, "  %-9s %-13s %3" PRId64, kind_names[one->kind], clmgk_variant_name(one->variant.variant),
            one->variant.heads);
    if (!one->rounds) {
        fprintf(stream, "  %s: %s\n", one->refused ? "not measured" : "WRONG, not timed",
                one->refused ? one->refused : one->error.message);
        return;
    }
    fprintf(stream, " %10.3f %10.3f %10.3f", one->time_ms.median, one->time_ms.min, one->time_ms.max);
    print_number(ratio_to_softmax(run, one), 8, 3, stream);
    print_number(ratio_to_reading(run, one), 9, 2, stream);
    fprintf(stream, " %12.1f %10.1f", 1e-6 * (double)one->held.info.activation_bytes, 1e-6 * workspace_bytes(one));
    for (int pass = 0; pass < 2; pass++)
        print_number(one->calls.us[pass], 9, 0, stream);
    fprintf(stream, " %9.1e %8.1e  %s\n", one->error.max, one->error.bound, one->held.info.provider);
}

static void print_cases(const void *of, FILE *stream)
{
    const layer_run *const run = of;
    const bench_shape *const shape = run->wish.shape;
    fprintf(stream,
            "layer: width %" PRId64 ", head size %" PRId64
            ", %s, biases, residual, normalised behind; forward and training"
            " (forward and\nbackward, all gradients): batch %" PRId64 ", N %" PRId64
            "; decoding: batch 1, a token, cache of %" PRId64 "\n",
            bench_layer_width(shape), shape->head_size, clmgk_dtype_name(run->wish.dtype), shape->batch, shape->length,
            LAYER_CACHES * shape->length);
    fprintf(stream, "  %-27s %10s %21s %7s %8s %12s %10s %8s %8s %9s %8s  %s\n", "", "median ms", "min .. max ms",
            "ratio", "/reading", "activ. MB", "work. MB", "call us", "backward", "error", "bound", "products by");
    for (size_t i = 0; i < run->count; i++) {
        if (run->cases[i].rounds || run->cases[i].refused || run->cases[i].error.message[0] != '\0')
            print_case(run, &run->cases[i], stream);
    }
}

static json_t *case_json(const layer_run *run, const layer_case *one)
{
    const bench_shape *const shape = run->wish.shape;
    const bool step = one->kind == DECODING;
    const json_int_t width = bench_layer_width(shape), cache = step ? LAYER_CACHES * shape->length : 0;
    json_t *const key = json_pack(
        "{s:I, s:s, s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:I}", "device", (json_int_t)0, "step", kind_names[one->kind],
        "variant", clmgk_variant_name(one->variant.variant), "dtype", clmgk_dtype_name(run->wish.dtype), "heads",
        (json_int_t)one->variant.heads, "width", width, "head_size", (json_int_t)shape->head_size, "batch",
        (json_int_t)(step ? 1 : shape->batch), "length", (json_int_t)(step ? 1 : shape->length), "cache", cache);
    if (!one->rounds)
        return tool_json_merge(key, json_pack("{s:s}", one->refused ? "refused" : "wrong",
                                              one->refused ? one->refused : one->error.message));
    const clmgk_layer_info *const info = &one->held.info;
    return tool_json_merge(
        key, json_pack("{s:{s:f, s:f, s:f, s:i}, s:o, s:o, s:I, s:f, s:f, s:o, s:f, s:s, s:s, s:{s:f, "
                       "s:f, s:s}}",
                       "time_ms", "median", one->time_ms.median, "min", one->time_ms.min, "max", one->time_ms.max,
                       "repetitions", one->rounds, "ratio_to_softmax", tool_json_positive(ratio_to_softmax(run, one)),
                       "ratio_to_reading", tool_json_positive(ratio_to_reading(run, one)), "activation_bytes",
                       (json_int_t)info->activation_bytes, "workspace_bytes", workspace_bytes(one), "enqueue_us",
                       one->calls.us[0], "enqueue_backward_us", tool_json_positive(one->calls.us[1]), "compile_ms",
                       info->compile_ms, "provider", info->provider, "note", info->note, "error", "max", one->error.max,
                       "bound", one->error.bound, "array", one->error.array));
}

static json_t *make_object(const void *of)
{
    const layer_run *const run = of;
    json_t *rows = json_array();
    for (size_t i = 0; i < run->count; i++) {
        if (run->cases[i].rounds || run->cases[i].refused || run->cases[i].error.message[0] != '\0')
            tool_json_append(&rows, case_json(run, &run->cases[i]));
    }
    return bench_rows_json(run->wish.device, "layers", rows);
}

static tool_exit measure(const layer_run *run, const bench_results *results, tool_error *error)
{
    for (layer_step kind = 0; kind < KINDS; kind++) {
        TOOL_TRY(bench_probe_memory(run->wish.device, error));
        TOOL_TRY(measure_kind(run, kind, error));
        TOOL_TRY(bench_give_results(results, true, error));
    }
    return bench_probe_memory(run->wish.device, error);
}

static tool_exit report_wrong(const layer_run *run, tool_error *error)
{
    size_t wrong = 0;
    for (size_t i = 0; i < run->count; i++)
        wrong += !run->cases[i].refused && !run->cases[i].error.ok;
    return wrong ? tool_fail(error, TOOL_CHECK_FAILED, "%zu %s wrong by the reference", wrong,
                             tool_plural(wrong, "layer is", "layers are"))
                 : TOOL_DONE;
}

static tool_exit make_context(layer_run *run, tool_error *error)
{
    const bench_device *const device = run->wish.device;
    clmgk_context_options how = CLMGK_CONTEXT_OPTIONS_INIT;
    how.cache_dir = device->cache_dir;
    how.tuning_dir = device->tuning_dir;
    how.untuned = run->options->untuned;
    return tool_check_library(clmgk_context_create(device->tool.context, device->tool.info.device_id, &how,
                                                   &run->wish.library, &error->library),
                              error);
}

static void close_cases(layer_run *run)
{
    for (size_t i = 0; i < run->count; i++)
        bench_close_layer(&run->cases[i].held);
    free(run->cases);
    clmgk_context_release(run->wish.library);
}

tool_exit bench_layers(bench_device *device, const bench_options *options, tool_outputs *outputs, tool_error *error)
{
    const bench_request *const request = &options->request;
    layer_run run = {.wish = {.device = device, .shape = request->shapes, .dtype = options->layer_dtype},
                     .options = options,
                     .cases = calloc(KINDS * request->variant_count, sizeof(*run.cases))};
    const bench_results results = {outputs, options->json, make_object, print_cases, &run};
    tool_exit status = TOOL_DONE;
    TOOL_TRY_GOTO(status, tool_check_memory(run.cases, "layers", error), done);
    for (; run.count < KINDS * request->variant_count; run.count++) {
        layer_case *const one = &run.cases[run.count];
        one->kind = (layer_step)(run.count / request->variant_count);
        one->variant = request->variants[run.count % request->variant_count];
        if (one->variant.heads <= 0)
            one->variant.heads =
                one->variant.heads == BENCH_HEADS_HALF ? (run.wish.shape->heads + 1) / 2 : run.wish.shape->heads;
    }
    TOOL_TRY_GOTO(status, bench_probe_open(device, options->seconds, error), done);
    TOOL_TRY_GOTO(status, make_context(&run, error), done);
    TOOL_TRY_GOTO(status, measure(&run, &results, error), done);
    TOOL_TRY_GOTO(status, bench_give_results(&results, false, error), done);
    status = report_wrong(&run, error);
done:
    close_cases(&run);
    bench_probe_close(device);
    return status;
}
