/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Facts, the list of devices, the choice of one, and making contexts: on made-up platforms. This program defines the
 * OpenCL calls that these parts use; they stand in for the loader's.
 */
#include "engine/engine.h"
#include "harness/harness.h"

#include <stdlib.h>
#include <string.h>

#define LONG_NAME_64 "a long name of a device that goes on and on until it has had it."

/* ---- the made-up machine ------------------------------------------------------------------------------------- */

struct _cl_device_id {
    cl_platform_id platform;
    const char *name;
    cl_device_type type;
    cl_bool compiler;
    cl_device_id parent;
    int references;
};

struct _cl_platform_id {
    const char *name;
    struct _cl_device_id *devices;
    cl_uint count;
    cl_int code_if_empty;
};

struct _cl_context {
    cl_device_id devices[2];
    int references;
};

struct _cl_mem {
    int references;
};

static struct _cl_mem buffer; /* of a context of the library */
static struct _cl_platform_id platforms[5];
static struct _cl_device_id cpus[] = {
    {&platforms[2], "pthread-model CPU", CL_DEVICE_TYPE_CPU | CL_DEVICE_TYPE_DEFAULT, CL_TRUE, NULL, 1},
};
static struct _cl_device_id gpus[] = {
    {&platforms[3], "Model GPU one", CL_DEVICE_TYPE_GPU, CL_FALSE, NULL, 1},
    {&platforms[3], "Model GPU two", CL_DEVICE_TYPE_GPU, CL_TRUE, NULL, 1},
    {&platforms[3], "Model GPU three", CL_DEVICE_TYPE_GPU, CL_TRUE, NULL, 1},
};
static struct _cl_device_id others[] = {
    {&platforms[4], LONG_NAME_64 LONG_NAME_64 LONG_NAME_64 LONG_NAME_64 "!", CL_DEVICE_TYPE_ACCELERATOR, CL_TRUE, NULL,
     1},
};
static struct _cl_device_id part = {&platforms[3], "Model GPU two", CL_DEVICE_TYPE_GPU, CL_TRUE, &gpus[1], 1};
static struct _cl_platform_id platforms[5] = {
    {"Empty one", NULL, 0, CL_DEVICE_NOT_FOUND},
    {"Empty two", NULL, 0, CL_SUCCESS},
    {"Portable Computing Language", cpus, 1, CL_SUCCESS},
    {"NVIDIA CUDA", gpus, 3, CL_SUCCESS},
    {"Exotic Runtime", others, 1, CL_SUCCESS},
};

static cl_uint platform_count = 5; /* how many of them there are in a test */
static int calls;                  /* OpenCL calls so far ... */
static int failing_call;           /* ... of which this one fails; 0: none */

static bool call_fails(void)
{
    return ++calls == failing_call;
}

static cl_int answer(const void *value, size_t size, size_t capacity, void *target, size_t *needed)
{
    if (call_fails())
        return CL_OUT_OF_HOST_MEMORY;
    if (target != NULL && capacity < size)
        return CL_INVALID_VALUE;
    if (target != NULL)
        memcpy(target, value, size);
    if (needed != NULL)
        *needed = size;
    return CL_SUCCESS;
}

static cl_int answer_text(const char *text, size_t capacity, void *target, size_t *needed)
{
    return answer(text, strlen(text) + 1, capacity, target, needed);
}

CL_API_ENTRY cl_int CL_API_CALL clGetPlatformIDs(cl_uint capacity, cl_platform_id *out, cl_uint *count)
{
    if (call_fails())
        return CL_OUT_OF_HOST_MEMORY;
    if (platform_count == 0)
        return -1001;
    for (cl_uint i = 0; i < capacity && i < platform_count; ++i)
        out[i] = &platforms[i];
    if (count != NULL)
        *count = platform_count;
    return CL_SUCCESS;
}

CL_API_ENTRY cl_int CL_API_CALL clGetDeviceIDs(cl_platform_id platform, cl_device_type type, cl_uint capacity,
                                               cl_device_id *out, cl_uint *count)
{
    (void)type;
    if (call_fails())
        return CL_OUT_OF_HOST_MEMORY;
    for (cl_uint i = 0; i < capacity && i < platform->count; ++i)
        out[i] = &platform->devices[i];
    if (count != NULL)
        *count = platform->count;
    return platform->count == 0 ? platform->code_if_empty : CL_SUCCESS;
}

CL_API_ENTRY cl_int CL_API_CALL clGetPlatformInfo(cl_platform_id platform, cl_platform_info parameter, size_t capacity,
                                                  void *target, size_t *needed)
{
    return answer_text(parameter == CL_PLATFORM_NAME ? platform->name : "OpenCL 1.2 made up", capacity, target, needed);
}

CL_API_ENTRY cl_int CL_API_CALL clGetDeviceInfo(cl_device_id device, cl_device_info parameter, size_t capacity,
                                                void *target, size_t *needed)
{
    static const size_t sizes[] = {1024, 512, 64};
    static const size_t group = 2048;
    static const cl_uint small = 3;
    static const cl_ulong large = UINT64_C(1) << 40;
    static const cl_bool yes = CL_TRUE;
    switch (parameter) {
    case CL_DEVICE_PLATFORM:
        return answer(&device->platform, sizeof(cl_platform_id), capacity, target, needed);
    case CL_DEVICE_TYPE:
        return answer(&device->type, sizeof(device->type), capacity, target, needed);
    case CL_DEVICE_NAME:
        return answer_text(device->name, capacity, target, needed);
    case CL_DEVICE_VENDOR:
    case CL_DRIVER_VERSION:
    case CL_DEVICE_VERSION:
        return answer_text("made up", capacity, target, needed);
    case CL_DEVICE_GLOBAL_MEM_SIZE:
    case CL_DEVICE_LOCAL_MEM_SIZE:
    case CL_DEVICE_MAX_MEM_ALLOC_SIZE:
        return answer(&large, sizeof(large), capacity, target, needed);
    case CL_DEVICE_MAX_WORK_GROUP_SIZE:
        return answer(&group, sizeof(group), capacity, target, needed);
    case CL_DEVICE_MAX_WORK_ITEM_SIZES:
        return answer(sizes, sizeof(sizes), capacity, target, needed);
    case CL_DEVICE_AVAILABLE:
        return answer(&yes, sizeof(yes), capacity, target, needed);
    case CL_DEVICE_COMPILER_AVAILABLE:
        return answer(&device->compiler, sizeof(device->compiler), capacity, target, needed);
    case CL_DEVICE_PARENT_DEVICE:
        return answer(&device->parent, sizeof(cl_device_id), capacity, target, needed);
    default:
        return answer(&small, sizeof(small), capacity, target, needed);
    }
}

CL_API_ENTRY cl_int CL_API_CALL clGetContextInfo(cl_context context, cl_context_info parameter, size_t capacity,
                                                 void *target, size_t *needed)
{
    (void)parameter;
    return answer(context->devices, sizeof(context->devices), capacity, target, needed);
}

static cl_int count_reference(int *references, int change)
{
    if (change > 0 && call_fails())
        return CL_OUT_OF_HOST_MEMORY;
    *references += change;
    return CL_SUCCESS;
}

CL_API_ENTRY cl_int CL_API_CALL clRetainContext(cl_context context)
{
    return count_reference(&context->references, 1);
}

CL_API_ENTRY cl_int CL_API_CALL clReleaseContext(cl_context context)
{
    return count_reference(&context->references, -1);
}

CL_API_ENTRY cl_int CL_API_CALL clRetainDevice(cl_device_id device)
{
    return count_reference(&device->references, 1);
}

CL_API_ENTRY cl_int CL_API_CALL clReleaseDevice(cl_device_id device)
{
    return count_reference(&device->references, -1);
}

CL_API_ENTRY cl_mem CL_API_CALL clCreateBuffer(cl_context context, cl_mem_flags flags, size_t size, void *host,
                                               cl_int *code)
{
    (void)context, (void)flags, (void)size, (void)host;
    *code = count_reference(&buffer.references, 1);
    return *code == CL_SUCCESS ? &buffer : NULL;
}

CL_API_ENTRY cl_int CL_API_CALL clReleaseMemObject(cl_mem memory)
{
    return count_reference(&memory->references, -1);
}

static int reset(void **state)
{
    (void)state;
    platform_count = 5;
    failing_call = 0;
    calls = 0;
    return unsetenv("CLMGK_DEVICE");
}

#define MACHINE_TEST(name) TH_TEST_OF(name, const void *no_state, .set_up = reset)

/* ---- list ---------------------------------------------------------------------------------------------------- */

MACHINE_TEST(test_list)
{
    clmgk_device_info infos[5];
    size_t count = 0;
    memset(infos, 0x5a, sizeof(infos));
    infos[0].struct_size = sizeof(infos[0]); /* of all */
    assert_int_equal(clmgk_list_devices(infos, 5, &count, NULL), CLMGK_OK);
    assert_int_equal(count, 4);
    assert_string_equal(infos[0].name, "pthread-model CPU");
    assert_int_equal(infos[0].platform_index, 2);
    assert_int_equal(infos[0].device_index, 0);
    assert_int_equal(infos[0].device_class, CLMGK_DEVICE_CPU);
    assert_int_equal(infos[0].engine, CLMGK_ENGINE_LANE);
    assert_int_equal(infos[1].struct_size, sizeof(infos[1]));
    assert_string_equal(infos[1].name, "Model GPU two");
    assert_int_equal(infos[1].platform_index, 3);
    assert_int_equal(infos[1].device_index, 1);
    assert_int_equal(infos[1].device_class, CLMGK_DEVICE_GPU);
    assert_int_equal(infos[1].engine, CLMGK_ENGINE_SIMT);
    assert_int_equal(infos[3].device_class, CLMGK_DEVICE_OTHER);
    assert_int_equal(infos[3].engine, CLMGK_ENGINE_SIMT);
    assert_int_equal(infos[0].compute_units, 3);
    assert_true(infos[0].global_memory_bytes == UINT64_C(1) << 40);
    assert_int_equal(infos[0].max_work_group, 2048);
    assert_int_equal(((unsigned char *)&infos[4])[0], 0x5a);

    size_t again = 0;
    assert_int_equal(clmgk_list_devices(infos, 1, &again, NULL), CLMGK_OK);
    assert_int_equal(again, 4);
    assert_int_equal(clmgk_list_devices(NULL, 0, &again, NULL), CLMGK_OK);
    assert_int_equal(again, 4);
}

MACHINE_TEST(test_long_names_are_cut)
{
    clmgk_device_info info = CLMGK_DEVICE_INFO_INIT;
    assert_int_equal(clmgk_get_device_info(&others[0], &info, NULL), CLMGK_OK);
    assert_int_equal(strlen(info.name), sizeof(info.name) - 1);
    assert_memory_equal(info.name, others[0].name, sizeof(info.name) - 1);
}

MACHINE_TEST(test_empty_lists)
{
    for (platform_count = 0; platform_count <= 2; ++platform_count) {
        clmgk_device_info info = CLMGK_DEVICE_INFO_INIT;
        clmgk_error error = {0};
        size_t count = 7;
        th_expect_ok(clmgk_list_devices(NULL, 0, &count, &th_error));
        assert_int_equal(count, 0);
        assert_int_equal(clmgk_select_device(NULL, &info, &error), CLMGK_ERROR_NO_DEVICE);
        assert_int_equal(clmgk_select_device("pocl", &info, &error), CLMGK_ERROR_NO_DEVICE);
    }
}

/* Each platform is named; PoCL's folder and the variables that change it where that is the reason. */
MACHINE_TEST(test_no_device_says_why)
{
    static struct _cl_device_id bare = {&platforms[1], "GPU", CL_DEVICE_TYPE_GPU, CL_FALSE, NULL, 1};
    static const struct _cl_platform_id pocl = {"Portable Computing Language", NULL, 0, CL_DEVICE_NOT_FOUND};
    const struct _cl_platform_id kept[] = {platforms[0], platforms[1]};
    clmgk_device_info info = CLMGK_DEVICE_INFO_INIT;
    platform_count = 0;
    th_expect_error(clmgk_select_device(NULL, &info, &th_error), CLMGK_ERROR_NO_DEVICE,
                    "no OpenCL device: no platform: expected a driver (such as pocl-opencl-icd)");
    platforms[0] = (struct _cl_platform_id){"rusticl", NULL, 0, CL_DEVICE_NOT_FOUND};
    platform_count = 1;
    th_expect_error(clmgk_select_device(NULL, &info, &th_error), CLMGK_ERROR_NO_DEVICE,
                    "platform 0 \"rusticl\" is there without a device: RUSTICL_ENABLE names the drivers");
    platforms[0] = pocl;
    platforms[1] = (struct _cl_platform_id){"Without compilers", &bare, 1, CL_SUCCESS};
    platform_count = 2;
    assert_int_equal(setenv("POCL_CACHE_DIR", "/dev/null/folder", 1), 0);
    const clmgk_status status = clmgk_select_device(NULL, &info, &th_error);
    assert_int_equal(unsetenv("POCL_CACHE_DIR"), 0);
    memcpy(platforms, kept, sizeof(kept));
    assert_int_equal(status, CLMGK_ERROR_NO_DEVICE);
    assert_string_equal(th_error.message,
                        "no OpenCL device; platform 0 \"Portable Computing Language\" is there without a device: PoCL "
                        "can't write to its folder: /dev/null/folder: Not a directory (POCL_CACHE_DIR or HOME names "
                        "another); platform 1 \"Without compilers\" is there without an available device that has a "
                        "compiler");
}

MACHINE_TEST(test_a_part_of_a_device)
{
    clmgk_device_info info = CLMGK_DEVICE_INFO_INIT;
    assert_int_equal(clmgk_get_device_info(&part, &info, NULL), CLMGK_OK);
    assert_ptr_equal(info.device_id, &part);
    assert_int_equal(info.platform_index, 3);
    assert_int_equal(info.device_index, 1);
}

MACHINE_TEST(test_runtimes)
{
    static const struct {
        const char *platform;
        cl_device_type type;
        const char *name;
        mgk_runtime runtime;
        clmgk_engine engine;
    } cases[] = {
        {"Portable Computing Language", CL_DEVICE_TYPE_CPU, "pocl", MGK_RUNTIME_POCL, CLMGK_ENGINE_LANE},
        {"Portable Computing Language", CL_DEVICE_TYPE_GPU, "pocl", MGK_RUNTIME_POCL, CLMGK_ENGINE_SIMT},
        {"rusticl", CL_DEVICE_TYPE_CPU, "rusticl", MGK_RUNTIME_RUSTICL, CLMGK_ENGINE_SIMT},
        {"Intel(R) OpenCL", CL_DEVICE_TYPE_CPU, "intel", MGK_RUNTIME_INTEL_CPU, CLMGK_ENGINE_LANE},
        {"Intel(R) OpenCL Graphics", CL_DEVICE_TYPE_GPU, "", MGK_RUNTIME_OTHER, CLMGK_ENGINE_SIMT},
        {"NVIDIA CUDA", CL_DEVICE_TYPE_GPU, "nvidia", MGK_RUNTIME_NVIDIA, CLMGK_ENGINE_SIMT},
        {"Oclgrind", CL_DEVICE_TYPE_CPU | CL_DEVICE_TYPE_GPU, "oclgrind", MGK_RUNTIME_OCLGRIND, CLMGK_ENGINE_SIMT},
        {"Another", CL_DEVICE_TYPE_CPU, "", MGK_RUNTIME_OTHER, CLMGK_ENGINE_LANE},
    };
    const struct _cl_platform_id platform = platforms[2];
    const struct _cl_device_id device = cpus[0];
    for (size_t i = 0; i < MGK_COUNT(cases); ++i) {
        mgk_device_facts facts;
        platforms[2].name = cases[i].platform;
        cpus[0].type = cases[i].type;
        const clmgk_status status = mgk_device_get_facts(&cpus[0], &facts, NULL);
        platforms[2] = platform;
        cpus[0] = device;
        assert_int_equal(status, CLMGK_OK);
        assert_int_equal(facts.runtime, cases[i].runtime);
        assert_string_equal(mgk_runtime_name(facts.runtime), cases[i].name);
        mgk_ranked ranked[MGK_ENGINES];
        mgk_engines_rank(&facts, NULL, ranked);
        assert_int_equal(ranked[0].engine->value, cases[i].engine);
        if (facts.runtime != MGK_RUNTIME_POCL && facts.runtime != MGK_RUNTIME_INTEL_CPU)
            assert_false(facts.x86_avx512dq || facts.x86_two_units);
    }
}

/* ---- choice -------------------------------------------------------------------------------------------------- */

MACHINE_TEST(test_default_choice)
{
    clmgk_device_info info = CLMGK_DEVICE_INFO_INIT;
    assert_int_equal(clmgk_select_device(NULL, &info, NULL), CLMGK_OK);
    assert_string_equal(info.name, "Model GPU two");
    assert_int_equal(clmgk_select_device("", &info, NULL), CLMGK_OK);
    assert_string_equal(info.name, "Model GPU two");
    platform_count = 3;
    assert_int_equal(clmgk_select_device(NULL, &info, NULL), CLMGK_OK);
    assert_string_equal(info.name, "pthread-model CPU");

    platform_count = 5;
    assert_int_equal(setenv("CLMGK_DEVICE", "pocl", 1), 0);
    assert_int_equal(clmgk_select_device(NULL, &info, NULL), CLMGK_OK);
    assert_string_equal(info.name, "pthread-model CPU");
    assert_int_equal(clmgk_select_device("3:2", &info, NULL), CLMGK_OK);
    assert_string_equal(info.name, "Model GPU three");
    assert_int_equal(setenv("CLMGK_DEVICE", "cpu", 1), 0);
    assert_int_equal(clmgk_select_device(NULL, &info, NULL), CLMGK_OK);
    assert_string_equal(info.name, "pthread-model CPU");
    assert_int_equal(clmgk_select_device("gpu", &info, NULL), CLMGK_OK);
    assert_string_equal(info.name, "Model GPU two");
    platform_count = 3;
    th_expect_error(clmgk_select_device("gpu", &info, &th_error), CLMGK_ERROR_NO_DEVICE,
                    "device selector \"gpu\" matches none of the usable devices: 2:0 \"pthread-model CPU\"");
    assert_int_equal(setenv("CLMGK_DEVICE", "junk", 1), 0);
    th_expect_error(clmgk_select_device(NULL, &info, &th_error), CLMGK_ERROR_NO_DEVICE,
                    "CLMGK_DEVICE: device selector \"junk\" matches none of the usable devices");
    platform_count = 5;
    assert_int_equal(setenv("CLMGK_DEVICE", "", 1), 0);
    assert_int_equal(clmgk_select_device(NULL, &info, NULL), CLMGK_OK);
    assert_string_equal(info.name, "Model GPU two");
}

MACHINE_TEST(test_selectors)
{
    static const struct {
        const char *selector, *name; /* NULL: an error */
        clmgk_status status;
        const char *message; /* a part of it */
    } cases[] = {
        {"2:0", "pthread-model CPU", CLMGK_OK, NULL},
        {"3:1", "Model GPU two", CLMGK_OK, NULL},
        {"gpu THREE", "Model GPU three", CLMGK_OK, NULL},
        {"portable", "pthread-model CPU", CLMGK_OK, NULL},
        {"PoCL", "pthread-model CPU", CLMGK_OK, NULL},
        {"gpu", "Model GPU two", CLMGK_OK, NULL}, /* the first of several */
        {"CPU", "pthread-model CPU", CLMGK_OK, NULL},
        {"cpus", NULL, CLMGK_ERROR_NO_DEVICE, "matches none"},
        {"3:0", NULL, CLMGK_ERROR_NO_DEVICE, "\"3:0\" matches none"},
        {"0:0", NULL, CLMGK_ERROR_NO_DEVICE, "3:2 \"Model GPU three\" (NVIDIA CUDA)"},
        {"9999999999:0", NULL, CLMGK_ERROR_NO_DEVICE, "matches none"},
        {"2:0x", NULL, CLMGK_ERROR_NO_DEVICE, "matches none"},
        {"2:", NULL, CLMGK_ERROR_NO_DEVICE, "matches none"},
        {"-1:0", NULL, CLMGK_ERROR_NO_DEVICE, "matches none"},
        {"abacus", NULL, CLMGK_ERROR_NO_DEVICE, "\"abacus\" matches none"},
        {"gpu one", NULL, CLMGK_ERROR_NO_DEVICE, "matches none"},
        {"nvidia", NULL, CLMGK_ERROR_INVALID_VALUE,
         "matches 2 devices, expected one: 3:1 \"Model GPU two\" (NVIDIA CUDA), 3:2 \"Model GPU three\" (NVIDIA CUDA)"},
        {"MODEL", NULL, CLMGK_ERROR_INVALID_VALUE, "matches 3 devices"},
    };
    for (size_t i = 0; i < MGK_COUNT(cases); ++i) {
        clmgk_device_info info = {.struct_size = sizeof(info), .name = "untouched"};
        clmgk_error error = {0};
        assert_int_equal(clmgk_select_device(cases[i].selector, &info, &error), cases[i].status);
        assert_string_equal(info.name, cases[i].name != NULL ? cases[i].name : "untouched");
        if (cases[i].message != NULL && strstr(error.message, cases[i].message) == NULL)
            fail_msg("\"%s\" gave: %s", cases[i].selector, error.message);
    }
}

/* ---- misuse and failures ------------------------------------------------------------------------------------- */

MACHINE_TEST(test_misuse)
{
    clmgk_device_info info = CLMGK_DEVICE_INFO_INIT;
    size_t count = 0;
    clmgk_error error = {0};
    assert_int_equal(clmgk_list_devices(NULL, 0, NULL, &error), CLMGK_ERROR_INVALID_VALUE);
    assert_string_equal(error.message, "count: NULL: expected room for the number");
    assert_int_equal(clmgk_list_devices(NULL, 1, &count, &error), CLMGK_ERROR_INVALID_VALUE);
    assert_non_null(strstr(error.message, "infos: NULL"));
    info.struct_size = offsetof(clmgk_device_info, architecture);
    assert_int_equal(clmgk_list_devices(&info, 1, &count, &error), CLMGK_ERROR_INVALID_VALUE);
    assert_non_null(strstr(error.message, "infos.struct_size"));
    assert_int_equal(clmgk_select_device(NULL, &info, &error), CLMGK_ERROR_INVALID_VALUE);
    assert_int_equal(clmgk_get_device_info(&cpus[0], &info, &error), CLMGK_ERROR_INVALID_VALUE);
    assert_int_equal(clmgk_cache_get_info("", &(clmgk_cache_info){0}, &error), CLMGK_ERROR_INVALID_VALUE);
    assert_non_null(strstr(error.message, "info.struct_size"));
    assert_int_equal(clmgk_program_dir_get_info("", &(clmgk_cache_info){0}, &error), CLMGK_ERROR_INVALID_VALUE);
    assert_int_equal(clmgk_get_device_info(NULL, &info, &error), CLMGK_ERROR_INVALID_VALUE);
    assert_string_equal(error.message, "device: NULL: expected a device");
    clmgk_program_keeper keeper = CLMGK_KEEPER_DRIVER;
    assert_int_equal(clmgk_cache_get_keeper("", NULL, &keeper, &error), CLMGK_ERROR_INVALID_VALUE);
    assert_string_equal(error.message, "device: NULL: expected a device");
    assert_int_equal(clmgk_cache_get_keeper("", &cpus[0], NULL, &error), CLMGK_ERROR_INVALID_VALUE);
    assert_string_equal(error.message, "keeper: NULL: expected room for the keeper");
    assert_int_equal(keeper, CLMGK_KEEPER_DRIVER);
    assert_int_equal(clmgk_get_device_info(&cpus[0], NULL, &error), CLMGK_ERROR_INVALID_VALUE);
    assert_string_equal(error.message, "info: NULL: expected room for the result");
    assert_int_equal(clmgk_select_device(NULL, NULL, &error), CLMGK_ERROR_INVALID_VALUE);
    assert_string_equal(error.message, "info: NULL: expected room for the result");
    assert_int_equal(clmgk_cache_get_info("", NULL, &error), CLMGK_ERROR_INVALID_VALUE);
    assert_string_equal(error.message, "info: NULL: expected room for the result");
}

static clmgk_status list_and_choose(clmgk_error *error)
{
    clmgk_device_info infos[4] = {CLMGK_DEVICE_INFO_INIT};
    size_t count = 0;
    const clmgk_status status = clmgk_list_devices(infos, 4, &count, error);
    return status != CLMGK_OK ? status : clmgk_select_device("pocl", infos, error);
}

MACHINE_TEST(test_every_call_of_a_choice_fails)
{
    clmgk_error error = {0};
    th_expect_ok(list_and_choose(&th_error));
    const int total = calls;
    assert_true(total > 100);
    for (failing_call = 1; failing_call <= total; ++failing_call) {
        error = (clmgk_error){0};
        calls = 0;
        assert_int_equal(list_and_choose(&error), CLMGK_ERROR_OUT_OF_HOST_MEMORY);
        assert_int_equal(error.opencl_code, CL_OUT_OF_HOST_MEMORY);
        assert_memory_equal(error.message, "clGet", 5);
    }
}

static void release_memory(void *memory, void *user)
{
    (void)user;
    free(memory);
}

MACHINE_TEST(test_contexts)
{
    struct _cl_context opencl = {{&cpus[0], &gpus[0]}, 1};
    clmgk_context *context = NULL;
    clmgk_error error = {0};
    clmgk_context_options options = CLMGK_CONTEXT_OPTIONS_INIT;
    options.cache_dir = "";

    assert_int_equal(clmgk_context_create(NULL, &cpus[0], &options, &context, &error), CLMGK_ERROR_INVALID_VALUE);
    assert_string_equal(error.message, "context: NULL: expected an OpenCL context");
    assert_int_equal(clmgk_context_create(&opencl, NULL, &options, &context, &error), CLMGK_ERROR_INVALID_VALUE);
    assert_string_equal(error.message, "device: NULL: expected a device");
    assert_int_equal(clmgk_context_create(&opencl, &cpus[0], &options, NULL, &error), CLMGK_ERROR_INVALID_VALUE);
    assert_string_equal(error.message, "out: NULL: expected room for the context");
    assert_int_equal(clmgk_context_create(&opencl, &gpus[2], &options, &context, &error), CLMGK_ERROR_INVALID_VALUE);
    assert_non_null(strstr(error.message, "device: expected one of"));
    assert_int_equal(clmgk_context_create(&opencl, &gpus[0], &options, &context, &error), CLMGK_ERROR_NO_DEVICE);
    assert_non_null(strstr(error.message, "Model GPU one"));

    clmgk_context_options wrong = options;
    wrong.struct_size = 8;
    assert_int_equal(clmgk_context_create(&opencl, &cpus[0], &wrong, &context, &error), CLMGK_ERROR_INVALID_VALUE);
    assert_non_null(strstr(error.message, "options.struct_size: 8: expected"));
    wrong = options;
    wrong.allocator.release = release_memory;
    assert_int_equal(clmgk_context_create(&opencl, &cpus[0], &wrong, &context, &error), CLMGK_ERROR_INVALID_VALUE);
    assert_non_null(strstr(error.message, "allocator"));
    assert_null(context);
    assert_int_equal(opencl.references, 1);

    th_expect_ok(clmgk_context_create(&opencl, &cpus[0], &options, &context, &th_error));
    assert_int_equal(opencl.references, 2);
    assert_int_equal(cpus[0].references, 2);
    mgk_context_retain(context);
    clmgk_context_release(context);
    assert_int_equal(opencl.references, 2);
    clmgk_context_release(context);
    clmgk_context_release(NULL);
    assert_int_equal(opencl.references, 1);
    assert_int_equal(cpus[0].references, 1);
    assert_int_equal(buffer.references, 0);
}

MACHINE_TEST(test_every_call_of_a_context_fails)
{
    struct _cl_context opencl = {{&cpus[0], &gpus[0]}, 1};
    clmgk_context *context = NULL;
    assert_int_equal(clmgk_context_create(&opencl, &cpus[0], NULL, &context, NULL), CLMGK_OK);
    clmgk_context_release(context);
    const int total = calls;
    context = NULL;
    for (failing_call = 1; failing_call <= total; ++failing_call) {
        clmgk_error error = {0};
        calls = 0;
        assert_int_equal(clmgk_context_create(&opencl, &cpus[0], NULL, &context, &error),
                         CLMGK_ERROR_OUT_OF_HOST_MEMORY);
        assert_int_equal(error.status, CLMGK_ERROR_OUT_OF_HOST_MEMORY);
        assert_null(context);
        assert_int_equal(opencl.references, 1);
        assert_int_equal(cpus[0].references, 1);
        assert_int_equal(buffer.references, 0);
    }
}
