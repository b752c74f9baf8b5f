/* SPDX-License-Identifier: Apache-2.0 */
/* Programs: from the context's list, from a shipped folder, from the cache on disk, or built. */
#include "device/device.h"

#include "clmgk/version.h"
#include "device/binary.h"
#include "device/cuda.h"
#include "device/edited.h"
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

/* If the build fails with an option that the compiler may not know, builds without it, and notes it. */
static cl_int build(mgk_program *own, cl_program program)
{
    const clmgk_context *const context = own->context;
    const char *const options = own->options;
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
    if (again == CL_SUCCESS && own->refused == NULL)
        own->refused = option.data;
    else
        mgk_text_free(&option);
    return again;
}

/* Builds, and releases the program after a failure. */
static clmgk_status build_or_fail(mgk_program *own, const char *file, cl_program program, clmgk_error *error)
{
    clmgk_status status = mgk_driver_check_room(own->context->facts.runtime, error);
    const cl_int code = status == CLMGK_OK ? build(own, program) : CL_SUCCESS;
    /* NVIDIA's driver returns CL_INVALID_BINARY if its assembler failed */
    const bool from_compiler =
        code == CL_BUILD_PROGRAM_FAILURE || code == CL_INVALID_BUILD_OPTIONS || code == CL_INVALID_BINARY;
    if (from_compiler)
        status = fail_build(own->context, program, file, code, error);
    else if (code != CL_SUCCESS)
        status = mgk_fail_cl(error, code, "clBuildProgram");
    if (status != CLMGK_OK)
        clReleaseProgram(program);
    return status;
}

/* ---- edited programs --------------------------------------------------------------------------------------- */

bool mgk_program_is_edited(const mgk_program *program)
{
    return strstr(program->options, MGK_EDITED_PTX) != NULL;
}

/* The edited text of a built program; without a mark none. */
static clmgk_status edit(mgk_program *own, cl_program program, clmgk_error *error)
{
    const clmgk_allocator *const allocator = &own->context->allocator;
    mgk_text edited = {.allocator = allocator};
    char *binary = NULL;
    size_t length = 0, marks = 0;
    MGK_TRY(mgk_binary_get(own->context, program, &binary, &length, error));
    const clmgk_status status = mgk_ptx_edit(binary, length, &edited, &marks, error);
    mgk_free(allocator, binary);
    if (status != CLMGK_OK || marks == 0) {
        mgk_text_free(&edited);
        return status;
    }
    own->edited = edited.data;
    own->edited_length = edited.length;
    return CLMGK_OK;
}

/* Replaces a built program, which a failure releases, by its edited form. */
static clmgk_status build_edited(mgk_program *own, const char *file, cl_program *program, clmgk_error *error)
{
    cl_program edited = NULL;
    clmgk_error failure;
    clmgk_status status = edit(own, *program, error);
    if (status == CLMGK_OK && own->edited == NULL)
        return CLMGK_OK;
    clReleaseProgram(*program);
    *program = NULL;
    MGK_TRY(status);
    status = mgk_binary_load(own->context, own->edited, own->edited_length, &edited, &failure);
    if (status == CLMGK_OK)
        status = build_or_fail(own, file, edited, &failure);
    if (status != CLMGK_OK)
        return mgk_fail_code(error, status, failure.opencl_code, "the driver refuses the edited program: %s",
                             failure.message);
    *program = edited;
    return CLMGK_OK;
}

static clmgk_status build_source(mgk_program *own, const char *file, const mgk_text *source, cl_program *out,
                                 clmgk_error *error)
{
    cl_int code = CL_SUCCESS;
    const char *const text = source->data;
    cl_program program =
        clCreateProgramWithSource(own->context->context, 1, (const char **)&text, &source->length, &code);
    MGK_TRY(mgk_check_cl(error, code, "clCreateProgramWithSource"));
    MGK_TRY(build_or_fail(own, file, program, error));
    if (mgk_program_is_edited(own))
        MGK_TRY(build_edited(own, file, &program, error));
    *out = program;
    return CLMGK_OK;
}

/* ---- loading ----------------------------------------------------------------------------------------------- */

/* The beginning of an entry that holds in place of a binary why the program is wrong. */
static const char wrong_mark[] = "clmgk: wrong: ";

static void forget_edited(mgk_program *own)
{
    mgk_free(&own->context->allocator, own->edited);
    own->edited = NULL;
}

/* Takes over an entry of a program that needs a verdict: an edited one's text, or why it is wrong. False: there is no
 * memory. */
static bool take_verified(mgk_program *own, const char *entry, size_t length)
{
    const size_t mark = sizeof(wrong_mark) - 1;
    if (length > mark && memcmp(entry, wrong_mark, mark) == 0) {
        (void)mgk_fail(&own->wrong, CLMGK_ERROR_UNSUPPORTED, "%.*s", (int)(length - mark), entry + mark);
        return true;
    }
    if (!mgk_program_is_edited(own))
        return true;
    own->edited = mgk_alloc(&own->context->allocator, length, 1);
    own->edited_length = length;
    if (own->edited != NULL)
        memcpy(own->edited, entry, length);
    return own->edited != NULL;
}

static cl_program build_binary(mgk_program *own, const char *binary, size_t length)
{
    cl_program program = NULL;
    if (mgk_binary_load(own->context, binary, length, &program, NULL) != CLMGK_OK || build(own, program) == CL_SUCCESS)
        return program;
    clReleaseProgram(program);
    return NULL;
}

/* The program from a binary of the cache; NULL if there is none, it does not build, or it is known to be wrong. A
 * program that needs a verdict is only there after it. */
static cl_program load_binary(mgk_program *own, const mgk_cache *cache)
{
    char *entry = NULL;
    const char *binary = NULL;
    size_t length = 0;
    if (!mgk_cache_get(cache, own->key, &entry, &binary, &length))
        return NULL;
    const bool taken = !own->unverified || take_verified(own, binary, length), wrong = own->wrong.status != CLMGK_OK;
    cl_program program = taken && !wrong ? build_binary(own, binary, length) : NULL;
    if (program != NULL)
        own->unverified = false;
    else
        forget_edited(own);
    if (program == NULL && !wrong)
        mgk_cache_drop(cache, own->key);
    mgk_free(&own->context->allocator, entry);
    return program;
}

/* The program, with its origin, from the first place that has its binary; NULL and BUILT if no place has it. */
static cl_program load(mgk_program *own)
{
    const mgk_cache shipped = shipped_of(own->context), cache = cache_of(own->context);
    own->origin = CLMGK_PROGRAM_SHIPPED;
    cl_program program = load_binary(own, &shipped);
    if (program != NULL || own->wrong.status != CLMGK_OK)
        return program;
    program = load_binary(own, &cache);
    own->origin = program != NULL ? CLMGK_PROGRAM_DISK : CLMGK_PROGRAM_BUILT;
    return program;
}

/* ---- objects ----------------------------------------------------------------------------------------------- */

static void destroy(mgk_program *program)
{
    const clmgk_allocator *const allocator = &program->context->allocator;
    mgk_cuda_unload(program);
    if (program->program != NULL)
        clReleaseProgram(program->program);
    mgk_free(allocator, program->edited);
    mgk_free(allocator, program->options);
    mgk_free(allocator, program->refused);
    mgk_free(allocator, program->key);
    mgk_free(allocator, program);
}

/* A program that nobody else sees yet. */
static mgk_program *begin(clmgk_context *context, const char *file, const char *options, const char *key)
{
    mgk_program *const program = mgk_alloc(&context->allocator, 1, sizeof(*program));
    if (program == NULL)
        return NULL;
    program->context = context;
    program->references = 1;
    program->file = file;
    program->key = mgk_strdup(&context->allocator, key);
    program->options = mgk_strdup(&context->allocator, options);
    if (program->key == NULL || program->options == NULL) {
        destroy(program);
        return NULL;
    }
    program->unverified = mgk_program_is_edited(program) || strstr(options, MGK_UNTRIED_UNIT) != NULL;
    return program;
}

static void add(mgk_program *program)
{
    program->next = program->context->programs;
    program->context->programs = program;
}

static clmgk_status fail_if_wrong(const mgk_program *program, clmgk_error *error)
{
    const clmgk_error *const wrong = &program->wrong;
    return wrong->status != CLMGK_OK ? mgk_fail(error, wrong->status, "%s", wrong->message) : CLMGK_OK;
}

static void take_out(const mgk_program *program)
{
    mgk_program **link = &program->context->programs;
    while (*link != program)
        link = &(*link)->next;
    *link = program->next;
}

/* Stores in a program's place why it is wrong. Nobody hears of a failure: the next process finds out again. */
static void save_reason(const mgk_program *program)
{
    const mgk_cache cache = cache_of(program->context);
    mgk_text entry = {.allocator = &program->context->allocator};
    mgk_text_printf(&entry, "%s%s", wrong_mark, program->wrong.message);
    if (!entry.failed)
        (void)mgk_cache_put(&cache, program->key, entry.data, entry.length, NULL);
    mgk_text_free(&entry);
}

/* Notes that a compiler does not take the instructions of an untried unit, as if the program were wrong: the next
 * process need not ask again. */
static void keep_refusal(mgk_program *program, const clmgk_error *failure)
{
    if (!program->unverified || mgk_program_is_edited(program) || failure->opencl_code != CL_BUILD_PROGRAM_FAILURE)
        return;
    program->wrong = *failure;
    save_reason(program);
}

/* Loads or builds a program of the list, without the mutex: other programs need not wait. */
static clmgk_status finish(mgk_program *program, const char *file, const mgk_text *source, clmgk_error *error)
{
    clmgk_context *const context = program->context;
    cl_program made = load(program);
    clmgk_status status = fail_if_wrong(program, error);
    program->saved = made != NULL || context->keeper != CLMGK_KEEPER_LIBRARY;
    if (made == NULL && status == CLMGK_OK) {
        clmgk_error failure = {.status = CLMGK_OK};
        status = build_source(program, file, source, &made, &failure);
        if (status != CLMGK_OK) {
            keep_refusal(program, &failure);
            (void)mgk_fail_code(error, status, failure.opencl_code, "%s", failure.message);
        }
    }
    pthread_mutex_lock(&context->monitor.mutex);
    program->program = made;
    if (status != CLMGK_OK)
        take_out(program);
    pthread_cond_broadcast(&context->monitor.changed);
    pthread_mutex_unlock(&context->monitor.mutex);
    if (status != CLMGK_OK)
        destroy(program);
    return status;
}

/* The key by which a program is found. */
typedef struct wanted {
    const char *file, *options;
    const char *key; /* NULL: file and options, whose text is embedded, say it all */
} wanted;

static bool is_wanted(const mgk_program *program, const wanted *by)
{
    return by->key != NULL ? strcmp(program->key, by->key) == 0
                           : strcmp(program->file, by->file) == 0 && strcmp(program->options, by->options) == 0;
}

static mgk_program *find(const clmgk_context *context, const wanted *by)
{
    mgk_program *program = context->programs;
    while (program != NULL && !is_wanted(program, by))
        program = program->next;
    return program;
}

/* The finished program; NULL if there is none. The caller holds the mutex. Threads that need the same program wait for
 * a single build, which may fail. */
static mgk_program *find_finished(clmgk_context *context, const wanted *by)
{
    mgk_program *program = find(context, by);
    while (program != NULL && program->program == NULL) {
        pthread_cond_wait(&context->monitor.changed, &context->monitor.mutex);
        program = find(context, by);
    }
    return program;
}

/* Adds a reference to the finished program; *out = NULL if there is none: then adds `fresh` to the list, unless NULL.
 * Fails if the program is wrong. */
static clmgk_status take_or_add(clmgk_context *context, const wanted *by, mgk_program *fresh, mgk_program **out,
                                clmgk_error *error)
{
    pthread_mutex_lock(&context->monitor.mutex);
    mgk_program *const found = find_finished(context, by);
    const clmgk_status status = found != NULL ? fail_if_wrong(found, error) : CLMGK_OK;
    if (found != NULL && status == CLMGK_OK)
        ++found->references;
    else if (found == NULL && fresh != NULL)
        add(fresh);
    pthread_mutex_unlock(&context->monitor.mutex);
    *out = status == CLMGK_OK ? found : NULL;
    return status;
}

static clmgk_status find_or_create(clmgk_context *context, const wanted *by, const mgk_text *source, mgk_program **out,
                                   clmgk_program_origin *origin, clmgk_error *error)
{
    mgk_program *const fresh = begin(context, by->file, by->options, by->key);
    if (fresh == NULL)
        return mgk_fail_memory(error, "a program");
    const clmgk_status status = take_or_add(context, by, fresh, out, error);
    if (status != CLMGK_OK || *out != NULL) {
        destroy(fresh);
        return status;
    }
    MGK_TRY(finish(fresh, by->file, source, error));
    *out = fresh;
    *origin = fresh->origin;
    return CLMGK_OK;
}

clmgk_status mgk_program_get(clmgk_context *context, const char *file, const char *options, const char *mods,
                             mgk_program **out, clmgk_program_origin *origin, double *compile_ms, clmgk_error *error)
{
    const double start = mgk_now_ms();
    clmgk_status status;
    wanted by = {file, options, NULL};
    *out = NULL;
    *origin = CLMGK_PROGRAM_MEMORY;
    *compile_ms = 0.0;
    if (context->kernel_dir == NULL && mods == NULL) /* file and options tell the source */
        MGK_TRY(take_or_add(context, &by, NULL, out, error));
    if (*out != NULL)
        return CLMGK_OK;
    mgk_text source = {.allocator = &context->allocator};
    mgk_text key = {.allocator = &context->allocator};
    MGK_TRY_GOTO(status, mgk_source_expand(context->kernel_dir, file, options, mods, &source, error), cleanup);
    MGK_TRY_GOTO(status, make_key(context, &source, options, &key, error), cleanup);

    by.key = key.data;
    status = find_or_create(context, &by, &source, out, origin, error);
    *compile_ms = mgk_now_ms() - start;

cleanup:
    mgk_text_free(&key);
    mgk_text_free(&source);
    return status;
}

/* The program that was released before all others, if more than `most` have no plan; NULL: not so many. */
static mgk_program *oldest_idle(const clmgk_context *context, int most)
{
    mgk_program *oldest = NULL;
    int count = 0;
    for (mgk_program *program = context->programs; program != NULL; program = program->next)
        if (program->references == 0) {
            oldest = program;
            ++count;
        }
    return count > most ? oldest : NULL;
}

/* A program without a verdict ends with its plan, whose maker failed. */
void mgk_program_release(mgk_program *program)
{
    if (program == NULL)
        return;
    clmgk_context *const context = program->context;
    mgk_program *ended = NULL;
    pthread_mutex_lock(&context->monitor.mutex);
    if (--program->references == 0) {
        take_out(program);
        add(program);
        ended = program->unverified ? program : oldest_idle(context, context->most_idle);
    }
    if (ended != NULL)
        take_out(ended);
    pthread_mutex_unlock(&context->monitor.mutex);
    if (ended != NULL)
        destroy(ended);
}

/* ---- saving ------------------------------------------------------------------------------------------------ */

/* Stores a program, which has its verdict if it needs one. */
static clmgk_status put(const mgk_program *program, const mgk_cache *cache, clmgk_error *error)
{
    char *binary = NULL;
    size_t length = 0;
    if (program->edited != NULL)
        return mgk_cache_put(cache, program->key, program->edited, program->edited_length, error);
    MGK_TRY(mgk_binary_get(program->context, program->program, &binary, &length, error));
    const clmgk_status status = mgk_cache_put(cache, program->key, binary, length, error);
    mgk_free(&program->context->allocator, binary);
    return status;
}

void mgk_program_save(mgk_program *program)
{
    clmgk_context *const context = program->context;
    const mgk_cache cache = cache_of(context);
    pthread_mutex_lock(&context->monitor.mutex);
    if (!program->saved && !program->unverified && program->wrong.status == CLMGK_OK) {
        program->saved = true;
        (void)put(program, &cache, &program->unsaved);
    }
    pthread_mutex_unlock(&context->monitor.mutex);
}

bool mgk_program_is_unverified(const mgk_program *program)
{
    bool unverified;
    mgk_monitor_copy(&program->context->monitor, &unverified, &program->unverified, sizeof(unverified));
    return unverified;
}

clmgk_status mgk_program_check(const mgk_program *program, clmgk_error *error)
{
    pthread_mutex_t *const mutex = &program->context->monitor.mutex;
    pthread_mutex_lock(mutex);
    const clmgk_status status = fail_if_wrong(program, error);
    pthread_mutex_unlock(mutex);
    return status;
}

void mgk_program_judge(mgk_program *program, const char *wrong)
{
    clmgk_context *const context = program->context;
    pthread_mutex_lock(&context->monitor.mutex);
    if (program->unverified && wrong != NULL) {
        (void)mgk_fail(&program->wrong, CLMGK_ERROR_UNSUPPORTED, "%s", wrong);
        save_reason(program);
    }
    program->unverified = false;
    pthread_mutex_unlock(&context->monitor.mutex);
    if (wrong == NULL)
        mgk_program_save(program);
}

void mgk_programs_clear(clmgk_context *context)
{
    mgk_program *idle;
    do {
        pthread_mutex_lock(&context->monitor.mutex);
        idle = oldest_idle(context, 0);
        if (idle != NULL)
            take_out(idle);
        pthread_mutex_unlock(&context->monitor.mutex);
        if (idle != NULL)
            destroy(idle);
    } while (idle != NULL);
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
        if (program->references == 0 || program->program == NULL || program->unverified)
            continue;
        MGK_TRY_GOTO(status, put(program, &target, error), cleanup);
        ++done;
    }
cleanup:
    pthread_mutex_unlock(&context->monitor.mutex);
    if (count != NULL)
        *count = done;
    return status;
}
