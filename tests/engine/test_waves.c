/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks, their splits by waves, and the order of blocks: on made-up devices, so that nothing is compiled. */
#include "attention/core/family.h"
#include "engine/engine.h"
#include "harness/facts.h"
#include "harness/harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FUNCTION static
#include "attention/order.clh"
#include "attention/shares.clh"

enum { H200_UNITS = 132 };

/* ---- devices -------------------------------------------------------------------------------------------------- */

static mgk_device_facts gpu_of(const char *vendor)
{
    mgk_device_facts facts = th_facts(CLMGK_DEVICE_GPU);
    (void)snprintf(facts.info.vendor, sizeof(facts.info.vendor), "%s", vendor);
    facts.info.compute_units = H200_UNITS;
    facts.info.local_memory_bytes = UINT64_C(48) << 10;
    facts.info.global_memory_bytes = UINT64_C(140) << 30;
    facts.info.max_allocation_bytes = UINT64_C(35) << 30;
    return facts;
}

static mgk_device_facts h200(void)
{
    mgk_device_facts facts = gpu_of("NVIDIA Corporation");
    facts.runtime = MGK_RUNTIME_NVIDIA;
    facts.unit_registers = 65536;
    (void)snprintf(facts.info.architecture, sizeof(facts.info.architecture), "sm_90");
    return facts;
}

static clmgk_attention_desc desc_of(clmgk_variant variant, int64_t heads, int64_t length, int64_t length_k,
                                    int64_t head_size)
{
    clmgk_attention_desc desc = CLMGK_ATTENTION_DESC_INIT;
    desc.variant = variant;
    desc.heads = heads;
    desc.length = length;
    desc.length_k = length_k;
    desc.head_size = head_size;
    desc.components = variant == CLMGK_VARIANT_MGK ? 2 : 0;
    return desc;
}

/* The same card where the matrix engine's mma.sync was found. */
static mgk_device_facts h200_with_units(void)
{
    mgk_device_facts facts = h200();
    facts.matrix_unit = (mgk_matrix_unit){.known = true, .unit = mgk_matrix_unit_of(&facts, MATRIX_MMA)};
    assert_true(facts.matrix_unit.unit != 0);
    return facts;
}

/* What a pass's plan makes of a device. */
typedef struct planned {
    mgk_block block;
    int64_t groups, splits, row_threads, rows;
    int registers; /* limit of the main kernel's options; 0: none */
    bool states;   /* it states the size of its work-groups */
    int all_ranges, range_tiles;
} planned;

/* On the matrix engine, if its units are among the facts. */
static clmgk_status try_plan(const mgk_device_facts *facts, clmgk_attention_desc desc, clmgk_pass pass,
                             const char *parameters, planned *out, clmgk_error *error)
{
    const mgk_pass_request request = {.desc = &desc,
                                      .limits = &desc,
                                      .facts = facts,
                                      .engine = facts->matrix_unit.unit != 0 ? CLMGK_ENGINE_MATRIX : CLMGK_ENGINE_SIMT,
                                      .parameters = {.text = parameters, .origin = MGK_ORIGIN_CALLER},
                                      .pass = pass};
    mgk_pass_plan *const plan = calloc(1, sizeof(*plan));
    assert_non_null(plan);
    if (pass == CLMGK_PASS_BACKWARD)
        desc.gradients = CLMGK_GRADIENT_Q | CLMGK_GRADIENT_K | CLMGK_GRADIENT_V;
    th_expect_ok(clmgk_attention_validate(&desc, &desc, &th_error));
    const clmgk_status status = mgk_family_plan(mgk_family_of(desc.variant), &request, plan, error);
    if (status == CLMGK_OK) {
        const mgk_step *const step = &plan->steps.step[plan->steps.main];
        const char *const options = step->options.data, *const limit = strstr(options, MGK_REGISTERS_LIMIT);
        *out = (planned){.block = plan->block,
                         .groups = (int64_t)(step->launch.global[0] / step->launch.local[0]),
                         .splits = mgk_tunable_get(&plan->tunables, (mgk_tunable_name){"splits"}),
                         .row_threads = mgk_tunable_get(&plan->tunables, (mgk_tunable_name){"row_threads"}),
                         .rows = mgk_tunable_get(&plan->tunables, (mgk_tunable_name){"rows"}),
                         .registers = limit ? (int)strtol(limit + strlen(MGK_REGISTERS_LIMIT), NULL, 10) : 0,
                         .states = strstr(options, "-DANY_GROUP_SIZE") == NULL};
        if (pass == CLMGK_PASS_FORWARD) {
            mgk_forward_args args;
            memcpy(&args, step->args, sizeof(args));
            out->all_ranges = args.all_ranges;
            out->range_tiles = args.range_tiles;
        }
        assert_int_equal(step->launch.local[0], plan->block.threads);
    }
    mgk_steps_clear(&plan->steps, NULL);
    free(plan);
    return status;
}

static planned plan_of(const mgk_device_facts *facts, const clmgk_attention_desc *desc, clmgk_pass pass,
                       const char *parameters)
{
    planned made = {.groups = 0};
    th_expect_ok(try_plan(facts, *desc, pass, parameters, &made, &th_error));
    return made;
}

static int64_t waves_of(const mgk_device_facts *facts, const planned *made)
{
    return mgk_waves_count(made->block.resident * facts->info.compute_units, made->groups);
}

/* ---- splits ---------------------------------------------------------------------------------------------------- */

/* Blocks of less than a wave have as many ranges as fill it; of more blocks only those behind whole waves have some. */
TH_HOST_TEST(splits_fill_a_wave)
{
    enum { UNITS = 132, MOST = 64 };
    static const struct {
        int64_t blocks, tiles, whole, tail; /* splits without a tail, and with one */
    } cases[] = {{1, 1024, MOST, MOST}, {8, 1024, 16, 16}, {8, 8, 2, 2},       {66, 1024, 2, 2},
                 {67, 1024, 1, 1},      {132, 1024, 1, 1}, {133, 512, 1, 128}, {140, 1024, 1, 16},
                 {140, 8, 1, 2},        {200, 1024, 1, 1}, {264, 1024, 1, 1}};
    for (size_t n = 0; n < TH_COUNT(cases); n++) {
        mgk_waves launch = {
            .wave = UNITS, .blocks = cases[n].blocks, .tiles = cases[n].tiles, .least_tiles = 4, .most_splits = MOST};
        assert_int_equal(mgk_waves_splits(&launch), cases[n].whole);
        launch.tail = true;
        assert_int_equal(mgk_waves_splits(&launch), cases[n].tail);
        const int64_t whole = mgk_waves_whole(UNITS, cases[n].blocks), rest = cases[n].blocks - whole;
        assert_int_equal(mgk_waves_count(UNITS, whole), whole / UNITS);
        assert_true(rest == 0 || mgk_waves_count(UNITS, rest * cases[n].tail) == 1);
    }
}

/* Partial results of a tail are few, so it may have more ranges than all blocks could. */
TH_HOST_TEST(partial_results_limit_splits)
{
    mgk_waves launch = {.wave = 132, .blocks = 4, .tiles = 1024, .least_tiles = 1, .most_splits = 2, .tail = true};
    assert_int_equal(mgk_waves_splits(&launch), 2);
    launch.blocks = 136;
    assert_int_equal(mgk_waves_splits(&launch), 33);
    launch.most_splits = 1;
    launch.blocks = 144;
    assert_int_equal(mgk_waves_splits(&launch), 11);
}

TH_HOST_TEST(room_of_a_unit)
{
    static const struct {
        const char *vendor, *architecture;
        uint32_t registers, work_items, work_groups;
        uint64_t local;
    } units[] = {
        {"NVIDIA Corporation", "sm_90", 65536, 2048, 32, 228 << 10},
        {"NVIDIA Corporation", "sm_80", 65536, 2048, 32, 164 << 10},
        {"NVIDIA Corporation", "sm_86", 65536, 1536, 16, 100 << 10},
        {"NVIDIA Corporation", "sm_75", 65536, 1024, 16, 64 << 10},
        {"NVIDIA Corporation", "sm_103", 65536, 2048, 32, 228 << 10}, /* later than the table */
        {"NVIDIA Corporation", "A card", 65536, 1024, 16, 48 << 10},  /* no capability is stated */
        {"Advanced Micro Devices, Inc.", "gfx90a", 65536, 1024, 16, 48 << 10},
        {"Intel(R) Corporation", "Arc", 8192, 128, 8, 48 << 10},
        {"nobody", "", 65536, 1024, 16, 48 << 10},
    };
    for (size_t n = 0; n < TH_COUNT(units); n++) {
        mgk_device_facts facts = gpu_of(units[n].vendor);
        (void)snprintf(facts.info.architecture, sizeof(facts.info.architecture), "%s", units[n].architecture);
        const mgk_unit unit = mgk_unit_of(&facts);
        assert_int_equal(unit.registers, units[n].registers);
        assert_int_equal(unit.work_items, units[n].work_items);
        assert_int_equal(unit.work_groups, units[n].work_groups);
        assert_int_equal(unit.local_bytes, units[n].local);
        facts.unit_registers = 1234; /* the driver knows better */
        facts.unit_local_bytes = UINT64_C(1) << 20;
        assert_int_equal(mgk_unit_of(&facts).registers, 1234);
        assert_int_equal(mgk_unit_of(&facts).local_bytes, 1 << 20);
    }
    mgk_device_facts cpu = gpu_of("AuthenticAMD");
    cpu.info.device_class = CLMGK_DEVICE_CPU;
    assert_int_equal(mgk_unit_of(&cpu).registers, 0);
}

TH_HOST_TEST(resident_groups)
{
    static const struct {
        int64_t work_items, registers, groups;
        uint64_t local;
    } kernels[] = {
        {256, 175, 1, 45 << 10}, {256, 128, 2, 45 << 10}, {128, 168, 3, 26 << 10}, {128, 169, 2, 26 << 10},
        {128, 32, 8, 27 << 10},  {32, 16, 32, 1 << 10},   {1024, 255, 1, 0},       {200, 64, 4, 0},
    };
    const mgk_device_facts facts = h200();
    const mgk_unit unit = mgk_unit_of(&facts);
    for (size_t n = 0; n < TH_COUNT(kernels); n++)
        assert_int_equal(mgk_resident_groups(&unit, kernels[n].work_items, kernels[n].registers, kernels[n].local),
                         kernels[n].groups);
}

/* ---- plans ---------------------------------------------------------------------------------------------------- */

/* One query of eight heads against 65,536 keys: ranges that fill most of one wave. */
TH_HOST_TEST(decoding_on_an_h200)
{
    const mgk_device_facts facts = h200();
    const clmgk_attention_desc desc = desc_of(CLMGK_VARIANT_SOFTMAX, 8, 1, 65536, 64);
    const planned made = plan_of(&facts, &desc, CLMGK_PASS_FORWARD, NULL);
    assert_int_equal(made.splits, 49); /* of 3 work-groups on each unit: 8 x 49 of 396 */
    assert_int_equal(made.groups, 392);
    assert_int_equal(waves_of(&facts, &made), 1);
    assert_int_equal(made.block.few_rows, 1);
    assert_int_equal(made.registers, 0);
    /* with enough problems none is split */
    clmgk_attention_desc many = desc_of(CLMGK_VARIANT_SOFTMAX, 8, 1, 4096, 64);
    many.batch = 64;
    assert_int_equal(plan_of(&facts, &many, CLMGK_PASS_FORWARD, NULL).splits, 1);
    /* splits of the caller stay */
    assert_int_equal(plan_of(&facts, &desc, CLMGK_PASS_FORWARD, "splits=4").groups, 32);
}

/* Linear attention takes ranges of chunks for one wave, none where problems suffice or chunks are few. In the backward
 * pass, whose chunks are shorter, a work-group has as many work-items as a chunk's products have blocks. */
TH_HOST_TEST(ranges_of_linear_attention)
{
    const mgk_device_facts facts = h200();
    clmgk_attention_desc desc = desc_of(CLMGK_VARIANT_LINEAR, 8, 16384, 16384, 64);
    for (desc.causal = 0; desc.causal < 2; desc.causal++) {
        const planned made = plan_of(&facts, &desc, CLMGK_PASS_FORWARD, NULL);
        assert_int_equal(made.block.threads, 128);
        assert_int_equal(made.splits, 32);
        assert_int_equal(waves_of(&facts, &made), 1);
        assert_int_equal(plan_of(&facts, &desc, CLMGK_PASS_BACKWARD, NULL).block.threads, 64);
    }
    clmgk_attention_desc few = desc_of(CLMGK_VARIANT_LINEAR, 8, 64, 64, 64), many = desc;
    few.causal = many.causal = 1;
    many.batch = 1024;
    assert_int_equal(plan_of(&facts, &few, CLMGK_PASS_FORWARD, NULL).splits, 1);
    assert_int_equal(plan_of(&facts, &many, CLMGK_PASS_FORWARD, NULL).splits, 1);
}

/* 256 blocks of 128 rows are one wave of two work-groups a unit; with larger heads two of 64 rows fit, and 512 are
 * nearly two waves; four heads of two components are one wave. */
TH_HOST_TEST(forward_on_an_h200)
{
    static const struct {
        int64_t head_size, rows, resident, waves, splits;
        int registers;
    } sizes[] = {{32, 128, 2, 1, 1, 128}, {64, 64, 2, 2, 1, 0}, {128, 64, 2, 2, 1, 0}};
    const mgk_device_facts facts = h200();
    for (size_t n = 0; n < TH_COUNT(sizes); n++) {
        clmgk_attention_desc desc = desc_of(CLMGK_VARIANT_SOFTMAX, 8, 4096, 4096, sizes[n].head_size);
        for (int dtype = CLMGK_DTYPE_F32; dtype <= CLMGK_DTYPE_BF16; dtype++) {
            desc.dtype = (clmgk_dtype)dtype;
            const planned made = plan_of(&facts, &desc, CLMGK_PASS_FORWARD, NULL);
            assert_int_equal(made.block.rows, sizes[n].rows);
            assert_int_equal(made.block.resident, sizes[n].resident);
            assert_int_equal(waves_of(&facts, &made), sizes[n].waves);
            assert_int_equal(made.splits, sizes[n].splits);
            assert_int_equal(made.registers, sizes[n].registers);
            assert_true(made.states == (sizes[n].registers == 0));
        }
    }
    clmgk_attention_desc desc = desc_of(CLMGK_VARIANT_MGK, 4, 4096, 4096, 64);
    const planned mixture = plan_of(&facts, &desc, CLMGK_PASS_FORWARD, NULL);
    assert_int_equal(mixture.rows, 8);
    assert_int_equal(waves_of(&facts, &mixture), 1);
    assert_true(mixture.registers == 0 && mixture.states);
    /* few rows, many keys: smaller blocks, and ranges of keys that fill the wave */
    desc = desc_of(CLMGK_VARIANT_SOFTMAX, 8, 128, 4096, 64);
    const planned wide = plan_of(&facts, &desc, CLMGK_PASS_FORWARD, NULL);
    assert_int_equal(wide.rows, 4);
    assert_int_equal(wide.splits, 8);
    assert_int_equal(waves_of(&facts, &wide), 1);
}

/* Blocks of keys are smaller where a problem has few of them. */
TH_HOST_TEST(backward_on_an_h200)
{
    const mgk_device_facts facts = h200();
    const clmgk_attention_desc small = desc_of(CLMGK_VARIANT_SOFTMAX, 1, 256, 256, 64),
                               large = desc_of(CLMGK_VARIANT_SOFTMAX, 8, 4096, 4096, 64);
    const planned few = plan_of(&facts, &small, CLMGK_PASS_BACKWARD, NULL);
    const planned many = plan_of(&facts, &large, CLMGK_PASS_BACKWARD, NULL);
    assert_int_equal(few.block.rows, 16);
    assert_int_equal(many.block.rows, 32);
    assert_true(few.registers == 0 && many.registers == 0);
    assert_int_equal(plan_of(&facts, &small, CLMGK_PASS_BACKWARD, "row-threads=8").block.rows, 32);
}

/* ---- the matrix engine ------------------------------------------------------------------------------------------ */

/* Blocks of 128 rows where each unit has one. */
TH_HOST_TEST(matrix_forward_on_an_h200)
{
    static const struct {
        int64_t heads, length, head_size, rows, resident, waves;
    } cases[] = {{8, 4096, 64, 128, 2, 1},  {8, 4096, 128, 64, 2, 2}, {16, 8192, 64, 128, 2, 4},
                 {16, 8192, 128, 64, 2, 8}, {9, 2048, 64, 128, 2, 1}, {8, 2048, 64, 64, 3, 1}};
    const mgk_device_facts facts = h200_with_units();
    for (size_t n = 0; n < TH_COUNT(cases); n++) {
        clmgk_attention_desc desc =
            desc_of(CLMGK_VARIANT_SOFTMAX, cases[n].heads, cases[n].length, cases[n].length, cases[n].head_size);
        desc.dtype = CLMGK_DTYPE_BF16;
        const planned made = plan_of(&facts, &desc, CLMGK_PASS_FORWARD, NULL);
        assert_int_equal(made.block.rows, cases[n].rows);
        assert_int_equal(made.block.resident, cases[n].resident);
        assert_int_equal(waves_of(&facts, &made), cases[n].waves);
        assert_int_equal(made.splits, 1);
    }
}

/* Few blocks: ranges of keys fill a wave, also where the queries of heads are packed for decoding. */
/* 2,048 blocks are five waves of three work-groups a unit, and 68. These are split, unless a mask makes blocks unequal,
 * sequences are packed, or a caller wants something else. */
TH_HOST_TEST(matrix_tails_on_an_h200)
{
    enum { BLOCKS = 2048, WHOLE = 5 * 3 * H200_UNITS };
    mgk_device_facts facts = h200();
    facts.matrix_unit = (mgk_matrix_unit){.known = true, .unit = mgk_matrix_unit_of(&facts, MATRIX_WGMMA)};
    clmgk_attention_desc desc = desc_of(CLMGK_VARIANT_SOFTMAX, 16, 8192, 8192, 128), causal, packed;
    desc.dtype = CLMGK_DTYPE_BF16;
    causal = packed = desc;
    const planned made = plan_of(&facts, &desc, CLMGK_PASS_FORWARD, NULL);
    assert_int_equal(made.block.resident, 3);
    assert_int_equal(made.splits, 5);
    assert_int_equal(made.groups, WHOLE + 5 * (BLOCKS - WHOLE));
    assert_int_equal(plan_of(&facts, &desc, CLMGK_PASS_FORWARD, "splits=2").groups, 2 * BLOCKS);
    assert_int_equal(plan_of(&facts, &desc, CLMGK_PASS_FORWARD, "splits=2,split-from=1").groups, 2 * BLOCKS - 1);
    assert_int_equal(plan_of(&facts, &desc, CLMGK_PASS_FORWARD, "splits=2,split-from=2").groups, 2 * BLOCKS - WHOLE);
    assert_int_equal(plan_of(&facts, &desc, CLMGK_PASS_FORWARD, "splits=1,split-from=2").groups, BLOCKS);
    causal.causal = 1;
    assert_int_equal(plan_of(&facts, &causal, CLMGK_PASS_FORWARD, NULL).splits, 1);
    assert_int_equal(plan_of(&facts, &causal, CLMGK_PASS_FORWARD, "splits=2,split-from=2").groups, 2 * BLOCKS - WHOLE);
    packed.sequences = 1;
    assert_int_equal(plan_of(&facts, &packed, CLMGK_PASS_FORWARD, NULL).splits, 1);
    assert_int_equal(plan_of(&facts, &packed, CLMGK_PASS_FORWARD, "splits=2,split-from=1").groups,
                     plan_of(&facts, &packed, CLMGK_PASS_FORWARD, "splits=2").groups);
}

TH_HOST_TEST(matrix_splits_on_an_h200)
{
    const mgk_device_facts facts = h200_with_units();
    clmgk_attention_desc few = desc_of(CLMGK_VARIANT_SOFTMAX, 8, 128, 4096, 64),
                         decoding = desc_of(CLMGK_VARIANT_SOFTMAX, 64, 1, 65536, 128);
    decoding.kv_heads = 8;
    for (decoding.batch = 1; decoding.batch <= 4; decoding.batch *= 4) {
        decoding.dtype = CLMGK_DTYPE_BF16;
        const planned made = plan_of(&facts, &decoding, CLMGK_PASS_FORWARD, NULL);
        assert_int_equal(made.block.threads, 32); /* a warp: eight rows */
        assert_int_equal(waves_of(&facts, &made), 1);
        assert_true(made.groups > INT64_C(4) * H200_UNITS); /* each with a tile of keys or values on its way */
    }
    few.dtype = CLMGK_DTYPE_BF16;
    const planned made = plan_of(&facts, &few, CLMGK_PASS_FORWARD, NULL);
    assert_int_equal(made.splits, 16);
    assert_int_equal(waves_of(&facts, &made), 1);
    assert_int_equal(plan_of(&facts, &few, CLMGK_PASS_FORWARD, "splits=2").splits, 2);
}

/* The emulation has no pace, so a plan for tests counts blocks. */
TH_HOST_TEST(matrix_forward_without_units)
{
    mgk_device_facts facts = h200_with_units();
    clmgk_attention_desc desc = desc_of(CLMGK_VARIANT_SOFTMAX, 8, 4096, 4096, 64);
    desc.dtype = CLMGK_DTYPE_BF16;
    const mgk_pass_request request = {
        .desc = &desc, .limits = &desc, .facts = &facts, .engine = CLMGK_ENGINE_MATRIX, .pass = CLMGK_PASS_FORWARD};
    mgk_pass_plan *const plan = calloc(1, sizeof(*plan));
    assert_non_null(plan);
    facts.matrix_unit.unit = 0;
    th_expect_ok(clmgk_attention_validate(&desc, &desc, &th_error));
    th_expect_ok(mgk_family_plan(mgk_family_of(desc.variant), &request, plan, &th_error));
    assert_int_equal(plan->block.resident, 0);
    assert_int_equal(plan->block.rows, 64);
    mgk_steps_clear(&plan->steps, NULL);
    free(plan);
}

/* ---- other devices -------------------------------------------------------------------------------------------- */

/* A device with less has another legal plan. */
TH_HOST_TEST(smaller_devices)
{
    static const struct {
        uint64_t group, local;
        uint32_t registers;
    } devices[] = {
        {1024, 49152, 65536}, {256, 49152, 32768}, {128, 32768, 16384}, {64, 16384, 8192}, {32, 16384, 1024}};
    static const char *const vendors[] = {"NVIDIA Corporation", "Advanced Micro Devices, Inc.", "Intel(R) Corporation",
                                          "nobody"};
    static const int64_t lengths[] = {1, 40, 4096};
    for (size_t n = 0; n < TH_COUNT(devices) * TH_COUNT(vendors); n++) {
        mgk_device_facts facts = gpu_of(vendors[n / TH_COUNT(devices)]);
        facts.info.max_work_group = facts.work_item_limit = devices[n % TH_COUNT(devices)].group;
        facts.info.local_memory_bytes = devices[n % TH_COUNT(devices)].local;
        facts.unit_registers = devices[n % TH_COUNT(devices)].registers;
        for (size_t i = 0; i < TH_COUNT(lengths); i++) {
            const clmgk_attention_desc desc = desc_of(CLMGK_VARIANT_SOFTMAX, 8, lengths[i], 4096, 64);
            for (clmgk_pass pass = CLMGK_PASS_FORWARD; pass <= CLMGK_PASS_BACKWARD; pass++) {
                const planned made = plan_of(&facts, &desc, pass, NULL);
                assert_true(made.block.threads <= facts.info.max_work_group);
                assert_true(made.block.local_bytes <= facts.info.local_memory_bytes);
                assert_true(made.groups >= 1 && (pass == CLMGK_PASS_BACKWARD || made.block.resident >= 1));
                assert_true(made.registers == 0 && made.states); /* the option is of NVIDIA's platform alone */
            }
        }
    }
}

/* NVIDIA's option is for programs that were looked at. */
TH_HOST_TEST(limit_of_registers)
{
    const mgk_device_facts facts = h200();
    const clmgk_attention_desc narrow = desc_of(CLMGK_VARIANT_SOFTMAX, 8, 4096, 4096, 32),
                               wide = desc_of(CLMGK_VARIANT_SOFTMAX, 8, 4096, 4096, 64),
                               gaussian = desc_of(CLMGK_VARIANT_GAUSSIAN, 8, 4096, 4096, 32);
    clmgk_attention_desc biased = desc_of(CLMGK_VARIANT_SOFTMAX, 8, 4096, 4096, 32);
    biased.use_bias = 1;
    assert_int_equal(plan_of(&facts, &narrow, CLMGK_PASS_FORWARD, NULL).registers, 128);
    assert_int_equal(plan_of(&facts, &wide, CLMGK_PASS_FORWARD, NULL).registers, 0);
    assert_int_equal(plan_of(&facts, &gaussian, CLMGK_PASS_FORWARD, NULL).registers, 0);
    assert_int_equal(plan_of(&facts, &biased, CLMGK_PASS_FORWARD, NULL).registers, 0);
    assert_int_equal(plan_of(&facts, &narrow, CLMGK_PASS_FORWARD, "rows=4").registers, 0);
    mgk_device_facts other = facts; /* another platform's driver for the card */
    other.runtime = MGK_RUNTIME_RUSTICL;
    assert_int_equal(plan_of(&other, &narrow, CLMGK_PASS_FORWARD, NULL).registers, 0);
    assert_int_equal(plan_of(&facts, &narrow, CLMGK_PASS_FORWARD, "rows=8,row-threads=8").registers, 128);
}

/* ---- ranges by length ------------------------------------------------------------------------------------------ */

/* The time of a launch in tiles: each work-group, in their order, takes the unit that is free first. */
static int64_t time_of(const planned *made, const int *lengths, int problems, int heads, int64_t wave)
{
    int64_t *const free_at = calloc((size_t)wave, sizeof(*free_at)), all = 0, end = 0;
    assert_non_null(free_at);
    for (int b = 0; b < problems; b += length_step(problems))
        all += lengths[b];
    all = all * problems / ((problems - 1) / length_step(problems) + 1);
    for (int split = 0; split < made->splits; split++)
        for (int n = 0; n < problems * heads; n++) {
            const int tile = (int)made->block.tile, tiles = (lengths[n / heads] + tile - 1) / tile;
            const int share = tiles_of_range(tiles, all / tile, made->all_ranges, (int)made->splits, made->range_tiles);
            assert_true(share >= 1 && share * made->splits >= tiles);
            int64_t unit = 0;
            for (int64_t i = 1; i < wave; i++)
                unit = free_at[i] < free_at[unit] ? i : unit;
            const int begin = split * share;
            free_at[unit] += begin < tiles ? (tiles - begin < share ? tiles - begin : share) : 0;
            end = end < free_at[unit] ? free_at[unit] : end;
        }
    free(free_at);
    return end;
}

/* Of more problems than a work-group reads, equally many are between those that it reads. */
TH_HOST_TEST(lengths_that_are_read)
{
    static const int problems[][2] = {{1, 1}, {LENGTHS_READ, 1}, {LENGTHS_READ + 1, 2}, {10 * LENGTHS_READ, 10}};
    for (size_t n = 0; n < TH_COUNT(problems); n++)
        assert_int_equal(length_step(problems[n][0]), problems[n][1]);
}

/* 64 sequences with a query each: equal ones are not cut into more ranges than the device needs, and of unequal ones
 * none holds the others up, not even the only long one. */
TH_HOST_TEST(ranges_by_length)
{
    enum { PROBLEMS = 64, HEADS = 8, ROOM = 8192 };
    const mgk_device_facts facts = h200();
    clmgk_attention_desc desc = desc_of(CLMGK_VARIANT_SOFTMAX, HEADS, 1, ROOM, 128);
    desc.batch = PROBLEMS;
    const planned fixed = plan_of(&facts, &desc, CLMGK_PASS_FORWARD, NULL);
    desc.use_lengths = 1;
    const planned made = plan_of(&facts, &desc, CLMGK_PASS_FORWARD, NULL);
    const int64_t wave = made.block.resident * facts.info.compute_units;
    assert_int_equal(fixed.splits, 1);
    assert_true(made.splits > 1 && made.groups == made.splits * PROBLEMS * HEADS);
    for (int kind = 0; kind < 3; kind++) {
        int lengths[PROBLEMS];
        int64_t tiles = 0;
        for (int b = 0; b < PROBLEMS; b++) {
            lengths[b] = kind == 0 ? 4000 : kind == 1 ? 100 + b * 37 % PROBLEMS * 125 : b == 40 ? 8000 : 100;
            tiles += (int64_t)HEADS * ((lengths[b] + made.block.tile - 1) / made.block.tile);
        }
        const int64_t time = time_of(&made, lengths, PROBLEMS, HEADS, wave), least = (tiles + wave - 1) / wave;
        const int64_t longest = ROOM / made.block.tile / made.splits;
        print_message("kind %d: %d tiles, at least %d, whole sequences %d\n", kind, (int)time, (int)least,
                      (int)time_of(&fixed, lengths, PROBLEMS, HEADS, wave));
        assert_true(time <= (least > longest ? least : longest) * 4 / 3 + made.range_tiles);
        if (kind == 0) {
            const int share = tiles_of_range(4000 / (int)made.block.tile, tiles / HEADS, made.all_ranges,
                                             (int)made.splits, made.range_tiles);
            assert_true(5 * wave * share >= tiles);
        }
    }
    desc.gradients = CLMGK_GRADIENT_Q; /* the same work for each block as in the backward pass */
    assert_int_equal(plan_of(&facts, &desc, CLMGK_PASS_FORWARD, NULL).splits, 1);
}

/* Each block has its turn once; any run of turns has about as many of each part of the blocks. */
TH_HOST_TEST(turns_are_spread)
{
    enum { MOST = 512 };
    static const struct {
        unsigned int blocks, spread;
    } cases[] = {{512, 315}, {128, 79}, {63, 38}, {7, 4}};
    for (size_t n = 0; n < TH_COUNT(cases); n++) {
        const unsigned int blocks = cases[n].blocks;
        bool taken[MOST] = {false};
        unsigned int odd = 0, later = 0;
        for (unsigned int turn = 0; turn < blocks; turn++) {
            const unsigned int block = spread_block(turn, blocks, cases[n].spread);
            assert_true(block < blocks && !taken[block]);
            taken[block] = true;
            odd += turn < blocks / 2 && block % 2 == 1;
            later += turn < blocks / 2 && block >= blocks / 2;
        }
        assert_in_range(odd, blocks / 4 - blocks / 32 - 1, blocks / 4 + blocks / 32 + 1);
        assert_in_range(later, blocks / 4 - blocks / 32 - 1, blocks / 4 + blocks / 32 + 1);
    }
}

/* ---- the order of blocks -------------------------------------------------------------------------------------- */

/* Every block of every list once; the longest of all lists first, where blocks are unequal. */
TH_HOST_TEST(order_of_blocks)
{
    enum { BLOCKS = 7, LISTS = 5 };
    for (int form = 0; form < 4; form++) {
        const bool longest_first = (form & 1) != 0, backwards = (form & 2) != 0;
        bool taken[LISTS][BLOCKS] = {{false}};
        unsigned int last = 0;
        for (unsigned int id = 0; id < BLOCKS * LISTS; id++) {
            const block_place place = block_place_of(id, BLOCKS, LISTS, longest_first, backwards);
            assert_true(place.block < BLOCKS && place.list < LISTS && !taken[place.list][place.block]);
            taken[place.list][place.block] = true;
            const unsigned int turn = backwards ? BLOCKS - 1 - place.block : place.block;
            if (longest_first)
                assert_true(turn >= last);
            else
                assert_int_equal(place.list, id / BLOCKS);
            assert_int_equal(turn, longest_first ? id / LISTS : id % BLOCKS);
            last = turn;
        }
    }
}
