/* SPDX-License-Identifier: Apache-2.0 */
/* Results of clmgk-bench from made-up measurements: tables, JSON and picture. */
#include "bench.h"
#include "gnuplot.h"
#include "harness/harness.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define NOTE "peak not reached by its own measurement"

/* A device on which softmax, MGK and sMGK ran at 100, 80 and 60 GFLOP/s. */
typedef struct made_up {
    bench_options options;
    bench_device device;
} made_up;

static void make(made_up *all, const char *suite, bool short_batches, double peak_gflops)
{
    bench_request *const request = &all->options.request;
    tool_error error = {.message = ""};
    const char *const sizes[BENCH_SIZE_OPTION_COUNT] = {NULL};
    const bench_choice choice = {.suite = suite, .sizes = sizes};
    unsigned taken = 0;
    *all = (made_up){.device = {.peaks = {.fma_gflops = peak_gflops,
                                          .copy_gbps = 10,
                                          .read_gbps = 20,
                                          .buffer_bytes = 1 << 20,
                                          .wanted_bytes = 1 << 20}}};
    snprintf(all->device.tool.info.name, sizeof(all->device.tool.info.name), "a device");
    assert_int_equal(bench_parse_choice(&choice, request, &taken, &error), TOOL_DONE);
    request->passes[request->pass_count++] = BENCH_FORWARD;
    assert_int_equal(bench_make_groups(request, short_batches, &all->device.groups, &error), TOOL_DONE);
    for (size_t i = 0; i < request->shape_count; i++) {
        for (size_t c = 0; c < all->device.groups[i].count; c++) {
            bench_case *const one = &all->device.groups[i].cases[c];
            const double ms = one->flops / (1e6 * (100 - 20 * (double)c));
            one->time_ms = (tool_spread){ms, ms, ms};
            one->repetitions = 3;
            one->error = (bench_error_found){.array = "o", .sampled = 1, .ok = true};
            one->parameters = strdup("");
            one->compiler_options = strdup("");
            one->cache_note = strdup("");
        }
    }
}

static void release(made_up *all)
{
    bench_free_groups(&all->options.request, all->device.groups);
}

/* The table of peaks, or of a group; for free(). */
static char *printed(const made_up *all, const bench_group *group)
{
    char *text = NULL;
    size_t size = 0;
    FILE *const stream = open_memstream(&text, &size);
    assert_non_null(stream);
    if (group)
        bench_print_group(&all->device, group, stream);
    else
        bench_print_peaks(&all->device, all->options.request.shape_count, stream);
    assert_int_equal(fclose(stream), 0);
    return text;
}

static int count_words(const char *text, const char *word)
{
    int count = 0;
    for (const char *found = text; (found = strstr(found, word)) != NULL; found++)
        count++;
    return count;
}

/* With a peak of 70, two cases of each shape are marked, in the table and in the object; with one of 125, none. */
TH_HOST_TEST(faster_than_the_peak)
{
    for (int low = 0; low < 2; low++) {
        made_up all;
        make(&all, "quick", false, low ? 70 : 125);
        const int shapes = (int)all.options.request.shape_count;
        char *const text = printed(&all, NULL);
        assert_int_equal(count_words(text, NOTE), low ? 2 * shapes : 0);
        assert_int_equal(count_words(text, low ? "1.143  " NOTE : " 0.640\n"), shapes);
        free(text);
        json_t *const object = bench_json(all.options.request.shape_count, &all.device, 1);
        assert_non_null(object);
        const json_t *const cases = json_object_get(object, "cases");
        assert_int_equal((int)json_array_size(cases), 3 * shapes);
        for (size_t i = 0; i < json_array_size(cases); i++) {
            const json_t *const one = json_array_get(cases, i), *const note = json_object_get(one, "peak_note");
            const double part = json_number_value(json_object_get(one, "fraction_of_peak"));
            assert_true(fabs(part - (100 - 20 * (double)(i % 3)) / (low ? 70 : 125)) < 1e-6);
            if (part > 1)
                assert_string_equal(json_string_value(note), NOTE);
            else
                assert_true(json_is_null(note));
        }
        json_decref(object);
        release(&all);
    }
}

/* At their rates MGK and sMGK with half the heads take less and more time than softmax, at every size. */
TH_HOST_TEST(closing_sentences)
{
    made_up all;
    char *text = NULL, words[64];
    size_t size = 0;
    make(&all, "quick", false, 125);
    FILE *const stream = open_memstream(&text, &size);
    assert_non_null(stream);
    bench_print_closing(&all.options, &all.device, stream);
    assert_int_equal(fclose(stream), 0);
    for (int mgk = 0; mgk < 2; mgk++) {
        const int shapes = (int)all.options.request.shape_count;
        snprintf(words, sizeof(words), "), fastest at %d of %d sizes.\n", mgk ? shapes : 0, shapes);
        assert_int_equal(count_words(text, words), 1);
    }
    free(text);
    release(&all);
}

/* What is printed without --verbose: the table, the closing sentences; for free(). */
static char *printed_short(const made_up *all)
{
    char *text = NULL;
    size_t size = 0;
    FILE *const stream = open_memstream(&text, &size);
    assert_non_null(stream);
    bench_print_device(&all->device, stream);
    bench_print_table(&all->device, all->options.request.shape_count, stream);
    bench_print_closing(&all->options, &all->device, stream);
    assert_int_equal(fclose(stream), 0);
    return text;
}

/* The default run: at most 30 lines, also on a busy machine, with all figures of a case in its line. */
TH_HOST_TEST(short_table)
{
    made_up all;
    make(&all, "short", true, 70);
    bench_case *const one = &all.device.groups[0].cases[1];
    const double median = one->time_ms.median;
    char words[128];
    char *text = printed_short(&all);
    const int lines = count_words(text, "\n");
    assert_int_equal(count_words(text, "busy"), 0);
    assert_int_equal(count_words(text, "  mgk 4  "), 3);
    assert_int_equal(count_words(text, "  0.779 "), 1); /* the paper's ratio of MGK to softmax */
    assert_int_equal(count_words(text, "the paper's batch: 32)"), 2);
    assert_int_equal(count_words(text, NOTE "\n"), 12); /* 100 and 80 GFLOP/s of 70 */
    assert_int_equal(count_words(text, "measured peaks: FMA 70.0"), 1);
    free(text);
    one->time_ms.max = 4 * median; /* without a change of the median */
    text = printed_short(&all);
    assert_int_equal(
        count_words(text, "busy in 1 of 18 cases (median / shortest up to 1.0, longest / median up to 4.0): end"), 1);
    assert_true(lines + 1 == count_words(text, "\n") && lines + 1 <= 30);
    free(text);
    one->time_ms = (tool_spread){median, median / 1.5, median};
    text = printed_short(&all);
    snprintf(words, sizeof words, "(median / shortest up to 1.5, longest / median up to 1.0)");
    assert_int_equal(count_words(text, words), 1);
    assert_int_equal(count_words(text, "    33%"), 1);
    free(text);
    one->repetitions = 0;
    one->refused = true;
    snprintf(one->reason, sizeof one->reason, "too large");
    text = printed_short(&all);
    assert_int_equal(count_words(text, "  mgk 4: not measured: too large\n"), 1);
    free(text);
    release(&all);
}

/* Buffers that the caches may hold are told. */
TH_HOST_TEST(small_buffers)
{
    made_up all;
    make(&all, "quick", false, 100);
    char *text = printed(&all, NULL);
    assert_null(strstr(text, "caches may have helped"));
    free(text);
    all.device.peaks.wanted_bytes *= 2;
    text = printed(&all, NULL);
    assert_non_null(strstr(text, "caches may have helped"));
    free(text);
    release(&all);
}

/* Too large for the device, or for the check on the host: no case, no empty tables, no peaks that were not measured. */
TH_HOST_TEST(too_little_memory)
{
    static const uint64_t device_bytes[] = {1 << 20, UINT64_MAX};
    static const char *const words[] = {"the device has 1 MB", "of the host's memory"};
    for (size_t i = 0; i < TH_COUNT(words); i++) {
        const char *const sizes[BENCH_SIZE_OPTION_COUNT] = {
            [BENCH_SIZE_LENGTH] = "1000000000", [BENCH_SIZE_HEAD_SIZE] = "512", [BENCH_SIZE_WINDOW] = "7,-1"};
        const bench_choice choice = {.sizes = sizes, .variants = "softmax"};
        made_up all = {.device = {.tool = {.info = {.device_class = CLMGK_DEVICE_GPU,
                                                    .global_memory_bytes = device_bytes[i],
                                                    .max_allocation_bytes = device_bytes[i]}}}};
        bench_request *const request = &all.options.request;
        tool_error error = {.message = ""};
        unsigned suite = 0;
        assert_int_equal(bench_parse_choice(&choice, request, &suite, &error), TOOL_DONE);
        request->passes[request->pass_count++] = BENCH_FORWARD;
        assert_int_equal(bench_make_groups(request, false, &all.device.groups, &error), TOOL_DONE);
        assert_false(bench_fits(&all.device.tool.info, &all.device.groups[0]));
        char *const text = printed(&all, &all.device.groups[0]);
        assert_int_equal(count_words(text, words[i]), 1);
        assert_int_equal(count_words(text, "median ms"), 0);
        free(text);
        json_t *const object = bench_json(1, &all.device, 1);
        assert_int_equal(json_array_size(json_object_get(object, "failures")), 1);
        assert_true(
            json_is_null(json_object_get(json_array_get(json_object_get(object, "devices"), 0), "peak_fma_gflops")));
        json_decref(object);
        release(&all);
    }
}

/* The default run begins beside the MGK paper's Table 7, with a smaller batch on CPUs, and says so. */
TH_HOST_TEST(short_suite)
{
    for (int is_short = 0; is_short < 2; is_short++) {
        made_up all;
        make(&all, "short", is_short, 100);
        const bench_group *const first = &all.device.groups[0];
        assert_string_equal(first->shape->name, "lra-retrieval");
        assert_int_equal(first->cases[0].desc.batch, first->batch);
        assert_true(is_short ? first->batch < 32 : first->batch == 32);
        char *const text = printed(&all, first);
        assert_non_null(strstr(text, "Beside the paper"));
        assert_int_equal(count_words(text, "--suite paper"), is_short);
        assert_int_equal(count_words(text, "a layer of width 64;"), 1);
        assert_int_equal(count_words(text, "    0.066 "), 1); /* millions of parameters: 4 * 8 * 32 * 64 */
        assert_int_equal(count_words(text, "0.779"), 1);      /* the paper's ratio of MGK to softmax: 0.278 / 0.357 */
        free(text);
        release(&all);
    }
}

/* The paper's Table 7 of the linear family, with ratios to linear attention; half the heads have half the products. */
TH_HOST_TEST(linear_suite)
{
    made_up all;
    make(&all, "linear", false, 125);
    const bench_group *const first = &all.device.groups[0];
    assert_string_equal(first->shape->name, "lra-retrieval");
    assert_int_equal(first->count, 3);
    char *const text = printed(&all, first);
    assert_int_equal(count_words(text, "Beside the paper"), 1);
    assert_int_equal(count_words(text, " 0.782 "), 1); /* the paper's ratio of MLK to linear: 0.043 / 0.055 */
    assert_int_equal(count_words(text, " 0.764 "), 1); /* of sMLK: 0.042 / 0.055 */
    assert_int_equal(count_words(text, "  mlk 4 / linear 8: 0.625\n"), 1); /* half the products, at 80 GFLOP/s */
    assert_int_equal(count_words(text, "  smlk 4 / linear 8: 0.833\n"), 1);
    free(text);
    json_t *const object = bench_json(all.options.request.shape_count, &all.device, 1);
    assert_non_null(object);
    const json_t *const cases = json_object_get(object, "cases");
    for (size_t i = 0; i < json_array_size(cases); i++) {
        static const double ratios[] = {1, 0.5 * 100 / 80, 0.5 * 100 / 60};
        const json_t *const one = json_array_get(cases, i);
        assert_true(fabs(json_number_value(json_object_get(one, "ratio_to_linear")) - ratios[i % 3]) < 1e-6);
        assert_true(json_is_null(json_object_get(one, "ratio_to_baseline")));
        const bool state = json_is_true(json_object_get(one, "state"));
        assert_true(state == (json_number_value(json_object_get(one, "length")) == 1));
        assert_true(state == json_is_real(json_object_get(one, "state_fraction_of_copy")));
    }
    json_decref(object);
    release(&all);
}

static void draw(const made_up *all, const char *path, tool_error *error)
{
    tool_outputs *outputs = NULL;
    size_t index = 0;
    assert_int_equal(tool_outputs_create(&outputs, error), TOOL_DONE);
    assert_int_equal(tool_outputs_add(outputs, "plot", path, &index, error), TOOL_DONE);
    assert_int_equal(bench_plot(&all->options, &all->device, 1, outputs, index, error), TOOL_DONE);
    tool_outputs_destroy(outputs);
}

/* The picture has the names of shapes and variants, the paper's points, and the mark. */
/* Each round has all cases, and none follows one other case more often than another. */
TH_HOST_TEST(rounds)
{
    enum { MOST = 9 };
    for (size_t count = 2; count <= MOST; count++) {
        size_t after[MOST][MOST] = {{0}};
        for (size_t round = 0; round < 2 * count; round++) {
            unsigned seen = 1U << bench_case_of_round(round, 0, count);
            for (size_t n = 1; n < count; n++) {
                const size_t one = bench_case_of_round(round, n, count);
                seen |= 1U << one;
                after[one][bench_case_of_round(round, n - 1, count)]++;
            }
            assert_int_equal(seen, (1U << count) - 1);
        }
        for (size_t flat = 0; flat < count * count; flat++)
            assert_int_equal(after[flat / count][flat % count], flat / count == flat % count ? 0 : 2);
    }
}

TH_HOST_TEST(picture)
{
    static const char *const words[] = {"lra-retrieval", "softmax", "mgk, half the heads", "time / softmax",
                                        "MGK paper, Table 7"};
    tool_error error = {.message = ""};
    if (tool_gnuplot_check(&error) != TOOL_DONE)
        skip();
    for (int low = 0; low < 2; low++) {
        char path[] = "test_bench_results_XXXXXX";
        char text[1 << 18] = {0};
        made_up all;
        make(&all, "paper", false, low ? 70 : 125);
        const int descriptor = mkstemp(path);
        assert_true(descriptor >= 0);
        assert_int_equal(close(descriptor), 0);
        draw(&all, path, &error);
        FILE *const stream = fopen(path, "rb");
        assert_non_null(stream);
        const size_t size = fread(text, 1, sizeof(text) - 1, stream);
        assert_true(size > 0 && size < sizeof(text) - 1);
        assert_int_equal(fclose(stream), 0);
        assert_int_equal(remove(path), 0);
        for (size_t i = 0; i < TOOL_COUNT(words); i++)
            assert_non_null(strstr(text, words[i]));
        assert_int_equal(count_words(text, NOTE), low);
        release(&all);
    }
}
