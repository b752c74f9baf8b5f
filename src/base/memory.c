/* SPDX-License-Identifier: Apache-2.0 */
/* Host memory through the caller's allocator, growing text, public structures of other versions, and arithmetic that
 * reports overflow. */
#include "base/base.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void *mgk_alloc(const clmgk_allocator *allocator, size_t count, size_t size)
{
    if (size != 0 && count > SIZE_MAX / size)
        return NULL;
    const size_t bytes = count * size > 0 ? count * size : 1; /* NULL means failure only */
    if (allocator == NULL || allocator->allocate == NULL)
        return calloc(bytes, 1);
    void *const memory = allocator->allocate(bytes, allocator->user);
    if (memory != NULL)
        memset(memory, 0, bytes);
    return memory;
}

void mgk_free(const clmgk_allocator *allocator, void *memory)
{
    if (allocator == NULL || allocator->release == NULL)
        free(memory);
    else
        allocator->release(memory, allocator->user);
}

char *mgk_strdup(const clmgk_allocator *allocator, const char *string)
{
    const size_t size = strlen(string) + 1;
    char *const copy = mgk_alloc(allocator, size, 1);
    if (copy != NULL)
        memcpy(copy, string, size);
    return copy;
}

bool mgk_grow(const clmgk_allocator *allocator, void **items, size_t *capacity, size_t count, size_t size)
{
    if (count < *capacity)
        return true;
    const size_t grown = *capacity > 0 ? 2 * *capacity : 8;
    void *const moved = grown > *capacity ? mgk_alloc(allocator, grown, size) : NULL;
    if (moved == NULL)
        return false;
    if (count > 0)
        memcpy(moved, *items, count * size);
    mgk_free(allocator, *items);
    *items = moved;
    *capacity = grown;
    return true;
}

/* Makes room for `length` more bytes and a NUL. */
static bool text_reserve(mgk_text *text, size_t length)
{
    if (text->failed)
        return false;
    if (length < text->capacity - text->length)
        return true;

    const size_t least = text->length + length + 1;
    const size_t capacity = least > 2 * text->capacity ? least : 2 * text->capacity;
    char *const data = least > length ? mgk_alloc(text->allocator, capacity, 1) : NULL;
    if (data == NULL) {
        text->failed = true;
        return false;
    }
    if (text->data != NULL)
        memcpy(data, text->data, text->length);
    mgk_free(text->allocator, text->data);
    text->data = data;
    text->capacity = capacity;
    return true;
}

void mgk_text_append(mgk_text *text, const char *bytes, size_t length)
{
    if (!text_reserve(text, length))
        return;
    if (length > 0)
        memcpy(text->data + text->length, bytes, length);
    text->length += length;
    text->data[text->length] = '\0';
}

void mgk_text_printf(mgk_text *text, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    const int length = vsnprintf(NULL, 0, format, args);
    va_end(args);
    if (length < 0)
        text->failed = true;
    if (length < 0 || !text_reserve(text, (size_t)length))
        return;
    va_start(args, format);
    vsnprintf(text->data + text->length, (size_t)length + 1, format, args);
    va_end(args);
    text->length += (size_t)length;
}

void mgk_text_free(mgk_text *text)
{
    mgk_free(text->allocator, text->data);
    *text = (mgk_text){.allocator = text->allocator};
}

/* More than any version will need: a larger struct_size is uninitialised memory. */
static const size_t MAX_STRUCT_BYTES = 4096;

static size_t size_of_struct(const void *structure)
{
    size_t size;
    memcpy(&size, structure, sizeof(size));
    return size;
}

static clmgk_status check_struct_size(size_t size, const char *name, size_t least, clmgk_error *error)
{
    if (size >= least && size <= MAX_STRUCT_BYTES)
        return CLMGK_OK;
    return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "%s.struct_size: %zu: expected %s %zu (CLMGK_..._INIT sets it)",
                    name, size, size < least ? "at least" : "at most", size < least ? least : MAX_STRUCT_BYTES);
}

clmgk_status mgk_struct_read(const void *source, const char *name, size_t least, void *target, size_t size,
                             clmgk_error *error)
{
    const size_t given = size_of_struct(source);
    MGK_TRY(check_struct_size(given, name, least, error));

    const unsigned char *const bytes = source;
    for (size_t i = size; i < given; ++i) {
        if (bytes[i] != 0)
            return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE,
                            "%s.struct_size: %zu: byte %zu is set, but this version of the library knows %zu bytes",
                            name, given, i, size);
    }
    memset(target, 0, size);
    memcpy(target, source, given < size ? given : size);
    memcpy(target, &size, sizeof(size));
    return CLMGK_OK;
}

clmgk_status mgk_struct_room(const void *target, const char *name, size_t least, clmgk_error *error)
{
    if (target == NULL)
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "%s: NULL: expected room for the result", name);
    return check_struct_size(size_of_struct(target), name, least, error);
}

void mgk_struct_write(void *target, size_t index, const void *source, size_t size)
{
    const size_t room = size_of_struct(target);
    unsigned char *const element = (unsigned char *)target + index * room;
    const size_t known = room < size ? room : size;
    memcpy(element, source, known);
    memset(element + known, 0, room - known);
    memcpy(element, &room, sizeof(room));
}

bool mgk_mul_i64(int64_t a, int64_t b, int64_t *out)
{
    if (a < 0 || b < 0 || (b != 0 && a > INT64_MAX / b))
        return false;
    *out = a * b;
    return true;
}

bool mgk_add_i64(int64_t a, int64_t b, int64_t *out)
{
    if (a < 0 || b < 0 || a > INT64_MAX - b)
        return false;
    *out = a + b;
    return true;
}
