/* SPDX-License-Identifier: Apache-2.0 */
/* Programs: from the context's list, from a shipped folder, from the cache on disk, or built. */
#include "device/device.h"

#include "clmgk/version.h"
#include "device/program_cache.h"

#include <inttypes.h>
#include <string.h>

enum { MAX_LOG_BYTES = 1 << 20 };

/* The cache. It has no folder if the library is not the keeper: then every get misses and nothing is written. */
static mgk_cache cache_of(const clmgk_context *context)
{
    return (mgk_cache){.allocator = &context->allocator,
                       .path = context->keeper == CLMGK_KEEPER_LIBRARY ? context->cache_path : NULL,
                       .max_bytes = context->cache_max_bytes};
}

/* The folder of programs made ahead, for every device. */
static mgk_cache shipped_of(const clmgk_context *context)
{
    return (mgk_cache){
        .allocator = &context->allocator, .path = context->program_dir, .max_bytes = UINT64_MAX, .shipped = true};
}

/* ---- key --------------------------------------------------------------------------------------------------- */

/* Everything that a binary depends on. Each part is preceded by its length, so that different lists of parts give
 * different keys. */
static clmgk_status make_key(const clmgk_context *context, const mgk_text *source, const char *options, mgk_text *key,
                             clmgk_error *error)
{
    const mgk_device_facts *const facts = &context->facts;
    const mgk_hash hash = mgk_hash_bytes(source->data, source->length);
    const char *const parts[] = {
        CLMGK_VERSION,         facts->info.platform,     facts->platform_version,
        facts->info.vendor,    facts->info.name,         facts->info.driver,
        facts->opencl_version, facts->info.architecture, options,
    };
    for (size_t i = 0; i < MGK_COUNT(parts); ++i)
        mgk_text_printf(key, "%zu:%s\n", strlen(parts[i]), parts[i]);
    mgk_text_printf(key, "source %016" PRIx64 "%016" PRIx64 " %zu\n", hash.high, hash.low, source->length);
    return key->failed ? mgk_fail_memory(error, "a program's key") : CLMGK_OK;
}

/* ---- building ---------------------------------------------------------------------------------------------- */

/* Skips the warnings before the log's first error. */
static const char *first_error(const char *log)
{
    const char *const found = strstr(log, "error:");
    if (found == NULL)
        return log;
    const char *line = found;
    while (line > log && line[-1] != '\n')
        --line;
    return line;
}

static clmgk_status fail_build(const clmgk_context *context, cl_program program, const char *file, cl_int build_code,
                               clmgk_error *error)
{
    size_t size = 0;
    const cl_program_build_info parameter = CL_PROGRAM_BUILD_LOG;
    cl_int code = clGetProgramBuildInfo(program, context->device, parameter, 0, NULL, &size);
    char *const log = code == CL_SUCCESS && size <= MAX_LOG_BYTES ? mgk_alloc(&context->allocator, size + 1, 1) : NULL;
    if (log != NULL)
        code = clGetProgramBuildInfo(program, context->device, parameter, size, log, NULL);
    const bool has_log = log != NULL && code == CL_SUCCESS && log[strspn(log, " \n")] != '\0';
    const char *const text =
        has_log ? first_error(log) : "no build log (is the driver complete? its compiler may be a separate file)";
    clmgk_error folder = {.message = ""};
    const bool hint = mgk_driver_check_folder(context->facts.runtime, &folder) != CLMGK_OK;
    const clmgk_status status =
        mgk_fail_code(error, CLMGK_ERROR_COMPILE, build_code, "kernel file \"%s\": %s: %s%s%s", file,
                      mgk_cl_error_name(build_code), folder.message, hint ? ": " : "", text);
    mgk_free(&context->allocator, log);
    return status;
}

/* The first of the options that a compiler may not know, with its length; NULL: none. */
static const char *optional_of(const char *options, size_t *length)
{
    static const char *const optional[] = {MGK_MOST_REGISTERS, MGK_REGISTERS_LIMIT};
    for (size_t i = 0; i < MGK_COUNT(optional); ++i) {
        const char *const place = strstr(options, optional[i]);
        if (place != NULL) {
            *length = strcspn(place, " ");
            return place;
        }
    }
    return NULL;
}

/* If the build fails with an option that the compiler may not know, builds without it, and names it in *refused
 * (mgk_free). */
static cl_int build(const clmgk_context *context, cl_program program, const char *options, char **refused)
{
    size_t length = 0;
    const cl_int code = clBuildProgram(program, 1, &context->device, options, NULL, NULL);
    const char *const place = optional_of(options, &length);
    if (code == CL_SUCCESS || place == NULL)
        return code;
    mgk_text rest = {.allocator = &context->allocator}, option = {.allocator = &context->allocator};
    mgk_text_printf(&rest, "%.*s%s", (int)(place - options), options, place + length);
    mgk_text_printf(&option, "%.*s", (int)length, place);
    const bool failed = rest.failed || option.failed;
    const cl_int again = failed ? code : clBuildProgram(program, 1, &context->device, rest.data, NULL, NULL);
    mgk_text_free(&rest);
    if (again == CL_SUCCESS)
        *refused = option.data;
    else
        mgk_text_free(&option);
    return again;
}

static clmgk_status build_source(const clmgk_context *context, const char *file, const mgk_text *source,
                                 const char *options, cl_program *out, char **refused, clmgk_error *error)
{
    cl_int code = CL_SUCCESS;
    const char *const text = source->data;
    cl_program program = clCreateProgramWithSource(context->context, 1, (const char **)&text, &source->length, &code);
    MGK_TRY(mgk_check_cl(error, code, "clCreateProgramWithSource"));

    code = build(context, program, options, refused);
    if (code == CL_SUCCESS) {
        *out = program;
        return CLMGK_OK;
    }
    /* NVIDIA's driver returns CL_INVALID_BINARY if its assembler failed */
    const bool from_compiler =
        code == CL_BUILD_PROGRAM_FAILURE || code == CL_INVALID_BUILD_OPTIONS || code == CL_INVALID_BINARY;
    const clmgk_status status =
        from_compiler ? fail_build(context, program, file, code, error) : mgk_fail_cl(error, code, "clBuildProgram");
    clReleaseProgram(program);
    return status;
}

/* The program from a binary of the cache; NULL if there is none or it does not build. */
static cl_program load_binary(const clmgk_context *context, const mgk_cache *cache, const char *key,
                              const char *options, char **refused)
{
    char *entry = NULL;
    const char *binary = NULL;
    size_t length = 0;
    if (!mgk_cache_get(cache, key, &entry, &binary, &length))
        return NULL;

    cl_int status = CL_SUCCESS, code = CL_SUCCESS;
    const unsigned char *const bytes = (const unsigned char *)binary;
    cl_program program = clCreateProgramWithBinary(context->context, 1, &context->device, &length,
                                                   (const unsigned char **)&bytes, &status, &code);
    if (code == CL_SUCCESS && status == CL_SUCCESS)
        code = build(context, program, options, refused);
    if (program != NULL && (code != CL_SUCCESS || status != CL_SUCCESS)) {
        clReleaseProgram(program);
        program = NULL;
    }
    if (program == NULL)
        mgk_cache_drop(cache, key);
    mgk_free(&context->allocator, entry);
    return program;
}

/* The program and its origin, from the first place that has its binary; NULL and BUILT if no place has it. */
static cl_program load(const clmgk_context *context, const char *key, const char *options, clmgk_program_origin *origin,
                       char **refused)
{
    const mgk_cache shipped = shipped_of(context), cache = cache_of(context);
    *origin = CLMGK_PROGRAM_SHIPPED;
    cl_program program = load_binary(context, &shipped, key, options, refused);
    if (program != NULL)
        return program;
    program = load_binary(context, &cache, key, options, refused);
    *origin = program != NULL ? CLMGK_PROGRAM_DISK : CLMGK_PROGRAM_BUILT;
    return program;
}

/* ---- objects ----------------------------------------------------------------------------------------------- */

static void destroy(mgk_program *program)
{
    const clmgk_allocator *const allocator = &program->context->allocator;
    if (program->program != NULL)
        clReleaseProgram(program->program);
    mgk_free(allocator, program->options);
    mgk_free(allocator, program->refused);
    mgk_free(allocator, program->key);
    mgk_free(allocator, program);
}

/* A program that nobody else sees yet. */
static mgk_program *begin(clmgk_context *context, const char *options, const char *key)
{
    mgk_program *const program = mgk_alloc(&context->allocator, 1, sizeof(*program));
    if (program == NULL)
        return NULL;
    program->context = context;
    program->references = 1;
    program->key = mgk_strdup(&context->allocator, key);
    program->options = mgk_strdup(&context->allocator, options);
    if (program->key != NULL && program->options != NULL)
        return program;
    destroy(program);
    return NULL;
}

static void add(mgk_program *program)
{
    program->next = program->context->programs;
    program->context->programs = program;
}

static void take_out(const mgk_program *program)
{
    mgk_program **link = &program->context->programs;
    while (*link != program)
        link = &(*link)->next;
    *link = program->next;
}

/* Loads or builds a program of the list, without the mutex: other programs need not wait. */
static clmgk_status finish(mgk_program *program, const char *file, const mgk_text *source, clmgk_error *error)
{
    clmgk_context *const context = program->context;
    clmgk_status status = CLMGK_OK;
    char *refused = NULL;
    cl_program made = load(context, program->key, program->options, &program->origin, &refused);
    program->saved = made != NULL || context->keeper != CLMGK_KEEPER_LIBRARY;
    if (made == NULL)
        status = build_source(context, file, source, program->options, &made, &refused, error);
    pthread_mutex_lock(&context->monitor.mutex);
    program->program = made;
    program->refused = refused;
    if (status != CLMGK_OK)
        take_out(program);
    pthread_cond_broadcast(&context->monitor.changed);
    pthread_mutex_unlock(&context->monitor.mutex);
    if (status != CLMGK_OK)
        destroy(program);
    return status;
}

static mgk_program *find(const clmgk_context *context, const char *key)
{
    mgk_program *program = context->programs;
    while (program != NULL && strcmp(program->key, key) != 0)
        program = program->next;
    return program;
}

/* The program of this key, once it is finished; NULL if there is none. The caller holds the mutex. Threads that need
 * the same program wait for a single build, which may fail. */
static mgk_program *find_finished(clmgk_context *context, const char *key)
{
    mgk_program *program = find(context, key);
    while (program != NULL && program->program == NULL) {
        pthread_cond_wait(&context->monitor.changed, &context->monitor.mutex);
        program = find(context, key);
    }
    return program;
}

static clmgk_status find_or_create(clmgk_context *context, const char *file, const mgk_text *source,
                                   const char *options, const char *key, mgk_program **out,
                                   clmgk_program_origin *origin, clmgk_error *error)
{
    mgk_program *const fresh = begin(context, options, key);
    if (fresh == NULL)
        return mgk_fail_memory(error, "a program");
    pthread_mutex_lock(&context->monitor.mutex);
    mgk_program *const found = find_finished(context, key);
    if (found != NULL)
        ++found->references;
    else
        add(fresh);
    pthread_mutex_unlock(&context->monitor.mutex);
    if (found != NULL)
        destroy(fresh);
    else
        MGK_TRY(finish(fresh, file, source, error));
    *out = found != NULL ? found : fresh;
    *origin = found != NULL ? CLMGK_PROGRAM_MEMORY : fresh->origin;
    return CLMGK_OK;
}

clmgk_status mgk_program_get(clmgk_context *context, const char *file, const char *options, mgk_program **out,
                             clmgk_program_origin *origin, double *compile_ms, clmgk_error *error)
{
    const double start = mgk_now_ms();
    clmgk_status status;
    mgk_text source = {.allocator = &context->allocator};
    mgk_text key = {.allocator = &context->allocator};
    MGK_TRY_GOTO(status, mgk_source_expand(context->kernel_dir, file, options, &source, error), cleanup);
    MGK_TRY_GOTO(status, make_key(context, &source, options, &key, error), cleanup);

    status = find_or_create(context, file, &source, options, key.data, out, origin, error);
    *compile_ms = mgk_now_ms() - start;

cleanup:
    mgk_text_free(&key);
    mgk_text_free(&source);
    return status;
}

void mgk_program_release(mgk_program *program)
{
    if (program == NULL)
        return;
    clmgk_context *const context = program->context;
    pthread_mutex_lock(&context->monitor.mutex);
    const bool last = --program->references == 0;
    if (last)
        take_out(program);
    pthread_mutex_unlock(&context->monitor.mutex);
    if (last)
        destroy(program);
}

/* ---- saving ------------------------------------------------------------------------------------------------ */

/* One value per device of the program, in the order of CL_PROGRAM_DEVICES. */
typedef struct program_devices {
    cl_uint count;
    cl_device_id *devices;
    size_t *sizes;
    unsigned char **binaries;
} program_devices;

static void free_devices(const clmgk_allocator *allocator, program_devices *list)
{
    mgk_free(allocator, list->devices);
    mgk_free(allocator, list->sizes);
    mgk_free(allocator, list->binaries);
}

/* The caller frees the list, also after a failure. */
static clmgk_status query_devices(const mgk_program *program, program_devices *list, clmgk_error *error)
{
    static const char call[] = "clGetProgramInfo";
    const clmgk_allocator *const allocator = &program->context->allocator;
    cl_int code = clGetProgramInfo(program->program, CL_PROGRAM_NUM_DEVICES, sizeof(list->count), &list->count, NULL);
    MGK_TRY(mgk_check_cl(error, code, call));
    list->devices = mgk_alloc(allocator, list->count, sizeof(cl_device_id));
    list->sizes = mgk_alloc(allocator, list->count, sizeof(size_t));
    list->binaries = mgk_alloc(allocator, list->count, sizeof(unsigned char *));
    if (list->devices == NULL || list->sizes == NULL || list->binaries == NULL)
        return mgk_fail_memory(error, "a program's binary");
    code =
        clGetProgramInfo(program->program, CL_PROGRAM_DEVICES, list->count * sizeof(cl_device_id), list->devices, NULL);
    if (code == CL_SUCCESS)
        code = clGetProgramInfo(program->program, CL_PROGRAM_BINARY_SIZES, list->count * sizeof(size_t), list->sizes,
                                NULL);
    return mgk_check_cl(error, code, call);
}

/* Reads only the binary for the context's device (mgk_free): the other devices' pointers stay NULL. */
static clmgk_status read_binary(const mgk_program *program, const program_devices *list, char **binary, size_t *length,
                                clmgk_error *error)
{
    const clmgk_context *const context = program->context;
    cl_uint position = 0;
    while (position < list->count && list->devices[position] != context->device)
        ++position;
    if (position == list->count || list->sizes[position] == 0)
        return mgk_fail(error, CLMGK_ERROR_UNSUPPORTED, "device \"%s\": the driver provides no program binaries",
                        context->facts.info.name);
    unsigned char *const bytes = mgk_alloc(&context->allocator, list->sizes[position], 1);
    if (bytes == NULL)
        return mgk_fail_memory(error, "a program's binary");
    list->binaries[position] = bytes;
    const cl_int code = clGetProgramInfo(program->program, CL_PROGRAM_BINARIES, list->count * sizeof(unsigned char *),
                                         list->binaries, NULL);
    if (code != CL_SUCCESS) {
        mgk_free(&context->allocator, bytes);
        return mgk_fail_cl(error, code, "clGetProgramInfo");
    }
    *binary = (char *)bytes;
    *length = list->sizes[position];
    return CLMGK_OK;
}

static clmgk_status get_binary(const mgk_program *program, char **binary, size_t *length, clmgk_error *error)
{
    program_devices list = {0};
    clmgk_status status = query_devices(program, &list, error);
    if (status == CLMGK_OK)
        status = read_binary(program, &list, binary, length, error);
    free_devices(&program->context->allocator, &list);
    return status;
}

void mgk_program_save(mgk_program *program)
{
    clmgk_context *const context = program->context;
    const mgk_cache cache = cache_of(context);
    char *binary = NULL;
    size_t length = 0;
    pthread_mutex_lock(&context->monitor.mutex);
    const bool wanted = !program->saved;
    program->saved = true;
    if (wanted && get_binary(program, &binary, &length, &program->unsaved) == CLMGK_OK)
        (void)mgk_cache_put(&cache, program->key, binary, length, &program->unsaved);
    pthread_mutex_unlock(&context->monitor.mutex);
    mgk_free(&context->allocator, binary);
}

static clmgk_status ship(const mgk_program *program, const mgk_cache *folder, clmgk_error *error)
{
    char *binary = NULL;
    size_t length = 0;
    MGK_TRY(get_binary(program, &binary, &length, error));
    const clmgk_status status = mgk_cache_put(folder, program->key, binary, length, error);
    mgk_free(&program->context->allocator, binary);
    return status;
}

clmgk_status mgk_programs_ship(clmgk_context *context, const char *folder, size_t *count, clmgk_error *error)
{
    const mgk_cache target = {.allocator = &context->allocator, .path = folder, .shipped = true};
    clmgk_status status = CLMGK_OK;
    size_t done = 0;
    if (count != NULL)
        *count = 0;
    MGK_TRY(mgk_cache_make(&target, error));
    pthread_mutex_lock(&context->monitor.mutex);
    for (const mgk_program *program = context->programs; program != NULL; program = program->next) {
        if (program->program == NULL)
            continue;
        MGK_TRY_GOTO(status, ship(program, &target, error), cleanup);
        ++done;
    }
cleanup:
    pthread_mutex_unlock(&context->monitor.mutex);
    if (count != NULL)
        *count = done;
    return status;
}
