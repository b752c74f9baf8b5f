/* SPDX-License-Identifier: Apache-2.0 */
/* A device's facts, and the properties derived from them. */
#include "device/device.h"

#include <stdio.h>
#include <string.h>

static const struct {
    mgk_runtime runtime;
    const char *platform; /* start of the platform's name */
    const char *name;
} runtimes[] = {
    {MGK_RUNTIME_POCL, "Portable Computing Language", "pocl"},
    {MGK_RUNTIME_RUSTICL, "rusticl", "rusticl"},
    {MGK_RUNTIME_INTEL_CPU, "Intel(R) OpenCL", "intel"},
    {MGK_RUNTIME_NVIDIA, "NVIDIA CUDA", "nvidia"},
    {MGK_RUNTIME_OCLGRIND, "Oclgrind", "oclgrind"},
};

const char *mgk_runtime_name(mgk_runtime runtime)
{
    for (size_t i = 0; i < MGK_COUNT(runtimes); ++i)
        if (runtimes[i].runtime == runtime)
            return runtimes[i].name;
    return "";
}

static mgk_runtime runtime_of(const clmgk_device_info *info)
{
    for (size_t i = 0; i < MGK_COUNT(runtimes); ++i) {
        if (strncmp(info->platform, runtimes[i].platform, strlen(runtimes[i].platform)) != 0)
            continue;
        /* Intel's runtimes for GPUs begin with the same words. */
        if (runtimes[i].runtime == MGK_RUNTIME_INTEL_CPU && info->device_class != CLMGK_DEVICE_CPU)
            return MGK_RUNTIME_OTHER;
        return runtimes[i].runtime;
    }
    return MGK_RUNTIME_OTHER;
}

static clmgk_device_class class_of(cl_device_type type)
{
    if ((type & CL_DEVICE_TYPE_CPU) != 0)
        return CLMGK_DEVICE_CPU;
    return (type & CL_DEVICE_TYPE_GPU) != 0 ? CLMGK_DEVICE_GPU : CLMGK_DEVICE_OTHER;
}

/* True for compilers that make SIMD registers of wide vectors. Two CPU runtimes do not: rusticl runs work-items in its
 * own SIMD lanes and miscompiles large private arrays, and Oclgrind interprets. */
static bool makes_simd_vectors(clmgk_device_class device_class, mgk_runtime runtime)
{
    return device_class == CLMGK_DEVICE_CPU && runtime != MGK_RUNTIME_RUSTICL && runtime != MGK_RUNTIME_OCLGRIND;
}

/* ---- queries ---------------------------------------------------------------------------------------------- */

typedef struct text_query {
    cl_device_id device; /* NULL: asks the platform */
    cl_platform_id platform;
    cl_uint parameter;
} text_query;

static cl_int ask(const text_query *query, size_t size, void *value, size_t *needed)
{
    if (query->device != NULL)
        return clGetDeviceInfo(query->device, query->parameter, size, value, needed);
    return clGetPlatformInfo(query->platform, query->parameter, size, value, needed);
}

/* Truncates texts longer than `target`. */
static clmgk_status query_text(text_query query, char *target, size_t size, clmgk_error *error)
{
    const char *const call = query.device != NULL ? "clGetDeviceInfo" : "clGetPlatformInfo";
    size_t needed = 0;
    cl_int code = ask(&query, 0, NULL, &needed);
    MGK_TRY(mgk_check_cl(error, code, call));

    char *const text = mgk_alloc(NULL, needed + 1, 1);
    if (text == NULL)
        return mgk_fail_memory(error, "a device's facts");
    code = ask(&query, needed, text, NULL);
    if (code != CL_SUCCESS) {
        mgk_free(NULL, text);
        return mgk_fail_cl(error, code, call);
    }
    const size_t length = strlen(text) < size ? strlen(text) : size - 1;
    memcpy(target, text, length);
    target[length] = '\0';
    mgk_free(NULL, text);
    return CLMGK_OK;
}

mgk_gpu mgk_gpu_of(const mgk_device_facts *facts)
{
    if (facts->info.device_class != CLMGK_DEVICE_GPU)
        return MGK_GPU_OTHER;
    static const struct {
        const char *vendor;
        mgk_gpu gpu;
    } makers[] = {{"NVIDIA", MGK_GPU_NVIDIA}, {"Advanced Micro Devices", MGK_GPU_AMD}, {"Intel", MGK_GPU_INTEL}};
    for (size_t i = 0; i < MGK_COUNT(makers); ++i)
        if (strstr(facts->info.vendor, makers[i].vendor) != NULL)
            return makers[i].gpu;
    return MGK_GPU_OTHER;
}

clmgk_status mgk_platform_get_facts(cl_platform_id platform, mgk_device_facts *facts, clmgk_error *error)
{
    clmgk_device_info *const info = &facts->info;
    const text_query name = {NULL, platform, CL_PLATFORM_NAME}, version = {NULL, platform, CL_PLATFORM_VERSION};
    info->platform_id = platform;
    MGK_TRY(query_text(name, info->platform, sizeof(info->platform), error));
    MGK_TRY(query_text(version, facts->platform_version, sizeof(facts->platform_version), error));
    facts->runtime = runtime_of(info);
    return CLMGK_OK;
}

static clmgk_status query_value(cl_device_id device, cl_device_info parameter, void *value, size_t size,
                                clmgk_error *error)
{
    const cl_int code = clGetDeviceInfo(device, parameter, size, value, NULL);
    return mgk_check_cl(error, code, "clGetDeviceInfo");
}

static clmgk_status query_texts(cl_device_id device, mgk_device_facts *facts, clmgk_error *error)
{
    clmgk_device_info *const info = &facts->info;
    const struct {
        text_query query;
        char *target;
        size_t size;
    } texts[] = {
        {{device, NULL, CL_DEVICE_NAME}, info->name, sizeof(info->name)},
        {{device, NULL, CL_DEVICE_VENDOR}, info->vendor, sizeof(info->vendor)},
        {{device, NULL, CL_DRIVER_VERSION}, info->driver, sizeof(info->driver)},
        {{device, NULL, CL_DEVICE_VERSION}, facts->opencl_version, sizeof(facts->opencl_version)},
    };
    for (size_t i = 0; i < MGK_COUNT(texts); ++i)
        MGK_TRY(query_text(texts[i].query, texts[i].target, texts[i].size, error));
    return CLMGK_OK;
}

static clmgk_status query_numbers(cl_device_id device, clmgk_device_info *info, clmgk_error *error)
{
    size_t group = 0;
    const struct {
        cl_device_info parameter;
        size_t size;
        void *value;
    } numbers[] = {
        {CL_DEVICE_MAX_COMPUTE_UNITS, sizeof(cl_uint), &info->compute_units},
        {CL_DEVICE_MAX_CLOCK_FREQUENCY, sizeof(cl_uint), &info->clock_mhz},
        {CL_DEVICE_NATIVE_VECTOR_WIDTH_FLOAT, sizeof(cl_uint), &info->native_float_lanes},
        {CL_DEVICE_GLOBAL_MEM_SIZE, sizeof(cl_ulong), &info->global_memory_bytes},
        {CL_DEVICE_LOCAL_MEM_SIZE, sizeof(cl_ulong), &info->local_memory_bytes},
        {CL_DEVICE_MAX_MEM_ALLOC_SIZE, sizeof(cl_ulong), &info->max_allocation_bytes},
        {CL_DEVICE_MAX_WORK_GROUP_SIZE, sizeof(group), &group},
    };
    for (size_t i = 0; i < MGK_COUNT(numbers); ++i)
        MGK_TRY(query_value(device, numbers[i].parameter, numbers[i].value, numbers[i].size, error));
    info->max_work_group = group;
    return CLMGK_OK;
}

static clmgk_status query_usable(cl_device_id device, bool *usable, clmgk_error *error)
{
    cl_bool available = CL_FALSE, compiler = CL_FALSE;
    MGK_TRY(query_value(device, CL_DEVICE_AVAILABLE, &available, sizeof(available), error));
    MGK_TRY(query_value(device, CL_DEVICE_COMPILER_AVAILABLE, &compiler, sizeof(compiler), error));
    *usable = available == CL_TRUE && compiler == CL_TRUE;
    return CLMGK_OK;
}

static clmgk_status query_local_type(cl_device_id device, bool *is_global, clmgk_error *error)
{
    cl_device_local_mem_type type = CL_NONE;
    MGK_TRY(query_value(device, CL_DEVICE_LOCAL_MEM_TYPE, &type, sizeof(type), error));
    *is_global = type == CL_GLOBAL;
    return CLMGK_OK;
}

static clmgk_status query_work_item_limit(cl_device_id device, uint64_t *limit, clmgk_error *error)
{
    size_t limits[16] = {0};
    cl_uint dimensions = 0;
    MGK_TRY(query_value(device, CL_DEVICE_MAX_WORK_ITEM_DIMENSIONS, &dimensions, sizeof(dimensions), error));
    if (dimensions == 0 || dimensions > MGK_COUNT(limits))
        return mgk_fail(error, CLMGK_ERROR_UNSUPPORTED, "CL_DEVICE_MAX_WORK_ITEM_DIMENSIONS is %u, expected 3",
                        (unsigned)dimensions);
    MGK_TRY(query_value(device, CL_DEVICE_MAX_WORK_ITEM_SIZES, limits, dimensions * sizeof(limits[0]), error));
    *limit = limits[0];
    return CLMGK_OK;
}

#define SUB_GROUP_SIZES_INTEL 0x4108

static int query_least_sub_group(cl_device_id device)
{
    size_t sizes[8] = {0}, bytes = 0, least = 0;
    if (clGetDeviceInfo(device, SUB_GROUP_SIZES_INTEL, sizeof(sizes), sizes, &bytes) != CL_SUCCESS)
        return 0;
    for (size_t i = 0; i < bytes / sizeof(sizes[0]); ++i)
        least = least == 0 || sizes[i] < least ? sizes[i] : least;
    return (int)least;
}

clmgk_status mgk_device_has_extension(cl_device_id device, const char *name, bool *found, clmgk_error *error)
{
    size_t size = 0;
    cl_int code = clGetDeviceInfo(device, CL_DEVICE_EXTENSIONS, 0, NULL, &size);
    MGK_TRY(mgk_check_cl(error, code, "clGetDeviceInfo"));
    char *const text = mgk_alloc(NULL, size + 1, 1);
    if (text == NULL)
        return mgk_fail_memory(error, "the device's extensions");
    const size_t length = strlen(name);
    *found = false;
    code = clGetDeviceInfo(device, CL_DEVICE_EXTENSIONS, size, text, NULL);
    for (const char *word = text + strspn(text, " "); code == CL_SUCCESS && *word != '\0' && !*found;) {
        const size_t span = strcspn(word, " ");
        *found = span == length && strncmp(word, name, length) == 0;
        word += span + strspn(word + span, " ");
    }
    mgk_free(NULL, text);
    return mgk_check_cl(error, code, "clGetDeviceInfo");
}

/* ---- architecture ------------------------------------------------------------------------------------------ */

#define COMPUTE_CAPABILITY_MAJOR_NV 0x4000
#define COMPUTE_CAPABILITY_MINOR_NV 0x4001
#define REGISTERS_PER_BLOCK_NV      0x4002
#define LOCAL_SIZE_PER_UNIT_AMD     0x4047

/* "sm_90"; unchanged if the driver lacks the query. */
static clmgk_status query_capability(cl_device_id device, char *target, size_t size, clmgk_error *error)
{
    cl_uint major = 0, minor = 0;
    cl_int code = clGetDeviceInfo(device, COMPUTE_CAPABILITY_MAJOR_NV, sizeof(major), &major, NULL);
    if (code == CL_SUCCESS)
        code = clGetDeviceInfo(device, COMPUTE_CAPABILITY_MINOR_NV, sizeof(minor), &minor, NULL);
    if (code == CL_SUCCESS)
        snprintf(target, size, "sm_%u%u", (unsigned)major, (unsigned)minor);
    return code == CL_SUCCESS || code == CL_INVALID_VALUE ? CLMGK_OK : mgk_fail_cl(error, code, "clGetDeviceInfo");
}

/* A compute unit's room, where the driver knows the query. NVIDIA's work-group may have all registers of its unit. */
static void query_unit(mgk_device_facts *facts)
{
    const cl_device_id device = facts->info.device_id;
    const mgk_gpu gpu = mgk_gpu_of(facts);
    cl_uint registers = 0, bytes = 0;
    if (gpu == MGK_GPU_NVIDIA &&
        clGetDeviceInfo(device, REGISTERS_PER_BLOCK_NV, sizeof(registers), &registers, NULL) == CL_SUCCESS)
        facts->unit_registers = registers;
    if (gpu == MGK_GPU_AMD &&
        clGetDeviceInfo(device, LOCAL_SIZE_PER_UNIT_AMD, sizeof(bytes), &bytes, NULL) == CL_SUCCESS)
        facts->unit_local_bytes = bytes;
}

/* A CPU device has the architecture of the host's CPU, because its name is too vague (with LLVM 15, PoCL has one name
 * for all CPUs with AVX-512). Other devices have their name, which often states the generation. */
static clmgk_status find_architecture(clmgk_device_info *info, mgk_runtime runtime, clmgk_error *error)
{
    char *const target = info->architecture;
    const size_t size = sizeof(info->architecture);
    char cpu[sizeof(info->architecture)] = "";
    if (info->device_class == CLMGK_DEVICE_CPU)
        mgk_cpu_name(cpu, sizeof(cpu));
    const char *const name = cpu[0] != '\0' ? cpu : info->name;
    if (info->device_class == CLMGK_DEVICE_CPU)
        snprintf(target, size, "%u floats, %.40s", (unsigned)info->native_float_lanes, name);
    else
        snprintf(target, size, "%.*s", (int)size - 1, name);
    return runtime == MGK_RUNTIME_NVIDIA ? query_capability(info->device_id, target, size, error) : CLMGK_OK;
}

/* ---- place in the lists ------------------------------------------------------------------------------------ */

static clmgk_status find_platform(cl_platform_id platform, uint32_t *index, clmgk_error *error)
{
    cl_platform_id *platforms;
    cl_uint count;
    MGK_TRY(mgk_platform_list(&platforms, &count, error));
    *index = 0;
    while (*index < count && platforms[*index] != platform)
        ++*index;
    mgk_free(NULL, platforms);
    return *index < count ? CLMGK_OK : mgk_fail(error, CLMGK_ERROR_NO_DEVICE, "the device's platform is not listed");
}

/* The platform's list has no sub-devices: a sub-device is represented by its root device. */
static clmgk_status root_device(cl_device_id device, cl_device_id *root, clmgk_error *error)
{
    cl_device_id parent = device;
    while (parent != NULL) {
        *root = parent;
        parent = NULL;
        MGK_TRY(query_value(*root, CL_DEVICE_PARENT_DEVICE, &parent, sizeof(cl_device_id), error));
    }
    return CLMGK_OK;
}

static clmgk_status find_device(cl_platform_id platform, cl_device_id device, uint32_t *index, clmgk_error *error)
{
    cl_device_id root = device;
    cl_device_id *devices;
    cl_uint count;
    MGK_TRY(root_device(device, &root, error));
    MGK_TRY(mgk_platform_devices(platform, &devices, &count, error));
    *index = 0;
    while (*index < count && devices[*index] != root)
        ++*index;
    mgk_free(NULL, devices);
    return *index < count ? CLMGK_OK : mgk_fail(error, CLMGK_ERROR_NO_DEVICE, "the device is not listed");
}

clmgk_status mgk_device_get_facts(cl_device_id device, mgk_device_facts *facts, clmgk_error *error)
{
    mgk_device_facts found = {.info = {.device_id = device}};
    clmgk_device_info *const info = &found.info;
    cl_device_type type = 0;
    MGK_TRY(query_value(device, CL_DEVICE_PLATFORM, &info->platform_id, sizeof(cl_platform_id), error));
    MGK_TRY(query_value(device, CL_DEVICE_TYPE, &type, sizeof(type), error));
    info->device_class = class_of(type);
    MGK_TRY(mgk_platform_get_facts(info->platform_id, &found, error));
    MGK_TRY(query_texts(device, &found, error));
    MGK_TRY(query_numbers(device, info, error));
    MGK_TRY(query_usable(device, &found.usable, error));
    MGK_TRY(query_local_type(device, &found.local_is_global, error));
    MGK_TRY(query_work_item_limit(device, &found.work_item_limit, error));
    MGK_TRY(find_platform(info->platform_id, &info->platform_index, error));
    MGK_TRY(find_device(info->platform_id, device, &info->device_index, error));

    found.parallel_builds = found.runtime == MGK_RUNTIME_NVIDIA;
    found.simd_vectors = makes_simd_vectors(info->device_class, found.runtime);
    const bool is_host_cpu = info->device_class == CLMGK_DEVICE_CPU &&
                             (found.runtime == MGK_RUNTIME_POCL || found.runtime == MGK_RUNTIME_INTEL_CPU);
    if (mgk_gpu_of(&found) == MGK_GPU_INTEL) {
        found.least_sub_group = query_least_sub_group(device);
        MGK_TRY(mgk_device_has_extension(device, "cl_intel_subgroup_matrix_multiply_accumulate",
                                         &found.intel_matrix_mad, error));
    }
    found.x86_avx512dq = is_host_cpu && mgk_cpu_has_avx512dq();
    found.x86_two_units = is_host_cpu && mgk_cpu_has_two_units();
    found.x86_amx = is_host_cpu && mgk_cpu_has_amx();
    found.x86_amx_f16 = found.x86_amx && mgk_cpu_has_amx_f16();
    found.x86_dots = is_host_cpu && !found.x86_amx && mgk_cpu_has_dots();
    query_unit(&found);
    MGK_TRY(find_architecture(info, found.runtime, error));
    *facts = found;
    return CLMGK_OK;
}
