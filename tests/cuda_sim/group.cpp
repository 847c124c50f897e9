// What ProcessGroupNCCL promises and forbids, for tensors of the simulated device; gloo carries them.
//
// - Tensors are contiguous, on the device and of a type that NCCL has. Tags are ignored: order counts.
// - The first operation makes the communicator: all ranks take part in it, and the host waits. So it
//   does at the first message between two ranks, which connects them, unless all sent to all before.
// - wait() orders streams and tells nothing: of a lost rank, or after abort(), it returns as ever. What
//   follows on a stream is done at once here, so it returns when the transfer is done or aborted.
// - Transfers of a group are done one after another, as late as allowed: when somebody waits, or after
//   kLate. Until then a receive buffer holds garbage, and a change of a send buffer is sent.
// - A transfer fails if a rank that takes part has ended, or if a message comes that is not as long as
//   what waits for it. Then this one and all after it are said to be completed; that they failed tell
//   exception() and get_future_result(), not get_error(), and wait(), once exception() is known. What
//   waits already waits until abort(). With a rank that stands still a transfer is never done.
// - With TORCH_NCCL_ASYNC_ERROR_HANDLING other than 0 a watchdog ends the process at the timeout, or
//   when a transfer has failed.
#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <torch/csrc/utils/pybind.h>

#include <pybind11/chrono.h>

#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <thread>

namespace {

using at::Tensor;
using Clock = std::chrono::steady_clock;
using Tensors = std::vector<Tensor>;
using Carrier = c10::intrusive_ptr<c10d::Backend>;  // gloo
using WorkPtr = c10::intrusive_ptr<c10d::Work>;
constexpr auto kLate = std::chrono::milliseconds(10);
constexpr int kMeeting = 1 << 30;  // a tag

struct Stream;

struct Transfer final : c10d::Work {
  Transfer(std::shared_ptr<Stream> on, std::function<void()> what, Tensors made)
      : stream(std::move(on)), run(std::move(what)), out(std::move(made)) {}
  bool wait(std::chrono::milliseconds) override;
  void synchronize() override { wait(kNoTimeout); }
  bool isCompleted() override;
  bool isSuccess() const override { throw std::runtime_error("WorkNCCL::isSuccess() is deprecated"); }
  std::vector<Tensor> result() override { return out; }
  c10::intrusive_ptr<c10::ivalue::Future> getFutureResult() override { return told; }
  void tell(c10d::WorkResult how) { told->markCompleted(static_cast<uint8_t>(how)); }

  std::shared_ptr<Stream> stream;
  std::function<void()> run;
  Tensors out;
  Clock::time_point posted = Clock::now();
  c10::intrusive_ptr<c10::ivalue::Future> told =
      c10::make_intrusive<c10::ivalue::Future>(c10::AnyEnumType::get());
  uint64_t number = 0;
  bool is_done = false;
};
using TransferPtr = c10::intrusive_ptr<Transfer>;

// The transfers of a group, which a thread does in their order.
struct Stream {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<TransferPtr> posted;
  uint64_t num_posted = 0, num_awaited = 0;
  bool is_aborted = false, is_closed = false;
  std::string failure;  // of a transfer; there is no other after it

  TransferPtr post(TransferPtr transfer) {
    std::lock_guard<std::mutex> lock(mutex);
    if (is_aborted) throw std::runtime_error("NCCL communicator was aborted");
    transfer->number = ++num_posted;
    posted.push_back(transfer);
    changed.notify_all();
    return transfer;
  }

  void wait(const Transfer& transfer) {
    std::unique_lock<std::mutex> lock(mutex);
    num_awaited = std::max(num_awaited, transfer.number);
    changed.notify_all();
    changed.wait(lock, [&] { return transfer.is_done || is_aborted; });
  }

  void end(bool by_abort) {
    std::lock_guard<std::mutex> lock(mutex);
    (by_abort ? is_aborted : is_closed) = true;
    changed.notify_all();
  }

  void serve() {
    do_all();
    std::unique_lock<std::mutex> lock(mutex);
    auto rest = std::move(posted);
    lock.unlock();
    for (auto& transfer : rest) transfer->run = nullptr;  // they hold connections open
  }

  void do_all() {
    std::unique_lock<std::mutex> lock(mutex);
    while (!is_aborted && !(is_closed && posted.empty())) {
      if (posted.empty()) {
        changed.wait(lock);
        continue;
      }
      auto next = posted.front();
      if (next->number > num_awaited && Clock::now() < next->posted + kLate) {
        changed.wait_until(lock, next->posted + kLate);
        continue;
      }
      lock.unlock();
      std::string error;
      try {
        next->run();
      } catch (const c10::Error& lost) {
        error = lost.what_without_backtrace();
      } catch (const std::exception& lost) {
        error = lost.what();
      }
      lock.lock();
      if (!error.empty()) {
        failure = error;
        changed.wait(lock, [&] { return is_aborted; });
        return;
      }
      next->is_done = true;
      next->tell(c10d::WorkResult::SUCCESS);
      auto over = std::move(next->run);
      posted.pop_front();
      changed.notify_all();
      lock.unlock();  // who lets a tensor go may have to wait for Python's lock
      over = nullptr;
      next.reset();
      lock.lock();
    }
  }

  void watch(std::chrono::milliseconds timeout) {
    std::unique_lock<std::mutex> lock(mutex);
    while (!is_aborted && !is_closed) {
      changed.wait_for(lock, kLate);
      const bool is_late = !posted.empty() && Clock::now() >= posted.front()->posted + timeout;
      if (is_aborted || (failure.empty() && !is_late)) continue;
      std::fputs("Watchdog caught collective operation timeout or error: ends the process\n", stderr);
      std::_Exit(134);
    }
  }
};

bool Transfer::wait(std::chrono::milliseconds) {
  if (auto error = exception()) {
    stream->end(true);
    std::rethrow_exception(error);
  }
  stream->wait(*this);
  return true;
}

bool Transfer::isCompleted() {
  std::lock_guard<std::mutex> lock(stream->mutex);
  if (is_done || stream->is_aborted) return true;
  if (stream->failure.empty()) return false;
  std::lock_guard<std::mutex> own(mutex_);
  if (!exception_) {
    const c10::SourceLocation here{__func__, __FILE__, __LINE__};
    exception_ = std::make_exception_ptr(c10::DistBackendError(here, "NCCL error: " + stream->failure));
    tell(c10d::WorkResult::COMM_ERROR);
  }
  return true;
}

Tensor on_cpu(const Tensor& t) {
  static auto op = c10::Dispatcher::singleton()
                       .findSchemaOrThrow("simulated_cuda::on_cpu", "")
                       .typed<Tensor(const Tensor&)>();
  return op.call(t);
}

Tensor checked(const Tensor& t) {
  TORCH_CHECK(t.is_cuda(), "No backend type associated with device type cpu");
  TORCH_CHECK(t.is_contiguous(), "Tensors must be contiguous");
  switch (t.scalar_type()) {
    case at::kChar: case at::kByte: case at::kBool: case at::kInt: case at::kLong:
    case at::kHalf: case at::kBFloat16: case at::kFloat: case at::kDouble:
      return on_cpu(t);
    default:
      TORCH_CHECK_TYPE(
          false, "Input tensor data type is not supported for NCCL process group: ", t.scalar_type());
  }
}

Tensors checked(const Tensors& tensors) {
  Tensors found;
  for (const auto& t : tensors) found.push_back(checked(t));
  return found;
}

Tensor spoilt(Tensor t) {
  if (t.nbytes()) std::memset(t.mutable_data_ptr(), 0xff, t.nbytes());
  return t;
}

class SimulatedNCCL final : public c10d::Backend {
 public:
  SimulatedNCCL(Carrier carrier, int rank, int size, PyObject* options, std::chrono::milliseconds timeout)
      : Backend(rank, size), options(options), carrier_(std::move(carrier)) {
    std::thread([s = stream_] { s->serve(); }).detach();
    const char* handling = std::getenv("TORCH_NCCL_ASYNC_ERROR_HANDLING");
    if (!handling || std::string(handling) != "0")
      std::thread([s = stream_, timeout] { s->watch(timeout); }).detach();
  }
  ~SimulatedNCCL() override { stream_->end(false); }

  PyObject* const options;  // held for ever

  const std::string getBackendName() const override { return "nccl"; }
  bool supportsCoalescing() const override { return true; }
  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override { return 0; }
  c10d::ErrorType getError() override { return c10d::ErrorType::SUCCESS; }
  void abort() override {
    stream_->end(true);
    carrier_ = nullptr;
  }
  void shutdown() override { stream_->end(false); }

  void startCoalescing() override {
    open_ = c10::make_intrusive<Transfer>(stream_, nullptr, Tensors{});
    batch_.clear();
  }
  WorkPtr endCoalescing() override {
    std::vector<int> strangers;
    for (const auto& message : batch_)
      if (connected_.insert(message.peer).second) strangers.push_back(message.peer);
    if (!strangers.empty()) connect(std::move(strangers));
    open_->run = [g = carrier_, batch = std::move(batch_)] {
      // Of each message the number of bytes goes before it; one receives it for the next tag.
      std::vector<WorkPtr> works, sizes;
      std::vector<Tensor> told;
      for (bool sends : {false, true})  // receives first: a send may wait for its receive
        for (const auto& [is_send, cpu, peer, number] : batch) {
          if (is_send != sends) continue;
          Tensors t{cpu}, size{at::scalar_tensor(static_cast<int64_t>(cpu.nbytes()), at::kLong)};
          if (is_send) {
            works.push_back(g->send(size, peer, 2 * number));
            works.push_back(g->send(t, peer, 2 * number + 1));
          } else {
            sizes.push_back(g->recv(size, peer, 2 * number));
          }
          told.push_back(size[0]);
        }
      size_t i = 0;
      for (const auto& [is_send, cpu, peer, number] : batch) {
        if (is_send) continue;
        sizes[i]->wait();
        const auto size = told[i++].item<int64_t>();
        TORCH_CHECK(
            size == static_cast<int64_t>(cpu.nbytes()), "message truncated: receiving ", size,
            " bytes instead of ", cpu.nbytes());
        Tensors t{cpu};
        works.push_back(g->recv(t, peer, 2 * number + 1));
      }
      for (auto& work : works) work->wait();
    };
    open_->posted = Clock::now();
    return start(std::move(open_));
  }
  WorkPtr send(Tensors& tensors, int peer, int) override { return add(true, checked(tensors.at(0)), peer); }
  WorkPtr recv(Tensors& tensors, int peer, int) override { return add(false, spoilt(checked(tensors.at(0))), peer); }

  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    return start([g = carrier_, t = checked(tensors), options]() mutable { g->allreduce(t, options)->wait(); }, tensors);
  }
  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override {
    return start([g = carrier_, t = checked(tensors), options]() mutable { g->broadcast(t, options)->wait(); }, tensors);
  }
  WorkPtr allgather(std::vector<Tensors>& out, Tensors& in, const c10d::AllgatherOptions& options) override {
    std::vector<Tensors> places;
    for (auto& each : out) {
      places.push_back(checked(each));
      for (auto& t : places.back()) spoilt(t);
    }
    return start([g = carrier_, places, t = checked(in), options]() mutable { g->allgather(places, t, options)->wait(); }, out.at(0));
  }
  WorkPtr alltoall_base(Tensor& out, Tensor& in, std::vector<int64_t>& out_sizes, std::vector<int64_t>& in_sizes, const c10d::AllToAllOptions& options) override {
    for (int peer = 0; peer < getSize(); peer++) connected_.insert(peer);
    return start([g = carrier_, to = spoilt(checked(out)), from = checked(in), out_sizes, in_sizes, options]() mutable {
      g->alltoall_base(to, from, out_sizes, in_sizes, options)->wait();
    }, {out});
  }
  WorkPtr barrier(const c10d::BarrierOptions& options) override {
    return start([g = carrier_, options] { g->barrier(options)->wait(); });
  }

 private:
  struct Message {
    bool is_send;
    Tensor cpu;
    int peer, number;
  };

  WorkPtr add(bool is_send, Tensor cpu, int peer) {
    TORCH_CHECK(open_, "expected sends and receives in a batch, as NCCL needs them");
    batch_.push_back({is_send, std::move(cpu), peer, numbers_[{is_send, peer}]++});
    return open_;
  }

  // Returns when these ranks do the same.
  void connect(std::vector<int> peers) {
    auto meet = [g = carrier_, peers = std::move(peers)] {
      Tensors told = {at::zeros({1}), at::zeros({1})};
      std::vector<WorkPtr> works;
      for (int peer : peers) {
        Tensors in{told[0]}, out{told[1]};
        works.push_back(g->recv(in, peer, kMeeting));
        works.push_back(g->send(out, peer, kMeeting));
      }
      for (auto& work : works) work->wait();
    };
    stream_->post(c10::make_intrusive<Transfer>(stream_, meet, Tensors{}))->wait(kNoTimeout);
  }

  WorkPtr start(std::function<void()> run, Tensors out = {}) {
    return start(c10::make_intrusive<Transfer>(stream_, std::move(run), std::move(out)));
  }

  WorkPtr start(TransferPtr transfer) {
    if (!has_communicator_) {
      auto meet = [g = carrier_] { g->barrier()->wait(); };
      stream_->post(c10::make_intrusive<Transfer>(stream_, meet, Tensors{}))->wait(kNoTimeout);
      has_communicator_ = true;
    }
    return stream_->post(std::move(transfer));
  }

  Carrier carrier_;
  std::shared_ptr<Stream> stream_ = std::make_shared<Stream>();
  TransferPtr open_;  // the batch that is being told
  std::vector<Message> batch_;
  std::map<std::pair<bool, int>, int> numbers_;
  bool has_communicator_ = false;
  std::set<int> connected_;  // ranks
};

// As torch calls it: (store, rank, size, options), which have a _timeout.
c10::intrusive_ptr<SimulatedNCCL> make(py::object store, int rank, int size, py::object options) {
  auto hours = py::module_::import("datetime").attr("timedelta")(py::arg("hours") = 1);
  auto gloo = py::module_::import("torch.distributed").attr("ProcessGroupGloo")(store, rank, size, hours);
  auto timeout = options.attr("_timeout").cast<std::chrono::milliseconds>();
  return c10::make_intrusive<SimulatedNCCL>(
      gloo.cast<Carrier>(), rank, size, options.release().ptr(), timeout);
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  py::class_<SimulatedNCCL, c10::intrusive_ptr<SimulatedNCCL>, c10d::Backend>(m, "ProcessGroupNCCL")
      .def(py::init(&make))
      .def_property_readonly("uid", [](SimulatedNCCL&) { return 0; })
      .def_property_readonly("options", [](SimulatedNCCL& g) { return py::reinterpret_borrow<py::object>(g.options); });
}
