/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random problems against the reference, all options drawn together (random/random.h). A draw that fails is made as
 * small as possible and printed as a command of clmgk-run, with its arrays in a folder under $TMPDIR.
 *
 *     test_differential [--seed S] [--first N] [--count N] [--optimised] [--matrix] [--unit N] [--broad]
 *                       [--texts] [--list] [--keep-going]
 *
 * CLMGK_TEST_SEED replaces the default seed. --optimised draws from the configurations that are worth it, --matrix
 * from those of the matrix engine (--unit: in the layout of a unit), whose programs compilers take minutes to optimise
 * on a CPU, --broad what the other configurations lack (RD_BROAD), and --texts those of all kinds with a score and a
 * mask as text; --list only says what is drawn; --keep-going tells of every draw that fails and makes none smaller.
 */
#define _DEFAULT_SOURCE /* the signal() that tests/x86/tile_unit.c replaces */
#include "random/random.h"

#include "harness/scratch.h"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DEFAULT_SEED UINT64_C(20240607)

static struct {
    uint64_t seed;
    uint64_t first, count;
    bool ranged; /* first and count were given */
    bool list;
    bool keep_going;
    bool optimised;
    bool matrix;
    uint64_t unit; /* 0: none was given */
    bool broad;
    bool texts;
} arguments = {.seed = DEFAULT_SEED};

/* How many failures are made smaller: each takes up to a minute. */
enum { MINIMISED = 3 };

/* ---- a crash ----------------------------------------------------------------------------------------------------- */

static char current[128]; /* the draw at hand */

static void on_crash(int number)
{
    const ssize_t written = write(STDERR_FILENO, current, strlen(current));
    (void)written;
    signal(number, SIG_DFL);
    raise(number);
}

static void say_draw(uint64_t number)
{
    static const int signals[] = {SIGSEGV, SIGBUS, SIGABRT, SIGFPE, SIGILL};
    snprintf(current, sizeof(current), "crashed: --seed %" PRIu64 " --first %" PRIu64 " --count 1\n", arguments.seed,
             number);
    for (size_t n = 0; n < TH_COUNT(signals); n++)
        signal(signals[n], on_crash);
}

/* ---- a draw ------------------------------------------------------------------------------------------------------ */

static void print_case(uint64_t number, const rd_case *c, const char *what)
{
    char text[512];
    th_describe(&c->problem, c->engine, text, sizeof(text));
    printf("--seed %" PRIu64 " --first %" PRIu64 " --count 1: %s\n    %s gradients=%u statistics=%u precision=%s\n",
           arguments.seed, number, what, text, c->desc.gradients, c->desc.statistics,
           clmgk_precision_name(c->desc.precision));
}

static void minimise(th_session *session, rd_case *c, uint64_t wrong, uint64_t number)
{
    enum { COMMAND = 8192 };
    char folder[SCRATCH_PATH];
    char *const text = malloc(COMMAND);
    assert_non_null(text);
    const uint64_t one = wrong & (~wrong + 1); /* the first of them: another one may have another cause */
    const int tries = rd_minimise(session, c, one, NULL, (rd_budget){.tries = 300, .seconds = 90.0});
    const rd_verdict verdict = rd_run(session, c, NULL);
    print_case(number, c, "made smaller");
    scratch_create(folder);
    rd_write_command(c, folder, text, COMMAND);
    printf("%s    after %d tries:\n%s\n", verdict.text, tries, text);
    free(text);
}

/* False: it failed. */
static bool try_draw(th_session *session, uint64_t number, bool smaller)
{
    rd_case c = rd_draw(arguments.seed, number);
    if (arguments.unit != 0) {
        snprintf(c.parameters, sizeof(c.parameters), "emulates=%" PRIu64, arguments.unit);
        snprintf(c.backward_parameters, sizeof(c.backward_parameters), "emulates=%" PRIu64, arguments.unit);
    }
    say_draw(number);
    if (arguments.list) {
        print_case(number, &c, "drawn");
        rd_case_free(&c);
        return true;
    }
    const rd_verdict verdict = rd_run(session, &c, NULL);
    if (verdict.wrong != 0) {
        print_case(number, &c, "failed");
        printf("%s", verdict.text);
        if (smaller)
            minimise(session, &c, verdict.wrong, number);
    }
    rd_case_free(&c);
    return verdict.wrong == 0;
}

static size_t failures;

static void draw_range(th_session *session, uint64_t first, uint64_t count)
{
    for (uint64_t number = first; number < first + count; number++)
        if (!try_draw(session, number, !arguments.keep_going && failures < MINIMISED))
            failures++;
}

/* Of every kind that has scores. */
static void draw_texts(th_session *session)
{
    const rd_configuration *list = NULL;
    draw_range(session, RD_TEXTS, 12 * rd_listed(&list));
    draw_range(session, RD_TEXTS + RD_MATRIX, 6 * rd_listed_matrix(&list));
    draw_range(session, RD_TEXTS + RD_PAGES, 12 * rd_listed_pages(&list));
    draw_range(session, RD_TEXTS + RD_TYPES, 6 * rd_listed_types(&list));
    draw_range(session, RD_TEXTS + RD_OPTIMISED, UINT64_C(20) * RD_SHARED);
    draw_range(session, RD_TEXTS + RD_BROAD, UINT64_C(14) * RD_SHARED);
}

/* CLMGK_TEST_SAMPLE=k: every k-th of the first draws, for devices that take hours for all. 0: unset. */
static uint64_t sample_step(void)
{
    const char *const step = getenv("CLMGK_TEST_SAMPLE");
    return step ? strtoull(step, NULL, 10) : 0;
}

TH_TEST(draws)
{
    const uint64_t step = sample_step();
    const rd_configuration *list = NULL;
    const uint64_t listed = rd_listed(&list), linears = rd_listed_linear(&list), matrices = rd_listed_matrix(&list);
    const uint64_t pages = rd_listed_pages(&list), types = rd_listed_types(&list);
    failures = 0;
    if (arguments.ranged) {
        draw_range(session, arguments.first, arguments.count);
    } else if (arguments.unit != 0) {
        draw_range(session, RD_MATRIX_RANDOM, UINT64_C(8) * RD_SHARED);
    } else if (step > 0) {
        for (uint64_t n = 0; n < 9 * listed; n += step)
            draw_range(session, n, 1);
        for (uint64_t n = 0; n < linears; n += step)
            draw_range(session, RD_LINEAR + n, 1);
        draw_range(session, RD_PAGES, 1);
        draw_range(session, RD_TYPES, 1);
    } else if (arguments.matrix) {
        draw_range(session, RD_MATRIX, 100 * matrices);
        draw_range(session, RD_MATRIX_RANDOM, UINT64_C(20) * RD_SHARED);
        draw_range(session, RD_MATRIX_SINGLES, UINT64_C(20) * RD_SHARED);
        draw_range(session, RD_MATRIX_LINEAR, UINT64_C(20) * RD_SHARED);
    } else if (arguments.texts) {
        draw_texts(session);
    } else if (arguments.broad) {
        draw_range(session, RD_BROAD, UINT64_C(36) * RD_SHARED);
    } else if (session->full) {
        draw_range(session, 0, 100 * listed);
        draw_range(session, RD_PAGES, 100 * pages);
        draw_range(session, RD_TYPES, 12 * types);
        draw_range(session, RD_LINEAR, 100 * linears);
        draw_range(session, RD_LISTED, 100);
        draw_range(session, RD_OPTIMISED, UINT64_C(100) * RD_SHARED);
    } else if (arguments.optimised) {
        for (uint64_t n = 0; n < 60; n += 6) {
            draw_range(session, RD_LISTED + n, 1);
            draw_range(session, RD_LISTED + n + 4, 1);
        }
    } else {
        draw_range(session, 0, 2 * listed);
        draw_range(session, RD_LINEAR, linears / 2);
        for (uint64_t n = 0; n < 6; n++)
            draw_range(session, RD_PAGES + n * pages, 2);
        for (uint64_t n = 0; n < 4; n++)
            draw_range(session, RD_TYPES + n * types, 2);
        for (uint64_t n = 0; n < 3; n++)
            draw_range(session, RD_MATRIX + n * matrices, 1);
    }
    if (failures > 0)
        fail_msg("%zu draws failed", failures);
}

/* ---- one gradient beside others -----------------------------------------------------------------------------------
 */

/* The case with dV alone, and the same values. */
static rd_case alone(const rd_case *c)
{
    rd_case out = *c;
    out.accumulate = 0;
    out.desc.gradients = CLMGK_GRADIENT_V;
    out.desc.statistics = 0;
    assert_true(rd_make_problem(&out, 1));
    out.problem.seed = c->problem.seed;
    for (th_name name = 0; name <= TH_GRAD_LSE; name++)
        if (c->problem.array[name].used && out.problem.array[name].used)
            memcpy(out.problem.array[name].values, c->problem.array[name].values,
                   c->problem.array[name].count * sizeof(double));
    return out;
}

/*
 * The backward pass must compute the forward pass's scores again, bit for bit. If it does not, dV differs only by the
 * rounding of a score, which the bound allows; but dV then depends on the set of gradients, which this test varies.
 */
TH_TEST(other_gradients_change_no_values)
{
    static const uint64_t lines[] = {10, 7}; /* shifted keys, packed sequences; with priors */
    const rd_configuration *list = NULL;
    const uint64_t listed = rd_listed(&list);
    const uint64_t count = arguments.ranged || arguments.optimised || arguments.matrix || arguments.unit ||
                                   arguments.broad || arguments.texts
                               ? 0
                           : session->full ? 40
                                           : 4;
    for (uint64_t n = 0; n < count; n++) {
        const uint64_t number = lines[n % TH_COUNT(lines)] + listed * (n / TH_COUNT(lines));
        rd_case c = rd_draw(arguments.seed, number);
        c.accumulate = c.problem.accumulate = 0;
        say_draw(number);
        (void)rd_run(session, &c, NULL);
        rd_case v = alone(&c);
        (void)rd_run(session, &v, NULL);
        const th_array *const given = &c.problem.array[TH_GRAD_V], *const expected = &v.problem.array[TH_GRAD_V];
        const bool same = memcmp(given->values, expected->values, given->count * sizeof(double)) == 0;
        if (!same) {
            print_case(number, &c, "dV with other gradients is not dV alone");
            fail();
        }
        rd_case_free(&c);
        rd_case_free(&v);
    }
}

/* ---- arguments --------------------------------------------------------------------------------------------------- */

static bool take_number(const char *name, int argc, char **argv, int *at, uint64_t *value)
{
    if (strcmp(argv[*at], name) != 0 || *at + 1 >= argc)
        return false;
    *value = strtoull(argv[++*at], NULL, 0);
    return true;
}

static bool parse(int argc, char **argv)
{
    const char *const seed = getenv("CLMGK_TEST_SEED");
    if (seed)
        arguments.seed = strtoull(seed, NULL, 0);
    arguments.count = 1;
    for (int n = 1; n < argc; n++) {
        if (take_number("--seed", argc, argv, &n, &arguments.seed))
            continue;
        if (take_number("--first", argc, argv, &n, &arguments.first) ||
            take_number("--count", argc, argv, &n, &arguments.count))
            arguments.ranged = true;
        else if (take_number("--unit", argc, argv, &n, &arguments.unit))
            continue;
        else if (strcmp(argv[n], "--list") == 0)
            arguments.list = true;
        else if (strcmp(argv[n], "--keep-going") == 0)
            arguments.keep_going = true;
        else if (strcmp(argv[n], "--optimised") == 0)
            arguments.optimised = true;
        else if (strcmp(argv[n], "--matrix") == 0)
            arguments.matrix = true;
        else if (strcmp(argv[n], "--broad") == 0)
            arguments.broad = true;
        else if (strcmp(argv[n], "--texts") == 0)
            arguments.texts = true;
        else
            return false;
    }
    return true;
}

int main(int argc, char **argv)
{
    if (!parse(argc, argv)) {
        fprintf(stderr,
                "usage: %s [--seed S] [--first N] [--count N] [--optimised] [--matrix] [--unit N] [--broad] [--list] "
                "[--texts] [--keep-going]\n",
                argv[0]);
        return 2;
    }
    return th_run_tests();
}
