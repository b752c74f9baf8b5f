/* SPDX-License-Identifier: Apache-2.0 */
/* The stable object. Its keys are listed in README.md. */
#include "bench.h"

/* A time that may be missing. */
static json_t *optional_ms(double ms)
{
    return ms >= 0 ? json_real(ms) : json_null();
}

/* null: `baseline` was not measured. */
static json_t *ratio_json(const bench_case *baseline, const bench_case *one)
{
    return baseline ? json_real(one->time_ms.median / baseline->time_ms.median) : json_null();
}

/* null: the FiSH paper has no count for it, or there is no softmax beside it. */
static json_t *paper_operations_json(const bench_group *group, const bench_case *one)
{
    const bench_operations ratio = bench_compare_counts(group, one);
    return ratio.counted && ratio.in_paper
               ? json_pack("{s:f, s:f}", "matrices", ratio.matrices, "with_projections", ratio.projections)
               : json_null();
}

/* A layer around the case, as the papers count it. */
static json_t *counts_json(const bench_group *group, const bench_case *one)
{
    const bench_operations ratio = bench_compare_counts(group, one);
    const clmgk_operations *const parts = one->pass == BENCH_BACKWARD ? one->counts.backward : one->counts.forward;
    clmgk_operations sum = {0, 0};
    for (clmgk_part part = 0; part < CLMGK_PARTS; part++) {
        sum.multiplications += parts[part].multiplications;
        sum.additions += parts[part].additions;
    }
    return json_pack("{s:I, s:f, s:f, s:f, s:o, s:o}", "width", (json_int_t)one->width, "multiplications",
                     sum.multiplications, "additions", sum.additions, "parameters",
                     clmgk_sum_parameters(&one->counts, CLMGK_PART_ALL), "operations_ratio",
                     ratio.counted ? json_real(ratio.layer) : json_null(), "parameters_ratio",
                     ratio.counted ? json_real(ratio.parameters) : json_null());
}

static json_t *time_json(const bench_case *one)
{
    return json_pack("{s:f, s:f, s:f, s:i, s:i, s:s}", "median", one->time_ms.median, "min", one->time_ms.min, "max",
                     one->time_ms.max, "repetitions", one->repetitions, "calls", one->calls, "clock",
                     one->event_clock ? "device" : "host");
}

static json_t *error_json(const bench_case *one)
{
    const bench_error_found *error = &one->error;
    return json_pack("{s:f, s:f, s:I, s:s, s:I, s:I, s:I, s:I}", "max", error->max, "bound", error->bound, "sampled",
                     (json_int_t)error->sampled, "array", error->array, "batch", (json_int_t)error->batch, "heads",
                     (json_int_t)error->heads, "length", (json_int_t)error->length, "length_k",
                     (json_int_t)error->length_k);
}

/* What identifies a case. */
static json_t *case_key_json(size_t device, const bench_case *one)
{
    return tool_json_merge(
        json_pack("{s:I, s:s}", "device", (json_int_t)device, "engine", clmgk_engine_name(one->engine)),
        bench_case_json(one));
}

static json_t *case_json(size_t index, const bench_peaks *peaks, const bench_group *group, const bench_case *one)
{
    json_t *rest = json_pack(
        "{s:o, s:f, s:f, s:f, s:s?, s:f, s:I, s:I, s:I, s:f, s:s, s:s, s:o, s:o, s:o, s:b, s:s, s:s, s:s, s:s, s:I, "
        "s:o, s:o, s:o, s:o, s:o, s:I}",
        "time_ms", time_json(one), "flops", one->flops, "gflops", bench_gflops(one), "fraction_of_peak",
        bench_fraction_of_peak(peaks, one), "peak_note", bench_peak_note(peaks, one), "kv_fraction_of_read",
        bench_kv_fraction_of_read(peaks, one), "bytes", (json_int_t)one->array_bytes, "memory_bytes",
        (json_int_t)bench_memory_bytes(one), "workspace_bytes", (json_int_t)one->workspace_bytes, "compile_ms",
        one->compile_ms, "program", clmgk_program_origin_name(one->origin), "cache_note", one->cache_note,
        "first_call_cold_ms", optional_ms(one->first_cold_ms), "first_call_warm_ms", optional_ms(one->first_warm_ms),
        "error", error_json(one), "tuned", (int)bench_is_tuned(one), "tuning", clmgk_tuning_source_name(one->tuning),
        "parameters", one->parameters, "options", one->compiler_options, "precision_used",
        clmgk_precision_name(one->precision), "private_bytes", (json_int_t)one->private_bytes, "ratio_to_baseline",
        ratio_json(bench_baseline(group, one), one), "ratio_to_linear",
        ratio_json(bench_linear_baseline(group, one), one), "state_fraction_of_copy",
        tool_json_positive(bench_state_fraction_of_copy(peaks, one)), "paper_operations",
        paper_operations_json(group, one), "counts", counts_json(group, one), "process_peak_bytes",
        (json_int_t)one->process_peak_bytes);
    return tool_json_merge(case_key_json(index, one), rest);
}

/* A case without figures: refused by the device, or wrong. */
static json_t *failed_case_json(size_t index, const bench_case *one)
{
    return tool_json_merge(case_key_json(index, one), json_pack("{s:s}", one->refused ? "refused" : "wrong",
                                                                one->refused ? one->reason : one->error.message));
}

static json_t *device_json(const bench_device *device)
{
    return tool_json_merge(tool_json_device(&device->tool.info),
                           json_pack("{s:o, s:o, s:o, s:o, s:I}", "peak_fma_gflops",
                                     tool_json_positive(device->peaks.fma_gflops), "peak_matrix_gflops",
                                     tool_json_positive(device->peaks.matrix_gflops), "peak_copy_gbps",
                                     tool_json_positive(device->peaks.copy_gbps), "peak_read_gbps",
                                     tool_json_positive(device->peaks.read_gbps), "peak_buffer_bytes",
                                     (json_int_t)device->peaks.buffer_bytes));
}

json_t *bench_json(size_t group_count, const bench_device *devices, size_t device_count)
{
    json_t *list = json_array(), *cases = json_array(), *failures = json_array();
    for (size_t d = 0; d < device_count; d++) {
        tool_json_append(&list, device_json(&devices[d]));
        for (const bench_group *group = devices[d].groups; group < devices[d].groups + group_count; group++) {
            for (const bench_case *one = group->cases; one < group->cases + group->count; one++) {
                if (one->repetitions)
                    tool_json_append(&cases, case_json(d, &devices[d].peaks, group, one));
                else if (bench_has_failed(one))
                    tool_json_append(&failures, failed_case_json(d, one));
            }
        }
    }
    return json_pack("{s:s, s:o, s:o, s:o}", "clmgk", clmgk_version(), "devices", list, "cases", cases, "failures",
                     failures);
}

json_t *bench_rows_json(const bench_device *device, const char *name, json_t *rows)
{
    return tool_json_merge(bench_json(0, device, 1), json_pack("{s:o}", name, rows));
}

char *bench_json_lines(json_t *object, bool ended_early)
{
    return tool_json_lines(ended_early ? tool_json_merge(object, json_pack("{s:b}", "ended_early", 1)) : object);
}
