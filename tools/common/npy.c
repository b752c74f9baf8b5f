/* SPDX-License-Identifier: Apache-2.0 */
#include "npy.h"

#include "input_file.h"

#include "reference/reference.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define NO_DTYPE (-1)

static const struct {
    const char *code; /* without the byte order */
    const char *name;
    size_t size;
    bool is_float;
    int dtype; /* the storage type of the same format */
} types[] = {
    [NPY_F16] = {"f2", "float16", 2, true, CLMGK_DTYPE_F16}, [NPY_F32] = {"f4", "float32", 4, true, CLMGK_DTYPE_F32},
    [NPY_F64] = {"f8", "float64", 8, true, NO_DTYPE},        [NPY_I32] = {"i4", "int32", 4, false, NO_DTYPE},
    [NPY_I64] = {"i8", "int64", 8, false, NO_DTYPE},
};

size_t npy_type_size(npy_type type)
{
    return types[type].size;
}

bool npy_is_float(npy_type type)
{
    return types[type].is_float;
}

const char *npy_type_name(npy_type type)
{
    return types[type].name;
}

npy_text npy_shape_text(int axes, const int64_t *shape)
{
    npy_text text = {"("};
    size_t length = 1;
    for (int axis = 0; axis < axes; axis++) {
        const int added =
            snprintf(text.text + length, sizeof text.text - length, "%s%" PRId64, axis ? ", " : "", shape[axis]);
        length += (size_t)added;
    }
    snprintf(text.text + length, sizeof text.text - length, "%s)", axes == 1 ? "," : "");
    return text;
}

static bool host_is_big_endian(void)
{
    const int one = 1;
    return *(const char *)&one == 0;
}

/* ---- the header: a Python dictionary of three keys ----------------------------------------------------------- */

typedef struct cursor {
    const char *at;
    const char *end;
} cursor;

static void skip_space(cursor *text)
{
    while (text->at < text->end && strchr(" \t\r\n", *text->at) && *text->at != '\0')
        text->at++;
}

/* Takes one character, after white space. */
static bool take(cursor *text, char expected)
{
    skip_space(text);
    if (text->at == text->end || *text->at != expected)
        return false;
    text->at++;
    return true;
}

static bool take_word(cursor *text, const char *word)
{
    const size_t length = strlen(word);
    skip_space(text);
    if ((size_t)(text->end - text->at) < length || memcmp(text->at, word, length) != 0)
        return false;
    text->at += length;
    return true;
}

/* A string without escapes, as every key and simple type is. */
static bool take_string(cursor *text, char *value, size_t size)
{
    skip_space(text);
    if (text->at == text->end || (*text->at != '\'' && *text->at != '"'))
        return false;
    const char quote = *text->at;
    const char *const first = text->at + 1;
    const char *last = first;
    while (last < text->end && *last != quote && *last != '\\')
        last++;
    const size_t length = (size_t)(last - first);
    if (last == text->end || *last != quote || length >= size)
        return false;
    memcpy(value, first, length);
    value[length] = '\0';
    text->at = last + 1;
    return true;
}

static bool take_axis(cursor *text, int64_t *value)
{
    skip_space(text);
    const char *const first = text->at;
    int64_t number = 0;
    for (; text->at < text->end && *text->at >= '0' && *text->at <= '9'; text->at++) {
        const int digit = *text->at - '0';
        if (number > (INT64_MAX - digit) / 10)
            return false;
        number = 10 * number + digit;
    }
    *value = number;
    return text->at > first;
}

static const char *parse_type(cursor *text, npy_header *header)
{
    char code[16];
    if (take(text, '['))
        return "has records with fields; expected an array of numbers";
    if (!take_string(text, code, sizeof code))
        return "has no readable element type";
    if (strchr(code, 'O'))
        return "holds Python objects; expected an array of numbers";
    if (code[0] != '<' && code[0] != '>' && code[0] != '=')
        return "has an element type other than float16, float32, float64, int32, int64";
    header->big_endian = code[0] == '>' || (code[0] == '=' && host_is_big_endian());
    for (size_t i = 0; i < TOOL_COUNT(types); i++) {
        if (strcmp(code + 1, types[i].code) == 0) {
            header->type = (npy_type)i;
            return NULL;
        }
    }
    return "has an element type other than float16, float32, float64, int32, int64";
}

static const char *parse_order(cursor *text, npy_header *header)
{
    header->fortran_order = take_word(text, "True");
    if (!header->fortran_order && !take_word(text, "False"))
        return "has a damaged header: fortran_order is neither True nor False";
    return NULL;
}

static const char *parse_shape(cursor *text, npy_header *header)
{
    if (!take(text, '('))
        return "has a damaged header: the shape is not a tuple";
    header->axes = 0;
    bool comma = true;
    while (!take(text, ')')) {
        if (!comma)
            return "has a damaged header: the shape lacks a comma";
        if (header->axes == NPY_MAX_AXES)
            return "has too many axes";
        if (!take_axis(text, &header->shape[header->axes++]))
            return "has an axis that is not a whole number from 0 to 2^63 - 1";
        take(text, 'L'); /* Python 2 writes (2L, 3L) */
        comma = take(text, ',');
    }
    if (header->axes == 1 && !comma)
        return "has a damaged header: the shape is not a tuple"; /* (3) is a number in parentheses */
    return NULL;
}

/* One "key: value"; keys seen so far are bits of *seen. */
static const char *parse_entry(cursor *text, npy_header *header, unsigned *seen)
{
    static const struct {
        const char *key;
        const char *(*parse)(cursor *text, npy_header *header);
    } entries[] = {{"descr", parse_type}, {"fortran_order", parse_order}, {"shape", parse_shape}};
    char key[16];
    if (!take_string(text, key, sizeof key) || !take(text, ':'))
        return "has a damaged header";
    for (unsigned i = 0; i < TOOL_COUNT(entries); i++) {
        if (strcmp(key, entries[i].key) != 0 || (*seen & 1u << i))
            continue;
        *seen |= 1u << i;
        return entries[i].parse(text, header);
    }
    return "has a damaged header: an unknown or repeated key";
}

static const char *parse_dictionary(cursor *text, npy_header *header)
{
    const unsigned all = 7;
    unsigned seen = 0;
    bool comma = true;
    if (!take(text, '{'))
        return "has a damaged header: no dictionary";
    while (!take(text, '}')) {
        const char *const wrong = comma ? parse_entry(text, header, &seen) : "has a damaged header";
        if (wrong)
            return wrong;
        comma = take(text, ',');
    }
    skip_space(text);
    if (seen != all || text->at != text->end)
        return "has a damaged header: a key is missing or something follows";
    return NULL;
}

/* Number of elements, refusing what no file can hold. */
static const char *count_elements(npy_header *header)
{
    uint64_t count = 1;
    for (int axis = 0; axis < header->axes; axis++) {
        const uint64_t size = (uint64_t)header->shape[axis];
        if (size != 0 && count > (uint64_t)INT64_MAX / size)
            return "has a shape whose number of elements overflows";
        count *= size;
    }
    if (count > (uint64_t)INT64_MAX / npy_type_size(header->type))
        return "has a shape whose number of bytes overflows";
    header->count = count;
    return NULL;
}

const char *npy_parse_header(const unsigned char *bytes, size_t length, npy_header *header)
{
    *header = (npy_header){0};
    if (length < 10 || memcmp(bytes, "\x93NUMPY", 6) != 0)
        return "is not a .npy file";
    const unsigned major = bytes[6];
    if (major < 1 || major > 3 || bytes[7] != 0)
        return "has a .npy version other than 1.0, 2.0, 3.0";
    const size_t text_start = major == 1 ? 10 : 12;
    if (length < text_start)
        return "ends within its header";
    size_t text_length = bytes[8] | (size_t)bytes[9] << 8;
    if (major > 1)
        text_length |= (size_t)bytes[10] << 16 | (size_t)bytes[11] << 24;
    if (text_length > NPY_MAX_HEADER)
        return "has a header of absurd size";
    if (length - text_start < text_length)
        return "ends within its header";
    cursor text = {(const char *)bytes + text_start, (const char *)bytes + text_start + text_length};
    header->start = text_start + text_length;
    const char *const wrong = parse_dictionary(&text, header);
    return wrong ? wrong : count_elements(header);
}

/* ---- reading ------------------------------------------------------------------------------------------------ */

static tool_exit fail_file(tool_error *error, const npy_file *file, const char *why)
{
    return tool_fail(error, TOOL_BAD_INPUT, "--%s %s: %s", file->option, file->path, why);
}

static tool_exit read_header(npy_file *file, uint64_t file_size, tool_error *error)
{
    const size_t size = 12 + NPY_MAX_HEADER;
    unsigned char *const bytes = malloc(size);
    TOOL_TRY(tool_check_memory(bytes, file->path, error));
    const size_t length = fread(bytes, 1, size, file->stream);
    const char *why = ferror(file->stream) ? strerror(errno) : npy_parse_header(bytes, length, &file->header);
    free(bytes);
    if (why)
        return fail_file(error, file, why);
    const uint64_t expected = file->header.start + file->header.count * npy_type_size(file->header.type);
    if (file_size != expected)
        return tool_fail(error, TOOL_BAD_INPUT,
                         "--%s %s: has %" PRIu64 " bytes; expected %" PRIu64 " for %s of shape %s", file->option,
                         file->path, file_size, expected, npy_type_name(file->header.type),
                         npy_shape_text(file->header.axes, file->header.shape).text);
    if (fseek(file->stream, (long)file->header.start, SEEK_SET) != 0)
        return fail_file(error, file, strerror(errno));
    return TOOL_DONE;
}

tool_exit npy_open(const char *option, const char *path, npy_file *file, tool_error *error)
{
    uint64_t size = 0;
    *file = (npy_file){.option = option, .path = path};
    TOOL_TRY(tool_open_input(option, path, &file->stream, &size, error));
    return read_header(file, size, error);
}

void npy_close(npy_file *file)
{
    if (file->stream)
        fclose(file->stream);
    file->stream = NULL;
}

#define CHUNK_ELEMENTS 4096

/* The place in C order of the elements of a file, one after another. */
typedef struct element_walk {
    const npy_header *header;
    uint64_t index;
    int64_t position[NPY_MAX_AXES];
    uint64_t stride[NPY_MAX_AXES];
} element_walk;

static element_walk walk_start(const npy_header *header)
{
    element_walk walk = {.header = header};
    uint64_t stride = 1;
    for (int axis = header->axes - 1; axis >= 0; axis--) {
        walk.stride[axis] = stride;
        stride *= (uint64_t)header->shape[axis];
    }
    return walk;
}

static uint64_t walk_next(element_walk *walk)
{
    const uint64_t index = walk->index;
    if (!walk->header->fortran_order) {
        walk->index++;
        return index;
    }
    for (int axis = 0; axis < walk->header->axes; axis++) { /* the first axis is the fastest */
        walk->index += walk->stride[axis];
        if (++walk->position[axis] < walk->header->shape[axis])
            break;
        walk->index -= walk->stride[axis] * (uint64_t)walk->position[axis];
        walk->position[axis] = 0;
    }
    return index;
}

/* Fills `elements` from the file. */
static tool_exit read_raw(npy_file *file, void *elements, size_t size, size_t count, tool_error *error)
{
    if (fread(elements, size, count, file->stream) == count)
        return TOOL_DONE;
    return fail_file(error, file, ferror(file->stream) ? strerror(errno) : "became shorter while it was read");
}

/* The elements of a file one by one, in the file's order, and their places in C order. */
typedef struct element_reader {
    npy_file *file;
    element_walk walk;
    uint64_t left;   /* elements not yet in the chunk */
    size_t at, size; /* bytes of the chunk: read so far, there */
    unsigned char chunk[8 * CHUNK_ELEMENTS];
} element_reader;

static tool_exit reader_next(element_reader *reader, uint64_t *place, uint64_t *bits, tool_error *error)
{
    const size_t size = npy_type_size(reader->file->header.type);
    if (reader->at == reader->size) {
        const size_t count = reader->left < CHUNK_ELEMENTS ? (size_t)reader->left : CHUNK_ELEMENTS;
        TOOL_TRY(read_raw(reader->file, reader->chunk, size, count, error));
        reader->left -= count;
        reader->at = 0;
        reader->size = count * size;
    }
    *bits = 0;
    for (size_t byte = 0; byte < size; byte++) {
        const size_t digit = reader->file->header.big_endian ? size - 1 - byte : byte;
        *bits |= (uint64_t)reader->chunk[reader->at + digit] << (8 * byte);
    }
    reader->at += size;
    *place = walk_next(&reader->walk);
    return TOOL_DONE;
}

static double float_of_bits(npy_type type, uint64_t bits)
{
    if (types[type].dtype != NO_DTYPE)
        return (double)clmgk_ref_decode(clmgk_ref_format_of((clmgk_dtype)types[type].dtype), (uint32_t)bits);
    double value = 0.0;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* Rounds one element to `dtype`. A finite number must stay finite. */
static tool_exit store(const npy_file *file, uint64_t place, double value, clmgk_dtype dtype, void *elements,
                       tool_error *error)
{
    void *const element = (char *)elements + place * clmgk_ref_dtype_size(dtype);
    double stored = 0.0;
    clmgk_ref_store(dtype, &value, 1, element);
    clmgk_ref_load(dtype, element, 1, &stored);
    const bool fits = isfinite(stored) || !isfinite(value);
    if (dtype == CLMGK_DTYPE_INT8 ? fabs(stored - value) <= 0.5 : fits)
        return TOOL_DONE;
    return tool_fail(error, TOOL_BAD_INPUT,
                     "--%s %s: element %" PRIu64 " is %.9g; expected a number in the range of %s, at most %.9g in size",
                     file->option, file->path, place, value, clmgk_dtype_name(dtype),
                     clmgk_ref_limits_of(dtype).largest);
}

/* Whether the file holds exactly the bytes that are wanted. */
static bool is_verbatim(const npy_header *header, clmgk_dtype dtype)
{
    return types[header->type].dtype == (int)dtype && !header->fortran_order &&
           header->big_endian == host_is_big_endian();
}

/* All elements as doubles, which become whole blocks. */
static tool_exit read_blocks(npy_file *file, clmgk_dtype dtype, void *elements, tool_error *error)
{
    const size_t count = (size_t)file->header.count;
    double *const values = calloc(count + 1, sizeof *values);
    TOOL_TRY(tool_check_memory(values, file->path, error));
    element_reader reader = {.file = file, .walk = walk_start(&file->header), .left = count};
    tool_exit status = TOOL_DONE;
    for (uint64_t i = 0, place = 0, bits = 0; i < count && status == TOOL_DONE; i++) {
        status = reader_next(&reader, &place, &bits, error);
        values[place] = float_of_bits(file->header.type, bits);
    }
    clmgk_ref_store(dtype, values, count, elements);
    free(values);
    return status;
}

tool_exit npy_read(npy_file *file, clmgk_dtype dtype, void *elements, tool_error *error)
{
    const uint64_t count = file->header.count;
    if (clmgk_ref_block(dtype) > 1)
        return read_blocks(file, dtype, elements, error);
    if (is_verbatim(&file->header, dtype))
        return read_raw(file, elements, clmgk_ref_dtype_size(dtype), (size_t)count, error);
    element_reader reader = {.file = file, .walk = walk_start(&file->header), .left = count};
    for (uint64_t i = 0, place = 0, bits = 0; i < count; i++) {
        TOOL_TRY(reader_next(&reader, &place, &bits, error));
        TOOL_TRY(store(file, place, float_of_bits(file->header.type, bits), dtype, elements, error));
    }
    return TOOL_DONE;
}

tool_exit npy_read_i32(npy_file *file, int32_t *elements, tool_error *error)
{
    const uint64_t count = file->header.count;
    element_reader reader = {.file = file, .walk = walk_start(&file->header), .left = count};
    for (uint64_t i = 0, place = 0, bits = 0; i < count; i++) {
        TOOL_TRY(reader_next(&reader, &place, &bits, error));
        const int64_t value = file->header.type == NPY_I32 ? (int64_t)(int32_t)bits : (int64_t)bits;
        if (value < INT32_MIN || value > INT32_MAX)
            return tool_fail(error, TOOL_BAD_INPUT,
                             "--%s %s: element %" PRIu64 " is %" PRId64 "; expected a 32-bit integer", file->option,
                             file->path, place, value);
        elements[place] = (int32_t)value;
    }
    return TOOL_DONE;
}

/* ---- writing ------------------------------------------------------------------------------------------------ */

static tool_exit fail_write(tool_error *error, const char *name)
{
    return tool_fail(error, TOOL_SYSTEM_ERROR, "%s: cannot be written: %s", name, strerror(errno));
}

tool_exit npy_write_header(FILE *stream, const char *name, int axes, const int64_t *shape, tool_error *error)
{
    static const unsigned char version_1[] = {0x93, 'N', 'U', 'M', 'P', 'Y', 1, 0};
    char text[10 + 54 + sizeof(npy_text) + 64];
    memcpy(text, version_1, sizeof version_1);
    size_t length =
        10 + (size_t)snprintf(text + 10, sizeof text - 10, "{'descr': '<f4', 'fortran_order': False, 'shape': %s, }",
                              npy_shape_text(axes, shape).text);
    while ((length + 1) % 64 != 0) /* NumPy aligns the elements */
        text[length++] = ' ';
    text[length++] = '\n';
    text[8] = (char)((length - 10) & 0xff);
    text[9] = (char)((length - 10) >> 8);
    return fwrite(text, 1, length, stream) == length ? TOOL_DONE : fail_write(error, name);
}

tool_exit npy_write(FILE *stream, const char *name, clmgk_dtype dtype, const void *elements, size_t count,
                    tool_error *error)
{
    if (dtype == CLMGK_DTYPE_F32 && !host_is_big_endian())
        return fwrite(elements, sizeof(float), count, stream) == count ? TOOL_DONE : fail_write(error, name);
    unsigned char bytes[4 * CHUNK_ELEMENTS];
    const size_t size = clmgk_ref_dtype_size(dtype);
    for (size_t done = 0; done < count;) {
        const size_t length = count - done < CHUNK_ELEMENTS ? count - done : CHUNK_ELEMENTS;
        for (size_t i = 0; i < length; i++) {
            double value = 0.0;
            clmgk_ref_load(dtype, (const char *)elements + (done + i) * size, 1, &value);
            const float rounded = (float)value;
            uint32_t bits = 0;
            memcpy(&bits, &rounded, sizeof bits);
            for (size_t byte = 0; byte < 4; byte++)
                bytes[4 * i + byte] = (unsigned char)(bits >> (8 * byte));
        }
        if (fwrite(bytes, 4, length, stream) != length)
            return fail_write(error, name);
        done += length;
    }
    return TOOL_DONE;
}
