/* SPDX-License-Identifier: Apache-2.0 */
#include "device/cuda.h"

#include "base/bound.clh"
#include "device/binary.h"
#include "device/cuda_driver.h"
#include "device/edited.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

struct mgk_cuda {
    mgk_cuda_driver driver;
    int device;
    mgk_cuda_context context;
    cl_mem stand_in;
    pthread_mutex_t mutex; /* guards cuda_module of the context's programs */
};

/* Code of a call of the driver, with the function's name in messages. */
#define CUDA_TRY(driver, function, ...)                                                                                \
    MGK_TRY(mgk_cuda_check(driver, (driver)->function(__VA_ARGS__), "CUDA's " #function, error))

/* ---- addresses ----------------------------------------------------------------------------------------------- */

_Static_assert(sizeof(cl_mem) == sizeof(mgk_cuda_pointer), "an address in the place of a memory object");

cl_mem mgk_cuda_memory_at(uint64_t address)
{
    cl_mem memory = NULL;
    memcpy((void *)&memory, &address, sizeof(address));
    return memory;
}

uint64_t mgk_cuda_address_of(cl_mem memory)
{
    uint64_t address = 0;
    memcpy(&address, (const void *)&memory, sizeof(address));
    return address;
}

clmgk_cuda_stream mgk_cuda_own_stream(void)
{
    const uint64_t per_thread = 2; /* CU_STREAM_PER_THREAD */
    clmgk_cuda_stream stream = NULL;
    memcpy((void *)&stream, &per_thread, sizeof(stream));
    return stream;
}

/* ---- devices ------------------------------------------------------------------------------------------------- */

/* A device's place on the PCI bus, as OpenCL states it. A device has one function. */
typedef struct pci_place {
    cl_uint domain, bus, device, function;
} pci_place;

static clmgk_status place_in_opencl(cl_device_id device, const char *name, pci_place *place, clmgk_error *error)
{
    enum { PCI_BUS_INFO = 0x410F }; /* CL_DEVICE_PCI_BUS_INFO_KHR */
    if (clGetDeviceInfo(device, PCI_BUS_INFO, sizeof(*place), place, NULL) == CL_SUCCESS)
        return CLMGK_OK;
    return mgk_fail(error, CLMGK_ERROR_UNSUPPORTED,
                    "device \"%s\": its OpenCL driver does not state its PCI address (cl_khr_pci_bus_info), so CUDA's "
                    "number of it is unknown: a newer driver does",
                    name);
}

static clmgk_status place_in_cuda(const mgk_cuda_driver *driver, int device, pci_place *place, clmgk_error *error)
{
    int domain = 0, bus = 0, slot = 0;
    CUDA_TRY(driver, device_attribute, &domain, MGK_CUDA_PCI_DOMAIN, device);
    CUDA_TRY(driver, device_attribute, &bus, MGK_CUDA_PCI_BUS, device);
    CUDA_TRY(driver, device_attribute, &slot, MGK_CUDA_PCI_DEVICE, device);
    *place = (pci_place){(cl_uint)domain, (cl_uint)bus, (cl_uint)slot, 0};
    return CLMGK_OK;
}

static bool same_place(const pci_place *a, const pci_place *b)
{
    return a->domain == b->domain && a->bus == b->bus && a->device == b->device;
}

/* Finds the CUDA device of an OpenCL device. */
static clmgk_status find_in_cuda(const mgk_cuda_driver *driver, const clmgk_context *context, int *device,
                                 clmgk_error *error)
{
    pci_place wanted, place;
    int count = 0;
    MGK_TRY(place_in_opencl(context->device, context->facts.info.name, &wanted, error));
    CUDA_TRY(driver, device_count, &count);
    for (int i = 0; i < count; ++i) {
        CUDA_TRY(driver, device_get, device, i);
        MGK_TRY(place_in_cuda(driver, *device, &place, error));
        if (same_place(&place, &wanted))
            return CLMGK_OK;
    }
    return mgk_fail(error, CLMGK_ERROR_UNSUPPORTED,
                    "device \"%s\" (PCI %04x:%02x:%02x): none of CUDA's %d devices (is it hidden by "
                    "CUDA_VISIBLE_DEVICES?)",
                    context->facts.info.name, (unsigned)wanted.domain, (unsigned)wanted.bus, (unsigned)wanted.device,
                    count);
}

/* Finds the device of a platform at this place; NULL: none. Devices that do not state their place don't count. */
static clmgk_status find_in_platform(cl_platform_id platform, const pci_place *wanted, cl_device_id *found,
                                     clmgk_error *error)
{
    mgk_device_facts facts = {.matrix_unit = {.known = false}};
    cl_device_id *devices = NULL;
    cl_uint count = 0;
    MGK_TRY(mgk_platform_get_facts(platform, &facts, error));
    if (facts.runtime != MGK_RUNTIME_NVIDIA)
        return CLMGK_OK;
    MGK_TRY(mgk_platform_devices(platform, &devices, &count, error));
    for (cl_uint i = 0; i < count && *found == NULL; ++i) {
        pci_place place;
        if (place_in_opencl(devices[i], "", &place, NULL) == CLMGK_OK && same_place(&place, wanted))
            *found = devices[i];
    }
    mgk_free(NULL, devices);
    return CLMGK_OK;
}

static clmgk_status find_in_opencl(const pci_place *wanted, cl_device_id *found, clmgk_error *error)
{
    cl_platform_id *platforms = NULL;
    cl_uint count = 0;
    clmgk_status status = CLMGK_OK;
    *found = NULL;
    MGK_TRY(mgk_platform_list(&platforms, &count, error));
    for (cl_uint i = 0; i < count && *found == NULL && status == CLMGK_OK; ++i)
        status = find_in_platform(platforms[i], wanted, found, error);
    mgk_free(NULL, platforms);
    return status;
}

clmgk_status mgk_cuda_find_device(int32_t number, cl_device_id *found, clmgk_error *error)
{
    mgk_cuda_driver driver;
    pci_place place;
    int count = 0, device = 0;
    MGK_TRY(mgk_cuda_driver_load(&driver, error));
    CUDA_TRY(&driver, device_count, &count);
    if (number < 0 || number >= count)
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "number: %d: CUDA has %d devices, counted from 0",
                        (int)number, count);
    CUDA_TRY(&driver, device_get, &device, number);
    MGK_TRY(place_in_cuda(&driver, device, &place, error));
    MGK_TRY(find_in_opencl(&place, found, error));
    if (*found == NULL)
        return mgk_fail(error, CLMGK_ERROR_NO_DEVICE,
                        "CUDA's device %d (PCI %04x:%02x:%02x): no platform of NVIDIA's OpenCL driver has it (is the "
                        "driver's OpenCL part installed: libnvidia-opencl.so.1?)",
                        (int)number, (unsigned)place.domain, (unsigned)place.bus, (unsigned)place.device);
    return CLMGK_OK;
}

/* ---- a context's device -------------------------------------------------------------------------------------- */

clmgk_status mgk_cuda_enter(const mgk_cuda *cuda, clmgk_error *error)
{
    CUDA_TRY(&cuda->driver, context_push, cuda->context);
    return CLMGK_OK;
}

void mgk_cuda_leave(const mgk_cuda *cuda)
{
    mgk_cuda_context ignored = NULL;
    (void)cuda->driver.context_pop(&ignored);
}

clmgk_status mgk_cuda_make_memory(const mgk_cuda *cuda, const void *data, size_t bytes, cl_mem *memory,
                                  clmgk_error *error)
{
    mgk_cuda_pointer made = 0;
    CUDA_TRY(&cuda->driver, memory_allocate, &made, bytes);
    const int code = data != NULL ? cuda->driver.memory_write(made, data, bytes) : MGK_CUDA_SUCCESS;
    if (code != MGK_CUDA_SUCCESS)
        (void)cuda->driver.memory_free(made);
    else
        *memory = mgk_cuda_memory_at(made);
    return mgk_cuda_check(&cuda->driver, code, "CUDA's memory_write", error);
}

void mgk_cuda_free_memory(const mgk_cuda *cuda, cl_mem memory)
{
    (void)cuda->driver.memory_free(mgk_cuda_address_of(memory));
}

clmgk_status mgk_cuda_write(const mgk_cuda *cuda, cl_mem memory, const void *data, size_t bytes, clmgk_error *error)
{
    CUDA_TRY(&cuda->driver, memory_write, mgk_cuda_address_of(memory), data, bytes);
    return CLMGK_OK;
}

clmgk_status mgk_cuda_read(const mgk_cuda *cuda, cl_mem memory, void *data, size_t bytes, clmgk_error *error)
{
    CUDA_TRY(&cuda->driver, memory_read, data, mgk_cuda_address_of(memory), bytes);
    return CLMGK_OK;
}

clmgk_status mgk_cuda_most_local(const mgk_cuda *cuda, uint64_t *bytes, clmgk_error *error)
{
    int most = 0;
    CUDA_TRY(&cuda->driver, device_attribute, &most, MGK_CUDA_MOST_LOCAL, cuda->device);
    *bytes = most > 0 ? (uint64_t)most : 0;
    return CLMGK_OK;
}

static clmgk_status make_stand_in(mgk_cuda *cuda, clmgk_error *error)
{
    MGK_TRY(mgk_cuda_enter(cuda, error));
    const clmgk_status status = mgk_cuda_make_memory(cuda, NULL, MGK_STAND_IN_BYTES, &cuda->stand_in, error);
    mgk_cuda_leave(cuda);
    return status;
}

/* Releases the objects that `open_device` has made. */
static void close_device(const clmgk_allocator *allocator, mgk_cuda *cuda)
{
    if (cuda->stand_in != NULL && mgk_cuda_enter(cuda, NULL) == CLMGK_OK) {
        mgk_cuda_free_memory(cuda, cuda->stand_in);
        mgk_cuda_leave(cuda);
    }
    if (cuda->context != NULL)
        (void)cuda->driver.context_release(cuda->device);
    mgk_free(allocator, cuda);
}

static clmgk_status open_device(const clmgk_context *context, mgk_cuda *cuda, clmgk_error *error)
{
    MGK_TRY(mgk_cuda_driver_load(&cuda->driver, error));
    MGK_TRY(find_in_cuda(&cuda->driver, context, &cuda->device, error));
    CUDA_TRY(&cuda->driver, context_retain, &cuda->context, cuda->device);
    MGK_TRY(make_stand_in(cuda, error));
    return pthread_mutex_init(&cuda->mutex, NULL) == 0
               ? CLMGK_OK
               : mgk_fail(error, CLMGK_ERROR_OUT_OF_HOST_MEMORY, "no mutex for a device");
}

mgk_cuda *mgk_cuda_of(clmgk_context *context)
{
    mgk_cuda *cuda = NULL;
    mgk_monitor_copy(&context->monitor, (void *)&cuda, (const void *)&context->cuda, sizeof(context->cuda));
    return cuda;
}

static void destroy(const clmgk_allocator *allocator, mgk_cuda *cuda)
{
    pthread_mutex_destroy(&cuda->mutex);
    close_device(allocator, cuda);
}

clmgk_status mgk_cuda_open(clmgk_context *context, mgk_cuda **out, clmgk_error *error)
{
    const clmgk_allocator *const allocator = &context->allocator;
    *out = mgk_cuda_of(context);
    if (*out != NULL)
        return CLMGK_OK;
    if (context->facts.runtime != MGK_RUNTIME_NVIDIA)
        return mgk_fail(error, CLMGK_ERROR_UNSUPPORTED,
                        "device \"%s\" of platform \"%s\": CUDA launches programs of NVIDIA's OpenCL driver alone",
                        context->facts.info.name, context->facts.info.platform);
    mgk_cuda *const made = mgk_alloc(allocator, 1, sizeof(*made));
    if (made == NULL)
        return mgk_fail_memory(error, "a device in CUDA");
    const clmgk_status status = open_device(context, made, error);
    if (status != CLMGK_OK) {
        close_device(allocator, made);
        return status;
    }
    pthread_mutex_lock(&context->monitor.mutex);
    if (context->cuda == NULL)
        context->cuda = made;
    *out = context->cuda;
    pthread_mutex_unlock(&context->monitor.mutex);
    if (*out != made) /* another thread was faster */
        destroy(allocator, made);
    return CLMGK_OK;
}

void mgk_cuda_close(clmgk_context *context)
{
    if (context->cuda != NULL)
        destroy(&context->allocator, context->cuda);
    context->cuda = NULL;
}

const cl_mem *mgk_cuda_stand_in(const mgk_cuda *cuda)
{
    return &cuda->stand_in;
}

clmgk_status mgk_cuda_check_memory(const mgk_cuda *cuda, const char *name, uint64_t address, clmgk_error *error)
{
    int ordinal = -1;
    if (cuda->driver.pointer_attribute(&ordinal, MGK_CUDA_DEVICE_ORDINAL, address) != MGK_CUDA_SUCCESS)
        return mgk_fail(error, CLMGK_ERROR_INVALID_BUFFER, "%s: address 0x%" PRIx64 ": expected memory of CUDA", name,
                        address);
    int device = -1;
    CUDA_TRY(&cuda->driver, device_get, &device, ordinal);
    if (device != cuda->device)
        return mgk_fail(error, CLMGK_ERROR_INVALID_BUFFER,
                        "%s: memory of CUDA's device %d: expected the plan's device, %d", name, device, cuda->device);
    return CLMGK_OK;
}

/* ---- programs ------------------------------------------------------------------------------------------------ */

/* Text of the program's binary, with the library's edits. */
static clmgk_status text_of(const mgk_program *program, mgk_text *text, clmgk_error *error)
{
    const bool dynamic = strstr(program->options, MGK_DYNAMIC_LOCAL) != NULL;
    if (program->edited != NULL)
        return mgk_ptx_for_cuda(program->edited, program->edited_length, dynamic, text, error);
    char *binary = NULL;
    size_t length = 0;
    MGK_TRY(mgk_binary_get(program->context, program->program, &binary, &length, error));
    const clmgk_status status = mgk_ptx_for_cuda(binary, length, dynamic, text, error);
    mgk_free(&program->context->allocator, binary);
    return status;
}

/* Registers that the options allow a work-item; 0: any number. */
static int most_registers(const mgk_program *program)
{
    const char *const option = strstr(program->options, MGK_REGISTERS_LIMIT);
    if (option == NULL || (program->refused != NULL && strstr(program->refused, MGK_REGISTERS_LIMIT) != NULL))
        return 0;
    return (int)strtol(option + strlen(MGK_REGISTERS_LIMIT), NULL, 10);
}

/* An option's value is the number itself in the place of a pointer. */
static void *number(size_t value)
{
    void *pointer = NULL;
    memcpy((void *)&pointer, &value, sizeof(value));
    return pointer;
}

static clmgk_status load(const mgk_cuda *cuda, const mgk_program *program, mgk_cuda_module *module, clmgk_error *error)
{
    char log[CLMGK_ERROR_MESSAGE_SIZE] = "";
    mgk_text text = {.allocator = &program->context->allocator};
    const int registers = most_registers(program);
    int options[] = {MGK_CUDA_ERROR_LOG, MGK_CUDA_ERROR_LOG_SIZE, MGK_CUDA_MAX_REGISTERS};
    void *values[] = {log, number(sizeof(log) - 1), number((size_t)registers)};
    clmgk_status status = text_of(program, &text, error);
    if (status == CLMGK_OK) {
        const int code = cuda->driver.module_load(module, text.data, registers > 0 ? 3 : 2, options, values);
        clmgk_error failure = {.message = ""};
        status = mgk_cuda_check(&cuda->driver, code, "CUDA's driver does not take the program", &failure);
        if (status == CLMGK_ERROR_CUDA)
            status = CLMGK_ERROR_COMPILE;
        if (status != CLMGK_OK)
            (void)mgk_fail(error, status, "%s%s%s", failure.message, log[0] != '\0' ? ": " : "", log);
    }
    mgk_text_free(&text);
    return status;
}

static clmgk_status module_of(mgk_cuda *cuda, mgk_program *program, mgk_cuda_module *module, clmgk_error *error)
{
    clmgk_status status = CLMGK_OK;
    pthread_mutex_lock(&cuda->mutex);
    *module = program->cuda_module;
    if (*module == NULL)
        status = load(cuda, program, module, error);
    if (status == CLMGK_OK)
        program->cuda_module = *module;
    pthread_mutex_unlock(&cuda->mutex);
    return status;
}

/* CUDA's limits of a launch. */
static clmgk_status check_launch(const mgk_cuda *cuda, const char *name, const mgk_launch *launch,
                                 mgk_cuda_function function, clmgk_error *error)
{
    static const size_t most_groups[3] = {INT32_MAX, UINT16_MAX, UINT16_MAX};
    size_t items = 1;
    int most_items = 0;
    for (cl_uint i = 0; i < launch->dimensions; ++i) {
        if (launch->global[i] / launch->local[i] > most_groups[i])
            return mgk_fail(error, CLMGK_ERROR_UNSUPPORTED, "kernel %s: %zu work-groups on axis %u: CUDA takes %zu",
                            name, launch->global[i] / launch->local[i], (unsigned)i, most_groups[i]);
        items *= launch->local[i];
    }
    CUDA_TRY(&cuda->driver, function_attribute, &most_items, MGK_CUDA_MAX_THREADS, function);
    if (items > (size_t)most_items)
        return mgk_fail(error, CLMGK_ERROR_UNSUPPORTED,
                        "kernel %s: a work-group of %zu work-items: CUDA takes %d for this kernel", name, items,
                        most_items);
    return CLMGK_OK;
}

clmgk_status mgk_cuda_get_function(mgk_cuda *cuda, mgk_program *program, const char *name, const mgk_launch *launch,
                                   unsigned dynamic_local, mgk_cuda_function *function, clmgk_error *error)
{
    mgk_cuda_module module = NULL;
    MGK_TRY(module_of(cuda, program, &module, error));
    CUDA_TRY(&cuda->driver, module_function, function, module, name);
    if (dynamic_local > 0)
        CUDA_TRY(&cuda->driver, function_allow, *function, MGK_CUDA_DYNAMIC_LOCAL, (int)dynamic_local);
    return check_launch(cuda, name, launch, *function, error);
}

/* If its work can't end, a program stays loaded: CUDA is shutting down, or has failed. */
void mgk_cuda_unload(mgk_program *program)
{
    const mgk_cuda *const cuda = program->cuda_module != NULL ? program->context->cuda : NULL;
    if (cuda == NULL || mgk_cuda_enter(cuda, NULL) != CLMGK_OK)
        return;
    if (cuda->driver.context_wait() == MGK_CUDA_SUCCESS)
        (void)cuda->driver.module_unload(program->cuda_module);
    program->cuda_module = NULL;
    mgk_cuda_leave(cuda);
}

/* ---- launches ------------------------------------------------------------------------------------------------ */

clmgk_status mgk_cuda_launch(const mgk_cuda_place *place, mgk_cuda_function function, const mgk_launch *launch,
                             unsigned dynamic_local, size_t count, const mgk_kernel_arg *args, clmgk_error *error)
{
    unsigned groups[3] = {1, 1, 1}, items[3] = {1, 1, 1};
    void *values[2 + MGK_BUFFERS];
    if (launch->global[0] == 0)
        return CLMGK_OK;
    for (cl_uint i = 0; i < launch->dimensions; ++i) {
        groups[i] = (unsigned)(launch->global[i] / launch->local[i]);
        items[i] = (unsigned)launch->local[i];
    }
    for (size_t i = 0; i < count; ++i)
        memcpy((void *)&values[i], (const void *)&args[i].value, sizeof(values[i])); /* CUDA's lacks `const` */
    CUDA_TRY(&place->cuda->driver, launch, function, groups[0], groups[1], groups[2], items[0], items[1], items[2],
             dynamic_local, place->stream, values, NULL);
    return CLMGK_OK;
}

clmgk_status mgk_cuda_wait(const mgk_cuda_place *place, clmgk_error *error)
{
    CUDA_TRY(&place->cuda->driver, stream_wait, place->stream);
    return CLMGK_OK;
}
