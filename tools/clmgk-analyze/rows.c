/* SPDX-License-Identifier: Apache-2.0 */
/*
 * clmgk-analyze-rows: the part of clmgk-analyze that reads its command line and the arrays, computes rows of attention
 * matrices, and writes pictures. The Python package clmgk.analyze starts it, and gets one line of JSON first. Then it
 * sends requests, each four int64, and data:
 *   ROWS, n, gamma, logp      n numbers (int64) of rows of [B,H,N]; the answer are doubles: weights [n,S], where gamma
 *                             is not 0 responsibilities [n,M,S], where logp is not 0 log-likelihoods [n]
 *   ANNOUNCE, bytes, 0, 0     NAME of a picture P-NAME.FORMAT that will be written
 *   PICTURE, bytes, place, 0  the picture that was announced at this place
 *   COMMIT, 0, 0, 0           gives the pictures their names
 * A line answers requests other than ROWS. A failure ends the program with clmgk-analyze's message and status.
 */
#include "opencl.h"
#include "problem.h"

#include "reference/reference.h"

#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- the command line ------------------------------------------------------------------------------------------- */

#define OWN_OPTIONS(X)                                                                                                 \
    X(ANALYSES, "analyses", "LIST",                                                                                    \
      "some of matrices, rank, distances, components, nll, responsibilities, separated\n"                              \
      "by commas; default: all that apply")                                                                            \
    X(BATCH_LIST, "batch-list", "LIST", "sequences to analyse: indices from 0, separated by commas; default: all")     \
    X(HEAD_LIST, "head-list", "LIST", "heads to analyse: indices from 0, separated by commas; default: all")           \
    X(ROWS, "rows", "R",                                                                                               \
      "number of queries per matrix, evenly spaced; default: all, for long sequences 4096 or\n"                        \
      "fewer")                                                                                                         \
    X(THRESHOLD, "threshold", "X", "singular values above X count for the rank; default 1e-6")                         \
    X(FULL_SVD, "full-svd", NULL, "compute singular values of large matrices without the Gram matrix (slow)")          \
    X(FRACTION, "fraction", "X", "part of the variance that components must explain; default 0.95")                    \
    X(PLOTS, "plots", "P", "draws P-matrices.svg, P-rank.svg, ...")                                                    \
    X(PLOT_FORMAT, "plot-format", "NAME", "svg (default), png or pdf")                                                 \
    X(THEOREMS, "theorems", NULL,                                                                                      \
      "checks Theorems 1 and 2 of the low-rank bottleneck paper, without arrays; exit\n"                               \
      "status 1 where one does not hold")                                                                              \
    X(TOKENS, "tokens", "N", "--theorems: sequence length, from 2 to 32; default 12")                                  \
    X(TRIALS, "trials", "T", "--theorems: random cases of each kind; default 16")

enum { OPTION_BEFORE = TOOL_PROBLEM_OPTION_COUNT - 1, OWN_OPTIONS(TOOL_OPTION_NUMBER) };

#define ROW(name, ...) [OPTION_##name] = {__VA_ARGS__},
static const tool_option options[] = {TOOL_STANDARD_OPTIONS, TOOL_PROBLEM_ROWS TOOL_OUTPUT_LIST(TOOL_HIDDEN_ROW)
                                                                 TOOL_O_OPTIONS(TOOL_HIDDEN_OPTION) OWN_OPTIONS(ROW)};
#undef ROW

static const tool_program program = {
    .name = "clmgk-analyze",
    .summary = "Usage: clmgk-analyze --variant NAME --q F --k F [OPTION...]\n"
               "       clmgk-analyze --theorems [OPTION...]\n"
               "Analyses of attention matrices that the papers make, on arrays in .npy files as clmgk-run reads them:\n"
               "pictures, numerical rank, distances between heads, principal components, likelihoods of queries, and\n"
               "responsibilities. Matrices are computed on the host, in double precision.",
    .notes =
        "F is a .npy file: version 1 to 3, either byte order, C or Fortran order; float16, float32 or float64,\n"
        "lengths and offsets int32 or int64. A is such a file (its name ends in .npy) or numbers separated by\n"
        "commas. V is read by nothing but the checks of its shape. Pictures appear when all of them are complete.\n"
        "--device is for --theorems, whose constructions run on it; --seed also draws the theorems' cases.\n"
        "\n"
        "The keys of --json are in docs/papers.md.",
    .options = options,
    .option_count = TOOL_COUNT(options),
};

#define PICTURES 8

typedef struct picture {
    char path[TOOL_MAX_PATH];
    size_t place; /* among the outputs */
} picture;

/* Points into itself: not to be copied. */
typedef struct session {
    const char *values[TOOL_COUNT(options)];
    tool_problem_arguments arguments;
    tool_problem problem;
    clmgk_ref_problem reference;
    void *arrays[CLMGK_ARRAYS]; /* double, but for integers, which belong to the problem */
    tool_outputs *outputs;
    picture picture[PICTURES];
    size_t pictures;
    void *answer; /* of `room` bytes */
    size_t room;
} session;

/* ---- the first line --------------------------------------------------------------------------------------------- */

/* Options as they were given, and the numbers among them, with their defaults. */
static tool_exit describe_options(const char *const *values, json_t **header, tool_error *error)
{
    int64_t rows = 0, tokens = 12, trials = 16;
    double threshold = 1e-6, fraction = 0.95;
    uint64_t seed = 0;
    TOOL_TRY(tool_parse_integer("rows", values[OPTION_ROWS], 1, INT64_C(1) << 30, &rows, error));
    TOOL_TRY(tool_parse_positive("threshold", values[OPTION_THRESHOLD], &threshold, error));
    TOOL_TRY(tool_parse_positive("fraction", values[OPTION_FRACTION], &fraction, error));
    TOOL_TRY(tool_parse_integer("tokens", values[OPTION_TOKENS], 2, 32, &tokens, error));
    TOOL_TRY(tool_parse_integer("trials", values[OPTION_TRIALS], 1, 10000, &trials, error));
    TOOL_TRY(tool_parse_u64("seed", values[TOOL_OPTION_SEED], &seed, error));
    if (fraction > 1.0)
        return tool_fail(error, TOOL_BAD_INPUT, "--fraction %s: expected at most 1", values[OPTION_FRACTION]);
    if (values[OPTION_PLOTS])
        TOOL_TRY(tool_check_output_name("plots", values[OPTION_PLOTS], error));
    json_t *const given = json_object();
    for (size_t option = 0; option < TOOL_COUNT(options); option++) {
        if (values[option])
            json_object_set_new(given, options[option].name, tool_json_text(values[option]));
    }
    *header = json_pack("{s:s, s:o, s:I, s:I, s:I, s:f, s:f, s:I}", "clmgk", clmgk_version(), "given", given, "rows",
                        (json_int_t)rows, "tokens", (json_int_t)tokens, "trials", (json_int_t)trials, "threshold",
                        threshold, "fraction", fraction, "seed", (json_int_t)seed);
    return tool_check_memory(*header, "the options", error);
}

static json_t *describe_problem(const session *own)
{
    const clmgk_attention_desc *const desc = &own->problem.desc;
    const bool mixture = !tool_is_mixed(desc->variant) && !tool_is_linear(desc->variant);
    json_t *report = json_pack("{s:s, s:s, s:s, s:s}", "variant", clmgk_variant_name(desc->variant), "score",
                               clmgk_score_name(desc->score), "estep", clmgk_estep_name(desc->estep), "dtype",
                               clmgk_dtype_name(desc->dtype));
    report = tool_json_merge(tool_json_merge(report, tool_json_own_dtypes(desc)), tool_json_sizes(desc));
    json_t *offsets = json_array();
    for (int64_t t = 0; desc->sequences > 0 && t <= desc->sequences; t++)
        tool_json_append(&offsets, json_integer(own->reference.offsets[t]));
    return json_pack("{s:o, s:s, s:o, s:b, s:b}", "report", report, "dtypes", tool_dtypes_text(desc).text, "offsets",
                     offsets, "mixture", (int)mixture, "gaussian",
                     (int)(mixture && desc->score == CLMGK_SCORE_GAUSSIAN));
}

static tool_exit check_sizes(const tool_problem *problem, tool_error *error)
{
    const bool queries = problem->desc.length > 0;
    if (queries && problem->desc.length_k > 0)
        return TOOL_DONE;
    return tool_fail(error, TOOL_BAD_INPUT, "--%s %s: has %c = 0; expected at least 1, as there are no matrices",
                     queries ? "k" : "q", problem->file[queries ? CLMGK_ARRAY_K : CLMGK_ARRAY_Q].path,
                     queries ? 'S' : 'N');
}

static tool_exit load(session *own, tool_error *error)
{
    tool_problem *const problem = &own->problem;
    TOOL_TRY(tool_problem_open(&own->arguments, problem, error));
    TOOL_TRY(check_sizes(problem, error));
    if (problem->desc.page_size > 0 || (problem->desc.sequences > 0 && problem->desc.use_lengths))
        return tool_fail(error, TOOL_BAD_INPUT, "--%s: expected keys in one array, whose matrices are drawn",
                         tool_array_option(problem->desc.page_size > 0 ? CLMGK_ARRAY_PAGE_TABLE : CLMGK_ARRAY_LENGTHS));
    for (clmgk_array array = 0; array < TOOL_FILES; array++) {
        if (!problem->slot[array].used || array == CLMGK_ARRAY_V)
            continue;
        if (clmgk_array_get_info(array)->element == CLMGK_ELEMENT_I32) {
            own->arrays[array] = problem->slot[array].host;
            continue;
        }
        double *values = NULL;
        const tool_exit status = tool_load_values(problem, array, &values, error);
        own->arrays[array] = values;
        TOOL_TRY(status);
    }
    own->reference = (clmgk_ref_problem){.desc = problem->desc, .seed = problem->seed};
    clmgk_ref_set_arrays(&own->reference, own->arrays);
    return TOOL_DONE;
}

static tool_exit begin(session *own, tool_error *error)
{
    json_t *header = NULL;
    TOOL_TRY(describe_options(own->values, &header, error));
    tool_exit status = TOOL_DONE;
    if (!own->values[OPTION_THEOREMS]) {
        TOOL_TRY_GOTO(status, tool_parse_problem(own->values, &own->arguments, error), done);
        TOOL_TRY_GOTO(status, load(own, error), done);
        header = tool_json_merge(header, describe_problem(own));
    }
    status = tool_check_memory(header, "the options", error);
    if (status == TOOL_DONE && (json_dumpf(header, stdout, JSON_COMPACT) != 0 || putchar('\n') == EOF))
        status = tool_fail(error, TOOL_SYSTEM_ERROR, "a broken pipe");
done:
    json_decref(header);
    return status;
}

/* ---- rows ------------------------------------------------------------------------------------------------------- */

#define MAX_THREADS 64

/* Some of the rows, for a thread. */
typedef struct part {
    const clmgk_ref_problem *problem;
    int64_t count;
    const int64_t *row;
    clmgk_ref_weight_rows out;
    bool ok;
} part;

static void *weigh_part(void *user)
{
    part *const own = user;
    own->ok = clmgk_ref_weights(own->problem, own->count, own->row, &own->out);
    return NULL;
}

static bool weigh(const session *own, int64_t count, const int64_t *row, const clmgk_ref_weight_rows *out)
{
    const int64_t keys = own->problem.desc.length_k, components = own->problem.desc.components;
    const int64_t parts = TOOL_MAX(TOOL_MIN(TOOL_MIN((int64_t)sysconf(_SC_NPROCESSORS_ONLN), MAX_THREADS), count), 1);
    part all[MAX_THREADS];
    pthread_t thread[MAX_THREADS];
    bool started[MAX_THREADS] = {false}, ok = true;
    for (int64_t n = 0; n < parts; n++) {
        const int64_t first = n * count / parts, end = (n + 1) * count / parts;
        all[n] = (part){.problem = &own->reference,
                        .count = end - first,
                        .row = row + first,
                        .out = {out->weights + first * keys,
                                out->responsibilities ? out->responsibilities + first * components * keys : NULL,
                                out->log_likelihood ? out->log_likelihood + first : NULL}};
        started[n] = n > 0 && pthread_create(&thread[n], NULL, weigh_part, &all[n]) == 0;
    }
    for (int64_t n = 0; n < parts; n++) { /* without a thread: here */
        if (!started[n])
            weigh_part(&all[n]);
    }
    for (int64_t n = 0; n < parts; n++) {
        if (started[n])
            pthread_join(thread[n], NULL);
        ok = ok && all[n].ok;
    }
    return ok;
}

/* Makes room for an answer. */
static tool_exit make_room(session *own, size_t bytes, tool_error *error)
{
    if (bytes <= own->room)
        return TOOL_DONE;
    free(own->answer);
    own->answer = malloc(bytes);
    own->room = own->answer ? bytes : 0;
    return tool_check_memory(own->answer, "rows of the attention matrix", error);
}

static tool_exit answer_rows(session *own, int64_t count, bool gamma, bool likelihood, tool_error *error)
{
    const size_t rows = (size_t)count, weights = rows * (size_t)own->problem.desc.length_k;
    const size_t gammas = gamma ? weights * (size_t)own->problem.desc.components : 0;
    const size_t numbers = weights + gammas + (likelihood ? rows : 0);
    TOOL_TRY(make_room(own, numbers * sizeof(double) + rows * sizeof(int64_t), error));
    double *const values = own->answer;
    int64_t *const row = (int64_t *)(values + numbers);
    const clmgk_ref_weight_rows out = {values, gamma ? values + weights : NULL,
                                       likelihood ? values + weights + gammas : NULL};
    if (fread(row, sizeof *row, rows, stdin) != rows)
        return TOOL_DONE; /* nobody asks any more */
    if (!weigh(own, count, row, &out))
        return tool_fail_memory(error, "rows of the attention matrix");
    (void)fwrite(values, sizeof *values, numbers, stdout); /* serve() flushes */
    return TOOL_DONE;
}

/* ---- pictures --------------------------------------------------------------------------------------------------- */

static tool_exit announce(session *own, size_t bytes, tool_error *error)
{
    char name[32] = "";
    picture *const to = &own->picture[own->pictures++];
    const char *const format = own->values[OPTION_PLOT_FORMAT];
    (void)fread(name, 1, TOOL_MIN(bytes, sizeof name - 1), stdin);
    const int length =
        snprintf(to->path, sizeof to->path, "%s-%s.%s", own->values[OPTION_PLOTS], name, format ? format : "svg");
    if (length < 0 || (size_t)length >= sizeof to->path)
        return tool_fail(error, TOOL_BAD_INPUT, "--plots: a path of more than %zu bytes", sizeof to->path - 1);
    TOOL_TRY(tool_outputs_add(own->outputs, "plots", to->path, &to->place, error));
    return tool_refuse_inputs(&own->arguments, own->outputs, error);
}

static tool_exit write_picture(session *own, size_t bytes, size_t place, tool_error *error)
{
    FILE *stream = NULL;
    char *const data = malloc(bytes);
    tool_exit status = tool_check_memory(data, "a picture", error);
    if (status == TOOL_DONE && fread(data, 1, bytes, stdin) == bytes) {
        TOOL_TRY_GOTO(status, tool_outputs_open(own->outputs, own->picture[place].place, &stream, error), done);
        (void)fwrite(data, 1, bytes, stream); /* tool_outputs_commit finds errors */
    }
done:
    free(data);
    return status;
}

/* ---- requests --------------------------------------------------------------------------------------------------- */

typedef enum request_kind { ROWS, ANNOUNCE, PICTURE, COMMIT } request_kind;

static tool_exit answer(session *own, const int64_t request[4], tool_error *error)
{
    switch ((request_kind)request[0]) {
    case ROWS:
        return answer_rows(own, request[1], request[2] != 0, request[3] != 0, error);
    case ANNOUNCE:
        TOOL_TRY(announce(own, (size_t)request[1], error));
        break;
    case PICTURE:
        TOOL_TRY(write_picture(own, (size_t)request[1], (size_t)request[2], error));
        break;
    case COMMIT:
        TOOL_TRY(tool_outputs_commit(own->outputs, error));
        break;
    }
    putchar('\n');
    return TOOL_DONE;
}

static tool_exit serve(session *own, tool_error *error)
{
    int64_t request[4];
    tool_exit status = tool_outputs_create(&own->outputs, error);
    if (status == TOOL_DONE)
        status = begin(own, error);
    while (status == TOOL_DONE && fflush(stdout) == 0 && fread(request, sizeof request, 1, stdin) == 1)
        status = answer(own, request, error);
    tool_outputs_destroy(own->outputs);
    free(own->answer);
    for (clmgk_array array = 0; array < TOOL_FILES; array++) {
        if (clmgk_array_get_info(array)->element != CLMGK_ELEMENT_I32)
            free(own->arrays[array]);
    }
    tool_problem_close(&own->problem);
    return status;
}

int main(int argc, char **argv)
{
    session own = {.pictures = 0};
    tool_error error = {.message = ""};
    bool finished = false;
    tool_exit status = tool_parse_options(&program, argc, argv, own.values, &finished, &error);
    signal(SIGPIPE, SIG_IGN); /* who asked may be gone: then temporary files go, too */
    if (status == TOOL_DONE && !finished)
        status = serve(&own, &error);
    return tool_report(&program, status, &error);
}
