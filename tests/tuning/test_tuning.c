/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kernel parameters and the tuning cache: tables, valid and damaged files, the order of lookup, and the choices of
 * plans.
 *
 * With arguments this program is one of several processes on one cache (processes_share_a_file).
 */
#include "attention/plan.h"
#include "engine/engine.h"
#include "engine/lane/tunables.h"
#include "harness/harness.h"
#include "harness/scratch.h"
#include "tuning/entries.h"
#include "tuning/tunables.h"

#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

MGK_TUNABLE_NAMES(MGK_LANE_TUNABLES)

/* ---- helpers --------------------------------------------------------------------------------------------------- */

typedef struct fixture {
    char root[SCRATCH_PATH];   /* cache_dir */
    char folder[SCRATCH_PATH]; /* root/tuning */
    char file[SCRATCH_PATH];
    th_session *session;
} fixture;

static int set_up(void **state)
{
    fixture *const self = calloc(1, sizeof(*self));
    assert_non_null(self);
    self->session = *state; /* the group's */
    scratch_create(self->root);
    scratch_join(self->folder, self->root, "tuning");
    scratch_join(self->file, self->folder, "tuning.txt");
    *state = self;
    return 0;
}

#define CACHE_TEST(name)                                                                                               \
    TH_TEST_OF(name, fixture *self, .session = true, .set_up = set_up, .tear_down = scratch_tear_down)

static void write_file(const fixture *self, const char *text)
{
    (void)mkdir(self->folder, S_IRWXU);
    scratch_write(self->file, text, strlen(text));
}

/* The file's text, to be freed. */
static char *read_file(const fixture *self)
{
    size_t length = 0;
    char *const bytes = scratch_read(self->file, &length);
    char *const text = realloc(bytes, length + 1);
    assert_non_null(text);
    text[length] = '\0';
    return text;
}

static void expect_file(const fixture *self, const char *expected)
{
    char *const text = read_file(self);
    assert_string_equal(text, expected);
    free(text);
}

static clmgk_tuning_info get_info(const fixture *self)
{
    clmgk_tuning_info info = CLMGK_TUNING_INFO_INIT;
    th_expect_ok(clmgk_tuning_get_info(self->root, &info, &th_error));
    return info;
}

static void import_text(const fixture *self, const char *text, size_t expected)
{
    size_t taken = 77;
    th_expect_ok(clmgk_tuning_import(self->root, text, strlen(text), &taken, &th_error));
    assert_int_equal(taken, expected);
}

#define DEVICE_1                                                                                                       \
    "device id=1 name=\"A \\\"B\\\" \\\\ C\" platform=\"P\" driver=\"1.0\" vendor=\"V\" class=cpu units=4 "            \
    "architecture=\"x86-64 avx2\"\n"
#define DEVICE_2                                                                                                       \
    "device id=2 name=\"D\" platform=\"P\" driver=\"1.0\" vendor=\"V\" class=gpu units=8 architecture=\"D\"\n"
#define ENTRY(device, date, parameters, near)                                                                          \
    "entry device=" device " date=" date " operation=\"forward\" choice=\"lane\" parameters=\"" parameters             \
    "\" time_ns=1500000 default_ns=2000000 bucket=\"variant=mgk\" near=\"" near "\"\n"
#define ENTRY_OF(operation, bucket, time, defaults)                                                                    \
    "entry device=1 date=" EARLY " operation=\"" operation "\" choice=\"lane\" parameters=\"\" time_ns=" #time         \
    " default_ns=" #defaults " bucket=\"" bucket "\" near=\"*\"\n"
#define EARLY  "2026-01-31T23:59:59Z"
#define LATER  "2026-02-01T00:00:00Z"
#define HEADER "clmgk-tuning 1\n"

static const char small_file[] = HEADER DEVICE_1 ENTRY("1", EARLY, "tile=32,unroll=2", "rows=9 keys=9 tasks=3")
    ENTRY("1", LATER, "", "*") DEVICE_2 ENTRY("2", EARLY, "tile=64", "rows=9 keys=9 tasks=3");

/* ---- tables ---------------------------------------------------------------------------------------------------- */

static bool is_value(const clmgk_tunable *tunable, int32_t value)
{
    bool found = false;
    for (size_t i = 0; i < tunable->value_count; i++)
        found = found || tunable->values[i] == value;
    return found;
}

TH_HOST_TEST(tables_are_sound)
{
    size_t tables = 0;
    for (const char *name; (name = clmgk_tunable_table(tables)) != NULL; tables++) {
        clmgk_tunable list[MGK_MAX_TUNABLES] = {CLMGK_TUNABLE_INIT};
        size_t count = 0;
        th_expect_ok(clmgk_tunable_list(name, list, MGK_MAX_TUNABLES, &count, &th_error));
        assert_in_range(count, 1, MGK_MAX_TUNABLES);
        for (size_t i = 0; i < count; i++) {
            assert_in_range(list[i].value_count, 1, CLMGK_TUNABLE_VALUES);
            assert_true(list[i].name[0] && list[i].meaning[0]);
            assert_true(list[i].cpu_default == 0 || is_value(&list[i], list[i].cpu_default));
            assert_true(list[i].gpu_default == 0 || is_value(&list[i], list[i].gpu_default));
            for (size_t v = 1; v < list[i].value_count; v++)
                assert_true(list[i].values[v - 1] < list[i].values[v]);
            assert_true(i == 0 || strcmp(list[i].name, list[i - 1].name) != 0);
        }
        size_t fewer = 0;
        clmgk_tunable first = CLMGK_TUNABLE_INIT;
        th_expect_ok(clmgk_tunable_list(name, &first, 1, &fewer, &th_error));
        assert_int_equal(fewer, count);
        assert_string_equal(first.name, list[0].name);
    }
    assert_true(tables >= 2);
}

TH_HOST_TEST(sets_are_checked)
{
    static const char good[] =
        "row-threads=8,key-threads=16,rows=2,keys=2,features=16,values=16,direct=0,splits=1,split-from=0";
    assert_string_equal(clmgk_tunable_constraint("simt", 0), "(key_threads * keys) % values == 0");
    assert_non_null(strstr(clmgk_tunable_constraint("simt", 1), "<= 65536"));
    assert_null(clmgk_tunable_constraint("simt", 2));
    assert_null(clmgk_tunable_constraint("nothing", 0));
    assert_null(clmgk_tunable_constraint(NULL, 0));
    th_expect_ok(clmgk_tunable_check("simt", good, &th_error));
    /* the most that a GPU's defaults take; 512 work-items with few registers; many registers with 256 */
    static const char *const fit[] = {
        "row-threads=8,key-threads=16,rows=4,keys=4,features=16,values=16,direct=0,splits=1,split-from=0",
        "row-threads=32,key-threads=16,rows=2,keys=4,features=16,values=16,direct=0,splits=1,split-from=0",
        "row-threads=16,key-threads=16,rows=8,keys=8,features=16,values=16,direct=0,splits=1,split-from=0",
    };
    for (size_t i = 0; i < TH_COUNT(fit); i++)
        th_expect_ok(clmgk_tunable_check("simt", fit[i], &th_error));
    static const struct {
        const char *text, *words;
    } bad[] = {
        {"row-threads=8,key-threads=2,rows=2,keys=2,features=16,values=16,direct=0,splits=1,split-from=0",
         "key-threads=2,keys=2,values=16"},
        {"row-threads=8,key-threads=16,rows=2,keys=2,features=16,values=16,direct=0,split-from=0", "splits"},
        /* 512 x 168 registers */
        {"row-threads=32,key-threads=16,rows=4,keys=4,features=16,values=16,direct=0,splits=1,split-from=0",
         "<= 65536"},
        {"row-threads=7,key-threads=16,rows=2,keys=2,features=16,values=16,direct=0,splits=1,split-from=0",
         "row-threads=7"},
        {"lanes=8", "\"lanes=8\": expected name=value with a name of \"simt\": row-threads, key-threads"},
        {"row-threads", "row-threads"},
        {"row-threads=", "row-threads="},
        {"row-threads=8x", "row-threads=8x"},
        {"", "row-threads"},
    };
    for (size_t i = 0; i < TH_COUNT(bad); i++)
        th_expect_error(clmgk_tunable_check("simt", bad[i].text, &th_error), CLMGK_ERROR_INVALID_VALUE, bad[i].words);
}

/* The linear family's tables lack parameters that its kernels ignore; constraints that name these hold. */
TH_HOST_TEST(unused_parameters_are_not_listed)
{
    static const struct {
        const char *table, *names[6];
    } tables[] = {{"lane-linear", {"lanes", "splits", "unit", "chunk", "feature-block"}},
                  {"simt-linear", {"row-threads", "key-threads", "splits", "chunk", "feature-block"}},
                  {"matrix-linear", {"warps", "splits", "unit", "chunk", "feature-block"}}};
    for (size_t n = 0; n < TH_COUNT(tables); n++) {
        clmgk_tunable list[MGK_MAX_TUNABLES] = {CLMGK_TUNABLE_INIT};
        size_t count = 0;
        th_expect_ok(clmgk_tunable_list(tables[n].table, list, MGK_MAX_TUNABLES, &count, &th_error));
        assert_int_equal(count, 5);
        for (size_t i = 0; i < count; i++)
            assert_string_equal(list[i].name, tables[n].names[i]);
    }
    th_expect_ok(clmgk_tunable_check("lane-linear", "lanes=8,splits=2,unit=0,chunk=16,feature-block=32", &th_error));
    th_expect_ok(clmgk_tunable_check("simt-linear", "row-threads=8,key-threads=16,splits=2,chunk=16,feature-block=32",
                                     &th_error));
    th_expect_ok(clmgk_tunable_check("matrix-linear", "warps=2,splits=2,unit=1,chunk=16,feature-block=32", &th_error));
    th_expect_error(clmgk_tunable_check("lane-linear", "lanes=8,splits=2,unit=0,chunk=16", &th_error),
                    CLMGK_ERROR_INVALID_VALUE, "feature-block");
}

TH_HOST_TEST(source_names)
{
    static const char *const names[] = {"class", NULL, "architecture", "device", "nearest", "bucket", "caller"};
    for (int i = 0; i < 7; i++)
        if (names[i])
            assert_string_equal(clmgk_tuning_source_name((clmgk_tuning_source)i), names[i]);
    assert_null(clmgk_tuning_source_name((clmgk_tuning_source)1));
    assert_null(clmgk_tuning_source_name((clmgk_tuning_source)7));
    assert_null(clmgk_tuning_source_name((clmgk_tuning_source)-1));
}

/* The lane engine's tiles where two units make multiply-adds: longer if a block fills them and its keys fit beside
 * the rest. Without products: a backward pass. */
TH_HOST_TEST(tiles_of_two_units)
{
    static const struct {
        bool two_units;
        int rows, widest, products, tile;
    } cases[] = {{true, 65, 64, 1, 128},  {true, 64, 64, 1, 64},    {true, 65, 96, 1, 64},   {true, 2048, 32, 2, 128},
                 {true, 2048, 64, 2, 64}, {true, 2048, 64, 0, 128}, {true, 2048, 96, 0, 64}, {false, 2048, 64, 1, 64}};
    for (size_t i = 0; i < TH_COUNT(cases); i++) {
        const mgk_device_facts facts = {
            .info = {.device_class = CLMGK_DEVICE_CPU, .compute_units = 2, .native_float_lanes = 16},
            .x86_two_units = cases[i].two_units};
        const mgk_footprint footprint = {.forward = cases[i].products > 0,
                                         .rows = cases[i].rows,
                                         .heads = 8,
                                         .problems = 8,
                                         .widest = cases[i].widest,
                                         .products = cases[i].products};
        mgk_tunables tunables = mgk_engine_tunables(&mgk_engine_lane, NULL);
        mgk_block block;
        th_expect_ok(mgk_engine_lane.fit(&footprint, &facts, &tunables, &block, &th_error));
        assert_int_equal(block.tile, cases[i].tile);
        assert_int_equal(mgk_tunable_get(&tunables, MGK_NAMED(tile)), cases[i].tile);
    }
}

/* The compiler checks names of parameters in code; this test checks the names in lists. A name that a set lacks has no
 * index. */
TH_HOST_TEST(names_of_parameters)
{
    mgk_tunables sets[MGK_ENGINES];
    for (size_t e = 0; e < MGK_ENGINES; e++) {
        sets[e] = mgk_engine_tunables(mgk_engines[e], NULL);
        const size_t splits = mgk_tunable_index(&sets[e], MGK_NAMED(splits));
        assert_true(splits < mgk_tunables_count(&sets[e]));
        assert_string_equal(mgk_tunables_at(&sets[e], splits)->shown.name, "splits");
    }
    for (int variant = 0; mgk_family_of((clmgk_variant)variant) != NULL; variant++) {
        const mgk_added_tunables *const added = mgk_family_of((clmgk_variant)variant)->added;
        for (size_t i = 0; added != NULL && added->unused != NULL && added->unused[i] != NULL; i++) {
            bool found = false;
            for (size_t e = 0; e < MGK_ENGINES; e++)
                found = found || mgk_tunable_index(&sets[e], (mgk_tunable_name){added->unused[i]}) < MGK_MAX_TUNABLES;
            assert_true(found);
        }
    }
    mgk_tunables lane = mgk_engine_tunables(&mgk_engine_lane, NULL);
    const mgk_tunables before = lane;
    for (size_t i = 0; i < 2; i++) {
        const mgk_tunable_name name = {i == 0 ? "split" : "splitss"};
        mgk_tunable_default(&lane, name, 7);
        mgk_tunable_at_most(&lane, name, 7);
        assert_int_equal(mgk_tunable_get(&lane, name), 0);
        assert_int_equal(mgk_tunable_base(&lane, name, CLMGK_DEVICE_CPU), 0);
    }
    assert_memory_equal(&lane, &before, sizeof(lane));
}

/* The lane engine's form for a last panel of few rows; by default a panel has 32. */
TH_HOST_TEST(short_last_panels)
{
    static const struct {
        int rows, narrowest, has_form, is_short;
    } cases[] = {{49, 32, 1, 1}, {49, 32, 0, 0}, {49, 8, 1, 0},   {48, 16, 1, 1}, {50, 32, 1, 0},
                 {64, 32, 1, 0}, {65, 32, 1, 1}, {113, 32, 1, 1}, {129, 32, 1, 0}};
    for (size_t i = 0; i < TH_COUNT(cases); i++) {
        const mgk_device_facts facts = {
            .info = {.device_class = CLMGK_DEVICE_CPU, .compute_units = 2, .native_float_lanes = 16}};
        const mgk_footprint footprint = {.forward = true,
                                         .short_panels = cases[i].has_form,
                                         .rows = cases[i].rows,
                                         .heads = 8,
                                         .problems = 8,
                                         .narrowest = cases[i].narrowest,
                                         .widest = 32};
        mgk_tunables tunables = mgk_engine_tunables(&mgk_engine_lane, NULL);
        mgk_block block;
        th_expect_ok(mgk_engine_lane.fit(&footprint, &facts, &tunables, &block, &th_error));
        assert_int_equal(block.flags.SHORT_PANEL, cases[i].is_short);
    }
}

/* Two lines for a pair of steps: measured on a Zen 5 alone. */
TH_HOST_TEST(cpus_that_fetch_early)
{
    static const struct {
        const char *vendor;
        bool two_units, eager;
    } cases[] = {{"AuthenticAMD", true, true}, {"AuthenticAMD", false, false}, {"GenuineIntel", true, false}};
    for (size_t i = 0; i < TH_COUNT(cases); i++) {
        mgk_device_facts facts = {
            .runtime = MGK_RUNTIME_POCL, .x86_avx512dq = true, .x86_two_units = cases[i].two_units};
        snprintf(facts.info.vendor, sizeof(facts.info.vendor), "%s", cases[i].vendor);
        facts.info.native_float_lanes = 16;
        facts.info.device_class = CLMGK_DEVICE_CPU;
        const mgk_footprint footprint = {
            .forward = true, .rows = 64, .heads = 1, .problems = 1, .narrowest = 32, .widest = 32};
        mgk_tunables tunables = mgk_engine_tunables(&mgk_engine_lane, NULL);
        mgk_block block;
        th_expect_ok(mgk_engine_lane.fit(&footprint, &facts, &tunables, &block, &th_error));
        assert_int_equal(block.flags.EAGER_LINES, cases[i].eager);
    }
}

/* Product loops of narrow heads have more copies. */
TH_HOST_TEST(copies_of_narrow_heads)
{
    static const struct {
        int lanes, widest, unroll;
    } cases[] = {{16, 8, 4}, {16, 16, 2}, {16, 128, 2}, {8, 4, 4}, {8, 8, 2}};
    for (size_t i = 0; i < TH_COUNT(cases); i++) {
        const mgk_device_facts facts = {.info = {.device_class = CLMGK_DEVICE_CPU,
                                                 .compute_units = 2,
                                                 .native_float_lanes = (uint32_t)cases[i].lanes}};
        const mgk_footprint footprint = {
            .forward = true, .rows = 64, .heads = 8, .problems = 8, .widest = cases[i].widest};
        mgk_tunables tunables = mgk_engine_tunables(&mgk_engine_lane, NULL);
        mgk_block block;
        th_expect_ok(mgk_engine_lane.fit(&footprint, &facts, &tunables, &block, &th_error));
        assert_int_equal(mgk_tunable_get(&tunables, MGK_NAMED(unroll)), cases[i].unroll);
    }
}

/* ---- lookup ---------------------------------------------------------------------------------------------------- */

TH_HOST_TEST(sizes_are_rounded_to_powers)
{
    static const struct {
        int64_t size;
        int power;
    } cases[] = {{-5, 0},
                 {0, 0},
                 {1, 0},
                 {2, 1},
                 {3, 2},
                 {5, 2},
                 {6, 3},
                 {11, 3},
                 {12, 4},
                 {22, 4},
                 {23, 5},
                 {1000, 10},
                 {(INT64_C(1) << 31) - 1, 31},
                 {INT64_C(1) << 31, 31},
                 {INT64_C(1) << 40, 40},
                 {INT64_MAX, 63}};
    for (size_t i = 0; i < TH_COUNT(cases); i++)
        assert_int_equal(mgk_tuning_bucket(cases[i].size), cases[i].power);
}

static mgk_device_facts facts_of(const char *name, const char *driver, const char *vendor, const char *architecture)
{
    mgk_device_facts facts = {.info = {.device_class = CLMGK_DEVICE_GPU, .compute_units = 8}};
    snprintf(facts.info.name, sizeof(facts.info.name), "%s", name);
    snprintf(facts.info.platform, sizeof(facts.info.platform), "platform");
    snprintf(facts.info.driver, sizeof(facts.info.driver), "%s", driver);
    snprintf(facts.info.vendor, sizeof(facts.info.vendor), "%s", vendor);
    snprintf(facts.info.architecture, sizeof(facts.info.architecture), "%s", architecture);
    return facts;
}

static mgk_tuning_key key_of(const char *exact, int rows, int keys)
{
    mgk_tuning_key key = {.operation = "forward", .axes = 2, .axis = {{"rows", rows}, {"keys", keys}}};
    snprintf(key.exact, sizeof(key.exact), "%s", exact);
    return key;
}

/* An entry named by its only parameter; rows -1: for all shapes. */
static void add(mgk_tuning *tuning, const mgk_device_facts *facts, const char *name, int rows, int keys, bool shipped)
{
    mgk_tuning_key key = key_of("variant=mgk", rows, keys);
    const clmgk_tuned tuned = {"lane", name, 1.0, 2.0};
    const mgk_tuning_device device = mgk_tuning_device_of(facts);
    mgk_tuning_entry entry;
    if (rows < 0)
        key.axes = 0;
    th_expect_ok(mgk_tuning_entry_of(&key, &tuned, &entry, &th_error));
    entry.shipped = shipped;
    snprintf(entry.date, sizeof(entry.date), EARLY);
    th_expect_ok(mgk_tuning_set_put(&tuning->set, &device, &entry, false, NULL, &th_error));
}

typedef struct expected_choice {
    const char *name;
    clmgk_tuning_source source;
} expected_choice;

static void expect_order(const mgk_tuning *tuning, const mgk_device_facts *facts, const mgk_tuning_key *key,
                         const expected_choice *expected, size_t count)
{
    mgk_tuning_choice choice;
    for (size_t i = 0; i < count; i++) {
        if (!mgk_tuning_find(tuning, facts, key, i, &choice) || strcmp(choice.parameters, expected[i].name) != 0)
            fail_msg("number %zu: expected \"%s\"", i, expected[i].name);
        assert_int_equal(choice.source, expected[i].source);
        assert_string_equal(choice.choice, "lane");
    }
    assert_false(mgk_tuning_find(tuning, facts, key, count, &choice));
    assert_false(mgk_tuning_find(tuning, facts, key, count + 7, &choice));
}

static mgk_tuning *empty_tuning(void)
{
    mgk_tuning *tuning = NULL;
    th_expect_ok(mgk_tuning_read(NULL, NULL, &tuning, &th_error));
    tuning->set.count = 0; /* whatever the library ships */
    return tuning;
}

/* One entry of every level, stored in no order, and some that must not be used. */
TH_HOST_TEST(levels_are_tried_in_order)
{
    const mgk_device_facts own = facts_of("own", "2", "vendor", "arch");
    const mgk_device_facts updated = facts_of("own", "1", "vendor", "arch");
    const mgk_device_facts sibling = facts_of("sibling", "2", "vendor", "arch");
    const mgk_device_facts cousin = facts_of("cousin", "2", "vendor", "other arch");
    const mgk_device_facts namesake = facts_of("own", "2", "vendor", "other arch");
    mgk_device_facts elsewhere = own, smaller = own, cpu = sibling;
    snprintf(elsewhere.info.platform, sizeof(elsewhere.info.platform), "other platform");
    smaller.info.compute_units = 4;
    cpu.info.device_class = CLMGK_DEVICE_CPU;
    cpu.info.compute_units = 9;
    mgk_tuning *const tuning = empty_tuning();
    const mgk_tuning_key key = key_of("variant=mgk", 10, 10);

    add(tuning, &cousin, "vendor", 10, 10, false);
    add(tuning, &namesake, "namesake", 10, 10, false);
    add(tuning, &elsewhere, "elsewhere", 10, 10, false);
    add(tuning, &cpu, "other class", 10, 10, false);
    expect_order(tuning, &own, &key, NULL, 0);
    add(tuning, &smaller, "units", 9, 10, false);
    add(tuning, &updated, "driver", 10, 10, false);
    add(tuning, &sibling, "sibling", -1, 0, false);
    add(tuning, &own, "device", -1, 0, false);
    add(tuning, &own, "shipped near", 10, 9, true);
    add(tuning, &sibling, "sibling shipped near", 10, 9, true);
    add(tuning, &sibling, "sibling shipped", 10, 10, true);
    add(tuning, &sibling, "sibling near", 10, 9, false);
    add(tuning, &own, "near 2", 9, 9, false);
    add(tuning, &own, "near 1", 10, 11, false);
    add(tuning, &own, "near 4", 8, 12, false);
    add(tuning, &own, "too far", 10, 13, false);
    add(tuning, &own, "shipped", 10, 10, true);
    add(tuning, &own, "bucket", 10, 10, false);
    static const expected_choice order[] = {
        {"bucket", CLMGK_TUNING_BUCKET},
        {"shipped", CLMGK_TUNING_BUCKET},
        {"near 1", CLMGK_TUNING_NEAREST},
        {"near 2", CLMGK_TUNING_NEAREST},
        {"near 4", CLMGK_TUNING_NEAREST},
        {"device", CLMGK_TUNING_DEVICE},
        {"driver", CLMGK_TUNING_ARCHITECTURE},
        {"units", CLMGK_TUNING_ARCHITECTURE},
        {"sibling near", CLMGK_TUNING_ARCHITECTURE},
        {"sibling", CLMGK_TUNING_ARCHITECTURE},
        {"sibling shipped", CLMGK_TUNING_ARCHITECTURE},
    };
    expect_order(tuning, &own, &key, order, TH_COUNT(order));
    /* other words, other operations, other axes */
    mgk_tuning_key other = key_of("variant=smgk", 10, 10);
    expect_order(tuning, &own, &other, NULL, 0);
    other = key;
    other.operation = "backward";
    expect_order(tuning, &own, &other, NULL, 0);
    other = key;
    other.axis[1].name = "columns";
    static const expected_choice shapeless[] = {{"device", CLMGK_TUNING_DEVICE},
                                                {"sibling", CLMGK_TUNING_ARCHITECTURE}};
    expect_order(tuning, &own, &other, shapeless, TH_COUNT(shapeless));
    other.axes = 0;
    expect_order(tuning, &own, &other, shapeless, TH_COUNT(shapeless));
    mgk_tuning_choice choice;
    assert_false(mgk_tuning_find(NULL, &own, &key, 0, &choice));
    mgk_tuning_free(NULL, tuning);
}

/* ---- the file -------------------------------------------------------------------------------------------------- */

CACHE_TEST(entries_are_listed)
{
    clmgk_tuning_entry entries[3] = {CLMGK_TUNING_ENTRY_INIT};
    size_t count = 0;
    write_file(self, small_file);
    th_expect_ok(clmgk_tuning_list(self->root, NULL, entries, 3, &count, &th_error));
    assert_true(count >= 3);
    assert_string_equal(entries[0].device, "A \"B\" \\ C");
    assert_string_equal(entries[0].bucket, "variant=mgk rows=9 keys=9 tasks=3");
    assert_string_equal(entries[0].parameters, "tile=32,unroll=2");
    assert_string_equal(entries[0].choice, "lane");
    assert_string_equal(entries[0].operation, "forward");
    assert_int_equal(entries[0].compute_units, 4);
    assert_true(entries[0].time_ms == 1.5 && entries[0].default_ms == 2.0);
    assert_true(entries[0].allowed && !entries[0].shipped && !entries[0].reason[0]);
    assert_string_equal(entries[1].bucket, "variant=mgk *");
    assert_string_equal(entries[2].device, "D");
    const clmgk_tuning_info info = get_info(self);
    assert_string_equal(info.path, self->folder);
    assert_int_equal(info.entries, 3);
    assert_int_equal(info.bytes, strlen(small_file));
    assert_true(info.damaged == 0 && !info.message[0]);
}

CACHE_TEST(illegal_values_are_told)
{
    static const struct {
        const char *entry, *reason;
    } cases[] = {
        {ENTRY("1", EARLY, "tile=33", "*"), "tile=33"},
        {ENTRY("1", EARLY, "nothing=1", "*"), "nothing=1"},
        {ENTRY("1", EARLY, "tile", "*"), "tile"},
    };
    for (size_t i = 0; i < TH_COUNT(cases); i++) {
        char text[2048];
        clmgk_tuning_entry entry = CLMGK_TUNING_ENTRY_INIT;
        size_t count = 0;
        snprintf(text, sizeof(text), HEADER DEVICE_1 "%s", cases[i].entry);
        write_file(self, text);
        th_expect_ok(clmgk_tuning_list(self->root, NULL, &entry, 1, &count, &th_error));
        assert_false(entry.allowed);
        assert_non_null(strstr(entry.reason, cases[i].reason));
    }
}

/* The number of complete entry lines in the first `length` bytes. The last one may lack its newline. */
static size_t whole_entries(const char *text, size_t length)
{
    size_t count = 0;
    for (const char *at = text; at < text + length;) {
        const size_t line = strcspn(at, "\n");
        count += at + line <= text + length && strncmp(at, "entry", 5) == 0;
        at += line + 1;
    }
    return count;
}

CACHE_TEST(truncated_files_keep_their_whole_lines)
{
    (void)mkdir(self->folder, S_IRWXU);
    for (size_t length = 0; length <= strlen(small_file); length++) {
        scratch_write(self->file, small_file, length);
        const clmgk_tuning_info info = get_info(self);
        assert_int_equal(info.entries, whole_entries(small_file, length));
        assert_true(info.damaged <= 1 && (info.damaged == 1) == (info.message[0] != '\0'));
    }
}

CACHE_TEST(damaged_bytes_cost_their_line_only)
{
    char text[sizeof(small_file)];
    (void)mkdir(self->folder, S_IRWXU);
    for (size_t i = 0; i < sizeof(text) - 1; i++) {
        memcpy(text, small_file, sizeof(text));
        text[i] = '\x01';
        scratch_write(self->file, text, sizeof(text) - 1);
        const clmgk_tuning_info info = get_info(self);
        /* a device's line takes its entries with it; a lost newline, two lines */
        assert_true(info.damaged >= 1 && info.damaged <= 3);
        assert_in_range(info.entries, 1, 3);
        assert_true(info.entries + info.damaged >= 2);
        assert_non_null(strstr(info.message, "line "));
    }
}

/* Drivers may give any bytes: control characters become spaces, and what is no UTF-8 becomes ?. */
TH_HOST_TEST(names_of_devices_fit_a_line)
{
    static const char *const names[][2] = {
        {"A\tB\n\x7f", "A B  "}, {"\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80", "\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80"},
        {"\xc3", "?"},           {"\xc1\x81", "??"},
        {"\xe0\x80\xaf", "???"}, {"\xf0\x80\x80\xaf", "????"},
        {"\xed\xa0\x80", "???"}, {"\xf4\x90\x80\x80", "????"},
        {"\xff", "?"},
    };
    mgk_device_facts facts = {.info = CLMGK_DEVICE_INFO_INIT};
    for (size_t i = 0; i < TH_COUNT(names); i++) {
        snprintf(facts.info.name, sizeof(facts.info.name), "%s", names[i][0]);
        assert_string_equal(mgk_tuning_device_of(&facts).name, names[i][1]);
    }
    memset(facts.info.name, 'x', sizeof(facts.info.name));
    snprintf(facts.info.name + sizeof(facts.info.name) - 3, 3, "\xc3\xa9");
    const mgk_tuning_device device = mgk_tuning_device_of(&facts);
    assert_true(strlen(device.name) < sizeof(device.name));
}

CACHE_TEST(times_of_the_calendar)
{
    static const char file[] = HEADER DEVICE_1 ENTRY("1", "2024-02-29T00:00:00Z", "", "*")
        ENTRY_OF("backward", "variant=mgk", 1, 2) DEVICE_2 ENTRY("2", "2000-02-29T23:59:60Z", "", "*");
    write_file(self, file);
    assert_int_equal(get_info(self).entries, 3);
    assert_int_equal(get_info(self).damaged, 0);
}

CACHE_TEST(lines_are_checked)
{
    static const struct {
        const char *line, *words;
    } cases[] = {
        {"nonsense\n", "\"device\" or \"entry\""},
        {"entry\n", "\"device\" or \"entry\""},
        {"entry \n", "missing"},
        {HEADER, "once"},
        {"clmgk-tuning x\n", "once"},
        {DEVICE_1, "twice"},
        {ENTRY("3", EARLY, "", "*"), "no device line"},
        {ENTRY("1", "yesterday", "", "*"), "YYYY"},
        {ENTRY("1", "2026-01-31 23:59:59Z", "", "*"), "name=value"},
        {ENTRY("1", EARLY, "", ""), "near"},
        {ENTRY("1", EARLY, "", "rows"), "near"},
        {ENTRY("1", EARLY, "", "rows=63"), "near"},
        {ENTRY("1", EARLY, "", "rows=-1"), "near"},
        {ENTRY("1", EARLY, "", "rows=1 keys=1 tasks=1 more=1 most=1"), "near"},
        {ENTRY("1", EARLY, "", "a-name-of-an-axis-that-is-long=1"), "near"},
        {ENTRY("1", EARLY, "", "rows=1 "), "near"},
        {ENTRY("1", EARLY, "", "rows=1  keys=1"), "near"},
        {ENTRY("1", EARLY, "", "rows=1 rows=2"), "near"},
        {ENTRY("1", EARLY, "", "ro;ws=1"), "near"},
        {ENTRY_OF("forward", "", 1, 2), "bucket"},
        {ENTRY_OF("forward", "mgk", 1, 2), "bucket"},
        {ENTRY_OF("forward", "variant=", 1, 2), "bucket"},
        {ENTRY_OF("forward", " variant=mgk", 1, 2), "bucket"},
        {ENTRY_OF("forward", "variant=mgk  dtype=f32", 1, 2), "bucket"},
        {ENTRY_OF("forward", "variant=mgk dtype=f32 variant=mgk", 1, 2), "bucket"},
        {ENTRY_OF("forward", "variant=mgk", 0, 2), "number"},
        {ENTRY_OF("forward", "variant=mgk", 1, 0), "number"},
        {ENTRY_OF("forward", "variant=m\x80k", 1, 2), "UTF-8"},
        {ENTRY_OF("forward", "variant=m\xc3", 1, 2), "UTF-8"},
        {ENTRY_OF("forward", "variant=m\xc0\xaf", 1, 2), "UTF-8"},
        {ENTRY_OF("forward", "variant=m\xed\xa0\x80", 1, 2), "UTF-8"},
        {ENTRY("1", "2026-99-99T99:99:99Z", "", "*"), "date"},
        {ENTRY("1", "2026-00-01T00:00:00Z", "", "*"), "date"},
        {ENTRY("1", "2026-04-31T00:00:00Z", "", "*"), "date"},
        {ENTRY("1", "2026-02-29T00:00:00Z", "", "*"), "date"},
        {ENTRY("1", "2100-02-29T00:00:00Z", "", "*"), "date"},
        {ENTRY("1", "2026-01-31T24:00:00Z", "", "*"), "date"},
        {ENTRY("1", "2026-01-31T23:60:00Z", "", "*"), "date"},
        {ENTRY("1", EARLY "\" x=\"1", "", "*"), "name=value"},
        {ENTRY("1 word=1", EARLY, "", "*"), "unknown"},
        {ENTRY("1 device=1", EARLY, "", "*"), "twice"},
        {ENTRY("x", EARLY, "", "*"), "number"},
        {ENTRY("99999999999999999999", EARLY, "", "*"), "number"},
        {"device id=7 name=\"A\n", "name=value"},
        {"entry a b c\n", "name=value"},
        {"entry a=1 b=1 c=1 d=1 e=1 f=1 g=1 h=1 i=1 j=1 k=1 l=1 m=1\n", "too many"},
    };
    for (size_t i = 0; i < TH_COUNT(cases); i++) {
        char text[4096];
        snprintf(text, sizeof(text), HEADER DEVICE_1 "# a comment\n\n%s" ENTRY("1", EARLY, "", "*"), cases[i].line);
        write_file(self, text);
        const clmgk_tuning_info info = get_info(self);
        if (info.entries != 1 || info.damaged != 1 || !strstr(info.message, cases[i].words) ||
            !strstr(info.message, "line 5: "))
            fail_msg("\"%s\": %d entries, %d damaged, \"%s\"", cases[i].line, (int)info.entries, (int)info.damaged,
                     info.message);
    }
    write_file(self, "\n" DEVICE_1 ENTRY("1", EARLY, "", "*"));
    assert_int_equal(get_info(self).entries, 1);
    assert_int_equal(get_info(self).damaged, 1);
}

/* Sizes that no honest file has. */
CACHE_TEST(sizes_are_bounded)
{
    const size_t huge = ((size_t)16 << 20) + 1;
    char *const text = malloc(huge);
    assert_non_null(text);
    memset(text, 'x', huge);
    memcpy(text, HEADER, strlen(HEADER));
    (void)mkdir(self->folder, S_IRWXU);
    scratch_write(self->file, text, huge - 1);
    assert_int_equal(get_info(self).damaged, 1);
    assert_non_null(strstr(get_info(self).message, "too long"));
    scratch_write(self->file, text, huge);
    assert_non_null(strstr(get_info(self).message, "at most 16777216"));
    th_expect_error(clmgk_tuning_import(self->root, small_file, strlen(small_file), NULL, &th_error), CLMGK_ERROR_IO,
                    "at most 16777216");
    free(text);
}

/* The cache has no entries and tells the reason; an export fails instead of being empty. */
static void expect_unread(const fixture *self, const char *reason)
{
    size_t length = 7;
    const clmgk_tuning_info info = get_info(self);
    assert_int_equal(info.entries, 0);
    assert_int_equal(info.damaged, 0);
    assert_non_null(strstr(info.message, reason));
    th_expect_error(clmgk_tuning_export(self->root, NULL, NULL, 0, &length, &th_error), CLMGK_ERROR_IO, reason);
    assert_int_equal(length, 7);
}

CACHE_TEST(newer_files_are_left_alone)
{
    static const char newer[] = "clmgk-tuning 2\nsomething else\n";
    write_file(self, newer);
    expect_unread(self, "format");
    th_expect_error(clmgk_tuning_import(self->root, small_file, strlen(small_file), NULL, &th_error), CLMGK_ERROR_IO,
                    "left alone");
    th_expect_error(clmgk_tuning_reset(self->root, NULL, &th_error), CLMGK_ERROR_IO, "left alone");
    expect_file(self, newer);
    th_expect_error(clmgk_tuning_import(self->root, newer, strlen(newer), NULL, &th_error), CLMGK_ERROR_INVALID_VALUE,
                    "format");
}

CACHE_TEST(damaged_files_are_kept_aside)
{
    static const char damaged[] = HEADER DEVICE_1 "entry cut\n" ENTRY("1", EARLY, "", "rows=1");
    char path[SCRATCH_PATH];
    size_t length = 0;
    write_file(self, damaged);
    import_text(self, small_file, 3);
    scratch_join(path, self->folder, "tuning.txt.damaged");
    char *const kept = scratch_read(path, &length);
    assert_int_equal(length, strlen(damaged));
    assert_memory_equal(kept, damaged, length);
    free(kept);
    assert_int_equal(get_info(self).entries, 4);
    assert_int_equal(get_info(self).damaged, 0);
    /* a sound file is not */
    scratch_remove(path);
    import_text(self, small_file, 0);
    assert_int_equal(scratch_count(self->folder, "damaged", NULL), 0);
}

/* ---- import and export ----------------------------------------------------------------------------------------- */

static char *export_text(const fixture *self)
{
    size_t length = 0;
    th_expect_ok(clmgk_tuning_export(self->root, NULL, NULL, 0, &length, &th_error));
    char *const text = calloc(1, length + 2);
    assert_non_null(text);
    text[length] = '!';
    th_expect_ok(clmgk_tuning_export(self->root, NULL, text, length + 1, &length, &th_error));
    assert_int_equal(text[length], '!');
    text[length] = '\0';
    return text;
}

CACHE_TEST(exports_are_imported)
{
    import_text(self, small_file, 3);
    char *const first = export_text(self);
    expect_file(self, first);
    scratch_remove(self->root);
    import_text(self, first, 3);
    char *const second = export_text(self);
    assert_string_equal(first, second);
    import_text(self, first, 0);
    expect_file(self, first);
    /* as many bytes as there is room for */
    char part[8] = "0123456";
    size_t length = 0;
    th_expect_ok(clmgk_tuning_export(self->root, NULL, part, 4, &length, &th_error));
    assert_int_equal(length, strlen(first));
    assert_memory_equal(part, "clmg456", 7);
    free(first);
    free(second);
}

/* An import without entries makes the folder and the file, or says why it can't. */
CACHE_TEST(empty_imports_write)
{
    import_text(self, HEADER, 0);
    expect_file(self, HEADER);
    struct stat facts;
    assert_int_equal(stat(self->folder, &facts), 0);
    assert_int_equal(facts.st_mode & 0777, 0700);
}

CACHE_TEST(the_later_measurement_stays)
{
    static const char early[] = HEADER DEVICE_1 ENTRY("1", EARLY, "tile=16", "rows=9");
    static const char later[] = HEADER DEVICE_1 ENTRY("1", LATER, "tile=32", "rows=9");
    static const char again[] = HEADER DEVICE_1 ENTRY("1", LATER, "tile=64", "rows=9");
    import_text(self, early, 1);
    import_text(self, later, 1);
    expect_file(self, later);
    import_text(self, early, 0);
    import_text(self, again, 0);
    expect_file(self, later);
    /* of two in one file too */
    write_file(self, HEADER DEVICE_1 ENTRY("1", LATER, "tile=32", "rows=9") ENTRY("1", EARLY, "tile=16", "rows=9"));
    char *const text = export_text(self);
    assert_string_equal(text, later);
    free(text);
}

CACHE_TEST(bad_imports_change_nothing)
{
    static const struct {
        const char *text, *words;
    } cases[] = {
        {"nonsense", "line 1"},
        {"\n", "line 1"},
        {"clmgk-tuning 2\n", "format"},
        {"clmgk-tuning 0\n", "format"},
        {DEVICE_2 ENTRY("2", LATER, "", "*"), "line 1"},
        {HEADER DEVICE_2 ENTRY("2", LATER, "", "*") "entry cut", "line 4"},
        {HEADER DEVICE_2 ENTRY("2", LATER, "", "*") ENTRY("1", LATER, "", "*"), "line 4"},
        {HEADER DEVICE_2 ENTRY("2", LATER, "", "*") ENTRY("2", LATER, "tile=17", "rows=1"), "line 4"},
        {HEADER DEVICE_1 ENTRY_OF("sideways", "variant=mgk", 1, 2), "line 3: operation: \"sideways\""},
        {HEADER DEVICE_1 ENTRY_OF("forward", "variant=mgk", 0, 0), "line 3"},
        {HEADER DEVICE_1 ENTRY("1", "2026-99-99T99:99:99Z", "", "*"), "line 3"},
    };
    import_text(self, small_file, 3);
    char *const before = read_file(self);
    for (size_t i = 0; i < TH_COUNT(cases); i++) {
        size_t taken = 77;
        th_expect_error(clmgk_tuning_import(self->root, cases[i].text, strlen(cases[i].text), &taken, &th_error),
                        CLMGK_ERROR_INVALID_VALUE, cases[i].words);
        assert_int_equal(taken, 77);
        expect_file(self, before);
    }
    /* every part of an export that does not end with a line */
    for (size_t length = 1; length < strlen(small_file); length++) {
        clmgk_error error = {0};
        const bool whole = small_file[length] == '\n' || small_file[length - 1] == '\n';
        if (whole)
            continue;
        if (clmgk_tuning_import(self->root, small_file, length, NULL, &error) != CLMGK_ERROR_INVALID_VALUE)
            fail_msg("%zu bytes are taken", length);
    }
    expect_file(self, before);
    assert_int_equal(scratch_count(self->folder, "damaged", NULL), 0);
    free(before);
}

/* Of a later version in the same format: it stays in the file, and no plan looks for it. */
CACHE_TEST(unknown_operations_stay)
{
    static const char later[] = HEADER DEVICE_1 ENTRY_OF("sideways", "variant=mgk new-word=1", 1, 2);
    clmgk_tuning_entry entry = CLMGK_TUNING_ENTRY_INIT;
    size_t count = 0;
    write_file(self, later);
    assert_int_equal(get_info(self).entries, 1);
    assert_int_equal(get_info(self).damaged, 0);
    import_text(self, small_file, 3);
    char *const text = export_text(self);
    assert_non_null(strstr(text, "operation=\"sideways\""));
    free(text);
    th_expect_ok(clmgk_tuning_list(self->root, NULL, &entry, 1, &count, &th_error));
    assert_string_equal(entry.operation, "sideways");
    assert_false(entry.allowed);
    assert_non_null(strstr(entry.reason, "operation: \"sideways\""));
}

CACHE_TEST(without_files)
{
    clmgk_tuning_info info = CLMGK_TUNING_INFO_INIT;
    size_t count = 0;
    th_expect_ok(clmgk_tuning_get_info("", &info, &th_error));
    assert_true(!info.path[0] && info.entries == 0 && info.bytes == 0);
    th_expect_ok(clmgk_tuning_list("", NULL, NULL, 0, &count, &th_error));
    th_expect_error(clmgk_tuning_import("", HEADER, strlen(HEADER), NULL, &th_error), CLMGK_ERROR_IO, "no files");
    th_expect_error(clmgk_tuning_reset("", NULL, &th_error), CLMGK_ERROR_IO, "no files");
    th_expect_ok(clmgk_tuning_get_info(self->root, &info, &th_error));
    assert_string_equal(info.path, self->folder);
    assert_int_equal(info.entries, 0);
    th_expect_ok(clmgk_tuning_reset(self->root, NULL, &th_error));
    assert_int_equal(scratch_count(self->root, "tuning", NULL), 0);
}

/* The variables that decide where the cache lies. */
TH_HOST_TEST(places)
{
    static const char *const names[] = {"CLMGK_CACHE_DIR", "XDG_DATA_HOME", "HOME"};
    static const struct {
        const char *values[3];
        const char *path;
    } cases[] = {
        {{"/a", "/b", "/c"}, "/a/tuning"},
        {{NULL, "/b", "/c"}, "/b/clmgk/tuning"},
        {{NULL, "b", "/c"}, "/c/.local/share/clmgk/tuning"},
        {{NULL, NULL, "/c"}, "/c/.local/share/clmgk/tuning"},
        {{NULL, NULL, "c"}, NULL},
        {{"", "/b", "/c"}, NULL},
    };
    char *kept[3];
    for (size_t n = 0; n < 3; n++) {
        const char *const value = getenv(names[n]);
        kept[n] = value ? strdup(value) : NULL;
    }
    for (size_t i = 0; i < TH_COUNT(cases); i++) {
        char *path = NULL;
        for (size_t n = 0; n < 3; n++)
            assert_int_equal(cases[i].values[n] ? setenv(names[n], cases[i].values[n], 1) : unsetenv(names[n]), 0);
        th_expect_ok(mgk_tuning_path(NULL, NULL, NULL, &path, &th_error));
        assert_true((path == NULL) == (cases[i].path == NULL));
        if (path)
            assert_string_equal(path, cases[i].path);
        mgk_free(NULL, path);
    }
    for (size_t n = 0; n < 3; n++) {
        assert_int_equal(kept[n] ? setenv(names[n], kept[n], 1) : unsetenv(names[n]), 0);
        free(kept[n]);
    }
    char *path = NULL;
    assert_int_equal(mgk_tuning_path(NULL, "/own", "/root", &path, NULL), CLMGK_OK);
    assert_string_equal(path, "/own");
    mgk_free(NULL, path);
    assert_int_equal(mgk_tuning_path(NULL, "", "/root", &path, NULL), CLMGK_OK);
    assert_null(path);
}

CACHE_TEST(unusable_folders)
{
    assert_int_equal(mkdir(self->folder, S_IRWXU), 0);
    assert_int_equal(chmod(self->folder, 0755), 0);
    th_expect_error(clmgk_tuning_import(self->root, HEADER, strlen(HEADER), NULL, &th_error), CLMGK_ERROR_IO, "0755");
    expect_unread(self, "0755");
    scratch_remove(self->folder);
    scratch_write(self->folder, "x", 1);
    th_expect_error(clmgk_tuning_import(self->root, HEADER, strlen(HEADER), NULL, &th_error), CLMGK_ERROR_IO,
                    self->folder);
    expect_unread(self, self->folder);
    scratch_remove(self->folder);
    /* a file that others may write is not the user's word */
    write_file(self, small_file);
    assert_int_equal(chmod(self->file, 0666), 0);
    expect_unread(self, "nobody else may write");
    th_expect_error(clmgk_tuning_import(self->root, HEADER, strlen(HEADER), NULL, &th_error), CLMGK_ERROR_IO,
                    "nobody else may write");
    expect_file(self, small_file);
    assert_int_equal(chmod(self->file, 0600), 0);
    if (geteuid() == 0)
        return; /* whom no mode stops */
    assert_int_equal(chmod(self->folder, 0500), 0);
    assert_int_equal(get_info(self).entries, 3);
    th_expect_error(clmgk_tuning_import(self->root, HEADER, strlen(HEADER), NULL, &th_error), CLMGK_ERROR_IO,
                    self->folder);
    assert_int_equal(chmod(self->folder, 0700), 0);
    expect_file(self, small_file);
}

/* ---- several writers ------------------------------------------------------------------------------------------- */

enum { WRITERS = 4, ENTRIES_EACH = 12 };

static bool write_entries(const char *folder, int writer)
{
    const mgk_device_facts facts = facts_of("shared", "1", "vendor", "arch");
    bool ok = true;
    for (int i = 0; ok && i < ENTRIES_EACH; i++) {
        const mgk_tuning_key key = key_of("variant=mgk", writer, i);
        const clmgk_tuned tuned = {"lane", "tile=64", 1.0, 2.0};
        ok = mgk_tuning_write(NULL, folder, &facts, &key, &tuned, NULL) == CLMGK_OK;
    }
    return ok;
}

typedef struct writer {
    const char *folder;
    int number;
    bool ok;
} writer;

static void *work(void *user)
{
    writer *const self = user;
    self->ok = write_entries(self->folder, self->number);
    return NULL;
}

CACHE_TEST(threads_share_a_file)
{
    writer writers[WRITERS];
    for (int i = 0; i < WRITERS; i++)
        writers[i] = (writer){.folder = self->folder, .number = i};
    th_run_threads(work, writers, sizeof(writers[0]), WRITERS);
    for (int i = 0; i < WRITERS; i++)
        assert_true(writers[i].ok);
    assert_int_equal(get_info(self).entries, WRITERS * ENTRIES_EACH);
    assert_int_equal(get_info(self).damaged, 0);
}

static const char *self_path; /* set once, before any test runs */

CACHE_TEST(processes_share_a_file)
{
    pid_t processes[WRITERS];
    for (int i = 0; i < WRITERS; i++) {
        char number[16];
        snprintf(number, sizeof(number), "%d", i);
        char *const arguments[] = {(char *)(uintptr_t)self_path, (char *)(uintptr_t) "child",
                                   (char *)(uintptr_t)self->folder, number, NULL};
        assert_int_equal(posix_spawn(&processes[i], self_path, NULL, NULL, arguments, environ), 0);
    }
    for (int i = 0; i < WRITERS; i++) {
        int status = -1;
        assert_int_equal(waitpid(processes[i], &status, 0), processes[i]);
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    assert_int_equal(get_info(self).entries, WRITERS * ENTRIES_EACH);
    assert_int_equal(scratch_count(self->folder, ".clmgk-tmp-", NULL), 0);
}

/* ---- plans ----------------------------------------------------------------------------------------------------- */

static clmgk_attention_desc test_desc(void)
{
    clmgk_attention_desc desc = CLMGK_ATTENTION_DESC_INIT;
    desc.variant = CLMGK_VARIANT_MGK;
    desc.heads = 2;
    desc.length = 64;
    desc.length_k = 64;
    desc.head_size = 16;
    return desc;
}

static clmgk_context *open_context(const fixture *self, const char *cache_dir, bool untuned)
{
    clmgk_context_options options = CLMGK_CONTEXT_OPTIONS_INIT;
    clmgk_context *context = NULL;
    char folder[SCRATCH_PATH] = "";
    if (cache_dir[0])
        scratch_join(folder, cache_dir, "tuning");
    options.tuning_dir = folder; /* programs come from the environment's cache */
    options.untuned = untuned;
    th_expect_ok(clmgk_context_create(self->session->cl, self->session->info.device_id, &options, &context, &th_error));
    return context;
}

/* What a plan of the folder's tuning chose. */
typedef struct chosen {
    clmgk_tuning_source source, backward_source;
    char parameters[256], backward_parameters[256];
} chosen;

static chosen choose_in(clmgk_context *context, const clmgk_attention_desc *desc, const clmgk_plan_options *options)
{
    clmgk_plan *plan = NULL;
    clmgk_plan_info info = CLMGK_PLAN_INFO_INIT;
    chosen found = {0};
    th_expect_ok(clmgk_plan_create(context, desc, options, &plan, &th_error));
    th_expect_ok(clmgk_plan_get_info(plan, &info, &th_error));
    found.source = info.tuning;
    found.backward_source = info.backward_tuning;
    snprintf(found.parameters, sizeof(found.parameters), "%s", info.parameters);
    snprintf(found.backward_parameters, sizeof(found.backward_parameters), "%s",
             info.backward_parameters ? info.backward_parameters : "");
    clmgk_plan_release(plan);
    return found;
}

static chosen choose(const fixture *self, const clmgk_attention_desc *desc, const clmgk_plan_options *options)
{
    clmgk_context *const context = open_context(self, self->root, false);
    const chosen found = choose_in(context, desc, options);
    clmgk_context_release(context);
    return found;
}

/* A legal value of a tunable that is not the default, for the device's own engine: it changes no program's size. */
static const char *tuned_parameters(const fixture *self)
{
    return self->session->info.engine == CLMGK_ENGINE_LANE ? "unroll=4" : "features=8";
}

static void store(const fixture *self, const clmgk_attention_desc *desc, clmgk_tuned_pass pass, const char *parameters)
{
    clmgk_context *const context = open_context(self, "", false);
    const clmgk_tuned tuned = {clmgk_engine_name(self->session->info.engine), parameters, 1.0, 2.0};
    th_expect_ok(clmgk_tuning_store(context, self->root, desc, pass, &tuned, &th_error));
    clmgk_context_release(context);
}

CACHE_TEST(plans_take_what_was_stored)
{
    const clmgk_attention_desc desc = test_desc();
    const char *const tuned = tuned_parameters(self);
    chosen found = choose(self, &desc, NULL);
    assert_int_equal(found.source, CLMGK_TUNING_CLASS);
    assert_null(strstr(found.parameters, tuned));
    store(self, &desc, CLMGK_TUNED_FORWARD, tuned);
    found = choose(self, &desc, NULL);
    assert_int_equal(found.source, CLMGK_TUNING_BUCKET);
    assert_non_null(strstr(found.parameters, tuned));

    clmgk_attention_desc near = desc;
    near.length_k = 240;
    found = choose(self, &near, NULL);
    assert_int_equal(found.source, CLMGK_TUNING_NEAREST);
    assert_non_null(strstr(found.parameters, tuned));
    near.length_k = 500;
    assert_int_equal(choose(self, &near, NULL).source, CLMGK_TUNING_CLASS);

    clmgk_plan_options options = CLMGK_PLAN_OPTIONS_INIT;
    options.parameters = "";
    found = choose(self, &desc, &options);
    assert_int_equal(found.source, CLMGK_TUNING_CLASS);
    assert_null(strstr(found.parameters, tuned));
    options.parameters = tuned;
    assert_int_equal(choose(self, &desc, &options).source, CLMGK_TUNING_CALLER);
    options.parameters = NULL;
    options.engine = self->session->info.engine;
    assert_int_equal(choose(self, &desc, &options).source, CLMGK_TUNING_BUCKET);

    clmgk_context *const context = open_context(self, self->root, true);
    assert_int_equal(choose_in(context, &desc, NULL).source, CLMGK_TUNING_CLASS);
    clmgk_context_release(context);
    /* the defaults, measured as the best */
    store(self, &desc, CLMGK_TUNED_FORWARD, "");
    found = choose(self, &desc, NULL);
    assert_int_equal(found.source, CLMGK_TUNING_BUCKET);
    assert_null(strstr(found.parameters, tuned));
    assert_int_equal(get_info(self).entries, 1);
}

/* Values tuned for one engine are not used if the caller asks for the other. */
CACHE_TEST(engines_are_kept_apart)
{
    const clmgk_attention_desc desc = test_desc();
    store(self, &desc, CLMGK_TUNED_FORWARD, tuned_parameters(self));
    clmgk_plan_options options = CLMGK_PLAN_OPTIONS_INIT;
    options.engine = self->session->info.engine == CLMGK_ENGINE_LANE ? CLMGK_ENGINE_SIMT : CLMGK_ENGINE_LANE;
    clmgk_context *const context = open_context(self, self->root, false);
    clmgk_plan *plan = NULL;
    const clmgk_status status = clmgk_plan_create(context, &desc, &options, &plan, NULL);
    clmgk_plan_info info = {.struct_size = sizeof(info), .tuning = CLMGK_TUNING_CALLER};
    if (status == CLMGK_OK) { /* the device may not offer it */
        assert_int_equal(clmgk_plan_get_info(plan, &info, NULL), CLMGK_OK);
        assert_int_equal(info.tuning, CLMGK_TUNING_CLASS);
    } else {
        assert_int_equal(status, CLMGK_ERROR_UNSUPPORTED);
    }
    clmgk_plan_release(plan);
    clmgk_context_release(context);
}

/* Changes `from` to `to`, as a hand would, in the file. */
static void edit(const fixture *self, const char *from, const char *to)
{
    char *const text = read_file(self);
    char *const at = strstr(text, from);
    mgk_text edited = {0};
    assert_non_null(at);
    mgk_text_append(&edited, text, (size_t)(at - text));
    mgk_text_printf(&edited, "%s%s", to, at + strlen(from));
    scratch_write(self->file, edited.data, edited.length);
    mgk_text_free(&edited);
    free(text);
}

CACHE_TEST(illegal_values_are_passed_over)
{
    const clmgk_attention_desc desc = test_desc();
    const char *const tuned = tuned_parameters(self);
    static const char *const illegal[] = {"tile=77", "no-such-parameter=1", "=", "unroll=-2"};
    for (size_t i = 0; i < TH_COUNT(illegal); i++) {
        clmgk_tuning_entry entry = CLMGK_TUNING_ENTRY_INIT;
        size_t count = 0;
        scratch_remove(self->folder);
        store(self, &desc, CLMGK_TUNED_FORWARD, tuned);
        edit(self, tuned, illegal[i]);
        const chosen found = choose(self, &desc, NULL);
        assert_int_equal(found.source, CLMGK_TUNING_CLASS);
        assert_null(strstr(found.parameters, tuned));
        th_expect_ok(clmgk_tuning_list(self->root, NULL, &entry, 1, &count, &th_error));
        assert_true(!entry.allowed && strstr(entry.reason, illegal[i]));
    }
    /* the next in order serves */
    clmgk_attention_desc near = desc;
    near.length_k = 128;
    store(self, &near, CLMGK_TUNED_FORWARD, tuned);
    assert_int_equal(choose(self, &desc, NULL).source, CLMGK_TUNING_NEAREST);
    scratch_remove(self->folder);
    store(self, &desc, CLMGK_TUNED_FORWARD, tuned);
    edit(self, "choice=\"", "choice=\"other-");
    assert_int_equal(choose(self, &desc, NULL).source, CLMGK_TUNING_CLASS);
}

/* The file's only entry, as plans on the session's device see it. */
static clmgk_tuning_entry own_entry(const fixture *self)
{
    clmgk_tuning_entry entry = CLMGK_TUNING_ENTRY_INIT;
    size_t count = 0;
    th_expect_ok(clmgk_tuning_list(self->root, self->session->info.device_id, &entry, 1, &count, &th_error));
    assert_true(count >= 1 && !entry.shipped);
    return entry;
}

/* A plan says what the list says. */
static void expect_source(const fixture *self, const clmgk_attention_desc *desc, clmgk_tuning_source source)
{
    const clmgk_tuning_entry entry = own_entry(self);
    assert_int_equal(choose(self, desc, NULL).source, source);
    assert_int_equal(entry.source, source);
    assert_true(entry.allowed == (source != CLMGK_TUNING_CLASS) && entry.allowed == !entry.reason[0]);
}

CACHE_TEST(other_drivers_count_as_the_architecture)
{
    const clmgk_attention_desc desc = test_desc();
    store(self, &desc, CLMGK_TUNED_FORWARD, tuned_parameters(self));
    expect_source(self, &desc, CLMGK_TUNING_BUCKET);
    edit(self, "driver=\"", "driver=\"old ");
    expect_source(self, &desc, CLMGK_TUNING_ARCHITECTURE);
    edit(self, "name=\"", "name=\"another of its kind, not ");
    expect_source(self, &desc, CLMGK_TUNING_ARCHITECTURE);
}

/* The name, the vendor and the driver of a virtual machine's CPU are those of several microarchitectures. */
CACHE_TEST(other_architectures_are_passed_over)
{
    const clmgk_attention_desc desc = test_desc();
    store(self, &desc, CLMGK_TUNED_FORWARD, tuned_parameters(self));
    edit(self, "architecture=\"", "architecture=\"old ");
    expect_source(self, &desc, CLMGK_TUNING_CLASS);
    assert_non_null(strstr(own_entry(self).reason, "measured on \"old "));
    /* measured anew, it stands beside the other */
    store(self, &desc, CLMGK_TUNED_FORWARD, tuned_parameters(self));
    assert_int_equal(choose(self, &desc, NULL).source, CLMGK_TUNING_BUCKET);
    assert_int_equal(get_info(self).entries, 2);
}

/* A file of version 0.1.0, in which a CPU's architecture is its instruction set. */
CACHE_TEST(files_of_0_1_0_do_no_harm)
{
    const clmgk_device_info *const info = &self->session->info;
    const clmgk_attention_desc desc = test_desc();
    static const char entries[] =
        "entry device=1 date=2026-11-21T21:57:40Z operation=\"forward\" choice=\"lane\" "
        "parameters=\"vectors=1,tile=32\" "
        "time_ns=1000000 default_ns=2000000 bucket=\"variant=mgk dtype=f32 score=gaussian estep=soft components=2 "
        "head=16 "
        "value=16 causal=0 window=0 packed=0 modified=0 few=0\" near=\"rows=6 keys=6 tasks=1\"\n"
        "entry device=1 date=2026-11-21T21:33:37Z operation=\"clblast\" choice=\"clblast\" parameters=\"GEMMK=1,KREG=1,"
        "KWG=1,KWI=1,MDIMA=2,MDIMC=2,MWG=32,NDIMB=4,NDIMC=4,NWG=32,SA=0,SB=0,STRM=0,STRN=0,VWM=8,VWN=1,"
        "XGEMM_MIN_INDIRECT_SIZE=32\" time_ns=16760000 default_ns=161600000 bucket=\"dtype=f32\" near=\"*\"\n";
    char text[4096];
    snprintf(text, sizeof(text),
             HEADER "device id=1 name=\"%s\" platform=\"%s\" driver=\"%s\" vendor=\"%s\" class=cpu units=%u "
                    "architecture=\"x86-64 avx512\"\n%s",
             info->name, info->platform, info->driver, info->vendor, (unsigned)info->compute_units, entries);
    write_file(self, text);
    assert_true(get_info(self).entries == 2 && get_info(self).damaged == 0);
    expect_source(self, &desc, CLMGK_TUNING_CLASS);
    assert_non_null(strstr(own_entry(self).reason, "measured on \"x86-64 avx512\", this device is "));
    import_text(self, text, 0);
    store(self, &desc, CLMGK_TUNED_FORWARD, tuned_parameters(self));
    assert_int_equal(choose(self, &desc, NULL).source, CLMGK_TUNING_BUCKET);
    assert_int_equal(get_info(self).entries, 3);
}

/* Stores what takes `percent` of the defaults' time. */
static void store_gain(const fixture *self, const clmgk_attention_desc *desc, const char *parameters, double percent)
{
    clmgk_context *const context = open_context(self, "", false);
    const clmgk_tuned tuned = {clmgk_engine_name(self->session->info.engine), parameters, 0.003 * percent, 0.3};
    th_expect_ok(clmgk_tuning_store(context, self->root, desc, CLMGK_TUNED_FORWARD, &tuned, &th_error));
    clmgk_context_release(context);
}

/* In a bucket where the defaults won, a plan takes them, not a neighbour's values. */
CACHE_TEST(small_gains_are_the_defaults)
{
    const clmgk_attention_desc desc = test_desc();
    clmgk_attention_desc near = desc, further = desc;
    const char *const tuned = tuned_parameters(self);
    const chosen defaults = choose(self, &desc, NULL);
    near.length_k = 128;
    further.length_k = 256;
    store(self, &near, CLMGK_TUNED_FORWARD, tuned);
    assert_int_equal(choose(self, &desc, NULL).source, CLMGK_TUNING_NEAREST);
    static const double percents[] = {123, 100, 97.1};
    for (size_t i = 0; i < TH_COUNT(percents); i++) {
        store_gain(self, &desc, tuned, percents[i]);
        const chosen found = choose(self, &desc, NULL);
        assert_int_equal(found.source, CLMGK_TUNING_BUCKET);
        assert_string_equal(found.parameters, defaults.parameters);
    }
    /* the nearest bucket's word counts, whatever it is */
    scratch_remove(self->folder);
    store_gain(self, &near, tuned, 100);
    store(self, &further, CLMGK_TUNED_FORWARD, tuned);
    const chosen found = choose(self, &desc, NULL);
    assert_int_equal(found.source, CLMGK_TUNING_NEAREST);
    assert_string_equal(found.parameters, defaults.parameters);
    assert_true(own_entry(self).defaults && own_entry(self).allowed);
    store_gain(self, &near, tuned, 97);
    assert_non_null(strstr(choose(self, &desc, NULL).parameters, tuned));
}

TH_HOST_TEST(shipped_entries_gain)
{
    clmgk_tuning_entry entries[256] = {CLMGK_TUNING_ENTRY_INIT};
    size_t count = 0;
    th_expect_ok(clmgk_tuning_list("", NULL, entries, TH_COUNT(entries), &count, &th_error));
    assert_in_range(count, 1, TH_COUNT(entries));
    for (size_t i = 0; i < count; i++)
        if (!entries[i].allowed || entries[i].defaults || !strchr(entries[i].architecture, '/'))
            fail_msg("%s %s: %s", entries[i].operation, entries[i].bucket, entries[i].reason);
}

/* CPUs that LLVM 15 calls skylake-avx512, by their CPUID; and one without AVX-512. */
TH_HOST_TEST(cpus_are_told_apart)
{
    static const struct {
        const char *vendor;
        uint32_t signature;
        const char *vectors, *name;
        bool makes_two;
    } cpus[] = {
        {"AuthenticAMD", 0x00a10f11, "avx512", "x86-64 AuthenticAMD 25/17 avx512", false}, /* Zen 4 */
        {"AuthenticAMD", 0x00b00f21, "avx512", "x86-64 AuthenticAMD 26/2 avx512", true},   /* Zen 5 */
        {"GenuineIntel", 0x00050654, "avx512", "x86-64 GenuineIntel 6/85 avx512", true},   /* Skylake-X */
        {"GenuineIntel", 0x000806f8, "avx512", "x86-64 GenuineIntel 6/143 avx512", true},  /* Sapphire Rapids */
        {"AuthenticAMD", 0x00a00f11, "avx2", "x86-64 AuthenticAMD 25/1 avx2", false},      /* Zen 3 */
        {"AuthenticAMD", 0x00a10f11, "avx2", "x86-64 AuthenticAMD 25/17 avx2", false}, /* Zen 4 with AVX-512 hidden */
    };
    for (size_t i = 0; i < TH_COUNT(cpus); i++) {
        char name[64];
        mgk_cpu_describe(cpus[i].vendor, cpus[i].signature, cpus[i].vectors, name, sizeof(name));
        assert_string_equal(name, cpus[i].name);
        assert_int_equal(mgk_cpu_makes_two(cpus[i].vendor, cpus[i].signature), cpus[i].makes_two);
    }
}

CACHE_TEST(entries_of_a_device_are_removed)
{
    const clmgk_attention_desc desc = test_desc();
    const cl_device_id device = self->session->info.device_id;
    size_t length = 0;
    import_text(self, small_file, 3);
    char *const others = read_file(self);
    store(self, &desc, CLMGK_TUNED_FORWARD, tuned_parameters(self));
    edit(self, "driver=\"", "driver=\""); /* the file is there */
    th_expect_ok(clmgk_tuning_export(self->root, device, NULL, 0, &length, &th_error));
    assert_true(length > strlen(HEADER));
    th_expect_ok(clmgk_tuning_reset(self->root, device, &th_error));
    expect_file(self, others);
    th_expect_ok(clmgk_tuning_export(self->root, device, NULL, 0, &length, &th_error));
    assert_int_equal(length, strlen(HEADER));
    th_expect_ok(clmgk_tuning_reset(self->root, NULL, &th_error));
    expect_file(self, HEADER);
    free(others);
}

/* Passes are tuned separately, but the backward pass computes its scores as the forward pass does. */
CACHE_TEST(backward_follows_forward)
{
    if (self->session->info.engine != CLMGK_ENGINE_LANE)
        skip(); /* only this engine has such a parameter */
    clmgk_attention_desc desc = test_desc();
    desc.gradients = CLMGK_GRADIENT_Q | CLMGK_GRADIENT_K | CLMGK_GRADIENT_V;
    const bool wide = self->session->info.native_float_lanes >= 16;
    const char *const own = wide ? "lanes=16" : "lanes=8";
    const char *const other = wide ? "lanes=8" : "lanes=16";
    char text[64];
    store(self, &desc, CLMGK_TUNED_BACKWARD, "panels=1,unroll=4");
    chosen found = choose(self, &desc, NULL);
    assert_int_equal(found.source, CLMGK_TUNING_CLASS);
    assert_int_equal(found.backward_source, CLMGK_TUNING_BUCKET);
    assert_non_null(strstr(found.backward_parameters, "unroll=4"));
    assert_non_null(strstr(found.backward_parameters, own));
    store(self, &desc, CLMGK_TUNED_FORWARD, other);
    found = choose(self, &desc, NULL);
    assert_non_null(strstr(found.parameters, other));
    assert_int_equal(found.backward_source, CLMGK_TUNING_BUCKET);
    assert_non_null(strstr(found.backward_parameters, "unroll=4"));
    assert_non_null(strstr(found.backward_parameters, other));
    snprintf(text, sizeof(text), "panels=1,unroll=4,%s", own);
    store(self, &desc, CLMGK_TUNED_BACKWARD, text);
    found = choose(self, &desc, NULL);
    assert_int_equal(found.backward_source, CLMGK_TUNING_CLASS);
    assert_non_null(strstr(found.backward_parameters, other));
    clmgk_context *const context = open_context(self, "", false);
    clmgk_tuned tuned = {"lane", other, 1.0, 2.0};
    th_expect_error(clmgk_tuning_check(context, &desc, CLMGK_TUNED_BACKWARD, &tuned, &th_error),
                    CLMGK_ERROR_INVALID_VALUE, own);
    tuned.parameters = own;
    th_expect_ok(clmgk_tuning_check(context, &desc, CLMGK_TUNED_BACKWARD, &tuned, &th_error));
    tuned.choice = "simt";
    tuned.parameters = "";
    th_expect_error(clmgk_tuning_check(context, &desc, CLMGK_TUNED_BACKWARD, &tuned, &th_error),
                    CLMGK_ERROR_INVALID_VALUE, "engine lane");
    /* scores of the other kind do not depend on the lanes, but on the engine */
    desc.score = CLMGK_SCORE_DOT;
    th_expect_error(clmgk_tuning_check(context, &desc, CLMGK_TUNED_BACKWARD, &tuned, &th_error),
                    CLMGK_ERROR_INVALID_VALUE, "engine lane");
    clmgk_context_release(context);
    store(self, &desc, CLMGK_TUNED_FORWARD, other);
    store(self, &desc, CLMGK_TUNED_BACKWARD, text);
    found = choose(self, &desc, NULL);
    assert_int_equal(found.backward_source, CLMGK_TUNING_BUCKET);
    assert_non_null(strstr(found.backward_parameters, own));
}

/* The library's kernels in a folder, of which one does not compile with the tuned value. */
static void write_kernels(const char *folder, const char *macro)
{
    char path[SCRATCH_PATH];
    for (const mgk_embedded_file *file = mgk_embedded_files; file->name; file++) {
        mgk_text text = {0};
        if (strcmp(file->name, "mixture/forward.cl") == 0)
            mgk_text_printf(&text, "#if %s\n#error broken\n#endif\n", macro);
        mgk_text_append(&text, file->text, file->length);
        assert_false(text.failed);
        scratch_join(path, folder, file->name);
        scratch_write(path, text.data, text.length);
        mgk_text_free(&text);
    }
}

CACHE_TEST(values_that_do_not_compile_give_way)
{
    const bool lane = self->session->info.engine == CLMGK_ENGINE_LANE;
    const clmgk_attention_desc desc = test_desc();
    clmgk_context_options options = CLMGK_CONTEXT_OPTIONS_INIT;
    clmgk_plan_options given = CLMGK_PLAN_OPTIONS_INIT;
    clmgk_context *context = NULL;
    clmgk_plan *plan = NULL;
    write_kernels(self->root, lane ? "UNROLL_PRODUCT == 4" : "FEATURE_CHUNK == 8");
    store(self, &desc, CLMGK_TUNED_FORWARD, tuned_parameters(self));
    options.kernel_dir = self->root;
    options.cache_dir = "";
    options.tuning_dir = self->folder;
    th_expect_ok(clmgk_context_create(self->session->cl, self->session->info.device_id, &options, &context, &th_error));
    const chosen found = choose_in(context, &desc, NULL);
    assert_int_equal(found.source, CLMGK_TUNING_CLASS);
    assert_null(strstr(found.parameters, tuned_parameters(self)));
    /* the caller's own values are no advice */
    given.parameters = tuned_parameters(self);
    th_expect_error(clmgk_plan_create(context, &desc, &given, &plan, &th_error), CLMGK_ERROR_COMPILE, "broken");
    clmgk_context_release(context);
}

/* Ranges of keys that were good for another shape may not cost more workspace than the arrays are large. */
CACHE_TEST(workspace_is_kept_in_bounds)
{
    clmgk_attention_desc desc = test_desc();
    clmgk_context *const context = open_context(self, "", false);
    const clmgk_tuned tuned = {clmgk_engine_name(self->session->info.engine), "splits=16", 1.0, 2.0};
    th_expect_error(clmgk_tuning_store(context, self->root, &desc, CLMGK_TUNED_FORWARD, &tuned, &th_error),
                    CLMGK_ERROR_INVALID_VALUE, "splits=16");
    desc.length = 16;
    desc.length_k = 256;
    th_expect_ok(clmgk_tuning_store(context, self->root, &desc, CLMGK_TUNED_FORWARD, &tuned, &th_error));
    assert_int_equal(choose(self, &desc, NULL).source, CLMGK_TUNING_BUCKET);
    desc.length = 22; /* the farthest corner of the bucket */
    desc.length_k = 182;
    assert_int_equal(choose(self, &desc, NULL).source, CLMGK_TUNING_CLASS);
    clmgk_context_release(context);
}

/* Parameters that keep compute units busy are only taken from the same bucket. */
CACHE_TEST(near_entries_leave_the_shape_alone)
{
    clmgk_attention_desc desc = test_desc();
    const bool lane = self->session->info.engine == CLMGK_ENGINE_LANE;
    const char *const tuned = lane ? "panels=8,unroll=4,splits=2" : "features=8,splits=2";
    desc.length = 32;
    desc.length_k = 256;
    store(self, &desc, CLMGK_TUNED_FORWARD, tuned);
    chosen found = choose(self, &desc, NULL);
    assert_non_null(strstr(found.parameters, "splits=2"));
    assert_true(!lane || strstr(found.parameters, "panels=8"));
    desc.length_k = 512;
    found = choose(self, &desc, NULL);
    assert_int_equal(found.source, CLMGK_TUNING_NEAREST);
    assert_non_null(strstr(found.parameters, tuned_parameters(self)));
    assert_true(!lane || !strstr(found.parameters, "panels=8"));
    clmgk_plan_options options = CLMGK_PLAN_OPTIONS_INIT;
    options.parameters = tuned_parameters(self);
    const chosen default_splits = choose(self, &desc, &options);
    assert_string_equal(strstr(found.parameters, "splits="), strstr(default_splits.parameters, "splits="));
}

/* Kernels for few rows, which plans with gradients do not use, are tuned separately. */
TH_HOST_TEST(buckets_tell_problems_apart)
{
    clmgk_attention_desc desc = test_desc();
    desc.length = 3;
    assert_int_equal(clmgk_attention_validate(&desc, &desc, NULL), CLMGK_OK);
    mgk_tuning_key key = mgk_attention_key(&desc, CLMGK_PASS_FORWARD);
    assert_string_equal(key.operation, "forward");
    assert_string_equal(key.exact, "variant=mgk dtype=f32 score=gaussian estep=soft components=2 head=16 value=16 "
                                   "causal=0 window=0 packed=0 modified=0 few=1");
    assert_true(key.axes == 3 && key.axis[0].value == 2 && key.axis[1].value == 6 && key.axis[2].value == 1);
    desc.gradients = CLMGK_GRADIENT_Q;
    key = mgk_attention_key(&desc, CLMGK_PASS_FORWARD);
    assert_non_null(strstr(key.exact, "few=0"));
    key = mgk_attention_key(&desc, CLMGK_PASS_STATISTICS);
    assert_string_equal(key.operation, "backward");
    desc.components = 9;
    desc.sequences = 4;
    desc.softcap = 1.0;
    desc.causal = 1;
    desc.length = 400;
    key = mgk_attention_key(&desc, CLMGK_PASS_BACKWARD);
    assert_non_null(strstr(key.exact, "components=16 head=16 value=16 causal=1 window=0 packed=1 modified=1 few=0"));
    assert_true(key.axis[0].value == 7 && key.axis[1].value == 4 && key.axis[2].value == 3);
}

static mgk_tuning_key mixed_key(const clmgk_attention_desc *desc, clmgk_pass pass)
{
    clmgk_attention_desc resolved;
    assert_int_equal(clmgk_attention_validate(desc, &resolved, NULL), CLMGK_OK);
    return mgk_attention_key(&resolved, pass);
}

/* Where heads are mixed, their numbers are part of the problem, and batches are its tasks. */
TH_HOST_TEST(buckets_tell_mixed_heads_apart)
{
    clmgk_attention_desc desc = test_desc();
    desc.variant = CLMGK_VARIANT_GFISH;
    desc.components = 2;
    desc.heads = 8;
    desc.kv_heads = 4;
    desc.batch = 4;
    desc.length = 3;
    mgk_tuning_key key = mixed_key(&desc, CLMGK_PASS_FORWARD);
    assert_string_equal(key.exact, "variant=gfish dtype=f32 score=dot estep=soft components=2 head=16 value=16 "
                                   "causal=0 window=0 packed=0 modified=0 few=0 heads=8 kv_heads=4 shared_noise=0");
    assert_int_equal(key.axis[2].value, 2);

    desc.heads = 12;
    desc.kv_heads = 12;
    desc.shared_noise = 1;
    desc.gradients = CLMGK_GRADIENT_V;
    key = mixed_key(&desc, CLMGK_PASS_BACKWARD);
    assert_non_null(strstr(key.exact, " few=0 heads=16 kv_heads=16 shared_noise=1"));
    assert_int_equal(key.axis[2].value, 2);

    /* the longest words fit */
    desc.variant = CLMGK_VARIANT_HARD_GFISH;
    desc.shared_noise = 0;
    desc.dtype = CLMGK_DTYPE_BF16;
    desc.components = desc.heads = desc.kv_heads = CLMGK_MAX_MIXED_HEADS;
    desc.head_size = desc.value_size = 512;
    key = mixed_key(&desc, CLMGK_PASS_FORWARD);
    assert_non_null(strstr(key.exact, " heads=256 kv_heads=256 shared_noise=0"));
}

/* ---- misuse ---------------------------------------------------------------------------------------------------- */

#define VALUE CLMGK_ERROR_INVALID_VALUE

CACHE_TEST(misuse_of_queries)
{
    clmgk_tunable tunable = CLMGK_TUNABLE_INIT;
    size_t count = 0;
    th_expect_error(clmgk_tunable_list(NULL, &tunable, 1, &count, &th_error), VALUE, "table: NULL");
    th_expect_error(clmgk_tunable_list("x", &tunable, 1, &count, &th_error), VALUE, "table: \"x\"");
    th_expect_error(clmgk_tunable_list("lane", NULL, 1, &count, &th_error), VALUE, "tunables: NULL");
    th_expect_error(clmgk_tunable_list("lane", &tunable, 1, NULL, &th_error), VALUE, "count: NULL");
    th_expect_error(clmgk_tunable_check(NULL, "", &th_error), VALUE, "table: NULL");
    th_expect_error(clmgk_tunable_check("x", "", &th_error), VALUE, "table: \"x\"");
    th_expect_error(clmgk_tunable_check("lane", NULL, &th_error), VALUE, "parameters: NULL");
    th_expect_error(clmgk_tuning_list(self->root, NULL, NULL, 1, &count, &th_error), VALUE, "entries: NULL");
    th_expect_error(clmgk_tuning_list(self->root, NULL, NULL, 0, NULL, &th_error), VALUE, "count: NULL");
    th_expect_error(clmgk_tuning_get_info(self->root, NULL, &th_error), VALUE, "info: NULL");
    th_expect_error(clmgk_tuning_get_info(self->root, &(clmgk_tuning_info){0}, &th_error), VALUE, "info.struct_size");
    clmgk_tuning_info info = CLMGK_TUNING_INFO_INIT;
    char folder[1100] = "/";
    memset(folder + 1, 'x', sizeof(folder) - 2);
    folder[sizeof(folder) - 1] = '\0';
    th_expect_error(clmgk_tuning_get_info(folder, &info, &th_error), VALUE, "expected less than 1024");
    th_expect_error(clmgk_tuning_list(self->root, NULL, &(clmgk_tuning_entry){0}, 1, &count, &th_error), VALUE,
                    "entries.struct_size");
    th_expect_error(clmgk_tunable_list("lane", &(clmgk_tunable){0}, 1, &count, &th_error), VALUE,
                    "tunables.struct_size");
    th_expect_error(clmgk_tuning_export(self->root, NULL, NULL, 1, &count, &th_error), VALUE, "text: NULL");
    th_expect_error(clmgk_tuning_export(self->root, NULL, NULL, 0, NULL, &th_error), VALUE, "length: NULL");
    th_expect_error(clmgk_tuning_import(self->root, NULL, 0, NULL, &th_error), VALUE, "text: NULL");
    th_expect_error(clmgk_tuning_import(self->root, "", 0, NULL, &th_error), VALUE, "length: 0");
    assert_int_equal(scratch_count(self->root, "tuning", NULL), 0);
}

CACHE_TEST(misuse_of_store)
{
    const clmgk_attention_desc desc = test_desc();
    clmgk_attention_desc bad = desc, backward = desc;
    clmgk_context *const context = open_context(self, "", false);
    const char *const engine = clmgk_engine_name(self->session->info.engine);
    char long_text[600];
    bad.head_size = 0;
    backward.gradients = CLMGK_GRADIENT_Q;
    memset(long_text, ',', sizeof(long_text));
    long_text[sizeof(long_text) - 1] = '\0';
    const struct {
        clmgk_context *context;
        const clmgk_attention_desc *desc;
        int pass;
        clmgk_tuned tuned;
        const char *words;
    } cases[] = {
        {NULL, &desc, 0, {engine, "", 1.0, 2.0}, "context: NULL"},
        {context, NULL, 0, {engine, "", 1.0, 2.0}, "desc"},
        {context, &bad, 0, {engine, "", 1.0, 2.0}, "head_size"},
        {context, &desc, 2, {engine, "", 1.0, 2.0}, "pass: 2"},
        {context, &desc, 1, {engine, "", 1.0, 2.0}, "gradients"},
        {context, &desc, 0, {NULL, "", 1.0, 2.0}, "choice: NULL"},
        {context, &desc, 0, {"auto", "", 1.0, 2.0}, "auto"},
        {context, &desc, 0, {"clblast", "", 1.0, 2.0}, "clblast"},
        {context, &desc, 0, {engine, "splits=3", 1.0, 2.0}, "splits=3"},
        {context, &desc, 0, {engine, "\n", 1.0, 2.0}, "parameters"},
        {context, &desc, 0, {engine, long_text, 1.0, 2.0}, "parameters"},
        {context, &desc, 0, {engine, "", -1.0, 2.0}, "time_ms"},
        {context, &desc, 0, {engine, "", 0.0, 2.0}, "time_ms"},
        {context, &desc, 0, {engine, "", 1.0, 0.0 / 0.0}, "default_ms"},
        {context, &backward, 1, {engine, "splits=3", 1.0, 2.0}, "splits=3"},
    };
    for (size_t i = 0; i < TH_COUNT(cases); i++) {
        const clmgk_tuned_pass pass = (clmgk_tuned_pass)cases[i].pass;
        clmgk_status status =
            clmgk_tuning_store(cases[i].context, self->root, cases[i].desc, pass, &cases[i].tuned, &th_error);
        th_expect_error(status, cases[i].desc == &bad ? th_error.status : VALUE, cases[i].words);
        if (strstr(cases[i].words, "_ms"))
            continue;
        status = clmgk_tuning_check(cases[i].context, cases[i].desc, pass, &cases[i].tuned, &th_error);
        th_expect_error(status, cases[i].desc == &bad ? th_error.status : VALUE, cases[i].words);
    }
    th_expect_error(clmgk_tuning_check(context, &desc, CLMGK_TUNED_FORWARD, NULL, &th_error), VALUE, "tuned: NULL");
    th_expect_error(clmgk_tuning_store(context, self->root, &desc, CLMGK_TUNED_FORWARD, NULL, &th_error), VALUE,
                    "tuned: NULL");
    const clmgk_tuned good = {engine, NULL, 1.0, 2.0};
    th_expect_error(clmgk_tuning_store(context, "", &desc, CLMGK_TUNED_FORWARD, &good, &th_error), CLMGK_ERROR_IO,
                    "no files");
    assert_int_equal(scratch_count(self->root, "tuning", NULL), 0);
    th_expect_ok(clmgk_tuning_store(context, self->root, &desc, CLMGK_TUNED_FORWARD, &good, &th_error));
    clmgk_context_release(context);

    clmgk_context_options options = CLMGK_CONTEXT_OPTIONS_INIT;
    clmgk_context *none = NULL;
    options.untuned = 2;
    th_expect_error(clmgk_context_create(self->session->cl, self->session->info.device_id, &options, &none, &th_error),
                    VALUE, "untuned: 2");
}

int main(int count, char **arguments)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    if (count == 4 && strcmp(arguments[1], "child") == 0)
        return write_entries(arguments[2], (int)strtol(arguments[3], NULL, 10)) ? 0 : 1;
    self_path = arguments[0];
    return th_run_tests();
}
