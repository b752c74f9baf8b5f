/* SPDX-License-Identifier: Apache-2.0 */
/* Attention over several ranks: threads of this process, or processes of mpirun. Strong scaling has as many tokens for
 * any number of ranks, weak scaling as many for each rank. */
#include "parallel.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#if BENCH_WITH_MPI
#include <mpi.h>
#endif

#define MOST_ROWS 64

/* All ranks of one size, added up. */
typedef struct scaling_row {
    const char *scaling;
    const clmgk_attention_desc *given; /* the case */
    clmgk_attention_desc desc;         /* of all tokens, resolved */
    int32_t ranks;
    bench_rank_times times[2];   /* the slowest rank's; traffic of all ranks and rounds */
    bench_rank_times delayed[2]; /* the same with the line that delays */
    double pairs, most_pairs, error;
} scaling_row;

typedef struct parallel_run {
    bench_device *device;
    const bench_options *options;
    tool_outputs *outputs;
    const bench_group *group;
    scaling_row rows[MOST_ROWS];
    size_t count;
    int32_t rank, ranks; /* of mpirun; ranks 0: threads */
    clmgk_dist_transport transport;
} parallel_run;

/* ---- ranks --------------------------------------------------------------------------------------------------------
 */

/* A size and its tokens. */
typedef struct tokens {
    int32_t *list;
    int64_t *lengths;
    bench_part *parts;
} tokens;

typedef struct worker {
    const bench_rank *common;
    bench_rank own;
    clmgk_dist_transport transport;
    bench_rank_result plain, delayed;
    tool_exit status;
    tool_error error;
} worker;

static void free_tokens(tokens *t)
{
    free(t->list);
    free(t->lengths);
    free(t->parts);
}

static tool_exit make_tokens(int64_t count, int32_t ranks, tokens *t, tool_error *error)
{
    t->list = calloc((size_t)count, sizeof(*t->list));
    t->lengths = calloc((size_t)ranks, sizeof(*t->lengths));
    t->parts = calloc((size_t)ranks, sizeof(*t->parts));
    TOOL_TRY(tool_check_memory(t->list && t->lengths && t->parts ? t->list : NULL, "the tokens", error));
    TOOL_TRY(tool_check_library(
        clmgk_dist_permutation(CLMGK_DIST_ZIGZAG, count, NULL, 0, ranks, t->list, t->lengths, &error->library), error));
    const int32_t *next = t->list;
    for (int32_t r = 0; r < ranks; next += t->lengths[r++])
        t->parts[r] = (bench_part){next, t->lengths[r], count};
    return TOOL_DONE;
}

/* Bytes and milliseconds of the messages that come in a step, of which there are ranks - 1, and of a step, of which
 * there are as many as ranks: a line of their rate sends as fast as the device computes. */
static double equal_rate(const bench_rank_times *t, int32_t ranks)
{
    const double steps = (double)TOOL_MAX(ranks - 1, 1);
    return (double)t->traffic.bytes / t->rounds / steps / (t->ms / ranks);
}

/* Rounds without delay; then, if asked for, with a line of the rate given, or the equal one. */
static void *run_worker(void *argument)
{
    worker *const w = argument;
    w->own.bytes_per_ms[0] = w->own.bytes_per_ms[1] = 0;
    w->status = bench_run_rank(&w->own, &w->transport, &w->plain, &w->error);
    if (w->status != TOOL_DONE || w->common->bytes_per_ms[0] == 0)
        return NULL;
    for (int p = 0; p < 2; p++) {
        const double given = w->common->bytes_per_ms[p];
        w->own.bytes_per_ms[p] = given > 0 ? given : equal_rate(&w->plain.times[p], w->transport.ranks);
    }
    w->own.whole_o = NULL;
    w->status = bench_run_rank(&w->own, &w->transport, &w->delayed, &w->error);
    return NULL;
}

static void add_times(bench_rank_times *to, const bench_rank_times *from)
{
    to->ms = TOOL_MAX(to->ms, from->ms);
    to->rounds = from->rounds;
    to->traffic.bytes += from->traffic.bytes;
    to->traffic.line_ms += from->traffic.line_ms;
}

static void add_rank(scaling_row *row, const bench_rank_result *plain, const bench_rank_result *delayed)
{
    for (int p = 0; p < 2; p++) {
        add_times(&row->times[p], &plain->times[p]);
        add_times(&row->delayed[p], &delayed->times[p]);
    }
    row->pairs += plain->pairs;
    row->most_pairs = TOOL_MAX(row->most_pairs, plain->pairs);
    row->error = TOOL_MAX(row->error, plain->error);
}

/* ---- ranks as threads ---------------------------------------------------------------------------------------------
 */

static tool_exit run_threads(const bench_rank *common, const tokens *t, worker *workers, int32_t ranks,
                             clmgk_dist_local *local, tool_error *error)
{
    pthread_t *const threads = calloc((size_t)ranks, sizeof(*threads));
    int32_t started = 0;
    TOOL_TRY(tool_check_memory(threads, "the threads", error));
    for (; started < ranks; started++) {
        worker *const w = &workers[started];
        w->common = common;
        w->own = *common;
        w->own.part = &t->parts[started];
        (void)clmgk_dist_local_transport(local, started, &w->transport, NULL);
        if (pthread_create(&threads[started], NULL, run_worker, w) != 0)
            break;
    }
    if (started < ranks) {
        clmgk_dist_transport own;
        if (clmgk_dist_local_transport(local, 0, &own, NULL) == CLMGK_OK)
            own.cancel(own.state);
    }
    for (int32_t r = 0; r < started; r++)
        (void)pthread_join(threads[r], NULL);
    free(threads);
    return started == ranks ? TOOL_DONE : tool_fail(error, TOOL_SYSTEM_ERROR, "no thread for each of %d ranks", ranks);
}

/* The failure that others followed from. */
static tool_exit find_failure(const worker *workers, int32_t ranks, tool_error *error)
{
    for (int pass = 0; pass < 2; pass++)
        for (int32_t r = 0; r < ranks; r++)
            if (workers[r].status != TOOL_DONE &&
                (pass == 1 || workers[r].error.library.status != CLMGK_ERROR_COMMUNICATION)) {
                *error = workers[r].error;
                return workers[r].status;
            }
    return TOOL_DONE;
}

static tool_exit measure_threads(bench_rank *common, const tokens *t, int32_t ranks, scaling_row *row,
                                 tool_error *error)
{
    clmgk_dist_local *local = NULL;
    worker *const workers = calloc((size_t)ranks, sizeof(*workers));
    tool_exit status = tool_check_memory(workers, "the ranks", error);
    if (status == TOOL_DONE)
        status = tool_check_library(clmgk_dist_local_create(ranks, &local, &error->library), error);
    if (status == TOOL_DONE)
        status = run_threads(common, t, workers, ranks, local, error);
    if (status == TOOL_DONE)
        status = find_failure(workers, ranks, error);
    for (int32_t r = 0; r < ranks && status == TOOL_DONE; r++)
        add_rank(row, &workers[r].plain, &workers[r].delayed);
    clmgk_dist_local_release(local);
    free(workers);
    return status;
}

/* ---- ranks of mpirun ----------------------------------------------------------------------------------------------
 */

/* Rank 0 gets what all measured. */
static tool_exit measure_process(parallel_run *run, bench_rank *common, const tokens *t, scaling_row *row,
                                 tool_error *error)
{
    worker w = {.common = common, .own = *common, .transport = run->transport};
    w.own.part = &t->parts[run->rank];
    (void)run_worker(&w);
    if (w.status != TOOL_DONE) {
        *error = w.error;
        return w.status;
    }
    bench_rank_result both[2] = {w.plain, w.delayed};
    add_rank(row, &both[0], &both[1]);
    for (int32_t r = 1; r < run->ranks; r++) {
        const bool sends = run->rank == r, receives = run->rank == 0;
        const clmgk_dist_exchange x = {
            both, sends ? (int64_t)sizeof(both) : 0, 0, both, receives ? (int64_t)sizeof(both) : 0, r, 1};
        void *request = NULL;
        if (!sends && !receives)
            continue;
        TOOL_TRY(tool_check_library(run->transport.begin(run->transport.state, &x, &request, &error->library), error));
        TOOL_TRY(tool_check_library(run->transport.wait(run->transport.state, request, 600, &error->library), error));
        if (receives)
            add_rank(row, &both[0], &both[1]);
    }
    return TOOL_DONE;
}

#if BENCH_WITH_MPI
static bool is_under_mpirun(void)
{
    return getenv("PMI_SIZE") || getenv("PMIX_RANK") || getenv("OMPI_COMM_WORLD_SIZE");
}

static tool_exit open_mpi(parallel_run *run, clmgk_dist_mpi **mpi, tool_error *error)
{
    if (!is_under_mpirun())
        return TOOL_DONE;
    if (MPI_Init(NULL, NULL) != MPI_SUCCESS)
        return tool_fail(error, TOOL_SYSTEM_ERROR, "MPI_Init failed");
    TOOL_TRY(tool_check_library(clmgk_dist_mpi_create(NULL, mpi, &run->transport, &error->library), error));
    run->rank = run->transport.rank;
    run->ranks = run->transport.ranks;
    return TOOL_DONE;
}

static void close_mpi(clmgk_dist_mpi *mpi)
{
    clmgk_dist_mpi_release(mpi);
    if (is_under_mpirun())
        (void)MPI_Finalize();
}
#else
static tool_exit open_mpi(const parallel_run *run, clmgk_dist_mpi *const *mpi, const tool_error *error)
{
    (void)run;
    (void)mpi;
    (void)error;
    return TOOL_DONE;
}

static void close_mpi(const clmgk_dist_mpi *mpi)
{
    (void)mpi;
}
#endif

/* ---- results ------------------------------------------------------------------------------------------------------
 */

static const char *const pass_names[] = {"forward", "backward"};

/* Bytes of a round, and of gathering each key and value, and adding up each of their gradients, once on each rank. */
static double bytes_of(const scaling_row *row, int pass)
{
    return (double)row->times[pass].traffic.bytes / row->times[pass].rounds;
}

static double least_bytes(const scaling_row *row, int pass)
{
    const clmgk_attention_desc *const d = &row->desc;
    const double keys =
        (double)(clmgk_array_count(d, CLMGK_ARRAY_K) * (int64_t)clmgk_array_element_size(d, CLMGK_ARRAY_K) +
                 clmgk_array_count(d, CLMGK_ARRAY_V) * (int64_t)clmgk_array_element_size(d, CLMGK_ARRAY_V)) +
        4.0 * (double)d->batch * (double)d->length_k;
    const double gradients = 4.0 * (double)(clmgk_array_count(d, CLMGK_ARRAY_K) + clmgk_array_count(d, CLMGK_ARRAY_V));
    return (keys + (pass == 1 ? gradients : 0)) * (row->ranks - 1);
}

/* Pairs of a rank and a millisecond. */
static double rate_of(const scaling_row *row, int pass)
{
    return row->pairs / row->ranks / row->times[pass].ms;
}

static double efficiency_of(const parallel_run *run, const scaling_row *row, int pass)
{
    for (size_t n = 0; n < run->count; n++)
        if (run->rows[n].ranks == 1 && run->rows[n].given == row->given)
            return rate_of(row, pass) / rate_of(&run->rows[n], pass);
    return 0;
}

/* The part of the line's time that adds nothing to a round's; below 0: nothing is delayed. */
static double hidden_part(const scaling_row *row, int pass)
{
    const bench_rank_times *const delayed = &row->delayed[pass];
    const double line = delayed->traffic.line_ms / row->ranks / TOOL_MAX(delayed->rounds, 1);
    return line > 0 ? TOOL_MAX(0, TOOL_MIN(1, 1 - (delayed->ms - row->times[pass].ms) / line)) : -1;
}

static void print_rows(const void *of, FILE *stream)
{
    const parallel_run *const run = of;
    fprintf(stream,
            "causal attention over ranks, schedule %s: batch %" PRId64 ", D %" PRId64 "; zig-zag order of tokens\n",
            run->options->parallel_name, run->group->cases[0].desc.batch, run->group->cases[0].desc.head_size);
    fprintf(stream, "  %-16s %-7s %5s %8s %-8s %10s %10s %9s %11s %7s %7s %9s\n", "", "scaling", "ranks", "tokens",
            "pass", "time ms", "Mpair/s", "per rank", "MB moved", "/least", "hidden", "pairs max");
    for (size_t n = 0; n < run->count; n++)
        for (int p = 0; p < 2; p++) {
            const scaling_row *const row = &run->rows[n];
            const double least = least_bytes(row, p), hidden = hidden_part(row, p);
            fprintf(stream, "  %-16s %-7s %5d %8" PRId64 " %-8s %10.2f %10.1f %9.2f %11.2f",
                    p == 0 ? clmgk_variant_name(row->desc.variant) : "", row->scaling, row->ranks, row->desc.length,
                    pass_names[p], row->times[p].ms, 1e-3 * row->pairs / row->times[p].ms, efficiency_of(run, row, p),
                    1e-6 * bytes_of(row, p));
            if (least > 0)
                fprintf(stream, " %7.2f", bytes_of(row, p) / least);
            else
                fprintf(stream, " %7s", "-");
            if (hidden >= 0)
                fprintf(stream, " %6.0f%%", 100 * hidden);
            else
                fprintf(stream, " %7s", "-");
            fprintf(stream, " %9.3f\n", row->most_pairs * row->ranks / row->pairs);
        }
}

static json_t *row_json(const parallel_run *run, const scaling_row *row, int pass)
{
    const double least = least_bytes(row, pass), hidden = hidden_part(row, pass);
    json_t *const made = json_pack(
        "{s:s, s:s, s:s, s:s, s:i, s:I, s:I, s:I, s:I, s:f, s:f, s:f, s:f}", "schedule", run->options->parallel_name,
        "variant", clmgk_variant_name(row->desc.variant), "scaling", row->scaling, "pass", pass_names[pass], "ranks",
        row->ranks, "tokens", (json_int_t)row->desc.length, "batch", (json_int_t)row->desc.batch, "heads",
        (json_int_t)row->desc.heads, "head_size", (json_int_t)row->desc.head_size, "time_ms", row->times[pass].ms,
        "pairs", row->pairs, "rate_per_rank", efficiency_of(run, row, pass), "bytes", bytes_of(row, pass));
    return tool_json_merge(made, json_pack("{s:f, s:o, s:o, s:f, s:f}", "least_bytes", least, "delayed_ms",
                                           hidden >= 0 ? json_real(row->delayed[pass].ms) : json_null(), "hidden",
                                           hidden >= 0 ? json_real(hidden) : json_null(), "most_pairs_to_mean",
                                           row->most_pairs * row->ranks / row->pairs, "error", row->error));
}

static json_t *make_object(const void *of)
{
    const parallel_run *const run = of;
    json_t *rows = json_array();
    for (size_t n = 0; n < run->count; n++)
        for (int p = 0; p < 2; p++)
            tool_json_append(&rows, row_json(run, &run->rows[n], p));
    return bench_rows_json(run->device, "parallel", rows);
}

/* ---- all of them --------------------------------------------------------------------------------------------------
 */

/* Results in f32, as the ring asks for; a causal sequence at its positions. */
static clmgk_attention_desc describe(const bench_options *options, const clmgk_attention_desc *given, int64_t count)
{
    clmgk_attention_desc d = *given;
    d.resolved = 0;
    d.q = d.k = d.v = d.o = d.lse = d.grad_o = d.grad_q = d.grad_k = d.grad_v = (clmgk_layout){.strided = 0};
    d.length = d.length_k = count;
    d.dtype = options->layer_dtype;
    d.dtype_k = d.dtype_v = (clmgk_storage)0;
    d.dtype_o = d.dtype_grad_q = d.dtype_grad_k = d.dtype_grad_v = CLMGK_STORAGE_F32;
    d.causal = d.use_positions = 1;
    d.gradients = CLMGK_GRADIENT_Q | CLMGK_GRADIENT_K | CLMGK_GRADIENT_V;
    return d;
}

static tool_exit measure_size(parallel_run *run, const clmgk_attention_desc *given, const char *scaling, int32_t ranks,
                              float *whole_o, tool_error *error)
{
    const bench_options *const options = run->options;
    const bool weak = strcmp(scaling, "weak") == 0;
    const int64_t count = weak ? given->length * ranks : given->length;
    const double rate = options->send_rate > 0 ? 1e6 * options->send_rate : options->send_equal ? -1 : 0;
    bench_rank common = {.desc = describe(options, given, count),
                         .schedule = options->parallel,
                         .device = options->devices[0],
                         .seconds = options->seconds,
                         .bytes_per_ms = {rate, rate},
                         .whole_o = weak ? NULL : whole_o};
    scaling_row *const row = &run->rows[run->count];
    tokens t = {0};
    *row = (scaling_row){.scaling = scaling, .given = given, .desc = CLMGK_ATTENTION_DESC_INIT, .ranks = ranks};
    TOOL_TRY(tool_check_library(clmgk_attention_validate(&common.desc, &row->desc, &error->library), error));
    if (run->ranks > 0 && ranks == 1 && run->rank > 0) /* the others wait */
        return TOOL_DONE;
    if (run->rank > 0)
        common.whole_o = NULL;
    if (run->rank == 0)
        fprintf(stderr, "clmgk-bench: %s, %s scaling, %d %s\n", clmgk_variant_name(given->variant), scaling, ranks,
                tool_plural((size_t)ranks, "rank", "ranks"));
    tool_exit status = make_tokens(count, ranks, &t, error);
    common.lengths = t.lengths;
    if (status == TOOL_DONE)
        status = run->ranks > 0 && ranks > 1 ? measure_process(run, &common, &t, row, error)
                                             : measure_threads(&common, &t, ranks, row, error);
    free_tokens(&t);
    run->count += status == TOOL_DONE;
    return status;
}

static tool_exit measure_variant(parallel_run *run, const clmgk_attention_desc *given, tool_error *error)
{
    const clmgk_attention_desc d = describe(run->options, given, given->length);
    clmgk_attention_desc resolved = CLMGK_ATTENTION_DESC_INIT;
    TOOL_TRY(tool_check_library(clmgk_attention_validate(&d, &resolved, &error->library), error));
    float *const whole = calloc((size_t)clmgk_array_count(&resolved, CLMGK_ARRAY_O) + 1, sizeof(*whole));
    tool_exit status = tool_check_memory(whole, "O", error);
    const int32_t most = run->ranks > 0 ? run->ranks : (int32_t)run->options->parallel_ranks;
    if (status == TOOL_DONE)
        status = measure_size(run, given, "strong", 1, whole, error);
    for (int32_t ranks = run->ranks > 0 ? most : 2; status == TOOL_DONE && ranks <= most && ranks > 1;
         ranks = ranks == most ? most + 1 : TOOL_MIN(2 * ranks, most))
        for (int weak = 0; weak < 2 && status == TOOL_DONE; weak++)
            status = measure_size(run, given, weak ? "weak" : "strong", ranks, whole, error);
    free(whole);
    return status;
}

/* Other rounding alone may tell results over ranks from those of one. */
static tool_exit check_rows(const parallel_run *run, tool_error *error)
{
    const double bound = run->options->layer_dtype == CLMGK_DTYPE_F32 ? 1e-4 : 1e-2; /* of values up to 1 */
    for (size_t n = 0; n < run->count; n++)
        if (!(run->rows[n].error <= bound))
            return tool_fail(error, TOOL_CHECK_FAILED, "%s over %d ranks: O is %g from that of one",
                             clmgk_variant_name(run->rows[n].desc.variant), run->rows[n].ranks, run->rows[n].error);
    return TOOL_DONE;
}

static tool_exit measure(parallel_run *run, tool_error *error)
{
    const bench_results results = {run->outputs, run->options->json, make_object, print_rows, run};
    for (size_t i = 0; i < run->group->count; i++)
        TOOL_TRY(measure_variant(run, &run->group->cases[i].desc, error));
    if (run->rank > 0)
        return TOOL_DONE;
    TOOL_TRY(bench_give_results(&results, false, error));
    return check_rows(run, error);
}

tool_exit bench_parallel(bench_device *device, const bench_options *options, tool_outputs *outputs, tool_error *error)
{
    parallel_run *const run = calloc(1, sizeof(*run));
    bench_group *groups = NULL;
    clmgk_dist_mpi *mpi = NULL;
    tool_exit status = tool_check_memory(run, "the results", error);
    if (status != TOOL_DONE)
        return status;
    run->device = device;
    run->options = options;
    run->outputs = outputs;
    TOOL_TRY_GOTO(status, bench_make_groups(&options->request, false, &groups, error), done);
    run->group = &groups[0];
    TOOL_TRY_GOTO(status, open_mpi(run, &mpi, error), done);
    status = measure(run, error);
    if (status != TOOL_DONE && run->ranks > 0)
        run->transport.cancel(run->transport.state);
done:
    close_mpi(mpi);
    if (groups)
        bench_free_groups(&options->request, groups);
    free(run);
    return status;
}
