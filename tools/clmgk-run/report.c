/* SPDX-License-Identifier: Apache-2.0 */
#include "run.h"

#include <inttypes.h>
#include <stdio.h>

/* ---- output files ------------------------------------------------------------------------------------------- */

tool_exit run_announce(const run_arguments *arguments, run_outputs *outputs, tool_error *error)
{
    const struct {
        const char *option;
        const char *path;
    } inputs[] = {
        {"q", arguments->q},
        {"k", arguments->k},
        {"v", arguments->v},
        {"shift", arguments->shift},
        {"lengths", arguments->lengths},
        {"lengths-q", arguments->lengths_q},
        {"prior", arguments->prior},
        {"variance", arguments->variance},
    };
    if (arguments->out)
        TOOL_TRY(tool_outputs_add(outputs->files, "out", arguments->out, &outputs->out, error));
    if (arguments->lse)
        TOOL_TRY(tool_outputs_add(outputs->files, "lse", arguments->lse, &outputs->lse, error));
    for (size_t i = 0; i < TOOL_COUNT(inputs); i++) {
        if (inputs[i].path) /* a list of numbers is no file's name */
            TOOL_TRY(tool_outputs_refuse_input(outputs->files, inputs[i].option, inputs[i].path, error));
    }
    return TOOL_DONE;
}

static tool_exit write_array(const run_execution *execution, run_array array, clmgk_dtype dtype, int axes,
                             const int64_t *shape, size_t count, tool_outputs *files, size_t index, const char *path,
                             tool_error *error)
{
    FILE *stream = NULL;
    const void *elements = NULL;
    TOOL_TRY(tool_outputs_open(files, index, &stream, error));
    TOOL_TRY(npy_write_header(stream, path, axes, shape, error));
    if (count == 0)
        return TOOL_DONE;
    TOOL_TRY(run_map(execution, array, count * clmgk_ref_dtype_size(dtype), &elements, error));
    const tool_exit status = npy_write(stream, path, dtype, elements, count, error);
    run_unmap(execution, array, elements);
    return status;
}

tool_exit run_write(const run_arguments *arguments, const run_problem *problem, const run_execution *execution,
                    run_outputs *outputs, tool_error *error)
{
    const clmgk_attention_desc *const desc = &problem->desc;
    const int64_t heads_first[] = {desc->batch, desc->heads, desc->length, desc->value_size};
    const int64_t tokens_first[] = {desc->batch, desc->length, desc->heads, desc->value_size};
    if (arguments->out)
        TOOL_TRY(write_array(execution, RUN_O, desc->dtype, 4, arguments->tokens_first ? tokens_first : heads_first,
                             run_count_o(desc), outputs->files, outputs->out, arguments->out, error));
    if (arguments->lse)
        TOOL_TRY(write_array(execution, RUN_LSE, CLMGK_DTYPE_F32, 3, heads_first, run_count_lse(desc), outputs->files,
                             outputs->lse, arguments->lse, error));
    return tool_outputs_commit(outputs->files, error);
}

/* ---- words -------------------------------------------------------------------------------------------------- */

static double gflops(const run_execution *execution)
{
    return execution->time_ms.median > 0.0 ? 1e-6 * execution->flops / execution->time_ms.median : 0.0;
}

static const char *program_origin(clmgk_program_origin origin)
{
    switch (origin) {
    case CLMGK_PROGRAM_MEMORY:
        return "memory";
    case CLMGK_PROGRAM_DISK:
        return "disk";
    case CLMGK_PROGRAM_BUILT:
        break;
    }
    return "built";
}

static tool_exit print_words(const run_arguments *arguments, const run_problem *problem, const run_execution *execution,
                             const run_check_result *check, tool_error *error)
{
    const clmgk_attention_desc *const d = &problem->desc;
    fprintf(stderr,
            "%s %s, B %" PRId64 ", H %" PRId64 ", G %" PRId64 ", M %" PRId64 ", N %" PRId64 ", S %" PRId64
            ", D %" PRId64 ", E %" PRId64 ", on %s (%s), %s engine, program: %s, %.1f ms\n",
            clmgk_variant_name(arguments->variant), clmgk_dtype_name(d->dtype), d->batch, d->heads, d->kv_heads,
            d->components, d->length, d->length_k, d->head_size, d->value_size, execution->device.info.name,
            execution->device.info.platform, clmgk_engine_name(execution->info.engine),
            program_origin(execution->info.origin), execution->info.compile_ms);
    if (arguments->repeat > 0)
        printf("time: median %.4f ms, min %.4f, max %.4f, of %" PRId64 " runs: %.1f GFLOP/s\n",
               execution->time_ms.median, execution->time_ms.min, execution->time_ms.max, arguments->repeat,
               gflops(execution));
    if (check)
        printf("check: O error %.3g, bound %.3g; L error %.3g, bound %.3g: %s\n", check->verdict.error_o,
               check->bound_o.bound, check->verdict.error_lse, check->bound_lse.bound,
               check->verdict.ok ? "passed" : "FAILED");
    return tool_flush_stdout(error);
}

static json_t *make_check_part(double largest, const clmgk_ref_bound *bound)
{
    json_t *const part = json_object();
    json_object_set_new(part, "error", tool_json_number(largest));
    json_object_set_new(part, "bound", tool_json_number(bound->bound));
    json_object_set_new(part, "max", tool_json_number(bound->max_abs));
    return part;
}

static json_t *make_check(const run_check_result *check)
{
    json_t *const object = json_object();
    json_object_set_new(object, "ok", json_boolean(check->verdict.ok));
    json_object_set_new(object, "out", make_check_part(check->verdict.error_o, &check->bound_o));
    json_object_set_new(object, "lse", make_check_part(check->verdict.error_lse, &check->bound_lse));
    return object;
}

static json_t *make_times(const run_execution *execution, int64_t repeat)
{
    json_t *const times = json_object();
    json_object_set_new(times, "median", tool_json_number(execution->time_ms.median));
    json_object_set_new(times, "min", tool_json_number(execution->time_ms.min));
    json_object_set_new(times, "max", tool_json_number(execution->time_ms.max));
    json_object_set_new(times, "repeat", json_integer(repeat));
    return times;
}

static json_t *make_device(const clmgk_device_info *info)
{
    json_t *const device = json_object();
    json_object_set_new(device, "name", tool_json_text(info->name));
    json_object_set_new(device, "platform", tool_json_text(info->platform));
    json_object_set_new(device, "driver", tool_json_text(info->driver));
    json_object_set_new(device, "selector",
                        json_sprintf("%" PRIu32 ":%" PRIu32, info->platform_index, info->device_index));
    return device;
}

static json_t *make_outputs(const run_arguments *arguments)
{
    json_t *const outputs = json_object();
    if (arguments->out)
        json_object_set_new(outputs, "out", tool_json_text(arguments->out));
    if (arguments->lse)
        json_object_set_new(outputs, "lse", tool_json_text(arguments->lse));
    return outputs;
}

static void add_shape(json_t *root, const clmgk_attention_desc *desc)
{
    const struct {
        const char *key;
        int64_t value;
    } sizes[] = {{"batch", desc->batch},           {"heads", desc->heads},          {"kv_heads", desc->kv_heads},
                 {"components", desc->components}, {"length", desc->length},        {"length_k", desc->length_k},
                 {"head_size", desc->head_size},   {"value_size", desc->value_size}};
    for (size_t i = 0; i < TOOL_COUNT(sizes); i++)
        json_object_set_new(root, sizes[i].key, json_integer(sizes[i].value));
    json_object_set_new(root, "causal", json_boolean(desc->causal));
}

static json_t *make_json(const run_arguments *arguments, const run_problem *problem, const run_execution *execution,
                         const run_check_result *check)
{
    const clmgk_attention_desc *const desc = &problem->desc;
    const clmgk_plan_info *const info = &execution->info;
    json_t *const root = json_object();
    json_object_set_new(root, "clmgk", tool_json_text(clmgk_version()));
    json_object_set_new(root, "variant", tool_json_text(clmgk_variant_name(arguments->variant)));
    json_object_set_new(root, "score", tool_json_text(desc->score == CLMGK_SCORE_DOT ? "dot" : "gaussian"));
    json_object_set_new(root, "estep", tool_json_text(desc->estep == CLMGK_ESTEP_HARD ? "hard" : "soft"));
    json_object_set_new(root, "dtype", tool_json_text(clmgk_dtype_name(desc->dtype)));
    json_object_set_new(root, "engine", tool_json_text(clmgk_engine_name(info->engine)));
    json_object_set_new(root, "parameters", tool_json_text(info->parameters));
    json_object_set_new(root, "device", make_device(&execution->device.info));
    add_shape(root, desc);
    json_object_set_new(root, "workspace_bytes", json_integer((json_int_t)info->workspace_bytes));
    json_object_set_new(root, "compile_ms", tool_json_number(info->compile_ms));
    json_object_set_new(root, "program", tool_json_text(program_origin(info->origin)));
    json_object_set_new(root, "flops", tool_json_number(execution->flops));
    json_object_set_new(root, "outputs", make_outputs(arguments));
    if (arguments->repeat > 0) {
        json_object_set_new(root, "time_ms", make_times(execution, arguments->repeat));
        json_object_set_new(root, "gflops", tool_json_number(gflops(execution)));
    }
    if (check)
        json_object_set_new(root, "check", make_check(check));
    return root;
}

tool_exit run_report(const run_arguments *arguments, const run_problem *problem, const run_execution *execution,
                     const run_check_result *check, tool_error *error)
{
    TOOL_TRY(arguments->json ? tool_print_json(make_json(arguments, problem, execution, check), error)
                             : print_words(arguments, problem, execution, check, error));
    if (check && !check->verdict.ok)
        return tool_fail(error, TOOL_CHECK_FAILED, "--check: %s", check->verdict.message);
    return TOOL_DONE;
}
