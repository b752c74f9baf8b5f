/* SPDX-License-Identifier: Apache-2.0 */
/* Keys and values in pages: the tables, and the sizes that follow from them. */
#include "input.h"

#include <inttypes.h>

static bool is_packed(const tool_problem_arguments *arguments)
{
    return arguments->file[CLMGK_ARRAY_OFFSETS] != NULL;
}

/* Where each problem's pages begin, and how much of its last one is in use; S is the room of the most pages. */
static tool_exit describe_compressed(const tool_problem_arguments *arguments, tool_problem *problem, tool_error *error)
{
    const npy_file *const file = &problem->file[CLMGK_ARRAY_PAGE_OFFSETS];
    const char problems = is_packed(arguments) ? 'T' : 'B';
    TOOL_TRY(input_open(arguments, problem, CLMGK_ARRAY_PAGE_OFFSETS, error));
    TOOL_TRY(input_take(arguments, problem, CLMGK_ARRAY_LAST_PAGE, problems == 'T' ? "T" : "B", error));
    TOOL_TRY(input_take(arguments, problem, CLMGK_ARRAY_PAGE_TABLE, "C", error));
    if (file->header.axes != 1 || file->header.shape[0] != input_size(problem, problems) + 1)
        return tool_fail(error, TOOL_BAD_INPUT,
                         "--%s %s: has shape %s; expected [%c+1] with %c = %" PRId64 " as in --%s", file->option,
                         file->path, npy_shape_text(file->header.axes, file->header.shape).text, problems, problems,
                         input_size(problem, problems), problem->size[problems - 'A'].source);
    TOOL_TRY(input_read(problem, CLMGK_ARRAY_PAGE_OFFSETS, error));
    const int32_t *const offsets = problem->slot[CLMGK_ARRAY_PAGE_OFFSETS].host;
    int64_t most = 1;
    for (int64_t b = 0; b < input_size(problem, problems); b++)
        most = TOOL_MAX(most, (int64_t)offsets[b + 1] - offsets[b]);
    problem->desc.length_k = most * input_size(problem, 'K');
    problem->desc.use_page_offsets = 1;
    return TOOL_DONE;
}

tool_exit pages_describe(const tool_problem_arguments *arguments, tool_problem *problem, tool_error *error)
{
    clmgk_attention_desc *const desc = &problem->desc;
    if (!arguments->file[CLMGK_ARRAY_PAGE_TABLE])
        return TOOL_DONE;
    if (arguments->file[CLMGK_ARRAY_PAGE_OFFSETS]) {
        TOOL_TRY(describe_compressed(arguments, problem, error));
    } else {
        const char *const axes = is_packed(arguments) ? "TC" : "BC";
        TOOL_TRY(input_take(arguments, problem, CLMGK_ARRAY_PAGE_TABLE, axes, error));
        desc->length_k = input_size(problem, 'C') * input_size(problem, 'K');
    }
    desc->pages = input_size(problem, 'P');
    desc->page_size = input_size(problem, 'K');
    desc->table_pages = input_size(problem, 'C');
    input_set_size(problem, 'S', desc->length_k, tool_array_option(CLMGK_ARRAY_PAGE_TABLE));
    return TOOL_DONE;
}

tool_exit pages_check(const tool_problem *problem, tool_error *error)
{
    const tool_slot *const slot = problem->slot;
    if (problem->desc.page_size == 0)
        return TOOL_DONE;
    return tool_check_library(clmgk_check_pages(&problem->desc, slot[CLMGK_ARRAY_PAGE_TABLE].host,
                                                slot[CLMGK_ARRAY_PAGE_OFFSETS].host, slot[CLMGK_ARRAY_LAST_PAGE].host,
                                                slot[CLMGK_ARRAY_LENGTHS].host, &error->library),
                              error);
}
