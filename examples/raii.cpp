// SPDX-License-Identifier: Apache-2.0
// C++17: owners in place of release calls, exceptions in place of statuses (raii.hpp).
//
// Where all keys are the same, attention is the mean of the values.
#include "raii.hpp"

#include <cmath>
#include <cstdio>
#include <exception>

namespace
{

constexpr std::size_t heads = 4, length = 64, size = 16, count = heads * length * size;

clmgk_attention_desc describe(std::size_t head_size)
{
    clmgk_attention_desc desc = CLMGK_ATTENTION_DESC_INIT;
    desc.heads = heads;
    desc.length = length;
    desc.head_size = static_cast<std::int64_t>(head_size);
    return desc;
}

// The largest difference between O and the mean of V.
float largest_difference(const std::vector<float> &o, const std::vector<float> &v)
{
    float largest = 0.0F;
    for (std::size_t i = 0; i < count; ++i) {
        const std::size_t head = i / (length * size), feature = i % size;
        float mean = 0.0F;
        for (std::size_t j = 0; j < length; ++j) {
            mean += v[(head * length + j) * size + feature] / length;
        }
        largest = std::fmax(largest, std::fabs(o[i] - mean));
    }
    return largest;
}

void run()
{
    std::vector<float> q(count), v(count);
    for (std::size_t i = 0; i < count; ++i) {
        q[i] = std::sin(static_cast<float>(i));
        v[i] = std::cos(static_cast<float>(i));
    }
    const raii::device device;
    const auto plan = device.make_plan(describe(size));
    const raii::array q_array(device, q), k_array(device, std::vector<float>(count, 0.5F)), v_array(device, v);
    const raii::array o_array(device, count),
        workspace(device, clmgk_plan_workspace_size(plan.get()) / sizeof(float) + 1);
    clmgk_attention_args args = CLMGK_ATTENTION_ARGS_INIT;
    args.q = q_array;
    args.k = k_array;
    args.v = v_array;
    args.o = o_array;
    args.workspace = workspace;
    raii::call(clmgk_enqueue_forward, plan.get(), device.queue(), &args, 0U, nullptr, nullptr);
    const float difference = largest_difference(o_array.read(device), v);
    std::printf("largest difference from the mean of the values: %.1e\n", static_cast<double>(difference));
    if (!(difference < 1e-5F)) {
        throw std::runtime_error("expected the mean of the values");
    }
    try { // an error, as the program sees it
        (void)device.make_plan(describe(100000));
    } catch (const std::runtime_error &error) {
        std::printf("refused, as it should be: %s\n", error.what());
        return;
    }
    throw std::runtime_error("expected an exception");
}

} // namespace

int main()
{
    try {
        run();
    } catch (const std::exception &error) {
        std::fprintf(stderr, "%s\n", error.what());
        return 1;
    }
    return 0;
}
