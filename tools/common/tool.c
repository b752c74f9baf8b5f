/* SPDX-License-Identifier: Apache-2.0 */
#include "tool.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

tool_exit tool_fail(tool_error *error, tool_exit status, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(error->message, sizeof error->message, format, args);
    va_end(args);
    error->library.status = CLMGK_OK;
    return status;
}

static tool_exit exit_of(clmgk_status status)
{
    switch (status) {
    case CLMGK_OK:
        return TOOL_DONE;
    case CLMGK_ERROR_INVALID_VALUE:
    case CLMGK_ERROR_INVALID_SHAPE:
    case CLMGK_ERROR_UNSUPPORTED:
    case CLMGK_ERROR_OVERFLOW:
        return TOOL_BAD_INPUT;
    case CLMGK_ERROR_NO_DEVICE:
    case CLMGK_ERROR_OPENCL:
    case CLMGK_ERROR_CUDA:
    case CLMGK_ERROR_COMPILE:
        return TOOL_NO_DEVICE;
    case CLMGK_ERROR_INVALID_BUFFER: /* programs make their buffers themselves */
    case CLMGK_ERROR_OUT_OF_HOST_MEMORY:
    case CLMGK_ERROR_OUT_OF_DEVICE_MEMORY:
    case CLMGK_ERROR_IO:
    case CLMGK_ERROR_COMMUNICATION:
    case CLMGK_ERROR_INTERNAL:
    case CLMGK_ERROR_CANCELLED:
        break;
    }
    return TOOL_SYSTEM_ERROR;
}

tool_exit tool_check_library(clmgk_status status, tool_error *error)
{
    if (status != CLMGK_OK)
        (void)tool_fail(error, TOOL_DONE, "%s", error->library.message);
    error->library.status = status;
    return exit_of(status);
}

tool_exit tool_check_cl(cl_int code, const char *call, tool_error *error)
{
    const bool memory = code == CL_OUT_OF_HOST_MEMORY || code == CL_OUT_OF_RESOURCES ||
                        code == CL_MEM_OBJECT_ALLOCATION_FAILURE ||
                        code == CL_INVALID_BUFFER_SIZE; /* beyond the largest allocation */
    if (code == CL_SUCCESS)
        return TOOL_DONE;
    return tool_fail(error, memory ? TOOL_SYSTEM_ERROR : TOOL_NO_DEVICE, "%s failed with OpenCL error %d%s", call,
                     (int)code, memory ? " (out of memory or resources)" : "");
}

tool_exit tool_fail_memory(tool_error *error, const char *what)
{
    return tool_fail(error, TOOL_SYSTEM_ERROR, "out of memory for %s", what);
}

tool_exit tool_check_memory(const void *made, const char *what, tool_error *error)
{
    return made ? TOOL_DONE : tool_fail_memory(error, what);
}

void tool_flatten(char *text)
{
    for (unsigned char *c = (unsigned char *)text; *c != '\0'; c++) {
        const bool two_bytes = c[0] == 0xc2 && c[1] >= 0x80 && c[1] < 0xa0; /* U+0080 to U+009F */
        if (two_bytes)
            c[1] = ' ';
        if (two_bytes || iscntrl(*c))
            *c = ' ';
    }
}

int tool_report(const tool_program *program, tool_exit status, const tool_error *error)
{
    if (error->message[0] == '\0')
        return (int)status;
    char line[sizeof error->message];
    memcpy(line, error->message, sizeof line); /* one line, whatever a file's name holds */
    tool_flatten(line);
    fprintf(stderr, "%s: %s\n", program->name, line);
    return (int)status;
}

tool_exit tool_flush_stdout(tool_error *error)
{
    if (fflush(stdout) != 0 || ferror(stdout))
        return tool_fail(error, TOOL_SYSTEM_ERROR, "standard output: %s", strerror(errno));
    return TOOL_DONE;
}

const char *tool_plural(uint64_t count, const char *one, const char *many)
{
    return count == 1 ? one : many;
}

json_t *tool_json_text(const char *text)
{
    if (!text)
        return json_null();
    json_t *const whole = json_string(text);
    if (whole)
        return whole;
    char ascii[1024];
    size_t length = 0;
    for (; text[length] != '\0' && length + 1 < sizeof ascii; length++) {
        ascii[length] = '?';
        if ((unsigned char)text[length] < 128)
            ascii[length] = text[length];
    }
    ascii[length] = '\0';
    return json_string(ascii);
}

json_t *tool_json_number(double number)
{
    return isfinite(number) ? json_real(number) : json_null();
}

json_t *tool_json_positive(double number)
{
    return number > 0 ? json_real(number) : json_null();
}

const char *tool_json_text_of(const json_t *object, const char *key)
{
    return json_string_value(json_object_get(object, key));
}

double tool_json_number_of(const json_t *object, const char *key)
{
    return json_number_value(json_object_get(object, key));
}

json_t *tool_json_device(const clmgk_device_info *info)
{
    return json_pack("{s:o, s:o, s:o, s:I}", "name", tool_json_text(info->name), "platform",
                     tool_json_text(info->platform), "driver", tool_json_text(info->driver), "compute_units",
                     (json_int_t)info->compute_units);
}

void tool_json_append(json_t **list, json_t *item)
{
    if (json_array_append_new(*list, item) == 0)
        return;
    json_decref(*list);
    *list = NULL;
}

json_t *tool_json_merge(json_t *object, json_t *rest)
{
    if (json_object_update(object, rest) != 0) {
        json_decref(object);
        object = NULL;
    }
    json_decref(rest);
    return object;
}

static const struct {
    char letter;
    clmgk_array array;
} own_types[] = {{'k', CLMGK_ARRAY_K}, {'v', CLMGK_ARRAY_V}, {'o', CLMGK_ARRAY_O}};

tool_dtypes tool_dtypes_text(const clmgk_attention_desc *desc)
{
    tool_dtypes types;
    bool told[CLMGK_ALL_DTYPES] = {false};
    told[desc->dtype] = true;
    size_t used = (size_t)snprintf(types.text, sizeof(types.text), "%s", clmgk_dtype_name(desc->dtype));
    for (size_t i = 0; i < TOOL_COUNT(own_types); i++) {
        const clmgk_dtype dtype = clmgk_array_dtype(desc, own_types[i].array);
        char letters[TOOL_COUNT(own_types) + 1] = "";
        for (size_t n = i, length = 0; n < TOOL_COUNT(own_types) && !told[dtype]; n++)
            if (clmgk_array_dtype(desc, own_types[n].array) == dtype)
                letters[length++] = own_types[n].letter;
        if (!told[dtype])
            used += (size_t)snprintf(types.text + used, sizeof(types.text) - used, " %s=%s", letters,
                                     clmgk_dtype_name(dtype));
        told[dtype] = true;
    }
    if (desc->precision != CLMGK_PRECISION_EXACT)
        snprintf(types.text + used, sizeof(types.text) - used, " precision=%s", clmgk_precision_name(desc->precision));
    return types;
}

json_t *tool_json_own_dtypes(const clmgk_attention_desc *desc)
{
    const char *names[TOOL_COUNT(own_types)];
    for (size_t i = 0; i < TOOL_COUNT(own_types); i++) {
        const clmgk_dtype dtype = clmgk_array_dtype(desc, own_types[i].array);
        names[i] = dtype == desc->dtype ? NULL : clmgk_dtype_name(dtype);
    }
    const char *const precision =
        desc->precision != CLMGK_PRECISION_EXACT ? clmgk_precision_name(desc->precision) : NULL;
    return json_pack("{s:s?, s:s?, s:s?, s:s?}", "dtype_k", names[0], "dtype_v", names[1], "dtype_o", names[2],
                     "precision", precision);
}

json_t *tool_json_sizes(const clmgk_attention_desc *desc)
{
    return json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:b, s:o*, s:o*}", "batch", (json_int_t)desc->batch,
                     "heads", (json_int_t)desc->heads, "kv_heads", (json_int_t)desc->kv_heads, "components",
                     (json_int_t)desc->components, "length", (json_int_t)desc->length, "length_k",
                     (json_int_t)desc->length_k, "head_size", (json_int_t)desc->head_size, "value_size",
                     (json_int_t)desc->value_size, "causal", (int)desc->causal, "mix_hidden",
                     desc->mix_hidden > 0 ? json_integer((json_int_t)desc->mix_hidden) : NULL, "mix_after_heads",
                     desc->mix_after_heads > 0 ? json_integer((json_int_t)desc->mix_after_heads) : NULL);
}

json_t *tool_json_features(const clmgk_attention_desc *desc)
{
    const bool linear = (clmgk_variant_traits(desc->variant) & CLMGK_TRAIT_LINEAR) != 0;
    json_t *features = linear ? json_integer((json_int_t)desc->features) : json_null();
    json_t *state = desc->use_state || desc->use_new_state ? json_true() : json_null();
    return json_pack("{s:s?, s:o, s:o}", "feature", linear ? clmgk_feature_name(desc->feature) : NULL, "features",
                     features, "state", state);
}

char *tool_json_lines(json_t *object)
{
    char *lines = NULL;
    size_t size = 0;
    FILE *const stream = object ? open_memstream(&lines, &size) : NULL;
    bool whole = stream && json_dumpf(object, stream, JSON_INDENT(2) | JSON_REAL_PRECISION(9)) == 0;
    whole = whole && fputc('\n', stream) != EOF;
    whole = stream && fclose(stream) == 0 && whole;
    json_decref(object);
    if (whole)
        return lines;
    free(lines);
    return NULL;
}

tool_exit tool_print_json(json_t *object, tool_error *error)
{
    char *const lines = tool_json_lines(object);
    TOOL_TRY(tool_check_memory(lines, "the JSON object", error));
    const bool printed = fputs(lines, stdout) != EOF;
    free(lines);
    return printed ? tool_flush_stdout(error)
                   : tool_fail(error, TOOL_SYSTEM_ERROR, "standard output: %s", strerror(errno));
}

int tool_make_pipe(int ends[2])
{
    int code = pipe(ends) == 0 ? 0 : errno;
    if (code != 0) {
        ends[0] = ends[1] = -1;
    } else if (fcntl(ends[0], F_SETFD, FD_CLOEXEC) != 0 || fcntl(ends[1], F_SETFD, FD_CLOEXEC) != 0) {
        code = errno;
        close(ends[0]);
        close(ends[1]);
        ends[0] = ends[1] = -1;
    }
    return code;
}
