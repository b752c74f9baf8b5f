/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NVIDIA layer: a CPU's driver says that it is NVIDIA's, of compute capability 9.0. Programs with edited PTX
 * (src/device/edited.h) get a binary that names their source, with a marked line; edited, it stands for that source,
 * compiled with the emulation of matrix units. The units' probes, which have no emulation, are replaced by kernels that
 * compute the same numbers. A test makes it fail through nvidia_layer_state.
 *
 * The device remains a CPU, for whose engines programs compile fast.
 */
#include "nvidia_layer.h"
#include "layer.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EDITED  "-DEDITED_PTX=1"
#define UNIT    "-DMATRIX_UNIT="
#define DYNAMIC " -DDYNAMIC_LOCAL="
enum { MOST_PROGRAMS = 1024, PTX_SIZE = 512 };

const char layer_name[] = "NVIDIA layer";

static nvidia_state state;

nvidia_state *nvidia_layer_state(void);
nvidia_state *nvidia_layer_state(void)
{
    return &state;
}

/* A program. None is ever removed: binaries name them. */
typedef struct source {
    cl_program program;
    char *text, *options;
    const struct source *edited; /* the program whose edited binary it was made from; NULL: it was made from source */
} source;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; /* guards what follows, and compiles one after the other */
static source sources[MOST_PROGRAMS];
static int source_count;

static char *copy(const char *text)
{
    char *const own = malloc(strlen(text) + 1);
    if (own == NULL)
        abort();
    return strcpy(own, text);
}

static source *add(cl_program program)
{
    if (source_count == MOST_PROGRAMS)
        abort();
    sources[source_count].program = program;
    return &sources[source_count++];
}

/* The latest with this handle: drivers use handles again. */
static source *source_of(cl_program program)
{
    for (int i = source_count - 1; i >= 0; i--)
        if (sources[i].program == program)
            return &sources[i];
    return NULL;
}

static int has_fault(const source *of, nvidia_fault fault)
{
    return state.fault == fault && state.of != NULL && strstr(of->text, state.of) != NULL;
}

/* ---- the device ---------------------------------------------------------------------------------------------- */

static cl_int CL_API_CALL platform_info(cl_platform_id platform, cl_platform_info name, size_t size, void *value,
                                        size_t *size_out)
{
    static const char nvidia[] = "NVIDIA CUDA";
    return name == CL_PLATFORM_NAME ? layer_give(nvidia, sizeof(nvidia), size, value, size_out)
                                    : layer_next.clGetPlatformInfo(platform, name, size, value, size_out);
}

static cl_int CL_API_CALL device_info(cl_device_id device, cl_device_info name, size_t size, void *value,
                                      size_t *size_out)
{
    enum { CAPABILITY_MAJOR = 0x4000, CAPABILITY_MINOR = 0x4001, PCI_BUS_INFO = 0x410F };
    static const cl_uint major = 9, minor = 0, pci[] = NVIDIA_PCI;
    switch (name) {
    case CL_DRIVER_VERSION:
        return state.version != NULL ? layer_give(state.version, strlen(state.version) + 1, size, value, size_out)
                                     : layer_next.clGetDeviceInfo(device, name, size, value, size_out);
    case CAPABILITY_MAJOR:
        return layer_give(&major, sizeof(major), size, value, size_out);
    case CAPABILITY_MINOR:
        return layer_give(&minor, sizeof(minor), size, value, size_out);
    case CL_DEVICE_LOCAL_MEM_SIZE:
        return state.local > 0 ? layer_give(&state.local, sizeof(state.local), size, value, size_out)
                               : layer_next.clGetDeviceInfo(device, name, size, value, size_out);
    case PCI_BUS_INFO:
        return state.no_pci ? CL_INVALID_VALUE : layer_give(pci, sizeof(pci), size, value, size_out);
    default:
        return layer_next.clGetDeviceInfo(device, name, size, value, size_out);
    }
}

/* ---- programs ------------------------------------------------------------------------------------------------ */

/* A kernel that computes the products of a unit's probe (src/device/matrix_unit.c); `wrong` adds to the last. */
static char *probe_text(const char *kernel, int types, int size, int forms, const char *plain, int wrong)
{
    const int count = types * forms * size * size;
    char text[1024];
    (void)snprintf(text, sizeof(text),
                   "__kernel void %s(__global float *products) {"
                   "for (int n = get_local_id(0); n < %d; n += get_local_size(0)) {"
                   "int form = n / (%d * %d) %% %d, row = n / %d %% %d, column = n %% %d, sum = 0;"
                   "for (int d = 0; d < %d; d++) { int r = (%s) ? d : column, c = (%s) ? column : d;"
                   "sum += ((7 * row + 3 * d) %% 13 - 6) * ((5 * r + 11 * c) %% 17 - 8); }"
                   "products[n] = sum + (n == %d ? %d : 0); } }",
                   kernel, count, size, size, forms, size, size, size, size, plain, plain, count - 1, wrong);
    return copy(text);
}

/* An error in a kernel of the matrix engine: a product's rows are all the same, of a pass's scores only the last key's
 * are kept, or, in the forward pass, fragments have other columns. */
static void make_wrong(char *text)
{
    static const char *const changes[][2] = {
        {"return fragment_first_row(b, m) + SUM_ROW(lane_of(b), v);",
         "return fragment_first_row(b, m) + SUM_ROW(lane_of(b), 0);"},
        {"g->slots[slot][u][v] = x;", "g->slots[slot][0][v] = x;"},
        {"return 2 * (lane % 4) + 8 * half_of_depth;", "return 2 * (lane % 4) + 4 * half_of_depth;"}};
    for (size_t i = 0; i < sizeof(changes) / sizeof(changes[0]); i++) {
        char *const at = strstr(text, changes[i][0]);
        if (at != NULL) {
            memcpy(at, changes[i][1], strlen(changes[i][1]));
            return;
        }
    }
    abort();
}

/* The text that the CPU's driver gets. */
static char *text_of(const source *of, int wrong)
{
    if (strstr(of->text, "void unit_probe(") != NULL)
        return probe_text("unit_probe", 3, 16, 2, "form == 1", state.no_mma);
    if (strstr(of->text, "void group_probe(") != NULL)
        return probe_text("group_probe", 2, 64, 6, "form == 2 || form == 3", wrong);
    char *const text = copy(of->text);
    if (wrong)
        make_wrong(text);
    return text;
}

static cl_program create(cl_context context, const source *of, int wrong, cl_int *code)
{
    char *const text = text_of(of, wrong);
    const char *const lines[] = {text};
    const cl_program program = layer_next.clCreateProgramWithSource(context, 1, (const char **)lines, NULL, code);
    free(text);
    return program;
}

static cl_program CL_API_CALL create_with_source(cl_context context, cl_uint count, const char **text,
                                                 const size_t *lengths, cl_int *code)
{
    if (count != 1 || (lengths != NULL && lengths[0] != strlen(text[0])))
        abort();
    pthread_mutex_lock(&mutex);
    source *const own = add(NULL);
    own->text = copy(text[0]);
    own->program = create(context, own, 0, code);
    const cl_program program = own->program;
    pthread_mutex_unlock(&mutex);
    return program;
}

/* Removes an option that begins with these words. */
static void remove_option(char *options, const char *words)
{
    char *const option = strstr(options, words);
    if (option == NULL)
        return;
    const size_t length = 1 + strcspn(option + 1, " ");
    memmove(option, option + length, strlen(option + length) + 1);
}

/* Builds a source with its own options, for the emulation of units: the same options whatever the unit. */
static cl_int build_source(const source *of, cl_program program, const cl_device_id *devices)
{
    char *const options = copy(of->options);
    char *const unit = strstr(options, UNIT);
    if (unit != NULL)
        unit[strlen(UNIT)] = '0';
    remove_option(options, " " EDITED);
    remove_option(options, " -cl-nv-");
    remove_option(options, DYNAMIC);
    const cl_int code = layer_next.clBuildProgram(program, 1, devices, options, NULL, NULL);
    free(options);
    return code;
}

/* A program that will be edited is compiled only then. */
static cl_int build_any(source *own, const cl_device_id *devices, const char *options)
{
    if (own->edited != NULL) {
        if (has_fault(own->edited, NVIDIA_BUILD_REFUSED))
            return CL_INVALID_BINARY;
        state.loaded++;
        return build_source(own->edited, own->program, devices);
    }
    state.compiled++;
    free(own->options);
    own->options = copy(options);
    if (has_fault(own, NVIDIA_COMPILE_REFUSED))
        return CL_BUILD_PROGRAM_FAILURE;
    const int edited = strstr(options, EDITED) != NULL && !has_fault(own, NVIDIA_NO_COMMENTS);
    return edited ? CL_SUCCESS : build_source(own, own->program, devices);
}

static cl_int CL_API_CALL build(cl_program program, cl_uint count, const cl_device_id *devices, const char *options,
                                void(CL_CALLBACK *notify)(cl_program program, void *user), void *user)
{
    pthread_mutex_lock(&mutex);
    source *const own = source_of(program);
    if (own == NULL || count != 1 || notify != NULL || user != NULL || options == NULL)
        abort();
    const cl_int code = build_any(own, devices, options);
    pthread_mutex_unlock(&mutex);
    return code;
}

static void write_ptx(const source *of, char ptx[PTX_SIZE])
{
    const int marked = strstr(of->options, EDITED) != NULL && !has_fault(of, NVIDIA_NO_COMMENTS);
    (void)snprintf(
        ptx, PTX_SIZE,
        "%s//\n// a stand-in's PTX\n//\n\n.version 9.0\n.target %s, texmode_independent\n.address_size 64\n\n"
        "// program %d\n%s\tmov.b32 \t%%r1, %%envreg3;\n%s",
        has_fault(of, NVIDIA_NO_PTX) ? "\177ELF" : "", has_fault(of, NVIDIA_OTHER_TARGET) ? "sm_100" : "sm_90",
        (int)(of - sources),
        strstr(of->options, DYNAMIC) != NULL ? "\t.shared .align 1024 .b8 k_$_matrix_tiles[16];\n" : "",
        marked ? "\t// begin inline asm\n\t//@wgmma.fence;\n\t// end inline asm\n" : "");
}

/* The binary ends with NUL, as NVIDIA's does. */
static cl_int CL_API_CALL program_info(cl_program program, cl_program_info name, size_t size, void *value,
                                       size_t *size_out)
{
    char ptx[PTX_SIZE];
    if (name != CL_PROGRAM_BINARY_SIZES && name != CL_PROGRAM_BINARIES)
        return layer_next.clGetProgramInfo(program, name, size, value, size_out);
    pthread_mutex_lock(&mutex);
    const source *const own = source_of(program);
    if (own == NULL || own->options == NULL)
        abort();
    write_ptx(own, ptx);
    const int fails = has_fault(own, NVIDIA_NO_BINARY);
    pthread_mutex_unlock(&mutex);
    const size_t length = strlen(ptx) + 1;
    if (fails)
        return CL_OUT_OF_RESOURCES;
    if (name == CL_PROGRAM_BINARY_SIZES)
        return layer_give(&length, sizeof(length), size, value, size_out);
    memcpy(((char **)value)[0], ptx, length);
    return CL_SUCCESS;
}

/* The number of the program that a binary names, whether edited, as it must be, or without anything to edit; -1: it is
 * no such binary. */
static int number_of(const char *text)
{
    static const char words[] = "// program ";
    const char *const name = strstr(text, words);
    const int edited = strstr(text, ".target sm_90a,") != NULL && strstr(text, "\twgmma.fence;") != NULL;
    const int plain = strstr(text, ".target sm_90,") != NULL && strstr(text, "wgmma") == NULL;
    const long number = name != NULL ? strtol(name + sizeof(words) - 1, NULL, 10) : -1;
    return (edited || plain) && number < source_count ? (int)number : -1;
}

static cl_program CL_API_CALL create_with_binary(cl_context context, cl_uint count, const cl_device_id *devices,
                                                 const size_t *lengths, const unsigned char **binaries, cl_int *status,
                                                 cl_int *code)
{
    char text[PTX_SIZE] = "";
    cl_program program = NULL;
    (void)devices;
    if (count == 1 && lengths[0] < sizeof(text))
        memcpy(text, binaries[0], lengths[0]);
    *status = *code = CL_INVALID_BINARY;
    pthread_mutex_lock(&mutex);
    const int number = number_of(text);
    if (number >= 0 && !has_fault(&sources[number], NVIDIA_LOAD_REFUSED)) {
        *status = CL_SUCCESS;
        program = create(context, &sources[number], has_fault(&sources[number], NVIDIA_WRONG), code);
        add(program)->edited = &sources[number];
    }
    pthread_mutex_unlock(&mutex);
    return program;
}

/* ---- kernels, for CUDA's stand-in ---------------------------------------------------------------------------- */

/* The bytes of a kernel's first argument, the only one whose size does not follow from the kernel. */
typedef struct known_kernel {
    cl_kernel kernel;
    cl_program program;
    char name[64];
    size_t first;
} known_kernel;

enum { MOST_KERNELS = 2048 };
static known_kernel kernels[MOST_KERNELS]; /* guarded by the mutex */
static int kernel_count;

static cl_kernel CL_API_CALL create_kernel(cl_program program, const char *name, cl_int *code)
{
    const cl_kernel kernel = layer_next.clCreateKernel(program, name, code);
    pthread_mutex_lock(&mutex);
    if (kernel_count == MOST_KERNELS)
        abort();
    known_kernel *const own = &kernels[kernel_count++];
    own->kernel = kernel;
    own->program = program;
    (void)snprintf(own->name, sizeof(own->name), "%s", name);
    pthread_mutex_unlock(&mutex);
    return kernel;
}

static cl_int CL_API_CALL set_argument(cl_kernel kernel, cl_uint index, size_t size, const void *value)
{
    pthread_mutex_lock(&mutex);
    for (int i = kernel_count - 1; index == 0 && i >= 0; i--)
        if (kernels[i].kernel == kernel) {
            kernels[i].first = size;
            break;
        }
    pthread_mutex_unlock(&mutex);
    return layer_next.clSetKernelArg(kernel, index, size, value);
}

/* Bytes of local memory, as the driver states them. */
static cl_ulong local_bytes_of(cl_kernel kernel, cl_device_id device)
{
    cl_ulong bytes = 0;
    (void)layer_next.clGetKernelWorkGroupInfo(kernel, device, CL_KERNEL_LOCAL_MEM_SIZE, sizeof(bytes), &bytes, NULL);
    return bytes > 0 ? bytes + NVIDIA_LOCAL_OF_GROUP : 0;
}

static cl_int CL_API_CALL kernel_info(cl_kernel kernel, cl_device_id device, cl_kernel_work_group_info name,
                                      size_t size, void *value, size_t *size_out)
{
    const cl_ulong bytes = name == CL_KERNEL_LOCAL_MEM_SIZE ? local_bytes_of(kernel, device) : 0;
    return name == CL_KERNEL_LOCAL_MEM_SIZE
               ? layer_give(&bytes, sizeof(bytes), size, value, size_out)
               : layer_next.clGetKernelWorkGroupInfo(kernel, device, name, size, value, size_out);
}

/* Whether a kernel's program has the fault. */
static int is_refused(cl_kernel kernel)
{
    cl_program program = NULL;
    (void)layer_next.clGetKernelInfo(kernel, CL_KERNEL_PROGRAM, sizeof(program), (void *)&program, NULL);
    pthread_mutex_lock(&mutex);
    const source *const own = source_of(program);
    const source *const of = own != NULL && own->edited != NULL ? own->edited : own;
    const int refused = of != NULL && of->text != NULL && has_fault(of, NVIDIA_LAUNCH_REFUSED);
    pthread_mutex_unlock(&mutex);
    return refused;
}

static cl_int CL_API_CALL enqueue_kernel(cl_command_queue queue, cl_kernel kernel, cl_uint dimensions,
                                         const size_t *offset, const size_t *global, const size_t *local,
                                         cl_uint num_wait, const cl_event *wait_list, cl_event *event)
{
    cl_device_id device = NULL;
    (void)layer_next.clGetCommandQueueInfo(queue, CL_QUEUE_DEVICE, sizeof(device), (void *)&device, NULL);
    if (is_refused(kernel) || (state.local_is_shared && local_bytes_of(kernel, device) > state.local))
        return CL_OUT_OF_RESOURCES;
    return layer_next.clEnqueueNDRangeKernel(queue, kernel, dimensions, offset, global, local, num_wait, wait_list,
                                             event);
}

/* The latest program that was built of this source. */
static cl_program program_of(int number)
{
    for (int i = source_count - 1; i > number; i--)
        if (sources[i].edited == &sources[number])
            return sources[i].program;
    return number >= 0 && number < source_count ? sources[number].program : NULL;
}

nvidia_layer_kernel_fn nvidia_layer_kernel;
int nvidia_layer_kernel(const char *ptx, const char *name, cl_program *program, size_t *first)
{
    static const char words[] = "// program ";
    const char *const number = strstr(ptx, words);
    *first = 0;
    pthread_mutex_lock(&mutex);
    *program = number != NULL ? program_of((int)strtol(number + sizeof(words) - 1, NULL, 10)) : NULL;
    for (int i = 0; i < kernel_count; i++)
        if (kernels[i].program == *program && strcmp(kernels[i].name, name) == 0 && kernels[i].first > 0)
            *first = kernels[i].first;
    for (int i = 0; i < kernel_count && *first == 0; i++) /* OpenCL launches no kernel with dynamic local memory */
        if (strstr(ptx, ".extern .shared") != NULL && strcmp(kernels[i].name, name) == 0)
            *first = kernels[i].first;
    pthread_mutex_unlock(&mutex);
    return *first > 0;
}

void layer_install(cl_icd_dispatch *table)
{
    table->clGetPlatformInfo = platform_info;
    table->clGetDeviceInfo = device_info;
    table->clCreateProgramWithSource = create_with_source;
    table->clCreateProgramWithBinary = create_with_binary;
    table->clBuildProgram = build;
    table->clGetProgramInfo = program_info;
    table->clCreateKernel = create_kernel;
    table->clSetKernelArg = set_argument;
    table->clGetKernelWorkGroupInfo = kernel_info;
    table->clEnqueueNDRangeKernel = enqueue_kernel;
}
