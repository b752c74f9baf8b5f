/* SPDX-License-Identifier: Apache-2.0 */
/* From which length on linear attention is faster than softmax attention: for each head size, full and causal, by
 * bisection over N = S. */
#include "bench.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define LEAST_LENGTH  16
#define MOST_LENGTH   16384
#define FIRST_LENGTH  256
#define CLOSE_ENOUGH  1.06 /* between the lengths on both sides of the crossing */
#define LENGTH_STEP   4    /* lengths are multiples of it */
#define ROUND_SECONDS 0.05 /* of timing a length */
#define HEADS         8    /* of softmax, and of variants without a number of their own */

/* Both sides of a crossing: softmax is at least as fast at `below`, the variant is faster at `length`. */
typedef struct crossing {
    bench_shape shape;
    bench_variant variant;
    clmgk_dtype dtype;
    bench_pass pass;
    bench_label label;
    int64_t below, length; /* 0: not found within the limits */
    double ms, softmax_ms; /* at `length` */
    int measured;          /* lengths */
    const char *reason;    /* NULL, or why nothing could be measured */
    char message[CLMGK_ERROR_MESSAGE_SIZE];
} crossing;

typedef struct crossing_run {
    bench_device *device;
    const bench_options *options;
    tool_outputs *outputs;
    crossing *rows;
    size_t count; /* that are finished, or at work */
} crossing_run;

/* ---- a length ------------------------------------------------------------------------------------------------ */

static tool_exit say_nothing(void *user, const bench_device *device, const bench_group *group, tool_error *error)
{
    (void)user, (void)device, (void)group, (void)error;
    return TOOL_DONE;
}

/* What a case that was not timed says. */
static tool_exit take_failure(const bench_case *one, crossing *row, tool_error *error)
{
    if (!one->refused)
        return tool_fail(error, TOOL_CHECK_FAILED, "%s, N %" PRId64 ": %s", bench_case_label(one).text,
                         one->desc.length, one->error.message);
    snprintf(row->message, sizeof(row->message), "%s, N %" PRId64 ": %s", bench_case_label(one).text, one->desc.length,
             one->reason);
    row->reason = row->message;
    return TOOL_DONE;
}

/* Times softmax and the variant in turn. *faster: the variant is. */
static tool_exit measure_length(const crossing_run *run, int64_t length, crossing *row, bool *faster, tool_error *error)
{
    static const bench_listener listener = {say_nothing, NULL};
    bench_options options = *run->options;
    bench_request *const request = &options.request;
    tool_exit status = TOOL_DONE;
    row->shape.length = length;
    request->shapes[0] = row->shape;
    request->passes[0] = row->pass;
    request->dtypes[0] = row->dtype;
    request->shape_count = request->pass_count = request->dtype_count = 1;
    request->variants[0] = (bench_variant){.variant = CLMGK_VARIANT_SOFTMAX};
    request->variants[1] = row->variant;
    request->variant_count = 2;
    request->named_gradients = 0;
    options.seconds = ROUND_SECONDS;
    TOOL_TRY(bench_make_groups(request, false, &run->device->groups, error));
    const bench_case *const softmax = &run->device->groups[0].cases[0], *const linear = softmax + 1;
    TOOL_TRY_GOTO(status, bench_measure_group(run->device, &options, &listener, run->device->groups, error), done);
    row->label = bench_case_label(linear);
    row->measured++;
    for (const bench_case *one = softmax; one <= linear && status == TOOL_DONE && !row->reason; one++) {
        if (one->repetitions == 0)
            status = take_failure(one, row, error);
    }
    *faster = linear->time_ms.median < softmax->time_ms.median;
    if (*faster && !row->reason) {
        row->length = length;
        row->ms = linear->time_ms.median;
        row->softmax_ms = softmax->time_ms.median;
    } else {
        row->below = length;
    }
done:
    bench_free_groups(request, run->device->groups);
    run->device->groups = NULL;
    return status;
}

/* ---- a crossing ---------------------------------------------------------------------------------------------- */

/* Lengths on both sides, by factors of two. */
static tool_exit bracket(const crossing_run *run, crossing *row, tool_error *error)
{
    bool first = false, faster = false;
    TOOL_TRY(measure_length(run, FIRST_LENGTH, row, &first, error));
    for (int64_t length = first ? FIRST_LENGTH / 2 : FIRST_LENGTH * 2;
         length >= LEAST_LENGTH && length <= MOST_LENGTH && !row->reason; length = first ? length / 2 : length * 2) {
        TOOL_TRY(measure_length(run, length, row, &faster, error));
        if (faster != first)
            break;
    }
    return TOOL_DONE;
}

static tool_exit bisect(const crossing_run *run, crossing *row, tool_error *error)
{
    bool faster = false;
    while (!row->reason && row->below > 0 && (double)row->length > CLOSE_ENOUGH * (double)row->below &&
           row->length - row->below > LENGTH_STEP) {
        const double middle = sqrt((double)row->below * (double)row->length);
        const int64_t length = (int64_t)(middle / LENGTH_STEP + 0.5) * LENGTH_STEP;
        if (length <= row->below || length >= row->length)
            break;
        TOOL_TRY(measure_length(run, length, row, &faster, error));
    }
    return TOOL_DONE;
}

static tool_exit find_crossing(const crossing_run *run, crossing *row, tool_error *error)
{
    fprintf(stderr, "clmgk-bench: %s: crossing of %s and softmax, %s, D %" PRId64 "%s\n", run->device->tool.info.name,
            clmgk_variant_name(row->variant.variant), bench_pass_name(row->pass), row->shape.head_size,
            row->shape.causal ? ", causal" : "");
    TOOL_TRY(bracket(run, row, error));
    return row->length > 0 ? bisect(run, row, error) : TOOL_DONE;
}

/* ---- results ------------------------------------------------------------------------------------------------- */

static void print_head(FILE *stream)
{
    fprintf(stream, "%-28s %-5s %-9s %4s %-7s %8s %10s %10s\n", "faster than softmax 8 from N on", "", "", "D", "", "N",
            "ms there", "softmax");
}

static void print_row(const crossing *row, FILE *stream)
{
    fprintf(stream, "%-28s %-5s %-9s %4" PRId64 " %-7s ", row->label.text, clmgk_dtype_name(row->dtype),
            bench_pass_name(row->pass), row->shape.head_size, row->shape.causal ? "causal" : "full");
    if (row->reason)
        fprintf(stream, "not measured: %s\n", row->reason);
    else if (row->length == 0)
        fprintf(stream, "not up to %d\n", MOST_LENGTH);
    else
        fprintf(stream, "%s%*" PRId64 " %10.3f %10.3f\n", row->below ? "" : "<= ", row->below ? 8 : 5, row->length,
                row->ms, row->softmax_ms);
}

static json_t *optional_length(int64_t length)
{
    return length > 0 ? json_integer((json_int_t)length) : json_null();
}

static json_t *row_json(const crossing *row, const bench_request *request)
{
    return json_pack("{s:I, s:s, s:I, s:s, s:I, s:s, s:s, s:b, s:I, s:I, s:o, s:o, s:o, s:o, s:i, s:s?}", "device",
                     (json_int_t)0, "variant", clmgk_variant_name(row->variant.variant), "heads",
                     (json_int_t)(row->variant.heads ? row->variant.heads : HEADS), "feature",
                     clmgk_feature_name(request->feature), "softmax_heads", (json_int_t)HEADS, "dtype",
                     clmgk_dtype_name(row->dtype), "pass", bench_pass_name(row->pass), "causal", (int)row->shape.causal,
                     "batch", (json_int_t)row->shape.batch, "head_size", (json_int_t)row->shape.head_size, "length",
                     optional_length(row->length), "below", optional_length(row->below), "time_ms",
                     tool_json_positive(row->ms), "softmax_ms", tool_json_positive(row->softmax_ms), "measured",
                     row->measured, "refused", row->reason);
}

static json_t *make_object(const void *of)
{
    const crossing_run *const run = of;
    json_t *rows = json_array();
    for (size_t i = 0; i < run->count; i++)
        tool_json_append(&rows, row_json(&run->rows[i], &run->options->request));
    return bench_rows_json(run->device, "crossings", rows);
}

static tool_exit give_object(const crossing_run *run, bool ended_early, tool_error *error)
{
    const bench_results results = {run->outputs, true, make_object, NULL, run};
    return bench_give_results(&results, ended_early, error);
}

/* Prints the latest row, or the head before the first one, and leaves to signals what there is; in JSON all is printed
 * at the end. */
static tool_exit print_step(const crossing_run *run, tool_error *error)
{
    char *text = NULL;
    size_t size = 0;
    if (run->options->json)
        return give_object(run, true, error);
    FILE *const stream = open_memstream(&text, &size);
    TOOL_TRY(tool_check_memory(stream, "the table", error));
    if (run->count == 0)
        print_head(stream);
    else
        print_row(&run->rows[run->count - 1], stream);
    tool_exit status = fclose(stream) == 0 ? TOOL_DONE : tool_fail_memory(error, "the table");
    if (status == TOOL_DONE)
        status = tool_outputs_print(run->outputs, text, stdout, strdup("ended early\n"), error);
    free(text);
    return status;
}

/* ---- all of them --------------------------------------------------------------------------------------------- */

/* Every pass, type and variant, for each head size full and causal. */
static size_t list_rows(const bench_options *options, crossing *rows)
{
    const bench_request *const request = &options->request;
    size_t count = 0;
    for (size_t n = 0; n < request->pass_count * request->dtype_count * request->variant_count; n++) {
        for (size_t i = 0; i < 2 * options->crossing_count; i++) {
            crossing *const row = &rows[count++];
            *row = (crossing){.variant = request->variants[n % request->variant_count],
                              .dtype = request->dtypes[n / request->variant_count % request->dtype_count],
                              .pass = request->passes[n / request->variant_count / request->dtype_count]};
            row->shape = (bench_shape){.name = "crossing",
                                       .what = "",
                                       .batch = 1,
                                       .heads = HEADS,
                                       .components = 2,
                                       .head_size = options->crossing[i / 2],
                                       .causal = i % 2 != 0};
        }
    }
    return count;
}

tool_exit bench_crossings(bench_device *device, const bench_options *options, tool_outputs *outputs, tool_error *error)
{
    const bench_request *const request = &options->request;
    const size_t most =
        request->pass_count * request->dtype_count * request->variant_count * 2 * options->crossing_count;
    crossing_run run = {device, options, outputs, calloc(most, sizeof(*run.rows)), 0};
    tool_exit status = TOOL_DONE;
    TOOL_TRY_GOTO(status, tool_check_memory(run.rows, "crossings", error), done);
    const size_t count = list_rows(options, run.rows);
    TOOL_TRY_GOTO(status, print_step(&run, error), done);
    while (run.count < count) {
        TOOL_TRY_GOTO(status, find_crossing(&run, &run.rows[run.count], error), done);
        run.count++;
        TOOL_TRY_GOTO(status, print_step(&run, error), done);
    }
    status = options->json ? give_object(&run, false, error) : tool_outputs_print(outputs, "", stdout, NULL, error);
done:
    free(run.rows);
    return status;
}
