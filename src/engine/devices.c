/* SPDX-License-Identifier: Apache-2.0 */
/* The list of devices, each with its engine, and the choice of a device. */
#include "engine/engine.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- engines ----------------------------------------------------------------------------------------------- */

/* Writes element `index` of the caller's list: the facts, and the engine that ranks first on the device for problems in
 * general. */
static void write_info(clmgk_device_info *infos, size_t index, const mgk_device_facts *facts)
{
    clmgk_device_info info = facts->info;
    mgk_ranked ranked[MGK_ENGINES];
    mgk_engines_rank(facts, NULL, ranked);
    info.engine = ranked[0].engine->value;
    const int unit = mgk_engines_newest_unit(facts, NULL);
    info.matrix_units = unit != 0;
    (void)snprintf(info.matrix_unit, sizeof(info.matrix_unit), "%s", mgk_matrix_unit_name(facts, unit));
    (void)snprintf(info.engine_reason, sizeof(info.engine_reason), "%s", ranked[0].rank.reason);
    mgk_struct_write(infos, index, &info, sizeof(info));
}

/* ---- list -------------------------------------------------------------------------------------------------- */

typedef struct device_list {
    mgk_device_facts *devices; /* mgk_free with NULL; NULL if there are none */
    size_t count, capacity;
} device_list;

static clmgk_status append_device(device_list *list, const mgk_device_facts *facts, clmgk_error *error)
{
    void *items = list->devices;
    if (!mgk_grow(NULL, &items, &list->capacity, list->count, sizeof(*facts)))
        return mgk_fail_memory(error, "the list of devices");
    list->devices = items;
    list->devices[list->count++] = *facts;
    return CLMGK_OK;
}

static clmgk_status append_platform(device_list *list, cl_platform_id platform, clmgk_error *error)
{
    cl_device_id *devices;
    cl_uint count;
    MGK_TRY(mgk_platform_devices(platform, &devices, &count, error));
    clmgk_status status = CLMGK_OK;
    for (cl_uint i = 0; i < count && status == CLMGK_OK; ++i) {
        mgk_device_facts facts;
        status = mgk_device_get_facts(devices[i], &facts, error);
        if (status == CLMGK_OK && facts.usable)
            status = append_device(list, &facts, error);
    }
    mgk_free(NULL, devices);
    return status;
}

/* All usable devices; free `list` after success. */
static clmgk_status list_devices(device_list *list, clmgk_error *error)
{
    cl_platform_id *platforms;
    cl_uint count;
    *list = (device_list){0};
    MGK_TRY(mgk_platform_list(&platforms, &count, error));
    clmgk_status status = CLMGK_OK;
    for (cl_uint i = 0; i < count && status == CLMGK_OK; ++i)
        status = append_platform(list, platforms[i], error);
    mgk_free(NULL, platforms);
    if (status != CLMGK_OK)
        mgk_free(NULL, list->devices);
    return status;
}

/* The first version's size. */
enum { LEAST_INFO_SIZE = MGK_SIZE_WITH(clmgk_device_info, architecture) };

clmgk_status clmgk_list_devices(clmgk_device_info *infos, size_t capacity, size_t *count, clmgk_error *error)
{
    device_list list;
    if (count == NULL)
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "count: NULL: expected room for the number");
    if (capacity > 0)
        MGK_TRY(mgk_struct_room(infos, "infos", LEAST_INFO_SIZE, error));
    MGK_TRY(list_devices(&list, error));
    for (size_t i = 0; i < list.count && i < capacity; ++i)
        write_info(infos, i, &list.devices[i]);
    *count = list.count;
    mgk_free(NULL, list.devices);
    return CLMGK_OK;
}

clmgk_status clmgk_get_device_info(cl_device_id device, clmgk_device_info *info, clmgk_error *error)
{
    mgk_device_facts facts;
    if (device == NULL)
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "device: NULL: expected a device");
    MGK_TRY(mgk_struct_room(info, "info", LEAST_INFO_SIZE, error));
    MGK_TRY(mgk_device_get_facts(device, &facts, error));
    write_info(info, 0, &facts);
    return CLMGK_OK;
}

clmgk_status clmgk_context_get_matrix_unit(clmgk_context *context, clmgk_matrix_unit_info *info, clmgk_error *error)
{
    clmgk_matrix_unit_info found = CLMGK_MATRIX_UNIT_INFO_INIT;
    if (context == NULL)
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "context: NULL: expected a context");
    MGK_TRY(mgk_struct_room(info, "info", MGK_SIZE_WITH(clmgk_matrix_unit_info, reason), error));
    const mgk_matrix_unit unit = mgk_context_matrix_unit(context, mgk_engines_newest_unit(&context->facts, NULL));
    (void)snprintf(found.name, sizeof(found.name), "%s", mgk_matrix_unit_name(&context->facts, unit.unit));
    (void)snprintf(found.reason, sizeof(found.reason), "%s", unit.why);
    mgk_struct_write(info, 0, &found, sizeof(found));
    return CLMGK_OK;
}

/* ---- choice ------------------------------------------------------------------------------------------------ */

/* A parsed selector: PLATFORM:DEVICE, a class of devices, or part of a name. */
typedef struct device_choice {
    const char *text;
    const char *origin; /* for messages: "CLMGK_DEVICE: "; "": the caller */
    bool is_pair, is_class;
    uint32_t platform, device;
    clmgk_device_class device_class;
} device_choice;

/* Reads digits; *end points behind them. False if there are none or too many. */
static bool read_index(const char *text, uint32_t *index, const char **end)
{
    const size_t digits = strspn(text, "0123456789");
    if (digits == 0 || digits > 9)
        return false;
    *index = (uint32_t)strtoul(text, NULL, 10);
    *end = text + digits;
    return true;
}

static bool contains(const char *text, const char *part)
{
    const size_t length = strlen(part);
    for (; strlen(text) >= length; ++text) {
        size_t same = 0;
        while (same < length && tolower((unsigned char)text[same]) == tolower((unsigned char)part[same]))
            ++same;
        if (same == length)
            return true;
    }
    return false;
}

static device_choice read_choice(const char *text, const char *origin)
{
    static const struct {
        const char *name;
        clmgk_device_class device_class;
    } classes[] = {{"cpu", CLMGK_DEVICE_CPU}, {"gpu", CLMGK_DEVICE_GPU}};
    device_choice choice = {.text = text, .origin = origin};
    const char *end = text;
    for (size_t i = 0; i < MGK_COUNT(classes); ++i) {
        if (strlen(text) == strlen(classes[i].name) && contains(text, classes[i].name)) {
            choice.is_class = true;
            choice.device_class = classes[i].device_class;
        }
    }
    choice.is_pair = read_index(text, &choice.platform, &end) && *end == ':' &&
                     read_index(end + 1, &choice.device, &end) && *end == '\0';
    return choice;
}

/* A runtime's short name also matches, because PoCL's platform name does not contain "pocl". */
static bool matches(const mgk_device_facts *facts, const device_choice *choice)
{
    const clmgk_device_info *const info = &facts->info;
    if (choice->is_pair)
        return info->platform_index == choice->platform && info->device_index == choice->device;
    return contains(info->name, choice->text) || contains(info->platform, choice->text) ||
           contains(mgk_runtime_name(facts->runtime), choice->text);
}

/* Lists the matching devices, all if choice is NULL, as "0:0 "name" (platform), ...". */
static void describe_devices(const device_list *list, const device_choice *choice, mgk_text *text)
{
    for (size_t i = 0; i < list->count; ++i) {
        const clmgk_device_info *const info = &list->devices[i].info;
        if (choice == NULL || matches(&list->devices[i], choice))
            mgk_text_printf(text, "%s%u:%u \"%s\" (%s)", text->length > 0 ? ", " : "", (unsigned)info->platform_index,
                            (unsigned)info->device_index, info->name, info->platform);
    }
}

static clmgk_status fail_choice(const device_list *list, const device_choice *choice, size_t count, clmgk_error *error)
{
    mgk_text text = {0};
    describe_devices(list, count > 0 ? choice : NULL, &text);
    const char *const devices = text.data != NULL ? text.data : "";
    const clmgk_status status = count > 0 ? mgk_fail(error, CLMGK_ERROR_INVALID_VALUE,
                                                     "%sdevice selector \"%s\" matches %zu devices, expected one: %s",
                                                     choice->origin, choice->text, count, devices)
                                          : mgk_fail(error, CLMGK_ERROR_NO_DEVICE,
                                                     "%sdevice selector \"%s\" matches none of the usable devices: %s",
                                                     choice->origin, choice->text, devices);
    mgk_text_free(&text);
    return status;
}

/* NULL: there is none. */
static const mgk_device_facts *first_of_class(const device_list *list, clmgk_device_class wanted)
{
    for (size_t i = 0; i < list->count; ++i)
        if (list->devices[i].info.device_class == wanted)
            return &list->devices[i];
    return NULL;
}

/* The last match, and the number of matches. */
static const mgk_device_facts *find_match(const device_list *list, const device_choice *choice, size_t *count)
{
    const mgk_device_facts *match = NULL;
    for (size_t i = 0; i < list->count; ++i) {
        if (matches(&list->devices[i], choice)) {
            match = &list->devices[i];
            ++*count;
        }
    }
    return match;
}

static clmgk_status choose(const device_list *list, const device_choice *choice, const mgk_device_facts **chosen,
                           clmgk_error *error)
{
    size_t count = 0;
    *chosen = choice->is_class ? first_of_class(list, choice->device_class) : find_match(list, choice, &count);
    return *chosen == NULL || count > 1 ? fail_choice(list, choice, count, error) : CLMGK_OK;
}

/* The first GPU, else the first CPU, else the first device; the list is not empty. */
static const mgk_device_facts *default_device(const device_list *list)
{
    const mgk_device_facts *const gpu = first_of_class(list, CLMGK_DEVICE_GPU);
    const mgk_device_facts *const cpu = first_of_class(list, CLMGK_DEVICE_CPU);
    return gpu != NULL ? gpu : cpu != NULL ? cpu : &list->devices[0];
}

/* "; platform 0 "NAME" is there without a device: WHY" */
static clmgk_status describe_platform(cl_platform_id platform, cl_uint index, mgk_text *text, clmgk_error *error)
{
    mgk_device_facts facts = {.usable = false};
    clmgk_error folder = {.message = ""};
    cl_device_id *devices;
    cl_uint count;
    MGK_TRY(mgk_platform_get_facts(platform, &facts, error));
    MGK_TRY(mgk_platform_devices(platform, &devices, &count, error));
    mgk_free(NULL, devices);
    const char *why = "";
    if (count > 0)
        why = " that has a compiler";
    else if (mgk_driver_check_folder(facts.runtime, &folder) != CLMGK_OK)
        why = ": ";
    else if (facts.runtime == MGK_RUNTIME_RUSTICL)
        why = ": RUSTICL_ENABLE names the drivers that it offers, such as llvmpipe, radeonsi or iris";
    mgk_text_printf(text, "; platform %u \"%s\" is there without a%s device%s%s", (unsigned)index, facts.info.platform,
                    count > 0 ? "n available" : "", why, folder.message);
    return CLMGK_OK;
}

/* Fails with the list of the platforms that are installed, each with the reason why it has no device. */
static clmgk_status fail_no_device(clmgk_error *error)
{
    mgk_text text = {0};
    cl_platform_id *platforms;
    cl_uint count;
    MGK_TRY(mgk_platform_list(&platforms, &count, error));
    clmgk_status status = CLMGK_OK;
    for (cl_uint i = 0; i < count && status == CLMGK_OK; ++i)
        status = describe_platform(platforms[i], i, &text, error);
    mgk_free(NULL, platforms);
    if (status == CLMGK_OK)
        status = mgk_fail(error, CLMGK_ERROR_NO_DEVICE, "no OpenCL device%s",
                          text.data != NULL ? text.data : ": no platform: expected a driver (such as pocl-opencl-icd)");
    mgk_text_free(&text);
    return status;
}

clmgk_status clmgk_select_device(const char *selector, clmgk_device_info *info, clmgk_error *error)
{
    const bool given = selector != NULL && selector[0] != '\0';
    const char *const wanted = given ? selector : mgk_environment("CLMGK_DEVICE");
    const device_choice choice = read_choice(wanted != NULL ? wanted : "", given ? "" : "CLMGK_DEVICE: ");
    device_list list;
    const mgk_device_facts *chosen = NULL;
    MGK_TRY(mgk_struct_room(info, "info", LEAST_INFO_SIZE, error));
    MGK_TRY(list_devices(&list, error));

    clmgk_status status = CLMGK_OK;
    if (list.devices == NULL)
        status = fail_no_device(error);
    else if (choice.text[0] != '\0')
        status = choose(&list, &choice, &chosen, error);
    else
        chosen = default_device(&list);
    if (status == CLMGK_OK)
        write_info(info, 0, chosen);
    mgk_free(NULL, list.devices);
    return status;
}
