/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Unit layer, for devices that work in host memory: the device says that it is a GPU of AMD's or Intel's with matrix
 * units. Their instructions, whose names only the makers' compilers know, are functions that do what the makers'
 * documents say: work-items of a wave exchange operands at an address that host and kernels know, behind barriers of
 * the work-group. CLMGK_TEST_UNIT is a unit's name (cl/engine/units.clh) and words:
 *
 *     no-builtins    the compiler does not know the instructions
 *     wrong          every second row of their products has the numbers of the next one
 *     wrong-kernels  the same, but not in the unit's probe
 *     flush          they take subnormal numbers of f16 as 0, as CDNA 2 does
 *
 * Drivers' binaries of a device that is none of theirs can't be loaded again (PoCL aborts), so there are none.
 */
#include "layer.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define ADDRESS      0x200000000000
#define ITEMS        1048576
#define ITEM_NUMBERS 32 /* 16 of A, 16 of B */

#define TEXT(x)   #x
#define NUMBER(x) TEXT(x)

const char layer_name[] = "unit layer";

/* A unit's documented layout: work-item and number of A[i][k] (B[k][j] has the same places, unless stated), and row i
 * of a work-item's sum r; its column is the work-item's number modulo `columns`. */
typedef struct unit {
    const char *name, *vendor, *model;
    int lanes, columns, depth, sums;
    const char *a_lane, *a_number, *b_lane, *b_number, *row;
    const char *text; /* the instructions */
} unit;

#define MFMA_LANE   "32 * (k / 4) + i"
#define MFMA_NUMBER "k % 4"
#define WMMA_LANE   "16 * (k / 4 % 2) + i"
#define WMMA_NUMBER "k / 8 * 4 + k % 4"
#define AMD         "Advanced Micro Devices, Inc."
#define INTEL       "Intel(R) Corporation"

static const unit units[] = {
    {"mfma", AMD, "gfx90a:sramecc+:xnack-", 64, 32, 8, 16, MFMA_LANE, MFMA_NUMBER, MFMA_LANE, MFMA_NUMBER,
     "r / 4 * 8 + lane / 32 * 4 + r % 4",
     "#define as_half4(x) (x)\n"
     "#define __builtin_amdgcn_mfma_f32_32x32x8f16(a, b, c, x, y, z)"
     " instruct(numbers2(as_uint2(a), 1), numbers2(as_uint2(b), 1), c)\n"
     "#define __builtin_amdgcn_mfma_f32_32x32x8bf16_1k(a, b, c, x, y, z)"
     " instruct(numbers2(as_uint2(a), 2), numbers2(as_uint2(b), 2), c)\n"},
    {"wmma", AMD, "gfx1100", 32, 16, 16, 8, "i", "k", "i", "k", "2 * r + lane / 16",
     "#define as_half16(x) (x)\n"
     "#define __builtin_amdgcn_wmma_f32_16x16x16_f16_w32(a, b, c)"
     " instruct(numbers8(as_uint8(a), 1), numbers8(as_uint8(b), 1), c)\n"
     "#define __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32(a, b, c)"
     " instruct(numbers8(as_uint8(a), 2), numbers8(as_uint8(b), 2), c)\n"},
    {"wmma-gfx12", AMD, "gfx1201", 32, 16, 16, 8, WMMA_LANE, WMMA_NUMBER, WMMA_LANE, WMMA_NUMBER, "r + lane / 16 * 8",
     "#define as_half8(x) (x)\n"
     "#define __builtin_amdgcn_wmma_f32_16x16x16_f16_w32_gfx12(a, b, c)"
     " instruct(numbers4(as_uint4(a), 1), numbers4(as_uint4(b), 1), c)\n"
     "#define __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32_gfx12(a, b, c)"
     " instruct(numbers4(as_uint4(a), 2), numbers4(as_uint4(b), 2), c)\n"},
    {"dpas", INTEL, "Intel(R) Data Center GPU Max 1100", 16, 16, 16, 8, "k", "i", "i", "k", "r",
     "#define intel_sub_group_f16_f16_matrix_mad_k16(a, b, c)"
     " instruct(numbers4(as_uint4(a), 1), numbers8(as_uint8(b), 1), c)\n"
     "#define intel_sub_group_bf16_bf16_matrix_mad_k16(a, b, c)"
     " instruct(numbers4(as_uint4(a), 2), numbers8(as_uint8(b), 2), c)\n"},
    {"dpas-8", INTEL, "Intel(R) Arc(TM) A770 Graphics", 8, 8, 16, 8, "k / 2", "2 * i + k % 2", "i", "k", "r",
     "#define intel_sub_group_f16_f16_matrix_mad_k16(a, b, c)"
     " instruct(numbers8(as_uint8(a), 1), numbers8(as_uint8(b), 1), c)\n"
     "#define intel_sub_group_bf16_bf16_matrix_mad_k16(a, b, c)"
     " instruct(numbers8(as_uint8(a), 2), numbers8(as_uint8(b), 2), c)\n"},
};

static const unit *own;
static bool no_builtins, wrong, wrong_kernels, flush;

static int probes; /* compiled so far; the builds of a test come one after the other */
int unit_layer_probes(void);
int unit_layer_probes(void)
{
    return probes;
}

static bool renewed; /* the driver has another version */
int unit_layer_renew(void);
int unit_layer_renew(void)
{
    renewed = true;
    return 0;
}

/* ---- the device's word ------------------------------------------------------------------------------------------ */

#define EXTENSION " cl_intel_subgroup_matrix_multiply_accumulate"

static cl_int extensions(cl_device_id device, size_t size, void *value, size_t *size_out)
{
    char list[8192] = "";
    const cl_int code = layer_next.clGetDeviceInfo(device, CL_DEVICE_EXTENSIONS, sizeof(list) / 2, list, NULL);
    if (code != CL_SUCCESS)
        return code;
    if (strcmp(own->vendor, INTEL) == 0)
        (void)strcat(list, EXTENSION);
    return layer_give(list, strlen(list) + 1, size, value, size_out);
}

static cl_int CL_API_CALL with_unit(cl_device_id device, cl_device_info name, size_t size, void *value,
                                    size_t *size_out)
{
    enum { SUB_GROUP_SIZES_INTEL = 0x4108 };
    static const cl_device_type gpu = CL_DEVICE_TYPE_GPU;
    static const cl_ulong local = 65536;
    const size_t lanes[] = {(size_t)own->lanes, 2 * (size_t)own->lanes};
    switch (name) {
    case CL_DEVICE_TYPE:
        return layer_give(&gpu, sizeof(gpu), size, value, size_out);
    case CL_DEVICE_VENDOR:
        return layer_give(own->vendor, strlen(own->vendor) + 1, size, value, size_out);
    case CL_DEVICE_NAME:
        return layer_give(own->model, strlen(own->model) + 1, size, value, size_out);
    case CL_DEVICE_LOCAL_MEM_SIZE:
        return layer_give(&local, sizeof(local), size, value, size_out);
    case CL_DEVICE_EXTENSIONS:
        return extensions(device, size, value, size_out);
    case CL_DRIVER_VERSION:
        return renewed ? layer_give("renewed", sizeof("renewed"), size, value, size_out)
                       : layer_next.clGetDeviceInfo(device, name, size, value, size_out);
    case SUB_GROUP_SIZES_INTEL:
        return layer_give(lanes, sizeof(lanes), size, value, size_out);
    default:
        return layer_next.clGetDeviceInfo(device, name, size, value, size_out);
    }
}

/* ---- programs --------------------------------------------------------------------------------------------------- */

/* Numbers in f16 (1) or bf16 (2). Those of a wave's instruction are exchanged as floats. */
static const char exchange[] =
    "#define FLUSH %d\n"
    "#define OTHER %d\n"
    "static float number_of(ushort bits, int type) {\n"
    "    if (type == 2)\n"
    "        return as_float((uint)bits << 16);\n"
    "    return FLUSH && (bits & 0x7c00) == 0 ? 0.0f : vload_half(0, (const half *)&bits);\n"
    "}\n"
    "static float16 numbers8(uint8 x, int type) {\n"
    "    float16 all;\n"
    "    for (int n = 0; n < 16; n++)\n"
    "        ((float *)&all)[n] = number_of((ushort)(((const uint *)&x)[n / 2] >> n %% 2 * 16), type);\n"
    "    return all;\n"
    "}\n"
    "static float16 numbers4(uint4 x, int type) { return numbers8((uint8)(x, (uint4)(0)), type); }\n"
    "static float16 numbers2(uint2 x, int type) { return numbers4((uint4)(x, (uint2)(0)), type); }\n"
    "static float%d instruct(float16 a, float16 b, float%d c) {\n"
    "    const ulong group = get_group_id(1) + get_num_groups(1) * get_group_id(2);\n"
    "    const ulong item = get_global_id(0) + get_global_size(0) * group;\n"
    "    const int lane = (int)(get_local_id(0) %% %d);\n"
    "    __global float *const wave = (__global float *)" NUMBER(ADDRESS) "UL + (item - lane) %% " NUMBER(
        ITEMS) " * " NUMBER(ITEM_NUMBERS) ";\n"
                                          "    barrier(CLK_GLOBAL_MEM_FENCE);\n"
                                          "    vstore16(a, 2 * lane, wave);\n"
                                          "    vstore16(b, 2 * lane + 1, wave);\n"
                                          "    barrier(CLK_GLOBAL_MEM_FENCE);\n"
                                          "    for (int r = 0; r < %d; r++) {\n"
                                          "        const int row = (%s) ^ OTHER, column = lane %% %d;\n"
                                          "        float sum = ((const float *)&c)[r];\n"
                                          "        for (int k = 0; k < %d; k++) {\n"
                                          "            int i = row;\n"
                                          "            const float x = wave[" NUMBER(
                                              ITEM_NUMBERS) " * (%s) + (%s)];\n"
                                                            "            i = column;\n"
                                                            "            sum = fma(x, wave[" NUMBER(
                                                                ITEM_NUMBERS) " * (%s) + 16 + (%s)], sum);\n"
                                                                              "        }\n"
                                                                              "        ((float *)&c)[r] = sum;\n"
                                                                              "    }\n"
                                                                              "    return c;\n"
                                                                              "}\n";

static cl_program CL_API_CALL create_with_source(cl_context context, cl_uint count, const char **texts,
                                                 const size_t *lengths, cl_int *code)
{
    char before[4096] = "";
    if (count != 1)
        return layer_next.clCreateProgramWithSource(context, count, texts, lengths, code);
    const bool is_probe = strstr(texts[0], "void direct_probe(") != NULL;
    probes += is_probe;
    if (strstr(texts[0], "MGK_MATRIX_UNIT_CLH") != NULL && !no_builtins) {
        const int used = snprintf(before, sizeof(before), exchange, flush, wrong || (wrong_kernels && !is_probe),
                                  own->sums, own->sums, own->lanes, own->sums, own->row, own->columns, own->depth,
                                  own->a_lane, own->a_number, own->b_lane, own->b_number);
        (void)snprintf(before + used, sizeof(before) - (size_t)used, "%s#line 1\n", own->text);
    }
    const char *all[] = {before, texts[0]};
    const size_t sizes[] = {0, lengths != NULL ? lengths[0] : 0}; /* 0: up to its end */
    return layer_next.clCreateProgramWithSource(context, 2, all, sizes, code);
}

static cl_int CL_API_CALL program_info(cl_program program, cl_program_info name, size_t size, void *value,
                                       size_t *size_out)
{
    return name == CL_PROGRAM_BINARY_SIZES ? CL_OUT_OF_RESOURCES
                                           : layer_next.clGetProgramInfo(program, name, size, value, size_out);
}

static bool has_word(const char *words, const char *word, size_t length)
{
    bool has = false;
    for (; *words != '\0' && !has; words += strspn(words, ",")) {
        const size_t span = strcspn(words, ",");
        has = span == length && memcmp(words, word, length) == 0;
        words += span;
    }
    return has;
}

void layer_install(cl_icd_dispatch *table)
{
    const size_t size = (size_t)ITEMS * ITEM_NUMBERS * sizeof(float);
    void *const at = (void *)ADDRESS;
    const char *const words = getenv("CLMGK_TEST_UNIT");
    for (size_t i = 0; words != NULL && i < sizeof(units) / sizeof(units[0]); i++)
        if (has_word(words, units[i].name, strlen(units[i].name)))
            own = &units[i];
    if (own == NULL)
        abort();
    no_builtins = has_word(words, "no-builtins", 11);
    wrong = has_word(words, "wrong", 5);
    wrong_kernels = has_word(words, "wrong-kernels", 13);
    flush = has_word(words, "flush", 5);
    if (mmap(at, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0) != at)
        abort();
    table->clGetDeviceInfo = with_unit;
    table->clCreateProgramWithSource = create_with_source;
    table->clGetProgramInfo = program_info;
}
