/* SPDX-License-Identifier: Apache-2.0 */
/* The program: options, and what they ask for. */
#include "training.h"

#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Everything that the command line says. */
typedef struct options {
    plan plan;
    watch watch;
    comparison comparison;
    const char *device, *variant, *prior, *pooling;
    const char *curve, *plot, *export; /* files, a folder */
    bool time, describe;
    bool json;
} options;

typedef enum kind { TEXT, INTEGER32, INTEGER64, UNSIGNED64, NUMBER, FLAG, HELP, VERSION } kind;

typedef struct option_line {
    const char *name, *argument, *help;
    kind kind;
    void *value;
    double low, high;
} option_line;

enum { LINES = 40 };

/* The table of options, which point into `o`. */
static size_t list_options(options *o, option_line *line)
{
    task *const t = &o->plan.task;
    settings *const s = &o->plan.settings;
    const option_line list[] = {
        {"device", "SEL",
         "PLATFORM:DEVICE, cpu or gpu (the first one), or a part of a name; default: $CLMGK_DEVICE,\n"
         "else the first GPU, else the first CPU",
         TEXT, &o->device, 0, 0},
        {"variant", "V", "NAME:HEADS or NAME:COMPONENTSxHEADS, any variant of clmgk-run (mgk:4)", TEXT, &o->variant, 0,
         0},
        {"compare", "LIST", "trains these variants, separated by commas, with several seeds, and compares them", TEXT,
         &o->comparison.variants, 0, 0},
        {"folder", "DIR", "of the comparison's checkpoints, from which it goes on (listops-runs)", TEXT,
         &o->comparison.folder, 0, 0},
        {"seeds", "N", "of the comparison: --seed and the next ones (3)", INTEGER64, &o->comparison.seeds, 1, 16},
        {"seed", "U64", "of examples and first weights (1)", UNSIGNED64, &t->seed, 0, 0},
        {"steps", "N", "of training (400)", INTEGER64, &o->plan.steps, 1, 1e9},
        {"warm-up", "N", "steps in which the rate rises; then it falls to 0 (50)", INTEGER64, &o->plan.warm_up, 1, 1e9},
        {"rate", "X", "AdamW's rate after the warm-up (0.002)", NUMBER, &o->plan.rate, 0, 1},
        {"decay", "X", "of matrices (0.01)", NUMBER, &o->plan.decay, 0, 1},
        {"prior", "sgd|em", "how priors are learned: by gradients, or by the M-step (sgd)", TEXT, &o->prior, 0, 0},
        {"em-every", "N", "steps from M-step to M-step (10)", INTEGER64, &o->plan.em_every, 1, 1e9},
        {"layers", "N", "of the network (2)", INTEGER32, &s->layers, 1, MAX_LAYERS},
        {"width", "N", "of tokens (128)", INTEGER32, &s->width, 16, 4096},
        {"head-size", "N", "of every head (16)", INTEGER32, &s->head_size, 16, CLMGK_MAX_HEAD_SIZE},
        {"hidden", "N", "width between the feed-forward products (256)", INTEGER32, &s->hidden, 16, 16384},
        {"pooling", "first|mean", "what is classified: the first token's row, or the mean of all (first)", TEXT,
         &o->pooling, 0, 0},
        {"tokens", "N", "of a batch, filled with whole sequences (4096)", INTEGER32, &s->rows, 32, 1 << 24},
        {"min-length", "N", "tokens of an expression, at least (100)", INTEGER32, &t->min_length, 4, 1 << 20},
        {"max-length", "N", "and at most (500)", INTEGER32, &t->max_length, 4, 1 << 20},
        {"depth", "N", "operations inside each other, at most (6)", INTEGER32, &t->depth, 1, 64},
        {"arguments", "N", "of an operation, at most (5)", INTEGER32, &t->arguments, 2, MAX_ARGUMENTS},
        {"nested", "X", "probability that an argument is an operation (0.5)", NUMBER, &t->nested, 0, 1},
        {"test", "N", "sequences of the test (1000)", INTEGER64, &o->plan.test_count, 1, 1e9},
        {"test-every", "N", "steps from test to test while training, on a quarter of them; 0: none (0)", INTEGER64,
         &o->plan.test_every, 0, 1e9},
        {"report", "N", "steps from line to line and from point to point of the curve (25)", INTEGER64, &o->plan.report,
         1, 1e9},
        {"checkpoint", "FILE", "goes on from it if it is there; written at the end", TEXT, &o->watch.checkpoint, 0, 0},
        {"save-every", "N", "steps from checkpoint to checkpoint (100)", INTEGER64, &o->watch.save, 0, 1e9},
        {"until", "N", "stops after this step, to be resumed", INTEGER64, &o->watch.until, 1, 1e9},
        {"curve", "F.tsv", "writes the curve as a table", TEXT, &o->curve, 0, 0},
        {"plot", "F.svg", "draws the curves with gnuplot", TEXT, &o->plot, 0, 0},
        {"export", "DIR", "writes Q, K, V and parameters of all heads for 8 sequences as .npy files", TEXT, &o->export,
         0, 0},
        {"time", NULL, "measures a step and its attention, without training", FLAG, &o->time, 0, 0},
        {"describe", NULL, "prints what examples are like, and some of them, without training", FLAG, &o->describe, 0,
         0},
        {"quiet", NULL, "no progress on stderr", FLAG, &o->watch.quiet, 0, 0},
        {"json", NULL, "prints one JSON object", FLAG, &o->json, 0, 0},
        {"help", NULL, "prints this", HELP, NULL, 0, 0},
        {"version", NULL, "prints the version", VERSION, NULL, 0, 0}};
    const size_t count = sizeof(list) / sizeof(*list);
    (void)memcpy(line, list, sizeof(list));
    return count;
}

static options defaults(void)
{
    options o = {.variant = "mgk:4", .prior = "sgd", .pooling = "first"};
    o.plan = (plan){.steps = 400, .warm_up = 50, .rate = 2e-3, .decay = 0.01, .em_every = 10, .report = 25};
    o.plan.test_count = 1000;
    o.plan.task = (task){.seed = 1, .min_length = 100, .max_length = 500, .depth = 6, .arguments = 5, .nested = 0.5};
    o.plan.settings = (settings){.layers = 2, .width = 128, .head_size = 16, .hidden = 256, .rows = 4096};
    o.watch = (watch){.name = "", .save = 100};
    o.comparison = (comparison){.folder = "listops-runs", .seeds = 3};
    return o;
}

/* ---- the command line -------------------------------------------------------------------------------------------- */

static void print_help(const option_line *line, size_t count)
{
    printf("usage: listops [OPTION...]\n\nTrains a small encoder on ListOps with any variant of attention, and tests "
           "it.\n\n");
    for (size_t i = 0; i < count; ++i) {
        char left[40];
        (void)snprintf(left, sizeof(left), "--%s%s%s", line[i].name, line[i].argument ? "=" : "",
                       line[i].argument ? line[i].argument : "");
        printf("  %-20s ", left);
        for (const char *c = line[i].help; *c; ++c) {
            (void)putchar(*c);
            if (*c == '\n') {
                printf("%23s", "");
            }
        }
        (void)putchar('\n');
    }
    printf(
        "\nStatus: 0 done, or stopped by a signal or --until with a checkpoint; 2 bad usage or input; 3 no device, or\n"
        "it failed; 4 out of memory, an output that cannot be written.\n");
}

static void set_number(const option_line *line, const char *text)
{
    char *end = NULL;
    errno = 0;
    const double number = line->kind == NUMBER ? strtod(text, &end) : (double)strtoll(text, &end, 10);
    if (end == text || *end != '\0' || errno != 0 || !(number >= line->low && number <= line->high)) {
        fail(EXIT_USAGE, "--%s: \"%s\": expected a number from %g to %g", line->name, text, line->low, line->high);
    }
    if (line->kind == NUMBER) {
        *(double *)line->value = number;
    } else if (line->kind == INTEGER32) {
        *(int32_t *)line->value = (int32_t)number;
    } else {
        *(int64_t *)line->value = (int64_t)number;
    }
}

static void set_option(const option_line *line, const char *text)
{
    char *end = NULL;
    switch (line->kind) {
    case TEXT:
        *(const char **)line->value = text;
        break;
    case FLAG:
        *(bool *)line->value = true;
        break;
    case UNSIGNED64:
        errno = 0;
        *(uint64_t *)line->value = strtoull(text, &end, 10);
        if (end == text || *end != '\0' || errno != 0 || *text == '-') {
            fail(EXIT_USAGE, "--%s: \"%s\": expected a whole number below 2^64", line->name, text);
        }
        break;
    default:
        set_number(line, text);
        break;
    }
}

/* False: the program is done. */
static bool parse(options *o, int argc, char **argv)
{
    option_line line[LINES];
    struct option list[LINES + 1] = {{0}};
    const size_t count = list_options(o, line);
    int index = 0, code = 0;
    for (size_t i = 0; i < count; ++i) {
        list[i] = (struct option){line[i].name, line[i].argument ? required_argument : no_argument, NULL, 1};
    }
    opterr = 0;
    while ((code = getopt_long(argc, argv, "", list, &index)) != -1) {
        if (code != 1) {
            fail(EXIT_USAGE, "%s: unknown, or not used so: see --help", argv[optind - 1]);
        }
        if (line[index].kind == HELP) {
            print_help(line, count);
            return false;
        }
        if (line[index].kind == VERSION) {
            printf("listops %s\n", clmgk_version());
            return false;
        }
        set_option(&line[index], optarg);
    }
    if (optind < argc) {
        fail(EXIT_USAGE, "%s: expected options only: see --help", argv[optind]);
    }
    return true;
}

static void complete(options *o)
{
    plan *const p = &o->plan;
    p->settings.seed = p->task.seed;
    p->settings.min_length = p->task.min_length;
    p->settings.max_length = p->task.max_length;
    p->settings.em = strcmp(o->prior, "em") == 0;
    p->settings.first = strcmp(o->pooling, "first") == 0;
    parse_variant(o->variant, &p->settings);
    o->comparison.plot = o->plot;
    o->comparison.json = o->json;
    if (strcmp(o->prior, "em") != 0 && strcmp(o->prior, "sgd") != 0) {
        fail(EXIT_USAGE, "--prior: \"%s\": expected sgd or em", o->prior);
    }
    if (strcmp(o->pooling, "first") != 0 && strcmp(o->pooling, "mean") != 0) {
        fail(EXIT_USAGE, "--pooling: \"%s\": expected first or mean", o->pooling);
    }
    if (p->task.min_length > p->task.max_length) {
        fail(EXIT_USAGE, "--min-length: %d: expected at most --max-length, %d", p->task.min_length, p->task.max_length);
    }
    if (p->warm_up >= p->steps) {
        p->warm_up = (p->steps + 1) / 2;
    }
}

/* ---- what examples are like -------------------------------------------------------------------------------------- */

static void print_example(const int32_t *tokens, int32_t length, int32_t answer)
{
    static const char *const names[] = {"0", "1", "2",    "3",    "4",    "5",   "6", "7",
                                        "8", "9", "[MIN", "[MAX", "[MED", "[SM", "]"};
    for (int32_t i = 0; i < length; ++i) {
        printf("%s ", names[tokens[i]]);
    }
    printf("-> %d\n", answer);
}

/* Best guesses without looking at the arguments: the commonest answer, and the commonest of each first operation. */
static void describe(const plan *p)
{
    enum { SAMPLE = 10000, SHOWN = 3 };
    int32_t *const tokens = allocate((size_t)p->task.max_length, sizeof(int32_t));
    int64_t answers[4][CLASSES] = {{0}}, total[CLASSES] = {0}, length = 0, guess = 0, best = 0;
    for (uint64_t i = 0; i < SAMPLE; ++i) {
        int32_t answer = 0;
        const int32_t its = generate(&p->task, STREAM_TEST, i, tokens, &answer);
        if (its == 0) {
            fail(EXIT_USAGE, "no expression of %d to %d tokens was found with these limits", p->task.min_length,
                 p->task.max_length);
        }
        ++answers[tokens[0] - TOKEN_MIN][answer];
        ++total[answer];
        length += its;
        if (i < SHOWN) {
            print_example(tokens, its, answer);
        }
    }
    for (int32_t operation = 0; operation < 4; ++operation) {
        int64_t most = 0;
        for (int32_t k = 0; k < CLASSES; ++k) {
            most = answers[operation][k] > most ? answers[operation][k] : most;
        }
        guess += most;
    }
    printf("answers:");
    for (int32_t k = 0; k < CLASSES; ++k) {
        best = total[k] > best ? total[k] : best;
        printf(" %.3f", (double)total[k] / SAMPLE);
    }
    printf("\nmean length %.0f; accuracy of the commonest answer %.3f, of the commonest for the first operation %.3f\n",
           (double)length / SAMPLE, (double)best / SAMPLE, (double)guess / SAMPLE);
    free(tokens);
}

/* ---- one variant ------------------------------------------------------------------------------------------------- */

static void report_time(device *d, const options *o)
{
    enum { ROUNDS = 15 };
    timing t;
    run *const r = allocate(1, sizeof(run));
    run_open(r, d, &o->plan);
    measure(&r, 1, ROUNDS, &t);
    if (o->json) {
        printf("{\"variant\": \"%s\", \"step_ms\": %.4f, \"attention_ms\": %.4f, \"memory_bytes\": %" PRIu64
               ", \"parameters\": %zu, \"tokens\": %d, \"lengths\": [",
               o->variant, 1e3 * t.step, 1e3 * t.attention, network_bytes(&r->network), r->network.layout.numbers,
               r->batch.used);
        const int32_t *const offsets = r->batch.offsets + r->batch.first;
        for (int32_t i = 0; i < r->batch.count; ++i) {
            printf("%s%d", i > 0 ? ", " : "", offsets[i + 1] - offsets[i]);
        }
        printf("]}\n");
    } else {
        printf("%s: %.1f ms a step, %.0f tokens/s, attention %.1f ms; %zu parameters, %.1f MB\n", o->variant,
               1e3 * t.step, r->batch.used / t.step, 1e3 * t.attention, r->network.layout.numbers,
               1e-6 * (double)network_bytes(&r->network));
    }
    run_close(r);
    free(r);
}

static void report_run(run *r, const options *o)
{
    const score s = run_test(r, o->plan.test_count);
    const double accuracy = (double)s.right / (double)s.count, loss = s.loss / (double)s.count;
    const progress *const p = &r->progress;
    if (o->json) {
        printf("{\"variant\": \"%s\", \"step\": %" PRId64 ", \"accuracy\": %.6f, \"loss\": %.6f, \"parameters\": %zu, "
               "\"digest\": \"%016" PRIx64 "\", \"seconds\": %.3f, \"tokens\": %" PRId64 ", \"memory_bytes\": %" PRIu64
               "}\n",
               o->variant, p->step, accuracy, loss, r->network.layout.numbers, run_digest(r), p->seconds, p->tokens,
               network_bytes(&r->network));
    } else {
        printf("%s after %" PRId64 " steps: test accuracy %.4f, loss %.4f (%" PRId64 " sequences); digest %016" PRIx64
               "\n",
               o->variant, p->step, accuracy, loss, s.count, run_digest(r));
    }
}

static void train(device *d, const options *o)
{
    run *const r = allocate(1, sizeof(run));
    run_open(r, d, &o->plan);
    if (o->watch.checkpoint) {
        (void)checkpoint_load(r, o->watch.checkpoint);
    }
    if (run_train(r, &o->watch) || o->watch.until > 0) {
        report_run(r, o);
    }
    if (o->curve) {
        curve_write(o->curve, r);
    }
    if (o->plot) {
        const series line = {o->variant, r->progress.curve, r->progress.points};
        curve_plot(o->plot, &line, 1);
    }
    if (o->export) {
        export_arrays(r, o->export);
    }
    run_close(r);
    free(r);
}

int main(int argc, char **argv)
{
    options o = defaults();
    device d;
    if (!parse(&o, argc, argv)) {
        return EXIT_DONE;
    }
    complete(&o);
    if (o.describe) {
        describe(&o.plan);
        return EXIT_DONE;
    }
    /* OpenMP's threads, which oneDNN starts, would spin after each product and take the cores from OpenCL's. */
    (void)setenv("OMP_WAIT_POLICY", "passive", 0);
    catch_signals();
    device_open(&d, o.device);
    if (o.time) {
        report_time(&d, &o);
    } else if (o.comparison.variants) {
        (void)compare(&d, &o.plan, &o.comparison, &o.watch);
    } else {
        train(&d, &o);
    }
    device_close(&d);
    if (fflush(stdout) != 0) {
        fail(EXIT_SYSTEM, "standard output: %s", strerror(errno));
    }
    return EXIT_DONE;
}
