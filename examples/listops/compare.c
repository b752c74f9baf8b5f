/* SPDX-License-Identifier: Apache-2.0 */
/* Variants compared at equal steps, beside the MGK paper's Table 7. */
#include "training.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { MAX_VARIANTS = 16, MAX_SEEDS = 16, MAX_PATH = 4096, ROUNDS = 9 };

/* MGK paper, Table 7: LRA retrieval, batch 32, at test time. */
typedef struct figure {
    clmgk_variant variant;
    int32_t heads;
    double seconds, gigabytes;
} figure;

static const figure paper[] = {{CLMGK_VARIANT_SOFTMAX, 8, 0.357, 58.0}, {CLMGK_VARIANT_MGK, 4, 0.278, 53.6},
                               {CLMGK_VARIANT_SMGK, 4, 0.227, 45.5},    {CLMGK_VARIANT_LINEAR, 8, 0.055, 3.38},
                               {CLMGK_VARIANT_MLK, 4, 0.043, 2.90},     {CLMGK_VARIANT_SMLK, 4, 0.042, 2.83}};

/* What the comparison knows of a variant. */
typedef struct contestant {
    char name[64]; /* as on the command line */
    settings settings;
    size_t parameters;
    uint64_t bytes;
    timing time;
    double accuracy[MAX_SEEDS], loss[MAX_SEEDS];
    double mean, deviation, mean_loss; /* over the seeds */
    point *curve;                      /* of the first seed; for free() */
    int64_t points;
} contestant;

void parse_variant(const char *text, settings *s)
{
    char name[64], *end = NULL;
    clmgk_error error = {0};
    const char *const colon = strchr(text, ':');
    const size_t length = colon ? (size_t)(colon - text) : 0;
    if (length == 0 || length >= sizeof(name)) {
        fail(EXIT_USAGE, "variant \"%s\": expected NAME:HEADS or NAME:COMPONENTSxHEADS, such as mgk:4, hard-fish:2x8",
             text);
    }
    (void)memcpy(name, text, length);
    name[length] = '\0';
    if (clmgk_variant_from_name(name, &s->variant, &error) != CLMGK_OK) {
        fail(EXIT_USAGE, "%s", error.message);
    }
    long first = strtol(colon + 1, &end, 10), heads = first;
    if (*end == 'x' && first > 0) {
        heads = strtol(end + 1, &end, 10);
    } else {
        first = 0; /* the variant's own number of components */
    }
    if (*end != '\0' || first < 0 || first > CLMGK_MAX_COMPONENTS || heads < 1 || heads > CLMGK_MAX_COMPONENTS) {
        fail(EXIT_USAGE, "variant \"%s\": expected a number of heads, or COMPONENTSxHEADS, behind the colon", text);
    }
    s->components = (int32_t)first;
    s->heads = (int32_t)heads;
}

/* ---- measuring --------------------------------------------------------------------------------------------------- */

static int order(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *list, size_t count)
{
    qsort(list, count, sizeof(*list), order);
    return list[count / 2];
}

/* In turn, so that whatever disturbs the machine disturbs all. */
void measure(run *const *runs, size_t count, int64_t rounds, timing *timings)
{
    double *const steps = allocate(count * (size_t)rounds, sizeof(double));
    double *const attentions = allocate(count * (size_t)rounds, sizeof(double));
    attention_timer timers[MAX_VARIANTS];
    for (size_t i = 0; i < count; ++i) {
        run_step(runs[i]);
        network_project(&runs[i]->network, 0);
        attention_timer_open(&timers[i], &runs[i]->network);
        (void)attention_timer_run(&timers[i], &runs[i]->network);
    }
    for (int64_t round = 0; round < rounds; ++round) {
        for (size_t i = 0; i < count; ++i) {
            const size_t at = i * (size_t)rounds + (size_t)round;
            attentions[at] = attention_timer_run(&timers[i], &runs[i]->network) * runs[i]->plan.settings.layers;
            const double start = now_seconds();
            run_step(runs[i]);
            steps[at] = now_seconds() - start;
        }
    }
    for (size_t i = 0; i < count; ++i) {
        attention_timer_close(&timers[i]);
        timings[i].step = median(steps + i * (size_t)rounds, (size_t)rounds);
        timings[i].attention = median(attentions + i * (size_t)rounds, (size_t)rounds);
    }
    free(steps);
    free(attentions);
}

/* ---- training ---------------------------------------------------------------------------------------------------- */

static plan plan_of(const plan *p, const contestant *c, int64_t seed)
{
    plan one = *p;
    one.settings.variant = c->settings.variant;
    one.settings.heads = c->settings.heads;
    one.settings.components = c->settings.components;
    const bool learns =
        (clmgk_variant_traits(one.settings.variant) & (CLMGK_TRAIT_PRIOR | CLMGK_TRAIT_LINEAR)) == CLMGK_TRAIT_PRIOR;
    one.settings.em = p->settings.em && learns;
    one.task.seed = one.settings.seed = p->task.seed + (uint64_t)seed;
    return one;
}

/* Trains a variant with a seed, or goes on where its checkpoint ends. */
static bool train_one(device *d, const plan *p, const comparison *c, const watch *w, contestant *one, int64_t seed)
{
    char path[MAX_PATH], name[sizeof(one->name) + 32];
    const plan its = plan_of(p, one, seed);
    (void)snprintf(name, sizeof(name), "%.63s seed %" PRIu64, one->name, its.task.seed);
    if (snprintf(path, sizeof(path), "%s/%s.%" PRIu64 ".checkpoint", c->folder, one->name, its.task.seed) >= MAX_PATH) {
        fail(EXIT_USAGE, "%s: the path is too long", c->folder);
    }
    run r;
    watch watching = *w;
    watching.name = name, watching.checkpoint = path;
    run_open(&r, d, &its);
    (void)checkpoint_load(&r, path);
    const bool done = run_train(&r, &watching);
    if (done) {
        const score s = run_test(&r, its.test_count);
        one->accuracy[seed] = (double)s.right / (double)s.count;
        one->loss[seed] = s.loss / (double)s.count;
        one->parameters = r.network.layout.numbers;
        one->bytes = network_bytes(&r.network);
        (void)fprintf(stderr, "%s  test accuracy %.4f, loss %.4f\n", name, one->accuracy[seed], one->loss[seed]);
    }
    if (seed == 0) {
        free(one->curve);
        one->curve = r.progress.curve, r.progress.curve = NULL;
        one->points = r.progress.points;
    }
    run_close(&r);
    return done;
}

static void measure_all(device *d, const plan *p, contestant *list, size_t count)
{
    run *runs[MAX_VARIANTS] = {NULL};
    timing timings[MAX_VARIANTS] = {{0}};
    for (size_t i = 0; i < count; ++i) {
        const plan its = plan_of(p, &list[i], 0);
        runs[i] = allocate(1, sizeof(run));
        run_open(runs[i], d, &its);
    }
    measure(runs, count, ROUNDS, timings);
    for (size_t i = 0; i < count; ++i) {
        list[i].time = timings[i];
        run_close(runs[i]);
        free(runs[i]);
    }
}

static void summarise(contestant *one, int64_t seeds)
{
    double squares = 0.0;
    one->mean = one->mean_loss = 0.0;
    for (int64_t i = 0; i < seeds; ++i) {
        one->mean += one->accuracy[i] / (double)seeds;
        one->mean_loss += one->loss[i] / (double)seeds;
    }
    for (int64_t i = 0; i < seeds; ++i) {
        squares += (one->accuracy[i] - one->mean) * (one->accuracy[i] - one->mean);
    }
    one->deviation = seeds > 1 ? sqrt(squares / (double)(seeds - 1)) : 0.0;
}

/* ---- text -------------------------------------------------------------------------------------------------------- */

static const figure *find_figure(const settings *s)
{
    for (size_t i = 0; i < sizeof(paper) / sizeof(*paper); ++i) {
        if (paper[i].variant == s->variant && paper[i].heads == s->heads) {
            return &paper[i];
        }
    }
    return NULL;
}

static const contestant *find(const contestant *list, size_t count, clmgk_variant variant, int32_t heads)
{
    for (size_t i = 0; i < count; ++i) {
        if (list[i].settings.variant == variant && list[i].settings.heads == heads) {
            return &list[i];
        }
    }
    return NULL;
}

/* Ratios are to the full heads of the same family: softmax:8, for the linear family linear:8. */
static const contestant *base_of(const contestant *list, size_t count, const contestant *one)
{
    const bool linear = (clmgk_variant_traits(one->settings.variant) & CLMGK_TRAIT_LINEAR) != 0;
    return find(list, count, linear ? CLMGK_VARIANT_LINEAR : CLMGK_VARIANT_SOFTMAX, 8);
}

static void print_table(const contestant *list, size_t count, int64_t seeds)
{
    printf("%-14s %10s %17s %7s %9s %6s %9s %6s %6s %7s %6s %6s\n", "", "parameters", "accuracy", "loss", "step ms",
           "ratio", "attn. ms", "ratio", "paper", "MB", "ratio", "paper");
    for (size_t i = 0; i < count; ++i) {
        const contestant *const one = &list[i], *const base = base_of(list, count, one);
        const figure *const of = find_figure(&one->settings), *const to = base ? find_figure(&base->settings) : NULL;
        printf("%-14s %10zu %8.4f +- %.4f %7.3f %9.1f", one->name, one->parameters, one->mean, one->deviation,
               one->mean_loss, 1e3 * one->time.step);
        if (base) {
            printf(" %6.2f %9.1f %6.2f", one->time.step / base->time.step, 1e3 * one->time.attention,
                   one->time.attention / base->time.attention);
        } else {
            printf(" %6s %9.1f %6s", "-", 1e3 * one->time.attention, "-");
        }
        if (of && to) {
            printf(" %6.2f", of->seconds / to->seconds);
        } else {
            printf(" %6s", "-");
        }
        printf(" %7.1f", 1e-6 * (double)one->bytes);
        if (base) {
            printf(" %6.2f", (double)one->bytes / (double)base->bytes);
        } else {
            printf(" %6s", "-");
        }
        if (of && to) {
            printf(" %6.2f\n", of->gigabytes / to->gigabytes);
        } else {
            printf(" %6s\n", "-");
        }
    }
    printf("\nAccuracy: mean and standard deviation over %" PRId64
           " seeds. Attention: forward and backward, all layers.\n"
           "Ratios: to softmax:8, in the linear family to linear:8. Paper: MGK paper, Table 7, time and memory\n"
           "(LRA retrieval, N = 4096, whole networks on GPUs, at test time): compare ratios.\n",
           seeds);
}

/* MGK-4 against softmax-8: the difference of the means against twice its standard error over the seeds. */
static void print_claim(const contestant *list, size_t count, int64_t seeds)
{
    const contestant *const mgk = find(list, count, CLMGK_VARIANT_MGK, 4);
    const contestant *const softmax = find(list, count, CLMGK_VARIANT_SOFTMAX, 8);
    if (!mgk || !softmax || seeds < 2) {
        return;
    }
    const double difference = mgk->mean - softmax->mean;
    const double noise =
        2.0 * sqrt((mgk->deviation * mgk->deviation + softmax->deviation * softmax->deviation) / (double)seeds);
    const double ratio = mgk->time.attention / softmax->time.attention;
    printf("\nmgk:4 - softmax:8, accuracy: %+.4f, noise (two standard errors) %.4f: %s\n", difference, noise,
           difference >= -noise ? "as good or better" : "worse");
    printf("mgk:4 / softmax:8, time of attention: %.3f: %s 0.80\n", ratio, ratio <= 0.80 ? "at most" : "above");
}

static void print_json(const contestant *list, size_t count, int64_t seeds)
{
    printf("{\"variants\": [");
    for (size_t i = 0; i < count; ++i) {
        const contestant *const one = &list[i];
        printf("%s{\"variant\": \"%s\", \"parameters\": %zu, \"accuracy\": [", i > 0 ? ", " : "", one->name,
               one->parameters);
        for (int64_t s = 0; s < seeds; ++s) {
            printf("%s%.6f", s > 0 ? ", " : "", one->accuracy[s]);
        }
        printf("], \"loss\": [");
        for (int64_t s = 0; s < seeds; ++s) {
            printf("%s%.6f", s > 0 ? ", " : "", one->loss[s]);
        }
        printf("], \"step_ms\": %.4f, \"attention_ms\": %.4f, \"memory_bytes\": %" PRIu64 "}", 1e3 * one->time.step,
               1e3 * one->time.attention, one->bytes);
    }
    printf("]}\n");
}

/* ---- the comparison ---------------------------------------------------------------------------------------------- */

static size_t parse_list(const char *text, contestant *list)
{
    char *const copy = allocate(strlen(text) + 1, 1);
    size_t count = 0;
    char *rest = NULL;
    (void)strcpy(copy, text);
    for (const char *name = strtok_r(copy, ",", &rest); name; name = strtok_r(NULL, ",", &rest)) {
        if (count == MAX_VARIANTS) {
            fail(EXIT_USAGE, "--compare: more than %d variants", MAX_VARIANTS);
        }
        parse_variant(name, &list[count].settings);
        (void)snprintf(list[count].name, sizeof(list[count].name), "%s", name);
        ++count;
    }
    free(copy);
    return count;
}

static void plot(const comparison *c, const contestant *list, size_t count)
{
    series lines[MAX_VARIANTS];
    for (size_t i = 0; i < count; ++i) {
        lines[i] = (series){list[i].name, list[i].curve, list[i].points};
    }
    curve_plot(c->plot, lines, count);
}

bool compare(device *d, const plan *p, const comparison *c, const watch *w)
{
    static const contestant empty;
    contestant list[MAX_VARIANTS];
    bool done = true;
    for (size_t i = 0; i < MAX_VARIANTS; ++i) {
        list[i] = empty;
    }
    const size_t count = parse_list(c->variants, list);
    if (mkdir(c->folder, 0777) != 0 && errno != EEXIST) {
        fail(EXIT_SYSTEM, "%s: cannot make it: %s", c->folder, strerror(errno));
    }
    for (int64_t seed = 0; seed < c->seeds && done; ++seed) {
        for (size_t i = 0; i < count && done; ++i) {
            done = train_one(d, p, c, w, &list[i], seed);
        }
    }
    if (done) {
        measure_all(d, p, list, count);
        for (size_t i = 0; i < count; ++i) {
            summarise(&list[i], c->seeds);
        }
        if (c->json) {
            print_json(list, count, c->seeds);
        } else {
            print_table(list, count, c->seeds);
            print_claim(list, count, c->seeds);
        }
    }
    if (c->plot && done) {
        plot(c, list, count);
    }
    for (size_t i = 0; i < count; ++i) {
        free(list[i].curve);
    }
    return done;
}
