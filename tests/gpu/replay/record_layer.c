/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Record layer: writes the launches of kernels to the folder CLMGK_RECORD, for gpu_replay. It keeps the largest launch
 * of each kernel of each program, and of equally large ones the third (a plan's first launch only warms up), with the
 * program's binary, the arguments and the contents of buffers. The form of a recording is in recording.h. A queue that
 * waits for a user event would wait for ever.
 */
#include "layer.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_ARGUMENTS 32
#define MAX_NAME      128
#define LAUNCHES      3
#define MOST_BYTES    ((size_t)256 << 20) /* of a launch's buffers: what measures peaks has more */

const char layer_name[] = "record layer";

typedef enum kind { VALUE, BUFFER, LOCAL } kind;
static const char *const kind_names[] = {[VALUE] = "value", [BUFFER] = "buffer", [LOCAL] = "local"};

typedef struct argument {
    bool is_set;
    kind kind;
    size_t size;
    void *bytes; /* of a value */
    cl_mem memory;
} argument;

typedef struct recording {
    char name[MAX_NAME];
    unsigned long hash; /* of the program */
    size_t items, number;
    int launches; /* with so many items */
    struct recording *next;
} recording;

typedef struct known_kernel {
    cl_kernel kernel;
    argument arguments[MAX_ARGUMENTS];
    recording *recording; /* NULL: there is none yet */
    struct known_kernel *next;
} known_kernel;

typedef struct known_buffer {
    cl_mem memory;
    struct known_buffer *next;
} known_buffer;

typedef struct geometry {
    size_t groups[3], items[3], all_items;
} geometry;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static known_kernel *kernels;
static known_buffer *buffers;
static recording *recordings;
static const char *folder;

/* Without memory the recordings would not be whole. */
static void *make(size_t count, size_t size)
{
    void *const made = calloc(count > 0 ? count : 1, size);
    if (made == NULL)
        abort();
    return made;
}

static known_kernel *find_kernel(cl_kernel kernel)
{
    for (known_kernel *one = kernels; one != NULL; one = one->next)
        if (one->kernel == kernel)
            return one;
    known_kernel *const added = make(1, sizeof(*added));
    added->kernel = kernel;
    added->next = kernels;
    kernels = added;
    return added;
}

static bool is_buffer(cl_mem memory)
{
    for (const known_buffer *one = buffers; one != NULL; one = one->next)
        if (one->memory == memory)
            return true;
    return false;
}

static void add_buffer(cl_mem memory)
{
    (void)pthread_mutex_lock(&mutex);
    if (memory != NULL && !is_buffer(memory)) {
        known_buffer *const added = make(1, sizeof(*added));
        added->memory = memory;
        added->next = buffers;
        buffers = added;
    }
    (void)pthread_mutex_unlock(&mutex);
}

static cl_mem CL_API_CALL create_buffer(cl_context context, cl_mem_flags flags, size_t size, void *host, cl_int *code)
{
    const cl_mem memory = layer_next.clCreateBuffer(context, flags, size, host, code);
    add_buffer(memory);
    return memory;
}

static cl_mem CL_API_CALL create_sub_buffer(cl_mem whole, cl_mem_flags flags, cl_buffer_create_type type,
                                            const void *region, cl_int *code)
{
    const cl_mem memory = layer_next.clCreateSubBuffer(whole, flags, type, region, code);
    add_buffer(memory);
    return memory;
}

static void keep_argument(argument *one, size_t size, const void *value)
{
    free(one->bytes);
    *one = (argument){.is_set = true, .kind = value == NULL ? LOCAL : VALUE, .size = size};
    if (value == NULL)
        return;
    cl_mem memory = NULL;
    if (size == sizeof(memory))
        memcpy(&memory, value, sizeof(memory));
    if (size == sizeof(memory) && (memory == NULL || is_buffer(memory))) {
        one->kind = BUFFER;
        one->memory = memory;
        return;
    }
    one->bytes = make(size, 1);
    memcpy(one->bytes, value, size);
}

static cl_int CL_API_CALL set_argument(cl_kernel kernel, cl_uint index, size_t size, const void *value)
{
    const cl_int code = layer_next.clSetKernelArg(kernel, index, size, value);
    if (code == CL_SUCCESS && index < MAX_ARGUMENTS) {
        (void)pthread_mutex_lock(&mutex);
        keep_argument(&find_kernel(kernel)->arguments[index], size, value);
        (void)pthread_mutex_unlock(&mutex);
    }
    return code;
}

/* Another kernel may get its handle. */
static void forget_kernel(cl_kernel kernel)
{
    for (known_kernel **at = &kernels; *at != NULL; at = &(*at)->next)
        if ((*at)->kernel == kernel) {
            known_kernel *const gone = *at;
            *at = gone->next;
            for (int i = 0; i < MAX_ARGUMENTS; i++)
                free(gone->arguments[i].bytes);
            free(gone);
            return;
        }
}

static cl_int CL_API_CALL release_kernel(cl_kernel kernel)
{
    cl_uint references = 0;
    (void)layer_next.clGetKernelInfo(kernel, CL_KERNEL_REFERENCE_COUNT, sizeof(references), &references, NULL);
    (void)pthread_mutex_lock(&mutex);
    if (references == 1)
        forget_kernel(kernel);
    (void)pthread_mutex_unlock(&mutex);
    return layer_next.clReleaseKernel(kernel);
}

/* The binary of a program of one device (free); NULL: there is none. */
static unsigned char *binary_of(cl_kernel kernel, size_t *size)
{
    cl_program program = NULL;
    cl_uint devices = 0;
    if (layer_next.clGetKernelInfo(kernel, CL_KERNEL_PROGRAM, sizeof(program), &program, NULL) != CL_SUCCESS ||
        layer_next.clGetProgramInfo(program, CL_PROGRAM_NUM_DEVICES, sizeof(devices), &devices, NULL) != CL_SUCCESS ||
        devices != 1 ||
        layer_next.clGetProgramInfo(program, CL_PROGRAM_BINARY_SIZES, sizeof(*size), size, NULL) != CL_SUCCESS)
        return NULL;
    unsigned char *binary = make(*size, 1);
    if (layer_next.clGetProgramInfo(program, CL_PROGRAM_BINARIES, sizeof(binary), &binary, NULL) == CL_SUCCESS)
        return binary;
    free(binary);
    return NULL;
}

static unsigned long hash_of(const unsigned char *bytes, size_t size)
{
    unsigned long hash = 5381;
    for (size_t i = 0; i < size; i++)
        hash = 33 * hash + bytes[i];
    return hash;
}

static recording *find_recording(const char *name, unsigned long hash)
{
    static size_t count;
    for (recording *one = recordings; one != NULL; one = one->next)
        if (one->hash == hash && strcmp(one->name, name) == 0)
            return one;
    recording *const added = make(1, sizeof(*added));
    (void)snprintf(added->name, sizeof(added->name), "%s", name);
    added->hash = hash;
    added->number = count++;
    added->next = recordings;
    recordings = added;
    return added;
}

static FILE *open_file(const recording *of, const char *ending)
{
    char path[4096];
    (void)snprintf(path, sizeof(path), "%s/%02zu-%s.%s", folder, of->number, of->name, ending);
    return fopen(path, "wb");
}

static size_t bytes_of(cl_mem memory)
{
    size_t size = 0;
    if (memory != NULL)
        (void)layer_next.clGetMemObjectInfo(memory, CL_MEM_SIZE, sizeof(size), &size, NULL);
    return size;
}

static bool is_small(const known_kernel *known)
{
    size_t total = 0;
    for (int i = 0; i < MAX_ARGUMENTS; i++)
        total += known->arguments[i].kind == BUFFER ? bytes_of(known->arguments[i].memory) : 0;
    return total <= MOST_BYTES;
}

static bool write_argument(FILE *file, cl_command_queue queue, const argument *one)
{
    const size_t size = one->kind == BUFFER ? bytes_of(one->memory) : one->size;
    (void)fprintf(file, "%s %zu\n", kind_names[one->kind], size);
    if (one->kind == VALUE)
        return fwrite(one->bytes, 1, size, file) == size;
    if (one->kind == LOCAL || size == 0)
        return true;
    void *const bytes = make(size, 1);
    const bool read =
        layer_next.clEnqueueReadBuffer(queue, one->memory, CL_TRUE, 0, size, bytes, 0, NULL, NULL) == CL_SUCCESS &&
        fwrite(bytes, 1, size, file) == size;
    free(bytes);
    return read;
}

static bool write_program(const recording *of, const unsigned char *binary, size_t size)
{
    FILE *const file = open_file(of, "bin");
    const bool written = file != NULL && fwrite(binary, 1, size, file) == size;
    return (file == NULL || fclose(file) == 0) && written;
}

static bool write_launch(const recording *of, cl_command_queue queue, const known_kernel *known, const geometry *at)
{
    FILE *const file = open_file(of, "rec");
    if (file == NULL)
        return false;
    (void)fprintf(file, "clmgk recording 1\n%s\n%zu %zu %zu\n%zu %zu %zu\n", of->name, at->groups[0], at->groups[1],
                  at->groups[2], at->items[0], at->items[1], at->items[2]);
    bool written = true;
    for (int i = 0; written && i < MAX_ARGUMENTS && known->arguments[i].is_set; i++)
        written = write_argument(file, queue, &known->arguments[i]);
    return fclose(file) == 0 && written;
}

static bool is_wanted(const recording *of, const geometry *at)
{
    return at->all_items > of->items || (at->all_items == of->items && of->launches < LAUNCHES);
}

static void record(cl_command_queue queue, known_kernel *known, const geometry *at)
{
    char name[MAX_NAME] = "";
    size_t size = 0;
    unsigned char *const binary = is_small(known) ? binary_of(known->kernel, &size) : NULL;
    if (binary == NULL ||
        layer_next.clGetKernelInfo(known->kernel, CL_KERNEL_FUNCTION_NAME, sizeof(name), name, NULL) != CL_SUCCESS)
        goto done;
    recording *const one = known->recording = find_recording(name, hash_of(binary, size));
    if (!is_wanted(one, at))
        goto done;
    one->launches = at->all_items > one->items ? 1 : one->launches + 1;
    one->items = at->all_items;
    if (layer_next.clFinish(queue) != CL_SUCCESS || !write_program(one, binary, size) ||
        !write_launch(one, queue, known, at))
        (void)fprintf(stderr, "%s: %s was not written to %s\n", layer_name, name, folder);
done:
    free(binary);
}

static bool measure(cl_uint dimensions, const size_t *offset, const size_t *global, const size_t *local, geometry *at)
{
    *at = (geometry){{1, 1, 1}, {1, 1, 1}, 1};
    if (global == NULL || local == NULL)
        return false;
    for (cl_uint i = 0; i < dimensions && i < 3; i++) {
        if (offset != NULL && offset[i] != 0)
            return false; /* CUDA has none */
        at->items[i] = local[i];
        at->groups[i] = global[i] / local[i];
        at->all_items *= global[i];
    }
    return true;
}

static cl_int CL_API_CALL enqueue_kernel(cl_command_queue queue, cl_kernel kernel, cl_uint dimensions,
                                         const size_t *offset, const size_t *global, const size_t *local, cl_uint waits,
                                         const cl_event *wait_list, cl_event *event)
{
    geometry at;
    (void)pthread_mutex_lock(&mutex);
    known_kernel *const known = find_kernel(kernel);
    /* What waits for a gate would never finish. */
    if (waits == 0 && measure(dimensions, offset, global, local, &at) &&
        (known->recording == NULL || is_wanted(known->recording, &at)))
        record(queue, known, &at);
    (void)pthread_mutex_unlock(&mutex);
    return layer_next.clEnqueueNDRangeKernel(queue, kernel, dimensions, offset, global, local, waits, wait_list, event);
}

void layer_install(cl_icd_dispatch *table)
{
    folder = getenv("CLMGK_RECORD");
    if (folder == NULL)
        abort();
    table->clCreateBuffer = create_buffer;
    table->clCreateSubBuffer = create_sub_buffer;
    table->clSetKernelArg = set_argument;
    table->clReleaseKernel = release_kernel;
    table->clEnqueueNDRangeKernel = enqueue_kernel;
}
