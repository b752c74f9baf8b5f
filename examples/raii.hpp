// SPDX-License-Identifier: Apache-2.0
// libclmgk and OpenCL with owners that release what they hold, and exceptions in place of statuses. C++17.
#ifndef RAII_HPP
#define RAII_HPP

#define CL_TARGET_OPENCL_VERSION 120
#include <clmgk/clmgk.h>

#include <cstddef>
#include <memory>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

namespace raii
{

template <auto Release> struct releaser {
    template <class Object> void operator()(Object *object) const
    {
        (void)Release(object);
    }
};
template <class Handle, auto Release> using owner = std::unique_ptr<std::remove_pointer_t<Handle>, releaser<Release>>;
using plan = owner<clmgk_plan *, clmgk_plan_release>;

// clmgk_function(arguments..., &error), or an exception with its message.
template <class Function, class... Arguments> void call(Function function, Arguments... arguments)
{
    clmgk_error error{};
    if (function(arguments..., &error) != CLMGK_OK) {
        throw std::runtime_error(error.message);
    }
}

inline void check(cl_int code, const char *what)
{
    if (code != CL_SUCCESS) {
        throw std::runtime_error(std::string(what) + ": OpenCL's code " + std::to_string(code));
    }
}

// A device with a queue, which is in order.
class device
{
  public:
    explicit device(const char *selector = nullptr)
    {
        clmgk_device_info info = CLMGK_DEVICE_INFO_INIT;
        call(clmgk_select_device, selector, &info);
        cl_int code = CL_SUCCESS;
        context_.reset(clCreateContext(nullptr, 1, &info.device_id, nullptr, nullptr, &code));
        check(code, "context");
        queue_.reset(clCreateCommandQueue(context(), info.device_id, 0, &code));
        check(code, "queue");
        clmgk_context *made = nullptr;
        call(clmgk_context_create, context(), info.device_id, nullptr, &made);
        clmgk_.reset(made);
    }
    cl_context context() const
    {
        return context_.get();
    }
    cl_command_queue queue() const
    {
        return queue_.get();
    }

    plan make_plan(const clmgk_attention_desc &desc) const
    {
        clmgk_plan *made = nullptr;
        call(clmgk_plan_create, clmgk_.get(), &desc, nullptr, &made);
        return plan(made);
    }

  private:
    owner<cl_context, clReleaseContext> context_;
    owner<cl_command_queue, clReleaseCommandQueue> queue_;
    owner<clmgk_context *, clmgk_context_release> clmgk_;
};

// An array on the device.
class array
{
  public:
    array(const device &on, std::size_t count) : count_(count)
    {
        cl_int code = CL_SUCCESS;
        memory_.reset(clCreateBuffer(on.context(), CL_MEM_READ_WRITE, count * sizeof(float), nullptr, &code));
        check(code, "buffer");
    }
    array(const device &on, const std::vector<float> &values) : array(on, values.size())
    {
        const std::size_t bytes = count_ * sizeof(float);
        check(clEnqueueWriteBuffer(on.queue(), memory_.get(), CL_TRUE, 0, bytes, values.data(), 0, nullptr, nullptr),
              "write");
    }
    std::vector<float> read(const device &on) const
    {
        std::vector<float> values(count_);
        const std::size_t bytes = count_ * sizeof(float);
        check(clEnqueueReadBuffer(on.queue(), memory_.get(), CL_TRUE, 0, bytes, values.data(), 0, nullptr, nullptr),
              "read");
        return values;
    }
    operator clmgk_buffer() const
    {
        return {memory_.get(), 0};
    }

  private:
    std::size_t count_;
    owner<cl_mem, clReleaseMemObject> memory_;
};

} // namespace raii

#endif
