/* SPDX-License-Identifier: Apache-2.0 */
#include "run.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

tool_exit run_announce(const run_arguments *arguments, run_outputs *outputs, tool_error *error)
{
    const char *const *const file = arguments->problem.file;
    for (clmgk_array array = 0; array < TOOL_FILES; array++) {
        if (file[array] && tool_is_output(array))
            TOOL_TRY(
                tool_outputs_add(outputs->files, tool_array_option(array), file[array], &outputs->place[array], error));
    }
    for (size_t n = 0; n < arguments->problem.number_count; n++) {
        if (arguments->problem.grad_number[n])
            TOOL_TRY(tool_outputs_add(outputs->files, "grad-number", arguments->problem.grad_number[n],
                                      &outputs->number_place[n], error));
    }
    return tool_refuse_inputs(&arguments->problem, outputs->files, error);
}

/* The gradients of numbers, each in a file of its own. */
static tool_exit write_numbers(const run_arguments *arguments, const run_execution *execution, run_outputs *outputs,
                               tool_error *error)
{
    static const int64_t one = 1;
    const size_t count = arguments->problem.number_count;
    float numbers[CLMGK_MAX_NUMBERS];
    const void *elements = NULL;
    if (!execution->memory[CLMGK_ARRAY_GRAD_NUMBERS])
        return TOOL_DONE;
    TOOL_TRY(run_map(execution, CLMGK_ARRAY_GRAD_NUMBERS, count * sizeof numbers[0], &elements, error));
    memcpy(numbers, elements, count * sizeof numbers[0]);
    run_unmap(execution, CLMGK_ARRAY_GRAD_NUMBERS, elements);
    for (size_t n = 0; n < count; n++) {
        const char *const path = arguments->problem.grad_number[n];
        FILE *stream = NULL;
        if (!path)
            continue;
        TOOL_TRY(tool_outputs_open(outputs->files, outputs->number_place[n], &stream, error));
        TOOL_TRY(npy_write_header(stream, path, 1, &one, error));
        TOOL_TRY(npy_write(stream, path, CLMGK_DTYPE_F32, &numbers[n], 1, error));
    }
    return TOOL_DONE;
}

static tool_exit write_state(const tool_problem *problem, const run_execution *execution, clmgk_array array,
                             const char *path, FILE *stream, tool_error *error)
{
    float *values = NULL;
    tool_exit status = run_true_state(problem, execution, array, &values, error);
    if (status == TOOL_DONE)
        status = npy_write(stream, path, CLMGK_DTYPE_F32, values, problem->slot[array].count, error);
    free(values);
    return status;
}

static tool_exit write_array(const tool_problem *problem, const run_execution *execution, clmgk_array array,
                             const char *path, FILE *stream, tool_error *error)
{
    const tool_slot *const slot = &problem->slot[array];
    const clmgk_dtype dtype = clmgk_array_dtype(&problem->desc, array);
    const void *elements = NULL;
    TOOL_TRY(npy_write_header(stream, path, slot->axes, slot->shape, error));
    if (slot->count == 0)
        return TOOL_DONE;
    if (run_is_new_state(array))
        return write_state(problem, execution, array, path, stream, error);
    TOOL_TRY(run_map(execution, array, slot->count * clmgk_ref_dtype_size(dtype), &elements, error));
    const tool_exit status = npy_write(stream, path, dtype, elements, slot->count, error);
    run_unmap(execution, array, elements);
    return status;
}

tool_exit run_write(const run_arguments *arguments, const tool_problem *problem, const run_execution *execution,
                    run_outputs *outputs, tool_error *error)
{
    for (clmgk_array array = 0; array < TOOL_FILES; array++) {
        const char *const path = arguments->problem.file[array];
        FILE *stream = NULL;
        if (!path || !tool_is_output(array))
            continue;
        TOOL_TRY(tool_outputs_open(outputs->files, outputs->place[array], &stream, error));
        TOOL_TRY(write_array(problem, execution, array, path, stream, error));
    }
    TOOL_TRY(write_numbers(arguments, execution, outputs, error));
    return tool_outputs_commit(outputs->files, error);
}

static double gflops(double flops, const tool_spread *milliseconds)
{
    return milliseconds->median > 0.0 ? 1e-6 * flops / milliseconds->median : 0.0;
}

static void print_times(const char *what, const tool_spread *milliseconds, double flops, int64_t repeat)
{
    printf("%s: median %.4f ms, min %.4f, max %.4f, of %" PRId64 " runs: %.1f GFLOP/s\n", what, milliseconds->median,
           milliseconds->min, milliseconds->max, repeat, gflops(flops, milliseconds));
}

static void print_found(clmgk_array array, int axes, const run_found *found, const char *what)
{
    if (found->count > 0)
        printf("check: %s has %" PRId64 " %s, the first at %s\n", tool_array_label(array), found->count, what,
               npy_shape_text(axes, found->first).text);
}

static void print_check(const run_check_result *check)
{
    const char *between = "check: ";
    for (clmgk_array array = 0; array < TOOL_FILES; array++) {
        if (!check->checked[array])
            continue;
        printf("%s%s error %.3g, bound %.3g", between, tool_array_label(array), check->worst[array].error,
               check->worst[array].bound);
        between = "; ";
    }
    printf(": %s\n", check->ok ? "passed" : "FAILED");
    if (check->lost_rows > 0)
        printf("check: float32 cannot resolve the logits of %" PRId64
               " rows: these were held against the range of their values instead\n",
               check->lost_rows);
    if (check->reads_outside > 0)
        printf("check: %" PRId64 " reads of captured arrays are outside of them, and take the nearest element\n",
               check->reads_outside);
    for (clmgk_array array = 0; array < TOOL_FILES; array++) {
        print_found(array, check->axes[array], &check->nan[array], "NaN");
        print_found(array, check->axes[array], &check->infinite[array], "infinities where the reference has none");
    }
}

static tool_exit print_words(const run_arguments *arguments, const tool_problem *problem,
                             const run_execution *execution, const run_check_result *check, tool_error *error)
{
    const clmgk_attention_desc *const d = &problem->desc;
    fprintf(stderr,
            "%s %s, B %" PRId64 ", H %" PRId64 ", G %" PRId64 ", M %" PRId64 ", N %" PRId64 ", S %" PRId64
            ", D %" PRId64 ", E %" PRId64 ", on %s (%s), %s engine, parameters of the %s, program: %s, %.1f ms\n",
            clmgk_variant_name(arguments->problem.variant), tool_dtypes_text(d).text, d->batch, d->heads, d->kv_heads,
            d->components, d->length, d->length_k, d->head_size, d->value_size, execution->device.info.name,
            execution->device.info.platform, clmgk_engine_name(execution->info.engine),
            clmgk_tuning_source_name(execution->info.tuning), clmgk_program_origin_name(execution->info.origin),
            execution->info.compile_ms);
    if (execution->info.cache_note[0])
        fprintf(stderr, "the program is not kept for the next start: %s\n", execution->info.cache_note);
    if (arguments->repeat > 0)
        print_times("time", &execution->forward_ms, execution->forward_flops, arguments->repeat);
    if (arguments->repeat > 0 && d->gradients != 0)
        print_times("backward", &execution->backward_ms, execution->backward_flops, arguments->repeat);
    if (check)
        print_check(check);
    return tool_flush_stdout(error);
}

/* null: there is none. */
static json_t *make_first(int axes, const run_found *found)
{
    json_t *list = found->count > 0 ? json_array() : json_null();
    for (int axis = 0; found->count > 0 && axis < axes; axis++)
        tool_json_append(&list, json_integer((json_int_t)found->first[axis]));
    return list;
}

static json_t *make_check(const run_arguments *arguments, const run_check_result *check)
{
    json_t *const object = json_object();
    json_object_set_new(object, "ok", json_boolean(check->ok));
    json_object_set_new(object, "lost_rows", json_integer((json_int_t)check->lost_rows));
    if (arguments->problem.capture_count > 0)
        json_object_set_new(object, "reads_outside", json_integer((json_int_t)check->reads_outside));
    for (clmgk_array array = 0; array < TOOL_FILES; array++) {
        if (!check->checked[array])
            continue;
        json_object_set_new(
            object, tool_array_label(array),
            json_pack("{s:o, s:o, s:o, s:I, s:o, s:I, s:o}", "error", tool_json_number(check->worst[array].error),
                      "bound", tool_json_number(check->worst[array].bound), "max",
                      tool_json_number(check->max_abs[array]), "nan", (json_int_t)check->nan[array].count, "first_nan",
                      make_first(check->axes[array], &check->nan[array]), "infinite",
                      (json_int_t)check->infinite[array].count, "first_infinite",
                      make_first(check->axes[array], &check->infinite[array])));
    }
    return object;
}

/* Adds flops, and what repetitions took. */
static void add_work(json_t *object, double flops, const tool_spread *milliseconds, int64_t repeat)
{
    json_object_set_new(object, "flops", tool_json_number(flops));
    if (repeat == 0)
        return;
    json_object_set_new(object, "time_ms",
                        json_pack("{s:f, s:f, s:f, s:I}", "median", milliseconds->median, "min", milliseconds->min,
                                  "max", milliseconds->max, "repeat", (json_int_t)repeat));
    json_object_set_new(object, "gflops", tool_json_number(gflops(flops, milliseconds)));
}

static json_t *make_backward(const tool_problem *problem, const run_execution *execution, int64_t repeat)
{
    json_t *const object = json_object();
    json_t *const gradients = json_array();
    for (clmgk_array array = 0; array < TOOL_FILES; array++) {
        if (problem->slot[array].used && clmgk_array_get_info(array)->gradient)
            json_array_append_new(gradients, tool_json_text(tool_array_option(array)));
    }
    json_object_set_new(object, "gradients", gradients);
    add_work(object, execution->backward_flops, &execution->backward_ms, repeat);
    return object;
}

static json_t *make_device(const clmgk_device_info *info)
{
    return json_pack("{s:o, s:o, s:o, s:o}", "name", tool_json_text(info->name), "platform",
                     tool_json_text(info->platform), "driver", tool_json_text(info->driver), "selector",
                     json_sprintf("%" PRIu32 ":%" PRIu32, info->platform_index, info->device_index));
}

static json_t *make_outputs(const run_arguments *arguments)
{
    json_t *const outputs = json_object();
    for (clmgk_array array = 0; array < TOOL_FILES; array++) {
        if (arguments->problem.file[array] && tool_is_output(array) && !run_is_new_state(array))
            json_object_set_new(outputs, tool_array_option(array), tool_json_text(arguments->problem.file[array]));
    }
    for (size_t n = 0; n < arguments->problem.number_count; n++) {
        char name[sizeof(tool_text_name) + 16];
        snprintf(name, sizeof name, "grad-number.%s", arguments->problem.numbers[n].text);
        if (arguments->problem.grad_number[n])
            json_object_set_new(outputs, name, tool_json_text(arguments->problem.grad_number[n]));
    }
    if (arguments->state_out)
        json_object_set_new(outputs, tool_array_option(CLMGK_ARRAY_NEW_STATE_C), tool_json_text(arguments->state_out));
    return outputs;
}

static json_t *make_json(const run_arguments *arguments, const tool_problem *problem, const run_execution *execution,
                         const run_check_result *check)
{
    const clmgk_attention_desc *const desc = &problem->desc;
    const clmgk_plan_info *const info = &execution->info;
    json_t *root = json_object();
    json_object_set_new(root, "clmgk", tool_json_text(clmgk_version()));
    json_object_set_new(root, "variant", tool_json_text(clmgk_variant_name(arguments->problem.variant)));
    json_object_set_new(root, "score", tool_json_text(clmgk_score_name(desc->score)));
    json_object_set_new(root, "estep", tool_json_text(clmgk_estep_name(desc->estep)));
    json_object_set_new(root, "dtype", tool_json_text(clmgk_dtype_name(desc->dtype)));
    root = tool_json_merge(root, tool_json_own_dtypes(desc));
    const clmgk_storage of_gradients = arguments->problem.dtype_grad;
    json_object_set_new(
        root, "dtype_grad",
        tool_json_text(of_gradients == CLMGK_STORAGE_AS_Q ? NULL : clmgk_dtype_name((clmgk_dtype)(of_gradients - 1))));
    json_object_set_new(root, "precision_used", tool_json_text(clmgk_precision_name(info->precision)));
    json_object_set_new(root, "engine", tool_json_text(clmgk_engine_name(info->engine)));
    json_object_set_new(root, "engine_reason", tool_json_text(info->engine_reason));
    json_object_set_new(root, "parameters", tool_json_text(info->parameters));
    json_object_set_new(root, "tuning", tool_json_text(clmgk_tuning_source_name(info->tuning)));
    json_object_set_new(root, "device", make_device(&execution->device.info));
    root = tool_json_merge(root, tool_json_sizes(desc));
    if (clmgk_variant_traits(desc->variant) & CLMGK_TRAIT_LINEAR) {
        json_object_set_new(root, "feature", tool_json_text(clmgk_feature_name(desc->feature)));
        json_object_set_new(root, "features", json_integer((json_int_t)desc->features));
    }
    json_object_set_new(root, "workspace_bytes", json_integer((json_int_t)info->workspace_bytes));
    json_object_set_new(root, "compile_ms", tool_json_number(info->compile_ms));
    json_object_set_new(root, "program", tool_json_text(clmgk_program_origin_name(info->origin)));
    json_object_set_new(root, "cache_note", tool_json_text(info->cache_note));
    json_object_set_new(root, "outputs", make_outputs(arguments));
    add_work(root, execution->forward_flops, &execution->forward_ms, arguments->repeat);
    if (desc->gradients != 0)
        json_object_set_new(root, "backward", make_backward(problem, execution, arguments->repeat));
    if (check)
        json_object_set_new(root, "check", make_check(arguments, check));
    return root;
}

tool_exit run_report(const run_arguments *arguments, const tool_problem *problem, const run_execution *execution,
                     const run_check_result *check, tool_error *error)
{
    TOOL_TRY(arguments->json ? tool_print_json(make_json(arguments, problem, execution, check), error)
                             : print_words(arguments, problem, execution, check, error));
    if (check && !check->ok)
        return tool_fail(error, TOOL_CHECK_FAILED, "--check: %s", check->message);
    return TOOL_DONE;
}
