// An accelerator that PyTorch takes for one, made of host memory and CPU kernels: a caching allocator with figures and
// a limit, a generator, events, and a fallback for every operator. It stands for hardware that a test machine lacks.

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/library.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <unordered_map>

namespace {

constexpr c10::DeviceType kType = c10::DeviceType::PrivateUse1;
constexpr size_t kTotalBytes = size_t{2} << 30;
constexpr size_t kGranularity = 512;

c10::Device the_device() {
  return c10::Device(kType, 0);
}

// Keeps freed blocks for requests of the same size, as an accelerator's allocator does.
class StandInAllocator final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(size_t num_bytes) override {
    if (num_bytes == 0) {
      return {nullptr, nullptr, &release, the_device()};
    }
    const std::lock_guard<std::mutex> lock(mutex_);
    const size_t size = (num_bytes + kGranularity - 1) / kGranularity * kGranularity;
    void* block = take_cached(size);
    if (block == nullptr) {
      block = reserve(size);
    }
    sizes_[block] = size;
    stats_.allocated_bytes[0].increase(size);
    return {block, block, &release, the_device()};
  }

  c10::DeleterFnPtr raw_deleter() const override {
    return &release;
  }

  void copy_data(void* to, const void* from, size_t count) const override {
    default_copy_data(to, from, count);
  }

  bool initialized() override {
    return true;
  }

  void emptyCache(c10::MempoolId_t = {0, 0}) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    drop_cached();
  }

  void recordStream(const c10::DataPtr&, c10::Stream) override {}

  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    return stats_;
  }

  void resetAccumulatedStats(c10::DeviceIndex) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    stats_.allocated_bytes[0].reset_accumulated();
    stats_.reserved_bytes[0].reset_accumulated();
  }

  void resetPeakStats(c10::DeviceIndex) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    stats_.allocated_bytes[0].reset_peak();
    stats_.reserved_bytes[0].reset_peak();
  }

  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    return {kTotalBytes - stats_.reserved_bytes[0].current, kTotalBytes};
  }

  void set_fraction(double fraction) {
    const std::lock_guard<std::mutex> lock(mutex_);
    limit_ = static_cast<size_t>(fraction * static_cast<double>(kTotalBytes));
  }

 private:
  static void release(void* block);

  void give_back(void* block) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = sizes_.find(block);
    stats_.allocated_bytes[0].decrease(found->second);
    cached_.emplace(found->second, block);
    sizes_.erase(found);
  }

  void* take_cached(size_t size) {
    const auto found = cached_.find(size);
    if (found == cached_.end()) {
      return nullptr;
    }
    void* block = found->second;
    cached_.erase(found);
    return block;
  }

  void* reserve(size_t size) {
    if (stats_.reserved_bytes[0].current + size > limit_) {
      drop_cached();
    }
    const size_t reserved = stats_.reserved_bytes[0].current;
    void* block = reserved + size > limit_ ? nullptr : std::aligned_alloc(kGranularity, size);
    TORCH_CHECK_WITH(
        OutOfMemoryError, block != nullptr, "stand-in device out of memory: ", size, " bytes on top of ", reserved);
    stats_.reserved_bytes[0].increase(size);
    return block;
  }

  void drop_cached() {
    for (const auto& [size, block] : cached_) {
      std::free(block);
      stats_.reserved_bytes[0].decrease(size);
    }
    cached_.clear();
  }

  std::mutex mutex_;
  size_t limit_ = kTotalBytes;
  std::unordered_map<void*, size_t> sizes_;
  std::multimap<size_t, void*> cached_;
  c10::CachingDeviceAllocator::DeviceStats stats_;
};

StandInAllocator& allocator() {
  static StandInAllocator instance;
  return instance;
}

void StandInAllocator::release(void* block) {
  if (block != nullptr) {
    allocator().give_back(block);
  }
}

REGISTER_ALLOCATOR(kType, &allocator());

// The device's random stream. Draws are made by the CPU's generator, with this one's state put in for the moment.
class StandInGenerator final : public c10::GeneratorImpl {
 public:
  StandInGenerator() : c10::GeneratorImpl(the_device(), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)) {
    set_current_seed(c10::detail::getNonDeterministicRandom());
  }

  void set_current_seed(uint64_t seed) override {
    seed_ = seed;
    auto fresh = at::detail::createCPUGenerator(seed);
    state_ = fresh.get_state();
  }

  void set_offset(uint64_t) override {
    TORCH_CHECK(false, "the stand-in's generator has no offset");
  }

  uint64_t get_offset() const override {
    TORCH_CHECK(false, "the stand-in's generator has no offset");
  }

  uint64_t current_seed() const override {
    return seed_;
  }

  uint64_t seed() override {
    set_current_seed(c10::detail::getNonDeterministicRandom());
    return seed_;
  }

  void set_state(const c10::TensorImpl& state) override {
    auto handle = c10::intrusive_ptr<c10::TensorImpl>::reclaim_copy(const_cast<c10::TensorImpl*>(&state));
    state_ = at::Tensor(std::move(handle)).clone();
  }

  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    return state_.clone().getIntrusivePtr();
  }

  template <typename Draw>
  void draw_with_own_state(const Draw& draw) {
    auto cpu = at::detail::getDefaultCPUGenerator();
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto kept = cpu.get_state();
    cpu.set_state(state_);
    draw();
    state_ = cpu.get_state();
    cpu.set_state(kept);
  }

 private:
  c10::GeneratorImpl* clone_impl() const override {
    auto* copy = new StandInGenerator();
    copy->seed_ = seed_;
    copy->state_ = state_.clone();
    return copy;
  }

  uint64_t seed_ = 0;
  at::Tensor state_;
};

at::Generator& generator() {
  static at::Generator instance = at::make_generator<StandInGenerator>();
  return instance;
}

struct StandInHooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override {
    return true;
  }
  bool isAvailable() const override {
    return true;
  }
  bool hasPrimaryContext(c10::DeviceIndex) const override {
    return true;
  }
  c10::DeviceIndex deviceCount() const override {
    return 1;
  }
  c10::DeviceIndex getCurrentDevice() const override {
    return 0;
  }
  void setCurrentDevice(c10::DeviceIndex) const override {}
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex) const override {
    return 0;
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex) const override {
    return 0;
  }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override {
    return generator();
  }
  at::Generator getNewGenerator(c10::DeviceIndex) const override {
    return at::make_generator<StandInGenerator>();
  }
};

struct StandInGuard final : c10::impl::DeviceGuardImplInterface {
  using Clock = std::chrono::steady_clock;

  c10::DeviceType type() const override {
    return kType;
  }
  c10::Device exchangeDevice(c10::Device) const override {
    return the_device();
  }
  c10::Device getDevice() const override {
    return the_device();
  }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::Stream getStream(c10::Device) const override {
    return c10::Stream(c10::Stream::DEFAULT, the_device());
  }
  c10::Stream getDefaultStream(c10::Device) const override {
    return getStream(the_device());
  }
  c10::Stream exchangeStream(c10::Stream) const override {
    return getStream(the_device());
  }
  c10::DeviceIndex deviceCount() const noexcept override {
    return 1;
  }
  void record(void** event, const c10::Stream&, c10::DeviceIndex, c10::EventFlag) const override {
    if (*event == nullptr) {
      *event = new Clock::time_point();
    }
    *static_cast<Clock::time_point*>(*event) = Clock::now();
  }
  void destroyEvent(void* event, c10::DeviceIndex) const noexcept override {
    delete static_cast<Clock::time_point*>(event);
  }
  double elapsedTime(void* start, void* end, c10::DeviceIndex) const override {
    const auto passed = *static_cast<Clock::time_point*>(end) - *static_cast<Clock::time_point*>(start);
    return std::chrono::duration<double, std::milli>(passed).count();
  }
  bool queryEvent(void*) const override {
    return true;
  }
  void synchronizeEvent(void*) const override {}
  void block(void*, const c10::Stream&) const override {}
  bool queryStream(const c10::Stream&) const override {
    return true;
  }
  void synchronizeStream(const c10::Stream&) const override {}
  void synchronizeDevice(c10::DeviceIndex) const override {}
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, StandInGuard);

// The same memory as a CPU tensor; valid while `tensor` lives.
at::Tensor on_host(const at::Tensor& tensor) {
  if (tensor.is_cpu()) {
    return tensor;
  }
  auto options = at::TensorOptions().dtype(tensor.scalar_type()).device(at::kCPU);
  return at::from_blob(tensor.data_ptr(), tensor.sizes(), tensor.strides(), options);
}

at::Tensor empty(
    c10::IntArrayRef size,
    std::optional<at::ScalarType> dtype,
    std::optional<at::Layout>,
    std::optional<at::Device>,
    std::optional<bool>,
    std::optional<at::MemoryFormat> format) {
  const c10::DispatchKeySet keys(c10::DispatchKey::PrivateUse1);
  return at::detail::empty_generic(size, &allocator(), keys, c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(
    c10::IntArrayRef size,
    c10::IntArrayRef stride,
    std::optional<at::ScalarType> dtype,
    std::optional<at::Layout>,
    std::optional<at::Device>,
    std::optional<bool>) {
  const c10::DispatchKeySet keys(c10::DispatchKey::PrivateUse1);
  return at::detail::empty_strided_generic(size, stride, &allocator(), keys, c10::dtype_or_default(dtype));
}

at::Tensor as_strided(
    const at::Tensor& self, c10::IntArrayRef size, c10::IntArrayRef stride, std::optional<int64_t> offset) {
  return at::native::as_strided_tensorimpl(self, size, stride, offset);
}

at::Tensor copy_from(const at::Tensor& self, const at::Tensor& to, bool) {
  on_host(to).copy_(on_host(self));
  return to;
}

at::Tensor copy_from_and_resize(const at::Tensor& self, const at::Tensor& to) {
  to.resize_(self.sizes());
  return copy_from(self, to, false);
}

const at::Tensor& resize_(const at::Tensor& self, c10::IntArrayRef size, std::optional<at::MemoryFormat>) {
  auto* impl = self.unsafeGetTensorImpl();
  impl->set_sizes_contiguous(size);
  const size_t needed = (impl->storage_offset() + impl->numel()) * impl->itemsize();
  if (needed > impl->storage().nbytes()) {
    const auto fresh = allocator().allocate(needed);
    auto& storage = const_cast<c10::Storage&>(impl->storage());
    std::memcpy(fresh.get(), storage.data(), storage.nbytes());
    storage.set_data_ptr_noswap(std::move(const_cast<c10::DataPtr&>(fresh)));
    storage.set_nbytes(needed);
  }
  return self;
}

at::Tensor& set_storage(
    at::Tensor& self, at::Storage source, int64_t offset, c10::IntArrayRef size, c10::IntArrayRef stride) {
  auto* impl = self.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(std::move(source));
  impl->set_sizes_and_strides(size, stride, offset);
  return self;
}

at::Scalar local_scalar(const at::Tensor& self) {
  return on_host(self).item();
}

// 0 is the mathematical form of attention: no fused kernel is promised.
int64_t attention_choice(
    const at::Tensor&,
    const at::Tensor&,
    const at::Tensor&,
    const std::optional<at::Tensor>&,
    double,
    bool,
    std::optional<double>,
    bool) {
  return 0;
}

void on_the_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  if (op.hasTag(at::Tag::nondeterministic_seeded)) {
    static_cast<StandInGenerator*>(generator().unsafeGetGeneratorImpl())->draw_with_own_state([&] {
      at::native::cpu_fallback(op, stack);
    });
    return;
  }
  at::native::cpu_fallback(op, stack);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&on_the_cpu>());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("empty.memory_format", TORCH_FN(empty));
  library.impl("empty_strided", TORCH_FN(empty_strided));
  library.impl("as_strided", TORCH_FN(as_strided));
  library.impl("view", TORCH_FN(at::native::view));
  library.impl("_reshape_alias", TORCH_FN(at::native::_reshape_alias));
  library.impl("resize_", TORCH_FN(resize_));
  library.impl("set_.source_Storage_storage_offset", TORCH_FN(set_storage));
  library.impl("_copy_from", TORCH_FN(copy_from));
  library.impl("_copy_from_and_resize", TORCH_FN(copy_from_and_resize));
  library.impl("_local_scalar_dense", TORCH_FN(local_scalar));
  library.impl("_fused_sdp_choice", TORCH_FN(attention_choice));
}

} // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
  static StandInHooks hooks;
  at::RegisterPrivateUse1HooksInterface(&hooks);
  module.def("total_bytes", [] { return kTotalBytes; });
  module.def("set_fraction", [](double fraction) { allocator().set_fraction(fraction); });
  module.def("seed", [](uint64_t seed) { generator().set_current_seed(seed); });
  module.def("state", [] { return generator().get_state(); });
  module.def("set_state", [](const at::Tensor& state) { generator().set_state(state); });
}
