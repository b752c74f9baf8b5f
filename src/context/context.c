/* SPDX-License-Identifier: Apache-2.0 */
/* Contexts, and the public view of the program cache. */
#include "device/cuda.h"
#include "device/program_cache.h"
#include "tuning/database.h"

#include <string.h>

static const uint64_t default_cache_bytes = UINT64_C(256) << 20;

enum { MOST_IDLE_PROGRAMS = 64 };

/* The first version's size: fields after kernel_dir are newer. */
enum { LEAST_OPTIONS_SIZE = offsetof(clmgk_context_options, kernel_dir) + sizeof(const char *) };

static clmgk_status read_options(const clmgk_context_options *options, clmgk_context_options *read, clmgk_error *error)
{
    *read = (clmgk_context_options)CLMGK_CONTEXT_OPTIONS_INIT;
    if (options == NULL)
        return CLMGK_OK;
    MGK_TRY(mgk_struct_read(options, "options", LEAST_OPTIONS_SIZE, read, sizeof(*read), error));
    if ((read->allocator.allocate == NULL) != (read->allocator.release == NULL))
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE,
                        "options.allocator: one of allocate and release is NULL: expected both or none");
    if (read->untuned != 0 && read->untuned != 1)
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "options.untuned: %d: expected 0 or 1", (int)read->untuned);
    if (read->no_amx != 0 && read->no_amx != 1)
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "options.no_amx: %d: expected 0 or 1", (int)read->no_amx);
    return CLMGK_OK;
}

static bool is_among(const cl_device_id *devices, size_t count, cl_device_id device)
{
    for (size_t i = 0; i < count; ++i)
        if (devices[i] == device)
            return true;
    return false;
}

/* Sets *device to the device that it is a part of; NULL: it is a whole one. */
static cl_int take_parent(cl_device_id *device)
{
    cl_device_id parent = NULL;
    const cl_int code = clGetDeviceInfo(*device, CL_DEVICE_PARENT_DEVICE, sizeof(cl_device_id), (void *)&parent, NULL);
    *device = parent;
    return code;
}

/* The device must belong to the context. PoCL names whole devices where a context has been made for a part of one. */
static clmgk_status check_device(cl_context context, cl_device_id device, clmgk_error *error)
{
    size_t size = 0;
    cl_int code = clGetContextInfo(context, CL_CONTEXT_DEVICES, 0, NULL, &size);
    MGK_TRY(mgk_check_cl(error, code, "clGetContextInfo"));
    cl_device_id *const devices = mgk_alloc(NULL, size, 1);
    if (devices == NULL)
        return mgk_fail_memory(error, "a context's devices");
    code = clGetContextInfo(context, CL_CONTEXT_DEVICES, size, devices, NULL);
    const char *call = "clGetContextInfo";
    bool found = false;
    for (cl_device_id whole = device; code == CL_SUCCESS && whole != NULL && !found;) {
        found = is_among(devices, size / sizeof(cl_device_id), whole);
        if (!found) {
            call = "clGetDeviceInfo";
            code = take_parent(&whole);
        }
    }
    mgk_free(NULL, devices);
    MGK_TRY(mgk_check_cl(error, code, call));
    return found ? CLMGK_OK
                 : mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "device: expected one of the OpenCL context's devices");
}

#define PROGRAM_DIR_VARIABLE "CLMGK_PROGRAM_DIR"

/* The option's folder, else the environment's; NULL if neither is set or if it is empty. */
static const char *chosen_folder(const char *given, const char *variable)
{
    const char *const folder = given != NULL ? given : mgk_environment(variable);
    return folder != NULL && folder[0] != '\0' ? folder : NULL;
}

static clmgk_status copy_folder(const clmgk_context *context, const char *given, const char *variable, char **folder,
                                clmgk_error *error)
{
    const char *const chosen = chosen_folder(given, variable);
    *folder = chosen != NULL ? mgk_strdup(&context->allocator, chosen) : NULL;
    return chosen == NULL || *folder != NULL ? CLMGK_OK : mgk_fail_memory(error, "a folder's path");
}

static void free_context(clmgk_context *context)
{
    const clmgk_allocator allocator = context->allocator;
    mgk_free(&allocator, context->kernel_dir);
    mgk_free(&allocator, context->program_dir);
    mgk_free(&allocator, context->cache_path);
    mgk_tuning_free(&allocator, context->tuning);
    mgk_free(&allocator, context);
}

static clmgk_status read_tuning(clmgk_context *context, const clmgk_context_options *options, clmgk_error *error)
{
    char *path = NULL;
    if (options->untuned)
        return CLMGK_OK;
    MGK_TRY(mgk_tuning_path(&context->allocator, options->tuning_dir, options->cache_dir, &path, error));
    const clmgk_status status = mgk_tuning_read(&context->allocator, path, &context->tuning, error);
    mgk_free(&context->allocator, path);
    return status;
}

/* True if an environment variable is 0. */
static bool is_off(const char *variable)
{
    const char *const value = mgk_environment(variable);
    return value != NULL && strcmp(value, "0") == 0;
}

/* Facts and texts; the OpenCL objects are not retained yet. */
static clmgk_status fill_context(clmgk_context *context, const clmgk_context_options *options, clmgk_error *error)
{
    MGK_TRY(mgk_device_get_facts(context->device, &context->facts, error));
    if (!context->facts.usable)
        return mgk_fail(error, CLMGK_ERROR_NO_DEVICE,
                        "device: \"%s\": expected one that is available and has a compiler", context->facts.info.name);
    context->no_amx = options->no_amx != 0 || is_off("CLMGK_AMX");
    MGK_TRY(mgk_matrix_unit_read_allowed(mgk_environment("CLMGK_UNIT"), &context->allowed_unit, error));
    context->cache_max_bytes = options->cache_max_bytes != 0 ? options->cache_max_bytes : default_cache_bytes;
    MGK_TRY(mgk_cache_path(&context->allocator, options->cache_dir, &context->cache_path, error));
    context->keeper = mgk_program_keeper(&context->facts, context->cache_path);
    MGK_TRY(read_tuning(context, options, error));
    MGK_TRY(copy_folder(context, options->program_dir, PROGRAM_DIR_VARIABLE, &context->program_dir, error));
    return copy_folder(context, options->kernel_dir, "CLMGK_KERNEL_DIR", &context->kernel_dir, error);
}

/* Compiled code may read values common to a work-group (a length, the start of a sequence) even if a flag marks the
 * array as absent: a NULL could crash the process. */
static clmgk_status make_stand_in(clmgk_context *context, clmgk_error *error)
{
    cl_int code = CL_SUCCESS;
    context->stand_in = clCreateBuffer(context->context, CL_MEM_READ_WRITE, MGK_STAND_IN_BYTES, NULL, &code);
    return context->stand_in != NULL ? CLMGK_OK : mgk_fail_cl(error, code, "clCreateBuffer");
}

static void release_objects(const clmgk_context *context)
{
    if (context->stand_in != NULL)
        clReleaseMemObject(context->stand_in);
    clReleaseDevice(context->device);
    clReleaseContext(context->context);
}

static clmgk_status hold_objects(clmgk_context *context, clmgk_error *error)
{
    cl_int code = clRetainContext(context->context);
    MGK_TRY(mgk_check_cl(error, code, "clRetainContext"));
    code = clRetainDevice(context->device);
    if (code != CL_SUCCESS) {
        clReleaseContext(context->context);
        return mgk_fail_cl(error, code, "clRetainDevice");
    }
    const clmgk_status status = make_stand_in(context, error);
    if (status != CLMGK_OK)
        release_objects(context);
    return status;
}

clmgk_status clmgk_context_create(cl_context context, cl_device_id device, const clmgk_context_options *options,
                                  clmgk_context **out, clmgk_error *error)
{
    clmgk_context_options read;
    clmgk_status status;
    if (context == NULL || device == NULL || out == NULL)
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "%s: NULL: expected %s",
                        context == NULL  ? "context"
                        : device == NULL ? "device"
                                         : "out",
                        context == NULL  ? "an OpenCL context"
                        : device == NULL ? "a device"
                                         : "room for the context");
    MGK_TRY(read_options(options, &read, error));
    MGK_TRY(check_device(context, device, error));

    clmgk_context *const made = mgk_alloc(&read.allocator, 1, sizeof(*made));
    if (made == NULL)
        return mgk_fail_memory(error, "a context");
    made->allocator = read.allocator;
    made->context = context;
    made->device = device;
    made->references = 1;
    made->most_idle = MOST_IDLE_PROGRAMS;
    MGK_TRY_GOTO(status, fill_context(made, &read, error), failed);
    MGK_TRY_GOTO(status, hold_objects(made, error), failed);
    status = mgk_monitor_init(&made->monitor, error);
    if (status == CLMGK_OK) {
        *out = made;
        return CLMGK_OK;
    }
    release_objects(made);

failed:
    free_context(made);
    return status;
}

void mgk_context_retain(clmgk_context *context)
{
    pthread_mutex_lock(&context->monitor.mutex);
    ++context->references;
    pthread_mutex_unlock(&context->monitor.mutex);
}

void clmgk_context_release(clmgk_context *context)
{
    if (context == NULL)
        return;
    pthread_mutex_lock(&context->monitor.mutex);
    const bool last = --context->references == 0;
    pthread_mutex_unlock(&context->monitor.mutex);
    if (!last)
        return;
    mgk_programs_clear(context);
    mgk_cuda_close(context);
    mgk_monitor_destroy(&context->monitor);
    release_objects(context);
    free_context(context);
}

/* The first version's size. */
enum { LEAST_CACHE_INFO_SIZE = MGK_SIZE_WITH(clmgk_cache_info, entries) };

/* `option`: the option that gave the path, for the message. */
static clmgk_status measure(const mgk_cache *cache, const char *option, clmgk_cache_info *info, clmgk_error *error)
{
    clmgk_cache_info found = {0};
    const size_t length = cache->path != NULL ? strlen(cache->path) : 0;
    if (length >= sizeof(found.path))
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "%s: a path of %zu bytes: expected less than %zu", option,
                        length, sizeof(found.path));
    if (cache->path != NULL)
        memcpy(found.path, cache->path, length + 1);
    MGK_TRY(mgk_cache_measure(cache, &found.bytes, &found.entries, error));
    clmgk_error failure = {.message = ""};
    if (cache->path != NULL && !cache->shipped)
        (void)mgk_folder_check_writable(cache->path, true, &failure);
    memcpy(found.note, failure.message, sizeof(found.note));
    mgk_struct_write(info, 0, &found, sizeof(found));
    return CLMGK_OK;
}

clmgk_status clmgk_cache_get_info(const char *cache_dir, clmgk_cache_info *info, clmgk_error *error)
{
    char *path = NULL;
    MGK_TRY(mgk_struct_room(info, "info", LEAST_CACHE_INFO_SIZE, error));
    MGK_TRY(mgk_cache_path(NULL, cache_dir, &path, error));
    const mgk_cache cache = {.path = path};
    const clmgk_status status = measure(&cache, "cache_dir", info, error);
    mgk_free(NULL, path);
    return status;
}

clmgk_status clmgk_program_dir_get_info(const char *program_dir, clmgk_cache_info *info, clmgk_error *error)
{
    MGK_TRY(mgk_struct_room(info, "info", LEAST_CACHE_INFO_SIZE, error));
    const mgk_cache folder = {.path = chosen_folder(program_dir, PROGRAM_DIR_VARIABLE), .shipped = true};
    return measure(&folder, "program_dir", info, error);
}

clmgk_status clmgk_context_save_programs(clmgk_context *context, const char *folder, size_t *count, clmgk_error *error)
{
    if (context == NULL)
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "context: NULL: expected a context");
    if (folder == NULL || folder[0] == '\0')
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "folder: %s: expected a path",
                        folder == NULL ? "NULL" : "\"\"");
    return mgk_programs_ship(context, folder, count, error);
}

clmgk_status clmgk_cache_get_keeper(const char *cache_dir, cl_device_id device, clmgk_program_keeper *keeper,
                                    clmgk_error *error)
{
    mgk_device_facts facts;
    char *path = NULL;
    if (device == NULL || keeper == NULL)
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "%s: NULL: expected %s", device == NULL ? "device" : "keeper",
                        device == NULL ? "a device" : "room for the keeper");
    MGK_TRY(mgk_device_get_facts(device, &facts, error));
    MGK_TRY(mgk_cache_path(NULL, cache_dir, &path, error));
    *keeper = mgk_program_keeper(&facts, path);
    mgk_free(NULL, path);
    return CLMGK_OK;
}

clmgk_status clmgk_cache_clear(const char *cache_dir, clmgk_error *error)
{
    char *path = NULL;
    MGK_TRY(mgk_cache_path(NULL, cache_dir, &path, error));
    const mgk_cache cache = {.path = path};
    const clmgk_status status = mgk_cache_clear(&cache, error);
    mgk_free(NULL, path);
    return status;
}
