/* SPDX-License-Identifier: Apache-2.0 */
/* Steps of the row kernels (cl/layer): arguments, launches, partial sums. */
#include "layer/rows.h"

#include "operation/place.h"
#include "operation/rows.h"

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t parts_of(int64_t count, int64_t size)
{
    return (count + size - 1) / size;
}

/* ---- steps ---------------------------------------------------------------------------------------------------- */

/* A file's kernels and their buffers. */
typedef struct kernels {
    const char *file;
    mgk_step_buffer buffer[MGK_BUFFERS];
    size_t count;
} kernels;

#define NORM_BUFFER(NAME, name, type, needed)  {MGK_NORM_##NAME, needed},
#define HEADS_BUFFER(NAME, name, type, needed) {MGK_HEADS_##NAME, needed},
static const kernels norm = {"layer/norm.cl", {MGK_NORM_BUFFERS(NORM_BUFFER)}, MGK_NORM_COUNT};
static const kernels heads = {"layer/heads.cl", {MGK_HEADS_BUFFERS(HEADS_BUFFER)}, MGK_HEADS_COUNT};

/* Appends a kernel with `groups` work-groups. */
static mgk_step *add(const mgk_rows_list *list, mgk_flags flags, const kernels *kernel, const char *name,
                     const void *args, size_t args_bytes, int64_t groups)
{
    const size_t group = (size_t)mgk_rows_form(list->facts).group;
    mgk_step *const step = &list->steps->step[list->steps->count++];
    step->file = kernel->file;
    step->name = name;
    mgk_rows_options(list->facts, flags, &step->options);
    step->launch = (mgk_launch){1, {(size_t)groups * group}, {group}};
    mgk_step_bind(step, args, args_bytes, kernel->buffer, kernel->count);
    return step;
}

static mgk_flags norm_flags(const mgk_rows_list *list)
{
    return (mgk_flags){.TYPE_Q = (int)list->dtype};
}

/* The type of K's or V's place. */
static clmgk_dtype out_type(const mgk_rows_list *list, clmgk_storage type)
{
    return type == CLMGK_STORAGE_AS_Q ? list->dtype : (clmgk_dtype)(type - 1);
}

/* With the room of a row, where rows are kept until all of their numbers are known. */
static mgk_flags heads_flags(const mgk_rows_list *list, const mgk_heads_rows *rows)
{
    const clmgk_dtype k = out_type(list, rows->cache_k), v = out_type(list, rows->cache_v);
    const bool keeps = mgk_is_cache_type(k) || mgk_is_cache_type(v);
    return (mgk_flags){.TYPE_Q = (int)list->dtype,
                       .TYPE_K = (int)k,
                       .TYPE_V = (int)v,
                       .TYPE_O = (int)list->dtype,
                       .HEAD_SIZE = keeps ? (int)rows->part[1].size : 0,
                       .VALUE_SIZE = keeps ? (int)rows->part[2].size : 0};
}

/* Rows of a work-group that computes no sums: on a CPU enough to be worth a task. */
static int64_t rows_at_once(const mgk_rows_list *list, int64_t columns)
{
    enum { TASK = 8192 }; /* elements */
    return list->facts->info.device_class == CLMGK_DEVICE_CPU && columns < TASK ? TASK / (columns > 0 ? columns : 1)
                                                                                : 1;
}

/* Rows of a work-group that computes sums: few work-groups, whose partial sums are soon added up. */
static int64_t most_groups_of_sums(const mgk_rows_list *list)
{
    return 8 * (int64_t)list->facts->info.compute_units;
}

static int64_t rows_of_sums(const mgk_rows_list *list, int64_t rows)
{
    const int64_t groups = most_groups_of_sums(list);
    return rows > groups ? parts_of(rows, groups) : 1;
}

/* A region for the partial sums of `columns` columns in `parts` parts, of any smaller number of `rows`, too, if calls
 * have sizes of their own. */
static mgk_i64 add_region(const mgk_rows_list *list, mgk_sums_entry *entry, int64_t rows, int64_t parts,
                          int64_t columns)
{
    const int64_t groups = parts_of(rows, rows_of_sums(list, rows)), most = least(rows, most_groups_of_sums(list));
    const int64_t room = list->steps->any_size ? parts / groups * most : parts;
    *entry = (mgk_sums_entry){.in = mgk_steps_region(list->steps, room * columns),
                              .stride = columns,
                              .parts = (mgk_i32)parts,
                              .columns = (mgk_i32)columns};
    return entry->in;
}

static void add_sums(const mgk_rows_list *list, mgk_flags flags, const kernels *kernel, const mgk_sums_args *args)
{
    const mgk_row_form form = mgk_rows_form(list->facts);
    int64_t vectors = 0;
    for (size_t i = 0; i < MGK_HEADS_SUMS; ++i)
        vectors += parts_of(args->entry[i].columns, form.lanes);
    if (vectors > 0)
        (void)add(list, flags, kernel, "layer_sums", args, sizeof(*args), parts_of(vectors, form.group));
}

/* ---- rows of the model's width -------------------------------------------------------------------------------- */

static mgk_norm_args norm_args(const mgk_norm_rows *rows, int64_t block)
{
    return (mgk_norm_args){.rows = rows->rows,
                           .region = {-1, -1, -1},
                           .width = (mgk_i32)rows->width,
                           .length = (mgk_i32)rows->length,
                           .block = (mgk_i32)block,
                           .drop_below = (mgk_u32)(rows->dropout * 4294967296.0),
                           .keep_scale = (float)(1.0 / (1.0 - rows->dropout)),
                           .epsilon = (float)rows->epsilon};
}

void mgk_rows_norm(const mgk_rows_list *list, const mgk_norm_rows *rows)
{
    const int64_t block = rows_at_once(list, rows->width);
    const mgk_norm_args args = norm_args(rows, block);
    (void)add(list, norm_flags(list), &norm, "layer_norm", &args, sizeof(args), parts_of(rows->rows, block));
}

void mgk_rows_norm_backward(const mgk_rows_list *list, const mgk_norm_rows *rows, const mgk_norm_wants *want)
{
    const bool wanted[MGK_NORM_SUMS] = {want->gain, want->offset, want->bias};
    const int64_t block = rows_of_sums(list, rows->rows), groups = parts_of(rows->rows, block);
    mgk_norm_args args = norm_args(rows, block);
    mgk_sums_args sums = {.entry = {{0}}};
    for (size_t i = 0; i < MGK_NORM_SUMS; ++i)
        if (wanted[i])
            args.region[i] = add_region(list, &sums.entry[i], rows->rows, groups, rows->width);
    (void)add(list, norm_flags(list), &norm, "layer_norm_backward", &args, sizeof(args), groups);
    add_sums(list, norm_flags(list), &norm, &sums);
}

/* ---- rows of heads -------------------------------------------------------------------------------------------- */

static mgk_heads_args heads_args(const mgk_rows_list *list, const mgk_heads_rows *rows, int64_t block)
{
    mgk_heads_args args = {.rows = rows->rows,
                           .region = {-1, -1, -1, -1, -1},
                           .length = (mgk_i32)rows->length,
                           .sequences = (mgk_i32)rows->sequences,
                           .capacity = (mgk_i32)rows->capacity,
                           .page_size = (mgk_i32)rows->page_size,
                           .pages = (mgk_i32)rows->pages,
                           .table_pages = (mgk_i32)rows->table_pages,
                           .block = (mgk_i32)block,
                           .rotary = mgk_rotary_of(rows->rotary, rows->rotary_size, rows->rotary_base),
                           .scale_k = mgk_component_place_of(&rows->scale_k),
                           .scale_v = mgk_component_place_of(&rows->scale_v),
                           .components = (mgk_i32)(rows->components > 0 ? rows->components : 1),
                           .keep_biased = rows->keep_biased,
                           .epsilon = (float)rows->epsilon};
    const int64_t cache_rows = rows->page_size > 0 ? rows->page_size : rows->capacity;
    for (size_t i = 0; i < 3; ++i) {
        const int64_t size = rows->part[i].size;
        const bool is_cache = i > 0 && rows->capacity > 0;
        const clmgk_dtype type = out_type(list, i == 1 ? rows->cache_k : rows->cache_v);
        const int64_t elements = size / clmgk_dtype_get_info(type).block; /* of a row of a cache */
        args.part[i] = (mgk_heads_part){.ld = rows->part[i].ld,
                                        .ld_out = is_cache ? elements : rows->part[i].ld_out,
                                        .head_out = is_cache ? cache_rows * elements : size,
                                        .heads = (mgk_i32)rows->part[i].heads,
                                        .size = (mgk_i32)size};
    }
    return args;
}

static int64_t columns_of(const mgk_rows_heads *part)
{
    return part->heads * part->size;
}

void mgk_rows_heads_forward(const mgk_rows_list *list, const mgk_heads_rows *rows)
{
    const int64_t columns = columns_of(&rows->part[0]) + columns_of(&rows->part[1]) + columns_of(&rows->part[2]);
    const int64_t block = rows_at_once(list, columns);
    const mgk_heads_args args = heads_args(list, rows, block);
    mgk_step *const step =
        add(list, heads_flags(list, rows), &heads, "layer_heads", &args, sizeof(args), parts_of(rows->rows, block));
    mgk_rows_most_registers(list->facts, &step->options);
}

void mgk_rows_heads_backward(const mgk_rows_list *list, const mgk_heads_rows *rows, const mgk_heads_wants *want)
{
    const mgk_row_form form = mgk_rows_form(list->facts);
    const int64_t block = rows_of_sums(list, rows->rows), groups = parts_of(rows->rows, block);
    mgk_heads_args args = heads_args(list, rows, block);
    mgk_sums_args sums = {.entry = {{0}}};
    for (size_t i = 0; i < 3; ++i)
        if (want->bias[i])
            args.region[i] = add_region(list, &sums.entry[i], rows->rows, groups, columns_of(&rows->part[i]));
    for (size_t i = 0; i < 2; ++i) /* a part for each team that has a head */
        if (want->gain[i])
            args.region[3 + i] =
                add_region(list, &sums.entry[3 + i], rows->rows,
                           groups * least(form.group / form.team, rows->part[i].heads), rows->part[i].size);
    mgk_step *const step =
        add(list, heads_flags(list, rows), &heads, "layer_heads_backward", &args, sizeof(args), groups);
    mgk_rows_most_registers(list->facts, &step->options);
    add_sums(list, heads_flags(list, rows), &heads, &sums);
}
