/* SPDX-License-Identifier: Apache-2.0 */
#include "opencl.h"
#include "problem.h"

#include "reference/reference.h"

#include <stdlib.h>

size_t tool_offset_of(const clmgk_shape *shape, size_t element)
{
    int64_t rest = (int64_t)element, offset = 0;
    for (int axis = shape->rank - 1; axis >= 0; axis--) {
        offset += rest % shape->size[axis] * shape->stride[axis];
        rest /= shape->size[axis];
    }
    return (size_t)offset;
}

size_t tool_element_count(const tool_problem *problem, clmgk_array array)
{
    return problem->slot[array].count / clmgk_ref_block(clmgk_array_dtype(&problem->desc, array));
}

/* Whether it is a captured array of ints. */
static bool is_integers(const tool_problem *problem, clmgk_array array)
{
    return array >= CLMGK_ARRAY_CAPTURE_0 && array <= CLMGK_ARRAY_CAPTURE_7 &&
           problem->desc.captures[array - CLMGK_ARRAY_CAPTURE_0].type == CLMGK_CAPTURE_I32;
}

void tool_gather(const tool_problem *problem, clmgk_array array, const void *elements, double *values)
{
    const clmgk_dtype dtype = clmgk_array_dtype(&problem->desc, array);
    const clmgk_shape shape = clmgk_array_shape(&problem->desc, array);
    const size_t count = problem->slot[array].count, size = clmgk_ref_dtype_size(dtype);
    if (is_integers(problem, array)) {
        for (size_t n = 0; n < count; n++)
            values[n] = ((const int32_t *)elements)[tool_offset_of(&shape, n)];
        return;
    }
    const size_t width = shape.rank > 0 ? (size_t)shape.size[shape.rank - 1] : 1, block = clmgk_ref_block(dtype);
    for (size_t done = 0; done < count / block; done += width)
        clmgk_ref_load(dtype, (const char *)elements + tool_offset_of(&shape, done) * size, width * block,
                       values + done * block);
}

static tool_exit read_elements(tool_problem *problem, clmgk_array array, void **elements, tool_error *error)
{
    const clmgk_dtype dtype = clmgk_array_dtype(&problem->desc, array);
    npy_file *const file = &problem->file[array];
    *elements = malloc(tool_buffer_bytes(tool_element_count(problem, array), clmgk_ref_dtype_size(dtype)));
    TOOL_TRY(tool_check_memory(*elements, file->path, error));
    TOOL_TRY(npy_read(file, dtype, *elements, error));
    npy_close(file);
    return TOOL_DONE;
}

tool_exit tool_load_values(tool_problem *problem, clmgk_array array, double **values, tool_error *error)
{
    void *elements = NULL;
    tool_exit status = TOOL_DONE;
    *values = NULL;
    if (tool_is_streamed(array))
        TOOL_TRY_GOTO(status, read_elements(problem, array, &elements, error), done);
    *values = malloc(tool_buffer_bytes(problem->slot[array].count, sizeof(double)));
    TOOL_TRY_GOTO(status, tool_check_memory(*values, tool_array_option(array), error), done);
    tool_gather(problem, array, elements ? elements : problem->slot[array].host, *values);
done:
    free(elements);
    return status;
}
