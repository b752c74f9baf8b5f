/* SPDX-License-Identifier: Apache-2.0 */
/* Options, arguments, parameters and workspace of the kernels whose softmax runs over keys. */
#include "attention/core/attention.h"

#include "attention/core/formulas.h"

#include <math.h>
#include <string.h>

MGK_TUNABLE_NAMES(MGK_COMMON_TUNABLES)

static bool in_nats(const clmgk_attention_desc *desc)
{
    const double largest = 2e38; /* times log2(e) within f32 */
    return desc->use_bias || desc->use_alibi || desc->use_mix_offset || desc->softcap > largest ||
           desc->score_mod != NULL;
}

bool mgk_is_modified(const clmgk_attention_desc *desc)
{
    return desc->use_bias || desc->use_alibi || desc->softcap > 0.0 || desc->dropout > 0.0 || desc->use_positions ||
           mgk_has_mods(desc);
}

double mgk_attention_unit(const clmgk_attention_desc *desc)
{
    const double log2_e = 1.4426950408889634;
    return in_nats(desc) ? 1.0 : log2_e;
}

/* D and E are rounded up to a class, so that programs are few. All but the first are multiples of 16. */
static const int size_classes[] = {8, 16, 32, 64, 96, 128, 192, 256, 384, 512, 576};

int mgk_size_class(const mgk_family *family, int64_t size)
{
    size_t i = family->has_narrow_heads ? 0 : 1;
    while (size_classes[i] < size)
        ++i;
    return size_classes[i];
}

/* Larger numbers of components or mixed heads are rounded up to powers of two. */
#define EXACT_COUNT 8

int mgk_count_class(int64_t count)
{
    int rounded = EXACT_COUNT;
    if (count <= EXACT_COUNT)
        return (int)count;
    while (rounded < count)
        rounded *= 2;
    return rounded;
}

/* ---- steps -------------------------------------------------------------------------------------------------- */

int64_t mgk_attention_problems(const clmgk_attention_desc *desc)
{
    return desc->sequences > 0 ? desc->sequences : desc->batch;
}

/* Axes of one element have a stride of 0. */
static mgk_component_place bias_place(const clmgk_attention_desc *d)
{
    mgk_component_place place = {0};
    if (!d->use_bias)
        return place;
    const int64_t row = d->bias_length_k, head = d->bias_length * row;
    place.token = d->bias_length_k == 1 ? 0 : 1;
    place.component = d->bias_length == 1 ? 0 : row;
    place.head = d->bias_heads == 1 ? 0 : head;
    place.batch = d->bias_heads * head;
    return place;
}

/* Axes that the prior lacks have a stride of 0. */
static mgk_component_place prior_place(const clmgk_attention_desc *d)
{
    const bool of_keys = d->prior_shape == CLMGK_PRIOR_HMS;
    const int64_t keys = of_keys ? d->length_k : 1;
    return (mgk_component_place){.head = d->prior_shape == CLMGK_PRIOR_M ? 0 : d->components * keys,
                                 .component = keys,
                                 .token = of_keys ? 1 : 0};
}

/* A window's side, limited because larger numbers would overflow sums. */
static mgk_i32 window_side(int64_t side)
{
    const int64_t most = (INT64_C(1) << 30) - 2;
    return (mgk_i32)(side < most ? side : most);
}

mgk_forward_args mgk_attention_args_of(const mgk_attention_request *request)
{
    const clmgk_attention_desc *const d = request->desc;
    mgk_forward_args args = {0};
    args.q = mgk_place_of(&d->q);
    args.k = mgk_component_place_of(&d->k);
    args.v = mgk_place_of(&d->v);
    args.o = mgk_place_of(&d->o);
    args.lse = mgk_place_of(&d->lse);
    args.scale_k = mgk_component_place_of(&d->scale_k);
    args.scale_v = mgk_place_of(&d->scale_v);
    args.prior = prior_place(d);
    args.bias = bias_place(d);
    args.batch = (mgk_i32)mgk_attention_problems(d);
    args.heads = (mgk_i32)d->heads;
    args.kv_heads = (mgk_i32)d->kv_heads;
    args.length = (mgk_i32)d->length;
    args.length_k = (mgk_i32)d->length_k;
    args.head_size = (mgk_i32)d->head_size;
    args.value_size = (mgk_i32)d->value_size;
    args.left = d->use_window ? window_side(d->window_left) : -1;
    args.right = d->causal ? 0 : d->use_window ? window_side(d->window_right) : -1;
    args.alignment = (mgk_i32)d->alignment;
    args.sequences = (mgk_i32)d->sequences;
    args.own_offsets_k = d->use_offsets_k;
    args.has_lengths = d->use_lengths;
    args.has_lengths_q = d->use_lengths_q;
    args.page_size = (mgk_i32)d->page_size;
    args.pages = (mgk_i32)d->pages;
    args.table_pages = (mgk_i32)d->table_pages;
    args.has_page_offsets = d->use_page_offsets;
    args.bias_batches = d->use_bias ? (mgk_i32)d->bias_batch : 1;
    args.splits = 1;
    args.drop_below = (mgk_u32)(d->dropout * 4294967296.0);
    args.keep_scale = (float)(1.0 / (1.0 - d->dropout));
    args.random_first = (mgk_u32)d->first_batch * (mgk_u32)d->all_heads;
    args.random_head = (mgk_u32)d->first_head;
    args.random_heads = (mgk_u32)d->all_heads;
    args.scale = d->variance > 0.0 ? (float)(mgk_attention_unit(d) / d->variance) : 0.0f;
    args.softcap = (float)(d->softcap * mgk_attention_unit(d));
    return args;
}

mgk_flags mgk_attention_flags(const mgk_attention_request *request)
{
    const clmgk_attention_desc *const d = request->desc;
    const mgk_attention_traits *const t = &request->traits;
    mgk_flags flags = {0};
    flags.engine = request->engine->value;
    flags.EXP2_BUILTIN = request->facts->info.device_class != CLMGK_DEVICE_CPU;
    /* NVIDIA's and AMD's exp2 is the instruction with scaling for subnormal results, which a softmax needs not */
    const mgk_gpu gpu = mgk_gpu_of(request->facts);
    flags.EXP2_NATIVE = gpu == MGK_GPU_NVIDIA || gpu == MGK_GPU_AMD;
    flags.TYPE_Q = (int)mgk_array_dtype(d, CLMGK_ARRAY_Q);
    flags.TYPE_K = (int)mgk_array_dtype(d, CLMGK_ARRAY_K);
    flags.TYPE_V = (int)mgk_array_dtype(d, CLMGK_ARRAY_V);
    flags.TYPE_O = (int)mgk_array_dtype(d, CLMGK_ARRAY_O);
    flags.HEAD_SIZE = t->head_size;
    flags.VALUE_SIZE = t->value_size;
    flags.COMPONENTS = t->components;
    flags.HAS_SEQUENCES = d->sequences > 0;
#define SET_FLAG(flag, NAME) flags.flag = mgk_array_exists(d, CLMGK_ARRAY_##NAME);
    MGK_ARRAY_FLAG_LIST(SET_FLAG)
#undef SET_FLAG
    flags.HAS_ALIBI = d->use_alibi;
    flags.SCORES_IN_NATS = in_nats(d);
    flags.HAS_SOFTCAP = d->softcap > 0.0;
    flags.HAS_DROPOUT = d->dropout > 0.0;
    flags.SCORE_MOD = d->score_mod != NULL;
    request->family->set_flags(request, &flags);
    return flags;
}

void mgk_replace_buffer(mgk_step *step, clmgk_array from, clmgk_array to)
{
    const size_t buffers = step->buffers < MGK_BUFFERS ? step->buffers : MGK_BUFFERS;
    for (size_t i = 0; i < buffers; ++i)
        if (step->buffer[i] == from)
            step->buffer[i] = (unsigned char)to;
}

static void bind_classes(const mgk_mask_classes *classes, mgk_step *step)
{
    mgk_replace_buffer(step, CLMGK_ARRAY_MASK_BLOCKS, classes->array);
    mgk_step_append(step, &classes->place, sizeof(classes->place));
}

/* No option may assume finite numbers, or fuse more than the explicit fma (base/common.clh). */
static void print_options(const mgk_flags *flags, const mgk_tunables *tunables, const char *compiler, mgk_text *text)
{
    mgk_text_printf(text, "-cl-std=CL1.2");
    mgk_flags_options(flags, text);
    if (tunables != NULL)
        mgk_tunables_options(tunables, text);
    if (compiler != NULL)
        mgk_text_printf(text, " %s", compiler);
}

/* The name of a kernel's options: calls find it by this. */
static mgk_hash key_of(const mgk_flags *flags, const mgk_tunables *tunables, const char *compiler)
{
    struct {
        mgk_flags flags;
        int32_t values[MGK_MAX_TUNABLES];
        const char *compiler; /* constant texts, one for each choice */
    } all;
    memset(&all, 0, sizeof(all));
    all.flags = *flags;
    for (size_t i = 0; tunables != NULL && i < mgk_tunables_count(tunables); ++i)
        if (mgk_tunables_at(tunables, i)->macro != NULL)
            all.values[i] = tunables->value[i];
    all.compiler = compiler;
    return mgk_hash_bytes(&all, sizeof(all));
}

/* Puts a launch of the kernel that makes the classes before the one that reads them, which is returned. */
static mgk_step *classify_before(mgk_step *kernel, mgk_pass_plan *plan)
{
    mgk_step *const reader = &plan->steps.step[plan->steps.count++];
    mgk_mask_place place = plan->classes.place;
    mgk_text options = reader->options;
    if (!plan->of_call)
        mgk_text_printf(&options, "%s", kernel->options.data);
    *reader = *kernel;
    kernel->options = options;
    kernel->launch.global[0] = (size_t)plan->classes.groups * kernel->launch.local[0];
    place.makes = 1;
    kernel->args_bytes -= sizeof(place);
    mgk_step_append(kernel, &place, sizeof(place));
    return reader;
}

/* Bytes of local memory that a launch in CUDA gives tiles of this size, with room to align them. */
static unsigned dynamic_local_of(int tiles)
{
    enum { ALIGNMENT = 1024 };
    return tiles > 0 ? (unsigned)tiles + ALIGNMENT : 0;
}

mgk_step *mgk_attention_add(const mgk_attention_step *step, mgk_pass_plan *plan)
{
    mgk_step *const kernel = &plan->steps.step[plan->steps.count++];
    kernel->file = step->file;
    kernel->name = step->name;
    mgk_flags flags = step->flags;
    const bool places_pairs = step->block != NULL && (flags.SCORE_MOD || flags.MASK_MOD);
    flags.MASK_CLASSES = flags.MASK_CLASSES || (places_pairs && flags.MASK_MOD && plan->classes.used);
    flags.CLASSIFIES = flags.MASK_CLASSES && plan->classes.own && !plan->classes.begun;
    plan->classes.begun = plan->classes.begun || flags.CLASSIFIES;
    const mgk_block no_block = {.threads = 1, .compiler = step->compiler};
    const mgk_block *const block = step->block != NULL ? step->block : &no_block;
    const size_t local = step->block != NULL ? block->threads : step->local;
    kernel->key = key_of(&flags, step->tunables, block->compiler);
    if (!plan->of_call)
        print_options(&flags, step->tunables, block->compiler, &kernel->options);
    kernel->launch = (mgk_launch){1, {step->global * block->threads, 1, 1}, {local, 1, 1}};
    kernel->dynamic_local = dynamic_local_of(flags.DYNAMIC_LOCAL);
    kernel->local_bytes = block->local_bytes;
    kernel->private_bytes = block->private_bytes;
    if (step->bind != NULL)
        step->bind(&flags, step->args, step->args_bytes, kernel);
    if (flags.MASK_CLASSES)
        bind_classes(&plan->classes, kernel);
    if (places_pairs) {
        const bool gradients = flags.WANT_NUMBERS > 0 || flags.WANT_READS > 0;
        kernel->mods = gradients ? plan->mods->gradient_code : plan->mods->code;
        kernel->constants = &plan->mods->captures;
    }
    return flags.CLASSIFIES && plan->classes.groups > 0 ? classify_before(kernel, plan) : kernel;
}

int64_t mgk_attention_keys(const clmgk_attention_desc *d)
{
    return d->sequences > 0 && !mgk_has_caches(d) ? (d->length_k + d->sequences - 1) / d->sequences : d->length_k;
}

/* Keys of all problems of a batch, or of all packed sequences. */
static int64_t all_keys(const clmgk_attention_desc *d)
{
    return mgk_has_caches(d) ? d->length_k * d->sequences : d->length_k;
}

/* The part of all pairs of a row and a key that the causal mask and the window leave, roughly. */
static double seen_part(const clmgk_attention_desc *d)
{
    const int64_t rows = mgk_attention_rows(d), keys = mgk_attention_keys(d), right = d->causal ? 0 : d->window_right;
    const int64_t seen = d->causal ? keys - (rows < keys ? rows : keys) / 2 : keys;
    const bool limited = d->use_window && d->window_left >= 0 && right >= 0;
    const int64_t window = limited && d->window_left < seen && right < seen ? d->window_left + right + 1 : seen;
    return keys > 0 ? (double)(window < seen ? window : seen) / (double)keys : 1.0;
}

/* Ranges of keys at most: so many that their partial results are no larger than the f32 arrays of the call, of which Q
 * and O have as many rows. */
static int64_t most_splits(const clmgk_attention_desc *d)
{
    const int64_t row = d->heads * d->length * (d->value_size + 2);
    const int64_t arrays = d->heads * d->length * (d->head_size + d->value_size) +
                           d->kv_heads * all_keys(d) * (d->head_size + d->value_size);
    int64_t splits = 1;
    while (splits < MGK_WAVES_MOST && 2 * splits * row <= arrays && 2 * splits * d->length <= d->length + all_keys(d))
        splits *= 2;
    return splits;
}

mgk_footprint mgk_attention_footprint(const mgk_attention_request *request)
{
    const clmgk_attention_desc *const d = request->limits;
    const mgk_attention_traits *const t = &request->traits;
    return (mgk_footprint){.causal = d->causal,
                           .rows = mgk_attention_rows(d),
                           .heads = d->heads,
                           .problems = mgk_attention_problems(d),
                           .streamed = mgk_attention_keys(d),
                           .shared_heads = 1,
                           .value_size = t->value_size,
                           .tile_heads = 1,
                           .products = t->products,
                           .components = t->components,
                           .keys_read_again = t->gaussian || t->shifted,
                           .modified = t->modified,
                           .priors = t->has_prior,
                           .variances = t->has_variance,
                           .two_types = mgk_has_two_types(d),
                           .singles = mgk_has_singles(d),
                           .dtypes = mgk_dtypes_of(d),
                           .precision = d->precision,
                           .weights = mgk_weights_precision(d),
                           .noise = t->noise,
                           .generalised = t->generalised};
}

clmgk_status mgk_attention_fit(const mgk_attention_request *request, const mgk_footprint *footprint,
                               mgk_tunables *tunables, mgk_block *block, clmgk_error *error)
{
    const mgk_attention_traits *const t = &request->traits;
    mgk_footprint own = *footprint;
    own.short_panels = own.short_panels && !request->desc->sizes_at_call;
    const bool plain =
        !mgk_has_mods(request->desc) && request->desc->page_size == 0 && !mgk_has_cache_types(request->desc);
    own.unit = own.unit && (plain || !request->engine->private_tiles); /* AMX */
    own.turns = own.turns && !mgk_has_mods(request->desc);
    own.narrowest = t->head_size < t->value_size ? t->head_size : t->value_size;
    own.head_size = t->head_size;
    own.widest = t->head_size < t->value_size ? t->value_size : t->head_size;
    *tunables = mgk_engine_tunables(request->engine, request->family->added);
    MGK_TRY(mgk_tunables_read(tunables, &request->parameters, error));
    mgk_tunables_begin(tunables, request->facts->info.device_class);
    return request->engine->fit(&own, request->facts, tunables, block, error);
}

/* Sets the flags of kernels that evaluate the texts of score and mask. */
static void set_mod_flags(const clmgk_attention_desc *d, mgk_flags *flags)
{
    int *const types[] = {&flags->CAPTURE_TYPE_0, &flags->CAPTURE_TYPE_1, &flags->CAPTURE_TYPE_2,
                          &flags->CAPTURE_TYPE_3, &flags->CAPTURE_TYPE_4, &flags->CAPTURE_TYPE_5,
                          &flags->CAPTURE_TYPE_6, &flags->CAPTURE_TYPE_7};
    _Static_assert(MGK_COUNT(types) == CLMGK_MAX_CAPTURES, "a flag for each captured array");
    flags->MASK_MOD = d->mask_mod != NULL;
    flags->MASK_CLASSES = d->use_mask_blocks;
    for (int c = 0; c < mgk_count_captures(d); ++c)
        *types[c] = 1 + (int)d->captures[c].type;
}

mgk_flags mgk_attention_block_flags(const mgk_attention_request *request, const mgk_block *block)
{
    mgk_flags flags = mgk_attention_flags(request);
    mgk_flags_add(&flags, &block->flags);
    set_mod_flags(request->desc, &flags);
    return flags;
}

mgk_flags mgk_attention_text_flags(const clmgk_attention_desc *d)
{
    mgk_flags flags = {.HAS_NUMBERS = mgk_array_exists(d, CLMGK_ARRAY_NUMBERS)};
    set_mod_flags(d, &flags);
    flags.MASK_CLASSES = false; /* it makes them */
    return flags;
}

void mgk_attention_limit_splits(const mgk_attention_request *request, mgk_tunables *p)
{
    const int64_t most = request->most_splits;
    if (most > 0 && mgk_tunable_get(p, MGK_NAMED(splits)) > most)
        mgk_tunable_default(p, MGK_NAMED(splits), (int)most);
}

bool mgk_attention_splits_tuned(const mgk_tunables *tunables)
{
    const size_t i = mgk_tunable_index(tunables, MGK_NAMED(splits));
    return tunables->origin[i] == MGK_ORIGIN_TUNED && tunables->value[i] > 1;
}

/* ---- the grid ----------------------------------------------------------------------------------------------- */

/* Rows of a problem; packed: of a sequence on average. */
int64_t mgk_attention_rows(const clmgk_attention_desc *d)
{
    return d->sequences > 0 ? (d->length + d->sequences - 1) / d->sequences : d->length;
}

int64_t mgk_attention_groups(const clmgk_attention_desc *d, int64_t heads, int64_t rows)
{
    if (d->sequences > 0) /* as sequence_of_block counts them */
        return d->length == 0 ? 0 : (d->length / rows + d->sequences) * heads;
    return (d->length + rows - 1) / rows * heads * d->batch;
}

/* Work-groups with work. */
static int64_t busy_groups_of(const clmgk_attention_desc *d, int64_t heads, int64_t rows)
{
    return (mgk_attention_rows(d) + rows - 1) / rows * heads * mgk_attention_problems(d);
}

/* Whether each problem of an inference has a length of its own, which the device alone knows. */
static bool has_own_lengths(const clmgk_attention_desc *d)
{
    return (d->use_lengths || d->use_page_offsets) && mgk_attention_problems(d) > 1 && d->gradients == 0 &&
           d->statistics == 0;
}

/* Work-groups that keep a device busy by their ranges: those of one problem, if it may be the only one with many keys.
 * Most ranges are empty then, so there is a limit. */
static int64_t groups_to_split(const mgk_attention_request *request, int64_t heads, const mgk_block *block)
{
    enum { MOST_EMPTY = 16 };
    const clmgk_attention_desc *const d = request->desc;
    const int64_t all = busy_groups_of(d, heads, block->rows);
    const int64_t one = all / mgk_attention_problems(d), least = (all + MOST_EMPTY - 1) / MOST_EMPTY;
    return !has_own_lengths(d) ? all : one > least ? one : least;
}

/* Tiles of a range at least. A tile that work-items share is long enough for few rows. */
static int64_t least_tiles(const mgk_block *block)
{
    enum { TILES_IN_TURN = 8, TILES_AT_ONCE = 4 };
    if (block->few_rows > 0 && (block->threads > 1 || block->resident > 0))
        return 1;
    return block->resident > 0 ? TILES_AT_ONCE : TILES_IN_TURN;
}

/* Ranges of keys on devices whose work-groups run one after another: one, unless the blocks of rows can't keep all
 * compute units busy; each has several tiles, so that the workspace stays below the size of the arrays. */
static int splits_by_count(const mgk_attention_request *request, int64_t heads, const mgk_block *block)
{
    const int64_t least = block->tile * least_tiles(block);
    const clmgk_attention_desc *const d = request->desc;
    const int64_t units = request->facts->info.compute_units;
    const int64_t groups = groups_to_split(request, heads, block);
    const int64_t longest = mgk_has_caches(d)  ? d->length_k
                            : d->sequences > 0 ? d->length_k / d->sequences
                                               : d->length_k;
    int64_t splits = 1;
    while (splits < MGK_WAVES_MOST && groups * splits < 4 * units && longest >= 2 * splits * least &&
           2 * splits * d->length <= d->length + all_keys(d))
        splits *= 2;
    return (int)splits;
}

/* Work-groups that the device holds; 0: it runs them one after another. */
static int64_t wave_of(const mgk_forward *x)
{
    return x->block.resident * x->request->facts->info.compute_units;
}

/* Which blocks of rows are split. */
enum { SPLIT_ALL, SPLIT_FROM_SECOND, SPLIT_BEHIND_WAVES };

/* Number of blocks before them. */
static int64_t whole_blocks(const mgk_forward *x)
{
    const int64_t blocks = mgk_attention_groups(x->request->desc, x->head_groups, x->block.rows);
    const int64_t from = mgk_tunable_get(&x->tunables, MGK_NAMED(split_from));
    if (from == SPLIT_BEHIND_WAVES && wave_of(x) > 0)
        return mgk_waves_whole(wave_of(x), blocks);
    return from == SPLIT_FROM_SECOND && blocks > 0 ? 1 : 0;
}

/* Sets how many ranges of keys blocks have where the device holds several work-groups, and which blocks. The
 * combination would take longer than shorter ranges save. There is no tail where a mask makes blocks unequal, because
 * the longest begin first and units end nearly together, and where few rows wait for memory, not for each other. */
static void choose_by_waves(mgk_forward *x)
{
    mgk_tunables *const p = &x->tunables;
    const clmgk_attention_desc *const d = x->request->desc;
    const bool masked = d->causal || d->use_window, usual = mgk_tunable_is_default(p, MGK_NAMED(split_from));
    const mgk_waves launch = {.wave = wave_of(x),
                              .blocks = groups_to_split(x->request, x->head_groups, &x->block),
                              .tiles = (int64_t)((double)mgk_attention_keys(d) * seen_part(d)) / x->block.tile,
                              .least_tiles = least_tiles(&x->block),
                              .most_splits = most_splits(d),
                              .tail = d->sizes_at_call || has_own_lengths(d) ? false
                                      : usual ? !masked && d->sequences == 0 && x->block.few_rows == 0 &&
                                                    x->head_groups == d->heads &&
                                                    mgk_tunable_is_default(p, MGK_NAMED(splits))
                                              : mgk_tunable_get(p, MGK_NAMED(split_from)) == SPLIT_BEHIND_WAVES};
    mgk_tunable_default(p, MGK_NAMED(splits), (int)mgk_waves_splits(&launch));
    if (launch.tail && mgk_tunable_get(p, MGK_NAMED(splits)) > 1)
        mgk_tunable_default(p, MGK_NAMED(split_from), SPLIT_BEHIND_WAVES);
}

/* Partial results are those of adjacent rows, so packed sequences, and heads that share blocks, have them of all. */
static void choose_splits(mgk_forward *x)
{
    mgk_tunables *const p = &x->tunables;
    const clmgk_attention_desc *const d = x->request->desc;
    if (wave_of(x) == 0)
        mgk_tunable_default(p, MGK_NAMED(splits), splits_by_count(x->request, x->head_groups, &x->block));
    else
        choose_by_waves(x);
    mgk_attention_limit_splits(x->request, p);
    if (d->sequences > 0 || x->head_groups != d->heads || whole_blocks(x) == 0 || d->sizes_at_call)
        p->value[mgk_tunable_index(p, MGK_NAMED(split_from))] = SPLIT_ALL;
}

/* ---- partial results ------------------------------------------------------------------------------------------- */

MGK_BINDING(bind_combine, MGK_COMBINE_BUFFERS)

/* Teams of work-items that share a row's `parts`, so that few rows keep a GPU's units busy; each has several parts.
 * Where parts are the caller's, their number is not known. */
static int part_teams(const mgk_attention_request *request, int64_t rows, int64_t parts)
{
    enum { MOST = 16, MOST_ITEMS = 256, ITEMS_OF_UNIT = 512, PARTS_EACH = 2, UNKNOWN_PARTS = 16 };
    const mgk_device_facts *const facts = request->facts;
    const int64_t row = request->traits.value_size / 4, units = (int64_t)facts->info.compute_units;
    const uint64_t most = facts->info.max_work_group < MOST_ITEMS ? facts->info.max_work_group : MOST_ITEMS;
    int64_t teams = 1;
    while (2 * teams <= MOST && (uint64_t)(2 * teams * row) <= most && rows * row * teams < ITEMS_OF_UNIT * units &&
           2 * teams * PARTS_EACH <= (parts > 0 ? parts : UNKNOWN_PARTS))
        teams *= 2;
    return (int)teams;
}

static int64_t rows_of(const clmgk_attention_desc *d)
{
    return d->batch * d->heads * d->length;
}

/* `parts`: the workspace's, of `args`; 0: the caller's. Work-items have four elements of O each, of rows rounded up
 * to the class of E (cl/attention/combine.cl). */
void mgk_attention_add_combine(const mgk_attention_request *request, int64_t parts, const mgk_forward_args *args,
                               mgk_pass_plan *plan)
{
    enum { ITEMS = 64 };
    const clmgk_attention_desc *const d = request->desc;
    const size_t size = (size_t)request->traits.value_size;
    /* a plan for any sizes runs the largest grid */
    const size_t rows = d->sizes_at_call && !plan->of_call ? (size_t)rows_of(request->limits)
                                                           : (size_t)(rows_of(d) - args->parts_first);
    mgk_flags flags = mgk_attention_flags(request);
    flags.SPLIT_KEYS = parts > 0;
    flags.SPLIT_TAIL = parts > 0 && args->whole > 0;
    flags.PART_TEAMS = request->engine->private_tiles ? 1
                       : d->sizes_at_call             ? part_teams(request, rows_of(request->limits), 0)
                                                      : part_teams(request, (int64_t)rows, parts);
    const size_t row = (size_t)flags.PART_TEAMS * size / 4;
    const size_t local = flags.PART_TEAMS > 1 ? row : ITEMS;
    const mgk_attention_step step = {.file = "attention/combine.cl",
                                     .name = "attention_combine",
                                     .flags = flags,
                                     .bind = bind_combine,
                                     .args = args,
                                     .args_bytes = sizeof(*args),
                                     .global = (rows * row + local - 1) / local * local,
                                     .local = local};
    mgk_attention_add(&step, plan);
}

clmgk_status mgk_attention_check_splits(const mgk_tunables *tunables, const clmgk_attention_desc *d, int64_t parts,
                                        int64_t rows, clmgk_error *error)
{
    if (mgk_attention_splits_tuned(tunables) &&
        (double)parts * (double)d->length > (double)rows * (double)(d->length + all_keys(d)))
        return mgk_fail(error, CLMGK_ERROR_UNSUPPORTED,
                        "parameters: splits=%d: expected fewer: their workspace would be larger than the arrays",
                        mgk_tunable_get(tunables, MGK_NAMED(splits)));
    return CLMGK_OK;
}

static int64_t common_factor(int64_t a, int64_t b)
{
    while (b != 0) {
        const int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

/* The distance of blocks with neighbouring turns (cl/attention/shares.clh); 0: in order. */
static mgk_u32 spread_of(int64_t blocks)
{
    int64_t spread = blocks * 618 / 1000;
    while (spread > 1 && common_factor(spread, blocks) != 1)
        --spread;
    return blocks <= UINT32_MAX && spread > 1 ? (mgk_u32)spread : 0;
}

/* Has ranges of keys share out the keys of all problems, where their lengths are their own: as many as keep the device
 * busy, for each group of heads and block of rows. Devices that run work-groups one after another hand them out in long
 * runs. */
static void share_keys(const mgk_forward *x, mgk_forward_args *args)
{
    const clmgk_attention_desc *const d = x->request->desc;
    const int64_t wave = wave_of(x), wanted = wave > 0 ? 2 * wave : 4 * (int64_t)x->request->facts->info.compute_units;
    const int64_t lists = busy_groups_of(d, x->head_groups, x->block.rows) / mgk_attention_problems(d);
    if (!has_own_lengths(d) || lists == 0)
        return;
    args->range_tiles = (mgk_i32)least_tiles(&x->block);
    args->all_ranges = (mgk_i32)((wanted + lists - 1) / lists);
    if (wave == 0 && args->whole == 0)
        args->spread = spread_of(mgk_attention_groups(d, 1, x->block.rows) * args->splits);
}

/* Sets args->splits to the plan's, and places the partial results of the blocks that are split in the workspace. */
static clmgk_status place_splits(const mgk_forward *x, mgk_pass_plan *plan, mgk_forward_args *args, clmgk_error *error)
{
    const clmgk_attention_desc *const d = x->request->desc;
    const int64_t in_list = (d->length + x->block.rows - 1) / x->block.rows, all = d->batch * d->heads * d->length;
    args->whole = whole_blocks(x);
    if (args->whole > 0)
        args->parts_first = args->whole / in_list * d->length + args->whole % in_list * x->block.rows;
    if (args->whole > 0 && args->parts_first == all) /* no block is split */
        plan->tunables.value[mgk_tunable_index(&plan->tunables, MGK_NAMED(splits))] = 1;
    args->splits = mgk_tunable_get(&plan->tunables, MGK_NAMED(splits));
    const int64_t rows = args->splits * (all - args->parts_first);
    MGK_TRY(mgk_attention_check_splits(&plan->tunables, d, rows, all, error));
    if (args->splits > 1) {
        args->parts_lse = mgk_steps_region(&plan->steps, rows);
        args->parts_low = mgk_steps_region(&plan->steps, rows);
        args->parts_o = mgk_steps_region(&plan->steps, rows * d->value_size);
    }
    share_keys(x, args);
    return CLMGK_OK;
}

/* ---- the forward pass ------------------------------------------------------------------------------------------ */

clmgk_status mgk_forward_begin(const mgk_attention_request *request, const mgk_footprint *footprint, mgk_forward *x,
                               clmgk_error *error)
{
    mgk_tunables *const p = &x->tunables;
    x->request = request;
    MGK_TRY(mgk_attention_fit(request, footprint, p, &x->block, error));
    const int64_t heads = footprint->held_heads > 0 ? mgk_tunable_get(p, MGK_NAMED(heads)) : 1;
    x->head_groups = (request->desc->heads + heads - 1) / heads;
    choose_splits(x);
    x->flags = mgk_attention_block_flags(request, &x->block);
    return CLMGK_OK;
}

void mgk_forward_add(const mgk_forward *x, mgk_attention_step step, const mgk_forward_args *args, mgk_pass_plan *plan)
{
    step.flags.SPLIT_KEYS = step.flags.SPLIT_KEYS || args->splits > 1;
    step.flags.SPLIT_TAIL = args->splits > 1 && args->whole > 0;
    step.tunables = &x->tunables;
    step.block = &x->block;
    step.args = args;
    step.args_bytes = sizeof(*args);
    const int64_t blocks = mgk_attention_groups(x->request->desc, x->head_groups, x->block.rows);
    step.global = (size_t)(args->whole + (blocks - args->whole) * args->splits);
    mgk_attention_add(&step, plan);
}

/* Whether enough (b, h) share a bias that a block with rows in lanes reads it from a copy with lane = row
 * (cl/attention/bias.cl), which takes a kernel more: the copy is not larger than O. */
static bool transposes_bias(const mgk_forward *x)
{
    enum { LEAST_USES = 4, LEAST_PROBLEMS = 32 };
    const clmgk_attention_desc *const d = x->request->desc;
    if (x->block.bias_lanes == 0 || d->sizes_at_call || d->sequences > 0 || !d->use_bias || d->bias_length == 1 ||
        d->bias_length_k == 1)
        return false;
    const int64_t biases = d->bias_batch * d->bias_heads, problems = d->batch * d->heads;
    return problems >= LEAST_PROBLEMS && problems >= LEAST_USES * biases &&
           biases * d->length_k <= problems * d->value_size;
}

MGK_BINDING(bind_bias, MGK_BIAS_BUFFERS)

/* Appends the kernel that makes the copy, places it in the workspace, and has the arguments of later steps tell it. */
static void transpose_bias(const mgk_forward *x, mgk_pass_plan *plan, mgk_forward_args *args)
{
    const clmgk_attention_desc *const d = x->request->desc;
    const int64_t lanes = x->block.bias_lanes, vectors = (d->length + lanes - 1) / lanes;
    const int64_t keys = (d->length_k + x->block.bias_keys - 1) / x->block.bias_keys * x->block.bias_keys;
    const int64_t matrix = vectors * keys * lanes;
    mgk_bias_args copy = {
        .bias = args->bias, .heads = (mgk_i32)d->bias_heads, .length = args->length, .length_k = args->length_k};
    copy.out.token = lanes;
    copy.out.component = keys * lanes;
    copy.out.head = d->bias_heads == 1 ? 0 : matrix;
    copy.out.batch = d->bias_heads * matrix;
    copy.transposed = args->transposed = mgk_steps_region(&plan->steps, d->bias_batch * copy.out.batch);
    args->bias = copy.out;
    const mgk_attention_step step = {
        .file = "attention/bias.cl",
        .name = "attention_bias",
        .flags = {.engine = x->flags.engine, .WIDE_VECTORS = x->flags.WIDE_VECTORS},
        .bind = bind_bias,
        .args = &copy,
        .args_bytes = sizeof(copy),
        .global = (size_t)(d->bias_batch * d->bias_heads * vectors),
        .local = 1,
        .compiler = x->block.compiler,
    };
    mgk_step *const kernel = mgk_attention_add(&step, plan);
    mgk_text_printf(&kernel->options, " -DLANES=%d", (int)lanes);
}

/* Appends the kernel of a part of a cascade, whose results are partial ones. */
static void add_part(const mgk_forward *x, mgk_attention_step kernel, mgk_forward_args *args, mgk_pass_plan *plan)
{
    mgk_cascade_part *const part = x->request->part;
    part->splits = args->splits = mgk_tunable_get(&x->tunables, MGK_NAMED(splits));
    args->parts_lse = part->parts_lse;
    args->parts_low = part->parts_low;
    args->parts_o = part->parts_o;
    share_keys(x, args);
    kernel.flags.SPLIT_KEYS = true;
    plan->steps.main = plan->steps.count;
    plan->block = x->block;
    mgk_forward_add(x, kernel, args, plan);
    if (!part->prefix)
        return;
    mgk_step *const step = &plan->steps.step[plan->steps.count - 1];
    mgk_replace_buffer(step, CLMGK_ARRAY_PAGE_TABLE, CLMGK_ARRAY_PREFIX_TABLE);
    mgk_replace_buffer(step, CLMGK_ARRAY_LENGTHS, CLMGK_ARRAY_PREFIX_LENGTH);
}

clmgk_status mgk_forward_plan(const mgk_forward *x, const mgk_attention_step *step, mgk_forward_args *args,
                              mgk_pass_plan *plan, clmgk_error *error)
{
    mgk_attention_step kernel = *step;
    plan->tunables = x->tunables;
    if (x->request->part != NULL) {
        add_part(x, kernel, args, plan);
        return CLMGK_OK;
    }
    MGK_TRY(place_splits(x, plan, args, error));
    kernel.flags.BIAS_TRANSPOSED = transposes_bias(x);
    if (kernel.flags.BIAS_TRANSPOSED)
        transpose_bias(x, plan, args);
    plan->steps.main = plan->steps.count;
    plan->block = x->block;
    mgk_forward_add(x, kernel, args, plan);
    if (args->splits > 1)
        mgk_attention_add_combine(x->request, args->splits, args, plan);
    return CLMGK_OK;
}

clmgk_status mgk_attention_plan_combine(const mgk_attention_request *request, mgk_pass_plan *plan, clmgk_error *error)
{
    plan->tunables = mgk_engine_tunables(request->engine, request->family->added);
    MGK_TRY(mgk_tunables_read(&plan->tunables, &request->parameters, error));
    const mgk_forward_args args = mgk_attention_args_of(request);
    mgk_attention_add_combine(request, 0, &args, plan);
    return CLMGK_OK;
}
