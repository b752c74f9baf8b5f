/* SPDX-License-Identifier: Apache-2.0 */
/* NumPy's .npy files: versions 1 to 3, either byte order, C or Fortran order. */
#ifndef TOOL_NPY_H
#define TOOL_NPY_H

#include "tool.h"

#include <stdio.h>

#define NPY_MAX_AXES   8
#define NPY_MAX_HEADER 65536 /* NumPy writes 128 bytes for arrays without fields */

typedef enum npy_type { NPY_F16, NPY_F32, NPY_F64, NPY_I32, NPY_I64 } npy_type;

typedef struct npy_header {
    npy_type type;
    bool big_endian;
    bool fortran_order;
    int axes;
    int64_t shape[NPY_MAX_AXES];
    uint64_t count; /* of elements; count * element size fits */
    size_t start;   /* bytes before the first element */
} npy_header;

/* Parses the first bytes of a file, of which `length` are there. NULL, or what is wrong. */
const char *npy_parse_header(const unsigned char *bytes, size_t length, npy_header *header);

typedef struct npy_file {
    const char *option; /* for messages */
    const char *path;
    FILE *stream; /* at the first element; NULL: closed */
    npy_header header;
} npy_file;

/* Opens the file given to `option` and reads its header; the file's size must be what the header says. Option and
 * path must live as long as `file`, which npy_close takes also if this fails. */
tool_exit npy_open(const char *option, const char *path, npy_file *file, tool_error *error);
void npy_close(npy_file *file);

size_t npy_type_size(npy_type type);
bool npy_is_float(npy_type type);
const char *npy_type_name(npy_type type); /* "float32" */

/* "(2, 3, 4)" */
typedef struct npy_text {
    char text[24 * NPY_MAX_AXES + 4];
} npy_text;
npy_text npy_shape_text(int axes, const int64_t *shape);

/* Read all elements, once, in C order. Floating-point files: rounded to the nearest number of `dtype`; a finite number
 * beyond the type's largest one is an error. Infinities and NaN of the file stay what they are (in a type without
 * infinity both are NaN). */
tool_exit npy_read(npy_file *file, clmgk_dtype dtype, void *elements, tool_error *error);
/* Integer files: values that do not fit int32 are an error. */
tool_exit npy_read_i32(npy_file *file, int32_t *elements, tool_error *error);

/* Write a C-order little-endian float32 array: the header, then its elements in any number of calls. `name` is the
 * file's, for messages. */
tool_exit npy_write_header(FILE *stream, const char *name, int axes, const int64_t *shape, tool_error *error);
tool_exit npy_write(FILE *stream, const char *name, clmgk_dtype dtype, const void *elements, size_t count,
                    tool_error *error);

#endif
